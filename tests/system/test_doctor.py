"""dragoman doctor and config, and what the shell completes."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dragoman.cli import doctor
from dragoman.cli.app import app
from dragoman.config import PRESETS, Config
from dragoman.settings import annotated_toml, every_setting

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


# doctor


def test_doctor_says_what_is_used_for_what() -> None:
    lines = invoke("doctor").splitlines()
    assert lines[0].startswith("dragoman ")
    used = lines[lines.index("used for") + 1 : lines.index("installed") - 1]
    assert [line.split("  ")[1] for line in used] == [
        "translating with de-en", "translating with en-de", "translating with a model you trained",
        "sampling, scores and attention", "training",
    ]  # fmt: skip
    record = json.loads(invoke("doctor", "--json"))
    info = json.loads(invoke("info", "--json"))["engine"]
    assert {**record["uses"]["translating with en-de"], **info} == record["uses"]["translating with en-de"]
    assert all(record["packages"].values())


def test_doctor_knows_every_dependency_and_extra() -> None:
    names = {requirement.partition(">")[0] for requirement in PROJECT["dependencies"]}
    assert set(doctor.REQUIRED) == names
    extras = {
        name: parts[0].partition(">")[0].partition("[")[0] for name, parts in PROJECT["optional-dependencies"].items()
    }
    del extras["dev"]
    assert {name: extra.package for name, extra in doctor.EXTRAS.items()} == extras


def test_doctor_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "transformers" else version(name))
    assert 'exports to Hugging Face: not installed: pip install "dragoman[huggingface]"' in invoke("doctor")
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "numba" else version(name))
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert result.output == "doctor: numba not installed; run pip install dragoman again\n"


# config


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_config_is_the_preset_with_every_meaning(preset: str) -> None:
    text = invoke("config", "--preset", preset, "--set", "model.norm=pre")
    built = Config.build(preset, None, ["model.norm=pre"])
    assert Config.from_toml(text.encode(), Path("printed")) == built
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line and not line.startswith(("[", "#")):
            assert lines[number - 1].startswith("# "), f"{line}: no meaning"
    assert '# layer norm after each sub-layer, as in the paper, or before: post, pre (default: "post")' in lines
    assert 'norm = "pre"' in lines
    assert "# decoder_num_layers is not set" in lines
    assert text == annotated_toml(built)


@pytest.mark.slow
def test_config_can_be_trained(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    told = invoke("config", "--preset", "tiny", "--out", str(file), "--set", "data.generated=numbers-de")
    assert told == f"{file}: edit it, then `dragoman train {file} --out runs/my-model`\n"
    small = ["data.generated_size=100", "text.vocab_size=400", "train.max_steps=2", "train.batch_tokens=400"]
    settings = [word for setting in small for word in ("--set", setting)]
    assert "numbers-de" in file.read_text()
    invoke("train", str(file), "--out", str(tmp_path / "run"), *settings)


# The shell


def completed(*words: str) -> list[str]:
    """What bash is offered for the last word."""
    environment = {
        **os.environ, "_DRAGOMAN_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(["dragoman", *words]),
        "COMP_CWORD": str(len(words)),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "dragoman"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.slow
def test_the_shell_completes_models_and_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert completed("translate", "--model", "en") == ["en-de"]
    assert completed("translate", "--model", "ru") == ["runs"]
    assert completed("translate", "--model", "runs/f") == ["runs/first"]
    assert completed("info", "--set", "model.nor") == ["model.norm="]
    assert completed("info", "--set", "model.norm=p") == ["model.norm=post", "model.norm=pre"]
    assert completed("train", "--set", "decode.samp") == ["decode.sampling="]
    assert completed("train", "--set", "decode.sampling=t") == ["decode.sampling=true"]
    assert completed("train", "--set", "nothing") == []


def test_what_the_shell_is_offered_can_be_set() -> None:
    settings = every_setting()
    assert settings["text.normalization"][0] == "nfc"
    for name in ("text.joint", "text.normalization", "decode.split", "model.positions", "data.on_bad_line"):
        section, _, key = name.partition(".")
        for choice in settings[name]:
            model = "model.architecture=decoder" if choice == "none" else "model.share_source_target=false"
            built = Config.build("tiny", None, [f"{name}={choice}", model])
            value = getattr(getattr(built, section), key)
            assert value == {"true": True, "false": False}.get(choice, choice)
