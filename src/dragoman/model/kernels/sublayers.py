"""Residual and norm around a sub-layer, and the inner half of the feed-forward network. Knows nothing of attention."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# The residual and norm of post-norm: LayerNorm(x + Dropout(out)), in one pass forward and one backward.

ROWS, FORWARD_WARPS, BACKWARD_WARPS = 4, 4, 2  # ROWS: tokens a program takes at once
NORM_PROGRAMS = 1056  # in the backward pass, each with its own sum of the weights' gradients


@triton.jit
def _kept(seed, places, dropout):
    """Which elements are kept: a hash of (seed, place) instead of a counter-based generator, which would take longer
    than the rest of the layer norm."""
    x = places.to(tl.uint32) * 0x9E3779B9
    # the seed is added after one round: added to the product, it would only shift the same sequence
    x = (x ^ (x >> 16)) * 0x7FEB352D + seed.to(tl.uint32)
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = x ^ (x >> 16)
    return (x >> 8).to(tl.float32) * (1.0 / 16777216.0) >= dropout


@triton.jit(do_not_specialize=["number"])
def _norm_forward(x, out, weight, bias, seeds, number, y, z, means, scales, tokens, dropout, epsilon,
                  width: tl.constexpr, size: tl.constexpr, rows: tl.constexpr):  # fmt: skip
    tokens_R = tl.program_id(0) * rows + tl.arange(0, rows)
    columns = tl.arange(0, size)
    inside = columns < width
    there = (tokens_R < tokens)[:, None] & inside[None, :]
    places = tokens_R[:, None] * width + columns[None, :]
    z_tile = tl.load(out + places, mask=there, other=0.0).to(tl.float32)
    if dropout > 0.0:
        z_tile = tl.where(_kept(tl.load(seeds + number), places, dropout), z_tile / (1.0 - dropout), 0.0)
    z_tile += tl.load(x + places, mask=there, other=0.0).to(tl.float32)
    mean = tl.sum(z_tile, axis=1) / width
    centred = tl.where(there, z_tile - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / width + epsilon)
    w_tile = tl.load(weight + columns, mask=inside, other=0.0)[None, :]
    b_tile = tl.load(bias + columns, mask=inside, other=0.0)[None, :]
    tl.store(y + places, (centred * scale[:, None] * w_tile + b_tile).to(y.dtype.element_ty), mask=there)
    tl.store(z + places, z_tile.to(z.dtype.element_ty), mask=there)
    tl.store(means + tokens_R, mean, mask=tokens_R < tokens)
    tl.store(scales + tokens_R, scale, mask=tokens_R < tokens)


@triton.jit(do_not_specialize=["number"])
def _norm_backward(d_y, z, means, scales, weight, seeds, number, d_x, d_out, d_weights, d_biases, tokens, dropout,
                   width: tl.constexpr, size: tl.constexpr, rows: tl.constexpr):  # fmt: skip
    columns = tl.arange(0, size)
    inside = columns < width
    w_tile = tl.load(weight + columns, mask=inside, other=0.0)[None, :]
    w_sum = tl.zeros([size], tl.float32)
    b_sum = tl.zeros([size], tl.float32)
    for first in range(tl.program_id(0) * rows, tokens, tl.num_programs(0) * rows):
        tokens_R = first + tl.arange(0, rows)
        real = tokens_R < tokens
        there = real[:, None] & inside[None, :]
        places = tokens_R[:, None] * width + columns[None, :]
        z_tile = tl.load(z + places, mask=there, other=0.0).to(tl.float32)
        d_tile = tl.load(d_y + places, mask=there, other=0.0).to(tl.float32)
        scale = tl.load(scales + tokens_R, mask=real, other=0.0)[:, None]
        mean = tl.load(means + tokens_R, mask=real, other=0.0)[:, None]
        normal = tl.where(there, (z_tile - mean) * scale, 0.0)
        w_sum += tl.sum(d_tile * normal, axis=0)
        b_sum += tl.sum(d_tile, axis=0)
        d_tile = d_tile * w_tile
        along = tl.sum(d_tile * normal, axis=1)[:, None] / width
        d_tile = (d_tile - tl.sum(d_tile, axis=1)[:, None] / width - normal * along) * scale
        tl.store(d_x + places, d_tile.to(d_x.dtype.element_ty), mask=there)
        if dropout > 0.0:
            d_tile = tl.where(_kept(tl.load(seeds + number), places, dropout), d_tile / (1.0 - dropout), 0.0)
            tl.store(d_out + places, d_tile.to(d_out.dtype.element_ty), mask=there)
    tl.store(d_weights + tl.program_id(0) * width + columns, w_sum, mask=inside)
    tl.store(d_biases + tl.program_id(0) * width + columns, b_sum, mask=inside)


def residual_norm_forward(
    x: Tensor,
    out: Tensor,
    weight: Tensor,
    bias: Tensor,
    seeds: Tensor,
    number: int,
    dropout: float,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LayerNorm(x + Dropout(out)), the sum itself, its means and scales. The mask is determined by seeds[number]."""
    tokens, width = x.shape
    y, z = torch.empty_like(x), torch.empty_like(x)
    means, scales = (x.new_empty(tokens, dtype=torch.float32) for _ in range(2))
    _norm_forward[(triton.cdiv(tokens, ROWS),)](
        x, out.contiguous(), weight, bias, seeds, number, y, z, means, scales, tokens, dropout, epsilon, width,
        triton.next_power_of_2(width), ROWS, num_warps=FORWARD_WARPS,
    )  # fmt: skip
    return y, z, means, scales


residual_norm = torch.library.custom_op("dragoman::residual_norm", residual_norm_forward, mutates_args=())


@torch.library.custom_op("dragoman::residual_norm_backward", mutates_args=())
def residual_norm_backward(
    d_y: Tensor,
    z: Tensor,
    means: Tensor,
    scales: Tensor,
    weight: Tensor,
    seeds: Tensor,
    number: int,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    tokens, width = z.shape
    d_x = torch.empty_like(z)
    d_out = torch.empty_like(z)
    sums = z.new_empty((2, NORM_PROGRAMS, width), dtype=torch.float32)
    _norm_backward[(NORM_PROGRAMS,)](
        d_y.contiguous(), z, means, scales, weight, seeds, number, d_x, d_out, sums[0], sums[1], tokens, dropout, width,
        triton.next_power_of_2(width), ROWS, num_warps=BACKWARD_WARPS,
    )  # fmt: skip
    return d_x, d_out if dropout > 0 else d_x.clone(), sums


@residual_norm.register_fake
def _(x, out, weight, bias, seeds, number, dropout, epsilon):
    row = x.new_empty(x.size(0), dtype=torch.float32)
    return torch.empty_like(x), torch.empty_like(x), row, torch.empty_like(row)


@residual_norm_backward.register_fake
def _(d_y, z, means, scales, weight, seeds, number, dropout):
    sums = z.new_empty((2, NORM_PROGRAMS, z.size(1)), dtype=torch.float32)
    return torch.empty_like(z), torch.empty_like(z), sums


def _save_norm(ctx, inputs, output):
    _, _, weight, _, seeds, ctx.number, ctx.dropout, _ = inputs
    ctx.save_for_backward(*output[1:], weight, seeds)


def _differentiate_norm(ctx, d_y, *_):
    d_x, d_out, sums = residual_norm_backward(d_y, *ctx.saved_tensors, ctx.number, ctx.dropout)
    d_weight, d_bias = sums.sum(dim=1)
    return d_x, d_out, d_weight, d_bias, None, None, None, None


residual_norm.register_autograd(_differentiate_norm, setup_context=_save_norm)


# The inner half of the feed-forward network: the product, its bias and the ReLU in one cuBLAS kernel.


def linear_relu_forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """max(0, x W^T + b)."""
    return torch._addmm_activation(bias, x, weight.t())


linear_relu = torch.library.custom_op("dragoman::linear_relu", linear_relu_forward, mutates_args=())


@linear_relu.register_fake
def _(x, weight, bias):
    return x.new_empty(x.size(0), weight.size(0))


def _save_linear(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2], output)


def _differentiate_linear(ctx, d_y):
    x, weight, y = ctx.saved_tensors
    d_sum = d_y * (y > 0)
    return d_sum @ weight, d_sum.t() @ x, d_sum.sum(dim=0)


linear_relu.register_autograd(_differentiate_linear, setup_context=_save_linear)
