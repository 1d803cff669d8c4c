"""Metrics with signatures."""

import pytest

from dragoman.errors import ConfigError, DataError
from dragoman.evaluate.metrics import evaluate, quick_scores

REFERENCES = ["the cat sat on the mat", "a man rides a horse today", "it is raining again in town"]


def test_a_perfect_translation_and_a_wrong_one() -> None:
    perfect = evaluate(REFERENCES, REFERENCES)
    assert (round(perfect.bleu.score), round(perfect.chrf.score), perfect.ter.score) == (100, 100, 0)
    assert perfect.exact_match == 1.0
    wrong = evaluate(["dogs bark"] * 3, REFERENCES)
    assert wrong.bleu.score < 5
    assert wrong.exact_match == 0.0


def test_signatures_say_which_metric_it_was() -> None:
    result = evaluate(REFERENCES, REFERENCES)
    assert "tok:13a" in result.bleu.signature
    assert "version:" in result.chrf.signature
    assert "tok:char" in evaluate(REFERENCES, REFERENCES, tokenize="char").bleu.signature


def test_intervals_hold_the_score() -> None:
    result = evaluate([REFERENCES[0], REFERENCES[1], "it rains again in town"], REFERENCES)
    assert result.chrf.low < result.chrf.score < result.chrf.high
    record = result.to_dict()
    assert record["bleu"].keys() == {"score", "low", "high", "signature"}


def test_it_is_what_sacrebleu_says() -> None:
    import sacrebleu

    hypotheses = ["the cat sat on a mat", "a man rides horses", "it is raining in town"]
    expected = sacrebleu.corpus_bleu(hypotheses, [REFERENCES]).score
    assert quick_scores(hypotheses, REFERENCES)["bleu"] == pytest.approx(expected)
    assert evaluate(hypotheses, REFERENCES).bleu.score == pytest.approx(expected)


def test_bad_input_is_named() -> None:
    with pytest.raises(DataError, match="2 hypotheses, 3 references; each line needs one reference"):
        evaluate(["a", "b"], REFERENCES)
    with pytest.raises(DataError, match="nothing to evaluate"):
        evaluate([], [])
    with pytest.raises(ConfigError, match="--tokenize 14a: no such tokenisation"):
        evaluate(REFERENCES, REFERENCES, tokenize="14a")
