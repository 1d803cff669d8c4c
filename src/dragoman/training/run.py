"""The state of a run that its parts share: data, device, processes, model, progress. Does nothing by itself."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.config import Config, TrainConfig
from dragoman.model.build import Model
from dragoman.tasks.choice import task_of
from dragoman.tasks.task import PreparedData, Task
from dragoman.training.batches import BatchLoader
from dragoman.training.checkpoint import Learner, Progress, rng_state
from dragoman.training.distributed import Ranks, is_sharded
from dragoman.training.gradients import Layout
from dragoman.training.memory import predicted_peak
from dragoman.training.reports.log import NoLog, Reporter, RunLog
from dragoman.training.signals import Signals
from dragoman.training.validation import Validation


@dataclass(kw_only=True)
class Run:
    """A run in memory; the same on every rank, except for the batches, the log and the best score."""

    prepared: PreparedData
    directory: Path
    device: torch.device
    precision: torch.dtype
    reporter: Reporter
    ranks: Ranks
    signals: Signals
    model: Model
    learner: Learner
    layout: Layout
    batches: BatchLoader
    validation: Validation
    identity: dict[str, Any]  # what must not change on resume
    made_by: dict[str, Any]  # provenance
    progress: Progress
    log: RunLog | NoLog = field(default_factory=NoLog)
    finished: bool = False  # whether an earlier start completed the run at this step
    rng_state: dict[str, Tensor] = field(init=False)  # after the last complete step

    def __post_init__(self) -> None:
        self.remember_rng_state()

    @property
    def config(self) -> Config:
        return self.prepared.config

    @property
    def task(self) -> Task:
        return task_of(self.config)

    @property
    def settings(self) -> TrainConfig:
        return self.prepared.config.train

    def remember_rng_state(self) -> None:
        """Called after each step: one that a signal interrupts is undone by restoring this."""
        self.rng_state = rng_state(self.device)

    def is_due(self, step: int) -> bool:
        """Whether to validate and save after this step."""
        return step % self.settings.save_every == 0 or step == self.settings.max_steps

    def needs_validation(self) -> bool:
        """Whether a signal interrupted the validation of the current step."""
        return self.progress.validated < self.progress.step and self.is_due(self.progress.step)

    def predicted_peak(self) -> int:
        """Bytes."""
        shards = self.ranks.world if is_sharded(self.model) else 1
        layout = self.layout.name
        return predicted_peak(self.config, self.prepared.train, layout, self.device, self.precision, shards)
