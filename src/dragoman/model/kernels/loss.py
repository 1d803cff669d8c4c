"""The label-smoothed loss, with its gradient in place of the logits. Knows nothing of models."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dragoman.model.kernels.attention import LOWEST


@triton.jit
def _loss_and_gradient(logits, targets, losses, units, smoothing, ignored, unit: tl.constexpr, size: tl.constexpr):
    """A row of logits: its label-smoothed cross-entropy, and in its place p - q, the gradient."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    vocabulary = units * unit  # told so, the compiler sees that rows are aligned, and loads several numbers at once
    logits += row * vocabulary
    top = LOWEST
    total = tl.zeros([size], tl.float32)
    everything = tl.zeros([size], tl.float32)
    for start in range(0, vocabulary, size):
        columns = start + tl.arange(0, size)
        there = columns < vocabulary
        values = tl.load(logits + columns, mask=there, other=0.0).to(tl.float32)
        everything += values
        values = tl.where(there, values, LOWEST)
        higher = tl.maximum(top, tl.max(values, axis=0))  # of the whole block: an element costs one exponential
        total = total * tl.exp(top - higher) + tl.exp(values - higher)
        top = higher
    lse = top + tl.log(tl.sum(total, axis=0))
    right = tl.load(logits + target).to(tl.float32)
    evenly = smoothing / vocabulary
    counted = target != ignored
    loss = lse - (1.0 - smoothing) * right - evenly * tl.sum(everything, axis=0)
    tl.store(losses + row, tl.where(counted, loss, 0.0))
    for start in range(0, vocabulary, size):
        columns = start + tl.arange(0, size)
        there = columns < vocabulary
        values = tl.load(logits + columns, mask=there, other=0.0).to(tl.float32)
        gradient = tl.exp(values - lse) - evenly - tl.where(columns == target, 1.0 - smoothing, 0.0)
        gradient = tl.where(counted, gradient, 0.0)
        tl.store(logits + columns, gradient.to(logits.dtype.element_ty), mask=there)


LOSS_SIZE, LOSS_WARPS = 4096, 8


def loss_and_gradient_(logits_NV: Tensor, targets_N: Tensor, smoothing: float, ignored: int) -> Tensor:
    """The loss of each row; `logits_NV` becomes its gradient."""
    losses_N = logits_NV.new_empty(logits_NV.size(0), dtype=torch.float32)
    rows, vocabulary = logits_NV.shape
    unit = next(size for size in (16, 8, 4, 2, 1) if vocabulary % size == 0)
    _loss_and_gradient[(rows,)](
        logits_NV, targets_N, losses_N, vocabulary // unit, smoothing, ignored, unit, LOSS_SIZE, num_warps=LOSS_WARPS
    )
    return losses_N
