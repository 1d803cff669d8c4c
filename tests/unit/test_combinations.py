"""The n best translations of a line that is translated in pieces."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman
from dragoman.decode.combinations import best_combinations
from dragoman.decode.search import Hypothesis
from dragoman.decode.translator import Translator

LINE, SENTENCES = "a b c! D e? F g", ["a b c! ", "D e? ", "F g"]


def order(hypothesis: Hypothesis) -> tuple[bool, float]:
    return not hypothesis.finished, -hypothesis.normalized_score


@st.composite
def pieces(draw: st.DrawFn) -> list[list[Hypothesis]]:
    """The n best of some pieces, as search gives them; scores that add up exactly."""
    one = st.builds(
        lambda score, finished: Hypothesis((), score, score, finished), st.integers(-50, 0).map(float), st.booleans()
    )
    lists = draw(st.lists(st.lists(one, min_size=1, max_size=5), min_size=1, max_size=4))
    return [sorted(hypotheses, key=order) for hypotheses in lists]


@given(pieces(), st.integers(1, 12))
def test_best_combinations_match_exhaustive_search(choices: list[list[Hypothesis]], count: int) -> None:
    def rank(combination: tuple[Hypothesis, ...]) -> tuple[int, float]:
        unfinished = sum(not hypothesis.finished for hypothesis in combination)
        return unfinished, -sum(hypothesis.normalized_score for hypothesis in combination)

    found = best_combinations(choices, count)
    expected = sorted(itertools.product(*choices), key=rank)[:count]
    assert [rank(tuple(combination)) for combination in found] == [rank(combination) for combination in expected]
    assert found[0] == [hypotheses[0] for hypotheses in choices]


def test_line_of_twenty_thousand_pieces_is_handled() -> None:
    """Nothing is quadratic or recursive."""
    choices = [[Hypothesis((), score, score, True) for score in (-1.0, -2.0)]] * 20_000
    first, second, third = best_combinations(choices, 3)
    assert len(first) == 20_000
    assert [sum(hypothesis.score for hypothesis in one) for one in (first, second, third)] == [
        -20_000,
        *[-20_001] * 2,
    ]


@pytest.fixture(scope="module")
def translator(quick_run: Path) -> Translator:
    return dragoman.load(quick_run, device="cpu")


def test_line_of_several_sentences_has_n_best(translator: Translator) -> None:
    line = translator.translate(LINE, split="sentences", beam=3, n_best=3)
    best = line.alternatives[0]
    assert (best.text, best.score, best.normalized_score, best.tokens) == (
        line.text, line.score, line.normalized_score, line.tokens,
    )  # fmt: skip
    assert len({other.tokens for other in line.alternatives}) == 3
    alone = translator.translate(SENTENCES, beam=3, n_best=3)
    every = itertools.product(*(sentence.alternatives for sentence in alone))
    expected = sorted(((sum(part.normalized_score for part in parts) / 3, parts) for parts in every), reverse=True)[:3]
    for other, (normalized, parts) in zip(line.alternatives, expected, strict=True):
        assert other.normalized_score == pytest.approx(normalized, abs=1e-4)
        assert other.score == pytest.approx(sum(part.score for part in parts), abs=1e-4)
        assert other.text == " ".join(part.text for part in parts).strip()
    assert translator.translate(LINE, split="sentences", beam=3).alternatives == (best,)


def test_n_best_can_exceed_the_hypotheses_of_each_piece(translator: Translator) -> None:
    line = translator.translate(f"{LINE}.", split="sentences", beam=4, n_best=4)
    assert len(line.alternatives) == 4


def test_a_sample_of_a_line_is_one_sample_of_each_sentence(translator: Translator) -> None:
    line = translator.translate(LINE, split="sentences", sampling=True, n_best=3)
    assert len({other.tokens for other in line.alternatives}) == 3
    ends = [[place for place, token in enumerate(other.tokens) if token == "</s>"] for other in line.alternatives]
    firsts = {other.tokens[: end[0]] for other, end in zip(line.alternatives, ends, strict=True) if end}
    assert len(firsts) > 1, "each sample uses its own sample of a sentence"
