"""Settings: presets, TOML, suggestions, constraints."""

from dataclasses import fields
from pathlib import Path

import pytest

from dragoman.config import PRESETS, Config, TransformerConfig
from dragoman.errors import ConfigError
from dragoman.train.schedule import learning_rate

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
    ("model.num_layers=1000000000", "model.num_layers: 1000000000 is out of range; use 1 to 1000000"),
    ("model.dropout=1", "model.dropout: 1.0 is out of range; use 0.0 to 0.999"),
    ("decode.n_best=9", "decode.n_best: 9 is more than beam=4; widen the beam or ask for fewer"),
    (
        "decode.top_k=5",
        "decode.sampling: top_k, top_p and temperature have no part in beam search; set sampling = true",
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


def test_later_wins(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('preset = "tiny"\n[train]\nmax_steps = 7\nseed = 3\n')
    config = Config.build(None, file, ["train.seed=4"])
    assert config.model.d_model == 128, "the file's preset"
    assert config.train.max_steps == 7, "the file over its preset"
    assert config.train.seed == 4, "--set over the file"
    assert Config.build("base", file).model.d_model == 512, "an option over the file's preset"


@pytest.mark.parametrize("preset", PRESETS)
def test_toml_brings_back_every_setting(preset: str, tmp_path: Path) -> None:
    config = Config.build(
        preset, None, ["data.source=['a \"b\"\\n', 'ü']", "data.target=x", "model.d_k=8", "model.d_v=8"]
    )
    file = tmp_path / "config.toml"
    file.write_text(config.to_toml(), encoding="utf-8")
    assert Config.build(None, file) == config


def test_a_wrong_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: no such file"):
        Config.build(None, tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[train\n")
    with pytest.raises(ConfigError, match=r"broken\.toml: not valid TOML: "):
        Config.build(None, broken)


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--preset bigg: no such preset; did you mean big\?"):
        Config.build("bigg")


def test_presets_are_complete_schedules() -> None:
    for name, sections in PRESETS.items():
        assert {"max_steps", "batch_tokens", "warmup_steps", "save_every"} <= sections["train"].keys(), name
    assert PRESETS["tiny"]["train"]["warmup_steps"] <= 300


def test_the_defaults_are_the_papers_base() -> None:
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


def test_the_schedule_is_the_papers() -> None:
    config = Config.build("base").train
    for step in (1, 100, 3_999, 4_000, 4_001, 50_000):
        paper = 512**-0.5 * min(step**-0.5, step * 4_000**-1.5)
        assert learning_rate(step, config, 512) == pytest.approx(paper, rel=1e-12)
    tiny = Config.build("tiny").train
    assert max(range(1, 1000), key=lambda step: learning_rate(step, tiny, 128)) == tiny.warmup_steps
    assert learning_rate(tiny.warmup_steps, tiny, 128) == tiny.learning_rate
