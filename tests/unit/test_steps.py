"""One step of a run: the gradient, the learning rate and the moments that reach the weights."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dragoman.config import Config
from dragoman.data.batching import collate
from dragoman.model.loss import divergence, smoothed_cross_entropy
from dragoman.text.vocabulary import VOCABULARY
from dragoman.training.data import prepare_data
from dragoman.training.loop import Trainer, train
from dragoman.training.reports.log import SilentReporter, read_log
from tests.survival import SETTINGS, Corpus, write_corpus

PAD = VOCABULARY.pad

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def config_of(corpus: Corpus, *settings: str) -> Config:
    return Config.build("tiny", None, [*SETTINGS, *settings], data=corpus.data)


@dataclass(frozen=True)
class Update:
    """The gradients given to Adam, and the weights before the update."""

    rate: float
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]

    @property
    def norm(self) -> float:
        return float(torch.cat([gradient.flatten() for gradient in self.gradients.values()]).norm())


class Steps(SilentReporter):
    """A run taken step by step, with its updates and records."""

    def __init__(self, corpus: Corpus, directory: Path, *settings: str) -> None:
        self.updates: list[Update] = []
        self.records: list[dict[str, Any]] = []
        prepared = prepare_data(config_of(corpus, *settings), directory, self)
        self.trainer = Trainer(prepared, directory, CPU, self)
        self.run = self.trainer.run
        self._plans = self.run.batches.plan_steps(self.run.progress)
        self.run.learner.optimizer.register_step_pre_hook(self._before_update)

    def take(self, count: int = 1) -> list[Any]:
        """Returns the batches' (epoch, rows) of the last step."""
        for _ in range(count):
            plan = next(self._plans)
            self.trainer.stepper.step(plan, self.run.batches.load(plan))
        return plan.batches

    def weights(self) -> dict[str, Tensor]:
        return {name: weight.detach().clone() for name, weight in self.run.model.named_parameters()}

    def step(self, record: Any, max_steps: int) -> None:
        self.records.append(dict(record))

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        (group,) = optimizer.param_groups
        gradients = {name: weight.grad for name, weight in self.run.model.named_parameters()}
        copied = {name: gradient.clone() for name, gradient in gradients.items() if gradient is not None}
        self.updates.append(Update(float(group["lr"]), copied, self.weights()))


StepsOf = Callable[..., Steps]


@pytest.fixture
def steps_of(corpus: Corpus, tmp_path: Path) -> Iterator[StepsOf]:
    """A run with these settings; by default in a directory of the test's own."""
    with ExitStack() as opened:

        def steps_of(*settings: str, directory: Path | None = None) -> Steps:
            steps = Steps(corpus, directory or tmp_path / "run", *settings)
            opened.callback(steps.trainer.close)
            return steps

        yield steps_of


# Gradients


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_accumulated_batches_give_the_gradient_of_one_large_batch(steps_of: StepsOf, layout: str) -> None:
    settings = ("train.accumulate=3", "train.clip_norm=0", "train.label_smoothing=0.2", "model.dropout=0.0")
    steps = steps_of(*settings, f"train.layout={layout}")
    batches, store = steps.take(2), steps.run.prepared.train
    sizes = [collate(store, rows).num_tokens for _, rows in batches]
    assert len(set(sizes)) == 3, "uneven, or a wrong weighting would not be detected"
    (update,) = steps.updates[1:]

    large = collate(store, np.concatenate([rows for _, rows in batches]))
    model = steps.run.model
    with torch.no_grad():  # as it was when the gradient was taken
        for name, weight in model.named_parameters():
            weight.copy_(update.weights[name])
    logits = model(large.source_ids, large.target_input, large.source_allowed)
    loss = smoothed_cross_entropy(logits, large.target_output, 0.2) / sum(sizes)
    names, weights = zip(*model.named_parameters(), strict=True)
    for name, gradient in zip(names, torch.autograd.grad(loss, weights), strict=True):
        torch.testing.assert_close(update.gradients[name], gradient, atol=1e-10, rtol=0, msg=name)
    assert steps.records[1]["loss"] == pytest.approx(loss.item(), rel=1e-6)  # reported in float32


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_r_drop_adds_the_divergence_of_two_passes_by_its_weight(steps_of: StepsOf, layout: str) -> None:
    settings = ("train.r_drop=3.0", "train.label_smoothing=0.2", "model.dropout=0.3", f"train.layout={layout}")
    run = steps_of(*settings).run
    loss = run.layout._loss  # type: ignore[attr-defined]
    (made,) = run.batches.load(next(run.batches.plan_steps(run.progress)))
    batch = made[0] if layout == "padded" else made
    torch.manual_seed(1)
    found = loss(batch).item()

    torch.manual_seed(1)
    if layout == "padded":
        twice = (part.repeat(2, 1) for part in (batch.source_ids, batch.target_input, batch.source_allowed))
        logits, target = run.model(*twice), batch.target_output
    else:
        logits, target = (
            torch.stack([run.model.output(loss._pass(batch)) for _ in range(2)]),
            batch.target_output_N[None],
        )
    mean = smoothed_cross_entropy(logits, target.repeat(2, 1), 0.2).item() / 2
    apart = divergence(logits, target != PAD).item()
    assert apart > 0.1
    assert found == pytest.approx(mean + 3 * apart, rel=1e-9)


@pytest.mark.parametrize(("clip_norm", "clipped"), [(0.05, True), (1e9, False), (0.0, False)])
def test_gradients_are_clipped_at_clip_norm(steps_of: StepsOf, clip_norm: float, clipped: bool) -> None:
    steps = steps_of(f"train.clip_norm={clip_norm}")
    steps.take(2)
    for update, record in zip(steps.updates, steps.records, strict=True):
        assert record["gradient_norm"] > 0.1, "what is reported is the norm before"
        assert update.norm == pytest.approx(clip_norm if clipped else record["gradient_norm"], rel=1e-4)


# The optimiser


def test_every_update_has_the_learning_rate_of_its_step(corpus: Corpus, tmp_path: Path, steps_of: StepsOf) -> None:
    """The first step too, and the first after a resume."""
    settings = ("train.learning_rate=0.004", "train.warmup_steps=4", "train.schedule=constant", "train.save_every=2")
    fresh = steps_of(*settings)
    fresh.take(6)
    rates = [0.001, 0.002, 0.003, 0.004, 0.004, 0.004]
    assert [update.rate for update in fresh.updates] == pytest.approx(rates)
    assert [record["learning_rate"] for record in fresh.records] == pytest.approx(rates)

    train(config_of(corpus, *settings, "train.max_steps=2"), tmp_path / "resumed")
    resumed = steps_of(*settings, directory=tmp_path / "resumed")
    resumed.take(2)
    assert [record["step"] for record in resumed.records] == [3, 4]
    assert [update.rate for update in resumed.updates] == pytest.approx(rates[2:4])


def adam(updates: list[Update], beta1: float, beta2: float, epsilon: float) -> dict[str, Tensor]:
    """The weights after these gradients by the formula of the paper (Kingma and Ba 2015)."""
    weights = {name: weight.double() for name, weight in updates[0].weights.items()}
    first, second = ({name: torch.zeros_like(weight) for name, weight in weights.items()} for _ in range(2))
    for step, update in enumerate(updates, start=1):
        for name, gradient in update.gradients.items():
            first[name] = beta1 * first[name] + (1 - beta1) * gradient.double()
            second[name] = beta2 * second[name] + (1 - beta2) * gradient.double() ** 2
            moved = first[name] / (1 - beta1**step) / ((second[name] / (1 - beta2**step)).sqrt() + epsilon)
            weights[name] = weights[name] - update.rate * moved
    return weights


def largest_difference(these: dict[str, Tensor], those: dict[str, Tensor]) -> float:
    return float(torch.stack([(these[name] - those[name]).abs().max() for name in these]).max())  # keeps a NaN


def test_adam_has_the_betas_and_the_epsilon_of_the_configuration(steps_of: StepsOf) -> None:
    settings = ("train.adam_beta1=0.5", "train.adam_beta2=0.7", "train.adam_epsilon=0.01", "train.warmup_steps=1")
    steps = steps_of(*settings, "train.learning_rate=0.01")
    steps.take(4)
    found = steps.weights()
    assert largest_difference(adam(steps.updates, 0.5, 0.7, 0.01), found) < 1e-5
    for others in ((0.9, 0.7, 0.01), (0.5, 0.98, 0.01), (0.5, 0.7, 1e-9)):  # the control
        assert largest_difference(adam(steps.updates, *others), found) > 3e-4


# What follows the weights


@pytest.mark.parametrize("decay", [0.15, 0.9])
def test_the_moving_average_follows_the_weights_of_each_step(steps_of: StepsOf, decay: float) -> None:
    steps = steps_of(f"train.ema={decay}", "train.learning_rate=0.01", "train.warmup_steps=1")
    expected = {name: weight.double() for name, weight in steps.weights().items()}
    for step in range(1, 5):
        steps.take()
        share = min(decay, (1 + step) / (10 + step))  # less at first
        for name, weight in steps.weights().items():
            expected[name] = share * expected[name] + (1 - share) * weight.double()
    assert largest_difference(expected, steps.run.learner.evaluated_weights()) < 1e-6
    assert largest_difference(steps.weights(), steps.run.learner.evaluated_weights()) > 1e-4, (
        "the control: not the weights themselves"
    )


def test_the_log_has_the_mean_loss_of_the_tokens_since_its_last_line(steps_of: StepsOf, tmp_path: Path) -> None:
    each = steps_of("train.log_every=1", directory=tmp_path / "each")
    tokens = []
    for _ in range(7):
        tokens.append(sum(each.run.layout.tokens(*batch) for batch in each.take()))
    assert len(set(tokens)) > 1, "otherwise the plain mean would pass"
    assert each.run.progress.tokens == sum(tokens)
    some = steps_of("train.log_every=3", directory=tmp_path / "some")
    some.take(7)
    losses = [record["loss"] for record in each.records]
    logged = [(record["step"], record["loss"]) for record in read_log(tmp_path / "some")]
    expected = [
        (end, pytest.approx(np.average(losses[end - 3 : end], weights=tokens[end - 3 : end]), rel=1e-6))
        for end in (3, 6)
    ]
    assert logged == expected
    assert [record["step"] for record in read_log(tmp_path / "each")] == [1, 2, 3, 4, 5, 6, 7]


# Determinism


class Determinism(SilentReporter):
    """Records at every step whether deterministic algorithms are required."""

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails  # whether the run ends with an error
        self.found: list[tuple[bool, bool, str | None]] = []

    def step(self, record: Mapping[str, Any], max_steps: int) -> None:
        asked = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        self.found.append((*asked, os.environ.get("CUBLAS_WORKSPACE_CONFIG")))
        if self.fails:
            raise RuntimeError("stop here")


@pytest.mark.parametrize(
    ("wanted", "before", "fails"),
    [(True, False, False), (True, False, True), (True, True, True), (False, False, True)],
)
def test_deterministic_mode_is_on_in_every_step_and_restored_after_the_run(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool, before: bool, fails: bool
) -> None:
    """`before`: the setting of the calling program."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that it is restored
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    config = config_of(corpus, f"train.deterministic={json.dumps(wanted)}", "train.max_steps=2", "train.save_every=2")
    steps = Determinism(fails=fails)
    torch.use_deterministic_algorithms(before)
    try:
        with pytest.raises(RuntimeError, match="stop here") if fails else nullcontext():
            train(config, tmp_path, steps)
        after = torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(steps.found) == (1 if fails else 2)
    assert set(steps.found) == {(wanted, False, ":4096:8" if wanted else None)}
    assert after == before
