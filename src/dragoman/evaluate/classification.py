"""How good predicted labels are: accuracy, F1, confusion, calibration. Knows nothing of models or text.

Shapes: N texts, C labels, R resamples.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

RESAMPLES, SEED = 1_000, 12345  # as for the intervals of BLEU
BINS = 10  # of probabilities, for the calibration error

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Interval:
    """A score in per cent, and where 95 % of bootstrap resamples lie."""

    score: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        return {"score": self.score, "low": self.low, "high": self.high}

    def __str__(self) -> str:
        return f"{self.score:.1f} ({self.low:.1f} to {self.high:.1f})"


@dataclass(frozen=True)
class LabelScores:
    """Everything measured on one set of texts."""

    labels: list[str]
    accuracy: Interval
    macro_f1: Interval
    confusion_CC: Ints  # rows: the right label; columns: the predicted one
    log_loss: float  # nats per text
    calibration_error: float  # per cent: how far probabilities are from the share that is right, on average

    def per_label(self) -> dict[str, dict[str, float]]:
        """Precision, recall and F1 in per cent, and the number of texts with that label."""
        precision_C, recall_C, f1_C = _rates(self.confusion_CC[None].astype(float))
        counts = self.confusion_CC.sum(axis=1)
        return {
            label: {
                "precision": 100 * float(precision_C[0, index]),
                "recall": 100 * float(recall_C[0, index]),
                "f1": 100 * float(f1_C[0, index]),
                "texts": int(counts[index]),
            }
            for index, label in enumerate(self.labels)
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "accuracy": self.accuracy.to_dict(),
            "macro_f1": self.macro_f1.to_dict(),
            "log_loss": self.log_loss,
            "calibration_error": self.calibration_error,
            "labels": self.per_label(),
            "confusion": self.confusion_CC.tolist(),
            "sentences": int(self.confusion_CC.sum()),
        }


def score_labels(right_N: Ints, log_prob_NC: Floats, labels: list[str]) -> LabelScores:
    """Scores of the likeliest labels. Resampling texts is drawing cells of the confusion matrix."""
    predicted_N = log_prob_NC.argmax(axis=1)
    count, size = len(right_N), len(labels)
    confusion_CC = np.bincount(right_N * size + predicted_N, minlength=size * size).reshape(size, size)
    drawn_RCC = (
        np.random.default_rng(SEED)
        .multinomial(count, confusion_CC.ravel() / count, size=RESAMPLES)
        .reshape(-1, size, size)
    )
    return LabelScores(
        labels,
        _interval(_accuracy, confusion_CC, drawn_RCC),
        _interval(_macro_f1, confusion_CC, drawn_RCC),
        confusion_CC,
        float(-log_prob_NC[np.arange(count), right_N].mean()),
        _calibration_error(right_N == predicted_N, np.exp(log_prob_NC.max(axis=1))),
    )


def best_temperature(right_N: Ints, log_prob_NC: Floats) -> float:
    """What to divide logits by for the lowest loss on these texts: between 0.1 and 10, to a thousandth."""

    def loss(logarithm: float) -> float:
        scaled_NC = log_prob_NC / np.exp(logarithm)
        normal_N = np.logaddexp.reduce(scaled_NC, axis=1)
        return float((normal_N - scaled_NC[np.arange(len(right_N)), right_N]).mean())

    low, high = np.log(0.1), np.log(10.0)
    while high - low > 1e-3:  # the loss has one minimum
        third = (high - low) / 3
        if loss(low + third) < loss(high - third):
            high -= third
        else:
            low += third
    return float(np.exp((low + high) / 2))


def _interval(metric: Any, confusion_CC: Ints, drawn_RCC: Ints) -> Interval:
    used_C = (confusion_CC.sum(axis=0) + confusion_CC.sum(axis=1)) > 0
    score = metric(confusion_CC[None], used_C)[0]
    low, high = np.quantile(metric(drawn_RCC, used_C), (0.025, 0.975))
    return Interval(*(100 * float(value) for value in (score, low, high)))


def _accuracy(counts_RCC: Ints, _used_C: npt.NDArray[np.bool_]) -> Floats:
    right_R: Floats = np.trace(counts_RCC, axis1=1, axis2=2) / counts_RCC.sum(axis=(1, 2))
    return right_R


def _macro_f1(counts_RCC: Ints, used_C: npt.NDArray[np.bool_]) -> Floats:
    """The mean over the labels that occur, right or predicted."""
    mean_R: Floats = _rates(counts_RCC.astype(float))[2][:, used_C].mean(axis=1)
    return mean_R


def _rates(counts_RCC: Floats) -> tuple[Floats, Floats, Floats]:
    """Precision, recall and F1 of every label; 0 where there is nothing to divide by."""
    right_RC = np.diagonal(counts_RCC, axis1=1, axis2=2)
    predicted_RC, actual_RC = counts_RCC.sum(axis=1), counts_RCC.sum(axis=2)
    precision_RC, recall_RC, f1_RC = (
        np.divide(top, bottom, out=np.zeros_like(right_RC), where=bottom > 0)
        for top, bottom in (
            (right_RC, predicted_RC),
            (right_RC, actual_RC),
            (2 * right_RC, predicted_RC + actual_RC),
        )
    )
    return precision_RC, recall_RC, f1_RC


def _calibration_error(right_N: npt.NDArray[np.bool_], probability_N: Floats) -> float:
    """The expected calibration error, in bins of equal width."""
    bin_N = np.minimum((probability_N * BINS).astype(int), BINS - 1)
    gaps = [abs(float((right_N[bin_N == each] - probability_N[bin_N == each]).sum())) for each in range(BINS)]
    return 100 * sum(gaps) / len(right_N)
