"""`dragoman evaluate` with a classifier: accuracy, F1, the confusion matrix."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli import interrupts
from dragoman.cli.streams import opened
from dragoman.errors import DataError

if TYPE_CHECKING:
    from dragoman.evaluate.classification import LabelScores

SHOWN = 12  # labels of a confusion matrix in the terminal


def evaluate_labels(
    model: Path,
    source: Path,
    reference: Path,
    *,
    picture: Path | None,
    device: str,
    precision: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Classify every text of `source` and compare with the labels in `reference`."""
    import numpy as np

    from dragoman.bundle import WEIGHTS, resolve_model
    from dragoman.cli.progress import counting
    from dragoman.data.corpus import CorpusReport, file_hash, parallel_lines, valid_line
    from dragoman.data.features import read_feature_pairs
    from dragoman.decode.classifier import Classifier
    from dragoman.evaluate.classification import score_labels

    classifier = Classifier.load(model, device, precision, threads)
    interrupts.check()
    if classifier.reads_vectors:
        pairs = read_feature_pairs(
            [source], [reference], features=classifier.tokenizers.scale.size, report=CorpusReport(), blank=True
        )
        items = [(pair.source, pair.target, pair.line) for pair in pairs]
    else:
        items = [
            (valid_line(text, source).text, valid_line(label, reference).text, label.number)
            for text, label in parallel_lines(source, reference)
        ]
    right = []
    for _, label, number in items:
        found = classifier.labels.find(label)
        if found is None:
            raise DataError(
                f"{reference}:{number}: {label!r} is not a label of {model}; {classifier.labels.suggest(label)}"
            )
        right.append(found)
    if not items:
        raise DataError(f"{reference}: empty; it needs one right label per line")
    rows = classifier.encode([item for item, _, _ in items])
    with counting("classifying", len(rows), show=True) as advance:
        log_probs = classifier.log_probs(rows, advance)
    scores = score_labels(np.array(right, np.int64), log_probs, classifier.labels.names)
    if picture is not None:
        write_confusion(scores, picture)
    with opened(None) as stream:
        if as_json:
            made_by = {"model": str(model), "sha256": file_hash(resolve_model(model) / WEIGHTS)}
            stream.write(json.dumps({**scores.to_dict(), "made_by": made_by}, ensure_ascii=False) + "\n")
        else:
            stream.write(describe(scores))


def describe(scores: "LabelScores") -> str:
    """The scores for a terminal."""
    values = scores.to_dict()
    lines = [
        f"accuracy  {scores.accuracy}",
        f"macro F1  {scores.macro_f1}",
        f"of {values['sentences']:,} examples; 95 % intervals by bootstrap",
        f"log loss  {scores.log_loss:.3f} nats; calibration error {scores.calibration_error:.1f}%",
        "",
        *_table(["label", "examples", "precision", "recall", "F1"], _per_label(values["labels"])),
    ]
    names = scores.labels
    if len(names) <= SHOWN:
        counts = [[name, *map(str, row)] for name, row in zip(names, scores.confusion_CC.tolist(), strict=True)]
        lines += ["", "confusion (rows: true label, columns: predicted)", *_table(["", *names], counts)]
    return "\n".join(lines) + "\n"


def _per_label(labels: dict[str, dict[str, float]]) -> list[list[str]]:
    return [
        [name, f"{one['texts']:,}", f"{one['precision']:.1f}", f"{one['recall']:.1f}", f"{one['f1']:.1f}"]
        for name, one in labels.items()
    ]


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) if not number else cell.rjust(width) for number, (cell, width) in cells).rstrip()
        for cells in ([*enumerate(zip(row, widths, strict=True))] for row in [head, *rows])
    ]


def write_confusion(scores: "LabelScores", path: Path) -> None:
    """Write the confusion matrix as a picture, SVG or PNG by the name of the file."""
    from dragoman.files import write_output
    from dragoman.pictures import png_of

    drawn = draw_confusion(scores.to_dict())
    write_output(path, png_of(drawn) if path.suffix.lower() == ".png" else drawn.encode())


def draw_confusion(scores: dict[str, Any]) -> str:
    """The share of each right label that was predicted as each label."""
    import numpy as np

    from dragoman.pictures import svg_heatmap

    counts = np.array(scores["confusion"], dtype=float)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    names = list(scores["labels"])
    return svg_heatmap(shares, names, names, title="Confusion", caption="rows: true label; columns: predicted label")
