"""Runs from end to end: what they write, how they resume, when they stop."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dragoman
from dragoman import bundle, files, tensors
from dragoman.config import DataConfig
from dragoman.data.batching import AnyBatch
from dragoman.errors import ConfigError, DataError, ModelError, NonFiniteError
from dragoman.training import setup
from dragoman.training.checkpoint_files import checkpoint_path, checkpoints, read_checkpoint
from dragoman.training.data import prepare_data
from dragoman.training.gradients import PaddedLoss
from dragoman.training.loop import Trainer, train
from dragoman.training.reports import results
from dragoman.training.reports.log import SilentReporter, read_log
from dragoman.training.reports.results import PUBLISHED
from tests.conftest import QUICK, quick_config


class Notes(SilentReporter):
    """A reporter that records its notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def state(run: Path, step: int) -> dict[str, bytes]:
    """A checkpoint without its clock and its provenance."""
    files = read_checkpoint(checkpoint_path(run, step))
    del files["provenance.json"]
    recorded = json.loads(files["state.json"])
    del recorded["progress"]["seconds"]
    return {**files, "state.json": json.dumps(recorded).encode()}


def losses(run: Path) -> list[tuple[int, float]]:
    return [(record["step"], record["loss"]) for record in read_log(run) if record["kind"] == "step"]


def test_run_writes_a_model_directory(quick_run: Path) -> None:
    names = {path.name for path in quick_run.iterdir()}
    assert {"weights.safetensors", "config.toml", "tokenizer.model", "card.md", "log.jsonl", "checkpoints"} <= names
    assert [path.name for path in checkpoints(quick_run)] == [
        "step-000020",
        "step-000040",
        "step-000060",
    ]
    card = (quick_run / "card.md").read_text()
    assert "`reverse`: 2,000 pairs" in card
    assert "encoder self-attention" in card


def test_losses_fall_and_are_logged(quick_run: Path) -> None:
    curve = losses(quick_run)
    assert [step for step, _ in curve] == list(range(5, 61, 5))
    assert curve[-1][1] < curve[0][1] - 0.5
    valid = [record for record in read_log(quick_run) if record["kind"] == "valid"]
    assert [record["step"] for record in valid] == [20, 40, 60]
    assert {"loss", "bleu", "chrf", "exact_match", "sample"} <= valid[0].keys()
    step = next(record for record in read_log(quick_run) if record["kind"] == "step")
    assert {"learning_rate", "gradient_norm", "tokens_per_second", "epoch"} <= step.keys()


def test_tensorboard_is_written_when_installed(quick_run: Path) -> None:
    pytest.importorskip("tensorboard")
    assert list((quick_run / "tensorboard").glob("events.out.tfevents.*"))


def test_the_directory_holds_the_best_weights(quick_run: Path) -> None:
    records = [record for record in read_log(quick_run) if record["kind"] in ("valid", "average")]
    best = max(records, key=lambda record: record["chrf"])
    assert records[-1]["kind"] == "average"
    directory = tensors.weights_from_bytes((quick_run / bundle.WEIGHTS).read_bytes(), quick_run)
    saved = [tensors.weights_from_bytes(read_checkpoint(path)[bundle.WEIGHTS], path) for path in checkpoints(quick_run)]
    if best["kind"] == "valid":
        expected = saved[best["step"] // 20 - 1]
    else:
        expected = {name: sum(one[name].double() for one in saved) / 3 for name in directory}
    for name, tensor in directory.items():
        torch.testing.assert_close(tensor, expected[name].float())


# Going on

SMALL = ("data.generated_size=1000", "train.batch_tokens=256")
RESUME = (
    *SMALL, "train.accumulate=3", "train.save_every=6", "train.log_every=4", "model.dropout=0.2", "train.average=1"
)  # fmt: skip


def run_steps(run: Path, steps: int, *settings: str) -> None:
    train(quick_config(*RESUME, f"train.max_steps={steps}", *settings), run)


def test_resumed_run_is_bit_for_bit_the_same(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run_steps(whole, 18)
    run_steps(parts, 6)
    run_steps(parts, 18)
    assert state(whole, 18) == state(parts, 18)
    assert losses(whole) == losses(parts)


@pytest.mark.slow
def test_without_the_rng_state_the_resumed_run_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run_steps(whole, 12)
    run_steps(parts, 6)
    monkeypatch.setattr(torch, "set_rng_state", lambda state: None)
    run_steps(parts, 12)
    assert state(whole, 12) != state(parts, 12)


@pytest.mark.slow
def test_killed_run_resumes_from_its_last_checkpoint(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run_steps(whole, 24)
    arguments = [item for setting in (*QUICK, *RESUME, "train.max_steps=24") for item in ("--set", setting)]
    command = [sys.executable, "-m", "dragoman", "train", "--preset", "tiny", "--out", str(killed), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not checkpoints(killed) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert checkpoints(killed)
    subprocess.run(command, check=True, capture_output=True, timeout=900)
    assert state(whole, 24) == state(killed, 24)
    assert losses(whole) == losses(killed)


@pytest.mark.slow
def test_damaged_checkpoint_is_skipped(tmp_path: Path) -> None:
    run_steps(tmp_path, 12)
    weights = checkpoint_path(tmp_path, 12) / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    reporter = Notes()
    train(quick_config(*RESUME, "train.max_steps=18"), tmp_path, reporter)
    newest = checkpoint_path(tmp_path, 12)
    assert f"{newest}: damaged checkpoint (weights.safetensors is not what was saved); falling back" in " ".join(
        reporter.notes
    )
    assert f"resuming from {checkpoint_path(tmp_path, 6)}" in reporter.notes

    for path in checkpoints(tmp_path):
        (path / "manifest.json").unlink()
    with pytest.raises(ModelError, match=r"none of its 3 checkpoints is intact; restore one or give another --out"):
        run_steps(tmp_path, 24)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.d_ff=96", "model.d_ff was 64 when this run began and is 96 now; restore it, or give another --out"),
        ("text.vocab_size=301", "text.vocab_size was 300 when this run began and is 301 now"),
        ("data.generated_size=2001", "data.generated_size was 2000 when this run began and is 2001 now"),
        ("train.seed=5", "train.seed was 1 when this run began and is 5 now"),
    ],
)
def test_changed_model_vocabulary_or_corpus_is_refused(quick_run: Path, setting: str, message: str) -> None:
    before = (quick_run / "weights.safetensors").stat().st_mtime_ns
    with pytest.raises(ModelError) as caught:
        train(quick_config(setting), quick_run)
    assert message in str(caught.value)
    assert caught.value.exit_code == 4
    assert (quick_run / "weights.safetensors").stat().st_mtime_ns == before


@pytest.mark.slow
def test_packed_batches_learn_and_resume(tmp_path: Path) -> None:
    for run, stops in (("whole", (12,)), ("parts", (6, 12))):
        for stop in stops:
            run_steps(tmp_path / run, stop, "train.layout=packed")
    assert state(tmp_path / "whole", 12) == state(tmp_path / "parts", 12)
    curve = losses(tmp_path / "whole")
    assert curve[-1][1] < curve[0][1]
    with pytest.raises(ModelError, match=r"train\.layout was 'packed' when this run began and is 'padded' now"):
        run_steps(tmp_path / "whole", 18, "train.layout=padded")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ((), "in float32, padded batches"),
        pytest.param(("train.precision=bfloat16",), "in bfloat16, packed batches", marks=pytest.mark.slow),
        pytest.param(
            ("train.precision=bfloat16", "train.r_drop=1.0"), "in bfloat16, packed batches", marks=pytest.mark.slow
        ),
        pytest.param(
            ("train.precision=bfloat16", "train.layout=padded"), "in bfloat16, padded batches", marks=pytest.mark.slow
        ),
    ],
)
def test_packed_layout_is_chosen_automatically_if_faster(tmp_path: Path, settings: tuple[str, ...], told: str) -> None:
    reporter = Notes()
    train(quick_config(*settings, "train.max_steps=2", "train.save_every=2"), tmp_path, reporter)
    assert next(note for note in reporter.notes if "parameters on cpu" in note).endswith(told)
    assert torch.backends.mkldnn.enabled, "later runs in this process have the bits of those in another"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quick", "large", "more"),
    [(True, True, ()), (True, False, ()), (False, True, ()), (True, True, ("train.precision=float32",))],
)
def test_bfloat16_is_suggested_on_a_cpu_that_is_faster_in_it(
    tmp_path: Path, quick: bool, large: bool, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "is_fast_in_bfloat16", lambda device: quick)
    monkeypatch.setattr(setup, "LARGE_ON_A_CPU", 1 if large else 10**9)
    reporter = Notes()
    train(quick_config("train.max_steps=2", "train.save_every=2", *more), tmp_path, reporter)
    hint = "this CPU is faster in bfloat16: train.precision=bfloat16 may halve the time"
    assert (hint in reporter.notes) == (quick and large and not more)


@pytest.mark.parametrize(("slow", "more"), [(True, ("train.precision=bfloat16",)), (True, ()), (False, ())])
@pytest.mark.slow
def test_slow_bfloat16_on_a_cpu_is_reported(
    tmp_path: Path, slow: bool, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "is_slow_in_bfloat16", lambda device: slow)
    reporter = Notes()
    train(quick_config("train.max_steps=1", "train.save_every=1", "train.batch_tokens=64", *more), tmp_path, reporter)
    hint = "train.precision: this CPU has no bfloat16 instructions and is far slower in it; use float32"
    assert (hint in reporter.notes) == (slow and bool(more))


def test_a_packed_batch_must_hold_the_longest_pair(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"train.batch_tokens: 8 is too small for the longest pair, 11 pieces plus one"
    ):
        train(quick_config("train.layout=packed", "train.batch_tokens=8"), tmp_path)


# Stopping


def test_run_stops_after_patience_validations_without_improvement(tmp_path: Path) -> None:
    settings = ("train.learning_rate=0.0", "train.save_every=2", "train.patience=2", "train.max_steps=50")
    result = train(quick_config(*settings), tmp_path)
    assert (result.steps, result.best_step) == (6, 2)
    assert result.reason == "no better chrf in 2 validations"


def broken_loss(real: Any, broken_steps: set[int]) -> Any:
    calls = iter(range(1, 10_000))

    def loss(self: PaddedLoss, batch: AnyBatch) -> Tensor:
        total: Tensor = real(self, batch)
        return total * float("nan") if next(calls) in broken_steps else total

    return loss


def test_non_finite_step_changes_no_weights_and_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PaddedLoss, "forward", broken_loss(PaddedLoss.forward, {2}))
    reporter = Notes()
    prepared = prepare_data(quick_config(), tmp_path, reporter)
    trainer = Trainer(prepared, tmp_path, torch.device("cpu"), reporter)
    run = trainer.run
    plans = run.batches.plan_steps(run.progress)
    snapshots = []
    for _ in range(3):
        plan = next(plans)
        trainer.stepper.step(plan, run.batches.load(plan))
        snapshots.append({name: weight.clone() for name, weight in tensors.named_weights(run.model).items()})
    run.log.close()
    same = [all(torch.equal(one[name], two[name]) for name in one) for one, two in pairwise(snapshots)]
    assert same == [True, False], "the second step changed nothing, the third did"
    assert any(note.startswith("step 2: non-finite loss (nan) in a batch with ") for note in reporter.notes)
    record = next(record for record in read_log(tmp_path) if record["kind"] == "nonfinite")
    assert record["lines"][0].startswith(str(tmp_path / "corpus" / "train.source") + ":")


def test_too_many_non_finite_steps_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PaddedLoss, "forward", broken_loss(PaddedLoss.forward, set(range(100))))
    with pytest.raises(NonFiniteError, match=r"3 steps in a row: lower train\.learning_rate") as caught:
        train(quick_config("train.nonfinite_limit=3"), tmp_path)
    assert caught.value.exit_code == 5


# Text of one's own


def write_pairs(directory: Path, count: int = 300) -> dict[str, list[str]]:
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
    lines = [" ".join(words[(row * step) % 8] for step in range(1, row % 5 + 2)) for row in range(count)]
    paths = {}
    for name, texts in (("source", lines), ("target", [line.upper() for line in lines])):
        path = directory / f"train.{name}"
        path.write_text("\n".join(texts) + "\n", encoding="utf-8")
        paths[name] = paths[f"valid_{name}"] = [str(path)]
    return paths


FILES = ("train.max_steps=4", "train.save_every=4", "text.vocab_size=320", "model.d_model=16", "model.num_layers=1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "joint"),
    [
        ("bpe", True),
        ("unigram", False),
        *(pytest.param(kind, joint, marks=pytest.mark.slow) for kind, joint in (
            ("bpe", False), ("unigram", True), ("char", True), ("char", False), ("word", True), ("word", False),
        )),
    ],
)  # fmt: skip
def test_every_kind_of_tokenizer_trains_joint_and_separate(tmp_path: Path, kind: str, joint: bool) -> None:
    settings = [*FILES, f"text.model={kind}", f"text.joint={json.dumps(joint)}"]
    settings.append(f"model.share_source_target={json.dumps(joint)}")
    config = dragoman.Config.build("tiny", None, settings, data=write_pairs(tmp_path))
    train(config, tmp_path / "run")
    assert (tmp_path / "run" / "tokenizer.model").exists() == joint
    translator = dragoman.load(str(tmp_path / "run"), device="cpu")
    assert len(translator.translate(["alpha beta", "never seen: ¿ñ?"], beam=2)) == 2


@pytest.mark.slow
def test_several_and_compressed_files_per_side_are_read(tmp_path: Path) -> None:
    import gzip

    data = write_pairs(tmp_path)
    for side in ("source", "target"):
        packed = tmp_path / f"more.{side}.gz"
        packed.write_bytes(gzip.compress((tmp_path / f"train.{side}").read_bytes()))
        data[side] = [*data[side], str(packed)]
    reporter = Notes()
    train(dragoman.Config.build("tiny", None, FILES, data=data), tmp_path / "run", reporter)
    assert "600 training pairs" in reporter.notes


def test_a_vocabulary_larger_than_the_text_supports_shrinks_with_a_note(tmp_path: Path) -> None:
    reporter = Notes()
    config = dragoman.Config.build("tiny", None, [*FILES, "text.vocab_size=5000"], data=write_pairs(tmp_path))
    train(config, tmp_path / "run", reporter)
    assert any(note.startswith("the text supports ") and "text.vocab_size=5,000" in note for note in reporter.notes)


def test_missing_and_unequal_corpora_are_refused(tmp_path: Path) -> None:
    data = write_pairs(tmp_path)
    with pytest.raises(ConfigError, match=r"data.valid_source: missing; give --source, --target"):
        train(dragoman.Config.build("tiny", None, FILES, data={**data, "valid_source": []}), tmp_path / "run")
    target = tmp_path / "train.target"
    target.write_text("\n".join(target.read_text().split("\n")[:298]) + "\n")
    with pytest.raises(DataError) as caught:
        train(dragoman.Config.build("tiny", None, FILES, data=data), tmp_path / "run")
    assert str(caught.value).startswith(f"{target}: 298 lines, {tmp_path / 'train.source'}: 300; ")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(dragoman.DiskError):
        train(quick_config(), tmp_path / "run")


# What the directory holds, whatever happens around it


def published(run: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run / PUBLISHED).read_bytes())
    return record


def test_a_model_without_checkpoints_is_not_overwritten(quick_run: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(quick_run, tmp_path / "copied", ignore=shutil.ignore_patterns("checkpoints"))
    before = (copied / "weights.safetensors").read_bytes()
    with pytest.raises(ModelError, match="holds a model but no checkpoint to resume from; give another --out"):
        train(quick_config(), copied)
    assert (copied / "weights.safetensors").read_bytes() == before


def test_a_kill_between_checkpoint_and_publishing_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(bundle, "save_bundle", killed)
        with pytest.raises(Killed):
            run_steps(tmp_path, 6)
    assert checkpoints(tmp_path)
    assert not (tmp_path / "weights.safetensors").exists()
    run_steps(tmp_path, 6)
    assert published(tmp_path)["step"] == 6
    dragoman.load(str(tmp_path), device="cpu")


@pytest.mark.slow
def test_a_better_average_is_not_replaced_by_a_worse_checkpoint(tmp_path: Path) -> None:
    settings = ("train.max_steps=12", "train.save_every=6", "train.valid_metric=loss", "train.average=2")
    train(quick_config(*settings), tmp_path)
    told = {**published(tmp_path), "metric": -1e-3, "kind": "average"}  # as if the average were all but perfect
    (tmp_path / PUBLISHED).write_text(json.dumps(told))
    before = (tmp_path / "weights.safetensors").read_bytes()
    train(quick_config(*settings, "train.max_steps=18"), tmp_path)
    assert (tmp_path / "weights.safetensors").read_bytes() == before
    assert published(tmp_path) == told


@pytest.mark.slow
def test_changed_validation_metric_resets_the_best_score(tmp_path: Path) -> None:
    run_steps(tmp_path, 6)
    reporter = Notes()
    result = train(quick_config(*RESUME, "train.max_steps=12", "train.valid_metric=loss"), tmp_path, reporter)
    assert any(note.startswith("the validation metric is loss on 20 of ") for note in reporter.notes)
    assert result.best_step == 12
    assert published(tmp_path)["judge"].startswith("loss on 20 of ")
    assert published(tmp_path)["step"] == 12, "scores by the other metric are not reused"


def test_finished_run_is_left_unchanged(quick_run: Path) -> None:
    before = (quick_run / "log.jsonl").read_bytes()
    assert train(quick_config(), quick_run).reason == "already finished at step 60"
    assert (quick_run / "log.jsonl").read_bytes() == before


@pytest.mark.slow
def test_more_patience_lets_a_stopped_run_resume(tmp_path: Path) -> None:
    settings = ("train.learning_rate=0.0", "train.save_every=2", "train.max_steps=8")
    assert train(quick_config(*settings, "train.patience=1"), tmp_path).steps == 4
    assert train(quick_config(*settings, "train.patience=0"), tmp_path).steps == 8


@pytest.mark.slow
def test_a_damaged_checkpoint_is_left_out_of_the_average(tmp_path: Path) -> None:
    settings = ("train.save_every=4", "train.average=3")
    train(quick_config(*settings, "train.max_steps=8"), tmp_path)
    (checkpoint_path(tmp_path, 4) / "weights.safetensors").write_bytes(b"")
    reporter = Notes()
    train(quick_config(*settings, "train.max_steps=12"), tmp_path, reporter)
    assert any(
        "step-000004: damaged checkpoint" in note and "left out of the average" in note for note in reporter.notes
    )


def test_one_run_at_a_time_in_a_directory(tmp_path: Path) -> None:
    with files.lock_directory(tmp_path), pytest.raises(ModelError, match="another run is training here; wait for it"):
        train(quick_config(), tmp_path)


def test_a_refused_run_leaves_no_directory(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "one").write_text("a\n")
    two, one = (str(tmp_path / "two"),), (str(tmp_path / "one"),)
    unequal = DataConfig(source=two, target=one, valid_source=one, valid_target=one)
    for refused in (quick_config('train.freeze=["no such part"]'), replace(quick_config(), data=unequal)):
        for name, left in (("run", False), ("mine", True)):
            with pytest.raises((ConfigError, DataError), match=r"no such part|2; line N"):
                train(refused, tmp_path / name)
            assert (tmp_path / name).exists() is left


def test_out_of_memory_names_the_setting_and_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(PaddedLoss, "forward", full)
    with pytest.raises(ConfigError) as caught:
        train(quick_config(), tmp_path)
    assert str(caught.value).startswith("train.batch_tokens: out of memory at step 1 in a batch with ")
    assert str(caught.value).endswith("lower train.batch_tokens from 512 and raise train.accumulate")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [("train.patience=1", "train.learning_rate=0.0", "train.max_steps=8"), ("train.average=1", "train.max_steps=4")],
)
def test_run_ended_by_patience_or_without_average_is_left_unchanged(tmp_path: Path, settings: tuple[str, ...]) -> None:
    """However it ended: by patience, or without an average."""
    first = train(quick_config("train.save_every=2", *settings), tmp_path)
    kept = (tmp_path / "log.jsonl").read_bytes(), (tmp_path / "summary.md").stat().st_mtime_ns
    again = train(quick_config("train.save_every=2", *settings), tmp_path)
    assert again.reason == f"already finished at step {first.steps}"
    assert again.averaged == first.averaged
    assert ((tmp_path / "log.jsonl").read_bytes(), (tmp_path / "summary.md").stat().st_mtime_ns) == kept


def strict_json(content: bytes) -> Any:
    """JSON as other programs read it, without NaN and Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(content, parse_constant=refuse)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [math.nan, pytest.param(math.inf, marks=pytest.mark.slow)])
def test_non_finite_validation_is_reported_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: float
) -> None:
    monkeypatch.setattr("dragoman.tasks.translation.mean_loss", lambda *_: loss)
    validated: list[dict[str, Any]] = []
    monkeypatch.setattr(SilentReporter, "validated", lambda self, record: validated.append(record))
    small = ("data.generated_size=200", "train.valid_sentences=2", "decode.max_extra=2", "train.trackers=[]")
    settings = (*small, "train.save_every=2", "train.valid_metric=loss", "train.average=1")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    result = train(quick_config(*settings, "train.max_steps=4"), whole)
    assert [record["loss"] for record in read_log(whole) if record["kind"] == "valid"] == [str(loss)] * 2
    assert not any(record["best"] for record in validated)
    told = "reached train.max_steps=4; kept the weights of step 2, loss not finite"
    assert result.describe() == f"{whole}: {told}"
    assert "; loss not finite on 2 sentences, greedy" in (whole / "summary.md").read_text()
    for path in (*whole.rglob("*.json"), *whole.rglob("*.jsonl")):
        for line in path.read_bytes().splitlines() if path.suffix == ".jsonl" else [path.read_bytes()]:
            strict_json(line)
    assert strict_json((whole / PUBLISHED).read_bytes())["metric"] == "-inf"

    train(quick_config(*settings, "train.max_steps=2"), parts)
    train(quick_config(*settings, "train.max_steps=4"), parts)
    assert state(whole, 4) == state(parts, 4)

    monkeypatch.setattr("dragoman.tasks.translation.mean_loss", lambda *_: 7.0)
    better = train(quick_config(*settings, "train.max_steps=6"), whole)
    assert better.describe().endswith("kept the weights of step 6, loss 7.00")


def test_non_finite_score_of_earlier_versions_is_read(tmp_path: Path) -> None:
    (tmp_path / PUBLISHED).write_text(json.dumps({"judge": "loss on 2 of 0", "metric": -1e300, "kind": "valid"}))
    assert results.published_score(tmp_path) == ("valid", math.inf)
