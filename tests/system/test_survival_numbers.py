"""NaN and Inf in a loss or in a gradient: no weight changes, the cause is named, too many end the run."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dragoman import tensors
from dragoman.data.batching import AnyBatch
from dragoman.errors import NonFiniteError
from dragoman.training import checkpoint
from dragoman.training.data import prepare_data
from dragoman.training.gradients import PaddedLoss
from dragoman.training.loop import Trainer, train
from dragoman.training.reports.log import SilentReporter, read_log
from tests.survival import Runs, state, steps

LAYER = "encoder.layers.0.feed_forward.inner"
VALUES = pytest.mark.parametrize("value", ["nan", "inf"])


class Notes(SilentReporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Run:
    """A run taken step by step."""

    def __init__(self, runs: Runs, directory: Path, *settings: str) -> None:
        self.directory, self.reporter = directory, Notes()
        prepared = prepare_data(runs.config("train.ema=0.9", "train.accumulate=2", *settings), directory, self.reporter)
        self.trainer = Trainer(prepared, directory, torch.device("cpu"), self.reporter)
        self._loader = self.trainer.run.batches
        self._plans = self._loader.plan_steps(self.trainer.run.progress)

    def step(self) -> list[str]:
        """Take one step; returns the locations of the lines it read."""
        plan = next(self._plans)
        self.trainer.stepper.step(plan, self._loader.load(plan))
        return [self.trainer.run.prepared.train.place(int(row)) for _, rows in plan.batches for row in rows]

    def learned(self) -> dict[str, Tensor]:
        """Weights, their moving average, the optimiser's moments and counts."""
        learner = self.trainer.run.learner
        weights = {f"weight {name}": weight for name, weight in tensors.named_weights(learner.model).items()}
        average = {f"average {name}": weight for name, weight in learner.evaluated_weights().items()}
        return {name: tensor.clone() for name, tensor in (weights | average | checkpoint._moments(learner)).items()}

    def check_step_changes_nothing(self) -> list[str]:
        before = self.learned()
        lines = self.step()
        after = self.learned()
        changed = [name for name in before if not torch.equal(before[name], after[name])]
        assert not changed
        return lines

    def record(self) -> dict[str, object]:
        (record,) = [record for record in read_log(self.directory) if record["kind"] == "nonfinite"]
        return record


@pytest.fixture
def run(runs: Runs, tmp_path: Path) -> Iterator[Run]:
    """One good step was taken."""
    run = Run(runs, tmp_path)
    run.step()
    yield run
    run.trainer.run.log.close()


def check_report(run: Run, lines: list[str], what: str, began: str) -> None:
    """The step, every line of its batches and the first non-finite layer are reported; then training continues."""
    record = run.record()
    assert (record["step"], record["lines"], record["began"]) == (2, lines, began)
    shown = f"{', '.join(lines[:3])} and {len(lines) - 3} more"
    message = f"step 2: non-finite {what} in a batch with {shown}; first seen in {began}; no weight was changed"
    assert message in run.reporter.notes
    before = run.learned()
    run.step()
    after = run.learned()
    assert all(torch.isfinite(tensor).all() for tensor in after.values())
    assert all(not torch.equal(before[name], after[name]) for name in before if name.startswith("weight"))


@VALUES
def test_non_finite_loss_changes_no_weights(run: Run, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    real = PaddedLoss.forward

    def broken(self: PaddedLoss, batch: AnyBatch) -> Tensor:
        return real(self, batch) * float(value)

    with monkeypatch.context() as patch:
        patch.setattr(PaddedLoss, "forward", broken)
        lines = run.check_step_changes_nothing()
    check_report(run, lines, f"loss ({value})", "the loss itself: every layer's output is finite")


@VALUES
@pytest.mark.parametrize("name", [f"{LAYER}.weight", "decoder.layers.0.cross_attention.query.bias"])
def test_non_finite_gradient_changes_no_weights(run: Run, value: str, name: str) -> None:
    parameter = tensors.named_weights(run.trainer.run.model)[name]

    def broken(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient.view(-1)[0] = float(value)
        return gradient

    handle = parameter.register_hook(broken)  # type: ignore[no-untyped-call]
    lines = run.check_step_changes_nothing()
    handle.remove()
    check_report(run, lines, f"gradient (norm {value})", f"the gradient of {name}")


@pytest.mark.slow
@VALUES
@pytest.mark.parametrize("layer", [LAYER, "decoder.layers.0.self_attention.value"])
def test_first_non_finite_layer_is_named(runs: Runs, tmp_path: Path, value: str, layer: str) -> None:
    """A weight is not finite: its layer is named, not the layers after it."""
    run = Run(runs, tmp_path, "train.ema=0")
    run.step()
    weight = tensors.named_weights(run.trainer.run.model)[f"{layer}.weight"]
    good = weight.detach().clone()
    with torch.no_grad():
        weight[0, 0] = float(value)
    before = run.learned()
    lines = run.step()
    after = run.learned()
    assert all(torch.equal(before[name].nan_to_num(), after[name].nan_to_num()) for name in before)
    with torch.no_grad():
        weight.copy_(good)
    check_report(run, lines, "loss (nan)", f"the output of {layer}")
    run.trainer.run.log.close()


def test_without_found_inf_a_non_finite_loss_changes_weights(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = run.trainer.run.learner.optimizer
    real: Callable[[], None] = optimizer.step

    def untold() -> None:
        optimizer.found_inf.zero_()  # type: ignore[attr-defined]
        real()

    monkeypatch.setattr(optimizer, "step", untold)
    real_loss = PaddedLoss.forward
    monkeypatch.setattr(PaddedLoss, "forward", lambda *args: real_loss(*args) * float("nan"))
    with pytest.raises(AssertionError):
        run.check_step_changes_nothing()


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 3])
def test_too_many_non_finite_steps_in_a_row_end_the_run(runs: Runs, tmp_path: Path, limit: int) -> None:
    """With exit code 5, and earlier checkpoints unchanged; finite steps in between reset the count."""
    settings = ("train.save_every=2", "train.max_steps=20", f"train.nonfinite_limit={limit}")
    first = 6
    fault = {"name": "nan_losses", "steps": [3, *range(first, 20)] if limit > 1 else list(range(first, 20))}
    ended = runs.run(tmp_path, *settings, fault=fault)
    assert ended.code == 5, ended.errors
    place = rf"{re.escape(str(runs.corpus.source))}:\d+"
    pattern = (
        rf"dragoman: step {first + limit - 1}: non-finite loss \(nan\) in a batch with {place}, {place}, {place} "
        r"and \d+ more; "
        rf"first seen in the loss itself: every layer's output is finite; {limit} steps in a row: "
        r"lower train\.learning_rate or raise train\.warmup_steps"
    )
    assert re.fullmatch(pattern, ended.lines[-1])
    logged = [record["step"] for record in read_log(tmp_path) if record["kind"] == "nonfinite"]
    assert logged == ([3] if limit > 1 else []) + list(range(first, first + limit))
    assert steps(tmp_path)[0] == 2
    for step in steps(tmp_path):
        weights = tensors.weights_from_bytes(state(tmp_path, step)["weights.safetensors"], tmp_path)
        assert all(torch.isfinite(weight).all() for weight in weights.values())


def test_non_finite_error_can_be_caught(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_loss = PaddedLoss.forward
    monkeypatch.setattr(PaddedLoss, "forward", lambda *args: real_loss(*args) * float("inf"))
    with pytest.raises(NonFiniteError, match="2 steps in a row") as caught:
        train(runs.config("train.nonfinite_limit=2"), tmp_path)
    assert caught.value.exit_code == 5
