"""Reads the weights of a model from a safetensors file into NumPy arrays. Knows nothing of torch or directories.

int8 matrices stay as they are stored, with their scales; all other weights become float32. Files are untrusted.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors import deserialize

from dragoman.errors import ModelError
from dragoman.int8 import SCALE, Array, check_scales, without_scales

Weights = Mapping[str, Array]  # by name, as stored
Shapes = Mapping[str, Sequence[int]]

MAX_HEADER = 20_000_000  # bytes of a safetensors file: optimizer state of 1,000 + 1,000 layers has 17 million
RESTORE = "restore the file or train again"
_FLOATS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}
_KINDS = {"I": "int", "U": "uint", "F": "float", "C": "complex"}  # the first letter of a safetensors type


def read_weights(content: bytes, shapes: Shapes, path: Path) -> dict[str, Array]:
    """The weights of a model that has these shapes; `path` is only used in errors."""
    check_header(content, path)
    try:
        stored = {name: _array(name, **part) for name, part in deserialize(content)}  # type: ignore[no-untyped-call]
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    except Exception as error:  # safetensors raises its own type, and others for hostile headers
        raise not_safetensors(path, error) from None
    expected = sum(map(math.prod, shapes.values()))
    found = sum(stored[name].size for name in without_scales(stored))
    if expected != found:
        raise ModelError(f"{path}: holds {found:,} parameters, its config.toml describes {expected:,}")
    try:
        check_scales(stored)
    except ModelError as error:
        raise ModelError(f"{path}: {error}; {RESTORE}") from None
    check_fit(shapes, {name: stored[name].shape for name in without_scales(stored)}, path)
    broken = [name for name in shapes if not _is_finite(stored, name)]
    if broken:
        raise ModelError(f"{path}: {broken[0]} and {len(broken) - 1} more hold numbers that are not finite")
    return stored


def check_header(content: bytes, path: Path, remedy: str = RESTORE) -> None:
    """Refuse a header that would take long to parse."""
    header = int.from_bytes(content[:8], "little")
    if MAX_HEADER < header <= len(content):  # a header larger than the file is reported by the parser
        raise ModelError(f"{path}: its header has {header:,} bytes, at most {MAX_HEADER:,} are allowed; {remedy}")


def not_safetensors(path: Path, error: Exception, remedy: str = "restore it or train again") -> ModelError:
    reason = str(error).partition("\n")[0]  # torch adds a stack of C++ frames
    return ModelError(f"{path}: not a safetensors file ({reason}); {remedy}")


def check_fit(shapes: Shapes, found: Shapes, path: Path) -> None:
    """Check that weights have the names and shapes that a model has; report all faults together."""
    faults = [f"{name} is missing" for name in shapes.keys() - found.keys()]
    faults += [f"{name} is unknown" for name in found.keys() - shapes.keys()]
    faults += [
        f"{name} is {list(found[name])} and should be {list(shapes[name])}"
        for name in shapes.keys() & found.keys()
        if list(shapes[name]) != list(found[name])
    ]
    if faults:
        raise ModelError(f"{path}: does not fit its config.toml: {'; '.join(sorted(faults))}")


def _array(name: str, dtype: str, shape: Sequence[int], data: bytearray) -> Array:
    if dtype == "I8":
        return np.frombuffer(data, np.int8).reshape(shape)
    if dtype not in _FLOATS:
        kind = (_KINDS.get(dtype[0], dtype[0]) + dtype[1:]).lower()
        kinds = ", ".join(_FLOATS.values())
        raise ModelError(f"{name} is {kind}; use {kinds}, or int8 as `dragoman compress` writes it")
    if dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    with np.errstate(over="ignore"):  # infinity is reported later
        return np.frombuffer(data, _FLOATS[dtype]).astype(np.float32, copy=False).reshape(shape)


def _is_finite(stored: Weights, name: str) -> bool:
    if stored[name].dtype != np.int8:
        return bool(np.isfinite(stored[name]).all())
    with np.errstate(over="ignore"):
        return bool(np.isfinite(stored[name + SCALE] * np.float32(128)).all())
