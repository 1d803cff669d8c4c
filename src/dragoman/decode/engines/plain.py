"""Runs a model on a device for search: takes source ids, returns a Decoding. Knows nothing of text.

Shapes: B sentences, N rows being decoded, S source positions, T target positions, M width of a state, V vocabulary,
L layers, H heads.
"""

import copy
import warnings
from collections.abc import Sequence
from typing import Any, Self, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.config import require_choice
from dragoman.data.batching import Batch, pad_rows
from dragoman.decode.engines.predictions import Predictions
from dragoman.decode.quantized import quantized
from dragoman.decode.ranking import largest, to_host
from dragoman.device import is_slow_in_bfloat16
from dragoman.errors import ConfigError
from dragoman.model.attention import AttentionWeights, HeadMask
from dragoman.model.build import Model

Array: TypeAlias = NDArray[Any]

PRECISIONS = ("float32", "bfloat16", "int8")
SLOW_BFLOAT16 = "precision: this CPU has no bfloat16 instructions and is far slower in it; use float32 or int8"
LOGITS_AT_ONCE = 1 << 24  # numbers, 64 MiB in float32: 512 positions with 32,768 pieces


class EngineDecoding:
    """One batch being decoded (search's Decoding protocol): the model and its cache."""

    def __init__(self, model: Any, cache: Any, device: torch.device) -> None:
        self._model = model
        self._cache = cache
        self._device = device

    def step(self, id_N: Tensor) -> Tensor:
        """Feed one id per row; return the logits of the next."""
        # fp32: a bf16 log-softmax over a large vocabulary loses the tail
        return self._model.step(id_N.to(self._device), self._cache).float()

    def best(self, id_BW: Array, count: int) -> tuple[Array, Array]:
        logits_NV = self.step(torch.from_numpy(id_BW.reshape(-1)))
        value_NC, id_NC = largest(logits_NV, count)
        # from differences to the best, which are small numbers: log-sum-exp itself is rounded as coarsely as logits are
        best_N1 = value_NC[:, :1]
        rest_N1 = (logits_NV - best_N1).exp_().sum(dim=-1, keepdim=True).log_()
        return to_host(value_NC - best_N1 - rest_N1, id_NC)

    def log_probs(self, id_BW: Array) -> Tensor:
        return self.step(torch.from_numpy(id_BW.reshape(-1))).log_softmax(dim=-1)

    def reorder(self, parent_BW: Array) -> None:
        self._cache.reorder(torch.from_numpy(parent_BW).to(self._device))

    def select(self, sentence_B: Array) -> None:
        self._cache.select(torch.from_numpy(sentence_B).to(self._device))


class Engine:
    """A model in evaluation mode on one device. Sources are ids that end in </s>."""

    def __init__(self, model: Model, device: torch.device | str, precision: str = "float32") -> None:
        self.device = torch.device(device)
        # Any: either architecture; both have encode, start, step
        self._model: Any = in_precision(model.to(self.device), self.device, precision)
        self._head_mask: HeadMask | None = None

    def masked(self, head_mask: HeadMask) -> Self:
        """Return the same engine without some heads.

        A mask with one row applies to any batch, one with several rows to a batch of that size. The engines share the
        model, which does not change, and can run at the same time. Heads that were already masked stay masked.
        """
        head_mask = HeadMask(*(part_LBH.to(self.device) for part_LBH in head_mask))
        if self._head_mask is not None:
            head_mask = HeadMask(*(own & more for own, more in zip(self._head_mask, head_mask, strict=True)))
        engine = copy.copy(self)
        engine._head_mask = head_mask
        return engine

    @property
    def is_masked(self) -> bool:
        """Whether some heads are switched off."""
        return self._head_mask is not None

    def _masking(self, rows: int) -> dict[str, HeadMask]:
        """Extra arguments for a batch's passes; empty without a mask, because a recurrent model does not accept one."""
        if self._head_mask is None:
            return {}
        return {"head_mask": HeadMask(*(part_LBH.expand(-1, rows, -1) for part_LBH in self._head_mask))}

    def start(self, sources: Sequence[Sequence[int]]) -> EngineDecoding:
        return EngineDecoding(self._model, self._encode(sources), self.device)

    def _encode(self, sources: Sequence[Sequence[int]]) -> Any:
        """A cache to decode with."""
        source_ids, allowed = (part.to(self.device) for part in pad_rows(sources))
        masking = self._masking(len(sources))
        memory = self._model.encode(source_ids, allowed, **masking)
        return self._model.start(memory, allowed, **masking)

    def token_log_probs(self, batch: Batch) -> Tensor:
        """log P of every target token given the source and the tokens before it: [B, T], 0 in padding.

        Only real tokens go through the output projection, with a bounded number of logits at a time.
        """
        batch = batch.to(self.device)
        masking = self._masking(len(batch.source_ids))
        memory = self._model.encode(batch.source_ids, batch.source_allowed, **masking)
        cache = self._model.start(memory, batch.source_allowed, **masking)
        states_BTM = self._model.decode_states(batch.target_input, cache)
        real_BT = batch.target_real
        log_probs_BT = torch.zeros(real_BT.shape, device=self.device)
        log_probs_BT[real_BT] = self._log_probs_of(batch.target_output[real_BT], states_BTM[real_BT])
        return log_probs_BT

    def _log_probs_of(self, ids_N: Tensor, states_NM: Tensor) -> Tensor:
        """log P of each id given the state that predicts it."""
        rows = max(1, LOGITS_AT_ONCE // self._model.config.target_vocabulary)
        parts = [slice(start, start + rows) for start in range(0, len(ids_N), rows)]
        # one expression: a variable would keep the logits of one part alive while the next are computed
        chosen = [
            self._model.output(states_NM[part]).float().log_softmax(dim=-1).gather(1, ids_N[part, None])[:, 0]
            for part in parts
        ]
        return torch.cat(chosen)

    def log_probs(self, source_ids: Sequence[int], target_input: Sequence[int]) -> Tensor:
        """log P of every possible next token after each token fed to the decoder, for one sentence: [T, V]."""
        source = torch.tensor([source_ids], device=self.device)
        target = torch.tensor([target_input], device=self.device)
        return self._model(source, target, **self._masking(1))[0].float().log_softmax(dim=-1)

    @property
    def model(self) -> Model:
        """The model that runs; for int8 and bfloat16, a copy of the one passed in."""
        return self._model

    def attention(self, source_ids: Sequence[int], target_input: Sequence[int]) -> AttentionWeights:
        """The attention weights of each head, for one sentence and the target fed to the decoder."""
        source = torch.tensor([source_ids], device=self.device)
        target = torch.tensor([target_input], device=self.device)
        _, weights = self._model(source, target, need_weights=True, **self._masking(1))
        return weights

    def cross_attention(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Array]:
        """What every head attends to in the source when these ids are fed to the decoder: [L, H, T, S] of each."""
        weights, target_ids = AttentionWeights(), pad_rows(targets)[0].to(self.device)
        self._model.decode_states(target_ids, self._encode(sources), weights)
        weight_LBHTS = torch.stack(weights.cross).float().cpu().numpy()
        return [
            weight_LBHTS[:, number, :, : len(target), : len(source)]
            for number, (source, target) in enumerate(zip(sources, targets, strict=True))
        ]

    def predict(self, batch: Batch, count: int) -> Predictions:
        """What the model predicts at every position, by teacher forcing."""
        batch, weights = batch.to(self.device), AttentionWeights()
        masking = self._masking(len(batch.source_ids))
        memory = self._model.encode(batch.source_ids, batch.source_allowed, **masking)
        cache = self._model.start(memory, batch.source_allowed, **masking)
        logits_BTV = self._model.decode(batch.target_input, cache, weights).float()
        log_prob_BTC, id_BTC = logits_BTV.log_softmax(dim=-1).topk(min(count, logits_BTV.size(2)), dim=-1)
        weight_LBTS = torch.stack([weight_BHTS.mean(dim=1) for weight_BHTS in weights.cross]).float()
        return Predictions(*(tensor.cpu().numpy() for tensor in (weight_LBTS, log_prob_BTC, id_BTC)))


def in_precision(model: Model, device: torch.device, precision: str) -> Model:
    """Return the model itself for float32, otherwise a converted copy; the given model keeps its weights."""
    require_choice("precision", precision, PRECISIONS)
    if precision == "int8" and device.type == "mps":
        raise ConfigError("precision: 'int8' is not supported on MPS; use float32, or the device cpu")
    if precision == "int8":
        return quantized(model)
    if precision == "float32":
        return model
    if is_slow_in_bfloat16(device):
        warnings.warn(SLOW_BFLOAT16, stacklevel=2)
    return copy.deepcopy(model).to(torch.bfloat16)
