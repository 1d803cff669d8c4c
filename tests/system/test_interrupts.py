"""Ctrl-C, SIGTERM and internal errors in a command: one line on stderr and the promised exit code, at any moment."""

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import interrupts, main
from dragoman.errors import Stopped
from tests.forked import Ended, default_interrupts, shared_server

BUG = "dragoman: internal error: ZeroDivisionError: division by zero; `dragoman --debug ...` shows the traceback"


def run(arguments: list[str | Path], fault: Mapping[str, Any], errors: Path) -> Ended:
    return shared_server().start([*map(str, arguments)], errors, fault, {}).wait()


def while_loading(action: str, **how: Any) -> dict[str, Any]:
    return {"name": "at_place", "place": "loading", "number": 1, "action": action, **how}


def translate_one(quick_run: Path, tmp_path: Path, *options: str) -> list[str | Path]:
    return [*options, "translate", "--model", quick_run, "--output", tmp_path / "out", "a b"]


@pytest.mark.parametrize("becomes", ["", "nothing", "another error"])
def test_interrupt_exits_with_130_even_if_a_library_catches_it(becomes: str, quick_run: Path, tmp_path: Path) -> None:
    ended = run(translate_one(quick_run, tmp_path), while_loading("interrupt", becomes=becomes), tmp_path / "errors")
    assert (ended.code, ended.lines) == (130, ["dragoman: interrupted"])
    assert not (tmp_path / "out").exists(), "it went no further"


def test_sigterm_exits_with_143(quick_run: Path, tmp_path: Path) -> None:
    ended = run(translate_one(quick_run, tmp_path), while_loading("terminate"), tmp_path / "errors")
    assert (ended.code, ended.lines) == (143, ["dragoman: terminated"])


def test_background_job_keeps_ignoring_interrupts(quick_run: Path, tmp_path: Path) -> None:
    faults = {"name": "all_of", "faults": [{"name": "ignore_interrupts"}, while_loading("interrupt")]}
    ended = run(translate_one(quick_run, tmp_path), faults, tmp_path / "errors")
    assert (ended.code, ended.lines) == (0, [])
    assert (tmp_path / "out").exists()


def test_internal_error_exits_with_1_and_one_line(quick_run: Path, tmp_path: Path) -> None:
    ended = run(translate_one(quick_run, tmp_path), while_loading("bug"), tmp_path / "errors")
    assert (ended.code, ended.lines) == (1, [BUG])
    debugged = run(translate_one(quick_run, tmp_path, "--debug"), while_loading("bug"), tmp_path / "errors")
    assert debugged.code == 1
    assert debugged.lines[0] == "Traceback (most recent call last):"
    assert debugged.lines[-1] == BUG


START = "import signal, sys; sys.argv = ['dragoman', '--version']; "
INTERRUPT_AN_IMPORT = """
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder)
"""


@pytest.mark.parametrize(
    "when",
    [
        INTERRUPT_AN_IMPORT.format(module="dragoman.errors"),
        INTERRUPT_AN_IMPORT.format(module="typer"),
        INTERRUPT_AN_IMPORT.format(module="dragoman.cli.translate"),
        "import atexit; atexit.register(signal.raise_signal, signal.SIGINT)\n",
    ],
)
def test_an_interrupt_during_imports_or_shutdown_shows_no_traceback(when: str) -> None:
    command = f"{START}{when}from dragoman.cli.main import main; main()"
    with default_interrupts():
        done = subprocess.run([sys.executable, "-c", command], capture_output=True)
    assert (done.returncode, done.stderr) == (130, b"dragoman: interrupted\n")


WAIT_FOR_A_LINE = """
import os, signal, sys
from dragoman.cli import streams
from dragoman.data import corpus  # which the first line would import

def wait_for_a_line(interrupted_at):
    # Read a line, then wait for another; SIGINT comes at the given call or return of a function meanwhile.
    reading, writing = os.pipe()
    os.dup2(reading, 0)
    os.write(writing, b"a b\\n")
    windows, events, waits = streams.stdin_windows(), 0, False

    def interrupt(_frame, event, function):
        nonlocal events, waits
        events += function is not sys.setprofile
        if not waits and (event, getattr(function, "__name__", "")) in (("c_call", "read"), ("c_return", "release")):
            waits = True
            os.close(writing)  # else it would wait for ever
        if events == interrupted_at:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    assert [line.text for line in next(windows)] == ["a b"]
    sys.setprofile(interrupt)
    try:
        next(windows)
    except BaseException as error:
        sys.setprofile(None)
        return type(error).__name__

number, outcome = 0, "KeyboardInterrupt"
while outcome == "KeyboardInterrupt":
    number += 1
    reading, writing = os.pipe()
    if not os.fork():
        try:
            os.write(writing, str(wait_for_a_line(number)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    outcome = os.read(reading, 100).decode()
    print(outcome)
"""


def test_interrupt_while_waiting_for_a_line_raises_keyboard_interrupt() -> None:
    """In `queue.Queue.get`, a lock released twice was another outcome."""
    with default_interrupts():
        done = subprocess.run([sys.executable, "-c", WAIT_FOR_A_LINE], capture_output=True, text=True, check=True)
    outcomes = done.stdout.split()
    assert outcomes[-1] == "StopIteration", "nothing was left to interrupt"
    assert len(outcomes) > 5


@pytest.mark.parametrize(
    ("processes", "number", "line"),
    [
        ("1", signal.SIGTERM, "terminated"),
        ("2", signal.SIGINT, "interrupted"),
        ("2", signal.SIGTERM, ""),
    ],
)
def test_torchrun_terminates_the_other_processes_silently(
    processes: str, number: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has reported the error for which it does so."""
    monkeypatch.setenv("WORLD_SIZE", processes)
    monkeypatch.setattr(interrupts, "received", number)
    monkeypatch.setattr(main, "_discard_output", lambda: None)
    assert main._outcome(KeyboardInterrupt()) == (128 + number, line)
    assert main._outcome(Stopped("after step 3", number)) == (128 + number, "after step 3")
