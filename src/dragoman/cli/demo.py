"""`dragoman demo`: shows what a Transformer does. Never prompts."""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.options import DEFAULT_MODEL
from dragoman.cli.translate import picture
from dragoman.config import Config
from dragoman.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from dragoman.decode.translator import Translator

EVERYDAY = (
    "Good morning! How did you sleep?",
    "I would like a cup of coffee, please.",
    "Where is the nearest train station?",
    "She has been working here for ten years.",
    "My brother is older than me, but I am taller.",
    "The committee will vote on the report tomorrow.",
)
LOOKED_INTO = "Tom has been living in Boston since October."
SHOWN = 8  # held-out phrases


def command(
    train: Annotated[bool, typer.Option("--train", help="Train a small model instead of using a bundled one.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="With --train: keep the model here; otherwise it is deleted.")
    ] = None,
    language: Annotated[str | None, typer.Option(help="With --train: th (Thai, the default) or de (German).")] = None,
) -> None:
    """Translate everyday English with a bundled model and show its attention; or train a model in two minutes."""
    if not train:
        for option, value in (("--out", out), ("--language", language)):
            if value is not None:
                raise ConfigError(f"{option}: belongs to the training demo; add --train")
        _translate()
        return
    if language not in ("de", "th", None):
        raise ConfigError(
            f"--language {language}: the demo speaks Thai and German; {suggestion(language, ('de', 'th'))}"
        )
    with tempfile.TemporaryDirectory(prefix="dragoman-demo-") as scratch:
        _train(out or Path(scratch) / "model", f"numbers-{language or 'th'}", kept=out is not None)


def _translate() -> None:
    import dragoman
    from dragoman.bundle import BUNDLED_MODELS

    translator = dragoman.load(str(BUNDLED_MODELS / DEFAULT_MODEL))  # even if something here has that name
    print(f"English to German with {DEFAULT_MODEL}, the model that comes with dragoman.\n")
    for result in translator.translate(list(EVERYDAY)):
        print(f"  {result.source}\n  {result.text}\n")
    _show_attention(translator, LOOKED_INTO)
    program = _program()
    print(
        f'\nNext: {program} translate "Your own sentence."'
        f'\n      {program} inspect "Your own sentence." --out inside.html   (every head, in the browser)'
        f"\n      {program} demo --train   (trains a model of its own, in two minutes)"
    )


def _train(run: Path, corpus: str, *, kept: bool) -> None:
    import dragoman
    from dragoman.cli.progress import TrainingReporter
    from dragoman.data import generated
    from dragoman.evaluate.metrics import is_exact

    config = Config.build("tiny", None, SETTINGS, data={"generated": corpus})
    print(f"Training a small Transformer on {config.data.generated_size:,} generated pairs: {corpus}.")
    print("Source: English numbers and dates. No download, no account; the corpus was made a moment ago.\n")
    sys.stdout.flush()
    started = time.perf_counter()
    with TrainingReporter() as reporter:
        dragoman.train(config, run, reporter)
    print(f"\nTrained in {time.perf_counter() - started:.0f} seconds.\n")

    test = generated.generate(corpus, config.data.generated_size, config.train.seed).test
    translator = dragoman.load(str(run))
    results = translator.translate([source for source, _ in test[:200]])
    right = [is_exact(result.text, reference) for result, (_, reference) in zip(results, test, strict=False)]
    print("Phrases it never saw, translated with beam 4:\n")
    for result, (source, reference), is_right in zip(results[:SHOWN], test, right, strict=False):
        mark = "right" if is_right else "wrong"
        print(f"  source     {source}\n  output     {result.text}\n  reference  {reference}  ({mark})\n")
    print(f"Exactly right: {sum(right)} of {len(results)} held-out phrases.\n")
    _show_attention(translator, test[0][0])
    if kept:
        print(f'\nThe model is in {run}. Next: dragoman translate --model {run} "forty-two"')
    else:
        print("\nNext: keep a model (dragoman demo --train --out runs/demo),")
        print("      or train on your own text (dragoman train --help).")


def _program() -> str:
    """The command to type: dragoman, or its path if it is not on PATH."""
    here = Path(sys.argv[0])
    return "dragoman" if here.name != "dragoman" or shutil.which("dragoman") else os.path.relpath(here)


def _show_attention(translator: "Translator", text: str) -> None:
    print("Cross-attention: where each output token (rows) looked in the source (columns), mean over heads.\n")
    print(picture(translator.translate(text, attention=True), sys.stdout))


# At most two minutes on two cores, with a margin for slower ones: measured at 80 seconds.
SETTINGS = (
    "data.generated_size=20000",
    "text.vocab_size=600",
    "model.dropout=0.0",
    "train.max_steps=600",
    "train.learning_rate=1.2e-3",
    "train.warmup_steps=100",
    "train.save_every=60",
    "train.average=4",
    "train.valid_sentences=40",
)
