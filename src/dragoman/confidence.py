"""How likely a translation needs no review, and the file that says how to tell. Knows nothing of models or directories.

A logistic regression over a few numbers that every search returns. Files are untrusted.
"""

import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dragoman.errors import ModelError

RECALIBRATE = "make it again with `dragoman calibrate`"
MAX_BYTES = 100_000
UNLIKELY = math.log(0.25)  # a token below this is one the model was not sure of
_SPELLED = re.compile(r"<0x[0-9A-F]{2}>|<unk>|[^\W\d_]")  # a byte, an unknown piece, a letter within a word

FEATURES = (
    "mean_log_prob",  # of a token
    "lowest_log_prob",  # of any token
    "unlikely_tokens",  # share of tokens below UNLIKELY
    "normalized_score",  # by the GNMT length penalty with alpha 0.6
    "source_length",  # logarithm of the number of tokens
    "length_ratio",  # logarithm of target tokens per source token
    "length_difference",  # how far that is from 0
    "spelled_source",  # share of source tokens that are bytes or single letters within a word: unknown words
    "repetition",  # share of pairs of adjacent tokens that occurred before
)


def features(source_tokens: Sequence[str], tokens: Sequence[str], token_scores: Sequence[float]) -> list[float]:
    """The numbers of one translation, in the order of FEATURES."""
    count, sources = max(1, len(token_scores)), max(1, len(source_tokens))
    ratio = math.log(max(1, len(tokens)) / sources)
    pairs = list(itertools.pairwise(tokens))
    return [
        sum(token_scores) / count,
        min(token_scores, default=0.0),
        sum(score < UNLIKELY for score in token_scores) / count,
        sum(token_scores) / ((5 + count) / 6) ** 0.6,
        math.log(sources),
        ratio,
        abs(ratio),
        sum(_SPELLED.fullmatch(token) is not None for token in source_tokens) / sources,
        1 - len(set(pairs)) / len(pairs) if pairs else 0.0,
    ]


@dataclass(frozen=True)
class Calibration:
    """A logistic regression: weights of the features, and how it was fitted."""

    bias: float
    weights: tuple[float, ...]  # of FEATURES
    good_chrf: float  # a translation with at least this chrF counted as good
    lines: int  # that it was fitted on

    def confidence(self, values: Sequence[float]) -> float:
        """The probability that a translation with these features is good."""
        logit = self.bias + sum(weight * value for weight, value in zip(self.weights, values, strict=True))
        return 1.0 / (1.0 + math.exp(-logit)) if logit > -700 else 0.0

    def to_bytes(self) -> bytes:
        record = asdict(self) | {"weights": dict(zip(FEATURES, self.weights, strict=True))}
        return (json.dumps(record, indent=1) + "\n").encode()


def read_calibration(content: bytes, path: Path) -> Calibration:
    """The calibration in a file; `path` is only used in errors."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        raise ModelError(f"{path}: not valid JSON; {RECALIBRATE}") from None
    fields = list(Calibration.__dataclass_fields__)
    if not isinstance(record, dict) or record.keys() != set(fields):
        raise ModelError(f"{path}: expected an object with {', '.join(fields)}; {RECALIBRATE}")
    weights = record["weights"]
    if not isinstance(weights, dict) or list(weights) != list(FEATURES):
        raise ModelError(f"{path}: its weights are not those of {', '.join(FEATURES)}; {RECALIBRATE}")
    for name, value in {**record, **weights}.items():
        if name != "weights" and not _is_finite(value):
            raise ModelError(f"{path}: {name} is {str(value)[:40]!r}, not a number; {RECALIBRATE}")
    return Calibration(
        float(record["bias"]), tuple(map(float, weights.values())), float(record["good_chrf"]), int(record["lines"])
    )


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9
