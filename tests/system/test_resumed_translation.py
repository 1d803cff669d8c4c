"""`translate --input F --output G` interrupted: finished lines are kept, and the same command completes the file."""

import bz2
import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.forked import Ended, shared_server

LINES = 70
WINDOW = 32  # 16 batches of 2; an event each when it is written, and when its record is written and renamed
EVENTS = 3 * -(-LINES // WINDOW) + 2  # and when the whole is written and renamed


@pytest.fixture
def source(tmp_path: Path) -> Path:
    lines = [" ".join("abcdefghij"[(row * step) % 10] for step in range(1, 2 + row % 6)) for row in range(LINES)]
    lines[2] = ""
    path = tmp_path / "source"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


class Job:
    def __init__(self, model: Path, source: Path, output: Path, *options: str) -> None:
        self.source, self.output, self.options = source, output, options
        self.partial = output.with_name(f".{output.name}.partial")
        self.state = output.with_name(f".{output.name}.partial.json")
        self._model, self._errors = model, output.with_name(f"{output.name}.errors")

    @property
    def arguments(self) -> list[str]:
        files = ["--model", str(self._model), "--input", str(self.source)]
        how = ["--engine", "plain", "--batch-size", "2", "--beam", "1", "--max-extra", "4", *self.options]
        return ["translate", *files, *how, "--output", str(self.output)]

    def run(self, *more: str, **fault: Any) -> Ended:
        return shared_server().start([*self.arguments, *more], self._errors, fault, {}).wait()

    def at(self, event: int, action: str) -> Ended:
        return self.run(name="at_event", number=event, action=action)

    def kept(self, lines: int) -> str:
        return f"{lines} of {LINES} lines kept in {self.partial}; run the same command to continue"

    def others(self) -> set[str]:
        """Other files in the directory."""
        mine = {self.output.name, self.source.name, f"{self.output.name}.errors"}
        return {path.name for path in self.output.parent.iterdir()} - mine


def job(quick_run: Path, source: Path, name: str = "out", *options: str) -> Job:
    return Job(quick_run, source, source.with_name(name), *options)


_outputs: dict[tuple[bytes, tuple[str, ...]], bytes] = {}


def uninterrupted(quick_run: Path, source: Path, *options: str) -> bytes:
    """What the same command writes to standard output without interruption."""
    key = (source.read_bytes(), options)
    if key not in _outputs:
        done = shared_server().run(job(quick_run, source, "-", *options).arguments[:-2])
        assert done.returncode == 0, done.stderr
        _outputs[key] = done.stdout.encode()
        assert _outputs[key].count(b"\n") == LINES
    return _outputs[key]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "resumed_at"),
    [
        (1, None),  # the first window is written and not recorded
        (3, WINDOW),
        (4, WINDOW),  # a second window is written and not recorded
        (EVENTS - 1, LINES),  # the whole is written and has no name
    ],
)
def test_a_killed_job_continues_after_the_last_recorded_window(
    event: int, resumed_at: int | None, quick_run: Path, source: Path
) -> None:
    expected = uninterrupted(quick_run, source)
    mine = job(quick_run, source)
    assert mine.at(event, "die").code == -9
    assert not mine.output.exists()
    ended = mine.run()
    resumed = [f"translate: resuming {mine.output} at line {WINDOW + 1} of {LINES}"]
    told = notes(ended)
    assert told[:-1] == (resumed if resumed_at == WINDOW else [])
    assert told[-1].startswith(f"translate: {LINES - (resumed_at or 0)} lines in ")
    assert ended.code == 0
    assert mine.output.read_bytes() == expected
    assert mine.others() == set()


def notes(ended: Ended) -> list[str]:
    """What the job says, without the count of lines for which this model has no words."""
    return [line for line in ended.lines if "translated to nothing" not in line]


def test_job_killed_after_the_final_rename_is_complete(quick_run: Path, source: Path) -> None:
    expected = uninterrupted(quick_run, source)
    mine = job(quick_run, source)
    assert mine.at(EVENTS, "die").code == -9
    assert mine.output.read_bytes() == expected
    assert mine.run().code == 0
    assert mine.output.read_bytes() == expected
    assert mine.others() == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [("--json",), ("--n-best", "2", "--beam", "2"), ("--sample", "--seed", "3")],
    ids=lambda options: options[0],
)
def test_resumed_job_writes_the_same_output(options: tuple[str, ...], quick_run: Path, source: Path) -> None:
    expected = uninterrupted(quick_run, source, *options)
    mine = job(quick_run, source, "out", *options)
    assert mine.at(7, "die").code == -9
    ended = mine.run()
    assert f"translate: resuming {mine.output} at line {2 * WINDOW + 1} of {LINES}" in ended.lines
    assert mine.output.read_bytes() == expected


def test_job_with_compressed_input_and_output_can_be_resumed(quick_run: Path, source: Path) -> None:
    expected = uninterrupted(quick_run, source)
    packed = source.with_name("source.bz2")
    packed.write_bytes(bz2.compress(source.read_bytes()))
    source.unlink()
    mine = job(quick_run, packed, "out.bz2")
    for event in (4, EVENTS - 3):  # the second is of a run that has one window less, and has packed the whole
        assert mine.at(event, "die").code == -9
        assert mine.partial.read_bytes() in expected, "plain text"
    assert mine.run().code == 0
    assert bz2.decompress(mine.output.read_bytes()) == expected
    assert mine.others() == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "code", "what"),
    [
        ("interrupt", 130, "interrupted"),
        ("terminate", 143, "terminated"),
        ("disk full", 6, "cannot be written (No space left on device)"),
    ],
)
def test_interruption_reports_how_many_lines_are_kept(
    action: str, code: int, what: str, quick_run: Path, source: Path
) -> None:
    expected = uninterrupted(quick_run, source)
    mine = job(quick_run, source)
    ended = mine.at(4, action)
    assert (ended.code, ended.lines) == (code, [f"dragoman: {mine.output}: {what}; {mine.kept(WINDOW)}"])
    assert mine.others() == {mine.partial.name, mine.state.name}
    assert mine.run().code == 0
    assert mine.output.read_bytes() == expected


def test_internal_error_reports_how_many_lines_are_kept(quick_run: Path, source: Path) -> None:
    mine = job(quick_run, source)
    ended = mine.at(4, "bug")
    assert ended.code == 1
    assert ended.lines[0] == f"translate: {mine.kept(WINDOW)}"
    assert ended.lines[1].startswith("dragoman: internal error: ZeroDivisionError")


def test_no_files_are_left_if_no_line_was_finished(quick_run: Path, source: Path) -> None:
    mine = job(quick_run, source)
    ended = mine.at(1, "interrupt")
    message = f"dragoman: {mine.output}: interrupted; no lines were finished"
    assert (ended.code, ended.lines) == (130, [message])
    assert mine.others() == set()
    assert mine.at(4, "die").code == -9
    other = job(quick_run, source, "out", "--beam", "2").at(1, "interrupt")
    assert (other.code, other.lines[-1]) == (130, message), "nor lines of the replaced work"
    assert mine.others() == set()


def test_lines_that_failed_before_the_interruption_still_count(quick_run: Path, source: Path) -> None:
    lines = source.read_bytes().split(b"\n")
    lines[4] = b"bad \xff"
    source.write_bytes(b"\n".join(lines))
    mine = job(quick_run, source)
    assert mine.at(7, "die").code == -9
    ended = mine.run()
    assert ended.code == 1
    assert ended.lines[-1] == f"translate: 1 of {LINES} lines failed (first: line 5: invalid UTF-8 at byte 5)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "note"),
    [
        ("option", "was made with another beam"),
        ("json", "was made with another --json"),
        ("input", "was made with another input"),
        ("damage", "is damaged"),
        ("record", "is damaged"),
    ],
)
def test_changed_or_damaged_work_starts_over(change: str, note: str, quick_run: Path, source: Path) -> None:
    mine = job(quick_run, source)
    assert mine.at(4, "die").code == -9
    options = {"option": ["--beam", "2"], "json": ["--json"]}.get(change, [])
    if change == "input":
        source.write_text(source.read_text().replace("a", "b"))
    elif change == "damage":
        content = mine.partial.read_bytes()
        mine.partial.write_bytes(content.replace(b"a", b"b", 1))
    elif change == "record":
        mine.state.write_text("{}")
    expected = uninterrupted(quick_run, source, *options)
    ended = mine.run(*options)
    assert ended.lines[0] == f"translate: {mine.partial} {note}; starting over"
    assert mine.output.read_bytes() == expected


@pytest.mark.slow
def test_other_command_with_the_same_output_keeps_resumable_work(quick_run: Path, source: Path) -> None:
    """Text given as arguments goes to the same file and leaves the resumable work alone."""
    expected, killed = uninterrupted(quick_run, source), job(quick_run, source)
    killed.at(4, "die")
    kept = killed.partial.read_bytes(), killed.state.read_bytes()
    done = shared_server().run(["translate", "--model", str(quick_run), "--output", str(killed.output), "a b"])
    assert (done.returncode, killed.output.read_bytes().count(b"\n")) == (0, 1)
    assert (killed.partial.read_bytes(), killed.state.read_bytes()) == kept
    assert killed.run().code == 0
    assert killed.output.read_bytes() == expected


def test_number_of_threads_may_change_on_resume(quick_run: Path, source: Path) -> None:
    expected, killed = uninterrupted(quick_run, source), job(quick_run, source)
    killed.at(4, "die")
    done = killed.run("--threads", "2")
    assert done.lines[0] == f"translate: resuming {killed.output} at line {WINDOW + 1} of {LINES}"
    assert killed.output.read_bytes() == expected


def test_log_shows_lines_done_and_total(quick_run: Path, source: Path) -> None:
    mine = job(quick_run, source)
    assert mine.at(4, "die").code == -9
    told = [line.partition(" lines, ") for line in notes(mine.run(name="report_always"))[1:-1]]
    assert all(rest.endswith(" left") for _, _, rest in told)
    done = [int(line.removeprefix("translate: ").removesuffix(f" of {LINES}")) for line, _, _ in told]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (WINDOW, LINES)


def test_state_records_model_input_and_settings(quick_run: Path, source: Path) -> None:
    mine = job(quick_run, source)
    assert mine.at(4, "die").code == -9
    state: Mapping[str, Any] = json.loads(mine.state.read_bytes())
    assert (state["lines"], state["tally"]["lines"]) == (WINDOW, WINDOW)
    assert {"model", "input", "precision", "device", "beam", "n_best", "seed"} <= state["made_from"].keys()


def test_second_command_writing_the_same_output_is_refused(quick_run: Path, source: Path) -> None:
    mine = job(quick_run, source)
    with mine.partial.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ended = mine.run()
        assert mine.partial.exists(), "the other command's"
    assert (ended.code, ended.lines) == (
        2,
        [f"dragoman: --output {mine.output}: another command is writing it; wait for it or give another file"],
    )


def test_empty_input_gives_empty_output(quick_run: Path, source: Path) -> None:
    source.write_bytes(b"")
    mine = job(quick_run, source)
    assert mine.run().code == 0
    assert mine.output.read_bytes() == b""
    assert mine.others() == set()
