"""Ctrl-C and SIGTERM in a command: it unwinds and exits with 130 or 143, one line on stderr, no traceback.

The handler raises KeyboardInterrupt wherever the code is. A library on the stack may swallow it or turn it into another
error, so the signal is recorded here. Training has its own handlers while it runs (training/signals.py).
"""

import os
import signal
from types import FrameType

received: int | None = None  # the signal received
_finished = False  # nothing is left to unwind


def install() -> None:
    """Handle both signals from now on. A signal that this process was started to ignore stays ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)


def check() -> None:
    """Raise KeyboardInterrupt again where a library may have swallowed it, for example during its import."""
    if received is not None:
        raise KeyboardInterrupt


def finish() -> None:
    """Let a signal end the process at once from now on: the interpreter is about to shut down."""
    global _finished
    _finished = True


def describe(number: int) -> str:
    return "interrupted" if number == signal.SIGINT else "terminated"


def _handle(number: int, _: FrameType | None) -> None:
    global received
    if received is not None or _finished:  # a second signal does not wait for anything
        os.write(2, f"dragoman: {describe(number)}\n".encode())
        os._exit(128 + number)
    received = number
    raise KeyboardInterrupt
