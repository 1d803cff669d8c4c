"""Whether one system's score differs from another's by more than chance, by sacrebleu's paired test.

Approximate randomisation: lines of the two systems are swapped at random many times; p is how often that alone gives a
larger difference than the real one. The seed is fixed, so the same files give the same p.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.evaluate.metrics import capped, check_lines, corpus_metrics
from dragoman.progress import Advance, no_progress

TRIALS = 10_000
MOST_SWAPS = 100_000_000  # trials x lines that sacrebleu holds at once, some ten bytes each: 1 GB
SIGNIFICANT = 0.05
ENOUGH = 20  # differing lines: no p that this many trials can find is below 2 ** -19
LOWER_IS_BETTER = ("ter",)


@dataclass(frozen=True)
class Comparison:
    """One metric of two systems on the same references."""

    score: float  # ours
    other: float  # theirs
    difference: float  # ours minus theirs
    p_value: float
    verdict: str
    signature: str

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def compare(
    hypotheses: Sequence[str],
    others: Sequence[Sequence[str]],
    references: Sequence[str],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    advance: Advance = no_progress,
) -> list[dict[str, Comparison]]:
    """Compare ours with each of `others` by BLEU, chrF and TER. `advance` counts the metrics."""
    from sacrebleu.significance import PairedTest

    for system in (hypotheses, *others):
        check_lines(system, references)
    systems: list[tuple[str, Sequence[str]]] = [
        (str(number), list(system)) for number, system in enumerate((hypotheses, *others))
    ]
    trials = max(1_000, min(TRIALS, MOST_SWAPS // len(references)))
    comparisons: list[dict[str, Comparison]] = [{} for _ in others]
    for name, metric in corpus_metrics(tokenize, lowercase=lowercase).items():
        test = PairedTest(systems, {name: metric}, [list(references)], test_type="ar", n_samples=trials)
        signatures, results = test()
        (label, signature), *_ = signatures.items()
        ours: Any
        theirs: Any
        ours, *rest = results[label]
        for comparison, other, theirs in zip(comparisons, others, rest, strict=True):
            difference = float(ours.score - theirs.score)
            p_value = 1.0
            if difference:
                differing = _differing(metric, hypotheses, other, references)
                p_value = _at_least_possible(float(theirs.p_value), differing)
            verdict = _verdict(difference if name not in LOWER_IS_BETTER else -difference, p_value)
            comparison[name] = Comparison(
                capped(name, ours.score), capped(name, theirs.score), difference, p_value, verdict, str(signature)
            )
        advance(1)
    return comparisons


def _differing(metric: Any, ours: Sequence[str], theirs: Sequence[str], references: Sequence[str]) -> int:
    """Count the lines that the metric tells apart, up to ENOUGH; some metrics ignore capitals and spaces."""

    def seen(line: str, reference: str) -> dict[str, Any]:
        return vars(metric.corpus_score([line], [[reference]]))

    count = 0
    for mine, other, reference in zip(ours, theirs, references, strict=True):
        count += mine != other and seen(mine, reference) != seen(other, reference)
        if count == ENOUGH:
            break
    return count


def _at_least_possible(p_value: float, differing: int) -> float:
    """sacrebleu's p, but no smaller than swapping this many lines allows.

    sacrebleu does not count trials that equal the real difference, and so finds a system significantly different from
    itself. Where n lines differ, the real arrangement and its mirror image are two of 2 ** n.
    """
    return min(1.0, max(p_value, 2.0 ** (1 - differing)))


def _verdict(gain: float, p_value: float) -> str:
    if gain == 0:
        return "no difference"
    if p_value >= SIGNIFICANT:
        return "could be chance"
    return f"{'better' if gain > 0 else 'worse'}, unlikely to be chance"
