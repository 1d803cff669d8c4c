"""Snapshots of the attention on one validation pair, one per validation. Knows nothing of pages.

The pair is always the same and its translation is forced, so that only the model's weights change between snapshots.
"""

import base64
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dragoman import files
from dragoman.data.store import Store
from dragoman.decode.translator import Translator
from dragoman.training.checkpoint_files import checkpoint_step

FOLDER = "attention"
MAX_TOKENS = 30  # of the pair, if one is that short


class AttentionSnapshot(NamedTuple):
    """Cross-attention at one step, the mean over heads: [layer, target token, source token]."""

    step: int
    source_tokens: list[str]
    tokens: list[str]
    weights: npt.NDArray[np.float64]


def take_snapshot(valid: Store, translator: Translator) -> dict[str, Any] | None:
    """A snapshot as JSON; None for a model without attention to the source."""
    source, target = _pair(valid)
    source_end = translator.tokenizers.source.vocabulary.eos
    target_end = translator.tokenizers.target.vocabulary.eos
    attention = translator.attention([*source, source_end], [*target, target_end])
    if not len(attention.cross):
        return None
    levels = np.rint(attention.cross.mean(axis=1) * 255).astype(np.uint8)
    return {
        "source_tokens": attention.source_tokens,
        "tokens": attention.tokens,
        "shape": list(levels.shape),
        "bytes": base64.b64encode(levels.tobytes()).decode("ascii"),
    }


def _pair(valid: Store) -> tuple[list[int], list[int]]:
    """The longest of the first validation pairs that is readable as a picture, else the shortest."""
    first = range(min(200, len(valid)))
    pairs = [(valid.source(row).tolist(), valid.target(row).tolist()) for row in first]
    fitting = [pair for pair in pairs if max(map(len, pair)) < MAX_TOKENS]
    return max(fitting, key=_length) if fitting else min(pairs, key=_length)


def _length(pair: tuple[list[int], list[int]]) -> int:
    return max(map(len, pair))


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
