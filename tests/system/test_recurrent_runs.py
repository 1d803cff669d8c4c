"""Recurrent models with the same commands: trained, saved, resumed, decoded, inspected."""

from pathlib import Path

import numpy as np
import pytest

import dragoman
from dragoman.training.checkpoint_files import checkpoint_path, read_checkpoint
from dragoman.training.loop import train
from dragoman.training.reports.log import read_log
from tests.conftest import QUICK

SETTINGS = [setting for setting in QUICK if not setting.startswith("model.d_ff")]


def recurrent_config(*settings: str) -> dragoman.Config:
    return dragoman.Config.build("tiny", None, [*SETTINGS, "model.architecture=rnn", *settings])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "context"),
    [
        ("rnn", "self"),
        ("lstm", "source"),
        *(pytest.param(cell, context, marks=pytest.mark.slow) for cell, context in (
            ("rnn", "none"), ("rnn", "source"), ("lstm", "none"), ("lstm", "self"),
        )),
    ],
)  # fmt: skip
def test_recurrent_model_trains_translates_and_scores(tmp_path: Path, cell: str, context: str) -> None:
    train(recurrent_config(f"model.cell={cell}", f"model.context={context}", "train.max_steps=20"), tmp_path)
    steps = [record["loss"] for record in read_log(tmp_path) if record["kind"] == "step"]
    assert steps[-1] < steps[0]
    translator = dragoman.load(str(tmp_path), device="cpu")
    lines = ["a b c", "", "d e f g h"]
    results = translator.translate(lines, beam=3, attention=True)
    assert [result.status for result in results][1] == "empty"
    for line, result in zip(lines, results, strict=True):
        alone = translator.translate(line, beam=3)
        assert alone.text == result.text
        # a truncated one has no </s> in its score, and stray bytes do not come back from text as they were
        target = translator.tokenizers.target
        if result.tokens == (*target.pieces(target.encode(result.text)), "</s>"):
            assert translator.score([line], [result.text])[0] == pytest.approx(result.score, abs=1e-4)
    attention = results[0].attention
    assert attention is not None
    looked = {"none": None, "source": attention.cross, "self": attention.decoder}[context]
    if looked is None:
        assert results[0].alignment is None
    else:
        assert looked.shape[:2] == (1, 1)
        np.testing.assert_allclose(looked.sum(axis=-1), 1.0, atol=1e-5)


@pytest.mark.slow
def test_resumed_run_is_bit_for_bit_the_same(tmp_path: Path) -> None:
    settings = ["train.save_every=6", "model.dropout=0.2", "model.num_layers=2"]
    for run, stops in (("whole", (12,)), ("parts", (6, 12))):
        for stop in stops:
            train(recurrent_config(*settings, f"train.max_steps={stop}"), tmp_path / run)
    whole, parts = (read_checkpoint(checkpoint_path(tmp_path / run, 12)) for run in ("whole", "parts"))
    assert whole["weights.safetensors"] == parts["weights.safetensors"]
    assert whole["optimizer.safetensors"] == parts["optimizer.safetensors"]
