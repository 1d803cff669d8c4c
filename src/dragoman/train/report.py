"""What a run tells the world: people through a Reporter, programs through log.jsonl, TensorBoard when installed.

Knows nothing of terminals: the command line brings its own Reporter.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from dragoman.bundle import disk_error, write_file
from dragoman.errors import ModelError

LOG = "log.jsonl"


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


class RunLog:
    """DIR/log.jsonl, one object a line, and TensorBoard event files in DIR/tensorboard when it is installed."""

    def __init__(self, run: Path, resume_step: int) -> None:
        self._path = run / LOG
        kept = [record for record in read_log(run) if record["step"] <= resume_step]
        # what came after the checkpoint will be logged again
        write_file(self._path, "".join(_line(record) for record in kept).encode())
        self._file = self._path.open("a", encoding="utf-8")
        self._board = _tensorboard(run / "tensorboard", resume_step)

    def write(self, record: Mapping[str, Any]) -> None:
        line = _line(record)
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise disk_error(self._path, len(line), error) from None
        if self._board is not None:
            for name, value in record.items():
                if isinstance(value, int | float) and name != "step":
                    self._board.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def read_log(run: Path) -> list[dict[str, Any]]:
    """Every whole line; a kill may have cut the last one."""
    path = run / LOG
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError:
            raise ModelError(f"{path}:{number}: not a log line; mend or remove the file to go on") from None
    return records


def _tensorboard(directory: Path, resume_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(directory), purge_step=resume_step + 1 if resume_step else None)
