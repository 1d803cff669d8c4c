"""What each addition to the training of a small model is worth, from English to German or the reverse.

    python recipes/gains.py --data FOLDER [--direction en-de] [--teacher en-de] [--pairs 200000] [--steps 2000]
        [--only NAME ...] [--jobs 1] [--out runs/gains]

Every row is the same model trained for as many steps; only what it learns from, or one setting, is different. Its text
is a part of Europarl and the everyday sentences, read many times: there additions show.

1. OUT/text: the pairs.
2. OUT/NAME: the rows that need no translations, and OUT/reverse, from target to source; meanwhile OUT/distilled and
   OUT/nearest, translations by the teacher.
3. OUT/distilled-by-equal: translations by the first row; OUT/back-translated: by OUT/reverse.
4. OUT/NAME: the other rows.

OUT/gains.json has the BLEU and chrF on validation text of every row that is done. Run the same command again to
resume. The results are in docs/lab/recipes.md.
"""

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import english_german
import steps
import typer
from english_german import DIRECTIONS, EVERYDAY, TEXTS, VALIDATION, VALIDATION_OF_EVERYDAY, Pairs, pairs_of

from dragoman import ConfigError, ModelError
from dragoman.bundle import CONFIG, resolve_model
from dragoman.data.corpus import read_lines
from dragoman.errors import suggestion
from dragoman.files import lock_directory
from dragoman.training.reports.results import RESULT

RECIPE = Path(__file__).with_suffix(".toml")


class Row(NamedTuple):
    """What a model learns from, and the setting in which it differs from the others."""

    learned: tuple[str, ...] = ("real",)
    setting: str = ""


ROWS = {
    "real": Row(),
    "another-seed": Row(setting="train.seed=2"),  # a control: how far chance alone moves a row
    "subword-sampling": Row(setting="text.sampling=0.1"),
    "r-drop": Row(setting="train.r_drop=5"),
    "hardened": Row(("real", "hardened")),
    "distilled": Row(("distilled",)),
    "real-and-distilled": Row(("real", "distilled")),
    "real-and-nearest": Row(("real", "nearest")),
    "distilled-by-equal": Row(("distilled-by-equal",)),  # what is due to a better teacher
    "back-translated": Row(("real", "back-translated")),
}
REVERSE = "reverse"  # a model, not a row
BY_TEACHER = {"distilled", "nearest"}
MODELS = {"distilled-by-equal": "real", "back-translated": REVERSE}  # what translates


def command(
    data: Annotated[Path, typer.Option(metavar="FOLDER", envvar="DRAGOMAN_DATA", help="The folder of the corpora.")],
    direction: Annotated[str, typer.Option(help="en-de or de-en.")] = "en-de",
    teacher: Annotated[
        str | None,
        typer.Option(metavar="NAME|DIR", help="The model whose translations are learned.  [default: --direction]"),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory of everything that is made.")] = Path(
        "runs/gains"
    ),
    only: Annotated[list[str] | None, typer.Option(help="Train only this row; repeatable.")] = None,
    num_pairs: Annotated[
        int, typer.Option("--pairs", min=1, help="Pairs of Europarl; all everyday ones are added.")
    ] = 200_000,
    num_steps: Annotated[int, typer.Option("--steps", min=1, help="Training steps of each row.")] = 2_000,
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Hardened pairs for each real one.")] = 0.12,
    beam: steps.Beam = 4,
    jobs: Annotated[int, typer.Option(min=1, help="Rows trained at the same time.")] = 1,
    settings: steps.Settings = None,
) -> None:
    """Train one model per row and print their scores."""
    for name in only or ():
        if name not in ROWS:
            raise ConfigError(f"--only {name}: no such row; {suggestion(name, tuple(ROWS))}")
    if direction not in DIRECTIONS:
        raise ConfigError(f"--direction {direction}: unknown direction; use {' or '.join(DIRECTIONS)}")
    if not data.is_dir():
        raise ConfigError(f"--data {data}: no such folder; it is where the corpora are")
    rows = {name: ROWS[name] for name in only or ROWS}
    kinds = {kind for row in rows.values() for kind in row.learned}
    teacher = teacher or direction
    if BY_TEACHER & kinds and not (resolve_model(teacher) / CONFIG).exists():  # before hours of training
        raise ModelError(
            f"--teacher {teacher}: no such model; give one that translates {direction}, or rows that need none (--only)"
        )
    tests = (VALIDATION, VALIDATION_OF_EVERYDAY)
    learned: dict[str, Pairs] = {}

    def train(chosen: Iterable[str]) -> None:
        try:
            steps.train_rows({name: settings_of(name) for name in chosen}, RECIPE, data, out, jobs, [])
        finally:
            write_scores(out)

    def settings_of(name: str) -> list[str]:
        row, way = ROWS.get(name, Row()), direction
        pairs = join(learned[kind] for kind in row.learned)
        if name == REVERSE:
            pairs, way = pairs.swapped(), "-".join(reversed(direction.split("-")))
        own = [*english_german.data_settings(pairs, data, way, tests), *steps.length_settings(num_steps)]
        return [*own, *filter(None, [row.setting]), *(settings or ())]

    with lock_directory(out):
        with steps.timed("1/4 taking pairs", out):
            learned["real"] = take(data, direction, out / "text", num_pairs)
            if "hardened" in kinds:
                learned["hardened"] = english_german.harden(learned["real"], direction, out / "hardened", share)
        first = {name for name, row in rows.items() if not {*BY_TEACHER, *MODELS} & {*row.learned}}
        needed = {MODELS[kind] for kind in kinds & MODELS.keys()}
        with (
            steps.timed(f"2/4 training {', '.join(sorted(first | needed))} in {out}", out),
            ThreadPoolExecutor() as pool,
        ):
            by_teacher = [
                pool.submit(translate, teacher, learned["real"], out / kind, beam, kinds) for kind in sorted(BY_TEACHER)
            ]
            train(sorted(first | needed, key=[*MODELS.values(), *ROWS].index))  # what others need comes first
            for made in by_teacher:
                learned |= made.result()
        with steps.timed("3/4 translating by what was trained", out), ThreadPoolExecutor() as pool:
            for made in [
                pool.submit(translate, out / model, learned["real"], out / kind, beam, kinds)
                for kind, model in MODELS.items()
            ]:
                learned |= made.result()
        rest = [name for name in rows if name not in first | needed]
        with steps.timed(f"4/4 training {', '.join(rest) or 'nothing more'} in {out}", out):
            train(rest)
        record = write_scores(out)
    for name in rows:
        bleu = ", ".join(f"{test} {own['score']:.1f}" for test, own in record[name]["bleu"].items())
        steps.say(f"{name:<20} {record[name]['minutes']:5.1f} minutes, BLEU: {bleu}")
    steps.say(f"more in {out / 'gains.json'}")


def take(data: Path, direction: str, out: Path, num_pairs: int) -> Pairs:
    """The first pairs of Europarl as files of their own, and all everyday ones."""
    whole, everyday = (pairs_of([name], data, direction) for name in (TEXTS[0], EVERYDAY))
    taken = Pairs([str(out / "source")], [str(out / "target")])
    for (place,), (text,) in zip(taken, whole, strict=True):
        with steps.replacing(Path(place)) as stream:
            stream.writelines(f"{line.text}\n" for line in islice(read_lines(Path(text)), num_pairs))
    return taken.with_pairs(everyday)


def translate(model: str | Path, real: Pairs, out: Path, beam: int | None, kinds: set[str]) -> dict[str, Pairs]:
    """Pairs of real text and its translation, by their kind, which is the name of the folder, if it is asked for."""
    if out.name not in kinds:
        return {}
    if out.name == "back-translated":
        return {out.name: english_german.translate(model, real.target, out, beam).swapped()}
    if out.name == "nearest":
        return {out.name: Pairs(real.source, english_german.provide_nearest(model, real, out, beam or 4))}
    return {out.name: english_german.translate(model, real.source, out, beam)}


def join(parts: Iterable[Pairs]) -> Pairs:
    first, *others = parts
    return first.with_pairs(*others)


def write_scores(out: Path) -> dict[str, Any]:
    """OUT/gains.json: every row that is done, of this run or of one before."""
    record = {name: scores_of(out / name) for name in ROWS if (out / name / RESULT).exists()}
    with steps.replacing(out / "gains.json") as file:
        file.write(json.dumps(record, indent=1) + "\n")
    return record


def scores_of(run: Path) -> dict[str, Any]:
    result = json.loads((run / RESULT).read_bytes())
    scores = {
        metric: {
            test: {key: own[metric][key] for key in ("score", "low", "high")} for test, own in result["tests"].items()
        }
        for metric in ("bleu", "chrf")
    }
    return {**scores, **{key: result[key] for key in ("steps", "target_tokens", "minutes", "seed")}}


if __name__ == "__main__":
    steps.run_command(command)
