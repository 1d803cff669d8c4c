"""Validate, save checkpoints, publish the best weights and the final average. Takes no step."""

import math
import signal
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman import bundle, tensors
from dragoman.errors import ModelError, Stopped
from dragoman.model.build import Model
from dragoman.training import checkpoint
from dragoman.training.checkpoint_files import (
    checkpoint_path,
    checkpoint_step,
    checkpoints,
    remove_checkpoints,
    write_checkpoint,
)
from dragoman.training.distributed import is_sharded
from dragoman.training.publishing import Publisher, average_checkpoints
from dragoman.training.reports.attention import write_snapshot
from dragoman.training.reports.log import read_log
from dragoman.training.reports.results import read_published
from dragoman.training.run import Run
from dragoman.training.signals import Stop


class Saver:
    """Validates and saves a run. Rank 0 writes; the others take part where weights are sharded."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._publisher = Publisher(run.prepared, run.directory, run.validation.judge, run.validation.metric)
        self._measured_model: Model | None = None

    def validate_and_save(self) -> None:
        """Validate, save, then publish: a directory with weights always has a checkpoint to resume from."""
        run, progress = self.run, self.run.progress
        weights = run.learner.evaluated_weights()
        measured = self._measure(weights)
        with run.signals.uninterruptible():
            progress.validated = progress.step
            if run.ranks.is_main:
                snapshot = measured.pop("snapshot")
                record = {"kind": "valid", "step": progress.step, "epoch": progress.epoch, **measured}
                better = self._update_best(run.validation.metric(record))
                run.log.write(record)
            (without_better,) = run.ranks.broadcast([float(progress.without_better)])
            progress.without_better = int(without_better)
            self._save()
            if run.ranks.is_main:
                self._remove_old_checkpoints()
                self._publisher.publish_if_better(record, weights, progress)
                if snapshot is not None:
                    write_snapshot(run.directory, progress.step, snapshot)
                run.reporter.validated({**record, "best": better and math.isfinite(run.validation.metric(record))})

    def _measure(self, weights: dict[str, Tensor]) -> dict[str, Any]:
        """Rank 0 measures while the others wait; all stop if a signal interrupts it."""
        run = self.run
        measured: dict[str, Any] = {}
        stopped = False
        if run.ranks.is_main:
            try:
                with run.signals.interruptible():
                    measured = run.validation.measure(self._model_to_measure(weights))
            except Stop:
                stopped = True
        if run.ranks.broadcast([float(stopped)])[0]:
            raise Stop(run.signals.received or signal.SIGTERM)
        return measured

    def _update_best(self, metric: float) -> bool:
        progress = self.run.progress
        better = progress.best_metric is None or metric > progress.best_metric
        if better:
            progress.best_metric, progress.best_step, progress.without_better = metric, progress.step, 0
        else:
            progress.without_better += 1
        return better

    def _model_to_measure(self, weights: dict[str, Tensor]) -> Model:
        """A model with these weights: the one in training, unless they are an average or it is sharded."""
        run = self.run
        if run.learner.average is None and not is_sharded(run.model):
            return run.model
        if self._measured_model is None:
            self._measured_model = tensors.empty_model(run.config, run.device)
        tensors.set_weights(self._measured_model, weights, run.directory)
        return self._measured_model

    def _save(self) -> None:
        run = self.run
        random = checkpoint.gather_rng_states(run.rng_state, run.ranks)
        if run.ranks.is_main or is_sharded(run.model):
            files = checkpoint.pack(run.learner, run.progress, random, run.identity, run.made_by)
        if run.ranks.is_main:
            write_checkpoint(checkpoint_path(run.directory, run.progress.step), files)

    def _scheduled(self) -> list[Path]:
        """Checkpoints of scheduled steps; a signal adds others."""
        run = self.run
        return [path for path in checkpoints(run.directory) if run.is_due(checkpoint_step(path))]

    def _remove_old_checkpoints(self) -> None:
        """Keep the last few up to the current step; one beyond it was damaged."""
        run = self.run
        current = checkpoint_path(run.directory, run.progress.step)
        passed = [path for path in self._scheduled() if checkpoint_step(path) <= run.progress.step]
        count = max(run.settings.keep_checkpoints, run.settings.average)
        remove_checkpoints(run.directory, keep=[*passed[-count:], current])

    def publish_pending(self) -> None:
        """Publish the current step if a kill came between its checkpoint and its publication."""
        run, progress = self.run, self.run.progress
        if progress.step and progress.step == progress.best_step:
            weights = run.learner.evaluated_weights()
            for record in read_log(run.directory) if run.ranks.is_main else []:
                if record["kind"] == "valid" and record["step"] == progress.step:
                    self._publisher.publish_if_better(record, weights, progress)

    def measure_published_again(self) -> None:
        """If another judge scored the published weights, let this one: only better weights may replace them."""
        run, progress = self.run, self.run.progress
        published = read_published(run.directory) if run.ranks.is_main else None
        if published is None:
            return
        if published["judge"] != run.validation.judge:
            try:
                model = bundle.load_bundle(run.directory).model.to(run.device)
            except ModelError as error:
                run.reporter.note(f"{error}; the next validation replaces the published model")
                return
            self._publisher.record_score({**published, **run.validation.measure(model)})
            run.reporter.note(f"the published model was scored by {published['judge']} and is measured again")
            published = read_published(run.directory) or published
        if progress.best_metric is None and published["kind"] == "valid":
            progress.best_metric, progress.best_step = published["metric"], published["step"]

    def publish_average(self) -> None:
        """Publish the mean of the last checkpoints' weights if it scores higher than the published ones."""
        run = self.run
        if not run.ranks.is_main:
            return
        self._remove_old_checkpoints()  # a kill after the last save may have left old ones
        mean, count = average_checkpoints(self._scheduled()[-run.settings.average :], run.reporter)
        if count < 2:
            return
        if is_sharded(run.model):
            model = self._model_to_measure(mean)
        else:
            model = run.model
            tensors.set_weights(model, mean, run.directory)
        measured = run.validation.measure(model)
        del measured["snapshot"]
        record = {"kind": "average", "step": run.progress.step, "checkpoints": count, **measured}
        better = self._publisher.publish_if_better(record, mean, run.progress)
        run.log.write(record)
        run.reporter.validated({**record, "best": better})

    def save_and_stop(self, stop: Stop) -> Stopped:
        """Save the current step unless it is saved; the error says how to resume."""
        run, progress = self.run, self.run.progress
        saved = [checkpoint_step(path) for path in checkpoints(run.directory)]
        if not progress.step:
            return Stopped(f"{run.directory}: stopped by {stop} before the first step; nothing to save", stop.number)
        if run.ranks.broadcast([float(progress.step not in saved)])[0]:
            self._save()
            weights = run.learner.evaluated_weights()
            if run.ranks.is_main and not (run.directory / bundle.WEIGHTS).exists():
                self._publisher.publish(weights, progress)
            run.ranks.barrier()  # when one process exits, torchrun ends the others
        message = (
            f"{run.directory}: stopped by {stop} and saved at step {progress.step}; run the same command to resume"
        )
        return Stopped(message, stop.number)
