"""The entry point of `dragoman`: errors as one line with an exit code. Knows nothing of torch or of the commands.

It imports next to nothing before `main` handles signals, so that Ctrl-C never shows a traceback.
"""

import errno
import io
import os
import signal
import sys
import warnings
from typing import Any

from dragoman.cli import interrupts


def main() -> None:
    """Run the command. An error is one line on stderr, and its exit code gives its kind."""
    interrupts.install()
    try:
        _use_utf8()
        warnings.formatwarning = _one_line
        _run()
    except BaseException as error:
        interrupts.finish()
        if interrupts.received is None and isinstance(error, SystemExit):
            raise
        if "--debug" in sys.argv or os.environ.get("DRAGOMAN_DEBUG"):
            import traceback

            traceback.print_exc()
        code, message = _outcome(error)
        if message:
            print(f"dragoman: {message}", file=sys.stderr)
        sys.exit(code)


def _run() -> None:
    """Run the command and flush its output, or raise the error that prevents it."""
    from dragoman.errors import DiskError

    try:
        try:
            from dragoman.cli.app import app

            app(prog_name="dragoman")
        finally:
            if sys.stdout is not None and interrupts.received is None:  # None: the parent closed it
                sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EPIPE) or error.filename is not None:
            raise
        _discard_output()
        if error.errno == errno.EPIPE:
            sys.exit(1)  # the reader has closed the pipe, which is not an error
        raise DiskError(f"standard output: cannot be written ({error.strerror}); choose another place") from error


def _outcome(error: BaseException) -> tuple[int, str]:
    """The exit code and the line on stderr, if any."""
    from dragoman.errors import DragomanError, Stopped

    number = interrupts.received
    if number is not None:
        # whatever the KeyboardInterrupt was turned into: typer's exit, or an error of the code it interrupted
        _discard_output()
        if isinstance(error, Stopped):
            return 128 + number, str(error)
        # torchrun terminates the others after an error in one process, which has reported it
        is_one_of_several = os.environ.get("WORLD_SIZE", "1") != "1" and number == signal.SIGTERM
        return 128 + number, "" if is_one_of_several else interrupts.describe(number)
    if isinstance(error, DragomanError):
        return error.exit_code, str(error)
    return 1, f"internal error: {type(error).__name__}: {error}; `dragoman --debug ...` shows the traceback"


def _one_line(message: Warning | str, *_: Any, **__: Any) -> str:
    """Format a warning without the file and line that raised it."""
    return f"dragoman: {message}\n"


def _use_utf8() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # text is UTF-8 in every locale; lines are separated by a newline on every system
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")


def _discard_output() -> None:
    """Discard unwritten output: Python would try to write it again at exit, and may block on the reader."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
