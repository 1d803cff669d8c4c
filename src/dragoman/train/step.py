"""One step of a run: gradients, Adam's update, what came of it. Knows nothing of validation or checkpoints' files."""

import math
import time
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from dragoman.errors import ConfigError, NonFiniteError
from dragoman.model.device import is_out_of_memory
from dragoman.train import checkpoint
from dragoman.train.diagnose import where_it_began
from dragoman.train.distributed import gradient_norm, is_sharded
from dragoman.train.feed import Plan
from dragoman.train.layout import PaddedLoss
from dragoman.train.run import Run
from dragoman.train.schedule import learning_rate


@dataclass(frozen=True)
class Outcome:
    """What came of a step, perhaps still on its way from the GPU."""

    step: int
    plan: Plan
    rate: float
    numbers: Tensor  # loss, norm of the gradient, ranks that a signal reached
    ready: Any  # a CUDA event, or None
    random: dict[str, Tensor]  # before the step


class Stepper:
    """Takes the steps of a run and tells of each."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.asked_anywhere = False  # whether a signal has reached any rank
        self._pending: Outcome | None = None
        self.restart_clock()

    def restart_clock(self) -> None:
        """The speed that is told is of the steps from now on."""
        self._clock_tokens, self._clock_start = 0, time.perf_counter()

    def step(self, plan: Plan, batches: list[Any]) -> None:
        """One update from one or more batches, the loss normalised by all their tokens on all ranks."""
        run, number = self.run, self.run.progress.step + 1
        try:
            loss = run.feed.layout.gradients(batches, plan.tokens)
            with run.signals.uninterrupted():
                self._update(plan, loss)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise ConfigError(
                f"train.batch_tokens: out of memory at step {number} in a batch with "
                f"{self._places(plan)}; {run.predicted_peak() / 2**30:.1f} GiB were expected; "
                f"lower train.batch_tokens from {run.settings.batch_tokens} and raise train.accumulate"
            ) from None

    def _update(self, plan: Plan, loss: Tensor) -> None:
        """Adam's step, unless something is not finite: decided where the numbers are, so that nobody waits for them."""
        run = self.run
        progress, optimizer = run.progress, run.learner.optimizer
        before = run.random
        progress.step += 1
        progress.move_to(plan.epoch, plan.following)
        progress.tokens += plan.tokens
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        norm = gradient_norm(parameters, run.settings.clip_norm or math.inf)
        asked = torch.full_like(loss, float(run.signals.asked is not None))
        loss, asked = run.ranks.total(torch.stack((loss, asked)))  # in one message: with many ranks a second is dear
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
            run.learner.average.follow(progress.step, finite)
        run.signals.patient = True
        self.settle()
        self._pending = Outcome(progress.step, plan, rate, *_on_its_way(numbers), before)
        if self._pending.ready is None:
            self.settle()
        run.feed.stores.forget_before(plan.batches[0][0])
        run.mark()

    def settle(self) -> None:
        """Look at what came of the last step; on CUDA that is one step later, when it has long been there."""
        outcome, self._pending = self._pending, None
        if outcome is None:
            return
        if outcome.ready is not None:
            outcome.ready.synchronize()
        loss, norm, asked = outcome.numbers.tolist()
        self.asked_anywhere = asked > 0
        if math.isfinite(loss) and math.isfinite(norm):
            self.run.progress.nonfinite = 0
            self._report(outcome, loss, norm)
        else:
            self._leave_out(outcome, loss, norm)

    def _report(self, outcome: Outcome, loss: float, norm: float) -> None:
        run, progress, tokens = self.run, self.run.progress, outcome.plan.tokens
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
        run.reporter.step(record, run.settings.max_steps)
        if outcome.step % run.settings.log_every == 0:
            run.log.write(record)
            progress.recent_loss, progress.recent_tokens = 0.0, 0
            self.restart_clock()

    def _leave_out(self, outcome: Outcome, loss: float, norm: float) -> None:
        """A step that is not finite changes no weight and is logged with its lines; too many in a row end the run."""
        run, progress, plan = self.run, self.run.progress, outcome.plan
        progress.nonfinite += 1
        lines = [run.prepared.train.place(int(row)) for _, rows in plan.batches for row in rows]
        what = f"loss ({loss})" if not math.isfinite(loss) else f"gradient (norm {norm})"
        began = self._diagnose(outcome)
        record = {"kind": "nonfinite", "step": outcome.step, "loss": loss, "gradient_norm": norm}
        run.log.write({**record, "began": began, "lines": lines})
        message = f"step {outcome.step}: non-finite {what} in a batch with {self._places(plan)}; it began in {began}"
        run.reporter.note(f"{message}; no weight was changed")
        if progress.nonfinite >= run.settings.nonfinite_limit:
            raise NonFiniteError(
                f"{message}; {progress.nonfinite} steps in a row: lower train.learning_rate or raise train.warmup_steps"
            )

    def _diagnose(self, outcome: Outcome) -> str:
        """The plain path goes through the step's batches again, with the same dropout where that is possible."""
        run = self.run
        if run.ranks.world > 1:
            return "a layer that only a run in one process can name"
        plain = PaddedLoss(run.model, run.precision, run.settings.label_smoothing, run.settings.r_drop)
        now, began = checkpoint.random_state(run.device), None
        checkpoint.set_random_state(outcome.random, run.device)
        try:
            padded = (run.feed.layout.padded(epoch, rows) for epoch, rows in outcome.plan.batches)
            for group in chain.from_iterable(padded):
                began = where_it_began(run.model, lambda group=group: plain(group.to(run.device)))  # type: ignore[misc]
                if began is not None:
                    break
        finally:
            checkpoint.set_random_state(now, run.device)
        return began or "a place that does not show when the batch is run again"

    def _places(self, plan: Plan) -> str:
        rows = [row for _, rows in plan.batches for row in rows]
        first = ", ".join(self.run.prepared.train.place(int(row)) for row in rows[:3])
        return f"{first} and {len(rows) - 3} more" if len(rows) > 3 else first


def _on_its_way(numbers: Tensor) -> tuple[Tensor, Any]:
    """A copy on the CPU, and on CUDA the event after which it is there."""
    if not numbers.is_cuda:
        return numbers, None
    copied = numbers.to("cpu", non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return copied, event
