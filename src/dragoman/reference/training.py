"""Training (section 5 of the paper): the label-smoothed loss, Adam, the warm-up. Knows nothing of the data.

Shapes: B sentences, S source positions, T target positions, V target vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dragoman.reference import transformer
from dragoman.reference.functions import Array, Ids, Mask, Saved
from dragoman.reference.parameters import Config, Parameters

PAD = 0  # the target id that is not counted


def smoothed_loss(logits_BTV: Array, target_BT: Ids, smoothing: float) -> tuple[float, Saved]:
    """-sum_v q_v log p_v, summed over the real target tokens: p = softmax(logits), q = 1 - e on the right token
    plus e spread evenly over all."""
    vocabulary = logits_BTV.shape[-1]
    shifted_BTV = logits_BTV - logits_BTV.max(axis=-1, keepdims=True)
    log_p_BTV = shifted_BTV - np.log(np.exp(shifted_BTV).sum(axis=-1, keepdims=True))
    q_BTV = (1.0 - smoothing) * np.eye(vocabulary)[target_BT] + smoothing / vocabulary
    counted_BT1 = (target_BT != PAD)[..., None]
    loss = -(q_BTV * log_p_BTV * counted_BT1).sum()
    return float(loss), (log_p_BTV, q_BTV, counted_BT1)


def smoothed_loss_backward(saved: Saved) -> Array:
    """dlogits = p - q at every real token, 0 at padding."""
    log_p_BTV, q_BTV, counted_BT1 = saved
    return (np.exp(log_p_BTV) - q_BTV) * counted_BT1


class Batch(NamedTuple):
    """Sentences of unequal length. The decoder reads `target_ids` and predicts `goal_ids`, always the next id."""

    source_ids: Ids  # [B, S]
    source_allowed: Mask  # [B, S]
    target_ids: Ids  # [B, T]
    goal_ids: Ids  # [B, T]


def loss_and_gradients(
    parameters: Parameters,
    config: Config,
    batch: Batch,
    dropout_masks: Mapping[str, Array] | None = None,
    smoothing: float = 0.1,
) -> tuple[float, Parameters]:
    """The mean loss per real token, and its gradient by every parameter."""
    tokens = int((batch.goal_ids != PAD).sum())
    logits_BTV, run = transformer.forward(
        parameters, config, batch.source_ids, batch.target_ids, batch.source_allowed, dropout_masks
    )
    loss, saved = smoothed_loss(logits_BTV, batch.goal_ids, smoothing)
    return loss / tokens, transformer.backward(run, smoothed_loss_backward(saved) / tokens)


def learning_rate(step: int, d_model: int, warmup_steps: int) -> float:
    """d_model^-0.5 * min(step^-0.5, step * warmup^-1.5): a linear increase, then a decrease with the square root."""
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


@dataclass
class Adam:
    """A running mean of each gradient over the root of that of its square, both corrected for their start at 0."""

    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-9
    step: int = 0
    mean: Parameters = field(default_factory=dict)
    square: Parameters = field(default_factory=dict)

    def update(self, parameters: Parameters, gradients: Parameters, rate: float) -> None:
        """m = b1 m + (1 - b1) g,   v = b2 v + (1 - b2) g^2,   w -= rate * m' / (sqrt(v') + epsilon), in place."""
        self.step += 1
        for name, gradient in gradients.items():
            self.mean[name] = self.beta1 * self.mean.get(name, 0.0) + (1.0 - self.beta1) * gradient
            self.square[name] = self.beta2 * self.square.get(name, 0.0) + (1.0 - self.beta2) * gradient**2
            mean = self.mean[name] / (1.0 - self.beta1**self.step)
            square = self.square[name] / (1.0 - self.beta2**self.step)
            parameters[name] -= rate * mean / (np.sqrt(square) + self.epsilon)
