"""Work shared by processes, with results in order. The processes end with their parent, however it ends."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from dragoman.data.prefetch import prefetch
from dragoman.errors import DragomanError

FEWEST_CORES = 4  # with fewer there is nothing to gain
MOST_PROCESSES = 16  # each takes about 100 MB
T = TypeVar("T")
Made = TypeVar("Made")


def in_processes(
    items: Iterable[T],
    send: Callable[[T], Any],
    function: Callable[[Any], Made],
    workers: int,
    start: Callable[..., None],
    arguments: tuple[Any, ...],
    failure: str,
) -> Generator[tuple[T, Made], None, None]:
    """Yield each item with `function` of what `send` makes of it. Each process calls `start` with `arguments` first.

    `failure` says that a process has ended unexpectedly.
    """
    # Spawned, not forked: a fork of a process that runs torch threads may hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, _start, (start, arguments))
    # One thread per process, which only waits for it.
    made = prefetch(items, lambda item: pool.submit(function, send(item)).result(), workers, 2 * workers)
    try:
        yield from made
    except BrokenProcessPool:
        raise DragomanError(failure) from None
    finally:
        made.close()
        pool.shutdown(cancel_futures=True)


def start_process(function: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start a process for one call. It may have processes of its own, and ends with this one, or by `terminate()`."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_run, args=(function, arguments))
    with _interrupts_blocked():
        process.start()
    return process


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A process that starts now inherits this; otherwise Ctrl-C would end its first imports with a traceback."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which unblocks them when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what it has begun is cleared away
    try:
        _start(function, arguments)
    except DragomanError:
        sys.exit(1)  # the parent will meet the same error, and report it


def spare_cores() -> int:
    """How many processes may share work that this one waits for; 0 if they would not help or cannot be started."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores - 1, MOST_PROCESSES) if cores >= FEWEST_CORES and can_start_processes() else 0


def can_start_processes() -> bool:
    """Whether this is a command. A spawned process imports the main module, and a script may do all its work there."""
    main = sys.modules["__main__"]
    module = getattr(main, "__spec__", None)
    name = module.name if module else Path(getattr(main, "__file__", "")).name
    return name.partition(".")[0] == "dragoman"


def _start(start: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when work ends
    threading.Thread(target=_end_with_parent, daemon=True).start()
    start(*arguments)


def _end_with_parent() -> None:
    """Exit when the parent does: a killed parent cannot stop its workers, and they would wait for it forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
