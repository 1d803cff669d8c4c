"""`dragoman score`: the likelihood of given translations under a model, or of a text under a language model."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import interrupts
from dragoman.cli.options import DEFAULT_MODEL, Device, Json, Model, Precision, Threads
from dragoman.config import FORECASTING, LANGUAGE_MODEL, TRANSLATION
from dragoman.errors import ConfigError, DataError, ModelError


def command(
    source: Annotated[Path, typer.Argument(help="Text, one sentence per line; with a language model any text.")],
    target: Annotated[
        Path | None, typer.Argument(metavar="[TARGET]", help="Its translation, line by line; not for a language model.")
    ] = None,
    model: Model = DEFAULT_MODEL,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Pairs at a time.  \\[default: the model's]")] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Print the total log-probability, </s> included, of each target line given its source line.

    With a language model: the perplexity, the nats per token and the bits per byte of a text.
    """
    from dragoman.bundle import NAMES, load_config, resolve_model

    config = load_config(resolve_model(model))
    if config.task == LANGUAGE_MODEL:
        if target is not None:
            raise ConfigError(f"{target}: a language model scores one text; leave the second file out")
        _score_text(source, model, device, precision, threads, as_json)
        return
    if config.task != TRANSLATION:
        files = "--reference F" if config.task == FORECASTING else "--source F --reference F"
        raise ModelError(f"{model}: is {NAMES[config.task]}; use `dragoman evaluate --model {model} {files}`")
    if target is None:
        raise ConfigError(f"TARGET: missing; give the translation of {source}")
    import dragoman
    from dragoman.data.corpus import parallel_lines, valid_line
    from dragoman.decode.scoring import PairError
    from dragoman.decode.translator import windows

    translator = dragoman.load(model, device, precision, threads, engine="plain")
    interrupts.check()
    batch_size = batch_size or translator.options().batch_size
    for window in windows(parallel_lines(source, target), 16 * batch_size):
        pairs = [(valid_line(mine, source).text, valid_line(theirs, target).text) for mine, theirs in window]
        sources, targets = [text for text, _ in pairs], [text for _, text in pairs]
        try:
            scores = translator.score(sources, targets, batch_size)
        except PairError as error:
            number = window[error.number - 1][0].number
            raise DataError(f"{source}:{number}: {error.problem}") from None
        for text, translation, score in zip(sources, targets, scores, strict=True):
            record = {"source": text, "target": translation, "score": score}
            print(json.dumps(record, ensure_ascii=False) if as_json else f"{score:.6f}")
        sys.stdout.flush()


def _score_text(path: Path, model: Path, device: str, precision: str, threads: int | None, as_json: bool) -> None:
    from dragoman.cli.progress import counting
    from dragoman.data.corpus import read_lines, valid_line
    from dragoman.decode.language_model import LanguageModel

    language_model = LanguageModel.load(model, device, precision, threads)
    interrupts.check()
    lines = [valid_line(line, path).text for line in read_lines(path)]
    if not lines:
        raise DataError(f"{path}: empty; give a file with text")
    with counting("scoring tokens", None, show=True) as advance:
        score = language_model.score("".join(f"{line}\n" for line in lines), advance)
    if score.unknown:
        print(
            f"score: {score.unknown:,} tokens are characters unknown to the model; its numbers are not comparable",
            file=sys.stderr,
        )
    if as_json:
        print(json.dumps(score.to_dict()))
        return
    print(f"perplexity {score.perplexity:.3f}")
    print(f"{score.nats_per_token:.4f} nats per token, {score.tokens:,} tokens")
    print(f"{score.bits_per_byte:.4f} bits per byte, {score.bytes:,} bytes")
