"""Chooses the device and precision a model runs in, unless they are given. Knows nothing of models."""

import ctypes
import functools
import platform
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch

from dragoman.config import require_device
from dragoman.errors import ConfigError
from dragoman.machine import has_compiler


def choose_device(name: str) -> torch.device:
    """`auto` tries CUDA, then Apple's MPS, then the CPU; any other name is used as given or is an error."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    require_device("device", name)
    kind = name.partition(":")[0]
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device: {name!r} is not available, this machine has no CUDA; use auto or cpu")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(f"device: {name!r} is not available, this machine has no MPS; use auto or cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device: {name!r} is not a device; write cpu, cuda, cuda:1 or mps") from None
    if device.index is not None and kind == "cuda" and device.index >= torch.cuda.device_count():
        raise ConfigError(
            f"device: {name!r} is not available, this machine has {torch.cuda.device_count()} CUDA devices"
        )
    return device


@functools.cache
def kernels_run() -> bool:
    """Whether Triton kernels can run: on first use Triton builds a small launcher with a C compiler."""
    return torch.cuda.is_available() and find_spec("triton") is not None and has_compiler()


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """The dtype of matrix products; weights stay float32. `auto`: bfloat16 on CUDA, float32 elsewhere."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


class _ThreadCount:
    """The number of active `cpu_threads` contexts, and of threads before the first."""

    lock = threading.Lock()
    users = 0
    before = 0


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Run PyTorch's operators on this many CPU threads inside the context.

    The number is global to the process: of several concurrent contexts, the last to enter sets it and the last to
    leave restores it.
    """
    with _ThreadCount.lock:
        if not _ThreadCount.users:
            _ThreadCount.before = torch.get_num_threads()
        _ThreadCount.users += 1
        if count != torch.get_num_threads():
            torch.set_num_threads(count)
    try:
        yield
    finally:
        with _ThreadCount.lock:
            _ThreadCount.users -= 1
            if not _ThreadCount.users and torch.get_num_threads() != _ThreadCount.before:
                torch.set_num_threads(_ThreadCount.before)


@contextmanager
def keep_onednn() -> Iterator[None]:
    """Leave oneDNN as it was found.

    PyTorch switches it off for the whole process when a bfloat16 product fails in it, on a CPU without such
    instructions. Later runs in float32 would then differ in their bits from the same runs in another process.
    """
    before = torch.backends.mkldnn.enabled
    try:
        yield
    finally:
        if torch.backends.mkldnn.enabled != before:
            torch.backends.mkldnn.enabled = before


def is_fast_in_bfloat16(device: torch.device) -> bool:
    """Whether this is a CPU with a matrix unit for bfloat16 (AMX)."""
    tells = hasattr(torch.cpu, "get_capabilities")  # PyTorch 2.11 and older do not have it
    return device.type == "cpu" and tells and bool(torch.cpu.get_capabilities().get("amx_bf16"))


def is_slow_in_bfloat16(device: torch.device) -> bool:
    """Whether this is a CPU without bfloat16 instructions, where PyTorch is far slower in such products.

    PyTorch's own warning, with C++ stack frames, is silenced: callers give a one-line warning.
    """
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    warnings.filterwarnings("ignore", message="mkldnn_matmul failed", category=UserWarning)
    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()


@contextmanager
def keep_freed_memory(device: torch.device) -> Iterator[None]:
    """Keep freed CPU memory in this process for the next step to reuse. Must not be nested.

    Otherwise glibc returns every large tensor to the system and gets it back page by page, filled with zeros: a tenth
    of a training step.
    """
    if device.type != "cpu" or platform.libc_ver()[0] != "glibc":
        yield
        return
    libc = ctypes.CDLL(None)
    trim_threshold, mmap_threshold, mmap_max = -1, -3, -4  # M_TRIM_THRESHOLD etc. in malloc.h
    libc.mallopt(trim_threshold, -1)
    libc.mallopt(mmap_max, 0)
    try:
        yield
    finally:
        # Once one is set, glibc stops adapting its thresholds: leave them as high as it would have raised them
        libc.mallopt(trim_threshold, 64 << 20)
        libc.mallopt(mmap_threshold, 32 << 20)
        libc.mallopt(mmap_max, 65_536)
        libc.malloc_trim(0)
