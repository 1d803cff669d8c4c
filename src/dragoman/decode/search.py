"""Greedy search and beam search over a small step protocol; sampling.py samples over the same.

Owns the choice of the next ids. Knows nothing of text, tokenizers or model classes. A Transformer with a cache, a
recurrent network or a table of numbers can be decoded in the same way, as long as it is a `Decoding`.

The expensive part, a pass over every logit, is the decoding's: it returns the best few of each row. The bookkeeping
here is plain NumPy on arrays of a few hundred numbers.

Sentences may join while others continue, so each has its own number of tokens so far. Rows of tokens are aligned at the
right: the longest fills its row, shorter ones have padding at the left.

Shape suffixes
    B  sentences still in the batch      V  vocabulary
    W  live hypotheses per sentence      C  candidates, best first
    N  rows of the decoding (B * W)      T  tokens chosen so far
"""

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dragoman.config import DecodeConfig

if TYPE_CHECKING:
    from torch import Tensor

Array: TypeAlias = NDArray[Any]
Result = TypeVar("Result")

NEVER = -np.inf  # the log-probability of an impossible choice
PAPER = DecodeConfig()


class BeamStep(NamedTuple):
    """One step of beam search, for observers: the candidates, and which of them were kept."""

    sentence_B: Array  # indices of the sentences still in the batch
    score_BC: Array  # of candidates, best first
    parent_BC: Array  # index, in the previous step, of the hypothesis that a candidate continues
    id_BC: Array
    ends_BC: Array  # whether it ends here and was offered to the finished list, which keeps the best few
    kept_BC: Array  # its index among the hypotheses that continue; -1 if it does not continue


class Decoding(Protocol):
    """A batch of sentences being decoded in lockstep, W hypotheses of each; initially one.

    A row is a hypothesis; those of a sentence follow each other.
    """

    def best(self, id_BW: Array, count: int) -> tuple[Array, Array]:
        """Feed an id to every hypothesis. Return the log-probabilities of the best `count` next ids, and the ids.

        Both are [N, C], best first, the lower id of ties first; C is `count`, or the vocabulary if that is smaller.
        """
        ...

    def log_probs(self, id_BW: Array) -> "Tensor":
        """The same with the log-probabilities of all ids, in order: [N, V]. The search may overwrite them."""
        ...

    def reorder(self, parent_BW: Array) -> None:
        """Hypothesis w of sentence b continues what was hypothesis parent_BW[b, w]; there may be more than before."""
        ...

    def select(self, sentence_B: Array) -> None:
        """Keep or repeat sentences: sentence b becomes a copy of sentence_B[b]."""
        ...


class Hypothesis(NamedTuple):
    ids: tuple[int, ...]  # without the end symbol
    score: float  # total log-probability, including the end symbol when finished
    normalized_score: float  # used for ranking
    finished: bool  # False: stopped at the length limit, or because no id was possible
    token_scores: tuple[float, ...] = ()  # log-probability of each id, and of the end symbol when finished; () unknown


# Given how many sentences are left, add new ones at the end of the decoding; return their maximum lengths.
Join: TypeAlias = Callable[[int], Sequence[int]]
# Given the numbers of the sentences, after every step: which are given up; None if none is and none waits to join.
Traffic: TypeAlias = Callable[[Array], Array | None]
Found: TypeAlias = tuple[int, list[Hypothesis]]  # the number of a sentence, and its hypotheses, best first


@functools.lru_cache(maxsize=4_096)
def length_penalty(length: int, alpha: float, form: Literal["gnmt", "power"]) -> float:
    """The divisor of a score, so that longer hypotheses are not worse per se. `length` counts the end symbol."""
    base = (5.0 + length) / 6.0 if form == "gnmt" else float(length)
    return float(base**alpha)


def search(
    decoding: Decoding,
    max_lengths: Sequence[int],
    options: DecodeConfig,
    keys: Sequence[int],
    *,
    start: int,
    end: int,
    forbidden: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """Run sampling, greedy search (beam 1) or beam search as `options` say; best first for each sentence."""
    if options.sampling:
        from dragoman.decode.sampling import sample

        return sample(decoding, max_lengths, options, keys, start=start, end=end, forbidden=forbidden)
    return in_order(search_with_joins(decoding, max_lengths, options, None, start=start, end=end, forbidden=forbidden))


def search_with_joins(
    decoding: Decoding,
    max_lengths: Sequence[int],
    options: DecodeConfig,
    join: Join | None,
    traffic: Traffic | None = None,
    *,
    start: int,
    end: int,
    forbidden: Sequence[int] = (),
) -> Iterator[Found]:
    """Run greedy or beam search, and yield each sentence when it is done.

    `join` is called after every step in which a sentence is done, or `traffic` asks for it. Sentences that it adds are
    numbered after the others. A sentence that `traffic` gives up is done with what it has.
    """
    if options.diversity_groups > 1:
        from dragoman.decode.diverse import diverse_beam_search

        assert join is None, "groups start together"
        yield from diverse_beam_search(decoding, max_lengths, options, start, end, forbidden)
        return
    if options.beam > 1:
        yield from _beam_search(decoding, max_lengths, options, join, None, start, end, forbidden, traffic)
        return
    choose = _most_probable(decoding, forbidden)
    for number, path in _single_paths(decoding, max_lengths, choose, options, join, start, end, traffic):
        yield number, [path]


def in_order(found: Iterator[tuple[int, Result]]) -> list[Result]:
    """Return the results in the order of the sentences' numbers."""
    by_number = dict(found)
    return [by_number[number] for number in range(len(by_number))]


def greedy(
    decoding: Decoding,
    max_lengths: Sequence[int],
    options: DecodeConfig = PAPER,
    *,
    start: int,
    end: int,
    forbidden: Sequence[int] = (),
) -> list[Hypothesis]:
    """Take the most probable id at every step, the lowest of ties. `options` only supply the length penalty."""
    return single_paths(decoding, max_lengths, _most_probable(decoding, forbidden), options, start, end)


def beam_search(
    decoding: Decoding,
    max_lengths: Sequence[int],
    options: DecodeConfig,
    *,
    start: int,
    end: int,
    forbidden: Sequence[int] = (),
    watch: Callable[[BeamStep], None] | None = None,
) -> list[list[Hypothesis]]:
    """Return the `n_best` hypotheses of each sentence: finished ones first, each kind by normalized score.

    Unfinished ones only fill the remaining places, when a sentence stops at its limit or no id is possible. If
    the beam is wider than the number of possible sequences, there may be fewer than `n_best`, but at least one.
    """
    return in_order(_beam_search(decoding, max_lengths, options, None, watch, start, end, forbidden))


def stream_prefixes(
    decoding: Decoding,
    max_length: int,
    options: DecodeConfig,
    *,
    start: int,
    end: int,
    forbidden: Sequence[int] = (),
) -> Iterator[tuple[tuple[int, ...], Hypothesis | None]]:
    """Search for one sentence. After every step, yield the ids that are certain so far: each begins with the last.

    Certain is what all hypotheses begin with that may still be the best. In the end, also yield the best one.
    """
    certain = _Certain()
    beam = _beam_steps(decoding, [max_length], options, None, certain.watch, start, end, forbidden)
    for found in beam:
        if found:
            best = found[0][1][0]
            yield best.ids, best
            return
        yield certain.prefix, None


class _Certain:
    """Follows the search for one sentence, as its `watch`."""

    def __init__(self) -> None:
        self._live: list[tuple[int, ...]] = [()]
        self._ended: list[tuple[int, ...]] = []

    def watch(self, step: BeamStep) -> None:
        parts = (step.score_BC, step.parent_BC, step.id_BC, step.ends_BC, step.kept_BC)
        before, live = self._live, dict[int, tuple[int, ...]]()
        for score, parent, new, ends, kept in zip(*(part_BC[0].tolist() for part_BC in parts), strict=True):
            if ends:
                self._ended.append(before[parent])
            elif kept >= 0 and score > NEVER:
                live[kept] = (*before[parent], new)
        # an empty slot has no candidate; what follows it is never looked at
        self._live = [live.get(place, ()) for place in range(1 + max(live, default=-1))]

    @property
    def prefix(self) -> tuple[int, ...]:
        possible = [*self._live, *self._ended]
        low, high = min(possible, default=()), max(possible, default=())  # all others are between them
        shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(low, high, strict=False))
        return tuple(one for one, _ in shared)


def _beam_search(
    decoding: Decoding,
    max_lengths: Sequence[int],
    options: DecodeConfig,
    join: Join | None,
    watch: Callable[[BeamStep], None] | None,
    start: int,
    end: int,
    forbidden: Sequence[int],
    traffic: Traffic | None = None,
) -> Iterator[Found]:
    for found in _beam_steps(decoding, max_lengths, options, join, watch, start, end, forbidden, traffic):
        yield from found


def _beam_steps(
    decoding: Decoding,
    max_lengths: Sequence[int],
    options: DecodeConfig,
    join: Join | None,
    watch: Callable[[BeamStep], None] | None,
    start: int,
    end: int,
    forbidden: Sequence[int],
    traffic: Traffic | None = None,
) -> Iterator[list[Found]]:
    """After every step, yield the sentences that are done with it."""
    live = begin(max_lengths, 1, start)
    finished: defaultdict[int, list[Hypothesis]] = defaultdict(list)
    joined = len(max_lengths)
    while live.sentence_B.size:
        value_NC, id_NC = best_allowed(decoding, live.id_BW, 2 * options.beam, forbidden)
        candidates = _expand(live.score_BW, value_NC, id_NC, 2 * options.beam)

        ends_BC = (candidates.id_BC == end) & (candidates.score_BC > NEVER)
        ends_BC[:, options.beam :] = False  # a narrower search would not have seen these
        for row, column in np.argwhere(ends_BC).tolist():
            ended = live_hypothesis(
                live, row, candidates.parent_BC[row, column], candidates.score_BC[row, column], True, options
            )
            live.worst_B[row] = admit(ended, finished[live.sentence_B[row]], options.beam)

        place_BW, parent_BW, grown = continue_best(live, candidates, end, options.beam)
        if watch is not None:
            kept_BC = np.full(candidates.id_BC.shape, -1)
            np.put_along_axis(kept_BC, place_BW, np.arange(place_BW.shape[1])[np.newaxis], axis=1)
            kept_BC[candidates.id_BC == end] = -1
            watch(BeamStep(live.sentence_B.copy(), *candidates, ends_BC, kept_BC))
        penalty_B = [
            length_penalty(length, options.length_penalty, options.length_penalty_form)
            for length in grown.length_B.tolist()
        ]
        done_B = (live.limit_B < grown.length_B) | (grown.score_BW[:, 0] / penalty_B <= live.worst_B)
        given_up_B = None if traffic is None else traffic(live.sentence_B)
        done_B = done_B if given_up_B is None else done_B | given_up_B
        found: list[Found] = []
        for row in np.flatnonzero(done_B).tolist():
            rest = unfinished(live, row, candidates.parent_BC[row, ends_BC[row]], options)
            number = int(live.sentence_B[row])
            found.append((number, [*finished.pop(number, []), *rest][: options.n_best]))
        yield found

        if done_B.all() and join is None:
            return
        width = live.score_BW.shape[1]
        if parent_BW.shape[1] != width or (parent_BW[~done_B] != np.arange(width)).any():
            decoding.reorder(parent_BW)
        live = grown
        if done_B.any() or given_up_B is not None:
            live, new = _keep(decoding, grown, ~done_B, join, joined, start)
            joined += new


class Live(NamedTuple):
    """The hypotheses that a search extends, best first; an empty slot has the score NEVER."""

    sentence_B: Array  # its number
    limit_B: Array
    worst_B: Array  # normalized score of the last entry, once the finished list is full
    length_B: Array  # tokens chosen so far
    score_BW: Array
    ids_BWT: Array
    totals_BWT: Array  # log-probability of a hypothesis up to each of its ids
    id_BW: Array  # the last id of each: fed to the decoding next

    def ids_of(self, row: int, place: int) -> list[int]:
        ids: list[int] = self.ids_BWT[row, place, self.ids_BWT.shape[2] - self.length_B[row] :].tolist()
        return ids

    def totals_of(self, row: int, place: int) -> Array:
        return self.totals_BWT[row, place, self.totals_BWT.shape[2] - self.length_B[row] :]

    def select(self, kept_B: Array) -> "Live":
        kept = Live(*(array[kept_B] for array in self))
        return kept._replace(
            ids_BWT=_without_start(kept.ids_BWT, kept.length_B),
            totals_BWT=_without_start(kept.totals_BWT, kept.length_B),
        )


def begin(limits: Sequence[int], width: int, start: int, first: int = 0, padding: int = 0) -> Live:
    """Sentences with one hypothesis each, numbered from `first` on, in rows of so much padding."""
    count = len(limits)
    score_BW = np.full((count, width), NEVER)
    score_BW[:, 0] = 0.0
    return Live(
        np.arange(first, first + count),
        np.array(limits, dtype=np.int64),
        np.full(count, NEVER),
        np.zeros(count, dtype=np.int64),
        score_BW,
        np.zeros((count, width, padding), dtype=np.int64),
        np.zeros((count, width, padding)),
        np.full((count, width), start),
    )


def _without_start(array_T: Array, length_B: Array) -> Array:
    """Without the columns, along the last axis, in which no sentence has anything: the longest may have left."""
    return array_T[..., array_T.shape[-1] - length_B.max(initial=0) :]


class Candidates(NamedTuple):
    score_BC: Array
    parent_BC: Array  # index of the live hypothesis it continues
    id_BC: Array


def _expand(score_BW: Array, value_NC: Array, id_NC: Array, count: int) -> Candidates:
    """Return the best `count` continuations of each sentence, over all its live hypotheses."""
    sentences, each = len(score_BW), id_NC.shape[1]
    score_BC = (score_BW.reshape(-1, 1) + value_NC).reshape(sentences, -1)
    order_BC = np.argsort(-score_BC, axis=1, kind="stable")[:, :count]
    return Candidates(
        np.take_along_axis(score_BC, order_BC, axis=1),
        order_BC // each,
        np.take_along_axis(id_NC.reshape(sentences, -1), order_BC, axis=1),
    )


def continue_best(live: Live, candidates: Candidates, end: int, beam: int) -> tuple[Array, Array, Live]:
    """Pick the best `beam` candidates that do not end; return their indices, their parents and the new live set."""
    order_BW = np.argsort(candidates.id_BC == end, axis=1, kind="stable")[:, :beam]
    score_BW, parent_BW, id_BW = (np.take_along_axis(array, order_BW, axis=1) for array in candidates)
    return order_BW, parent_BW, grow(live, np.where(id_BW == end, NEVER, score_BW), parent_BW, id_BW)


def grow(live: Live, score_BW: Array, parent_BW: Array, id_BW: Array) -> Live:
    """The hypotheses that continue those of `parent_BW` with one id each, and have these scores."""
    ids_BWT, totals_BWT = (
        np.take_along_axis(array_BWT, parent_BW[..., np.newaxis], axis=1)
        for array_BWT in (live.ids_BWT, live.totals_BWT)
    )
    return live._replace(
        length_B=live.length_B + 1,
        score_BW=score_BW,
        ids_BWT=np.concatenate([ids_BWT, id_BW[..., np.newaxis]], axis=2),
        totals_BWT=np.concatenate([totals_BWT, score_BW[..., np.newaxis]], axis=2),
        id_BW=id_BW,
    )


def admit(hypothesis: Hypothesis, finished: list[Hypothesis], beam: int) -> float:
    """Add one to the finished list, which keeps the best `beam`; return the normalized score to beat from now on."""
    finished.append(hypothesis)
    finished.sort(key=rank)
    del finished[beam:]
    return finished[-1].normalized_score if len(finished) == beam else NEVER


def unfinished(live: Live, row: int, ended: Array, options: DecodeConfig) -> list[Hypothesis]:
    """The live hypotheses of one sentence except those that just `ended`; they are already in order."""
    places = [place for place in np.flatnonzero(live.score_BW[row] > NEVER).tolist() if place not in ended]
    return [live_hypothesis(live, row, place, live.score_BW[row, place], False, options) for place in places]


Choose: TypeAlias = Callable[[Array, Array, Array], tuple[Array, Array]]


def single_paths(
    decoding: Decoding,
    max_lengths: Sequence[int],
    choose: Choose,
    options: DecodeConfig,
    start: int,
    end: int,
) -> list[Hypothesis]:
    """Follow one path per row. `choose(id_N, path_N, length_N)` feeds an id to each: log-probabilities and ids, [N, 1].

    It is also given the number of each path, and how many ids it has.
    """
    return in_order(_single_paths(decoding, max_lengths, choose, options, None, start, end))


def _single_paths(
    decoding: Decoding,
    max_lengths: Sequence[int],
    choose: Choose,
    options: DecodeConfig,
    join: Join | None,
    start: int,
    end: int,
    traffic: Traffic | None = None,
) -> Iterator[tuple[int, Hypothesis]]:
    live = begin(max_lengths, 1, start)
    joined = len(max_lengths)
    while live.sentence_B.size:
        value_N1, id_N1 = choose(live.id_BW[:, 0], live.sentence_B, live.length_B)

        possible_N = value_N1[:, 0] > NEVER
        ended_N = possible_N & (id_N1[:, 0] == end)
        done_N = ended_N | ~possible_N | (live.limit_B <= live.length_B)
        given_up_N = None if traffic is None else traffic(live.sentence_B)
        done_N = done_N if given_up_N is None else done_N | given_up_N
        for row in np.flatnonzero(done_N).tolist():
            score = live.score_BW[row, 0] + (value_N1[row, 0] if ended_N[row] else 0.0)
            yield int(live.sentence_B[row]), live_hypothesis(live, row, 0, score, bool(ended_N[row]), options)

        if done_N.all() and join is None:
            return
        score_N1 = live.score_BW + value_N1
        live = live._replace(
            length_B=live.length_B + 1,
            score_BW=score_N1,
            ids_BWT=np.concatenate([live.ids_BWT, id_N1[..., np.newaxis]], axis=2),
            totals_BWT=np.concatenate([live.totals_BWT, score_N1[..., np.newaxis]], axis=2),
            id_BW=id_N1,
        )
        if done_N.any() or given_up_N is not None:
            live, new = _keep(decoding, live, ~done_N, join, joined, start)
            joined += new


def _most_probable(decoding: Decoding, forbidden: Sequence[int]) -> Choose:
    return lambda id_N, path_N, length_N: best_allowed(decoding, id_N[:, np.newaxis], 1, forbidden)


def best_allowed(decoding: Decoding, id_BW: Array, count: int, forbidden: Sequence[int]) -> tuple[Array, Array]:
    """The best `count` next ids of each row that are not forbidden: their log-probabilities in float64, and the ids.

    The others are not renormalized: a hypothesis keeps the model's own score.
    """
    value_NC, id_NC = decoding.best(id_BW, count + len(forbidden))
    value_NC = value_NC.astype(np.float64)
    impossible_NC = np.isnan(value_NC)
    for token in forbidden:
        impossible_NC |= id_NC == token
    if impossible_NC.any():
        value_NC[impossible_NC] = NEVER
        order_NC = np.argsort(-value_NC, axis=1, kind="stable")
        value_NC, id_NC = (np.take_along_axis(array, order_NC, axis=1) for array in (value_NC, id_NC))
    return value_NC[:, :count], id_NC[:, :count]


def without_nan(value: Array) -> Array:
    """As float64; what is not a number is impossible."""
    value = value.astype(np.float64)
    value[np.isnan(value)] = NEVER
    return value


def _keep(
    decoding: Decoding, live: Live, kept_B: Array, join: Join | None, joined: int, start: int
) -> tuple[Live, int]:
    """Reduce live and decoding to the kept sentences; then let others join, numbered from `joined` on.

    Also return how many joined.
    """
    live = live.select(kept_B)
    decoding.select(np.flatnonzero(kept_B))
    limits = () if join is None else join(live.sentence_B.size)
    if limits:
        new = begin(limits, live.score_BW.shape[1], start, joined, live.ids_BWT.shape[2])
        live = Live(*(np.concatenate(pair) for pair in zip(live, new, strict=True)))
    return live, len(limits)


def live_hypothesis(
    live: Live, row: int, place: int, score: float, finished: bool, options: DecodeConfig
) -> Hypothesis:
    """A live hypothesis as it is, or with the end symbol, which gives it this score."""
    totals = [*live.totals_of(row, place).tolist(), *([float(score)] if finished else [])]
    return make_hypothesis(live.ids_of(row, place), totals, finished, options)


def make_hypothesis(ids: Sequence[int], totals: Sequence[float], finished: bool, options: DecodeConfig) -> Hypothesis:
    """`totals` are the log-probabilities up to each id, and up to the end symbol of a finished one."""
    score = totals[-1] if totals else 0.0
    token_scores = tuple([after - before for before, after in zip([0.0, *totals], totals, strict=False)])
    penalty = length_penalty(max(1, len(totals)), options.length_penalty, options.length_penalty_form)
    return Hypothesis(tuple(ids), score, score / penalty, finished, token_scores)


def rank(hypothesis: Hypothesis) -> float:
    return -hypothesis.normalized_score
