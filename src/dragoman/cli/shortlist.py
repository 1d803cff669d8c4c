"""`dragoman shortlist`: learn which target pieces can translate a source piece, for faster search on a CPU."""

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import interrupts
from dragoman.cli.additions import resolve_extensible
from dragoman.cli.options import DEFAULT_MODEL, Device, Engine, Json, Model, SearchPrecision, Threads
from dragoman.errors import ConfigError, DataError, ModelError

if TYPE_CHECKING:
    from dragoman.decode.translator import Translator


def command(
    source: Annotated[Path, typer.Option(help="Text to learn from, one sentence per line.")],
    target: Annotated[
        Path | None, typer.Option(help="Its translation, line by line.  \\[default: the model's own]")
    ] = None,
    model: Model = DEFAULT_MODEL,
    out: Annotated[
        Path | None, typer.Option(help="Write a copy of the model with its shortlist here, not into the model itself.")
    ] = None,
    pieces: Annotated[int, typer.Option(min=1, help="Target pieces that each source piece allows.")] = 100,
    frequent: Annotated[int, typer.Option(min=0, help="Frequent target pieces that are always allowed.")] = 3_000,
    device: Device = "auto",
    precision: SearchPrecision = "auto",
    engine: Engine = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Learn a shortlist from the attention of a model; `translate --shortlist` uses it."""
    import dragoman
    from dragoman import bundle
    from dragoman.cli.progress import LineProgress
    from dragoman.data.corpus import content_hash
    from dragoman.decode.associations import encode_pairs, learn_shortlist, require_transformer
    from dragoman.shortlist import MOST_PIECES

    if pieces > MOST_PIECES:
        raise ConfigError(f"--pieces: {pieces} is more than {MOST_PIECES}; ask for fewer")
    directory = resolve_extensible(model, out)
    translator = dragoman.load(model, device, precision, threads, engine)
    weights = content_hash([directory / bundle.WEIGHTS])
    interrupts.check()
    require_transformer(translator)
    with nullcontext() if out is None else bundle.removed_on_error(out):
        if out is not None:
            bundle.copy_model(
                directory, out, [bundle.SHORTLIST]
            )  # before the long work, to see whether there is room for it
        pairs = encode_pairs(translator, *_texts(translator, source, target))
        if not pairs:
            raise DataError(f"{source}: no line to learn from; give sentences that are not blank or too long")
        with LineProgress("shortlist", len(pairs)) as progress:
            learned = learn_shortlist(translator, pairs, pieces, frequent, progress.advance)
        if content_hash([directory / bundle.WEIGHTS]) != weights:
            raise ModelError(f"{directory}: its weights changed while the shortlist was learned; run the command again")
        bundle.save_shortlist(out or directory, learned)
    if len(learned.always) < frequent < translator.tokenizers.target.size:
        print(
            f"shortlist: the text has only {len(learned.always):,} of the {frequent:,} frequent pieces wanted; "
            "learn from more text, or translations will get worse",
            file=sys.stderr,
        )
    path = (out or directory) / bundle.SHORTLIST
    record = {"file": str(path), "bytes": path.stat().st_size, "pairs": len(pairs), "always": len(learned.always)}
    if as_json:
        print(json.dumps(record))
    else:
        always = f"{len(learned.always):,} pieces always allowed"
        print(f"{path}: {record['bytes']:,} bytes, from {len(pairs):,} pairs; {always}")


def _texts(translator: "Translator", source: Path, target: Path | None) -> tuple[list[str], list[str]]:
    """Both sides; the target is translated greedily unless given. Lines that are too long have none."""
    from dragoman.cli.progress import LineProgress
    from dragoman.data.corpus import parallel_lines, read_lines, valid_line
    from dragoman.decode.translator import windows

    if target is not None:
        pairs = [
            (valid_line(mine, source), valid_line(theirs, target)) for mine, theirs in parallel_lines(source, target)
        ]
        return [mine.text for mine, _ in pairs], [theirs.text for _, theirs in pairs]
    sources = [valid_line(line, source).text for line in read_lines(source)]
    greedy = replace(
        translator.config.decode, beam=1, n_best=1, split="long", sampling=False, temperature=1.0, top_k=0, top_p=1.0,
        shortlist=False,
    )  # fmt: skip
    options = translator.options(**asdict(greedy))
    with LineProgress("translate", len(sources)) as progress:
        found = translator.stream(
            windows(sources, translator.window_size(options)), options=options, advance=progress.advance
        )
        return sources, [each.text if each.status == "translated" else "" for each in found]
