"""`dragoman demo`: trains a small model on a corpus made here and shows what it learned. Never asks a question."""

import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.translate import picture
from dragoman.config import Config
from dragoman.errors import ConfigError, suggestion

SHOWN = 8  # phrases it never saw


def command(
    out: Annotated[Path | None, typer.Option(help="Keep the model here; left out, it goes when the demo ends.")] = None,
    language: Annotated[str, typer.Option(help="th (Thai) or de (German).")] = "th",
) -> None:
    """Train English numbers and dates into Thai or German for about a minute, then translate phrases never seen."""
    if language not in ("de", "th"):
        raise ConfigError(
            f"--language {language}: the demo speaks Thai and German; {suggestion(language, ('de', 'th'))}"
        )
    with tempfile.TemporaryDirectory(prefix="dragoman-demo-") as scratch:
        _demo(out or Path(scratch) / "model", f"numbers-{language}", kept=out is not None)


def _demo(run: Path, corpus: str, *, kept: bool) -> None:
    import dragoman
    from dragoman.cli.progress import TrainingReporter
    from dragoman.data import generated

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
    right = sum(result.text == reference for result, (_, reference) in zip(results, test, strict=False))
    print("Phrases it never saw, translated with beam 4:\n")
    for result, (source, reference) in zip(results[:SHOWN], test, strict=False):
        mark = "right" if result.text == reference else "wrong"
        print(f"  source     {source}\n  output     {result.text}\n  reference  {reference}  ({mark})\n")
    print(f"Right to the letter: {right} of {len(results)} held-out phrases.\n")
    print("Cross-attention: where each output token (rows) looked in the source (columns), mean over heads.\n")
    print(picture(translator.translate(test[0][0], attention=True), sys.stdout))
    if kept:
        print(f'\nThe model is in {run}. Next: dragoman translate --model {run} "forty-two"')
    else:
        print(
            "\nNext: keep a model (dragoman demo --out runs/demo), or train on your own text (dragoman train --help)."
        )


# At most two minutes on two cores, with room to spare on slower ones: 80 seconds where it was measured.
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
