"""`dragoman inspect`: what a model does with a sentence, in the terminal, as one HTML file, as pictures."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import interrupts
from dragoman.cli.direction import choose_model
from dragoman.cli.options import Device, Json, ModelByText, Precision, Threads
from dragoman.config import TRANSLATION
from dragoman.errors import ConfigError, DataError

if TYPE_CHECKING:
    from dragoman.data.corpus import Line
    from dragoman.decode.translator import Translator
    from dragoman.inspect.capture import Inspection
    from dragoman.inspect.payload import Payload

BAR = 20  # columns of a probability's bar


def command(
    model: ModelByText = None,
    text: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Sentences to look into.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write one HTML file that needs nothing else.")] = None,
    source: Annotated[
        Path | None,
        typer.Option(help="Sentences in a file, one per line; vectors as .npz or .npy; a time series as .csv."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Force this translation, and see where the model disagrees.")
    ] = None,
    mask_head: Annotated[
        list[str] | None, typer.Option(metavar="KIND.LAYER.HEAD", help="Mask a head, such as cross.3.5; repeatable.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the pictures as SVG files.")] = None,
    png: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the pictures as PNG files.")] = None,
    most: Annotated[int, typer.Option(min=1, help="Sentences shown; all count for the statistics.")] = 100,
    rank: Annotated[int, typer.Option(min=0, help="Rank the heads on this many sentences by their effect.")] = 10,
    device: Device = "auto",
    precision: Precision = "float32",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Inspect what a model does: attention of every head, probabilities, the beam. Without --out, print them.

    With a language model: how likely each token of a text is. With a classifier: what each token or vector adds to the
    label. With a transcriber or a forecaster: which frames, patches or rows it looked at.
    """
    _check_arguments(text, source, out)
    model = choose_model(model, None, text, source)

    import dragoman
    from dragoman.bundle import load_config, model_name, resolve_model
    from dragoman.cli.progress import counting
    from dragoman.inspect.capture import without_heads
    from dragoman.inspect.payload import inspect_many

    task = load_config(resolve_model(model)).task
    if task != TRANSLATION:
        if target is not None or mask_head:
            raise ConfigError("inspect: --target and --mask-head are for translation models; leave them out")
        from dragoman.cli.inspect_tasks import Items, inspect_task

        folders = {kind: folder for kind, folder in (("svg", svg), ("png", png)) if folder is not None}
        options = {"device": device, "precision": precision, "threads": threads}
        inspect_task(task, model, Items(text or [], source, most), out=out, folders=folders, as_json=as_json, **options)
        return

    if target is not None and (source or len(text or ()) != 1):
        raise ConfigError("--target: is the translation of one sentence; give exactly one as an argument")
    translator = dragoman.load(model, device, precision, threads, engine="plain")
    interrupts.check()
    sentences = [(line, target) for line in (text or _lines(source, translator))]
    masked = mask_head or []
    used = without_heads(translator, masked)
    if svg is not None or png is not None:
        _draw(used, sentences[:most], svg, png)
    if out is None and not as_json:
        if svg is None and png is None:
            _print(translator, sentences[:most], masked)
        return
    payload = inspect_many(
        translator,
        model_name(model),
        sentences,
        masked=masked,
        most=most,
        ranked=rank,
        counting=lambda what, total: counting(what, total, show=total > 0),
    )
    if as_json:
        print(json.dumps(payload, ensure_ascii=False))
    if out is not None:
        _write_page(out, sentences[0][0], payload)
        told = f"{out}: {len(payload['sentences'])} of {len(sentences)} sentences; open it in a browser"
        print(told, file=sys.stderr if as_json else sys.stdout)


def _check_arguments(text: list[str] | None, source: Path | None, out: Path | None) -> None:
    if text and source:
        raise ConfigError("--source: sentences were given as arguments too; give one or the other")
    if not text and not source:
        raise ConfigError("inspect: give sentences as arguments, or a file with --source")
    if out is not None and out.is_dir():
        raise ConfigError(f"--out {out}: is a directory; name a file")
    if out is not None and not out.absolute().parent.is_dir():
        raise ConfigError(f"--out {out}: its directory does not exist; make it or choose another place")


def _valid_lines(path: Path | None) -> "list[Line]":
    from dragoman.data.corpus import read_lines, valid_line

    assert path is not None
    return [valid_line(line, path) for line in read_lines(path)]


def _lines(path: Path | None, translator: "Translator") -> list[str]:
    """The sentences of a file. Those too long for the model are skipped and counted."""
    from dragoman.inspect.capture import encoded
    from dragoman.text.normalize import is_blank

    lines, too_long = [], []
    for line in _valid_lines(path):
        if is_blank(line.text):
            continue
        try:
            encoded(translator, line.text)
            lines.append(line.text)
        except DataError:
            too_long.append(line.number)
    if too_long:
        print(
            f"{path}: {len(too_long)} lines left out, too long for this model, the first: {too_long[0]}",
            file=sys.stderr,
        )
    if not lines:
        raise DataError(f"{path}: no sentence in it; give a file with text")
    return lines


def _print(translator: "Translator", sentences: list[tuple[str, str | None]], masked: list[str]) -> None:
    from dragoman.inspect.capture import inspect_sentence, without_heads

    used = without_heads(translator, masked)
    for source, target in sentences:
        before = inspect_sentence(translator, source, target) if masked else None
        found = inspect_sentence(used, source, target)
        print(f"{found.source}\n{found.translation}\n")
        if before is not None:
            print(f"without {', '.join(masked)}: score {found.score:.2f}; with all heads {before.score:.2f}")
            print(f"with all heads: {before.translation}\n")
        print("\n".join(_table(found)))
        print(f"\nscore {found.score:.2f}, the sum of log-probabilities\n")
        print(_heatmap(found))


def _table(found: "Inspection") -> Iterator[str]:
    """One line per target token: its probability and the alternatives."""
    from dragoman.pictures import aligned_left

    for token, label, step in zip(found.tokens, aligned_left(found.tokens), found.steps, strict=True):
        bar = "█" * round(step.probability * BAR)
        others = [f"{other} {probability:.0%}" for other, probability in step.candidates if other != token][:3]
        mark = " " if step.rank == 1 else "!"
        yield f"{mark} {label} {step.probability:6.1%} {bar.ljust(BAR)}  {'  '.join(others)}"
    if found.disagreements:
        yield "! the model would have preferred the first of the others at this point"


def _heatmap(found: "Inspection") -> str:
    from dragoman.pictures import NARROWEST, terminal_heatmap

    if not len(found.attention.cross):
        return "(this model has no attention to the source)"
    width = max(NARROWEST, shutil.get_terminal_size((100, 24)).columns)
    looks = found.attention.alignment_weights
    return terminal_heatmap(looks, found.tokens, found.source_tokens, color=sys.stdout.isatty(), width=width)


def _draw(
    translator: "Translator", sentences: list[tuple[str, str | None]], svg: Path | None, png: Path | None
) -> None:
    from dragoman.cli.progress import counting
    from dragoman.inspect.capture import inspect_sentence

    inspected = []
    with counting("inspecting sentences", len(sentences), show=True) as advance:
        for pair in sentences:
            inspected.append(inspect_sentence(translator, *pair))
            advance(1)
    for folder, kind in ((svg, "svg"), (png, "png")):
        if folder is not None:
            _write_pictures(folder, kind, inspected)


def _write_pictures(folder: Path, kind: str, inspected: "list[Inspection]") -> None:
    from dragoman.files import make_directory, write_file
    from dragoman.inspect.gallery import pictures_of
    from dragoman.pictures import png_of

    make_directory(folder)
    for number, inspection in enumerate(inspected, start=1):
        for name, picture in pictures_of(inspection).items():
            path = folder / f"{number}-{name}.{kind}"
            write_file(path, picture.encode() if kind == "svg" else png_of(picture))
            print(path)


def _write_page(path: Path, sentence: str, payload: "Payload") -> None:
    from dragoman.files import write_output
    from dragoman.inspect.page import page

    write_output(path, page(f"{payload['model']['name']}: {sentence}", payload).encode())
