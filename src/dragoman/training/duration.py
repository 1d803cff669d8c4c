"""Predict how long a run takes before its first step. Knows nothing of the loop.

Counted: six operations for each weight and token that meets it, at the rate of one matrix product of the model's own
shape, measured now. Not counted: attention itself, validation, saving.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch

from dragoman.config import CLASSIFICATION, Config, LayersConfig
from dragoman.device import is_slow_in_bfloat16
from dragoman.model.footprint import parameter_counts
from dragoman.tasks.task import AnyStore

EFFICIENCY = {"cpu": 0.6, "cuda": 0.5}  # of the product's rate that a step reaches
SECONDS_PER_PASS = {"cpu": 0.01, "cuda": 0.004}  # seconds that do not depend on the number of tokens
MOST_ROWS = {"cpu": 512, "cuda": 1 << 16}  # of the product; with more a CPU is hardly faster per row
REPEATS = 3


@dataclass(frozen=True)
class Duration:
    """What is left of a run."""

    steps: int
    epochs: float
    seconds: float | None  # None: no prediction for this model or device

    def describe(self) -> str:
        """One line for people."""
        line = f"{self.steps:,} steps to go, about {self.epochs:.1f} epochs"
        return line if self.seconds is None else f"{line}; roughly {_rounded(self.seconds)} without validation"


def predict_duration(
    config: Config, store: AnyStore, device: torch.device, precision: torch.dtype, steps: int, world: int = 1
) -> Duration:
    """Predict the rest of a run: `steps` on `world` processes."""
    settings = config.train
    passes = settings.accumulate * (2 if settings.r_drop else 1)
    seen = float(steps * settings.batch_tokens * settings.accumulate * world)
    epochs = seen / float(store.sizes.sum() if config.task == CLASSIFICATION else store.target_sizes.sum())
    if not isinstance(config.model, LayersConfig) or device.type not in EFFICIENCY:
        return Duration(steps, epochs, None)
    if precision == torch.bfloat16 and is_slow_in_bfloat16(device):
        return Duration(steps, epochs, None)  # even the product would take long
    source_per_target = 1.0 if config.task == CLASSIFICATION else store.source_sizes.mean() / store.target_sizes.mean()
    work = settings.batch_tokens * operations_per_token(config.model, float(source_per_target))
    rate = EFFICIENCY[device.type] * product_rate(config.model, settings.batch_tokens, device, precision)
    return Duration(steps, epochs, steps * passes * (work / rate + SECONDS_PER_PASS[device.type]))


def operations_per_token(model: Any, source_per_target: float) -> float:
    """Operations of a forward and a backward pass for a target token and its share of source tokens."""
    counts = parameter_counts(model)
    encoder = sum(count for part, count in counts.items() if part.startswith("encoder"))
    decoder = sum(count for part, count in counts.items() if part.startswith("decoder"))
    output = model.target_vocabulary * model.stacks["decoder"].d_model if decoder else 0
    return 6.0 * (encoder * source_per_target + decoder + output)


def product_rate(model: LayersConfig, tokens: int, device: torch.device, precision: torch.dtype) -> float:
    """Operations per second of the first product of a feed-forward layer, the best of a few."""
    rows = min(tokens, MOST_ROWS[device.type])
    x = torch.full((rows, model.d_model), 0.5, device=device, dtype=precision)
    weight = torch.full((model.d_model, model.d_ff), 0.5, device=device, dtype=precision)
    seconds = []
    for _ in range(1 + REPEATS):  # the first one also prepares
        started = time.perf_counter()
        for _ in range(REPEATS):
            x @ weight
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
    return REPEATS * 2.0 * rows * weight.numel() / min(seconds[1:])


def _rounded(seconds: float) -> str:
    """Two digits at most: `40 seconds`, `3 minutes`, `1.5 hours`."""
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)):
        count = seconds / size
        shown = f"{count:.0f}" if count >= 9.95 or unit == "second" else f"{count:.1f}".removesuffix(".0")
        if float(shown) >= 1:
            return f"{shown} {unit}{'' if shown == '1' else 's'}"
    return "a second"
