"""Several models that search as one: at every step they agree on the probability of the next id. Knows nothing of text.

The probability of an id is the mean of what the models give it, so an ensemble is a model like any other: its
probabilities sum to 1, and scores are log-probabilities. Shapes as in search.py; B sentences, T target positions.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.data.batching import Batch
from dragoman.decode.engines.plain import Engine
from dragoman.decode.engines.predictions import Predictions
from dragoman.decode.ranking import largest, to_host
from dragoman.decode.search import Array, Decoding
from dragoman.errors import ConfigError
from dragoman.model.attention import AttentionWeights, HeadMask


class EnsembleDecoding:
    """One batch being decoded by all models (search's Decoding protocol)."""

    def __init__(self, decodings: Sequence[Decoding]) -> None:
        self._decodings = decodings

    def best(self, id_BW: Array, count: int) -> tuple[Array, Array]:
        return to_host(*largest(self.log_probs(id_BW), count))

    def log_probs(self, id_BW: Array) -> Tensor:
        return log_of_mean([decoding.log_probs(id_BW) for decoding in self._decodings])

    def reorder(self, parent_BW: Array) -> None:
        for decoding in self._decodings:
            decoding.reorder(parent_BW)

    def select(self, sentence_B: Array) -> None:
        for decoding in self._decodings:
            decoding.select(sentence_B)


def log_of_mean(log_probs: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of probabilities."""
    return torch.stack(list(log_probs)).logsumexp(dim=0) - math.log(len(log_probs))


class Ensemble(Engine):
    """Models on one device as one engine. They read and write the same ids."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines
        self.device, self._model, self._head_mask = engines[0].device, engines[0].model, None

    def start(self, sources: Sequence[Sequence[int]]) -> EnsembleDecoding:  # type: ignore[override]
        return EnsembleDecoding([engine.start(sources) for engine in self._engines])

    def token_log_probs(self, batch: Batch) -> Tensor:
        log_probs_BT = log_of_mean([engine.token_log_probs(batch) for engine in self._engines])
        return log_probs_BT.masked_fill(~batch.target_real.to(self.device), 0.0)

    def log_probs(self, source_ids: Sequence[int], target_input: Sequence[int]) -> Tensor:
        return log_of_mean([engine.log_probs(source_ids, target_input) for engine in self._engines])

    def predict(self, batch: Batch, count: int) -> Predictions:
        """The attention of all layers of all models; what the first of them predicts."""
        found = [engine.predict(batch, count) for engine in self._engines]
        return found[0]._replace(weight_LBTS=np.concatenate([each.weight_LBTS for each in found]))

    def attention(self, source_ids: Sequence[int], target_input: Sequence[int]) -> AttentionWeights:
        raise ConfigError("attention: every model of an ensemble has its own; load one of them")

    def masked(self, head_mask: HeadMask) -> "Ensemble":
        raise ConfigError("head mask: every model of an ensemble has its own heads; load one of them")


def require_same_vocabulary(model: Bundle, other: Bundle, name: str) -> None:
    """Raise unless both models read and write the same ids; `name` is the other's."""
    for side in ("source", "target"):
        if getattr(model.tokenizers, side).digest != getattr(other.tokenizers, side).digest:
            raise ConfigError(
                f"ensemble: {name} has another {side} vocabulary than the first model; "
                "give models that were trained with the same tokenizer"
            )
    longest, room = (each.config.model.longest or math.inf for each in (model, other))
    if room < longest:
        raise ConfigError(
            f"ensemble: {name} takes at most {room} pieces, the first model {longest}; give {name} as the first"
        )
