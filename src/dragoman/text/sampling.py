"""Random segmentations of a text with a trained vocabulary. Callers pass the RNG. Knows nothing of corpora or epochs.

BPE: BPE-dropout (Provilkov et al., 2020). At every step each possible merge is dropped with probability `strength` and
the best of the others is applied, until a step has none left; 0 equals `encode`, 1 gives single characters.
Unigram (Kudo, 2018): a segmentation is drawn with probability proportional to P(segmentation) ** `strength`; 0 makes
all equally likely, 1 samples from the model, and larger values come closer to `encode`.

A text is divided into stretches that no piece of the vocabulary crosses: usually words, and most symbols on their own.
Each is segmented separately, as the papers do with words, and the parts that do not depend on the RNG are cached.
"""

import math
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate, groupby, pairwise
from random import Random
from typing import NamedTuple, Protocol

from dragoman.errors import ConfigError
from dragoman.text.normalize import SPACE_MARK, normalize
from dragoman.text.tokenizer import Tokenizer

UNKNOWN_PENALTY = 10.0  # sentencepiece's: an unknown character is this much worse than the worst piece
# The cache holds the frequent words of a corpus and takes about 100 MB.
WORDS_KEPT = 1 << 15
LONGEST_KEPT = 24  # characters; longer stretches hardly ever recur
NO_PIECE = math.inf  # the rank of a string that is not a piece


class Sampler(Protocol):
    def sample(self, text: str, strength: float, random: Random) -> list[int]:
        """Return ids of `text`, without BOS or EOS, that decode to the same text as those of `encode`."""


def make_sampler(tokenizer: Tokenizer) -> Sampler:
    if tokenizer.kind == "bpe":
        return BpeDropout(tokenizer)
    if tokenizer.kind == "unigram":
        return UnigramSampler(tokenizer)
    raise ConfigError(
        f"text.model: {tokenizer.kind} has only one segmentation of a text, nothing to sample; use bpe or unigram"
    )


class _Pieces:
    """A vocabulary's pieces, how it spells unknown characters, and where it divides a text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._normalization = tokenizer.normalization
        self.ids, self.scores, self._byte_ids = tokenizer.piece_table()
        self._unk = tokenizer.vocabulary.unk
        self._neighbours = {pair for piece in self.ids for pair in pairwise(piece)}
        # False for a vocabulary that was trained across spaces.
        self._spaces_divide = all(right != SPACE_MARK for _, right in self._neighbours)
        self._divide = lru_cache(WORDS_KEPT)(self._divided)

    def stretches(self, text: str) -> list[str]:
        """Split a text into the parts that no piece crosses."""
        normalized = normalize(text, self._normalization)
        if not normalized:
            return []
        if not self._spaces_divide:
            return self._divided(SPACE_MARK + normalized.replace(" ", SPACE_MARK))
        return [stretch for word in normalized.split(" ") for stretch in self._divide(SPACE_MARK + word)]

    def _divided(self, text: str) -> list[str]:
        """Cut between any two characters that are adjacent in no piece."""
        cuts = [place for place, pair in enumerate(pairwise(text), 1) if pair not in self._neighbours]
        return [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]

    def spell(self, piece: str) -> list[int]:
        """The ids of a piece, or of a single character that is not a piece."""
        known = self.ids.get(piece)
        if known is not None:
            return [known]
        return [self._byte_ids[byte] for byte in piece.encode()] if self._byte_ids else [self._unk]

    def finish(self, ids: list[int]) -> list[int]:
        """As in sentencepiece: without byte fallback, consecutive unknown characters become one unknown id."""
        if self._byte_ids or self._unk not in ids:
            return ids
        return [index for index, run in groupby(ids) for index in ([self._unk] if index == self._unk else run)]


class _Decisions:
    """Decides for each merge in turn whether to drop it. Draws once per dropped merge: how many are kept before it."""

    def __init__(self, probability: float, random: Random) -> None:
        self._random = random
        self._always = probability >= 1
        self._log_kept = 0.0 if self._always else math.log1p(-probability)
        self._kept = self._draw()

    def _draw(self) -> float:
        if not self._log_kept:
            return 0.0 if self._always else math.inf
        return math.log(1.0 - self._random.random()) // self._log_kept

    def all_kept(self, count: int) -> bool:
        """Whether the next `count` merges are all kept; if so they are consumed, otherwise none is."""
        if self._kept < count:
            return False
        self._kept -= count
        return True

    def left_out(self) -> bool:
        if self._kept:
            self._kept -= 1
            return False
        self._kept = self._draw()
        return True


class BpeDropout:
    """`strength` is the probability that a merge is dropped."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._pieces = _Pieces(tokenizer)
        # sentencepiece merges any two neighbours that spell a piece, however that piece was learned
        self._ranks = {piece: -score for piece, score in self._pieces.scores.items()}
        self._certain = lru_cache(WORDS_KEPT)(self._with_all_merges)

    def sample(self, text: str, strength: float, random: Random) -> list[int]:
        decisions = _Decisions(strength, random)
        ids: list[int] = []
        for stretch in self._pieces.stretches(text):
            ids += self._segment(stretch, decisions)
        return self._pieces.finish(ids)

    def _segment(self, stretch: str, decisions: _Decisions) -> list[int]:
        if len(stretch) <= LONGEST_KEPT:
            ids, merges = self._certain(stretch)
            if decisions.all_kept(merges):  # the usual case: nothing to compute
                return ids
        return self._spelled(self._merge(stretch, decisions))

    def _with_all_merges(self, stretch: str) -> tuple[list[int], int]:
        """The ids when no merge is dropped, and the number of merges."""
        pieces = self._merge(stretch, _Decisions(0.0, Random(0)))
        return self._spelled(pieces), len(stretch) - len(pieces)

    def _spelled(self, pieces: list[str]) -> list[int]:
        return [index for piece in pieces for index in self._pieces.spell(piece)]

    def _merge(self, stretch: str, decisions: _Decisions) -> list[str]:
        pieces, known = list(stretch), self._ranks
        ranks = [known.get(left + right, NO_PIECE) for left, right in pairwise(pieces)]
        while (place := _choose(ranks, decisions)) is not None:
            merged = pieces[place] = pieces[place] + pieces.pop(place + 1)
            del ranks[place]
            if place:
                ranks[place - 1] = known.get(pieces[place - 1] + merged, NO_PIECE)
            if place < len(ranks):
                ranks[place] = known.get(merged + pieces[place + 1], NO_PIECE)
        return pieces


def _choose(ranks: list[float], decisions: _Decisions) -> int | None:
    """Index of the best merge that is not dropped, the leftmost of ties; None if there is none."""
    possible = ranks
    while possible and (best := min(possible)) < NO_PIECE:
        place = possible.index(best)
        if not decisions.left_out():
            return place
        possible = possible.copy()
        possible[place] = NO_PIECE
    return None


class _Piece(NamedTuple):
    ids: list[int]
    score: float


_Arc = tuple[int, _Piece]  # a piece in a lattice, with its start
# For each end: the cumulative probabilities of the pieces that end there, given that one does, and those pieces.
_Lattice = list[tuple[list[float], list[_Arc]]]


class UnigramSampler:
    """`strength` is the exponent on probabilities; smaller values give more varied segmentations."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._pieces = _Pieces(tokenizer)
        ids, scores = self._pieces.ids, self._pieces.scores
        self._unknown = min(scores.values(), default=0.0) - UNKNOWN_PENALTY
        # Every prefix of a piece, () if it is not a piece itself: a search stops at the first miss.
        self._index: dict[str, _Piece | tuple[()]] = {piece[:end]: () for piece in ids for end in range(1, len(piece))}
        self._index.update({piece: _Piece([ids[piece]], scores[piece]) for piece in ids})
        self._lattice = lru_cache(WORDS_KEPT)(self._make_lattice)

    def sample(self, text: str, strength: float, random: Random) -> list[int]:
        ids: list[int] = []
        for stretch in self._pieces.stretches(text):
            lattice = self._lattice if len(stretch) <= LONGEST_KEPT else self._make_lattice
            ids += _draw(lattice(stretch, strength), random)
        return self._pieces.finish(ids)

    def _make_lattice(self, stretch: str, strength: float) -> _Lattice:
        sums = [0.0]  # log of the sum over all segmentations up to each end
        lattice: _Lattice = [([], [])]
        for arcs in self._arcs(stretch)[1:]:
            logs = [sums[start] + strength * piece.score for start, piece in arcs]
            largest = max(logs)
            cumulative = list(accumulate([math.exp(log - largest) for log in logs]))
            total = cumulative[-1]
            sums.append(largest + math.log(total))
            lattice.append(([weight / total for weight in cumulative], arcs))  # the last weight is exactly 1
        return lattice

    def _arcs(self, stretch: str) -> list[list[_Arc]]:
        """The pieces that end at each position. Every character counts as one, so every position is reachable."""
        beginning, places = self._index.get, range(1, len(stretch) + 1)
        arriving: list[list[_Arc]] = [[] for _ in range(len(stretch) + 1)]
        for start, character in enumerate(stretch):
            if not beginning(character):
                arriving[start + 1].append((start, _Piece(self._pieces.spell(character), self._unknown)))
            for end in places[start:]:
                piece = beginning(stretch[start:end])
                if piece is None:
                    break
                if piece:
                    arriving[end].append((start, piece))
        return arriving


def _draw(lattice: _Lattice, random: Random) -> list[int]:
    """Draw backward from the end, each piece with the probability that a segmentation has it there."""
    drawn: list[list[int]] = []
    end = len(lattice) - 1
    while end:
        cumulative, arcs = lattice[end]
        end, piece = arcs[bisect_right(cumulative, random.random())] if len(arcs) > 1 else arcs[0]
        drawn.append(piece.ids)
    return [index for ids in reversed(drawn) for index in ids]
