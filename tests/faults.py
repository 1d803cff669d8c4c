"""Faults for the processes of tests/forked.py: killed, stopped, stuck or out of disk at an exact moment. No clocks.

`install(name, ...)` calls one function of this file in the process that is to fail.
"""

import atexit
import ctypes
import errno
import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from dragoman import bundle, files
from dragoman.cli import progress
from dragoman.data import store
from dragoman.data.batching import AnyBatch
from dragoman.decode import pipeline, translator
from dragoman.decode.engines.plain import Engine
from dragoman.errors import Stopped
from dragoman.text import tokenizer
from dragoman.training import checkpoint, distributed, gradients, saving, signals, step, validation
from dragoman.training.batches import StepPlan
from dragoman.training.gradients import PaddedLoss
from dragoman.training.loop import Trainer
from dragoman.training.signals import Signals
from dragoman.training.step import Stepper

Action = Callable[[], None]

PLACES: dict[str, tuple[Any, str]] = {
    "scan": (store, "_add_encoded"),
    "vocabulary": (tokenizer, "_train_model"),
    "feeding": (tokenizer, "_stretches"),  # called back from within sentencepiece
    "step": (gradients._Layout, "gradients"),
    "update": (step, "learning_rate"),  # between the count of the step and the change of the weights
    "validation": (validation.Validation, "measure"),
    "joining": (distributed, "choose_device"),
    "loading": (translator, "load_bundle"),
    "window": (pipeline.Pipeline, "translate"),
}
noticed = threading.Event()  # a signal reached Python


def install(name: str, **how: Any) -> None:
    globals()[name](**how)


def _put(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


def all_of(faults: list[Mapping[str, Any]]) -> None:
    for fault in faults:
        install(**fault)


# Kills


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def count_calls(report: str) -> None:
    """Record how many function calls the run makes."""
    calls = [0]
    _profile(calls, -1)
    atexit.register(lambda: Path(report).write_text(str(calls[0])))


def die_at_call(number: int) -> None:
    """At the number-th call of a Python or C function in the main thread: the same moment on every machine."""
    _profile([0], number)


def _profile(calls: list[int], number: int) -> None:
    def count(_frame: object, event: str, _argument: object) -> None:
        if event in ("call", "c_call"):
            calls[0] += 1
            if calls[0] == number:
                die()

    sys.setprofile(count)


def list_events(report: str) -> None:
    """Record every write and rename."""

    def note(event: str, path: Path) -> None:
        with Path(report).open("a") as file:
            file.write(f"{event} {path}\n")

    _put(files, "after", note)


def at_event(number: int, action: str, **how: Any) -> None:
    """After the number-th write or rename of the process."""
    _at(files, "after", number, _action(action, how))


def after_rename(called: str, action: str, **how: Any) -> None:
    """When a file or directory is renamed to `called`."""
    act = _action(action, how)

    def look(event: str, path: Path) -> None:
        if event == "rename" and path.name == called:
            act()

    _put(files, "after", look)


def during_save(number: int, action: str, **how: Any) -> None:
    """After the number-th write or rename of the first checkpoint."""
    act, count = _action(action, how), [0]

    def look(_event: str, path: Path) -> None:
        count[0] += "step-" in str(path)
        if count[0] == number:
            count[0] += 1
            act()

    _put(files, "after", look)


def die_in_write(number: int) -> None:
    """Kill the process when it has written half of its number-th file."""
    count, real = [0], files.write_synced

    def write(path: Path, content: bytes) -> None:
        count[0] += 1
        if count[0] == number:
            path.write_bytes(content[: len(content) // 2])
            die()
        real(path, content)

    _put(files, "write_synced", write)


def non_atomic_saves() -> None:
    """For controls: write checkpoints directly to their final path, the manifest first."""

    def write(path: Path, contents: Mapping[str, bytes]) -> None:
        path.mkdir(parents=True, exist_ok=True)
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
        for name, content in {bundle.MANIFEST: json.dumps(digests).encode(), **contents}.items():
            (path / name).write_bytes(content)
            files.after("write", path / name)

    _put(saving, "write_checkpoint", write)


# Signals: a place notifies the test when it is reached, and waits there for a signal


def at_place(place: str, number: int, action: str, **how: Any) -> None:
    """When a place is reached for the number-th time."""
    _at(*PLACES[place], number, _action(action, how))


def _at(owner: Any, name: str, number: int, act: Action) -> None:
    real, count = getattr(owner, name), [0]

    def reached(*arguments: Any, **keywords: Any) -> Any:
        count[0] += 1
        if count[0] == number:
            act()
        return real(*arguments, **keywords)

    setattr(owner, name, reached)


def _action(name: str, how: Mapping[str, Any]) -> Action:
    if name in ("wait", "compile"):
        _observe_signals()
    actions: dict[str, Callable[..., None]] = {
        "die": die,
        "notify": _notify,
        "wait": _wait,
        "stuck": _stuck,
        "compile": _compile,
        "terminate": _terminate,
        "disk full": _disk_full,
        "interrupt": _interrupt,
        "bug": _bug,
    }
    return lambda: actions[name](**how)


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _interrupt(becomes: str = "") -> None:
    """Ctrl-C; `becomes`: how the interrupted code handles it, "nothing" or "another error"."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        if becomes == "another error":
            raise RuntimeError("release unlocked lock") from None
        if becomes != "nothing":
            raise


def report_always() -> None:
    """Report progress at once instead of at intervals."""
    _put(progress, "SECONDS_BETWEEN_COUNTS", 0.0)


def ignore_interrupts() -> None:
    """Like a shell that starts a job in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _bug() -> None:
    raise ZeroDivisionError("division by zero")


def _notify(fifo: str) -> None:
    descriptor = os.open(fifo, os.O_WRONLY)
    os.write(descriptor, b"!")
    os.close(descriptor)


def _observe_signals() -> None:
    real = Signals._handle

    def handle(self: Signals, number: int, frame: Any) -> None:
        noticed.set()
        real(self, number, frame)

    _put(Signals, "_handle", handle)


def _wait(fifo: str, times: int = 1) -> None:
    """Wait for a signal, which may raise here or end the process."""
    for _ in range(times):
        noticed.clear()
        _notify(fifo)
        while not noticed.wait(0.05):  # a signal just before a wait without a limit would not be handled
            pass


def _stuck(fifo: str, seconds: float = 0.0) -> None:
    """Block in a C call that lets no Python handler run, for `seconds` or for ever. On Linux."""
    library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)

    def look() -> None:
        while mutex.raw[0] != 2:  # locked, and somebody waits for it
            pass
        _notify(fifo)
        if seconds:
            threading.Timer(seconds, lambda: library.pthread_mutex_unlock(mutex)).start()

    threading.Thread(target=look).start()
    library.pthread_mutex_lock(mutex)


def _compile(fifo: str) -> None:
    """A compilation that does not end."""

    def backend(*_: Any) -> Any:
        _wait(fifo)
        raise AssertionError("a signal came and did not stop the compilation")

    torch.compile(torch.sin, backend=backend)(torch.ones(1))


def notice_within(seconds: float) -> None:
    _put(signals, "RESPONSE_SECONDS", seconds)


def repeated_within(seconds: float) -> None:
    """How long after a SIGTERM another one counts as the same."""
    _put(signals, "REPEAT_SECONDS", seconds)


def impatient() -> None:
    """For controls: do not wait for work that could be saved."""
    _put(Signals, "patient", property(lambda self: False, lambda self, value: None))


def stop_alone() -> None:
    """For controls: a rank that receives a signal stops after its step without telling the others."""

    def stop(self: Trainer) -> None:
        if self.run.signals.received is not None:
            raise Stopped(f"stopped alone at step {self.run.progress.step}", self.run.signals.received)

    _put(Trainer, "_stop_if_requested", stop)


def out_of_memory(longest: int) -> None:
    """Run out of memory for any source of more than `longest` tokens."""
    real = Engine.start

    def start(self: Engine, sources: Any) -> Any:
        if max(map(len, sources)) > longest:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, sources)

    _put(Engine, "start", start)


# Disks


def _disk_full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def limit_memory(more: int) -> None:
    """The process may map this many bytes more than it has. On Linux."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def no_size_limit() -> None:
    """For controls: read a tokenizer of any size."""
    _put(bundle, "MAX_TOKENIZER", float("inf"))


def limit_file_size(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def full_temporary_directory(directory: str) -> None:
    """No file can be created in it."""
    tempfile.tempdir = directory

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(directory):
            _disk_full()

    sys.addaudithook(watch)


def saves_through_temporary_directory() -> None:
    """For controls: write files in the temporary directory and move them."""

    def write(path: Path, content: bytes) -> None:
        with tempfile.NamedTemporaryFile(delete=False) as file:
            file.write(content)
        shutil.move(file.name, path)

    _put(files, "write_synced", write)


# State that is lost, for controls


def forget_rng_state() -> None:
    _put(checkpoint, "set_rng_state", lambda state, device: None)


def forget_position() -> None:
    """Resume at the beginning of the epoch."""
    real = checkpoint.unpack

    def unpack(*arguments: Any) -> Any:
        progress, random = real(*arguments)
        progress.batch = 0
        return progress, random

    _put(checkpoint, "unpack", unpack)


def keep_counting_batches() -> None:
    """Resume at the same batch number, although the batches have changed."""
    _put(checkpoint.Progress, "change_plan", lambda self, plan: False)


def record_batches(report: str) -> None:
    """Record the requested rows and the received ids of every step."""
    step, update = Stepper.step, Stepper._update
    given: list[Any] = []

    def recorded_step(self: Stepper, plan: StepPlan, batches: list[Any]) -> None:
        given[:] = [[group.source_ids.tolist() for group in batch] for batch in batches]
        step(self, plan, batches)

    def recorded_update(self: Stepper, plan: StepPlan, loss: Any) -> None:
        update(self, plan, loss)
        rows = [(epoch, rows.tolist()) for epoch, rows in plan.batches]
        with Path(report).open("a") as file:
            file.write(json.dumps({"step": self.run.progress.step, "rows": rows, "ids": given}) + "\n")

    _put(Stepper, "step", recorded_step)
    _put(Stepper, "_update", recorded_update)


def nan_losses(steps: list[int]) -> None:
    """NaN at these steps, and when they are diagnosed."""
    real_step, real_loss = Stepper.step, PaddedLoss.forward
    current = [0]

    def step(self: Stepper, plan: StepPlan, batches: list[Any]) -> None:
        current[0] = self.run.progress.step + 1
        real_step(self, plan, batches)

    def loss(self: PaddedLoss, batch: AnyBatch) -> torch.Tensor:
        return real_loss(self, batch) * (float("nan") if current[0] in steps else 1.0)

    _put(Stepper, "step", step)
    _put(PaddedLoss, "forward", loss)
