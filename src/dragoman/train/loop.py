"""The training loop: teacher forcing, Adam, checkpoints, resume, averaging. Knows nothing of the command line."""

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman import bundle
from dragoman.config import Config
from dragoman.data.batching import Batch
from dragoman.data.packing import PackedBatch
from dragoman.data.prefetch import ahead
from dragoman.errors import ConfigError, ModelError, NonFiniteError
from dragoman.model.build import Model, build_model
from dragoman.model.device import choose_device, choose_precision, is_out_of_memory
from dragoman.model.footprint import parameter_counts
from dragoman.train import checkpoint
from dragoman.train.card import model_card
from dragoman.train.checkpoint import Progress, refuse_change
from dragoman.train.layout import choose_layout
from dragoman.train.prepare import Prepared, prepare
from dragoman.train.report import Reporter, RunLog, Silent, read_log
from dragoman.train.schedule import learning_rate
from dragoman.train.validation import Validation

AnyBatch = Batch | PackedBatch
PUBLISHED = "published.json"  # what the directory's weights scored


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


def train(config: Config, run: Path, reporter: Reporter | None = None) -> TrainResult:
    """Train into `run`, a model directory from the first save on; go on by itself where `run` holds a run."""
    reporter = reporter or Silent()
    device = choose_device(config.train.device)  # before hours of preparation
    with bundle.locked(run), _determinism(config.train.deterministic):
        if (run / bundle.CONFIG).exists():
            _refuse_other_settings(bundle.load_config(run), config, run)
        trainer = Trainer(prepare(config, run, reporter), run, device, reporter)
        try:
            return trainer.run()
        finally:
            trainer.log.close()


def _refuse_other_settings(saved: Config, asked: Config, run: Path) -> None:
    for section in ("text", "model"):
        old, new = asdict(getattr(saved, section)), asdict(getattr(asked, section))
        for name in old:
            follows = section == "model" and name.endswith("vocab_size")  # from the tokenizer
            if not follows:
                refuse_change(run, f"{section}.{name}", old[name], new.get(name))


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
    """One run in memory."""

    def __init__(self, prepared: Prepared, run: Path, device: torch.device, reporter: Reporter) -> None:
        self.prepared, self.directory, self.device, self.reporter = prepared, run, device, reporter
        self.config = prepared.config
        self.settings = self.config.train
        self.precision = choose_precision(self.settings.precision, device)
        torch.manual_seed(self.settings.seed)
        self.model = self._build()
        self.optimizer = torch.optim.Adam(
            self.model.parameters(),
            lr=0.0,
            betas=(self.settings.adam_beta1, self.settings.adam_beta2),
            eps=self.settings.adam_epsilon,
            fused=device.type in ("cpu", "cuda"),
        )
        self.layout = choose_layout(self.settings, prepared.train, self.model, device, self.precision)
        self.validation = Validation(prepared, device, self.precision)
        self.identity = {
            "training data": prepared.train.key,
            "train.seed": self.settings.seed,
            "train.layout": self.layout.name,
        }
        self.progress = self._resume()
        self.log = RunLog(run, self.progress.step)
        self._restart_clock()

    def _build(self) -> Model:
        try:
            return build_model(self.config.model).to(self.device)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            size = sum(parameter_counts(self.config.model).values())
            raise ConfigError(f"model: {size:,} parameters do not fit into memory; choose a smaller model") from None

    def _resume(self) -> Progress:
        bundle.remove_leftovers(self.directory)
        found = checkpoint.newest(self.directory, self.reporter.note)
        if found is None:
            if (self.directory / bundle.WEIGHTS).exists():
                raise ModelError(
                    f"{self.directory}: holds a model but no checkpoint to go on from; give another --out for a new run"
                )
            size = sum(parameter_counts(self.config.model).values())
            precision = str(self.precision).removeprefix("torch.")
            self.reporter.note(f"{size:,} parameters on {self.device} in {precision}, {self.layout.name} batches")
            return Progress(judge=self.validation.judge)
        path, files = found
        checkpoint.check_identity(path, files, self.identity)
        progress = checkpoint.unpack(path, files, self.model, self.optimizer)
        self.reporter.note(f"resuming from {path}")
        if progress.judge != self.validation.judge:
            self.reporter.note(f"judged by {self.validation.judge} from now on, not by {progress.judge}")
            progress.judge, progress.best_metric = self.validation.judge, None
            progress.best_step, progress.without_better = 0, 0
        return progress

    # The run

    def run(self) -> TrainResult:
        """Steps until max_steps, early stopping or an error; then the average of the last checkpoints."""
        progress, settings = self.progress, self.settings
        started = time.perf_counter() - progress.seconds
        self._publish_what_was_not()
        if progress.step >= settings.max_steps and self._averaged_already():
            return self._result(f"already finished at step {progress.step}", averaged=False)
        batches = self._batches()
        while progress.step < settings.max_steps and not self._gave_up():
            self._step([next(batches) for _ in range(settings.accumulate)])
            progress.seconds = time.perf_counter() - started
            if progress.step % settings.save_every == 0 or progress.step == settings.max_steps:
                self._validate_and_save()
        if self._gave_up():
            reason = f"no better {settings.valid_metric} in {progress.without_better} validations"
        else:
            reason = f"reached train.max_steps={settings.max_steps}"
        return self._result(reason, averaged=self._average())

    def _result(self, reason: str, averaged: bool) -> TrainResult:
        progress = self.progress
        metric, best = self.settings.valid_metric, progress.best_metric
        return TrainResult(self.directory, progress.step, metric, best, progress.best_step, averaged, reason)

    def _averaged_already(self) -> bool:
        looked = [record["kind"] for record in read_log(self.directory) if record["step"] == self.progress.step]
        return "average" in looked

    def _gave_up(self) -> bool:
        return 0 < self.settings.patience <= self.progress.without_better

    def _batches(self) -> Iterator[AnyBatch]:
        """From where the run stands, on and on. `progress` names the next batch before it is handed out."""
        progress = self.progress
        numbered = self._numbered_batches(progress.epoch, progress.batch)
        for epoch, following, batch in ahead(numbered, 4) if self.device.type == "cuda" else numbered:
            progress.epoch, progress.batch = epoch, following
            yield batch

    def _numbered_batches(self, epoch: int, number: int) -> Iterator[tuple[int, int, AnyBatch]]:
        """(epoch, the number of the batch after this one, batch), without end."""
        while True:
            for rows in self.layout.epoch(epoch)[number:]:
                number += 1
                yield epoch, number, self.layout.make(rows)
            epoch, number = epoch + 1, 0

    def _step(self, batches: list[AnyBatch]) -> None:
        """One update from one or more batches, the loss normalised by all their tokens."""
        progress = self.progress
        tokens = sum(batch.num_tokens for batch in batches)
        progress.step += 1
        progress.tokens += tokens
        try:
            loss, norm = self._gradients(batches, tokens)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise ConfigError(
                f"train.batch_tokens: out of memory at step {progress.step} in a batch with {self._places(batches)}; "
                f"lower train.batch_tokens from {self.settings.batch_tokens} and raise train.accumulate"
            ) from None
        rate = learning_rate(progress.step, self.settings, self.config.model.d_model)
        if math.isfinite(loss) and math.isfinite(norm):
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            progress.nonfinite = 0
            self._report(loss, norm, rate, tokens)
        else:
            self._leave_out(loss, batches)

    def _gradients(self, batches: list[AnyBatch], tokens: int) -> tuple[float, float]:
        """Forward and backward over all batches; the loss per token, and the gradient's norm before clipping."""
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros((), device=self.device)
        for batch in batches:
            part = self.layout.loss(batch.to(self.device), self.settings.label_smoothing) / tokens
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.detach()
        limit = self.settings.clip_norm or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        return float(loss), float(norm)

    def _leave_out(self, loss: float, batches: list[AnyBatch]) -> None:
        """A step that is not finite changes no weight and is logged with its lines; too many in a row end the run."""
        progress = self.progress
        progress.nonfinite += 1
        lines = [self.prepared.train.place(int(row)) for batch in batches for row in batch.rows]
        self.log.write({"kind": "nonfinite", "step": progress.step, "loss": str(loss), "lines": lines})
        message = f"step {progress.step}: non-finite loss or gradient in a batch with {self._places(batches)}"
        self.reporter.note(f"{message}; no weight was changed")
        if progress.nonfinite >= self.settings.nonfinite_limit:
            raise NonFiniteError(
                f"{message}; {progress.nonfinite} steps in a row: lower train.learning_rate or raise train.warmup_steps"
            )

    def _places(self, batches: list[AnyBatch]) -> str:
        rows = [row for batch in batches for row in batch.rows]
        first = ", ".join(self.prepared.train.place(int(row)) for row in rows[:3])
        return f"{first} and {len(rows) - 3} more" if len(rows) > 3 else first

    # What is told

    def _restart_clock(self) -> None:
        self._clock_tokens, self._clock_start = 0, time.perf_counter()

    def _report(self, loss: float, norm: float, rate: float, tokens: int) -> None:
        progress = self.progress
        progress.recent_loss += loss * tokens
        progress.recent_tokens += tokens
        self._clock_tokens += tokens
        record = {
            "kind": "step",
            "step": progress.step,
            "epoch": progress.epoch,
            "loss": progress.recent_loss / progress.recent_tokens,
            "learning_rate": rate,
            "gradient_norm": norm,
            "tokens_per_second": self._clock_tokens / max(time.perf_counter() - self._clock_start, 1e-9),
        }
        self.reporter.step(record, self.settings.max_steps)
        if progress.step % self.settings.log_every == 0:
            self.log.write(record)
            progress.recent_loss, progress.recent_tokens = 0.0, 0
            self._restart_clock()

    # What is saved

    def _validate_and_save(self) -> None:
        """The checkpoint comes first: a directory with weights always has one to go on from."""
        progress = self.progress
        record = {"kind": "valid", "step": progress.step, "epoch": progress.epoch, **self.validation.look(self.model)}
        metric = self.validation.metric(record)
        better = progress.best_metric is None or metric > progress.best_metric
        if better:
            progress.best_metric, progress.best_step, progress.without_better = metric, progress.step, 0
        else:
            progress.without_better += 1
        self.log.write(record)
        path = bundle.checkpoint_path(self.directory, progress.step)
        bundle.write_checkpoint(path, checkpoint.pack(self.model, self.optimizer, progress, self.identity))
        bundle.remove_checkpoints(self.directory, keep=max(self.settings.keep_checkpoints, self.settings.average))
        self._publish_if_better(record, bundle.named_weights(self.model))
        self.reporter.validated({**record, "best": better})
        self._restart_clock()

    def _publish_if_better(self, record: dict[str, Any], weights: dict[str, Tensor]) -> bool:
        """Make these weights the model directory's, unless those it has scored as high by the same judge."""
        metric, path = self.validation.metric(record), self.directory / PUBLISHED
        if path.exists():
            published = json.loads(path.read_bytes())
            if published["judge"] == self.validation.judge and published["metric"] >= metric:
                return False
        card = model_card(self.prepared, self.progress, record)
        bundle.save_bundle(self.directory, self.config, self.prepared.tokenizers, weights, card)
        told = {
            "judge": self.validation.judge,
            "metric": max(metric, -1e300),
            "kind": record["kind"],
            "step": record["step"],
        }
        bundle.write_file(path, json.dumps(told, indent=1).encode())
        return True

    def _publish_what_was_not(self) -> None:
        """A kill between a checkpoint and its publishing leaves the directory one step behind."""
        progress = self.progress
        if progress.step and progress.step == progress.best_step:
            for record in read_log(self.directory):
                if record["kind"] == "valid" and record["step"] == progress.step:
                    self._publish_if_better(record, bundle.named_weights(self.model))

    def _average(self) -> bool:
        """The mean of the last checkpoints' weights, published if it scores higher than what is."""
        mean: dict[str, Tensor] = {}
        count = 0
        for path in bundle.checkpoints(self.directory)[-self.settings.average :]:
            try:
                weights = bundle.weights_from_bytes(bundle.read_checkpoint(path)[bundle.WEIGHTS], path)
            except ModelError as error:
                self.reporter.note(f"{error}; left out of the average")
                continue
            count += 1
            for name, tensor in weights.items():
                mean[name] = mean[name] + tensor.double() if name in mean else tensor.double()
        if count < 2:
            return False
        mean = {name: (tensor / count).float() for name, tensor in mean.items()}
        bundle.set_weights(self.model, mean, self.directory)
        looked = self.validation.look(self.model)
        record = {"kind": "average", "step": self.progress.step, "checkpoints": count, **looked}
        self.log.write(record)
        better = self._publish_if_better(record, mean)
        self.reporter.validated({**record, "best": better})
        return better
