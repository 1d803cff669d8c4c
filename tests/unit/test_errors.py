"""Suggestions: what an unknown word probably meant."""

from dataclasses import fields

import pytest

from dragoman.config import Config, DataConfig, DecodeConfig, TextConfig, TrainConfig, TransformerConfig
from dragoman.errors import suggestion

DEVICES = ["auto", "cpu", "cuda", "mps"]
KEYS = [
    (DecodeConfig, "beem", "beam"),
    (DecodeConfig, "beams", "beam"),
    (DecodeConfig, "beam_size", "beam"),
    (DecodeConfig, "beamsize", "beam"),
    (DecodeConfig, "num_beams", "beam"),
    (DecodeConfig, "nbest", "n_best"),
    (DecodeConfig, "temp", "temperature"),
    (DecodeConfig, "lenght_penalty", "length_penalty"),
    (DecodeConfig, "length_penalty_frm", "length_penalty_form"),
    (TrainConfig, "max_step", "max_steps"),
    (TrainConfig, "steps", "max_steps"),
    (TrainConfig, "warmup", "warmup_steps"),
    (TrainConfig, "batch_size", "batch_tokens"),
    (TrainConfig, "beta2", "adam_beta2"),
    (TrainConfig, "learning-rate", "learning_rate"),
    (TrainConfig, "Learning_Rate", "learning_rate"),
    (TransformerConfig, "heads", "num_heads"),
    (TransformerConfig, "n_layers", "num_layers"),
    (TransformerConfig, "decoder_layers", "decoder_num_layers"),
    (TransformerConfig, "dropout_rate", "dropout"),
    (TextConfig, "vocab", "vocab_size"),
    (TextConfig, "normalisation", "normalization"),
    (DataConfig, "train_source", "source"),
    (DataConfig, "valid_sorce", "valid_source"),
    (Config, "trian", "train"),
    (Config, "training", "train"),
    (Config, "decoder", "decode"),
]
WORDS = [
    ("sinusodial", ["sinusoidal", "learned", "rotary", "none"], "sinusoidal"),
    ("Pre", ["post", "pre"], "pre"),
    ("post-norm", ["post", "pre"], "post"),
    ("gmnt", ["gnmt", "power"], "gnmt"),
    ("CUDA", DEVICES, "cuda"),
    ("cdua", DEVICES, "cuda"),
    ("sentence", ["long", "sentences"], "sentences"),
    ("int16", ["bfloat16", "float32", "int8"], "int8"),
    ("encoder.layer.0", ["encoder", "encoder.layers", "encoder.layers.0", "encoder.layers.1"], "encoder.layers.0"),
]


@pytest.mark.parametrize(("section", "word", "meant"), KEYS, ids=[word for _, word, _ in KEYS])
def test_a_mistyped_key_suggests_the_one_that_was_meant(section: type, word: str, meant: str) -> None:
    assert suggestion(word, [entry.name for entry in fields(section)]) == f"did you mean {meant}?"


@pytest.mark.parametrize(("word", "known", "meant"), WORDS, ids=[word for word, _, _ in WORDS])
def test_a_mistyped_choice_suggests_the_one_that_was_meant(word: str, known: list[str], meant: str) -> None:
    assert suggestion(word, known) == f"did you mean {meant}?"


def test_alias_takes_precedence_over_similar_words() -> None:
    assert suggestion("GPU", DEVICES, {"gpu": "cuda"}) == "did you mean cuda?"
    assert suggestion("gpu", DEVICES) == "did you mean cpu?", "the control: cpu is more similar"


@pytest.mark.parametrize("word", ["words", "", "_", "x", "สวัสดี"])
def test_word_like_no_choice_lists_all_choices(word: str) -> None:
    assert suggestion(word, ["sentences", "long"]) == "known: long, sentences"


def test_two_letters_do_not_count_as_a_prefix() -> None:
    assert suggestion("estonian", ["es", "et"]) == "known: es, et"
    assert suggestion("sampler", ["sam"]) == "did you mean sam?", "the control: three letters are a prefix"
