"""Batches by token budget, in an order that is a pure function of (seed, epoch, index). Knows nothing of text.

Shapes: B sentences, S source positions, T target positions.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from dragoman.text.vocabulary import VOCABULARY, Vocabulary

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dragoman.data.store import Store

Ids = npt.NDArray[np.int64]
Item = TypeVar("Item")

PlanParameters = dict[str, int]  # what determines the batches, besides (seed, epoch)
Part = tuple[PlanParameters, int]  # of an epoch: how its pairs were batched, and how many of those batches were used

MOST_GROUPS = 4  # per batch; more barely improve training
GROUP_TOKENS = 1_024  # with fewer at once, overhead exceeds the matrix products


@dataclass(frozen=True, kw_only=True)
class AnyBatch:
    """What every batch has: what is to be predicted. A subclass adds what the model is fed."""

    target_output: "Tensor"  # `pad` where there is nothing to predict
    num_tokens: int  # to predict
    pad: int = VOCABULARY.pad

    @property
    def inputs(self) -> "tuple[Tensor, ...]":
        """The arguments of the model's forward, in order."""
        raise NotImplementedError

    @property
    def target_real(self) -> "Tensor":
        """True where there is something to predict."""
        return self.target_output != self.pad

    def to(self, device: "torch.device") -> Self:
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def twice(self) -> Self:
        """Every row two times: first all of them, then all of them again."""
        return replace(
            self._map(lambda tensor: tensor.repeat(2, *[1] * (tensor.dim() - 1))), num_tokens=2 * self.num_tokens
        )

    def first_row_without_targets(self) -> Self:
        """A pass through the model without loss or gradient."""
        row = self._map(lambda tensor: tensor[:1])
        return replace(row, target_output=row.target_output.clone().fill_(self.pad), num_tokens=0)

    def _map(self, change: "Callable[[Tensor], Tensor]") -> Self:
        import torch

        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        changed: dict[str, Any] = {name: change(value) for name, value in values if isinstance(value, torch.Tensor)}
        return replace(self, **changed)


@dataclass(frozen=True, kw_only=True)
class Batch(AnyBatch):
    """Teacher forcing: the decoder is fed <s> y1 .. yn and must predict y1 .. yn </s>."""

    source_ids: "Tensor"  # [B, S], each sentence ends in </s>; or [B, S, F] feature vectors
    source_allowed: "Tensor"  # [B, S], True = real token
    target_input: "Tensor"  # [B, T]

    @property
    def inputs(self) -> "tuple[Tensor, ...]":
        return self.source_ids, self.target_input, self.source_allowed


@dataclass(frozen=True, kw_only=True)
class SeriesBatch(AnyBatch):
    """Windows of a time series: the rows given, and those to forecast as `target_output`, [B, T, F].

    The decoder is fed the last rows given, as many as it is to forecast, and forecasts all at once.
    """

    source: "Tensor"  # [B, S, F]
    target_input: "Tensor"  # [B, T, F]
    weight: "Tensor"  # [B, 1, F], on squared errors: they count in the unit of the training data, not of the window

    @property
    def inputs(self) -> "tuple[Tensor, ...]":
        return self.source, self.target_input

    def first_row_without_targets(self) -> Self:
        return replace(self._map(lambda tensor: tensor[:1]), weight=self.weight[:1] * 0.0, num_tokens=0)


@dataclass(frozen=True, kw_only=True)
class TextBatch(AnyBatch):
    """Blocks of a text: at every position the next id is to be predicted."""

    target_input: "Tensor"  # [B, T]

    @property
    def inputs(self) -> "tuple[Tensor, ...]":
        return (self.target_input,)


@dataclass(frozen=True, kw_only=True)
class LabelBatch(AnyBatch):
    """Texts, of each of which the label is to be predicted: `target_output` is [B]."""

    weight: "Tensor"  # [B], how much each counts in the loss
    source_ids: "Tensor"  # [B, S], each text ends in </s>; or [B, S, F] feature vectors
    source_allowed: "Tensor"  # [B, S], True = real token

    @property
    def inputs(self) -> "tuple[Tensor, ...]":
        return self.source_ids, self.source_allowed


def pad_rows(rows: Sequence[Sequence[int]], pad: int = VOCABULARY.pad) -> "tuple[Tensor, Tensor]":
    """Pad ragged rows to one [B, longest] tensor; also return which positions are real."""
    import torch

    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    allowed = np.arange(lengths.max(initial=0)) < lengths[:, None]
    ids = np.full(allowed.shape, pad, dtype=np.int64)
    ids[allowed] = [token for row in rows for token in row]
    return torch.from_numpy(ids), torch.from_numpy(allowed)


def pad_vectors(rows: "Sequence[npt.NDArray[Any]]") -> "tuple[Tensor, Tensor]":
    """The same for rows of feature vectors: [B, longest, F]."""
    import torch

    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    allowed = np.arange(lengths.max()) < lengths[:, None]
    vectors = np.zeros((*allowed.shape, rows[0].shape[1]), np.float32)
    vectors[allowed] = np.concatenate(rows)
    return torch.from_numpy(vectors), torch.from_numpy(allowed)


def teacher_forcing(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    source: Vocabulary = VOCABULARY,
    target: Vocabulary = VOCABULARY,
) -> Batch:
    """Make a batch from ids without special ids, which are added here."""
    return batch_of_padded(*pad_rows([[*ids, source.eos] for ids in sources], source.pad), targets, target)


def batch_of_padded(
    source_ids: "Tensor", source_allowed: "Tensor", targets: Sequence[Sequence[int]], target: Vocabulary
) -> Batch:
    """The same for a source that is padded already."""
    target_input, _ = pad_rows([[target.bos, *ids] for ids in targets], target.pad)
    target_output, real = pad_rows([[*ids, target.eos] for ids in targets], target.pad)
    return Batch(
        source_ids=source_ids,
        source_allowed=source_allowed,
        target_input=target_input,
        target_output=target_output,
        num_tokens=int(real.sum()),
        pad=target.pad,
    )


def collate(store: "Store", rows: Ids) -> Batch:
    sources, targets = ([side(row).tolist() for row in rows] for side in (store.source, store.target))
    return teacher_forcing(sources, targets, store.source_vocabulary, store.target_vocabulary)


def groups_in(batch_tokens: int, longest: int) -> int:
    """How many groups of similar length make a padded training batch; `longest` is the longest pair, with </s>.

    A single group trains worse: all its sentences end at the same position, those of the next batch at another.
    """
    return max(1, min(MOST_GROUPS, -(-batch_tokens // GROUP_TOKENS), batch_tokens // longest))


def bucket_by_length(rows: Ids, sizes: Ids, tokens: int) -> list[Ids]:
    """Group these rows, shortest first, into the fullest groups whose padded size is within the budget.

    `sizes`: the positions that each row of the corpus takes in a batch, special ids included, on its longer side.
    """
    lengths = sizes[rows]
    shortest_first = np.argsort(lengths, kind="stable")
    rows, lengths = rows[shortest_first], lengths[shortest_first]
    groups, start = [], 0
    while start < len(rows):
        most = max(1, tokens // int(lengths[start]))
        ahead = lengths[start : start + most]
        padded_sizes = np.arange(1, len(ahead) + 1) * ahead
        # a row longer than the budget is a group of its own
        count = max(1, int(np.searchsorted(padded_sizes, tokens, side="right")))
        groups.append(rows[start : start + count])
        start += count
    return groups


def split_by_tokens(
    items: Sequence[Item], max_tokens: int, max_items: int = sys.maxsize, *, size: Callable[[Any], int] = len
) -> Iterator[Sequence[Item]]:
    """Items in order, in parts of at most so many tokens and items; a single item may have more tokens."""
    first, room = 0, max_tokens
    for number, item in enumerate(items):
        if number > first and (size(item) > room or number - first == max_items):
            yield items[first:number]
            first, room = number, max_tokens
        room -= size(item)
    if items:
        yield items[first:]


def part_generator(seed: int, epoch: int, part: int) -> np.random.Generator:
    """Random generator for the order of an epoch, or of the rest of it after `part` parts."""
    return np.random.default_rng([seed, epoch, part] if part else [seed, epoch])


class BatchPlan:
    """Assigns rows to batches: one or more groups of similar length, picked and ordered at random."""

    def __init__(self, sizes: Ids, *, batch_tokens: int, seed: int, groups: int = 1) -> None:
        self._sizes = sizes
        self._group_tokens, self._groups = batch_tokens // groups, groups
        self._seed = seed

    def epoch(self, epoch: int, rows: Ids | None = None, part: int = 0) -> list[Ids]:
        """Return every batch of an epoch, as row numbers: each exactly once.

        With `rows`, use only these: the rest of an epoch after `part` parts of it were batched differently.
        """
        rows = np.arange(len(self._sizes)) if rows is None else rows
        random = part_generator(self._seed, epoch, part)
        order = rows[random.permutation(len(rows))]
        groups = bucket_by_length(order, self._sizes, self._group_tokens)
        drawn = [groups[index] for index in random.permutation(len(groups))]
        starts = range(0, len(drawn), self._groups)
        return [np.concatenate(drawn[start : start + self._groups]) for start in starts]
