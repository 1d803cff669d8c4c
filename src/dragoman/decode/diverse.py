"""Diverse beam search (Vijayakumar et al., 2016): groups of hypotheses that avoid the tokens of the groups before.

The groups of a step choose one after the other. A candidate of a later group loses `diversity_penalty` for every
hypothesis of the earlier groups that has just taken the same token. The penalty only decides what is kept: scores
stay log-probabilities, and the results of all groups are ranked together by them. Knows nothing of models or text.

Shapes as in search.py; G groups, W hypotheses of a group, A all hypotheses of a sentence (G * W).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from dragoman.config import DecodeConfig
from dragoman.decode.search import (
    NEVER,
    Array,
    Candidates,
    Decoding,
    Found,
    Hypothesis,
    Live,
    admit,
    begin,
    best_allowed,
    continue_best,
    length_penalty,
    live_hypothesis,
    unfinished,
)


def diverse_beam_search(
    decoding: Decoding,
    max_lengths: Sequence[int],
    options: DecodeConfig,
    start: int,
    end: int,
    forbidden: Sequence[int],
) -> Iterator[Found]:
    """Yield each sentence when all its groups are done: the `n_best` distinct hypotheses of all groups."""
    width = options.beam // options.diversity_groups
    groups = [_Group(begin(max_lengths, 1, start), width, options) for _ in range(options.diversity_groups)]
    while groups[0].live.sentence_B.size:
        is_new = groups[0].live.ids_BWT.shape[2] == 0  # all groups start from the one hypothesis of a sentence
        id_BA = np.concatenate([group.live.id_BW for group in groups[: 1 if is_new else None]], axis=1)
        # any of the tokens that earlier groups took may be penalized: as many more candidates are needed
        value_NC, id_NC = best_allowed(decoding, id_BA, 2 * width + options.beam, forbidden)
        value_BAC, id_BAC = (array.reshape(*id_BA.shape, -1) for array in (value_NC, id_NC))
        taken_BA: Array = np.zeros((len(id_BA), 0), np.int64)
        parents = []
        for number, group in enumerate(groups):
            own_width = group.live.id_BW.shape[1]
            first = 0 if is_new else number * own_width
            own = slice(first, first + own_width)
            parent_BW, id_BW = group.step(value_BAC[:, own], id_BAC[:, own], taken_BA, end)
            taken_BA = np.concatenate([taken_BA, id_BW], axis=1)
            parents.append(parent_BW + first)
        done_B = np.all([group.done_B for group in groups], axis=0)
        for row in np.flatnonzero(done_B).tolist():
            number = int(groups[0].live.sentence_B[row])
            yield number, _merged([group.found(number) for group in groups])[: options.n_best]
        if done_B.all():
            return
        decoding.reorder(np.concatenate(parents, axis=1))
        for group in groups:
            group.advance(~done_B)
        if done_B.any():
            decoding.select(np.flatnonzero(~done_B))


class _Group:
    """A beam search that does not know of the other groups, but for the tokens they have taken."""

    def __init__(self, live: Live, width: int, options: DecodeConfig) -> None:
        self.live, self._width, self._options = live, width, options
        self.done_B = np.zeros(live.sentence_B.size, bool)
        self._finished: defaultdict[int, list[Hypothesis]] = defaultdict(list)
        self._unfinished: dict[int, list[Hypothesis]] = {}

    def step(self, value_BWC: Array, id_BWC: Array, taken_BA: Array, end: int) -> tuple[Array, Array]:
        """Choose candidates; return the parents of those that continue, and the tokens they take (-1: none)."""
        live, options = self.live, self._options
        candidates = _candidates(live, value_BWC, id_BWC, taken_BA, 2 * self._width, options.diversity_penalty)
        ends_BC = (candidates.id_BC == end) & (candidates.score_BC > NEVER)
        ends_BC[:, self._width :] = False  # a narrower search would not have seen these
        for row, column in np.argwhere(ends_BC).tolist():
            parent, score = candidates.parent_BC[row, column], candidates.score_BC[row, column]
            ended = live_hypothesis(live, row, parent, score, True, options)
            live.worst_B[row] = admit(ended, self._finished[int(live.sentence_B[row])], self._width)
        _, parent_BW, self._grown = continue_best(live, candidates, end, self._width)
        penalty_B = [
            length_penalty(length, options.length_penalty, options.length_penalty_form)
            for length in self._grown.length_B.tolist()
        ]
        best_B = self._grown.score_BW.max(axis=1)
        done_B = (live.limit_B < self._grown.length_B) | (best_B / penalty_B <= live.worst_B)
        for row in np.flatnonzero(done_B & ~self.done_B).tolist():
            ended_parents = candidates.parent_BC[row, ends_BC[row]]
            self._unfinished[int(live.sentence_B[row])] = unfinished(live, row, ended_parents, options)
        self.done_B = self.done_B | done_B
        score_BW = np.where(self.done_B[:, np.newaxis], NEVER, self._grown.score_BW)  # it takes no more part
        self._grown = self._grown._replace(score_BW=score_BW)
        return parent_BW, np.where(score_BW > NEVER, self._grown.id_BW, -1)

    def advance(self, kept_B: Array) -> None:
        """Go on with what continues, of these sentences."""
        self.live, self.done_B = self._grown.select(kept_B), self.done_B[kept_B]

    def found(self, number: int) -> list[Hypothesis]:
        return [*self._finished.pop(number, []), *self._unfinished.pop(number, [])]


def _candidates(live: Live, value_BWC: Array, id_BWC: Array, taken_BA: Array, count: int, penalty: float) -> Candidates:
    """The best `count` continuations of each sentence after the penalty; their scores are without it."""
    sentences, each = len(live.score_BW), id_BWC.shape[2]
    score_BC = (live.score_BW[:, :, np.newaxis] + value_BWC).reshape(sentences, -1)
    id_BC = id_BWC.reshape(sentences, -1)
    times_BC = (id_BC[:, :, np.newaxis] == taken_BA[:, np.newaxis]).sum(axis=2)
    order_BC = np.argsort(-(score_BC - penalty * times_BC), axis=1, kind="stable")[:, :count]
    return Candidates(
        np.take_along_axis(score_BC, order_BC, axis=1), order_BC // each, np.take_along_axis(id_BC, order_BC, axis=1)
    )


def _merged(groups: Sequence[list[Hypothesis]]) -> list[Hypothesis]:
    """Of all groups: each sequence once, finished ones first, each kind by its normalized score."""
    distinct = {(each.ids, each.finished): each for hypotheses in groups for each in hypotheses}
    return sorted(distinct.values(), key=lambda each: (not each.finished, -each.normalized_score))
