"""recipes/hardening.py: what its rules make of a pair, and what the script writes and refuses."""

import importlib
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"
ENGLISH = [
    "Tom met Maria on 14 days in Boston.",
    "There are 350 people here!",
    "What a beautiful morning.",
    "Nobody knows.",
]
GERMAN = [
    "Tom traf Maria an 14 Tagen in Boston.",
    "Hier sind 350 Leute!",
    "Was für ein schöner Morgen.",
    "Niemand weiß es.",
]


@pytest.fixture(scope="module")
def hardening() -> Iterator[ModuleType]:
    sys.path.insert(0, str(RECIPES))
    yield importlib.import_module("hardening")
    sys.path.remove(str(RECIPES))


def made_by(hardening: ModuleType, kind: str, languages: tuple[str, str] = ("en", "de")) -> list[tuple[Any, Any]]:
    """Real pairs, and what a rule made of them with many seeds."""
    found = []
    for seed in range(60):
        chance = random.Random(seed)
        sides = (ENGLISH, GERMAN) if languages == ("en", "de") else (GERMAN, ENGLISH)
        pair = hardening.Pair(*chance.choice([*zip(*sides, strict=True)]))
        made = hardening.RULES[kind](pair, hardening.Context(chance, hardening.Languages(*languages)))
        if made is not None:
            found.append((pair, made))
    assert len(found) > 8, kind
    return found


def new_in(real: str, made: str) -> str:
    """What is between the common start and the common end."""
    start = next((n for n, (a, b) in enumerate(zip(real, made, strict=False)) if a != b), len(real))
    end = next((n for n, (a, b) in enumerate(zip(real[::-1], made[::-1], strict=False)) if a != b), len(real))
    return made[start : len(made) - end]


def test_what_is_invented_takes_the_place_of_a_word_in_common(hardening: ModuleType) -> None:
    context = hardening.Context(random.Random(1), hardening.Languages("en", "de"))
    rule = hardening.copied(lambda _: "x@y.z")
    replaced = set()
    for _ in range(50):
        made = rule(hardening.Pair(ENGLISH[0], GERMAN[0]), context)
        (word,) = [word for word in ("Tom", "Maria", "Boston") if word not in made.source]
        replaced.add(word)
        assert made == (ENGLISH[0].replace(word, "x@y.z"), GERMAN[0].replace(word, "x@y.z"))
    assert replaced == {"Tom", "Maria", "Boston"}


@pytest.mark.parametrize("kind", ["name", "term", "address", "code", "phrase"])
def test_inventions_differ(hardening: ModuleType, kind: str) -> None:
    found = [getattr(hardening, kind)(random.Random(seed)) for seed in range(200)]
    assert len({*found}) > 150
    assert all(text.strip() == text != "" for text in found)
    if kind == "address":
        assert all(re.fullmatch(r"(https?://|www\.)[\w./?=-]+|[\w.-]+@[\w.-]+", text) for text in found)


@pytest.mark.parametrize("languages", [("en", "de"), ("de", "en")])
def test_numbers_are_written_as_each_language_does(hardening: ModuleType, languages: tuple[str, str]) -> None:
    separated = 0
    for kind in ("number", "measure"):
        for _, made in made_by(hardening, kind, languages):
            english, german = made if languages == ("en", "de") else made[::-1]
            one, other = ({*re.findall(r"\d[\d.,]*\d|\d", side)} for side in (english, german))
            assert {each.translate(str.maketrans(",.", ".,")) for each in one} == other
            separated += one != other
    assert separated > 5, "the control"


def test_dates_have_the_month_of_each_language(hardening: ModuleType) -> None:
    written = 0
    for real, made in made_by(hardening, "date"):
        found = re.search(r"(\d+) ([A-Z][a-z]+) (\d{4})", made.source)
        if found:
            month = hardening.MONTHS["de"][hardening.MONTHS["en"].index(found[2])]
            assert f"{found[1]}. {month} {found[3]}" in made.target
            written += 1
        else:
            assert re.search(r"\d{4}", new := new_in(real.source, made.source))
            assert new_in(real.target, made.target) == new
    assert written > 5, "the control"


def test_dates_exist(hardening: ModuleType) -> None:
    assert max(int(made.source[:2]) for _, made in made_by(hardening, "date") if re.match(r"\d\d \w", made.source)) > 28
    for _, made in made_by(hardening, "date"):
        if found := re.search(r"(\d+) ([A-Z][a-z]+ \d{4})", made.source):
            datetime.strptime(f"{found[1]:0>2} {found[2]}", "%d %B %Y")


def test_forms(hardening: ModuleType) -> None:
    for real, made in made_by(hardening, "upper"):
        assert made == (real.source.upper(), real.target.upper())
    for real, made in made_by(hardening, "misspelt"):
        assert made.target == real.target
        assert made.source != real.source
        assert abs(len(made.source) - len(real.source)) <= 2
        changed = {*real.source.split()} - {*made.source.split()}
        assert changed
        assert all(word[0].islower() for word in changed), "a word with a capital may be a name that is not known"
    for real, made in made_by(hardening, "emoji"):
        assert made.source.replace(real.source, "").strip() == made.target.replace(real.target, "").strip() != ""
    for real, made in made_by(hardening, "in quotes"):
        assert (made.source[1:-1], made.target[1:-1]) == real
        style = made.source[0] + made.source[-1], made.target[0] + made.target[-1]
        assert style in [("“”", "„“"), ('""', '""'), ("‘’", "‚‘")]
    for real, made in made_by(hardening, "without stop"):
        assert (made.source + ".", made.target + ".") == real


def test_nothing_is_copied_without_a_word_in_common(hardening: ModuleType) -> None:
    context = hardening.Context(random.Random(1), hardening.Languages("en", "de"))
    pair = hardening.Pair("I saw Berlin twice: Berlin!", "Ich sah Berlin zweimal: Berlin!")
    for kind in hardening.COPYING:
        assert hardening.RULES[kind](pair, context) is None


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, RECIPES / "hardening.py", *arguments], capture_output=True, text=True)


@pytest.mark.slow
def test_the_script_writes_the_same_pairs_each_time(tmp_path: Path) -> None:
    (tmp_path / "en").write_text("\n".join([*ENGLISH * 50, ""]) + "\n")
    (tmp_path / "de").write_text("\n".join([*GERMAN * 50, ""]) + "\n")
    given = ["--source", f"{tmp_path}/en", "--target", f"{tmp_path}/de", "--languages", "en", "de", "--share", "0.7"]
    for out, seed in (("one", "1"), ("again", "1"), ("other", "2")):
        result = run(*given, "--out", f"{tmp_path}/{out}", "--seed", seed)
        assert result.returncode == 0, result.stderr
    texts = {out: (tmp_path / out / "source").read_text() for out in ("one", "again", "other")}
    assert texts["one"] == texts["again"] != texts["other"]
    lines = [(tmp_path / "one" / side).read_text().splitlines() for side in ("source", "target")]
    counts = json.loads((tmp_path / "one" / "rules.json").read_text())["pairs"]
    assert len(lines[0]) == len(lines[1]) == sum(counts.values())
    assert 120 < len(lines[0]) < 160
    assert len(counts) > 10
    assert any(line.count("Nobody knows.") == 1 and len(line) > 40 for line in lines[0]), "several sentences in a line"


@pytest.mark.slow
def test_the_script_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "en").write_text("a\nb\n")
    (tmp_path / "de").write_text("a\n")
    files = ["--source", f"{tmp_path}/en", "--target", f"{tmp_path}/de", "--out", f"{tmp_path}/out"]
    result = run(*files, "--languages", "en", "fr")
    assert result.stderr == "hardening: --languages: fr has no dates and quotes here; use en or de\n"
    result = run(*files, "--languages", "en", "de")
    message = f"{tmp_path}/en, {tmp_path}/de: one ends before line 2; both need as many lines"
    assert result.stderr == f"hardening: {message}\n"
    assert not (tmp_path / "out" / "source").exists()
    result = run(*files, "--source", f"{tmp_path}/en", "--languages", "en", "de")
    assert result.stderr == "hardening: --source: 2 files, and 1 of --target; give one for each\n"
