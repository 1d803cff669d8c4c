"""Which weights a run publishes, with given scores in place of measured ones."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman import bundle, tensors
from dragoman.config import Config
from dragoman.model.build import Model
from dragoman.training.loop import Trainer, TrainResult, train
from dragoman.training.reports.log import read_log
from dragoman.training.reports.results import PUBLISHED
from dragoman.training.validation import Validation
from tests.survival import SETTINGS, Corpus, steps, write_corpus

Weights = dict[str, Tensor]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@dataclass
class Trained:
    """The result of a run, and the weights at every validation."""

    directory: Path
    result: TrainResult
    shown: list[Weights] = field(default_factory=list)

    @property
    def weights(self) -> Weights:
        return tensors.weights_from_bytes((self.directory / bundle.WEIGHTS).read_bytes(), self.directory)

    @property
    def published(self) -> tuple[str, int]:
        told = json.loads((self.directory / PUBLISHED).read_bytes())
        return told["kind"], told["step"]


TrainWithScores = Callable[..., Trained]


@pytest.fixture
def train_with_scores(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainWithScores:
    """Train with these scores, one per validation; the last is for the average, if there is one."""

    def train_with_scores(scores: Sequence[float], *settings: str, metric: str = "chrf") -> Trained:
        given, shown = iter(scores), []

        def measure(self: Validation, model: Model) -> dict[str, Any]:
            shown.append({name: weight.detach().clone() for name, weight in tensors.named_weights(model).items()})
            numbers = {"loss": 9.0, "chrf": 50.0, "bleu": 50.0, "exact_match": 50.0, metric: next(given)}
            return {**numbers, "sample": {"source": "", "translation": ""}, "snapshot": None}

        monkeypatch.setattr(Validation, "measure", measure)
        monkeypatch.setattr(Trainer, "_write_reports", lambda self, reason: None)  # takes most of the time
        rates = ("train.learning_rate=0.01", "train.warmup_steps=1", f"train.valid_metric={metric}")
        saves = ("train.save_every=1", f"train.max_steps={len(scores)}", "train.average=1")
        config = Config.build("tiny", None, [*SETTINGS, *rates, *saves, *settings], data=corpus.data)
        return Trained(tmp_path, train(config, tmp_path), shown)

    return train_with_scores


def mean(all_weights: list[Weights]) -> Weights:
    return {name: torch.stack([weights[name] for weights in all_weights]).mean(dim=0) for name in all_weights[0]}


def largest_difference(these: Weights, those: Weights) -> float:
    assert these.keys() == those.keys()
    return float(torch.stack([(these[name] - those[name]).abs().max() for name in these]).max())


# The average


@pytest.mark.slow
@pytest.mark.parametrize("ema", [0.0, 0.9])
@pytest.mark.parametrize(("keep", "average"), [(4, 2), (1, 3)])
def test_average_is_of_the_last_checkpoints_as_validated(
    train_with_scores: TrainWithScores, ema: float, keep: int, average: int
) -> None:
    settings = (f"train.keep_checkpoints={keep}", f"train.average={average}", f"train.ema={ema}", "train.max_steps=5")
    kept = train_with_scores([1, 2, 3, 4, 5, 100], *settings)
    assert steps(kept.directory) == list(range(1, 6))[-max(keep, average) :], "as many as either needs"
    assert kept.published == ("average", 5)
    assert kept.result.averaged
    assert largest_difference(kept.weights, mean(kept.shown[5 - average : 5])) < 1e-6
    (record,) = [record for record in read_log(kept.directory) if record["kind"] == "average"]
    assert record["checkpoints"] == average
    for other in (kept.shown[:average], kept.shown[:5]):  # the control: the first ones, or all
        assert largest_difference(kept.weights, mean(other)) > 1e-4


def test_average_that_is_not_better_is_not_published(train_with_scores: TrainWithScores) -> None:
    kept = train_with_scores([1, 3, 2, 2.5], "train.average=3", "train.max_steps=3")
    assert kept.published == ("valid", 2)
    assert largest_difference(kept.weights, kept.shown[1]) == 0


# The best


@pytest.mark.slow
@pytest.mark.parametrize("average", [1, 4])
def test_tie_keeps_the_earlier_weights(train_with_scores: TrainWithScores, average: int) -> None:
    scores = [5.0, 7.0, 7.0, 6.0, *([7.0] if average > 1 else [])]
    kept = train_with_scores(scores, f"train.average={average}", "train.max_steps=4")
    assert kept.published == ("valid", 2)
    assert kept.result.best_step == 2
    assert largest_difference(kept.weights, kept.shown[1]) == 0
    assert largest_difference(kept.shown[1], kept.shown[2]) > 0, "the control: the weights differ"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "scores", "best"),
    [("chrf", [1, 3, 2], 2), ("bleu", [3, 2, 1], 1), ("exact_match", [1, 2, 3], 3), ("loss", [3, 1, 2], 2)],
)
def test_best_weights_by_the_chosen_metric_are_published(
    train_with_scores: TrainWithScores, metric: str, scores: list[float], best: int
) -> None:
    kept = train_with_scores(scores, metric=metric)
    assert kept.published == ("valid", best)
    assert kept.result.best_step == best
    assert kept.result.kept == scores[best - 1]
    assert largest_difference(kept.weights, kept.shown[best - 1]) == 0


@pytest.mark.slow
def test_another_metric_measures_the_published_weights_again(train_with_scores: TrainWithScores) -> None:
    first = train_with_scores([1, 9, 2])
    kept = train_with_scores([7, 3, 4], "train.max_steps=5", metric="bleu")
    assert largest_difference(kept.shown[0], first.shown[1]) == 0, "the published weights are measured again"
    assert kept.published == ("valid", 2)
    assert (kept.result.best_step, kept.result.kept) == (2, 7)
    assert largest_difference(kept.weights, first.shown[1]) == 0
    better = train_with_scores([5, 6], "train.max_steps=6", metric="loss")  # the control
    assert better.published == ("valid", 2), "a loss of 6 is not below 5"
    better = train_with_scores([4], "train.max_steps=7", metric="loss")
    assert better.published == ("valid", 7)


def test_damaged_published_weights_are_replaced_under_another_metric(train_with_scores: TrainWithScores) -> None:
    first = train_with_scores([1, 9, 2])
    weights = first.directory / bundle.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1])
    kept = train_with_scores([3], "train.max_steps=4", metric="bleu")
    assert kept.published == ("valid", 4)
    assert largest_difference(kept.weights, kept.shown[0]) == 0


# When


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patience", "last"), [(1, 2), (2, 5), (3, 8), (0, 8)], ids=["the first", "a better one between", "rarer", "never"]
)
def test_patience_counts_consecutive_validations_without_improvement(
    train_with_scores: TrainWithScores, patience: int, last: int
) -> None:
    kept = train_with_scores([3, 2, 4, 4, 3, 5, 1, 1], f"train.patience={patience}")
    assert kept.result.steps == last
    assert steps(kept.directory)[-1] == last


def test_run_validates_and_saves_every_save_every_steps_and_at_the_end(train_with_scores: TrainWithScores) -> None:
    kept = train_with_scores([1, 2, 3], "train.save_every=2", "train.max_steps=5")
    assert steps(kept.directory) == [2, 4, 5]
    assert [record["step"] for record in read_log(kept.directory) if record["kind"] == "valid"] == [2, 4, 5]
    assert len(kept.shown) == 3
