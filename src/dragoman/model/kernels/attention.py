"""Attention over packed sentences, forward and backward. Knows nothing of layers; shapes as in __init__.py.

Sentences are short (27 tokens on average in WMT), and general flash kernels, designed for tiles of 128, waste most of
their work on them. Here one program per head processes a sentence that fits into one small tile as a whole, in backward
too: the softmax is recomputed and nothing is looped over. Longer sentences are processed block by block.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dragoman.config import LayersConfig

# (longer than, up to, warps forward, warps backward): sentences whose longer side is in this range are processed whole
WHOLE = ((0, 32, 1, 2), (32, 64, 4, 4))
LONGEST_WHOLE = WHOLE[-1][1]
BLOCK = 32  # tokens per block of a longer sentence
BLOCK_WARPS = 2
LOWEST = tl.constexpr(-1.0e30)  # instead of -inf: a row of only -inf would become NaN
WIDTHS = (16, 32, 64, 128)  # of a head; other widths are padded with zeros, which change nothing


def fits(config: LayersConfig) -> bool:
    """Whether the attention kernel supports this model: heads that are not too wide, no attention dropout."""
    widest = max(max(size.d_k, size.d_v) for size in config.stacks.values())
    return widest <= WIDTHS[-1] and config.attention_dropout == 0.0


def width_for(d_k: int, d_v: int) -> int:
    """The kernel's width for heads of these widths."""
    return next(width for width in WIDTHS if width >= max(d_k, d_v))


# Sentences of one tile. `stride` is the number of elements from one token to the next: q, k and v may be parts of one
# tensor, and so may their gradients.


@triton.jit
def _sides(q_starts, k_starts, sentence):
    """Where both sides of a sentence begin, and their lengths."""
    q_first, k_first = tl.load(q_starts + sentence), tl.load(k_starts + sentence)
    return q_first, tl.load(q_starts + sentence + 1) - q_first, k_first, tl.load(k_starts + sentence + 1) - k_first


@triton.jit
def _tile(pointer, first, rows, stride, head, width: tl.constexpr):
    return pointer + (first + rows).to(tl.int64)[:, None] * stride + head * width + tl.arange(0, width)[None, :]


@triton.jit
def _allowed(rows, columns, q_length, k_length, causal: tl.constexpr):
    allowed = (rows < q_length)[:, None] & (columns < k_length)[None, :]
    if causal:
        allowed = allowed & (columns[None, :] <= rows[:, None])
    return allowed


@triton.jit
def _forward_whole(q, k, v, out, q_starts, k_starts, q_stride, k_stride, scale, heads: tl.constexpr,
                   width: tl.constexpr, over: tl.constexpr, size: tl.constexpr, causal: tl.constexpr):  # fmt: skip
    sentence, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    q_first, q_length, k_first, k_length = _sides(q_starts, k_starts, sentence)
    longer = tl.maximum(q_length, k_length)
    if (longer > over) & (longer <= size):
        places = tl.arange(0, size)
        real, there = (places < q_length)[:, None], (places < k_length)[:, None]
        q_tile = tl.load(_tile(q, q_first, places, q_stride, head, width), mask=real, other=0.0)
        k_tile = tl.load(_tile(k, k_first, places, k_stride, head, width), mask=there, other=0.0)
        v_tile = tl.load(_tile(v, k_first, places, k_stride, head, width), mask=there, other=0.0)
        allowed = _allowed(places, places, q_length, k_length, causal)
        scores = tl.where(allowed, tl.dot(q_tile, tl.trans(k_tile)) * scale, LOWEST)
        weights = tl.exp(scores - tl.max(scores, axis=1)[:, None])
        total = tl.sum(weights, axis=1)
        mixed = tl.dot(weights.to(v_tile.dtype), v_tile) / total[:, None]
        out_tile = _tile(out, q_first, places, heads * width, head, width)
        tl.store(out_tile, mixed.to(out.dtype.element_ty), mask=real)


@triton.jit
def _backward_whole(q, k, v, d_out, d_q, d_k, d_v, q_starts, k_starts, q_stride, k_stride, scale, heads: tl.constexpr,
                    width: tl.constexpr, over: tl.constexpr, size: tl.constexpr, causal: tl.constexpr):  # fmt: skip
    sentence, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    q_first, q_length, k_first, k_length = _sides(q_starts, k_starts, sentence)
    longer = tl.maximum(q_length, k_length)
    if (longer > over) & (longer <= size):
        places = tl.arange(0, size)
        real, there = (places < q_length)[:, None], (places < k_length)[:, None]
        q_tile = tl.load(_tile(q, q_first, places, q_stride, head, width), mask=real, other=0.0)
        k_tile = tl.load(_tile(k, k_first, places, k_stride, head, width), mask=there, other=0.0)
        v_tile = tl.load(_tile(v, k_first, places, k_stride, head, width), mask=there, other=0.0)
        d_tile = tl.load(_tile(d_out, q_first, places, heads * width, head, width), mask=real, other=0.0)
        allowed = _allowed(places, places, q_length, k_length, causal)
        scores = tl.where(allowed, tl.dot(q_tile, tl.trans(k_tile)) * scale, LOWEST)
        weights = tl.where(allowed, tl.exp(scores - tl.max(scores, axis=1)[:, None]), 0.0)
        weights = weights / tl.maximum(tl.sum(weights, axis=1), 1e-30)[:, None]  # rows of padding sum to zero
        d_weights = tl.dot(d_tile, tl.trans(v_tile))
        v_sum = tl.dot(tl.trans(weights.to(d_tile.dtype)), d_tile)
        tl.store(_tile(d_v, k_first, places, k_stride, head, width), v_sum.to(d_v.dtype.element_ty), mask=there)
        d_scores = weights * (d_weights - tl.sum(weights * d_weights, axis=1)[:, None]) * scale
        d_scores = d_scores.to(q_tile.dtype)
        q_sum = tl.dot(d_scores, k_tile)
        tl.store(_tile(d_q, q_first, places, q_stride, head, width), q_sum.to(d_q.dtype.element_ty), mask=real)
        k_sum = tl.dot(tl.trans(d_scores), q_tile)
        tl.store(_tile(d_k, k_first, places, k_stride, head, width), k_sum.to(d_k.dtype.element_ty), mask=there)


# Longer sentences, block by block.


@triton.jit
def _block(blocks, q_starts, k_starts, heads: tl.constexpr, over: tl.constexpr):
    """What a program works on: its head, its block of the sentence, both sides; and whether there is any work."""
    place, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    sentence = tl.load(blocks + 2 * place)
    number, q_first, q_length, k_first, k_length = sentence, sentence, sentence, sentence, sentence
    if sentence >= 0:
        number = tl.load(blocks + 2 * place + 1)
        q_first, q_length, k_first, k_length = _sides(q_starts, k_starts, sentence)
    return tl.maximum(q_length, k_length) > over, head, number, q_first, q_length, k_first, k_length


@triton.jit
def _forward_blocks(q, k, v, out, lse, q_blocks, q_starts, k_starts, q_stride, k_stride, scale, heads: tl.constexpr,
                    width: tl.constexpr, over: tl.constexpr, size: tl.constexpr, causal: tl.constexpr):  # fmt: skip
    work, head, number, q_first, q_length, k_first, k_length = _block(q_blocks, q_starts, k_starts, heads, over)
    if work:
        rows = number * size + tl.arange(0, size)
        real = (rows < q_length)[:, None]
        q_tile = tl.load(_tile(q, q_first, rows, q_stride, head, width), mask=real, other=0.0)
        top = tl.full([size], LOWEST, tl.float32)
        total = tl.zeros([size], tl.float32)
        mixed = tl.zeros([size, width], tl.float32)
        last = k_length
        if causal:
            last = tl.minimum(last, (number + 1) * size)
        for start in range(0, last, size):
            columns = start + tl.arange(0, size)
            there = (columns < k_length)[:, None]
            k_tile = tl.load(_tile(k, k_first, columns, k_stride, head, width), mask=there, other=0.0)
            v_tile = tl.load(_tile(v, k_first, columns, k_stride, head, width), mask=there, other=0.0)
            allowed = _allowed(rows, columns, q_length, k_length, causal)
            scores = tl.where(allowed, tl.dot(q_tile, tl.trans(k_tile)) * scale, LOWEST)
            higher = tl.maximum(top, tl.max(scores, axis=1))
            weights = tl.exp(scores - higher[:, None])
            shrink = tl.exp(top - higher)
            total = total * shrink + tl.sum(weights, axis=1)
            mixed = mixed * shrink[:, None] + tl.dot(weights.to(v_tile.dtype), v_tile)
            top = higher
        total = tl.maximum(total, 1e-30)  # padding may have no keys
        mixed = mixed / total[:, None]
        out_tile = _tile(out, q_first, rows, heads * width, head, width)
        tl.store(out_tile, mixed.to(out.dtype.element_ty), mask=real)
        tl.store(lse + (q_first + rows) * heads + head, top + tl.log(total), mask=rows < q_length)


@triton.jit
def _gradient_of_scores(q_tile, k_tile, v_tile, o_tile, d_tile, lse_tile, allowed, scale):
    """Recompute the softmax from its log-sum-exp, and compute the gradient of the scores before it."""
    scores = tl.dot(q_tile, tl.trans(k_tile)) * scale
    weights = tl.where(allowed, tl.exp(scores - lse_tile[:, None]), 0.0)
    kept = tl.sum(o_tile.to(tl.float32) * d_tile.to(tl.float32), axis=1)
    return weights, weights * (tl.dot(d_tile, tl.trans(v_tile)) - kept[:, None]) * scale


@triton.jit
def _backward_keys(q, k, v, out, lse, d_out, d_k, d_v, k_blocks, q_starts, k_starts, q_stride, k_stride, scale,
                   heads: tl.constexpr, width: tl.constexpr, over: tl.constexpr, size: tl.constexpr,
                   causal: tl.constexpr):  # fmt: skip
    work, head, number, q_first, q_length, k_first, k_length = _block(k_blocks, q_starts, k_starts, heads, over)
    if work:
        columns = number * size + tl.arange(0, size)
        there = (columns < k_length)[:, None]
        k_tile = tl.load(_tile(k, k_first, columns, k_stride, head, width), mask=there, other=0.0)
        v_tile = tl.load(_tile(v, k_first, columns, k_stride, head, width), mask=there, other=0.0)
        k_sum = tl.zeros([size, width], tl.float32)
        v_sum = tl.zeros([size, width], tl.float32)
        begin = 0
        if causal:
            begin = number * size
        for start in range(begin, q_length, size):
            rows = start + tl.arange(0, size)
            real = (rows < q_length)[:, None]
            q_tile = tl.load(_tile(q, q_first, rows, q_stride, head, width), mask=real, other=0.0)
            o_tile = tl.load(_tile(out, q_first, rows, heads * width, head, width), mask=real, other=0.0)
            d_tile = tl.load(_tile(d_out, q_first, rows, heads * width, head, width), mask=real, other=0.0)
            lse_tile = tl.load(lse + (q_first + rows) * heads + head, mask=rows < q_length, other=0.0)
            allowed = _allowed(rows, columns, q_length, k_length, causal)
            weights, d_scores = _gradient_of_scores(q_tile, k_tile, v_tile, o_tile, d_tile, lse_tile, allowed, scale)
            v_sum += tl.dot(tl.trans(weights).to(d_tile.dtype), d_tile)
            k_sum += tl.dot(tl.trans(d_scores).to(q_tile.dtype), q_tile)
        tl.store(_tile(d_k, k_first, columns, k_stride, head, width), k_sum.to(d_k.dtype.element_ty), mask=there)
        tl.store(_tile(d_v, k_first, columns, k_stride, head, width), v_sum.to(d_v.dtype.element_ty), mask=there)


@triton.jit
def _backward_queries(q, k, v, out, lse, d_out, d_q, q_blocks, q_starts, k_starts, q_stride, k_stride, scale,
                      heads: tl.constexpr, width: tl.constexpr, over: tl.constexpr, size: tl.constexpr,
                      causal: tl.constexpr):  # fmt: skip
    work, head, number, q_first, q_length, k_first, k_length = _block(q_blocks, q_starts, k_starts, heads, over)
    if work:
        rows = number * size + tl.arange(0, size)
        real = (rows < q_length)[:, None]
        q_tile = tl.load(_tile(q, q_first, rows, q_stride, head, width), mask=real, other=0.0)
        o_tile = tl.load(_tile(out, q_first, rows, heads * width, head, width), mask=real, other=0.0)
        d_tile = tl.load(_tile(d_out, q_first, rows, heads * width, head, width), mask=real, other=0.0)
        lse_tile = tl.load(lse + (q_first + rows) * heads + head, mask=rows < q_length, other=0.0)
        q_sum = tl.zeros([size, width], tl.float32)
        last = k_length
        if causal:
            last = tl.minimum(last, (number + 1) * size)
        for start in range(0, last, size):
            columns = start + tl.arange(0, size)
            there = (columns < k_length)[:, None]
            k_tile = tl.load(_tile(k, k_first, columns, k_stride, head, width), mask=there, other=0.0)
            v_tile = tl.load(_tile(v, k_first, columns, k_stride, head, width), mask=there, other=0.0)
            allowed = _allowed(rows, columns, q_length, k_length, causal)
            _, d_scores = _gradient_of_scores(q_tile, k_tile, v_tile, o_tile, d_tile, lse_tile, allowed, scale)
            q_sum += tl.dot(d_scores.to(k_tile.dtype), k_tile)
        tl.store(_tile(d_q, q_first, rows, q_stride, head, width), q_sum.to(d_q.dtype.element_ty), mask=real)


# The operators: self-attention takes one tensor with queries, keys and values side by side; cross-attention takes the
# queries, and keys and values side by side. They return the heads' outputs side by side, and their log-sum-exp.


def _forward(q, k, v, q_blocks, q_starts, k_starts, heads, scale, causal):
    out_NC = q.new_empty(q.shape)
    lse_NH = q.new_empty((q.size(0), heads), dtype=torch.float32)  # of longer sentences only
    width = q.size(1) // heads
    sides = (q_starts, k_starts, q.stride(0), k.stride(0), scale, heads, width)
    for over, size, warps, _ in WHOLE:
        grid = ((q_starts.size(0) - 1) * heads,)
        _forward_whole[grid](q, k, v, out_NC, *sides, over, size, causal, num_warps=warps)
    grid = (q_blocks.size(0) * heads,)
    shape = (*sides, LONGEST_WHOLE, BLOCK, causal)
    _forward_blocks[grid](q, k, v, out_NC, lse_NH, q_blocks, *shape, num_warps=BLOCK_WARPS)
    return out_NC, lse_NH


def _backward(d_out_NC, q, k, v, out_NC, lse_NH, d_q, d_k, d_v, q_blocks, k_blocks, q_starts, k_starts, heads, scale,
              causal):  # fmt: skip
    d_out_NC = d_out_NC.contiguous()
    width = q.size(1) // heads
    sides = (q_starts, k_starts, q.stride(0), k.stride(0), scale, heads, width)
    for over, size, _, warps in WHOLE:
        grid = ((q_starts.size(0) - 1) * heads,)
        _backward_whole[grid](q, k, v, d_out_NC, d_q, d_k, d_v, *sides, over, size, causal, num_warps=warps)
    saved, shape = (q, k, v, out_NC, lse_NH, d_out_NC), (*sides, LONGEST_WHOLE, BLOCK, causal)
    _backward_keys[(k_blocks.size(0) * heads,)](*saved, d_k, d_v, k_blocks, *shape, num_warps=BLOCK_WARPS)
    _backward_queries[(q_blocks.size(0) * heads,)](*saved, d_q, q_blocks, *shape, num_warps=BLOCK_WARPS)


def self_attention_forward(
    qkv: Tensor, blocks: Tensor, starts: Tensor, heads: int, scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """softmax(q k^T scale) v within each sentence; undefined for tokens of none."""
    q, k, v = qkv.chunk(3, dim=1)
    return _forward(q, k, v, blocks, starts, starts, heads, scale, causal)


self_attention = torch.library.custom_op("dragoman::self_attention", self_attention_forward, mutates_args=())


@torch.library.custom_op("dragoman::self_attention_backward", mutates_args=())
def self_attention_backward(
    d_out: Tensor,
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    blocks: Tensor,
    starts: Tensor,
    heads: int,
    scale: float,
    causal: bool,
) -> Tensor:
    d_qkv = torch.empty_like(qkv)
    (q, k, v), (d_q, d_k, d_v) = qkv.chunk(3, dim=1), d_qkv.chunk(3, dim=1)
    _backward(d_out, q, k, v, out, lse, d_q, d_k, d_v, blocks, blocks, starts, starts, heads, scale, causal)
    return d_qkv


@self_attention.register_fake
def _(qkv, blocks, starts, heads, scale, causal):
    return qkv.new_empty(qkv.size(0), qkv.size(1) // 3), qkv.new_empty((qkv.size(0), heads), dtype=torch.float32)


@self_attention_backward.register_fake
def _(d_out, qkv, *_):
    return torch.empty_like(qkv)


def _save_self(ctx, inputs, output):
    qkv, blocks, starts, *ctx.rest = inputs
    ctx.save_for_backward(qkv, *output, blocks, starts)


def _differentiate_self(context, d_out, _):
    return self_attention_backward(d_out, *context.saved_tensors, *context.rest), None, None, None, None, None


self_attention.register_autograd(_differentiate_self, setup_context=_save_self)


@torch.library.custom_op("dragoman::cross_attention", mutates_args=())
def cross_attention(
    q: Tensor,
    kv: Tensor,
    q_blocks: Tensor,
    k_blocks: Tensor,
    q_starts: Tensor,
    k_starts: Tensor,
    heads: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The same with queries from one side and keys and values from the other."""
    k, v = kv.chunk(2, dim=1)
    return _forward(q, k, v, q_blocks, q_starts, k_starts, heads, scale, False)


@torch.library.custom_op("dragoman::cross_attention_backward", mutates_args=())
def cross_attention_backward(
    d_out: Tensor,
    q: Tensor,
    kv: Tensor,
    out: Tensor,
    lse: Tensor,
    q_blocks: Tensor,
    k_blocks: Tensor,
    q_starts: Tensor,
    k_starts: Tensor,
    heads: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    d_q, d_kv = torch.empty_like(q), torch.empty_like(kv)
    (k, v), (d_k, d_v) = kv.chunk(2, dim=1), d_kv.chunk(2, dim=1)
    _backward(d_out, q, k, v, out, lse, d_q, d_k, d_v, q_blocks, k_blocks, q_starts, k_starts, heads, scale, False)
    return d_q, d_kv


@cross_attention.register_fake
def _(q, kv, q_blocks, k_blocks, q_starts, k_starts, heads, scale):
    return torch.empty_like(q), q.new_empty((q.size(0), heads), dtype=torch.float32)


@cross_attention_backward.register_fake
def _(d_out, q, kv, *_):
    return torch.empty_like(q), torch.empty_like(kv)


def _save_cross(ctx, inputs, output):
    q, kv, q_blocks, k_blocks, q_starts, k_starts, *ctx.rest = inputs
    ctx.save_for_backward(q, kv, *output, q_blocks, k_blocks, q_starts, k_starts)


def _differentiate_cross(context, d_out, _):
    d_q, d_kv = cross_attention_backward(d_out, *context.saved_tensors, *context.rest)
    return d_q, d_kv, None, None, None, None, None, None


cross_attention.register_autograd(_differentiate_cross, setup_context=_save_cross)
