"""Draws the pictures of the documentation: python docs/figures.py [FOLDER]. Needs NumPy only.

Shapes: N draws, K keys, D width of queries and keys (d_k).
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dragoman.pictures import svg_field, svg_plot
from dragoman.reference.functions import Array, softmax

DRAWS, KEYS = 2_000, 16
WIDTHS = [2**power for power in range(11)]
PANEL, HEIGHT = 440, 380


def saturation() -> dict[str, dict[str, list[float]]]:
    """Softmax over dot products of unit-variance vectors, by d_k: evenness of the weights, norm of the Jacobian."""
    random = np.random.default_rng(0)
    curves: dict[str, dict[str, list[float]]] = {kind: {"entropy": [], "jacobian": []} for kind in ("scaled", "plain")}
    for d_k in WIDTHS:
        q_N1D, k_NKD = random.normal(size=(DRAWS, 1, d_k)), random.normal(size=(DRAWS, KEYS, d_k))
        scores_NK = (q_N1D * k_NKD).sum(axis=-1)
        for kind, scale in (("scaled", 1.0 / math.sqrt(d_k)), ("plain", 1.0)):
            p_NK, _ = softmax(scores_NK * scale)
            entropy_N = -(p_NK * np.log(np.maximum(p_NK, 1e-300))).sum(axis=-1) / math.log(KEYS)
            curves[kind]["entropy"].append(float(np.median(entropy_N)))
            curves[kind]["jacobian"].append(float(np.median(jacobian_norm(p_NK))))
    return curves


def jacobian_norm(p_NK: Array) -> Array:
    """The Frobenius norm of diag(p) - p p^T."""
    jacobian_NKK = np.eye(KEYS) * p_NK[:, :, None] - p_NK[:, :, None] * p_NK[:, None, :]
    return np.sqrt((jacobian_NKK**2).sum(axis=(1, 2)))


def softmax_saturation() -> str:
    curves = saturation()
    formulas = {"scaled": "softmax(q·k / √d_k)", "plain": "softmax(q·k)"}
    panels = (
        ("jacobian", "Gradient that passes the softmax", "‖∂p/∂s‖", True),
        ("entropy", "How evenly attention is spread", "entropy of p, 1 = all keys alike", False),
    )
    plots = [
        svg_plot(
            {formula: list(zip(WIDTHS, curves[kind][name], strict=True)) for kind, formula in formulas.items()},
            title=title,
            x_label="d_k",
            y_label=y_label,
            log_x=True,
            log_y=log_y,
            width=PANEL,
            height=HEIGHT,
        )
        for name, title, y_label, log_y in panels
    ]
    return side_by_side(plots)


POSITIONS, WIDTH = 100, 128


def sinusoids() -> Array:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos of the same: [positions, d]."""
    angles = np.arange(POSITIONS)[:, None] / 10_000 ** (np.arange(0, WIDTH, 2) / WIDTH)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(POSITIONS, WIDTH)


def positional_encodings() -> str:
    table = sinusoids()
    dots = {f"position {place}": [(other - place, float(table[place] @ table[other])) for other in range(POSITIONS)]
            for place in (20, 50)}  # fmt: skip
    field = svg_field(
        table, low=-1, high=1, title="Sinusoids", x_label="dimension", y_label="position", width=PANEL, height=HEIGHT
    )
    plot = svg_plot(
        dots,
        title="Dot products",
        x_label="distance to another position",
        y_label="PE(p)·PE(p + k)",
        width=PANEL,
        height=HEIGHT,
    )
    return side_by_side([field, plot])


def side_by_side(plots: Sequence[str]) -> str:
    placed = [f'<g transform="translate({PANEL * index})">\n{plot}</g>\n' for index, plot in enumerate(plots)]
    size = f'viewBox="0 0 {PANEL * len(plots)} {HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{"".join(placed)}</svg>\n'


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "softmax-saturation.svg").write_text(softmax_saturation(), encoding="utf-8")
    (folder / "positional-encodings.svg").write_text(positional_encodings(), encoding="utf-8")


if __name__ == "__main__":
    main()
