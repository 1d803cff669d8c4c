"""What a run tells the world: people through a Reporter, programs through log.jsonl and trackers.

Knows nothing of terminals nor of any tracker: the command line brings its own Reporter, trackers.py the trackers.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from dragoman.bundle import disk_error, write_file
from dragoman.errors import ModelError

LOG = "log.jsonl"
ENDED = "end"  # the kind of the record that a finished run writes last
AT_THE_END = ("average", "memory", ENDED)  # kinds of what comes after the last step


class Reporter(Protocol):
    """A person watching. Every method may do nothing."""

    def note(self, text: str) -> None:
        """Something worth knowing, once."""

    def working(self, what: str, done: int) -> None:
        """Preparation moves on: so many lines read, say."""

    def step(self, record: Mapping[str, Any], max_steps: int) -> None:
        """One training step was taken."""

    def validated(self, record: Mapping[str, Any]) -> None:
        """The model was looked at."""


class Silent:
    """A Reporter that says nothing."""

    def note(self, text: str) -> None: ...
    def working(self, what: str, done: int) -> None: ...
    def step(self, record: Mapping[str, Any], max_steps: int) -> None: ...
    def validated(self, record: Mapping[str, Any]) -> None: ...


class Tracker(Protocol):
    """A program watching."""

    def write(self, record: Mapping[str, Any]) -> None:
        """The numbers of a record, each under kind/name at the record's step."""

    def close(self) -> None:
        """No record will follow."""


class RunLog:
    """DIR/log.jsonl, one object a line; each goes to the trackers too. Closing the log closes them."""

    def __init__(
        self, run: Path, resume_step: int, trackers: Sequence[Tracker] = (), *, validated: bool = True,
        ended: bool = True,
    ) -> None:  # fmt: skip
        self._path, self._trackers = run / LOG, trackers
        # what came after the checkpoint will be logged again; that may be the validation of its own step
        last = {"valid": resume_step - (not validated)}
        last |= dict.fromkeys(AT_THE_END, resume_step - (not ended))
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
        with suppress(OSError):  # a full disk, which `write` told of
            self._file.close()
        for tracker in self._trackers:
            tracker.close()


class NoLog:
    """Where the ranks write that do not."""

    def write(self, record: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


def json_values(record: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no word for numbers that are not finite: they go as text, which float() reads."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }


def show_score(score: float, format_spec: str) -> str:
    """For people."""
    return format(score, format_spec) if math.isfinite(score) else "not finite"


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(json_values(record), ensure_ascii=False, allow_nan=False) + "\n"


def has_ended(run: Path, step: int) -> bool:
    """Whether all that comes after the last step was done at this one."""
    return any(record["kind"] == ENDED and record["step"] == step for record in read_log(run))


def read_log(run: Path) -> list[dict[str, Any]]:
    """Every whole line; a kill may have cut the last one."""
    path = run / LOG
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError:
            raise ModelError(f"{path}:{number}: not a log line; fix or remove the file to continue") from None
    return records
