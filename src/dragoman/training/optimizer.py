"""Adam and its learning rate (section 5.3 of the paper), Muon, and a moving average of weights. Knows no batches."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dragoman.config import TrainConfig
from dragoman.training.muon import Muon


def build_optimizer(model: nn.Module, settings: TrainConfig, device: torch.device) -> torch.optim.Optimizer:
    """Over the weights that are not frozen; `learning_rate` sets its rate before every step."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    matrices = {name: parameter for name, parameter in trained.items() if _is_matrix_of_layer(name, parameter)}
    if settings.optimizer == "adam" or not matrices:
        return _adam([*trained.values()], settings, device)
    others = [parameter for name, parameter in trained.items() if name not in matrices]
    return Muon([*matrices.values()], _adam(others, settings, device), settings.muon_scale)


def _is_matrix_of_layer(name: str, parameter: Tensor) -> bool:
    """Embeddings and the output layer have a row for each token, most of which a batch does not have."""
    return parameter.ndim == 2 and name.startswith(("encoder.", "decoder."))


def _adam(parameters: list[nn.Parameter], settings: TrainConfig, device: torch.device) -> torch.optim.Adam:
    return torch.optim.Adam(
        parameters,
        lr=0.0,
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_epsilon,
        fused=device.type in ("cpu", "cuda"),
    )


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


class MovingAverage:
    """An exponential moving average of weights, faster at first: decay min(d, (1 + n) / (10 + n))."""

    def __init__(self, parameters: Sequence[Tensor], decay: float) -> None:
        self._parameters = [parameter.detach() for parameter in parameters]
        self.weights = [parameter.clone() for parameter in self._parameters]
        self._decay = decay

    @torch.no_grad()
    def update(self, step: int, finite: Tensor) -> None:
        """Update the average, unless the step was not finite: decided on the device, without waiting for it."""
        decay = min(self._decay, (1 + step) / (10 + step))
        amount = (1 - decay) * finite
        torch._foreach_lerp_(self.weights, self._parameters, [amount] * len(self.weights))
