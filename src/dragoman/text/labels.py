"""The labels of a classifier: a vocabulary of whole lines. Knows nothing of models.

It stands where a translator has the target's tokenizer: a label is a text of one piece.
"""

import difflib
import functools
import hashlib
from collections.abc import Iterable, Sequence
from typing import Self

from dragoman.errors import DataError, ModelError, suggestion
from dragoman.text.normalize import normalize
from dragoman.text.vocabulary import NO_IDS

MAX_LABELS = 10_000  # labels; more are most likely text
SHOWN = 20  # labels that an error lists


class Labels:
    """Labels in alphabetical order; the id of a label is its place."""

    vocabulary = NO_IDS
    languages: tuple[str, ...] = ()

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self._ids = {name: index for index, name in enumerate(self.names)}

    @classmethod
    def learn(cls, labels: Iterable[str]) -> Self:
        names: set[str] = set()
        for label in labels:
            names.add(normalize(label))
            if len(names) > MAX_LABELS:
                raise DataError(
                    f"labels: more than {MAX_LABELS:,} different ones; give one label per line, from a fixed set"
                )
        if len(names) < 2:
            raise DataError(f"labels: all lines have the label {min(names, default='')!r}; give at least two labels")
        return cls(sorted(names))

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        try:
            names = content.decode().removesuffix("\n").split("\n")
        except UnicodeDecodeError:
            names = []
        if len(names) < 2 or len(set(names)) != len(names) or "" in names:
            raise ModelError("not a list of labels, one per line; copy it again from a model directory that works")
        return cls(names)

    def to_bytes(self) -> bytes:
        return "".join(f"{name}\n" for name in self.names).encode()

    def __repr__(self) -> str:
        return f"Labels({self.names})"

    @property
    def size(self) -> int:
        return len(self.names)

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def find(self, text: str) -> int | None:
        """The id of a label; None if there is no such label."""
        return self._ids.get(normalize(text))

    def suggest(self, text: str) -> str:
        """What to say of a text that is no label."""
        near = difflib.get_close_matches(text, self.names, n=1)
        return suggestion(text, self.names) if near or len(self.names) <= SHOWN else f"there are {self.size:,} others"

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._ids[normalize(text)]] for text in texts]
