"""Sequence-level knowledge distillation: a small model learns from the output of a larger one (Kim & Rush 2016).

    python recipes/distillation.py --source F --target F --valid-source F --valid-target F --out DIR
        [--teacher DIR | --teacher-preset small] [--student-preset tiny] [--set train.max_steps=500 ...] [--keep-real]

1. DIR/teacher: the teacher, unless --teacher gives one.
2. DIR/distilled: the training source and its translation by the teacher with beam search.
3. DIR/student: the student, trained on these pairs, and with --keep-real also on the real ones.
"""

from pathlib import Path
from typing import Annotated

import steps
import typer

from dragoman import ConfigError
from dragoman.files import lock_directory

DEFAULT_TEACHER = "small"


def command(
    source: steps.Source,
    valid_source: steps.ValidSource,
    valid_target: steps.ValidTarget,
    out: steps.Out,
    target: Annotated[
        list[str] | None, typer.Option(help="Its translation; not needed with --teacher and without --keep-real.")
    ] = None,
    teacher: Annotated[Path | None, typer.Option(metavar="DIR", help="An existing model as teacher.")] = None,
    teacher_preset: Annotated[
        str | None, typer.Option(help=f"The preset of the teacher to train.  [default: {DEFAULT_TEACHER}]")
    ] = None,
    student_preset: Annotated[str, typer.Option(help="The preset of the student: tiny, small, base or big.")] = "tiny",
    settings: steps.Settings = None,
    teacher_settings: Annotated[
        list[str] | None,
        typer.Option("--teacher-set", metavar="SECTION.KEY=VALUE", help="A setting of the teacher only."),
    ] = None,
    student_settings: Annotated[
        list[str] | None,
        typer.Option("--student-set", metavar="SECTION.KEY=VALUE", help="A setting of the student only."),
    ] = None,
    keep_real: Annotated[bool, typer.Option("--keep-real", help="Train the student on the real pairs too.")] = False,
    beam: steps.Beam = None,
    max_ratio: steps.MaxRatio = 4.0,
) -> None:
    """Train a small model on the translations of a larger one."""
    if teacher is not None and (teacher_preset or teacher_settings):
        raise ConfigError(
            "--teacher: a trained model has the settings it has; leave out --teacher-preset and --teacher-set"
        )
    if not target and (teacher is None or keep_real):
        raise ConfigError("--target: missing; only a student of --teacher, without --keep-real, can do without")
    distilled = out / "distilled"
    real = steps.Corpora(tuple(source), tuple(target or ()), tuple(valid_source), tuple(valid_target))
    learned = steps.Corpora(
        (*(real.source if keep_real else ()), str(distilled / "source")),
        (*(real.target if keep_real else ()), str(distilled / "target")),
        real.valid_source,
        real.valid_target,
    )
    student_config = steps.build_config(student_preset, learned, settings, student_settings)
    teacher_config = steps.build_config(teacher_preset or DEFAULT_TEACHER, real, settings, teacher_settings)
    real.require_all()
    total = steps.check_text(source, student_config)
    with lock_directory(out):
        model = steps.provide_model("the teacher", teacher, teacher_config, out / "teacher")
        steps.say(f"2/3 translating {total:,} lines of {', '.join(source)} by the teacher into {distilled}")
        translated = steps.translate_text(
            model, source, distilled / "parts", device=student_config.train.device, beam=beam
        )
        steps.write_pairs(translated, distilled / "source", distilled / "target", max_ratio)
        real_too = "the real pairs and " if keep_real else ""
        steps.say(f"3/3 training the student on {real_too}the teacher's translations in {out / 'student'}")
        steps.train_model(student_config, out / "student")
    steps.say(f'next: dragoman translate --model {out / "student"} "some text"')


if __name__ == "__main__":
    steps.run_command(command)
