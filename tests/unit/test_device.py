"""Freed memory is kept during a training run and returned after it; oneDNN is left as it was found."""

import platform
import subprocess
import sys
from typing import Any

import pytest
import torch

from dragoman.device import keep_onednn

FAULTS = """
import resource, sys, torch
from dragoman.device import keep_freed_memory

def faults() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.zeros(12 << 20)  # 48 MiB, more than glibc would keep by itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def small() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.zeros(1 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
small()
print(faults(), small())
with keep_freed_memory(torch.device(sys.argv[1])):
    faults()
    print(faults(), small())
print(faults(), small())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_freed_memory_is_kept_during_cpu_training_and_returned_after(device: str) -> None:
    command = [sys.executable, "-c", FAULTS, device]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (before, small), (kept, kept_small), (after, small_after) = (
        map(int, line.split()) for line in done.stdout.splitlines()
    )
    if before <= 100:  # PyTorch for Arm brings an allocator of its own
        pytest.skip("PyTorch keeps freed memory by itself here")
    assert after > before // 2
    assert kept < before // 10 if device == "cpu" else kept > before // 2
    # smaller ones glibc keeps by itself once it has seen some: before, within and after
    assert max(small, kept_small, small_after) < before // 10


@pytest.mark.parametrize("before", [True, False])
def test_onednn_is_left_as_it_was_found(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch switches it off when a bfloat16 product fails."""
    backend: Any = torch.backends.mkldnn
    monkeypatch.setattr(backend, "enabled", before)

    @keep_onednn()
    def switch(fail: bool) -> None:
        backend.enabled = not before
        if fail:
            raise RuntimeError("stop")

    switch(fail=False)
    assert backend.enabled == before
    with pytest.raises(RuntimeError, match="stop"):
        switch(fail=True)
    assert backend.enabled == before
