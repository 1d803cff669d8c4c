"""Settings: presets, TOML, suggestions, constraints."""

import json
import math
import os
import types
import typing
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.config import (
    PRESETS,
    Config,
    DataConfig,
    DecodeConfig,
    RecurrentConfig,
    TextConfig,
    TrainConfig,
    TransformerConfig,
)
from dragoman.errors import ConfigError
from dragoman.training.optimizer import learning_rate

MISTAKES = [
    ("train.max_step=5", "train.max_step: unknown key; did you mean max_steps?"),
    ("trian.max_steps=5", "trian: unknown section; did you mean train?"),
    ("train.max_steps=many", "train.max_steps: 'many' is not a whole number"),
    ("train.max_steps=1.5", "train.max_steps: 1.5 is not a whole number"),
    ("train.max_steps=0", "train.max_steps: 0 is out of range; use 1 to 1000000000000"),
    ("train.deterministic=1", "train.deterministic: 1 is not true or false"),
    ("text.model=bep", "text.model: 'bep' is not a choice; did you mean bpe?"),
    ("model.norm=5", "model.norm: 5 is not a choice; known: post, pre"),
    ("model.num_heads=6", "model.num_heads: num_heads=6 must divide d_model=512; try 4 or 8, or set d_k and d_v"),
    ("model.num_layers=1000000000", "model.num_layers: 1000000000 is out of range; use 1 to 1000"),
    ("model.dropout=1", "model.dropout: 1.0 is out of range; use 0.0 to 0.999"),
    ("decode.n_best=9", "decode.n_best: 9 is more than beam=4; widen the beam or ask for fewer"),
    (
        "decode.top_k=5",
        "decode.sampling: top_k, top_p and temperature do not apply to beam search; set sampling = true",
    ),
    (
        "text.joint=false",
        "text.joint: two vocabularies cannot share one embedding; set model.share_source_target = false",
    ),
    ("max_steps=5", "--set max_steps=5: write section.key=value, as train.max_steps=500"),
    ("train.max_steps", "--set train.max_steps: write section.key=value, as train.max_steps=500"),
    (
        "model.decoder_d_model=256",
        "model.share_source_target: one embedding cannot have widths 512 and 256; "
        "make d_model and decoder_d_model equal or set share_source_target = false",
    ),
]


@pytest.mark.parametrize(("setting", "message"), MISTAKES, ids=[setting for setting, _ in MISTAKES])
def test_a_mistake_is_named_with_its_remedy(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.build("base", None, [setting])
    assert str(caught.value) == message
    assert caught.value.exit_code == 2
    assert isinstance(caught.value, ValueError)


# One check, whichever way a value comes in

SECTIONS: list[tuple[str, Any]] = [
    ("data", DataConfig),
    ("text", TextConfig),
    ("model", TransformerConfig),
    ("model", RecurrentConfig),
    ("train", TrainConfig),
    ("decode", DecodeConfig),
]
FAULTS: list[tuple[str, Any, str]] = [
    ("model.positions", "sinusodial", "'sinusodial' is not a choice; did you mean sinusoidal?"),
    ("model.norm", "Pre", "'Pre' is not a choice; did you mean pre?"),
    ("model.d_model", "wide", "'wide' is not a whole number"),
    ("model.dropout", 10**400, "inf is out of range; use 0.0 to 0.999"),
    ("model.decoder_num_layers", 0, "0 is out of range; use 1 to 1000"),
    ("text.normalization", "NFC", "'NFC' is not a choice; did you mean nfc?"),
    ("data.source", 7, "7 is not a string or a list of strings"),
    ("data.source", ["a", 7], "['a', 7] is not a string or a list of strings"),
    ("data.on_bad_line", "skp", "'skp' is not a choice; did you mean skip?"),
    ("train.learning_rate", "fast", "'fast' is not a number"),
    ("train.clip_norm", math.inf, "inf is out of range; use 0 to 4611686018427387904"),
    ("train.deterministic", 1, "1 is not true or false"),
    ("train.trackers", ["tensorbord"], "'tensorbord' is not a choice; did you mean tensorboard?"),
    ("train.device", "gpu", "'gpu' is not a device; did you mean cuda?"),
    ("decode.length_penalty_form", "gmnt", "'gmnt' is not a choice; did you mean gnmt?"),
    ("decode.split", "sentance", "'sentance' is not a choice; did you mean sentences?"),
    ("decode.beam", 2.5, "2.5 is not a whole number"),
    ("decode.beam", True, "True is not a whole number"),
    ("decode.top_p", math.nan, "nan is out of range; use 0.001 to 1.0"),
]


def toml(value: Any) -> str:
    return str(value) if isinstance(value, float) else json.dumps(value)


def message_of(make: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make(*arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize(("name", "value", "fault"), FAULTS, ids=[f"{name}={value}"[:40] for name, value, _ in FAULTS])
def test_wrong_value_gives_the_same_error_from_any_source(name: str, value: Any, fault: str, tmp_path: Path) -> None:
    section, _, key = name.partition(".")
    kind = next(kind for each, kind in SECTIONS if each == section)
    file = tmp_path / "run.toml"
    file.write_text(f"[{section}]\n{key} = {toml(value)}\n")
    message = f"{name}: {fault}"
    assert message_of(kind, **{key: value}) == message
    assert message_of(replace, kind(), **{key: value}) == message
    assert message_of(Config.build, **{section: {key: value}}) == message
    assert message_of(Config.build, settings=[f"{name}={toml(value)}"]) == message
    assert message_of(Config.build, file=file) == f"{file}: {message}"


def values_of_other_types(hint: Any) -> list[Any]:
    """Values of every other type; for numbers also NaN and infinity."""
    if isinstance(hint, types.UnionType):
        return values_of_other_types(hint.__args__[0])
    if typing.get_origin(hint) is Literal:
        return ["no such choice", 1, True]
    if typing.get_origin(hint) is tuple:
        return [1, [1], True]
    others: dict[Any, list[Any]] = {
        int: [True, 1.5, "1"],
        float: [True, "1", math.nan, math.inf, -math.inf],
        bool: [1, "true"],
        str: [1, True, ["a"], "\udcff"],
    }
    return others[hint]


@pytest.mark.parametrize(("section", "kind"), SECTIONS, ids=[kind.__name__ for _, kind in SECTIONS])
def test_every_field_refuses_values_of_other_types(section: str, kind: Any) -> None:
    for name, hint in typing.get_type_hints(kind).items():
        for value in values_of_other_types(hint):
            assert message_of(kind, **{name: value}).startswith(f"{section}.{name}: "), (name, value)
        kind(**{name: getattr(kind(), name)})  # the control


def test_values_are_converted_to_the_type_of_their_field() -> None:
    made = TrainConfig(clip_norm=0, max_steps=np.int64(7), ema=np.float64(0.5), trackers=[])  # type: ignore[arg-type]
    assert [type(value) for value in (made.clip_norm, made.max_steps, made.ema, made.trackers)] == [
        float, int, float, tuple,
    ]  # fmt: skip
    data = DataConfig(source="a", target=["b", "c"])  # type: ignore[arg-type]
    assert (data.source, data.target) == (("a",), ("b", "c"))
    assert "max_steps = 7\n" in Config(train=made).to_toml()


def test_section_of_wrong_type_is_refused() -> None:
    assert message_of(Config, train={"max_steps": 5}) == "train: {'max_steps': 5} is not a TrainConfig"
    assert message_of(Config, model="base") == (
        "model: 'base' is not one of TransformerConfig, DecoderConfig, EncoderConfig, RecurrentConfig"
    )


@pytest.mark.parametrize("kind", [TransformerConfig, RecurrentConfig])
def test_zero_sizes_are_refused(kind: type[TransformerConfig] | type[RecurrentConfig]) -> None:
    sizes = [
        name
        for name, hint in typing.get_type_hints(kind).items()
        if hint is int or (isinstance(hint, types.UnionType) and int in hint.__args__)
    ]
    assert {"vocab_size", "target_vocab_size", "num_layers", "d_model"} <= set(sizes)
    for name in sizes:
        assert message_of(kind, **{name: 0}).startswith(f"model.{name}: 0 is out of range; use 1 to "), name


# The sizes of the vocabulary

REFUSED = "follows from the tokenizer; leave it out and set text.vocab_size"


@pytest.mark.parametrize("name", ["vocab_size", "target_vocab_size"])
def test_vocabulary_size_is_not_a_model_setting(name: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f"[model]\n{name} = 500\nshare_source_target = false\n")
    message = f"model.{name}: {REFUSED}"
    assert message_of(Config.build, None, file) == f"{file}: {message}"
    assert message_of(Config.build, None, None, [f"model.{name}=500"]) == message
    assert message_of(Config.build, model={name: 500}) == message
    assert getattr(Config.build(None, file, saved=True).model, name) == 500, "a model directory contains it"
    assert message_of(Config.build, None, file, [f"model.{name}=500"], saved=True) == message


# Files are named


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nmax_step = 5\n", "train.max_step: unknown key; did you mean max_steps?"),
        ("[train]\nmax_steps = 0\n", "train.max_steps: 0 is out of range; use 1 to 1000000000000"),
        ("[trian]\nmax_steps = 5\n", "trian: unknown section; did you mean train?"),
        ("train = 5\n", "train: is a section; write train.key = value"),
        ('preset = "tinny"\n', "preset: 'tinny' is not a choice; did you mean tiny?"),
        ("preset = [1]\n", "preset: [1] is not a choice; known: base, big, small, tiny"),
        ("[decode]\nn_best = 9\n", "decode.n_best: 9 is more than beam=4; widen the beam or ask for fewer"),
        ("[model]\nd_model = 100\n", "model.num_heads: num_heads=8 must divide d_model=100; try 5 or 10, "
         "or set d_k and d_v"),
        ("[text]\njoint = false\n",
         "text.joint: two vocabularies cannot share one embedding; set model.share_source_target = false"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_names_the_file(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    assert message_of(Config.build, None, file) == f"{file}: {message}"
    assert message_of(Config.build, None, file, ["train.seed=4"]) == f"{file}: {message}"


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        (["train.max_step=5"], {}, "train.max_step: unknown key; did you mean max_steps?"),
        (["train.max_steps=0"], {}, "train.max_steps: 0 is out of range; use 1 to 1000000000000"),
        (["decode.n_best=9"], {}, "decode.n_best: 9 is more than beam=2; widen the beam or ask for fewer"),
        ([], {"preset": "tinny"}, "preset: 'tinny' is not a choice; did you mean tiny?"),
        ([], {"data": {"on_bad_line": "skp"}}, "data.on_bad_line: 'skp' is not a choice; did you mean skip?"),
    ],
)
def test_error_outside_a_file_does_not_name_the_file(
    settings: list[str], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[train]\nmax_steps = 5\n[decode]\nbeam = 2\n")
    assert message_of(Config.build, file=file, settings=settings, **options) == message
    file.write_text("[train]\nmax_steps = -1\n")
    assert message_of(Config.build, None, file, ["train.max_steps=0"]).startswith("train.max_steps: 0 is"), (
        "nor for an overridden value"
    )


def test_setting_overrides_an_invalid_value_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[train]\nmax_steps = 0\n")
    assert Config.build(None, file, ["train.max_steps=1"]).train.max_steps == 1


@pytest.mark.parametrize("text", ["[train]\nseed = " + "9" * 5_000, "[train]\nseed = " + "[" * 100_000])
def test_a_hostile_file_is_refused_by_name(text: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    assert message_of(Config.build, None, file).startswith(f"{file}: not valid TOML: ")


# Building


def test_later_sources_override_earlier_ones(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('preset = "tiny"\n[train]\nmax_steps = 7\nseed = 3\n')
    config = Config.build(None, file, ["train.seed=4"])
    assert config.model.d_model == 128, "the file's preset"
    assert config.train.max_steps == 7, "the file over its preset"
    assert config.train.seed == 4, "--set over the file"
    assert Config.build("base", file).model.d_model == 512, "an option over the file's preset"


@pytest.mark.parametrize("preset", PRESETS)
def test_toml_round_trips_every_setting(preset: str, tmp_path: Path) -> None:
    config = Config.build(
        preset, None, ["data.source=['a \"b\"\\n', 'ü']", "data.target=x", "model.d_k=8", "model.d_v=8"]
    )
    file = tmp_path / "config.toml"
    file.write_text(config.to_toml(), encoding="utf-8")
    assert Config.build(None, file, saved=True) == config


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("".join(map(chr, range(0x100))))
@example("train\x7f.en")
@example("a\r\nb\u0085c\u2028\u2029\ufeff\U0010ffff")
@example('"quoted" \'twice\' \\ C:\\new \\u007f """')
def test_toml_round_trips_any_path(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    config = Config(data=DataConfig(source=(path, "b")), train=TrainConfig(start_from=path))
    file = tmp_path_factory.getbasetemp() / "path.toml"
    file.write_bytes(config.to_toml().encode())
    assert Config.build(None, file, saved=True) == config


def test_a_path_that_is_not_unicode_is_refused() -> None:
    name = os.fsdecode(b"train-\xff.en")
    assert message_of(DataConfig, source=("a", name)) == (
        "data.source: 'train-\\udcff.en' is not valid UTF-8; rename the file or change the setting"
    )
    assert message_of(TrainConfig, start_from=name) == (
        "train.start_from: 'train-\\udcff.en' is not valid UTF-8; rename the file or change the setting"
    )


def test_missing_or_invalid_config_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: no such file"):
        Config.build(None, tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[train\n")
    with pytest.raises(ConfigError, match=r"broken\.toml: not valid TOML: "):
        Config.build(None, broken)


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^preset: 'bigg' is not a choice; did you mean big\?$"):
        Config.build("bigg")


def test_presets_set_a_complete_schedule() -> None:
    for name, sections in PRESETS.items():
        assert {"max_steps", "batch_tokens", "warmup_steps", "save_every"} <= sections["train"].keys(), name
    assert PRESETS["tiny"]["train"]["warmup_steps"] <= 300


def test_defaults_are_the_base_model_of_the_paper() -> None:
    assert TransformerConfig() == TransformerConfig.base()
    big = TransformerConfig.big()
    assert (big.d_model, big.num_heads, big.d_ff, big.dropout) == (1024, 16, 4096, 0.3)


def test_widths_and_depths_may_differ() -> None:
    config = TransformerConfig(
        decoder_num_layers=2, decoder_d_model=256, decoder_num_heads=4, share_source_target=False
    )
    assert (config.encoder.num_layers, config.decoder.num_layers) == (6, 2)
    assert (config.encoder.d_model, config.decoder.d_model) == (512, 256)
    assert (config.encoder.d_k, config.decoder.d_k) == (64, 64)
    assert TransformerConfig(d_k=16, d_v=24, num_heads=6).encoder.d_v == 24


def test_every_section_has_only_settable_fields() -> None:
    for section in fields(Config):
        for entry in fields(getattr(Config(), section.name)):
            assert entry.name.isidentifier()


def test_default_schedule_matches_the_paper() -> None:
    config = Config.build("base").train
    for step in (1, 100, 3_999, 4_000, 4_001, 50_000):
        paper = 512**-0.5 * min(step**-0.5, step * 4_000**-1.5)
        assert learning_rate(step, config, 512) == pytest.approx(paper, rel=1e-12)
    tiny = Config.build("tiny").train
    assert max(range(1, 1000), key=lambda step: learning_rate(step, tiny, 128)) == tiny.warmup_steps
    assert learning_rate(tiny.warmup_steps, tiny, 128) == tiny.learning_rate
