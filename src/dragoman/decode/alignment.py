"""From cross-attention to links between words, and which heads to take it from. Knows nothing of models.

A link is (source word, target word), both numbered from 0; Pharaoh format writes it `0-0`. Words are what
`text.split()` returns.

Two rows of a head's attention belong to a target piece: the one that predicts it, which is where the decoder puts it
out, and the next one, which is where the decoder takes it in. In some heads the first is the alignment, in others the
second.

Shapes: L layers, B sentences, H heads, T target positions, S source positions, J target words, I source words; N
target words of many sentences, K source words of each.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dragoman.config import require_choice
from dragoman.errors import ConfigError
from dragoman.text.offsets import PieceSpans, word_spans
from dragoman.text.tokenizer import Span

Array: TypeAlias = npt.NDArray[Any]
Link = tuple[int, int]
Links = list[Link]
Row = Literal["output", "input"]

# A source word is linked to the target word that attends to it most, if with this share of its attention; a target word
# also to the source word that it attends to most, if with that share. Measured: benchmarks/alignment.py.
LEAST_FROM_SOURCE, LEAST_FROM_TARGET = 0.2, 0.4
MOST_HEADS = 8
SMOOTHING = 1.0  # how many unseen links every source word is credited with


class Head(NamedTuple):
    """A head of the cross-attention, and which of its rows belongs to a target piece; layer and head from 1."""

    layer: int
    head: int
    row: Row

    def __str__(self) -> str:
        return f"{self.layer}.{self.head}.{self.row}"

    @classmethod
    def parse(cls, name: str, layers: int, heads: int) -> "Head":
        """Read `2.4.output`, head 4 of layer 2: a name that the settings have accepted."""
        numbers, _, row = name.rpartition(".")
        layer, head = map(int, numbers.split("."))
        if layer > layers or head > heads:
            raise ConfigError(
                f"decode.alignment_heads: {name} is not in the decoder, which has {layers} layers of {heads} heads; "
                "use one that is"
            )
        return cls(layer, head, "output" if row == "output" else "input")


@dataclass(frozen=True)
class PairAttention:
    """The cross-attention of a pair: [layer, head, target position, source piece], and where the pieces stand.

    There is one more target position than pieces: the first predicts the first piece, the last takes in the last one.
    """

    source: str
    target: str
    source_spans: PieceSpans
    target_spans: PieceSpans
    weight_LHTS: Array

    def alignment(self, heads: Sequence[Head]) -> "Alignment":
        """The mean over these heads; without any, over those of the layer whose heads agree most."""
        texts = self.source, self.target, self.source_spans, self.target_spans
        if not heads:
            return Alignment(*texts, self.weight_LHTS[agreeing_layer(self.weight_LHTS)].mean(axis=0)[:-1])
        of_each = [_rows(self.weight_LHTS[each.layer - 1, each.head - 1], each.row) for each in heads]
        return Alignment(*texts, np.mean(of_each, axis=0))


def _rows(weight_TS: Array, row: Row) -> Array:
    return weight_TS[:-1] if row == "output" else weight_TS[1:]


def agreeing_layer(weight_LHTS: Array) -> int:
    """Index of the layer whose heads agree most on what to attend to."""
    return int(weight_LHTS.mean(axis=1).max(axis=2, initial=0.0).mean(axis=1).argmax())


@dataclass(frozen=True)
class Alignment:
    """How much each target piece attends to each source piece: [target piece, source piece]; and where they stand."""

    source: str
    target: str
    source_spans: PieceSpans
    target_spans: PieceSpans
    weights: Array

    @property
    def word_weights(self) -> Array:
        """[target word, source word]: the sum over the pieces of the source word, the mean over those of the other."""
        from_J, from_I = (
            members(pieces.spans, word_spans(text))
            for text, pieces in ((self.target, self.target_spans), (self.source, self.source_spans))
        )
        count_J1 = np.maximum(from_J.sum(axis=1, keepdims=True), 1.0)
        return (from_J / count_J1) @ self.weights @ from_I.T

    @property
    def links(self) -> Links:
        """Between words, in order."""
        return links(self.word_weights)

    @property
    def linked_spans(self) -> list[tuple[Span, Span]]:
        """The same as places in the texts: from where to where."""
        sources, targets = word_spans(self.source), word_spans(self.target)
        return [(sources[source], targets[target]) for source, target in self.links]


def diagonal(source: str, target: str) -> Alignment:
    """Words that stand equally far in both texts attend to each other: where a model says nothing."""
    sources, targets = (PieceSpans([], word_spans(text)) for text in (source, target))
    count, others = len(targets.spans), len(sources.spans)
    weights = np.zeros((count, others))
    if others:
        weights[np.arange(count), np.arange(count) * others // max(count, 1)] = 1.0
    return Alignment(source, target, sources, targets, weights)


def members(pieces: Sequence[Span], words: Sequence[Span]) -> Array:
    """[word, piece]: 1 where they overlap."""
    if not words or not pieces:
        return np.zeros((len(words), len(pieces)))
    piece, word = np.array(pieces), np.array(words)[:, None]
    overlap = np.minimum(piece[:, 1], word[..., 1]) - np.maximum(piece[:, 0], word[..., 0])
    return (overlap > 0).astype(np.float64)


def links(weight_JI: Array) -> Links:
    """Link the words that attend to each other enough."""
    if not weight_JI.size:
        return []
    chosen_JI = np.zeros(weight_JI.shape, bool)
    source_I, target_J = np.arange(weight_JI.shape[1]), np.arange(weight_JI.shape[0])
    best_I, best_J = weight_JI.argmax(axis=0), weight_JI.argmax(axis=1)
    chosen_JI[best_I, source_I] = weight_JI[best_I, source_I] >= LEAST_FROM_SOURCE
    chosen_JI[target_J, best_J] |= weight_JI[target_J, best_J] >= LEAST_FROM_TARGET
    return [(int(source), int(target)) for source, target in np.argwhere(chosen_JI.T)]


# Choosing heads


class HeadChoice:
    """Chooses the heads that align best, from pairs without known alignment.

    Every target word is linked to the source word that gets most of its attention. The better the links, the better
    the source words predict the target words linked to them: `gain` measures that for each link by all the others.
    Heads are added one by one for as long as their mean attention gains.
    """

    def __init__(self, layers: int, heads: int) -> None:
        rows: tuple[Row, Row] = ("output", "input")
        self._candidates = [
            Head(layer, head, row) for row in rows for layer in range(1, layers + 1) for head in range(1, heads + 1)
        ]
        self._weights: list[list[Array]] = [[] for _ in self._candidates]
        self._words: tuple[dict[str, int], dict[str, int]] = {}, {}
        self._source: list[Array] = []
        self._target: list[int] = []

    @property
    def num_words(self) -> int:
        """How many target words the choice is made from."""
        return len(self._target)

    def add(self, pair: PairAttention) -> None:
        source, target = pair.source.lower().split(), pair.target.lower().split()
        if not source or not target:
            return
        known_source, known_target = self._words
        source_K = np.array([known_source.setdefault(word, len(known_source)) for word in source])
        self._source += [source_K] * len(target)
        self._target += [known_target.setdefault(word, len(known_target)) for word in target]
        for own, head in zip(self._weights, self._candidates, strict=True):
            own.extend(pair.alignment([head]).word_weights.astype(np.float32))

    def best(self) -> list[Head]:
        """The heads that gain most together; none without pairs."""
        if not self._target:
            return []
        columns = max(map(len, self._source))
        source_NK, target_N = _padded(self._source, columns, np.int64), np.array(self._target)
        left = {
            head: _padded(rows, columns, np.float32) for head, rows in zip(self._candidates, self._weights, strict=True)
        }
        chosen: list[Head] = []
        total_NK, best = np.zeros(source_NK.shape, np.float32), -np.inf
        while left and len(chosen) < MOST_HEADS:
            gains = {head: gain(total_NK + weight_NK, source_NK, target_N) for head, weight_NK in left.items()}
            head = max(gains, key=gains.__getitem__)
            if gains[head] <= best:
                break
            best = gains[head]
            chosen.append(head)
            total_NK += left.pop(head)
        return chosen


def _padded(rows: Sequence[Array], columns: int, kind: Any) -> Array:
    padded = np.zeros((len(rows), columns), kind)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return padded


def gain(weight_NK: Array, source_NK: Array, target_N: Array) -> float:
    """How much better source words predict the target words linked to them: mean log P(target | source) / P(target).

    P(target | source) is counted over all other links, so that a link does not vouch for itself.
    """
    source_N = source_NK[np.arange(len(target_N)), weight_NK.argmax(axis=1)]
    _, place_N, count = np.unique(source_N * (target_N.max() + 1) + target_N, return_inverse=True, return_counts=True)
    together_N, of_source_N = count[place_N] - 1, np.bincount(source_N)[source_N] - 1
    share_N = np.bincount(target_N)[target_N] / len(target_N)
    probability_N = (together_N + SMOOTHING * share_N) / (of_source_N + SMOOTHING)
    return float(np.log(probability_N / share_N).mean())


# Two directions


def symmetrize(forward: Iterable[Link], backward: Iterable[Link], method: str) -> Links:
    """Combine the links of a pair from two models, of which `backward` is written as (source word, target word) too."""
    require_method(method)
    return sorted(METHODS[method]({*forward}, {*backward}))


def require_method(method: str) -> None:
    require_choice("symmetrize", method, METHODS)


def _intersection(forward: set[Link], backward: set[Link]) -> set[Link]:
    return forward & backward


def _union(forward: set[Link], backward: set[Link]) -> set[Link]:
    return forward | backward


def _grow_diag_final_and(forward: set[Link], backward: set[Link]) -> set[Link]:
    """Start from the links of both; add those of either that touch one and link a new word, then those of two new ones.

    Koehn and others, 2005. Candidates are tried in order, so that the result does not depend on that of a set.
    """
    found, either = forward & backward, forward | backward
    sources, targets = {source for source, _ in found}, {target for _, target in found}

    def add(link: Link) -> None:
        found.add(link)
        sources.add(link[0])
        targets.add(link[1])

    growing = True
    while growing:
        growing = False
        for source, target in sorted(found):
            for near in ((source + i, target + j) for i, j in NEIGHBOURS):
                if near in either and near not in found and (near[0] not in sources or near[1] not in targets):
                    add(near)
                    growing = True
    for direction in (forward, backward):
        for link in sorted(direction - found):
            if link[0] not in sources and link[1] not in targets:
                add(link)
    return found


NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))
METHODS: dict[str, Callable[[set[Link], set[Link]], set[Link]]] = {
    "grow-diag-final-and": _grow_diag_final_and,
    "intersection": _intersection,
    "union": _union,
}


def to_pharaoh(found: Iterable[Link]) -> str:
    return " ".join(f"{source}-{target}" for source, target in found)
