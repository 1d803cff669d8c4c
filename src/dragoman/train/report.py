"""What a run tells the world: people through a Reporter, programs through log.jsonl, TensorBoard when installed.

Knows nothing of terminals: the command line brings its own Reporter.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from dragoman.bundle import write_file

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
        self._forget_after(resume_step)
        self._file = self._path.open("a", encoding="utf-8")
        self._board = _tensorboard(run / "tensorboard", resume_step)

    def write(self, record: Mapping[str, Any]) -> None:
        self._file.write(_line(record))
        self._file.flush()
        if self._board is not None:
            for name, value in record.items():
                if isinstance(value, int | float) and name != "step":
                    self._board.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()

    def _forget_after(self, step: int) -> None:
        """What a stopped run logged after its last checkpoint will be logged again; so will the average."""
        if self._path.exists():
            whole = self._path.read_text(encoding="utf-8").split("\n")[:-1]  # a kill may have cut the last line
            records = [json.loads(line) for line in whole]
            kept = [record for record in records if record["step"] <= step and record["kind"] != "average"]
            write_file(self._path, "".join(_line(record) for record in kept).encode())


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def read_log(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / LOG).read_text(encoding="utf-8").split("\n") if line]


def _tensorboard(directory: Path, resume_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(directory), purge_step=resume_step + 1 if resume_step else None)
