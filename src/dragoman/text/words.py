"""The words of a model's training text, and the files that list them. Knows nothing of models or directories.

Files are untrusted.
"""

import functools
import lzma
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from dragoman.errors import ModelError

LIST_AGAIN = "make it again with `dragoman words`"
MAX_WORDS = 2_000_000  # of a list; they take some 200 MB
MAX_BYTES = 20_000_000  # of a file
MAX_TEXT = 40_000_000  # of its content
MAX_MEMORY = 200_000_000  # that reading it may take, beside the content
_WORD = re.compile(r"[^\W\d_]+")


def compose(text: str) -> str:
    """With each letter and its accent as one character."""
    return unicodedata.normalize("NFC", text)


def words_in(text: str) -> list[str]:
    """Runs of letters."""
    return _WORD.findall(compose(text))


def replace_words(text: str, replace: Callable[[str], str]) -> str:
    return _WORD.sub(lambda match: replace(match.group()), text)


class WordCounter:
    """Counts words, whatever their case."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, texts: Sequence[str]) -> None:
        self._counts.update(words_in("\n".join(texts).lower()))

    def size_at_least(self, count: int) -> tuple[int, int]:
        """How many words occur so often, and how many bytes they take."""
        sizes = [len(word.encode()) + 1 for word, found in self._counts.items() if found >= count]
        return len(sizes), sum(sizes)

    def at_least(self, count: int) -> "WordList":
        """The words that occur so often."""
        return WordList.of(word for word, found in self._counts.items() if found >= count)


class WordList:
    """Words in lower case, read from a file's content when first asked for one."""

    def __init__(self, content: bytes, path: Path | None = None) -> None:
        self._content, self._path = content, path

    @classmethod
    def of(cls, words: Iterable[str]) -> "WordList":
        text = "".join(f"{word}\n" for word in sorted(words))
        return cls(lzma.compress(text.encode(), preset=9))

    def __contains__(self, word: str) -> bool:
        return word.lower() in self._words

    def __len__(self) -> int:
        return len(self._words)

    def to_bytes(self) -> bytes:
        return self._content

    @functools.cached_property
    def _words(self) -> frozenset[str]:
        try:
            reader = lzma.LZMADecompressor(lzma.FORMAT_XZ, MAX_MEMORY)
            text = reader.decompress(self._content, MAX_TEXT)
            if not reader.eof:
                raise ValueError("it ends too soon, or is too long")
            if (count := text.count(b"\n")) > MAX_WORDS:
                raise ValueError(f"{count:,} words, at most {MAX_WORDS:,} are allowed")
            return frozenset(text.decode().splitlines())
        except (lzma.LZMAError, ValueError) as error:  # UnicodeDecodeError among them
            raise ModelError(f"{self._path}: not a list of words ({error}); {LIST_AGAIN}") from None


class KnownWords(NamedTuple):
    """Those that a model has read."""

    source: WordList
    target: WordList
