"""Triton kernels for CUDA: attention over packed sentences, and the label-smoothed loss with its gradient in place.

Sentences are short (27 tokens on average in WMT), and general flash kernels, made for tiles of 128, waste most of
their work on them. Here a program takes one small block of one sentence and one head. The plain formulas in
attention.py and train/loss.py are the oracle. This file is imported only where Triton and CUDA are.

Shapes: N packed tokens, H heads, D width of a head, G blocks of a sentence's tokens, V vocabulary.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dragoman.config import TransformerConfig

BLOCK = 32  # tokens of a block; most sentences are one or two
FORWARD_WARPS, BACKWARD_WARPS = 1, 2
LOWEST = tl.constexpr(-1.0e30)  # for -inf: a row of nothing but -inf would become NaN


def fits(config: TransformerConfig) -> bool:
    """Whether the attention kernel can run this model: heads of one width, a power of two; no attention dropout."""
    sizes = (config.encoder, config.decoder)
    widths = all(size.d_k == size.d_v and size.d_k in (16, 32, 64, 128) for size in sizes)
    return widths and config.attention_dropout == 0.0


@triton.jit
def _place(blocks, starts, other_starts, block):
    """Which sentence a program works on, which of its blocks, and where both sides of that sentence lie."""
    sentence = tl.load(blocks + 2 * block)
    number = tl.load(blocks + 2 * block + 1)
    at = tl.maximum(sentence, 0)
    return (
        sentence,
        number,
        tl.load(starts + at),
        tl.load(starts + at + 1),
        tl.load(other_starts + at),
        tl.load(other_starts + at + 1),
    )


@triton.jit
def _rows(pointer, first, rows, head, heads: tl.constexpr, width: tl.constexpr):
    return pointer + ((first + rows)[:, None] * heads + head) * width + tl.arange(0, width)[None, :]


@triton.jit
def _forward(q, k, v, out, lse, q_blocks, q_starts, k_starts, scale, heads: tl.constexpr, width: tl.constexpr,
             size: tl.constexpr, causal: tl.constexpr):  # fmt: skip
    head = tl.program_id(1)
    sentence, number, q_first, q_end, k_first, k_end = _place(q_blocks, q_starts, k_starts, tl.program_id(0))
    if sentence >= 0:
        rows = number * size + tl.arange(0, size)
        real = rows < q_end - q_first
        q_tile = tl.load(_rows(q, q_first, rows, head, heads, width), mask=real[:, None], other=0.0)
        top = tl.full([size], LOWEST, tl.float32)
        total = tl.zeros([size], tl.float32)
        mixed = tl.zeros([size, width], tl.float32)
        last = k_end - k_first
        if causal:
            last = tl.minimum(last, (number + 1) * size)
        for start in range(0, last, size):
            columns = start + tl.arange(0, size)
            there = columns < k_end - k_first
            k_tile = tl.load(_rows(k, k_first, columns, head, heads, width), mask=there[:, None], other=0.0)
            v_tile = tl.load(_rows(v, k_first, columns, head, heads, width), mask=there[:, None], other=0.0)
            allowed = there[None, :]
            if causal:
                allowed = allowed & (columns[None, :] <= rows[:, None])
            scores = tl.where(allowed, tl.dot(q_tile, tl.trans(k_tile)) * scale, LOWEST)
            higher = tl.maximum(top, tl.max(scores, axis=1))
            weights = tl.exp(scores - higher[:, None])
            shrink = tl.exp(top - higher)
            total = total * shrink + tl.sum(weights, axis=1)
            mixed = mixed * shrink[:, None] + tl.dot(weights.to(v_tile.dtype), v_tile)
            top = higher
        mixed = mixed / total[:, None]
        tl.store(_rows(out, q_first, rows, head, heads, width), mixed.to(out.dtype.element_ty), mask=real[:, None])
        tl.store(lse + (q_first + rows) * heads + head, top + tl.log(total), mask=real)


@triton.jit
def _weights(q_tile, k_tile, lse_tile, rows, columns, real, there, scale, causal: tl.constexpr):
    """The softmax again, from its log-sum-exp."""
    allowed = real[:, None] & there[None, :]
    if causal:
        allowed = allowed & (columns[None, :] <= rows[:, None])
    scores = tl.dot(q_tile, tl.trans(k_tile)) * scale
    return tl.where(allowed, tl.exp(scores - lse_tile[:, None]), 0.0)


@triton.jit
def _backward_keys(q, k, v, out, lse, d_out, d_k, d_v, k_blocks, q_starts, k_starts, scale, heads: tl.constexpr,
                   width: tl.constexpr, size: tl.constexpr, causal: tl.constexpr):  # fmt: skip
    head = tl.program_id(1)
    sentence, number, k_first, k_end, q_first, q_end = _place(k_blocks, k_starts, q_starts, tl.program_id(0))
    if sentence >= 0:
        columns = number * size + tl.arange(0, size)
        there = columns < k_end - k_first
        k_tile = tl.load(_rows(k, k_first, columns, head, heads, width), mask=there[:, None], other=0.0)
        v_tile = tl.load(_rows(v, k_first, columns, head, heads, width), mask=there[:, None], other=0.0)
        k_sum = tl.zeros([size, width], tl.float32)
        v_sum = tl.zeros([size, width], tl.float32)
        begin = 0
        if causal:
            begin = number * size
        for start in range(begin, q_end - q_first, size):
            rows = start + tl.arange(0, size)
            real = rows < q_end - q_first
            q_tile = tl.load(_rows(q, q_first, rows, head, heads, width), mask=real[:, None], other=0.0)
            o_tile = tl.load(_rows(out, q_first, rows, head, heads, width), mask=real[:, None], other=0.0)
            d_tile = tl.load(_rows(d_out, q_first, rows, head, heads, width), mask=real[:, None], other=0.0)
            lse_tile = tl.load(lse + (q_first + rows) * heads + head, mask=real, other=0.0)
            weights = _weights(q_tile, k_tile, lse_tile, rows, columns, real, there, scale, causal)
            v_sum += tl.dot(tl.trans(weights).to(d_tile.dtype), d_tile)
            kept = tl.sum(o_tile.to(tl.float32) * d_tile.to(tl.float32), axis=1)
            d_scores = weights * (tl.dot(d_tile, tl.trans(v_tile)) - kept[:, None]) * scale
            k_sum += tl.dot(tl.trans(d_scores).to(q_tile.dtype), q_tile)
        tl.store(_rows(d_k, k_first, columns, head, heads, width), k_sum.to(d_k.dtype.element_ty), mask=there[:, None])
        tl.store(_rows(d_v, k_first, columns, head, heads, width), v_sum.to(d_v.dtype.element_ty), mask=there[:, None])


@triton.jit
def _backward_queries(q, k, v, out, lse, d_out, d_q, q_blocks, q_starts, k_starts, scale, heads: tl.constexpr,
                      width: tl.constexpr, size: tl.constexpr, causal: tl.constexpr):  # fmt: skip
    head = tl.program_id(1)
    sentence, number, q_first, q_end, k_first, k_end = _place(q_blocks, q_starts, k_starts, tl.program_id(0))
    if sentence >= 0:
        rows = number * size + tl.arange(0, size)
        real = rows < q_end - q_first
        q_tile = tl.load(_rows(q, q_first, rows, head, heads, width), mask=real[:, None], other=0.0)
        o_tile = tl.load(_rows(out, q_first, rows, head, heads, width), mask=real[:, None], other=0.0)
        d_tile = tl.load(_rows(d_out, q_first, rows, head, heads, width), mask=real[:, None], other=0.0)
        lse_tile = tl.load(lse + (q_first + rows) * heads + head, mask=real, other=0.0)
        kept = tl.sum(o_tile.to(tl.float32) * d_tile.to(tl.float32), axis=1)
        q_sum = tl.zeros([size, width], tl.float32)
        last = k_end - k_first
        if causal:
            last = tl.minimum(last, (number + 1) * size)
        for start in range(0, last, size):
            columns = start + tl.arange(0, size)
            there = columns < k_end - k_first
            k_tile = tl.load(_rows(k, k_first, columns, head, heads, width), mask=there[:, None], other=0.0)
            v_tile = tl.load(_rows(v, k_first, columns, head, heads, width), mask=there[:, None], other=0.0)
            weights = _weights(q_tile, k_tile, lse_tile, rows, columns, real, there, scale, causal)
            d_scores = weights * (tl.dot(d_tile, tl.trans(v_tile)) - kept[:, None]) * scale
            q_sum += tl.dot(d_scores.to(k_tile.dtype), k_tile)
        tl.store(_rows(d_q, q_first, rows, head, heads, width), q_sum.to(d_q.dtype.element_ty), mask=real[:, None])


@torch.library.custom_op("dragoman::packed_attention", mutates_args=())
def packed_attention(
    q_NHD: Tensor,
    k_NHD: Tensor,
    v_NHD: Tensor,
    q_blocks: Tensor,
    k_blocks: Tensor,
    q_starts: Tensor,
    k_starts: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """softmax(q k^T / sqrt(D)) v within each sentence, and its log-sum-exp. Every token belongs to a sentence."""
    out_NHD = torch.empty_like(q_NHD)
    lse_NH = q_NHD.new_empty(q_NHD.shape[:2], dtype=torch.float32)
    heads, width = q_NHD.shape[1:]
    grid = (q_blocks.size(0), heads)
    _forward[grid](
        q_NHD, k_NHD, v_NHD, out_NHD, lse_NH, q_blocks, q_starts, k_starts, width**-0.5, heads, width, BLOCK, causal,
        num_warps=FORWARD_WARPS,
    )  # fmt: skip
    return out_NHD, lse_NH


@packed_attention.register_fake
def _(q_NHD, k_NHD, v_NHD, q_blocks, k_blocks, q_starts, k_starts, causal):
    return torch.empty_like(q_NHD), q_NHD.new_empty(q_NHD.shape[:2], dtype=torch.float32)


@torch.library.custom_op("dragoman::packed_attention_backward", mutates_args=())
def packed_attention_backward(
    d_out_NHD: Tensor,
    q_NHD: Tensor,
    k_NHD: Tensor,
    v_NHD: Tensor,
    out_NHD: Tensor,
    lse_NH: Tensor,
    q_blocks: Tensor,
    k_blocks: Tensor,
    q_starts: Tensor,
    k_starts: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    d_q_NHD, d_k_NHD, d_v_NHD = torch.empty_like(q_NHD), torch.empty_like(k_NHD), torch.empty_like(v_NHD)
    heads, width = q_NHD.shape[1:]
    saved = (q_NHD, k_NHD, v_NHD, out_NHD, lse_NH, d_out_NHD.contiguous())
    shape = (q_starts, k_starts, width**-0.5, heads, width, BLOCK, causal)
    _backward_keys[(k_blocks.size(0), heads)](*saved, d_k_NHD, d_v_NHD, k_blocks, *shape, num_warps=BACKWARD_WARPS)
    _backward_queries[(q_blocks.size(0), heads)](*saved, d_q_NHD, q_blocks, *shape, num_warps=BACKWARD_WARPS)
    return d_q_NHD, d_k_NHD, d_v_NHD


@packed_attention_backward.register_fake
def _(d_out_NHD, q_NHD, k_NHD, v_NHD, *_):
    return torch.empty_like(q_NHD), torch.empty_like(k_NHD), torch.empty_like(v_NHD)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:7])
    ctx.causal = inputs[7]


def _differentiate(context, d_out_NHD, _):
    gradients = packed_attention_backward(d_out_NHD, *context.saved_tensors, context.causal)
    return *gradients, None, None, None, None, None


packed_attention.register_autograd(_differentiate, setup_context=_save)


# The loss


@triton.jit
def _loss_and_gradient(logits, targets, losses, vocabulary, smoothing, ignored, size: tl.constexpr):
    """A row of logits: its label-smoothed cross-entropy, and in its place p - q, the gradient."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    logits += row * vocabulary
    top = tl.full([size], LOWEST, tl.float32)
    total = tl.zeros([size], tl.float32)
    everything = tl.zeros([size], tl.float32)
    for start in range(0, vocabulary, size):
        columns = start + tl.arange(0, size)
        there = columns < vocabulary
        values = tl.load(logits + columns, mask=there, other=0.0).to(tl.float32)
        everything += tl.where(there, values, 0.0)
        values = tl.where(there, values, LOWEST)
        higher = tl.maximum(top, values)
        total = total * tl.exp(top - higher) + tl.where(there, tl.exp(values - higher), 0.0)
        top = higher
    highest = tl.max(top, axis=0)
    lse = highest + tl.log(tl.sum(total * tl.exp(top - highest), axis=0))
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


def loss_and_gradient_(logits_NV: Tensor, targets_N: Tensor, smoothing: float, ignored: int) -> Tensor:
    """The loss of each row; `logits_NV` becomes its gradient."""
    losses_N = logits_NV.new_empty(logits_NV.size(0), dtype=torch.float32)
    _loss_and_gradient[(logits_NV.size(0),)](
        logits_NV, targets_N, losses_N, logits_NV.size(1), smoothing, ignored, 4096, num_warps=8
    )
    return losses_N
