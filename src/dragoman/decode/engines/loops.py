"""What the CPU engine does between matrix products, as loops compiled by Numba. Knows nothing of layers or search.

The result of a row depends on nothing but that row, so a sentence has the same bits in any batch. A product arrives as
`products.Matrix` returns it: values, the scale of every row and of every column, and a bias. Restoring its numbers is
the first thing a loop does with them; they are never stored in between. The last is to write what the next matrix
takes, as `products.Rows`: numbers and, for int8, their rounded form. So there is one loop between two products.

Numba's compiler turns a loop into vector instructions if it can prove that this changes nothing but rounding. Therefore
maxima are of integers (a maximum of floats depends on the order of NaNs), and every row or part of one has a name.

Shapes: N rows, I and O inputs and outputs of a matrix, H heads, D and E width of a head's keys and values, T entries
attended to, S source positions, B sentences, V vocabulary, K blocks of it, L pieces of a shortlist, C candidates.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numba import njit
from numba.core.caching import FunctionCache
from numpy import float32, int32

LOG2_E = float32(math.log2(math.e))
LEAST_EXPONENT = float32(-126.0)  # of a normal number
SIGN, MAGNITUDE = int32(31), int32(0x7FFFFFFF)  # of a float32's bits
MANTISSA, BIAS = int32(23), int32(127)
LEAST_INTEGER = int32(-(2**31))
BLOCK = 128  # logits whose largest is known
# Sums in any order and fused products, but infinities and NaNs as usual. Not `arcp`, reciprocals in place of quotients:
# a loop has a form with vectors and a plain one, for arrays that lie close together, and only one of them would use it.
FAST_MATH = {"reassoc", "contract", "nsz"}


class _Kept(FunctionCache):
    """Compiled loops on disk; a full disk is no reason not to translate."""

    def save_overload(self, signature, compiled):
        with suppress(OSError):
            super().save_overload(signature, compiled)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile when first called, keep the result on disk where that is possible, and run without the GIL.

    What a loop calls becomes part of it. Otherwise several loops would bring a copy of the same function, each
    optimised with its caller, and the linker would take the first one that it sees: the order of sums, and so the last
    digits, would depend on which loops a process compiled and which it read from disk.
    """
    helper = function.__name__.startswith("_")
    compiled: Any = njit(nogil=True, fastmath=FAST_MATH, error_model="numpy", forceinline=helper)(function)
    with suppress(RuntimeError):  # there is no place to keep it
        compiled._cache = _Kept(function)
    return compiled


# Numbers


@_compiled
def _exponential(x):
    """e^x for x <= 0, as exactly as x is known: 2^n from the bits of n, the rest by a polynomial."""
    y = max(x * LOG2_E, LEAST_EXPONENT)
    n = np.floor(y + float32(0.5))
    rest = y - n
    power = float32(1.3390863e-3)  # a polynomial through 2^rest at six Chebyshev points of [-1/2, 1/2]
    power = power * rest + float32(9.6760319e-3)
    power = power * rest + float32(5.5503571e-2)
    power = power * rest + float32(2.4022107e-1)
    power = power * rest + float32(6.9314719e-1)
    power = power * rest + float32(1.0)
    return power * int32(int32(int32(n) + BIAS) << MANTISSA).view(np.float32)


@_compiled
def _ordered(x):
    """An integer for every float32, in the same order."""
    bits = float32(x).view(np.int32)
    return int32(bits ^ int32(int32(bits >> SIGN) & MAGNITUDE))


@_compiled
def _from_ordered(bits):
    return int32(bits ^ int32(int32(bits >> SIGN) & MAGNITUDE)).view(np.float32)


# Rows


@_compiled
def _restore(value_O, scale, scale_O, bias_O, first, out_I):
    """Write the numbers of a row, from this column on."""
    value_I, scale_I, bias_I = value_O[first:], scale_O[first:], bias_O[first:]
    for i in range(len(out_I)):
        out_I[i] = float32(value_I[i]) * (scale * scale_I[i]) + bias_I[i]


@_compiled
def restore(value_NO, scale_N, scale_O, bias_O, first, out_NI):
    """Write a product's numbers, from this column on."""
    for n in range(len(out_NI)):
        _restore(value_NO[n], scale_N[n], scale_O, bias_O, first, out_NI[n])


@_compiled
def _quantize(x_I, levels, zero, out_I):
    """Round a row to integers: its largest magnitude becomes `zero` + or - `levels`. Return its scale."""
    largest = int32(0)
    for i in range(len(x_I)):
        largest = max(largest, int32(float32(x_I[i]).view(np.int32) & MAGNITUDE))
    peak = int32(largest).view(np.float32)
    factor = levels / peak if peak > 0 else float32(0.0)
    for i in range(len(x_I)):
        out_I[i] = np.uint8(int32(x_I[i] * factor + (zero + float32(0.5))))
    return peak / levels


@_compiled
def _finish(n, x_I, levels, zero, x8_NI, scale_N):
    """Round a row, if the next matrix takes it so."""
    if levels > 0:
        scale_N[n] = _quantize(x_I, levels, zero, x8_NI[n])


@_compiled
def _row(x_NI, n):
    """Where to write a row: there may be space for one alone."""
    return x_NI[min(n, len(x_NI) - 1)]


@_compiled
def copy(x_NI, out_NI, levels, zero, out8_NI, scale_N):
    for n in range(len(x_NI)):
        x_I, out_I = x_NI[n], _row(out_NI, n)
        for i in range(len(x_I)):
            out_I[i] = x_I[i]
        _finish(n, out_I, levels, zero, out8_NI, scale_N)


@_compiled
def normalize(x_NI, gain_I, bias_I, epsilon, out_NI, levels, zero, out8_NI, scale_N):
    """Layer norm."""
    for n in range(len(x_NI)):
        out_I = _row(out_NI, n)
        _normalize(x_NI[n], gain_I, bias_I, epsilon, out_I)
        _finish(n, out_I, levels, zero, out8_NI, scale_N)


@_compiled
def add_and_normalize(
    value_NO, row_scale_N, scale_O, bias_O, x_NO, gain_O, shift_O, epsilon, out_NO, levels, zero, out8_NO, scale_N
):
    """Add a product to the rows of x, and write their layer norm."""
    for n in range(len(x_NO)):
        value_O, scale, x_O, out_O = value_NO[n], row_scale_N[n], x_NO[n], _row(out_NO, n)
        for o in range(len(x_O)):
            x_O[o] += float32(value_O[o]) * (scale * scale_O[o]) + bias_O[o]
        _normalize(x_O, gain_O, shift_O, epsilon, out_O)
        _finish(n, out_O, levels, zero, out8_NO, scale_N)


@_compiled
def _normalize(x_I, gain_I, bias_I, epsilon, out_I):
    width = float32(len(x_I))
    total = float32(0.0)
    for i in range(len(x_I)):
        total += x_I[i]
    mean = total / width
    squares = float32(0.0)
    for i in range(len(x_I)):
        squares += (x_I[i] - mean) * (x_I[i] - mean)
    factor = float32(1.0) / np.sqrt(squares / width + epsilon)
    for i in range(len(x_I)):
        out_I[i] = (x_I[i] - mean) * factor * gain_I[i] + bias_I[i]


@_compiled
def relu(value_NO, row_scale_N, scale_O, bias_O, out_NO, levels, zero, out8_NO, scale_N):
    for n in range(len(value_NO)):
        out_O = _row(out_NO, n)
        _restore(value_NO[n], row_scale_N[n], scale_O, bias_O, 0, out_O)
        for o in range(len(out_O)):
            out_O[o] = max(out_O[o], float32(0.0))
        _finish(n, out_O, levels, zero, out8_NO, scale_N)


@_compiled
def gelu(value_NO, row_scale_N, scale_O, bias_O, out_NO, levels, zero, out8_NO, scale_N):
    for n in range(len(value_NO)):
        out_O = _row(out_NO, n)
        _restore(value_NO[n], row_scale_N[n], scale_O, bias_O, 0, out_O)
        for o in range(len(out_O)):
            out_O[o] *= float32(0.5) * (float32(1.0) + math.erf(out_O[o] * float32(math.sqrt(0.5))))
        _finish(n, out_O, levels, zero, out8_NO, scale_N)


@_compiled
def swish(value_NO, row_scale_N, scale_O, bias_O, out_NO, levels, zero, out8_NO, scale_N):
    for n in range(len(value_NO)):
        out_O = _row(out_NO, n)
        _restore(value_NO[n], row_scale_N[n], scale_O, bias_O, 0, out_O)
        for o in range(len(out_O)):
            small = _exponential(-abs(out_O[o]))
            larger = float32(1.0) if out_O[o] > 0 else small
            out_O[o] *= larger / (float32(1.0) + small)
        _finish(n, out_O, levels, zero, out8_NO, scale_N)


# Attention


@_compiled
def _softmax(x_T):
    largest = LEAST_INTEGER
    for t in range(len(x_T)):
        largest = max(largest, _ordered(x_T[t]))
    peak = _from_ordered(largest)
    total = float32(0.0)
    for t in range(len(x_T)):
        x_T[t] = _exponential(x_T[t] - peak)
        total += x_T[t]
    share = float32(1.0) / total
    for t in range(len(x_T)):
        x_T[t] *= share


@_compiled
def _weigh(q_HD, keys, entry_T, score_HT):
    """The attention weights of one query on these entries of the keys, which are [entries, H, D]."""
    heads, width = q_HD.shape
    factor = float32(1.0 / math.sqrt(width))
    for t in range(len(entry_T)):
        k_HD = keys[entry_T[t]]
        for h in range(heads):
            q_D, k_D = q_HD[h], k_HD[h]
            score = float32(0.0)
            for d in range(width):
                score += q_D[d] * k_D[d]
            score_HT[h, t] = score * factor
    for h in range(heads):
        _softmax(score_HT[h, : len(entry_T)])


@_compiled
def _attend(q_HD, keys, values, entry_T, score_HT, out_HE):
    """Attention of one query to these entries of the keys and values, which are [entries, H, E]."""
    _weigh(q_HD, keys, entry_T, score_HT)
    out_HE[:] = float32(0.0)
    for t in range(len(entry_T)):
        v_HE = values[entry_T[t]]
        for h in range(len(q_HD)):
            share, v_E, out_E = score_HT[h, t], v_HE[h], out_HE[h]
            for e in range(len(out_E)):
                out_E[e] += share * v_E[e]


@_compiled
def attend_to_past(
    value_NO, row_scale_N, scale_O, bias_O, keys, values, entry_NT, steps_N, out_NI, levels, zero, out8_NI, scale_N
):
    """Attention of every hypothesis to the entries of its own past: the last `steps_N` of its row.

    The product has queries, keys and values side by side. The last entry of a row is its own, and is written first.
    """
    rows, times = entry_NT.shape
    heads, width = keys.shape[1:]
    side = heads * width
    q_HD = np.empty((heads, width), np.float32)
    score_HT = np.empty((heads, times), np.float32)
    for n in range(rows):
        own, value_O, scale = entry_NT[n, times - 1], value_NO[n], row_scale_N[n]
        _restore(value_O, scale, scale_O, bias_O, 0, q_HD.reshape(-1))
        _restore(value_O, scale, scale_O, bias_O, side, keys[own].reshape(-1))
        _restore(value_O, scale, scale_O, bias_O, 2 * side, values[own].reshape(-1))
        out_I = _row(out_NI, n)
        _attend(q_HD, keys, values, entry_NT[n, times - steps_N[n] :], score_HT, out_I.reshape((heads, -1)))
        _finish(n, out_I, levels, zero, out8_NI, scale_N)


@_compiled
def attend_to_source(
    value_NO, row_scale_N, scale_O, bias_O, keys, values, first_N, length_N, out_NI, levels, zero, out8_NI, scale_N
):
    """Attention of every row to its sentence, whose entries follow each other from the first on."""
    heads, width = keys.shape[1:]
    q_HD = np.empty((heads, width), np.float32)
    score_HT = np.empty((heads, length_N.max()), np.float32)
    for n in range(len(value_NO)):
        _restore(value_NO[n], row_scale_N[n], scale_O, bias_O, 0, q_HD.reshape(-1))
        first = first_N[n]
        out_I = _row(out_NI, n)
        _attend(q_HD, keys, values, np.arange(first, first + length_N[n]), score_HT, out_I.reshape((heads, -1)))
        _finish(n, out_I, levels, zero, out8_NI, scale_N)


@_compiled
def weigh_source(value_NO, scale_N, scale_O, bias_O, keys, first_N, length_N, out_NHS):
    """The attention weights of `attend_to_source`; 0 beyond the end of a sentence."""
    q_HD = np.empty(keys.shape[1:], np.float32)
    out_NHS[:] = float32(0.0)
    for n in range(len(value_NO)):
        _restore(value_NO[n], scale_N[n], scale_O, bias_O, 0, q_HD.reshape(-1))
        _weigh(q_HD, keys, np.arange(first_N[n], first_N[n] + length_N[n]), out_NHS[n])


@_compiled
def attend_to_sentence(
    value_NO, row_scale_N, scale_O, bias_O, first_B, length_B, keys, values, out_NI, levels, zero, out8_NI, scale_N
):
    """Attention of every token to its own sentence. The product is as in `attend_to_past`.

    Keys and values are space for those of the longest sentence.
    """
    heads, width = keys.shape[1:]
    side = heads * width
    q_HD = np.empty((heads, width), np.float32)
    score_HT = np.empty((heads, len(keys)), np.float32)
    for b in range(len(first_B)):
        for t in range(length_B[b]):
            n = first_B[b] + t
            value_O, scale = value_NO[n], row_scale_N[n]
            _restore(value_O, scale, scale_O, bias_O, side, keys[t].reshape(-1))
            _restore(value_O, scale, scale_O, bias_O, 2 * side, values[t].reshape(-1))
        entry_T = np.arange(length_B[b])
        for t in range(length_B[b]):
            n = first_B[b] + t
            _restore(value_NO[n], row_scale_N[n], scale_O, bias_O, 0, q_HD.reshape(-1))
            out_I = _row(out_NI, n)
            _attend(q_HD, keys, values, entry_T, score_HT, out_I.reshape((heads, -1)))
            _finish(n, out_I, levels, zero, out8_NI, scale_N)


# Candidates


@_compiled
def _best(logit_V, peak_K, best_C, id_C):
    """Of one row; `peak_K` is space for the largest of every block."""
    size = len(logit_V)
    for k in range(len(peak_K)):
        block = logit_V[k * BLOCK : (k + 1) * BLOCK]
        largest = LEAST_INTEGER
        for v in range(len(block)):
            largest = max(largest, _ordered(block[v]))
        peak_K[k] = _from_ordered(largest)
    peak = peak_K.max()
    total = float32(0.0)
    for v in range(size):
        total += _exponential(logit_V[v] - peak)

    best_C[:] = -np.inf
    id_C[:] = 0
    last = len(best_C) - 1
    for k in range(len(peak_K)):
        if peak_K[k] > best_C[last]:
            for v in range(k * BLOCK, min((k + 1) * BLOCK, size)):
                if logit_V[v] > best_C[last]:
                    place = last
                    while place > 0 and best_C[place - 1] < logit_V[v]:
                        best_C[place], id_C[place] = best_C[place - 1], id_C[place - 1]
                        place -= 1
                    best_C[place], id_C[place] = logit_V[v], v
    norm = np.float64(peak) + np.log(np.float64(total))  # a float32 is rounded to the digits of the logits
    for c in range(len(best_C)):
        best_C[c] = float32(np.float64(best_C[c]) - norm)


@_compiled
def best(value_NV, scale_N, scale_V, bias_V, log_prob_NC, id_NC):
    """The largest log-probabilities of every row and their ids, best first, the lower id of ties first."""
    size = len(scale_V)
    logit_V = np.empty(size, np.float32)
    peak_K = np.empty((size + BLOCK - 1) // BLOCK, np.float32)
    for n in range(len(value_NV)):
        _restore(value_NV[n], scale_N[n], scale_V, bias_V, 0, logit_V)
        _best(logit_V, peak_K, log_prob_NC[n], id_NC[n])


@_compiled
def best_of_shortlist(value_NO, scale_N, scale_O, bias_O, column_L, id_L, first_B, length_B, log_prob_NC, id_NC):
    """The same among the columns of every sentence alone. They follow each other in `column_L`, their ids in `id_L`.

    Places beyond the number of columns get a log-probability of -inf.
    """
    each = len(value_NO) // len(first_B)
    for b in range(len(first_B)):
        first, size = first_B[b], length_B[b]
        own_L = column_L[first : first + size]
        own_id_L = id_L[first : first + size]
        scale_L, bias_L = scale_O[own_L], bias_O[own_L]
        value_L = np.empty(size, value_NO.dtype)
        logit_L = np.empty(size, np.float32)
        peak_K = np.empty((size + BLOCK - 1) // BLOCK, np.float32)
        for n in range(b * each, (b + 1) * each):
            value_O, id_C = value_NO[n], id_NC[n]
            for o in range(size):
                value_L[o] = value_O[own_L[o]]
            _restore(value_L, scale_N[n], scale_L, bias_L, 0, logit_L)
            _best(logit_L, peak_K, log_prob_NC[n], id_C)
            for c in range(len(id_C)):
                id_C[c] = own_id_L[id_C[c]]
