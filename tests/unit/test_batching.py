"""Batches: budget, order, teacher forcing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.data.batching import (
    BatchPlan,
    bucket_by_length,
    groups_in,
    pad_rows,
    split_by_tokens,
    teacher_forcing,
)
from dragoman.text.vocabulary import VOCABULARY, Vocabulary

PAD, BOS, EOS = VOCABULARY.pad, VOCABULARY.bos, VOCABULARY.eos

LENGTHS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=300)


def plan_of(lengths: list[tuple[int, int]], budget: int, seed: int = 1, groups: int = 1) -> BatchPlan:
    source, target = np.array(lengths, dtype=np.int64).T
    return BatchPlan(np.maximum(source, target) + 1, batch_tokens=budget, seed=seed, groups=groups)  # + 1: </s>


@given(LENGTHS, st.integers(10, 500), st.integers(0, 5))
def test_every_pair_is_batched_once_within_the_budget(lengths: list[tuple[int, int]], budget: int, epoch: int) -> None:
    batches = plan_of(lengths, budget).epoch(epoch)
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    for rows in batches:
        longest = max(max(lengths[row]) + 1 for row in rows)
        assert longest * len(rows) <= budget or len(rows) == 1


def test_order_is_a_pure_function_of_seed_and_epoch() -> None:
    lengths = [(length % 17 + 1, length % 11 + 1) for length in range(500)]

    def order(epoch: int, seed: int = 1, after: tuple[int, ...] = ()) -> list[list[int]]:
        plan = plan_of(lengths, 100, seed)
        for earlier in after:
            plan.epoch(earlier)
        return [rows.tolist() for rows in plan.epoch(epoch)]

    assert order(3) == order(3, after=(0, 1, 2)), "earlier epochs do not matter"
    assert order(3) != order(4)
    assert order(3) != order(3, seed=2)


def test_batches_are_bucketed_by_length() -> None:
    random = np.random.default_rng(0)
    lengths = [(int(length), int(length)) for length in random.integers(1, 50, size=2_000)]
    used = sum(max(lengths[row][0] + 1 for row in rows) * len(rows) for rows in plan_of(lengths, 1_000).epoch(0))
    needed = sum(length + 1 for length, _ in lengths)
    assert needed / used > 0.95
    shuffled = random.permutation(2_000)  # the control: batches in the order of the corpus
    naive = sum(max(lengths[row][0] + 1 for row in shuffled[at : at + 40]) * 40 for at in range(0, 2_000, 40))
    assert needed / naive < 0.6


@given(LENGTHS, st.integers(40, 500), st.integers(1, 5))
def test_each_group_of_a_batch_fits_its_share(lengths: list[tuple[int, int]], budget: int, groups: int) -> None:
    batches = plan_of(lengths, budget, groups=groups).epoch(0)
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    sizes = np.array(lengths, dtype=np.int64).max(axis=1) + 1  # </s>
    for rows in batches:
        parts = bucket_by_length(rows, sizes, budget // groups)
        assert len(parts) <= groups, "no more than the batch has"
        assert sorted(np.concatenate(parts)) == sorted(rows), "grouping loses no rows"
        for part in parts:
            longest = max(max(lengths[row]) + 1 for row in part)
            assert longest * len(part) <= budget // groups or len(part) == 1


def test_a_batch_of_several_groups_has_many_lengths() -> None:
    lengths = [(int(length), int(length)) for length in np.random.default_rng(0).integers(1, 50, size=8_000)]

    def spread(groups: int) -> float:
        """How far the batches are apart in the mean length of the sentence that a token is in."""
        batches = [
            np.array([lengths[row][0] for row in rows]) for rows in plan_of(lengths, 4_096, groups=groups).epoch(0)
        ]
        return float(np.std([(batch**2).sum() / batch.sum() for batch in batches]))

    assert spread(4) < 0.7 * spread(1), "a batch of one group has the length of that group"


def test_group_fits_the_longest_pair_and_never_grows_for_smaller_batches() -> None:
    assert [groups_in(tokens, longest=100) for tokens in (64, 1_024, 2_048, 4_096, 25_000)] == [1, 1, 2, 4, 4]
    shares = [tokens // groups_in(tokens, longest=100) for tokens in (25_000, 12_500, 4_096, 2_048, 1_024, 512)]
    assert shares == sorted(shares, reverse=True)
    assert groups_in(4_096, longest=2_000) == 2
    assert groups_in(4_096, longest=5_000) == 1


def test_the_target_is_shifted_right() -> None:
    batch = teacher_forcing([[7, 8, 9], [5]], [[4], [5, 6]])
    assert batch.source_ids.tolist() == [[7, 8, 9, EOS], [5, EOS, PAD, PAD]]
    assert batch.source_allowed.tolist() == [[True] * 4, [True, True, False, False]]
    assert batch.target_input.tolist() == [[BOS, 4, PAD], [BOS, 5, 6]]
    assert batch.target_output.tolist() == [[4, EOS, PAD], [5, 6, EOS]]
    assert batch.num_tokens == 5


def test_special_ids_come_from_the_vocabularies() -> None:
    source, target = Vocabulary(pad=90, eos=91), Vocabulary(pad=80, bos=81, eos=0)
    batch = teacher_forcing([[7, 8], [5]], [[4], [5, 6]], source, target)
    assert batch.source_ids.tolist() == [[7, 8, 91], [5, 91, 90]]
    assert batch.target_input.tolist() == [[81, 4, 80], [81, 5, 6]]
    assert batch.target_output.tolist() == [[4, 0, 80], [5, 6, 0]]
    assert batch.target_real.tolist() == [[True, True, False], [True, True, True]]
    assert not batch.first_row_without_targets().target_real.any()


@pytest.mark.parametrize("rows", [[], [[]], [[], [1, 2]]])
def test_padded_rows_hold_the_ragged_rows(rows: list[list[int]]) -> None:
    ids, allowed = pad_rows(rows)
    assert ids.shape == allowed.shape
    assert [[int(token) for token in row[real]] for row, real in zip(ids, allowed, strict=True)] == rows


@pytest.mark.parametrize(
    ("limit", "most", "sizes"),
    [(9, 99, [[3, 4], [20], [1, 1, 1], [9], [1]]), (99, 2, [[3, 4], [20, 1], [1, 1], [9, 1]]), (99, 99, [[*range(0)]])],
)
def test_parts_have_at_most_so_many_tokens_and_items(limit: int, most: int, sizes: list[list[int]]) -> None:
    items = [[0] * size for part in sizes for size in part]
    found = [[len(item) for item in part] for part in split_by_tokens(items, limit, most)]
    assert found == [part for part in sizes if part]
    by_size = [list(part) for part in split_by_tokens([len(item) for item in items], limit, most, size=int)]
    assert by_size == found
