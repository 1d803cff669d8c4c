"""`dragoman inspect` with a model of another task than translation."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.cli import interrupts
from dragoman.config import CLASSIFICATION, FORECASTING, LANGUAGE_MODEL, TRANSCRIPTION
from dragoman.errors import ConfigError, DataError

if TYPE_CHECKING:
    from dragoman.inspect.record import Record


class Items(NamedTuple):
    """What is to be inspected: texts given as arguments, or the first of a file."""

    texts: list[str]
    source: Path | None
    most: int

    def read_texts(self) -> list[str]:
        from dragoman.data.corpus import read_lines, valid_line

        if self.source is None:
            return self.texts
        lines = [valid_line(line, self.source).text for line in read_lines(self.source)]
        texts = [line for line in lines if line][: self.most]
        if not texts:
            raise DataError(f"{self.source}: no text in it; give a file with text")
        return texts

    def read_vectors(self, features: int) -> Iterator[tuple[Any, str, tuple[int, int] | None]]:
        """Each sequence, its name, and the size of the picture if it is one."""
        from dragoman.data.features import read_features

        found = read_features(self.file("vectors, .npz or .npy"), features)
        for number, row_SF in enumerate(found.rows[: self.most], start=1):
            yield row_SF, f"sequence {number}", found.picture

    def file(self, what: str) -> Path:
        if self.source is None:
            raise ConfigError(f"inspect: this model does not read text; give {what}, with --source")
        return self.source


def inspect_task(
    task: str, model: Path, items: Items, *, out: Path | None, folders: dict[str, Path], as_json: bool, **options: Any
) -> None:
    """Print what the model does with each item; with `out` write a page, with `folders` pictures.

    `options` are how to load the model: device, precision and threads.
    """
    from dragoman.bundle import model_name
    from dragoman.files import write_output
    from dragoman.inspect.record import page

    records = []
    for number, record in enumerate(INSPECTORS[task](model, items, options), start=1):
        records.append(record)
        for kind, folder in folders.items():
            _write_pictures(record, folder, kind, number)
        if as_json:
            print(json.dumps(record.data, ensure_ascii=False))
        elif out is None and not folders:
            _print(record)
        interrupts.check()
    if out is not None:
        write_output(out, page(records, model_name(model)).encode())
        print(f"{out}: {len(records)} inspected; open it in a browser", file=sys.stderr if as_json else sys.stdout)


def _language_model(model: Path, items: Items, options: dict[str, Any]) -> "Iterator[Record]":
    from dragoman.decode.language_model import LanguageModel
    from dragoman.inspect.one_stack import inspect_text

    loaded = LanguageModel.load(model, **options)
    return (inspect_text(loaded, text) for text in items.read_texts())


def _classifier(model: Path, items: Items, options: dict[str, Any]) -> "Iterator[Record]":
    from dragoman.decode.classifier import Classifier
    from dragoman.inspect.one_stack import inspect_label, inspect_vector_label

    loaded = Classifier.load(model, **options)
    if loaded.reads_vectors:
        return (inspect_vector_label(loaded, *item) for item in items.read_vectors(loaded.tokenizers.scale.size))
    return (inspect_label(loaded, text) for text in items.read_texts())


def _transcriber(model: Path, items: Items, options: dict[str, Any]) -> "Iterator[Record]":
    from dragoman.decode.transcriber import Transcriber
    from dragoman.inspect.vectors import inspect_transcription

    loaded = Transcriber.load(model, **options)
    return (inspect_transcription(loaded, *item) for item in items.read_vectors(loaded.tokenizers.scale.size))


def _forecaster(model: Path, items: Items, options: dict[str, Any]) -> "Iterator[Record]":
    from dragoman.data.features import read_series
    from dragoman.decode.forecaster import Forecaster
    from dragoman.inspect.vectors import inspect_forecast

    loaded = Forecaster.load(model, **options)
    path = items.file("a time series, .csv")
    yield inspect_forecast(loaded, read_series(path, loaded.names).values_NF, path.name)


INSPECTORS: "dict[str, Callable[[Path, Items, dict[str, Any]], Iterator[Record]]]" = {
    LANGUAGE_MODEL: _language_model,
    CLASSIFICATION: _classifier,
    TRANSCRIPTION: _transcriber,
    FORECASTING: _forecaster,
}


def _print(record: "Record") -> None:
    from dragoman.pictures import NARROWEST, aligned_left, terminal_heatmap

    print(f"{record.name}\n{record.summary}\n")
    rows = [record.headings, *record.table]
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[1:]]
    for label, (_, *cells) in zip(aligned_left([row[0] for row in rows]), rows, strict=True):
        print(f"  {label}  {'  '.join(map(str.rjust, cells, [*widths[:-1], 0]))}".rstrip())
    if record.heatmap is None:
        print("\n(this model has no attention)")
        return
    shown = record.heatmap
    width = max(NARROWEST, shutil.get_terminal_size((100, 24)).columns)
    picture = terminal_heatmap(shown.weights, shown.rows, shown.columns, color=sys.stdout.isatty(), width=width)
    print(f"\n{shown.title}\n\n{picture}\n")


def _write_pictures(record: "Record", folder: Path, kind: str, number: int) -> None:
    from dragoman.files import make_directory, write_file
    from dragoman.pictures import png_of

    make_directory(folder)
    for name, picture in record.draw():
        path = folder / f"{number}-{name}.{kind}"
        write_file(path, picture.encode() if kind == "svg" else png_of(picture))
        print(path)
