"""The model that comes with dragoman: it translates, from a checkout and from the built wheel; it is small enough."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman
from dragoman.bundle import IN_THE_BOX, in_the_box

ROOT = Path(__file__).parents[2]
MOST_BYTES = 40_000_000


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "dragoman", *words], capture_output=True, text=True)


def test_it_is_the_only_one_and_within_its_size() -> None:
    assert in_the_box() == ["en-de"]
    assert sum(path.stat().st_size for path in IN_THE_BOX.rglob("*") if path.is_file()) <= MOST_BYTES


def test_it_translates_by_its_name() -> None:
    translator = dragoman.load("en-de", device="cpu")
    assert translator.translate("Good morning!").text == "Guten Morgen!"
    assert [each.text for each in translator.translate(["Thank you very much.", ""])] == ["Vielen Dank.", ""]


def test_it_is_what_translate_and_inspect_take_where_no_model_is_named() -> None:
    done = run("translate", "Good morning!")
    assert (done.returncode, done.stdout) == (0, "Guten Morgen!\n")
    assert "Guten" in run("inspect", "Good morning!").stdout


def test_the_demo_translates_and_names_the_training_one() -> None:
    done = run("demo")
    assert done.returncode == 0, done.stderr
    assert "  Where is the nearest train station?\n  Wo ist der nächste Bahnhof?\n" in done.stdout
    assert "dragoman demo --train" in done.stdout


@pytest.mark.slow
def test_the_built_wheel_has_it(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--no-input"]
    subprocess.run([*pip, "wheel", str(ROOT), "--no-deps", "-w", str(tmp_path)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    code = (
        "import dragoman, json; translator = dragoman.load('en-de');"
        "print(json.dumps([dragoman.__file__, translator.translate('Good morning!').text]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path)
    place, text = json.loads(done.stdout)
    assert place.startswith(str(site))
    assert text == "Guten Morgen!"
