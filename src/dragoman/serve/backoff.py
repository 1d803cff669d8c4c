"""How long clients that find no room are asked to wait. Knows nothing of HTTP."""

import time
from collections.abc import Callable

LONGEST_SECONDS = 32
QUIET_PERIODS = 4  # without a refusal, after which an overload is over


class Backoff:
    """The time doubles while more requests are refused than done, and halves while far fewer are.

    It is reconsidered once per its own length: earlier, its effect cannot be seen.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._seconds = now, 1
        self._since, self._refused, self._done = now(), 0, 0

    def note_done(self) -> None:
        self._done += 1

    def refuse(self) -> int:
        """Seconds for the next client to wait: they differ, so that not all come back at once."""
        elapsed = self._now() - self._since
        if elapsed > QUIET_PERIODS * self._seconds:
            self._begin(1)
        elif elapsed > self._seconds:
            self._begin(self._next())
        self._refused += 1
        return self._seconds + (self._refused - 1) % self._seconds

    def _next(self) -> int:
        if self._refused > self._done:
            return min(2 * self._seconds, LONGEST_SECONDS)
        return max(self._seconds // 2, 1) if 4 * self._refused < self._done else self._seconds

    def _begin(self, seconds: int) -> None:
        self._seconds = seconds
        self._since, self._refused, self._done = self._now(), 0, 0
