"""The training loop: teacher forcing, Adam, validation, checkpoints, resume. Knows nothing of the command line."""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman import bundle
from dragoman.bundle import Bundle
from dragoman.config import Config, DecodeConfig
from dragoman.data.batching import Batch, BatchPlan, collate
from dragoman.decode.translator import Translator
from dragoman.errors import ModelError, NonFiniteError
from dragoman.model.device import choose_device, choose_precision
from dragoman.model.footprint import parameter_counts
from dragoman.model.transformer import Transformer
from dragoman.train import checkpoint
from dragoman.train.card import model_card
from dragoman.train.checkpoint import Progress
from dragoman.train.loss import smoothed_cross_entropy
from dragoman.train.prepare import Prepared, prepare
from dragoman.train.report import Reporter, RunLog, Silent
from dragoman.train.schedule import learning_rate


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    directory: Path
    steps: int
    metric: str
    best: float | None
    best_step: int
    averaged: bool  # whether the model directory holds the average of the last checkpoints
    reason: str  # why it stopped


def train(config: Config, run: Path, reporter: Reporter | None = None) -> TrainResult:
    """Train into `run`, a model directory from the first save on; go on by itself where `run` holds a run."""
    reporter = reporter or Silent()
    bundle.make_directory(run)
    if (run / bundle.CONFIG).exists():
        _refuse_other_settings(bundle.load_config(run), config, run)
    trainer = Trainer(prepare(config, run, reporter), run, reporter)
    try:
        return trainer.run()
    finally:
        trainer.log.close()


def _refuse_other_settings(saved: Config, asked: Config, run: Path) -> None:
    for section in ("text", "model"):
        old, new = asdict(getattr(saved, section)), asdict(getattr(asked, section))
        for name in old:
            follows = section == "model" and name.endswith("vocab_size")  # from the tokenizer
            if not follows and old[name] != new[name]:
                raise ModelError(
                    f"{run}: {section}.{name} was {old[name]!r} when this run began and is {new[name]!r} now; "
                    "restore it, or give another --out for a new run"
                )


class Trainer:
    """One run in memory."""

    def __init__(self, prepared: Prepared, run: Path, reporter: Reporter) -> None:
        self.prepared, self.directory, self.reporter = prepared, run, reporter
        self.config = prepared.config
        self.settings = self.config.train
        self.device = choose_device(self.settings.device)
        self.precision = choose_precision(self.settings.precision, self.device)
        torch.use_deterministic_algorithms(self.settings.deterministic)
        torch.manual_seed(self.settings.seed)
        self.model = Transformer(self.config.model).to(self.device)
        self.optimizer = torch.optim.Adam(
            self.model.parameters(),
            lr=0.0,
            betas=(self.settings.adam_beta1, self.settings.adam_beta2),
            eps=self.settings.adam_epsilon,
            fused=self.device.type in ("cpu", "cuda"),
        )
        self.plan = BatchPlan(
            prepared.train.source_lengths,
            prepared.train.target_lengths,
            batch_tokens=self.settings.batch_tokens,
            seed=self.settings.seed,
        )
        self.identity = {"training data": prepared.train.key, "train.seed": self.settings.seed}
        self.progress = self._resume()
        self.log = RunLog(run, self.progress.step)
        self._recent_start = time.perf_counter()

    def _resume(self) -> Progress:
        found = checkpoint.newest(self.directory, self.reporter.note)
        if found is None:
            size = sum(parameter_counts(self.config.model).values())
            precision = str(self.precision).removeprefix("torch.")
            self.reporter.note(f"{size:,} parameters on {self.device} in {precision}")
            return Progress()
        path, files = found
        checkpoint.check_identity(path, files, self.identity)
        progress = checkpoint.unpack(path, files, self.model, self.optimizer)
        self.reporter.note(f"resuming from {path}")
        return progress

    # The run

    def run(self) -> TrainResult:
        """Steps until max_steps, early stopping or an error; then the average of the last checkpoints."""
        progress, settings = self.progress, self.settings
        reason = f"reached train.max_steps={settings.max_steps}"
        started = time.perf_counter() - progress.seconds
        batches = self._batches()
        while progress.step < settings.max_steps and not progress.finished:
            self._step([next(batches) for _ in range(settings.accumulate)])
            progress.seconds = time.perf_counter() - started
            if progress.step % settings.save_every == 0 or progress.step == settings.max_steps:
                self._validate_and_save()
        if progress.finished:
            reason = f"no better {settings.valid_metric} in {settings.patience} validations"
        averaged = self._average()
        return TrainResult(
            self.directory,
            progress.step,
            settings.valid_metric,
            progress.best_metric,
            progress.best_step,
            averaged,
            reason,
        )

    def _batches(self) -> Iterator[Batch]:
        """From where the run stands, on and on. `progress` names the next batch before it is handed out."""
        progress = self.progress
        while True:
            epoch = self.plan.epoch(progress.epoch)
            while progress.batch < len(epoch):
                rows = epoch[progress.batch]
                progress.batch += 1
                yield collate(self.prepared.train, rows)
            progress.epoch, progress.batch = progress.epoch + 1, 0

    def _step(self, batches: list[Batch]) -> None:
        """One update from one or more batches, the loss normalised by all their tokens."""
        progress = self.progress
        tokens = sum(batch.num_tokens for batch in batches)
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros((), device=self.device)
        for batch in batches:
            part = self._loss(batch.to(self.device)) / tokens
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.detach()
        limit = self.settings.clip_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        progress.step += 1
        progress.tokens += tokens
        rate = learning_rate(progress.step, self.settings, self.config.model.d_model)
        values = (float(loss), float(norm))
        if self._finite(values, batches):
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
        self._report(*values, rate, tokens)

    def _loss(self, batch: Batch, label_smoothing: float | None = None) -> Tensor:
        smoothing = self.settings.label_smoothing if label_smoothing is None else label_smoothing
        with torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32):
            logits_BTV = self.model(batch.source_ids, batch.target_input, batch.source_allowed)
        return smoothed_cross_entropy(logits_BTV, batch.target_output, smoothing)

    def _finite(self, values: tuple[float, float], batches: list[Batch]) -> bool:
        """Whether this step may change weights. One that may not is logged with its lines; too many end the run."""
        progress = self.progress
        if all(map(math.isfinite, values)):
            progress.nonfinite = 0
            return True
        progress.nonfinite += 1
        places = [self.prepared.train.place(int(row)) for batch in batches for row in batch.rows]
        self.log.write({"kind": "nonfinite", "step": progress.step, "loss": str(values[0]), "lines": places})
        message = f"step {progress.step}: non-finite loss or gradient in a batch with {', '.join(places[:3])}"
        self.reporter.note(f"{message}; no weight was changed")
        if progress.nonfinite >= self.settings.nonfinite_limit:
            raise NonFiniteError(
                f"{message}; {progress.nonfinite} steps in a row: lower train.learning_rate or raise train.warmup_steps"
            )
        return False

    def _report(self, loss: float, norm: float, rate: float, tokens: int) -> None:
        progress = self.progress
        progress.recent_loss += loss * tokens
        progress.recent_tokens += tokens
        elapsed = time.perf_counter() - self._recent_start
        record = {
            "kind": "step",
            "step": progress.step,
            "epoch": progress.epoch,
            "loss": progress.recent_loss / progress.recent_tokens,
            "learning_rate": rate,
            "gradient_norm": norm,
            "tokens_per_second": progress.recent_tokens / max(elapsed, 1e-9),
        }
        self.reporter.step(record, self.settings.max_steps)
        if progress.step % self.settings.log_every == 0:
            self.log.write(record)
            progress.recent_loss, progress.recent_tokens = 0.0, 0
            self._recent_start = time.perf_counter()

    # Looking and saving

    def _validate_and_save(self) -> None:
        progress = self.progress
        record = {"kind": "valid", "step": progress.step, "epoch": progress.epoch, **self._validate()}
        metric = self._metric(record)
        if progress.best_metric is None or metric > progress.best_metric:
            progress.best_metric, progress.best_step, progress.without_better = metric, progress.step, 0
            self._publish(record, bundle.named_weights(self.model))
        else:
            progress.without_better += 1
            progress.finished = 0 < self.settings.patience <= progress.without_better
        self.log.write(record)
        self.reporter.validated({**record, "best": progress.best_step == progress.step})
        path = bundle.checkpoint_path(self.directory, progress.step)
        bundle.write_checkpoint(path, checkpoint.pack(self.model, self.optimizer, progress, self.identity))
        bundle.remove_checkpoints(self.directory, keep=max(self.settings.keep_checkpoints, self.settings.average))
        self._recent_start = time.perf_counter()

    def _metric(self, record: dict[str, Any]) -> float:
        """The number to maximise. Without sacrebleu there is only the loss."""
        name = self.settings.valid_metric
        return -float(record["loss"]) if name == "loss" or name not in record else float(record[name])

    def _validate(self) -> dict[str, Any]:
        """Loss without smoothing over all validation pairs; BLEU and chrF of a real, greedy decode."""
        self.model.eval()
        store = self.prepared.valid
        plan = BatchPlan(store.source_lengths, store.target_lengths, batch_tokens=self.settings.batch_tokens, seed=0)
        total, tokens = 0.0, 0
        with torch.inference_mode():
            for rows in plan.epoch(0):
                batch = collate(store, rows)
                total += float(self._loss(batch.to(self.device), label_smoothing=0.0))
                tokens += batch.num_tokens
        record: dict[str, Any] = {"loss": total / tokens}
        translator = Translator(Bundle(self.config, self.prepared.tokenizers, self.model), self.device)
        greedy = DecodeConfig(beam=1, max_extra=self.config.decode.max_extra)
        translations = list(translator.stream([self.prepared.valid_sources], options=greedy))
        try:
            from dragoman.evaluate.metrics import quick_scores

            record |= quick_scores([result.text for result in translations], self.prepared.valid_references)
        except ImportError:
            self.reporter.note("sacrebleu is not installed: the validation metric is the loss")
        record["sample"] = {"source": translations[0].source, "translation": translations[0].text}
        return record

    def _publish(self, record: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Make these weights the model directory's."""
        card = model_card(self.prepared, self.progress, record)
        bundle.save_bundle(self.directory, self.config, self.prepared.tokenizers, weights, card)

    def _average(self) -> bool:
        """The mean of the last checkpoints' weights, kept if it scores higher than the best of them."""
        paths = bundle.checkpoints(self.directory)[-self.settings.average :]
        if len(paths) < 2:
            return False
        mean: dict[str, Tensor] = {}
        for path in paths:
            weights = bundle.weights_from_bytes(bundle.read_checkpoint(path)[bundle.WEIGHTS], path)
            for name, tensor in weights.items():
                mean[name] = mean[name] + tensor.double() if name in mean else tensor.double()
        mean = {name: (tensor / len(paths)).float() for name, tensor in mean.items()}
        bundle.set_weights(self.model, mean, self.directory)
        progress = self.progress
        record = {"kind": "average", "step": progress.step, "checkpoints": len(paths), **self._validate()}
        better = progress.best_metric is None or self._metric(record) > progress.best_metric
        if better:
            progress.best_metric = self._metric(record)
            self._publish(record, mean)
        self.log.write(record)
        self.reporter.validated({**record, "best": better})
        return better
