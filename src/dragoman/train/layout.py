"""How a batch is laid out and what its loss is: padded, plain and for every device; packed, fast on CUDA.

Both give the same loss and gradients for the same pairs. The loop sees only `epoch`, `make` and `loss`.
"""

import os
import shutil
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dragoman.config import TrainConfig
from dragoman.data.batching import Batch, BatchPlan, collate
from dragoman.data.packing import PackedBatch, PackingPlan, Shape, pack
from dragoman.data.store import Store
from dragoman.errors import ConfigError
from dragoman.model.build import Model
from dragoman.model.packed import PackedTransformer
from dragoman.model.transformer import Transformer
from dragoman.train.loss import projected_cross_entropy, smoothed_cross_entropy

Ids = npt.NDArray[np.int64]


class Layout(Protocol):
    name: str

    def epoch(self, epoch: int) -> list[Ids]:
        """Every batch of an epoch, as row numbers; a pure function of (seed, epoch)."""

    def make(self, rows: Ids) -> Any:
        """These pairs as a batch on the CPU, with `rows` and `num_tokens`."""

    def loss(self, batch: Any, label_smoothing: float) -> Tensor:
        """Summed over the batch's real target tokens; the batch is on the model's device."""


def choose_layout(
    settings: TrainConfig, store: Store, model: Model, device: torch.device, precision: torch.dtype
) -> Layout:
    """`auto` packs where it pays: on CUDA, for a Transformer, with Triton and the compiler it needs."""
    name = settings.layout
    if name == "auto":
        name = "packed" if device.type == "cuda" and isinstance(model, Transformer) and kernels_run() else "padded"
    if name == "padded":
        return Padded(settings, store, model, device, precision)
    if not isinstance(model, Transformer):
        raise ConfigError("train.layout: only the Transformer runs packed; use padded or auto")
    return Packed(settings, store, model, device, precision)


def kernels_run() -> bool:
    """Triton builds a small launcher with a C compiler when a kernel is first used."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    return torch.cuda.is_available() and find_spec("triton") is not None and compiler is not None


class Padded:
    """Each sentence a row, padded to the longest; like lengths together."""

    name = "padded"

    def __init__(
        self, settings: TrainConfig, store: Store, model: Model, device: torch.device, precision: torch.dtype
    ) -> None:
        self._store, self._model = store, model
        self._autocast = (device.type, precision)
        self._plan = BatchPlan(
            store.source_lengths, store.target_lengths, batch_tokens=settings.batch_tokens, seed=settings.seed
        )

    def epoch(self, epoch: int) -> list[Ids]:
        return self._plan.epoch(epoch)

    def make(self, rows: Ids) -> Batch:
        return collate(self._store, rows)

    def loss(self, batch: Batch, label_smoothing: float) -> Tensor:
        with torch.autocast(*self._autocast, enabled=self._autocast[1] != torch.float32):
            logits_BTV = self._model(batch.source_ids, batch.target_input, batch.source_allowed)
        return smoothed_cross_entropy(logits_BTV, batch.target_output, label_smoothing)


class Packed:
    """Sentences end to end; on CUDA in one fixed shape, compiled once, with kernels for short sentences."""

    name = "packed"

    def __init__(
        self, settings: TrainConfig, store: Store, model: Transformer, device: torch.device, precision: torch.dtype
    ) -> None:
        self._store, self._model = store, model
        self._autocast = (device.type, precision)
        target_tokens = settings.batch_tokens
        means = (store.source_lengths.mean() + 1, store.target_lengths.mean() + 1)
        source_tokens = int(target_tokens * means[0] / means[1] * 1.03)  # so that both sides fill up together
        source_tokens = -(-source_tokens // 128) * 128
        sentences = int(1.25 * target_tokens / means[1]) + 8
        longest = int(max(store.source_lengths.max(), store.target_lengths.max())) + 2
        if min(source_tokens, target_tokens) < longest:
            raise ConfigError(
                f"train.batch_tokens: {target_tokens} cannot hold the longest pair, {longest} pieces; "
                "raise it, or lower text.max_length"
            )
        self._plan = PackingPlan(
            store, source_tokens=source_tokens, target_tokens=target_tokens, sentences=sentences, seed=settings.seed
        )
        run = PackedTransformer(model)
        self._shape, self._run = None, run
        if device.type == "cuda" and kernels_run():
            from dragoman.model.kernels import BLOCK, fits

            if fits(model.config):
                self._shape = Shape(source_tokens, target_tokens, sentences, BLOCK)
                self._run = torch.compile(run, dynamic=False)  # type: ignore[assignment]

    def epoch(self, epoch: int) -> list[Ids]:
        return self._plan.epoch(epoch)

    def make(self, rows: Ids) -> PackedBatch:
        return pack(self._store, rows, self._shape)

    def loss(self, batch: PackedBatch, label_smoothing: float) -> Tensor:
        with torch.autocast(*self._autocast, enabled=self._autocast[1] != torch.float32):
            hidden_NM = self._run(batch.source_ids_N, batch.target_input_N, batch.source, batch.target)
        output = self._model.output
        hidden_NM = hidden_NM.to(self._autocast[1]) if self._autocast[1] != torch.float32 else hidden_NM
        return projected_cross_entropy(hidden_NM, output.weight, output.bias, batch.target_output_N, label_smoothing)
