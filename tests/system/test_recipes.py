"""Recipes: each is valid; the generated ones reach their promised score on held-out phrases (slow tests)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.config import Config
from dragoman.data.generated import TASKS

RECIPES = Path(__file__).parents[2] / "recipes"
LETTERS, NUMBERS = {"copy": 99, "reverse": 99, "sort": 99}, {"numbers-de": 95, "numbers-th": 95}  # per cent, promised


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_is_a_valid_configuration(path: Path) -> None:
    config = Config.build(None, path)
    assert config.train.max_steps > 0


def test_every_generated_corpus_has_a_recipe_and_a_promised_score() -> None:
    assert LETTERS.keys() | NUMBERS.keys() == set(TASKS)
    for name in TASKS:
        assert Config.build(None, RECIPES / f"{name}.toml").data.generated == name


@pytest.mark.recipe
@pytest.mark.parametrize("name", [pytest.param("copy", marks=pytest.mark.slow), "reverse", "sort"])
def test_recipe_reaches_its_held_out_exact_match(name: str, tmp_path: Path) -> None:
    assert exact_match(name, tmp_path / "run") >= LETTERS[name]


def exact_match(name: str, run: Path) -> float:
    """Per cent, of a model trained by a recipe, on held-out pairs."""
    command = [sys.executable, "-m", "dragoman", "train", str(RECIPES / f"{name}.toml"), "--out", str(run)]
    subprocess.run(command, check=True)
    found = json.loads((run / "result.json").read_bytes())["tests"]["corpus-test"]
    assert found["sentences"] == 1_000
    return float(found["exact_match"])
