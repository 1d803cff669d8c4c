"""Pickles and hostile model directories: exit 4 with one line, nothing runs, nothing hangs, memory stays bounded.

Every hostile file has a matching manifest, so that the checks after the SHA-256 are tested.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dragoman.training.checkpoint_files import checkpoint_path, read_checkpoint
from dragoman.weights import MAX_HEADER
from tests.forked import ROOT, Ended, Server
from tests.hostile import entry, payload, seal, seal_checkpoint, tensors_file, unpickle
from tests.survival import Runs

MODEL = 4
MEMORY = 400_000_000  # bytes that a command may map beyond what its imports have
WEIGHTS, CONFIG, TOKENIZER, MANIFEST, CARD = (
    "weights.safetensors", "config.toml", "tokenizer.model", "manifest.json", "card.md"
)  # fmt: skip
GIGABYTE = 1_000_000_000


@pytest.fixture
def model(quick_run: Path, tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("checkpoints", "data", "corpus")
    return shutil.copytree(quick_run, tmp_path / "model", ignore=ignored)


LIMITED = {"name": "limit_memory", "more": MEMORY}


def translate(server: Server, model: Path, fault: Mapping[str, Any] = LIMITED) -> Ended:
    return server.start(["translate", "--model", str(model), "a b c"], model.parent / "errors", fault, {}).wait()


# 32: pickles


@pytest.fixture(scope="module")
def trained(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with every kind of file: it has a moving average."""
    directory = tmp_path_factory.mktemp("trained") / "run"
    runs.finish(directory, *STEPS, "train.max_steps=2")
    return directory


STEPS = ("train.save_every=2", "train.ema=0.5", "train.average=1")
AFTER_A_PICKLE = {
    WEIGHTS: r"not a safetensors file \(.+\); restore it or train again",
    "optimizer.safetensors": r"not a safetensors file \(.+\); restore it or train again",
    "average.safetensors": r"not a safetensors file \(.+\); restore it or train again",
    "state.json": r"not the state of a run; restore it or give another --out",
    TOKENIZER: r"tokenizer: not a sentencepiece model, or damaged; .+",
}


def check_refused(ended: Ended, path: Path, message: str) -> None:
    """Exit 4, and the last line says why; earlier lines may be of a run that has started."""
    assert ended.code == MODEL, ended.errors
    assert re.fullmatch(rf"dragoman: {re.escape(str(path))}: {message}", ended.lines[-1]), ended.errors


def test_the_payload_runs_when_it_is_unpickled(tmp_path: Path) -> None:
    unpickle(payload(tmp_path / "marker"))
    assert (tmp_path / "marker").exists()


@pytest.mark.parametrize("name", [WEIGHTS, TOKENIZER])
def test_a_pickle_in_a_model_directory_does_not_run(server: Server, model: Path, tmp_path: Path, name: str) -> None:
    (model / name).write_bytes(payload(tmp_path / "marker"))
    seal(model)
    ended = translate(server, model)
    check_refused(ended, model / name, AFTER_A_PICKLE[name])
    assert len(ended.lines) == 1
    assert not (tmp_path / "marker").exists()


def test_a_pickle_as_a_pt_file_does_not_run(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(payload(tmp_path / "marker"))
    check_refused(translate(server, path), path, f"is a file; give the model directory, {tmp_path}")
    assert not (tmp_path / "marker").exists()


def test_a_pickle_in_the_model_that_a_run_starts_from_does_not_run(runs: Runs, model: Path, tmp_path: Path) -> None:
    (model / WEIGHTS).write_bytes(payload(tmp_path / "marker"))
    seal(model)
    arguments = ["--set", "data.generated=reverse", "--from", str(model), "--out", str(tmp_path / "run")]
    ended = runs.server.start(["train", *arguments], tmp_path / "errors", {}, {}).wait()
    check_refused(ended, model / WEIGHTS, AFTER_A_PICKLE[WEIGHTS])
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("name", [WEIGHTS, "optimizer.safetensors", "average.safetensors", "state.json"])
def test_a_pickle_in_a_checkpoint_does_not_run(runs: Runs, trained: Path, tmp_path: Path, name: str) -> None:
    copied = Path(shutil.copytree(trained, tmp_path / "run"))
    checkpoint = checkpoint_path(copied, 2)
    (checkpoint / name).write_bytes(payload(tmp_path / "marker"))
    seal_checkpoint(checkpoint)
    assert read_checkpoint(checkpoint)[name] == payload(tmp_path / "marker"), "the manifest matches it"
    ended = runs.run(copied, *STEPS, "train.max_steps=4")
    check_refused(ended, checkpoint / name, AFTER_A_PICKLE[name])
    assert not (tmp_path / "marker").exists()


def without(name: str) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors.pop(name)


def replaced(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors.update({name: change(tensors[name])})


BIAS = "encoder.layers.0.feed_forward.inner.bias"
MISFITS: dict[str, tuple[str, Callable[[dict[str, torch.Tensor]], object], str]] = {
    "a weight is missing": (WEIGHTS, without(BIAS), rf"does not fit its config.toml: {BIAS} is missing"),
    "an average is missing": (
        "average.safetensors",
        without(BIAS),
        rf"does not fit its config.toml: {BIAS} is missing",
    ),
    "a moment has another shape": (
        "optimizer.safetensors",
        replaced(f"exp_avg.{BIAS}", lambda tensor: tensor[1:]),
        rf"exp_avg.{BIAS}, \[31\] of torch.float32, belongs to no weight; restore it or give another --out",
    ),
    "a moment is of whole numbers": (
        "optimizer.safetensors",
        replaced(f"exp_avg.{BIAS}", torch.Tensor.long),
        rf"exp_avg.{BIAS}, \[32\] of torch.int64, belongs to no weight; restore it or give another --out",
    ),
    "a moment of another model": (
        "optimizer.safetensors",
        lambda tensors: tensors.update({"exp_avg.stranger": torch.ones(2)}),
        r"exp_avg.stranger, \[2\] of torch.float32, belongs to no weight; restore it or give another --out",
    ),
    "no RNG state": (
        "optimizer.safetensors",
        replaced("random.cpu.0", lambda tensor: tensor[1:]),
        r"not an RNG state \(.+\); restore it or give another --out",
    ),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_checkpoint_tensors_that_do_not_fit_are_refused(runs: Runs, trained: Path, tmp_path: Path, kind: str) -> None:
    name, spoil, message = MISFITS[kind]
    copied = Path(shutil.copytree(trained, tmp_path / "run"))
    checkpoint = checkpoint_path(copied, 2)
    tensors = load_file(checkpoint / name)
    spoil(tensors)
    save_file(tensors, checkpoint / name)
    seal_checkpoint(checkpoint)
    ended = runs.run(copied, *STEPS, "train.max_steps=4")
    assert (ended.code, re.fullmatch(rf"dragoman: .+: {message}", ended.lines[-1]) is not None) == (MODEL, True), (
        ended.errors
    )


@pytest.mark.parametrize("name", [WEIGHTS, "optimizer.safetensors", "state.json"])
def test_a_checkpoint_whose_manifest_leaves_out_a_file_is_refused(
    runs: Runs, trained: Path, tmp_path: Path, name: str
) -> None:
    copied = Path(shutil.copytree(trained, tmp_path / "run"))
    checkpoint = checkpoint_path(copied, 2)
    (checkpoint / name).unlink()
    seal_checkpoint(checkpoint)
    message = f"its manifest.json does not list {name}; restore it or give another --out"
    check_refused(runs.run(copied, *STEPS, "train.max_steps=4"), checkpoint, message)


def test_run_resumes_after_its_checkpoint_manifest_is_rewritten(runs: Runs, trained: Path, tmp_path: Path) -> None:
    """The control: it is the pickle that is refused above."""
    copied = Path(shutil.copytree(trained, tmp_path / "run"))
    seal_checkpoint(checkpoint_path(copied, 2))
    assert f"resuming from {checkpoint_path(copied, 2)}" in runs.finish(copied, *STEPS, "train.max_steps=4").lines


BANNED = {
    "import pickle\n": "TID251",
    "from pickle import loads\n": "TID251",
    "import torch\n\ntorch.load('weights.pt')\n": "TID251",
    "import torch\n\ntorch.save({}, 'weights.pt')\n": "TID251",
    "from torch import load\n": "TID251",
}


def ruff(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise", *arguments]
    return subprocess.run(command, cwd=ROOT, input=code, capture_output=True, text=True)


@pytest.mark.parametrize("code", BANNED)
def test_the_linter_forbids_pickle_and_torch_load(code: str) -> None:
    done = ruff("--stdin-filename", "src/dragoman/new.py", "-", code=code)
    assert (done.returncode, BANNED[code] in done.stdout) == (1, True), done.stdout


def test_one_place_is_exempt_from_the_pickle_lint() -> None:
    """Old Hugging Face checkpoints are pickles; only tensors are read from them."""
    done = ruff("--ignore-noqa", "--select", "TID251,S301,S302", "src", "recipes", "benchmarks")
    (place,) = [line for line in done.stdout.splitlines() if ": TID251" in line or ": S30" in line]
    path, number, *_ = place.split(":")
    assert path == "src/dragoman/interop/marian_folder.py"
    assert "torch.load(" in (line := (Path(__file__).parents[2] / path).read_text().splitlines()[int(number) - 1])
    assert "weights_only=True" in line
    assert ruff("--ignore-noqa", "--select", "TID251", "tests/hostile.py").returncode == 1, "the control"


# 33: hostile model directories


def write(model: Path, name: str, content: bytes | str) -> None:
    (model / name).write_bytes(content.encode() if isinstance(content, str) else content)


def configure(old: str, new: str) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        config = (model / CONFIG).read_text()
        assert old in config
        write(model, CONFIG, config.replace(old, new))

    return change


def prepend(text: str) -> Callable[[Path], None]:
    return lambda model: write(model, CONFIG, text + (model / CONFIG).read_text())


def put(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda model: write(model, name, content)


def sparse(name: str, size: int) -> Callable[[Path], None]:
    return lambda model: os.truncate(model / name, size)


def pipe(name: str) -> Callable[[Path], None]:
    def replace(model: Path) -> None:
        (model / name).unlink()
        os.mkfifo(model / name)

    return replace


def folder(name: str) -> Callable[[Path], None]:
    def replace(model: Path) -> None:
        (model / name).unlink()
        (model / name).mkdir()

    return replace


def link(name: str, target: str = "") -> Callable[[Path], None]:
    """To a copy of the file beside the model directory, or to `target`."""

    def replace(model: Path) -> None:
        moved = (model / name).rename(model.parent / name)
        (model / name).symlink_to(target or moved)

    return replace


def first_weight(change: Callable[[torch.Tensor], dict[str, torch.Tensor]]) -> Callable[[Path], None]:
    """Replace one weight: a vector of the encoder."""
    name = "encoder.layers.0.feed_forward.inner.bias"

    def replace(model: Path) -> None:
        weights = load_file(model / WEIGHTS)
        changed = {f"{name}{suffix}": tensor for suffix, tensor in change(weights.pop(name)).items()}
        save_file({**weights, **changed}, model / WEIGHTS)

    return replace


INNER = "encoder.layers.0.feed_forward.inner.bias"
BROKEN_TENSORS = r"not a safetensors file \(.+\); restore it or train again"
OUTSIDE = "links to a file outside of its directory; copy the file itself into the directory"
NOT_REGULAR = "is not a regular file; restore the file or train again"
TOO_DEEP = "not valid TOML: .+"
LARGE = r"has 1,000,000,000 bytes, at most [\d,]+ are allowed; restore the file or train again"

HOSTILE: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "header of 100 MB": (
        lambda model: write(model, WEIGHTS, tensors_file(b"{}".ljust(100_000_000))),
        WEIGHTS,
        r"has 100,000,008 bytes, at most [\d,]+ are allowed; restore the file or train again",
    ),
    "header over its limit": (
        lambda model: write(model, WEIGHTS, tensors_file(b"{}".ljust(MAX_HEADER + 1))),
        WEIGHTS,
        "its header has 20,000,001 bytes, at most 20,000,000 are allowed; restore the file or train again",
    ),
    "header beyond the file": (put(WEIGHTS, (10**18).to_bytes(8, "little") + b"{}"), WEIGHTS, BROKEN_TENSORS),
    "overlapping offsets": (
        put(WEIGHTS, tensors_file({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12))),
        WEIGHTS,
        BROKEN_TENSORS,
    ),
    "two tensors in one place": (
        put(WEIGHTS, tensors_file({"a": entry([2], 0, 8), "b": entry([2], 0, 8)}, bytes(8))),
        WEIGHTS,
        BROKEN_TENSORS,
    ),
    "offsets beyond the file": (
        put(WEIGHTS, tensors_file({"a": entry([10**9], 0, 4 * 10**9)}, bytes(8))),
        WEIGHTS,
        BROKEN_TENSORS,
    ),
    "a shape that overflows": (
        put(WEIGHTS, tensors_file({"a": entry([2**33, 2**33], 0, 8)}, bytes(8))),
        WEIGHTS,
        BROKEN_TENSORS,
    ),
    "a huge shape without numbers": (
        put(WEIGHTS, tensors_file({"a": entry([0, 2**63], 0, 0)})),
        WEIGHTS,
        BROKEN_TENSORS,
    ),
    "a negative shape": (put(WEIGHTS, tensors_file({"a": entry([-2], 0, 8)}, bytes(8))), WEIGHTS, BROKEN_TENSORS),
    "a name twice": (
        put(WEIGHTS, tensors_file(
            b'{"a":%s,"a":%s}' % tuple(json.dumps(entry([1], start, start + 4)).encode() for start in (0, 4)), bytes(8)
        )),
        WEIGHTS,
        BROKEN_TENSORS,
    ),
    "an unknown type": (
        put(WEIGHTS, tensors_file({"a": entry([2], 0, 8, "F33")}, bytes(8))), WEIGHTS, BROKEN_TENSORS
    ),
    "whole numbers": (
        first_weight(lambda tensor: {"": tensor.long()}),
        WEIGHTS,
        f"{INNER} is int64; use float32, bfloat16, float16, float64, or int8 as `dragoman compress` writes it",
    ),
    "complex numbers": (
        first_weight(lambda tensor: {"": tensor.to(torch.complex64)}),
        WEIGHTS,
        f"{INNER} is complex64; use float32, .+",
    ),
    "a vector with scales, to be broadcast": (
        first_weight(lambda tensor: {"": tensor.to(torch.int8), ".scale": torch.ones_like(tensor)}),
        WEIGHTS,
        rf"{INNER} has scales and is \[64\] of torch.int8, not an int8 matrix; restore the file or train again",
    ),
    "a sparse weights file": (
        sparse(WEIGHTS, 10**12),
        WEIGHTS,
        r"has 1,000,000,000,000 bytes, at most [\d,]+ are allowed; restore the file or train again",
    ),
    "a pipe as weights": (pipe(WEIGHTS), WEIGHTS, NOT_REGULAR),
    "a folder as weights": (folder(WEIGHTS), WEIGHTS, NOT_REGULAR),
    "weights outside": (link(WEIGHTS), WEIGHTS, OUTSIDE),
    "weights that are a device": (link(WEIGHTS, "/dev/zero"), WEIGHTS, OUTSIDE),
    "weights that are nowhere": (link(WEIGHTS, "nowhere"), WEIGHTS, "missing; .+"),
    "a billion layers": (
        configure("num_layers = 1\n", "num_layers = 1000000000\n"),
        CONFIG,
        r"model.num_layers: 1000000000 is out of range; use 1 to \d+",
    ),
    "a negative vocabulary": (
        configure("\nvocab_size = ", "\nvocab_size = -"), CONFIG, r".+\.vocab_size: -\d+ is out of range; use .+"
    ),
    "a million heads": (
        configure("num_heads = 4", "num_heads = 1000000"), CONFIG, "model.num_heads: num_heads=1000000 must divide .+"
    ),
    "deep arrays": (prepend(f"a = {'[' * 100_000}\n"), CONFIG, TOO_DEEP),
    "deep tables": (prepend(f"a = {'{a = ' * 100_000}\n"), CONFIG, TOO_DEEP),
    "a deep key": (prepend(f"a{'.a' * 500_000} = 1\n"), CONFIG, TOO_DEEP),
    "a deep header": (prepend(f"[a{'.a' * 500_000}]\n"), CONFIG, TOO_DEEP),
    "a long number": (prepend(f"a = {'1' * 5_000}\n"), CONFIG, TOO_DEEP),
    "a longer number in base 16": (
        configure("d_model = 32", f"d_model = 0x{'f' * 100_000}"), CONFIG,
        "model.d_model: the number has 400000 bits, at most 63 are allowed",
    ),
    "a sparse config.toml": (sparse(CONFIG, GIGABYTE), CONFIG, LARGE),
    "a config.toml outside": (link(CONFIG), CONFIG, OUTSIDE),
    "a sparse tokenizer": (sparse(TOKENIZER, GIGABYTE), TOKENIZER, LARGE),
    "a pipe as tokenizer": (pipe(TOKENIZER), TOKENIZER, NOT_REGULAR),
    "a tokenizer outside": (link(TOKENIZER), TOKENIZER, OUTSIDE),
    "a tokenizer that is a device": (link(TOKENIZER, "/dev/zero"), TOKENIZER, OUTSIDE),
    "a tokenizer that links to itself": (
        link(TOKENIZER, TOKENIZER), TOKENIZER, r"cannot be read \(.+\); is this a model directory\?"
    ),
    "no tokenizer": (put(TOKENIZER, b"\xff" * 1_000), TOKENIZER, "tokenizer: not a sentencepiece model, .+"),
}  # fmt: skip
HOSTILE_MANIFESTS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "a sparse manifest": (sparse(MANIFEST, GIGABYTE), MANIFEST, LARGE),
    "a pipe as manifest": (pipe(MANIFEST), MANIFEST, NOT_REGULAR),
    "a manifest outside": (link(MANIFEST), MANIFEST, OUTSIDE),
    "a deep manifest": (put(MANIFEST, b"[" * 1_000_000), MANIFEST, "not a manifest of SHA-256; .+"),
}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if number % 3 == 0 else pytest.mark.slow) for number, kind in enumerate(HOSTILE)],
)
def test_a_hostile_model_directory_is_refused(server: Server, model: Path, kind: str) -> None:
    spoil, name, message = HOSTILE[kind]
    spoil(model)
    seal(model)
    ended = translate(server, model)
    check_refused(ended, model / name, message)
    assert len(ended.lines) == 1


@pytest.mark.parametrize("kind", HOSTILE_MANIFESTS)
def test_a_hostile_manifest_is_refused(server: Server, model: Path, kind: str) -> None:
    spoil, name, message = HOSTILE_MANIFESTS[kind]
    spoil(model)
    ended = translate(server, model)
    check_refused(ended, model / name, message)
    assert len(ended.lines) == 1


def test_a_pipe_as_config_is_refused(server: Server, model: Path) -> None:
    pipe(CONFIG)(model)
    check_refused(translate(server, model), model, r"not a model directory \(no config.toml\); .+")


@pytest.mark.parametrize(("spoil", "message"), [(pipe, NOT_REGULAR), (link, OUTSIDE)])
def test_a_hostile_card_is_refused(
    server: Server, model: Path, tmp_path: Path, spoil: Callable[[str], Callable[[Path], None]], message: str
) -> None:
    spoil(CARD)(model)
    arguments = ["compress", "--model", str(model), "--out", str(tmp_path / "out")]
    check_refused(server.start(arguments, tmp_path / "errors", {}, {}).wait(), model / CARD, message)
    assert not (tmp_path / "out").exists()


def test_valid_model_loads_within_the_memory_limit(server: Server, model: Path) -> None:
    """The control: with a rewritten manifest, opened through a link, and with a link inside."""
    (model / WEIGHTS).rename(model / "stored")
    (model / WEIGHTS).symlink_to("stored")
    seal(model)
    link_to_it = model.parent / "link"
    link_to_it.symlink_to(model)
    ended = translate(server, link_to_it)
    assert ended.code == 0, ended.errors


def test_reading_an_oversized_file_exceeds_the_memory_limit(server: Server, model: Path) -> None:
    """The control: the memory limit is in force, and refusing by size keeps a command within it."""
    sparse(TOKENIZER, GIGABYTE)(model)
    ended = translate(server, model, {"name": "all_of", "faults": [{"name": "no_size_limit"}, LIMITED]})
    check_refused(ended, model / TOKENIZER, r"does not fit in memory \(1,000,000,000 bytes\); use a larger machine")
