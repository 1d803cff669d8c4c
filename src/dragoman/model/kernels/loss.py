"""The label-smoothed loss, with its gradient written over the logits; R-Drop's too. Knows nothing of models."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dragoman.model.kernels.attention import LOWEST


@triton.jit
def _loss_and_gradient(logits, targets, losses, units, smoothing, ignored, unit: tl.constexpr, size: tl.constexpr):
    """Compute the label-smoothed cross-entropy of a row of logits, and overwrite the row with its gradient p - q."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    vocabulary = units * unit  # lets the compiler see that rows are aligned and load several numbers at once
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
        higher = tl.maximum(top, tl.max(values, axis=0))  # of the whole block: one exponential per element
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


@triton.jit
def _lse_and_divergence(first, second, vocabulary, size: tl.constexpr):
    """Of two rows of logits, p's and q's: the lse of each, KL(p, q), KL(q, p), and the sum of all logits.

    With d = log p - log q, the sum of p d is that of p (a - b), of the logits, minus the difference of their lse.
    """
    top_a = LOWEST
    top_b = LOWEST
    total_a = tl.zeros([size], tl.float32)
    total_b = tl.zeros([size], tl.float32)
    apart_a = tl.zeros([size], tl.float32)  # a - b, weighted like the totals
    apart_b = tl.zeros([size], tl.float32)
    everything = tl.zeros([size], tl.float32)
    for start in range(0, vocabulary, size):
        columns = start + tl.arange(0, size)
        there = columns < vocabulary
        a = tl.load(first + columns, mask=there, other=0.0).to(tl.float32)
        b = tl.load(second + columns, mask=there, other=0.0).to(tl.float32)
        everything += a + b
        difference = a - b
        a = tl.where(there, a, LOWEST)
        b = tl.where(there, b, LOWEST)
        higher_a = tl.maximum(top_a, tl.max(a, axis=0))
        higher_b = tl.maximum(top_b, tl.max(b, axis=0))
        weight_a = tl.exp(a - higher_a)
        weight_b = tl.exp(b - higher_b)
        total_a = total_a * tl.exp(top_a - higher_a) + weight_a
        total_b = total_b * tl.exp(top_b - higher_b) + weight_b
        apart_a = apart_a * tl.exp(top_a - higher_a) + weight_a * difference
        apart_b = apart_b * tl.exp(top_b - higher_b) + weight_b * difference
        top_a = higher_a
        top_b = higher_b
    sum_a = tl.sum(total_a, axis=0)
    sum_b = tl.sum(total_b, axis=0)
    lse_a = top_a + tl.log(sum_a)
    lse_b = top_b + tl.log(sum_b)
    kl_a = tl.sum(apart_a, axis=0) / sum_a - (lse_a - lse_b)  # of q from p
    kl_b = (lse_a - lse_b) - tl.sum(apart_b, axis=0) / sum_b
    return lse_a, lse_b, kl_a, kl_b, tl.sum(everything, axis=0)


@triton.jit
def _two_losses_and_gradients(
    logits, targets, losses, units, smoothing, r_drop, ignored, unit: tl.constexpr, size: tl.constexpr
):
    """Two rows of logits, p's and q's, from two passes of one token: their mean loss, and their divergence."""
    pair = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + 2 * pair)
    vocabulary = units * unit  # as above
    first = logits + 2 * pair * vocabulary
    second = first + vocabulary
    lse_a, lse_b, kl_a, kl_b, everything = _lse_and_divergence(first, second, vocabulary, size)
    right = tl.load(first + target).to(tl.float32) + tl.load(second + target).to(tl.float32)
    evenly = smoothing / vocabulary
    counted = target != ignored
    both = lse_a + lse_b - (1.0 - smoothing) * right - evenly * everything
    tl.store(losses + pair, tl.where(counted, 0.5 * both + 0.25 * r_drop * (kl_a + kl_b), 0.0))
    for start in range(0, vocabulary, size):
        columns = start + tl.arange(0, size)
        there = columns < vocabulary
        log_p = tl.load(first + columns, mask=there, other=0.0).to(tl.float32) - lse_a
        log_q = tl.load(second + columns, mask=there, other=0.0).to(tl.float32) - lse_b
        p = tl.exp(log_p)
        q = tl.exp(log_q)
        goal = evenly + tl.where(columns == target, 1.0 - smoothing, 0.0)
        of_a = 0.5 * (p - goal) + 0.25 * r_drop * (p * (log_p - log_q - kl_a) + p - q)
        of_b = 0.5 * (q - goal) + 0.25 * r_drop * (q * (log_q - log_p - kl_b) + q - p)
        tl.store(first + columns, tl.where(counted, of_a, 0.0).to(logits.dtype.element_ty), mask=there)
        tl.store(second + columns, tl.where(counted, of_b, 0.0).to(logits.dtype.element_ty), mask=there)


LOSS_SIZE, LOSS_WARPS = 4096, 8
PAIR_SIZE = 2048  # two rows at a time: no more registers than one row of LOSS_SIZE


def loss_and_gradient_(logits_NV: Tensor, targets_N: Tensor, smoothing: float, ignored: int) -> Tensor:
    """Return the loss of each row and overwrite `logits_NV` with its gradient."""
    rows, vocabulary = logits_NV.shape
    losses_N = logits_NV.new_empty(rows, dtype=torch.float32)
    unit = _unit(vocabulary)
    _loss_and_gradient[(rows,)](
        logits_NV, targets_N, losses_N, vocabulary // unit, smoothing, ignored, unit, LOSS_SIZE, num_warps=LOSS_WARPS
    )
    return losses_N


def two_losses_and_gradients_(
    logits_NV: Tensor, targets_N: Tensor, smoothing: float, r_drop: float, ignored: int
) -> Tensor:
    """Return mean loss plus divergence of rows 2n and 2n + 1, a token's two passes; overwrite logits with gradients."""
    rows, vocabulary = logits_NV.shape
    losses_N = logits_NV.new_empty(rows // 2, dtype=torch.float32)
    unit = _unit(vocabulary)
    _two_losses_and_gradients[(rows // 2,)](
        logits_NV, targets_N, losses_N, vocabulary // unit, smoothing, r_drop, ignored, unit, PAIR_SIZE,
        num_warps=LOSS_WARPS,
    )  # fmt: skip
    return losses_N


def _unit(vocabulary: int) -> int:
    return next(size for size in (16, 8, 4, 2, 1) if vocabulary % size == 0)
