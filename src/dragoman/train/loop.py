"""The training loop: teacher forcing, Adam, checkpoints, resume, averaging. Knows nothing of the command line."""

import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman import bundle
from dragoman.config import Config
from dragoman.data.batching import collate
from dragoman.data.prefetch import made_ahead
from dragoman.data.sampled import sampled_store
from dragoman.data.store import Store
from dragoman.errors import ConfigError, ModelError, NonFiniteError, Stopped
from dragoman.model.build import Model, build_model
from dragoman.model.device import choose_precision, is_out_of_memory
from dragoman.model.footprint import parameter_counts
from dragoman.train import checkpoint, provenance
from dragoman.train.checkpoint import Learner, Origin, Progress
from dragoman.train.diagnose import where_it_began
from dragoman.train.distributed import Ranks, gradient_norm, is_sharded, joined, shard
from dragoman.train.layout import Ids, PaddedLoss, choose_layout
from dragoman.train.memory import available, measured_peak, predicted_peak
from dragoman.train.prepare import Prepared, prepare
from dragoman.train.publish import Publisher, mean_weights
from dragoman.train.report import NoLog, Reporter, RunLog, Silent, read_log
from dragoman.train.schedule import learning_rate
from dragoman.train.signals import Signals, Stop
from dragoman.train.starting import MovingAverage, freeze, start_from
from dragoman.train.summary import SUMMARY, write_summary
from dragoman.train.trackers import open_trackers
from dragoman.train.validation import Validation

PAIRS_FOR_PROCESSES = 200_000  # fewer are segmented anew sooner than processes start


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    directory: Path
    steps: int
    metric: str
    best: float | None  # of single checkpoints
    best_step: int
    averaged: bool  # whether the model directory holds the average of the last checkpoints
    reason: str  # why it stopped


@dataclass(frozen=True)
class Plan:
    """The pairs of one step, on all ranks: batches as (epoch, rows)."""

    batches: list[tuple[int, Ids]]
    epoch: int
    following: int  # the number of the epoch's batch after these
    tokens: int  # target tokens


@dataclass(frozen=True)
class Outcome:
    """What came of a step, perhaps still on its way from the GPU."""

    step: int
    plan: Plan
    rate: float
    numbers: Tensor  # loss, norm of the gradient, ranks that a signal reached
    ready: Any  # a CUDA event, or None
    random: dict[str, Tensor]  # before the step


def train(config: Config, run: Path, reporter: Reporter | None = None) -> TrainResult:
    """Train into `run`, a model directory from the first save on; go on by itself where `run` holds a run."""
    with Signals() as signals:
        try:
            with joined(config.train) as (ranks, device), _determinism(config.train.deterministic):
                return _train(config, run, device, reporter if reporter and ranks.main else Silent(), ranks, signals)
        except Stop as stop:
            raise Stopped(f"{run}: stopped by {stop} before the first step; nothing to save", stop.number) from None


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
        origin.agree(_lasting_settings(config))
        prepared = ranks.first(lambda: prepare(config, run, reporter, origin.agree))
        trainer = Trainer(prepared, run, device, reporter, ranks, signals)
        try:
            return trainer.run()
        finally:
            trainer.log.close()


def _lasting_settings(config: Config) -> dict[str, Any]:
    """What must stay as it was when the run began."""
    sections = {"text": asdict(config.text), "model": asdict(config.model)}
    lasting = {f"{section}.{name}": value for section, values in sections.items() for name, value in values.items()}
    for name in ("model.vocab_size", "model.target_vocab_size"):
        del lasting[name]  # from the tokenizer
    data = {f"data.{name}": getattr(config.data, name) for name in ("generated", "generated_size", "on_bad_line")}
    return {**lasting, **data, "train.seed": config.train.seed}


@contextmanager
def _determinism(wanted: bool) -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it at its first use
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


class Trainer:
    """One run in memory; on every rank the same but for the batches."""

    def __init__(
        self, prepared: Prepared, run: Path, device: torch.device, reporter: Reporter,
        ranks: Ranks | None = None, signals: Signals | None = None,
    ) -> None:  # fmt: skip
        self.prepared, self.directory, self.device, self.reporter = prepared, run, device, reporter
        self.ranks, self.signals = ranks or Ranks(), signals or Signals()
        self.config = prepared.config
        self.settings = self.config.train
        self.precision = choose_precision(self.settings.precision, device)
        torch.manual_seed(self.settings.seed)
        self.model = self._build()
        self.learner = self._learner()
        longest = int(max(prepared.train.source_lengths.max(), prepared.train.target_lengths.max())) + 1  # </s>
        longest = self.config.text.max_length if self.config.text.sampling else longest
        self._stores: dict[int, Store] = {}
        self.layout = choose_layout(
            self.settings, self._store, longest, self.model, device, self.precision, self.ranks
        )  # fmt: skip
        self.validation = Validation(prepared, device, self.precision)
        self._judged_model: Model | None = None
        self.publisher = Publisher(prepared, run, self.validation)
        self.identity = {
            **_lasting_settings(self.config),
            **prepared.identity,
            "training data": prepared.train.key,
            "train.layout": self.layout.name,
        }
        self.made_by = provenance.describe(self.config, prepared.corpora, device, self.ranks.world)
        self.progress = self._resume()
        self.log = self._open_log()
        self._pending: Outcome | None = None
        self._asked_anywhere = False  # whether a signal has reached any rank
        self._mark()
        self._restart_clock()

    def _build(self) -> Model:
        try:
            return build_model(self.config.model).to(self.device)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            size = sum(parameter_counts(self.config.model).values())
            raise ConfigError(f"model: {size:,} parameters do not fit into memory; choose a smaller model") from None

    def _learner(self) -> Learner:
        settings, model = self.settings, self.model
        if settings.start_from and not bundle.checkpoints(self.directory):
            start_from(model, Path(settings.start_from))
            self.reporter.note(f"starting from the weights of {settings.start_from}")
        freeze(model, settings.freeze)
        if settings.parallel == "fsdp" and self.ranks.world > 1:
            shard(model, self.ranks)
        optimizer = torch.optim.Adam(
            [parameter for parameter in model.parameters() if parameter.requires_grad],
            lr=0.0,
            betas=(settings.adam_beta1, settings.adam_beta2),
            eps=settings.adam_epsilon,
            fused=self.device.type in ("cpu", "cuda"),
        )
        return Learner(
            model, optimizer, MovingAverage(list(model.parameters()), settings.ema) if settings.ema else None
        )

    def _store(self, epoch: int) -> Store:
        """The training pairs as this epoch sees them: always the same, or segmented anew."""
        text = self.config.text
        if not text.sampling:
            return self.prepared.train
        if epoch not in self._stores:
            tokenizers, settings = self.prepared.tokenizers, self.settings
            workers = settings.loader_workers if len(self.prepared.train) >= PAIRS_FOR_PROCESSES else 0
            self._stores[epoch] = self.ranks.first(
                lambda: sampled_store(
                    self.prepared.train, tokenizers.source, tokenizers.target, strength=text.sampling,
                    seed=settings.seed, epoch=epoch, max_length=text.max_length,
                    directory=self.directory / "data", workers=workers,
                    progress=lambda done: self.reporter.working(f"segmenting pairs for epoch {epoch + 1}", done),
                )
            )  # fmt: skip
        return self._stores[epoch]

    def _forget_epochs_before(self, epoch: int) -> None:
        """Only when a step is done: batches of several epochs may be in the making, in threads that must not wait."""
        self._stores = {number: store for number, store in self._stores.items() if number >= epoch}

    def _resume(self) -> Progress:
        found = checkpoint.agreed(self.directory, self.ranks, self.reporter.note)
        if found is None:
            self._seed_rank()
            self._announce()
            return Progress(judge=self.validation.judge)
        path, files = found
        Origin(self.directory).agree(self.identity)
        progress, random = checkpoint.unpack(path, files, self.learner)
        own = checkpoint.own_random_state(random, self.ranks)
        if own is None:
            self._seed_rank()
        else:
            checkpoint.set_random_state(own, self.device)
        self.reporter.note(f"resuming from {path}")
        if progress.judge != self.validation.judge:
            self.reporter.note(f"judged by {self.validation.judge} from now on, not by {progress.judge}")
            progress.judge, progress.best_metric = self.validation.judge, None
            progress.best_step, progress.without_better = 0, 0
        return progress

    def _seed_rank(self) -> None:
        """Other ranks draw other dropout; rank 0 goes on with what a process alone would draw."""
        if not self.ranks.main:
            torch.manual_seed(self.settings.seed + 1_000_003 * self.ranks.rank)

    def _announce(self) -> None:
        size = sum(parameter_counts(self.config.model).values())
        precision = str(self.precision).removeprefix("torch.")
        together = f", {self.ranks.world} processes ({self.settings.parallel})" if self.ranks.world > 1 else ""
        self.reporter.note(f"{size:,} parameters on {self.device} in {precision}, {self.layout.name} batches{together}")
        needed, room = self._predicted(), available(self.device)
        self.reporter.note(f"expected peak memory {needed / 2**30:.1f} GiB of {room / 2**30:.1f} GiB")
        if needed > room:
            self.reporter.note(
                f"train.batch_tokens: {self.settings.batch_tokens} may be too many for this memory; "
                "if it runs out, lower it and raise train.accumulate"
            )

    def _predicted(self) -> int:
        return predicted_peak(self.config, self.prepared.train, self.layout.name, self.device, self.precision)

    def _open_log(self) -> RunLog | NoLog:
        if not self.ranks.main:
            return NoLog()
        provenance.record(self.directory, self.made_by, self.progress.step)
        trackers = open_trackers(
            self.settings.trackers, self.directory, self.config, self.progress.step, self.reporter.note
        )
        return RunLog(self.directory, self.progress.step, trackers, validated=not self._unmeasured())

    # The run

    def run(self) -> TrainResult:
        """Steps until max_steps, early stopping, a signal or an error; then the average of the last checkpoints."""
        try:
            self.signals.deferred = self.ranks.world > 1  # one rank must not leave while others wait for it
            return self._run()
        except Stop as stop:
            self.signals.deferred = True
            raise self._stopped(stop) from None

    def _run(self) -> TrainResult:
        progress, settings = self.progress, self.settings
        started = time.perf_counter() - progress.seconds
        self._publish_what_was_not()
        if progress.step >= settings.max_steps and self._averaged_already():
            if not (self.directory / SUMMARY).exists():
                self._summarise(f"reached train.max_steps={settings.max_steps}")
            return self._result(f"already finished at step {progress.step}", averaged=False)
        if self._unmeasured():
            self._validate_and_save()
        with closing(made_ahead(self._plans(), self._make, settings.loader_workers)) as steps:
            while progress.step < settings.max_steps and not self._gave_up():
                self._step(*next(steps))
                progress.seconds = time.perf_counter() - started
                if self._due(progress.step):
                    self._settle()
                    self._validate_and_save()
                self._stop_together()
        if self._gave_up():
            reason = f"no better {settings.valid_metric} in {progress.without_better} validations"
        else:
            reason = f"reached train.max_steps={settings.max_steps}"
        result = self._result(reason, averaged=self._average())
        self._summarise(reason)
        return result

    def _result(self, reason: str, averaged: bool) -> TrainResult:
        progress = self.progress
        metric, best = self.settings.valid_metric, progress.best_metric
        return TrainResult(self.directory, progress.step, metric, best, progress.best_step, averaged, reason)

    def _due(self, step: int) -> bool:
        return step % self.settings.save_every == 0 or step == self.settings.max_steps

    def _unmeasured(self) -> bool:
        """Whether a signal cut short the validation of the step that the run goes on from."""
        return self.progress.validated < self.progress.step and self._due(self.progress.step)

    def _averaged_already(self) -> bool:
        looked = [record["kind"] for record in read_log(self.directory) if record["step"] == self.progress.step]
        return "average" in looked

    def _gave_up(self) -> bool:
        return 0 < self.settings.patience <= self.progress.without_better

    # Batches

    def _plans(self) -> Iterator[Plan]:
        """From where the run stands, on and on: as many batches a step as accumulate and ranks need."""
        numbered = self._numbered_batches(self.progress.epoch, self.progress.batch)
        while True:
            taken = list(islice(numbered, self.settings.accumulate * self.ranks.world))
            batches = [(epoch, rows) for epoch, _, rows in taken]
            tokens = sum(self.layout.tokens(epoch, rows) for epoch, rows in batches)
            yield Plan(batches, taken[-1][0], taken[-1][1], tokens)

    def _numbered_batches(self, epoch: int, number: int) -> Iterator[tuple[int, int, Ids]]:
        """(epoch, the number of the batch after this one, rows), without end."""
        while True:
            for rows in self.layout.epoch(epoch)[number:]:
                number += 1
                yield epoch, number, rows
            epoch, number = epoch + 1, 0

    def _make(self, plan: Plan) -> list[Any]:
        """This rank's batches of a step: ranks take turns, so that no pair is read twice."""
        own = plan.batches[self.ranks.rank :: self.ranks.world]
        return [self.layout.make(epoch, rows) for epoch, rows in own]

    # A step

    def _step(self, plan: Plan, batches: list[Any]) -> None:
        """One update from one or more batches, the loss normalised by all their tokens on all ranks."""
        try:
            loss = self.layout.gradients(batches, plan.tokens)
            with self.signals.uninterrupted():
                self._update(plan, loss)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise ConfigError(
                f"train.batch_tokens: out of memory at step {self.progress.step + 1} in a batch with "
                f"{self._places(plan)}; {self._predicted() / 2**30:.1f} GiB were expected; "
                f"lower train.batch_tokens from {self.settings.batch_tokens} and raise train.accumulate"
            ) from None

    def _update(self, plan: Plan, loss: Tensor) -> None:
        """Adam's step, unless something is not finite: decided where the numbers are, so that nobody waits for them."""
        progress, optimizer = self.progress, self.learner.optimizer
        before = self._done_random
        progress.step += 1
        progress.epoch, progress.batch = plan.epoch, plan.following
        progress.tokens += plan.tokens
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        norm = gradient_norm(parameters, self.settings.clip_norm or math.inf)
        asked = torch.full_like(loss, float(self.signals.asked is not None))
        loss, asked = self.ranks.total(torch.stack((loss, asked)))  # in one message: with many ranks a second is dear
        numbers = torch.stack((loss.float(), norm.float(), asked.float()))
        rate = learning_rate(progress.step, self.settings, self.config.model.d_model)
        for group in optimizer.param_groups:
            group["lr"] = rate
        finite = torch.isfinite(numbers).all()
        if optimizer.defaults["fused"] and not is_sharded(self.model):
            optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
            optimizer.step()
        elif bool(finite):
            optimizer.step()
        if self.learner.average is not None:
            self.learner.average.follow(progress.step, finite)
        self.signals.patient = True
        self._settle()
        self._pending = Outcome(progress.step, plan, rate, *_on_its_way(numbers), before)
        if self._pending.ready is None:
            self._settle()
        self._forget_epochs_before(plan.epoch)
        self._mark()

    def _mark(self) -> None:
        """Remember where the run stands: a step cut short by a signal is as if it had not begun."""
        progress = self.progress
        self._done = (progress.step, progress.epoch, progress.batch, progress.tokens)
        self._done_random = checkpoint.random_state(self.device)

    def _settle(self) -> None:
        """Look at what came of the last step; on CUDA that is one step later, when it has long been there."""
        outcome, self._pending = self._pending, None
        if outcome is None:
            return
        if outcome.ready is not None:
            outcome.ready.synchronize()
        loss, norm, asked = outcome.numbers.tolist()
        self._asked_anywhere = asked > 0
        if math.isfinite(loss) and math.isfinite(norm):
            self.progress.nonfinite = 0
            self._report(outcome, loss, norm)
        else:
            self._leave_out(outcome, loss, norm)

    def _leave_out(self, outcome: Outcome, loss: float, norm: float) -> None:
        """A step that is not finite changes no weight and is logged with its lines; too many in a row end the run."""
        progress, plan = self.progress, outcome.plan
        progress.nonfinite += 1
        lines = [self.prepared.train.place(int(row)) for _, rows in plan.batches for row in rows]
        what = f"loss ({loss})" if not math.isfinite(loss) else f"gradient (norm {norm})"
        began = self._diagnose(outcome)
        record = {"kind": "nonfinite", "step": outcome.step, "loss": str(loss), "gradient_norm": str(norm)}
        self.log.write({**record, "began": began, "lines": lines})
        message = f"step {outcome.step}: non-finite {what} in a batch with {self._places(plan)}; it began in {began}"
        self.reporter.note(f"{message}; no weight was changed")
        if progress.nonfinite >= self.settings.nonfinite_limit:
            raise NonFiniteError(
                f"{message}; {progress.nonfinite} steps in a row: lower train.learning_rate or raise train.warmup_steps"
            )

    def _diagnose(self, outcome: Outcome) -> str:
        """The plain path goes through the step's batches again, with the same dropout where that is possible."""
        if self.ranks.world > 1:
            return "a layer that only a run in one process can name"
        plain = PaddedLoss(self.model, self.precision, self.settings.label_smoothing)
        now, began = checkpoint.random_state(self.device), ""
        checkpoint.set_random_state(outcome.random, self.device)
        try:
            for epoch, rows in outcome.plan.batches:
                batch = collate(self._store(epoch), rows).to(self.device)
                began = where_it_began(self.model, lambda batch=batch: plain(batch))  # type: ignore[misc]
                if not began.startswith("nothing"):
                    break
        finally:
            checkpoint.set_random_state(now, self.device)
        return began

    def _places(self, plan: Plan) -> str:
        rows = [row for _, rows in plan.batches for row in rows]
        first = ", ".join(self.prepared.train.place(int(row)) for row in rows[:3])
        return f"{first} and {len(rows) - 3} more" if len(rows) > 3 else first

    # What is told

    def _restart_clock(self) -> None:
        self._clock_tokens, self._clock_start = 0, time.perf_counter()

    def _report(self, outcome: Outcome, loss: float, norm: float) -> None:
        progress, tokens = self.progress, outcome.plan.tokens
        progress.recent_loss += loss * tokens
        progress.recent_tokens += tokens
        self._clock_tokens += tokens
        record = {
            "kind": "step",
            "step": outcome.step,
            "epoch": outcome.plan.epoch,
            "loss": progress.recent_loss / progress.recent_tokens,
            "learning_rate": outcome.rate,
            "gradient_norm": norm,
            "tokens_per_second": self._clock_tokens / max(time.perf_counter() - self._clock_start, 1e-9),
        }
        self.reporter.step(record, self.settings.max_steps)
        if outcome.step % self.settings.log_every == 0:
            self.log.write(record)
            progress.recent_loss, progress.recent_tokens = 0.0, 0
            self._restart_clock()

    def _summarise(self, reason: str) -> None:
        if not self.ranks.main:
            return
        peak = measured_peak(self.device)
        record = {"kind": "memory", "step": self.progress.step, "peak_bytes": peak}
        self.log.write({**record, "predicted_bytes": self._predicted()})
        try:
            self.reporter.note(f"summary in {write_summary(self.prepared, self.directory, self.device, reason)}")
        except Exception as error:  # whatever it is, the training itself is done and saved
            self.reporter.note(f"{self.directory}: no summary could be written ({error})")

    # What is saved

    def _validate_and_save(self) -> None:
        """The checkpoint comes first: a directory with weights always has one to go on from."""
        progress = self.progress
        weights = self.learner.judged()
        looked = self._look(weights)
        with self.signals.uninterrupted():
            progress.validated = progress.step
            if self.ranks.main:
                record = {"kind": "valid", "step": progress.step, "epoch": progress.epoch, **looked}
                better = self._note_if_better(self.validation.metric(record))
                self.log.write(record)
            (waited,) = self.ranks.from_main([float(progress.without_better)])
            progress.without_better = int(waited)
            self._save()
            if self.ranks.main:
                self._remove_old_checkpoints()
                self.publisher.if_better(record, weights, progress)
                self.reporter.validated({**record, "best": better})
        self._restart_clock()

    def _look(self, weights: dict[str, Tensor]) -> dict[str, Any]:
        """Rank 0 measures while the others wait, and tells them if a signal cut that short."""
        looked: dict[str, Any] = {}
        stopped = False
        if self.ranks.main:
            try:
                with self.signals.at_once():
                    looked = self.validation.look(self._judged(weights))
            except Stop:
                stopped = True
        if self.ranks.from_main([float(stopped)])[0]:
            raise Stop(self.signals.asked or signal.SIGTERM)
        return looked

    def _note_if_better(self, metric: float) -> bool:
        progress = self.progress
        better = progress.best_metric is None or metric > progress.best_metric
        if better:
            progress.best_metric, progress.best_step, progress.without_better = metric, progress.step, 0
        else:
            progress.without_better += 1
        return better

    def _judged(self, weights: dict[str, Tensor]) -> Model:
        """A model with the weights to be measured: the one in training, unless those are an average or in parts."""
        if self.learner.average is None and not is_sharded(self.model):
            return self.model
        if self._judged_model is None:
            self._judged_model = bundle.empty_model(self.config, self.device)
        bundle.set_weights(self._judged_model, weights, self.directory)
        return self._judged_model

    def _save(self) -> None:
        random = checkpoint.gathered_random_state(self._done_random, self.ranks)
        if self.ranks.main or is_sharded(self.model):
            files = checkpoint.pack(self.learner, self.progress, random, self.identity, self.made_by)
        if self.ranks.main:
            bundle.write_checkpoint(bundle.checkpoint_path(self.directory, self.progress.step), files)

    def _scheduled(self) -> list[Path]:
        """Checkpoints that an uninterrupted run would have too; a signal makes others."""
        return [path for path in bundle.checkpoints(self.directory) if self._due(bundle.checkpoint_step(path))]

    def _remove_old_checkpoints(self) -> None:
        """All but the last few up to where the run stands; one beyond it was damaged."""
        current = bundle.checkpoint_path(self.directory, self.progress.step)
        passed = [path for path in self._scheduled() if bundle.checkpoint_step(path) <= self.progress.step]
        count = max(self.settings.keep_checkpoints, self.settings.average)
        bundle.remove_checkpoints(self.directory, keep=[*passed[-count:], current])

    def _publish_what_was_not(self) -> None:
        """A kill between a checkpoint and its publishing leaves the directory one step behind."""
        progress = self.progress
        if progress.step and progress.step == progress.best_step:
            weights = self.learner.judged()
            for record in read_log(self.directory) if self.ranks.main else []:
                if record["kind"] == "valid" and record["step"] == progress.step:
                    self.publisher.if_better(record, weights, progress)

    def _average(self) -> bool:
        """The mean of the last checkpoints' weights, published if it scores higher than what is."""
        if not self.ranks.main:
            return False
        self._remove_old_checkpoints()  # a kill after the last save may have left some
        mean, count = mean_weights(self._scheduled()[-self.settings.average :], self.reporter)
        if count < 2:
            return False
        if is_sharded(self.model):
            model = self._judged(mean)
        else:
            model = self.model
            bundle.set_weights(model, mean, self.directory)
        record = {"kind": "average", "step": self.progress.step, "checkpoints": count, **self.validation.look(model)}
        better = self.publisher.if_better(record, mean, self.progress)
        self.log.write(record)  # last: a run whose log holds it is finished
        self.reporter.validated({**record, "best": better})
        return better

    # Stopping

    def _stop_together(self) -> None:
        """Several ranks leave after the same step, whichever of them a signal reached."""
        if self.ranks.world > 1 and self._asked_anywhere:
            raise Stop(self.signals.asked or signal.SIGTERM)

    def _stopped(self, stop: Stop) -> Stopped:
        """Save the last step that was whole, if there is one that is not saved, and say how to go on."""
        progress = self.progress
        progress.step, progress.epoch, progress.batch, progress.tokens = self._done
        self._settle()
        saved = [bundle.checkpoint_step(path) for path in bundle.checkpoints(self.directory)]
        if not progress.step:
            return Stopped(f"{self.directory}: stopped by {stop} before the first step; nothing to save", stop.number)
        if self.ranks.from_main([float(progress.step not in saved)])[0]:
            self._save()
            weights = self.learner.judged()
            if self.ranks.main and not (self.directory / bundle.WEIGHTS).exists():
                self.publisher.unmeasured(weights, progress)
            self.ranks.wait()  # when one process leaves, torchrun ends the others
        message = f"{self.directory}: stopped by {stop} and saved at step {progress.step}; the same command goes on"
        return Stopped(message, stop.number)


def _on_its_way(numbers: Tensor) -> tuple[Tensor, Any]:
    """A copy on the CPU, and on CUDA the event after which it is there."""
    if not numbers.is_cuda:
        return numbers, None
    copied = numbers.to("cpu", non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return copied, event
