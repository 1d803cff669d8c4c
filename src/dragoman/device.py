"""Which device and which precision a model runs in, chosen by itself and overridable. Knows nothing of models."""

import ctypes
import functools
import os
import platform
import shutil
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch

from dragoman.config import require_device
from dragoman.errors import ConfigError

GAINS_FROM_THREADS = 64  # d_model from which a second CPU thread pays (docs/lab/performance.md)


def choose_device(name: str) -> torch.device:
    """`auto` takes CUDA, then Apple's MPS, then the CPU; a name is taken at its word or refused."""
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


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA has an exception for it; the CPU's allocator has only its words."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        words in str(error) for words in ("can't allocate memory", "not enough memory")
    )


@functools.cache
def kernels_run() -> bool:
    """Whether Triton's kernels do: it builds a small launcher with a C compiler when one is first used."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    return torch.cuda.is_available() and find_spec("triton") is not None and compiler is not None


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """The type matrix products run in; weights stay float32. `auto`: bfloat16 on CUDA, float32 elsewhere."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def choose_threads(asked: int, d_model: int) -> int:
    """CPU threads: as asked for; else as OMP_NUM_THREADS says; else one for a model too small to gain from more."""
    if asked:
        return asked
    too_small = d_model < GAINS_FROM_THREADS and "OMP_NUM_THREADS" not in os.environ
    return 1 if too_small else torch.get_num_threads()


class _ThreadCount:
    """How many users of `cpu_threads` there are, and the number of threads before the first."""

    lock = threading.Lock()
    users = 0
    before = 0


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """PyTorch's operators run on this many CPU threads within.

    The number belongs to the whole process: of several users at once the last to enter sets it, and the last to leave
    restores it.
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


def is_fast_in_bfloat16(device: torch.device) -> bool:
    """Whether this is a CPU with a unit for products of bfloat16 matrices (AMX)."""
    tells = hasattr(torch.cpu, "get_capabilities")  # PyTorch 2.11 and older do not
    return device.type == "cpu" and tells and bool(torch.cpu.get_capabilities().get("amx_bf16"))


def is_slow_in_bfloat16(device: torch.device) -> bool:
    """Whether this is a CPU without bfloat16 instructions: such products take PyTorch hundreds of times as long there.

    PyTorch's own warning of it, with C++ stack frames, is silenced: callers say it in a line.
    """
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    warnings.filterwarnings("ignore", message="mkldnn_matmul failed", category=UserWarning)
    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()


@contextmanager
def keep_freed_memory(device: torch.device) -> Iterator[None]:
    """What is freed in the CPU's memory stays with this process, for the next step to take. Not to be nested.

    Otherwise glibc hands every large tensor back to the system and has it again page by page, filled with zeros: a
    tenth of a training step.
    """
    if device.type != "cpu" or platform.libc_ver()[0] != "glibc":
        yield
        return
    libc = ctypes.CDLL(None)
    trim_threshold, mmap_threshold, mmap_max = -1, -3, -4  # M_TRIM_THRESHOLD and so on, of malloc.h
    libc.mallopt(trim_threshold, -1)
    libc.mallopt(mmap_max, 0)
    try:
        yield
    finally:
        # Once told anything, glibc no longer adapts its thresholds: they are left as high as it would have raised them
        libc.mallopt(trim_threshold, 64 << 20)
        libc.mallopt(mmap_threshold, 32 << 20)
        libc.mallopt(mmap_max, 65_536)
        libc.malloc_trim(0)
