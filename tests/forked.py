"""`dragoman` in separate processes, some to be killed: forked from a server that has imported torch once.

A new process takes seconds to import torch; a forked one runs at once. The server itself does
nothing but fork and wait, so it has no threads. Each process runs the command as a shell would, with a fault of
tests/faults.py installed before, where one is asked for.
"""

import atexit
import functools
import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LIMIT = 900.0  # seconds until a process that should have ended is taken to hang


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
        """Send a signal and return the time when it has arrived: two pending signals of one kind would merge."""
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


@contextmanager
def default_interrupts() -> Iterator[None]:
    """Processes started here handle SIGINT even if this one ignores it, as a background job does."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


class Server:
    """The test's side."""

    def __init__(self) -> None:
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}
        command = [sys.executable, "-m", "tests.forked"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with default_interrupts():
            self._process = subprocess.Popen(command, cwd=ROOT, env=self._environment, text=True, **pipes)

    def start(
        self, arguments: Sequence[str], errors: Path, fault: Mapping[str, Any], environment: Mapping[str, str]
    ) -> Started:
        """`environment`: what differs from the server's."""
        return self._start(arguments, errors, {**self._environment, **environment}, fault=fault)

    def run(
        self,
        arguments: Sequence[str],
        *,
        input: bytes = b"",
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Like subprocess.run; output is captured as text with its newlines unchanged."""
        with tempfile.TemporaryDirectory() as folder:
            stdin, stdout, errors = (Path(folder, name) for name in ("stdin", "stdout", "stderr"))
            stdin.write_bytes(input)
            streams = {"stdin": str(stdin), "stdout": str(stdout), "cwd": str(cwd or Path.cwd())}
            started = self._start(arguments, errors, os.environ if env is None else env, **streams)
            code = started.wait().code
            outputs = (stream.read_bytes().decode() for stream in (stdout, errors))
            return subprocess.CompletedProcess(arguments, code, *outputs)

    def _start(self, arguments: Sequence[str], errors: Path, environment: Mapping[str, str], **more: Any) -> Started:
        order = {"arguments": list(arguments), "errors": str(errors), "environment": dict(environment), **more}
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
            else:  # a late answer would be taken for the next order's
                self._process.kill()
            raise TimeoutError(f"no answer to {order} in {LIMIT:.0f} s")
        answer = self._process.stdout.readline()
        assert answer, "the server of forked processes has ended"
        return int(answer)


@functools.cache
def shared_server() -> Server:
    """One server for all tests of this process; it ends when its input does."""
    return Server()


# The server's side


def serve() -> None:
    import_module("torch._dynamo")  # which the first optimiser would import, for seconds
    for name in (
        "typer._adapters",
        "dragoman.cli.app",
        "dragoman.cli.progress",
        "dragoman.training.loop",
        "dragoman.evaluate.metrics",
        "dragoman.inspect.page",
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

    for number, (name, mode) in enumerate((("stdin", "rb"), ("stdout", "wb"), ("errors", "wb"))):
        with Path(order.get(name, os.devnull)).open(mode) as stream:
            os.dup2(stream.fileno(), number)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)  # the server's may have read ahead
    os.chdir(order.get("cwd", "."))
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    torch.set_num_threads(1)
    sys.argv = ["dragoman", *order["arguments"]]
    code: int | str | None = 1
    try:
        if order.get("fault"):
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
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    serve()
