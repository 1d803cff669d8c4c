"""Which target pieces can translate a source piece, and the file that says so. Knows nothing of models or directories.

Files are untrusted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy
from safetensors import deserialize

from dragoman.errors import ModelError
from dragoman.int8 import Array
from dragoman.weights import check_header, not_safetensors

MOST_PIECES = 1_000  # for one source piece
RELEARN = "make it again with `dragoman shortlist`"
_INTEGERS = {"I16": np.int16, "I32": np.int32}


@dataclass(frozen=True)
class Shortlist:
    """The target pieces of every source piece, and those that are always allowed, </s> among them."""

    pieces_SK: Array  # [source vocabulary, K]; unused places repeat an id that is allowed anyway
    always: Array
    target_size: int

    def allowed(self, sources: Sequence[Sequence[int]]) -> Array:
        """Which target pieces may translate each sentence: [B, target vocabulary], bool."""
        allowed_BV = np.zeros((len(sources), self.target_size), bool)
        allowed_BV[:, self.always] = True
        for allowed_V, source in zip(allowed_BV, sources, strict=True):
            allowed_V[self.pieces_SK[source]] = True
        return allowed_BV

    def to_bytes(self) -> bytes:
        """As a safetensors file, in the smallest integers that hold every id."""
        integer = np.int16 if self.target_size <= 1 << 15 else np.int32
        arrays = {"pieces": self.pieces_SK.astype(integer), "always": self.always.astype(integer)}
        return bytes(safetensors.numpy.save(arrays))


def max_bytes(source_size: int, target_size: int) -> int:
    """That a shortlist of these vocabularies can have, besides its header."""
    return 4 * (source_size * MOST_PIECES + target_size)


def read_shortlist(content: bytes, source_size: int, target_size: int, end: int, path: Path) -> Shortlist:
    """The shortlist of a model with these vocabularies; `path` is only used in errors."""
    check_header(content, path, RELEARN)
    try:
        parts = dict(deserialize(content))  # type: ignore[no-untyped-call]
    except Exception as error:  # safetensors raises its own type, and others for hostile headers
        raise not_safetensors(path, error, RELEARN) from None
    problem = ""
    if parts.keys() != {"pieces", "always"}:
        problem = f"holds {', '.join(sorted(parts)) or 'nothing'}, expected always, pieces"
    elif not all(part["dtype"] in _INTEGERS for part in parts.values()):
        problem = "its ids are not int16 or int32"
    elif len(shape := parts["pieces"]["shape"]) != 2 or shape[0] != source_size or shape[1] > MOST_PIECES:
        problem = f"pieces is {shape}, expected [{source_size}, at most {MOST_PIECES}]"
    elif len(shape := parts["always"]["shape"]) != 1 or shape[0] > target_size:
        problem = f"always is {shape}, expected [at most {target_size}]"
    if problem:
        raise ModelError(f"{path}: {problem}; {RELEARN}")
    pieces_SK, always = (_array(**parts[name]) for name in ("pieces", "always"))
    for ids in (pieces_SK, always):
        if ids.size and not 0 <= ids.min() <= ids.max() < target_size:
            wrong = ids.min() if ids.min() < 0 else ids.max()
            raise ModelError(f"{path}: holds the id {wrong}, of {target_size} target pieces; {RELEARN}")
    if end not in always:
        raise ModelError(f"{path}: does not always allow </s>, without which no translation ends; {RELEARN}")
    return Shortlist(pieces_SK, always, target_size)


def _array(dtype: str, shape: Sequence[int], data: bytearray) -> Array:
    return np.frombuffer(data, _INTEGERS[dtype]).reshape(shape)
