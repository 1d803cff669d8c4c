"""Packed batches: sentences end to end in rows of a token budget, no padding between. Knows nothing of models.

On CUDA every batch has the same shape, so a model is compiled only once: the rest of the budget is filled with
sentences of padding, which nothing attends to and no loss counts.

Shapes: N packed tokens, B sentences, L longest sentence, G blocks, P places of all rows.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.data.batching import part_generator
from dragoman.data.store import Store
from dragoman.data.text_store import TextStore
from dragoman.model.packed import Rows, Segments
from dragoman.text.vocabulary import VOCABULARY, Vocabulary

Ids = npt.NDArray[np.int64]

LIKE_LENGTH = 16  # lengths are rounded up to a multiple of this to bucket sentences by length


@dataclass(frozen=True)
class Shape:
    """The fixed size of every batch of a run."""

    source_tokens: int
    target_tokens: int
    sentences: int
    whole: int  # up to this many tokens, the kernel processes a sentence in one go
    block: int  # tokens per block of a longer sentence

    def blocks(self, tokens: int) -> int:
        """Upper bound on the blocks of a batch's long sentences, on a side with this many tokens."""
        long_sentences = (self.source_tokens + self.target_tokens) // (self.whole + 1)
        return tokens // self.block + long_sentences


@dataclass(frozen=True, kw_only=True)
class AnyPackedBatch:
    """What every packed batch has: what is to be predicted. A subclass adds what the model is fed."""

    target_output_N: Tensor  # `pad` where there is nothing to predict
    num_tokens: int
    pad: int

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The arguments of the packed model's forward, in order."""
        raise NotImplementedError

    def tensors(self) -> list[Tensor]:
        """All inputs of a CUDA graph, always in the same order."""
        values = [value for _, value in self._values()]
        parts = itertools.chain.from_iterable(value if isinstance(value, Segments) else (value,) for value in values)
        return [part for part in parts if isinstance(part, Tensor)]

    def to(self, device: torch.device) -> Self:
        batch = self.pinned() if device.type == "cuda" else self
        return batch._map(lambda part: part.to(device, non_blocking=True))

    def pinned(self) -> Self:
        """A copy in pinned memory, which a GPU can read directly."""
        return self._map(lambda part: part.pin_memory())

    def _values(self) -> list[tuple[str, Tensor | Segments]]:
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return [(name, value) for name, value in values if isinstance(value, Tensor | Segments)]

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed = {
            name: value.map(change) if isinstance(value, Segments) else change(value) for name, value in self._values()
        }
        return replace(self, **changed)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class PackedBatch(AnyPackedBatch):
    """Teacher forcing, packed: the decoder is fed <s> y1 .. yn and must predict y1 .. yn </s>."""

    source_ids_N: Tensor
    target_input_N: Tensor
    source: Segments
    target: Segments

    @property
    def inputs(self) -> tuple[Any, ...]:
        return self.source_ids_N, self.target_input_N, self.source, self.target


@dataclass(frozen=True, kw_only=True)
class PackedText(AnyPackedBatch):
    """Blocks of a text, packed: at every position the next id is to be predicted."""

    target_input_N: Tensor
    target: Segments

    @property
    def inputs(self) -> tuple[Any, ...]:
        return self.target_input_N, self.target


class PackingPlan:
    """Assigns rows to batches: in random order, as many as fit. A pure function of (seed, epoch, index)."""

    def __init__(
        self, store: Store | TextStore, *, source_tokens: int, target_tokens: int, sentences: int, seed: int
    ) -> None:
        # one token is reserved for the padding sentence
        self._sizes = np.stack((store.source_sizes, store.target_sizes), axis=1)
        self._budget = np.array([max(0, source_tokens - 1), target_tokens - 1])  # a text has no source
        self._sentences = sentences - 1
        self._seed = seed

    def epoch(self, epoch: int, rows: Ids | None = None, part: int = 0) -> list[Ids]:
        """Return every batch of an epoch, as row numbers: each exactly once.

        With `rows`, use only these: the rest of an epoch after `part` parts of it were batched differently.
        """
        rows = np.arange(len(self._sizes)) if rows is None else rows
        return self._cut(rows[part_generator(self._seed, epoch, part).permutation(len(rows))])

    def _cut(self, order: Ids) -> list[Ids]:
        totals = np.cumsum(self._sizes[order], axis=0)
        batches, start = [], 0
        while start < len(order):
            before = totals[start - 1] if start else np.zeros(2, dtype=np.int64)
            ends = [
                int(np.searchsorted(totals[:, side], before[side] + self._budget[side], "right")) for side in (0, 1)
            ]
            end = max(start + 1, min(*ends, start + self._sentences))
            batches.append(order[start:end])
            start = end
        return batches


def pack(store: Store, rows: Ids, shape: Shape | None = None) -> PackedBatch:
    """Pack the pairs of one batch; with `shape`, filled up to it and with the kernel's blocks."""
    vocabularies = store.source_vocabulary, store.target_vocabulary
    return _pack(*store.gather_source(rows), *store.gather_target(rows), shape, *vocabularies)


def pack_text(store: TextStore, rows: Ids, shape: Shape | None = None) -> PackedText:
    """Pack the blocks of one batch; with `shape`, filled up to it and with the kernel's blocks."""
    before, ids, sizes = store.gather(rows)
    fill = 0 if shape is None else shape.target_tokens - len(ids)
    padding, _ = _padding_sentences((fill, 0), shape, len(rows))
    lengths, pads = np.concatenate((sizes, padding)), np.full(fill, store.vocabulary.pad, dtype=np.int64)
    return PackedText(
        target_input_N=torch.from_numpy(np.concatenate((before, pads))),
        target_output_N=torch.from_numpy(np.concatenate((ids, pads))),
        target=_segments(lengths, lengths, shape, len(rows)),
        num_tokens=len(ids),
        pad=store.vocabulary.pad,
    )


def pack_sentences(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], shape: Shape | None
) -> PackedBatch:
    """Like `pack`, from lists of ids of tokenizers trained by dragoman."""
    flat = [np.array([token for ids in side for token in ids], dtype=np.int64) for side in (sources, targets)]
    lengths = [np.array(list(map(len, side)), dtype=np.int64) for side in (sources, targets)]
    return _pack(flat[0], lengths[0], flat[1], lengths[1], shape, VOCABULARY, VOCABULARY)


def _pack(
    source: Ids, source_lengths: Ids, target: Ids, target_lengths: Ids, shape: Shape | None,
    source_special: Vocabulary, target_special: Vocabulary,
) -> PackedBatch:  # fmt: skip
    fills, count = (0, 0), len(source_lengths)
    if shape is not None:
        fills = (
            shape.source_tokens - int(source_lengths.sum()) - count,
            shape.target_tokens - int(target_lengths.sum()) - count,
        )
    padding = _padding_sentences(fills, shape, count)
    sides = [np.concatenate(both) for both in zip((source_lengths + 1, target_lengths + 1), padding, strict=True)]
    pads = (source_special.pad, target_special.pad)
    source_ids = _interleave(source, source_lengths, source_special.eos, pads[0], fills[0], at_end=True)
    target_input = _interleave(target, target_lengths, target_special.bos, pads[1], fills[1], at_end=False)
    target_output = _interleave(target, target_lengths, target_special.eos, pads[1], fills[1], at_end=True)
    return PackedBatch(
        source_ids_N=torch.from_numpy(source_ids),
        target_input_N=torch.from_numpy(target_input),
        target_output_N=torch.from_numpy(target_output),
        source=_segments(sides[0], sides[1], shape, count),
        target=_segments(sides[1], sides[0], shape, count),
        num_tokens=int(target_lengths.sum()) + count,
        pad=pads[1],
    )


def pack_sources(sources: Sequence[Sequence[int]], shape: Shape | None = None) -> tuple[Tensor, Segments]:
    """The ids of sentences end to end, and where each lies.

    With `shape`, as the kernels need it: padded to its source tokens with tokens that belong to no sentence.
    """
    lengths = np.array(list(map(len, sources)), dtype=np.int64)
    tokens = int(lengths.sum())
    ids = torch.from_numpy(np.fromiter(itertools.chain.from_iterable(sources), dtype=np.int64, count=tokens))
    segments = _segments(lengths, lengths, shape, len(sources))
    if shape is None or segments.blocks is None:
        return ids, segments
    fill, blocks = shape.source_tokens - tokens, shape.blocks(shape.source_tokens)
    return F.pad(ids, (0, fill)), Segments(
        F.pad(segments.positions_N, (0, fill)),
        segments.starts,
        F.pad(segments.blocks, (0, 0, 0, blocks - len(segments.blocks)), value=-1),
    )


def _padding_sentences(fills: tuple[int, int], shape: Shape | None, count: int) -> list[Ids]:
    """Split the unused budget into sentences short enough to cost nothing; a single long one has quadratic cost."""
    if shape is None:
        return [np.zeros(0, dtype=np.int64)] * 2
    wanted = max(1, -(-max(fills) // shape.whole))
    pieces = min(wanted, shape.sentences - count)
    return [(fill + np.arange(pieces)) // pieces for fill in fills]  # as even as possible; they sum to `fill`


def _interleave(ids: Ids, lengths: Ids, extra: int, pad: int, fill: int, *, at_end: bool) -> Ids:
    """Add one id at the end or start of each sentence, then padding."""
    starts = np.cumsum(lengths) - lengths
    places = starts + lengths if at_end else starts
    return np.concatenate((np.insert(ids, places, extra), np.full(fill, pad, dtype=np.int64)))


def _segments(lengths: Ids, other_lengths: Ids, shape: Shape | None, count: int) -> Segments:
    """Segments of one side: `count` sentences, then padding; both sides' lengths determine which pairs are long."""
    ends = np.cumsum(lengths)
    starts = ends - lengths
    positions = np.arange(ends[-1]) - np.repeat(starts, lengths)
    if shape is None:
        all_starts = np.append(0, ends).astype(np.int32)
        rows = _rows(starts, lengths, other_lengths)
        return Segments(torch.from_numpy(positions), torch.from_numpy(all_starts), rows=rows)
    positions[ends[count - 1] :] = 0  # of the padding: never attended to, and it may be longer than any sentence
    all_starts = np.full(shape.sentences + 1, ends[-1], dtype=np.int32)
    all_starts[: len(lengths)] = starts
    longer = np.maximum(lengths, other_lengths)
    long = np.argsort(-longer, kind="stable")[: int((longer > shape.whole).sum())]  # longest first: they take most time
    counts = -(-lengths[long] // shape.block)
    sentence = np.repeat(long, counts)
    blocks = np.full((shape.blocks(int(ends[-1])), 2), -1, dtype=np.int32)
    blocks[: len(sentence), 0] = sentence
    blocks[: len(sentence), 1] = np.arange(len(sentence)) - np.repeat(np.cumsum(counts) - counts, counts)
    return Segments(torch.from_numpy(positions), torch.from_numpy(all_starts), blocks=torch.from_numpy(blocks))


def _rows(starts: Ids, lengths: Ids, other_lengths: Ids) -> Rows:
    """One row per sentence, in tables bucketed by length; the other side's tables hold the same sentences."""
    classes = (np.maximum(lengths, other_lengths) - 1) // LIKE_LENGTH
    tokens, reals = [], []
    for each in np.unique(classes):
        starts_B, lengths_B = starts[classes == each], lengths[classes == each]
        places_L = np.arange(lengths_B.max())
        real_BL = places_L < lengths_B[:, None]
        tokens.append(np.where(real_BL, starts_B[:, None] + places_L, 0))
        reals.append(real_BL)
    real_P = np.concatenate([real_BL.ravel() for real_BL in reals])
    places_N = np.empty(int(lengths.sum()), dtype=np.int64)
    places_N[np.concatenate([tokens_BL.ravel() for tokens_BL in tokens])[real_P]] = np.flatnonzero(real_P)
    return Rows(tuple(map(torch.from_numpy, tokens)), tuple(map(torch.from_numpy, reals)), torch.from_numpy(places_N))
