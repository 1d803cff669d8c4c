"""The `dragoman` command: its sub-commands, and errors as one line with an exit code. Knows nothing of torch."""

import errno
import io
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from dragoman import __version__
from dragoman.cli import compress, demo, evaluate, generate, info, inspect, report, score, train, translate
from dragoman.errors import DiskError, DragomanError

app = typer.Typer(
    name="dragoman",
    help="The Transformer of 'Attention Is All You Need': train it on parallel text, translate with it, look inside.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train")(train.command)
app.command("translate")(translate.command)
app.command("score")(score.command)
app.command("evaluate")(evaluate.command)
app.command("inspect")(inspect.command)
app.command("report")(report.command)
app.command("generate")(generate.command)
app.command("info")(info.command)
app.command("compress")(compress.command)
app.command("demo")(demo.command)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"dragoman {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options of every command come before its name: dragoman --debug train ..."""


def main() -> None:
    """Run the command; an error is one line on stderr, and its exit code tells its kind."""
    debug = "--debug" in sys.argv or bool(os.environ.get("DRAGOMAN_DEBUG"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # text is UTF-8 whatever the locale; a newline is what separates lines on every system
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    try:
        with _written_out():
            app(prog_name="dragoman")
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, DragomanError):
            print(f"dragoman: {error}", file=sys.stderr)
            sys.exit(error.exit_code)
        kind = type(error).__name__
        print(f"dragoman: a fault of ours: {kind}: {error}; `dragoman --debug ...` shows where", file=sys.stderr)
        sys.exit(1)


@contextmanager
def _written_out() -> Iterator[None]:
    """What was printed is written when this ends, or it is said why not."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # closed by who started us
                sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EPIPE) or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python tries once more as it ends
        if error.errno == errno.EPIPE:
            sys.exit(1)  # its reader has left, which is no fault
        raise DiskError(f"standard output: cannot be written ({error.strerror}); choose another place") from error
