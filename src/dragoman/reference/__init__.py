"""The Transformer in NumPy float64, forward and hand-derived backward: the oracle. Knows nothing of the package.

docs/derivation.md has the equations; each function here names the one it computes. Read in this order:
    functions.py    linear, softmax, activations, layer norm, dropout, embedding, positions
    attention.py    the scaled dot product and its heads
    parameters.py   the sizes of a model, and its weights by name
        transformer.py  sub-layers, layers, encoder and decoder: the forward pass, and the same steps backward
    training.py     the label-smoothed loss, Adam, the warm-up
    check.py        every gradient against central differences
    copying.py      the copy task
`python -m dragoman.reference` checks all gradients and trains the copy task.
"""
