"""chrF between many texts at once, equal to sacrebleu's sentence chrF with its defaults. Knows nothing of models.

Shapes: N texts, K occurrences of n-grams. An n-gram that occurs twice in a text is two occurrences, a first and a
second one, so two texts have as many n-grams in common as occurrences: a matrix product counts them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ORDER, BETA = 6, 2.0  # longest n-gram; recall counts BETA**2 times as much as precision


def chrf(hypothesis: str, reference: str) -> float:
    """chrF of one hypothesis, from 0 to 100."""
    return float(pairwise_chrf([hypothesis, reference])[0, 1])


def pairwise_chrf(texts: Sequence[str]) -> Array:
    """chrF of every text as a hypothesis (row) against every text as its reference (column): [N, N]."""
    count = len(texts)
    precision_NN, recall_NN, orders_NN = np.zeros((3, count, count))
    for common_NN, own_N in _common_ngrams(["".join(text.split()) for text in texts]):
        counted_NN = (own_N[:, np.newaxis] > 0) & (own_N > 0)  # both are long enough for an n-gram
        most_N = np.maximum(own_N, 1)
        precision_NN += common_NN / most_N[:, np.newaxis]
        recall_NN += common_NN / most_N
        orders_NN += counted_NN
    orders_NN = np.maximum(orders_NN, 1)
    precision_NN, recall_NN = precision_NN / orders_NN, recall_NN / orders_NN
    weighted_NN = BETA**2 * precision_NN + recall_NN
    score_NN = (1 + BETA**2) * precision_NN * recall_NN / np.where(weighted_NN > 0, weighted_NN, 1.0)
    return 100.0 * score_NN


def _common_ngrams(texts: Sequence[str]) -> "list[tuple[Array, Array]]":
    """For n-grams of each length: how many each pair of texts has in common, [N, N], and how many each has, [N]."""
    characters = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)
    length_N = np.array([len(text) for text in texts])
    row, left = np.repeat(np.arange(len(texts)), length_N), _left_in_row(length_N)
    _, letter = np.unique(characters, return_inverse=True)
    gram, alphabet = letter, letter.max(initial=0) + 1
    found = []
    for size in range(1, ORDER + 1):
        if size > 1:  # from n-grams that are one shorter, and the letter that follows them
            _, gram = np.unique(gram[:-1] * alphabet + letter[size - 1 :], return_inverse=True)
        whole = left[: len(gram)] >= size
        found.append(_in_common(row[: len(gram)][whole], gram[whole], len(texts)))
    return found


def _left_in_row(length_N: Array) -> Array:
    """How many characters of its text each one has from itself on."""
    ends = np.repeat(np.cumsum(length_N), length_N)
    return ends - np.arange(len(ends))


def _in_common(row: Array, gram: Array, count: int) -> tuple[Array, Array]:
    order = np.lexsort((gram, row))
    row, gram = row[order], gram[order]
    new = np.ones(len(row), bool)
    new[1:] = (row[1:] != row[:-1]) | (gram[1:] != gram[:-1])
    starts = np.flatnonzero(new)
    repeat = np.arange(len(row)) - starts[np.cumsum(new) - 1]  # 0 for the first occurrence in a text, and so on
    _, occurrence = np.unique(gram * (repeat.max(initial=0) + 1) + repeat, return_inverse=True)
    has_NK = np.zeros((count, occurrence.max(initial=-1) + 1), np.float32)
    has_NK[row, occurrence] = 1.0
    return (has_NK @ has_NK.T).astype(np.float64), np.bincount(row, minlength=count)
