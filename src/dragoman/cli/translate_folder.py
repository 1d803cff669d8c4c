"""`dragoman translate --input DIR --output DIR`: its options, its progress, and what it says at the end."""

import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from dragoman.cli import interrupts
from dragoman.cli.tally import MEANINGS
from dragoman.errors import ConfigError, DiskError, Stopped

if TYPE_CHECKING:
    from dragoman.decode.bulk import Job, Run
    from dragoman.decode.bulk import Workers as BulkWorkers

RAY = "ray"

Into = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of a folder: the field to write.  \\[default: translation]")
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Of a folder: processes, or actors of Ray.  \\[default: one per GPU, or one]"
    ),
]
RayAddress = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Of --engine ray: the cluster; else one is started here.")
]


def is_folder(input: Path | None, output: Path | None, engine: str, of_folders: Mapping[str, Any]) -> bool:
    """Whether a folder is to be translated; options that only a folder has are refused elsewhere."""
    if input is not None and input.is_dir():
        return True
    if engine == RAY:
        raise ConfigError("--engine ray: translates a folder of shards; give --input DIR --output DIR")
    for option, value in of_folders.items():
        if value is not None:
            raise ConfigError(f"{option}: applies to a folder of shards; give --input DIR --output DIR")
    return False


def translate_folder(
    input: Path,
    output: Path | None,
    model: Path,
    settings: Mapping[str, Any],
    how: Mapping[str, Any],
    of_folders: Mapping[str, Any],
    refused: Mapping[str, bool],
) -> NoReturn:
    """`settings` of the search, `how` to load the model, `of_folders` as given; exits with 1 if a record failed."""
    if output is None:
        raise ConfigError(f"--input {input}: is a folder; give --output, a folder for the translations")
    if output.exists() and not output.is_dir():
        raise ConfigError(f"--output {output}: is a file, and {input} a folder; give a folder")
    for option, is_given in refused.items():
        if is_given:
            raise ConfigError(f"{option}: not possible for a folder of shards; leave it out")
    if of_folders["--ray-address"] is not None and how["engine"] != RAY:
        raise ConfigError("--ray-address: only with --engine ray; leave it out")
    from dragoman.decode.bulk import Job, running

    columns = of_folders["--column"] or ["text"]
    if len(columns) > 1:
        raise ConfigError("--column: a folder of shards has one; give it once")
    job = Job(
        input,
        output,
        str(model),
        {name: value for name, value in settings.items() if value is not None},
        columns[0],
        of_folders["--into"] or "translation",
        **{**how, "engine": "auto" if how["engine"] == RAY else how["engine"]},
    )
    start = _starter(how["engine"] == RAY, of_folders["--workers"], of_folders["--ray-address"])
    with running(job, start) as run:
        _translate(run)
        code = _report(run)
    sys.exit(code)


def _starter(
    on_ray: bool, workers: int | None, address: str | None
) -> "Callable[[Job], AbstractContextManager[BulkWorkers]]":
    if on_ray:
        from dragoman.decode.bulk_ray import on_ray as start_ray

        return lambda job: start_ray(job, workers, address)
    from dragoman.decode.bulk import in_this_process
    from dragoman.decode.bulk_processes import in_processes, jobs_of

    def start(job: "Job") -> "AbstractContextManager[BulkWorkers]":
        jobs = jobs_of(job, workers)
        return in_this_process(jobs[0]) if len(jobs) == 1 else in_processes(jobs)

    return start


def _translate(run: "Run") -> None:
    from dragoman.cli.progress import LineProgress

    interrupts.check()
    if run.changed:
        print(f"translate: {run.changed[0]} {_others(run.changed)}; translating again", file=sys.stderr)
    if run.manifest.entries:
        done, all = len(run.manifest.entries), len(run.names)
        print(f"translate: {done:,} of {all:,} shards in {run.job.output} are finished", file=sys.stderr)
    try:
        with LineProgress("translate", run.total, run.done, unit="records", show_rate=True) as progress:
            run.translate(progress.advance)
    except KeyboardInterrupt:
        number = interrupts.received or signal.SIGINT
        raise Stopped(f"{run.job.output}: {interrupts.describe(number)}; {run.describe()}", number) from None
    except DiskError as error:
        raise DiskError(f"{error}; {run.describe()}") from None
    except Exception:
        print(f"translate: {run.describe()}", file=sys.stderr)
        raise


def _others(names: list[str]) -> str:
    count = len(names) - 1
    others = f"and {count:,} other {'shard' if count == 1 else 'shards'} " if count else ""
    return f"{others}changed since {'it was' if len(names) == 1 else 'they were'} translated"


def _report(run: "Run") -> int:
    """Report what was not plainly translated, in all shards; return the exit code."""
    counts: Counter[str] = Counter()
    for entry in run.manifest.entries.values():
        counts.update(entry.statuses)

    first = next((entry for _, entry in sorted(run.manifest.entries.items()) if entry.first_failed), None)
    for status, meaning in MEANINGS.items():
        if counts[status]:
            where = ""
            if status == "failed" and first is not None and first.first_failed is not None:
                where = f" (first: {first.name}:{first.first_failed['record']}: {first.first_failed['reason']})"
            print(f"translate: {counts[status]:,} of {run.total:,} records {meaning}{where}", file=sys.stderr)
    return 1 if counts["failed"] else 0
