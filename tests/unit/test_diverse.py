"""Diverse beam search: groups that avoid each other's tokens; one group, or no penalty, is beam search."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman import ConfigError
from dragoman.config import DecodeConfig
from dragoman.decode.diverse import diverse_beam_search
from dragoman.decode.search import Hypothesis, beam_search, in_order, search
from tests.unit.test_search import END, MODEL, START, Fake, ForgetfulFake, hashed

SENTENCES, LIMITS = [4, 5, 6, 7], [6, 0, 3, 9]
SPECIAL: dict[str, Any] = {"start": START, "end": END, "forbidden": (START,)}
OPTIONS = DecodeConfig(beam=6, n_best=6, diversity_groups=3, diversity_penalty=0.7)


def diverse(options: DecodeConfig, fake: Fake | None = None) -> list[list[Hypothesis]]:
    return in_order(diverse_beam_search(fake or Fake(SENTENCES, MODEL), LIMITS, options, START, END, (START,)))


def first_tokens(found: list[list[Hypothesis]]) -> int:
    return sum(len({each.ids[:1] for each in hypotheses}) for hypotheses in found)


@pytest.mark.parametrize("beam", [1, 2, 4])
def test_one_group_is_beam_search(beam: int) -> None:
    options = DecodeConfig(beam=beam, n_best=beam, diversity_penalty=9.0)
    assert diverse(options) == beam_search(Fake(SENTENCES, MODEL), LIMITS, options, **SPECIAL)


def test_groups_without_a_penalty_are_the_same_narrower_beam_search() -> None:
    options = DecodeConfig(beam=6, n_best=2, diversity_groups=3, diversity_penalty=0.0)
    narrow = DecodeConfig(beam=2, n_best=2)
    assert diverse(options) == beam_search(Fake(SENTENCES, MODEL), LIMITS, narrow, **SPECIAL)
    assert diverse(OPTIONS) != diverse(replace(OPTIONS, diversity_penalty=0.0)), "the control"


def farthest_from_the_model(fake: Fake) -> float:
    """How much a score differs from that of the model, at most."""
    model = Fake(SENTENCES, MODEL)
    found = zip(SENTENCES, diverse(OPTIONS, fake), strict=True)
    return max(abs(each.score - model.score(sentence, each)) for sentence, own in found for each in own)


def test_scores_are_the_models_own() -> None:
    assert farthest_from_the_model(Fake(SENTENCES, MODEL)) < 1e-5
    assert farthest_from_the_model(ForgetfulFake(SENTENCES, MODEL)) > 0.1, "the control: hypotheses are not moved"
    for hypotheses in diverse(OPTIONS):
        for each in hypotheses:
            assert sum(each.token_scores) == pytest.approx(each.score, abs=1e-9)


def test_hypotheses_are_distinct_and_sorted_the_finished_ones_first() -> None:
    for hypotheses in diverse(OPTIONS):
        assert len({(each.ids, each.finished) for each in hypotheses}) == len(hypotheses)
        keys = [(not each.finished, -each.normalized_score) for each in hypotheses]
        assert keys == sorted(keys)


def test_first_tokens_differ_more_the_larger_the_penalty() -> None:
    counts = [
        first_tokens(
            in_order(
                diverse_beam_search(
                    Fake(range(20), hashed(12)), [5] * 20,
                    DecodeConfig(beam=4, n_best=4, diversity_groups=4, diversity_penalty=penalty), START, END, (START,),
                )
            )
        )
        for penalty in (0.0, 0.5, 50.0)
    ]  # fmt: skip
    assert counts[0] == 20, "without a penalty every group finds the same"
    assert counts[0] < counts[1] <= counts[2]


def test_a_large_penalty_makes_every_group_begin_with_another_token() -> None:
    options = DecodeConfig(beam=3, n_best=3, diversity_groups=3, diversity_penalty=99.0, max_extra=5)
    found = in_order(diverse_beam_search(Fake(range(8), hashed(9)), [4] * 8, options, START, END, (START,)))
    begun = [{each.ids[0] for each in hypotheses if each.ids} for hypotheses in found]
    assert all(len(tokens) >= len(hypotheses) - 1 for tokens, hypotheses in zip(begun, found, strict=True))


def test_a_group_that_is_done_does_not_repel_the_others() -> None:
    """The first group ends after its first token; what it would have written next is free for the second."""
    after = {(): {2: 0.6, 3: 0.4}, (2,): {END: 0.9, 4: 0.1}, (3,): {4: 0.6, 5: 0.4}}

    def logits(sentence: int, fed: tuple[int, ...]) -> list[float]:
        probabilities = after.get(fed[1:], {END: 1.0})
        return [math.log(probabilities.get(token, 1e-9)) for token in range(6)]

    options = DecodeConfig(beam=2, n_best=2, diversity_groups=2, diversity_penalty=9.0)
    (found,) = in_order(diverse_beam_search(Fake([1], logits), [5], options, START, END, (START,)))
    assert {each.ids for each in found} == {(2,), (3, 4)}


def test_batch_mates_change_nothing() -> None:
    together = diverse(OPTIONS)
    for sentence, limit, expected in zip(SENTENCES, LIMITS, together, strict=True):
        (alone,) = in_order(diverse_beam_search(Fake([sentence], MODEL), [limit], OPTIONS, START, END, (START,)))
        assert alone == expected


def test_vocabulary_smaller_than_a_group_works() -> None:
    options = DecodeConfig(beam=60, n_best=60, diversity_groups=2)
    found = search(Fake([4, 5], hashed(4)), [1, 4], options, [1, 2], **SPECIAL)
    assert sorted(each.ids for each in found[0]) == [(), (2,), (3,)]


@pytest.mark.parametrize("engine", ["plain", "cpu"])
def test_options_hold_in_a_model_and_engines_agree(quick_run: Path, engine: str) -> None:
    translator = dragoman.load(quick_run, "cpu", engine=engine)
    texts = ["a b c d", "e f", "h g a"]
    options: dict[str, Any] = {"beam": 4, "n_best": 4, "diversity_groups": 2, "diversity_penalty": 2.0}
    assert translator.choice_for(translator.options(**options)).engine == engine
    found = translator.translate(texts, **options)
    plain = dragoman.load(quick_run, "cpu", engine="plain").translate(texts, **options)
    for one, other in zip(found, plain, strict=True):
        assert [each.text for each in one.alternatives] == [each.text for each in other.alternatives]
    beam = translator.translate(texts, beam=4, n_best=4)
    assert [each.alternatives for each in beam] != [each.alternatives for each in found], "the control"


def test_impossible_groups_are_refused() -> None:
    for settings, message in (
        ({"diversity_groups": 3}, r"decode\.diversity_groups: 3 do not divide beam=4; change one of them"),
        ({"diversity_groups": 2, "sampling": True}, r"decode\.diversity_groups: divides a beam, and samples have none"),
        ({"diversity_groups": 0}, r"decode\.diversity_groups: 0 is out of range"),
    ):
        with pytest.raises(ConfigError, match=f"^{message}"):
            DecodeConfig(**settings)  # type: ignore[arg-type]
