"""Saved files survive a loss of power: every file is synced before the rename, the rename before anything else.

A killed process loses nothing that it wrote, so kills cannot test this; the order of the calls can.
"""

import gzip
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dragoman import bundle, files, tensors
from dragoman.cli.resumable import resumable
from dragoman.model.build import build_model
from dragoman.text.tokenizer import Tokenizer
from dragoman.training.checkpoint_files import checkpoint_path, write_checkpoint
from tests.conftest import quick_config

pytestmark = pytest.mark.skipif(os.name != "posix", reason="elsewhere a directory cannot be synced")


class Event(NamedTuple):
    kind: str  # sync, rename, remove
    inode: int  # which a rename does not change
    size: int = 0  # of a file that is synced
    path: Path = Path()  # where to, of a rename


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Every sync, rename and removal of the test, in order."""
    found: list[Event] = []

    def sync(real: Callable[[int], None]) -> Callable[[int], None]:
        def recorded(descriptor: int) -> None:
            real(descriptor)
            status = os.fstat(descriptor)
            found.append(Event("sync", status.st_ino, status.st_size))

        return recorded

    def rename(real: Callable[..., None]) -> Callable[..., None]:
        def recorded(source: Any, target: Any, **options: Any) -> None:
            found.append(Event("rename", Path(source).stat().st_ino, path=Path(target)))
            real(source, target, **options)

        return recorded

    def remove(path: Any, *arguments: Any, **options: Any) -> None:
        if Path(path).exists():
            found.append(Event("remove", Path(path).stat().st_ino))
        rmtree(path, *arguments, **options)

    rmtree = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", remove)
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, rename(getattr(os, name)))
    monkeypatch.setattr(os, "fsync", sync(os.fsync))
    return found


def synced(events: list[Event], path: Path, *, after: int = -1) -> int:
    """When a file was synced with its full content, or a directory at all; fails if it never was."""
    status = path.stat()
    for number, event in enumerate(events):
        whole = path.is_dir() or event.size == status.st_size
        if number > after and event.kind == "sync" and event.inode == status.st_ino and whole:
            return number
    raise AssertionError(f"{path.name} was never synced after event {after}")


def renamed(events: list[Event], path: Path) -> int:
    """When it was last renamed to its final name."""
    number = max(number for number, event in enumerate(events) if event.kind == "rename" and event.path == path)
    assert events[number].inode == path.stat().st_ino
    return number


def check_file(events: list[Event], path: Path) -> None:
    assert synced(events, path) < renamed(events, path)
    synced(events, path.parent, after=renamed(events, path))


def check_checkpoint(events: list[Event], path: Path) -> None:
    """Every file, the manifest last, then the directory; the rename; the directory above."""
    files = {each.name: synced(events, each) for each in path.iterdir()}
    manifest = files.pop("manifest.json")
    assert max(files.values()) < manifest
    assert synced(events, path, after=manifest) < renamed(events, path)
    synced(events, path.parent, after=renamed(events, path))


def test_file_is_synced_before_it_is_renamed(tmp_path: Path, events: list[Event]) -> None:
    path = tmp_path / "card.md"
    for content in (b"one", b"another"):
        events.clear()
        files.write_file(path, content)
        check_file(events, path)


def test_every_file_of_a_model_directory_is_synced_before_it_is_renamed(tmp_path: Path, events: list[Event]) -> None:
    config = quick_config()
    tokenizer = Tokenizer.train(["a b c d", "e f g h"], config.text)
    config = config.with_vocabulary(tokenizer.size, tokenizer.size)
    weights = tensors.named_weights(build_model(config.model))
    bundle.save_bundle(tmp_path, config, bundle.Tokenizers(tokenizer, tokenizer), weights, "a card")
    written = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert {"weights.safetensors", "config.toml", "tokenizer.model", "card.md"} <= {path.name for path in written}
    for path in written:
        check_file(events, path)


FILES = {"weights.safetensors": b"w" * 100_000, "state.json": b"{}"}


def test_checkpoint_is_synced_before_it_is_renamed(tmp_path: Path, events: list[Event]) -> None:
    path = checkpoint_path(tmp_path, 7)
    write_checkpoint(path, FILES)
    check_checkpoint(events, path)


def test_checkpoint_is_removed_only_after_its_replacement_is_synced(tmp_path: Path, events: list[Event]) -> None:
    path = checkpoint_path(tmp_path, 7)
    write_checkpoint(path, {"state.json": b"old"})
    before = path.stat().st_ino
    events.clear()
    write_checkpoint(path, FILES)
    check_checkpoint(events, path)
    (removed,) = [number for number, event in enumerate(events) if event[:2] == ("remove", before)]
    assert synced(events, path.parent, after=renamed(events, path)) < removed


# The control: what is left out is noticed


def write_without_some_syncs(path: Path, *, file: bool, directory: bool) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("wb") as opened:
        opened.write(b"content")
        opened.flush()
        if file:
            os.fsync(opened.fileno())
    partial.replace(path)
    if directory:
        descriptor = os.open(path.parent, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


@pytest.mark.parametrize(("file", "directory"), [(True, True), (False, True), (True, False)])
def test_missing_sync_is_detected(tmp_path: Path, events: list[Event], file: bool, directory: bool) -> None:
    write_without_some_syncs(tmp_path / "some", file=file, directory=directory)
    if file and directory:
        check_file(events, tmp_path / "some")
    else:
        with pytest.raises(AssertionError, match="was never synced"):
            check_file(events, tmp_path / "some")


@pytest.mark.parametrize("name", ["out.de", "out.de.gz"])
def test_resumable_output_is_synced_before_it_is_counted_or_renamed(
    tmp_path: Path, events: list[Event], name: str
) -> None:
    output, partial, state = tmp_path / name, tmp_path / f".{name}.partial", tmp_path / f".{name}.partial.json"
    with resumable(output, {"model": "a"}, total=2) as kept:
        kept.add("one\n", 1, {})
        assert synced(events, partial) < renamed(events, state)
        kept.add("two\n", 1, {})
    check_file(events, output)


def test_compressed_output_has_the_same_bytes_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    for now in (1e9, 2e9):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        output = tmp_path / f"{now:.0f}.gz"
        with resumable(output, {}, 1) as kept:
            kept.add("a line\n", 1, {})
        written.append(output.read_bytes())
    assert written[0] == written[1]
    assert gzip.decompress(written[0]) == b"a line\n"
