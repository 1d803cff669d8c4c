"""Tests smaller claims about the Transformer, one short experiment each; docs/why-attention.md has the results.

    python -m benchmarks.claims [--quick] [--out docs/images] [--json]

"ratios" are the gradient norm below 24 layers divided by the norm above them, for each variant of the layers.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.claims.gradients import gradients, training_without
from benchmarks.claims.neighbours import neighbours
from benchmarks.claims.norms import norms
from benchmarks.claims.parameters import parameters
from benchmarks.claims.positions import positions
from benchmarks.claims.query_key_value import query_key_value
from dragoman.pictures import svg_plot


def measure(quick: bool) -> dict[str, Any]:
    by_norm, translator, source, target = norms(quick)
    by_position, reverser, valid = positions(quick)
    results: dict[str, Any] = {
        "gradients": gradients(quick),
        "training_without": training_without(quick),
        "norms": by_norm,
        "positions": by_position,
        "parameters": parameters(),
        "neighbours": neighbours(translator, source, target),
        "query_key_value": query_key_value(reverser, valid),
    }
    first = {name: sizes[0] for name, sizes in results["gradients"]["relative norm"].items()}
    return {**results, "ratios": first}


def report(results: Mapping[str, Any]) -> None:
    for name, result in results.items():
        if name == "ratios":
            continue
        print(f"\n== {name.replace('_', ' ')}")
        for key, value in result.items():
            if isinstance(value, Mapping):
                print(f"  {key}")
                for inner, number in value.items():
                    print(f"    {inner:<28}{shown(number)}")
            else:
                print(f"  {key:<30}{shown(value)}")


def shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {shown(item)}" for key, item in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(shown(item) for item in value)
    return str(value)


def draw(results: Mapping[str, Any], folder: Path) -> None:
    sizes = results["gradients"]["relative norm"]
    picture = svg_plot(
        {name: list(enumerate(values)) for name, values in sizes.items()},
        title="The gradient on its way down 24 layers, at initialisation",
        x_label="below layer",
        y_label="norm, relative to the top",
        log_y=True,
    )
    (folder / "claims-gradients.svg").write_text(picture, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="barely trained models, a few seconds")
    parser.add_argument("--out", type=Path, help="write the plot into this folder")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # models this small gain nothing from more, and sums do not depend on the number of cores
    results = measure(arguments.quick)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        draw(results, arguments.out)
    if arguments.json:
        print(json.dumps(results))
    else:
        report(results)


if __name__ == "__main__":
    main()
