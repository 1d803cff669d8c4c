"""The training loop: steps until the end, each part of it left to its own file. Knows nothing of the command line."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from dragoman import bundle
from dragoman.config import Config
from dragoman.data.prefetch import made_ahead
from dragoman.errors import ModelError, Stopped
from dragoman.model.device import choose_threads, cpu_threads, memory_kept
from dragoman.train.begin import begin, lasting_settings
from dragoman.train.checkpoint import Origin
from dragoman.train.distributed import Ranks, joined
from dragoman.train.keeping import Keeper
from dragoman.train.memory import measured_peak
from dragoman.train.prepare import Prepared, prepare
from dragoman.train.publish import published
from dragoman.train.report import ENDED, Reporter, Silent, show_score
from dragoman.train.run_page import write_run_page
from dragoman.train.signals import Signals, Stop
from dragoman.train.starting import check_parts
from dragoman.train.step import Stepper
from dragoman.train.summary import SUMMARY, write_summary
from dragoman.train.testing import tested_at, write_result
from dragoman.train.trackers import check_installed


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    directory: Path
    steps: int
    metric: str
    best: float | None  # of single checkpoints
    best_step: int
    averaged: bool  # whether the model directory holds the average of the last checkpoints
    kept: float | None  # what the directory's weights scored
    reason: str  # why it stopped

    def describe(self) -> str:
        """One line for people."""
        line = f"{self.directory}: {self.reason}"
        if self.kept is None:
            return line
        what = "the average of the last checkpoints" if self.averaged else f"the weights of step {self.best_step}"
        return f"{line}; kept {what}, {self.metric} {show_score(self.kept, '.2f')}"


def train(config: Config, run: Path, reporter: Reporter | None = None) -> TrainResult:
    """Train into `run`, a model directory from the first save on; go on by itself where `run` holds a run."""
    with Signals() as signals:
        try:
            with (
                joined(config.train) as (ranks, device),
                _determinism(config.train.deterministic),
                memory_kept(device),
                cpu_threads(choose_threads(config.train.threads, config.model.d_model)),
            ):
                return _train(config, run, device, reporter if reporter and ranks.main else Silent(), ranks, signals)
        except Stop as stop:
            taken = "another" if bundle.checkpoints(run) else "the first"
            raise Stopped(f"{run}: stopped by {stop} before {taken} step; nothing to save", stop.number) from None


def _train(
    config: Config, run: Path, device: torch.device, reporter: Reporter, ranks: Ranks, signals: Signals
) -> TrainResult:
    with bundle.locked(run) if ranks.main else nullcontext():
        if ranks.main:
            bundle.remove_leftovers(run)
        ranks.wait()
        if ranks.main and (run / bundle.WEIGHTS).exists() and not bundle.checkpoints(run):
            raise ModelError(f"{run}: holds a model but no checkpoint to go on from; give another --out for a new run")
        origin = Origin(run)
        origin.agree(lasting_settings(config))
        prepared = ranks.first(lambda: _checked_and_prepared(config, run, reporter, origin))
        trainer = Trainer(prepared, run, device, reporter, ranks, signals)
        try:
            return trainer.train()
        finally:
            trainer.close()


def _checked_and_prepared(config: Config, run: Path, reporter: Reporter, origin: Origin) -> Prepared:
    """What cannot be had is known before the hours that text may take."""
    check_parts(config)
    check_installed(config.train.trackers)
    return prepare(config, run, reporter, origin.agree)


@contextmanager
def _determinism(wanted: bool) -> Iterator[None]:
    if not wanted:  # torch imports its compiler for saying so, in the very moment when a run has failed perhaps
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it at its first use
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


class Trainer:
    """A run and those who work at it."""

    def __init__(
        self, prepared: Prepared, directory: Path, device: torch.device, reporter: Reporter,
        ranks: Ranks | None = None, signals: Signals | None = None,
    ) -> None:  # fmt: skip
        self.run = begin(prepared, directory, device, reporter, ranks or Ranks(), signals or Signals())
        self.stepper, self.keeper = Stepper(self.run), Keeper(self.run)

    def train(self) -> TrainResult:
        """Steps until max_steps, early stopping, a signal or an error; then the average of the last checkpoints."""
        signals = self.run.signals
        try:
            signals.deferred = self.run.ranks.world > 1  # one rank must not leave while others wait for it
            return self._train()
        except Stop as stop:
            signals.deferred = True
            self.stepper.settle()
            raise self.keeper.stopped(stop) from None

    def _train(self) -> TrainResult:
        run, progress, settings = self.run, self.run.progress, self.run.settings
        started = time.perf_counter() - progress.seconds
        self.keeper.publish_what_was_not()
        if (progress.step >= settings.max_steps or self._gave_up()) and run.ended:
            self._test()
            if not (run.directory / SUMMARY).exists():
                self._summarise(f"reached train.max_steps={settings.max_steps}")
            return self._result(f"finished already, at step {progress.step}")
        if run.unmeasured():
            self._validate_and_save()
        with closing(made_ahead(run.feed.plans(progress), run.feed.make, settings.loader_workers)) as steps:
            while progress.step < settings.max_steps and not self._gave_up():
                self.stepper.step(*next(steps))
                progress.seconds = time.perf_counter() - started
                if run.due(progress.step):
                    self.stepper.settle()
                    self._validate_and_save()
                self._stop_together()
        if self._gave_up():
            reason = f"no better {settings.valid_metric} in {progress.without_better} validations"
        else:
            reason = f"reached train.max_steps={settings.max_steps}"
        self.keeper.average()
        self._test()
        self._summarise(reason)
        run.log.write({"kind": ENDED, "step": progress.step})  # last: a run whose log holds it is finished
        return self._result(reason)

    def close(self) -> None:
        """However it ended."""
        self.run.log.close()
        self.run.feed.layout.close()

    def _validate_and_save(self) -> None:
        self.keeper.validate_and_save()
        self.stepper.restart_clock()

    def _stop_together(self) -> None:
        """Several ranks leave after the same step, whichever of them a signal reached."""
        if self.run.ranks.world > 1 and self.stepper.asked_anywhere:
            raise Stop(self.run.signals.asked or signal.SIGTERM)

    def _gave_up(self) -> bool:
        return 0 < self.run.settings.patience <= self.run.progress.without_better

    def _result(self, reason: str) -> TrainResult:
        run, progress = self.run, self.run.progress
        kind, kept = published(run.directory)
        return TrainResult(
            directory=run.directory,
            steps=progress.step,
            metric=run.settings.valid_metric,
            best=progress.best_metric,
            best_step=progress.best_step,
            averaged=kind == "average",
            kept=kept,
            reason=reason,
        )

    def _test(self) -> None:
        """The finished model on the test sets, where there are any and they are not measured already."""
        run = self.run
        if run.ranks.main and run.prepared.corpora.test_source and tested_at(run.directory) != run.progress.step:
            write_result(run)

    def _summarise(self, reason: str) -> None:
        run = self.run
        if not run.ranks.main:
            return
        peak = measured_peak(run.device)
        record = {"kind": "memory", "step": run.progress.step, "peak_bytes": peak}
        run.log.write({**record, "predicted_bytes": run.predicted_peak()})
        try:
            run.reporter.note(f"summary in {write_summary(run.prepared, run.directory, run.device, reason)}")
            run.reporter.note(f"report in {write_run_page(run.directory)}")
        except Exception as error:  # whatever it is, the training itself is done and saved
            run.reporter.note(f"{run.directory}: no summary could be written ({error})")
