"""Training speed on one GPU: the paper's base model here, in torch.nn.Transformer and in Hugging Face Marian.

    python benchmarks/train_gpu.py [--preset base] [--tokens 25600] [--steps 40] [--only NAME ...] [--json]

The same loss, fused Adam, bfloat16 autocast. Ours takes sentences of WMT-like lengths (made here) as they come. Peers
get what serves them best: eager, padded batches of like length from the same sentences; compiled, batches of one
single shape, 25 to 31 tokens padded to 32, so that they compile once and waste little. Counted are real target tokens a
second, after a warm-up. Also: model FLOP/s as a share of the matrix rate measured in the same run, and peak memory.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.train_cpu import TorchTransformer
from dragoman.config import TransformerConfig
from dragoman.data.batching import Batch, BatchPlan, teacher_forcing
from dragoman.data.packing import PackedBatch, Shape, pack_sentences
from dragoman.model.footprint import parameter_counts
from dragoman.model.kernels import BLOCK
from dragoman.model.packed import PackedTransformer
from dragoman.model.transformer import Transformer
from dragoman.train.loss import projected_cross_entropy, smoothed_cross_entropy

VOCABULARY = 37_000
WARM_UP = 12


@dataclass(frozen=True)
class Sentences:
    """A made corpus: lengths of a WMT-like distribution, mean 27, source and target alike but not equal."""

    source: list[list[int]]
    target: list[list[int]]


def make_sentences(count: int) -> Sentences:
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(3.08, 0.62, size=count), 2, 120).astype(int)
    others = np.clip(lengths * random.normal(1.03, 0.15, size=count), 2, 120).astype(int)
    sides = []
    for sizes in (lengths, others):
        flat = random.integers(4, VOCABULARY, size=sizes.sum())
        sides.append([part.tolist() for part in np.split(flat, np.cumsum(sizes)[:-1])])
    return Sentences(*sides)


def packed_batches(sentences: Sentences, tokens: int, count: int) -> list[PackedBatch]:
    """As the training loop makes them: random order, filled up to one shape."""
    shape = Shape(tokens, tokens, tokens // 16, BLOCK)
    batches: list[PackedBatch] = []
    start = 0
    sizes = np.array([[len(s) + 1, len(t) + 1] for s, t in zip(sentences.source, sentences.target, strict=True)])
    totals = np.cumsum(sizes, axis=0)
    while len(batches) < count:
        before = totals[start - 1] if start else np.zeros(2, dtype=int)
        end = min(int(np.searchsorted(totals[:, side], before[side] + tokens - 1, "right")) for side in (0, 1))
        batches.append(pack_sentences(sentences.source[start:end], sentences.target[start:end], shape))
        start = end
    return batches


def padded_batches(sentences: Sentences, tokens: int, count: int) -> list[Batch]:
    """Length-sorted, as the peers' own loaders make them; the same average of lengths as above."""
    source_lengths, target_lengths = (np.array(list(map(len, side))) for side in (sentences.source, sentences.target))
    plan = BatchPlan(source_lengths, target_lengths, batch_tokens=tokens, seed=1)
    return [
        teacher_forcing(rows, [sentences.source[row] for row in rows], [sentences.target[row] for row in rows])
        for rows in plan.epoch(0)[:count]
    ]


def uniform_batches(tokens: int, count: int) -> list[Batch]:
    """One shape for all: sentences of 25 to 31 tokens, padded to 32 with their </s>."""
    random = np.random.default_rng(1)
    batches = []
    for _ in range(count):
        lengths = random.integers(25, 32, size=(2, tokens // 32))
        lengths[:, 0] = 31
        sides = [[random.integers(4, VOCABULARY, size=length).tolist() for length in side] for side in lengths]
        batches.append(teacher_forcing(np.arange(tokens // 32), *sides))
    return batches


class Marian(nn.Module):
    """Hugging Face's Marian with the same sizes."""

    def __init__(self, config: TransformerConfig) -> None:
        from transformers import MarianConfig, MarianMTModel

        super().__init__()
        size = config.encoder
        self.body = MarianMTModel(
            MarianConfig(
                vocab_size=config.vocab_size, d_model=size.d_model, encoder_layers=size.num_layers,
                decoder_layers=size.num_layers, encoder_attention_heads=size.num_heads,
                decoder_attention_heads=size.num_heads, encoder_ffn_dim=size.d_ff, decoder_ffn_dim=size.d_ff,
                dropout=config.dropout, activation_function="relu", scale_embedding=True, pad_token_id=0,
                eos_token_id=3, bos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None,
            )
        )  # fmt: skip

    def forward(self, source: Tensor, target: Tensor, allowed: Tensor) -> Tensor:
        result = self.body(input_ids=source, attention_mask=allowed, decoder_input_ids=target, use_cache=False)
        return result.logits


def optimiser(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)


def padded_step(model: nn.Module, compiled: bool) -> Callable[[Any], None]:
    run = torch.compile(model, dynamic=False) if compiled else model
    update = optimiser(model)

    def step(batch: Batch) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            logits = run(batch.source_ids, batch.target_input, batch.source_allowed)
        loss = smoothed_cross_entropy(logits, batch.target_output, 0.1) / batch.num_tokens
        update.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        update.step()

    return step


def packed_step(model: Transformer, compiled: bool) -> Callable[[Any], None]:
    packed = PackedTransformer(model)
    run = torch.compile(packed, dynamic=False) if compiled else packed
    update = optimiser(model)

    def step(batch: PackedBatch) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            hidden = run(batch.source_ids_N, batch.target_input_N, batch.source, batch.target)
        weight, bias = model.output.weight, model.output.bias
        loss = projected_cross_entropy(hidden.bfloat16(), weight, bias, batch.target_output_N, 0.1) / batch.num_tokens
        update.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        update.step()

    return step


def measure(step: Callable[[Any], None], batches: list[Any], steps: int) -> dict[str, float]:
    """Tokens a second over `steps` after the warm-up; batches lie on the GPU already for everyone."""
    moved = [batch.to(torch.device("cuda")) for batch in batches]
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    for number in range(WARM_UP):
        step(moved[number % len(moved)])
    torch.cuda.synchronize()
    warm_seconds, started = time.perf_counter() - started, time.perf_counter()
    tokens = 0
    for number in range(steps):
        batch = moved[number % len(moved)]
        step(batch)
        tokens += batch.num_tokens
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    return {
        "tokens_per_second": tokens / seconds,
        "step_ms": 1000 * seconds / steps,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "warm_up_seconds": warm_seconds,
    }


def matrix_rate() -> float:
    """bf16 FLOP/s of a large product, here and now."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(10):
        a @ b
    torch.cuda.synchronize()
    return 10 * 2 * 8192**3 / (time.perf_counter() - started)


def flops_per_token(config: TransformerConfig) -> float:
    """Six for each parameter that a target token (and, alike, a source token) meets; attention's own not counted."""
    counts = parameter_counts(config)
    layers = sum(count for part, count in counts.items() if part.startswith(("encoder", "decoder")))
    return 6.0 * (layers + config.target_vocabulary * config.decoder.d_model)


def systems(config: TransformerConfig) -> Iterator[tuple[str, Callable[[], Callable[[Any], None]], str]]:
    """Name, how to make its step, and which batches it takes."""
    yield "dragoman", lambda: packed_step(Transformer(config).cuda(), True), "packed"
    yield "dragoman, eager", lambda: packed_step(Transformer(config).cuda(), False), "packed"
    for name, model in (
        ("dragoman, padded path", Transformer),
        ("torch.nn.Transformer", TorchTransformer),
        ("Hugging Face Marian", Marian),
    ):
        yield f"{name}, eager", lambda model=model: padded_step(model(config).cuda(), False), "padded"  # type: ignore[misc]
        yield f"{name}, compiled", lambda model=model: padded_step(model(config).cuda(), True), "uniform"  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="base")
    parser.add_argument("--tokens", type=int, default=25_600)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--only", nargs="*", help="names that start so")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    config = TransformerConfig.preset(arguments.preset, vocab_size=VOCABULARY)
    sentences = make_sentences(30_000)
    count = 16
    batches: dict[str, list[Any]] = {
        "packed": packed_batches(sentences, arguments.tokens, count),
        "padded": padded_batches(sentences, arguments.tokens, count),
        "uniform": uniform_batches(arguments.tokens, count),
    }
    peak = matrix_rate()
    results: dict[str, dict[str, float]] = {}
    for name, make, kind in systems(config):
        if arguments.only and not name.startswith(tuple(arguments.only)):
            continue
        torch.manual_seed(0)
        torch.compiler.reset()
        try:
            results[name] = measure(make(), batches[kind], arguments.steps)
        except Exception as error:
            print(f"{name}: failed: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        result = results[name]
        result["share_of_matrix_rate"] = result["tokens_per_second"] * flops_per_token(config) / peak
        print(f"{name:<32}", "  ".join(f"{key} {value:,.3f}" for key, value in result.items()), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    ours = results.get("dragoman", {}).get("tokens_per_second", 0.0)
    ratios = {
        name: ours / result["tokens_per_second"] for name, result in results.items() if not name.startswith("dragoman")
    }
    if ratios:
        ratios["best peer"] = min(ratios.values())
    for name, ratio in ratios.items():
        print(f"dragoman / {name}: {ratio:.2f}")
    if arguments.json:
        print(json.dumps({"results": results, "ratios": ratios, "matrix_tflops": peak / 1e12}))


if __name__ == "__main__":
    main()
