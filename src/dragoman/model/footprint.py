"""The size of a model, predicted from its configuration alone: nothing is allocated. Knows nothing of training."""

import math
import re

from dragoman.config import ModelConfig, RecurrentConfig
from dragoman.model.shapes import weight_shapes

# the parts of a model in the order of the forward pass, and what the names of their weights begin with
_TRANSFORMER = {
    "source embedding": r"source_embedding",
    "target embedding": r"target_embedding",
    "positions": r"\w+\.positions",
    "encoder self-attention": r"encoder\.layers\.\d+\.self_attention\.",
    "encoder feed-forward": r"encoder\.layers\.\d+\.feed_forward\.",
    "encoder layer norm": r"encoder\..*norm",
    "decoder self-attention": r"decoder\.layers\.\d+\.self_attention\.",
    "decoder cross-attention": r"decoder\.layers\.\d+\.cross_attention\.",
    "decoder feed-forward": r"decoder\.layers\.\d+\.feed_forward\.",
    "decoder layer norm": r"decoder\..*norm",
    "output projection": r"output",
}
_RECURRENT = {
    "source embedding": r"source_embedding",
    "target embedding": r"target_embedding",
    "encoder cells": r"encoder",
    "decoder cells": r"decoder",
    "attention score": r"score",
    "context and state joined": r"join",
    "output projection": r"output",
}


def parameter_counts(config: ModelConfig) -> dict[str, int]:
    """Parameters by part, in the order of the forward pass. Shared matrices are counted once, where first used."""
    sizes = {name: math.prod(shape) for name, shape in weight_shapes(config).items()}
    parts = _RECURRENT if isinstance(config, RecurrentConfig) else _TRANSFORMER
    counts = {
        part: sum(size for name, size in sizes.items() if re.match(beginning, name))
        for part, beginning in parts.items()
    }
    return {part: count for part, count in counts.items() if count}


def parameter_table(config: ModelConfig) -> str:
    """The same as text: one line per part with its share, and the total."""
    counts = parameter_counts(config)
    total = sum(counts.values())
    rows = [f"{part:<24} {count:>13,}  {count / total:>6.1%}" for part, count in counts.items()]
    return "\n".join([*rows, f"{'total':<24} {total:>13,}  {total / 1e6:.1f}M"])
