"""Statistics of heads over many sentences, and the importance of each head. Knows nothing of pictures.

Shapes: H heads, Q query positions, K key positions; one sentence at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dragoman.decode.translation import Attention
from dragoman.decode.translator import Translator
from dragoman.inspect.capture import KINDS, Inspection, head_mask, head_names, score_of, scores_of
from dragoman.progress import Advance, no_progress

Array = npt.NDArray[np.float64]

OFFSETS = (-1, 0, 1)  # the token before, the same, the one after
MAX_TOKENS = 2_048  # per batch of a ranking, on the longer side
DEAD = 0.95  # of its weight on one position, whatever the query: such a head does not distinguish queries


@dataclass(frozen=True)
class HeadStatistics:
    """Means over all queries of all sentences."""

    name: str  # such as cross.3.5
    entropy: float  # bits; 0: one key gets all
    evenness: float  # entropy as a share of that of uniform attention over all keys
    distance: float  # positions between a query and what it attends to; in self-attention and cross-attention alike
    offset: int  # the one of OFFSETS that it attends to most
    following: float  # the share of its weight there
    sink: float  # the share of weight on the one position (first, last) that gets most from all queries
    confidence: float  # the largest weight of each query

    @property
    def dead(self) -> bool:
        return self.sink >= DEAD


@dataclass(frozen=True)
class HeadCost:
    """How much a translation loses without one head."""

    name: str
    cost: float  # log-probability with it minus without: above 0, the head is useful


class HeadTally:
    """Accumulates what heads do, sentence by sentence."""

    def __init__(self) -> None:
        self.sentences = 0
        self._sums: dict[str, Array] = {}

    def add(self, attention: Attention) -> None:
        self.sentences += 1
        for kind in KINDS:
            for layer, weights_HQK in enumerate(getattr(attention, kind), start=1):
                for head, row in enumerate(_measured(weights_HQK.astype(np.float64)), start=1):
                    name = f"{kind}.{layer}.{head}"
                    self._sums[name] = self._sums.get(name, 0.0) + row

    def statistics(self) -> list[HeadStatistics]:
        """The statistics of every head, in the order of layers; encoder, decoder, cross."""
        return [_statistics(name, total) for name, total in self._sums.items()]


def _measured(weights_HQK: Array) -> Array:
    """For each head, sums over queries: [H, measures]; the last column is the number of queries."""
    heads, queries, keys = weights_HQK.shape
    logs = np.log2(np.where(weights_HQK > 0, weights_HQK, 1.0))
    entropy_HQ = -(weights_HQK * logs).sum(axis=2)
    # a causal query sees only its past, so the uniform entropy differs between queries
    seen_HQ = np.maximum((weights_HQK > 0).sum(axis=2), 1)
    even_HQ = np.where(seen_HQ > 1, entropy_HQ / np.log2(np.maximum(seen_HQ, 2)), 0.0)
    apart_QK = np.abs(np.arange(queries)[:, None] - np.arange(keys)[None])
    distance_HQ = (weights_HQK * apart_QK).sum(axis=2)
    at_offset = [np.diagonal(weights_HQK, offset, axis1=1, axis2=2).sum(axis=1) for offset in OFFSETS]
    first_H, last_H = weights_HQK[:, :, 0].sum(axis=1), weights_HQK[:, :, -1].sum(axis=1)
    columns = [
        entropy_HQ.sum(axis=1),
        even_HQ.sum(axis=1),
        distance_HQ.sum(axis=1),
        *at_offset,
        first_H,
        last_H,
        weights_HQK.max(axis=2).sum(axis=1),
        np.full(heads, float(queries)),
    ]
    return np.stack(columns, axis=1)


def _statistics(name: str, total: Array) -> HeadStatistics:
    entropy, even, distance, *offsets_and_ends, confidence = (total[:-1] / total[-1]).tolist()
    offsets, ends = offsets_and_ends[: len(OFFSETS)], offsets_and_ends[len(OFFSETS) :]
    best = int(np.argmax(offsets))
    return HeadStatistics(name, entropy, even, distance, OFFSETS[best], offsets[best], max(ends), confidence)


def rank_heads(translator: Translator, inspection: Inspection, advance: Advance = no_progress) -> list[HeadCost]:
    """Rank every head by how much the translation's log-probability drops without it, the most important first.

    The translation is scored without each head in turn, many in a batch; `advance` counts the heads.
    """
    engine, names = translator.engine, head_names(translator.engine.model)
    source_ids, target_ids = inspection.source_ids, inspection.target_ids
    whole = score_of(translator, source_ids, target_ids)
    costs: list[HeadCost] = []
    for some in _batches(names, max(1, MAX_TOKENS // max(len(source_ids), len(target_ids)))):
        masked = engine.masked(head_mask(engine.model, [[name] for name in some]))
        with translator.inference():
            scores = scores_of(masked, translator.tokenizers.target.vocabulary, source_ids, target_ids, len(some))
        for name, score in zip(some, scores, strict=True):
            costs.append(HeadCost(name, whole - score))
            advance(1)
    return sorted(costs, key=lambda head: -head.cost)


def _batches(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (names[start : start + size] for start in range(0, len(names), size))
