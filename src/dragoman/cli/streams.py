"""Standard input, and the outputs of commands."""

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from dragoman.errors import ConfigError, DataError, DiskError
from dragoman.files import is_stream

if TYPE_CHECKING:
    from dragoman.data.corpus import Line

WINDOW_LINES = 1024
READ_AHEAD = 1 << 20  # bytes of standard input


@contextmanager
def opened(output: Path | None) -> Iterator[TextIO]:
    """stdout, or a file that gets its name once it is complete: a failure leaves the old file."""
    if output is None:
        if sys.stdout is None:
            raise ConfigError("standard output: closed; give --output")
        with _exit_when_reader_closes():
            yield sys.stdout
            sys.stdout.flush()
        return
    from dragoman.data.corpus import OPENERS

    in_place = is_stream(output)
    place = output if in_place else output.with_name(f".{output.name}.writing")
    try:
        # newline="\n": lines are separated by a newline on every system
        with OPENERS.get(output.suffix.lower(), open)(place, "wt", encoding="utf-8", newline="\n") as stream:
            yield stream
        if not in_place:
            place.replace(output)
    except OSError as error:
        raise DiskError(f"{output}: cannot be written ({error.strerror}); choose another place") from None
    finally:
        if not in_place:
            place.unlink(missing_ok=True)


@contextmanager
def _exit_when_reader_closes() -> Iterator[None]:
    """Exit quietly on `| head -1`, like any other filter."""
    if not hasattr(signal, "SIGPIPE"):  # on Windows
        yield
        return
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGPIPE, before)


_arrived: list[bytes] = []  # of standard input: what was looked at and nobody has read yet


def peek_stdin() -> bytes:
    """What arrives first on standard input. `stdin_windows` gives it again."""
    if not _arrived:
        _begin_reading()
        _arrived.append(_read_stdin())
    return b"".join(_arrived)


def _begin_reading() -> None:
    if sys.stdin is None:
        raise ConfigError("standard input: closed; give text as arguments or --input")
    if sys.stdin.isatty():
        print("reading standard input; end it with Ctrl-D", file=sys.stderr)
    with suppress(ImportError, AttributeError, OSError):  # not a pipe, or not on Linux
        import fcntl

        fcntl.fcntl(0, fcntl.F_SETPIPE_SZ, READ_AHEAD)  # more lines to sort by length


def _read_stdin() -> bytes:
    try:
        return os.read(0, READ_AHEAD)
    except OSError as error:
        raise DataError(f"standard input: cannot be read ({error.strerror}); give --input") from None


def stdin_windows() -> Iterator[list["Line"]]:
    """All lines that have arrived so far, at least one: a slow pipe gets its answers at once."""
    from dragoman.data.corpus import split_lines

    if not _arrived:
        _begin_reading()
    arriving = _IncomingLines()
    window: list[Line] = []
    for line in split_lines(arriving, "stdin"):
        window.append(line)
        if len(window) == WINDOW_LINES or not arriving.has_line:
            yield window
            window = []


class _IncomingLines(io.BufferedIOBase):
    """Standard input as it arrives, and whether the next line is already available.

    No thread reads ahead: an interrupt can leave the lock of a `queue.Queue` in a state from which it does not recover.
    """

    def __init__(self) -> None:
        self._held, self._start, self._ended = b"".join(_arrived), 0, _arrived == [b""]
        _arrived.clear()

    @property
    def has_line(self) -> bool:
        return self._held.find(b"\n", self._start) >= 0

    def readline(self, size: int | None = -1, /) -> bytes:
        most = sys.maxsize if size is None or size < 0 else size
        while not self._ended and not self.has_line and len(self._held) - self._start < most:
            more = _read_stdin()
            self._held, self._start, self._ended = self._held[self._start :] + more, 0, not more
        end = self._held.find(b"\n", self._start, self._start + most) + 1 or self._start + most
        line = self._held[self._start : end]
        self._start += len(line)
        return line
