"""COMET, a learned metric that also reads the source, if unbabel-comet is installed. Knows nothing of our models."""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.errors import ConfigError
from dragoman.evaluate.metrics import BOOTSTRAP_SAMPLES, Score, check_lines

BATCH_SIZE = 16  # COMET's default
SEED = 12345  # sacrebleu's default


def check_installed() -> None:
    _import()


def comet_score(
    checkpoint: str,
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    device: str = "auto",
    show_progress: bool = False,
) -> Score:
    """The mean over sentences. `checkpoint` is a file, or a name that COMET downloads."""
    for lines in (sources, hypotheses):
        check_lines(lines, references)
    comet = _import()
    samples = [
        {"src": source, "mt": hypothesis, "ref": reference}
        for source, hypothesis, reference in zip(sources, hypotheses, references, strict=True)
    ]
    with contextlib.redirect_stdout(sys.stderr):  # messages of COMET and its libraries are not part of our output
        model = _load(comet, checkpoint)
        prediction = model.predict(samples, batch_size=BATCH_SIZE, progress_bar=show_progress, **_placement(device))
    version = getattr(comet, "__version__", "unknown")
    return _summary(prediction["scores"], f"comet:{Path(checkpoint).name}|version:{version}")


def _import() -> Any:
    try:
        with contextlib.redirect_stdout(sys.stderr):
            import comet
    except ImportError as error:
        raise ConfigError(
            f"--comet: unbabel-comet is not installed ({error}); run pip install 'dragoman[comet]', or leave it out"
        ) from None
    return comet


def _load(comet: Any, checkpoint: str) -> Any:
    try:
        path = checkpoint if Path(checkpoint).is_file() else comet.download_model(checkpoint)
        return comet.load_from_checkpoint(path)
    except Exception as error:  # a KeyError, a plain Exception, or whatever the network and Lightning raise
        reason = (str(error.args[0]) if error.args else type(error).__name__).strip().split("\n")[0]
        raise ConfigError(
            f"--comet {checkpoint}: cannot be loaded ({reason}); give a checkpoint file, or a name such as "
            "Unbabel/wmt22-comet-da"
        ) from None


def _placement(device: str) -> dict[str, Any]:
    """COMET's arguments for a device: it counts GPUs, Apple's counts as one, and a numbered GPU is also named."""
    from dragoman.device import choose_device

    chosen = choose_device(device)
    if chosen.type == "cpu":
        return {"gpus": 0}
    return {"gpus": 1} if chosen.index is None else {"gpus": 1, "devices": [chosen.index]}


def _summary(scores: Sequence[float], signature: str) -> Score:
    """The mean, and its interval by the same bootstrap as for the other metrics."""
    import numpy as np
    from sacrebleu.significance import estimate_ci

    values, rng = np.array(scores, dtype=np.float64), np.random.default_rng(SEED)
    means = np.array([rng.choice(values, len(values)).mean() for _ in range(BOOTSTRAP_SAMPLES)])
    center, half = estimate_ci(means)
    score = float(values.mean())
    low, high = min(score, float(center - half)), max(score, float(center + half))
    return Score(score, low, high, f"{signature}|bs:{BOOTSTRAP_SAMPLES}|seed:{SEED}")
