"""The decoder's state between steps: keys and values, held outside the modules. Knows nothing of search.

A cache belongs to one batch being decoded. Its rows can be kept, repeated and reordered as a beam moves.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.model.attention import KeysValues


@dataclass
class LayerCache:
    """One decoder layer: the source's keys and values, computed once, the target's so far, and the heads in use."""

    source: KeysValues
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

    def select(self, rows_N: Tensor) -> None:
        self.source = KeysValues(*(part.index_select(0, rows_N) for part in self.source))
        if self.target is not None:
            self.target = KeysValues(*(part.index_select(0, rows_N) for part in self.target))
        self.self_head_mask_BH = _rows_of(self.self_head_mask_BH, rows_N)
        self.cross_head_mask_BH = _rows_of(self.cross_head_mask_BH, rows_N)


@dataclass
class DecoderCache:
    """All layers, how many target positions they hold, and which source positions are real."""

    layers: list[LayerCache]
    source_allowed: Tensor | None
    length: int = 0

    def select(self, rows_N: Tensor) -> None:
        """Replace each row n with the former row rows_N[n]."""
        for layer in self.layers:
            layer.select(rows_N)
        self.source_allowed = _rows_of(self.source_allowed, rows_N)


def _rows_of(mask: Tensor | None, rows_N: Tensor) -> Tensor | None:
    return None if mask is None else mask.index_select(0, rows_N)
