"""Batches by token budget, in an order that is a pure function of (seed, epoch, index). Knows nothing of text.

Shapes: B sentences, S source positions, T target positions.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

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


@dataclass(frozen=True)
class Batch:
    """Teacher forcing: the decoder is fed <s> y1 .. yn and must predict y1 .. yn </s>."""

    rows: Ids
    source_ids: "Tensor"  # [B, S], each sentence ends in </s>
    source_allowed: "Tensor"  # [B, S], True = real token
    target_input: "Tensor"  # [B, T]
    target_output: "Tensor"  # [B, T], `pad` where there is nothing to predict
    num_tokens: int  # real target tokens, </s> included
    pad: int = VOCABULARY.pad

    @property
    def target_real(self) -> "Tensor":
        """[B, T], True where there is a token to predict."""
        return self.target_output != self.pad

    def to(self, device: "torch.device") -> "Batch":
        return Batch(
            self.rows,
            self.source_ids.to(device, non_blocking=True),
            self.source_allowed.to(device, non_blocking=True),
            self.target_input.to(device, non_blocking=True),
            self.target_output.to(device, non_blocking=True),
            self.num_tokens,
            self.pad,
        )


def pad_rows(rows: Sequence[Sequence[int]], pad: int = VOCABULARY.pad) -> "tuple[Tensor, Tensor]":
    """Pad ragged rows to one [B, longest] tensor; also return which positions are real."""
    import torch

    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    allowed = np.arange(lengths.max(initial=0)) < lengths[:, None]
    ids = np.full(allowed.shape, pad, dtype=np.int64)
    ids[allowed] = [token for row in rows for token in row]
    return torch.from_numpy(ids), torch.from_numpy(allowed)


def teacher_forcing(
    rows: Ids,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    source: Vocabulary = VOCABULARY,
    target: Vocabulary = VOCABULARY,
) -> Batch:
    """Make a batch from ids without special ids, which are added here."""
    source_ids, source_allowed = pad_rows([[*ids, source.eos] for ids in sources], source.pad)
    target_input, _ = pad_rows([[target.bos, *ids] for ids in targets], target.pad)
    target_output, real = pad_rows([[*ids, target.eos] for ids in targets], target.pad)
    return Batch(rows, source_ids, source_allowed, target_input, target_output, int(real.sum()), target.pad)


def collate(store: "Store", rows: Ids) -> Batch:
    sources, targets = ([side(row).tolist() for row in rows] for side in (store.source, store.target))
    return teacher_forcing(rows, sources, targets, store.source_vocabulary, store.target_vocabulary)


def padding_only(batch: Batch) -> Batch:
    """One of its pairs with nothing to predict: a pass through the model without loss or gradient."""
    first = slice(0, 1)
    unasked = batch.target_output[first].clone().fill_(batch.pad)
    return Batch(
        batch.rows[first],
        batch.source_ids[first],
        batch.source_allowed[first],
        batch.target_input[first],
        unasked,
        0,
        batch.pad,
    )


def groups_in(batch_tokens: int, longest: int) -> int:
    """How many groups of similar length make a padded training batch; `longest` is the longest pair, with </s>.

    A single group trains worse: all its sentences end at the same position, those of the next batch at another.
    """
    return max(1, min(MOST_GROUPS, -(-batch_tokens // GROUP_TOKENS), batch_tokens // longest))


def bucket_by_length(rows: Ids, source_lengths: Ids, target_lengths: Ids, tokens: int) -> list[Ids]:
    """Group these pairs, shortest first, into the fullest groups whose padded size is within the budget."""
    lengths = np.maximum(source_lengths[rows], target_lengths[rows]) + 1  # </s>
    shortest_first = np.argsort(lengths, kind="stable")
    rows, lengths = rows[shortest_first], lengths[shortest_first]
    groups, start = [], 0
    while start < len(rows):
        most = max(1, tokens // int(lengths[start]))
        ahead = lengths[start : start + most]
        padded_sizes = np.arange(1, len(ahead) + 1) * ahead
        # a pair longer than the budget is a group of its own
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
    """Assigns pairs to batches: one or more groups of similar length, picked and ordered at random."""

    def __init__(
        self, source_lengths: Ids, target_lengths: Ids, *, batch_tokens: int, seed: int, groups: int = 1
    ) -> None:
        self._lengths = source_lengths, target_lengths
        self._group_tokens, self._groups = batch_tokens // groups, groups
        self._seed = seed

    def epoch(self, epoch: int, rows: Ids | None = None, part: int = 0) -> list[Ids]:
        """Return every batch of an epoch, as row numbers: each pair exactly once.

        With `rows`, use only these pairs: the rest of an epoch after `part` parts of it were batched differently.
        """
        rows = np.arange(len(self._lengths[0])) if rows is None else rows
        random = part_generator(self._seed, epoch, part)
        order = rows[random.permutation(len(rows))]
        groups = bucket_by_length(order, *self._lengths, self._group_tokens)
        drawn = [groups[index] for index in random.permutation(len(groups))]
        starts = range(0, len(drawn), self._groups)
        return [np.concatenate(drawn[start : start + self._groups]) for start in starts]
