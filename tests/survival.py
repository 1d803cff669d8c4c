"""Shared by the survival tests: a corpus of a few pairs, runs of about a second, and what they leave behind."""

import json
import os
import select
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dragoman.config import Config
from dragoman.training.checkpoint_files import checkpoint_path, checkpoint_step, checkpoints, read_checkpoint
from dragoman.training.reports.log import read_log
from tests.forked import LIMIT, Ended, Server, Started

SETTINGS = (
    "text.vocab_size=320",
    "model.d_model=16",
    "model.d_ff=32",
    "model.num_layers=1",
    "model.num_heads=2",
    "train.batch_tokens=64",
    "train.log_every=1",
    "train.valid_metric=loss",
    "train.valid_sentences=2",
    "train.trackers=[]",
    "decode.max_extra=2",
)
WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")
PAIRS, HELD_OUT = 240, 8


@dataclass(frozen=True)
class Corpus:
    """Corpus files, named like the settings and options."""

    source: Path
    target: Path
    valid_source: Path
    valid_target: Path

    @property
    def data(self) -> dict[str, list[str]]:
        return {name: [str(path)] for name, path in vars(self).items()}


def write_corpus(directory: Path, pairs: int = PAIRS) -> Corpus:
    directory.mkdir(parents=True, exist_ok=True)
    lines = [" ".join(WORDS[(row * place) % 8] for place in range(1, row % 5 + 2)) for row in range(pairs)]
    corpus = Corpus(*(directory / name for name in ("train.a", "train.b", "valid.a", "valid.b")))
    for path, texts in (
        (corpus.source, lines),
        (corpus.target, [line.upper() for line in lines]),
        (corpus.valid_source, lines[:HELD_OUT]),
        (corpus.valid_target, [line.upper() for line in lines[:HELD_OUT]]),
    ):
        path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return corpus


@dataclass(frozen=True)
class Runs:
    """Starts `dragoman train` on one corpus."""

    server: Server
    corpus: Corpus
    errors: Path  # a directory

    def start(
        self,
        run: Path,
        *settings: str,
        fault: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Started:
        errors = self.errors / f"{len(list(self.errors.iterdir()))}.txt"
        errors.touch()
        return self.server.start(["train", *self.arguments(run, *settings)], errors, fault or {}, environment or {})

    def arguments(self, run: Path, *settings: str) -> list[str]:
        """The arguments of `dragoman train`."""
        data = {f"--{name.replace('_', '-')}": str(path) for name, path in vars(self.corpus).items()}
        options = [*data.items(), *(("--set", setting) for setting in (*SETTINGS, *settings))]
        return ["--preset", "tiny", "--out", str(run), *(word for option in options for word in option)]

    def run(self, run: Path, *settings: str, fault: Mapping[str, Any] | None = None) -> Ended:
        return self.start(run, *settings, fault=fault).wait()

    def finish(self, run: Path, *settings: str, fault: Mapping[str, Any] | None = None) -> Ended:
        """A run that must succeed."""
        ended = self.run(run, *settings, fault=fault)
        assert ended.code == 0, ended.errors
        return ended

    def start_ranks(self, run: Path, settings: Sequence[str], faults: Sequence[Mapping[str, Any]]) -> list[Started]:
        """One process per fault, which may be empty: the ranks of one run, as torchrun starts them."""
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(len(faults))}
        return [
            self.start(run, *settings, fault=fault, environment={**address, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank, fault in enumerate(faults)
        ]

    def config(self, *settings: str) -> Config:
        return Config.build("tiny", None, [*SETTINGS, *settings], data=self.corpus.data)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Fifo:
    """A named pipe by which a process reports that it has reached a place."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "fifo"
        os.mkfifo(self.path)
        self._descriptor = os.open(self.path, os.O_RDWR)  # for both: it never ends

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def wait(self) -> None:
        assert select.select([self._descriptor], [], [], LIMIT)[0], f"no notification within {LIMIT:.0f} s"
        assert os.read(self._descriptor, 1) == b"!"


# What a run leaves behind


def state(run: Path, step: int) -> dict[str, bytes]:
    """A verified checkpoint without its clock and its provenance, which contains the command and the machine."""
    files = read_checkpoint(checkpoint_path(run, step))
    del files["provenance.json"]
    recorded = json.loads(files["state.json"])
    del recorded["progress"]["seconds"]
    return {**files, "state.json": json.dumps(recorded).encode()}


def comparable_log(run: Path) -> list[dict[str, Any]]:
    """The log, without clocks and memory."""
    records = [record for record in read_log(run) if record["kind"] != "memory"]
    return [{name: value for name, value in record.items() if name != "tokens_per_second"} for record in records]


def outcome(run: Path) -> dict[str, Any]:
    """All that must be identical bit for bit after any interruption: every checkpoint, the log, the model."""
    kept = {path.name: state(run, checkpoint_step(path)) for path in checkpoints(run)}
    names = ("weights.safetensors", "config.toml", "tokenizer.model", "manifest.json", "published.json")
    return {**kept, "log": comparable_log(run), **{name: (run / name).read_bytes() for name in names}}


def steps(run: Path) -> list[int]:
    """The steps of all checkpoints, each of which must verify."""
    found = checkpoints(run)
    for path in found:
        read_checkpoint(path)
    return [checkpoint_step(path) for path in found]


def last_logged_step(run: Path) -> int:
    """The last step that was logged."""
    return max((record["step"] for record in read_log(run) if record["kind"] == "step"), default=0)


def contents(directory: Path) -> dict[str, bytes]:
    """Every file except the lock."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}
