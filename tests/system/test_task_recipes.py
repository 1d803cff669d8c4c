"""The recipes of other tasks, on a little text: they split, train and print what they promise."""

import bz2
import importlib.util
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

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
def summaries() -> Iterator[ModuleType]:
    sys.path.insert(0, str(RECIPES))
    yield importlib.import_module("summaries")
    sys.path.remove(str(RECIPES))


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
    ("sst2-from-translator", "classification"), ("summaries", "translation"),
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
