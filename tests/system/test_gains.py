"""recipes/gains.py from end to end: every row learns from what its name says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman
from dragoman.bundle import load_config
from tests.english_german import write_corpora

RECIPE = Path(__file__).parents[2] / "recipes" / "gains.py"
SETTINGS = (
    "model.num_layers=1", "model.decoder_num_layers=1", "model.d_model=32", "model.d_ff=64", "model.num_heads=2",
    "text.vocab_size=400", "train.batch_tokens=300", "train.valid_sentences=4", "decode.max_extra=1",
)  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpora(tmp_path_factory.mktemp("corpora"), lines=40, valid_lines=4)


def run(corpora: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    options = ("--steps", "6", "--jobs", "2", "--beam", "1", "--pairs", "30", *settings, *more)
    command = [sys.executable, str(RECIPE), "--data", str(corpora), "--out", str(out), *options]
    return subprocess.run(command, capture_output=True, text=True)


def test_rows_differ_in_what_they_learn_from(corpora: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(corpora, out)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((out / "gains.json").read_text())
    assert [*record] == [
        "real", "another-seed", "subword-sampling", "r-drop", "hardened", "distilled", "real-and-distilled",
        "real-and-nearest", "distilled-by-equal", "back-translated",
    ]  # fmt: skip
    assert all([*row["bleu"]] == ["europarl-en-de-valid", "tatoeba-en-de-valid"] for row in record.values())
    assert {row["steps"] for row in record.values()} == {6}
    configs = {name: load_config(out / name) for name in record}
    assert {name: config.train.seed for name, config in configs.items() if config.train.seed != 1} == {
        "another-seed": 2
    }
    assert [name for name, config in configs.items() if config.train.r_drop] == ["r-drop"]
    assert [name for name, config in configs.items() if config.text.sampling] == ["subword-sampling"]

    everyday = [(corpora / "tatoeba-en-de" / f"train.{code}").read_text().splitlines() for code in ("en", "de")]
    text = [(out / "text" / side).read_text().splitlines() for side in ("source", "target")]
    assert list(map(len, text)) == [30, 30]
    read = {
        name: [
            [
                line
                for path in side
                for line in Path(path.replace("$DRAGOMAN_DATA", str(corpora))).read_text().splitlines()
            ]
            for side in (config.data.source, config.data.target)
        ]
        for name, config in configs.items()
    }
    real = [own + other for own, other in zip(text, everyday, strict=True)]
    teacher, equal, reverse = (dragoman.load(str(model), "cpu") for model in ("en-de", out / "real", out / "reverse"))

    def translated(translator: dragoman.Translator, lines: list[str]) -> list[str]:
        return [each.text for each in translator.translate(lines, beam=1, split="sentences", protect=[])]

    for name in ("real", "another-seed", "subword-sampling", "r-drop"):
        assert read[name] == real
    assert [side[:70] for side in read["hardened"]] == real
    assert len(read["hardened"][0]) > 70
    assert read["distilled"] == [real[0], translated(teacher, real[0])]
    assert read["real-and-distilled"] == [a + b for a, b in zip(real, read["distilled"], strict=True)]
    source, target = read["real-and-nearest"]
    assert (source, target[:70], len(target)) == (real[0] * 2, real[1], 140)
    assert target[70:] == read["distilled"][1], "of one hypothesis"
    assert read["distilled-by-equal"] == [real[0], translated(equal, real[0])]
    back = [translated(reverse, real[1]), real[1]]
    assert read["back-translated"] == [a + b for a, b in zip(real, back, strict=True)]

    again = run(corpora, out, "--only", "r-drop")
    assert again.returncode == 0, again.stderr
    assert json.loads((out / "gains.json").read_text()) == record, "nothing is trained again, and no row is lost"


def test_rows_that_are_done_are_recorded_though_another_fails(corpora: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "r-drop").mkdir(parents=True)
    (out / "r-drop" / "config.toml").write_text("not a configuration")
    done = run(corpora, out, "--only", "real", "--only", "r-drop", "--direction", "de-en")
    assert done.returncode != 0
    assert "not trained: r-drop; more in" in done.stderr
    record = json.loads((out / "gains.json").read_text())
    assert [*record] == ["real"]
    assert [*record["real"]["chrf"]] == [*record["real"]["bleu"]] == ["europarl-en-de-valid", "tatoeba-en-de-valid"]


def test_what_is_not_there_is_named(corpora: Path, tmp_path: Path) -> None:
    done = run(corpora, tmp_path, "--only", "rdrop")
    assert done.returncode == 2
    assert done.stderr == "gains: --only rdrop: no such row; did you mean r-drop?\n"
    done = run(corpora, tmp_path, "--teacher", "nobody")
    assert done.stderr == (
        "gains: --teacher nobody: no such model; give one that translates en-de, or rows that need none (--only)\n"
    )
    done = run(corpora, tmp_path, "--direction", "en-fr")
    assert done.stderr == "gains: --direction en-fr: unknown direction; use en-de or de-en\n"
