"""Search over ids: greedy, beam and sampling agree with each other, with enumeration and with the model's scores."""

import itertools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from dragoman.config import DecodeConfig
from dragoman.decode.ranking import largest
from dragoman.decode.sampling import sample
from dragoman.decode.search import Hypothesis, beam_search, greedy, length_penalty, search

START, END = 0, 1
Logits = Callable[[int, tuple[int, ...]], Sequence[float]]
Row = tuple[int, tuple[int, ...]]  # a sentence, and the ids fed so far
Array = NDArray[Any]


class Fake:
    """Log-probabilities that depend on the sentence and on every id fed, so that a misplaced row is detected."""

    def __init__(self, sentences: Sequence[int], logits: Logits) -> None:
        self.sentences: list[list[Row]] = [[(sentence, ())] for sentence in sentences]
        self.logits = logits
        self.sizes: list[int] = []
        self.changes = 0

    def best(self, id_BW: Array, count: int) -> tuple[Array, Array]:
        value_NC, id_NC = self.log_probs(id_BW).sort(dim=1, descending=True, stable=True)
        return value_NC[:, :count].numpy(), id_NC[:, :count].numpy()

    def log_probs(self, id_BW: Array) -> Tensor:
        self.sizes.append(id_BW.size)
        self.sentences = [
            [(key, (*ids, token)) for (key, ids), token in zip(rows, fed, strict=True)]
            for rows, fed in zip(self.sentences, id_BW.tolist(), strict=True)
        ]
        return torch.stack([self.log_probs_of(*row) for rows in self.sentences for row in rows])

    def reorder(self, parent_BW: Array) -> None:
        self.changes += 1
        self.sentences = [
            [rows[parent] for parent in parents]
            for rows, parents in zip(self.sentences, parent_BW.tolist(), strict=True)
        ]

    def select(self, sentence_B: Array) -> None:
        self.changes += 1
        self.sentences = [self.sentences[sentence] for sentence in sentence_B.tolist()]

    def log_probs_of(self, sentence: int, fed: tuple[int, ...]) -> Tensor:
        return torch.tensor(self.logits(sentence, fed)).log_softmax(dim=-1)

    def score(self, sentence: int, hypothesis: Hypothesis) -> float:
        ids = [*hypothesis.ids, END] if hypothesis.finished else list(hypothesis.ids)
        fed = [START, *ids]
        return sum(float(self.log_probs_of(sentence, tuple(fed[: at + 1]))[token]) for at, token in enumerate(ids))


class ForgetfulFake(Fake):
    """The negative control: there are as many hypotheses as asked for, but not the ones asked for."""

    def reorder(self, parent_BW: Array) -> None:
        width = parent_BW.shape[1]
        self.sentences = [[rows[at % len(rows)] for at in range(width)] for rows in self.sentences]


class ConfusedFake(Fake):
    """The same for sentences."""

    def select(self, sentence_B: Array) -> None:
        self.sentences = self.sentences[: len(sentence_B)]


def hashed(vocabulary: int, spread: float = 2.0) -> Logits:
    def logits(sentence: int, fed: tuple[int, ...]) -> Sequence[float]:
        generator = np.random.default_rng(zlib.crc32(repr((sentence, fed)).encode()))
        return [spread * number for number in generator.standard_normal(vocabulary).tolist()]

    return logits


def endless(vocabulary: int) -> Logits:
    return lambda sentence, fed: [-50.0 if token == END else 0.1 * token for token in range(vocabulary)]


SENTENCES = list(range(20, 32))
LIMITS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15]
MODEL = hashed(vocabulary=6)
PLAIN = DecodeConfig(beam=4, n_best=4)


def run_beam(
    sentences: Sequence[int], limits: Sequence[int], options: DecodeConfig, kind: type[Fake] = Fake
) -> list[list[Hypothesis]]:
    return beam_search(kind(sentences, MODEL), limits, options, start=START, end=END, forbidden=(START,))


def run_sample(sentences: Sequence[int], limits: Sequence[int], options: DecodeConfig) -> list[list[Hypothesis]]:
    return sample(Fake(sentences, MODEL), limits, options, sentences, start=START, end=END, forbidden=(START,))


def test_length_penalty() -> None:
    assert length_penalty(1, 0.6, "gnmt") == 1.0
    assert length_penalty(7, 0.5, "gnmt") == pytest.approx(2**0.5)
    assert length_penalty(9, 0.5, "power") == 3.0
    assert length_penalty(9, 0.0, "power") == length_penalty(9, 0.0, "gnmt") == 1.0


def test_beam_1_is_greedy() -> None:
    for alpha, form in itertools.product((0.0, 0.6, 2.0), ("gnmt", "power")):
        options = DecodeConfig(beam=1, length_penalty=alpha, length_penalty_form=form)  # type: ignore[arg-type]
        paths = greedy(Fake(SENTENCES, MODEL), LIMITS, options, start=START, end=END, forbidden=(START,))
        assert run_beam(SENTENCES, LIMITS, options) == [[path] for path in paths]
        assert {path.finished for path in paths} == {True, False}


def test_search_dispatches_on_the_options() -> None:
    def found(options: DecodeConfig) -> list[list[Hypothesis]]:
        return search(Fake(SENTENCES, MODEL), LIMITS, options, SENTENCES, start=START, end=END, forbidden=(START,))

    assert found(PLAIN) == run_beam(SENTENCES, LIMITS, PLAIN)
    assert found(DecodeConfig(beam=1)) == run_beam(SENTENCES, LIMITS, DecodeConfig(beam=1))
    sampling = DecodeConfig(sampling=True, n_best=3)
    assert found(sampling) == run_sample(SENTENCES, LIMITS, sampling)


@pytest.mark.parametrize(("alpha", "form"), [(0.0, "gnmt"), (0.6, "gnmt"), (1.0, "power"), (3.0, "power")])
def test_widest_beam_equals_enumeration(alpha: float, form: str) -> None:
    vocabulary, limit = 5, 3
    options = DecodeConfig(beam=200, n_best=200, length_penalty=alpha, length_penalty_form=form)  # type: ignore[arg-type]
    fake = Fake([7, 8], hashed(vocabulary))
    found = beam_search(fake, [limit, limit], options, start=START, end=END, forbidden=(START,))
    sequences = [ids for length in range(limit + 1) for ids in itertools.product((2, 3, 4), repeat=length)]
    for sentence, hypotheses in zip((7, 8), found, strict=True):
        expected = []
        for ids in sequences:
            score = fake.score(sentence, Hypothesis(ids, 0.0, 0.0, True))
            normalized = score / length_penalty(len(ids) + 1, alpha, options.length_penalty_form)
            expected.append(Hypothesis(ids, score, normalized, True))
        expected.sort(key=lambda hypothesis: -hypothesis.normalized_score)
        assert [(h.ids, h.finished) for h in hypotheses] == [(h.ids, True) for h in expected]
        for hypothesis, wanted in zip(hypotheses, expected, strict=True):
            assert hypothesis.score == pytest.approx(wanted.score, abs=1e-5)
            assert hypothesis.normalized_score == pytest.approx(wanted.normalized_score, abs=1e-5)


def test_unfinished_hypotheses_fill_up_the_n_best_and_rank_last() -> None:
    options = DecodeConfig(beam=200, n_best=200)
    found = beam_search(Fake([7], hashed(5)), [2], options, start=START, end=END, forbidden=(START, END))[0]
    assert len(found) == 9
    assert not any(hypothesis.finished for hypothesis in found)
    assert [h.normalized_score for h in found] == sorted((h.normalized_score for h in found), reverse=True)
    mixed = beam_search(Fake(SENTENCES, MODEL), [2] * len(SENTENCES), PLAIN, start=START, end=END)
    flags = [[hypothesis.finished for hypothesis in hypotheses] for hypotheses in mixed]
    assert all(row == sorted(row, reverse=True) for row in flags)
    assert any(True in row and False in row for row in flags)


def test_batch_order_and_neighbours_change_nothing() -> None:
    together = run_beam(SENTENCES, LIMITS, PLAIN)
    alone = [run_beam([sentence], [limit], PLAIN)[0] for sentence, limit in zip(SENTENCES, LIMITS, strict=True)]
    assert together == alone
    order = np.random.default_rng(3).permutation(len(SENTENCES)).tolist()
    shuffled = run_beam([SENTENCES[at] for at in order], [LIMITS[at] for at in order], PLAIN)
    assert shuffled == [together[at] for at in order]


def test_select_that_ignores_its_rows_is_detected() -> None:
    for kind in (ForgetfulFake, ConfusedFake):
        assert run_beam(SENTENCES, LIMITS, PLAIN, kind) != run_beam(SENTENCES, LIMITS, PLAIN)


@pytest.mark.parametrize("options", [PLAIN, DecodeConfig(beam=1), DecodeConfig(sampling=True, n_best=3, top_k=4)])
def test_scores_match_the_model(options: DecodeConfig) -> None:
    for forbidden in ((), (START,), (START, 3)):
        fake = Fake(SENTENCES, MODEL)
        found = search(fake, LIMITS, options, SENTENCES, start=START, end=END, forbidden=forbidden)
        for sentence, limit, hypotheses in zip(SENTENCES, LIMITS, found, strict=True):
            for hypothesis in hypotheses:
                assert len(hypothesis.ids) <= limit
                assert END not in hypothesis.ids
                assert not set(forbidden) & set(hypothesis.ids)
                assert hypothesis.score == pytest.approx(fake.score(sentence, hypothesis), abs=1e-5)
                length = max(1, len(hypothesis.ids) + hypothesis.finished)
                assert hypothesis.normalized_score == hypothesis.score / length_penalty(length, 0.6, "gnmt")


@pytest.mark.parametrize("options", [PLAIN, DecodeConfig(beam=1), DecodeConfig(sampling=True, n_best=2)])
def test_a_model_that_never_ends_stops_at_its_limit(options: DecodeConfig) -> None:
    fake = Fake([1, 2], endless(6))
    found = search(fake, [3, 40], options, [1, 2], start=START, end=END)
    assert len(fake.sizes) == 41
    for limit, hypotheses in zip((3, 40), found, strict=True):
        assert len(hypotheses) == options.n_best
        assert {(len(hypothesis.ids), hypothesis.finished) for hypothesis in hypotheses} == {(limit, False)}


def test_end_token_at_the_limit_counts_as_finished() -> None:
    def logits(sentence: int, fed: tuple[int, ...]) -> Sequence[float]:
        return [0.0, 9.0, 0.0] if len(fed) == 4 else [0.0, 0.0, 9.0]

    for options in (DecodeConfig(beam=1), DecodeConfig(beam=2), DecodeConfig(sampling=True, top_k=1)):
        found = search(Fake([1], logits), [3], options, [1], start=START, end=END)[0][0]
        assert (found.ids, found.finished) == ((2, 2, 2), True)
        found = search(Fake([1], logits), [2], options, [1], start=START, end=END)[0][0]
        assert (found.ids, found.finished) == ((2, 2), False)


def test_finished_sentences_leave_the_batch() -> None:
    def logits(sentence: int, fed: tuple[int, ...]) -> Sequence[float]:
        return [0.0, 20.0 if len(fed) > sentence else -20.0, 0.0, 0.1, 0.2, 0.3]  # ends after `sentence` tokens

    fake = Fake([0, 3, 6], logits)
    found = search(fake, [50] * 3, DecodeConfig(beam=1), [0, 3, 6], start=START, end=END)
    assert [len(hypotheses[0].ids) for hypotheses in found] == [0, 3, 6]
    assert fake.sizes == [3, 2, 2, 2, 1, 1, 1]

    fake = Fake([0, 3, 6], logits)
    search(fake, [50] * 3, DecodeConfig(sampling=True, n_best=2), [0, 3, 6], start=START, end=END)
    assert fake.sizes == [6, 4, 4, 4, 2, 2, 2]

    fake = Fake([0, 3, 6], logits)
    found = search(fake, [50] * 3, DecodeConfig(beam=3), [0, 3, 6], start=START, end=END)
    assert [len(hypotheses[0].ids) for hypotheses in found] == [0, 3, 6]
    assert fake.sizes[:2] == [3, 9]
    assert fake.sizes[1:] == sorted(fake.sizes[1:], reverse=True)
    assert fake.sizes[-1] == 3
    assert len(fake.sizes) < 15


def test_unchanged_rows_are_not_moved() -> None:
    fake = Fake([1, 2], endless(4))
    greedy(fake, [30, 30], start=START, end=END)
    assert fake.changes == 0


def test_n_best_is_sorted_and_distinct() -> None:
    found = beam_search(Fake(SENTENCES, MODEL), [10] * 12, DecodeConfig(beam=8, n_best=5), start=START, end=END)
    for hypotheses in found:
        assert len(hypotheses) == 5
        assert len({(hypothesis.ids, hypothesis.finished) for hypothesis in hypotheses}) == 5
        finished = [h.normalized_score for h in hypotheses if h.finished]
        assert finished == sorted(finished, reverse=True)


def test_smaller_n_best_is_a_prefix_of_a_larger_one() -> None:
    fewer = run_beam(SENTENCES, LIMITS, replace(PLAIN, n_best=2))
    assert fewer == [hypotheses[:2] for hypotheses in run_beam(SENTENCES, LIMITS, PLAIN)]


def test_beam_larger_than_the_vocabulary_works() -> None:
    options = DecodeConfig(beam=50, n_best=50)
    found = beam_search(Fake([4, 5], hashed(4)), [1, 6], options, start=START, end=END, forbidden=(START,))
    assert [hypothesis.ids for hypothesis in sorted(found[0], key=lambda h: h.ids)] == [(), (2,), (3,)]
    assert len(found[1]) == 50
    assert all(np.isfinite(hypothesis.score) for hypotheses in found for hypothesis in hypotheses)


@pytest.mark.parametrize("options", [PLAIN, DecodeConfig(beam=1), DecodeConfig(sampling=True, top_p=0.5, n_best=2)])
def test_search_always_returns_a_hypothesis(options: DecodeConfig) -> None:
    nothing = Hypothesis((), 0.0, 0.0, False)
    found = search(Fake([1], MODEL), [5], options, [1], start=START, end=END, forbidden=range(6))
    assert set(found[0]) == {nothing}
    broken = search(Fake([1], lambda sentence, fed: [float("nan")] * 6), [5], options, [1], start=START, end=END)
    assert set(broken[0]) == {nothing}
    assert search(Fake([], MODEL), [], options, [], start=START, end=END) == []


def test_dead_end_returns_the_unfinished_prefix() -> None:
    def logits(sentence: int, fed: tuple[int, ...]) -> Sequence[float]:
        return [float("-inf"), float("-inf"), 0.0] if len(fed) < 3 else [0.0, float("-inf"), float("-inf")]

    for options in (DecodeConfig(beam=2, n_best=2), DecodeConfig(beam=1), DecodeConfig(sampling=True)):
        found = search(Fake([1], logits), [9], options, [1], start=START, end=END, forbidden=(START,))
        assert found == [[Hypothesis((2, 2), 0.0, 0.0, False, (0.0, 0.0))]]


def test_ties_go_to_the_lower_id() -> None:
    flat = Fake([1], lambda sentence, fed: [0.0] * 5)
    assert beam_search(flat, [2], PLAIN, start=START, end=END, forbidden=(START, END))[0][0].ids == (2, 2)
    for options in (DecodeConfig(beam=1), DecodeConfig(sampling=True, top_k=1)):
        found = search(Fake([1], flat.logits), [2], options, [1], start=START, end=END, forbidden=(START, END))
        assert found[0][0].ids == (2, 2)


@settings(max_examples=60)
@given(st.integers(1, 5000), st.integers(1, 40), st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_largest_is_a_stable_sort(columns: int, count: int, different: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    value = torch.randint(different, (3, columns), generator=generator).float()  # few different numbers: many equals
    value[:, ::7] = float("-inf")
    expected = value.sort(dim=1, descending=True, stable=True)
    values, ids = largest(value, count)
    assert torch.equal(values, expected.values[:, :count])
    assert torch.equal(ids, expected.indices[:, :count])


def test_samples_do_not_depend_on_the_batch() -> None:
    options = DecodeConfig(sampling=True, n_best=3, temperature=1.3, top_k=5, top_p=0.9)
    together = run_sample(SENTENCES, LIMITS, options)
    alone = [run_sample([sentence], [limit], options)[0] for sentence, limit in zip(SENTENCES, LIMITS, strict=True)]
    assert together == alone
    backwards = run_sample(SENTENCES[::-1], LIMITS[::-1], options)
    assert backwards[::-1] == together
    assert run_sample(SENTENCES, LIMITS, replace(options, seed=2)) != together
    assert all(
        [h.normalized_score for h in group] == sorted((h.normalized_score for h in group), reverse=True)
        for group in together
    )


def test_samples_depend_on_their_key_not_their_position() -> None:
    options = DecodeConfig(sampling=True)
    found = sample(Fake([1] * 40, MODEL), [8] * 40, options, list(range(40)), start=START, end=END)
    assert len({group[0].ids for group in found}) > 20
    equal = sample(Fake([1] * 40, MODEL), [8] * 40, options, [-5] * 40, start=START, end=END)
    assert len({group[0].ids for group in equal}) == 1


@pytest.mark.parametrize(
    "options",
    [
        DecodeConfig(sampling=True, top_k=1),
        DecodeConfig(sampling=True, top_p=0.001),
        DecodeConfig(sampling=True, temperature=0.01),
    ],
)
def test_narrow_sampling_is_greedy(options: DecodeConfig) -> None:
    paths = greedy(Fake(SENTENCES, MODEL), LIMITS, start=START, end=END, forbidden=(START,))
    assert run_sample(SENTENCES, LIMITS, options) == [[path] for path in paths]
    assert run_sample(SENTENCES, LIMITS, DecodeConfig(sampling=True)) != [[path] for path in paths]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (DecodeConfig(sampling=True), [0.0, 0.05, 0.5, 0.25, 0.15, 0.05]),
        (DecodeConfig(sampling=True, top_k=2), [0.0, 0.0, 2 / 3, 1 / 3, 0.0, 0.0]),
        (DecodeConfig(sampling=True, top_p=0.8), [0.0, 0.0, 5 / 9, 2.5 / 9, 1.5 / 9, 0.0]),
        (DecodeConfig(sampling=True, temperature=0.5), [0.0, 0.0025, 0.25, 0.0625, 0.0225, 0.0025]),
        (DecodeConfig(sampling=True, temperature=0.5, top_k=3, top_p=0.9), [0.0, 0.0, 0.8, 0.2, 0.0, 0.0]),
    ],
)
def test_sampling_frequencies_are_the_probabilities(options: DecodeConfig, expected: list[float]) -> None:
    logits = np.log([1e-9, 0.05, 0.5, 0.25, 0.15, 0.05]).tolist()
    draws = 4000
    fake = Fake([1] * draws, lambda sentence, fed: logits)
    found = sample(fake, [1] * draws, options, range(draws), start=START, end=END, forbidden=(START,))
    first = [group[0].ids[0] if group[0].ids else END for group in found]
    counts = np.bincount(first, minlength=6)
    wanted = draws * np.array(expected) / sum(expected)
    assert not counts[wanted == 0].any()
    chi_square = ((counts - wanted)[wanted > 0] ** 2 / wanted[wanted > 0]).sum()
    assert chi_square < 20.5  # 0.1 % of the time by chance with 5 degrees of freedom; the seed is fixed
    tilted = wanted[::-1]
    assert ((counts - tilted)[tilted > 0] ** 2 / tilted[tilted > 0]).sum() > 20.5


@pytest.mark.parametrize("beam", [1, 4])
def test_nothing_is_moved_for_nobody(beam: int) -> None:
    """In the step in which the last sentences end."""

    class Strict(Fake):
        def select(self, sentence_B: Array) -> None:
            assert len(sentence_B)
            super().select(sentence_B)

    found = search(Strict(SENTENCES, MODEL), LIMITS, DecodeConfig(beam=beam), SENTENCES, start=START, end=END)
    assert len(found) == len(SENTENCES)
