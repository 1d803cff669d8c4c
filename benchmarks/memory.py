"""Predicted against measured peak memory of a training step, on this machine's CPU or GPU.

    python -m benchmarks.memory [--presets tiny small base] [--tokens 2048 8192] [--layouts padded packed]
        [--precision auto|float32|bfloat16] [--json]

Each row is a separate process that runs training steps, including Adam, on WMT-like sentences, and reads the peak
memory from the operating system (CPU) or PyTorch (CUDA). It takes two steps over a packed batch, which has one shape,
or over 16 groups of padded ones. The ratio is predicted / measured.
"""

import argparse
import json
import subprocess
import sys
from typing import Any

import numpy as np
import torch

from benchmarks.training_peers import LONGEST, VOCABULARY, make_sentences, padded_batches
from dragoman.config import Config, TransformerConfig
from dragoman.data.batching import groups_in
from dragoman.data.packing import pack_sentences
from dragoman.data.store import Store
from dragoman.device import choose_device, choose_precision, keep_freed_memory
from dragoman.model.packed import PackedTransformer
from dragoman.model.transformer import Transformer
from dragoman.tasks.translation import TranslationTask
from dragoman.training.gradients import PackedLoss, PaddedLoss
from dragoman.training.memory import measured_peak, predicted_peak

PASSES = 16  # of padded groups: each has its own shape, which the freed memory of others may not fit


class Lengths(Store):
    """The part of a store that the prediction reads."""

    def __init__(self, sentences: int) -> None:
        made = make_sentences(sentences)
        self.source_lengths, self.target_lengths = (
            np.array(list(map(len, side))) for side in (made.source, made.target)
        )


def one(preset: str, layout: str, tokens: int, precision_name: str) -> dict[str, float]:
    """Run two steps in this process, which keeps freed memory as the training loop does."""
    device = choose_device("auto")
    precision = choose_precision(precision_name, device)
    size = TransformerConfig.preset(preset, vocab_size=VOCABULARY)
    model = Transformer(size).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    sentences = make_sentences(20_000)
    loss: torch.nn.Module
    if layout == "padded":
        loss = PaddedLoss(TranslationTask(), model, precision, 0.1)
        groups = groups_in(tokens, LONGEST + 1)
        padded = [batch.to(device) for batch in padded_batches(sentences, tokens // groups, PASSES)]
        steps: list[list[Any]] = [padded[at : at + groups] for at in range(0, PASSES, groups)]
    else:
        loss = PackedLoss(model, PackedTransformer(model, 128), precision, 0.1)
        count = int(np.searchsorted(np.cumsum([len(line) + 1 for line in sentences.target]), tokens))
        steps = [[pack_sentences(sentences.source[:count], sentences.target[:count], None).to(device)]] * 2
    with keep_freed_memory(device):
        for batches in steps:
            optimizer.zero_grad()
            for batch in batches:
                loss(batch).backward()
            optimizer.step()
    settings = [f"train.batch_tokens={tokens}"]
    config = Config.build(preset, None, settings).with_vocabulary(VOCABULARY, VOCABULARY)
    predicted = predicted_peak(config, Lengths(5_000), layout, device, precision)
    return {"predicted": predicted, "measured": measured_peak(device)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="*", default=["tiny", "small", "base"])
    parser.add_argument("--tokens", nargs="*", type=int, default=[2_048, 8_192])
    parser.add_argument("--layouts", nargs="*", default=["padded", "packed"])
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--one", action="store_true", help="measure one row in this process")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.presets[0], arguments.layouts[0], arguments.tokens[0], arguments.precision)))
        return
    ratios = {}
    for preset in arguments.presets:
        for layout in arguments.layouts:
            for tokens in arguments.tokens:
                row = ["--one", "--presets", preset, "--layouts", layout, "--tokens", str(tokens)]
                row += ["--precision", arguments.precision]
                done = subprocess.run(
                    [sys.executable, "-m", "benchmarks.memory", *row], capture_output=True, text=True, check=True
                )
                result = json.loads(done.stdout.splitlines()[-1])
                name = f"{preset}, {layout}, {tokens:,} tokens"
                ratios[name] = result["predicted"] / result["measured"]
                print(
                    f"{name:<32} predicted {result['predicted'] / 2**30:5.2f} GiB  "
                    f"measured {result['measured'] / 2**30:5.2f} GiB  ratio {ratios[name]:.2f}",
                    flush=True,
                )
    if arguments.json:
        print(json.dumps({"ratios": ratios}))


if __name__ == "__main__":
    main()
