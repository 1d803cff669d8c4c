"""Scaled dot-product attention and its derivative (section 3.2 of the paper). Knows nothing of projections or layers.

Shapes, as suffixes of names:
    B  sentences      H  heads      Q  query positions      K  key positions
    D  width of a head's queries and keys (d_k)      E  width of a head's values (d_v)      X  H * D or H * E
Masks broadcast to [B, H, Q, K]; True = may attend.
"""

import math

import numpy as np

from dragoman.reference.functions import (
    Array,
    Mask,
    Saved,
    dropout,
    dropout_backward,
    softmax,
    softmax_backward,
)


def scale(d_k: int) -> float:
    """1 / sqrt(d_k): the dot product of two random vectors of width d_k has d_k times the variance of their entries."""
    return 1.0 / math.sqrt(d_k)


def attend(
    q_BHQD: Array, k_BHKD: Array, v_BHKE: Array, allowed: Mask | None = None, dropout_mask: Array | None = None
) -> tuple[Array, Array, Saved]:
    """softmax(Q K^T / sqrt(d_k)) V, the softmax itself before dropout, and what the backward pass needs."""
    scores_BHQK = q_BHQD @ k_BHKD.swapaxes(-1, -2) * scale(q_BHQD.shape[-1])
    weights_BHQK, (p_BHQK,) = softmax(scores_BHQK, allowed)
    dropped_BHQK, (mask_BHQK,) = dropout(weights_BHQK, dropout_mask)
    return dropped_BHQK @ v_BHKE, weights_BHQK, (q_BHQD, k_BHKD, v_BHKE, p_BHQK, dropped_BHQK, mask_BHQK)


def attend_backward(d_heads_BHQE: Array, saved: Saved) -> tuple[Array, Array, Array]:
    """dV = A^T dO,   dA = dO V^T,   dS = the softmax's Jacobian on dA, over sqrt(d_k),   dQ = dS K,   dK = dS^T Q."""
    q_BHQD, k_BHKD, v_BHKE, p_BHQK, dropped_BHQK, mask_BHQK = saved
    d_v_BHKE = dropped_BHQK.swapaxes(-1, -2) @ d_heads_BHQE
    d_weights_BHQK = dropout_backward(d_heads_BHQE @ v_BHKE.swapaxes(-1, -2), (mask_BHQK,))
    d_scores_BHQK = softmax_backward(d_weights_BHQK, (p_BHQK,)) * scale(q_BHQD.shape[-1])
    return d_scores_BHQK @ k_BHKD, d_scores_BHQK.swapaxes(-1, -2) @ q_BHQD, d_v_BHKE


def split_heads(x_BQX: Array, num_heads: int) -> Array:
    """[B, Q, H * D] -> [B, H, Q, D]. A rearrangement: its derivative is `merge_heads`, and vice versa."""
    batch, length, width = x_BQX.shape
    return x_BQX.reshape(batch, length, num_heads, width // num_heads).swapaxes(1, 2)


def merge_heads(x_BHQD: Array) -> Array:
    """[B, H, Q, D] -> [B, Q, H * D]."""
    batch, num_heads, length, width = x_BHQD.shape
    return x_BHQD.swapaxes(1, 2).reshape(batch, length, num_heads * width)


def padding_mask(allowed_BK: Mask) -> Mask:
    """Real positions as a mask shared by all heads and queries."""
    return allowed_BK[:, None, None, :]


def look_ahead_mask(length: int) -> Mask:
    """Position i may attend to every j <= i."""
    return np.tri(length, dtype=np.bool_)
