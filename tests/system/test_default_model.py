"""Commands that need a model take `en-de` unless another is given: here, a small one of that name."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.forked import shared_server


@pytest.fixture
def place(tmp_path: Path, quick_run: Path) -> Path:
    (tmp_path / "en-de").symlink_to(quick_run)
    (tmp_path / "source").write_bytes(b"a b\nc d e\n")
    (tmp_path / "target").write_bytes(b"b a\ne d c\n")
    return tmp_path


def run(place: Path, command: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = shared_server().run(command.split(), cwd=place)
    assert done.returncode == code, done.stderr
    return done


def test_score_defaults_to_en_de(place: Path) -> None:
    assert run(place, "score source target").stdout == run(place, "score source target --model en-de").stdout


def test_evaluate_defaults_to_en_de(place: Path) -> None:
    record = json.loads(run(place, "evaluate --source source --reference target --json").stdout)
    assert record["made_by"]["model"] == "en-de"
    assert "made_by" not in json.loads(run(place, "evaluate --hypotheses target --reference target --json").stdout)


def test_compress_defaults_to_en_de(place: Path) -> None:
    assert run(place, "compress --out small").stdout.startswith("small: weights in int8, ")
    assert (place / "small" / "weights.safetensors").stat().st_size < (
        place / "en-de" / "weights.safetensors"
    ).stat().st_size


def test_n_best_works_on_lines_of_several_sentences(place: Path) -> None:
    (place / "source").write_bytes(b"a b c! D e? F g\n\nh i\n")
    lines = run(place, "translate --input source --split sentences --beam 3 --n-best 3").stdout.split("\n")
    assert [line.count("\t") for line in lines] == [2, 0, 2, 0]
