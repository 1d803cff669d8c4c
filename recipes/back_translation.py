"""Back-translation: makes training pairs from text in the target language alone (Sennrich et al. 2016).

    python recipes/back_translation.py --source F --target F --valid-source F --valid-target F --monolingual F --out DIR
        [--preset small] [--set train.max_steps=500 ...] [--repeat N] [--sample]

1. DIR/reverse: a model from the target language to the source language, trained on the real pairs reversed.
2. DIR/synthetic: synthetic pairs, with the monolingual text as target and its translation by that model as source.
3. DIR/model: the final model, trained on the real and the synthetic pairs.
"""

from pathlib import Path
from typing import Annotated

import steps
import typer

from dragoman import ConfigError
from dragoman.files import lock_directory


def command(
    source: steps.Source,
    target: steps.Target,
    valid_source: steps.ValidSource,
    valid_target: steps.ValidTarget,
    monolingual: Annotated[list[str], typer.Option(help="Text in the target language alone; repeatable.")],
    out: steps.Out,
    preset: Annotated[str, typer.Option(help="The preset of both models: tiny, small, base or big.")] = "small",
    settings: steps.Settings = None,
    reverse: Annotated[
        Path | None, typer.Option(metavar="DIR", help="An existing model from target to source.")
    ] = None,
    reverse_settings: Annotated[
        list[str] | None,
        typer.Option("--reverse-set", metavar="SECTION.KEY=VALUE", help="A setting of the reverse model only."),
    ] = None,
    beam: steps.Beam = None,
    sample: Annotated[bool, typer.Option("--sample", help="Sample translations instead of beam search.")] = False,
    top_k: Annotated[int | None, typer.Option(min=1, help="With --sample: from the k most likely tokens.")] = None,
    max_ratio: steps.MaxRatio = 4.0,
    repeat: Annotated[int, typer.Option(min=1, help="How many times to repeat the real pairs.")] = 1,
) -> None:
    """Train a model on real pairs and on back-translated text of the target language."""
    if sample and beam is not None:
        raise ConfigError("--beam: --sample draws in place of beam search; give one or the other")
    if top_k is not None and not sample:
        raise ConfigError("--top-k: has no part in beam search; give --sample too")
    if reverse is not None and reverse_settings:
        raise ConfigError("--reverse-set: a model given by --reverse has the settings it has; leave it out")
    synthetic = out / "synthetic"
    real = steps.Corpora(tuple(source), tuple(target), tuple(valid_source), tuple(valid_target))
    both = steps.Corpora(
        (*real.source * repeat, str(synthetic / "source")),
        (*real.target * repeat, str(synthetic / "target")),
        real.valid_source,
        real.valid_target,
    )
    forward_config = steps.build_config(preset, both, settings)
    reverse_config = steps.build_config(preset, real.swapped(), settings, reverse_settings)
    real.require_all()
    total = steps.check_text(monolingual, forward_config)
    with lock_directory(out):
        model = steps.provide_model("the reverse model, target to source,", reverse, reverse_config, out / "reverse")
        how = "sampling" if sample else "beam search"
        steps.say(f"2/3 translating {total:,} lines of {', '.join(monolingual)} back by {how} into {synthetic}")
        translated = steps.translate_text(
            model,
            monolingual,
            synthetic / "parts",
            device=forward_config.train.device,
            beam=beam,
            sampling=sample or None,
            top_k=top_k,
        )
        steps.write_pairs(translated, synthetic / "target", synthetic / "source", max_ratio)
        times = "" if repeat == 1 else f", {repeat} times,"
        steps.say(f"3/3 training on the real pairs{times} and the synthetic ones in {out / 'model'}")
        steps.train_model(forward_config, out / "model")
    steps.say(f'next: dragoman translate --model {out / "model"} "some text"')


if __name__ == "__main__":
    steps.run_command(command)
