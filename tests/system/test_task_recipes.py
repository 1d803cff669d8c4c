"""The recipes of other tasks, on a little text: they split, train and print what they promise."""

import bz2
import importlib.util
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dragoman.cli.train import build_config
from dragoman.config import Config

RECIPES = Path(__file__).parents[2] / "recipes"
TINY = ("model.num_layers=1", "model.d_model=32", "model.d_ff=32", "model.num_heads=2", "train.max_steps=4",
        "train.save_every=2", "train.batch_tokens=600", "train.trackers=[]", "train.threads=1")  # fmt: skip


def run(name: str, *words: object, settings: tuple[str, ...] = TINY) -> str:
    chosen = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, str(RECIPES / f"{name}.py"), *map(str, words), *chosen]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def recipe() -> Iterator[Callable[[str], ModuleType]]:
    sys.path.insert(0, str(RECIPES))
    yield importlib.import_module
    sys.path.remove(str(RECIPES))


@pytest.fixture(scope="module")
def summaries(recipe: Callable[[str], ModuleType]) -> ModuleType:
    return recipe("summaries")


@pytest.mark.slow
def test_shakespeare_splits_by_characters_and_scores_every_seed(tmp_path: Path) -> None:
    text = "".join(f"{letter * 7}\n" for letter in "abcdefghij" * 30)
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt.bz2").write_bytes(bz2.compress(text.encode()))
    shown = run("shakespeare", "--data", tmp_path, "--small", "--out", tmp_path / "out", "--seeds", 2)
    train, valid = ((tmp_path / "out" / f"{name}.txt").read_text() for name in ("train", "valid"))
    assert train + valid == text
    assert len(train) == int(0.9 * len(text))
    each = [float(found) for found in re.findall(r"seed-\d +out-valid: (\d\.\d+) nats a character", shown)]
    (mean,) = re.findall(r"mean of 2: (\d\.\d+) nats a character", shown)
    assert len(each) == 2
    assert float(mean) == pytest.approx(sum(each) / 2, abs=2e-4)


@pytest.mark.slow
def test_reviews_are_classified_beside_logistic_regression(tmp_path: Path) -> None:
    draw = random.Random(1)
    (tmp_path / "sst2").mkdir()
    for part, count in (("train", 60), ("dev", 20), ("test", 20)):
        labels = [draw.randrange(2) for _ in range(count)]
        lines = "".join(f"a {('bad', 'good')[label]} film {draw.randrange(9)}\t{label}\n" for label in labels)
        (tmp_path / "sst2" / f"{part}.tsv.bz2").write_bytes(bz2.compress(lines.encode()))
    shown = run("sst2", "--data", tmp_path, "--out", tmp_path / "out", "--seeds", 1)
    installed = importlib.util.find_spec("sklearn") is not None
    assert f"logistic regression: {'100.0 accuracy' if installed else 'not measured; '}" in shown
    assert re.search(r"scratch: accuracy [\d.]+ \([\d.]+ to [\d.]+\), 1 seeds", shown)


@pytest.mark.parametrize(("recipe", "task"), [
    ("shakespeare", "language modelling"), ("shakespeare-cpu", "language modelling"), ("sst2", "classification"),
    ("sst2-from-translator", "classification"), ("summaries", "translation"), ("vowels", "classification"),
    ("digits", "transcription"), ("captions", "transcription"), ("ett", "forecasting"), ("ett-lstm", "forecasting"),
])  # fmt: skip
def test_recipes_are_valid_configurations(recipe: str, task: str) -> None:
    assert Config.build(None, RECIPES / f"{recipe}.toml").task == task


def test_reviews_can_start_from_the_bundled_translator(tmp_path: Path) -> None:
    settings = ["train.start_from=en-de"]
    config = build_config(RECIPES / "sst2-from-translator.toml", tmp_path / "run", None, {}, settings)
    assert config.model.architecture == "encoder"
    assert config.model.num_layers == 8
    assert config.train.max_steps == 600


DESCRIPTIONS = """Package: one
Description-md5: 1
Description-en: tool that does one thing
 One does one thing. It does so well, and
 never anything else.
 .
 This package has the program.

Package: empty
Description-en: no description

Package: two
Description-en: library for two
 Two is a library. It has functions.
"""


def test_descriptions_are_read_as_headline_and_paragraphs(summaries: Any, tmp_path: Path) -> None:
    (tmp_path / "all.txt").write_text(DESCRIPTIONS + "\n")
    one, two = summaries.read_packages(tmp_path / "all.txt")
    assert one.headline == "tool that does one thing"
    assert one.paragraphs == [
        "One does one thing. It does so well, and never anything else.",
        "This package has the program.",
    ]
    assert summaries.lead(two.document) == "Two is a library."


def test_packages_with_the_same_first_paragraph_are_in_one_part(summaries: Any) -> None:
    parts = {summaries.Package("x", ["the same", f"other {number}"]).part for number in range(50)}
    assert len(parts) == 1
    spread = [summaries.Package("x", [f"text {number}"]).part for number in range(2_000)]
    assert 20 < spread.count("valid") < 65
    assert 50 < spread.count("test") < 115


@pytest.mark.slow
def test_summaries_are_scored_beside_baselines(tmp_path: Path) -> None:
    draw = random.Random(1)
    entries = []
    for number in range(300):
        name = draw.choice(["editor", "game", "compiler", "player"])
        entries.append(
            f"Package: p{number}\nDescription-en: {name} number {number}\n This is {name} {number}. It runs on every "
            f"machine and is\n used by many people in many places for {draw.randrange(10**9)} purposes of any kind.\n\n"
        )
    (tmp_path / "all.txt").write_text("".join(entries))
    more = ("train.valid_sentences=4", "decode.max_extra=2", "text.vocab_size=400")
    shown = run("summaries", "--descriptions", tmp_path / "all.txt", "--out", tmp_path / "out", "--seeds", 1,
                settings=(*TINY, *more))  # fmt: skip
    for name in ("first sentence", "central sentence", "seed-1"):
        assert re.search(rf"{name} +rouge1 [\d.]+ \[[\d., ]+\], rouge2 ", shown), shown


# Vectors


def test_captions_name_the_shapes_from_left_to_right(recipe: Callable[[str], ModuleType]) -> None:
    captions = recipe("captions")
    random = np.random.default_rng(1)
    for _ in range(50):
        drawn = captions.draw(random)
        names = re.findall(r"a (small|large) (dark|bright) (circle|square|triangle|cross)", drawn.caption)
        count = len(names)
        assert count in (2, 3)
        assert drawn.caption == " and ".join(
            [", ".join(f"a {' '.join(name)}" for name in names[:-1]), f"a {' '.join(names[-1])}"]
        )
        for place, (_, brightness, _) in enumerate(names):
            part = drawn.pixels[:, place * 32 // count : (place + 1) * 32 // count]
            assert np.sort(part.reshape(-1))[-8] == pytest.approx({"dark": 0.4, "bright": 1.0}[brightness], abs=0.25)


@pytest.mark.slow
def test_captions_are_trained_and_scored(tmp_path: Path) -> None:
    settings = (*TINY, "train.valid_sentences=4", "decode.max_extra=2", "train.learning_rate=1e-3")
    shown = run("captions", "--out", tmp_path / "out", "--train", 100, "--seeds", 1, settings=settings)
    assert re.search(r"seed-1 +out-test: exact [\d.]+ per cent, word error rate [\d.]+", shown), shown
    assert re.search(r"exact match [\d.]+ \([\d.]+ to [\d.]+\), 1 seeds", shown)


def test_digits_are_frames_of_sound(recipe: Callable[[str], ModuleType]) -> None:
    digits = recipe("digits")
    rate = 16_000
    low, high = (digits.log_mel(np.sin(2 * np.pi * hertz * np.arange(rate) / rate), rate) for hertz in (300, 3_000))
    assert low.shape == high.shape == (49, 40)  # a second, 25 ms every 20 ms
    assert (low.argmax(axis=1) < high.argmax(axis=1)).all()
    assert digits.log_mel(np.zeros(10), rate).shape == (1, 40), "shorter than a frame"
    drawn = list(digits._draw(50, 0, digits.VOICES))
    assert drawn == list(digits._draw(50, 0, digits.VOICES))
    assert drawn != list(digits._draw(50, 1, digits.VOICES)), "the control: parts differ"
    assert {len(one.words.split()) for one in drawn} == {2, 3, 4, 5, 6}
    assert {one.voice for one in drawn}.isdisjoint(digits.UNHEARD)


@pytest.mark.slow
def test_digits_need_a_voice(tmp_path: Path) -> None:
    command = [sys.executable, str(RECIPES / "digits.py"), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": str(tmp_path)})
    assert done.returncode != 0
    assert "espeak-ng: not found; install it with apt-get install espeak-ng" in done.stderr
    assert not (tmp_path / "out").exists()


VOWELS = """@problemName JapaneseVowels
# a comment
@data
"""


@pytest.mark.slow
def test_speakers_are_told_apart_beside_logistic_regression(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    for part, count in (("TRAIN", 60), ("TEST", 20)):
        lines = []
        for _ in range(count):
            speaker, frames = int(random.integers(1, 3)), int(random.integers(7, 12))
            curves = random.normal(size=(12, frames)) + 3 * speaker
            lines.append(":".join([*(",".join(f"{value:.4f}" for value in curve) for curve in curves), str(speaker)]))
        (tmp_path / f"JapaneseVowels_{part}.ts").write_text(VOWELS + "\n".join(lines) + "\n")
    shown = run("vowels", "--folder", tmp_path, "--out", tmp_path / "out", "--seeds", 1)
    installed = importlib.util.find_spec("sklearn") is not None
    assert f"logistic regression: {'100.0 accuracy' if installed else 'not measured; '}" in shown
    assert re.search(r"accuracy [\d.]+ \([\d.]+ to [\d.]+\), 1 seeds", shown)
    assert len((tmp_path / "out" / "valid.speakers").read_text().splitlines()) == 10  # every sixth


@pytest.mark.slow
def test_forecasts_stand_beside_simple_ones(recipe: Callable[[str], ModuleType], tmp_path: Path) -> None:
    hours = np.arange(1_100)
    daily = np.sin(2 * np.pi * hours / 24)
    rows = [
        f"2016-07-{hour // 24 + 1} {hour % 24}:00,{5 + value:.5f}" for hour, value in zip(hours, daily, strict=True)
    ]
    (tmp_path / "ett").mkdir()
    (tmp_path / "ett" / "ETTh1.csv.bz2").write_bytes(bz2.compress(("date,OT\n" + "\n".join(rows) + "\n").encode()))
    ett = recipe("ett")
    changed = (RECIPES / "ett.py").read_text().replace("30 * 24, 96, 96, 24", "55, 96, 96, 24")
    assert changed.count("MONTH, LOOKBACK, HORIZON, DAY = 55, 96, 96, 24") == 1
    assert (ett.MONTH, ett.LOOKBACK, ett.HORIZON) == (720, 96, 96)
    place = tmp_path / "recipes"
    shutil.copytree(RECIPES, place)
    (place / "ett.py").write_text(changed)
    features = ("model.source_features=1", "model.target_features=1", "train.max_steps=2", "train.save_every=2")
    words = [word for setting in (*features, "train.trackers=[]", "train.threads=1") for word in ("--set", setting)]
    done = subprocess.run(
        [sys.executable, str(place / "ett.py"), "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--seeds", "1",
         *words], capture_output=True, text=True, check=False,
    )  # fmt: skip
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown
    errors = dict(re.findall(r"(last row|last day|linear) +MSE ([\d.]+)", shown))
    assert float(errors["last day"]) < 1e-6 < float(errors["last row"])
    assert float(errors["linear"]) < 1e-3
    for kind in ("transformer", "plain", "lstm"):
        assert re.search(rf"{kind}: MSE [\d.]+ \([\d.]+ to [\d.]+\), MAE [\d.]+", shown), shown
