"""A model with int8 linear layers, for inference. Knows nothing of device selection, search or text.

Weights are scaled once, per output row; activations per row, at run time. The integer product is exact, so a row's
result is bit-identical whatever other rows are in the batch. Embeddings, norms, attention itself and recurrent cells
stay float32.

Shapes, as suffixes of names: N rows, I inputs, O outputs (both padded to a multiple of 8).
"""

import copy
import functools
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.int8 import LEVELS

MULTIPLE = 8  # CUDA's int8 product only takes widths that are multiples of 8
FEWEST_ROWS = 32  # it also refuses 16 rows or fewer

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def quantized(model: AnyModule) -> AnyModule:
    """Return a copy with every nn.Linear in int8. The original is unchanged; float32 weights are shared with it.

    Move the model to its device first: moving the copy would also move the embeddings it shares with the original.
    """
    replaced: dict[int, Any] = {id(weight): weight for weight in model.parameters()}
    replaced |= {id(part): QuantizedLinear(part) for part in model.modules() if isinstance(part, nn.Linear)}
    return copy.deepcopy(model, replaced)


def quantize_rows(x_NI: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 values and the scale [N, 1] that restores each row: its largest magnitude becomes 127."""
    # clamp to the smallest normal number: a row of zeros must not be divided by zero
    scale_N1 = (x_NI.abs().amax(dim=-1, keepdim=True) / LEVELS).clamp(min=torch.finfo(x_NI.dtype).tiny)
    return (x_NI / scale_N1).round().to(torch.int8), scale_N1


class QuantizedLinear(nn.Module):
    """x W^T + b with int8 weights and, internally, int8 activations; float32 in, float32 out."""

    weight_OI: Tensor
    scale_O: Tensor
    bias_O: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight_OI, scale_O1 = quantize_rows(linear.weight.detach())
        self.register_buffer("weight_OI", _pad(weight_OI, -self.in_features % MULTIPLE, -self.out_features % MULTIPLE))
        self.register_buffer("scale_O", scale_O1[:, 0])
        self.register_buffer("bias_O", None if linear.bias is None else linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        x_NI, scale_N1 = quantize_rows(x.reshape(-1, self.in_features))
        product_NO = integer_product(_pad(x_NI, -self.in_features % MULTIPLE), self.weight_OI)
        y_NO = product_NO[:, : self.out_features] * scale_N1 * self.scale_O
        if self.bias_O is not None:
            y_NO = y_NO + self.bias_O
        return y_NO.view(*x.shape[:-1], self.out_features)


def integer_product(x_NI: Tensor, weight_OI: Tensor) -> Tensor:
    """x W^T of int8 matrices, exact."""
    if _int_mm_is_exact(x_NI.device):
        return _int_mm(x_NI, weight_OI)
    # float64 holds every sum of such products exactly, in any order
    return (x_NI.double() @ weight_OI.double().T).to(torch.int32)


def _int_mm(x_NI: Tensor, weight_OI: Tensor) -> Tensor:
    rows = x_NI.size(0)
    missing = max(0, FEWEST_ROWS - rows) if x_NI.is_cuda else 0
    return torch._int_mm(_pad(x_NI, rows=missing), weight_OI.T)[:rows]


@functools.cache
def _int_mm_is_exact(device: torch.device) -> bool:
    """Whether the int8 product on this device is exact, tested once with the largest values.

    x86 processors without VNNI add pairs of products in 16 bits, which saturate without an error.
    """
    most_NI = torch.full((FEWEST_ROWS, 64), LEVELS, dtype=torch.int8, device=device)
    try:
        products = [_int_mm(most_NI, sign * most_NI) for sign in (1, -1)]
    except RuntimeError:  # no int8 product for this device
        return False
    return all(bool((product.abs() == 64 * LEVELS**2).all()) for product in products)


def _pad(x: Tensor, columns: int = 0, rows: int = 0) -> Tensor:
    """Pad with zeros on the right and below; they add nothing to a product."""
    return F.pad(x, (0, columns, 0, rows)) if columns or rows else x
