"""SIGTERM and Ctrl-C during a run: stop within seconds, never in the middle of an update or a save.

Knows nothing of training.
"""

import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

RESPONSE_SECONDS = 15.0  # a call into C++, such as vocabulary training, runs no Python meanwhile
REPEAT_SECONDS = 2.0  # repeated SIGTERM within: schedulers signal every process of a job, and torchrun forwards its own


class Stop(BaseException):
    """Raised wherever the code is when a signal arrives. Not an Exception: error handlers must not catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Signals:
    """While active, SIGTERM and SIGINT raise Stop: at once, or at the end of `uninterruptible()`. A second one exits.

    A SIGTERM repeated within two seconds does not count as a second one.
    """

    def __init__(self) -> None:
        self.received: int | None = None  # the signal, if one arrived
        self.deferred = False  # whether the caller checks `received` and stops by itself
        self.patient = False  # whether there is work to save: wait for code that does not respond
        self._received_at = 0.0
        self._depth = 0
        self._noticed = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGTERM, signal.SIGINT)}
            self._watch()
        return self

    def __exit__(self, *_: object) -> None:
        self._noticed.set()
        if self._before:
            os.close(signal.set_wakeup_fd(self._wakeup_before))
            for number, handler in self._before.items():
                signal.signal(number, handler)

    @contextmanager
    def uninterruptible(self) -> Iterator[None]:
        """Around what must not be interrupted, such as an update or a save."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        self.check()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Around what may be interrupted even where stopping is deferred."""
        before, self.deferred = self.deferred, False
        try:
            self.check()
            yield
        finally:
            self.deferred = before

    def check(self) -> None:
        """Stop here if a signal arrived and interruption is allowed."""
        if self.received is not None and not self._depth and not self.deferred:
            raise Stop(self.received)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.received is not None:
            if not _same(self.received, number, self._received_at):
                os._exit(128 + number)
            return
        self._received_at, self.received = time.monotonic(), number
        self._noticed.set()
        self.check()

    def _watch(self) -> None:
        """A thread that exits the process if the handler cannot run: nothing can be lost then."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        self._wakeup_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

        def wait() -> None:
            asked, asked_at = 0, 0.0
            with os.fdopen(reading, "rb", buffering=0) as signals:
                while True:
                    unanswered = asked and not self._noticed.is_set() and not self.patient
                    if select.select([signals], [], [], RESPONSE_SECONDS if unanswered else None)[0]:
                        number = signals.read(1)
                        if not number:
                            return
                        if number[0] in self._before:
                            if not asked:
                                asked, asked_at = number[0], time.monotonic()
                            elif not _same(asked, number[0], asked_at):
                                os._exit(128 + number[0])  # a second one
                    elif not self._noticed.is_set() and not self.patient:
                        os._exit(128 + asked)

        threading.Thread(target=wait, daemon=True).start()


def _same(first: int, number: int, first_at: float) -> bool:
    """Whether a signal that comes now is the first one repeated."""
    return first == number == signal.SIGTERM and time.monotonic() - first_at < REPEAT_SECONDS
