"""The functions a Transformer is made of, each with its derivative. Knows nothing of parameter names or of layers.

Every function returns its output and `saved`, which its backward needs. Every backward takes the derivative of the loss
by that output and returns those by the inputs and parameters, in their order. `d_x` is d loss / d x, of the shape of x.

Shapes, as suffixes of names:
    N  any leading dimensions (sentences, positions, heads)
    I  width of an input      O  width of an output      K  keys, or whatever a softmax chooses among
    T  positions              M  width of a position (d_model)      V  vocabulary
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]  # True = may attend
Saved = tuple[NDArray[Any], ...]

EPSILON = 1e-5  # under the root of layer norm


def linear(x_NI: Array, weight_OI: Array, bias_O: Array | None) -> tuple[Array, Saved]:
    """y = x W^T + b, identically at each position."""
    y_NO = x_NI @ weight_OI.T
    return y_NO if bias_O is None else y_NO + bias_O, (x_NI, weight_OI)


def linear_backward(d_y_NO: Array, saved: Saved) -> tuple[Array, Array, Array]:
    """dx = dy W,   dW = dy^T x,   db = the sum of dy: all positions share W and b."""
    x_NI, weight_OI = saved
    rows_d_y, rows_x = d_y_NO.reshape(-1, d_y_NO.shape[-1]), x_NI.reshape(-1, x_NI.shape[-1])
    return d_y_NO @ weight_OI, rows_d_y.T @ rows_x, rows_d_y.sum(axis=0)


def softmax(scores_NK: Array, allowed: Mask | None = None) -> tuple[Array, Saved]:
    """p_i = exp(s_i) / sum_j exp(s_j) over the allowed j; zeros where nothing is allowed."""
    if allowed is not None:
        scores_NK = np.where(allowed, scores_NK, -np.inf)
    highest = scores_NK.max(axis=-1, keepdims=True)
    # Subtracting the highest score changes nothing and keeps exp from overflowing. -inf - -inf would be NaN.
    powers_NK = np.exp(scores_NK - np.where(np.isfinite(highest), highest, 0.0))
    total = powers_NK.sum(axis=-1, keepdims=True)
    p_NK = powers_NK / np.where(total > 0.0, total, 1.0)
    return p_NK, (p_NK,)


def softmax_backward(d_p_NK: Array, saved: Saved) -> Array:
    """The Jacobian diag(p) - p p^T, applied: ds = p * (dp - sum_j p_j dp_j). Zero where p is: a mask needs no rule."""
    (p_NK,) = saved
    return p_NK * (d_p_NK - (p_NK * d_p_NK).sum(axis=-1, keepdims=True))


def layer_norm(x_NM: Array, scale_M: Array, shift_M: Array) -> tuple[Array, Saved]:
    """y = scale * n + shift, with n = (x - mean) / sqrt(variance + epsilon), for each vector separately."""
    centred_NM = x_NM - x_NM.mean(axis=-1, keepdims=True)
    deviation_N1 = np.sqrt((centred_NM**2).mean(axis=-1, keepdims=True) + EPSILON)
    n_NM = centred_NM / deviation_N1
    return scale_M * n_NM + shift_M, (n_NM, deviation_N1, scale_M)


def layer_norm_backward(d_y_NM: Array, saved: Saved) -> tuple[Array, Array, Array]:
    """dx = (dn - mean(dn) - n * mean(dn * n)) / deviation: what would move the mean or the variance is removed."""
    n_NM, deviation_N1, scale_M = saved
    d_n_NM = d_y_NM * scale_M
    mean_N1 = d_n_NM.mean(axis=-1, keepdims=True)
    slope_N1 = (d_n_NM * n_NM).mean(axis=-1, keepdims=True)
    leading = tuple(range(d_y_NM.ndim - 1))
    d_scale_M, d_shift_M = (d_y_NM * n_NM).sum(axis=leading), d_y_NM.sum(axis=leading)
    return (d_n_NM - mean_N1 - n_NM * slope_N1) / deviation_N1, d_scale_M, d_shift_M


def dropout(x_N: Array, mask_N: Array | None) -> tuple[Array, Saved]:
    """y = mask * x. The mask is given: 0 where a value is dropped, 1 / (1 - rate) where it stays; None: no dropout."""
    mask_N = np.ones(()) if mask_N is None else mask_N
    return x_N * mask_N, (mask_N,)


def dropout_backward(d_y_N: Array, saved: Saved) -> Array:
    """dx = mask * dy."""
    (mask_N,) = saved
    return d_y_N * mask_N


def embedding(ids_N: Ids, table_VM: Array) -> tuple[Array, Saved]:
    """Row `id` of the table: the product of a one-hot row and the table, one_hot(ids) @ table, without the zeros."""
    return table_VM[ids_N], (ids_N, table_VM)


def embedding_backward(d_x_NM: Array, saved: Saved) -> Array:
    """dtable = one_hot(ids)^T dx: every occurrence of a token adds its gradient to that token's row."""
    ids_N, table_VM = saved
    d_table_VM = np.zeros_like(table_VM)
    np.add.at(d_table_VM, ids_N, d_x_NM)
    return d_table_VM


def sinusoids(length: int, d_model: int) -> Array:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of the same angle. A constant: no backward."""
    even_M = np.arange(d_model) // 2 * 2
    angles_TM = np.arange(length)[:, None] / 10_000.0 ** (even_M / d_model)
    return np.where(np.arange(d_model) % 2 == 0, np.sin(angles_TM), np.cos(angles_TM))


# The activations between the two halves of a feed-forward network. Each returns f(x) and its slope f'(x), elementwise,
# so the backward of all three is d_x = d_y * slope.


def relu(x_N: Array) -> tuple[Array, Array]:
    """max(0, x); its slope is 1 above 0 and, by convention, 0 at 0."""
    return np.maximum(x_N, 0.0), (x_N > 0.0).astype(np.float64)


def gelu(x_N: Array) -> tuple[Array, Array]:
    """x * Phi(x), with the normal distribution's Phi and density phi; slope Phi(x) + x * phi(x)."""
    distribution_N = 0.5 * (1.0 + np.vectorize(math.erf, otypes=[np.float64])(x_N / math.sqrt(2.0)))
    density_N = np.exp(-0.5 * x_N**2) / math.sqrt(2.0 * math.pi)
    return x_N * distribution_N, distribution_N + x_N * density_N


def swish(x_N: Array) -> tuple[Array, Array]:
    """x * sigmoid(x); slope sigmoid(x) * (1 + x * (1 - sigmoid(x)))."""
    sigmoid_N = 0.5 * (1.0 + np.tanh(0.5 * x_N))  # in this form exp cannot overflow
    return x_N * sigmoid_N, sigmoid_N * (1.0 + x_N * (1.0 - sigmoid_N))


ACTIVATIONS: dict[str, Callable[[Array], tuple[Array, Array]]] = {"relu": relu, "gelu": gelu, "swish": swish}
