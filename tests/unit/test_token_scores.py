"""The log-probability of every token: in every engine and search it adds up to the score and is the model's own."""

import json
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman import Translator
from dragoman.decode import rescoring
from dragoman.decode.batches import Outcome
from dragoman.decode.pipeline import Pipeline
from dragoman.decode.translation import Translation
from tests.forked import shared_server

TEXTS = ["a b c d", "g h", "", "c c c c c c", "b a. d c. a"]
SEARCHES: list[dict[str, Any]] = [
    {"beam": 1}, {"beam": 4, "n_best": 4}, {"sampling": True, "n_best": 3, "seed": 3}, {"beam": 2, "max_extra": 1},
    {"beam": 3, "split": "sentences"},
]  # fmt: skip


@pytest.fixture(scope="module", params=["plain", "cpu"])
def translator(request: pytest.FixtureRequest, quick_run: Path) -> Translator:
    return dragoman.load(quick_run, "cpu", engine=request.param)


@pytest.mark.parametrize("options", SEARCHES, ids=str)
def test_token_scores_add_up_to_the_score(translator: Translator, options: dict[str, Any]) -> None:
    for result in translator.translate(TEXTS, token_scores=True, **options):
        assert len(result.token_scores) == len(result.tokens)
        assert sum(result.token_scores) == pytest.approx(result.score, abs=1e-9)
        assert all(score <= 1e-6 for score in result.token_scores)


def test_truncated_translation_has_no_score_of_an_end(translator: Translator) -> None:
    long = " ".join("abcdefgh" * 2)
    (short,) = translator.translate([long], token_scores=True, beam=2, max_extra=1, min_length=60)
    assert short.status == "truncated"
    assert short.tokens[-1] != "</s>"
    assert len(short.token_scores) == len(short.tokens)
    assert sum(short.token_scores) == pytest.approx(short.score, abs=1e-9)


def test_token_scores_are_those_of_teacher_forcing(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for an engine that does not return them: the search's are removed."""
    options: dict[str, Any] = {"beam": 3, "token_scores": True, "split": "sentences"}
    searched = translator.translate(TEXTS, **options)
    search = Pipeline._search

    def without(*arguments: Any, **named: Any) -> list[Outcome]:
        return [
            outcome if isinstance(outcome, str) else [each._replace(token_scores=()) for each in outcome]
            for outcome in search(*arguments, **named)
        ]

    monkeypatch.setattr(Pipeline, "_search", without)
    forced = translator.translate(TEXTS, **options)
    for one, other in zip(searched, forced, strict=True):
        assert other.token_scores == pytest.approx(one.token_scores, abs=1e-4)
    monkeypatch.setattr(rescoring, "FORCED_TOKENS", 1)
    alone = translator.translate(TEXTS, **options)
    for one, other in zip(forced, alone, strict=True):
        assert other.token_scores == pytest.approx(one.token_scores, abs=1e-5)
    assert searched[0].token_scores != pytest.approx(searched[1].token_scores, abs=1e-2), "the control"


def test_token_scores_only_on_request(translator: Translator) -> None:
    (plain,) = translator.translate(["a b c"])
    assert plain.token_scores == ()
    assert "token_scores" not in plain.to_dict()
    (full,) = translator.translate(["a b c"], token_scores=True)
    assert full.to_dict()["token_scores"] == full.token_scores
    assert full.to_dict()["tokens"] == full.tokens
    (empty,) = translator.translate([""], token_scores=True)
    assert empty == Translation("", "", "empty")
    assert (full.text, full.score) == (plain.text, plain.score)


@pytest.mark.slow
def test_command_prints_token_scores_in_json_only(quick_run: Path) -> None:
    shown = shared_server().run(["translate", "--model", str(quick_run), "a b", "--json", "--token-scores"])
    record = json.loads(shown.stdout)
    assert len(record["tokens"]) == len(record["token_scores"]) > 1
    assert sum(record["token_scores"]) == pytest.approx(record["score"])
    refused = shared_server().run(["translate", "--model", str(quick_run), "a b", "--token-scores"])
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "dragoman: --token-scores: are part of the JSON output; add --json\n"
