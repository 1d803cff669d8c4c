"""Quantizes rows of NumPy arrays to int8, each with its own scale: a quarter of the bytes. Knows nothing of files.

`decode/quantized.py` does the same with tensors, while a model runs.

Shapes, as suffixes of names: N rows, I numbers in each.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import ModelError

Array = NDArray[Any]

LEVELS = 127  # -127 to 127: symmetric, so zero stays zero
SCALE = ".scale"  # suffix to a matrix's name, for the factors of its rows


def quantize_rows(x_NI: Array) -> tuple[Array, Array]:
    """Return int8 values and the scale [N, 1] that restores each row: its largest magnitude becomes 127."""
    # at least the smallest normal number: a row of zeros must not be divided by zero
    scale_N1 = np.maximum(np.abs(x_NI).max(axis=-1, keepdims=True) / LEVELS, np.finfo(x_NI.dtype).tiny)
    return np.rint(x_NI / scale_N1).astype(np.int8), scale_N1


def compact(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Quantize every matrix to int8 rows, scales under its name + ".scale"; keep biases and norms, which are few."""
    stored: dict[str, Array] = {}
    for name, array in weights.items():
        if array.ndim != 2:
            stored[name] = array
            continue
        stored[name], scale_N1 = quantize_rows(array)
        stored[name + SCALE] = scale_N1[:, 0]
    return stored


def expanded(stored: Mapping[str, Array]) -> dict[str, Array]:
    """Restore the weights passed to `compact`, up to rounding; leave others unchanged."""
    check_scales(stored)
    return {name: expand(stored, name) for name in without_scales(stored)}


def expand(stored: Mapping[str, Array], name: str) -> Array:
    """One of the weights, in float32."""
    scale_N = stored.get(name + SCALE)
    return stored[name] if scale_N is None else stored[name].astype(np.float32) * scale_N[:, np.newaxis]


def check_scales(stored: Mapping[str, Array]) -> None:
    """Files are untrusted, and scales of another shape would be broadcast: N numbers to N x N."""
    for name in without_scales(stored):
        array, scale_N = stored[name], stored.get(name + SCALE)
        if scale_N is None:
            if array.dtype == np.int8:
                raise ModelError(f"{name} is int8 without its scales")
            continue
        if array.dtype != np.int8 or array.ndim != 2:
            raise ModelError(f"{name} has scales and is {list(array.shape)} of torch.{array.dtype}, not an int8 matrix")
        if scale_N.shape != array.shape[:1] or not np.issubdtype(scale_N.dtype, np.floating):
            raise ModelError(f"{name} has {len(array)} rows and scales {list(scale_N.shape)} of torch.{scale_N.dtype}")


def without_scales(names: Mapping[str, object] | set[str]) -> list[str]:
    """The names of weights only."""
    return [name for name in names if name.removesuffix(SCALE) == name or name.removesuffix(SCALE) not in names]
