"""One training step: gradients, update, report. Knows nothing of validation or checkpoint files."""

import math
import time
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from dragoman.errors import ConfigError, NonFiniteError
from dragoman.machine import is_out_of_memory
from dragoman.training import checkpoint
from dragoman.training.batches import StepPlan
from dragoman.training.distributed import gradient_norm, is_sharded
from dragoman.training.gradients import PaddedLoss
from dragoman.training.nonfinite import first_nonfinite
from dragoman.training.optimizer import learning_rate
from dragoman.training.run import Run


@dataclass(frozen=True)
class StepResult:
    """The numbers of a step, perhaps still being copied from the GPU."""

    step: int
    plan: StepPlan
    rate: float
    numbers: Tensor  # loss, gradient norm, number of ranks that received a signal
    ready: Any  # a CUDA event, or None
    rng_state: dict[str, Tensor]  # before the step


class Stepper:
    """Takes the steps of a run and reports them."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.stop_requested = False  # whether any rank has received a signal
        self._pending: StepResult | None = None
        self.restart_clock()

    def restart_clock(self) -> None:
        """Measure the reported speed from now on."""
        self._clock_tokens, self._clock_start = 0, time.perf_counter()

    def step(self, plan: StepPlan, batches: list[Any]) -> None:
        """One update from one or more batches, the loss normalised by all their tokens on all ranks."""
        run, number = self.run, self.run.progress.step + 1
        try:
            loss = run.layout.gradients(batches, plan.tokens)
            with run.signals.uninterruptible():
                self._update(plan, loss)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise ConfigError(
                f"train.batch_tokens: out of memory at step {number} in a batch with "
                f"{self._places(plan)}; {run.predicted_peak() / 2**30:.1f} GiB were expected; "
                f"lower train.batch_tokens from {run.settings.batch_tokens} and raise train.accumulate"
            ) from None

    def _update(self, plan: StepPlan, loss: Tensor) -> None:
        """Update the weights, unless a number is not finite: decided on the device, so that the CPU does not wait."""
        run = self.run
        progress, optimizer = run.progress, run.learner.optimizer
        rng_state = run.rng_state
        progress.step += 1
        progress.move_to(plan.epoch, plan.following)
        progress.tokens += plan.tokens
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        norm = gradient_norm(parameters, run.settings.clip_norm or math.inf)
        asked = torch.full_like(loss, float(run.signals.received is not None))
        loss, asked = run.ranks.all_reduce(
            torch.stack((loss, asked))
        )  # in one message: with many ranks a second is dear
        numbers = torch.stack((loss.float(), norm.float(), asked.float()))
        rate = learning_rate(progress.step, run.settings, run.config.model.d_model)
        for group in optimizer.param_groups:
            group["lr"] = rate
        finite = torch.isfinite(numbers).all()
        if optimizer.defaults["fused"] and not is_sharded(run.model):
            optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
            optimizer.step()
        elif bool(finite):
            optimizer.step()
        if run.learner.average is not None:
            run.learner.average.update(progress.step, finite)
        run.signals.patient = True
        self.collect_result()
        self._pending = StepResult(progress.step, plan, rate, *_copy_to_cpu(numbers), rng_state)
        if self._pending.ready is None:
            self.collect_result()
        run.batches.drop_before(plan.batches[0][0])
        run.remember_rng_state()

    def collect_result(self) -> None:
        """Report the last step; on CUDA one step later, when its numbers have arrived."""
        result, self._pending = self._pending, None
        if result is None:
            return
        if result.ready is not None:
            result.ready.synchronize()
        loss, norm, stop = result.numbers.tolist()
        self.stop_requested = stop > 0
        if math.isfinite(loss) and math.isfinite(norm):
            self.run.progress.nonfinite = 0
            self._report(result, loss, norm)
        else:
            self._skip_step(result, loss, norm)

    def _report(self, result: StepResult, loss: float, norm: float) -> None:
        run, progress, tokens = self.run, self.run.progress, result.plan.tokens
        progress.recent_loss += loss * tokens
        progress.recent_tokens += tokens
        self._clock_tokens += tokens
        record = {
            "kind": "step",
            "step": result.step,
            "epoch": result.plan.epoch,
            "loss": progress.recent_loss / progress.recent_tokens,
            "learning_rate": result.rate,
            "gradient_norm": norm,
            "tokens_per_second": self._clock_tokens / max(time.perf_counter() - self._clock_start, 1e-9),
        }
        run.reporter.step(record, run.settings.max_steps)
        if result.step % run.settings.log_every == 0:
            run.log.write(record)
            progress.recent_loss, progress.recent_tokens = 0.0, 0
            self.restart_clock()

    def _skip_step(self, result: StepResult, loss: float, norm: float) -> None:
        """A step that is not finite changes no weight and is logged with its lines; too many in a row end the run."""
        run, progress, plan = self.run, self.run.progress, result.plan
        progress.nonfinite += 1
        lines = [run.prepared.train.place(int(row)) for _, rows in plan.batches for row in rows]
        what = f"loss ({loss})" if not math.isfinite(loss) else f"gradient (norm {norm})"
        began = self._diagnose(result)
        record = {"kind": "nonfinite", "step": result.step, "loss": loss, "gradient_norm": norm}
        run.log.write({**record, "began": began, "lines": lines})
        message = f"step {result.step}: non-finite {what} in a batch with {self._places(plan)}; first seen in {began}"
        run.reporter.note(f"{message}; no weight was changed")
        if progress.nonfinite >= run.settings.nonfinite_limit:
            raise NonFiniteError(
                f"{message}; {progress.nonfinite} steps in a row: lower train.learning_rate or raise train.warmup_steps"
            )

    def _diagnose(self, result: StepResult) -> str:
        """Run the step's batches again on the plain path, with the same dropout where possible."""
        run = self.run
        if run.ranks.world > 1:
            return "a layer that can be named only in a single-process run"
        plain = PaddedLoss(run.task, run.model, run.precision, run.settings.label_smoothing, run.settings.r_drop)
        now, began = checkpoint.rng_state(run.device), None
        checkpoint.set_rng_state(result.rng_state, run.device)
        try:
            padded = (run.layout.padded(epoch, rows) for epoch, rows in result.plan.batches)
            for group in chain.from_iterable(padded):
                began = first_nonfinite(run.model, lambda group=group: plain(group.to(run.device)))  # type: ignore[misc]
                if began is not None:
                    break
        finally:
            checkpoint.set_rng_state(now, run.device)
        return began or "a layer that could not be found by running the batch again"

    def _places(self, plan: StepPlan) -> str:
        rows = [row for _, rows in plan.batches for row in rows]
        first = ", ".join(self.run.prepared.train.place(int(row)) for row in rows[:3])
        return f"{first} and {len(rows) - 3} more" if len(rows) > 3 else first


def _copy_to_cpu(numbers: Tensor) -> tuple[Tensor, Any]:
    """Start a copy to the CPU; on CUDA, also return the event after which it is complete."""
    if not numbers.is_cuda:
        return numbers, None
    copied = numbers.to("cpu", non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return copied, event
