"""The API as a user of the package sees it: types, keyword arguments, help and reprs."""

import importlib.resources
import inspect
import os
import subprocess
import sys
import typing
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import pytest

import dragoman
from dragoman import DecodeOptions, Translator
from dragoman.bundle import languages_of
from dragoman.config import DecodeConfig
from dragoman.decode.translation import Translation

USER = """\
from pathlib import Path
import dragoman

translator = dragoman.load(Path("runs/en-de"), device="cpu")
reveal_type(translator)
reveal_type(translator.translate("A man.", beam=2, attention=True))
reveal_type(translator.translate(["A man.", "A horse."], n_best=2).pop().alternatives)
reveal_type(translator.score("A man.", "Ein Mann."))
reveal_type(translator.score(["A man."], ["Ein Mann."]))
translator.translate("A man.", beem=2)
translator.translate("A man.", beam="2")
translator.translate("A man.", split="words")
dragoman.load(3)
dragoman.translte
"""
REVEALED = [
    "dragoman.decode.translator.Translator",
    "dragoman.decode.translation.Translation",
    "tuple[dragoman.decode.translation.Alternative, ...]",
    "float",
    "list[float]",
]


@pytest.fixture(scope="module")
def translator(quick_run: Path) -> Translator:
    return dragoman.load(quick_run, device="cpu")


def test_package_has_py_typed_marker() -> None:
    assert importlib.resources.files("dragoman").joinpath("py.typed").is_file()


@pytest.mark.slow
def test_a_type_checker_sees_the_types_of_the_installed_package(tmp_path: Path) -> None:
    script = tmp_path / "user.py"
    script.write_text(USER)
    package = str(Path(dragoman.__file__).parents[1])  # on the path: as installed, not as sources of the user
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), script.name]
    environment = {**os.environ, "PYTHONPATH": package}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    told = [line for line in done.stdout.splitlines() if "note: Revealed type" in line or ": error: " in line]
    revealed = [line.split('"')[1].replace("builtins.", "") for line in told[: len(REVEALED)]]
    assert revealed == REVEALED, done.stdout
    errors = [line for line in told if ": error: " in line]
    assert {line.split(":")[1] for line in errors} == {"10", "11", "12", "13", "14"}, "one error in each and no other"


def test_decode_options_match_decode_config() -> None:
    """Same names, same types, same order; only a list of words need not be a tuple."""
    settings, options = typing.get_type_hints(DecodeConfig), typing.get_type_hints(DecodeOptions)
    for name in ("banned", "protect", "alignment_heads"):
        assert settings[name] == tuple[str, ...]
        settings[name] = Sequence[str]
    assert list(options.items()) == [(field.name, settings[field.name]) for field in fields(DecodeConfig)]
    assert DecodeOptions.__optional_keys__ == settings.keys(), "each is optional"


def test_help_lists_every_option() -> None:
    lines = (inspect.getdoc(Translator.translate) or "").splitlines()
    listed = [line.split(":")[0] for line in lines[lines.index("") :] if ": " in line]
    assert listed == ["prefix", "glossary", "attention", *(field.name for field in fields(DecodeConfig))]


def test_translator_repr_names_model_device_and_precision(translator: Translator, quick_run: Path) -> None:
    parameters = sum(parameter.numel() for parameter in translator.engine.model.parameters())
    assert repr(translator) == f"Translator({str(quick_run)!r}, cpu, float32, {parameters:,} parameters)"
    bundled = dragoman.load("en-de", device="cpu", precision="bfloat16")
    assert repr(bundled).startswith("Translator('en-de', en to de, cpu, bfloat16, ")


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (("a/train.en.gz", "b/train.1of4.en.bz2"), ("a/train.de.gz", "b/train.1of4.de.bz2"), ("en", "de")),
        (("train.source",), ("train.target",), ("", "")),
        (("one.en", "two.fr"), ("one.de", "two.de"), ("", "")),
        (("both.tsv",), ("both.tsv",), ("", "")),
        ((), (), ("", "")),
    ],
)
def test_languages_are_inferred_from_file_names(
    source: tuple[str, ...], target: tuple[str, ...], expected: tuple[str, str]
) -> None:
    assert languages_of(dragoman.Config.build(data={"source": source, "target": target}).data) == expected


def test_translation_repr_shows_texts_and_shapes_not_arrays(translator: Translator) -> None:
    plain = translator.translate("a b", beam=2)
    assert repr(plain) == f"Translation('a b' -> {plain.text!r}, translated, score={plain.score:.4g})"
    full = translator.translate("a b", beam=2, n_best=2, attention=True)
    sources, targets = len(full.source_tokens), len(full.tokens)
    encoder, decoder = f"(1, 4, {sources}, {sources})", f"(1, 4, {targets}, {targets})"
    shapes = f"encoder={encoder}, decoder={decoder}, cross=(1, 4, {targets}, {sources})"
    assert repr(full) == f"{repr(plain)[:-1]}, 2 alternatives, attention=Attention({shapes}))"
    failed = Translation("a", "", "failed", reason="out of memory at 8 tokens")
    assert repr(failed) == "Translation('a' -> '', failed, score=0, reason='out of memory at 8 tokens')"


def test_score_of_strings_is_a_float_and_of_lists_a_list(translator: Translator) -> None:
    one = translator.score("a b", "b a")
    assert isinstance(one, float)
    assert translator.score(["a b"], ["b a"]) == [one]
    with pytest.raises(dragoman.ConfigError, match=r"^sources: is str; give a list of strings$"):
        translator.score("a b", ["b a"])


def test_a_model_may_be_given_as_a_path_or_a_string(quick_run: Path) -> None:
    for model in (quick_run, str(quick_run)):
        assert dragoman.load(model, device="cpu").translate("a").status == "translated"
