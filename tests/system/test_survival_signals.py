"""SIGTERM and Ctrl-C at any point of a run: a checkpoint if a step was taken, exit 143 or 130, the second at once."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import bundle
from dragoman.training.signals import RESPONSE_SECONDS
from tests.forked import LIMIT, ROOT, Ended, Started
from tests.survival import WORDS, Fifo, Runs, outcome, state, steps, write_corpus

TERMINATED, INTERRUPTED, KILLED = 143, 130, -9
LIMIT_TO_STOP = 90.0  # seconds; the promise is 30 on a machine that nobody shares
INTERVAL = 4
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into glibc and /proc")
SAVES = (f"train.save_every={INTERVAL}", "train.max_steps=8", "train.average=2")


@pytest.fixture(scope="module")
def whole(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = tmp_path_factory.mktemp("whole") / "run"
    runs.finish(run, *SAVES)
    return outcome(run)


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Fifo]:
    with Fifo(tmp_path) as fifo:
        yield fifo


def stop_when_reached(started: Started, fifo: Fifo, number: int = signal.SIGTERM) -> Ended:
    """Send a signal when the process has reached its place."""
    fifo.wait()
    sent = started.send(number)
    ended = started.wait()
    assert ended.at - sent < LIMIT_TO_STOP
    return ended


def saved(run: Path, step: int, name: str = "SIGTERM") -> str:
    return f"dragoman: {run}: stopped by {name} and saved at step {step}; run the same command to resume"


def nothing_saved(run: Path) -> str:
    return f"dragoman: {run}: stopped by SIGTERM before the first step; nothing to save"


# 4: where a signal comes

PLACES = [  # the place, the how-maniest time, the action there, the step that is saved
    ("joining", 1, "wait", 0),
    ("feeding", 1, "wait", 0),
    ("scan", 1, "wait", 0),
    ("step", 1, "wait", 0),
    ("step", 3, "wait", 2),
    ("step", 1, "compile", 0),
    ("update", 3, "wait", 3),  # the weights change all or not at all: the signal waits
    ("validation", 1, "wait", 4),
    ("validation", 2, "wait", 8),
    ("validation", 3, "wait", 8),  # of the average
]
SOME = (("feeding", 1), ("scan", 1), ("step", 3), ("update", 3), ("validation", 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "number", "action", "step"),
    [
        pytest.param(*case, marks=() if case[:2] in SOME or case[2] == "compile" else pytest.mark.slow)
        for case in PLACES
    ],
)
def test_sigterm_at_any_point_saves_completed_steps(
    runs: Runs, whole: dict[str, Any], tmp_path: Path, fifo: Fifo, place: str, number: int, action: str, step: int
) -> None:
    run = tmp_path / "run"
    fault = {"name": "at_place", "place": place, "number": number, "action": action, "fifo": str(fifo.path)}
    ended = stop_when_reached(runs.start(run, *SAVES, fault=fault), fifo)
    assert (ended.code, ended.lines[-1]) == (TERMINATED, saved(run, step) if step else nothing_saved(run))
    assert max(steps(run), default=0) == step
    assert not list((run / "data").glob(".*")), "nothing partial is left"
    if step:
        bundle.load_bundle(run)
    runs.finish(run, *SAVES)
    assert outcome(run) == whole


@pytest.mark.parametrize("event", [1, *(pytest.param(event, marks=pytest.mark.slow) for event in range(2, 7))])
def test_sigterm_during_a_save_lets_it_finish(
    runs: Runs, whole: dict[str, Any], tmp_path: Path, fifo: Fifo, event: int
) -> None:
    run = tmp_path / "run"
    fault = {"name": "during_save", "number": event, "action": "wait", "fifo": str(fifo.path)}
    ended = stop_when_reached(runs.start(run, *SAVES, fault=fault), fifo)
    assert (ended.code, ended.lines[-1]) == (TERMINATED, saved(run, INTERVAL))
    assert steps(run) == [INTERVAL]
    assert (run / "published.json").exists()
    runs.finish(run, *SAVES)
    assert outcome(run) == whole


def test_ctrl_c_saves_and_exits_with_130(runs: Runs, whole: dict[str, Any], tmp_path: Path, fifo: Fifo) -> None:
    run = tmp_path / "run"
    fault = {"name": "at_place", "place": "step", "number": 6, "action": "wait", "fifo": str(fifo.path)}
    ended = stop_when_reached(runs.start(run, *SAVES, fault=fault), fifo, signal.SIGINT)
    assert (ended.code, ended.lines[-1]) == (INTERRUPTED, saved(run, 5, "SIGINT"))
    assert steps(run) == [4, 5]
    runs.finish(run, *SAVES)
    assert outcome(run) == whole


@pytest.mark.slow
def test_sigterm_stops_the_command_in_a_fresh_process(runs: Runs, whole: dict[str, Any], tmp_path: Path) -> None:
    """Without server, fork or fault: as started by a shell and stopped by a cluster."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "dragoman", "train", *runs.arguments(run, *SAVES, "train.max_steps=100000")]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("valid  step 8: "):
                break
        process.send_signal(signal.SIGTERM)
        last = process.stderr.read().splitlines()[-1]
        assert process.wait(LIMIT) == TERMINATED
    assert last == saved(run, max(steps(run)))
    assert state(run, 8) == whole["step-000008"]


# 4: code that does not answer


def learning_a_vocabulary(directory: Path, runs: Runs) -> Runs:
    """The same with text enough for sentencepiece to be busy for many seconds."""
    corpus = write_corpus(directory / "corpus")
    words = [f"{one}{other}{number}" for number in range(300) for one in WORDS for other in WORDS]
    lines = [" ".join(words[(row * place * 7919) % len(words)] for place in range(1, 13)) for row in range(60_000)]
    for path in (corpus.source, corpus.target):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return Runs(runs.server, corpus, runs.errors)


@pytest.mark.slow
def test_sigterm_while_learning_a_vocabulary_ends_the_process(runs: Runs, tmp_path: Path, fifo: Fifo) -> None:
    """One C++ call lets no Python run: a thread ends the process, since nothing can be lost."""
    more = learning_a_vocabulary(tmp_path, runs)
    notifying = {"name": "at_place", "place": "vocabulary", "number": 1, "action": "notify", "fifo": str(fifo.path)}
    fault = {"name": "all_of", "faults": [notifying, {"name": "notice_within", "seconds": 0.5}]}
    ended = stop_when_reached(more.start(tmp_path / "run", "text.vocab_size=20000", fault=fault), fifo)
    assert ended.code == TERMINATED
    assert steps(tmp_path / "run") == []


@LINUX
@pytest.mark.slow
def test_sigterm_during_a_blocking_call_ends_the_process(runs: Runs, tmp_path: Path, fifo: Fifo) -> None:
    fault = {"name": "at_place", "place": "vocabulary", "number": 1, "action": "stuck", "fifo": str(fifo.path)}
    started = runs.start(tmp_path / "run", fault=fault)
    fifo.wait()
    sent = started.send(signal.SIGTERM)
    ended = started.wait()
    assert ended.code == TERMINATED
    assert RESPONSE_SECONDS - 1 < ended.at - sent < LIMIT_TO_STOP


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize("impatient", [False, True])
def test_slow_step_is_finished_and_saved_after_sigterm(runs: Runs, tmp_path: Path, fifo: Fifo, impatient: bool) -> None:
    """A long backward pass is one C++ call too; here it returns after the limit. Control: it is not waited for."""
    run = tmp_path / "run"
    stuck = {"name": "at_place", "place": "step", "number": 4, "action": "stuck", "fifo": str(fifo.path), "seconds": 2}
    faults = [stuck, {"name": "notice_within", "seconds": 0.2}, *([{"name": "impatient"}] if impatient else [])]
    ended = stop_when_reached(runs.start(run, *SAVES, fault={"name": "all_of", "faults": faults}), fifo)
    assert ended.code == TERMINATED
    assert steps(run) == ([] if impatient else [3])


# 4: a second signal


NOW, SOON = 0.0, 60.0  # seconds within which a SIGTERM repeated is the same one


def signal_twice(
    runs: Runs, run: Path, fifo: Fifo, place: str, number: int, within: float, **until: Any
) -> tuple[Ended, float]:
    """In the middle of a save, or of a call of C++; how it ended, and how long after the second one."""
    if place == "a save":
        fault = {"name": "during_save", "number": 3, "action": "wait", "fifo": str(fifo.path), **until}
    else:
        fault = {"name": "at_place", "place": "step", "number": 3, "action": "stuck", "fifo": str(fifo.path), **until}
    faults = [fault, {"name": "repeated_within", "seconds": within}]
    started = runs.start(run, *SAVES, fault={"name": "all_of", "faults": faults})
    fifo.wait()
    started.send(number)
    if place == "a save":
        fifo.wait()  # the first one was noticed
    sent = started.send(number)
    ended = started.wait()
    return ended, ended.at - sent


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize(
    ("place", "number", "within"),
    [
        ("a save", signal.SIGTERM, NOW),
        ("C++", signal.SIGTERM, NOW),
        ("a save", signal.SIGINT, SOON),
        pytest.param("C++", signal.SIGINT, SOON, marks=pytest.mark.slow),
    ],
)
def test_second_signal_ends_the_process_at_once(
    runs: Runs, whole: dict[str, Any], tmp_path: Path, fifo: Fifo, place: str, number: int, within: float
) -> None:
    run = tmp_path / "run"
    until = {"times": 3} if place == "a save" else {}
    ended, seconds = signal_twice(runs, run, fifo, place, number, within, **until)
    assert ended.code == 128 + number
    assert seconds < RESPONSE_SECONDS
    assert steps(run) == [], "the save was cut short"
    runs.finish(run, *SAVES)
    assert outcome(run) == whole


@LINUX
@pytest.mark.parametrize("within", [SOON, NOW])
@pytest.mark.parametrize(("place", "step", "until"), [("a save", 4, {"times": 2}), ("C++", 2, {"seconds": 2})])
@pytest.mark.slow
def test_sigterm_repeated_within_a_moment_counts_once(
    runs: Runs, tmp_path: Path, fifo: Fifo, place: str, step: int, until: dict[str, Any], within: float
) -> None:
    """One from the scheduler, one from torchrun. Control: a time limit of zero."""
    run = tmp_path / "run"
    ended, _ = signal_twice(runs, run, fifo, place, signal.SIGTERM, within, **until)
    assert ended.code == TERMINATED
    if within == SOON:
        assert (ended.lines[-1], steps(run)) == (saved(run, step), [step])
    else:
        assert steps(run) == []


# 5: two ranks


def start_ranks(runs: Runs, run: Path, *faults: dict[str, Any]) -> list[Started]:
    return runs.start_ranks(run, SAVES, faults)


@pytest.fixture(scope="module")
def whole_of_two(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = tmp_path_factory.mktemp("two") / "run"
    assert [started.wait().code for started in start_ranks(runs, run, {}, {})] == [0, 0]
    return outcome(run)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("place", "number", "step"), [("step", 3, 3), pytest.param("step", 4, 4, marks=pytest.mark.slow)]
)
def test_sigterm_to_one_of_two_ranks_stops_both_at_the_same_step(
    runs: Runs, whole_of_two: dict[str, Any], tmp_path: Path, fifo: Fifo, rank: int, place: str, number: int, step: int
) -> None:
    run = tmp_path / "run"
    waiting = {"name": "at_place", "place": place, "number": number, "action": "wait", "fifo": str(fifo.path)}
    ranks = start_ranks(runs, run, *(waiting if one == rank else {} for one in (0, 1)))
    stop_ranks(ranks, rank, run, step, fifo)
    finish_ranks(runs, run, whole_of_two)


def test_rank_that_stops_alone_is_detected(runs: Runs, tmp_path: Path, fifo: Fifo) -> None:
    run, alone = tmp_path / "run", {"name": "stop_alone"}
    waiting = {"name": "at_place", "place": "step", "number": 3, "action": "wait", "fifo": str(fifo.path)}
    ranks = start_ranks(runs, run, alone, {"name": "all_of", "faults": [alone, waiting]})
    with pytest.raises(AssertionError, match="another process of this run ended unexpectedly"):
        stop_ranks(ranks, 1, run, 3, fifo)
    assert ranks[1].errors.read_text().endswith("dragoman: stopped alone at step 3\n")
    assert steps(run) == [], "the work is lost"


def stop_ranks(ranks: list[Started], rank: int, run: Path, step: int, fifo: Fifo) -> None:
    fifo.wait()
    sent = ranks[rank].send(signal.SIGTERM)
    for ended in [started.wait() for started in ranks]:
        assert (ended.code, ended.lines[-1]) == (TERMINATED, saved(run, step)), ended.errors
        assert ended.at - sent < LIMIT_TO_STOP
    scheduled = [INTERVAL] if step > INTERVAL else []
    assert steps(run) == [*scheduled, step]
    assert not list((run / "checkpoints").glob(".*"))


def finish_ranks(runs: Runs, run: Path, expected: dict[str, Any]) -> None:
    assert [started.wait().code for started in start_ranks(runs, run, {}, {})] == [0, 0]
    assert outcome(run) == expected


@LINUX
@pytest.mark.slow
def test_sigterm_to_a_waiting_rank_keeps_the_validation_of_rank_0(
    runs: Runs, whole_of_two: dict[str, Any], tmp_path: Path, fifo: Fifo
) -> None:
    """Rank 1 waits inside C++ longer than the limit for signals; the validation of rank 0 is kept."""
    run = tmp_path / "run"
    slow = {
        "name": "at_place",
        "place": "validation",
        "number": 1,
        "action": "stuck",
        "fifo": str(fifo.path),
        "seconds": 3,
    }
    ranks = start_ranks(runs, run, slow, {"name": "notice_within", "seconds": 0.2})
    stop_ranks(ranks, 1, run, INTERVAL + 1, fifo)  # ranks tell each other of signals in every step
    finish_ranks(runs, run, whole_of_two)


@pytest.mark.slow
def test_sigterm_to_the_validating_rank_aborts_the_validation(
    runs: Runs, whole_of_two: dict[str, Any], tmp_path: Path, fifo: Fifo
) -> None:
    run = tmp_path / "run"
    waiting = {"name": "at_place", "place": "validation", "number": 1, "action": "wait", "fifo": str(fifo.path)}
    stop_ranks(start_ranks(runs, run, waiting, {}), 0, run, INTERVAL, fifo)
    assert not (run / "published.json").exists()
    finish_ranks(runs, run, whole_of_two)
