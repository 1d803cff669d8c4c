"""An inspection as pictures: SVG files for documents and slides. Knows nothing of pages."""

from dragoman.decode.translation import Attention
from dragoman.inspect.capture import KINDS, Inspection
from dragoman.pictures import svg_grid, svg_heatmap

TITLES = {
    "encoder": "Encoder self-attention: where each source token looked in the source",
    "decoder": "Decoder self-attention: where each target token looked in the target before it",
    "cross": "Cross-attention: where each target token looked in the source",
}


def pictures_of(inspection: Inspection) -> dict[str, str]:
    """SVG by name: for each kind of attention, the grid of all heads and the mean over heads of one layer.

    For cross-attention this is the layer that aligns best; otherwise the second to last, as the last is often diffuse.
    """
    pictures = {}
    for kind in KINDS:
        weights = getattr(inspection.attention, kind)
        if not len(weights):
            continue
        layers = range(1, len(weights) + 1)
        names = [[f"{kind}.{layer}.{head}" for head in range(1, weights.shape[1] + 1)] for layer in layers]
        pictures[f"{kind}-heads"] = svg_grid(weights, names, title=TITLES[kind], caption="every head, layer by layer")
        layer = inspection.attention.alignment_layer if kind == "cross" else max(0, len(weights) - 2)
        rows, columns = labels(inspection.attention, kind)
        pictures[f"{kind}-mean"] = svg_heatmap(
            weights[layer].mean(axis=0),
            rows,
            columns,
            title=TITLES[kind],
            caption=f"mean over heads of layer {layer + 1}",
        )
    return pictures


def labels(attention: Attention, kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The labels of the queries, which are rows, and of the keys."""
    queries = attention.source_tokens if kind == "encoder" else attention.tokens
    keys = attention.input_tokens if kind == "decoder" else attention.source_tokens
    return queries, keys
