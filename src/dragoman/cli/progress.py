"""The progress of a run: a progress line in a terminal, plain lines in a log. Writes to stderr only."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from dragoman.progress import Advance

SECONDS_BETWEEN_LINES = 10.0  # without a terminal to redraw
SECONDS_BETWEEN_COUNTS = 30.0  # the same, for a job over lines


SCORES = {  # how each metric of a validation is printed, in this order
    "loss": "loss {:.3f}",
    "perplexity": "perplexity {:.2f}",
    "bleu": "BLEU {:.1f}",
    "chrf": "chrF {:.1f}",
    "exact_match": "exact {:.1f}%",
    "accuracy": "accuracy {:.1f}%",
    "macro_f1": "macro F1 {:.1f}%",
    "word_error_rate": "word error rate {:.1f}%",
    "mse": "MSE {:.4f}",
    "mae": "MAE {:.4f}",
}


class TrainingReporter:
    """The training loop's Reporter, on a console."""

    def __init__(self, quiet: bool = False, unit: str = "tokens") -> None:
        self._unit = unit  # what the speed counts
        self.console = Console(stderr=True, highlight=False, quiet=quiet)
        self._progress = Progress(
            TextColumn("[bold]step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task: TaskID | None = None
        self._last_line = time.monotonic()
        self._first: tuple[int, float] | None = None  # a step and its time, to estimate the time left

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        self.console.print(escape(text), soft_wrap=True)

    def working(self, what: str, done: int) -> None:
        if self._quiet():
            return
        self.console.print(f"{escape(what)}: {done:,}")

    def step(self, record: Mapping[str, Any], max_steps: int) -> None:
        described = (
            f"loss {record['loss']:.3f}  {record['tokens_per_second']:,.0f} {self._unit}/s  "
            f"learning rate {record['learning_rate']:.2e}"
        )
        self._first = self._first or (record["step"], time.monotonic())
        if self._task is None:
            self._task = self._progress.add_task("", total=max_steps, completed=record["step"])
        self._progress.update(self._task, completed=record["step"], description=described)
        if not self.console.is_terminal and not self._quiet():
            self.note(
                f"step {record['step']}/{max_steps}  {described}  {self._time_left(record['step'], max_steps)} left"
            )

    def validated(self, record: Mapping[str, Any]) -> None:
        scores = [shown.format(record[name]) for name, shown in SCORES.items() if name in record]
        what = f"average of {record['checkpoints']}" if record["kind"] == "average" else f"step {record['step']}"
        self.note(f"valid  {what}: {'  '.join(scores)}{'  (best so far)' if record['best'] else ''}")
        given, said = (" ".join(text.split()) for text in record["sample"].values())
        self.note(f"       {given} -> {said}" if given else f"       {said}")

    def _time_left(self, step: int, max_steps: int) -> str:
        assert self._first is not None
        taken, since = step - self._first[0], time.monotonic() - self._first[1]
        return str(timedelta(seconds=round((max_steps - step) * since / taken))) if taken else "unknown time"

    def _quiet(self) -> bool:
        """Whether a plain line was printed a moment ago."""
        if time.monotonic() - self._last_line < SECONDS_BETWEEN_LINES:
            return True
        self._last_line = time.monotonic()
        return False


class LineProgress:
    """Progress of a job over lines: a bar in a terminal, an occasional plain line in a log, a final line in both.

    `done` lines are from an earlier run. Without a `total` the time left is unknown. `unit`: what they are called;
    `show_rate`: whether progress includes the speed.
    """

    def __init__(
        self, what: str, total: int | None, done: int = 0, *, unit: str = "lines", show_rate: bool = False
    ) -> None:
        self._what, self._total, self._done, self._before = what, total, done, done
        self._unit, self._show_rate = unit, show_rate
        self._console = Console(stderr=True, highlight=False)
        self._started = self._last_line = time.monotonic()
        self._bar = Progress(
            TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"),
            TimeRemainingColumn(), console=self._console, disable=not self._console.is_terminal, transient=True,
            speed_estimate_period=300.0,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=total, completed=done)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._bar.stop()
        if kind is None:
            lines, seconds = self._done - self._before, time.monotonic() - self._started
            rate = f", {lines / seconds:,.1f} {self._unit}/s" if seconds else ""
            self._print(f"{lines:,} {self._unit} in {seconds:,.1f} s{rate}")

    def advance(self, lines: int) -> None:
        self._done += lines
        now = time.monotonic()
        self._bar.update(self._task, completed=self._done, description=self._rate(now))
        if not self._console.is_terminal and now - self._last_line >= SECONDS_BETWEEN_COUNTS:
            self._last_line = now
            self._print(f"{self._done:,}{self._left(now)}")

    def _rate(self, now: float) -> str:
        seconds = now - self._started
        return f"{(self._done - self._before) / seconds:,.1f} {self._unit}/s" if self._show_rate and seconds else ""

    def _left(self, now: float) -> str:
        lines = self._done - self._before
        if self._total is None:
            return f" {self._unit}"
        left = timedelta(seconds=round((self._total - self._done) * (now - self._started) / lines)) if lines else "?"
        rate = f", {self._rate(now)}" if self._show_rate else ""
        return f" of {self._total:,} {self._unit}{rate}, {left} left"

    def _print(self, text: str) -> None:
        self._console.print(f"{self._what}: {text}", soft_wrap=True, markup=False)


@contextmanager
def counting(what: str, total: int | None, show: bool) -> Iterator[Advance]:
    """A bar for a job that counts; the yielded function advances it."""
    console = Console(stderr=True)
    with Progress(
        TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console,
        disable=not (show and console.is_terminal), transient=True,
    ) as progress:  # fmt: skip
        task = progress.add_task("", total=total)
        yield lambda count: progress.advance(task, count)
