"""Bulk translation on one machine in several processes, one per GPU or a few per CPU. Knows nothing of manifests.

The parent sends names of shards through a pipe to each process, and receives progress, entries and errors. A process
ends when its pipe does, so none outlives the parent for longer than a window of lines takes.
"""

import multiprocessing
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from dragoman import errors
from dragoman.decode.bulk import Entry, Job, ShardTranslator, largest_first
from dragoman.errors import ConfigError, DragomanError
from dragoman.machine import default_threads, find_device
from dragoman.progress import Advance

SECONDS_BETWEEN_REPORTS = 0.5  # of progress


def jobs_of(job: Job, workers: int | None) -> list[Job]:
    """One job per process. By default one process per GPU, and one on a CPU, where the engine has threads."""
    device = find_device(job.device)
    if device == "cuda":
        import torch

        gpus = torch.cuda.device_count()
        return [replace(job, device=f"cuda:{number % gpus}") for number in range(workers or gpus)]
    count = workers or 1
    threads = job.threads
    if device == "cpu" and count > 1 and not threads:
        threads = max(1, default_threads() // count)
    return [replace(job, device=device, threads=threads)] * count


class _Worker(NamedTuple):
    process: BaseProcess
    connection: "Connection[Any, Any]"


@contextmanager
def in_processes(jobs: Sequence[Job]) -> Iterator["_Processes"]:
    """One process per job. They are terminated at the end of the block: a shard in progress is dropped."""
    context = multiprocessing.get_context("spawn")  # CUDA cannot be used after a fork
    workers = []
    try:
        with _interrupts_ignored():
            for job in jobs:
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(theirs, job), daemon=True)
                process.start()
                theirs.close()
                workers.append(_Worker(process, ours))
        yield _Processes(workers, jobs[0].input)
    finally:
        for worker in workers:
            worker.connection.close()
            worker.process.terminate()
        for worker in workers:
            worker.process.join()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """For processes started here: Ctrl-C reaches all processes of a terminal, and the parent ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Processes:
    def __init__(self, workers: Sequence[_Worker], folder: Path) -> None:
        self._folder = folder
        self._workers = {worker.connection: worker for worker in workers}
        self.made_from: Mapping[str, Any]
        self.made_from, *others = (self._receive(worker.connection)[1] for worker in workers)
        for other in others:
            if other != self.made_from:
                raise ConfigError("--workers: the devices differ in engine or precision; give --device or --precision")

    def translate(self, names: Sequence[str], advance: Advance) -> Iterator[Entry]:
        waiting = deque(largest_first(names, self._folder))
        busy: set[Connection[Any, Any]] = set()

        def give(connection: "Connection[Any, Any]") -> None:
            if waiting:
                connection.send(waiting.popleft())
                busy.add(connection)

        for connection in self._workers:
            give(connection)
        while busy:
            ready = wait(list(busy))
            for connection in [each for each in busy if each in ready]:
                kind, value = self._receive(connection)
                if kind == "records":
                    advance(value)
                else:
                    busy.remove(connection)
                    give(connection)
                    yield value

    def _receive(self, connection: "Connection[Any, Any]") -> tuple[str, Any]:
        """The next message of a worker; its error is raised here."""
        try:
            kind, value = connection.recv()
        except (EOFError, ConnectionResetError):
            process = self._workers[connection].process
            process.join()
            raise DragomanError(f"a worker process ended ({_ending(process.exitcode)}); use fewer --workers") from None
        if kind == "error":
            name, message = value
            raise getattr(errors, name, RuntimeError)(message)
        return kind, value


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}, perhaps because memory ran out"
    return f"exit code {code}"


# The side of a worker


def _work(connection: "Connection[Any, Any]", job: Job) -> None:
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent has ended
        try:
            translator = ShardTranslator(job)
            connection.send(("ready", translator.made_from))
            while True:
                name, report = connection.recv(), _Report(connection)
                entry = translator.translate(name, report.advance)
                report.send()
                connection.send(("shard", entry))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            kind = type(error).__name__
            is_ours = isinstance(error, DragomanError)
            connection.send(("error", (kind, str(error)) if is_ours else ("", f"{kind}: {error}")))


class _Report:
    """Sends progress now and then: the CPU engine reports every line."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection, self._records, self._last = connection, 0, time.monotonic()

    def advance(self, records: int) -> None:
        self._records += records
        if time.monotonic() - self._last >= SECONDS_BETWEEN_REPORTS:
            self.send()

    def send(self) -> None:
        self._connection.send(("records", self._records))
        self._records, self._last = 0, time.monotonic()
