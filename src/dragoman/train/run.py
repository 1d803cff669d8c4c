"""What the parts of a run share: data, device, processes, what learns, where it stands. Does nothing by itself."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.config import Config, TrainConfig
from dragoman.model.build import Model
from dragoman.train.checkpoint import Learner, Progress, random_state
from dragoman.train.distributed import Ranks, is_sharded
from dragoman.train.feed import Feed
from dragoman.train.memory import predicted_peak
from dragoman.train.prepare import Prepared
from dragoman.train.report import NoLog, Reporter, RunLog
from dragoman.train.signals import Signals
from dragoman.train.validation import Validation


@dataclass(kw_only=True)
class Run:
    """One run in memory; on every rank the same but for the batches, the log and what was best so far."""

    prepared: Prepared
    directory: Path
    device: torch.device
    precision: torch.dtype
    reporter: Reporter
    ranks: Ranks
    signals: Signals
    model: Model
    learner: Learner
    feed: Feed
    validation: Validation
    identity: dict[str, Any]  # what a resumed run must agree on
    made_by: dict[str, Any]  # provenance
    progress: Progress
    log: RunLog | NoLog = field(default_factory=NoLog)
    ended: bool = False  # whether all was done, at this step, in an earlier start
    random: dict[str, Tensor] = field(init=False)  # the state of chance after the last whole step

    def __post_init__(self) -> None:
        self.mark()

    @property
    def config(self) -> Config:
        return self.prepared.config

    @property
    def settings(self) -> TrainConfig:
        return self.prepared.config.train

    def mark(self) -> None:
        """Remember the state of chance: a step cut short by a signal is as if it had not begun."""
        self.random = random_state(self.device)

    def due(self, step: int) -> bool:
        """Whether this step is validated and saved."""
        return step % self.settings.save_every == 0 or step == self.settings.max_steps

    def unmeasured(self) -> bool:
        """Whether a signal cut short the validation of the step that the run goes on from."""
        return self.progress.validated < self.progress.step and self.due(self.progress.step)

    def predicted_peak(self) -> int:
        """Bytes."""
        shards = self.ranks.world if is_sharded(self.model) else 1
        layout = self.feed.layout.name
        return predicted_peak(self.config, self.prepared.train, layout, self.device, self.precision, shards)
