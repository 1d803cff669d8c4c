"""`dragoman align`: which words of a sentence and its translation belong together."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from dragoman.cli import interrupts
from dragoman.cli.options import DEFAULT_MODEL, Device, Json, Model, Precision, Threads, complete_model
from dragoman.cli.streams import opened
from dragoman.errors import ConfigError, DataError

if TYPE_CHECKING:
    from dragoman.data.corpus import Line
    from dragoman.decode.alignment import Link
    from dragoman.decode.translator import Translator
    from dragoman.evaluate.alignment import Reference

WINDOW = 1_024  # pairs at a time
DEFAULT_METHOD = "grow-diag-final-and"

Pair = tuple["Line", "Line"]
AlignPairs = Callable[[list[str], list[str]], "list[list[Link]]"]


def command(
    source: Annotated[Path, typer.Argument(help="Text, one sentence per line.")],
    target: Annotated[Path, typer.Argument(help="Its translation, line by line.")],
    model: Model = DEFAULT_MODEL,
    reverse_model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A model from target to source, to align with both.", autocompletion=complete_model
        ),
    ] = None,
    symmetrize: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help=f"With --reverse-model: grow-diag-final-and, intersection or union.  \\[default: {DEFAULT_METHOD}]",
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Right links, one line per pair: print the alignment error rate."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write to this file; default: standard output.")] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Print the links between the words of each source line and its translation, in Pharaoh format: 0-0 1-2.

    The i-th word of the source and the j-th of the target, from 0; words are separated by white space. A blank line on
    either side gives a blank line. With --reference, links are printed only to --output.
    """
    from dragoman.decode.alignment import require_method

    if symmetrize is not None and reverse_model is None:
        raise ConfigError("--symmetrize: combines two models; give --reverse-model, or leave it out")
    method = symmetrize or DEFAULT_METHOD
    require_method(method)
    _check_place(output, [path for path in (source, target, reference) if path is not None])
    import dragoman
    from dragoman.data.corpus import parallel_lines
    from dragoman.decode.translator import windows

    forward = dragoman.load(model, device, precision, threads, engine="plain")
    backward = None
    if reverse_model is not None:
        backward = dragoman.load(reverse_model, device, precision, threads, engine="plain")
    interrupts.check()
    pairs = windows(parallel_lines(source, target), WINDOW)
    if reference is None:
        with opened(output) as stream:
            for record in _records(pairs, source, target, forward, backward, method):
                stream.write(f"{_shown(record, as_json)}\n")
        return
    _evaluate(_records(pairs, source, target, forward, backward, method), reference, output, as_json)


class _Record(NamedTuple):
    number: int  # of the pair, from 1
    source: str
    target: str
    links: "list[Link]"


def _shown(record: _Record, as_json: bool) -> str:
    from dragoman.decode.alignment import to_pharaoh

    if not as_json:
        return to_pharaoh(record.links)
    fields = {"source": record.source, "target": record.target, "alignment": record.links}
    return json.dumps(fields, ensure_ascii=False)


def _records(
    windows: Iterator[list[Pair]],
    source: Path,
    target: Path,
    forward: "Translator",
    backward: "Translator | None",
    method: str,
) -> Iterator[_Record]:
    """Align window by window; heads that the settings do not name are chosen from the first."""
    from dragoman.data.corpus import valid_line
    from dragoman.decode.scoring import PairError

    align: AlignPairs | None = None
    for window in windows:
        sources = [valid_line(line, source).text for line, _ in window]
        targets = [valid_line(line, target).text for _, line in window]
        try:
            align = align or _aligner(forward, backward, method, sources, targets)
            found = align(sources, targets)
        except PairError as error:
            raise DataError(f"{source}:{window[error.number - 1][0].number}: {error.problem}") from None
        numbers = (line.number for line, _ in window)
        yield from map(_Record, numbers, sources, targets, found)


def _aligner(
    forward: "Translator", backward: "Translator | None", method: str, sources: list[str], targets: list[str]
) -> AlignPairs:
    """A function from pairs to links, by one model or by two; the pairs given are what heads are chosen from."""
    from dragoman.decode.alignment import symmetrize

    heads = _heads(forward, "--model", sources, targets)
    if backward is None:
        return lambda sources, targets: forward.align(sources, targets, heads)
    other = backward
    other_heads = _heads(other, "--reverse-model", targets, sources)

    def both(sources: list[str], targets: list[str]) -> "list[list[Link]]":
        mine, theirs = forward.align(sources, targets, heads), other.align(targets, sources, other_heads)
        turned = ([(second, first) for first, second in links] for links in theirs)
        return [symmetrize(*pair, method) for pair in zip(mine, turned, strict=True)]

    return both


def _heads(translator: "Translator", option: str, sources: list[str], targets: list[str]) -> tuple[str, ...]:
    if translator.config.decode.alignment_heads:
        return translator.config.decode.alignment_heads
    heads = translator.choose_alignment_heads(sources, targets)
    if heads:
        print(f"align: {option}: took the heads {', '.join(heads)}, which align these pairs best", file=sys.stderr)
    else:
        print(f"align: {option}: too few words to choose heads; took the layer where they agree", file=sys.stderr)
    return heads


def _evaluate(records: Iterator[_Record], reference: Path, output: Path | None, as_json: bool) -> None:
    from contextlib import nullcontext

    from dragoman.evaluate.alignment import alignment_score

    right = _references(reference)
    found: list[_Record] = []
    with nullcontext() if output is None else opened(output) as stream:
        for record in records:
            found.append(record)
            if record.number <= len(right):
                _check_links(record, right[record.number - 1], reference)
            if stream is not None:
                stream.write(f"{_shown(record, as_json)}\n")
    if len(found) != len(right):
        raise DataError(f"{reference}: {len(right)} lines for {len(found)} pairs; give one line of links for each")
    score = alignment_score([record.links for record in found], right)
    with opened(None) as stream:
        if as_json:
            stream.write(json.dumps(score.to_dict()) + "\n")
        else:
            stream.write(
                f"AER {score.aer:.2f}  precision {score.precision:.2f}  recall {score.recall:.2f}  "
                f"{score.links:,} links in {score.pairs:,} pairs\n"
            )


def _references(path: Path) -> "list[Reference]":
    from dragoman.data.corpus import read_lines, valid_line
    from dragoman.evaluate.alignment import Reference

    references = []
    for line in read_lines(path):
        try:
            references.append(Reference.parse(valid_line(line, path).text))
        except DataError as error:
            message = str(error)
            raise DataError(message if line.problem else f"{path}:{line.number}: {message}") from None
    return references


def _check_links(record: _Record, reference: "Reference", path: Path) -> None:
    """A link to a word that does not exist shows that the files do not belong together."""
    words = len(record.source.split()), len(record.target.split())
    for source, target in sorted(reference.possible):
        if source >= words[0] or target >= words[1]:
            raise DataError(
                f"{path}:{record.number}: link {source}-{target} with {words[0]} source and {words[1]} target words; "
                "words are counted from 0"
            )


def _check_place(output: Path | None, inputs: list[Path]) -> None:
    if output is not None and output.exists() and any(path.exists() and path.samefile(output) for path in inputs):
        raise ConfigError(f"--output {output}: is read too; give another file")
