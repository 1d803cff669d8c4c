"""Devices and threads are found without torch, as torch would find them."""

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dragoman import device, machine
from dragoman.errors import ConfigError

DEFAULT_THREADS = """
import sys
from dragoman.machine import default_threads
before = default_threads()
assert "torch" not in sys.modules
import torch
print(before, torch.get_num_threads(), default_threads())
"""


@pytest.mark.parametrize(
    "variables",
    [{}, *(pytest.param(each, marks=pytest.mark.slow) for each in ({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": ""}))],
)
def test_the_default_number_of_threads_is_that_of_torch(variables: dict[str, str]) -> None:
    """At most as many as there are cores: with MKL, PyTorch takes no more, whatever is asked for."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in names} | variables
    done = subprocess.run(
        [sys.executable, "-c", DEFAULT_THREADS], env=environment, capture_output=True, text=True, check=True
    )
    found, *expected = done.stdout.split()
    assert expected == [found, found]


def test_hyper_threads_of_a_core_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 4, 5}, raising=False)
    monkeypatch.setattr(
        Path, "read_text", lambda path: {"cpu0": "0,4", "cpu4": "0,4"}.get(path.parts[5], path.parts[5])
    )
    assert machine._count_cores() == 3


def no_library(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")


def test_auto_is_the_cpu_where_no_driver_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", no_library)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Path, "exists", lambda path: False)
    monkeypatch.setattr(device, "choose_device", lambda name: pytest.fail("torch was asked"))
    assert machine.find_device("auto") == "cpu"
    assert machine.find_device("cpu") == "cpu"


@pytest.mark.parametrize("driver", ["NVIDIA's", "AMD's", "Apple's"])
def test_auto_asks_torch_where_an_accelerator_may_be(monkeypatch: pytest.MonkeyPatch, driver: str) -> None:
    monkeypatch.setattr(ctypes, "CDLL", (lambda name: object()) if driver == "NVIDIA's" else no_library)
    monkeypatch.setattr(sys, "platform", "darwin" if driver == "Apple's" else "linux")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(Path, "exists", lambda path: driver == "AMD's" and path == Path("/dev/kfd"))
    monkeypatch.setattr(device, "choose_device", lambda name: torch.device("cuda:1"))
    assert machine.find_device("auto") == "cuda:1"


def test_other_names_are_checked() -> None:
    with pytest.raises(ConfigError, match="device: 'gpu' is not a device; did you mean cuda"):
        machine.find_device("gpu")
    assert machine.find_device("cpu:0") == "cpu:0"
