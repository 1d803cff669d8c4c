"""The n best translations of a line from those of its pieces. Knows nothing of text or models."""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from dragoman.decode.search import Hypothesis


class _Chain(NamedTuple):
    """One hypothesis for each of the first pieces, linked from the last to the first."""

    unfinished: int
    penalty: float  # the sum of normalized scores, negated
    last: Hypothesis | None = None
    before: "_Chain | None" = None

    def extended(self, hypothesis: Hypothesis) -> "_Chain":
        unfinished = self.unfinished + (not hypothesis.finished)
        return _Chain(unfinished, self.penalty - hypothesis.normalized_score, hypothesis, self)

    def hypotheses(self) -> list[Hypothesis]:
        found: list[Hypothesis] = []
        chain: _Chain | None = self
        while chain is not None and chain.last is not None:
            found.append(chain.last)
            chain = chain.before
        return found[::-1]


def best_combinations(choices: Sequence[Sequence[Hypothesis]], count: int) -> list[list[Hypothesis]]:
    """Return the `count` best ways to pick one hypothesis per piece; as in search, finished ones first, then by score.

    The choices are in the same order. For two pieces, the combination of choices i and j (from 0) therefore has at
    least (i + 1) * (j + 1) - 1 others before it: of n * n, only about n log n can be among the n best.
    """
    if len(choices) == 1:
        return [[hypothesis] for hypothesis in choices[0][:count]]
    chains = [_Chain(0, 0.0)]
    for hypotheses in choices:
        longer = (
            chain.extended(hypothesis)
            for place, chain in enumerate(chains, start=1)
            for hypothesis in hypotheses[: count // place]
        )
        chains = heapq.nsmallest(count, longer, key=lambda chain: chain[:2])
    return [chain.hypotheses() for chain in chains]
