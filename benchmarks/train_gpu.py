"""Training speed on one GPU: the paper's base model in dragoman, torch.nn.Transformer and Hugging Face Marian.

    python benchmarks/train_gpu.py [--preset base] [--tokens 25600] [--steps 40] [--only NAME ...] [--json]

All systems use the same loss, fused Adam and bfloat16 autocast. dragoman packs generated sentences of WMT-like lengths
in random order. Peers get the same sentences, padded in batches bucketed by length, both eager and compiled for any
shape. They also get their best case: compiled for a single shape, with sentences of 25 to 31 tokens padded to 32. The
best of these counts. Speed is real target tokens per second after a warm-up. Model FLOP/s as a share of the matrix rate
in the same run and peak memory are printed too.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.training_peers import (
    VOCABULARY,
    Marian,
    Sentences,
    TorchTransformer,
    flops_per_token,
    make_sentences,
    padded_batches,
    uniform_batches,
)
from dragoman.config import TransformerConfig
from dragoman.data.batching import Batch
from dragoman.data.packing import PackedBatch, Shape, pack_sentences
from dragoman.model.loss import projected_cross_entropy, smoothed_cross_entropy
from dragoman.model.packed import PackedTransformer
from dragoman.model.transformer import Transformer
from dragoman.training.cuda_graph import GradientGraph

WARM_UP = 12


def packed_batches(sentences: Sentences, tokens: int, count: int) -> list[PackedBatch]:
    """As in the training loop: random order, filled up to one shape."""
    from dragoman.model.kernels import BLOCK, LONGEST_WHOLE

    shape = Shape(tokens, tokens, tokens // 16, LONGEST_WHOLE, BLOCK)
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


def optimiser(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)


def padded_step(model: nn.Module, compiled: bool, any_shape: bool = False) -> Callable[[Any], None]:
    run = torch.compile(model, dynamic=any_shape) if compiled else model
    update = optimiser(model)

    def step(batch: Batch) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            logits = run(batch.source_ids, batch.target_input, batch.source_allowed)
        loss = smoothed_cross_entropy(logits, batch.target_output, 0.1) / batch.num_tokens
        update.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        update.step()

    return step


def packed_step(model: Transformer, compiled: bool, example: PackedBatch | None = None) -> Callable[[Any], None]:
    """As in the training loop: compiled, and, given an example of the batches, as a CUDA graph."""
    packed = PackedTransformer(model, 128)
    run = torch.compile(packed, dynamic=False) if compiled else packed
    update = optimiser(model)

    def loss_of(batch: Any) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            hidden = run(batch.source_ids_N, batch.target_input_N, batch.source, batch.target)
        weight, bias = model.output.weight, model.output.bias
        return projected_cross_entropy(hidden.bfloat16(), weight, bias, batch.target_output_N, 0.1)

    graph = None
    if example is not None:
        graph = GradientGraph(loss_of, example.to(torch.device("cuda")), list(model.parameters()), accumulates=False)

    def step(batch: PackedBatch) -> None:
        if graph is None:
            update.zero_grad(set_to_none=True)
            (loss_of(batch) / batch.num_tokens).backward()  # type: ignore[no-untyped-call]
        else:
            graph(batch, batch.num_tokens, first=True)
        update.step()

    return step


def measure(step: Callable[[Any], None], batches: list[Any], steps: int) -> dict[str, float]:
    """Tokens per second over `steps` after the warm-up; batches are already on the GPU for every system."""
    moved = [batch.to(torch.device("cuda")) for batch in batches]
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
    """bf16 FLOP/s of a large product, measured now."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(10):
        a @ b
    torch.cuda.synchronize()
    return 10 * 2 * 8192**3 / (time.perf_counter() - started)


def systems(
    config: TransformerConfig, example: PackedBatch
) -> Iterator[tuple[str, Callable[[], Callable[[Any], None]], str]]:
    """Name, how to build its step, and which batches it takes."""
    yield "dragoman", lambda: packed_step(Transformer(config).cuda(), True, example), "packed"
    yield "dragoman, no CUDA graph", lambda: packed_step(Transformer(config).cuda(), True), "packed"
    yield "dragoman, eager", lambda: packed_step(Transformer(config).cuda(), False), "packed"
    for name, model in (
        ("dragoman, padded path", Transformer),
        ("torch.nn.Transformer", TorchTransformer),
        ("Hugging Face Marian", Marian),
    ):
        yield f"{name}, eager", lambda model=model: padded_step(model(config).cuda(), False), "padded"  # type: ignore[misc]
        yield f"{name}, one shape", lambda model=model: padded_step(model(config).cuda(), True), "uniform"  # type: ignore[misc]
    for name, model in (("Hugging Face Marian", Marian), ("torch.nn.Transformer", TorchTransformer)):
        # last: this takes minutes to compile
        yield f"{name}, any shape", lambda model=model: padded_step(model(config).cuda(), True, True), "padded"  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="base")
    parser.add_argument("--tokens", type=int, default=25_600)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--only", nargs="*", help="only these systems, by their names in the table")
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
    for name, make, kind in systems(config, batches["packed"][0]):
        if arguments.only and name not in arguments.only:
            continue
        torch.manual_seed(0)
        torch.compiler.reset()
        torch.cuda.reset_peak_memory_stats()
        try:
            results[name] = measure(make(), batches[kind], arguments.steps)
        except Exception as error:
            print(f"{name}: failed: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        result = results[name]
        rate = result["tokens_per_second"] * flops_per_token(config)
        result["model_tflops"], result["share_of_matrix_rate"] = rate / 1e12, rate / peak
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
