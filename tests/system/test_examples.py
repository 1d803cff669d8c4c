"""The programs of examples/ run, and do what they say."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [path.stem for path in sorted(EXAMPLES.glob("*.py")) if f'example("{path.stem}")' not in text] == []


def test_translate(capsys: pytest.CaptureFixture[str]) -> None:
    example("translate").main()
    shown = capsys.readouterr().out
    assert "Bahnhof" in shown
    assert "'' -> '' (empty)" in shown


@pytest.mark.slow
def test_inspect_attention(capsys: pytest.CaptureFixture[str]) -> None:
    example("inspect_attention").main()
    assert "sharpest head: layer " in capsys.readouterr().out


@pytest.mark.slow
def test_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("train").main(tmp_path, steps=2)
    assert "forty-two -> " in capsys.readouterr().out


@pytest.mark.slow
def test_language_model_prefers_the_right_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("language_model").main(tmp_path, steps=100)
    right, wrong = (float(line.split()[0]) for line in capsys.readouterr().out.splitlines()[-2:])
    assert right < wrong


@pytest.mark.slow
def test_classifier_tells_the_languages_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("classifier").main(tmp_path, steps=100)
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert [line.split(": ")[1][:2] for line in lines] == ["en", "de", "en"]


@pytest.mark.slow
def test_custom_layer_learns() -> None:
    assert example("custom_layer").main(300) > 0.9


@pytest.mark.slow
def test_forecaster_beats_the_last_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("forecaster").main(tmp_path, steps=60)
    error, unchanged = map(float, re.findall(r"\d\.\d+", capsys.readouterr().out.splitlines()[-1]))
    assert error < 0.6 * unchanged


@pytest.mark.slow
def test_captioner_says_where_the_square_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("captioner").main(tmp_path, steps=100)
    lines = capsys.readouterr().out.splitlines()[-3:]
    pairs = [re.fullmatch("right: (.+); said: (.+)", line) for line in lines]
    assert all(pair is not None and pair[1] == pair[2] for pair in pairs)
