"""What must match between a run and its checkpoints: the message names what differs."""

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.config import DataConfig
from dragoman.data.corpus import content_hash, file_hash
from dragoman.errors import ModelError
from dragoman.training.checkpoint import PROVENANCE, STATE, RunIdentity
from dragoman.training.checkpoint_files import checkpoint_path, write_checkpoint

REMEDY = "; restore it, or give another --out for a new run"


def write_lines(directory: Path, **files: str) -> list[str]:
    paths = []
    for name, text in files.items():
        (directory / name).write_text(f"{text}\n")
        paths.append(str(directory / name))
    return paths


def identity(paths: list[str]) -> dict[str, Any]:
    return {"model.d_model": 16, "data.source": content_hash([Path(path) for path in paths])}


def save(run: Path, paths: list[str], *, provenance: bool = True) -> Path:
    path = checkpoint_path(run, 4)
    files = {STATE: json.dumps({"progress": {}, "identity": identity(paths)}).encode()}
    if provenance:
        recorded = {"data": {"source": {name: file_hash(Path(name)) for name in paths}}}
        files[PROVENANCE] = json.dumps(recorded).encode()
    write_checkpoint(path, files)
    return path


def refusal(run: Path, paths: list[str]) -> str:
    with pytest.raises(ModelError) as caught:
        RunIdentity(run).verify(identity(paths), DataConfig(source=tuple(paths)))
    assert caught.value.exit_code == 4
    return str(caught.value)


def short_hash(path: str) -> str:
    return file_hash(Path(path))[:12]


def test_changed_file_among_several_is_named(tmp_path: Path) -> None:
    paths = write_lines(tmp_path, one="1", two="2", three="3")
    save(tmp_path, paths)
    before = short_hash(paths[1])
    write_lines(tmp_path, two="another")
    expected = (
        f"{paths[1]}: changed since this run began (data.source, SHA-256 {before} then, {short_hash(paths[1])} now)"
    )
    assert refusal(tmp_path, paths) == f"{expected}{REMEDY}"


def test_replaced_file_and_its_replacement_are_named(tmp_path: Path) -> None:
    paths = write_lines(tmp_path, one="1", two="2", other="3")
    place = save(tmp_path, paths[:2])
    was, now = (f"{path} (SHA-256 {short_hash(path)})" for path in paths[1:])
    message = f"{place}: data.source was {was} when this run began and is {now} now{REMEDY}"
    assert refusal(tmp_path, [paths[0], paths[2]]) == message


def test_files_in_another_order_are_all_named(tmp_path: Path) -> None:
    paths = write_lines(tmp_path, one="1", two="2")
    place = save(tmp_path, paths)
    one, two = (f"{path} (SHA-256 {short_hash(path)})" for path in paths)
    message = f"{place}: data.source was {one}, {two} when this run began and is {two}, {one} now{REMEDY}"
    assert refusal(tmp_path, paths[::-1]) == message


def test_moved_files_with_the_same_content_are_the_same_corpus(tmp_path: Path) -> None:
    save(tmp_path, write_lines(tmp_path, one="1"))
    moved = write_lines(tmp_path, moved="1")
    RunIdentity(tmp_path).verify(identity(moved), DataConfig(source=tuple(moved)))


def test_checkpoint_without_file_names_still_refuses_another_corpus(tmp_path: Path) -> None:
    paths = write_lines(tmp_path, one="1", two="2")
    place = save(tmp_path, paths[:1], provenance=False)
    was, now = (identity([path])["data.source"][:12] for path in paths)
    message = f"{place}: data.source was {was} when this run began and is {now} now{REMEDY}"
    assert refusal(tmp_path, paths[1:]) == message


def test_changed_setting_is_named_with_both_values(tmp_path: Path) -> None:
    place = save(tmp_path, write_lines(tmp_path, one="1"))
    with pytest.raises(ModelError) as caught:
        RunIdentity(tmp_path).verify({"model.d_model": 32})
    assert str(caught.value) == f"{place}: model.d_model was 16 when this run began and is 32 now{REMEDY}"
