"""Learning rates over a run."""

import math
from itertools import pairwise

import pytest

from dragoman.config import TrainConfig
from dragoman.errors import ConfigError
from dragoman.training.optimizer import learning_rate


def rates(**settings: object) -> list[float]:
    config = TrainConfig(max_steps=100, warmup_steps=10, **settings)  # type: ignore[arg-type]
    return [learning_rate(step, config, d_model=64) for step in range(1, 121)]


def test_default_schedule_matches_the_formula_of_the_paper() -> None:
    for step, rate in enumerate(rates(), start=1):
        assert rate == pytest.approx(64**-0.5 * min(step**-0.5, step * 10**-1.5))


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "cosine", "linear", "constant"])
def test_every_schedule_warms_up_linearly_and_never_rises_again(schedule: str) -> None:
    curve = rates(schedule=schedule, learning_rate=2e-3)
    assert curve[:10] == pytest.approx([2e-4 * step for step in range(1, 11)])
    assert max(curve) == curve[9] == pytest.approx(2e-3)
    assert all(later <= earlier for earlier, later in pairwise(curve[9:]))


def test_cosine_and_linear_end_at_the_final_learning_rate() -> None:
    for schedule, middle in (("cosine", 0.5), ("linear", 0.5)):
        curve = rates(schedule=schedule, learning_rate=1.0, final_learning_rate=0.1)
        assert curve[99] == pytest.approx(0.1)
        assert curve[119] == pytest.approx(0.1), "and stay there"
        assert curve[54] == pytest.approx(0.1 + 0.9 * middle)
    quarter = rates(schedule="cosine", learning_rate=1.0)[9 + 22]  # 68 of 90 steps left
    assert quarter == pytest.approx((1 - math.cos(math.pi * 68 / 90)) / 2)
    assert quarter > rates(schedule="linear", learning_rate=1.0)[9 + 22], "slower at first"


def test_an_unknown_schedule_is_refused() -> None:
    from dragoman.config import Config

    with pytest.raises(ConfigError, match=r"train.schedule: 'cosin' is not a choice; did you mean cosine\?"):
        Config.build("tiny", None, ["train.schedule=cosin"])
