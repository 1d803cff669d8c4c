"""Every gradient against central differences: (f(x + h) - f(x - h)) / 2h. Knows no derivation."""

from collections.abc import Callable, Iterator

import numpy as np

from dragoman.reference import attention, functions, training, transformer
from dragoman.reference.functions import Array
from dragoman.reference.parameters import Config, initialise
from dragoman.reference.training import Batch, loss_and_gradients

STEP = 1e-5  # the formula is off by about STEP^2, rounding by about 1e-16 / STEP: both near 1e-10
TOLERANCE = 1e-7

Checked = Iterator[tuple[str, float]]  # names, and how far the derived gradient is from the measured one


def measured_gradient(function: Callable[[], float], x: Array) -> Array:
    """The slope of function() along every entry of x, which it reads."""
    slopes = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        direction = np.zeros_like(x)
        direction[place] = 1.0
        slopes[place] = measured_slope(function, x, direction)
    return slopes


def measured_slope(function: Callable[[], float], x: Array, direction: Array) -> float:
    """The slope of function() as x, which it reads, moves along a direction."""
    before = x.copy()
    x[...] = before + STEP * direction
    above = function()
    x[...] = before - STEP * direction
    below = function()
    x[...] = before
    return (above - below) / (2.0 * STEP)


def difference(derived: Array | float, measured: Array | float) -> float:
    """The largest difference, relative to the larger of 1 and the measured gradient."""
    return float(np.max(np.abs(np.subtract(derived, measured)) / np.maximum(1.0, np.abs(measured))))


# Each function on its own, entry by entry. The loss is the product of its output with random numbers d_y, so its
# derivative by the output is d_y, and any wrong entry of a backward shows.


def compare(name: str, inputs: dict[str, Array], forward: Callable[[], Array], d_y: Array, *derived: Array) -> Checked:
    for (input_name, x), gradient in zip(inputs.items(), derived, strict=True):
        measured = measured_gradient(lambda: float((forward() * d_y).sum()), x)
        yield f"{name}: {input_name}", difference(gradient, measured)


def check_functions(random: np.random.Generator) -> Checked:
    yield from check_linear(random)
    yield from check_softmax(random)
    yield from check_layer_norm(random)
    for activation in functions.ACTIVATIONS:
        yield from check_activation(activation, random)
    yield from check_dropout(random)
    yield from check_embedding(random)
    yield from check_attention(random)
    yield from check_loss(random)


def check_linear(random: np.random.Generator) -> Checked:
    x, weight, bias, d_y = (random.normal(size=size) for size in ((2, 3, 4), (5, 4), (5,), (2, 3, 5)))
    _, saved = functions.linear(x, weight, bias)
    yield from compare(
        "linear",
        {"x": x, "weight": weight, "bias": bias},
        lambda: functions.linear(x, weight, bias)[0],
        d_y,
        *functions.linear_backward(d_y, saved),
    )


def check_softmax(random: np.random.Generator) -> Checked:
    """With a row that may attend to everything, rows that may attend to some, and one that may attend to nothing."""
    scores, d_p = (random.normal(size=(4, 5)) for _ in range(2))
    allowed = np.array([[True] * 5, [True] * 2 + [False] * 3, [False, True] * 2 + [False], [False] * 5])
    _, saved = functions.softmax(scores, allowed)
    yield from compare(
        "softmax",
        {"scores": scores},
        lambda: functions.softmax(scores, allowed)[0],
        d_p,
        functions.softmax_backward(d_p, saved),
    )


def check_layer_norm(random: np.random.Generator) -> Checked:
    x, scale, shift, d_y = (random.normal(size=size) for size in ((2, 3, 4), (4,), (4,), (2, 3, 4)))
    _, saved = functions.layer_norm(x, scale, shift)
    yield from compare(
        "layer norm",
        {"x": x, "scale": scale, "shift": shift},
        lambda: functions.layer_norm(x, scale, shift)[0],
        d_y,
        *functions.layer_norm_backward(d_y, saved),
    )


def check_activation(name: str, random: np.random.Generator) -> Checked:
    x, d_y = (random.normal(size=(3, 4)) for _ in range(2))
    activation = functions.ACTIVATIONS[name]
    _, slope = activation(x)
    yield from compare(name, {"x": x}, lambda: activation(x)[0], d_y, d_y * slope)


def check_dropout(random: np.random.Generator) -> Checked:
    x, d_y = (random.normal(size=(3, 4)) for _ in range(2))
    mask = random.integers(0, 2, x.shape) / 0.5
    _, saved = functions.dropout(x, mask)
    gradient = functions.dropout_backward(d_y, saved)
    yield from compare("dropout", {"x": x}, lambda: functions.dropout(x, mask)[0], d_y, gradient)


def check_embedding(random: np.random.Generator) -> Checked:
    """With a token that occurs twice."""
    ids, table, d_x = np.array([3, 1, 3]), random.normal(size=(5, 4)), random.normal(size=(3, 4))
    _, saved = functions.embedding(ids, table)
    gradient = functions.embedding_backward(d_x, saved)
    yield from compare("embedding", {"table": table}, lambda: functions.embedding(ids, table)[0], d_x, gradient)


def check_attention(random: np.random.Generator) -> Checked:
    """With a complete sentence, a padded one, and one that is all padding."""
    q, k, v, d_heads = (random.normal(size=(3, 2, *size)) for size in ((3, 4), (5, 4), (5, 3), (3, 3)))
    allowed = attention.padding_mask(np.arange(5) < np.array([[5], [2], [0]]))
    mask = random.integers(0, 2, (3, 2, 3, 5)) / 0.5
    _, _, saved = attention.attend(q, k, v, allowed, mask)
    yield from compare(
        "attention",
        {"q": q, "k": k, "v": v},
        lambda: attention.attend(q, k, v, allowed, mask)[0],
        d_heads,
        *attention.attend_backward(d_heads, saved),
    )


def check_loss(random: np.random.Generator) -> Checked:
    logits, target = random.normal(size=(2, 3, 5)), np.array([[1, 4, 2], [3, training.PAD, training.PAD]])
    _, saved = training.smoothed_loss(logits, target, 0.1)
    yield from compare(
        "label-smoothed loss",
        {"logits": logits},
        lambda: np.array(training.smoothed_loss(logits, target, 0.1)[0]),
        np.ones(()),
        training.smoothed_loss_backward(saved),
    )


# The whole model: along one random direction per parameter, which covers all its entries


def random_batch(config: Config, random: np.random.Generator) -> Batch:
    """Three sentences of unequal length; the third source is all padding."""
    source_ids = random.integers(1, config.vocab_size, (3, 5))
    source_allowed = np.arange(5) < np.array([[5], [2], [0]])
    target_ids, goal_ids = (random.integers(1, config.target_vocabulary, (3, 4)) for _ in range(2))
    goal_ids[1, 2:] = training.PAD
    return Batch(source_ids, source_allowed, target_ids, goal_ids)


def random_masks(activations: dict[str, Array], rate: float, random: np.random.Generator) -> dict[str, Array]:
    """A dropout mask for every place with dropout, including the attention weights."""
    return {
        name.replace(".weights", ".dropout"): (random.random(activation.shape) >= rate) / (1.0 - rate)
        for name, activation in activations.items()
        if name.endswith((".dropout", ".weights"))
    }


def check_model(config: Config, random: np.random.Generator) -> Checked:
    parameters = initialise(config, random)
    for weight in parameters.values():
        weight += random.normal(0.0, 0.1, weight.shape)  # biases and norms too must have distinct values
    batch = random_batch(config, random)
    _, run = transformer.forward(parameters, config, batch.source_ids, batch.target_ids, batch.source_allowed)
    masks = random_masks(run.activations, 0.2, random)
    _, gradients = loss_and_gradients(parameters, config, batch, masks)
    for name, weight in parameters.items():
        direction = random.normal(size=weight.shape)
        direction /= np.linalg.norm(direction)
        measured = measured_slope(lambda: loss_and_gradients(parameters, config, batch, masks)[0], weight, direction)
        yield name, difference(float((gradients[name] * direction).sum()), measured)
