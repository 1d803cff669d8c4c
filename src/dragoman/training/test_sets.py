"""Evaluate a finished model on its test sets: DIR/result.json and DIR/tests. Knows nothing of steps."""

import json
from itertools import chain, count
from pathlib import Path
from typing import Any

from dragoman import bundle, files
from dragoman.model.footprint import parameter_counts
from dragoman.training.reports.log import json_values
from dragoman.training.reports.results import RESULT, read_published, read_result
from dragoman.training.run import Run

MADE_BY = ("dragoman", "git_commit", "versions", "seed", "start_from", "machine", "command", "configuration")
OUTPUTS = "tests"


def has_test_sets(run: Run) -> bool:
    return any(getattr(run.prepared.corpora, name) for name in run.task.test_files)


def last_tested_step(directory: Path) -> int | None:
    """The step of the last evaluation, or None."""
    result = read_result(directory)
    return None if result is None else result["steps"]


def evaluate_test_sets(run: Run) -> None:
    """Run the published model on every test set; record the scores and their provenance."""
    model = bundle.load_bundle(run.directory)
    files.make_directory(run.directory / OUTPUTS)
    tests: dict[str, Any] = {}
    sides = [getattr(run.prepared.corpora, name) for name in run.task.test_files]
    for paths in zip(*sides, strict=True):
        name = _name(paths[0], taken=tests)
        tests[name] = _test(run, model, name, [Path(path) for path in paths])
    progress, made_by = run.progress, run.made_by
    result = {
        "tests": tests,
        **run.task.search(run.config),
        "weights": json_values(read_published(run.directory) or {}),
        "parameters": sum(parameter_counts(run.config.model).values()),
        "steps": progress.step,
        "target_tokens": progress.tokens,
        "minutes": progress.seconds / 60,
        run.task.rows: len(run.prepared.train),
        "data_key": run.prepared.train.key,
        **{name: made_by[name] for name in MADE_BY},
    }
    files.write_file(run.directory / RESULT, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())


def _name(source: str, taken: dict[str, Any]) -> str:
    """`europarl-en-de-test` of data/europarl-en-de/test.en.bz2; numbered where two would be the same."""
    path = Path(source)
    name = "-".join(part for part in (path.absolute().parent.name, path.name.split(".")[0]) if part)
    numbered = (f"{name}-{number}" for number in count(2))
    return next(each for each in chain([name], numbered) if each not in taken)


def _test(run: Run, model: bundle.Bundle, name: str, paths: list[Path]) -> dict[str, Any]:
    note = run.reporter.note
    tested = run.task.test(
        model, run.prepared, run.device, paths, run.reporter.working, lambda text: note(f"test {name}: {text}")
    )
    if tested.lines:
        content = "".join(f"{line}\n" for line in tested.lines)
        files.write_file(run.directory / OUTPUTS / f"{name}.txt", content.encode())
    note(f"test {name}: {tested.summary}")
    return tested.scores
