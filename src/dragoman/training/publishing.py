"""Publish the best weights so far into the model directory. Knows nothing of steps."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman import bundle, files, tensors
from dragoman.errors import ModelError
from dragoman.tasks.choice import task_of
from dragoman.tasks.task import PreparedData
from dragoman.training.checkpoint import AVERAGE, Progress
from dragoman.training.checkpoint_files import read_checkpoint
from dragoman.training.reports.card import model_card
from dragoman.training.reports.log import Reporter, json_values
from dragoman.training.reports.results import PUBLISHED, read_published

Metric = Callable[[Mapping[str, Any]], float]


class Publisher:
    """Writes weights into the model directory of a run.

    `metric` gives the score of a record, and `judge` identifies it: scores of different judges are not comparable.
    """

    def __init__(self, prepared: PreparedData, run: Path, judge: str, metric: Metric) -> None:
        self._prepared, self._run, self._judge, self._metric = prepared, run, judge, metric

    def publish_if_better(self, record: Mapping[str, Any], weights: Mapping[str, Tensor], progress: Progress) -> bool:
        """Publish these weights unless the current ones scored at least as high by the same metric. Returns whether."""
        metric, published = self._metric(record), read_published(self._run)
        if published and published["judge"] == self._judge and published["metric"] >= metric:
            return False
        self.publish(weights, progress, record)
        self.record_score(record)
        return True

    def record_score(self, record: Mapping[str, Any]) -> None:
        """Record in DIR/published.json what the published weights scored."""
        metric = self._metric(record)
        score = {
            "judge": self._judge,
            "metric": metric,
            "kind": record["kind"],
            "step": record["step"],
        }
        files.write_file(self._run / PUBLISHED, json.dumps(json_values(score), indent=1, allow_nan=False).encode())

    def publish(
        self, weights: Mapping[str, Tensor], progress: Progress, scores: Mapping[str, Any] | None = None
    ) -> None:
        """Publish these weights, whatever their score."""
        card = model_card(self._prepared, progress, scores or {})
        finished = task_of(self._prepared.config).finish(weights, scores or {})
        bundle.save_bundle(self._run, self._prepared.config, self._prepared.tokenizers, finished, card)


def average_checkpoints(paths: list[Path], reporter: Reporter) -> tuple[dict[str, Tensor], int]:
    """The mean of the checkpoints' weights, and their number; damaged ones are reported and left out."""
    mean: dict[str, Tensor] = {}
    count = 0
    for path in paths:
        try:
            files = read_checkpoint(path)
            weights = tensors.weights_from_bytes(files.get(AVERAGE, files[bundle.WEIGHTS]), path)
        except ModelError as error:
            reporter.note(f"{error}; left out of the average")
            continue
        count += 1
        for name, tensor in weights.items():
            mean[name] = mean[name] + tensor.double() if name in mean else tensor.double()
    return {name: (tensor / count).float() for name, tensor in mean.items()}, count
