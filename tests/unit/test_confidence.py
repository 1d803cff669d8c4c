"""Confidence: features by their definition, a fit that finds what it should, its file, the command that writes it."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import dragoman
from dragoman import ConfigError, DataError, ModelError, bundle
from dragoman.confidence import FEATURES, Calibration, features, read_calibration
from dragoman.decode.calibration import Examples, auc, confidences, cross_validated, examples, fit, reliability
from dragoman.decode.translation import Translation
from tests.forked import shared_server

SOME = Calibration(0.5, tuple(0.1 * place for place in range(len(FEATURES))), 40.0, 200)


def test_features_by_their_definition() -> None:
    found = dict(
        zip(
            FEATURES,
            features(["▁the", "▁x", "q", "<0xE2>", "</s>"], ["a", "b", "a", "b", "</s>"], [-0.1, -2, -0.2, -3, -0.7]),
            strict=True,
        )
    )
    assert found["mean_log_prob"] == pytest.approx(-1.2)
    assert found["lowest_log_prob"] == -3
    assert found["unlikely_tokens"] == pytest.approx(2 / 5)
    assert found["normalized_score"] == pytest.approx(-6 / (10 / 6) ** 0.6)
    assert found["source_length"] == pytest.approx(math.log(5))
    assert found["length_ratio"] == found["length_difference"] == 0
    assert found["spelled_source"] == pytest.approx(2 / 5), "a letter within a word and a byte"
    assert found["repetition"] == pytest.approx(1 / 4), "a b occurs twice among four pairs"
    shorter = dict(zip(FEATURES, features(["a"] * 4, ["a"] * 2, [-1.0, -1.0]), strict=True))
    assert shorter["length_ratio"] == pytest.approx(math.log(1 / 2))
    assert shorter["length_difference"] == pytest.approx(math.log(2))
    assert all(map(math.isfinite, features([], [], [])))


def test_confidence_is_a_probability() -> None:
    for values in ([0.0] * 9, [1e6] * 9, [-1e6] * 9):
        assert 0 <= SOME.confidence(values) <= 1
    assert SOME.confidence([0.0] * 9) == pytest.approx(1 / (1 + math.exp(-0.5)))
    assert SOME.confidence([-1e6] * 9) < 0.01 < 0.99 < SOME.confidence([1e6] * 9)


def synthetic(count: int, seed: int = 1, informative: bool = True) -> tuple[Examples, np.ndarray]:
    """Features of lines whose probability of being good is known."""
    chance = np.random.default_rng(seed)
    value_NF = chance.normal(size=(count, len(FEATURES))) * 3 + 1
    logit_N = 0.8 * value_NF[:, 0] - 0.5 * value_NF[:, 1] + 0.3 if informative else np.zeros(count)
    probability_N = 1 / (1 + np.exp(-logit_N))
    good_N = chance.random(count) < probability_N
    return Examples(value_NF, np.where(good_N, 80.0, 20.0) + chance.random(count)), probability_N


def test_fit_recovers_the_probabilities_behind_the_lines() -> None:
    found, probability_N = synthetic(4000)
    calibration = fit(found, 50.0)
    assert np.abs(confidences(calibration, found.value_NF) - probability_N).mean() < 0.03
    assert calibration.weights[0] == pytest.approx(0.8, abs=0.1)
    assert calibration.weights[1] == pytest.approx(-0.5, abs=0.1)
    tested = cross_validated(found, 50.0)
    assert tested.auc == pytest.approx(auc(probability_N, found.chrf_N > 50), abs=0.01)
    assert tested.error < 0.03
    noise, _ = synthetic(4000, informative=False)
    assert cross_validated(noise, 50.0).auc == pytest.approx(0.5, abs=0.05), "the control: nothing to learn"
    overconfident = reliability(confidences(calibration, found.value_NF) ** 0.2, found.chrf_N > 50)
    assert overconfident.error > 5 * tested.error, "the control"


def test_a_quarter_of_the_lines_is_bad_by_default() -> None:
    found, _ = synthetic(400)
    calibration = fit(found)
    assert np.mean(found.chrf_N < calibration.good_chrf) == pytest.approx(0.25)
    assert calibration.lines == 400
    many_equal = found._replace(chrf_N=np.maximum(found.chrf_N, np.quantile(found.chrf_N, 0.4)))
    assert np.mean(many_equal.chrf_N < fit(many_equal).good_chrf) == pytest.approx(0.4, abs=0.01)


def test_separable_lines_and_constant_features_have_a_finite_fit() -> None:
    value_NF = np.ones((200, len(FEATURES)))
    value_NF[:, 0] = np.arange(200)
    calibration = fit(Examples(value_NF, np.arange(200.0)), 100.0)
    assert all(map(math.isfinite, calibration.weights))
    assert calibration.weights[1:] == pytest.approx([0.0] * 8)
    assert auc(confidences(calibration, value_NF), np.arange(200) >= 100) == 1.0


def test_auc_by_its_definition() -> None:
    assert auc(np.array([1.0, 2.0, 3.0]), np.array([False, True, True])) == 1.0
    assert auc(np.array([3.0, 2.0, 1.0]), np.array([False, True, True])) == 0.0
    assert auc(np.array([1.0, 1.0]), np.array([False, True])) == 0.5
    assert auc(np.array([2.0, 1.0, 1.0, 3.0]), np.array([True, False, True, False])) == pytest.approx(1.5 / 4)


def test_too_little_or_uniform_text_is_refused() -> None:
    found, _ = synthetic(99)
    with pytest.raises(DataError, match=r"^99 lines to calibrate on; give at least 100$"):
        fit(found)
    found, _ = synthetic(100)
    with pytest.raises(DataError, match=r"^every line has a chrF at least 1\.0; give another --good-chrf$"):
        fit(found, 1.0)


def test_lines_without_a_translation_or_reference_are_left_out() -> None:
    good = Translation("a", "b", "translated", source_tokens=("a",), tokens=("b",), token_scores=(-1.0,))
    found = examples([good, Translation("", "", "empty"), good], ["b", "x", " "])
    assert found.chrf_N.tolist() == pytest.approx([100.0])


# In a model directory


@pytest.fixture
def copied(quick_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(quick_run, tmp_path / "model", ignore=shutil.ignore_patterns("checkpoints", "data"))


def test_file_round_trips_and_is_verified(copied: Path) -> None:
    assert bundle.load_bundle(copied).calibration is None
    bundle.save_calibration(copied, SOME)
    assert bundle.load_bundle(copied).calibration == SOME
    path = copied / bundle.CONFIDENCE
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.6"))
    message = "its SHA-256 is not the one in manifest.json; make it again with `dragoman calibrate`"
    with pytest.raises(ModelError, match=f"{re.escape(message)}$"):
        bundle.load_bundle(copied)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "expected an object with bias, weights, good_chrf, lines"),
        (SOME.to_bytes().replace(b'"bias"', b'"bais"'), "expected an object with"),
        (SOME.to_bytes().replace(b"repetition", b"other"), "its weights are not those of"),
        (SOME.to_bytes().replace(b"0.5", b"NaN"), "bias is 'nan', not a number"),
        (SOME.to_bytes().replace(b"0.5", b"1e400"), "bias is 'inf', not a number"),
        (SOME.to_bytes().replace(b"0.5", b'"x"'), "bias is 'x', not a number"),
        (SOME.to_bytes().replace(b"200", b"true"), "lines is 'True', not a number"),
    ],
)
def test_a_hostile_file_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=rf"^f: {message}.*; make it again with `dragoman calibrate`$"):
        read_calibration(content, Path("f"))
    assert read_calibration(SOME.to_bytes(), Path("f")) == SOME, "the control"


def test_new_weights_remove_the_calibration_and_compress_keeps_it(copied: Path, tmp_path: Path) -> None:
    bundle.save_calibration(copied, SOME)
    done = shared_server().run(["compress", "--model", str(copied), "--out", str(tmp_path / "out")])
    assert done.returncode == 0, done.stderr
    assert bundle.load_bundle(tmp_path / "out").calibration == SOME
    loaded = bundle.load_bundle(copied)
    weights = {name: torch.from_numpy(array) for name, array in loaded.weights.items()}
    bundle.save_bundle(copied, loaded.config, loaded.tokenizers, weights, "card")
    assert not (copied / bundle.CONFIDENCE).exists()
    assert bundle.load_bundle(copied).calibration is None


# Translating


def test_confidence_is_computed_from_the_features_on_request(copied: Path) -> None:
    with pytest.raises(ConfigError, match=r"^confidence: the model is not calibrated; use `dragoman calibrate`, or"):
        dragoman.load(copied, "cpu").translate("a", confidence=True)
    bundle.save_calibration(copied, SOME)
    translator = dragoman.load(copied, "cpu", engine="plain")
    assert translator.translate("a b").confidence is None
    result, empty = translator.translate(["a b c", ""], confidence=True, token_scores=True)
    expected = SOME.confidence(features(result.source_tokens, result.tokens, result.token_scores))
    assert result.confidence == expected
    assert result.to_dict()["confidence"] == expected
    assert f"confidence={expected:.2f}" in repr(result)
    assert empty.confidence is None
    assert translator.translate("a b c", confidence=True).token_scores == ()


@pytest.mark.slow
def test_the_command_calibrates_and_translate_marks_lines(copied: Path, tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    lines = [" ".join(chance.choice(list("abcdefgh"), size=chance.integers(1, 9))) for _ in range(120)]
    source, reference = tmp_path / "text.source", tmp_path / "text.target"
    source.write_text("".join(f"{line}\n" for line in lines))
    reference.write_text("".join(f"{line[::-1]}\n" for line in lines))
    given = ["--source", str(source), "--reference", str(reference), "--model", str(copied), "--beam", "1"]
    done = shared_server().run(["calibrate", *given, "--json"])
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["file"] == str(copied / bundle.CONFIDENCE)
    assert record["lines"] == 120
    assert 0 <= record["calibration_error"] <= 1
    calibrated = bundle.load_bundle(copied).calibration
    assert calibrated is not None
    assert calibrated.good_chrf == record["good_chrf"]

    words = ["translate", "--model", str(copied), "--beam", "1", *lines[:20], ""]
    shown = shared_server().run([*words, "--json", "--min-confidence", "0.6"])
    records = [json.loads(line) for line in shown.stdout.splitlines()]
    low = [record["confidence"] < 0.6 for record in records[:-1]]
    assert [record["review"] for record in records] == [*low, False]
    where = f"; first: line {low.index(True) + 1}" if any(low) else ""
    summary = f"translate: {sum(low)} of 21 lines to review (confidence below 0.6{where})"
    assert shown.stderr.splitlines()[-1] == summary
    assert shared_server().run([*words, "--min-confidence", "0.6"]).stderr.splitlines()[-1] == summary
    every = shared_server().run([*words, "--json", "--min-confidence", "1"])
    assert every.stderr.endswith("translate: 20 of 21 lines to review (confidence below 1; first: line 1)\n")
    none = shared_server().run([*words, "--json", "--min-confidence", "0"])
    assert none.stderr.endswith("translate: 0 of 21 lines to review (confidence below 0)\n")


@pytest.mark.slow
def test_the_command_refuses_what_it_cannot_do(copied: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("a b\n" * 3)
    given = ["--source", str(text), "--reference", str(text)]
    for words, message in (
        (["calibrate", *given], "--model en-de: is part of the package; give --out"),
        (["calibrate", *given, "--out", str(tmp_path)], f"--out {tmp_path}: is not an empty directory; give another"),
        (["calibrate", *given, "--model", str(copied)], f"{text}: 3 lines to calibrate on; give at least 100"),
        (["translate", "a", "--confidence"], "--confidence: is part of the JSON output; add --json, or use"),
        (["translate", "a", "--model", str(copied), "--min-confidence", "0.5"], "confidence: the model is not calibr"),
    ):
        done = shared_server().run(words)
        assert done.returncode in (2, 3)
        assert done.stdout == ""
        assert done.stderr.startswith(f"dragoman: {message}"), done.stderr
