"""The gain from a second process: training on two CPU ranks of one thread each against one process with one thread.

    python -m benchmarks.scaling [--presets small base] [--rounds 20] [--json]

Every step is that of the training loop: the padded layout's loss and gradients, their norm, the loss summed over ranks,
fused Adam. Two measures:

    same global batch    one process does both batches of a step (train.accumulate=2), two ranks one each
    same batch a rank    one process steps after every batch, two ranks after two: twice the global batch

Speed is real target tokens per second of wall-clock time. The systems take turns, one step each. The best of many
rounds counts, the one least disturbed by other programs; medians are printed too. The ideal is 2. The limit of the
machine is measured in the same run: the same two processes without communication ("two apart"). The gap between that
and 2 is due to the machine; the rest is communication and waiting for the slower rank.

"By CPU time" uses the CPU time of each process, including its communication threads, which does not count other
programs. A step takes as long as its busiest rank, and waiting for a message is free. The all-reduce of the gradients
is also timed alone, without overlap.
"""

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.training_peers import LONGEST, Sentences, make_sentences
from dragoman.config import Config, TransformerConfig
from dragoman.data.batching import Batch, BatchPlan, teacher_forcing
from dragoman.data.store import Store
from dragoman.model.footprint import parameter_counts
from dragoman.model.transformer import Transformer
from dragoman.tasks.translation import TranslationTask
from dragoman.training.distributed import Ranks, gradient_norm, shard
from dragoman.training.gradients import Padded

RANKS = 2
TOKENS = {"tiny": 256, "small": 2_048, "base": 512}  # per batch, padding counted
ONE, DDP, FSDP = "one process", "two ranks, ddp", "two ranks, fsdp"


@dataclass(frozen=True)
class Options:
    preset: str
    port: int  # where ranks meet

    @property
    def model(self) -> TransformerConfig:
        vocabulary = Config.build(self.preset).text.vocab_size
        return TransformerConfig.preset(self.preset, vocab_size=vocabulary)


def make_batches(options: Options) -> list[Batch]:
    """The batches of one step, the same in every process: of similar size, as all batches are on average."""
    made = make_sentences(30_000)
    vocabulary = options.model.vocab_size
    source, target = (
        [[4 + token % (vocabulary - 4) for token in ids] for ids in side] for side in (made.source, made.target)
    )
    sentences = Sentences(source, target)
    lengths = [np.array(list(map(len, side))) for side in (source, target)]
    plan = BatchPlan(np.maximum(*lengths) + 1, batch_tokens=TOKENS[options.preset], seed=1)
    batches = [
        teacher_forcing([sentences.source[row] for row in rows], [sentences.target[row] for row in rows])
        for rows in plan.epoch(0)[:50]
    ]
    batches.sort(key=lambda batch: batch.num_tokens)
    return batches[25 : 25 + RANKS]


def no_store(epoch: int) -> Store:
    raise AssertionError("the batches already exist")


class Worker:
    """One process of a system."""

    def __init__(self, system: str, rank: int, options: Options) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.ranks = Ranks() if system == ONE else Ranks(rank, RANKS, rank)
        if self.ranks.world > 1:
            os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(options.port))
            dist.init_process_group("gloo", rank=rank, world_size=RANKS)
        self.batches = make_batches(options)
        model = Transformer(options.model)
        if system == FSDP:
            shard(model, self.ranks)
        task, settings, cpu = TranslationTask(), Config.build(options.preset).train, torch.device("cpu")
        self.layout = Padded(task, settings, no_store, LONGEST + 1, model, cpu, torch.float32, self.ranks)
        # the same weights with no other rank to wait for
        self.apart = Padded(task, settings, no_store, LONGEST + 1, model, cpu, torch.float32, Ranks())
        self.parameters = list(model.parameters())
        self.message = torch.zeros(sum(parameter.numel() for parameter in self.parameters))
        self.optimizer = torch.optim.Adam(self.parameters, lr=1e-5, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def step(self, layout: Padded, ranks: Ranks, batches: list[Batch], tokens: int) -> None:
        loss = layout.gradients([[batch] for batch in batches], tokens)
        gradient_norm(self.parameters, 1.0)
        ranks.all_reduce(loss)
        self.optimizer.step()

    def together(self) -> None:
        """Both batches in one step."""
        own = self.batches[self.ranks.rank :: self.ranks.world]
        self.step(self.layout, self.ranks, own, sum(batch.num_tokens for batch in self.batches))

    def one_by_one(self) -> None:
        """In a single process: a step after every batch."""
        for batch in self.batches:
            self.step(self.layout, self.ranks, [batch], batch.num_tokens)

    def two_apart(self) -> None:
        """Every rank steps on its own batch: nothing is sent."""
        own = self.batches[self.ranks.rank]
        self.step(self.apart, Ranks(), [own], own.num_tokens)

    def all_reduce(self) -> None:
        """All-reduce the gradients of a step in one message, with nothing to overlap it."""
        dist.all_reduce(self.message)


def serve(system: str, rank: int, options: Options, line: Connection) -> None:
    """Warm up, then run what is requested until the requests end; answer with seconds of wall-clock and CPU time."""
    worker = Worker(system, rank, options)
    for _ in range(2):
        worker.together()
    line.send(sum(batch.num_tokens for batch in worker.batches))
    while name := line.recv():
        work: Callable[[], None] = getattr(worker, name)
        worker.ranks.barrier()
        started = time.perf_counter(), time.process_time()
        work()
        used = time.process_time() - started[1]
        worker.ranks.barrier()
        line.send((time.perf_counter() - started[0], used))


class System:
    """The parent's end of one or two processes."""

    def __init__(self, name: str, options: Options) -> None:
        context = multiprocessing.get_context("spawn")
        self._lines: list[Connection] = []
        self._processes = []
        self.seconds: dict[str, list[float]] = {}  # wall-clock time
        self.used: dict[str, list[float]] = {}  # CPU time
        for rank in range(1 if name == ONE else RANKS):
            line, other = context.Pipe()
            process = context.Process(target=serve, args=(name, rank, options, other), daemon=True)
            process.start()
            other.close()
            self._lines.append(line)
            self._processes.append(process)
        self.tokens = max(line.recv() for line in self._lines)

    def turn(self, work: str) -> None:
        for line in self._lines:
            line.send(work)
        answers = [line.recv() for line in self._lines]
        self.seconds.setdefault(work, []).append(max(seconds for seconds, _ in answers))
        self.used.setdefault(work, []).append(max(used for _, used in answers))

    def finish(self) -> None:
        for line in self._lines:
            line.send("")
        for process in self._processes:
            process.join()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


TURNS = {
    "one process, two batches per step": (ONE, "together"),
    "two ranks, ddp": (DDP, "together"),
    "one process, one batch a step": (ONE, "one_by_one"),
    "two apart": (DDP, "two_apart"),
    "two ranks, fsdp": (FSDP, "together"),
    "all-reduce alone": (DDP, "all_reduce"),
}
RATIOS = {
    "ddp, same global batch": ("two ranks, ddp", "one process, two batches per step"),
    "ddp, same batch a rank": ("two ranks, ddp", "one process, one batch a step"),
    "fsdp, same global batch": ("two ranks, fsdp", "one process, two batches per step"),
    "two apart": ("two apart", "one process, one batch a step"),
}


def measure(preset: str, rounds: int) -> dict[str, Any]:
    systems = {name: System(name, Options(preset, free_port())) for name in (ONE, DDP, FSDP)}
    for _ in range(rounds):
        for name, work in TURNS.values():
            systems[name].turn(work)
    tokens = systems[ONE].tokens
    for system in systems.values():
        system.finish()
    seconds = {row: systems[name].seconds[work] for row, (name, work) in TURNS.items()}
    used = {row: systems[name].used[work] for row, (name, work) in TURNS.items()}
    best = {row: min(values) for row, values in seconds.items()}
    middle = {row: statistics.median(values) for row, values in seconds.items()}
    busy = {row: statistics.median(values) for row, values in used.items()}
    ratios = {name: best[below] / best[above] for name, (above, below) in RATIOS.items()}
    by_cpu = {f"{name}, by CPU time": busy[below] / busy[above] for name, (above, below) in RATIOS.items()}
    parameters = sum(parameter_counts(Options(preset, 0).model).values())
    return {
        "parameters": parameters,
        "gradient_megabytes": parameters * 4 / 1e6,
        "target_tokens_a_step": tokens,
        "systems": {
            row: {
                "tokens_per_second": tokens / best[row],
                "step_seconds": best[row],
                "median_step_seconds": middle[row],
                "cpu_seconds": busy[row],
            }
            for row in TURNS
        },
        "ratios": {**ratios, **by_cpu},
        "median_ratios": {name: middle[below] / middle[above] for name, (above, below) in RATIOS.items()},
    }


def report(preset: str, found: dict[str, Any]) -> None:
    tokens = found["target_tokens_a_step"]
    print(f"{preset}: {found['parameters']:,} parameters, {tokens:,} target tokens in two batches")
    for name, row in found["systems"].items():
        speed = "" if name.startswith("all-reduce") else f"{row['tokens_per_second']:9,.1f} target tokens/s"
        print(
            f"  {name:<34} {speed:>26}  {row['step_seconds']:.3f} s for both batches "
            f"(median {row['median_step_seconds']:.3f}, CPU {row['cpu_seconds']:.3f})"
        )
    print(f"  gradients: {found['gradient_megabytes']:.0f} MB")
    for name, ratio in found["ratios"].items():
        print(f"  {name:<40} {ratio:.2f}")
    for name, ratio in found["median_ratios"].items():
        print(f"  {name + ', medians':<40} {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="*", choices=list(TOKENS), default=["small", "base"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="the tiny model, a few seconds")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if arguments.quick:
        arguments.presets, arguments.rounds = ["tiny"], 3
    results = {}
    for preset in arguments.presets:
        results[preset] = measure(preset, arguments.rounds)
        report(preset, results[preset])
    if arguments.json:
        ratios = {
            f"{preset}, {name}": ratio for preset, found in results.items() for name, ratio in found["ratios"].items()
        }
        print(json.dumps({"results": results, "ratios": ratios, "cores": os.cpu_count(), "ideal": RANKS}))


if __name__ == "__main__":
    main()
