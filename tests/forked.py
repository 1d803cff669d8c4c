"""`dragoman train` in processes of its own, to be killed: forked from a server that has imported torch once.

A process that is started anew takes seconds to import torch; one that is forked runs at once. The server itself does
nothing but fork and wait, so that it has no threads. Each process runs the command as a shell would, with a fault of
tests/faults.py installed before.
"""

import atexit
import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parent.parent
LIMIT = 300.0  # seconds until a process that should have ended is taken to hang


@dataclass(frozen=True)
class Ended:
    code: int  # as subprocess tells it: -9 for SIGKILL
    errors: str  # stderr
    at: float  # time.monotonic()

    @property
    def lines(self) -> list[str]:
        return self.errors.splitlines()


@dataclass(frozen=True)
class Started:
    pid: int
    errors: Path
    server: "Server"

    def send(self, number: int) -> float:
        """A signal; returns the time, once it has arrived: two of a kind that have not are one."""
        os.kill(self.pid, number)
        sent, status = time.monotonic(), Path(f"/proc/{self.pid}/status")
        while status.exists() and time.monotonic() < sent + LIMIT:  # elsewhere than on Linux it is taken to be there
            pending = [line.split()[1] for line in status.read_text().splitlines() if line[:6] in ("SigPnd", "ShdPnd")]
            if not any(int(signals, 16) >> (number - 1) & 1 for signals in pending):
                break
        return sent

    def wait(self) -> Ended:
        code = self.server.ask({"wait": self.pid})
        return Ended(code, self.errors.read_text(encoding="utf-8", errors="replace"), time.monotonic())


class Server:
    """The test's side."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}
        command = [sys.executable, "-m", "tests.forked"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def start(
        self, arguments: Sequence[str], errors: Path, fault: Mapping[str, Any], environment: Mapping[str, str]
    ) -> Started:
        order = {"arguments": list(arguments), "errors": str(errors), "fault": fault, "environment": environment}
        return Started(self.ask(order), errors, self)

    def ask(self, order: Mapping[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], LIMIT)[0]:
            if "wait" in order:
                os.kill(order["wait"], signal.SIGKILL)
                self._process.stdout.readline()
            raise TimeoutError(f"no answer to {order} in {LIMIT:.0f} s")
        return int(self._process.stdout.readline())


# The server's side


def serve() -> None:
    import_module("torch._dynamo")  # which the first optimiser would import, for seconds
    for name in (
        "typer._adapters",
        "dragoman.cli.main",
        "dragoman.cli.progress",
        "dragoman.train.loop",
        "tests.faults",
    ):
        import_module(name)
    gc.collect()
    gc.freeze()  # else every process would copy what it never touches

    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1])
        else:
            answer = os.fork()
            if not answer:
                _run(order)
        print(answer, flush=True)


def _run(order: Mapping[str, Any]) -> None:
    """The command in the forked process."""
    import torch

    from dragoman.cli.main import main
    from tests import faults

    with Path(order["errors"]).open("wb") as errors, Path(os.devnull).open("r+b") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
        os.dup2(errors.fileno(), 2)
    os.environ.update(order["environment"])
    torch.set_num_threads(1)
    sys.argv = ["dragoman", "train", *order["arguments"]]
    code: int | str | None = 1
    try:
        if order["fault"]:
            faults.install(**order["fault"])
        main()
        code = 0
    except SystemExit as exit:
        code = exit.code
    except BaseException:
        traceback.print_exc()
    sys.setprofile(None)
    # what the end of an interpreter would do, but for a second of tidying up modules
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    serve()
