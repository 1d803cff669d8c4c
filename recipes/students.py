"""Small models that learn from a large one: eight sizes, from 4 to 32 MB, of English to German or the reverse.

    python recipes/students.py --data FOLDER [--teacher en-de] [--out runs/students] [--only NAME ...] [--jobs 4]
        [--set KEY=VALUE ...]

1. OUT/distilled: the source text and its translation by the teacher with beam search.
2. OUT/hardened: pairs made of these for input that the corpora lack (hardening.py).
3. OUT/NAME: a student of each size, from both.
4. OUT/models/NAME: the same in int8.
5. OUT/scores.json: how large and how good they are.

Run the same command again to resume. Each step prints its minutes. `python -m benchmarks.students` measures how fast
they are.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import english_german
import sacrebleu
import steps
import typer
from english_german import DIRECTIONS, TEXTS, pairs_of

import dragoman
from dragoman import ConfigError
from dragoman.bundle import WEIGHTS
from dragoman.data.corpus import read_lines
from dragoman.errors import suggestion
from dragoman.files import lock_directory

RECIPE = Path(__file__).with_name("both_directions.toml")


def _size(width: int, num_layers: int, decoder_num_layers: int, vocab_size: int = 10_000) -> tuple[str, ...]:
    """Heads of 64, and inner layers four times as wide."""
    return (
        f"model.d_model={width}",
        f"model.d_ff={4 * width}",
        f"model.num_heads={width // 64}",
        f"model.num_layers={num_layers}",
        f"model.decoder_num_layers={decoder_num_layers}",
        f"text.vocab_size={vocab_size}",
    )


STUDENTS: dict[str, tuple[str, ...]] = {  # named by width and layers
    "512-6-2": _size(512, 6, 2),
    "512-6-1": _size(512, 6, 1),
    "384-6-2": _size(384, 6, 2),
    "384-6-1": _size(384, 6, 1),
    "320-6-2": _size(320, 6, 2),
    "256-6-2": _size(256, 6, 2, 8_000),
    "256-4-1": _size(256, 4, 1, 8_000),
    "192-4-1": _size(192, 4, 1, 8_000),
}


def command(
    data: Annotated[Path, typer.Option(metavar="FOLDER", envvar="DRAGOMAN_DATA", help="The folder of the corpora.")],
    direction: Annotated[str, typer.Option(help="en-de or de-en.")] = "en-de",
    teacher: Annotated[
        str | None,
        typer.Option(metavar="NAME|DIR", help="The model to learn from.  [default: --direction]"),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory of everything that is made.")] = Path(
        "runs/students"
    ),
    only: Annotated[list[str] | None, typer.Option(help="Train only this student; repeatable.")] = None,
    num_steps: Annotated[int, typer.Option("--steps", min=1, help="Training steps of each student.")] = 8_000,
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Hardened pairs for each real one.")] = 0.12,
    beam: steps.Beam = 4,
    jobs: Annotated[int, typer.Option(min=1, help="Students trained at the same time.")] = 4,
    settings: steps.Settings = None,
) -> None:
    """Train small models on the translations of a large one."""
    for name in only or ():
        if name not in STUDENTS:
            raise ConfigError(f"--only {name}: no such student; {suggestion(name, tuple(STUDENTS))}")
    if direction not in DIRECTIONS:
        raise ConfigError(f"--direction {direction}: unknown direction; use {' or '.join(DIRECTIONS)}")
    if not data.is_dir():
        raise ConfigError(f"--data {data}: no such folder; it is where the corpora are")
    students = {name: STUDENTS[name] for name in only or STUDENTS}
    with lock_directory(out):
        teacher = teacher or direction
        with steps.timed(f"1/5 translating by {teacher} into {out / 'distilled'}", out):
            distilled = english_german.translate(
                teacher, pairs_of(TEXTS, data, direction).source, out / "distilled", beam
            )
        with steps.timed("2/5 hardening", out):
            hardened = english_german.harden(distilled, direction, out / "hardened", share)
        with steps.timed(f"3/5 training {', '.join(students)} in {out}", out):
            learned = english_german.repeat_everyday(distilled).with_pairs(hardened)
            common = [*english_german.data_settings(learned, data, direction), *steps.length_settings(num_steps)]
            rows = {name: [*common, *own, *(settings or ())] for name, own in students.items()}
            steps.train_rows(rows, RECIPE, data, out, jobs, [])
        with steps.timed(f"4/5 compressing into {out / 'models'}", out):
            for name in students:
                steps.compress(out / name, out / "models" / name)
        with steps.timed(f"5/5 evaluating, for {out / 'scores.json'}", out):
            scores = {name: evaluate(out / "models" / name, data, direction) for name in students}
            place = out / "scores.json"
            others = json.loads(place.read_bytes()) if place.exists() else {}
            with steps.replacing(place) as file:
                file.write(json.dumps({**others, **scores}, indent=1) + "\n")
    for name, record in scores.items():
        greedy, best = (", ".join(f"{own[beams]:.1f}" for own in record["bleu"].values()) for beams in ("1", "4"))
        steps.say(f"{name}: {record['bytes']:,} bytes, BLEU {best}; greedy {greedy}")
    first = out / "models" / next(iter(students))
    steps.say(f'next: dragoman translate --model {first} "some text"')


def evaluate(model: Path, data: Path, direction: str) -> dict[str, Any]:
    """The size of a model, and BLEU of its int8 weights on every test set, by the width of the beam."""
    translator = dragoman.load(model)
    bleu: dict[str, dict[str, float]] = {}
    for test in english_german.TESTS:
        source, reference = (
            [line.text for line in read_lines(Path(names[0]))] for names in pairs_of([test], data, direction)
        )
        for beam in (1, 4):
            texts = [each.text for each in translator.translate(source, beam=beam)]
            bleu.setdefault(test, {})[str(beam)] = sacrebleu.corpus_bleu(texts, [reference]).score
    return {"bytes": (model / WEIGHTS).stat().st_size, "bleu": bleu}


if __name__ == "__main__":
    steps.run_command(command)
