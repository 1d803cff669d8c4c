"""Training speed on the CPU: the paper's model here and in torch.nn.Transformer, same tokens, optimiser and loss.

    python benchmarks/train_cpu.py [--preset base] [--batch-tokens 2000] [--steps 3] [--json]

Prints target tokens a second for each and the ratio ours / peer, measured in turns within one run.
"""

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from dragoman.config import TransformerConfig
from dragoman.model.positions import sinusoids
from dragoman.model.transformer import Transformer
from dragoman.train.loss import smoothed_cross_entropy


class TorchTransformer(nn.Module):
    """What a person would write around torch.nn.Transformer: shared embeddings, sinusoids, a causal mask."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        size = config.encoder
        self.scale = size.d_model**0.5
        self.embedding = nn.Embedding(config.vocab_size, size.d_model)
        nn.init.normal_(self.embedding.weight, std=size.d_model**-0.5)
        self.body = nn.Transformer(
            size.d_model, size.num_heads, size.num_layers, size.num_layers, size.d_ff, config.dropout, batch_first=True
        )
        self.register_buffer("positions", sinusoids(torch.arange(512), size.d_model).float())

    def forward(self, source: Tensor, target: Tensor, allowed: Tensor) -> Tensor:
        hidden = ~allowed
        embedded = [self.embedding(ids) * self.scale + self.positions[: ids.size(1)] for ids in (source, target)]  # type: ignore[index]
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(1)) < 0
        out = self.body(
            *embedded, tgt_mask=mask, src_key_padding_mask=hidden, memory_key_padding_mask=hidden, tgt_is_causal=True
        )
        return out @ self.embedding.weight.T


def make_batch(vocab_size: int, tokens: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sentences of WMT-like length, about 27 tokens, padded to the longest."""
    random = torch.Generator().manual_seed(seed)
    rows = tokens // 30
    lengths = torch.randint(24, 31, (rows,), generator=random)
    source = torch.randint(4, vocab_size, (rows, 30), generator=random)
    target = torch.randint(4, vocab_size, (rows, 30), generator=random)
    real = torch.arange(30) < lengths[:, None]
    return source, target, real, target.masked_fill(~real, 0)


def measure(steps: int, take_step: Callable[[int], int]) -> float:
    started = time.perf_counter()
    tokens = sum(take_step(step) for step in range(steps))
    return tokens / (time.perf_counter() - started)


def stepper(model: nn.Module, vocab_size: int, tokens: int) -> Callable[[int], int]:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def take_step(seed: int) -> int:
        source, target, allowed, goal = make_batch(vocab_size, tokens, seed)
        count = int((goal != 0).sum())
        loss = smoothed_cross_entropy(model(source, target, allowed), goal, 0.1) / count
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return count

    return take_step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="base")
    parser.add_argument("--batch-tokens", type=int, default=2_000)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    config = TransformerConfig.preset(arguments.preset, vocab_size=37_000)
    models = {"dragoman": Transformer(config), "torch.nn.Transformer": TorchTransformer(config)}
    steps = {name: stepper(model, config.vocab_size, arguments.batch_tokens) for name, model in models.items()}
    for take_step in steps.values():
        take_step(0)  # warm
    rates = {name: measure(arguments.steps, take_step) for name, take_step in steps.items()}
    ours = rates["dragoman"]
    ratios = {name: ours / rate for name, rate in rates.items() if name != "dragoman"}
    if arguments.json:
        print(json.dumps({"target_tokens_per_second": rates, "ratios": ratios, "threads": torch.get_num_threads()}))
        return
    for name, rate in rates.items():
        print(f"{name:<22} {rate:8.1f} target tokens/s")
    for name, ratio in ratios.items():
        print(f"dragoman / {name}: {ratio:.2f}")


if __name__ == "__main__":
    main()
