"""The files of attention snapshots, one per validation. Knows nothing of pages, nor of how one is taken."""

import base64
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dragoman import files
from dragoman.training.checkpoint_files import checkpoint_step

FOLDER = "attention"


class AttentionSnapshot(NamedTuple):
    """Cross-attention at one step, the mean over heads: [layer, target token, source token]."""

    step: int
    source_tokens: list[str]
    tokens: list[str]
    weights: npt.NDArray[np.float64]


def write_snapshot(run: Path, step: int, snapshot: dict[str, Any]) -> None:
    files.make_directory(run / FOLDER)
    files.write_file(_path(run, step), json.dumps(snapshot, ensure_ascii=False).encode())


def _path(run: Path, step: int) -> Path:
    return run / FOLDER / f"step-{step:06d}.json"


def read_snapshots(run: Path, last_step: int) -> list[AttentionSnapshot]:
    """Ordered by step, up to the last step of the run."""
    snapshots = []
    steps = sorted(checkpoint_step(path.with_suffix("")) for path in (run / FOLDER).glob("step-*.json"))
    for step in steps:
        if step <= last_step:
            snapshot = json.loads(_path(run, step).read_bytes())
            levels = np.frombuffer(base64.b64decode(snapshot["bytes"]), np.uint8).reshape(snapshot["shape"])
            snapshots.append(AttentionSnapshot(step, snapshot["source_tokens"], snapshot["tokens"], levels / 255))
    return snapshots
