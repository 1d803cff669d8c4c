"""What a run begins with besides chance: another model's weights, parts that stay frozen, an average that moves along.

Knows nothing of batches or steps.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from dragoman import bundle
from dragoman.config import Config
from dragoman.errors import ConfigError, suggestion
from dragoman.model.build import build_model


def start_from(model: nn.Module, directory: Path) -> None:
    """The weights of another model directory, which must be of the same shape."""
    directory = bundle.located(directory)
    bundle.set_weights(model, bundle.named_weights(bundle.load_bundle(directory).model), directory)


def check_parts(config: Config) -> None:
    """Whether train.freeze can be done; the names of the parts do not depend on the text."""
    if config.train.freeze:
        with torch.device("meta"):
            freeze(build_model(config.model), config.train.freeze)


def freeze(model: nn.Module, parts: Sequence[str]) -> None:
    """Leave these parts as they are: `encoder`, `decoder.layers.0`, or the full name of a weight."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    known = {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 2)}
    for part in parts:
        if part not in known:
            shown = [name for name in known if name.count(".") <= max(1, part.count("."))]
            raise ConfigError(f"train.freeze: the model has no part {part!r}; {suggestion(part, shown)}")
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if any(name == part or name.startswith(f"{part}.") for part in parts):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError("train.freeze: nothing is left to train; freeze fewer parts")


class MovingAverage:
    """An exponential moving average of weights, quick to follow at first: decay min(d, (1 + n) / (10 + n))."""

    def __init__(self, parameters: Sequence[Tensor], decay: float) -> None:
        self._parameters = [parameter.detach() for parameter in parameters]
        self.weights = [parameter.clone() for parameter in self._parameters]
        self._decay = decay

    @torch.no_grad()
    def follow(self, step: int, finite: Tensor) -> None:
        """Move, unless the step was not finite: then nothing moves, though nobody waits for the GPU to say so."""
        decay = min(self._decay, (1 + step) / (10 + step))
        amount = (1 - decay) * finite
        torch._foreach_lerp_(self.weights, self._parameters, [amount] * len(self.weights))
