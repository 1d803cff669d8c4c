"""How many CPU threads there are, and how they wait for each other."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import pytest
import torch

import dragoman
from dragoman import DecodeOptions, Translator
from dragoman.decode.engines.plain import Engine
from dragoman.device import cpu_threads
from dragoman.inspect.capture import inspect_sentence
from dragoman.inspect.heads import rank_heads
from dragoman.machine import GAINS_FROM_THREADS, choose_threads
from dragoman.training.loop import train
from dragoman.training.reports.log import SilentReporter
from tests.conftest import quick_config
from tests.forked import shared_server


@pytest.mark.parametrize(
    ("asked", "d_model", "variable", "expected"),
    [
        (0, GAINS_FROM_THREADS, None, 3),
        (0, GAINS_FROM_THREADS - 1, None, 1),
        (0, GAINS_FROM_THREADS - 1, "3", 3),  # somebody has said how many
        (2, GAINS_FROM_THREADS - 1, "3", 2),
        (2, GAINS_FROM_THREADS, None, 2),
    ],
)
def test_number_of_threads_is_as_requested_or_one_for_a_small_model(
    monkeypatch: pytest.MonkeyPatch, asked: int, d_model: int, variable: str | None, expected: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.delenv("OMP_NUM_THREADS")
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert choose_threads(asked, d_model) == expected


def test_the_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()
    with contextlib.suppress(RuntimeError), cpu_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise RuntimeError("a failure inside")
    assert torch.get_num_threads() == before


def test_overlapping_users_restore_the_number_of_threads() -> None:
    """As with two threads that enter and leave in turn."""
    before = torch.get_num_threads()
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        first.enter_context(cpu_threads(before + 1))
        second.enter_context(cpu_threads(before + 2))
        first.close()
        assert torch.get_num_threads() == before + 2, "the second is still at work"
        second.close()
        assert torch.get_num_threads() == before


def test_training_uses_the_requested_threads(tmp_path: Path) -> None:
    seen = set()

    class Watching(SilentReporter):
        def step(self, record: Mapping[str, Any], max_steps: int) -> None:
            seen.add(torch.get_num_threads())

    before = torch.get_num_threads()
    train(quick_config("train.threads=2", "train.max_steps=2", "train.save_every=2"), tmp_path / "run", Watching())
    assert seen == {2}
    assert torch.get_num_threads() == before == 1, "the control: not the requested number"


def test_decoding_and_scoring_use_the_requested_threads(
    quick_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given to `load`, to one call, or by the model's own decode.threads; the call wins."""
    seen: list[int] = []
    for name in ("start", "token_log_probs", "attention", "log_probs"):
        method = getattr(Engine, name)

        def watching(*arguments: Any, method: Any = method) -> Any:
            seen.append(torch.get_num_threads())
            return method(*arguments)

        monkeypatch.setattr(Engine, name, watching)

    def threads_of(translator: Translator, **options: Unpack[DecodeOptions]) -> set[int]:
        seen.clear()
        translator.translate("a b", attention=True, **options)
        if not options:
            translator.score(["a"], ["b"])
            rank_heads(translator, inspect_sentence(translator, "a b"))
        return set(seen)

    def load(model: Path, threads: int | None = None) -> Translator:
        return dragoman.load(model, threads=threads, engine="plain")

    assert threads_of(load(quick_run)) == {1}, "the control"
    assert threads_of(load(quick_run, threads=2)) == {2}
    assert threads_of(load(quick_run), threads=3) == {3}
    assert threads_of(load(quick_run, threads=2), threads=0) == {1, 2}  # 0: as if nothing were asked for
    own = shutil.copytree(quick_run, tmp_path / "run")
    config = (own / "config.toml").read_text(encoding="utf-8")
    (own / "config.toml").write_text(config.replace("batch_size = 0\nthreads = 0", "batch_size = 0\nthreads = 2"))
    assert threads_of(load(own)) == {2}


@pytest.mark.parametrize("command", ["translate", "inspect"])
def test_commands_accept_a_number_of_threads(quick_run: Path, command: str) -> None:
    done = shared_server().run([command, "--model", str(quick_run), "--threads", "-1", "a"])
    assert done.returncode == 2
    assert done.stderr == "dragoman: decode.threads: -1 is out of range; use 0 to 1024\n"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"GOMP_SPINCOUNT": "20000", "KMP_BLOCKTIME": "1"}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7", "KMP_BLOCKTIME": "1"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
    ],
)
def test_waiting_threads_spin_only_briefly(given: dict[str, str], expected: dict[str, str]) -> None:
    """Set by `import dragoman`, before torch is there, unless the user has set it."""
    names = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY")
    code = f"""
import json, os, sys
import dragoman
assert "torch" not in sys.modules
print(json.dumps({{name: os.environ[name] for name in {names} if name in os.environ}}))
"""
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment | given, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == expected
