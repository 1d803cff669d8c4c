"""Breakdown of a score: buckets by length, sentences in order."""

import pytest
import sacrebleu

from dragoman.evaluate.breakdown import COLUMNS, SentenceScore, by_length, sentence_scores
from dragoman.evaluate.metrics import evaluate

SOURCES = ["eins", "zwei drei vier fünf sechs", "eins zwei drei vier fünf sechs", "wort " * 60, ""]
REFERENCES = ["one", "two three four five six", "one two three four five six", "word " * 60, ""]
HYPOTHESES = ["one", "two three four", "one two three for five six", "word " * 30, ""]


def test_every_sentence_is_in_one_bucket() -> None:
    buckets = by_length(HYPOTHESES, REFERENCES, SOURCES)
    assert [(bucket.shortest, bucket.longest, bucket.count) for bucket in buckets] == [
        (0, 5, 3), (6, 10, 1), (51, None, 1)
    ]  # fmt: skip
    assert sum(bucket.count for bucket in buckets) == len(REFERENCES)
    assert {bucket.side for bucket in buckets} == {"source"}
    assert [bucket.length_ratio for bucket in buckets] == [pytest.approx(4 / 6), 1.0, 0.5]


def test_without_a_source_buckets_use_the_reference_length() -> None:
    buckets = by_length(["a b c", "a"], ["a b c d e f", "a"])
    assert [(bucket.side, bucket.shortest, bucket.count) for bucket in buckets] == [
        ("reference", 0, 1), ("reference", 6, 1)
    ]  # fmt: skip


def test_single_bucket_scores_like_the_corpus() -> None:
    hypotheses, references = ["the cat sat on a mat", "a man rides a cow today"], ["the cat sat on the mat"] * 2
    (bucket,) = by_length(hypotheses, references)
    whole = evaluate(hypotheses, references)
    assert (bucket.bleu, bucket.chrf) == pytest.approx((whole.bleu.score, whole.chrf.score))


def test_correct_one_word_lines_score_100_and_blank_ones_have_no_ratio() -> None:
    (bucket,) = by_length(["yes", "no"], ["yes", "no"])
    assert (bucket.bleu, bucket.chrf) == pytest.approx((100, 100))
    (blank,) = by_length([""], [""])
    assert blank.length_ratio is None


def test_bucket_lengths_use_the_chosen_tokenisation() -> None:
    assert by_length(["今天天气很好"], ["今天天气很好"])[0].longest == 5
    assert by_length(["今天天气很好"], ["今天天气很好"], tokenize="char")[0].shortest == 6


def test_sentence_scores_match_sacrebleu() -> None:
    for one in sentence_scores(HYPOTHESES, REFERENCES, SOURCES):
        assert one.chrf == pytest.approx(sacrebleu.sentence_chrf(one.hypothesis, [one.reference]).score)
        assert one.bleu == pytest.approx(sacrebleu.sentence_bleu(one.hypothesis, [one.reference]).score)
        assert (one.source, one.hypothesis, one.reference) == (
            SOURCES[one.line - 1], HYPOTHESES[one.line - 1], REFERENCES[one.line - 1]
        )  # fmt: skip


def test_worst_sentences_come_first_and_exact_matches_last() -> None:
    hypotheses, references = ["right", "nearly right", "", "", "fine"], ["right", "nearly richt", "", "gone", "fun"]
    scores = sentence_scores(hypotheses, references)
    assert [one.line for one in scores] == [4, 5, 2, 3, 1]  # line 3 is blank and right, though its chrF is 0
    differing = [one.chrf for one in scores[:3]]
    assert differing == sorted(differing)


def test_tabs_do_not_shift_the_columns() -> None:
    row = SentenceScore(7, 12.5, 3.25, "a\tb", "c\\t", "d\re").to_tsv()
    assert row.split("\t") == ["7", "12.5000", "3.2500", "a\\tb", "c\\\\t", "d\\re"]
    assert len(row.split("\t")) == len(COLUMNS)
    assert SentenceScore(7, 1.0, 1.0, None, "b", "c").to_tsv().split("\t")[3] == ""
