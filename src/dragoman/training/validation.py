"""Validate a model: what its task measures on held-out data. Knows nothing of optimizers."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from dragoman.bundle import Bundle
from dragoman.config import LOWER_IS_BETTER
from dragoman.model.build import Model
from dragoman.tasks.choice import task_of
from dragoman.tasks.task import PreparedData

TIE = 1e-6  # few texts give equal scores: the lower loss is better then


class Validation:
    """Measures a model in training, always on the same data."""

    def __init__(self, prepared: PreparedData, device: torch.device, precision: torch.dtype) -> None:
        self.prepared, self.device, self.precision = prepared, device, precision
        self.settings = prepared.config.train
        self.task = task_of(prepared.config)

    @property
    def judge(self) -> str:
        """Identifies the metric and its data: scores of different judges are not comparable."""
        return self.task.judge(self.prepared)

    def measure(self, model: Model) -> dict[str, Any]:
        model.eval()
        bundle = Bundle(self.prepared.config, self.prepared.tokenizers, model)
        return self.task.measure(bundle, self.prepared, self.device, self.precision)

    def metric(self, record: Mapping[str, Any]) -> float:
        """The score to maximise."""
        value = float(record[self.settings.valid_metric])
        if not math.isfinite(value):
            return -math.inf
        if self.settings.valid_metric in ("accuracy", "macro_f1"):
            return value - TIE * float(record["loss"])
        return -value if self.settings.valid_metric in LOWER_IS_BETTER else value
