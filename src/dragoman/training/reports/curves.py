"""The curves of a run as a picture, and its best validations. Knows nothing of pages."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dragoman import pictures
from dragoman.config import LOWER_IS_BETTER

MAX_POINTS = 1_000  # of a curve; more would not be seen
PANEL_WIDTH, PANEL_HEIGHT = 520, 340
METRICS = {
    "loss": "loss",
    "perplexity": "perplexity",
    "bleu": "BLEU",
    "chrf": "chrF",
    "exact_match": "exact match, per cent",
    "accuracy": "accuracy, per cent",
    "macro_f1": "macro F1, per cent",
    "word_error_rate": "word error rate, per cent",
    "mse": "mean squared error",
    "mae": "mean absolute error",
}
DRAWN = ("bleu", "chrf", "accuracy", "macro_f1", "word_error_rate", "mse", "mae")

Record = Mapping[str, Any]
Points = list[tuple[float, float]]


def best_of(records: Iterable[Record], metric: str) -> Record | None:
    """The first of the best: the highest, or the lowest of a loss."""
    scored = [record for record in records if is_number(record.get(metric))]
    if metric in (*LOWER_IS_BETTER, "perplexity"):
        return min(scored, key=lambda record: float(record[metric]), default=None)
    return max(scored, key=lambda record: float(record[metric]), default=None)


def curves(
    records: Sequence[Record], smoothing: float, predicted: str = "target tokens", *, speed: bool = False
) -> str:
    """Panels for what was measured, empty when nothing was; `predicted` is what training counts."""
    training = "training, with label smoothing" if smoothing else "training"
    norms = _points(records, "step", "gradient_norm")
    panels = (
        ("Loss", {training: _points(records, "step", "loss"), "validation": _points(records, "valid", "loss")}, False),
        ("Validation", {METRICS[name]: _points(records, "valid", name) for name in DRAWN}, False),
        ("Learning rate", {"learning rate": _points(records, "step", "learning_rate")}, False),
        ("Gradient norm", {"before clipping": norms}, all(norm > 0 for _, norm in norms)),
        ("Speed", {"training": _points(records, "step", "tokens_per_second") if speed else []}, False),
    )
    labels = {
        "Loss": "mean squared error" if predicted == "rows" else f"nats a {predicted.split()[-1].removesuffix('s')}",
        "Validation": "error" if predicted == "rows" else "score, of 100",
        "Learning rate": "rate",
        "Gradient norm": "norm",
    }
    labels |= {"Speed": f"{predicted} per second"}
    drawn = []
    for title, lines, logarithmic in panels:
        series = {name: line for name, line in lines.items() if line}
        if series:
            drawn.append(
                pictures.svg_plot(
                    series,
                    title=title,
                    x_label="step",
                    y_label=labels[title],
                    log_y=logarithmic,
                    width=PANEL_WIDTH,
                    height=PANEL_HEIGHT,
                )
            )
    return pictures.svg_panels(drawn, columns=2, width=PANEL_WIDTH, height=PANEL_HEIGHT) if drawn else ""


def _points(records: Iterable[Record], kind: str, name: str) -> Points:
    found = [
        (float(record["step"]), float(record[name]))
        for record in records
        if record["kind"] == kind and is_number(record.get(name))
    ]
    size = math.ceil(len(found) / MAX_POINTS)
    groups = [found[start : start + size] for start in range(0, len(found), size)] if found else []
    return [(group[-1][0], statistics.fmean(value for _, value in group)) for group in groups]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
