"""A model on a device, ready for inference: what every task but translation shares. Knows nothing of text."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dragoman.bundle import Bundle, load_bundle, require_task, resolve_model
from dragoman.config import Config
from dragoman.machine import choose_threads, find_device

if TYPE_CHECKING:
    import torch


class Runner:
    """Runs the model of a model directory. A subclass says what for."""

    task: ClassVar[str]

    def __init__(
        self,
        bundle: Bundle,
        device: "str | torch.device" = "auto",
        precision: str = "float32",
        threads: int | None = None,
    ) -> None:
        import torch

        from dragoman.decode.engines.plain import in_precision

        self.device = torch.device(find_device(device) if isinstance(device, str) else device)
        decode = bundle.config.decode
        decode = decode if threads is None else replace(decode, threads=threads)
        self.config: Config = replace(bundle.config, decode=decode)
        self.tokenizers = bundle.tokenizers
        self._threads = choose_threads(decode.threads, bundle.config.model.d_model)
        self.model: Any = in_precision(bundle.model.to(self.device).eval(), self.device, precision)

    @classmethod
    def load(
        cls,
        model: str | os.PathLike[str],
        device: str = "auto",
        precision: str = "float32",
        threads: int | None = None,
    ) -> Self:
        """Load a model directory. device: auto, cpu, cuda, cuda:1 or mps. precision: float32, bfloat16 or int8."""
        directory = resolve_model(Path(model))
        bundle = load_bundle(directory)
        require_task(bundle.config, cls.task, directory)
        return cls(bundle, device, precision, threads)

    @property
    def longest(self) -> int:
        """Positions that the model reads."""
        return min(self.config.text.max_length, self.config.model.longest or self.config.text.max_length)

    def on_device(self, *tensors: "torch.Tensor") -> "tuple[torch.Tensor, ...]":
        """Feature vectors in the model's precision, and which of them are real."""
        import torch

        dtypes = {parameter.dtype for parameter in self.model.parameters() if parameter.is_floating_point()}
        precision = torch.bfloat16 if torch.bfloat16 in dtypes else torch.float32
        return tuple(
            tensor.to(self.device, precision if tensor.is_floating_point() else tensor.dtype) for tensor in tensors
        )

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Context for running the model: no gradients, the chosen number of CPU threads."""
        import torch

        from dragoman.device import cpu_threads, keep_onednn

        with torch.inference_mode(), cpu_threads(self._threads), keep_onednn():
            yield
