"""Recipes: each is valid; the generated ones reach their promise on phrases never seen (the long form trains them)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.config import Config
from dragoman.data.generated import TASKS

RECIPES = Path(__file__).parents[2] / "recipes"
PROMISED = {"copy": 0.99, "reverse": 0.99, "sort": 0.99, "numbers-de": 0.95, "numbers-th": 0.95}


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_is_a_valid_configuration(path: Path) -> None:
    config = Config.build(None, path)
    assert config.train.max_steps > 0


def test_every_generated_corpus_has_a_recipe_and_a_promise() -> None:
    assert set(PROMISED) == set(TASKS)
    for name in TASKS:
        assert Config.build(None, RECIPES / f"{name}.toml").data.generated == name


@pytest.mark.slow
@pytest.mark.parametrize("name", PROMISED)
def test_held_out_exact_match(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    dragoman = [sys.executable, "-m", "dragoman"]
    subprocess.run([*dragoman, "train", str(RECIPES / f"{name}.toml"), "--out", str(tmp_path / "run")], check=True)
    result = json.loads((tmp_path / "run" / "result.json").read_bytes())
    assert result["tests"]["corpus-test"]["sentences"] == 1_000
    assert result["tests"]["corpus-test"]["exact_match"] >= PROMISED[name]
