"""Recall over a growing distance: the target is the first symbol of the source, which is followed by others.

    python benchmarks/long_range.py [--quick] [--steps 400] [--seeds 1] [--out docs/images] [--json]

An RNN, an LSTM, an LSTM with attention and a Transformer, of similar parameter counts, are trained for the same number
of steps at each distance and tested on held-out sequences. The other symbols are from the same alphabet, so a model
must know which one came first. "ratios" are accuracies divided by chance, at the largest distance.

Shapes: B sequences, S source positions.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from dragoman.config import ModelConfig, RecurrentConfig, TrainConfig, TransformerConfig
from dragoman.model.build import Model, build_model
from dragoman.model.loss import smoothed_cross_entropy
from dragoman.pictures import svg_plot
from dragoman.text.vocabulary import VOCABULARY
from dragoman.training.optimizer import learning_rate

BOS, EOS = VOCABULARY.bos, VOCABULARY.eos

FIRST, SYMBOLS = 4, 16
WIDTH = 64
BATCH = 64
HELD_OUT = 512
SCHEDULE = TrainConfig(learning_rate=2e-3, warmup_steps=50)


def configurations() -> dict[str, ModelConfig]:
    """Similar parameter counts: an LSTM has four times the matrices of an RNN, which may therefore be twice as wide."""
    vocab_size = FIRST + SYMBOLS
    lstm = RecurrentConfig(vocab_size=vocab_size, d_model=WIDTH, dropout=0.0)
    return {
        "RNN": replace(lstm, cell="rnn", context="none", d_model=2 * WIDTH),
        "LSTM": replace(lstm, context="none"),
        "LSTM + attention": lstm,
        "Transformer": TransformerConfig(
            vocab_size=vocab_size, num_layers=1, d_model=WIDTH, d_ff=2 * WIDTH, num_heads=4, dropout=0.0
        ),
    }


def draw_batch(rows: int, distance: int, random: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Sources of 1 + distance symbols, the decoder's input, its expected output: the first symbol and the end."""
    source_BS = torch.randint(FIRST, FIRST + SYMBOLS, (rows, 1 + distance), generator=random)
    first_B1 = source_BS[:, :1]
    fed_B2 = torch.cat((torch.full_like(first_B1, BOS), first_B1), dim=1)
    goal_B2 = torch.cat((first_B1, torch.full_like(first_B1, EOS)), dim=1)
    return source_BS, fed_B2, goal_B2


def train(model: Model, distance: int, steps: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    model.train()
    for step in range(1, steps + 1):
        source, fed, goal = draw_batch(BATCH, distance, random)
        loss = smoothed_cross_entropy(model(source, fed), goal, 0.0) / goal.numel()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, SCHEDULE, WIDTH)
        optimizer.step()


@torch.no_grad()
def accuracy(model: Model, distance: int, seed: int) -> float:
    """How often the first output symbol is right, on sequences drawn with a different seed than in training."""
    source, fed, goal = draw_batch(HELD_OUT, distance, torch.Generator().manual_seed(1_000_000 + seed))
    model.eval()
    said = model(source, fed)[:, 0].argmax(-1)
    return float((said == goal[:, 0]).float().mean())


def measure(distances: list[int], steps: int, seeds: int) -> dict[str, Any]:
    accuracies: dict[str, dict[int, list[float]]] = {}
    parameters: dict[str, int] = {}
    for name, config in configurations().items():
        accuracies[name] = {}
        for distance in distances:
            accuracies[name][distance] = []
            for seed in range(seeds):
                torch.manual_seed(seed)
                model = build_model(config)
                train(model, distance, steps, seed)
                accuracies[name][distance].append(accuracy(model, distance, seed))
        parameters[name] = sum(parameter.numel() for parameter in model.parameters())
    return {
        "steps": steps,
        "parameters": parameters,
        "accuracy": accuracies,
        "chance": 1 / SYMBOLS,
        "ratios": {f"{name} / chance": mean(by[distances[-1]]) * SYMBOLS for name, by in accuracies.items()},
    }


def report(results: Mapping[str, Any]) -> None:
    print(f"Held-out accuracy after {results['steps']} steps, by distance (one number per seed)")
    for name, by_distance in results["accuracy"].items():
        cells = (f"{d}: {'/'.join(f'{value:.2f}' for value in values)}" for d, values in by_distance.items())
        print(f"  {name:<18}{results['parameters'][name]:>7,} parameters   " + "   ".join(cells))
    print(f"  chance is {results['chance']:.3f}")


def draw(results: Mapping[str, Any], folder: Path) -> None:
    lines = {name: [(d, mean(values)) for d, values in by.items()] for name, by in results["accuracy"].items()}
    picture = svg_plot(
        lines,
        title="Bringing back the first symbol",
        x_label="symbols behind it",
        y_label="held-out accuracy",
        log_x=True,
    )
    (folder / "long-range.svg").write_text(picture, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two short distances, few steps, a few seconds")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the plot into this folder")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # models this small gain nothing from more, and sums do not depend on the number of cores
    if arguments.quick:
        results = measure([2, 24], steps=80, seeds=1)
    else:
        results = measure([2, 4, 8, 16, 32, 64, 128], arguments.steps, arguments.seeds)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        draw(results, arguments.out)
    if arguments.json:
        print(json.dumps(results))
    else:
        report(results)


if __name__ == "__main__":
    main()
