"""Fits the confidence of translations, and measures how well it finds bad ones. Knows nothing of files.

Shapes: N lines, F features.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dragoman.confidence import FEATURES, Calibration, features
from dragoman.decode.chrf import Array, chrf
from dragoman.decode.translation import Translation
from dragoman.errors import DataError

BAD_SHARE = 0.25  # of the lines that a model is calibrated on, unless a chrF is given
FEWEST_LINES = 100
FOLDS = 5
RIDGE = 1.0  # strength of the penalty on weights of standardized features: a fit on few lines stays finite
NEWTON_STEPS = 50


class Examples(NamedTuple):
    """Translations with known quality."""

    value_NF: Array
    chrf_N: Array


class Reliability(NamedTuple):
    """How well confidence tells good lines from bad ones."""

    auc: float  # probability that a good line has a higher confidence than a bad one; 0.5 is chance
    error: float  # expected calibration error: mean distance of confidence and share of good lines, in ten bins
    bins: list[tuple[float, float, int]]  # mean confidence, share of good lines, lines


def examples(translations: Sequence[Translation], references: Sequence[str]) -> Examples:
    """What confidence is fitted on: translations with token scores, unless they or their reference are empty."""
    pairs = [
        (each, reference)
        for each, reference in zip(translations, references, strict=True)
        if each.token_scores and reference.strip()
    ]
    values = [features(each.source_tokens, each.tokens, each.token_scores) for each, _ in pairs]
    quality = [chrf(each.text, reference) for each, reference in pairs]
    return Examples(np.array(values).reshape(-1, len(FEATURES)), np.array(quality))


def fit(found: Examples, good_chrf: float | None = None) -> Calibration:
    """Learn to tell lines with at least this chrF from the others; by default the worst quarter is bad.

    What chrF a usable translation has depends on the languages and on how freely the references were translated, so
    the text that a model is calibrated on is its own scale.
    """
    if len(found.chrf_N) < FEWEST_LINES:
        raise DataError(f"{len(found.chrf_N)} lines to calibrate on; give at least {FEWEST_LINES}")
    return _fit(found, _least_of_good(found.chrf_N) if good_chrf is None else good_chrf)


def _fit(found: Examples, least: float) -> Calibration:
    good_N = found.chrf_N >= least
    if good_N.all() or not good_N.any():
        kind = "at least" if good_N.all() else "below"
        raise DataError(f"every line has a chrF {kind} {least:.1f}; give another --good-chrf")
    mean_F, scale_F = found.value_NF.mean(axis=0), found.value_NF.std(axis=0)
    scale_F[scale_F < 1e-9] = 1.0  # the same in every line: it gets no weight
    weight_F, bias = _logistic_regression((found.value_NF - mean_F) / scale_F, good_N)
    weight_F = weight_F / scale_F
    return Calibration(float(bias - weight_F @ mean_F), tuple(weight_F.tolist()), least, len(good_N))


def _least_of_good(chrf_N: Array) -> float:
    """The quantile; or, if the worst lines all have that chrF, the next one, so that they are bad."""
    quantile = float(np.quantile(chrf_N, BAD_SHARE))
    above_N = chrf_N[chrf_N > quantile]
    return quantile if (chrf_N < quantile).any() or not above_N.size else float(above_N.min())


def _logistic_regression(value_NF: Array, good_N: Array) -> tuple[Array, float]:
    """Weights and bias with the highest likelihood under a ridge penalty, by Newton's method."""
    value_NF = np.column_stack([value_NF, np.ones(len(value_NF))])
    ridge_F = np.full(value_NF.shape[1], RIDGE)
    ridge_F[-1] = 1e-6  # the bias is free
    weight_F = np.zeros(value_NF.shape[1])
    for _ in range(NEWTON_STEPS):
        probability_N = 1.0 / (1.0 + np.exp(-np.clip(value_NF @ weight_F, -50, 50)))
        gradient_F = value_NF.T @ (good_N - probability_N) - ridge_F * weight_F
        spread_N = probability_N * (1 - probability_N)
        step_F = np.linalg.solve((value_NF.T * spread_N) @ value_NF + np.diag(ridge_F), gradient_F)
        weight_F = weight_F + step_F
        if np.abs(step_F).max() < 1e-9:
            break
    return weight_F[:-1], float(weight_F[-1])


def confidences(calibration: Calibration, value_NF: Array) -> Array:
    return np.array([calibration.confidence(values) for values in value_NF.tolist()])


def cross_validated(found: Examples, good_chrf: float) -> Reliability:
    """Of lines that were left out of the fit, each in turn."""
    fold_N = np.random.default_rng(1).permutation(len(found.chrf_N)) % FOLDS
    confidence_N = np.zeros(len(fold_N))
    for fold in range(FOLDS):
        others = Examples(found.value_NF[fold_N != fold], found.chrf_N[fold_N != fold])
        confidence_N[fold_N == fold] = confidences(_fit(others, good_chrf), found.value_NF[fold_N == fold])
    return reliability(confidence_N, found.chrf_N >= good_chrf)


def reliability(confidence_N: Array, good_N: Array) -> Reliability:
    bin_N = np.minimum((confidence_N * 10).astype(int), 9)
    bins = [
        (float(confidence_N[bin_N == bin].mean()), float(good_N[bin_N == bin].mean()), int((bin_N == bin).sum()))
        for bin in np.unique(bin_N)
    ]
    error = sum(abs(mean - share) * count for mean, share, count in bins) / max(1, len(good_N))
    return Reliability(auc(confidence_N, good_N), error, bins)


def auc(value_N: Array, positive_N: Array) -> float:
    """The probability that a positive line has a higher value than a negative one; ties count half."""
    _, place_N, count = np.unique(value_N, return_inverse=True, return_counts=True)
    rank_N = (np.cumsum(count) - (count - 1) / 2)[place_N]  # the mean rank of equal values
    positives, negatives = int(positive_N.sum()), int((~positive_N).sum())
    if not positives or not negatives:
        return float("nan")
    return float((rank_N[positive_N].sum() - positives * (positives + 1) / 2) / (positives * negatives))
