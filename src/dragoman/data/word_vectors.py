"""Word vectors from files of word2vec (text and binary), GloVe and fastText (.vec), as rows for a tokenizer's pieces.

A piece that is a word has that word's vector. Any other has the mean over the words that it occurs in. Files are read
once, as a stream: a table of millions of words takes no more memory than the rows of the pieces. Files are untrusted.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.data.corpus import OPENERS
from dragoman.errors import DataError
from dragoman.progress import Advance, no_progress
from dragoman.text.normalize import SPACE_MARK, normalize
from dragoman.text.tokenizer import Tokenizer

Array = NDArray[Any]

WIDEST = 16_384  # numbers of a vector
LONGEST_WORD = 65_536  # bytes
WORDS_AT_ONCE = 4_096
HEADER = re.compile(rb"(\d{1,12}) (\d{1,6})\s*")
FASTTEXT_MAGIC = (793_712_314).to_bytes(4, "little")  # of its own .bin, which holds more than vectors
NUMBER = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


class Vectors(NamedTuple):
    """What the beginning of a file tells."""

    path: Path
    width: int
    words: int | None  # how many, if the file says
    binary: bool


@dataclass
class PieceVectors:
    """Rows for the pieces of a tokenizer, from one file or several."""

    rows: Array  # [V, M]; zeros for pieces without a vector
    spelled: Array  # [V] bool: the piece is a word
    occurring: Array  # [V] bool: the piece occurs in words; their mean
    words: int

    @property
    def covered(self) -> Array:
        return self.spelled | self.occurring

    def describe(self) -> str:
        """The coverage, in a line."""
        spelled, occurring = int(self.spelled.sum()), int((self.occurring & ~self.spelled).sum())
        return (
            f"{self.words:,} words; {int(self.covered.sum()):,} of {len(self.covered):,} pieces have vectors, "
            f"{spelled:,} as words and {occurring:,} as means over words; the others are random"
        )

    def scaled(self) -> Array:
        """The rows with the size that random embeddings have, a mean square of 1 / M; their proportions stay."""
        mean_square = np.square(self.rows[self.covered]).mean() if self.covered.any() else 0.0
        return self.rows if mean_square == 0.0 else self.rows / np.sqrt(mean_square * self.rows.shape[1])


def read_header(path: Path) -> Vectors:
    """The width of a file's vectors, and its form."""
    with _open(path) as file:
        return _read_header(file, path)


def piece_vectors(paths: list[Path], tokenizer: Tokenizer, width: int, advance: Advance = no_progress) -> PieceVectors:
    """Vectors for the pieces of one tokenizer. Of the files that have a word, each counts the same."""
    table, size = tokenizer.piece_table(), tokenizer.size
    no_words = {tokenizer.vocabulary.unk, *tokenizer.vocabulary.textless, *table.byte_ids}
    own_VM, own_V = np.zeros((size, width)), np.zeros(size)
    sum_VM, count_V = np.zeros((size, width)), np.zeros(size)
    words = 0
    for path in paths:
        seen: set[int] = set()  # the first of equal words counts: the most frequent, or the one in lower case
        stream = read_vectors(path)
        while batch := list(islice(stream, WORDS_AT_ONCE)):
            words += len(batch)
            advance(len(batch))
            texts = [normalize(word, tokenizer.normalization) for word, _ in batch]
            for (_, vector_M), text, ids in zip(batch, texts, tokenizer.encode_batch(texts), strict=True):
                piece = table.ids.get(SPACE_MARK + text)
                if piece is not None and piece not in seen:
                    seen.add(piece)
                    own_VM[piece] += vector_M
                    own_V[piece] += 1
                elif piece is None:
                    inside = list(set(ids) - no_words)
                    sum_VM[inside] += vector_M
                    count_V[inside] += 1
    spelled, occurring = own_V > 0, count_V > 0
    rows = np.zeros((size, width))
    rows[occurring] = sum_VM[occurring] / count_V[occurring, np.newaxis]
    rows[spelled] = own_VM[spelled] / own_V[spelled, np.newaxis]
    return PieceVectors(rows, spelled, occurring, words)


def read_vectors(path: Path) -> Iterator[tuple[str, Array]]:
    """The words of a file and their vectors. A word that is not UTF-8 is skipped."""
    with _open(path) as file:
        try:
            found = _read_header(file, path)
            file.seek(0)
            if found.words is not None:
                file.readline(LONGEST_WORD)
            yield from _read_binary(file, found) if found.binary else _read_text(file, found)
        except (EOFError, OSError) as error:
            raise DataError(f"{path}: cannot be read ({error}); download it again") from None


def _open(path: Path) -> BinaryIO:
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; give a file of word vectors")
    try:
        opened: BinaryIO = OPENERS.get(path.suffix.lower(), open)(path, "rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    return opened


def _read_header(file: BinaryIO, path: Path) -> Vectors:
    forms = "give a file of word2vec, GloVe or fastText (.vec)"
    try:
        first = file.readline(LONGEST_WORD + 32 * WIDEST)
        header = HEADER.fullmatch(first)
        second = file.readline(LONGEST_WORD + 32 * WIDEST) if header else first
    except (EOFError, OSError) as error:
        raise DataError(f"{path}: cannot be read ({error}); download it again") from None
    if first.startswith(FASTTEXT_MAGIC):
        raise DataError(f"{path}: is a whole fastText model; give its .vec file")
    if not header:
        parts = first.split()
        width = sum(1 for _ in takewhile(NUMBER.fullmatch, reversed(parts[1:])))  # GloVe has words of several parts
        if width < 2 or not first.endswith(b"\n"):
            raise DataError(f"{path}: does not begin with a word and its numbers; {forms}")
        return Vectors(path, width, None, binary=False)
    words, width = map(int, header.groups())
    if not 1 <= width <= WIDEST:
        raise DataError(f"{path}: has vectors of {width:,} numbers, at most {WIDEST:,} are possible; {forms}")
    parts = second.split()
    is_text = len(parts) > width and all(map(NUMBER.fullmatch, parts[-width:]))
    return Vectors(path, width, words, binary=not is_text and words > 0)


def _read_text(file: BinaryIO, found: Vectors) -> Iterator[tuple[str, Array]]:
    path, width, _, _ = found
    first = 1 if found.words is None else 2
    for number, line in enumerate(iter(lambda: file.readline(LONGEST_WORD + 32 * WIDEST), b""), start=first):
        word, *numbers = line.rstrip().rsplit(b" ", width)
        if len(numbers) != width:
            if not line.strip():
                continue
            raise DataError(f"{path}:{number}: has {len(numbers)} numbers, not {width}; download it again")
        try:
            vector_M = np.array(numbers, dtype=np.float64)
        except ValueError:
            raise DataError(f"{path}:{number}: is not a word and {width} numbers; download it again") from None
        _require_finite(vector_M, f"{path}:{number}")
        if (text := _decoded(word)) is not None:
            yield text, vector_M


def _read_binary(file: BinaryIO, found: Vectors) -> Iterator[tuple[str, Array]]:
    path, width, words, _ = found
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
        vector_M = np.frombuffer(raw, "<f4").astype(np.float64)
        _require_finite(vector_M, f"{path}: word {number:,}")
        if (text := _decoded(bytes(word).lstrip(b"\n"))) is not None:
            yield text, vector_M


def _require_finite(vector_M: Array, place: str) -> None:
    if not np.isfinite(vector_M).all():
        raise DataError(f"{place}: has a number that is not finite; download it again")


def _decoded(word: bytes) -> str | None:
    try:
        return word.decode("utf-8")
    except UnicodeDecodeError:
        return None
