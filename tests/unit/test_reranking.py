"""Reranking by a reverse model, minimum Bayes risk over samples, and the coverage penalty."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sacrebleu import sentence_chrf

import dragoman
from dragoman import ConfigError, Translator
from dragoman.config import DecodeConfig
from dragoman.decode.reranking import coverage_penalties, expected_utility, ordered
from dragoman.decode.search import Hypothesis, length_penalty
from tests.forked import shared_server

TEXTS = ["a b c d", "e f", "h g a b", "c"]


@pytest.fixture(scope="module", params=["plain", "cpu"])
def translator(request: pytest.FixtureRequest, quick_run: Path) -> Translator:
    return dragoman.load(quick_run, "cpu", engine=request.param)


def test_finished_hypotheses_come_first_then_the_higher_value() -> None:
    found = [Hypothesis((number,), -1.0, -1.0, finished) for number, finished in enumerate([True, False, True])]
    assert [each.ids for each in ordered(found, [1.0, 9.0, 2.0])] == [(2,), (0,), (1,)]
    assert [each.normalized_score for each in ordered(found, [1.0, 9.0, 2.0])] == [2.0, 1.0, 9.0]


# By a reverse model


def reranking(quick_run: Path, weight: float, **options: Any) -> list[dragoman.Translation]:
    translator = dragoman.load(quick_run, "cpu", engine="plain", rerank_with=quick_run)
    return translator.translate(TEXTS, beam=4, n_best=4, rerank_weight=weight, **options)


def test_ranks_by_both_models(quick_run: Path) -> None:
    """The quick model reverses words, so it is its own reverse model."""
    model = dragoman.load(quick_run, "cpu", engine="plain")
    plain = model.translate(TEXTS, beam=4, n_best=4)
    for one, other in zip(plain, reranking(quick_run, 0.0), strict=True):
        assert [each.text for each in one.alternatives] == [each.text for each in other.alternatives]
        assert one.normalized_score == pytest.approx(other.normalized_score, abs=1e-5)
    changed = 0
    for source, one, other in zip(TEXTS, plain, reranking(quick_run, 0.6), strict=True):
        options = model.options()
        length = len(model.tokenizers.target.encode(source)) + 1
        penalty = length_penalty(length, options.length_penalty, options.length_penalty_form)
        forward = {each.text: each for each in one.alternatives}
        for each in other.alternatives:
            if not each.text:
                assert each.normalized_score == -math.inf
                continue
            back = model.score(each.text, source) / penalty
            expected = 0.4 * forward[each.text].normalized_score + 0.6 * back
            assert each.normalized_score == pytest.approx(expected, abs=1e-4)
            assert each.score == pytest.approx(forward[each.text].score, abs=1e-4), "the score of the search"
        values = [each.normalized_score for each in other.alternatives]
        assert values == sorted(values, reverse=True)
        changed += [each.text for each in one.alternatives] != [each.text for each in other.alternatives]
    assert changed, "the control: the order depends on the weight"


def test_one_best_is_chosen_among_the_whole_beam(quick_run: Path) -> None:
    wide = reranking(quick_run, 0.9)
    translator = dragoman.load(quick_run, "cpu", engine="plain", rerank_with=quick_run)
    narrow = translator.translate(TEXTS, beam=4, rerank_weight=0.9)
    assert [each.text for each in narrow] == [each.text for each in wide]
    assert all(len(each.alternatives) == 1 for each in narrow)


# Minimum Bayes risk


def test_expected_utility_is_the_mean_chrf_against_the_other_samples() -> None:
    samples = ["the cat sat", "the cat sat", "a cat sat", "dogs bark", "the cat sat down"]
    texts = list(dict.fromkeys(samples))
    found = expected_utility(texts, [samples.count(text) for text in texts])
    for text, value in zip(texts, found, strict=True):
        others = list(samples)
        others.remove(text)
        expected = np.mean([sentence_chrf(text, [other]).score for other in others])
        assert value == pytest.approx(expected, abs=1e-6)
    assert texts[int(found.argmin())] == "dogs bark"
    assert expected_utility(["a"], [1]).tolist() == [100.0]
    assert expected_utility(["a"], [5]).tolist() == [100.0]


def test_mbr_chooses_the_sample_that_agrees_most(translator: Translator) -> None:
    options: dict[str, Any] = {"temperature": 1.5, "seed": 4}
    samples = translator.translate(TEXTS, sampling=True, n_best=12, **options)
    found = translator.translate(TEXTS, mbr=12, n_best=3, **options)
    changed = 0
    for drawn, chosen in zip(samples, found, strict=True):
        texts = [each.text for each in drawn.alternatives]
        distinct = list(dict.fromkeys(texts))
        utility = expected_utility(distinct, [texts.count(text) for text in distinct])
        finished = {each.text: each.tokens[-1:] == ("</s>",) for each in reversed(drawn.alternatives)}
        ranks = [(not finished[text], -value) for text, value in zip(distinct, utility, strict=True)]
        expected = sorted(range(len(distinct)), key=ranks.__getitem__)
        assert [each.text for each in chosen.alternatives] == [distinct[place] for place in expected[:3]]
        assert chosen.normalized_score == pytest.approx(utility[expected[0]])
        changed += chosen.text != drawn.text
    assert changed, "the control: the most probable sample is another one"


def test_mbr_of_a_line_of_several_sentences_and_token_scores(translator: Translator) -> None:
    (found,) = translator.translate(["a b. c d. e"], mbr=4, split="sentences", token_scores=True)
    assert found.status in ("translated", "altered")  # random bytes may be half a character
    assert sum(found.token_scores) == pytest.approx(found.score, abs=1e-9)
    assert len(found.token_scores) == len(found.tokens)


# Coverage


def test_coverage_penalty_by_its_definition() -> None:
    blurred, sharp = np.full((3, 4), 0.25), np.eye(3, 4)
    weights = np.stack([blurred, sharp])  # [layer, target, source]: the heads of the second agree
    expected = sum(math.log(min(value, 1.0)) for value in (1.0, 1.0, 1.0, 1e-6))
    assert coverage_penalties([weights]) == pytest.approx([expected])
    twice = np.stack([blurred, np.array([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])])
    assert coverage_penalties([twice, weights])[0] == pytest.approx(3 * math.log(0.5)), "more than 1 counts as 1"
    assert coverage_penalties([np.zeros((2, 0, 3))]) == [0.0]


def test_coverage_is_added_to_the_normalized_score(translator: Translator) -> None:
    plain = translator.translate(TEXTS, beam=4, n_best=4)
    found = translator.translate(TEXTS, beam=4, n_best=4, coverage_penalty=3.0)
    changed = 0
    for one, other in zip(plain, found, strict=True):
        before = {each.text: each.normalized_score for each in one.alternatives}
        for each in other.alternatives:
            assert each.normalized_score <= before[each.text] + 1e-5
        changed += [each.text for each in one.alternatives] != [each.text for each in other.alternatives]
        best = translator.translate(one.source, beam=4, coverage_penalty=3.0)
        assert best.text == other.text
        weights = translator.attention(
            [*translator.tokenizers.source.encode(one.source), translator.tokenizers.source.vocabulary.eos],
            [*translator.tokenizers.target.encode(other.text), translator.tokenizers.target.vocabulary.eos],
        ).cross.mean(axis=1)[:, :, :-1]
        (alone,) = coverage_penalties([weights])  # one layer, so the other hypotheses do not matter
        assert other.normalized_score == pytest.approx(before[other.text] + 3.0 * alone, abs=1e-2)
    assert changed, "the control"


# What does not go together


def test_contradictions_are_refused(quick_run: Path) -> None:
    for settings, message in (
        ({"mbr": 1}, r"decode\.mbr: 1 sample has no other to agree with; draw at least 2"),
        ({"mbr": 4, "n_best": 5}, r"decode\.n_best: 5 is more than mbr=4; draw more samples or ask for fewer"),
        ({"mbr": 4, "coverage_penalty": 1.0}, r"decode\.coverage_penalty: ranks the hypotheses of a beam, not samples"),
        ({"rerank_weight": 1.5}, r"decode\.rerank_weight: 1\.5 is out of range"),
    ):
        with pytest.raises(ConfigError, match=f"^{message}"):
            DecodeConfig(**settings)
    translator = dragoman.load(quick_run, "cpu", engine="plain")
    for options, message in (
        ({"mbr": 4, "beam": 7}, "mbr: chooses among samples, without a beam; leave out mbr or beam"),
        ({"rerank_weight": 0.2}, "rerank_weight: there is no reverse model; give one with rerank_with, or leave"),
    ):
        with pytest.raises(ConfigError, match=f"^{message}"):
            translator.translate("a", **options)
    reverse = dragoman.load(quick_run, "cpu", engine="plain", rerank_with=quick_run)
    with pytest.raises(ConfigError, match=r"^mbr: chooses by agreement, not with a reverse model; leave out one"):
        reverse.translate("a", mbr=4)


@pytest.mark.slow
def test_commands(quick_run: Path) -> None:
    model = ["translate", "--model", str(quick_run), "a b c", "--json"]

    def texts(*words: str) -> list[str]:
        record = json.loads(shared_server().run([*model, *words]).stdout)
        return [each["translation"] for each in record.get("alternatives", [record])]

    translator = dragoman.load(quick_run, "cpu", rerank_with=quick_run)
    options: dict[str, Any] = {"beam": 4, "n_best": 4}
    expected = translator.translate("a b c", rerank_weight=0.9, **options)
    shown = texts("--beam", "4", "--n-best", "4", "--rerank-with", str(quick_run), "--rerank-weight", "0.9")
    assert shown == [each.text for each in expected.alternatives]
    plain = dragoman.load(quick_run, "cpu")
    assert texts("--mbr", "8") == [plain.translate("a b c", mbr=8).text]
    grouped = plain.translate("a b c", diversity_groups=2, diversity_penalty=3.0, **options)
    shown = texts("--beam", "4", "--n-best", "4", "--diversity-groups", "2", "--diversity-penalty", "3")
    assert shown == [each.text for each in grouped.alternatives]
    covered = plain.translate("a b c", coverage_penalty=0.4, **options)
    assert texts("--beam", "4", "--n-best", "4", "--coverage-penalty", "0.4") == [
        each.text for each in covered.alternatives
    ]
    for words, message in (
        (["--mbr", "4", "--beam", "2"], "--mbr: chooses among samples, without a beam; leave out --mbr or --beam"),
        (["--rerank-weight", "0.2"], "--rerank-weight: there is no reverse model; give one with --rerank-with, or"),
    ):
        done = shared_server().run([*model, *words])
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"dragoman: {message}")


def test_a_model_of_the_same_direction_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^rerank_with: en-de translates en to de too; give a model of the other direction$"
    ):
        dragoman.load("en-de", "cpu", rerank_with="en-de")
    assert dragoman.load("en-de", "cpu", rerank_with="de-en").translate("Good morning!").status == "translated"
