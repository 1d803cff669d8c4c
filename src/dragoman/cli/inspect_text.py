"""`dragoman inspect` with a language model or a classifier."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli import interrupts
from dragoman.config import LANGUAGE_MODEL

if TYPE_CHECKING:
    from dragoman.inspect.one_stack import TextInspection


def inspect_texts(
    task: str,
    model: Path,
    texts: list[str],
    *,
    out: Path | None,
    folders: dict[str, Path],
    device: str,
    precision: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Print what the model does with each text; with `out` write a page, with `folders` pictures."""
    from dragoman.bundle import model_name
    from dragoman.files import write_output
    from dragoman.inspect.one_stack import page

    inspect = _inspector(task, model, device, precision, threads)
    interrupts.check()
    inspected = []
    for number, text in enumerate(texts, start=1):
        found = inspect(text)
        inspected.append(found)
        for kind, folder in folders.items():
            _write_pictures(found, folder, kind, number)
        if as_json:
            print(json.dumps(found.to_dict(), ensure_ascii=False))
        elif out is None and not folders:
            _print(found)
    if out is not None:
        write_output(out, page(inspected, model_name(model)).encode())
        texts_shown = "1 text" if len(texts) == 1 else f"{len(texts)} texts"
        print(f"{out}: {texts_shown}; open it in a browser", file=sys.stderr if as_json else sys.stdout)


def _inspector(
    task: str, model: Path, device: str, precision: str, threads: int | None
) -> "Callable[[str], TextInspection]":
    from dragoman.decode.classifier import Classifier
    from dragoman.decode.language_model import LanguageModel
    from dragoman.inspect.one_stack import inspect_label, inspect_text

    if task == LANGUAGE_MODEL:
        language_model = LanguageModel.load(model, device, precision, threads)
        return lambda text: inspect_text(language_model, text)
    classifier = Classifier.load(model, device, precision, threads)
    return lambda text: inspect_label(classifier, text)


def _print(found: "TextInspection") -> None:
    from dragoman.pictures import NARROWEST, aligned_left, terminal_heatmap

    print(f"{found.text}\n{found.summary}\n")
    rows = [found.headings, *found.table]
    wide = max(len(row[1]) for row in rows)
    for label, (_, *cells) in zip(aligned_left([row[0] for row in rows]), rows, strict=True):
        print(f"  {label}  {cells[0]:>{wide}}  {'  '.join(cells[1:])}")
    print("\nself-attention of the last layer, mean of all heads")
    width = max(NARROWEST, shutil.get_terminal_size((100, 24)).columns)
    mean_TT = found.attention_LHTT[-1].mean(axis=0)
    print(f"\n{terminal_heatmap(mean_TT, found.tokens, found.tokens, color=sys.stdout.isatty(), width=width)}")


def _write_pictures(found: "TextInspection", folder: Path, kind: str, number: int) -> None:
    from dragoman.files import make_directory, write_file
    from dragoman.inspect.one_stack import draw
    from dragoman.pictures import png_of

    make_directory(folder)
    for name, picture in draw(found):
        path = folder / f"{number}-{name}.{kind}"
        write_file(path, picture.encode() if kind == "svg" else png_of(picture))
        print(path)
