"""Draws the pictures of the documentation: python docs/figures.py [FOLDER]. Needs NumPy only; writes SVG by hand.

Shapes: N draws, K keys, D width of queries and keys (d_k).
"""

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from dragoman.reference.functions import Array, softmax

DRAWS, KEYS = 2_000, 16
WIDTHS = [2**power for power in range(11)]
INK, GREY, GRID = "#1f2328", "#59636e", "#d8dee4"
SCALED, UNSCALED = "#0969da", "#cf222e"


def saturation() -> dict[str, dict[str, list[float]]]:
    """Softmax over dot products of unit-variance vectors: by d_k, how evenly it looks and how much flows back."""
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


# SVG


def text(x: float, y: float, words: str, *, size: int = 13, color: str = GREY, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}" text-anchor="{anchor}">{words}</text>'


def line(x1: float, y1: float, x2: float, y2: float, color: str = GRID) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"/>'


def curve(points: Sequence[tuple[float, float]], color: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>{dots}'


def panel(
    left: float, title: str, ticks: dict[str, float], height_of: Callable[[float], float], curves: list[list[float]]
) -> list[str]:
    """Axes, labelled at `ticks`, and one curve of each colour over d_k. `height_of` maps a value to 0..1."""
    top, bottom, width = 92.0, 322.0, 320.0

    def x_of(number: int) -> float:
        return left + width * number / (len(WIDTHS) - 1)

    def y_of(value: float) -> float:
        return bottom - (bottom - top) * height_of(value)

    parts = [text(left, 76, title, size=14, color=INK)]
    for label, value in ticks.items():
        parts += [line(left, y_of(value), left + width, y_of(value))]
        parts += [text(left - 8, y_of(value) + 4, label, size=12, anchor="end")]
    for number, d_k in enumerate(WIDTHS):
        if number % 2 == 0:
            parts.append(text(x_of(number), bottom + 20, str(d_k), size=12, anchor="middle"))
    parts.append(text(left + width / 2, bottom + 42, "d_k", size=13, color=INK, anchor="middle"))
    for values, color in zip(curves, (SCALED, UNSCALED), strict=True):
        parts.append(curve([(x_of(number), y_of(value)) for number, value in enumerate(values)], color))
    return parts


def softmax_saturation() -> str:
    curves = saturation()
    entropy, jacobian = ([curves[kind][name] for kind in ("scaled", "plain")] for name in ("entropy", "jacobian"))
    lowest = 1e-5
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 856 384" font-family="system-ui, sans-serif">',
        '<rect width="856" height="384" rx="8" fill="#ffffff"/>',
        text(28, 34, "What the 1/√d_k is for", size=17, color=INK),
        f'<circle cx="330" cy="29" r="4" fill="{SCALED}"/>' + text(342, 34, "softmax(q·k / √d_k)", color=INK),
        f'<circle cx="520" cy="29" r="4" fill="{UNSCALED}"/>' + text(532, 34, "softmax(q·k)", color=INK),
        *panel(
            68,
            "Gradient that passes: ‖∂p/∂s‖, log scale",
            {"1": 1.0, "0.1": 0.1, "0.01": 0.01, "10⁻³": 1e-3, "10⁻⁴": 1e-4, "10⁻⁵": 1e-5},
            lambda value: 1.0 - math.log10(max(value, lowest)) / math.log10(lowest),
            jacobian,
        ),
        *panel(
            488,
            "Evenness: entropy of p, 1 = all keys alike",
            {"1": 1.0, "0.75": 0.75, "0.5": 0.5, "0.25": 0.25, "0": 0.0},
            lambda value: value,
            entropy,
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "softmax-saturation.svg").write_text(softmax_saturation(), encoding="utf-8")


if __name__ == "__main__":
    main()
