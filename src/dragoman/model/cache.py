"""The decoder's state between steps: keys and values, held outside the modules. Knows nothing of search.

A cache belongs to one batch being decoded. Its sentences can be kept and repeated, their hypotheses reordered.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.model.attention import KeysValues


@dataclass
class LayerCache:
    """One decoder layer: the source's keys and values, computed once, the target's so far, and the heads in use."""

    source: KeysValues | None  # None: a decoder without an encoder
    target: KeysValues | None = None
    self_head_mask_BH: Tensor | None = None  # None: all heads
    cross_head_mask_BH: Tensor | None = None

    def extend(self, new: KeysValues) -> KeysValues:
        """Append the keys and values of the newest positions and return them all."""
        if self.target is None:
            self.target = new
        else:
            self.target = KeysValues(
                *(torch.cat((old, more), dim=2) for old, more in zip(self.target, new, strict=True))
            )
        return self.target

    def reorder(self, row_N: Tensor) -> None:
        """Replace each row n of the target with the former row row_N[n]."""
        if self.target is not None:
            self.target = KeysValues(*(part.index_select(0, row_N) for part in self.target))
        self.self_head_mask_BH = rows_of(self.self_head_mask_BH, row_N)

    def select(self, sentence_B: Tensor) -> None:
        """Replace each sentence b of the source with the former sentence sentence_B[b]."""
        if self.source is not None:
            self.source = KeysValues(*(part.index_select(0, sentence_B) for part in self.source))
        self.cross_head_mask_BH = rows_of(self.cross_head_mask_BH, sentence_B)


@dataclass
class DecoderCache:
    """All layers, how many target positions they hold, and which source positions are real.

    A sentence has `width` hypotheses. Each is a row of the target's keys and values; those of the source are shared.
    """

    layers: list[LayerCache]
    source_allowed: Tensor | None
    length: int = 0
    width: int = 1

    def reorder(self, parent_BW: Tensor) -> None:
        """Hypothesis w of sentence b becomes the former hypothesis parent_BW[b, w]."""
        row_N = rows_of_hypotheses(parent_BW, self.width)
        for layer in self.layers:
            layer.reorder(row_N)
        self.width = parent_BW.size(1)

    def select(self, sentence_B: Tensor) -> None:
        """Replace each sentence b with the former sentence sentence_B[b]."""
        row_N = rows_of_sentences(sentence_B, self.width)
        for layer in self.layers:
            layer.reorder(row_N)
            layer.select(sentence_B)
        self.source_allowed = rows_of(self.source_allowed, sentence_B)


def rows_of_hypotheses(parent_BW: Tensor, width: int) -> Tensor:
    """The rows of these hypotheses, where each sentence has `width` rows."""
    first_B1 = width * torch.arange(len(parent_BW), device=parent_BW.device)[:, None]
    return (first_B1 + parent_BW).flatten()


def rows_of_sentences(sentence_B: Tensor, width: int) -> Tensor:
    """All rows of these sentences."""
    return (width * sentence_B[:, None] + torch.arange(width, device=sentence_B.device)).flatten()


def rows_of(mask: Tensor | None, row_N: Tensor) -> Tensor | None:
    return None if mask is None else mask.index_select(0, row_N)
