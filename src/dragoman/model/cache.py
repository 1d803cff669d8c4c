"""The decoder's memory between steps: keys and values, held outside the modules. Knows nothing of search.

A cache belongs to one batch being decoded. Its rows can be kept, repeated and reordered as a beam moves.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.model.attention import KeysValues


@dataclass
class LayerCache:
    """One decoder layer: the source's keys and values, computed once, and the target's so far."""

    source: KeysValues
    target: KeysValues | None = None

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


@dataclass
class DecoderCache:
    """All layers, how many target positions they hold, and which source positions are real."""

    layers: list[LayerCache]
    source_allowed: Tensor | None
    length: int = 0

    def select(self, rows_N: Tensor) -> None:
        """Row n becomes what row rows_N[n] was."""
        for layer in self.layers:
            layer.select(rows_N)
        if self.source_allowed is not None:
            self.source_allowed = self.source_allowed.index_select(0, rows_N)
