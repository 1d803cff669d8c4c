"""The training pairs of one epoch, resegmented at random. Knows nothing of batches.

A pair's segmentation is a pure function of (seed, epoch, its index), regardless of the number of processes and of
whether earlier epochs were ever made. An epoch is an ordinary store, with lengths known before batches are planned.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import NamedTuple

from dragoman.data.corpus import CorpusReport
from dragoman.data.store import FORMAT, Store, StoreWriter, find_or_fill
from dragoman.data.workers import in_processes
from dragoman.text.normalize import Normalization
from dragoman.text.sampling import make_sampler
from dragoman.text.tokenizer import Tokenizer

SAMPLING = 1  # version of how segmentations are drawn; part of the key
CHUNK_PAIRS = 1_000  # takes a fraction of a second
PREFIX = "sampled-"
WORKER_ENDED = "workers: a process that segments text ended unexpectedly, possibly out of memory; use fewer"

Rows = list[list[int]]


class Recipe(NamedTuple):
    """Everything that determines a pair's segmentation, as plain values that can be sent to any process."""

    source_model: bytes
    target_model: bytes
    source_normalization: Normalization
    target_normalization: Normalization
    strength: float
    seed: int
    epoch: int
    max_length: int


class Chunk(NamedTuple):
    """Consecutive pairs, starting at index `first`."""

    first: int
    sources: Rows
    targets: Rows


def sampled_store(
    store: Store,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    *,
    strength: float,
    seed: int,
    epoch: int,
    max_length: int,
    directory: Path,
    workers: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Store:
    """Return the pairs of `store` with a segmentation drawn for this epoch; opened if `directory` has it, else made.

    A pair that would have more than `max_length` pieces on a side, including EOS, keeps its current segmentation. With
    two or more `workers`, that many processes share the work. Other epochs are removed from `directory`.
    """
    recipe = Recipe(
        source_tokenizer.to_bytes(), target_tokenizer.to_bytes(),
        source_tokenizer.normalization, target_tokenizer.normalization,
        strength, seed, epoch, max_length,
    )  # fmt: skip
    key = _key(store, recipe)
    place = directory / f"{PREFIX}{key[:16]}"

    def fill(writer: StoreWriter) -> CorpusReport:
        with closing(_segmented(_chunks(store), recipe, min(workers, len(store) // CHUNK_PAIRS))) as chunks:
            for chunk in chunks:
                end = chunk.first + len(chunk.sources)
                writer.add(chunk.sources, chunk.targets, lines=store.lines[chunk.first : end])
                if progress:
                    progress(end)
        return store.report

    tokenizers = (source_tokenizer, target_tokenizer)
    meta = find_or_fill(place, key, tokenizers, fill)
    _remove_others(place)
    return Store(place, {**meta, "key": store.key}, [Path(name) for name in store.report.files], tokenizers)


def _key(store: Store, recipe: Recipe) -> str:
    parts = [store.key, float(recipe.strength), recipe.seed, recipe.epoch, recipe.max_length, FORMAT, SAMPLING]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _remove_others(place: Path) -> None:
    """Remove other epochs and what killed processes left of them. One in use stays readable until it is closed."""
    for other in place.parent.glob(f"*{PREFIX}*"):
        if other.name.lstrip(".").startswith(PREFIX) and place.name not in other.name:
            shutil.rmtree(other, ignore_errors=True)


def _chunks(store: Store) -> Iterator[Chunk]:
    for first in range(0, len(store), CHUNK_PAIRS):
        rows = range(first, min(first + CHUNK_PAIRS, len(store)))
        yield Chunk(first, [store.source(row).tolist() for row in rows], [store.target(row).tolist() for row in rows])


def generator(seed: int, epoch: int, index: int, side: int) -> Random:
    """The RNG for one side of one pair: each has its own, so the order of processing does not matter."""
    return Random(seed << 128 | epoch << 64 | index << 1 | side)


class Segmenter:
    """Resegments chunks."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        source = Tokenizer.from_bytes(recipe.source_model, recipe.source_normalization)
        target = Tokenizer.from_bytes(recipe.target_model, recipe.target_normalization)
        self._tokenizers = (source, target)
        sampler = make_sampler(source)  # shared if both tokenizers are the same: it caches words
        self._samplers = (sampler, sampler if source.digest == target.digest else make_sampler(target))

    def segment(self, chunk: Chunk) -> Chunk:
        pairs = enumerate(zip(chunk.sources, chunk.targets, strict=True), chunk.first)
        drawn = [self._pair(index, source, target) for index, (source, target) in pairs]
        return Chunk(chunk.first, [source for source, _ in drawn], [target for _, target in drawn])

    def _pair(self, index: int, source: list[int], target: list[int]) -> tuple[list[int], list[int]]:
        drawn = self._side(0, index, source), self._side(1, index, target)
        too_long = max(map(len, drawn)) + 1 > self._recipe.max_length  # + 1: EOS
        return (source, target) if too_long else drawn

    def _side(self, side: int, index: int, ids: list[int]) -> list[int]:
        if self._tokenizers[side].vocabulary.unk in ids:  # without byte fallback: the ids do not determine the text
            return ids
        recipe, text = self._recipe, self._tokenizers[side].decode(ids)
        random = generator(recipe.seed, recipe.epoch, index, side)
        return self._samplers[side].sample(text, recipe.strength, random)


def _segmented(chunks: Iterable[Chunk], recipe: Recipe, workers: int) -> Generator[Chunk, None, None]:
    """Yield the chunks in order, segmented here or in processes that end with the iteration."""
    if workers < 2:
        yield from map(Segmenter(recipe).segment, chunks)
        return
    made = in_processes(chunks, lambda chunk: chunk, _work, workers, _start, (recipe,), WORKER_ENDED)
    with closing(made):
        for _, chunk in made:
            yield chunk


_segmenter: Segmenter | None = None  # set in worker processes


def _start(recipe: Recipe) -> None:
    global _segmenter
    _segmenter = Segmenter(recipe)


def _work(chunk: Chunk) -> Chunk:
    assert _segmenter is not None
    return _segmenter.segment(chunk)
