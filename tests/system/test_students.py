"""recipes/students.py from end to end, and the benchmark of what it makes."""

import json
import math
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import dragoman
from dragoman.bundle import load_bundle, load_config
from tests.english_german import TESTS, write_corpora
from tests.processor import needs_exact_int8

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "students.py"
STUDENT = "192-4-1"
SETTINGS = (
    "model.num_layers=1", "model.d_ff=64", "text.vocab_size=400", "train.batch_tokens=300", "train.valid_sentences=4",
    "decode.max_extra=1",
)  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpora(tmp_path_factory.mktemp("corpora"), lines=20, valid_lines=4)


def run(corpora: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    options = ("--steps", "6", "--jobs", "1", "--beam", "1", *settings, *more)
    command = [sys.executable, str(RECIPE), "--data", str(corpora), "--out", str(out), *options]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def made(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("students")
    done = run(corpora, out, "--only", STUDENT)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_students_learn_from_the_translations_of_their_teacher(made: Path, corpora: Path) -> None:
    translated = (made / "distilled" / "translated" / "4-everyday.txt").read_text().splitlines()
    source = (corpora / "tatoeba-en-de" / "train.en").read_text().splitlines()
    teacher = dragoman.load("en-de", "cpu")
    assert translated[:3] == [
        each.text for each in teacher.translate(source[:3], beam=1, split="sentences", protect=[])
    ]
    config = load_config(made / "models" / STUDENT)
    assert config.model.d_model == 192
    assert config.data.target.count(str(made / "distilled" / "translated" / "4-everyday.txt")) == 6
    assert load_bundle(made / "models" / STUDENT).int8
    scores = json.loads((made / "scores.json").read_text())
    assert [*scores] == [STUDENT]
    assert scores[STUDENT]["bytes"] == (made / "models" / STUDENT / "weights.safetensors").stat().st_size
    assert [*scores[STUDENT]["bleu"]] == [*TESTS]
    assert all([*own] == ["1", "4"] for own in scores[STUDENT]["bleu"].values())


@needs_exact_int8  # of the peer
def test_the_benchmark_measures_every_student(made: Path, corpora: Path, tmp_path: Path) -> None:
    lines = corpora / "newstest2014-en-de" / "test.en"
    command = [sys.executable, "-m", "benchmarks.students", str(made), "--input", str(lines), "--lines", "4"]
    done = subprocess.run(
        [*command, "--json", "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert [*result["students"]] == [STUDENT]
    assert [*result["ratios"]] == [f"{STUDENT}, beam 4", f"{STUDENT}, beam 1"]
    assert all(math.isfinite(ratio) for ratio in result["ratios"].values())
    for picture in ("size.svg", "speed.svg"):
        assert STUDENT in "".join(ElementTree.parse(tmp_path / picture).getroot().itertext())


def test_what_is_not_there_is_named(corpora: Path, tmp_path: Path) -> None:
    done = run(corpora, tmp_path, "--only", "256-4-2")
    assert done.returncode == 2
    assert done.stderr == "students: --only 256-4-2: no such student; did you mean 256-4-1?\n"
    done = run(corpora, tmp_path, "--direction", "en-fr")
    assert done.stderr == "students: --direction en-fr: unknown direction; use en-de or de-en\n"
