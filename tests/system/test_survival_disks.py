"""Full disks, damaged checkpoints, and resuming with changed settings: nothing intact is lost."""

import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import bundle
from dragoman.errors import DiskError, ModelError
from dragoman.training import checkpoint
from dragoman.training.checkpoint_files import checkpoint_path, checkpoints, read_checkpoint
from dragoman.training.loop import train
from dragoman.training.reports.log import RunLog
from tests.conftest import quick_config
from tests.hostile import seal
from tests.survival import Corpus, Runs, contents, outcome, steps, write_corpus

KILLED, MODEL, DISK = -9, 4, 6
SAVES = ("train.save_every=4", "train.max_steps=12", "train.average=2", "train.keep_checkpoints=2")
FILES = ("weights.safetensors", "optimizer.safetensors", "state.json", "provenance.json", "manifest.json")


@pytest.fixture(scope="module")
def whole(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = tmp_path_factory.mktemp("whole") / "run"
    runs.finish(run, *SAVES)
    return outcome(run)


@pytest.fixture(scope="module")
def killed_run(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of steps 4 and 8, killed in step 9. Tests copy it."""
    run = tmp_path_factory.mktemp("begun") / "run"
    killed = runs.run(run, *SAVES, fault={"name": "at_place", "place": "step", "number": 9, "action": "die"})
    assert (killed.code, steps(run)) == (KILLED, [4, 8])
    return run


@pytest.fixture
def run(killed_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed_run, tmp_path / "run"))


# 6: the disk is full


def check_that_nothing_is_lost(runs: Runs, run: Path, whole: dict[str, Any]) -> None:
    """Earlier checkpoints still verify, and the next start resumes from the last of them."""
    assert steps(run) == [4, 8]
    assert not list((run / "checkpoints").glob(".*")), "no partial file is left"
    resumed = runs.finish(run, *SAVES)
    assert f"resuming from {checkpoint_path(run, 8)}" in resumed.lines
    assert outcome(run) == whole


def refused_bytes(error: str, run: Path, reason: str) -> int:
    """How many bytes the message of a full disk asks for."""
    path = re.escape(str(checkpoint_path(run, 12)))
    pattern = rf"dragoman: {path}: cannot write ([\d,]+) bytes \({reason}\); free some space or choose another place"
    found = re.fullmatch(pattern, error)
    assert found, error
    return int(found[1].replace(",", ""))


@pytest.mark.slow
def test_file_size_limit_during_a_save_exits_with_6(runs: Runs, whole: dict[str, Any], run: Path) -> None:
    largest = (checkpoint_path(run, 8) / "optimizer.safetensors").stat().st_size
    ended = runs.run(run, *SAVES, fault={"name": "limit_file_size", "size": largest - 1})
    assert ended.code == DISK
    needed = refused_bytes(ended.lines[-1], run, "File too large")
    check_that_nothing_is_lost(runs, run, whole)
    written = [path for path in checkpoint_path(run, 12).iterdir() if path.name != bundle.MANIFEST]
    told = sum(path.stat().st_size for path in written)
    assert abs(needed - told) < 100, "up to the digits of its clock"


@pytest.mark.parametrize("number", [5, *(pytest.param(number, marks=pytest.mark.slow) for number in range(1, 5))])
def test_full_disk_at_each_write_of_a_save_loses_nothing(
    runs: Runs, whole: dict[str, Any], run: Path, number: int
) -> None:
    fault = {"name": "during_save", "number": number, "action": "disk full"}
    ended = runs.run(run, *SAVES, fault=fault)
    assert ended.code == DISK
    assert refused_bytes(ended.lines[-1], run, "No space left on device") > 10_000
    check_that_nothing_is_lost(runs, run, whole)


def test_non_atomic_checkpoints_are_detected(runs: Runs, whole: dict[str, Any], run: Path) -> None:
    fault = {"name": "during_save", "number": 2, "action": "disk full"}
    runs.run(run, *SAVES, fault={"name": "all_of", "faults": [{"name": "non_atomic_saves"}, fault]})
    with pytest.raises(ModelError, match=r"step-000012: damaged checkpoint"):
        check_that_nothing_is_lost(runs, run, whole)


@pytest.mark.slow
def test_full_disk_while_publishing_loses_nothing(runs: Runs, whole: dict[str, Any], run: Path) -> None:
    """The checkpoint is there already: the next start publishes it."""
    fault = {"name": "after_rename", "called": "weights.safetensors", "action": "disk full"}
    ended = runs.run(run, *SAVES, fault=fault)
    size = (run / "weights.safetensors").stat().st_size
    assert (ended.code, ended.lines[-1]) == (
        DISK,
        f"dragoman: {run / 'weights.safetensors'}: cannot write {size:,} bytes (No space left on device); "
        "free some space or choose another place",
    )
    assert steps(run) == [8, 12]
    runs.finish(run, *SAVES)
    assert outcome(run) == whole


def test_compressing_onto_a_full_disk_exits_with_6_and_leaves_nothing(
    runs: Runs, killed_run: Path, tmp_path: Path
) -> None:
    out, fault = tmp_path / "small", {"name": "after_rename", "called": "weights.safetensors", "action": "disk full"}
    arguments = ["compress", "--model", str(killed_run), "--out", str(out)]
    ended = runs.server.start(arguments, tmp_path / "errors", fault, {}).wait()
    pattern = (
        rf"dragoman: {re.escape(str(out))}/weights.safetensors: cannot write [\d,]+ bytes \(No space left on device\)"
    )
    assert (ended.code, len(ended.lines)) == (DISK, 1)
    assert re.match(pattern, ended.lines[0])
    assert not out.exists()


def test_directory_that_cannot_be_locked_is_a_disk_error(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(DiskError, match=r"\.lock: cannot write 0 bytes \(Is a directory\); free some space or choose"):
        train(runs.config(), tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_full_disk_while_writing_the_log_is_a_disk_error(tmp_path: Path) -> None:
    log = RunLog(tmp_path, 0)
    log._file.close()
    log._file = Path("/dev/full").open("w")  # noqa: SIM115
    with pytest.raises(DiskError, match=r"log.jsonl: cannot write \d+ bytes \(No space left on device\)"):
        log.write({"kind": "step", "step": 1})
    log.close()  # what could not be written is not told of again


# 7: the temporary directory is full


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "missing", "a file", "read-only"])
def test_saving_needs_no_temporary_directory(runs: Runs, tmp_path: Path, kind: str) -> None:
    place = {"read-only": Path("/proc")}.get(kind, tmp_path / "temporary")  # there root can make no file either
    if kind == "a file":
        place.write_text("")
    if kind == "full":
        place.mkdir()
    fault = {"name": "full_temporary_directory", "directory": str(place)}
    settings = ("train.max_steps=2", "train.save_every=2")
    ended = runs.start(tmp_path / "run", *settings, fault=fault, environment={"TMPDIR": str(place)}).wait()
    assert ended.code == 0, ended.errors
    assert steps(tmp_path / "run") == [2]


def test_saving_through_the_temporary_directory_is_detected(runs: Runs, tmp_path: Path) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    full = {"name": "full_temporary_directory", "directory": str(place)}
    fault = {"name": "all_of", "faults": [{"name": "saves_through_temporary_directory"}, full]}
    ended = runs.run(tmp_path / "run", "train.max_steps=2", "train.save_every=2", fault=fault)
    assert ended.code == DISK
    assert steps(tmp_path / "run") == []


# 9: damage


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def deleted(path: Path) -> None:
    path.unlink()


DAMAGES = (flipped, truncated, emptied, deleted)
SHOWN = [(flipped, "weights.safetensors"), (truncated, "optimizer.safetensors"), (deleted, "state.json")]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_any_damage_is_detected(run: Path, damage: Callable[[Path], None], name: str) -> None:
    newest = checkpoint_path(run, 8)
    damage(newest / name)
    notes: list[str] = []
    found = checkpoint.newest(run, notes.append)
    assert found is not None
    assert found[0] == checkpoint_path(run, 4)
    (note,) = notes
    assert re.fullmatch(rf"{re.escape(str(newest))}: damaged checkpoint \(.+\); falling back to the previous one", note)


@pytest.mark.slow
def test_every_flipped_bit_of_a_small_file_is_detected(run: Path) -> None:
    """The other files are checked against the manifest; nothing else checks the manifest."""
    newest = checkpoint_path(run, 8)
    content = (newest / bundle.MANIFEST).read_bytes()
    for place in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            (newest / bundle.MANIFEST).write_bytes(changed)
            with pytest.raises(ModelError, match="damaged checkpoint"):
                read_checkpoint(newest)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "name"), [SHOWN[0], *(pytest.param(*shown, marks=pytest.mark.slow) for shown in SHOWN[1:])]
)
def test_damaged_checkpoint_gives_one_warning(
    runs: Runs, whole: dict[str, Any], run: Path, damage: Callable[[Path], None], name: str
) -> None:
    newest = checkpoint_path(run, 8)
    damage(newest / name)
    resumed = runs.finish(run, *SAVES)
    (warning,) = [line for line in resumed.lines if "step-000008" in line]
    assert warning.startswith(f"{newest}: damaged checkpoint (")
    assert warning.endswith("); falling back to the previous one")
    assert f"resuming from {checkpoint_path(run, 4)}" in resumed.lines
    assert outcome(run) == whole


def test_no_intact_checkpoint_exits_with_4(runs: Runs, run: Path) -> None:
    for path in checkpoints(run):
        flipped(path / "optimizer.safetensors")
    before = contents(run)
    ended = runs.run(run, *SAVES)
    last = f"dragoman: {run}: none of its 2 checkpoints is intact; restore one or give another --out"
    assert (ended.code, ended.lines[-1]) == (MODEL, last)
    assert contents(run) == before


def test_without_the_manifest_damage_is_not_detected(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flipped(checkpoint_path(run, 8) / "weights.safetensors")

    def unchecked(path: Path) -> dict[str, bytes]:
        return {name: (path / name).read_bytes() for name in FILES}

    monkeypatch.setattr(checkpoint, "read_checkpoint", unchecked)
    notes: list[str] = []
    found = checkpoint.newest(run, notes.append)
    assert found is not None
    assert (found[0].name, notes) == ("step-000008", [])


# 10: another run in the same directory


OTHERS = [
    ("text.vocab_size=330", "text.vocab_size was 320 when this run began and is 330 now"),
    ("text.model=unigram", "text.model was 'bpe' when this run began and is 'unigram' now"),
    ("model.d_model=32", "model.d_model was 16 when this run began and is 32 now"),
    ("model.num_layers=2", "model.num_layers was 1 when this run began and is 2 now"),
    ("data.on_bad_line=skip", "data.on_bad_line was 'fail' when this run began and is 'skip' now"),
    ("train.seed=5", "train.seed was 1 when this run began and is 5 now"),
    ("train.layout=packed", "train.layout was 'padded' when this run began and is 'packed' now"),
]
REMEDY = "; restore it, or give another --out for a new run"


def refused(runs: Runs, run: Path, *settings: str) -> str:
    """The message of a refusal that leaves every file unchanged."""
    before = contents(run)
    with pytest.raises(ModelError) as caught:
        train(runs.config(*SAVES, *settings), run)
    assert caught.value.exit_code == MODEL
    assert contents(run) == before
    return str(caught.value)


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize(("setting", "message"), OTHERS)
def test_changed_settings_are_refused(runs: Runs, run: Path, setting: str, message: str, published: bool) -> None:
    if not published:
        unpublish(run)
    assert refused(runs, run, setting) == f"{checkpoint_path(run, 8)}: {message}{REMEDY}"


def unpublish(run: Path) -> None:
    """The state after a kill between the first checkpoint and its publishing."""
    for name in ("config.toml", "weights.safetensors", "tokenizer.model", "card.md", "manifest.json", "published.json"):
        (run / name).unlink()


SHORT = "[0-9a-f]{12}"


def change_one_letter(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"a", b"b", 1).replace(b"A", b"B", 1))


@pytest.fixture
def corpus_to_change(runs: Runs) -> Iterator[Corpus]:
    """The corpus of the runs, restored afterwards."""
    before = {path: path.read_bytes() for path in vars(runs.corpus).values()}
    yield runs.corpus
    for path, content in before.items():
        path.write_bytes(content)


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_corpus_file_that_changed_is_named(
    runs: Runs, run: Path, corpus_to_change: Corpus, side: str, published: bool
) -> None:
    if not published:
        unpublish(run)
    path: Path = getattr(corpus_to_change, side)
    change_one_letter(path)
    message = refused(runs, run)
    digests = rf"data\.{side}, SHA-256 ({SHORT}) then, ({SHORT}) now"
    found = re.fullmatch(rf"{re.escape(str(path))}: changed since this run began \({digests}\){REMEDY}", message)
    assert found, message
    assert found[1] != found[2]
    assert found[2] == hashlib.sha256(path.read_bytes()).hexdigest()[:12]


@pytest.mark.parametrize("side", ["source", "target"])
def test_another_corpus_is_refused(runs: Runs, run: Path, tmp_path: Path, side: str) -> None:
    other = write_corpus(tmp_path / "other")
    before, now = getattr(runs.corpus, side), getattr(other, side)
    change_one_letter(now)
    message = refused(Runs(runs.server, other, runs.errors), run)
    place, was, is_now = (re.escape(str(path)) for path in (checkpoint_path(run, 8), before, now))
    pattern = rf"{place}: data\.{side} was {was} \(SHA-256 ({SHORT})\) when this run began"
    found = re.fullmatch(rf"{pattern} and is {is_now} \(SHA-256 ({SHORT})\) now{REMEDY}", message)
    assert found, message
    assert found[1] != found[2]


def test_another_tokenizer_is_refused(runs: Runs, run: Path, tmp_path: Path) -> None:
    train(runs.config("text.model=char", "train.max_steps=1"), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "tokenizer.model", run / "tokenizer.model")
    seal(run)
    pattern = rf".*step-000008: source vocabulary was {SHORT} when this run began and is {SHORT} now{REMEDY}"
    assert re.fullmatch(pattern, refused(runs, run))


def test_changed_setting_exits_with_4(runs: Runs, run: Path) -> None:
    before = contents(run)
    ended = runs.run(run, *SAVES, "model.d_ff=48")
    message = f"{checkpoint_path(run, 8)}: model.d_ff was 32 when this run began and is 48 now{REMEDY}"
    assert (ended.code, ended.lines) == (MODEL, [f"dragoman: {message}"])
    assert contents(run) == before


def test_changed_generated_corpus_is_refused(quick_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(quick_run, tmp_path / "run"))
    before = contents(run)
    for setting, message in (
        ("data.generated_size=2001", "data.generated_size was 2000 when this run began and is 2001 now"),
        ("data.generated=copy", "data.generated was 'reverse' when this run began and is 'copy' now"),
    ):
        with pytest.raises(ModelError, match=message):
            train(quick_config(setting), run)
        assert contents(run) == before


@pytest.mark.parametrize("other", ["vocabulary", "corpus"])
def test_without_the_check_the_model_would_be_overwritten(
    runs: Runs, run: Path, tmp_path: Path, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint.RunIdentity, "verify", lambda *_: None)
    before = contents(run)
    corpus, settings = (runs.corpus, ("text.vocab_size=330",)) if other == "vocabulary" else (None, ())
    asked = Runs(runs.server, corpus or write_corpus(tmp_path / "other", pairs=200), runs.errors)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):  # what tells the tests above that it went on
        refused(asked, run, *settings)
    after = contents(run)
    overwritten = {name for name in before if after.get(name) != before[name]}
    assert {"weights.safetensors", "config.toml", "published.json", "log.jsonl"} <= overwritten


def test_without_the_check_another_model_size_would_not_be_named(
    runs: Runs, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights do not fit it either, but that message names neither the setting nor its values."""
    monkeypatch.setattr(checkpoint.RunIdentity, "verify", lambda *_: None)
    message = refused(runs, run, "model.d_model=32")
    assert "does not fit its config.toml" in message
    assert "model.d_model" not in message
