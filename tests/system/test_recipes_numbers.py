"""The recipes of numbers reach their promise: a file of its own, so that they train beside those of letters."""

from pathlib import Path

import pytest

from tests.system.test_recipes import NUMBERS, exact_match


@pytest.mark.recipe
@pytest.mark.parametrize("name", ["numbers-de", pytest.param("numbers-th", marks=pytest.mark.slow)])
def test_recipe_reaches_its_held_out_exact_match(name: str, tmp_path: Path) -> None:
    assert exact_match(name, tmp_path / "run") >= NUMBERS[name]
