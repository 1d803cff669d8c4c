"""Encodes chunks of pairs, on all cores if there are many. Knows nothing of files or stores.

In one process sentencepiece uses all cores, but reading the text and making Python's lists of ids takes as long on one.
"""

from collections.abc import Generator, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dragoman.data.corpus import OPENERS, Pair
from dragoman.data.workers import in_processes, spare_cores
from dragoman.scale import Scale
from dragoman.text.labels import Labels
from dragoman.text.normalize import Normalization
from dragoman.text.tokenizer import Tokenizer

WORTHWHILE = 64 << 20  # bytes of text for which processes are started, which takes about a second
COMPRESSION = 4  # how many times as long text is as the file that it is compressed in
MOST_WORKERS = 12  # more would wait for the process that reads
VECTORS = "<f4"  # of features
WORKER_ENDED = "a process that encodes text ended unexpectedly; free some memory and run the same command again"

Row = Sequence[int] | npt.NDArray[Any]  # ids, or [S, F] vectors
AnyTokenizer = Tokenizer | Labels | Scale
Chunk = tuple[int, list[Pair]]  # how many pairs up to its end, and pairs


class Flat(NamedTuple):
    """The ids of several texts in one array."""

    ids: npt.NDArray[Any]  # uint16 or int32, as the vocabulary needs
    lengths: npt.NDArray[np.int64]

    def where(self, kept: npt.NDArray[np.bool_]) -> "Flat":
        return Flat(self.ids[np.repeat(kept, self.lengths)], self.lengths[kept])


def dtype_of(tokenizer: AnyTokenizer) -> str:
    if isinstance(tokenizer, Scale):
        return VECTORS
    return "<u2" if tokenizer.size <= 1 << 16 else "<i4"


def flatten(rows: Sequence[Row], dtype: str) -> Flat:
    lengths = np.array([len(row) for row in rows], np.int64)
    if dtype == VECTORS:
        return Flat(np.concatenate(rows).astype(dtype) if rows else np.empty(0, dtype), lengths)
    return Flat(np.fromiter(chain.from_iterable(rows), dtype, int(lengths.sum())), lengths)


def workers_for(paths: Iterable[Path], tokenizers: Sequence[AnyTokenizer]) -> int:
    """How many processes encode these files best; 0: this one."""
    size = sum(path.stat().st_size * (COMPRESSION if path.suffix.lower() in OPENERS else 1) for path in paths)
    is_text = all(type(each) is Tokenizer for each in tokenizers)
    return min(spare_cores(), MOST_WORKERS) if size >= WORTHWHILE and is_text else 0


def encode_chunks(
    chunks: Iterable[Chunk], tokenizers: Sequence[AnyTokenizer], workers: int
) -> Generator[tuple[Chunk, list[Flat]], None, None]:
    """Yield each chunk with the ids of sources and of targets."""
    if not workers:
        for chunk in chunks:
            yield chunk, [_encode(texts, each) for texts, each in zip(_sides(chunk), tokenizers, strict=True)]
        return
    plain = [(each.to_bytes(), each.normalization) for each in tokenizers if isinstance(each, Tokenizer)]
    yield from in_processes(chunks, _sides, _work, workers, _start, (plain,), WORKER_ENDED)


def _sides(chunk: Chunk) -> list[list[Any]]:
    return [[pair.source for pair in chunk[1]], [pair.target for pair in chunk[1]]]


def _encode(texts: list[Any], tokenizer: AnyTokenizer) -> Flat:
    return flatten(tokenizer.encode_batch(texts), dtype_of(tokenizer))


# In a worker process

_tokenizers: list[Tokenizer] = []


def _start(plain: list[tuple[bytes, Normalization]]) -> None:
    for model, normalization in plain:
        _tokenizers.append(Tokenizer(model, normalization))
        _tokenizers[-1].threads = 1  # the other cores have processes of their own


def _work(sides: list[list[Any]]) -> list[Flat]:
    return [_encode(texts, tokenizer) for texts, tokenizer in zip(sides, _tokenizers, strict=True)]
