"""ROUGE: by its definition on small examples, with intervals."""

import json
from pathlib import Path

import pytest

from dragoman.errors import ConfigError
from dragoman.evaluate import rouge
from tests.forked import shared_server


def test_scores_by_their_definition() -> None:
    scores = rouge.rouge(["the cat sat down", "a dog"], ["the cat lay down", "a dog"])
    assert scores["rouge1"].score == pytest.approx(100 * (0.75 + 1) / 2), "three of four words; all"
    assert scores["rouge2"].score == pytest.approx(100 * (1 / 3 + 1) / 2), "one of three pairs; all"
    assert scores["rougeL"].score == pytest.approx(100 * (0.75 + 1) / 2)
    assert scores["rouge1"].low == pytest.approx(75.0)
    assert scores["rouge1"].high == pytest.approx(100.0)
    assert rouge.rouge(["sat", "sat"], ["lay", "lay"])["rouge1"].score == 0.0
    assert rouge.rouge(["walking", ""], ["walked", "x"])["rouge1"].score == 50.0, "words are stemmed; blank has none"


def test_interval_comes_from_lines() -> None:
    lines = ["one two"] * 50 + ["three four"] * 50
    score = rouge.rouge(lines, ["one two"] * 100)["rouge1"]
    assert score.score == 50.0
    assert 38 < score.low < 43
    assert 57 < score.high < 62


def test_evaluate_prints_rouge_on_request(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("the cat sat\n")
    (tmp_path / "right").write_text("the cat lay\n")
    words = ["evaluate", "--hypotheses", str(tmp_path / "mine"), "--reference", str(tmp_path / "right")]
    record = json.loads(shared_server().run([*words, "--rouge", "--json"]).stdout)
    assert record["rouge1"]["score"] == pytest.approx(200 / 3)
    assert "ROUGE-2 50.00  [50.00, 50.00]  nrefs:1|" in shared_server().run([*words, "--rouge"]).stdout
    assert "rouge1" not in json.loads(shared_server().run([*words, "--json"]).stdout)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rouge, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        rouge.rouge(["a"], ["a"])
    assert str(caught.value) == (
        "--rouge: rouge-score is not installed; run pip install 'dragoman[rouge]', or leave it out"
    )
