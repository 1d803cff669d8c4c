"""Kill -9 at any moment: the next start resumes, loses at most one save interval, and ends bit for bit the same."""

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dragoman import bundle
from dragoman.errors import ModelError
from dragoman.training.checkpoint_files import checkpoint_path
from tests.survival import PAIRS, Runs, comparable_log, last_logged_step, outcome, state, steps

KILLED = -9
INTERVAL = 4
LAST = 12
SAVES = (f"train.save_every={INTERVAL}", f"train.max_steps={LAST}", "train.average=2", "train.keep_checkpoints=2")


@pytest.fixture(scope="module")
def whole(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], int]:
    """The outcome of an uninterrupted run, and how many function calls it makes."""
    directory = tmp_path_factory.mktemp("whole")
    report = directory / "calls"
    runs.finish(directory / "run", *SAVES, fault={"name": "count_calls", "report": str(report)})
    return outcome(directory / "run"), int(report.read_text())


def check_state_after_kill(run: Path) -> None:
    """Every checkpoint can be resumed from, at most one interval is lost, and the published model loads."""
    if (run / "weights.safetensors").exists():
        bundle.load_bundle(run)
    assert last_logged_step(run) - max(steps(run), default=0) <= INTERVAL


# 1: anywhere


@pytest.mark.slow
@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_kill_9_at_random_moments(runs: Runs, whole: tuple[dict[str, Any], int], tmp_path: Path, kills: int) -> None:
    expected, calls = whole
    random = Random(1)
    for number in count():
        run = tmp_path / str(number)
        while kills and last_logged_step(run) < LAST:
            before = max(steps(run), default=0)
            ended = runs.run(run, *SAVES, fault={"name": "die_at_call", "number": random.randrange(1, calls)})
            assert ended.code in (KILLED, 0), ended.errors
            kills -= ended.code == KILLED
            check_state_after_kill(run)
            if "resuming from" in ended.errors:
                assert f"resuming from {checkpoint_path(run, before)}" in ended.lines
            elif "parameters on cpu" in ended.errors:
                assert not before, "the run started over"
            assert "damaged" not in ended.errors
        runs.finish(run, *SAVES)
        assert outcome(run) == expected
        assert (run / "summary.md").exists()
        assert not list((run / "checkpoints").glob(".*"))
        assert not list((run / "data").glob(".*"))
        if not kills:
            return


# 1: inside a save


EVENTS = [
    "write .step-000012.partial/weights.safetensors",
    "write .step-000012.partial/optimizer.safetensors",
    "write .step-000012.partial/state.json",
    "write .step-000012.partial/provenance.json",
    "write .step-000012.partial/manifest.json",
    "rename checkpoints/step-000012",
    "rename checkpoints/.step-000004.removed",
    "write run/.manifest.json.partial",
    "rename run/manifest.json",
    "write run/.weights.safetensors.partial",
    "rename run/weights.safetensors",
    "write run/.card.md.partial",
    "rename run/card.md",
    "write run/.manifest.json.partial",
    "rename run/manifest.json",
    "write run/.published.json.partial",
    "rename run/published.json",
]


@pytest.fixture(scope="module")
def before_a_save(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run stopped before its last save, and how many writes and renames a start makes before that."""
    directory = tmp_path_factory.mktemp("before")
    run, report = directory / "before" / "run", directory / "events"
    killed = runs.run(run, *SAVES, fault={"name": "at_place", "place": "step", "number": 9, "action": "die"})
    assert (killed.code, steps(run)) == (KILLED, [4, 8])
    copied = shutil.copytree(run, directory / "copied" / "run")
    runs.finish(copied, *SAVES, fault={"name": "list_events", "report": str(report)})
    events = [line.split() for line in report.read_text().splitlines()]
    told = [f"{event} {Path(path).parent.name}/{Path(path).name}" for event, path in events]
    first = told.index(EVENTS[0])
    assert told[first : first + len(EVENTS)] == EVENTS
    return run, first


def killed_in_a_save(runs: Runs, before: Path, place: Path, *faults: dict[str, Any]) -> Path:
    run = Path(shutil.copytree(before, place / "run"))
    assert runs.run(run, *SAVES, fault={"name": "all_of", "faults": faults}).code == KILLED
    return run


SOME = (0, 4, 5, EVENTS.index("rename run/manifest.json"), EVENTS.index("rename run/weights.safetensors"))
EVERY = [number if number in SOME else pytest.param(number, marks=pytest.mark.slow) for number in range(len(EVENTS))]


@pytest.mark.slow
@pytest.mark.parametrize("number", EVERY)
def test_kill_9_after_each_write_and_rename_of_a_save(
    runs: Runs, whole: tuple[dict[str, Any], int], before_a_save: tuple[Path, int], tmp_path: Path, number: int
) -> None:
    before, events = before_a_save
    fault = {"name": "at_event", "number": events + number + 1, "action": "die"}
    run = killed_in_a_save(runs, before, tmp_path, fault)
    check_state_after_kill(run)
    assert (12 in steps(run)) == (number >= EVENTS.index("rename checkpoints/step-000012"))
    resumed = runs.finish(run, *SAVES)
    assert "damaged" not in resumed.errors
    assert outcome(run) == whole[0]


WRITES = [event for event in EVENTS if event.startswith("write")]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(WRITES)))
def test_kill_9_in_the_middle_of_each_write_of_a_save(
    runs: Runs, whole: tuple[dict[str, Any], int], before_a_save: tuple[Path, int], tmp_path: Path, number: int
) -> None:
    before, events = before_a_save
    assert events % 2 == 0, "a start writes files and renames each"
    run = killed_in_a_save(runs, before, tmp_path, {"name": "die_in_write", "number": events // 2 + number + 1})
    check_state_after_kill(run)
    runs.finish(run, *SAVES)
    assert outcome(run) == whole[0]


def test_non_atomic_checkpoints_are_detected(runs: Runs, before_a_save: tuple[Path, int], tmp_path: Path) -> None:
    before, events = before_a_save
    fault = {"name": "at_event", "number": events + 2, "action": "die"}
    run = killed_in_a_save(runs, before, tmp_path, {"name": "non_atomic_saves"}, fault)
    with pytest.raises(ModelError, match=r"step-000012: damaged checkpoint"):
        check_state_after_kill(run)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_kill_9_while_a_checkpoint_is_replaced(
    runs: Runs, whole: tuple[dict[str, Any], int], tmp_path: Path, number: int
) -> None:
    """A signal saves a step whose validation it interrupted; the next start validates it and saves it again."""
    run = tmp_path / "run"
    stopped = runs.run(
        run, *SAVES, fault={"name": "at_place", "place": "validation", "number": 1, "action": "terminate"}
    )
    assert (stopped.code, steps(run)) == (143, [INTERVAL])
    renamed = (".step-000004.replaced", "step-000004")[number]
    killed = runs.run(run, *SAVES, fault={"name": "after_rename", "called": renamed, "action": "die"})
    assert (killed.code, steps(run)) == (KILLED, [[], [INTERVAL]][number])
    resumed = runs.finish(run, *SAVES)
    assert f"resuming from {checkpoint_path(run, INTERVAL)}" in resumed.lines
    assert outcome(run) == whole[0]


@pytest.mark.slow
def test_kill_9_after_each_write_and_rename_of_the_end_of_a_run(
    runs: Runs, whole: tuple[dict[str, Any], int], before_a_save: tuple[Path, int], tmp_path: Path
) -> None:
    """While the average of the last checkpoints is published and the summary written."""
    before, events = before_a_save
    for number in range(events + len(EVENTS), events + len(EVENTS) + 20):
        run = Path(shutil.copytree(before, tmp_path / str(number) / "run"))
        killed = runs.run(run, *SAVES, fault={"name": "at_event", "number": number + 1, "action": "die"})
        check_state_after_kill(run)
        runs.finish(run, *SAVES)
        assert outcome(run) == whole[0]
        assert (run / "summary.md").exists()
        if killed.code == 0:
            assert number > events + len(EVENTS) + 4
            return
    raise AssertionError("a run ends")


# 2: 200 steps, and 73 + 127


RESUMED = ("model.dropout=0.2", "train.accumulate=3", "train.log_every=7", "train.average=1")
SHORT, LONG = (15, 40), (73, 200)
PLAIN, SAMPLED = (), ("text.sampling=0.1",)


def resumed_settings(sizes: tuple[int, int], more: tuple[str, ...]) -> tuple[str, ...]:
    return (*RESUMED, *more, f"train.max_steps={sizes[1]}", f"train.save_every={sizes[1] // 2}")


@pytest.fixture(scope="module")
def uninterrupted_run(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Uninterrupted runs, each made once."""
    made: dict[tuple[str, ...], Path] = {}

    def make(*settings: str) -> Path:
        if settings not in made:
            made[settings] = tmp_path_factory.mktemp("at-once") / "run"
            runs.finish(made[settings], *settings)
        return made[settings]

    return make


def stop_in_step(step: int, killed: bool) -> dict[str, Any]:
    """SIGTERM while a step is computed, and where asked for SIGKILL as soon as the step before it is saved."""
    signalled = {"name": "at_place", "place": "step", "number": step, "action": "terminate"}
    kill = {"name": "after_rename", "called": f"step-{step - 1:06d}", "action": "die"}
    return {"name": "all_of", "faults": [signalled, kill] if killed else [signalled]}


@pytest.mark.parametrize(
    ("sizes", "more", "killed"),
    [
        pytest.param(SHORT, PLAIN, False, marks=pytest.mark.slow),
        (SHORT, SAMPLED, True),
        *(
            pytest.param(LONG, more, killed, marks=pytest.mark.slow)
            for more in (PLAIN, SAMPLED)
            for killed in (True, False)
        ),
    ],
)
def test_resumed_run_matches_an_uninterrupted_run_bit_for_bit(
    runs: Runs, uninterrupted_run: Callable[..., Path], tmp_path: Path,
    sizes: tuple[int, int], more: tuple[str, ...], killed: bool,
) -> None:  # fmt: skip
    first, last = sizes
    settings = resumed_settings(sizes, more)
    ended = runs.run(tmp_path, *settings, fault=stop_in_step(first + 1, killed))
    assert (ended.code, steps(tmp_path)) == (KILLED if killed else 143, [first])
    progress = json.loads(state(tmp_path, first)["state.json"])["progress"]
    assert progress["batch"] > 0, "in the middle of an epoch"
    assert progress["recent_tokens"] > 0, "between two lines of the log"
    runs.finish(tmp_path, *settings)
    whole = uninterrupted_run(*settings)
    assert state(tmp_path, last) == state(whole, last)
    assert comparable_log(tmp_path) == comparable_log(whole)
    assert {record["epoch"] for record in comparable_log(whole) if record["kind"] == "step"} != {0}


@pytest.mark.slow
def test_without_the_rng_state_the_resumed_run_differs(
    runs: Runs, uninterrupted_run: Callable[..., Path], tmp_path: Path
) -> None:
    settings = resumed_settings(SHORT, PLAIN)
    runs.run(tmp_path, *settings, fault=stop_in_step(SHORT[0] + 1, False))
    runs.finish(tmp_path, *settings, fault={"name": "forget_rng_state"})
    whole = uninterrupted_run(*settings)
    assert comparable_log(tmp_path) != comparable_log(whole)
    for name in ("weights.safetensors", "optimizer.safetensors"):
        assert state(tmp_path, SHORT[1])[name] != state(whole, SHORT[1])[name]


# 3: at the end of an epoch, with workers


def recorded(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.parent / f"{run.name}.batches").read_text().splitlines()]


def recording(run: Path, *more: dict[str, Any]) -> dict[str, Any]:
    record = {"name": "record_batches", "report": str(run.parent / f"{run.name}.batches")}
    return {"name": "all_of", "faults": [record, *more]}


def ends_of_epochs(batches: list[dict[str, Any]]) -> Iterator[int]:
    """Steps after which an epoch begins."""
    for one, following in pairwise(batches):
        if one["rows"][-1][0] < following["rows"][0][0]:
            yield one["step"]


BOUNDARY = (
    "train.batch_tokens=48",
    "train.accumulate=3",
    "model.dropout=0.2",
    "train.average=1",
    "train.save_every=99",
)
EPOCHS = (*BOUNDARY, "train.max_steps=36")  # two of 17 steps of three batches, and a bit
ALL_WORKERS = [4, *(pytest.param(workers, marks=pytest.mark.slow) for workers in (0, 2))]


@pytest.fixture(scope="module")
def epochs(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run without workers."""
    run = tmp_path_factory.mktemp("epochs") / "run"
    runs.finish(run, *EPOCHS, "train.loader_workers=0", fault=recording(run))
    return run


def check_batches(batches: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Every batch exactly once, in the same order, with the same ids; every pair once an epoch."""
    assert batches == expected
    assert [one["step"] for one in batches] == list(range(1, len(batches) + 1))
    check_every_pair_once(batches)


def check_every_pair_once(batches: list[dict[str, Any]]) -> None:
    last = batches[-1]["rows"][-1][0]
    assert last > 0
    for epoch in range(last):
        rows = [row for one in batches for of, rows in one["rows"] if of == epoch for row in rows]
        assert sorted(rows) == list(range(PAIRS))


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("workers", ALL_WORKERS)
@pytest.mark.slow
def test_stop_at_an_epoch_boundary_with_workers_loses_no_batch(
    runs: Runs, epochs: Path, tmp_path: Path, workers: int, killed: bool
) -> None:
    run, settings = tmp_path / "run", (*EPOCHS, f"train.loader_workers={workers}")
    end = next(ends_of_epochs(recorded(epochs)))
    ended = runs.run(run, *settings, fault=recording(run, stop_in_step(end + 1, killed)))
    assert (ended.code, steps(run), end) == (KILLED if killed else 143, [17], 17)
    runs.finish(run, *settings, fault=recording(run))
    check_batches(recorded(run), recorded(epochs))
    assert state(run, 36) == state(epochs, 36)
    assert comparable_log(run) == comparable_log(epochs)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2, 4])
def test_stop_with_workers_and_subword_sampling_loses_no_batch(runs: Runs, tmp_path: Path, workers: int) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    settings = (*EPOCHS, "text.sampling=0.1", "train.max_steps=50")
    runs.finish(whole, *settings, "train.loader_workers=0", fault=recording(whole))
    workers_set = f"train.loader_workers={workers}"
    batches = recorded(whole)
    end = next(ends_of_epochs(batches), 20)  # an epoch has as many batches as the drawn pieces need
    ended = runs.run(parts, *settings, workers_set, fault=recording(parts, stop_in_step(end + 1, True)))
    assert (ended.code, steps(parts)) == (KILLED, [end])
    runs.finish(parts, *settings, workers_set, fault=recording(parts))
    check_batches(recorded(parts), batches)
    assert state(parts, 50) == state(whole, 50)


@pytest.mark.slow
def test_resuming_at_the_start_of_the_epoch_is_detected(runs: Runs, epochs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    runs.run(run, *EPOCHS, fault=recording(run, stop_in_step(11, False)))
    runs.finish(run, *EPOCHS, fault=recording(run, {"name": "forget_position"}))
    with pytest.raises(AssertionError):
        check_batches(recorded(run), recorded(epochs))


# Other batches from the middle of an epoch on


SMALLER = (*BOUNDARY, "train.batch_tokens=24", "train.accumulate=6", "train.max_steps=25")
ANEW = (
    "train.batch_tokens was 48 and is 24 now: the rest of this epoch is batched again, "
    "and every pair is still seen once"
)


@pytest.fixture
def stopped_mid_epoch(runs: Runs, tmp_path: Path) -> Path:
    run = tmp_path / "run"
    ended = runs.run(run, *EPOCHS, fault=recording(run, stop_in_step(6, False)))
    assert (ended.code, steps(run)) == (143, [5])
    return run


def copied(run: Path, name: str) -> Path:
    """With what was recorded of it."""
    shutil.copy(run.with_name("run.batches"), run.with_name(f"{name}.batches"))
    return Path(shutil.copytree(run, run.with_name(name)))


@pytest.mark.slow
def test_every_pair_is_seen_once_if_batch_tokens_change_within_an_epoch(runs: Runs, stopped_mid_epoch: Path) -> None:
    whole, forgetful = copied(stopped_mid_epoch, "whole"), copied(stopped_mid_epoch, "forgetful")
    resumed = runs.finish(whole, *SMALLER, fault=recording(whole))
    assert resumed.lines.count(ANEW) == 1
    check_every_pair_once(recorded(whole))

    stopped = runs.run(stopped_mid_epoch, *SMALLER, fault=recording(stopped_mid_epoch, stop_in_step(4, False)))
    assert (stopped.code, steps(stopped_mid_epoch)) == (143, [5, 8])
    again = runs.finish(stopped_mid_epoch, *SMALLER, fault=recording(stopped_mid_epoch))
    assert ANEW not in again.lines, "the change is reported once"
    assert recorded(stopped_mid_epoch) == recorded(whole)
    assert state(stopped_mid_epoch, 25) == state(whole, 25), "and a second resume is exact"

    runs.finish(forgetful, *SMALLER, fault=recording(forgetful, {"name": "keep_counting_batches"}))
    with pytest.raises(AssertionError):
        check_every_pair_once(recorded(forgetful))


@pytest.mark.slow
@pytest.mark.parametrize("batch_tokens", [24, pytest.param(48, marks=pytest.mark.slow)])
def test_every_pair_is_seen_once_if_a_process_joins_within_an_epoch(
    runs: Runs, stopped_mid_epoch: Path, batch_tokens: int
) -> None:
    settings = (*SMALLER, "train.accumulate=2", f"train.batch_tokens={batch_tokens}", "train.max_steps=30")
    ranks = runs.start_ranks(stopped_mid_epoch, settings, [recording(stopped_mid_epoch), {}])
    first, second = [rank.wait() for rank in ranks]
    assert (first.code, second.code) == (0, 0), first.errors + second.errors
    assert first.lines.count(ANEW) == (batch_tokens == 24)
    check_every_pair_once(recorded(stopped_mid_epoch))
