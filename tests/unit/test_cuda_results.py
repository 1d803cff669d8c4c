"""What the CUDA engine leaves as arrays, read as hypotheses. Runs without a GPU."""

import numpy as np

from dragoman.config import DecodeConfig
from dragoman.decode.engines.cuda import Found
from dragoman.decode.search import Hypothesis, length_penalty

OPTIONS = DecodeConfig(beam=2, n_best=2)


def normalized(score: float, length: int) -> float:
    return score / length_penalty(length, OPTIONS.length_penalty, OPTIONS.length_penalty_form)


def test_arrays_are_read_as_hypotheses() -> None:
    """An empty hypothesis, one that is not finished, and a missing one; what follows the ids is ignored."""
    found = Found(
        numbers=[2, 0, 1],
        lengths_QR=np.array([[2, 0], [3, -1], [1, 1]], dtype=np.int32),
        scores_QR=np.array([[-1.0, -2.0], [-3.0, -4.0], [-5.0, -6.0]]),
        finished_QR=np.array([[1, 1], [0, 0], [1, 0]], dtype=np.int32),
        ids_QRT=np.arange(18, dtype=np.int32).reshape(3, 2, 3),
    )
    assert list(found.hypotheses(OPTIONS)) == [
        (2, [Hypothesis((0, 1), -1.0, normalized(-1.0, 3), True), Hypothesis((), -2.0, normalized(-2.0, 1), True)]),
        (0, [Hypothesis((6, 7, 8), -3.0, normalized(-3.0, 3), False)]),
        (1, [Hypothesis((12,), -5.0, normalized(-5.0, 2), True), Hypothesis((15,), -6.0, normalized(-6.0, 1), False)]),
    ]


def test_sources_that_do_not_fit_in_memory_have_no_hypotheses() -> None:
    assert list(Found([1, 0], None).hypotheses(OPTIONS)) == [(1, None), (0, None)]
