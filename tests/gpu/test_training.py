"""Training on CUDA: packed, compiled, captured as one graph, resumed bit for bit."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman import bundle, tensors
from dragoman.config import Config
from dragoman.training.checkpoint_files import checkpoint_path, read_checkpoint, remove_checkpoints
from dragoman.training.cuda_graph import GradientGraph
from dragoman.training.loop import train
from dragoman.training.memory import measured_peak
from dragoman.training.reports.log import SilentReporter, read_log
from tests.conftest import quick_config

CUDA = ("train.device=cuda", "train.layout=packed", "train.batch_tokens=2048", "model.d_model=64")


def losses(run: Path) -> list[float]:
    return [record["loss"] for record in read_log(run) if record["kind"] == "step"]


def test_packed_and_padded_training_losses_stay_close(tmp_path: Path) -> None:
    """The same pairs in other batches and another precision: the losses fall and stay close."""
    curves: dict[str, list[float]] = {}
    for name in ("packed", "padded"):
        settings = (*CUDA, f"train.layout={name}", "train.max_steps=60", "train.save_every=60")
        train(quick_config(*settings), tmp_path / name)
        curves[name] = losses(tmp_path / name)
    assert curves["packed"][0] == pytest.approx(curves["padded"][0], rel=0.05)
    assert curves["packed"][-1] < 0.8 * curves["packed"][0]
    assert curves["packed"][-1] == pytest.approx(curves["padded"][-1], rel=0.15)


def test_cuda_graph_trains_the_same_weights_as_eager_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without dropout, whose draws differ: a few steps of two batches end with the same weights."""
    config = quick_config(*CUDA, "model.dropout=0.0", "train.max_steps=5", "train.save_every=5", "train.accumulate=2")
    train(config, tmp_path / "graph")

    class OneByOne:
        def __init__(self, loss_of: Any, example: Any, parameters: Any, *, accumulates: bool) -> None:
            self._loss_of, self._parameters, self._device = loss_of, parameters, example.target_output_N.device

        def __call__(self, batch: Any, tokens: int, *, first: bool) -> Any:
            for parameter in self._parameters if first else ():
                parameter.grad = None
            loss = self._loss_of(batch.to(self._device)) / tokens
            loss.backward()
            return loss.detach()

    monkeypatch.setattr("dragoman.training.gradients.GradientGraph", OneByOne)
    train(config, tmp_path / "eager")
    graph, eager = (tensors.named_weights(bundle.load_bundle(tmp_path / name).model) for name in ("graph", "eager"))
    for name, weights in graph.items():
        torch.testing.assert_close(weights, eager[name], rtol=1e-3, atol=1e-4)
    assert losses(tmp_path / "graph") == pytest.approx(losses(tmp_path / "eager"), rel=1e-4)


def test_nothing_is_compiled_or_recorded_after_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[int] = []
    record = GradientGraph._record

    def counted(self: GradientGraph) -> Any:
        recorded.append(1)
        return record(self)

    monkeypatch.setattr(GradientGraph, "_record", counted)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    train(quick_config(*CUDA, "train.max_steps=40", "train.save_every=40"), tmp_path / "run")
    assert sum(recorded) == 1
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def state_of(run: Path, step: int) -> dict[str, str]:
    """Hashes of the tensors in a checkpoint; its JSON contains times."""
    files = read_checkpoint(checkpoint_path(run, step))
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items() if name.endswith("tensors")}


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_deterministic_run_resumes_bit_for_bit(tmp_path: Path, layout: str) -> None:
    def config(steps: int) -> Config:
        return quick_config(
            *CUDA, f"train.layout={layout}", "train.deterministic=true", "train.accumulate=2", "train.batch_tokens=512",
            f"train.max_steps={steps}", "train.save_every=10", "train.average=1", "train.keep_checkpoints=9",
        )  # fmt: skip

    train(config(40), tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    remove_checkpoints(tmp_path / "parts", keep=[checkpoint_path(tmp_path / "parts", 20)])
    train(config(40), tmp_path / "parts")
    assert state_of(tmp_path / "parts", 40) == state_of(tmp_path / "whole", 40)
    assert state_of(tmp_path / "parts", 20) != state_of(tmp_path / "whole", 40), "the control"


@pytest.mark.parametrize(
    "setting", ["train.r_drop=1.0", "model.attention_dropout=0.1", "train.ema=0.9", "model.positions=rotary"]
)
def test_other_settings_train_on_cuda(tmp_path: Path, setting: str) -> None:
    train(quick_config(*CUDA, setting, "train.max_steps=30", "train.save_every=30"), tmp_path / "run")
    curve = losses(tmp_path / "run")
    assert curve[-1] < 0.9 * curve[0]


class Notes(SilentReporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_peak_memory_stays_within_the_prediction(tmp_path: Path) -> None:
    torch.cuda.reset_peak_memory_stats()
    others = torch.cuda.memory_allocated()  # of models that earlier tests keep
    corpus = ("data.generated=reverse", "data.generated_size=2000", "text.model=word", "text.vocab_size=300")
    run = ("train.device=cuda", "train.max_steps=3", "train.save_every=3", "train.batch_tokens=8192")
    reporter = Notes()
    train(Config.build("base", None, [*corpus, *run, "train.valid_sentences=4"]), tmp_path / "run", reporter)
    (told,) = [text for text in reporter.notes if text.startswith("expected peak memory")]
    expected = float(told.split()[3]) * 2**30
    assert 0.4 * expected < measured_peak(torch.device("cuda")) - others < 1.15 * expected
