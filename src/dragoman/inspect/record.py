"""What an inspector found in one text, sequence or series, in the form that terminal, page and pictures share."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dragoman import pictures
from dragoman.static_page import document, section, table

Array = npt.NDArray[np.float64]
Pictures = Iterator[tuple[str, str]]  # a name and an SVG each


@dataclass(frozen=True)
class Heatmap:
    """Small enough for a terminal."""

    title: str
    weights: Array  # from 0 to 1
    rows: Sequence[str]
    columns: Sequence[str]


@dataclass(frozen=True)
class Record:
    """Plain data, and how to draw it."""

    name: str  # the text, or which sequence it was
    summary: str
    headings: Sequence[str]
    table: Sequence[Sequence[str]]
    heatmap: Heatmap | None  # None: the model has no attention
    draw: Callable[[], Pictures]
    data: dict[str, Any]  # the same for programs


def page(records: Sequence[Record], model_name: str) -> str:
    """Everything as one HTML file."""
    parts: list[str] = []
    for record in records:
        parts += section(f"{record.name}: {record.summary}", table(record.headings, record.table))
        for name, picture in record.draw():
            parts += section("All heads" if name == "heads" else name.replace("-", " ").capitalize(), picture)
    return document(f"{model_name}: {records[0].name}", parts)


def attention_picture(record: Record) -> str:
    """Of all pictures the one of the last layer's attention, the mean of its heads; empty without attention."""
    drawn = [picture for name, picture in record.draw() if name == "attention" or name.startswith("layer-")]
    return drawn[-1] if drawn else ""


def stacked(weights: Sequence[torch.Tensor]) -> Array:
    """The attention weights of one item, from those of each layer: [layer, head, looking, looked at]."""
    return torch.stack([weight[0] for weight in weights]).double().cpu().numpy()


def draw_heads(attention_LHTS: Array, caption: str, *, stretched: bool = False) -> str:
    """A grid of all heads. `stretched`: each up to its maximum, for attention that is spread over many vectors."""
    if stretched:
        attention_LHTS = attention_LHTS / attention_LHTS.max(axis=(2, 3), keepdims=True)
        caption += "; each head up to its maximum"
    layers, heads = attention_LHTS.shape[:2]
    names = [[f"{layer}.{head}" for head in range(1, heads + 1)] for layer in range(1, layers + 1)]
    return pictures.svg_grid(attention_LHTS, names, title="Every head (layer.head)", caption=caption)


def candidates(
    log_prob_V: torch.Tensor, pieces: Callable[[Sequence[int]], Sequence[str]], most: int
) -> list[tuple[str, float]]:
    """The likeliest tokens and their probabilities."""
    best = log_prob_V.topk(min(most, len(log_prob_V)))
    return list(zip(pieces(best.indices.tolist()), best.values.exp().tolist(), strict=True))
