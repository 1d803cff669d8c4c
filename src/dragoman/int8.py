"""Quantizes rows to int8, each with its own scale: a quarter of the bytes. Knows nothing of models or files.

Shapes, as suffixes of names: N rows, I numbers in each.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from dragoman.errors import ModelError

LEVELS = 127  # -127 to 127: symmetric, so zero stays zero
SCALE = ".scale"  # suffix to a matrix's name, for the factors of its rows


def quantize_rows(x_NI: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 values and the scale [N, 1] that restores each row: its largest magnitude becomes 127."""
    # clamp to the smallest normal number: a row of zeros must not be divided by zero
    scale_N1 = (x_NI.abs().amax(dim=-1, keepdim=True) / LEVELS).clamp(min=torch.finfo(x_NI.dtype).tiny)
    return (x_NI / scale_N1).round().to(torch.int8), scale_N1


def compact(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Quantize every matrix to int8 rows, scales under its name + ".scale"; keep biases and norms, which are few."""
    stored: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if tensor.dim() != 2:
            stored[name] = tensor
            continue
        stored[name], scale_N1 = quantize_rows(tensor.detach().float())
        stored[name + SCALE] = scale_N1[:, 0]
    return stored


def expanded(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Restore the weights passed to `compact`, up to rounding; leave others unchanged."""
    weights: dict[str, Tensor] = {}
    for name in without_scales(stored):
        tensor, scale_N = stored[name], stored.get(name + SCALE)
        if scale_N is None and tensor.dtype == torch.int8:
            raise ModelError(f"{name} is int8 without its scales")
        if scale_N is not None:
            _check_scales(name, tensor, scale_N)
        weights[name] = tensor if scale_N is None else tensor.float() * scale_N[:, None]
    return weights


def _check_scales(name: str, tensor: Tensor, scale_N: Tensor) -> None:
    """Files are untrusted, and scales of another shape would be broadcast: N numbers to N x N."""
    if tensor.dtype != torch.int8 or tensor.dim() != 2:
        raise ModelError(f"{name} has scales and is {list(tensor.shape)} of {tensor.dtype}, not an int8 matrix")
    if scale_N.shape != tensor.shape[:1] or not scale_N.is_floating_point():
        raise ModelError(f"{name} has {len(tensor)} rows and scales {list(scale_N.shape)} of {scale_N.dtype}")


def without_scales(names: Mapping[str, object] | set[str]) -> list[str]:
    """The names of weights only."""
    return [name for name in names if name.removesuffix(SCALE) == name or name.removesuffix(SCALE) not in names]
