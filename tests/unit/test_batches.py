"""Which pairs a run sees: each once per epoch, even if the batching changes within an epoch."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any, cast

import numpy as np
import pytest
import torch

from dragoman.config import TransformerConfig
from dragoman.model.transformer import Transformer
from dragoman.tasks.translation import TranslationTask
from dragoman.training.batches import BatchLoader, EpochStores
from dragoman.training.checkpoint import Progress
from dragoman.training.distributed import Ranks
from dragoman.training.gradients import Layout, Packed, Padded
from tests.conftest import quick_config

PAIRS = 4_000  # some 45,000 tokens
LONGEST = 21
Start = tuple[int, int, int]  # train.batch_tokens, train.accumulate, processes
FIRST: Start = (1_200, 3, 1)


class Lengths:
    """The part of a store that planning uses."""

    def __init__(self, epoch: int) -> None:
        random = np.random.default_rng(epoch)  # as with text.sampling: other lengths in every epoch
        self.source_sizes = random.integers(1, LONGEST, PAIRS) + 1  # </s>
        self.target_sizes = random.integers(1, LONGEST, PAIRS) + 1
        self.sizes = np.maximum(self.source_sizes, self.target_sizes)

    def __len__(self) -> int:
        return PAIRS


def stores(epoch: int) -> Any:
    return Lengths(epoch)


def make_layout(name: str, batch_tokens: int) -> Layout:
    settings = quick_config(f"train.batch_tokens={batch_tokens}").train
    model, cpu = Transformer(TransformerConfig.tiny(vocab_size=30, d_model=8, d_ff=8)), torch.device("cpu")
    if name == "padded":
        return Padded(TranslationTask(), settings, stores, LONGEST, model, cpu, torch.float32, Ranks())
    return Packed(TranslationTask(), settings, stores, stores(0), LONGEST, model, cpu, torch.float32, Ranks())


def resume(progress: Progress, name: str, start: Start) -> tuple[Progress, BatchLoader]:
    """Resume like a run: from the JSON of a checkpoint, with the settings of this start."""
    batch_tokens, accumulate, world = start
    layout = make_layout(name, batch_tokens)
    progress = Progress(**json.loads(json.dumps(asdict(progress))))
    progress.change_plan(layout.plan)
    return progress, BatchLoader(cast(EpochStores, stores), layout, accumulate, Ranks(0, world))


def steps_from(progress: Progress, loader: BatchLoader) -> Iterator[list[tuple[int, list[int]]]]:
    """The batches of each step, as (epoch, rows); `progress` follows."""
    for plan in loader.plan_steps(progress):
        progress.move_to(plan.epoch, plan.following)
        yield [(epoch, rows.tolist()) for epoch, rows in plan.batches]


def trained(name: str, starts: Iterable[tuple[Start, int]], until_epoch: int = 2) -> list[tuple[int, list[int]]]:
    """The batches of a run that takes the given steps with each start's settings, the last until the end."""
    progress, batches = Progress(), []
    for start, steps in starts:
        progress, loader = resume(progress, name, start)
        for step in islice(steps_from(progress, loader), steps):
            batches += step
    for step in steps_from(progress, loader):
        batches += step
        if progress.epoch >= until_epoch:
            return batches
    raise AssertionError("steps never end")


def check_every_pair_once(batches: Iterable[tuple[int, list[int]]], epochs: int = 2) -> None:
    seen = Counter((epoch, row) for epoch, rows in batches for row in rows)
    for epoch in range(epochs):
        assert {row for at, row in seen if at == epoch} == set(range(PAIRS)), "no pair is left out"
        assert {count for (at, _), count in seen.items() if at == epoch} == {1}, "no pair comes twice"


CHANGES: dict[str, list[tuple[Start, int]]] = {
    "nothing": [(FIRST, 4), (FIRST, 2)],
    "smaller batches": [(FIRST, 4), ((300, 12, 1), 2)],
    "larger batches": [(FIRST, 4), ((2_400, 1, 1), 2)],
    "more accumulation": [(FIRST, 4), ((1_200, 5, 1), 2)],
    "more processes": [(FIRST, 4), ((1_200, 3, 2), 2)],
    "fewer processes": [((1_200, 1, 3), 4), ((1_200, 1, 1), 2)],
    "all of them": [(FIRST, 4), ((600, 1, 2), 2)],
    "twice": [(FIRST, 4), ((600, 2, 1), 5), ((300, 2, 1), 2)],
    "and back": [(FIRST, 4), ((600, 2, 1), 5), (FIRST, 2)],
    "no step between": [(FIRST, 4), ((600, 2, 1), 0), ((300, 2, 1), 2)],
    "in the second epoch": [(FIRST, 18), ((300, 12, 1), 2)],
    "in both epochs": [(FIRST, 4), ((600, 6, 1), 15), ((300, 12, 1), 2)],
}
REBATCHED = ("smaller batches", "larger batches", "all of them", "twice", "in the second epoch", "in both epochs")


@pytest.mark.parametrize("name", ["padded", "packed"])
@pytest.mark.parametrize("change", CHANGES)
def test_every_pair_is_seen_once_per_epoch_if_batching_changes(name: str, change: str) -> None:
    check_every_pair_once(trained(name, CHANGES[change]))


@pytest.mark.parametrize("name", ["padded", "packed"])
@pytest.mark.parametrize("change", REBATCHED)
def test_counting_batches_of_the_old_plan_is_detected(name: str, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progress, "change_plan", lambda self, plan: False)
    with pytest.raises(AssertionError, match=r"no pair (is left out|comes twice)"):
        check_every_pair_once(trained(name, CHANGES[change]))


@pytest.mark.parametrize("name", ["padded", "packed"])
@pytest.mark.parametrize("start", [(1_200, 3, 1), (1_200, 5, 1), (1_200, 1, 2)])
def test_the_batches_do_not_depend_on_accumulation_or_processes(name: str, start: Start) -> None:
    expected, batches = (trained(name, [(one, 0)]) for one in ((1_200, 1, 1), start))
    shorter = min(len(expected), len(batches))
    assert batches[:shorter] == expected[:shorter]


@pytest.mark.parametrize("name", ["padded", "packed"])
def test_a_run_whose_plan_changed_resumes_with_the_same_batches(name: str) -> None:
    changed = [(FIRST, 4), ((300, 2, 1), 5)]
    assert trained(name, changed) == trained(name, [*changed, ((300, 2, 1), 3), ((300, 2, 1), 80)])


def test_new_batches_have_the_changed_size() -> None:
    batches = trained("packed", [(FIRST, 1), ((300, 1, 1), 1)])
    tokens = [int(Lengths(epoch).target_sizes[rows].sum()) for epoch, rows in batches]
    assert max(tokens[:3]) > 1_000
    assert max(tokens[3:]) <= 300
    assert np.mean(tokens[3:-1]) > 250, "and not much smaller"


def test_checkpoint_without_a_plan_resumes_at_its_batch_number() -> None:
    progress, _ = resume(Progress(epoch=1, batch=7), "padded", FIRST)
    assert (progress.batch, progress.earlier) == (7, [])


def test_new_epoch_clears_earlier_plans() -> None:
    progress = Progress(epoch=1, batch=7, plan={"batch_tokens": 64, "groups": 1})
    assert progress.change_plan({"batch_tokens": 32, "groups": 1})
    assert progress.earlier == [({"batch_tokens": 64, "groups": 1}, 7)]
    progress.move_to(1, 3)
    assert len(progress.earlier) == 1
    progress.move_to(2, 1)
    assert progress.earlier == []
    assert not Progress(epoch=2, batch=0, plan={"batch_tokens": 64}).change_plan({"batch_tokens": 32}), "it begins"
