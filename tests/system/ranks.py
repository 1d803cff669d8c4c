"""The script that test_distributed.py starts with torchrun: several short runs in the same processes.

    torchrun ... tests/system/ranks.py JOBS.json

Each job is a run: its directory, its settings and what to change in it. What a process read and wrote is recorded
beside the jobs, in one file per job and rank.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from dragoman.config import Config
from dragoman.data import sampled
from dragoman.data.batching import Batch
from dragoman.data.sampled import sampled_store
from dragoman.errors import DragomanError
from dragoman.tasks.translation import TranslationTask
from dragoman.training import checkpoint, loop
from dragoman.training.gradients import _Layout

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
WRITES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink")
gradients, collate = _Layout.gradients, TranslationTask.collate
rows_of: dict[int, list[int]] = {}  # of a batch, by the id of its tensor
kept: list[Batch] = []

written: list[str] = []


def audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Every file that is opened for writing, made, renamed or removed."""
    if event == "open" and isinstance(arguments[0], str) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
        written.append(arguments[0])
    elif event in WRITES:
        written.append(str(arguments[0]))


def collate_noting_rows(self: TranslationTask, store: Any, rows: Any) -> Batch:
    batch = collate(self, store, rows)
    rows_of[id(batch.source_ids)] = rows.tolist()
    kept.append(batch)  # so that no other batch gets its id
    return batch


def recording(rows: list[list[list[int]]]) -> Callable[..., Tensor]:
    def wrapped(self: _Layout, batches: Sequence[Any], tokens: int) -> Tensor:
        rows.append([rows_of[id(batch.source_ids)] for batch in batches])
        return gradients(self, batches, tokens)

    return wrapped


def normalised_by_rank(self: _Layout, batches: Sequence[Any], tokens: int) -> Tensor:
    """The wrong way: each rank divides by its own tokens, then the means of the ranks are averaged."""
    return gradients(self, batches, WORLD * sum(batch.num_tokens for batch in batches))


def killed(rank: int) -> Callable[..., Tensor]:
    """One process killed in its sixth step, in its first life."""
    steps = iter(range(1, 1_000))

    def wrapped(self: _Layout, batches: Sequence[Any], tokens: int) -> Tensor:
        if next(steps) == 6 and rank == RANK and ATTEMPT == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return gradients(self, batches, tokens)

    return wrapped


def signalled() -> Callable[..., Tensor]:
    """A signal to rank 1 alone, during its sixth step."""
    steps = iter(range(1, 1_000))

    def wrapped(self: _Layout, batches: Sequence[Any], tokens: int) -> Tensor:
        loss = gradients(self, batches, tokens)
        if next(steps) == 6 and RANK == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    return wrapped


def out_of_memory(self: _Layout, batches: Sequence[Any], tokens: int) -> Tensor:
    if RANK == 1:
        raise torch.OutOfMemoryError("out of memory")
    return gradients(self, batches, tokens)


def not_a_number(self: _Layout, batches: Sequence[Any], tokens: int) -> Tensor:
    return gradients(self, batches, tokens) * float("nan" if RANK == 1 else "1")


def sees_no_newest(run: Path, warn: Callable[[str], None]) -> Any:
    """A file system that shows other ranks an older state, without the newest checkpoint."""
    found = checkpoint_newest(run, warn)
    return found if RANK == 0 else None


checkpoint_newest = checkpoint.newest


def slowly_opened(*arguments: Any, **options: Any) -> Any:
    """Rank 1 is slow to open what rank 0 has written."""
    if RANK == 1:
        torch.randn(1500, 1500) @ torch.randn(1500, 1500)
    return sampled_store(*arguments, **options)


@contextmanager
def _both(one: Any, other: Any) -> Iterator[None]:
    with one, other:
        yield


def changes(names: Sequence[str], rows: list[list[list[int]]]) -> list[Any]:
    known: dict[str, Callable[[], Any]] = {
        "record rows": lambda: _both(
            patch.object(_Layout, "gradients", recording(rows)),
            patch.object(TranslationTask, "collate", collate_noting_rows),
        ),
        "normalise by rank": lambda: patch.object(_Layout, "gradients", normalised_by_rank),
        "lose random state": lambda: patch.object(checkpoint, "own_rng_state", lambda *_: None),
        "kill rank 0": lambda: patch.object(_Layout, "gradients", killed(0)),
        "kill rank 1": lambda: patch.object(_Layout, "gradients", killed(1)),
        "signal rank 1": lambda: patch.object(_Layout, "gradients", signalled()),
        "no memory in rank 1": lambda: patch.object(_Layout, "gradients", out_of_memory),
        "nan in rank 1": lambda: patch.object(_Layout, "gradients", not_a_number),
        "old picture": lambda: patch.object(checkpoint, "newest", sees_no_newest),
        "slow to open": lambda: patch.object(sampled, "sampled_store", slowly_opened),
    }
    return [known[name]() for name in names]


def main() -> None:
    place = Path(sys.argv[1])
    sys.addaudithook(audit)
    for number, job in enumerate(json.loads(place.read_bytes())):
        rows: list[list[list[int]]] = []
        written.clear()
        with ExitStack() as stack:
            for change in changes(job["changes"], rows):
                stack.enter_context(change)
            try:
                loop.train(Config.build("tiny", None, job["settings"], data=job["data"]), Path(job["run"]))
            except DragomanError as error:
                print(f"dragoman: {error}", file=sys.stderr)
                sys.exit(error.exit_code)
        run = str(Path(job["run"]))
        noted = {"rows": rows, "written": [path for path in written if path.startswith(run)]}
        place.with_name(f"{number}-{RANK}.json").write_text(json.dumps(noted))


if __name__ == "__main__":
    main()
