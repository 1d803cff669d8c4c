"""What the machine has: cores, accelerators, a compiler. Does not import torch unless an accelerator may be there."""

import ctypes
import os
import platform
import shutil
import sys
from pathlib import Path

GAINS_FROM_THREADS = 64  # d_model from which a second CPU thread pays (docs/lab/performance.md)


def find_device(name: str) -> str:
    """Resolve `auto`, and check any other name, as `device.choose_device` does."""
    if name == "cpu" or (name == "auto" and not may_have_accelerator()):
        return "cpu"
    from dragoman.device import choose_device

    return str(choose_device(name))


def may_have_accelerator() -> bool:
    """Whether to ask PyTorch for CUDA or MPS: there is the library of a driver, or a processor of Apple's."""
    if sys.platform == "darwin":
        return platform.machine() == "arm64"
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return Path("/dev/kfd").exists()  # AMD's driver
    return True


def choose_threads(asked: int, d_model: int) -> int:
    """CPU threads: `asked` if set; else OMP_NUM_THREADS; else one for a model too small to benefit from more."""
    if asked:
        return asked
    too_small = d_model < GAINS_FROM_THREADS and "OMP_NUM_THREADS" not in os.environ
    return 1 if too_small else default_threads()


def default_threads() -> int:
    """The number of threads that PyTorch uses, or would use if it were imported."""
    if "torch" in sys.modules:
        import torch

        return torch.get_num_threads()
    for variable in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        first = os.environ.get(variable, "").partition(",")[0].strip()
        if first.isdecimal() and int(first):
            return int(first)
    return _count_cores()


def _count_cores() -> int:
    """Cores that this process may run on; hyper-threads of one core count once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    return len({_core_of(cpu) for cpu in os.sched_getaffinity(0)})


def _core_of(cpu: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: CUDA has an exception type for it; for the CPU's allocators only the message tells."""
    if "torch" in sys.modules:
        import torch

        if isinstance(error, torch.OutOfMemoryError):
            return True
    return isinstance(error, MemoryError) or any(
        words in str(error)
        for words in ("can't allocate memory", "not enough memory", "Failed to allocate memory", "bad_alloc")
    )


def has_compiler() -> bool:
    """Whether a C compiler is found."""
    return any([os.environ.get("CC"), *map(shutil.which, ("gcc", "cc", "clang"))])
