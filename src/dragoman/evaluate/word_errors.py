"""The word error rate of transcripts. Knows nothing of models or files."""

from collections.abc import Sequence

import numpy as np

from dragoman.evaluate.classification import RESAMPLES, SEED, Interval


def word_errors(said: str, right: str) -> int:
    """How many words must be inserted, deleted or replaced: the edit distance in words."""
    mine, theirs = said.split(), right.split()
    before = list(range(len(theirs) + 1))
    for row, word in enumerate(mine, start=1):
        current = [row]
        for column, other in enumerate(theirs, start=1):
            current.append(min(before[column] + 1, current[-1] + 1, before[column - 1] + (word != other)))
        before = current
    return before[-1]


def word_error_rate(said: Sequence[str], right: Sequence[str], resamples: int = RESAMPLES) -> Interval:
    """Errors per hundred words of the references, with the interval of resampled lines; over 100 is possible."""
    errors = np.array([word_errors(mine, theirs) for mine, theirs in zip(said, right, strict=True)])
    words = np.array([len(theirs.split()) for theirs in right])
    rate = 100 * errors.sum() / max(1, words.sum())
    if not resamples or not len(errors):
        return Interval(float(rate), float(rate), float(rate))
    rows = np.random.default_rng(SEED).integers(len(errors), size=(resamples, len(errors)))
    drawn = 100 * errors[rows].sum(axis=1) / np.maximum(1, words[rows].sum(axis=1))
    low, high = np.percentile(drawn, (2.5, 97.5))
    return Interval(float(rate), float(low), float(high))
