"""Self-attention, recurrence and convolution side by side: the table in section 4 of the paper, measured.

    python benchmarks/complexity.py [--quick] [--out docs/images] [--json]

For single layers, by length n and width d, one sequence at a time: the time of forward and backward, the bytes saved
for backward, the longest chain of dependent operations, and the number of steps between the first input and the last
output. For whole models: the training speed of a Transformer and of an LSTM with attention, of similar size, by
sentence length, with a constant number of tokens per batch and with one sentence per batch. "ratios" are the
Transformer's target tokens per second divided by the LSTM's.

Shapes: B sequences, N positions, D width.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import Node, saved_tensors_hooks

from dragoman.config import RecurrentConfig, TransformerConfig
from dragoman.model.attention import MultiHeadAttention, attend
from dragoman.model.build import Model, build_model
from dragoman.model.loss import smoothed_cross_entropy
from dragoman.pictures import svg_plot

KERNEL = 3
HEADS = 8
IMAGE = 3_072  # a CIFAR image as a sequence: 32 x 32 pixels of three colours
PER_LAYER = ("plain attention", "fused attention", "multi-head attention", "RNN", "LSTM", "convolution")
TEXTBOOK = {  # the powers of length and width by which time and memory grow
    "plain attention": {"time": (2, 1), "memory": (2, 0)},
    "fused attention": {"time": (2, 1), "memory": (1, 1)},
    "multi-head attention": {"time": (2, 1), "memory": (1, 1)},
    "RNN": {"time": (1, 2), "memory": (1, 1)},
    "LSTM": {"time": (1, 2), "memory": (1, 1)},
    "convolution": {"time": (1, 2), "memory": (1, 1)},
}
SEQUENTIAL = {name: "n" if name in ("RNN", "LSTM") else "1" for name in PER_LAYER}
PATHS = {"attention": "1", "recurrent": "n", "convolution": "n / k", "dilated convolution": "log_k n"}
Grid = dict[str, dict[tuple[int, int], float]]  # by layer, then by length and width


# One layer


def layer(name: str, width: int) -> tuple[nn.Module | None, Callable[[Tensor], Tensor]]:
    """A layer of this width and its function on [B, N, D]. Bare attention has no parameters: q = k = v = x."""
    if name in ("plain attention", "fused attention"):
        plain = name == "plain attention"
        return None, lambda x_BND: attend(*(x_BND[:, None],) * 3, need_weights=plain)[0]
    if name == "multi-head attention":
        heads = MultiHeadAttention(width, HEADS, width // HEADS, width // HEADS)
        return heads, lambda x_BND: heads(x_BND, heads.keys_values(x_BND))[0]
    if name == "convolution":
        convolution = nn.Conv1d(width, width, KERNEL, padding=KERNEL // 2)
        return convolution, lambda x_BND: convolution(x_BND.mT).mT
    recurrent = {"RNN": nn.RNN, "LSTM": nn.LSTM}[name](width, width, batch_first=True)
    return recurrent, lambda x_BND: recurrent(x_BND)[0]


def seconds(name: str, length: int, width: int, budget: float) -> float:
    """Forward and backward: the median of as many runs as the budget allows, three to thirty, after one warm-up run."""
    _, apply = layer(name, width)
    x_BND = torch.randn(1, length, width, requires_grad=True)
    times: list[float] = []
    while len(times) < 4 or (len(times) <= 30 and sum(times) < budget):
        started = time.perf_counter()
        apply(x_BND).sum().backward()  # type: ignore[no-untyped-call]
        times.append(time.perf_counter() - started)
    return median(times[1:])


def kept_bytes(name: str, length: int, width: int) -> float:
    """Bytes that forward saves for backward, without parameters; each storage is counted once."""
    module, apply = layer(name, width)
    parameters = {} if module is None else {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        apply(torch.randn(1, length, width, requires_grad=True))
    return float(sum(kept.values()))


def sequential_steps(name: str, length: int, width: int = 8) -> int:
    """The longest chain of nodes in the autograd graph. Recurrent cells are unrolled: fused kernels hide steps."""
    x_BND = torch.randn(1, length, width, requires_grad=True)
    if name in ("RNN", "LSTM"):
        cell = {"RNN": nn.RNNCell, "LSTM": nn.LSTMCell}[name](width, width)
        state = None
        for step in range(length):
            state = cell(x_BND[:, step], state)
        out = state[0] if isinstance(state, tuple) else state
    else:
        out = layer(name, width)[1](x_BND)
    assert out is not None
    return longest_chain(out.grad_fn)


def longest_chain(last: Node | None) -> int:
    """Nodes on the longest path from here. Not recursive: a long sentence exceeds Python's recursion limit."""
    lengths: dict[Node | None, int] = {None: 0}
    waiting = [last]
    while waiting:
        node = waiting[-1]
        below = [] if node is None else [child for child, _ in node.next_functions]
        unknown = [child for child in below if child not in lengths]
        if unknown:
            waiting += unknown
            continue
        lengths.setdefault(node, 1 + max((lengths[child] for child in below), default=0))
        waiting.pop()
    return lengths[last]


# The distance between the first input and the last output


def path_length(name: str, length: int) -> int:
    """Steps until the last position has a gradient with respect to the first: layers, or cells if recurrent."""
    x_ND = torch.full((length, 1), 0.01, dtype=torch.float64, requires_grad=True)  # float64: 3^-128 is not 0
    h_ND = torch.zeros_like(x_ND) if name == "recurrent" else x_ND
    for step in range(length):
        h_ND = one_step(name, x_ND, h_ND, step)
        (gradient_ND,) = torch.autograd.grad(h_ND[-1].sum(), x_ND, retain_graph=True)
        if gradient_ND[0].item() != 0.0:
            return step + 1
    raise AssertionError(f"{name} at length {length}: the first input never reaches the last output")


def one_step(name: str, x_ND: Tensor, h_ND: Tensor, step: int) -> Tensor:
    """Advance every position by one layer or one cell, with all weights positive so that no gradient cancels."""
    if name == "attention":
        h_11ND = h_ND[None, None]
        return attend(h_11ND, h_11ND, h_11ND)[0][0, 0]
    if name == "recurrent":  # h_t = tanh(x_t + h_t-1)
        return (x_ND + F.pad(h_ND, (0, 0, 1, 0))[:-1]).tanh()
    dilation = KERNEL**step if name == "dilated convolution" else 1
    weight_DDK = torch.full((1, 1, KERNEL), 1.0 / KERNEL, dtype=h_ND.dtype)
    padded_1DN = F.pad(h_ND.mT[None], (dilation * (KERNEL - 1), 0))  # looks back only
    return F.conv1d(padded_1DN, weight_DDK, dilation=dilation)[0].mT


# Analysis


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The slope of a line fitted to the upper half of the points, on log-log axes."""
    upper = np.log(np.array(sorted(points)[-max(3, len(points) // 2) :]))
    return float(np.polyfit(upper[:, 0], upper[:, 1], 1)[0])


def along(grid: Mapping[tuple[int, int], float], *, length: int | None = None, width: int | None = None) -> list[Any]:
    """The points of one row or column of the grid: (width, value) at this length or (length, value) at this width."""
    if length is None:
        return sorted((n, value) for (n, d), value in grid.items() if d == width)
    return sorted((d, value) for (n, d), value in grid.items() if n == length)


def crossover(attention: Sequence[tuple[int, float]], recurrent: Sequence[tuple[int, float]]) -> float | None:
    """The length at which attention becomes slower; None if it does not within these lengths."""
    gaps = [(n, math.log(ours / theirs)) for (n, ours), (_, theirs) in zip(attention, recurrent, strict=True)]
    if gaps[0][1] >= 0:
        return float(gaps[0][0])
    for (near, before), (far, after) in pairwise(gaps):
        if before < 0 <= after:
            return float(near * (far / near) ** (before / (before - after)))
    return None


# Whole models


def whole_models(quick: bool) -> dict[str, Model]:
    """Similar widths and parameter counts: the LSTM's cells have no feed-forward part, so it has more layers."""
    vocab_size, width = (100, 32) if quick else (4_000, 256)
    transformer = TransformerConfig(vocab_size=vocab_size, num_layers=3, d_model=width, d_ff=4 * width, num_heads=4)
    recurrent = RecurrentConfig(vocab_size=vocab_size, num_layers=5, d_model=width)
    return {"Transformer": build_model(transformer), "LSTM + attention": build_model(recurrent)}


def training_speed(model: Model, length: int, sentences: int, repeats: int) -> float:
    """Target tokens per second: forward, backward and optimiser."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    ids_BN = torch.randint(4, model.config.vocab_size, (sentences, length))
    times: list[float] = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        loss = smoothed_cross_entropy(model(ids_BN, ids_BN), ids_BN, 0.1) / ids_BN.numel()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        times.append(time.perf_counter() - started)
    return ids_BN.numel() / median(times[1:])


# The run


def measure(quick: bool) -> dict[str, Any]:
    lengths = [64, 128, 256, 512] if quick else [64, 128, 256, 512, 1_024, 2_048, IMAGE]
    widths = [16, 32, 64] if quick else [32, 64, 128, 256, 512]
    short_lengths = [4, 8, 16, 32] if quick else [4, 8, 16, 32, 64, 128, 256]
    budget = 0.01 if quick else 0.5
    cells = [(n, d) for n in lengths for d in widths]
    times: Grid = {name: {cell: seconds(name, *cell, budget) for cell in cells} for name in PER_LAYER}
    memory: Grid = {name: {cell: kept_bytes(name, *cell) for cell in cells} for name in PER_LAYER}
    middle_n, middle_d = lengths[len(lengths) // 2], widths[len(widths) // 2]
    exponents = {
        name: {
            quantity: {
                "length": exponent(along(grid[name], width=middle_d)),
                "width": exponent(along(grid[name], length=middle_n)),
                "textbook": TEXTBOOK[name][quantity],
            }
            for quantity, grid in (("time", times), ("memory", memory))
        }
        for name in PER_LAYER
    }
    crossovers = {
        f"{attention} over {recurrent}": {
            width: crossover(along(times[attention], width=width), along(times[recurrent], width=width))
            for width in widths
        }
        for attention in ("plain attention", "fused attention")
        for recurrent in ("RNN", "LSTM", "convolution")
    }
    models = whole_models(quick)
    tokens, repeats = (128, 1) if quick else (2_048, 5)
    model_lengths = [8, 16] if quick else [8, 16, 32, 64, 128, 256]
    speeds = {
        f"{name}, {batch}": {n: training_speed(model, n, sentences(n), repeats) for n in model_lengths}
        for batch, sentences in (
            (f"{tokens:,} tokens a batch", lambda length: tokens // length),
            ("1 sentence a batch", lambda length: 1),
        )
        for name, model in models.items()
    }
    transformer, lstm, transformer_alone, lstm_alone = speeds.values()
    return {
        "threads": torch.get_num_threads(),
        "at": {"width": middle_d, "length": middle_n},
        "points": [
            {"layer": name, "length": n, "width": d, "seconds": times[name][n, d], "bytes": memory[name][n, d]}
            for name in PER_LAYER
            for n, d in cells
        ],
        "exponents": exponents,
        "crossover": crossovers,
        "sequential_steps": {name: {n: sequential_steps(name, n) for n in short_lengths} for name in PER_LAYER},
        "path_length": {name: {n: path_length(name, n) for n in short_lengths} for name in PATHS},
        "parameters": {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()},
        "tokens_per_second": speeds,
        "ratios": {
            f"Transformer / LSTM + attention, {batch}, length {n}": ours[n] / theirs[n]
            for batch, ours, theirs in (
                (f"{tokens:,} tokens", transformer, lstm),
                ("1 sentence", transformer_alone, lstm_alone),
            )
            for n in model_lengths
        },
    }


def report(results: Mapping[str, Any]) -> None:
    at = results["at"]
    print(f"Powers of length (at width {at['width']}) and of width (at length {at['length']}): measured (textbook)")
    for name, quantities in results["exponents"].items():
        cells = [
            f"{quantity}  n^{fit['length']:.2f} ({fit['textbook'][0]})  d^{fit['width']:.2f} ({fit['textbook'][1]})"
            for quantity, fit in quantities.items()
        ]
        print(f"  {name:<22}{cells[0]:<38}{cells[1]}")
    print("\nThe length from which attention takes longer, by width")
    for pair, by_width in results["crossover"].items():
        lengths = ", ".join(f"{d}: {'never here' if n is None else format(n, ',.0f')}" for d, n in by_width.items())
        print(f"  {pair:<34}{lengths}")
    for title, key, textbook in (
        ("Longest chain of operations", "sequential_steps", SEQUENTIAL),
        ("Steps from the first input to the last output", "path_length", PATHS),
    ):
        print(f"\n{title}, by length (textbook)")
        for name, by_length in results[key].items():
            counts = "".join(f"{n:>5}: {count:<5}" for n, count in by_length.items())
            print(f"  {name:<22}{counts}({textbook[name]})")
    print("\nTarget tokens per second in training, by length")
    for name, by_length in results["tokens_per_second"].items():
        print(f"  {name:<40}" + "".join(f"{n:>5}: {rate:<8,.0f}" for n, rate in by_length.items()))
    for name, ratio in results["ratios"].items():
        print(f"  {name}: {ratio:.2f}")


def draw(results: Mapping[str, Any], folder: Path) -> None:
    points, at = results["points"], results["at"]

    def lines(value: str, unit: float, over: str, fixed: str) -> dict[str, list[tuple[float, float]]]:
        return {
            name: [(p[over], p[value] / unit) for p in points if p["layer"] == name and p[fixed] == at[fixed]]
            for name in PER_LAYER
        }

    for name, value, unit, y_label in (
        ("time", "seconds", 1e-3, "milliseconds, forward and backward"),
        ("memory", "bytes", 1e6, "megabytes kept for the backward"),
    ):
        for over, fixed in (("length", "width"), ("width", "length")):
            picture = svg_plot(
                lines(value, unit, over, fixed),
                title=f"{name.capitalize()} of one layer against {over}, at {fixed} {at[fixed]}",
                x_label=over,
                y_label=y_label,
                log_x=True,
                log_y=True,
                height=440,
            )
            (folder / f"complexity-{name}-{over}.svg").write_text(picture, encoding="utf-8")
    paths = {name: list(by_length.items()) for name, by_length in results["path_length"].items()}
    speeds = {name: list(by_length.items()) for name, by_length in results["tokens_per_second"].items()}
    pictures = {
        "path": svg_plot(
            paths,
            title="Steps from the first input to the last output",
            x_label="length",
            y_label="layers, or cells applied",
            log_x=True,
            log_y=True,
        ),
        "speed": svg_plot(
            speeds,
            title="Training whole models of like size",
            x_label="length of source and target",
            y_label="target tokens per second",
            log_x=True,
            log_y=True,
        ),
    }
    for name, picture in pictures.items():
        (folder / f"complexity-{name}.svg").write_text(picture, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, a few seconds")
    parser.add_argument("--out", type=Path, help="write the plots into this folder")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
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
