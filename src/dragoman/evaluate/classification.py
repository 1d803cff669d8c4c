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
        precision_C, recall_C, f1_C = _rates(self.confusion_CC)
        counts = self.confusion_CC.sum(axis=1)
        return {
            label: {
                "precision": 100 * float(precision_C[index]),
                "recall": 100 * float(recall_C[index]),
                "f1": 100 * float(f1_C[index]),
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


def score_labels(right_N: Ints, log_prob_NC: Floats, labels: list[str], resamples: int = RESAMPLES) -> LabelScores:
    """Scores of the likeliest labels. Without `resamples`, intervals are the score itself."""
    predicted_N = log_prob_NC.argmax(axis=1)
    count, size = len(right_N), len(labels)
    counts_CC = np.bincount(right_N * size + predicted_N, minlength=size * size).reshape(size, size)
    found = _accuracy_and_f1(counts_CC)
    # to resample texts is to draw cells of the confusion matrix; most may be empty
    cells = counts_CC.nonzero()
    random, drawn = np.random.default_rng(SEED), [found]
    for _ in range(resamples):
        drawn_CC = np.zeros_like(counts_CC)
        drawn_CC[cells] = random.multinomial(count, counts_CC[cells] / count)
        drawn.append(_accuracy_and_f1(drawn_CC))
    lows, highs = np.quantile(drawn[1:] or drawn, (0.025, 0.975), axis=0)
    accuracy, macro_f1 = (
        Interval(*(100 * float(value) for value in each)) for each in zip(found, lows, highs, strict=True)
    )
    return LabelScores(
        labels,
        accuracy,
        macro_f1,
        counts_CC,
        float(abs(log_prob_NC[np.arange(count), right_N].mean())),
        _calibration_error(right_N == predicted_N, np.exp(log_prob_NC.max(axis=1))),
    )


def best_temperature(right_N: Ints, log_prob_NC: Floats) -> float:
    """What to divide logits by for the lowest loss on these texts: between 0.1 and 10, to a thousandth.

    One more text with a label at random is assumed: without it, texts that are all right would ask for certainty.
    """
    surprise = 1.0 / (len(right_N) + 1)

    def loss(logarithm: float) -> float:
        scaled_NC = log_prob_NC / np.exp(logarithm)
        lost_NC = np.logaddexp.reduce(scaled_NC, axis=1)[:, None] - scaled_NC
        right = lost_NC[np.arange(len(right_N)), right_N].mean()
        return float((1 - surprise) * right + surprise * lost_NC.mean())

    low, high = np.log(0.1), np.log(10.0)
    while high - low > 1e-3:  # the loss has one minimum
        third = (high - low) / 3
        if loss(low + third) < loss(high - third):
            high -= third
        else:
            low += third
    return float(np.exp((low + high) / 2))


def _accuracy_and_f1(counts_CC: Ints) -> tuple[float, float]:
    """Accuracy, and the mean F1 of the labels that occur, right or predicted."""
    used_C = (counts_CC.sum(axis=0) + counts_CC.sum(axis=1)) > 0
    return float(np.trace(counts_CC) / counts_CC.sum()), float(_rates(counts_CC)[2][used_C].mean())


def _rates(counts_CC: Ints) -> tuple[Floats, Floats, Floats]:
    """Precision, recall and F1 of every label; 0 where there is nothing to divide by."""
    right_C, predicted_C, actual_C = np.diagonal(counts_CC), counts_CC.sum(axis=0), counts_CC.sum(axis=1)
    precision_C, recall_C, f1_C = (
        np.divide(top, bottom, out=np.zeros(len(right_C)), where=bottom > 0)
        for top, bottom in ((right_C, predicted_C), (right_C, actual_C), (2 * right_C, predicted_C + actual_C))
    )
    return precision_C, recall_C, f1_C


def _calibration_error(right_N: npt.NDArray[np.bool_], probability_N: Floats) -> float:
    """The expected calibration error, in bins of equal width."""
    bin_N = np.minimum((probability_N * BINS).astype(int), BINS - 1)
    gaps = [abs(float((right_N[bin_N == each] - probability_N[bin_N == each]).sum())) for each in range(BINS)]
    return 100 * sum(gaps) / len(right_N)
