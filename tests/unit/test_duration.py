"""The predicted duration of a run: what it scales with, what it says, and that it leaves the run alone."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.config import Config, TransformerConfig
from dragoman.model.build import build_model
from dragoman.training import duration
from dragoman.training.duration import Duration, operations_per_token, predict_duration, product_rate
from dragoman.training.loop import train
from tests.conftest import quick_config
from tests.system.test_train import Notes

CPU = torch.device("cpu")
STORE: Any = SimpleNamespace(source_sizes=np.array([10, 20]), target_sizes=np.array([20, 40]))


def transformer() -> TransformerConfig:
    model = quick_config().with_vocabulary(300, 300).model
    assert isinstance(model, TransformerConfig)
    return model


@pytest.fixture
def fixed_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duration, "product_rate", lambda *_: 1e9)
    monkeypatch.setattr(duration, "SECONDS_PER_PASS", {"cpu": 0.0})


def seconds(*settings: str, steps: int = 10) -> float:
    config = quick_config(*settings).with_vocabulary(300, 300)
    found = predict_duration(config, STORE, CPU, torch.float32, steps).seconds
    assert found is not None
    return found


def test_time_scales_with_steps_and_passes_over_the_weights(fixed_rate: None) -> None:
    plain = seconds()
    assert plain > 0
    assert seconds(steps=20) == pytest.approx(2 * plain)
    assert seconds("train.accumulate=3") == pytest.approx(3 * plain)
    assert seconds("train.r_drop=1.0") == pytest.approx(2 * plain)
    assert seconds("train.batch_tokens=5120") == pytest.approx(plain * 5120 / quick_config().train.batch_tokens)


def test_time_has_a_part_for_every_pass(monkeypatch: pytest.MonkeyPatch, fixed_rate: None) -> None:
    plain = seconds("train.accumulate=3")
    monkeypatch.setattr(duration, "SECONDS_PER_PASS", {"cpu": 0.5})
    assert seconds("train.accumulate=3") == pytest.approx(plain + 10 * 3 * 0.5)
    monkeypatch.setattr(duration, "EFFICIENCY", {"cpu": duration.EFFICIENCY["cpu"] / 2})
    assert seconds("train.accumulate=3") == pytest.approx(2 * plain + 10 * 3 * 0.5)


def test_epochs_count_target_tokens_with_their_end_of_sentence() -> None:
    config = quick_config("train.batch_tokens=120", "train.accumulate=2").with_vocabulary(300, 300)
    assert predict_duration(config, STORE, CPU, torch.float32, 5, world=3).epochs == pytest.approx(5 * 120 * 2 * 3 / 60)


def test_operations_are_six_per_weight_that_a_token_meets() -> None:
    model = transformer()
    built = build_model(model)
    layers = {
        side: sum(weight.numel() for name, weight in built.named_parameters() if name.startswith(side))
        for side in ("encoder", "decoder")
    }
    output = 300 * model.decoder.d_model
    expected = 6 * (layers["encoder"] * 0.5 + layers["decoder"] + output)
    assert operations_per_token(model, 0.5) == pytest.approx(expected)


def test_the_rate_is_measured_without_drawing_random_numbers() -> None:
    before = torch.get_rng_state()
    assert product_rate(transformer(), 64, CPU, torch.float32) > 1e6
    assert torch.equal(before, torch.get_rng_state())


def test_no_time_is_predicted_for_recurrent_models_nor_for_slow_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    recurrent = Config.build("tiny", None, ["model.architecture=rnn"]).with_vocabulary(300, 300)
    assert predict_duration(recurrent, STORE, CPU, torch.float32, 5).seconds is None
    config = quick_config().with_vocabulary(300, 300)
    monkeypatch.setattr(duration, "is_slow_in_bfloat16", lambda device: True)
    assert predict_duration(config, STORE, CPU, torch.bfloat16, 5).seconds is None
    assert predict_duration(config, STORE, CPU, torch.float32, 5).seconds is not None, "the control"


@pytest.mark.parametrize(
    ("predicted", "line"),
    [
        (0.4, "a second"),
        (1.2, "1 second"),
        (44.6, "45 seconds"),
        (60.0, "1 minute"),
        (90.0, "1.5 minutes"),
        (1500.0, "25 minutes"),
        (5400.0, "1.5 hours"),
        (59.6, "1 minute"),
        (3599.0, "1 hour"),
        (86_000.0, "1 day"),
        (200_000.0, "2.3 days"),
        (4_000_000.0, "46 days"),
    ],
)
def test_a_duration_is_rounded_for_people(predicted: float, line: str) -> None:
    expected = f"1,200 steps to go, about 12.5 epochs; roughly {line} without validation"
    assert Duration(1200, 12.5, predicted).describe() == expected
    assert Duration(1200, 12.5, None).describe() == "1,200 steps to go, about 12.5 epochs"


@pytest.mark.slow
def test_a_run_predicts_its_steps_at_the_start_and_the_rest_on_resume(tmp_path: Path) -> None:
    found = []
    for steps in (2, 6, 6):
        reporter = Notes()
        train(quick_config(f"train.max_steps={steps}", "train.save_every=2"), tmp_path, reporter)
        found.append([note.split(",")[0] for note in reporter.notes if " without validation" in note])
    assert found == [["2 steps to go"], ["4 steps to go"], []]
