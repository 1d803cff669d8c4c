"""recipes/both_directions.py from end to end: what each step makes of the one before, and how it goes on."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman
from dragoman.bundle import load_bundle, load_config
from tests.english_german import PARTS, write_corpora

RECIPE = Path(__file__).parents[2] / "recipes" / "both_directions.py"
EPOCHS_OF_EVERYDAY = 6
SETTINGS = (
    "model.num_layers=1", "model.decoder_num_layers=1", "model.d_model=32", "model.d_ff=64", "model.num_heads=2",
    "text.vocab_size=500", "train.batch_tokens=500", "train.valid_sentences=4", "decode.max_extra=1",
)  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpora(tmp_path_factory.mktemp("corpora"), lines=40, valid_lines=100)


def run(corpora: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    options = ("--steps", "6", "--jobs", "1", *settings, *more)
    command = [sys.executable, str(RECIPE), "--data", str(corpora), "--out", str(out), *options]
    return subprocess.run(command, capture_output=True, text=True)


def test_both_directions_from_text_to_int8(corpora: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(corpora, out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [*json.loads((out / "minutes.json").read_text())] == ["1/3", "2/3", "3/3"]
    for direction, (source, target) in {"en-de": ("en", "de"), "de-en": ("de", "en")}.items():
        data = load_config(out / "models" / direction).data
        real = [(one, other) for one, other in zip(data.source, data.target, strict=True) if one.startswith("$")]
        assert len(real) == len(PARTS) - 1 + EPOCHS_OF_EVERYDAY
        assert all(one.endswith(f".{source}") and other.endswith(f".{target}") for one, other in real)
        assert len(data.source) == len(real) + len(PARTS), "and the hardened pairs"
        loaded = load_bundle(out / "models" / direction)
        assert loaded.int8
        assert loaded.known_words is not None
        assert loaded.calibration is not None
        translator = dragoman.load(out / "models" / direction, device="cpu")
        assert translator.languages == (source, target)
        assert translator.translate("1").status in ("translated", "truncated")
    tested = json.loads((out / "en-de" / "result.json").read_text())["tests"]
    assert [*tested] == ["europarl-en-de-test", "tatoeba-en-de-test", "newstest2014-en-de-test"]

    weights = (out / "models" / "en-de" / "weights.safetensors").read_bytes()
    kept, other = (out / "hardened" / each / "4-everyday" / "rules.json" for each in ("de-en", "en-de"))
    made = kept.stat().st_mtime_ns
    other.write_text(other.read_text().replace('"share": 0.12', '"share": 0.2'))  # as if another command had made it
    shutil.rmtree(out / "models" / "de-en")
    again = run(corpora, out)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "already finished" in (out / "en-de.log").read_text()
    assert (out / "models" / "en-de" / "weights.safetensors").read_bytes() == weights
    assert (out / "models" / "de-en" / "confidence.json").exists()
    assert kept.stat().st_mtime_ns == made
    assert json.loads(other.read_text())["share"] == 0.12


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run(tmp_path / "missing", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr == f"both_directions: --data {tmp_path}/missing: no such folder; it is where the corpora are\n"
