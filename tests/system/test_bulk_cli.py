"""`translate --input DIR --output DIR`: killed, stopped, restarted, in several processes and on a local Ray."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.data.shards import _pyarrow
from dragoman.decode import bulk_ray
from dragoman.decode.bulk import JOURNAL, MANIFEST, TEMPORARY
from dragoman.errors import ConfigError
from tests.forked import LIMIT, Ended, shared_server

SIZES = {"a.txt": 40, "b.jsonl": 10, "sub/c.txt.gz": 20}
RECORDS = sum(SIZES.values())
FIRST, EACH = 2, 3  # events: the manifest is written and renamed; each shard is written and renamed, then recorded
EVENTS = FIRST + EACH * len(SIZES) + 2


def lines(count: int) -> list[str]:
    return [" ".join("abcdefghij"[(row * step) % 10] for step in range(1, 2 + row % 6)) for row in range(count)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("".join(f"{line}\n" for line in lines(SIZES["a.txt"])))
    records = [{"id": number, "text": line} for number, line in enumerate(lines(SIZES["b.jsonl"]))]
    (folder / "b.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "sub/c.txt.gz").write_bytes(gzip.compress("\n".join(lines(SIZES["sub/c.txt.gz"])).encode(), mtime=0))
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Command:
    def __init__(self, model: Path, folder: Path, output: Path) -> None:
        self.model, self.folder, self.output = model, folder, output

    def arguments(self, *more: str) -> list[str]:
        return [
            "translate",
            "--model",
            str(self.model),
            "--input",
            str(self.folder),
            "--output",
            str(self.output),
            *more,
        ]

    def run(self, *more: str, **fault: Any) -> Ended:
        errors = self.output.with_name(f"{self.output.name}.errors")
        small = ["--engine", "plain", "--batch-size", "2", "--beam", "1", "--max-extra", "4"]
        return shared_server().start(self.arguments(*small, *more), errors, fault, {}).wait()

    def start(self, *more: str) -> "subprocess.Popen[str]":
        """A process of its own, which may have others."""
        command = [sys.executable, "-m", "dragoman", *self.arguments(*more)]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def finish(self, *more: str) -> list[str]:
        """Run to the end in a process of its own; what it says."""
        process = self.start(*more)
        _, told = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, told
        return told.splitlines()


Make = Callable[[str], Command]


@pytest.fixture
def command(quick_run: Path, folder: Path, tmp_path: Path) -> Make:
    return lambda name: Command(quick_run, folder, tmp_path / name)


_undisturbed: dict[str, bytes] = {}


def undisturbed(command: Make) -> dict[str, bytes]:
    if not _undisturbed:
        mine = command("undisturbed")
        ended = mine.run()
        assert ended.code == 0, ended.errors
        _undisturbed.update(files_of(mine.output))
        assert _undisturbed.keys() == {*SIZES, MANIFEST}
        assert json.loads(_undisturbed[MANIFEST])["totals"]["records"] == RECORDS
    return _undisturbed


# Killed, stopped, restarted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "finished"),
    [
        (1, []),  # the manifest has no name
        pytest.param(FIRST + 1, [], marks=pytest.mark.slow),  # a shard is written and has no name
        (FIRST + 2, []),  # it has its name and no entry
        pytest.param(FIRST + 3, ["a.txt"], marks=pytest.mark.slow),
        (FIRST + EACH + 2, ["a.txt"]),
        pytest.param(EVENTS - 2, list(SIZES), marks=pytest.mark.slow),
        (EVENTS - 1, list(SIZES)),  # the last manifest has no name
        pytest.param(EVENTS, list(SIZES), marks=pytest.mark.slow),
    ],
)
def test_killed_command_continues_to_the_same_bytes(event: int, finished: list[str], command: Make) -> None:
    expected, mine = undisturbed(command), command("out")
    assert mine.run(name="at_event", number=event, action="die").code == -9
    for name, content in files_of(mine.output).items():
        assert name.startswith(".") or name == MANIFEST or content == expected[name], "complete or absent"
    ended = mine.run()
    assert ended.code == 0
    told = f"translate: {len(finished)} of {len(SIZES)} shards in {mine.output} are finished"
    assert (ended.lines[0] == told) == bool(finished)
    left = RECORDS - sum(SIZES[name] for name in finished)
    assert any(line.startswith(f"translate: {left} records in ") for line in ended.lines)
    assert files_of(mine.output) == expected


def test_command_killed_within_a_shard_continues_to_the_same_bytes(command: Make) -> None:
    expected, mine = undisturbed(command), command("out")
    assert mine.run(name="at_place", place="window", number=2, action="die").code == -9
    (left,) = [path for path in mine.output.iterdir() if path.name.startswith(TEMPORARY)]
    assert left.name.endswith("-a.txt")
    assert not (mine.output / "a.txt").exists()
    assert mine.run().code == 0
    assert files_of(mine.output) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "code", "what"),
    [
        ("interrupt", 130, "{0}: interrupted"),
        ("terminate", 143, "{0}: terminated"),
        ("disk full", 6, "{0}/b.jsonl: cannot be written (No space left on device); free some space"),
    ],
)
def test_stopped_command_says_what_is_kept(action: str, code: int, what: str, command: Make) -> None:
    expected, mine = undisturbed(command), command("out")
    ended = mine.run(name="at_event", number=FIRST + EACH + 1, action=action)
    kept = "1 of 3 shards are finished; run the same command to continue"
    assert (ended.code, ended.lines) == (code, [f"dragoman: {what.format(mine.output)}; {kept}"])
    assert files_of(mine.output).keys() == {"a.txt", MANIFEST}
    assert mine.run().code == 0
    assert files_of(mine.output) == expected


def test_internal_error_says_what_is_kept(command: Make) -> None:
    mine = command("out")
    ended = mine.run(name="at_event", number=FIRST + EACH + 1, action="bug")
    assert ended.code == 1
    assert ended.lines[0] == "translate: 1 of 3 shards are finished; run the same command to continue"
    assert ended.lines[1].startswith("dragoman: internal error: ZeroDivisionError")


def test_log_shows_records_speed_and_time_left(command: Make) -> None:
    told = [line for line in command("out").run(name="report_always").lines if line.endswith(" left")]
    assert told[-1].startswith(f"translate: {RECORDS} of {RECORDS} records, ")
    assert "records/s, 0:00:0" in told[-1]


def test_failed_records_give_exit_code_1_again_when_all_is_finished(command: Make, folder: Path) -> None:
    with (folder / "b.jsonl").open("a") as file:
        file.write('{"text": null}\n')
    mine = command("out")
    message = f"translate: 1 of {RECORDS + 1} records failed (first: b.jsonl:{SIZES['b.jsonl'] + 1}: text is null)"
    for _ in range(2):
        ended = mine.run()
        assert (ended.code, ended.lines[-1]) == (1, message)


def test_changed_options_are_refused_and_a_changed_shard_is_translated_again(command: Make, folder: Path) -> None:
    mine = command("out")
    assert mine.run().code == 0
    before = files_of(mine.output)
    ended = mine.run("--beam", "2")
    message = f"dragoman: --output {mine.output}: was made with beam 1, not 2; give another folder or the same options"
    assert (ended.code, ended.lines) == (2, [message])
    assert files_of(mine.output) == before
    (folder / "a.txt").write_text("a b\n")
    assert mine.run().lines[0] == "translate: a.txt changed since it was translated; translating again"


# Usage


def test_options_of_folders_and_files_are_not_mixed(quick_run: Path, folder: Path, tmp_path: Path) -> None:
    file, model = tmp_path / "file", ["translate", "--model", str(quick_run)]
    file.write_text("a b\n")
    output = ["--output", str(tmp_path / "out")]
    of_folder, of_file = ["--input", str(folder)], ["--input", str(file)]
    give = "give --input DIR --output DIR"
    cases = [
        (["--engine", "ray", "a b"], f"--engine ray: translates a folder of shards; {give}"),
        ([*of_file, "--column", "text"], "--column: says how to read a document or a folder; give one with --input"),
        ([*of_file, "--workers", "2"], f"--workers: applies to a folder of shards; {give}"),
        (of_folder, f"--input {folder}: is a folder; give --output, a folder for the translations"),
        ([*of_folder, "--output", str(file)], f"--output {file}: is a file, and {folder} a folder; give a folder"),
        ([*of_folder, *output, "--json"], "--json: not possible for a folder of shards; leave it out"),
        ([*of_folder, *output, "--n-best", "2"], "--n-best: not possible for a folder of shards; leave it out"),
        ([*of_folder, *output, "--ray-address", "auto"], "--ray-address: only with --engine ray; leave it out"),
    ]
    for arguments, message in cases:
        done = shared_server().run([*model, *arguments])
        assert (done.returncode, done.stderr) == (2, f"dragoman: {message}\n")
    assert not (tmp_path / "out").exists()


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ray", "ray.data", "pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError) as ray:
        bulk_ray._import_ray()
    assert str(ray.value) == '--engine ray: needs ray; pip install "dragoman[ray]"'
    with pytest.raises(ConfigError) as arrow:
        _pyarrow(Path("a.parquet"))
    assert str(arrow.value) == 'a.parquet: needs pyarrow; pip install "dragoman[parquet]"'


# Several processes


def until(found: Callable[[], Any], process: "subprocess.Popen[str] | None" = None) -> Any:
    """Wait until something is found, which must happen before the process ends."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        if result := found():
            return result
        assert process is None or process.poll() is None, process.communicate()[1]
        time.sleep(0.005)
    raise TimeoutError


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def all_end(pids: list[int]) -> bool:
    return bool(until(lambda: not any(map(is_running, pids))))


def children_of(pid: int) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = path.read_text().rpartition(")")[2].split()[1]
        except OSError:  # it has ended
            continue
        if int(parent) == pid:
            yield int(path.parent.name)
            yield from children_of(int(path.parent.name))


def aside_of(output: Path) -> Path | None:
    return next((path for path in output.rglob(f"{TEMPORARY}*")), None) if output.exists() else None


def writer_of(aside: Path) -> int:
    return int(aside.name.removeprefix(TEMPORARY).partition("-")[0])


@pytest.fixture
def large(folder: Path) -> Path:
    """Six shards that take a while each."""
    for path in (folder / "a.txt", folder / "b.jsonl", folder / "sub/c.txt.gz"):
        path.unlink()
    for number in range(6):
        text = [f"{line} {'abcdefghij'[number]}" for line in lines(2_000 + number)]
        (folder / f"part-{number}.txt").write_text("".join(f"{line}\n" for line in text))
    return folder


def assert_each_record_once(command: Command, expected: dict[str, bytes]) -> None:
    found = files_of(command.output)
    manifest = json.loads(found[MANIFEST])
    counts = {name: content.count(b"\n") for name, content in found.items() if name != MANIFEST}
    assert counts == {f"part-{number}.txt": 2_000 + number for number in range(6)}
    assert {name: entry["records"] for name, entry in manifest["shards"].items()} == counts
    assert manifest["totals"]["records"] == sum(counts.values()) == 12_015
    assert found == expected


@pytest.mark.slow
def test_processes_write_the_same_bytes_and_a_killed_one_is_reported(command: Make, large: Path) -> None:
    one, several = command("one"), command("several")
    one.finish()
    expected = files_of(one.output)
    process = several.start("--workers", "2")
    aside = until(lambda: aside_of(several.output), process)
    workers = set(children_of(process.pid))
    assert writer_of(aside) in workers
    os.kill(writer_of(aside), signal.SIGKILL)
    _, told = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert told.splitlines()[-1] == (
        "dragoman: a worker process ended (killed by SIGKILL, perhaps because memory ran out); use fewer --workers"
    )
    assert aside_of(several.output) is None
    several.finish("--workers", "2")
    assert_each_record_once(several, expected)


@pytest.mark.slow
def test_workers_end_with_the_command(command: Make, large: Path) -> None:
    stopped = command("out")
    process = stopped.start("--workers", "2")
    until(lambda: aside_of(stopped.output), process)
    workers = list(children_of(process.pid))
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert told.splitlines() == [f"dragoman: {stopped.output}: interrupted; no shards were finished"]
    assert set(files_of(stopped.output)) == {MANIFEST}
    assert all_end(workers)


# Ray


@pytest.mark.slow
def test_ray_repeats_the_shard_of_a_killed_worker(command: Make, large: Path) -> None:
    one, cluster = command("one"), command("cluster")
    one.finish()
    expected = files_of(one.output)
    process = cluster.start("--workers", "2", "--engine", "ray")
    aside = until(lambda: aside_of(cluster.output), process)
    assert writer_of(aside) in set(children_of(process.pid))
    os.kill(writer_of(aside), signal.SIGKILL)
    killed = aside.name.split("-", 3)[-1]
    assert not (cluster.output / killed).exists(), "in the middle of it"
    _, told = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, told
    assert [line for line in told.splitlines() if not line.startswith("translate: ")] == []
    assert_each_record_once(cluster, expected)


@pytest.mark.slow
def test_ray_continues_after_the_driver_was_killed(command: Make, large: Path) -> None:
    one, cluster = command("one"), command("cluster")
    one.finish()
    expected = files_of(one.output)
    process = cluster.start("--workers", "2", "--engine", "ray")
    journal = cluster.output / JOURNAL
    until(lambda: journal.exists() and journal.stat().st_size, process)
    workers = list(children_of(process.pid))
    process.kill()
    process.communicate()
    finished = {json.loads(line)["name"] for line in journal.read_bytes().splitlines()}
    assert 0 < len(finished) < 6
    before = {name: (cluster.output / name).stat().st_mtime_ns for name in finished}
    told = cluster.finish("--workers", "2", "--engine", "ray")
    assert f"translate: {len(finished)} of 6 shards in {cluster.output} are finished" in told
    assert {name: (cluster.output / name).stat().st_mtime_ns for name in finished} == before, "not done again"
    assert_each_record_once(cluster, expected)
    assert all_end(workers)


@pytest.mark.slow
def test_terminated_ray_command_says_what_is_kept(command: Make, large: Path) -> None:
    cluster = command("cluster")
    process = cluster.start("--workers", "2", "--engine", "ray")
    until(lambda: aside_of(cluster.output), process)
    process.terminate()
    _, told = process.communicate(timeout=LIMIT)
    expected = [f"dragoman: {cluster.output}: terminated; no shards were finished"]
    assert (process.returncode, told.splitlines()) == (143, expected)
    assert set(files_of(cluster.output)) == {MANIFEST}


@pytest.mark.slow
def test_errors_on_ray_are_one_line(command: Make, large: Path) -> None:
    cluster = command("cluster")
    process = cluster.start("--target-language", "xyz", "--engine", "ray")
    _, told = process.communicate(timeout=LIMIT)
    expected = "dragoman: target_language: 'xyz' was given, but the model has only one; leave it out"
    assert (process.returncode, told.splitlines()[-1]) == (2, expected), told
