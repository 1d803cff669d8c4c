"""A snapshot of the attention on one validation pair, taken at every validation. Knows nothing of files.

The pair is always the same and its translation is forced, so that only the model's weights change between snapshots.
"""

import base64
from typing import Any

import numpy as np

from dragoman.data.store import Store
from dragoman.decode.translator import Translator

MAX_TOKENS = 30  # of the pair, if one is that short


def take_snapshot(valid: Store, translator: Translator) -> dict[str, Any] | None:
    """A snapshot as JSON; None for a model without attention to the source."""
    source, target = _pair(valid)
    source_end = translator.tokenizers.source.vocabulary.eos
    target_end = translator.tokenizers.target.vocabulary.eos
    attention = translator.attention([*source, source_end], [*target, target_end])
    if not len(attention.cross):
        return None
    levels = np.rint(attention.cross.mean(axis=1) * 255).astype(np.uint8)
    return {
        "source_tokens": attention.source_tokens,
        "tokens": attention.tokens,
        "shape": list(levels.shape),
        "bytes": base64.b64encode(levels.tobytes()).decode("ascii"),
    }


def _pair(valid: Store) -> tuple[list[int], list[int]]:
    """The longest of the first validation pairs that is readable as a picture, else the shortest."""
    first = range(min(200, len(valid)))
    pairs = [(valid.source(row).tolist(), valid.target(row).tolist()) for row in first]
    fitting = [pair for pair in pairs if max(map(len, pair)) < MAX_TOKENS]
    return max(fitting, key=_length) if fitting else min(pairs, key=_length)


def _length(pair: tuple[list[int], list[int]]) -> int:
    return max(map(len, pair))
