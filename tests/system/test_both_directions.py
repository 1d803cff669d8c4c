"""recipes/both_directions.py from end to end: what each step makes of the one before, and how it goes on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman
from dragoman.bundle import load_config
from dragoman.data import generated

RECIPE = Path(__file__).parents[2] / "recipes" / "both_directions.py"
PARTS = ("europarl-en-de/train.1of4", "europarl-en-de/train.2of4", "europarl-en-de/train.3of4",
         "europarl-en-de/train.4of4", "tatoeba-en-de/train")  # fmt: skip
OTHERS = ("europarl-en-de/valid", "europarl-en-de/test", "tatoeba-en-de/test", "newstest2014-en-de/test")
LINES = 40
SETTINGS = (
    "model.num_layers=1", "model.decoder_num_layers=1", "model.d_model=32", "model.d_ff=64", "model.num_heads=2",
    "text.vocab_size=500", "train.batch_tokens=500", "train.valid_sentences=4", "decode.max_extra=1",
)  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora")
    pairs = iter(generated.generate("numbers-de", 1_000).train)
    for name in (*PARTS, *OTHERS):
        own = [next(pairs) for _ in range(LINES if name in PARTS else 4)]
        (folder / name).parent.mkdir(exist_ok=True)
        for language, lines in zip(("en", "de"), zip(*own, strict=True), strict=True):
            (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines))
    return folder


def run(corpora: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    steps = ("--first-steps", "8", "--second-steps", "4", "--jobs", "1")
    command = [sys.executable, str(RECIPE), "--data", str(corpora), "--out", str(out), *steps, *settings, *more]
    return subprocess.run(command, capture_output=True, text=True)


def test_both_directions_from_text_to_int8(corpora: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(corpora, out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [*json.loads((out / "minutes.json").read_text())] == ["1/5", "2/5", "3/5", "4/5", "5/5"]
    for language in ("en", "de"):
        for number, name in enumerate(PARTS):
            text = out / "text" / language / f"{number}.txt"
            assert text.read_text() == (corpora / f"{name}.{language}").read_text()
            assert len((out / "translated" / language / f"{number}.txt").read_text().splitlines()) == LINES
    both = load_config(out / "both").data
    assert sorted(both.source) != sorted(both.target)
    assert sum(name.endswith(".en") for name in both.source) == sum(name.endswith(".de") for name in both.source) == 6
    for direction, (source, target) in {"en-de": ("en", "de"), "de-en": ("de", "en")}.items():
        data = load_config(out / "models" / direction).data
        assert len(data.source) == len(data.target) == 6 + 3 * len(PARTS)
        assert str(out / "translated" / target / "0.txt") in data.source, "back-translation"
        assert str(out / "translated" / source / "0.txt") in data.target, "distillation"
        translator = dragoman.load(out / "models" / direction, device="cpu")
        assert translator.languages == (source, target)
        assert translator.translate("1").status in ("translated", "truncated")
    tested = json.loads((out / "en-de" / "result.json").read_text())["tests"]
    assert [*tested] == ["europarl-en-de-test", "tatoeba-en-de-test", "newstest2014-en-de-test"]

    weights = (out / "models" / "en-de" / "weights.safetensors").read_bytes()
    (out / "models" / "de-en" / "config.toml").unlink()  # as if it had been stopped there
    again = run(corpora, out)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "already finished" in (out / "both.log").read_text()
    assert (out / "models" / "en-de" / "weights.safetensors").read_bytes() == weights
    assert (out / "models" / "de-en" / "config.toml").exists()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run(tmp_path / "missing", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr == f"both_directions: --data {tmp_path}/missing: no such folder; it is where the corpora are\n"
