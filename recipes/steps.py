"""Shared by the recipe scripts: options, training, translating a text in parts, filtering pairs, one-line errors.

Every step can be restarted. Existing output is reused if it is what the step would produce: a run is checked by its
checkpoints, a part of a translation by the manifest of its folder (docs/bulk.md).
"""

import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TextIO

import typer

from dragoman import Config, ConfigError, DataError, DiskError, DragomanError
from dragoman.bundle import load_config
from dragoman.cli.progress import TrainingReporter
from dragoman.data.corpus import TOO_LONG, content_hash, read_lines
from dragoman.decode.bulk import Job, in_this_process, running
from dragoman.text.normalize import is_blank
from dragoman.training.loop import train
from dragoman.training.reports.results import RESULT

PART_LINES = 1024  # translated at a time; at most this many are lost when a run is killed

Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any setting, for every training.")
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="The output directory; run the same command again to resume.")]
Source = Annotated[list[str], typer.Option(help="Training text, one sentence per line; repeatable.")]
Target = Annotated[list[str], typer.Option(help="Its translation, line by line.")]
ValidSource = Annotated[list[str], typer.Option(help="Held-out text for validation.")]
ValidTarget = Annotated[list[str], typer.Option(help="Its translation.")]
Beam = Annotated[
    int | None, typer.Option(min=1, help="Hypotheses kept at each step; 1 is greedy.  [default: the model's, 4]")
]
MaxRatio = Annotated[
    float, typer.Option(min=1.0, help="Drop pairs with more than this many times the pieces on one side.")
]


# Commands


def run_command(command: Callable[..., None]) -> None:
    """Run a script's command. An error is one line on stderr, and its exit code gives its kind, as in `dragoman`."""
    name = Path(sys.argv[0]).stem

    @functools.wraps(command)
    def guarded(**options: Any) -> None:
        try:
            command(**options)
        except KeyboardInterrupt:
            print(f"{name}: interrupted; run the same command to resume where it stopped", file=sys.stderr)
            sys.exit(130)
        except Exception as error:
            if os.environ.get("DRAGOMAN_DEBUG"):
                traceback.print_exc()
            if isinstance(error, DragomanError):
                print(f"{name}: {error}", file=sys.stderr)
                sys.exit(error.exit_code)
            kind = type(error).__name__
            print(f"{name}: internal error: {kind}: {error}; DRAGOMAN_DEBUG=1 shows the traceback", file=sys.stderr)
            sys.exit(1)

    app = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
    )
    app.command()(guarded)
    app()


def say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def timed(what: str, out: Path) -> Iterator[None]:
    """Say what is done, and how long it took; OUT/minutes.json has it too, of all commands together."""
    say(what)
    started = time.perf_counter()
    try:
        yield
    finally:
        minutes = (time.perf_counter() - started) / 60
        place = out / "minutes.json"
        record = json.loads(place.read_text()) if place.exists() else {}
        step = what.partition(" ")[0]
        record[step] = round(record.get(step, 0.0) + minutes, 2)
        place.write_text(json.dumps(record, indent=1) + "\n")
        say(f"    {minutes:.1f} minutes, {sum(record.values()):.1f} in all")


def run_dragoman(*arguments: Any, may_fail_lines: bool = False) -> None:
    """Run a command in a process of its own."""
    code = subprocess.run([sys.executable, "-m", "dragoman", *map(str, arguments)], check=False).returncode
    if code and not (code == 1 and may_fail_lines):
        error = DragomanError(f"dragoman {arguments[0]} ended with exit code {code}; its message is above")
        error.exit_code = max(1, code)  # below 0: ended by a signal
        raise error


def compress(run: Path, model: Path) -> None:
    """Write a model in int8, in place of an earlier one."""
    shutil.rmtree(model, ignore_errors=True)
    run_dragoman("compress", "--model", run, "--out", model)


# Training


@dataclass(frozen=True)
class Corpora:
    """The files of a training run; the names are those of the settings in [data]."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    valid_source: tuple[str, ...]
    valid_target: tuple[str, ...]

    def swapped(self) -> "Corpora":
        return Corpora(self.target, self.source, self.valid_target, self.valid_source)

    def require_all(self) -> None:
        """Check that every file exists, before hours of work."""
        for entry in fields(self):
            content_hash([Path(path) for path in getattr(self, entry.name)])


def build_config(preset: str, corpora: Corpora, *given: list[str] | None) -> Config:
    """`given` are lists of `section.key=value`, later ones win; None is an omitted option."""
    settings = [setting for some in given for setting in some or ()]
    for setting in settings:
        name = setting.partition("=")[0].strip()
        if name in {f"data.{entry.name}" for entry in fields(Corpora)} | {"data.generated"}:
            raise ConfigError(f"--set {name}: the corpora of a recipe are given by its options; leave it out")
    return Config.build(preset, None, settings, data=asdict(corpora))


def train_model(config: Config, run: Path) -> None:
    """Train into `run`, resume the run it holds, or return if it is finished."""
    with TrainingReporter() as reporter:
        result = train(config, run, reporter)
    say(f"    {result.describe()}")


def provide_model(what: str, given: Path | None, config: Config, place: Path) -> Path:
    """Return the model directory of the first step: the given one, or `place` after training there."""
    if given is None:
        say(f"1/3 training {what} in {place}")
        train_model(config, place)
        return place
    load_config(given)  # fails here if it is not a model
    say(f"1/3 {what} is {given}")
    return given


# Reading


def check_text(paths: Sequence[str], config: Config) -> int:
    """Count the lines to translate in all files; reject unreadable ones before hours of work."""
    lines = blank = 0
    for path in paths:
        for line in read_lines(Path(path)):
            lines += 1
            blank += is_blank(line.text)
            if line.problem not in ("", TOO_LONG) and config.data.on_bad_line == "fail":
                raise DataError(
                    f"{path}:{line.number}: {line.problem}; fix the line or use --set data.on_bad_line=skip"
                )
    if lines == blank:
        raise DataError(f"{paths[0]}: nothing to translate: {lines} lines, all of them blank or unusable")
    return lines


# Translating


class Translated(NamedTuple):
    """The result for one line."""

    source: str
    text: str
    status: str
    source_pieces: int  # including </s>, here and below
    pieces: int


def translate_text(
    model: Path, paths: Sequence[str], folder: Path, *, device: str = "auto", **options: Any
) -> Iterator[Translated]:
    """Translate every line of the files by `model`, in order; parts that exist in `folder` are reused.

    `options` are those of DecodeConfig; None means the model's own.
    """
    names = _write_parts(paths, folder / "source")
    settings = {name: value for name, value in options.items() if value is not None}
    details = ("source_pieces", "pieces")
    job = Job(folder / "source", folder / "translated", str(model), settings, details=details, device=device)
    with TrainingReporter() as reporter, running(job, in_this_process, redo=True) as run:
        done = run.done

        def advance(lines: int) -> None:
            nonlocal done
            done += lines
            reporter.working("lines translated", done)

        run.translate(advance)
        kept = f", {run.done:,} of them found in place" if run.done else ""
        say(f"    {run.total:,} lines translated{kept}")
    for name in names:
        for line in (job.output / name).read_bytes().splitlines():
            record = json.loads(line)
            pieces = (record[detail] for detail in details)
            yield Translated(record["text"] or "", record["translation"], record["status"], *pieces)


def _write_parts(paths: Sequence[str], folder: Path) -> list[str]:
    """Write the lines of all files as shards of PART_LINES records, and return their names."""
    lines = itertools.chain.from_iterable(read_lines(Path(path)) for path in paths)
    names = []
    while part := list(itertools.islice(lines, PART_LINES)):
        names.append(f"part-{len(names):06d}.jsonl")
        with replacing(folder / names[-1]) as stream:
            for line in part:
                stream.write(json.dumps({"text": None if line.problem else line.text}, ensure_ascii=False) + "\n")
    for path in set(folder.iterdir()) - {folder / name for name in names}:
        path.unlink()
    return names


# Filtering


def fault(line: Translated, max_ratio: float) -> str:
    """Return why a line and its translation are not a usable pair; empty if they are."""
    if line.status == "empty":
        return "blank"
    if line.status in ("failed", "truncated"):
        return {"failed": "failed", "truncated": "did not end"}[line.status]
    if not line.text:
        return "came out empty"
    if max(line.source_pieces, line.pieces) > max_ratio * min(line.source_pieces, line.pieces):
        return f"more than {max_ratio:g} times as long on one side"
    return ""


def write_pairs(lines: Iterable[Translated], sources: Path, translations: Path, max_ratio: float) -> None:
    """Write the usable lines and their translations to two files; count the others."""
    left_out: Counter[str] = Counter()
    kept = 0
    with ExitStack() as stack:
        streams = [stack.enter_context(replacing(path)) for path in (sources, translations)]
        for line in lines:
            reason = fault(line, max_ratio)
            if reason:
                left_out[reason] += 1
                continue
            kept += 1
            for stream, text in zip(streams, (line.source, line.text), strict=True):
                stream.write(text + "\n")
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in left_out.most_common())
        if not kept:
            raise DataError(f"{translations}: no pair is left: {reasons}; train the model that translates for longer")
    say(f"    {kept:,} pairs in {sources} and {translations}" + (f"; left out: {reasons}" if reasons else ""))


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Open a file that replaces `path` once it is complete; a failure or a kill leaves the old file."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8", newline="\n") as stream:
            yield stream
        partial.replace(path)
    except OSError as error:
        raise DiskError(
            f"{path}: cannot be written ({error.strerror}); free some space or choose another place"
        ) from None
    finally:
        partial.unlink(missing_ok=True)


def length_settings(num_steps: int) -> list[str]:
    """With few checkpoints: of a large model, the validation of one takes as long as 150 steps."""
    return [f"train.max_steps={num_steps}", f"train.save_every={max(1, num_steps // 6)}"]


# A table of runs


def train_rows(
    rows: Mapping[str, Sequence[str]], recipe: Path, data: Path, out: Path, jobs: int, settings: Sequence[str],
    describe: Callable[[dict[str, Any]], str] | None = None,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Train one model per row, with its own settings, into OUT/NAME; print and return the scores of every test set.

    `describe` says the scores of a test set in a few words; by default those of translations.
    """
    with ThreadPoolExecutor(jobs) as pool:
        trained = pool.map(lambda name: _train_row(recipe, data, out / name, [*rows[name], *settings]), rows)
        codes = dict(zip(rows, trained, strict=True))
    failed = {name: code for name, code in codes.items() if code}
    results = {name: out / name / RESULT for name in rows if name not in failed}  # of runs with test sets
    found = {name: json.loads(file.read_bytes())["tests"] for name, file in results.items() if file.exists()}
    for name, tests in found.items():
        for test, scores in tests.items():
            say(f"{name:<20} {test}: {(describe or _describe_translations)(scores)}")
    if failed:
        logs = ", ".join(str(out / f"{name}.log") for name in failed)
        error = DragomanError(f"not trained: {', '.join(failed)}; more in {logs}")
        error.exit_code = max(1, next(iter(failed.values())))  # below 0: ended by a signal
        raise error
    return found


def _describe_translations(scores: dict[str, Any]) -> str:
    bleu, chrf = (
        f"{metric['score']:.1f} [{metric['low']:.1f}, {metric['high']:.1f}]"
        for metric in (scores["bleu"], scores["chrf"])
    )
    return f"BLEU {bleu}, chrF {chrf}"


def _train_row(recipe: Path, data: Path, run: Path, settings: Sequence[str]) -> int:
    """Train in a separate process that writes its output to NAME.log."""
    here = Path.cwd()
    recipe = recipe.relative_to(here) if recipe.is_relative_to(here) else recipe  # the command is kept with its result
    chosen = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "dragoman", "train", str(recipe), "--data", str(data), "--out", str(run), *chosen]
    log = run.with_name(f"{run.name}.log")
    say(f"{run.name}: started; log: {log}")
    run.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as stream:
        code = subprocess.run(command, stdout=stream, stderr=stream, check=False).returncode
    last = (log.read_text(encoding="utf-8", errors="replace").splitlines() or ["nothing in its log"])[-1]
    say(f"{run.name}: {'trained' if code == 0 else f'ended with exit code {code}: {last}'}")
    return code
