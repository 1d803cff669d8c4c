"""`dragoman translate`: N lines in, N lines out, in order, always."""

import json
import queue
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import Device, Json, Model
from dragoman.errors import ConfigError, DiskError

if TYPE_CHECKING:
    from dragoman.data.corpus import Line
    from dragoman.decode.translator import Translation

WINDOW_LINES = 1024


def command(
    model: Model,
    text: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="What to translate; else --input or stdin.")
    ] = None,
    input: Annotated[
        Path | None, typer.Option("--input", "-i", help="A file, one sentence a line; .gz .bz2 .xz too.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file in place of stdout.")] = None,
    beam: Annotated[
        int | None, typer.Option(help="Hypotheses kept at each step; 1 is greedy.  [default: the model's, 4]")
    ] = None,
    n_best: Annotated[int | None, typer.Option(help="Translations a line, separated by tabs.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="GNMT's alpha.  [default: the model's, 0.6]")] = None,
    max_extra: Annotated[int | None, typer.Option(help="Most tokens the output may have beyond the input's.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw tokens at random in place of beam search.")] = False,
    top_k: Annotated[int | None, typer.Option(help="Sample among the k likeliest.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample among the likeliest that make up this probability.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Below 1 sharper, above 1 flatter.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the sampling.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Sentences at a time.")] = None,
    attention: Annotated[bool, typer.Option("--attention", help="Draw the cross-attention of each line.")] = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Translate text given as arguments, a file, or standard input."""
    if text and input:
        raise ConfigError("--input: text was given as arguments too; give one or the other")
    settings = {
        "beam": beam, "n_best": n_best, "length_penalty": length_penalty, "max_extra": max_extra, "top_k": top_k,
        "top_p": top_p, "temperature": temperature, "seed": seed, "batch_size": batch_size, "sampling": sample or None,
    }  # fmt: skip
    import dragoman

    translator = dragoman.load(str(model), device)
    options = translator.options(**{name: value for name, value in settings.items() if value is not None})
    with _opened(output) as stream:
        if text:
            stretches: Iterable[list[Any]] = [text]
        else:
            stretches = _file_windows(input) if input else _stdin_windows()
        translations = translator.stream(stretches, attention=attention, options=options)
        tally = _write(translations, stream, as_json, attention, input)
    sys.exit(tally.finish())


class _Tally:
    """Counts what did not go plainly, says so on stderr, and gives the exit code."""

    def __init__(self) -> None:
        self.lines = 0
        self.counts: dict[str, int] = {}
        self.first_failure = ""

    def add(self, translation: "Translation") -> None:
        self.lines += 1
        self.counts[translation.status] = self.counts.get(translation.status, 0) + 1
        if translation.status == "failed" and not self.first_failure:
            self.first_failure = f"line {self.lines}: {translation.reason}"

    def finish(self) -> int:
        meanings = {
            "split": "too long, translated in pieces",
            "truncated": "cut at the length limit",
            "failed": "failed",
        }
        for status, meaning in meanings.items():
            if status in self.counts:
                first = f" (first: {self.first_failure})" if status == "failed" else ""
                print(f"translate: {self.counts[status]} of {self.lines} lines {meaning}{first}", file=sys.stderr)
        return 1 if "failed" in self.counts else 0


def _write(
    translations: Iterator["Translation"], stream: Any, as_json: bool, attention: bool, input: Path | None
) -> _Tally:
    from dragoman.cli.progress import counting

    tally = _Tally()
    show = input is not None and not stream.isatty()
    with counting("translating", None, show) as advance:
        for translation in translations:
            stream.write(_line(translation, as_json) + "\n")
            if attention and translation.attention is not None and not as_json:
                stream.write(_picture(translation, stream) + "\n")
            stream.flush()
            tally.add(translation)
            advance()
    return tally


def _line(translation: "Translation", as_json: bool) -> str:
    if as_json:
        return json.dumps(translation.to_dict(), ensure_ascii=False)
    return "\t".join(other.text for other in translation.alternatives) or translation.text


def _picture(translation: "Translation", stream: Any) -> str:
    """The heads' average in the layer that the alignment is read from."""
    import shutil

    from dragoman.pictures import terminal_heatmap

    assert translation.attention is not None
    cross = translation.attention.cross
    return terminal_heatmap(
        cross[max(0, len(cross) - 2)].mean(axis=0),
        translation.tokens,
        translation.source_tokens,
        color=stream.isatty(),
        width=shutil.get_terminal_size().columns,
    )


def _opened(output: Path | None) -> Any:
    if output is None:
        if hasattr(signal, "SIGPIPE"):  # `| head -1` ends us quietly, as it does any other filter
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        # newline="\n": what separates lines is a newline on every system; closefd: stdout stays open
        return open(sys.stdout.fileno(), "w", encoding="utf-8", newline="\n", closefd=False)
    try:
        return output.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise DiskError(f"{output}: cannot be written ({error.strerror}); choose another place") from None


def _file_windows(path: Path) -> Iterator[list["Line"]]:
    from itertools import islice

    from dragoman.data.corpus import read_lines

    lines = read_lines(path)
    while window := list(islice(lines, WINDOW_LINES)):
        yield window


def _stdin_windows() -> Iterator[list["Line"]]:
    """All lines that have come so far, at least one: a pipe that is slow gets its answers at once."""
    from dragoman.data.corpus import split_lines

    waiting: queue.Queue[Line | BaseException | None] = queue.Queue(maxsize=WINDOW_LINES)

    def read() -> None:
        try:
            for line in split_lines(sys.stdin.buffer, "stdin"):
                waiting.put(line)
            waiting.put(None)
        except BaseException as error:
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    open_ = True
    while open_:
        window: list[Line] = []
        while len(window) < WINDOW_LINES and not (window and waiting.empty()):
            line = waiting.get()
            if isinstance(line, BaseException):
                raise line
            if line is None:
                open_ = False
                break
            window.append(line)
        if window:
            yield window
