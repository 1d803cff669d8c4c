"""The order of training pairs: each once per epoch, in an order given by epoch, seed and rank."""

import multiprocessing
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.config import Config
from dragoman.data.batching import Batch, BatchPlan
from dragoman.text.vocabulary import VOCABULARY
from dragoman.training import batches as batches_module
from dragoman.training.batches import BatchLoader, EpochStores, StepPlan
from dragoman.training.data import prepare_data
from dragoman.training.distributed import Ranks
from dragoman.training.loop import Trainer, train
from dragoman.training.reports.log import SilentReporter
from dragoman.training.run import Run
from dragoman.training.setup import _seed_rank
from tests.survival import PAIRS, SETTINGS, Corpus, write_corpus

Rows = list[list[int]]

EOS = VOCABULARY.eos


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def run_of(corpus: Corpus, directory: Path, *settings: str) -> Run:
    config = Config.build("tiny", None, [*SETTINGS, *settings], data=corpus.data)
    trainer = Trainer(
        prepare_data(config, directory, SilentReporter()), directory, torch.device("cpu"), SilentReporter()
    )
    trainer.close()
    return trainer.run


def taken(run: Run, epochs: int) -> list[Rows]:
    """The rows of every batch of the first epochs, by epoch."""
    found: list[Rows] = [[] for _ in range(epochs)]
    for plan in run.batches.plan_steps(run.progress):
        for epoch, rows in plan.batches:
            if epoch == epochs:
                return found
            found[epoch].append(rows.tolist())
    raise AssertionError("plans have an end")


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_every_epoch_has_every_pair_once_in_its_own_order(corpus: Corpus, tmp_path: Path, layout: str) -> None:
    epochs = taken(run_of(corpus, tmp_path, f"train.layout={layout}", "train.accumulate=3"), 3)
    for batches in epochs:
        assert sorted(row for rows in batches for row in rows) == list(range(PAIRS))
    assert epochs[0] != epochs[1]
    assert epochs[1] != epochs[2]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_seed_determines_the_order_and_the_initial_weights(corpus: Corpus, tmp_path: Path, layout: str) -> None:
    runs = [
        run_of(corpus, tmp_path / name, f"train.layout={layout}", f"train.seed={seed}")
        for name, seed in (("one", 1), ("again", 1), ("two", 2))
    ]
    orders = [taken(run, 1) for run in runs]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    one, again, two = (dict(run.model.named_parameters()) for run in runs)
    matrices = [name for name, weight in one.items() if weight.dim() == 2]
    assert all(torch.equal(one[name], again[name]) for name in matrices)
    assert not any(torch.equal(one[name], two[name]) for name in matrices)


def test_batches_are_not_sorted_by_length() -> None:
    lengths = np.arange(1, 401) // 8 + 1
    batches = BatchPlan(lengths + 1, batch_tokens=100, seed=1).epoch(0)
    means = [float(lengths[rows].mean()) for rows in batches]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.5
    control = sorted(means)
    assert np.corrcoef(control, np.arange(len(means)))[0, 1] > 0.9


def test_ranks_share_the_batches_of_a_step(corpus: Corpus, tmp_path: Path) -> None:
    run = run_of(corpus, tmp_path)

    def loader(rank: int) -> BatchLoader:
        return BatchLoader(run.batches.stores, run.layout, 2, Ranks(rank, 3))

    plans: list[list[StepPlan]] = [list(islice(loader(rank).plan_steps(run.progress), 2)) for rank in range(3)]
    for number, plan in enumerate(plans[0]):
        assert len(plan.batches) == 6, "all ranks' together"
        expected = [rows.tolist() for _, rows in plan.batches]
        for other in plans[1:]:
            assert [rows.tolist() for _, rows in other[number].batches] == expected
        made = [
            [sorted(ids for group in batch for ids in rows_of(group)) for batch in loader(rank).load(plan)]
            for rank in range(3)
        ]
        assert [len(batches) for batches in made] == [2, 2, 2]
        store = run.prepared.train
        sources = [sorted([*store.source(row).tolist(), EOS] for row in rows) for rows in expected]
        assert sorted(rows for batches in made for rows in batches) == sorted(sources)


def test_each_rank_has_its_own_rng_state_and_rank_0_that_of_a_single_process(corpus: Corpus, tmp_path: Path) -> None:
    run = run_of(corpus, tmp_path)
    states = []
    for rank in range(3):
        run.ranks = Ranks(rank, 3)
        torch.manual_seed(run.settings.seed)
        alone = torch.get_rng_state()
        _seed_rank(run)
        states.append(torch.get_rng_state())
        assert torch.equal(alone, states[-1]) == (rank == 0)
    assert not torch.equal(states[1], states[2])


# Subword sampling


def rows_of(batch: Batch) -> list[list[int]]:
    return [ids[real].tolist() for ids, real in zip(batch.source_ids, batch.source_allowed, strict=True)]


def ids(store: Any) -> list[list[int]]:
    return [store.source(row).tolist() + store.target(row).tolist() for row in range(len(store))]


@pytest.fixture(scope="module")
def stores(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> dict[str, EpochStores]:
    """By the strength and the seed."""
    found = {}
    for strength, seed in (("0.0", 1), ("0.1", 1), ("0.1", 2), ("0.8", 1)):
        settings = (f"text.sampling={strength}", f"train.seed={seed}")
        run = run_of(corpus, tmp_path_factory.mktemp("run"), *settings)
        found[f"{strength} {seed}"] = run.batches.stores
    return found


@pytest.mark.slow
def test_segmentation_depends_on_epoch_and_seed(stores: dict[str, EpochStores]) -> None:
    plain = ids(stores["0.0 1"](0))
    assert plain == ids(stores["0.0 1"](1))
    first, second, other = ids(stores["0.1 1"](0)), ids(stores["0.1 1"](1)), ids(stores["0.1 2"](0))
    assert len(first) == len(plain)
    assert plain != first != second
    assert first != other


def test_a_training_prefetches_the_segmentation_of_much_text_on_many_cores(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def children(pairs: int, cores: int) -> int:
        """How many processes a run has in its first epoch. All have ended when the training ends."""
        found = []

        class Watching(SilentReporter):
            def step(self, record: Mapping[str, Any], max_steps: int) -> None:
                found.append(len(multiprocessing.active_children()))

        monkeypatch.setattr(batches_module, "PAIRS_FOR_PROCESSES", pairs)
        monkeypatch.setattr(batches_module, "spare_cores", lambda: cores)
        settings = ("text.sampling=0.1", "train.max_steps=1", "train.save_every=1")
        config = Config.build("tiny", None, [*SETTINGS, *settings], data=corpus.data)
        train(config, tmp_path / f"{pairs} {cores}", Watching())
        assert not multiprocessing.active_children()
        return found[0]

    assert children(PAIRS, cores=3) == 1
    assert children(PAIRS + 1, cores=3) == 0
    assert children(PAIRS, cores=0) == 0


def test_sampling_strength_comes_from_the_configuration(stores: dict[str, EpochStores]) -> None:
    pieces = [sum(map(len, ids(stores[name](0)))) for name in ("0.0 1", "0.1 1", "0.8 1")]
    assert pieces[0] < pieces[1] < pieces[2], "the more merges are left out, the more pieces"
