"""The best next pieces of every hypothesis, from the whole vocabulary or a shortlist. Knows nothing of search.

Shapes: N rows, B sentences, V vocabulary, U pieces that some sentence allows, L those of every
sentence, one sentence after another, C candidates.
"""

from typing import Protocol

import numpy as np

from dragoman.decode.engines import loops
from dragoman.decode.engines.products import Matrix, Rows
from dragoman.int8 import Array


class Candidates(Protocol):
    matrix: Matrix

    def best(self, rows: Rows, count: int) -> tuple[Array, Array]:
        """The `count` best log-probabilities of each row and their ids: [N, C], as search expects them."""
        ...

    def logits(self, rows: Rows) -> Array:
        """The logits of all ids: [N, V]; what a shortlist leaves out is impossible."""
        ...

    def select(self, sentence_B: Array) -> None:
        """As in search's Decoding."""
        ...


class VocabularyCandidates:
    def __init__(self, output: Matrix) -> None:
        self.matrix = output

    def best(self, rows: Rows, count: int) -> tuple[Array, Array]:
        value_NC, id_NC = _space(len(rows.scale_N), min(count, self.matrix.size))
        loops.best(*self.matrix(rows), value_NC, id_NC)
        return value_NC, id_NC

    def logits(self, rows: Rows) -> Array:
        logit_NV = np.empty((len(rows.scale_N), self.matrix.size), np.float32)
        loops.restore(*self.matrix(rows), 0, logit_NV)
        return logit_NV

    def select(self, sentence_B: Array) -> None:
        pass


class ShortlistCandidates:
    """Multiplies the pieces that some sentence of the batch allows, and ranks those that a row's own sentence allows.

    So the result of a row does not depend on the other sentences of the batch. Packing the weights once for each batch
    is faster than multiplying weights that are not packed at every step.
    """

    def __init__(self, output: Matrix, allowed_BV: Array) -> None:
        id_U = np.flatnonzero(allowed_BV.any(axis=0))
        self.matrix, self._vocabulary = output.select(id_U), output.size
        _, self._id_L = np.nonzero(allowed_BV)
        self._column_L = np.searchsorted(id_U, self._id_L)
        self._length_B = allowed_BV.sum(axis=1)
        self._first_B = np.cumsum(self._length_B) - self._length_B

    def best(self, rows: Rows, count: int) -> tuple[Array, Array]:
        value_NC, id_NC = _space(len(rows.scale_N), min(count, self._vocabulary))
        product = self.matrix(rows)
        own = self._column_L, self._id_L, self._first_B, self._length_B
        loops.best_of_shortlist(*product, *own, value_NC, id_NC)
        return value_NC, id_NC

    def logits(self, rows: Rows) -> Array:
        logit_NU = np.empty((len(rows.scale_N), self.matrix.size), np.float32)
        loops.restore(*self.matrix(rows), 0, logit_NU)
        logit_NV = np.full((len(rows.scale_N), self._vocabulary), -np.inf, np.float32)
        each = len(logit_NU) // len(self._first_B)
        for sentence, (first, length) in enumerate(zip(self._first_B, self._length_B, strict=True)):
            own = slice(sentence * each, (sentence + 1) * each)
            entries = slice(first, first + length)
            logit_NV[own, self._id_L[entries]] = logit_NU[own, self._column_L[entries]]
        return logit_NV

    def select(self, sentence_B: Array) -> None:
        self._first_B, self._length_B = self._first_B[sentence_B], self._length_B[sentence_B]


def _space(rows: int, count: int) -> tuple[Array, Array]:
    return np.empty((rows, count), np.float32), np.empty((rows, count), np.int64)
