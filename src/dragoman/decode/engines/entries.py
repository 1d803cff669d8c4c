"""Space for keys and values: entries are taken one after another, and unused ones are reclaimed. Knows no hypotheses.

Shapes: H heads, D and E width of a head's keys and values.
"""

import numpy as np

from dragoman.config import StackSize
from dragoman.int8 import Array

SPARE = 4  # times the entries in use: how much room there is after reclaiming, which copies all that are in use

Cache = tuple[Array, Array]  # keys and values: [entries, H, D] and [entries, H, E]


class Entries:
    """Keys and values of all layers of a stack; an entry has the same index in every layer."""

    def __init__(self, size: StackSize) -> None:
        self.caches = [new_cache(size, 0) for _ in range(size.num_layers)]
        self._size, self._used = size, 0

    def has_room(self, count: int) -> bool:
        return self._used + count <= len(self.caches[0][0])

    def take(self, count: int) -> int:
        """Take so many, one after another; return the first."""
        assert self.has_room(count)  # loops would write beyond the end
        first, self._used = self._used, self._used + count
        return first

    def reclaim(self, needed: Array, count: int) -> Array:
        """Keep the needed ones alone, in this order, and make room for more; return the new number of each."""
        renumbered = np.zeros(self._used, np.int64)
        renumbered[needed] = np.arange(len(needed))
        room = (SPARE if self._used else 1) * (len(needed) + count)  # at first, nobody may ever want more
        for layer, cache in enumerate(self.caches):
            larger = cache if room <= len(cache[0]) else new_cache(self._size, room)
            for old, new in zip(cache, larger, strict=True):
                new[: len(needed)] = old[needed]
            self.caches[layer] = larger
        self._used = len(needed)
        return renumbered


def new_cache(size: StackSize, entries: int) -> Cache:
    widths = size.d_k, size.d_v
    keys, values = (np.empty((entries, size.num_heads, width), np.float32) for width in widths)
    return keys, values
