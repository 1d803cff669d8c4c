"""How a run reports: to people through a Reporter, to programs through log.jsonl and trackers.

Knows nothing of terminals or of any tracker: the command line has its own Reporter, trackers.py the trackers.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from dragoman.errors import ModelError
from dragoman.files import disk_error, write_file

LOG = "log.jsonl"
FINISHED = "end"  # the kind of a finished run's last record
FINAL_KINDS = ("average", "memory", FINISHED)  # kinds of records written after the last step


class Reporter(Protocol):
    """Shows a run to people. Every method may do nothing."""

    def note(self, text: str) -> None:
        """A message, shown once."""

    def working(self, what: str, done: int) -> None:
        """Progress of the preparation, in lines for example."""

    def step(self, record: Mapping[str, Any], max_steps: int) -> None:
        """A training step is done."""

    def validated(self, record: Mapping[str, Any]) -> None:
        """A validation is done."""


class SilentReporter:
    """A Reporter that shows nothing."""

    def note(self, text: str) -> None: ...
    def working(self, what: str, done: int) -> None: ...
    def step(self, record: Mapping[str, Any], max_steps: int) -> None: ...
    def validated(self, record: Mapping[str, Any]) -> None: ...


class Tracker(Protocol):
    """Receives the numbers of a run."""

    def write(self, record: Mapping[str, Any]) -> None:
        """Record the numbers, each as kind/name at the record's step."""

    def close(self) -> None:
        """The run is over."""


class RunLog:
    """DIR/log.jsonl, one object per line, copied to the trackers. Closing the log closes them."""

    def __init__(
        self, run: Path, resume_step: int, trackers: Sequence[Tracker] = (), *, validated: bool = True,
        finished: bool = True,
    ) -> None:  # fmt: skip
        self._path, self._trackers = run / LOG, trackers
        # drop what will be logged again: everything after the checkpoint, and its validation if that was interrupted
        last = {"valid": resume_step - (not validated)}
        last |= dict.fromkeys(FINAL_KINDS, resume_step - (not finished))
        kept = [record for record in read_log(run) if record["step"] <= last.get(record["kind"], resume_step)]
        write_file(self._path, "".join(_line(record) for record in kept).encode())
        self._file = self._path.open("a", encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        line = _line(record)
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise disk_error(self._path, len(line), error) from None
        for tracker in self._trackers:
            tracker.write(record)

    def close(self) -> None:
        with suppress(OSError):  # a full disk, which `write` has reported
            self._file.close()
        for tracker in self._trackers:
            tracker.close()


class NoLog:
    """The log of every rank but the first: none."""

    def write(self, record: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


def json_values(record: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no numbers that are not finite: they become text that float() reads."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }


def show_score(score: float, format_spec: str) -> str:
    """A score as text."""
    return format(score, format_spec) if math.isfinite(score) else "not finite"


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(json_values(record), ensure_ascii=False, allow_nan=False) + "\n"


def is_finished(run: Path, step: int) -> bool:
    """Whether the run was completed at this step, reports included."""
    return any(record["kind"] == FINISHED and record["step"] == step for record in read_log(run))


def read_log(run: Path) -> list[dict[str, Any]]:
    """Every complete line; a kill may have cut off the last one."""
    path = run / LOG
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError:
            raise ModelError(f"{path}:{number}: not a log line; fix or remove the file to continue") from None
    return records
