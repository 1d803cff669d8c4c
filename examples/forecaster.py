"""A forecaster: rows of numbers in place of words on both sides. It learns two waves and their sum.

python examples/forecaster.py
"""

from pathlib import Path

import numpy as np

import dragoman


def main(directory: Path = Path("runs/example-forecaster"), steps: int = 200) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    waves = make_waves(3_000)
    for name, rows in (("train", waves[:2_000]), ("valid", waves[2_000:2_500])):
        np.savetxt(directory / f"{name}.csv", rows, delimiter=",", header="slow,fast,sum", comments="")
    config = dragoman.Config.build(
        "tiny",
        settings=[
            "model.source_features=3",  # a linear layer in place of the embedding of words
            "model.target_features=3",  # the same for the output, and the squared error as the loss
            "data.lookback=48",
            "data.horizon=24",
            "train.batch_tokens=1024",
            f"train.max_steps={steps}",
            f"train.save_every={max(1, steps // 2)}",
        ],
        data={"series": str(directory / "train.csv"), "valid_series": str(directory / "valid.csv")},
    )
    print(dragoman.train(config, directory / "run").describe())

    forecaster = dragoman.Forecaster.load(directory / "run")
    given, right = waves[2_500:2_900], waves[2_900:2_924]
    error = np.abs(forecaster.forecast(given) - right).mean()
    unchanged = np.abs(given[-1] - right).mean()
    print(f"mean error {error:.3f}; of the last row repeated {unchanged:.3f}")


def make_waves(count: int) -> np.ndarray:
    """Periods of 24 and 7 rows, with noise."""
    time = np.arange(count)
    slow, fast = np.sin(2 * np.pi * time / 24), np.cos(2 * np.pi * time / 7)
    noise = 0.05 * np.random.default_rng(1).normal(size=(count, 3))
    return np.stack([slow, fast, slow + fast], axis=1) + noise


if __name__ == "__main__":
    main()
