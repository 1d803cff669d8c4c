"""The attention of one validation pair, taken down at each validation: how it forms. Knows nothing of pages.

The translation is forced, and always the same: only the weights differ from one step to the next.
"""

import base64
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dragoman import bundle
from dragoman.decode.translator import Translator
from dragoman.text.tokenizer import EOS
from dragoman.train.prepare import Prepared

FOLDER = "attention"
MOST_TOKENS = 30  # of the pair, where there is one that short


class Look(NamedTuple):
    """Cross-attention at one step, the mean over heads: [layer, target token, source token]."""

    step: int
    source_tokens: list[str]
    tokens: list[str]
    weights: npt.NDArray[np.float64]


def take_look(prepared: Prepared, translator: Translator) -> dict[str, Any] | None:
    """As JSON; None where a model does not look back at the source."""
    source, target = _pair(prepared)
    attention = translator.attention([*source, EOS], [*target, EOS])
    if not len(attention.cross):
        return None
    levels = np.rint(attention.cross.mean(axis=1) * 255).astype(np.uint8)
    return {
        "source_tokens": attention.source_tokens,
        "tokens": attention.tokens,
        "shape": list(levels.shape),
        "bytes": base64.b64encode(levels.tobytes()).decode("ascii"),
    }


def _pair(prepared: Prepared) -> tuple[list[int], list[int]]:
    """The longest of the first validation pairs that can be read as a picture, else the shortest."""
    first = range(min(200, len(prepared.valid)))
    pairs = [(prepared.valid.source(row).tolist(), prepared.valid.target(row).tolist()) for row in first]
    fitting = [pair for pair in pairs if max(map(len, pair)) < MOST_TOKENS]
    return max(fitting, key=_length) if fitting else min(pairs, key=_length)


def _length(pair: tuple[list[int], list[int]]) -> int:
    return max(map(len, pair))


def write_look(run: Path, step: int, look: dict[str, Any]) -> None:
    bundle.make_directory(run / FOLDER)
    bundle.write_file(_path(run, step), json.dumps(look, ensure_ascii=False).encode())


def _path(run: Path, step: int) -> Path:
    return run / FOLDER / f"step-{step:06d}.json"


def read_looks(run: Path, last_step: int) -> list[Look]:
    """In the order of steps, up to the last that the run has taken."""
    looks = []
    steps = sorted(bundle.checkpoint_step(path.with_suffix("")) for path in (run / FOLDER).glob("step-*.json"))
    for step in steps:
        if step <= last_step:
            look = json.loads(_path(run, step).read_bytes())
            levels = np.frombuffer(base64.b64decode(look["bytes"]), np.uint8).reshape(look["shape"])
            looks.append(Look(step, look["source_tokens"], look["tokens"], levels / 255))
    return looks
