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
MAX_WORDS = 2_000_000  # of a list; they take some 300 MB
MAX_BYTES = 20_000_000  # of a file
MAX_TEXT = 40_000_000  # of its content
MAX_MEMORY = 200_000_000  # that reading it may take, beside the content
_WORD = re.compile(r"[^\W\d_]+")
_MID_SENTENCE_WORD = re.compile(r"(?<=[\w,] )[^\W\d_]+")  # one that has no capital because of its place


def compose(text: str) -> str:
    """With each letter and its accent as one character."""
    return unicodedata.normalize("NFC", text)


def words_in(text: str) -> list[str]:
    """Runs of letters."""
    return _WORD.findall(compose(text))


def replace_words(text: str, replace: Callable[[str], str]) -> str:
    return _WORD.sub(lambda match: replace(match.group()), text)


class WordCounter:
    """Counts words, whatever their case, and how they are written within sentences."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._forms: Counter[str] = Counter()

    def add(self, texts: Sequence[str]) -> None:
        text = compose("\n".join(texts))
        self._counts.update(words_in(text.lower()))
        self._forms.update(_MID_SENTENCE_WORD.findall(text))

    def size_at_least(self, count: int) -> tuple[int, int]:
        """How many words occur so often, and how many bytes they take."""
        sizes = [len(word.encode()) + 1 for word, found in self._counts.items() if found >= count]
        return len(sizes), sum(sizes)

    def at_least(self, count: int) -> "WordList":
        """The words that occur so often, as they are usually written."""
        usual = self._usual_forms()
        return WordList.of(usual.get(word, word) for word, found in self._counts.items() if found >= count)

    def _usual_forms(self) -> dict[str, str]:
        """By the word in lower case, which is its form if others are no more frequent."""
        best: dict[str, tuple[int, bool, str]] = {}
        for form, count in self._forms.items():
            word = form.lower()
            best[word] = max(best.get(word, (0, False, "")), (count, form == word, form))
        return {word: form for word, (_, _, form) in best.items()}


class WordList:
    """Words, read from a file's content when first asked for one. Lists made before had all in lower case."""

    def __init__(self, content: bytes, path: Path | None = None) -> None:
        self._content, self._path = content, path

    @classmethod
    def of(cls, words: Iterable[str]) -> "WordList":
        text = "".join(f"{word}\n" for word in sorted(words, key=lambda word: (word.lower(), word)))
        return cls(lzma.compress(text.encode(), preset=9))

    def __contains__(self, word: str) -> bool:
        return word.lower() in self._forms

    def usual_forms(self, word: str) -> list[str]:
        """How a word in capitals may usually be written: MASSE is Masse or Maße. Nothing if the list does not say."""
        if not self._has_case:
            return []
        found = self._forms.get(word.lower()), self._forms_in_capitals.get(word.upper())
        return [form for form in found if form is not None]

    def __len__(self) -> int:
        return len(self._forms)

    def to_bytes(self) -> bytes:
        return self._content

    @functools.cached_property
    def _has_case(self) -> bool:
        return any(form != word for word, form in self._forms.items())

    @functools.cached_property
    def _forms_in_capitals(self) -> dict[str, str]:
        """Those whose capitals, in lower case, are another word: of words with ß."""
        return {form.upper(): form for word, form in self._forms.items() if form.upper().lower() != word}

    @functools.cached_property
    def _forms(self) -> dict[str, str]:
        """By the word in lower case."""
        try:
            reader = lzma.LZMADecompressor(lzma.FORMAT_XZ, MAX_MEMORY)
            text = reader.decompress(self._content, MAX_TEXT)
            if not reader.eof:
                raise ValueError("it ends too soon, or is too long")
            if (count := text.count(b"\n")) > MAX_WORDS:
                raise ValueError(f"{count:,} words, at most {MAX_WORDS:,} are allowed")
            return {form.lower(): form for form in text.decode().splitlines()}
        except (lzma.LZMAError, ValueError) as error:  # UnicodeDecodeError among them
            raise ModelError(f"{self._path}: not a list of words ({error}); {LIST_AGAIN}") from None


class KnownWords(NamedTuple):
    """Those that a model has read."""

    source: WordList
    target: WordList
