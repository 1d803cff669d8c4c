"""The effect of OpenMP's waiting policy and thread count, on idle cores and beside another job on the same cores.

    python -m benchmarks.threads [--cores 2] [--json]

Each measurement is a separate process, since OpenMP reads its settings once. The other job keeps every core busy.
"Ratios" are relative to OpenMP's defaults in the same run: 1.02 means 2 % faster.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "20000_spins": {"GOMP_SPINCOUNT": "20000"},  # what `import dragoman` sets
    "one_thread": {"OMP_NUM_THREADS": "1"},
}
BUSY = "import torch\ntorch.set_num_threads(1)\na = torch.randn(256, 256)\nwhile True: a @ a"
LONG_LINE = (
    "The committee, which had been sitting since early in the morning and had heard more than twenty witnesses from "
    "all parts of the country, decided late in the evening, after a long and heated debate about the costs of the new "
    "railway line, that the report should be sent back and that nobody should vote on it before the end of the year."
)


def train_speed(preset: str) -> float:
    """Target tokens per second, without the first steps."""
    from dragoman.config import Config
    from dragoman.training.loop import train
    from dragoman.training.reports.log import read_log

    settings = ["data.generated=numbers-de", "data.generated_size=3000", "train.max_steps=40", "train.save_every=40"]
    settings += ["train.valid_sentences=2", "train.average=1", "train.log_every=10"]
    with tempfile.TemporaryDirectory() as folder:
        train(Config.build(preset, None, settings), Path(folder) / "run")
        speeds = [record["tokens_per_second"] for record in read_log(Path(folder) / "run") if record["kind"] == "step"]
    return statistics.mean(speeds[1:])


def translate_speed(lines: list[str]) -> float:
    """Lines per second, beam 4, with the bundled model in the plain engine, whose threads are PyTorch's."""
    import dragoman

    translator = dragoman.load("en-de", "cpu", engine="plain")
    translator.translate("Hello.")
    start = time.perf_counter()
    translator.translate(lines, split="long")
    return len(lines) / (time.perf_counter() - start)


WORK: dict[str, Callable[[], float]] = {
    "train_tiny": lambda: train_speed("tiny"),
    "train_small": lambda: train_speed("small"),
    "translate_one": lambda: translate_speed([LONG_LINE]),
    "translate_batch": lambda: translate_speed([LONG_LINE[start : start + 80] for start in range(0, 240, 10)]),
}


@contextmanager
def other_job(cores: int) -> Iterator[None]:
    """One process per core that never waits."""
    jobs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(cores)]
    try:
        yield
    finally:
        for job in jobs:
            job.kill()
            job.wait()


def speed(work: str, setting: str) -> float:
    command = [sys.executable, "-m", "benchmarks.threads", "--measure", work]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    done = subprocess.run(command, env=environment | SETTINGS[setting], stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--work", nargs="*", default=list(WORK), choices=list(WORK))
    parser.add_argument(
        "--setting",
        action="append",
        default=[],
        metavar="NAME:VARIABLE=VALUE",
        help="an additional setting; repeatable",
    )
    parser.add_argument("--load", nargs="*", default=["idle", "busy"], choices=["idle", "busy"])
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--measure", choices=list(WORK), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        import torch  # before dragoman, which would shorten OpenMP's spinning  # noqa: F401

        print(WORK[options.measure]())
        return
    for given in options.setting:
        name, _, variable = given.partition(":")
        SETTINGS[name] = dict([variable.split("=", 1)])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    measured: dict[str, dict[str, float]] = {}
    ratios: dict[str, float] = {}
    for load in options.load:
        for work in options.work:
            row: dict[str, list[float]] = {name: [] for name in SETTINGS}
            for _ in range(options.repeat):  # in turns, so that a slow minute affects all of them
                for name, speeds in row.items():
                    if load == "busy":
                        with other_job(options.cores):
                            speeds.append(speed(work, name))
                    else:
                        speeds.append(speed(work, name))
            key = f"{load}_{work}"
            measured[key] = {name: statistics.median(speeds) for name, speeds in row.items()}
            print(key, {name: [round(each, 2) for each in speeds] for name, speeds in row.items()}, flush=True)
            for name in SETTINGS:
                ratios[f"{key}_{name}"] = measured[key][name] / measured[key]["default"]
    report: dict[str, Any] = {"cores": options.cores, "speeds": measured, "ratios": ratios}
    if options.json:
        print(json.dumps(report))
    else:
        for name, ratio in ratios.items():
            print(f"{name:40} {ratio:6.2f}")


if __name__ == "__main__":
    main()
