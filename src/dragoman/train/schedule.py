"""The learning rate at a step (section 5.3 of the paper), and what came after it. Knows nothing of optimisers."""

import math

from dragoman.config import TrainConfig


def learning_rate(step: int, config: TrainConfig, d_model: int) -> float:
    """Up in a straight line for warmup_steps, then down as train.schedule says. Steps count from 1.

    inverse-sqrt is the paper's: d_model^-0.5 * min(step^-0.5, step * warmup^-1.5), or the same curve with the peak
    train.learning_rate. cosine and linear reach train.final_learning_rate at train.max_steps; constant stays.
    """
    warmup = config.warmup_steps
    peak = (d_model * warmup) ** -0.5 if config.learning_rate is None else config.learning_rate
    if step <= warmup:
        return peak * step / warmup
    if config.schedule == "inverse-sqrt":
        return peak * (warmup / step) ** 0.5
    if config.schedule == "constant":
        return peak
    left = max(0.0, (config.max_steps - step) / max(1, config.max_steps - warmup))
    share = left if config.schedule == "linear" else (1 - math.cos(math.pi * left)) / 2
    return config.final_learning_rate + (peak - config.final_learning_rate) * share
