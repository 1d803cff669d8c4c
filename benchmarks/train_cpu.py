"""Training speed on the CPU: the paper's base model in dragoman and other libraries; same data, loss and optimiser.

    OMP_NUM_THREADS=2 python -m benchmarks.train_cpu [--preset base] [--tokens 2000] [--steps 4] [--rounds 3]
        [--precision float32|bfloat16] [--peers-keep-memory] [--only NAME ...] [--json]

10,000 sentences of WMT-like lengths are sorted by length and split into batches of about `--tokens` real target tokens.
`--steps` of these batches are used, spread over all lengths. Padded systems get these batches, which have hardly any
padding. "packed" gets the same sentences shuffled and split by the same budget, as in the training loop. "packed, like
lengths" gets the same batches as the padded systems. Compiled systems see the shape of each batch during warm-up: as
many shapes as steps, compiled exactly, with no padding added.

Systems take turns, each turn in a separate process. A round runs the matrix product and every system once: all batches
as a warm-up, then all batches measured. Speed is real target tokens per second, the median of the rounds. Model FLOPs
are six per parameter that a real token uses, plus the products of attention. Their share is relative to the best rate
of a large matrix product in the same run, precision and number of threads. Speed by CPU time (of all threads) is
printed too; with one thread, other programs affect it less than wall-clock time. Peak memory is that of the whole
process, including Python and its libraries. dragoman runs as in its training loop, which keeps freed memory
(`keep_freed_memory`); `--peers-keep-memory` does the same for the other systems.
"""

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.training_peers import (
    VOCABULARY,
    JoeyNMT,
    Marian,
    OpenNMT,
    Sentences,
    TorchTransformer,
    drop_as_the_paper,
    make_sentences,
)
from dragoman.config import TransformerConfig
from dragoman.data.batching import teacher_forcing
from dragoman.data.packing import pack_sentences
from dragoman.device import keep_freed_memory
from dragoman.model.footprint import parameter_counts
from dragoman.model.loss import projected_cross_entropy, smoothed_cross_entropy
from dragoman.model.packed import PackedTransformer
from dragoman.model.transformer import Transformer

MATRIX = "matrix product"
SENTENCES = 10_000
LONGEST = 121  # tokens of the longest sentence, including </s>
PEERS: dict[str, Callable[[TransformerConfig], nn.Module]] = {
    "torch.nn.Transformer": TorchTransformer,
    "Hugging Face Marian": Marian,
    "JoeyNMT": JoeyNMT,
    "OpenNMT-py": OpenNMT,
}
SYSTEMS = (
    "dragoman, packed",
    "dragoman, packed, like lengths",
    "dragoman, padded",
    "dragoman, padded, compiled",
    *(f"{peer}, {how}" for peer in ("torch.nn.Transformer", "Hugging Face Marian") for how in ("eager", "compiled")),
    "JoeyNMT, eager",
    "OpenNMT-py, eager",
)


@dataclass(frozen=True)
class Options:
    preset: str
    tokens: int
    steps: int
    precision: str
    peers_keep_memory: bool = False

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.precision == "float32" else torch.bfloat16


# ---- the sentences, and the cost of a step over them


def bucket_by_length(sentences: Sentences, tokens: int, count: int) -> list[list[int]]:
    """Rows of `count` batches, sorted by length, about `tokens` real target tokens each, spread over all lengths."""
    sizes = np.array([[len(t), len(s)] for s, t in zip(sentences.source, sentences.target, strict=True)]) + 1
    order = np.argsort(sizes.max(axis=1), kind="stable")
    ends = np.cumsum(sizes[order, 0])
    batches = []
    for part in range(count):
        middle = (part + 0.5) / count * ends[-1]
        first, last = np.searchsorted(ends, (middle - tokens / 2, middle + tokens / 2))
        batches.append([int(row) for row in order[first:last]])
    return batches


def shuffled(batches: list[list[int]], sentences: Sentences) -> list[list[int]]:
    """The same rows in random order, cut where the tokens reach the same share."""
    rows = np.random.default_rng(1).permutation(np.concatenate(batches))
    ends = np.cumsum([len(sentences.target[row]) + 1 for row in rows])
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, len(batches)) / len(batches))
    return [part.tolist() for part in np.split(rows, cuts)]


def model_flops(config: TransformerConfig, pairs: list[tuple[int, int]]) -> float:
    """FLOPs of a training step on these lengths, </s> counted: forward once, backward twice."""
    counts = parameter_counts(config)
    encoder = sum(count for part, count in counts.items() if part.startswith("encoder"))
    decoder = sum(count for part, count in counts.items() if part.startswith("decoder"))
    keys_values = counts["decoder cross-attention"] / 2  # the half that a source token meets
    output = config.target_vocabulary * config.decoder.d_model
    lengths = np.array(pairs, dtype=float)
    source, target = lengths.sum(axis=0)
    products = 6.0 * ((encoder + keys_values) * source + (decoder - keys_values + output) * target)
    wide, deep = config.encoder.d_model, config.encoder.num_layers
    pairs_attended = lengths[:, 0] ** 2 + lengths[:, 1] ** 2 / 2 + lengths[:, 0] * lengths[:, 1]
    return float(products + 12.0 * wide * deep * pairs_attended.sum())


# ---- a system: its model, its batches, its step


def padded_step(model: nn.Module, compiled: bool, options: Options) -> Callable[[Any], None]:
    run = torch.compile(model, dynamic=False) if compiled else model
    update = optimiser(model)

    def step(batch: Any) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=options.dtype == torch.bfloat16):
            logits = run(batch.source_ids, batch.target_input, batch.source_allowed)
        take(update, smoothed_cross_entropy(logits, batch.target_output, 0.1) / batch.num_tokens)

    return step


def packed_step(model: Transformer, options: Options) -> Callable[[Any], None]:
    run = PackedTransformer(model, LONGEST)
    update = optimiser(model)

    def step(batch: Any) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=options.dtype == torch.bfloat16):
            hidden = run(batch.source_ids_N, batch.target_input_N, batch.source, batch.target)
        weight, bias = model.output.weight, model.output.bias
        loss = projected_cross_entropy(hidden.to(options.dtype), weight, bias, batch.target_output_N, 0.1)
        take(update, loss / batch.num_tokens)

    return step


def optimiser(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)


def take(update: torch.optim.Optimizer, loss: Tensor) -> None:
    update.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    update.step()


def prepare(name: str, options: Options) -> tuple[Callable[[Any], None], list[Any]]:
    """The step of this system, and its batches."""
    torch.manual_seed(0)
    config = TransformerConfig.preset(options.preset, vocab_size=VOCABULARY)
    sentences = make_sentences(SENTENCES)
    rows = bucket_by_length(sentences, options.tokens, options.steps)
    compiled = name.endswith("compiled")
    if name == "dragoman, packed":
        rows = shuffled(rows, sentences)
    chosen = [([sentences.source[row] for row in part], [sentences.target[row] for row in part]) for part in rows]
    if name.startswith("dragoman, packed"):
        packed = [pack_sentences(*pair, None) for pair in chosen]
        return packed_step(Transformer(config), options), packed
    if name.startswith("dragoman"):
        model: nn.Module = Transformer(config)
    else:
        model = drop_as_the_paper(PEERS[name.rsplit(", ", 1)[0]](config))
    return padded_step(model, compiled, options), [teacher_forcing(*pair) for pair in chosen]


def matrix_rate(dtype: torch.dtype) -> dict[str, float]:
    """FLOP/s of a large product, the best of a few, measured now; by wall-clock and by CPU time."""
    best = {"rate": 0.0, "cpu_rate": 0.0}
    for size in (1024, 2048):
        a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
        a @ b
        for _ in range(4):
            clock, cpu = timed(lambda a=a, b=b: a @ b)  # type: ignore[misc]
            best = {
                "rate": max(best["rate"], 2 * size**3 / clock),
                "cpu_rate": max(best["cpu_rate"], 2 * size**3 / cpu),
            }
    return best


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of wall-clock time, and of CPU time of all this process's threads."""
    clock, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - clock, time.process_time() - cpu


# ---- turns


def serve(name: str, options: Options, line: Connection) -> None:
    """One turn of one system, in a separate process."""
    try:
        if name == MATRIX:
            line.send({"threads": torch.get_num_threads(), **matrix_rate(options.dtype)})
            return
        step, batches = prepare(name, options)
        keeps = name.startswith("dragoman") or options.peers_keep_memory
        with keep_freed_memory(torch.device("cpu")) if keeps else nullcontext():
            warm_up, _ = timed(lambda: [step(batch) for batch in batches])
            clock, cpu = timed(lambda: [step(batch) for batch in batches])
        tokens = sum(batch.num_tokens for batch in batches)
        line.send(
            {"warm_up": warm_up, "seconds": clock, "cpu_seconds": cpu, "tokens": tokens, "peak_gib": peak_memory()}
        )
    except Exception as error:
        line.send({"error": f"{type(error).__name__}: {str(error)[:300]}"})


def peak_memory() -> float:
    """The high-water mark of this process in GiB. Not getrusage's, which starts from the parent's."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0.0
    return next(int(row.split()[1]) for row in status.read_text().splitlines() if row.startswith("VmHWM")) / 2**20


def take_turn(name: str, options: Options) -> dict[str, Any]:
    """One system at a time, so that only one model is in memory; the compiler's results stay on disk."""
    context = multiprocessing.get_context("spawn")
    line, other = context.Pipe()
    process = context.Process(target=serve, args=(name, options, other))
    process.start()
    other.close()
    try:
        answer: dict[str, Any] = line.recv()
    except EOFError:
        answer = {"error": "the process ended unexpectedly"}
    process.join()
    return answer


def take_turns(names: list[str], options: Options, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Run all systems in turn, round after round; one that fails is reported and left out."""
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in (MATRIX, *names)}
    for number in range(rounds):
        for name in list(turns):
            answer = take_turn(name, options)
            if "error" in answer:
                print(f"{name}: not measured: {answer['error']}", flush=True)
                del turns[name]
                continue
            turns[name].append(answer)
            if name != MATRIX:
                speed = answer["tokens"] / answer["seconds"]
                print(f"round {number + 1}: {name}: {speed:.1f} target tokens/s", flush=True)
    return turns


def summary(turns: dict[str, list[dict[str, Any]]], options: Options) -> dict[str, Any]:
    config = TransformerConfig.preset(options.preset, vocab_size=VOCABULARY)
    sentences = make_sentences(SENTENCES)
    rows = [row for part in bucket_by_length(sentences, options.tokens, options.steps) for row in part]
    pairs = [(len(sentences.source[row]) + 1, len(sentences.target[row]) + 1) for row in rows]
    flops, tokens = model_flops(config, pairs), sum(target for _, target in pairs)
    peak = {kind: max(turn[kind] for turn in turns[MATRIX]) for kind in ("rate", "cpu_rate")}
    table: dict[str, dict[str, float]] = {}
    for name, measured in turns.items():
        if name == MATRIX:
            continue
        clock, cpu = (statistics.median(turn[kind] for turn in measured) for kind in ("seconds", "cpu_seconds"))
        table[name] = {
            "tokens_per_second": tokens / clock,
            "lowest": tokens / max(turn["seconds"] for turn in measured),
            "highest": tokens / min(turn["seconds"] for turn in measured),
            "model_gflops": flops / clock / 1e9,
            "share_of_matrix_rate": flops / clock / peak["rate"],
            "tokens_per_cpu_second": tokens / cpu,
            "share_of_matrix_rate_by_cpu_time": flops / cpu / peak["cpu_rate"],
            "first_warm_up_seconds": measured[0]["warm_up"],
            "peak_gib": max(turn["peak_gib"] for turn in measured),
        }
    ours = [name for name in table if name.startswith("dragoman")]
    peers = [name for name in table if name not in ours]
    best = max(ours, key=lambda name: table[name]["tokens_per_second"], default=None)
    ratios, cpu_ratios = (
        {name: table[best][speed] / table[name][speed] for name in peers} if best is not None else {}
        for speed in ("tokens_per_second", "tokens_per_cpu_second")
    )
    if ratios:
        ratios["best peer"] = min(ratios.values())
    return {
        "results": table,
        "ours": best,
        "ratios": ratios,
        "cpu_time_ratios": cpu_ratios,
        "matrix_gflops": peak["rate"] / 1e9,
        "matrix_gflops_by_cpu_time": peak["cpu_rate"] / 1e9,
        "target_tokens_per_step": tokens / options.steps,
        "precision": options.precision,
        "threads": turns[MATRIX][0]["threads"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="base")
    parser.add_argument("--tokens", type=int, default=2_000, help="approximate number of real target tokens per step")
    parser.add_argument("--steps", type=int, default=4, help="steps in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--only", nargs="*", help="only systems whose name starts with one of these")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--peers-keep-memory", action="store_true", help="keep freed memory, as dragoman's training loop does"
    )
    arguments = parser.parse_args()
    options = Options(
        arguments.preset, arguments.tokens, arguments.steps, arguments.precision, arguments.peers_keep_memory
    )
    names = [name for name in SYSTEMS if not arguments.only or name.startswith(tuple(arguments.only))]
    found = summary(take_turns(names, options, arguments.rounds), options)
    print(f"matrix products: {found['matrix_gflops']:.0f} GFLOP/s, {found['threads']} threads, {options.precision}")
    for name, row in found["results"].items():
        print(
            f"{name:<42} {row['tokens_per_second']:7.1f} target tokens/s ({row['lowest']:.1f} to {row['highest']:.1f})"
            f"  {row['model_gflops']:6.1f} GFLOP/s, {row['share_of_matrix_rate']:.0%}  {row['peak_gib']:.1f} GiB"
            f"  by CPU time {row['tokens_per_cpu_second']:.1f}, {row['share_of_matrix_rate_by_cpu_time']:.0%}"
        )
    for name, ratio in found["ratios"].items():
        print(f"{found['ours']} / {name}: {ratio:.2f}")
    if arguments.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
