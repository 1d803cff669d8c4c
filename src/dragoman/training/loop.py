"""The training loop, from a configuration to a finished model. Knows nothing of the command line.

train      processes, device, lock
  Trainer  set up or resume, then: step, validate, save; average, test, report
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from dragoman import bundle, files
from dragoman.config import Config
from dragoman.data.prefetch import prefetch
from dragoman.device import cpu_threads, keep_freed_memory, keep_onednn
from dragoman.errors import ModelError, Stopped
from dragoman.machine import choose_threads
from dragoman.tasks.task import PreparedData
from dragoman.training.checkpoint import RunIdentity
from dragoman.training.checkpoint_files import checkpoints, remove_leftovers
from dragoman.training.data import prepare_data
from dragoman.training.distributed import Ranks, join_processes
from dragoman.training.memory import measured_peak
from dragoman.training.reports.html import write_html_report
from dragoman.training.reports.log import FINISHED, Reporter, SilentReporter, show_score
from dragoman.training.reports.results import SUMMARY, published_score
from dragoman.training.reports.summary import write_summary
from dragoman.training.reports.trackers import check_installed
from dragoman.training.saving import Saver
from dragoman.training.setup import check_parts, check_word_vectors, fixed_settings, set_up_run
from dragoman.training.signals import Signals, Stop
from dragoman.training.step import Stepper
from dragoman.training.test_sets import evaluate_test_sets, has_test_sets, last_tested_step


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    directory: Path
    steps: int
    metric: str
    best: float | None  # of single checkpoints
    best_step: int
    averaged: bool  # whether the model directory holds the average of the last checkpoints
    kept: float | None  # the score of the directory's weights
    reason: str  # why it stopped

    def describe(self) -> str:
        """One line for people."""
        line = f"{self.directory}: {self.reason}"
        if self.kept is None:
            return line
        what = "the average of the last checkpoints" if self.averaged else f"the weights of step {self.best_step}"
        return f"{line}; kept {what}, {self.metric} {show_score(self.kept, '.2f')}"


def train(
    config: Config, run: Path, reporter: Reporter | None = None, *, data_folder: Path | None = None
) -> TrainResult:
    """Train into `run`, a model directory from the first save on. Resumes if `run` holds an unfinished run.

    `data_folder` is what $DRAGOMAN_DATA in the paths of corpora stands for; by default the variable of that name.
    """
    with Signals() as signals:
        try:
            with (
                join_processes(config.train) as (ranks, device),
                _deterministic(config.train.deterministic),
                keep_freed_memory(device),
                keep_onednn(),
                cpu_threads(choose_threads(config.train.threads, config.model.d_model)),
            ):
                watching = reporter if reporter and ranks.is_main else SilentReporter()
                return _train(config, run, data_folder, device, watching, ranks, signals)
        except Stop as stop:
            taken = "another" if checkpoints(run) else "the first"
            raise Stopped(f"{run}: stopped by {stop} before {taken} step; nothing to save", stop.number) from None


def _train(
    config: Config, run: Path, data_folder: Path | None, device: torch.device, reporter: Reporter, ranks: Ranks,
    signals: Signals,
) -> TrainResult:  # fmt: skip
    with files.lock_directory(run) if ranks.is_main else nullcontext():
        if ranks.is_main:
            remove_leftovers(run)
        ranks.barrier()
        if ranks.is_main and (run / bundle.WEIGHTS).exists() and not checkpoints(run):
            raise ModelError(f"{run}: holds a model but no checkpoint to resume from; give another --out for a new run")
        identity = RunIdentity(run)
        identity.verify(fixed_settings(config))
        check_parts(config)
        if not checkpoints(run):
            check_word_vectors(config)
        check_installed(config.train.trackers)  # before the text, which may take hours, is encoded
        prepared = ranks.main_first(lambda: prepare_data(config, run, reporter, identity.verify, data_folder))
        trainer = Trainer(prepared, run, device, reporter, ranks, signals)
        try:
            return trainer.train()
        finally:
            trainer.close()


@contextmanager
def _deterministic(enabled: bool) -> Iterator[None]:
    if not enabled:  # even switching it off imports torch's compiler, which may happen while an error is handled
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
    """Takes a run from its current step to its end."""

    def __init__(
        self, prepared: PreparedData, directory: Path, device: torch.device, reporter: Reporter,
        ranks: Ranks | None = None, signals: Signals | None = None,
    ) -> None:  # fmt: skip
        self.run = set_up_run(prepared, directory, device, reporter, ranks or Ranks(), signals or Signals())
        self.stepper, self.saver = Stepper(self.run), Saver(self.run)

    def train(self) -> TrainResult:
        """Train until max_steps, early stopping, a signal or an error."""
        signals = self.run.signals
        try:
            signals.deferred = self.run.ranks.world > 1  # no rank may leave while others wait for it
            return self._train()
        except Stop as stop:
            signals.deferred = True
            self.stepper.collect_result()
            raise self.saver.save_and_stop(stop) from None

    def _train(self) -> TrainResult:
        run, progress, settings = self.run, self.run.progress, self.run.settings
        started = time.perf_counter() - progress.seconds
        self.saver.publish_pending()
        self.saver.measure_published_again()
        if (progress.step >= settings.max_steps or self._out_of_patience()) and run.finished:
            self._evaluate_test_sets()
            if not (run.directory / SUMMARY).exists():
                self._write_reports(f"reached train.max_steps={settings.max_steps}")
            return self._result(f"already finished at step {progress.step}")
        if run.needs_validation():
            self._validate_and_save()
        loaded = prefetch(run.batches.plan_steps(progress), run.batches.load, settings.loader_workers)
        with closing(loaded) as steps:
            while progress.step < settings.max_steps and not self._out_of_patience():
                self.stepper.step(*next(steps))
                progress.seconds = time.perf_counter() - started
                if run.is_due(progress.step):
                    self.stepper.collect_result()
                    self._validate_and_save()
                self._stop_if_requested()
        if self._out_of_patience():
            reason = f"no better {settings.valid_metric} in {progress.without_better} validations"
        else:
            reason = f"reached train.max_steps={settings.max_steps}"
        self.saver.publish_average()
        self._evaluate_test_sets()
        self._write_reports(reason)
        run.log.write({"kind": FINISHED, "step": progress.step})  # last: marks the run as finished
        return self._result(reason)

    def close(self) -> None:
        """Release the log and the processes' shared state, however the run ended."""
        self.run.log.close()
        self.run.batches.close()
        self.run.layout.close()

    def _validate_and_save(self) -> None:
        self.saver.validate_and_save()
        self.stepper.restart_clock()

    def _stop_if_requested(self) -> None:
        """With several ranks: all stop after the same step, whichever of them received the signal."""
        if self.run.ranks.world > 1 and self.stepper.stop_requested:
            raise Stop(self.run.signals.received or signal.SIGTERM)

    def _out_of_patience(self) -> bool:
        return 0 < self.run.settings.patience <= self.run.progress.without_better

    def _evaluate_test_sets(self) -> None:
        """Evaluate the finished model, unless that is already done."""
        run = self.run
        if run.ranks.is_main and has_test_sets(run) and last_tested_step(run.directory) != run.progress.step:
            evaluate_test_sets(run)

    def _write_reports(self, reason: str) -> None:
        run = self.run
        if not run.ranks.is_main:
            return
        peak = measured_peak(run.device)
        record = {"kind": "memory", "step": run.progress.step, "peak_bytes": peak}
        run.log.write({**record, "predicted_bytes": run.predicted_peak()})
        try:
            run.reporter.note(f"summary in {write_summary(run.prepared, run.directory, run.device, reason)}")
            run.reporter.note(f"report in {write_html_report(run.directory)}")
        except Exception as error:  # training itself is done and saved, whatever went wrong here
            run.reporter.note(f"{run.directory}: no summary could be written ({error})")

    def _result(self, reason: str) -> TrainResult:
        run, progress = self.run, self.run.progress
        kind, kept = published_score(run.directory)
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
