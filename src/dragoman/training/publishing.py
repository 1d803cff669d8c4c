"""Publish the best weights so far into the model directory. Knows nothing of steps."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman import bundle, files
from dragoman.errors import ModelError
from dragoman.training.checkpoint import AVERAGE, Progress
from dragoman.training.checkpoint_files import read_checkpoint
from dragoman.training.data import PreparedData
from dragoman.training.reports.card import model_card
from dragoman.training.reports.log import Reporter, json_values
from dragoman.training.validation import Validation

PUBLISHED = "published.json"  # the score of the directory's weights
NOT_FINITE = -1e300  # how earlier versions wrote a metric that is not finite


class Publisher:
    """Writes weights into the model directory of a run."""

    def __init__(self, prepared: PreparedData, run: Path, validation: Validation) -> None:
        self._prepared, self._run, self._validation = prepared, run, validation

    def publish_if_better(self, record: Mapping[str, Any], weights: Mapping[str, Tensor], progress: Progress) -> bool:
        """Publish these weights unless the current ones scored at least as high by the same metric. Returns whether."""
        metric, published = self._validation.metric(record), read_published(self._run)
        judge = self._validation.judge
        if published and published["judge"] == judge and published["metric"] >= metric:
            return False
        self.publish(weights, progress, record)
        score = {
            "judge": judge,
            "metric": metric,
            "kind": record["kind"],
            "step": record["step"],
        }
        files.write_file(self._run / PUBLISHED, json.dumps(json_values(score), indent=1, allow_nan=False).encode())
        return True

    def publish(
        self, weights: Mapping[str, Tensor], progress: Progress, scores: Mapping[str, Any] | None = None
    ) -> None:
        """Publish these weights, whatever their score."""
        card = model_card(self._prepared, progress, scores or {})
        bundle.save_bundle(self._run, self._prepared.config, self._prepared.tokenizers, weights, card)


def read_published(run: Path) -> dict[str, Any] | None:
    """The content of DIR/published.json, with -inf for a metric that is not finite."""
    path = run / PUBLISHED
    if not path.exists():
        return None
    score = json.loads(path.read_bytes())
    metric = float(score["metric"])
    return {**score, "metric": metric if metric > NOT_FINITE else -math.inf}


def published_score(run: Path) -> tuple[str, float | None]:
    """The kind of the published weights, "valid" for one step or "average", and their score."""
    score = read_published(run)
    # a loss is stored as its negative, to be maximised
    return ("", None) if score is None else (score["kind"], abs(score["metric"]))


def average_checkpoints(paths: list[Path], reporter: Reporter) -> tuple[dict[str, Tensor], int]:
    """The mean of the checkpoints' weights, and their number; damaged ones are reported and left out."""
    mean: dict[str, Tensor] = {}
    count = 0
    for path in paths:
        try:
            files = read_checkpoint(path)
            weights = bundle.weights_from_bytes(files.get(AVERAGE, files[bundle.WEIGHTS]), path)
        except ModelError as error:
            reporter.note(f"{error}; left out of the average")
            continue
        count += 1
        for name, tensor in weights.items():
            mean[name] = mean[name] + tensor.double() if name in mean else tensor.double()
    return {name: (tensor / count).float() for name, tensor in mean.items()}, count
