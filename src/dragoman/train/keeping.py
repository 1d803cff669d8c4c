"""What a run keeps: validated checkpoints, the best weights, their average, what a stop saves. Takes no step."""

import math
import signal
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman import bundle
from dragoman.errors import Stopped
from dragoman.model.build import Model
from dragoman.train import checkpoint
from dragoman.train.distributed import is_sharded
from dragoman.train.looks import write_look
from dragoman.train.publish import Publisher, mean_weights
from dragoman.train.report import read_log
from dragoman.train.run import Run
from dragoman.train.signals import Stop


class Keeper:
    """Looks at the model of a run and writes what is to stay; rank 0 does, the others take part."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._publisher = Publisher(run.prepared, run.directory, run.validation)
        self._judged_model: Model | None = None

    def validate_and_save(self) -> None:
        """The checkpoint comes first: a directory with weights always has one to go on from."""
        run, progress = self.run, self.run.progress
        weights = run.learner.judged()
        looked = self._look(weights)
        with run.signals.uninterrupted():
            progress.validated = progress.step
            if run.ranks.main:
                look = looked.pop("look")
                record = {"kind": "valid", "step": progress.step, "epoch": progress.epoch, **looked}
                better = self._note_if_better(run.validation.metric(record))
                run.log.write(record)
            (waited,) = run.ranks.from_main([float(progress.without_better)])
            progress.without_better = int(waited)
            self._save()
            if run.ranks.main:
                self._remove_old_checkpoints()
                self._publisher.if_better(record, weights, progress)
                if look is not None:
                    write_look(run.directory, progress.step, look)
                run.reporter.validated({**record, "best": better and math.isfinite(run.validation.metric(record))})

    def _look(self, weights: dict[str, Tensor]) -> dict[str, Any]:
        """Rank 0 measures while the others wait, and tells them if a signal cut that short."""
        run = self.run
        looked: dict[str, Any] = {}
        stopped = False
        if run.ranks.main:
            try:
                with run.signals.at_once():
                    looked = run.validation.look(self._judged(weights))
            except Stop:
                stopped = True
        if run.ranks.from_main([float(stopped)])[0]:
            raise Stop(run.signals.asked or signal.SIGTERM)
        return looked

    def _note_if_better(self, metric: float) -> bool:
        progress = self.run.progress
        better = progress.best_metric is None or metric > progress.best_metric
        if better:
            progress.best_metric, progress.best_step, progress.without_better = metric, progress.step, 0
        else:
            progress.without_better += 1
        return better

    def _judged(self, weights: dict[str, Tensor]) -> Model:
        """A model with the weights to be measured: the one in training, unless those are an average or in parts."""
        run = self.run
        if run.learner.average is None and not is_sharded(run.model):
            return run.model
        if self._judged_model is None:
            self._judged_model = bundle.empty_model(run.config, run.device)
        bundle.set_weights(self._judged_model, weights, run.directory)
        return self._judged_model

    def _save(self) -> None:
        run = self.run
        random = checkpoint.gathered_random_state(run.random, run.ranks)
        if run.ranks.main or is_sharded(run.model):
            files = checkpoint.pack(run.learner, run.progress, random, run.identity, run.made_by)
        if run.ranks.main:
            bundle.write_checkpoint(bundle.checkpoint_path(run.directory, run.progress.step), files)

    def _scheduled(self) -> list[Path]:
        """Checkpoints that an uninterrupted run would have too; a signal makes others."""
        run = self.run
        return [path for path in bundle.checkpoints(run.directory) if run.due(bundle.checkpoint_step(path))]

    def _remove_old_checkpoints(self) -> None:
        """All but the last few up to where the run stands; one beyond it was damaged."""
        run = self.run
        current = bundle.checkpoint_path(run.directory, run.progress.step)
        passed = [path for path in self._scheduled() if bundle.checkpoint_step(path) <= run.progress.step]
        count = max(run.settings.keep_checkpoints, run.settings.average)
        bundle.remove_checkpoints(run.directory, keep=[*passed[-count:], current])

    def publish_what_was_not(self) -> None:
        """A kill between a checkpoint and its publishing leaves the directory one step behind."""
        run, progress = self.run, self.run.progress
        if progress.step and progress.step == progress.best_step:
            weights = run.learner.judged()
            for record in read_log(run.directory) if run.ranks.main else []:
                if record["kind"] == "valid" and record["step"] == progress.step:
                    self._publisher.if_better(record, weights, progress)

    def average(self) -> None:
        """The mean of the last checkpoints' weights, published if it scores higher than what is."""
        run = self.run
        if not run.ranks.main:
            return
        self._remove_old_checkpoints()  # a kill after the last save may have left some
        mean, count = mean_weights(self._scheduled()[-run.settings.average :], run.reporter)
        if count < 2:
            return
        if is_sharded(run.model):
            model = self._judged(mean)
        else:
            model = run.model
            bundle.set_weights(model, mean, run.directory)
        looked = run.validation.look(model)
        del looked["look"]
        record = {"kind": "average", "step": run.progress.step, "checkpoints": count, **looked}
        better = self._publisher.if_better(record, mean, run.progress)
        run.log.write(record)
        run.reporter.validated({**record, "best": better})

    def stopped(self, stop: Stop) -> Stopped:
        """Save where the run stands, if that is not saved, and say how to go on."""
        run, progress = self.run, self.run.progress
        saved = [bundle.checkpoint_step(path) for path in bundle.checkpoints(run.directory)]
        if not progress.step:
            return Stopped(f"{run.directory}: stopped by {stop} before the first step; nothing to save", stop.number)
        if run.ranks.from_main([float(progress.step not in saved)])[0]:
            self._save()
            weights = run.learner.judged()
            if run.ranks.main and not (run.directory / bundle.WEIGHTS).exists():
                self._publisher.write(weights, progress)
            run.ranks.wait()  # when one process leaves, torchrun ends the others
        message = f"{run.directory}: stopped by {stop} and saved at step {progress.step}; the same command goes on"
        return Stopped(message, stop.number)
