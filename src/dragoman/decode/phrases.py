"""Beam search for translations in which given phrases appear. Knows nothing of models, glossaries or files.

A phrase has several forms, each a sequence of ids. Hypotheses that have written more of their phrases have lower scores
at first, because a model would rather write something else. So they compete only with hypotheses that have written as
much: the places of the beam are dealt out to the groups in turn. None ends before all its phrases are there.

Shapes: B sentences, W hypotheses of each, N rows (B * W), V vocabulary, C candidates.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dragoman.config import DecodeConfig
from dragoman.decode.constraints import Ids
from dragoman.decode.search import NEVER, Array, Decoding, Hypothesis, admit, make_hypothesis, without_nan

if TYPE_CHECKING:
    from torch import Tensor

LEAST_BEAM = 4  # a narrower one finds poor places for phrases
WIDEST = 32  # hypotheses of a sentence, whatever the number of its phrases
PATIENCE = 3  # steps after the finished list is full: phrases that come late in a sentence need some


class Form(NamedTuple):
    """One way to write a phrase."""

    ids: Ids
    follows: Set[int] | None = None  # what it may come after; None: anything. The start symbol is among them


@dataclass(frozen=True)
class Phrase:
    """Must appear in one of its forms, the first of which is forced if need be."""

    forms: tuple[Form, ...]
    extends: Set[int] = frozenset()  # ids that make a longer word of it, which is not the phrase
    once: bool = False  # and no second time


class Progress(NamedTuple):
    """What of its phrases a hypothesis has written."""

    last: int  # id
    met: frozenset[int] = frozenset()  # numbers of phrases
    under_way: frozenset[tuple[int, Ids]] = frozenset()  # numbers of phrases, and what is missing of one form
    just_met: frozenset[int] = frozenset()


class Phrases:
    """The phrases of one sentence."""

    def __init__(self, phrases: Sequence[Phrase]) -> None:
        self._phrases = list(phrases)
        self._forms = [(number, form) for number, phrase in enumerate(phrases) for form in phrase.forms]

    def __len__(self) -> int:
        return len(self._phrases)

    def __iter__(self) -> Iterator[Phrase]:
        return iter(self._phrases)

    @property
    def num_ids(self) -> int:
        return sum(len(phrase.forms[0].ids) for phrase in self._phrases)

    def advance(self, before: Progress, new: int) -> Progress | None:
        """After one more id; None if that may not be."""
        met = set(before.met)
        met -= {number for number in before.just_met if new in self._phrases[number].extends}
        under_way, just_met = set(), set()
        for number, missing in before.under_way:
            if missing[0] == new:
                under_way.add((number, missing[1:]))
        for number, form in self._forms:
            if form.ids[0] == new and (form.follows is None or before.last in form.follows):
                under_way.add((number, form.ids[1:]))
        for number in {number for number, missing in under_way if not missing}:
            if number in before.met and self._phrases[number].once:
                return None
            if number not in met:
                just_met.add(number)
        under_way = {
            (number, missing)
            for number, missing in under_way
            if missing and (number not in met | just_met or self._phrases[number].once)
        }
        return Progress(new, frozenset(met | just_met), frozenset(under_way), frozenset(just_met))

    def wanted(self, progress: Progress) -> set[int]:
        """The ids that would write more of the phrases."""
        started = {missing[0] for number, missing in progress.under_way if number not in progress.met}
        if started:
            return started
        return {form.ids[0] for number, form in self._forms if number not in progress.met and form.follows is None}

    def written(self, progress: Progress) -> int:
        """How many ids of the phrases are there: those of whole phrases, and of the one that is furthest under way."""
        started = (
            len(self._phrases[number].forms[0].ids) - len(missing)
            for number, missing in progress.under_way
            if number not in progress.met
        )
        return sum(len(self._phrases[number].forms[0].ids) for number in progress.met) + max(0, *started, 0)

    def are_met(self, progress: Progress) -> bool:
        return len(progress.met) == len(self._phrases)


class _Path(NamedTuple):
    ids: Ids
    totals: tuple[float, ...]  # log-probabilities up to each id
    progress: Progress

    @property
    def score(self) -> float:
        return self.totals[-1] if self.totals else 0.0


class _Candidate(NamedTuple):
    score: float
    parent: int
    id: int
    progress: Progress


class _Sentence:
    """The search for one sentence."""

    def __init__(self, limit: int, phrases: Phrases, start: int, beam: int) -> None:
        self._limit, self.phrases = limit, phrases
        # its own, so that other sentences of the batch change nothing
        self.width = max(beam, min(WIDEST, beam * (1 + phrases.num_ids)))
        self.paths = [_Path((), (), Progress(start))]
        self.finished: list[Hypothesis] = []
        self._full_at: int | None = None  # the length at which the finished list was full

    def grow(self, candidates: Sequence[tuple[float, int, int]], end: int, options: DecodeConfig) -> list[int]:
        """Take candidates, (score, parent, id), best first, and return the parents of those that go on."""
        groups: dict[int, list[_Candidate]] = {}
        for score, parent, new in candidates:
            if score == NEVER:
                break
            before = self.paths[parent]
            if new == end:
                if self.phrases.are_met(before.progress):
                    admit(
                        make_hypothesis(before.ids, (*before.totals, score), True, options), self.finished, options.beam
                    )
                continue
            progress = self.phrases.advance(before.progress, new)
            if progress is not None:
                group = groups.setdefault(self.phrases.written(progress), [])
                if len(group) < self.width:
                    group.append(_Candidate(score, parent, new, progress))
        kept = _deal([groups[written] for written in sorted(groups, reverse=True)], self.width)
        length = len(self.paths[0].ids) + 1 if self.paths else 0
        if self._full_at is None and len(self.finished) == options.beam:
            self._full_at = length
        self.paths = [self._continued(each) for each in kept]
        return [each.parent for each in kept]

    def _continued(self, new: _Candidate) -> _Path:
        before = self.paths[new.parent]
        return _Path((*before.ids, new.id), (*before.totals, new.score), new.progress)

    def is_done(self, options: DecodeConfig) -> bool:
        if not self.paths or len(self.paths[0].ids) > self._limit:
            return True
        return self._full_at is not None and len(self.paths[0].ids) >= self._full_at + PATIENCE


def _deal(groups: Sequence[Sequence[_Candidate]], width: int) -> list[_Candidate]:
    """Candidates of each group in turn, the best of each first."""
    dealt: list[_Candidate] = []
    for place in range(width):
        dealt += [group[place] for group in groups if place < len(group)]
    return dealt[:width]


def search_with_phrases(
    decoding: Decoding,
    max_lengths: Sequence[int],
    options: DecodeConfig,
    phrases: Sequence[Phrases],
    *,
    start: int,
    end: int,
    forbidden: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each sentence in which all its phrases appear, best first; possibly none."""
    options = replace(options, beam=max(LEAST_BEAM, options.beam))
    parts = zip(max_lengths, phrases, strict=True)
    everything = [_Sentence(limit, own, start, options.beam) for limit, own in parts]
    width = max((sentence.width for sentence in everything), default=1)
    live, rows = everything, 1
    while live:
        id_BW = np.array([[path.progress.last for path in _filled(sentence.paths, rows)] for sentence in live])
        wanted = [
            sorted(sentence.phrases.wanted(path.progress))
            for sentence in live
            for path in _filled(sentence.paths, rows)
        ]
        value_NC, id_NC = _best_and(decoding.log_probs(id_BW), 2 * options.beam, wanted, forbidden)
        parents = []
        for place, sentence in enumerate(live):
            own = slice(place * rows, place * rows + len(sentence.paths))
            candidates = _in_order(sentence.paths, value_NC[own], id_NC[own])
            parents.append(sentence.grow(candidates, end, options))
        kept = [place for place, sentence in enumerate(live) if not sentence.is_done(options)]
        if not kept:
            break
        decoding.reorder(np.array([(own + [0] * width)[:width] for own in parents]))
        if len(kept) < len(live):
            decoding.select(np.array(kept))
        live, rows = [live[place] for place in kept], width
    return [sentence.finished[: options.n_best] for sentence in everything]


def _filled(paths: Sequence[_Path], rows: int) -> list[_Path]:
    """As many as the decoding has rows; the others are not looked at."""
    return [*paths, *[paths[0]] * (rows - len(paths))]


def _best_and(
    value_NV: "Tensor", count: int, wanted: Sequence[Sequence[int]], forbidden: Sequence[int]
) -> tuple[Array, Array]:
    """The best `count` ids of each row, and those it wants besides: log-probabilities and ids, NEVER where none is."""
    import torch

    from dragoman.decode.ranking import largest, to_host
    from dragoman.decode.sampling import forbid

    value_NV = forbid(value_NV, forbidden)
    value_NC, id_NC = largest(value_NV, min(count, value_NV.shape[1]))
    most = max(map(len, wanted))
    wanted_NC = torch.tensor([[*own, *[-1] * (most - len(own))] for own in wanted], device=value_NV.device)
    extra_NC = value_NV.gather(1, wanted_NC.clamp(min=0)) if most else value_NC[:, :0]
    is_new_NC = (wanted_NC[:, :, None] != id_NC[:, None, :]).all(dim=2) & (wanted_NC >= 0)
    extra_NC = extra_NC.masked_fill(~is_new_NC, NEVER)
    values, ids = to_host(torch.cat([value_NC, extra_NC], dim=1), torch.cat([id_NC, wanted_NC.clamp(min=0)], dim=1))
    return without_nan(values), ids


def _in_order(paths: Sequence[_Path], value_WC: Array, id_WC: Array) -> list[tuple[float, int, int]]:
    """Continuations of all paths, best first: their scores, the numbers of their paths, and the ids."""
    score_WC = value_WC + np.array([[path.score] for path in paths])
    order = np.argsort(-score_WC, axis=None, kind="stable")
    parents, _ = np.unravel_index(order, score_WC.shape)
    return list(zip(score_WC.flat[order].tolist(), parents.tolist(), id_WC.flat[order].tolist(), strict=True))
