"""A model's weights as tensors: from files or arrays into a model, and back. Knows nothing of directories."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dragoman.config import Config
from dragoman.int8 import Array, expanded
from dragoman.model.build import Model, build_model
from dragoman.weights import Weights, check_fit, check_header, not_safetensors


def weights_to_bytes(weights: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in weights.items()}
    return bytes(safetensors.torch.save(tensors, metadata))


def weights_from_bytes(content: bytes, path: Path) -> dict[str, Tensor]:
    """Load the tensors of a safetensors file; `path` is only used in errors."""
    check_header(content, path)
    try:
        return safetensors.torch.load(content)
    except Exception as error:  # safetensors raises its own type, and others for hostile headers
        raise not_safetensors(path, error) from None


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Every weight once; a shared matrix has its first name."""
    return dict(model.named_parameters())


def named_arrays(model: nn.Module) -> dict[str, Array]:
    """The same in float32 on the CPU, in the model's own memory where it is there already."""
    return {name: tensor.detach().float().cpu().numpy() for name, tensor in named_weights(model).items()}


def set_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Copy weights into a model; report all mismatches together."""
    own = named_weights(model)
    check_tensors_fit(own, weights, path)
    _copy(own, weights)


def check_tensors_fit(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], path: Path) -> None:
    """Check that `weights` have the names and shapes of a model's own."""
    check_fit(_shapes(own), _shapes(weights), path)


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, Sequence[int]]:
    return {name: tensor.shape for name, tensor in weights.items()}


def model_from(config: Config, weights: Weights) -> Model:
    """Build the model that has these weights, in evaluation mode; they must fit."""
    with torch.inference_mode(False):  # whoever needs it first, it can be trained
        model = empty_model(config, torch.device("cpu"))
        _copy(named_weights(model), {name: torch.from_numpy(array) for name, array in expanded(weights).items()})
    return model.eval()


def _copy(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])


class _Unfilled(TorchFunctionMode):
    """Skips initialisation, which would be overwritten. The meta device does too, but takes a second to import."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function.__name__ in ("normal_", "uniform_", "kaiming_uniform_"):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def empty_model(config: Config, device: torch.device) -> Model:
    """Return a model with uninitialised weights; the RNG state does not change."""
    with device, _Unfilled():
        return build_model(config.model)
