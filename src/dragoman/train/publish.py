"""Which weights a model directory holds: the best so far by the validation metric. Knows nothing of steps."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman import bundle
from dragoman.errors import ModelError
from dragoman.train.card import model_card
from dragoman.train.checkpoint import AVERAGE, Progress
from dragoman.train.prepare import Prepared
from dragoman.train.report import Reporter, json_values
from dragoman.train.validation import Validation

PUBLISHED = "published.json"  # what the directory's weights scored
NOT_FINITE = -1e300  # what earlier versions wrote for such a metric


class Publisher:
    """Writes weights into the directory of a run, if they are better than those it has."""

    def __init__(self, prepared: Prepared, run: Path, validation: Validation) -> None:
        self._prepared, self._run, self._validation = prepared, run, validation

    def if_better(self, record: Mapping[str, Any], weights: Mapping[str, Tensor], progress: Progress) -> bool:
        """Make these weights the model directory's, unless those it has scored as high by the same judge."""
        metric, published = self._validation.metric(record), read_published(self._run)
        judge = self._validation.judge
        if published and published["judge"] == judge and published["metric"] >= metric:
            return False
        self.write(weights, progress, record)
        told = {
            "judge": judge,
            "metric": metric,
            "kind": record["kind"],
            "step": record["step"],
        }
        bundle.write_file(self._run / PUBLISHED, json.dumps(json_values(told), indent=1, allow_nan=False).encode())
        return True

    def write(self, weights: Mapping[str, Tensor], progress: Progress, scores: Mapping[str, Any] | None = None) -> None:
        """Make these weights the directory's, whatever they score."""
        card = model_card(self._prepared, progress, scores or {})
        bundle.save_bundle(self._run, self._prepared.config, self._prepared.tokenizers, weights, card)


def read_published(run: Path) -> dict[str, Any] | None:
    """What DIR/published.json says, its metric as a number: -inf where it is not finite."""
    path = run / PUBLISHED
    if not path.exists():
        return None
    told = json.loads(path.read_bytes())
    metric = float(told["metric"])
    return {**told, "metric": metric if metric > NOT_FINITE else -math.inf}


def published(run: Path) -> tuple[str, float | None]:
    """Whether the directory's weights are of one step ("valid") or an "average", and what they scored."""
    told = read_published(run)
    # a loss is kept as its negative, to be maximised
    return ("", None) if told is None else (told["kind"], abs(told["metric"]))


def mean_weights(paths: list[Path], reporter: Reporter) -> tuple[dict[str, Tensor], int]:
    """The mean of the checkpoints' weights, and of how many; damaged ones are named and left out."""
    mean: dict[str, Tensor] = {}
    count = 0
    for path in paths:
        try:
            files = bundle.read_checkpoint(path)
            weights = bundle.weights_from_bytes(files.get(AVERAGE, files[bundle.WEIGHTS]), path)
        except ModelError as error:
            reporter.note(f"{error}; left out of the average")
            continue
        count += 1
        for name, tensor in weights.items():
            mean[name] = mean[name] + tensor.double() if name in mean else tensor.double()
    return {name: (tensor / count).float() for name, tensor in mean.items()}, count
