"""recipes/both_directions.py from end to end: what each step makes of the one before, and how it goes on."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman
from dragoman.bundle import BUNDLED_MODELS, load_bundle, load_config
from dragoman.text.words import KnownWords
from tests.english_german import PARTS, write_corpora

DIRECTIONS = {"en-de": ("en", "de"), "de-en": ("de", "en")}
RECIPE = Path(__file__).parents[2] / "recipes" / "both_directions.py"
EPOCHS_OF_EVERYDAY, EPOCHS_OF_EVERYDAY_BACK = 6, 3
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
    options = ("--steps", "6", *settings, *more)
    command = [sys.executable, str(RECIPE), "--data", str(corpora), "--out", str(out), *options]
    return subprocess.run(command, capture_output=True, text=True)


def test_both_directions_from_text_to_int8(corpora: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(corpora, out)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = [f"{direction}:{step}/4" for direction in DIRECTIONS for step in range(1, 5)]
    assert [*json.loads((out / "minutes.json").read_text())] == parts
    for direction, (source, target) in DIRECTIONS.items():
        data = load_config(out / "models" / direction).data
        pairs = [*zip(data.source, data.target, strict=True)]
        real = [pair for pair in pairs if pair[0].startswith("$")]
        assert len(real) == len(PARTS) - 1 + EPOCHS_OF_EVERYDAY
        assert all(one.endswith(f".{source}") and other.endswith(f".{target}") for one, other in real)
        back = [pair for pair in pairs if "/back-translated/" in pair[0]]
        assert len(back) == len(PARTS) - 1 + EPOCHS_OF_EVERYDAY_BACK
        for place, name in enumerate(PARTS):  # what people wrote is what is learned, and a model's text only read
            assert back[place][1].endswith(f"/back-translated/{direction}/source/{Path(back[place][0]).name}")
            written = (corpora / f"{name}.{target}").read_text()
            assert Path(back[place][1]).read_text() == written
            assert Path(back[place][0]).parent.name == "with-names"
            assert Path(back[place][0]).read_text() != written
        assert len(pairs) == len(real) + len(back) + len(PARTS), "and the hardened pairs"
        reverse = load_config(out / "reverse" / f"{target}-{source}")
        assert all(one.endswith(f".{target}") for one in reverse.data.source)
        assert reverse.train.max_steps == 1
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
    kept_text = out / "back-translated" / "de-en" / "translated" / "0-europarl.txt"
    translated = kept_text.stat().st_mtime_ns
    shutil.rmtree(out / "models" / "de-en")
    again = run(corpora, out)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "already finished" in (out / "en-de.log").read_text()
    assert (out / "models" / "en-de" / "weights.safetensors").read_bytes() == weights
    assert (out / "models" / "de-en" / "confidence.json").exists()
    assert kept.stat().st_mtime_ns == made
    assert kept_text.stat().st_mtime_ns == translated
    assert json.loads(other.read_text())["share"] == 0.12


@pytest.fixture(scope="module")
def given(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model for English to German that has learned nearly nothing."""
    place = tmp_path_factory.mktemp("given") / "model"
    names = {side: f'["{corpora / PARTS[0]}.{code}"]' for side, code in (("source", "en"), ("target", "de"))}
    pairs = [f"data.{kind}{side}={name}" for side, name in names.items() for kind in ("", "valid_")]
    settings = [word for setting in (*SETTINGS, *pairs, "train.max_steps=1") for word in ("--set", setting)]
    trained = subprocess.run(
        [sys.executable, "-m", "dragoman", "train", "--out", str(place), *settings], capture_output=True
    )
    assert trained.returncode == 0, trained.stderr
    return place


def test_a_given_model_translates_back(corpora: Path, given: Path, tmp_path: Path) -> None:
    done = run(corpora, tmp_path / "out", "--direction", "de-en", "--reverse", str(given))
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "out" / "reverse").exists()
    assert f"de-en:1/4 reverse model: {given}\n" in done.stdout
    manifest = json.loads((tmp_path / "out" / "back-translated" / "de-en" / "translated" / "manifest.json").read_text())
    assert manifest["complete"]
    assert manifest["made_from"]["split"] == "sentences", "of several sentences at once, models drop some"


def test_a_model_is_trained_further_on_its_own_translations(corpora: Path, given: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(corpora, out, "--direction", "en-de", "--teacher", "en-de", "--from", str(given))
    assert done.returncode == 0, done.stdout + done.stderr
    config = load_config(out / "models" / "en-de")
    assert config.train.start_from == str(given)
    assert load_config(out / "reverse" / "de-en").train.start_from == "", "it translates the other way"
    tokenizers = [(place / "tokenizer.model").read_bytes() for place in (out / "models" / "en-de", given)]
    assert tokenizers[0] == tokenizers[1]
    pairs = zip(config.data.source, config.data.target, strict=True)
    nearest = [pair for pair in pairs if "/nearest/en-de/" in pair[1]]
    names = [*PARTS, *PARTS[-1:] * (EPOCHS_OF_EVERYDAY_BACK - 1)]
    assert [source for source, _ in nearest] == [f"$DRAGOMAN_DATA/{name}.en" for name in names]
    teacher = dragoman.load("en-de", device="cpu")
    for name, (_, target) in zip(names[:2], nearest, strict=False):
        lines, wanted = (corpora / f"{name}.en").read_text().splitlines(), (corpora / f"{name}.de").read_text()
        found = teacher.translate(lines, beam=8, n_best=8, split="sentences", protect=[])
        chosen = Path(target).read_text().splitlines()
        kept = [(text, each) for text, each in zip(chosen, found, strict=True) if text]
        assert all(text in [other.text for other in each.alternatives] for text, each in kept)
        assert 2 * len(kept) > len(chosen), "few have lost a name"
        assert chosen not in (wanted.splitlines(), [each.text for each in found])


def test_translations_that_have_lost_a_name_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RECIPE.parent))
    recipe = importlib.import_module(RECIPE.stem)
    known = load_bundle(BUNDLED_MODELS / "en-de").known_words
    assert known is not None
    pairs = {
        "We met Snowden in Latakia.": "Wir trafen Snowden in Latakia.",
        "We met Snowden in the city.": "Wir trafen Schnee in der Stadt.",
        "We read Snowden's letter.": "Wir lasen Snowdens Brief.",
        "We met Mr Smith in London.": "Wir trafen Herrn Schmidt.",  # who is known
        "Snowden was there.": "Er war dort.",  # any word has a capital there
        "": "",
    }
    text, translation = tmp_path / "text", tmp_path / "translation"
    text.write_text("".join(f"{line}\n" for line in pairs))
    translation.write_text("".join(f"{line}\n" for line in pairs.values()))
    kept = recipe.keep_names(recipe.Pairs([str(text)], [str(translation)]), known, tmp_path)
    assert kept.source == [str(text)]
    lines = [*pairs.values()]
    assert Path(kept.target[0]).read_text().split("\n") == [lines[0], "", *lines[2:], ""]
    back = recipe.keep_names(
        recipe.Pairs([str(translation)], [str(text)]), KnownWords(known.target, known.source), tmp_path
    )
    assert Path(back.target[0]).read_text().split("\n") == [*pairs, ""], "by the words of the other language"


def test_a_model_that_is_trained_further_keeps_its_size(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RECIPE.parent))
    recipe = importlib.import_module(RECIPE.stem)
    kept = recipe.start_settings(str(given))
    config = load_config(given)
    assert kept[0] == f"train.start_from={given}"
    assert {"model.num_layers=1", "model.decoder_num_layers=1", f"text.max_length={config.text.max_length}"} < {*kept}
    assert f"text.training_lines={config.text.training_lines}" in kept
    assert "model.num_layers=8" in recipe.start_settings("en-de")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--reverse", "en-de"), 2, "--reverse en-de: translates one direction; add --direction"),
        (
            ("--direction", "de-en", "--reverse", "no"),
            4,
            "--reverse no: no such model; give another or leave it out",
        ),
        (
            ("--direction", "de-en", "--reverse", "de-en"),
            2,
            "--reverse de-en: translates de to en; give one for en-de",
        ),
        (("--teacher", "en-de"), 2, "--teacher en-de: translates one direction; add --direction"),
        (("--direction", "en-de", "--teacher", "de-en"), 2, "--teacher de-en: translates de to en; give one for en-de"),
        (("--direction", "en-fr"), 2, "--direction en-fr: unknown direction; use en-de or de-en"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused(
    corpora: Path, tmp_path: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    done = run(corpora, tmp_path / "out", *options)
    assert (done.returncode, done.stderr) == (code, f"both_directions: {message}\n")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run(tmp_path / "missing", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr == f"both_directions: --data {tmp_path}/missing: no such folder; it is where the corpora are\n"
