"""The bundled models: they translate from a checkout and from the built wheel, and their size is limited."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman
from dragoman.bundle import BUNDLED_MODELS, bundled_models
from dragoman.cli import demo
from dragoman.cli.app import app
from dragoman.cli.train import build_config
from dragoman.errors import ConfigError
from dragoman.text.sentences import sentences
from dragoman.training.loop import train
from tests.forked import shared_server
from tests.hostile import digest

ROOT = Path(__file__).parents[2]
MOST_BYTES_OF_WHEEL, MOST_BYTES_OF_MODEL = 80_000_000, 40_000_000


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return shared_server().run(words)


def test_a_model_for_each_direction_is_bundled_and_its_size_is_limited() -> None:
    assert bundled_models() == ["de-en", "en-de"]
    for name in bundled_models():
        size = sum(path.stat().st_size for path in (BUNDLED_MODELS / name).iterdir())
        assert size <= MOST_BYTES_OF_MODEL


@pytest.mark.parametrize("name", bundled_models())
def test_manifest_has_hashes_of_weights_tokenizer_and_what_was_added(name: str) -> None:
    model = BUNDLED_MODELS / name
    manifest = json.loads((model / "manifest.json").read_bytes())
    named = ("tokenizer.model", "weights.safetensors", "confidence.json", "source.words.xz", "target.words.xz")
    assert manifest == {name: [digest(model / name)] for name in named}


@pytest.mark.parametrize("name", bundled_models())
def test_what_a_bundled_model_says_of_itself_names_no_place_on_a_machine(name: str) -> None:
    texts = [(BUNDLED_MODELS / name / file).read_text() for file in ("config.toml", "card.md")]
    assert not [text for text in texts if "/tmp" in text or "/root" in text or "/home" in text]


def test_bundled_model_loads_by_name_and_translates() -> None:
    translator = dragoman.load("en-de", device="cpu")
    assert translator.translate("Good morning!").text == "Guten Morgen!"
    assert [each.text for each in translator.translate(["Thank you very much.", ""])] == ["Vielen Dank.", ""]
    back = dragoman.load("de-en", device="cpu")
    assert back.languages == ("de", "en")
    assert [each.text for each in back.translate(["Vielen Dank.", ""])] == ["Thank you very much.", ""]


def test_every_sentence_of_a_line_is_translated() -> None:
    text = (
        "Good morning! Where is the nearest train station? I would like a cup of coffee, please. Thank you very much."
    )
    translator = dragoman.load("en-de", device="cpu")
    alone = [each.text for each in translator.translate(sentences(text))]
    assert len(alone) == 4
    assert translator.translate(text).text == "".join(alone), "the spaces after sentences are theirs"
    assert alone[-1] not in translator.translate(text, split="long").text, "the control"


def test_translate_and_inspect_default_to_the_bundled_model() -> None:
    done = run("translate", "Good morning!")
    assert (done.returncode, done.stdout) == (0, "Guten Morgen!\n")
    assert "Guten" in run("inspect", "Good morning!").stdout
    assert "The red house is very old." in run("inspect", "Das rote Haus ist sehr alt.").stdout


def test_demo_translates_and_mentions_the_training_demo() -> None:
    done = run("demo")
    assert done.returncode == 0, done.stderr
    assert "  Where is the nearest train station?\n  Wo ist der nächste Bahnhof?\n" in done.stdout
    assert "dragoman demo --train" in done.stdout


@pytest.mark.slow
def test_training_demo_trains_translates_and_saves_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ("train.max_steps=4", "train.save_every=4", "train.warmup_steps=2", "data.generated_size=300")
    monkeypatch.setattr(demo, "SETTINGS", (*demo.SETTINGS, *short))
    app(["demo", "--train", "--language", "de", "--out", str(tmp_path / "kept")], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "generated pairs: numbers-de." in shown
    assert "Exactly right: " in shown
    assert f"The model is in {tmp_path / 'kept'}." in shown
    assert (tmp_path / "kept" / "weights.safetensors").exists()
    with pytest.raises(ConfigError, match=r"^--out: belongs to the training demo; add --train$"):
        app(["demo", "--out", str(tmp_path / "kept")], standalone_mode=False)


@pytest.mark.slow
def test_bundled_model_can_be_fine_tuned(tmp_path: Path) -> None:
    (tmp_path / "source").write_text("Good morning!\nThank you very much.\n")
    (tmp_path / "target").write_text("Moin!\nDanke auch.\n")
    sides = {"source": [str(tmp_path / "source")], "target": [str(tmp_path / "target")]}
    data = {**sides, **{f"valid_{side}": files for side, files in sides.items()}}
    settings = ["train.max_steps=12", "train.save_every=12", "train.learning_rate=1e-4", "train.warmup_steps=1"]
    train(build_config(None, tmp_path / "run", None, data, settings, "en-de"), tmp_path / "run")
    tuned = dragoman.load(str(tmp_path / "run"), device="cpu")
    assert tuned.translate("Good morning!").text == "Moin!"
    assert tuned.translate("Where is the nearest train station?").text == "Wo ist der nächste Bahnhof?"


@pytest.mark.slow
def test_built_wheel_contains_the_bundled_models(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--no-input"]
    subprocess.run([*pip, "wheel", str(ROOT), "--no-deps", "-w", str(tmp_path)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size <= MOST_BYTES_OF_WHEEL
    site = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    code = (
        "import dragoman, json; models = [dragoman.load(name) for name in ('en-de', 'de-en')];"
        "texts = [model.translate(text).text for model, text in zip(models, ('Good morning!', 'Vielen Dank.'))];"
        "print(json.dumps([dragoman.__file__, *texts]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    place, *texts = json.loads(done.stdout)
    assert place.startswith(str(site))
    assert (Path(place).parent / "models" / "en-de" / "manifest.json").exists()
    assert texts == ["Guten Morgen!", "Thank you very much."]


def test_bundled_model_aligns_words_with_heads_of_its_own() -> None:
    """Words in another order, and a verb in two parts. Control: the layer where heads agree misses what is far away."""
    sources = ["The red house is very old.", "Yesterday I bought three books.", "He gets up at seven o'clock."]
    targets = ["Das rote Haus ist sehr alt.", "Gestern habe ich drei Bücher gekauft.", "Er steht um sieben Uhr auf."]
    translator = dragoman.load("en-de", device="cpu")
    assert translator.config.decode.alignment_heads
    same, bought, up = translator.align(sources, targets)
    assert same == [(word, word) for word in range(6)]
    assert {(1, 2), (2, 5), (3, 3), (4, 4)} <= {*bought}
    assert {(1, 1), (2, 5), (3, 2), (4, 3), (5, 4)} <= {*up}
    _, *without = translator.align(sources, targets, heads=[])
    assert all((2, 5) not in links for links in without)
    back = dragoman.load("de-en", device="cpu").align(targets, sources)
    assert back[0] == [(word, word) for word in range(6)]
    assert {(2, 1), (5, 2), (3, 3), (4, 4)} <= {*back[1]}
