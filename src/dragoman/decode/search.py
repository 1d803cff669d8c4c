"""Greedy search, beam search and sampling over a small step protocol.

Owns the choice of the next ids. Knows nothing of text, tokenizers or model classes. A Transformer with a cache, a
recurrent network or a table of numbers can be decoded in the same way, as long as it can `step` and `select`.

The expensive part, a pass over every log-probability, runs on the model's device. The best few of each row are then
copied in one transfer, and the bookkeeping is plain NumPy on arrays of a few hundred numbers.

Shape suffixes
    B  sentences still in the batch      V  vocabulary
    W  live hypotheses per sentence      C  candidates, best first
    N  rows of the decoding (B * W)      T  tokens chosen so far
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.config import DecodeConfig

Array: TypeAlias = NDArray[Any]

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
    """A batch of sentences being decoded, N rows in lockstep; initially one row per sentence.

    `ids_N` and `rows_N` are int64 tensors on the CPU; the decoding moves them to its device.
    """

    def step(self, ids_N: Tensor) -> Tensor:
        """Feed one id per row; return log-probabilities [N, V] of the next id. The search may overwrite them."""
        ...

    def select(self, rows_N: Tensor) -> None:
        """Keep, repeat or reorder rows: row n becomes a copy of row rows_N[n]."""
        ...


@dataclass(frozen=True)
class Hypothesis:
    ids: tuple[int, ...]  # without the end symbol
    score: float  # total log-probability, including the end symbol when finished
    normalized_score: float  # used for ranking
    finished: bool  # False: stopped at the length limit, or because no id was possible


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
        return sample(decoding, max_lengths, options, keys, start=start, end=end, forbidden=forbidden)
    if options.beam == 1:
        paths = greedy(decoding, max_lengths, options, start=start, end=end, forbidden=forbidden)
        return [[path] for path in paths]
    return beam_search(decoding, max_lengths, options, start=start, end=end, forbidden=forbidden)


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

    def most_probable(log_prob_NV: Tensor, path_N: Array, step: int) -> Tensor:
        return _best(log_prob_NV, 1)[1]

    return _single_paths(decoding, max_lengths, most_probable, options, start, end, forbidden)


def sample(
    decoding: Decoding,
    max_lengths: Sequence[int],
    options: DecodeConfig,
    keys: Sequence[int],
    *,
    start: int,
    end: int,
    forbidden: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """Draw `n_best` independent samples per sentence, sorted by normalized score, best first.

    A draw depends only on (seed, the sentence's key, sample number, step), so a sentence gets the same samples in any
    batch. Scores are the model's own, before temperature, top-k and top-p.
    """
    assert len(keys) == len(max_lengths)
    if not max_lengths:
        return []
    count, longest = options.n_best, max(max_lengths)
    if count > 1:
        decoding.select(torch.arange(len(max_lengths)).repeat_interleave(count))
    limits = [limit for limit in max_lengths for _ in range(count)]
    streams = [_uniforms(options.seed, key, number, longest + 1) for key in keys for number in range(count)]
    uniform_NT = torch.from_numpy(np.stack(streams))

    def drawn(log_prob_NV: Tensor, path_N: Array, step: int) -> Tensor:
        return _draw(log_prob_NV, uniform_NT[path_N, step].to(log_prob_NV.device), options)

    paths = _single_paths(decoding, limits, drawn, options, start, end, forbidden)
    groups = (paths[first : first + count] for first in range(0, len(paths), count))
    return [sorted(group, key=_rank) for group in groups]


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
    finished: list[list[Hypothesis]] = [[] for _ in max_lengths]
    results: list[list[Hypothesis]] = [[] for _ in max_lengths]
    sentence_B = np.arange(len(max_lengths))
    limit_B = np.asarray(max_lengths)
    worst_B = np.full(len(max_lengths), NEVER)  # normalized score of the last entry, once the finished list is full
    live = _Live(
        np.zeros((len(max_lengths), 1)),
        np.zeros((len(max_lengths), 1, 0), dtype=np.int64),
        np.full((len(max_lengths), 1), start),
    )
    for length in itertools.count(1):  # length of a hypothesis that ends in this step, including the end symbol
        if not sentence_B.size:
            return results
        log_prob_NV = _forbid(decoding.step(torch.from_numpy(live.id_BW.reshape(-1))), forbidden)
        candidates = _expand(log_prob_NV, live.score_BW, 2 * options.beam)

        ends_BC = (candidates.id_BC == end) & (candidates.score_BC > NEVER)
        ends_BC[:, options.beam :] = False  # a narrower search would not have seen these
        for row, column in np.argwhere(ends_BC).tolist():
            ids_T = live.ids_BWT[row, candidates.parent_BC[row, column]]
            ended = _hypothesis(ids_T, candidates.score_BC[row, column], True, options)
            worst_B[row] = _admit(ended, finished[sentence_B[row]], options.beam)

        place_BW, parent_BW, grown = _continue(live, candidates, end, options.beam)
        if watch is not None:
            kept_BC = np.full(candidates.id_BC.shape, -1)
            np.put_along_axis(kept_BC, place_BW, np.arange(place_BW.shape[1])[np.newaxis], axis=1)
            kept_BC[candidates.id_BC == end] = -1
            watch(BeamStep(sentence_B.copy(), *candidates, ends_BC, kept_BC))
        penalty = length_penalty(length, options.length_penalty, options.length_penalty_form)
        done_B = (limit_B < length) | (grown.score_BW[:, 0] / penalty <= worst_B)
        for row in np.flatnonzero(done_B).tolist():
            unfinished = _unfinished(live, row, candidates.parent_BC[row, ends_BC[row]], options)
            results[sentence_B[row]] = [*finished[sentence_B[row]], *unfinished][: options.n_best]

        kept_B = ~done_B
        _select(decoding, parent_BW, live.score_BW.shape[1], kept_B)
        live = _Live(*(array[kept_B] for array in grown))
        sentence_B, limit_B, worst_B = sentence_B[kept_B], limit_B[kept_B], worst_B[kept_B]
    raise AssertionError("unreachable: every sentence stops at its limit")


class _Live(NamedTuple):
    """The hypotheses that beam search extends, best first; an empty slot has the score NEVER."""

    score_BW: Array
    ids_BWT: Array
    id_BW: Array  # the last id of each: fed to the decoding next


class _Candidates(NamedTuple):
    score_BC: Array
    parent_BC: Array  # index of the live hypothesis it continues
    id_BC: Array


def _expand(log_prob_NV: Tensor, score_BW: Array, count: int) -> _Candidates:
    """Return the best `count` continuations of each sentence, over all its live hypotheses."""
    value_NC, id_NC = _to_host(*_best(log_prob_NV, count))
    sentences, each = len(score_BW), id_NC.shape[1]
    score_BC = (score_BW.reshape(-1, 1) + value_NC).reshape(sentences, -1)
    order_BC = np.argsort(-score_BC, axis=1, kind="stable")[:, :count]
    return _Candidates(
        np.take_along_axis(score_BC, order_BC, axis=1),
        order_BC // each,
        np.take_along_axis(id_NC.reshape(sentences, -1), order_BC, axis=1),
    )


def _continue(live: _Live, candidates: _Candidates, end: int, beam: int) -> tuple[Array, Array, _Live]:
    """Pick the best `beam` candidates that do not end; return their indices, their parents and the new live set."""
    order_BW = np.argsort(candidates.id_BC == end, axis=1, kind="stable")[:, :beam]
    score_BW, parent_BW, id_BW = (np.take_along_axis(array, order_BW, axis=1) for array in candidates)
    ids_BWT = np.take_along_axis(live.ids_BWT, parent_BW[..., np.newaxis], axis=1)
    ids_BWT = np.concatenate([ids_BWT, id_BW[..., np.newaxis]], axis=2)
    return order_BW, parent_BW, _Live(np.where(id_BW == end, NEVER, score_BW), ids_BWT, id_BW)


def _admit(hypothesis: Hypothesis, finished: list[Hypothesis], beam: int) -> float:
    """Add one to the finished list, which keeps the best `beam`; return the normalized score to beat from now on."""
    finished.append(hypothesis)
    finished.sort(key=_rank)
    del finished[beam:]
    return finished[-1].normalized_score if len(finished) == beam else NEVER


def _unfinished(live: _Live, row: int, ended: Array, options: DecodeConfig) -> list[Hypothesis]:
    """The live hypotheses of one sentence except those that just `ended`; they are already in order."""
    places = [place for place in np.flatnonzero(live.score_BW[row] > NEVER).tolist() if place not in ended]
    return [_hypothesis(live.ids_BWT[row, place], live.score_BW[row, place], False, options) for place in places]


Choose: TypeAlias = Callable[[Tensor, Array, int], Tensor]


def _single_paths(
    decoding: Decoding,
    max_lengths: Sequence[int],
    choose: Choose,
    options: DecodeConfig,
    start: int,
    end: int,
    forbidden: Sequence[int],
) -> list[Hypothesis]:
    """Follow one path per row: `choose(log_prob_NV, path_N, step)` returns the next id of each row, [N, 1]."""
    results: list[Hypothesis] = [_hypothesis(np.zeros(0), 0.0, False, options)] * len(max_lengths)
    path_N = np.arange(len(max_lengths))
    limit_N = np.asarray(max_lengths)
    score_N = np.zeros(len(max_lengths))
    ids_NT = np.zeros((len(max_lengths), 0), dtype=np.int64)
    id_N = np.full(len(max_lengths), start)
    for step in itertools.count():
        if not path_N.size:
            return results
        log_prob_NV = _forbid(decoding.step(torch.from_numpy(id_N)), forbidden)
        id_N1 = choose(log_prob_NV, path_N, step)
        value_N, id_N = (array[:, 0] for array in _to_host(log_prob_NV.gather(1, id_N1), id_N1))

        possible_N = value_N > NEVER
        ended_N = possible_N & (id_N == end)
        done_N = ended_N | ~possible_N | (limit_N <= step)
        for row in np.flatnonzero(done_N).tolist():
            score = score_N[row] + (value_N[row] if ended_N[row] else 0.0)
            results[path_N[row]] = _hypothesis(ids_NT[row], score, bool(ended_N[row]), options)

        kept_N = ~done_N
        _select(decoding, np.zeros((len(id_N), 1), dtype=np.int64), 1, kept_N)
        ids_NT = np.concatenate([ids_NT, id_N[:, np.newaxis]], axis=1)[kept_N]
        path_N, limit_N, score_N, id_N = path_N[kept_N], limit_N[kept_N], (score_N + value_N)[kept_N], id_N[kept_N]
    raise AssertionError("unreachable: every path stops at its limit")


def _draw(log_prob_NV: Tensor, uniform_N: Tensor, options: DecodeConfig) -> Tensor:
    """Draw one id per row, [N, 1], by inverse CDF, after temperature, then top-k, then top-p."""
    value_NC, id_NC = log_prob_NV, None
    if options.top_k > 0 or options.top_p < 1.0:  # only these need sorted values
        value_NC, id_NC = _best(log_prob_NV, options.top_k or log_prob_NV.shape[1])
    prob_NC = torch.softmax(value_NC.float() / options.temperature, dim=1)
    if options.top_p < 1.0:
        before_NC = prob_NC.cumsum(dim=1) - prob_NC
        prob_NC = prob_NC.masked_fill(before_NC >= options.top_p, 0.0)
    reached_NC = prob_NC.cumsum(dim=1)
    hit_NC = (reached_NC > uniform_N[:, None] * reached_NC[:, -1:]) & (prob_NC > 0.0)
    chosen_N1 = hit_NC.to(torch.uint8).argmax(dim=1, keepdim=True)  # the first hit
    return chosen_N1 if id_NC is None else id_NC.gather(1, chosen_N1)


def _uniforms(seed: int, key: int, number: int, count: int) -> Array:
    """The first `count` numbers of the random stream in [0, 1) for (seed, key, number)."""
    words = np.array([seed % 2**64, key % 2**64], dtype=np.uint64)
    generator = np.random.Generator(np.random.Philox(key=words, counter=[0, 0, 0, number]))
    return generator.random(count, dtype=np.float32)


def _forbid(log_prob_NV: Tensor, forbidden: Sequence[int]) -> Tensor:
    """Rule out ids, in place and without renormalizing: a hypothesis keeps the model's own score."""
    for token in forbidden:
        log_prob_NV[:, token] = NEVER
    return log_prob_NV


def _best(value_NV: Tensor, count: int, width: int = 64) -> tuple[Tensor, Tensor]:
    """Return the `count` largest values of each row and their columns, best first, ties by the lower column.

    torch.topk leaves the order of ties undefined and is slower on a CPU. Here a row is cut into chunks of `width`: the
    `count` best values can only be in the `count` chunks with the largest maxima, or in the incomplete last chunk.
    """
    rows, columns = value_NV.shape
    if columns <= 2 * count * width:
        value_NC, column_NC = value_NV.sort(dim=1, descending=True, stable=True)
        return value_NC[:, :count], column_NC[:, :count]
    whole = columns - columns % width
    maximum_NV = value_NV[:, :whole].reshape(rows, -1, width).amax(dim=2)
    chunk_NC = _best(maximum_NV, count, width=8)[1].sort(dim=1).values
    place = torch.arange(columns, device=value_NV.device)
    column_NC = (chunk_NC[:, :, None] * width + place[:width]).flatten(1)
    column_NC = torch.cat([column_NC, place[whole:].expand(rows, -1)], dim=1)
    value_NC, order_NC = _best(value_NV.gather(1, column_NC), count, width=8)
    return value_NC, column_NC.gather(1, order_NC)


def _to_host(value_NC: Tensor, id_NC: Tensor) -> tuple[Array, Array]:
    """Both as NumPy arrays (float64, int64) in one transfer: the values are sent as integers with the same bits."""
    packed = torch.stack([value_NC.float().view(torch.int32), id_NC.to(torch.int32)]).cpu().numpy()
    value = packed[0].view(np.float32).astype(np.float64)
    return np.where(np.isnan(value), NEVER, value), packed[1].astype(np.int64)


def _select(decoding: Decoding, parent_BW: Array, width: int, kept_B: Array) -> None:
    """Reduce the decoding to the kept sentences; does nothing if every row stays in place."""
    first_B1 = np.arange(len(parent_BW))[:, np.newaxis] * width
    rows_N = (first_B1 + parent_BW)[kept_B].reshape(-1)
    if rows_N.size and not np.array_equal(rows_N, np.arange(len(parent_BW) * width)):
        decoding.select(torch.from_numpy(rows_N))


def _hypothesis(ids_T: Array, score: float, finished: bool, options: DecodeConfig) -> Hypothesis:
    length = max(1, len(ids_T) + finished)
    penalty = length_penalty(length, options.length_penalty, options.length_penalty_form)
    return Hypothesis(tuple(ids_T.tolist()), float(score), float(score) / penalty, finished)


def _rank(hypothesis: Hypothesis) -> float:
    return -hypothesis.normalized_score
