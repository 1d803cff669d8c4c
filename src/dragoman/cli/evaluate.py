"""`dragoman evaluate`: BLEU, chrF and TER, with the signatures that make them reproducible."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import Device, Json, Precision
from dragoman.errors import ConfigError, DataError


def command(
    reference: Annotated[Path, typer.Option(help="The right translations, one a line.")],
    model: Annotated[
        Path | None, typer.Option("--model", "-m", metavar="DIR", help="Translate --source with this.")
    ] = None,
    source: Annotated[Path | None, typer.Option(help="What to translate.")] = None,
    hypotheses: Annotated[Path | None, typer.Option(help="Translations made before, in place of a model.")] = None,
    beam: Annotated[int | None, typer.Option(help="1 is greedy.  [default: the model's]")] = None,
    tokenize: Annotated[
        str, typer.Option(help="BLEU's tokenisation: 13a; char or zh for languages without spaces.")
    ] = "13a",
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Json = False,
) -> None:
    """Measure translations against references."""
    if (hypotheses is None) == (model is None):
        raise ConfigError("--model: give either --model and --source, or --hypotheses")
    references = _lines(reference)
    if hypotheses is not None and (source is not None or beam is not None):
        raise ConfigError("--hypotheses: are translations already; leave out --source and --beam")
    failed = 0
    if hypotheses is not None:
        translated = _lines(hypotheses)
    elif source is None:
        raise ConfigError("--source: missing; it is what --model shall translate")
    else:
        translated, failed = _translate(model, _lines(source), len(references), beam, device, precision)

    from dragoman.evaluate.metrics import evaluate

    result = evaluate(translated, references, tokenize=tokenize)
    if as_json:
        print(json.dumps({**result.to_dict(), "failed": failed}))
        sys.exit(1 if failed else 0)
    for name, score in (("BLEU", result.bleu), ("chrF", result.chrf), ("TER", result.ter)):
        print(f"{name:<5} {score.score:6.2f}  [{score.low:.2f}, {score.high:.2f}]  {score.signature}")
    print(f"exact {result.exact_match:6.1%}  of {result.sentences:,} sentences")
    if failed:
        print(f"evaluate: {failed} lines failed and count as empty", file=sys.stderr)
        sys.exit(1)


def _translate(
    model: Path | None, sources: list[str], expected: int, beam: int | None, device: str, precision: str
) -> tuple[list[str], int]:
    import dragoman
    from dragoman.cli.progress import counting
    from dragoman.decode.translator import windows

    if len(sources) != expected:
        raise DataError(f"--source has {len(sources)} lines, --reference {expected}; each line needs one reference")
    translator = dragoman.load(str(model), device, precision)
    options = translator.options(**({} if beam is None else {"beam": beam}))
    translated, failed = [], 0
    with counting("translating", len(sources), show=True) as advance:
        for result in translator.stream(windows(sources, options.batch_size), options=options):
            translated.append(result.text)
            failed += result.status == "failed"
            advance()
    return translated, failed


def _lines(path: Path) -> list[str]:
    from dragoman.data.corpus import read_lines

    texts = []
    for line in read_lines(path):
        if line.problem:
            raise DataError(f"{path}:{line.number}: {line.problem}; mend the line")
        texts.append(line.text)
    return texts
