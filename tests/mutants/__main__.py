"""Applies each mutant of the .toml files here to a copy of the repository and runs the tests that should detect it.

    python -m tests.mutants [WORD ...] [--jobs 2] [--json FILE]

A mutant is killed when one of its tests fails, and survives when all pass. A mutant whose `old` text does not occur
exactly once, or that does not even import, is an error: it shows nothing. All tests named are run first on the code as
it is, where they must pass.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
COPIED = ("src", "tests", "docs", "recipes", "benchmarks", "results", "pyproject.toml", "README.md", "Makefile")
TESTS_FAILED = 1  # pytest's exit code; 2 and above: it could not run them
LIMIT = 600.0  # seconds for the tests of one mutant: a fault that hangs is noticed too


@dataclass(frozen=True)
class Mutant:
    """One small fault: in `file`, `new` in place of `old`."""

    area: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def check(self, root: Path) -> str:
        """What is wrong with the mutant itself; empty if it can be applied."""
        path = root / self.file
        if not path.is_file():
            return f"{self.file} does not exist"
        count = path.read_text(encoding="utf-8").count(self.old)
        if count != 1:
            return f"its old text occurs {count} times in {self.file}, not once"
        if not self.tests:
            return "it names no test"
        missing = {test.partition("::")[0] for test in self.tests if not (root / test.partition("::")[0]).is_file()}
        return f"{', '.join(sorted(missing))} does not exist" if missing else ""


def read_mutants(directory: Path = HERE) -> list[Mutant]:
    return [
        Mutant(path.stem, entry["name"], entry["file"], entry["old"], entry["new"], tuple(entry["tests"]))
        for path in sorted(directory.glob("*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    ]


class Copy:
    """A copy of the repository that mutants are applied to, one at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(ROOT / name, root / name)

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        path = self.root / mutant.file
        before = path.read_text(encoding="utf-8")
        path.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(before, encoding="utf-8")

    def run(self, tests: Iterable[str]) -> tuple[int, str]:
        """pytest's exit code and what it printed."""
        # slow tests too; the first failure is enough; no bytecode, whose time stamps could hide a quick change
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "slow or not slow", "-p", "no:cacheprovider"]
        path = os.pathsep.join([str(self.root / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                [*command, *sorted(tests)], cwd=self.root, env=environment, timeout=LIMIT,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return TESTS_FAILED, f"no end after {LIMIT:.0f} seconds"
        return done.returncode, done.stdout


def judge(mutant: Mutant, copies: "Queue[Copy]") -> str:
    """killed, survived, or what is wrong with the mutant."""
    problem = mutant.check(ROOT)
    if problem:
        return problem
    copy = copies.get()
    try:
        with copy.mutated(mutant):
            code, output = copy.run(mutant.tests)
    finally:
        copies.put(copy)
    if code == TESTS_FAILED:
        return "killed"
    return "survived" if code == 0 else f"pytest could not run its tests (exit {code}): {output.strip()[-300:]}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Do the tests notice these faults?")
    parser.add_argument("words", nargs="*", help="only mutants with one of these words in their name or area")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tried at a time (2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts here too")
    options = parser.parse_args()
    every = read_mutants()
    chosen = [
        each for each in every if not options.words or any(word in f"{each.area} {each.name}" for word in options.words)
    ]
    if not chosen:
        print(f"no mutant has one of these words: {' '.join(options.words)}", file=sys.stderr)
        return 2

    with tempfile.TemporaryDirectory(prefix="dragoman-mutants-") as scratch, ThreadPoolExecutor(options.jobs) as pool:
        copies: Queue[Copy] = Queue()
        for number in range(options.jobs):
            copies.put(Copy(Path(scratch) / str(number)))
        verdicts: dict[str, str] = {}
        if not _pass_without_mutants(chosen, copies, pool):
            return 1
        for mutant, verdict in zip(chosen, pool.map(lambda each: judge(each, copies), chosen), strict=True):
            verdicts[f"{mutant.area}: {mutant.name}"] = verdict
            print(f"{verdict:9}  {mutant.area}: {mutant.name}", flush=True)
    killed = sum(verdict == "killed" for verdict in verdicts.values())
    print(f"{killed} of {len(verdicts)} mutants killed")
    if options.json:
        record = {"killed": killed, "mutants": len(verdicts), "verdicts": verdicts}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if killed == len(verdicts) else 1


def _pass_without_mutants(mutants: list[Mutant], copies: "Queue[Copy]", pool: ThreadPoolExecutor) -> bool:
    """All tests that the mutants name, file by file, on the code as it is."""
    by_file: dict[str, set[str]] = {}
    for test in {test for mutant in mutants for test in mutant.tests}:
        by_file.setdefault(test.partition("::")[0], set()).add(test)

    def run(tests: set[str]) -> tuple[int, str]:
        copy = copies.get()
        try:
            return copy.run(tests)
        finally:
            copies.put(copy)

    failures = [output for code, output in pool.map(run, by_file.values()) if code]
    for output in failures:
        print(output, file=sys.stderr)
    if failures:
        print("these tests fail on the code as it is; fix that first", file=sys.stderr)
    return not failures


if __name__ == "__main__":
    sys.exit(main())
