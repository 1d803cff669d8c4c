"""The training pairs of one epoch, resegmented at random. Knows nothing of batches.

A pair's segmentation is a pure function of (seed, epoch, its index), regardless of the number of processes and of
whether earlier epochs were ever made. An epoch is an ordinary store, with lengths known before batches are planned.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random

from dragoman.data.corpus import CorpusReport
from dragoman.data.encoding import Flat, dtype_of, flatten
from dragoman.data.store import FORMAT, Store, StoreWriter, find_or_fill
from dragoman.data.workers import in_processes, start_process
from dragoman.text.sampling import make_sampler
from dragoman.text.tokenizer import Tokenizer

SAMPLING = 1  # version of how segmentations are drawn; part of the key
CHUNK_PAIRS = 1_000  # takes a fraction of a second
PREFIX = "sampled-"
NICENESS = 10  # of the processes that make the next epoch: training goes first
WORKER_ENDED = "a process that segments text ended unexpectedly; free some memory and run the same command again"


@dataclass(frozen=True)
class Draw:
    """Everything that determines the segmentations of an epoch."""

    store: Store
    source: Tokenizer
    target: Tokenizer
    strength: float
    seed: int
    epoch: int
    max_length: int  # a pair that would have more pieces on a side, including EOS, keeps its current segmentation

    @property
    def key(self) -> str:
        parts = [self.store.key, float(self.strength), self.seed, self.epoch, self.max_length, FORMAT, SAMPLING]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def name(self) -> str:
        """Of the directory."""
        return f"{PREFIX}{self.key[:16]}"


def sampled_store(
    draw: Draw, directory: Path, workers: int = 0, progress: Callable[[int], None] | None = None
) -> Store:
    """Return the pairs of an epoch; opened if `directory` has them, else made.

    With two or more `workers`, that many processes share the work.
    """
    store, tokenizers = draw.store, (draw.source, draw.target)

    def fill(writer: StoreWriter) -> CorpusReport:
        with closing(_segmented(draw, min(workers, len(store) // CHUNK_PAIRS))) as chunks:
            for rows, (source, target) in chunks:
                writer.add(source, target, lines=store.lines[rows.start : rows.stop])
                if progress:
                    progress(rows.stop)
        return store.report

    place = directory / draw.name
    meta = find_or_fill(place, draw.key, tokenizers, fill)
    return Store(place, {**meta, "key": store.key}, [Path(name) for name in store.report.files], tokenizers)


class SampledEpochs:
    """The pairs of every epoch of a training. With `prefetch`, a process makes each while the one before is in use.

    Of several processes of a training, one `is_owner`, and removes epochs that are no longer needed.
    """

    def __init__(
        self, draw: Draw, directory: Path, workers: int = 0, *, prefetch: bool = False, is_owner: bool = True
    ) -> None:
        self._draw, self._directory, self._workers = draw, directory, workers
        self._prefetches, self._is_owner = prefetch and is_owner, is_owner
        self._following: BaseProcess | None = None
        self._current = ""  # the name of its directory

    def open(self, epoch: int, progress: Callable[[int], None] | None = None) -> Store:
        """Return an epoch; the owner removes others. One that is in use stays readable until it is closed."""
        if self._following is not None:
            if progress and self._following.is_alive():
                progress(0)
            self._following.join()  # if it has failed, so will this process, which says why
            self._following = None
        draw, following = (replace(self._draw, epoch=number) for number in (epoch, epoch + 1))
        store = sampled_store(draw, self._directory, self._workers, progress)
        self._current = draw.name
        if self._prefetches:
            self._remove_others(following.name)  # which a run that was killed may have made
            self._following = start_process(_prefetch, following, self._directory, self._workers)
        else:
            self._remove_others()
        return store

    def close(self) -> None:
        """Give up what nobody will need."""
        if self._following is not None:
            self._following.terminate()  # with its workers
            self._following.join()
            self._following = None
            self._remove_others()

    def _remove_others(self, needed: str | None = None) -> None:
        """Earlier epochs, one that nobody will need, and what killed processes have left."""
        for other in self._directory.glob(f"*{PREFIX}*") if self._is_owner else ():
            is_own = other.name.lstrip(".").startswith(PREFIX)
            if is_own and self._current not in other.name and other.name != needed:
                shutil.rmtree(other, ignore_errors=True)


def _prefetch(draw: Draw, directory: Path, workers: int) -> None:
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    sampled_store(draw, directory, workers)


def generator(seed: int, epoch: int, index: int, side: int) -> Random:
    """The RNG for one side of one pair: each has its own, so the order of processing does not matter."""
    return Random(seed << 128 | epoch << 64 | index << 1 | side)


class Segmenter:
    """Resegments consecutive pairs."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._tokenizers = (draw.source, draw.target)
        sampler = make_sampler(draw.source)  # shared if both tokenizers are the same: it caches words
        is_shared = draw.source.digest == draw.target.digest
        self._samplers = (sampler, sampler if is_shared else make_sampler(draw.target))

    def segment(self, rows: range) -> list[Flat]:
        """The new ids of their sources and of their targets."""
        pairs = [self._pair(row) for row in rows]
        return [flatten([pair[side] for pair in pairs], dtype_of(self._tokenizers[side])) for side in (0, 1)]

    def _pair(self, row: int) -> tuple[list[int], list[int]]:
        source, target = self._draw.store.source(row).tolist(), self._draw.store.target(row).tolist()
        drawn = self._side(0, row, source), self._side(1, row, target)
        too_long = max(map(len, drawn)) + 1 > self._draw.max_length  # + 1: EOS
        return (source, target) if too_long else drawn

    def _side(self, side: int, row: int, ids: list[int]) -> list[int]:
        if self._tokenizers[side].vocabulary.unk in ids:  # without byte fallback: the ids do not determine the text
            return ids
        draw, text = self._draw, self._tokenizers[side].decode(ids)
        return self._samplers[side].sample(text, draw.strength, generator(draw.seed, draw.epoch, row, side))


def _chunks(count: int) -> Iterator[range]:
    for first in range(0, count, CHUNK_PAIRS):
        yield range(first, min(first + CHUNK_PAIRS, count))


def _segmented(draw: Draw, workers: int) -> Generator[tuple[range, list[Flat]], None, None]:
    """Yield the chunks in order, segmented here or in processes that end with the iteration."""
    chunks = _chunks(len(draw.store))
    if workers < 2:
        segmenter = Segmenter(draw)
        for rows in chunks:
            yield rows, segmenter.segment(rows)
        return
    yield from in_processes(chunks, lambda rows: rows, _work, workers, _start, (draw,), WORKER_ENDED)


_segmenter: Segmenter | None = None  # set in worker processes


def _start(draw: Draw) -> None:
    global _segmenter
    _segmenter = Segmenter(draw)


def _work(rows: range) -> list[Flat]:
    assert _segmenter is not None
    return _segmenter.segment(rows)
