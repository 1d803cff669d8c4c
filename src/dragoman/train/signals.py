"""SIGTERM and Ctrl-C in a run: stop where nothing is left half done, within seconds. Knows nothing of training."""

import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

SECONDS_TO_NOTICE = 15.0  # a call into C++, such as learning a vocabulary, lets no Python run while it lasts
SECONDS_OF_ONE = 2.0  # a SIGTERM repeated within: schedulers signal every process of a job, torchrun sends its own on


class Stop(BaseException):
    """Raised where the code is when a signal comes. Not an Exception: nothing that mends errors may catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Signals:
    """While entered, SIGTERM and SIGINT raise Stop: at once, or at the end of `uninterrupted()`. A second ends all.

    SIGTERM repeated within a moment is not a second one.
    """

    def __init__(self) -> None:
        self.asked: int | None = None  # the signal that came
        self.deferred = False  # whether somebody looks at `asked` and stops by himself
        self.patient = False  # whether there is work to save, and code that does not answer is waited for
        self._asked_at = 0.0
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
    def uninterrupted(self) -> Iterator[None]:
        """What must be done whole, such as an update or a save."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        self.check()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """What may be cut short even where stopping is deferred."""
        before, self.deferred = self.deferred, False
        try:
            self.check()
            yield
        finally:
            self.deferred = before

    def check(self) -> None:
        """Stop here if a signal came and nothing is half done."""
        if self.asked is not None and not self._depth and not self.deferred:
            raise Stop(self.asked)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.asked is not None:
            if not _same(self.asked, number, self._asked_at):
                os._exit(128 + number)
            return
        self._asked_at, self.asked = time.monotonic(), number
        self._noticed.set()
        self.check()

    def _watch(self) -> None:
        """A thread that ends the process where the handler gets no chance to: nothing can be lost there."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        self._wakeup_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

        def wait() -> None:
            asked, asked_at = 0, 0.0
            with os.fdopen(reading, "rb", buffering=0) as signals:
                while True:
                    unanswered = asked and not self._noticed.is_set() and not self.patient
                    if select.select([signals], [], [], SECONDS_TO_NOTICE if unanswered else None)[0]:
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
    return first == number == signal.SIGTERM and time.monotonic() - first_at < SECONDS_OF_ONE
