"""`dragoman calibrate`: learn to tell which translations of a model need review."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import interrupts
from dragoman.cli.additions import resolve_extensible
from dragoman.cli.options import DEFAULT_MODEL, Device, Engine, Json, Model, SearchPrecision, Threads
from dragoman.errors import DataError, ModelError

if TYPE_CHECKING:
    from dragoman.decode.options import DecodeOptions


def command(
    source: Annotated[Path, typer.Option(help="Text that the model was not trained on, one sentence per line.")],
    reference: Annotated[Path, typer.Option(help="Its right translation, line by line.")],
    model: Model = DEFAULT_MODEL,
    out: Annotated[
        Path | None, typer.Option(help="Write a calibrated copy of the model here, not into the model itself.")
    ] = None,
    good_chrf: Annotated[
        float | None,
        typer.Option(
            min=0, max=100, help="A translation with this chrF is good.  \\[default: all but the worst quarter]"
        ),
    ] = None,
    beam: Annotated[int | None, typer.Option(help="1 is greedy; the model's own unless given.")] = None,
    device: Device = "auto",
    precision: SearchPrecision = "auto",
    engine: Engine = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Fit the confidence of a model's translations; `translate --confidence` and `--min-confidence` use it."""
    import dragoman
    from dragoman import bundle
    from dragoman.cli.progress import LineProgress
    from dragoman.data.corpus import content_hash, parallel_lines, valid_line
    from dragoman.decode.calibration import FEWEST_LINES, cross_validated, examples, fit
    from dragoman.decode.translator import windows

    directory = resolve_extensible(model, out)
    translator = dragoman.load(model, device, precision, threads, engine)
    weights = content_hash([directory / bundle.WEIGHTS])
    interrupts.check()
    wanted: DecodeOptions = {"token_scores": True}
    if beam is not None:
        wanted |= {"beam": beam, "n_best": 1}
    options = translator.options(**wanted)
    with nullcontext() if out is None else bundle.removed_on_error(out):
        if out is not None:
            bundle.copy_model(directory, out, [bundle.CONFIDENCE])
        pairs = [
            (valid_line(mine, source).text, valid_line(theirs, reference).text)
            for mine, theirs in parallel_lines(source, reference)
        ]
        if len(pairs) < FEWEST_LINES:
            raise DataError(f"{source}: {len(pairs)} lines to calibrate on; give at least {FEWEST_LINES}")
        with LineProgress("translate", len(pairs)) as progress:
            lines = windows((text for text, _ in pairs), translator.window_size(options))
            translations = list(translator.stream(lines, options=options, advance=progress.advance))
        found = examples(translations, [text for _, text in pairs])
        calibration = fit(found, good_chrf)
        tested = cross_validated(found, calibration.good_chrf)
        if content_hash([directory / bundle.WEIGHTS]) != weights:
            raise ModelError(f"{directory}: its weights changed meanwhile; run the command again")
        bundle.save_calibration(out or directory, calibration)
    path = (out or directory) / bundle.CONFIDENCE
    record = {
        "file": str(path),
        "lines": calibration.lines,
        "good_chrf": calibration.good_chrf,
        "auc": tested.auc,
        "calibration_error": tested.error,
    }
    if as_json:
        print(json.dumps(record))
        return
    print(f"{path}: from {calibration.lines:,} lines; good ones have a chrF of {calibration.good_chrf:.1f} or more")
    print(f"on lines left out of the fit: AUC {tested.auc:.3f}, calibration error {100 * tested.error:.1f} %")
