"""recipes/nearest.py: which hypothesis is nearest, and what the script writes, resumes and refuses."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from dragoman import DataError
from dragoman.decode.translation import Translation

RECIPES = Path(__file__).parents[2] / "recipes"
ENGLISH = ["Good morning!", "", "Where is the nearest train station?", "bad \0 line", "Nobody wrote a translation."]
GERMAN = ["Guten Morgen!", "", "Wo ist denn der nächste Bahnhof?", "schlechte Zeile", " "]


@pytest.fixture(scope="module")
def recipe() -> Iterator[ModuleType]:
    sys.path.insert(0, str(RECIPES))
    yield importlib.import_module("nearest")
    sys.path.remove(str(RECIPES))


def found(*texts: str, status: str = "translated") -> Translation:
    """A translation with these alternatives, best first."""
    from dragoman.decode.translation import Alternative

    alternatives = tuple(Alternative(text, -float(place), -float(place)) for place, text in enumerate(texts))
    return Translation("source", texts[0], status, alternatives=alternatives)  # type: ignore[arg-type]


def test_the_hypothesis_with_most_ngrams_in_common_is_the_nearest(recipe: ModuleType) -> None:
    texts = ("Das Haus ist sehr alt.", "Das rote Haus ist alt.", "Ein rotes Haus ist sehr alt.")
    for wanted in texts:
        assert recipe.choose_nearest(found(*texts), wanted) == wanted
    assert recipe.choose_nearest(found(*texts), "Das rote Haus ist uralt.") == texts[1]


def test_of_equally_near_ones_the_model_decides(recipe: ModuleType) -> None:
    assert recipe.choose_nearest(found("eins", "zwei"), "drei") == "eins"
    assert recipe.choose_nearest(found("zwei", "eins"), "drei") == "zwei"


def test_what_has_more_words_than_the_target_is_further_away(recipe: ModuleType) -> None:
    short, long = "der Hund", "der Hund der Hund der Hund"
    assert recipe.choose_nearest(found(long, short), "der Hund") == short
    assert recipe.choose_nearest(found(short, long), "der Hund der Hund der Hund") == long


@pytest.mark.parametrize("status", ["failed", "truncated", "empty", "altered"])
def test_nothing_is_learned_from_what_is_not_a_whole_translation(recipe: ModuleType, status: str) -> None:
    assert recipe.choose_nearest(found("der Hund", status=status), "der Hund") == ""
    assert recipe.choose_nearest(found("der Hund"), "der Hund") == "der Hund", "the control"


def test_a_target_stays_in_one_line(recipe: ModuleType) -> None:
    assert recipe.choose_nearest(found("eins\n zwei "), "eins") == "eins zwei"


def write(folder: Path) -> tuple[Path, Path]:
    paths = folder / "text.en", folder / "text.de"
    for path, lines in zip(paths, (ENGLISH, GERMAN), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    return paths


def run(source: Path, target: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = ("--model", "en-de", "--source", source, "--target", target, "--out", out, "--beam", "3", *more)
    command = [sys.executable, str(RECIPES / "nearest.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_lines_stay_aligned_and_the_same_command_resumes(tmp_path: Path) -> None:
    source, target, out = *write(tmp_path), tmp_path / "out"
    done = run(source, target, out)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{out / 'target'}: 5 lines\n"
    first = (out / "target").read_text()
    assert first.splitlines()[:2] == ["Guten Morgen!", ""]
    assert "Bahnhof" in first.splitlines()[2]
    assert first.splitlines()[3:] == ["", ""], "a line that is not valid, and one without a target"
    assert sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) == ["made-from.json", "target"]

    (out / "target").write_text("kept\n" * 5)
    assert run(source, target, out).returncode == 0
    assert (out / "target").read_text() == "kept\n" * 5
    (out / "target").unlink()
    (out / "part-000000").write_text("part\n" * 5)  # of a command that was killed
    assert run(source, target, out).returncode == 0
    assert (out / "target").read_text() == "part\n" * 5
    target.write_text(target.read_text() + "\n")  # made from another text, nothing is kept
    source.write_text(source.read_text() + "\n")
    assert run(source, target, out).returncode == 0
    assert (out / "target").read_text() == first + "\n"


@pytest.mark.slow
def test_parts_of_several_texts_are_joined_in_order(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "LINES_OF_PART", 2)
    numbers = ["one", "two", "three", "four", "five", "six", "seven"]
    texts = []
    for name, lines in (("up", numbers), ("down", numbers[::-1])):
        source = tmp_path / f"{name}.en"
        source.write_text("".join(f"I have {number} cats.\n" for number in lines))
        texts.append(recipe.Text(source, source, tmp_path / name))

    def results() -> list[list[str]]:
        return [(text.out / "target").read_text().splitlines() for text in texts]

    recipe.provide_nearest(texts, "en-de", beam=1)
    up, down = results()
    assert up == down[::-1]
    words = ("eine", "zwei", "drei", "vier", "fünf", "sechs", "sieben")
    assert all(word in line for word, line in zip(words, up, strict=True))

    (texts[1].out / "target").unlink()
    (texts[1].out / "part-000001").write_text("kept\nkept\n")  # of a command that was killed
    recipe.provide_nearest(texts, "en-de", beam=1)
    assert results() == [up, [*down[:2], "kept", "kept", *down[4:]]]
    recipe.provide_nearest(texts, "en-de", beam=2)
    assert "kept" not in results()[1], "another beam makes others"


@pytest.mark.slow
def test_an_error_does_not_wait_for_the_parts_that_are_left(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "LINES_OF_PART", 1)
    whole, short = tmp_path / "whole", tmp_path / "short"
    whole.write_text("Good morning!\n" * 40)
    short.write_text("Guten Morgen!\n")
    texts = [recipe.Text(whole, whole, tmp_path / "first"), recipe.Text(whole, short, tmp_path / "second")]
    with pytest.raises(DataError, match="one ends before line 2"):
        recipe.provide_nearest(texts, "en-de", beam=1)
    assert len([*(tmp_path / "first").glob("part-*")]) < 10


@pytest.mark.slow
def test_texts_of_different_length_are_refused(tmp_path: Path) -> None:
    source, target = write(tmp_path)
    target.write_text("eins\n")
    done = run(source, target, tmp_path / "out")
    message = f"nearest: {source}, {target}: one ends before line 2; both need as many lines\n"
    assert (done.returncode, done.stderr) == (3, message)
    assert not (tmp_path / "out" / "target").exists()
