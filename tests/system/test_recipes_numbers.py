"""The recipes of numbers reach their promised score: a separate file, to train in parallel with test_recipes.py."""

from pathlib import Path

import pytest

from tests.system.test_recipes import NUMBERS, exact_match


@pytest.mark.recipe
@pytest.mark.parametrize("name", ["numbers-de", pytest.param("numbers-th", marks=pytest.mark.slow)])
def test_recipe_reaches_its_held_out_exact_match(name: str, tmp_path: Path) -> None:
    assert exact_match(name, tmp_path / "run") >= NUMBERS[name]
