"""The learning rate at a step (section 5.3 of the paper). Knows nothing of optimisers."""

from dragoman.config import TrainConfig


def learning_rate(step: int, config: TrainConfig, d_model: int) -> float:
    """d_model^-0.5 * min(step^-0.5, step * warmup^-1.5): up in a straight line, then down with the square root.

    With train.learning_rate given, the same curve with that peak. Steps count from 1.
    """
    warmup = config.warmup_steps
    peak = (d_model * warmup) ** -0.5 if config.learning_rate is None else config.learning_rate
    return peak * min(step / warmup, (warmup / step) ** 0.5)
