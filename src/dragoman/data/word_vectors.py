"""Word vectors from files of word2vec (text and binary), GloVe and fastText (.vec), as rows for a tokenizer's pieces.

A piece that is a word has that word's vector. Any other has the mean over the words that it occurs in. Files are read
once, as a stream: a table of millions of words takes no more memory than the rows of the pieces. Files are untrusted.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.data.corpus import reading
from dragoman.errors import DataError
from dragoman.text.normalize import SPACE_MARK, normalize
from dragoman.text.tokenizer import Tokenizer

Array = NDArray[Any]

MAX_WIDTH = 16_384  # numbers of a vector
LONGEST_WORD = 65_536  # bytes
LONGEST_LINE = LONGEST_WORD + 32 * MAX_WIDTH
LARGEST = 1e4  # of a number: a damaged one would make all others vanish when they are scaled
WORDS_AT_ONCE = 4_096
HEADER = re.compile(rb"(\d{1,12}) (\d{1,6})\s*")
FASTTEXT_MAGIC = (793_712_314).to_bytes(4, "little")  # of its own .bin, which holds more than vectors
NUMBER = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
NOT_IN_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1f]")


class Header(NamedTuple):
    """How the vectors of a file are stored."""

    path: Path
    width: int
    words: int | None  # how many, if the file says
    binary: bool


@dataclass
class PieceVectors:
    """Rows for the pieces of a tokenizer, from one file or several."""

    rows: Array  # [V, M]; zeros for pieces without a vector
    is_word: Array  # [V] bool
    in_words: Array  # [V] bool: not a word itself; the mean over those it occurs in
    words: list[int]  # of each file

    @property
    def covered(self) -> Array:
        return self.is_word | self.in_words

    def describe(self) -> str:
        """The coverage, in a line."""
        words = " and ".join(f"{count:,}" for count in self.words)
        return (
            f"{words} words; {int(self.covered.sum()):,} of {len(self.covered):,} pieces have vectors, "
            f"{int(self.is_word.sum()):,} as words and {int(self.in_words.sum()):,} as means over words; "
            "the others are random"
        )

    def scaled(self) -> Array:
        """The rows with the size that random embeddings have, a mean square of 1 / M; their proportions stay."""
        mean_square = np.square(self.rows[self.covered]).mean() if self.covered.any() else 0.0
        return self.rows if mean_square == 0.0 else self.rows / np.sqrt(mean_square * self.rows.shape[1])


def read_header(path: Path) -> Header:
    with reading(path) as file:
        return _read_header(file, path)


def piece_vectors(paths: list[Path], tokenizer: Tokenizer, width: int) -> PieceVectors:
    """Vectors for the pieces of one tokenizer. Of the files that have a word, each counts the same."""
    table, size = tokenizer.piece_table(), tokenizer.size
    no_words = {tokenizer.vocabulary.unk, *tokenizer.vocabulary.textless, *table.byte_ids}
    sum_VM, count_V = np.zeros((size, width), np.float32), np.zeros(size)
    is_word_V = np.zeros(size, dtype=bool)
    words = []
    for path in paths:
        words.append(0)
        seen: set[int] = set()  # the first of equal words counts: the most frequent one
        stream = read_vectors(path)
        while batch := list(islice(stream, WORDS_AT_ONCE)):
            words[-1] += len(batch)
            texts = [normalize(word, tokenizer.normalization) for word, _ in batch]
            for (_, vector_M), text, ids in zip(batch, texts, tokenizer.encode_batch(texts), strict=True):
                piece = table.ids.get(SPACE_MARK + text)
                if piece is None:
                    inside = [each for each in set(ids) - no_words if not is_word_V[each]]
                    sum_VM[inside] += vector_M
                    count_V[inside] += 1
                elif piece not in seen:
                    if not is_word_V[piece]:
                        sum_VM[piece], count_V[piece], is_word_V[piece] = 0.0, 0, True
                    seen.add(piece)
                    sum_VM[piece] += vector_M
                    count_V[piece] += 1
    rows_VM = sum_VM / np.maximum(count_V, 1)[:, np.newaxis]
    return PieceVectors(rows_VM, is_word_V, (count_V > 0) & ~is_word_V, words)


def read_vectors(path: Path) -> Iterator[tuple[str, Array]]:
    """The words of a file and their vectors. A word that is not UTF-8 is skipped."""
    with reading(path) as file:
        header = _read_header(file, path)
        file.seek(0)
        if header.words is not None:
            file.readline(LONGEST_LINE)
        yield from _read_binary(file, header) if header.binary else _read_text(file, header)


def _read_header(file: BufferedIOBase, path: Path) -> Header:
    forms = "give a file of word2vec, GloVe or fastText (.vec)"
    first = file.readline(LONGEST_LINE)
    if first.startswith(FASTTEXT_MAGIC):
        raise DataError(f"{path}: is a fastText model, not a file of vectors; give its .vec file")
    if not first:
        raise DataError(f"{path}: is empty; {forms}")
    header = HEADER.fullmatch(first)
    if not header:
        # GloVe has words of several parts
        width = sum(1 for _ in takewhile(NUMBER.fullmatch, reversed(first.split()[1:])))
        if width < 2 or not first.endswith(b"\n"):
            raise DataError(f"{path}: does not begin with a word and its numbers; {forms}")
        return Header(path, width, None, binary=False)
    words, width = map(int, header.groups())
    if not words:
        raise DataError(f"{path}: says that it has no words; {forms}")
    if not 1 <= width <= MAX_WIDTH:
        raise DataError(f"{path}: has vectors of {width:,} numbers, at most {MAX_WIDTH:,} are possible; {forms}")
    return Header(path, width, words, binary=NOT_IN_TEXT.search(file.read(4 * width)) is not None)


def _read_text(file: BufferedIOBase, header: Header) -> Iterator[tuple[str, Array]]:
    path, width, words, _ = header
    found = 0
    for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), start=1 if words is None else 2):
        word, *numbers = line.rstrip().rsplit(None, width) or [b""]
        if not word and not numbers:
            continue
        if len(numbers) != width:
            raise DataError(f"{path}:{number}: has {len(numbers)} numbers, not {width}; download it again")
        try:
            vector_M = np.array(numbers, dtype=np.float32)
        except ValueError:
            raise DataError(f"{path}:{number}: is not a word and {width} numbers; download it again") from None
        found += 1
        yield from _one(word, vector_M, f"{path}:{number}")
    if words is not None and found != words:
        raise DataError(f"{path}: has {found:,} words, its first line says {words:,}; download it again")


def _read_binary(file: BufferedIOBase, header: Header) -> Iterator[tuple[str, Array]]:
    path, width, words, _ = header
    size = 4 * width
    for number in range(1, (words or 0) + 1):
        word = bytearray()
        while (letter := file.read(1)) != b" ":
            if not letter or len(word) > LONGEST_WORD:
                raise DataError(f"{path}: ends in word {number:,} of {words:,}; download it again")
            word += letter
        raw = file.read(size)
        if len(raw) < size:
            raise DataError(f"{path}: ends in word {number:,} of {words:,}; download it again")
        yield from _one(bytes(word).lstrip(b"\n"), np.frombuffer(raw, "<f4"), f"{path}: word {number:,}")
    if file.read(2).strip():
        raise DataError(f"{path}: goes on after its {words:,} words; download it again")


def _one(word: bytes, vector_M: Array, place: str) -> Iterator[tuple[str, Array]]:
    """The word and its vector, unless it is not UTF-8."""
    if not np.abs(vector_M).max() <= LARGEST:  # nor if one is not a number
        raise DataError(f"{place}: has a number that is not finite or over {LARGEST:,.0f}; download it again")
    try:
        text = word.decode("utf-8")
    except UnicodeDecodeError:
        return
    yield text, vector_M
