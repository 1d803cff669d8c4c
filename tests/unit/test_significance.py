"""The paired significance test: differences by chance are not significant, real ones are."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dragoman.errors import DataError
from dragoman.evaluate import significance
from dragoman.evaluate.metrics import evaluate
from dragoman.evaluate.significance import Comparison, compare

LINES = 80
WORDS = [f"{first}{second}" for first in ("ka", "le", "mi", "no", "su") for second in ("ra", "te", "vi", "xo")]


def spoilt(lines: list[str], rate: float, seed: int) -> list[str]:
    """Some words replaced by others."""
    chance = random.Random(seed)

    def spoil(word: str) -> str:
        return chance.choice(WORDS) if chance.random() < rate else word

    return [" ".join(map(spoil, line.split())) for line in lines]


def first_wrong(lines: list[str], count: int) -> list[str]:
    return ["quite wrong"] * count + lines[count:]


def corpus() -> list[str]:
    chance = random.Random(1)
    return [" ".join(chance.choices(WORDS, k=12)) for _ in range(LINES)]


REFERENCES = corpus()
OURS = spoilt(REFERENCES, 0.3, seed=2)
OTHERS = {
    "itself": OURS,
    "as good": spoilt(REFERENCES, 0.3, seed=3),
    "worse": spoilt(REFERENCES, 0.5, seed=4),
    "better": spoilt(REFERENCES, 0.1, seed=5),
    "one line worse": first_wrong(OURS, 1),
    "five lines worse": first_wrong(OURS, 5),
    "twenty lines worse": first_wrong(OURS, 20),
}


@pytest.fixture(scope="module", autouse=True)
def few_trials() -> Iterator[None]:
    """A thousand tell these systems apart."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(significance, "TRIALS", 1_000)
        yield


@pytest.fixture(scope="module")
def compared() -> dict[str, dict[str, Comparison]]:
    return dict(zip(OTHERS, compare(OURS, list(OTHERS.values()), REFERENCES), strict=True))


def test_a_system_does_not_differ_from_itself(compared: dict[str, dict[str, Comparison]]) -> None:
    for one in compared["itself"].values():
        assert (one.difference, one.p_value, one.verdict) == (0, 1, "no difference")


def test_control_sacrebleu_calls_identical_systems_different() -> None:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.significance import PairedTest

    _, results = PairedTest([("a", OURS), ("b", OURS)], {"bleu": BLEU()}, [REFERENCES], n_samples=1000)()
    itself: Any = results["BLEU"][1]
    assert itself.p_value < 0.01


def test_equally_good_systems_could_differ_by_chance(compared: dict[str, dict[str, Comparison]]) -> None:
    for one in compared["as good"].values():
        assert one.difference != 0
        assert one.p_value > 0.05
        assert one.verdict == "could be chance"


def test_clearly_better_system_is_significant(compared: dict[str, dict[str, Comparison]]) -> None:
    for name, one in compared["worse"].items():
        assert one.p_value < 0.01
        assert (one.difference < 0) == (name == "ter")  # the less editing the better
        assert one.verdict == "better, unlikely to be chance"
    for one in compared["better"].values():
        assert one.verdict == "worse, unlikely to be chance"


def test_few_differing_lines_are_not_significant(compared: dict[str, dict[str, Comparison]]) -> None:
    for metric in ("bleu", "chrf", "ter"):
        assert compared["one line worse"][metric].p_value == 1
        assert compared["five lines worse"][metric].p_value >= 2 / 2**5
        assert compared["five lines worse"][metric].verdict == "could be chance"
        assert compared["twenty lines worse"][metric].p_value < 0.01  # the control: enough lines do


@pytest.mark.parametrize(
    "change", [str.upper, *(pytest.param(f.format, marks=pytest.mark.slow) for f in ("{} ", " {}"))]
)
def test_lines_that_are_equal_to_a_metric_do_not_differ(change: Callable[[str], str]) -> None:
    """One line is worse; the others differ in capitals or in spaces at an end alone."""
    other = ["quite wrong", *map(change, OURS[1:])]
    (compared,) = compare(OURS, [other], REFERENCES, lowercase=True)
    assert [one.p_value for one in compared.values()] == [1, 1, 1]
    (control,) = compare(OURS, [first_wrong(other, 20)], REFERENCES, lowercase=True)
    assert all(one.p_value < 0.01 for one in control.values())


def test_scores_match_evaluate(compared: dict[str, dict[str, Comparison]]) -> None:
    ours, theirs = evaluate(OURS, REFERENCES).to_dict(), evaluate(OTHERS["worse"], REFERENCES).to_dict()
    for name, one in compared["worse"].items():
        assert (one.score, one.other) == pytest.approx((ours[name]["score"], theirs[name]["score"]))
        assert one.difference == pytest.approx(one.score - one.other)
        assert f"|ar:{significance.TRIALS}|seed:12345|" in one.signature


def test_other_systems_and_repetition_change_nothing(compared: dict[str, dict[str, Comparison]]) -> None:
    assert compare(OURS, [OTHERS["as good"]], REFERENCES) == [compared["as good"]]


def test_missing_lines_of_a_system_are_refused() -> None:
    with pytest.raises(DataError, match="79 hypotheses, 80 references"):
        compare(OURS, [OURS[1:]], REFERENCES)
