"""docs/settings.md: every setting, as in the code."""

import importlib.util
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType

import pytest

from dragoman.config import Config

SCRIPT = Path(__file__).parents[2] / "docs" / "settings.py"


@pytest.fixture
def settings() -> ModuleType:
    spec = importlib.util.spec_from_file_location("settings", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_settings_page_is_up_to_date(settings: ModuleType) -> None:
    assert SCRIPT.with_suffix(".md").read_text(encoding="utf-8") == settings.page(), "run python docs/settings.py"


def test_every_setting_is_on_the_page(settings: ModuleType) -> None:
    parts = settings.page().split("\n## `[")
    for section in fields(Config):
        (part, *_) = [part for part in parts if part.startswith(section.name)]
        for field in fields(getattr(Config(), section.name)):
            expected = section.name != "model" or field.name not in settings.NOT_SETTINGS
            assert (f"\n| `{field.name}` | " in part) == expected, field.name


def test_rows_match_the_code(settings: ModuleType) -> None:
    page = settings.page()
    assert "| `beam` | whole number | `4` | hypotheses kept at each step; 1: greedy |\n" in page
    assert "| `norm` | `post`, `pre` | `post` | layer norm after each sub-layer, as in the paper, or before |\n" in page
    assert "| `d_k` | whole number | not set | width of a head's queries and keys; if not set: `d_model`" in page
    assert "| `model.d_model` | `128` | `256` | `512` | `1024` |\n" in page


def test_changed_default_changes_the_page(settings: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    before = settings.page()
    monkeypatch.setitem(settings.config.PRESETS["tiny"]["model"], "d_model", 96)
    assert settings.page() != before


def test_setting_without_a_description_is_refused(settings: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Bare:
        size: int = 1

    monkeypatch.setattr(settings, "meanings", lambda cls: {"size": ""})
    with pytest.raises(AssertionError, match=r"^train.size: no meaning in config.py; write a comment beside it"):
        list(settings.table("train", Bare))
