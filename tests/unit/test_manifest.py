"""manifest.json of a model directory: damage is detected on load, and a killed save leaves a directory that loads."""

import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dragoman import bundle, files, tensors
from dragoman.errors import ModelError
from tests.hostile import digest, seal

WEIGHTS = bundle.WEIGHTS


@pytest.fixture
def copied(quick_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(quick_run, tmp_path / "model", ignore=shutil.ignore_patterns("checkpoints", "data"))


def manifest(directory: Path) -> Any:
    return json.loads((directory / bundle.MANIFEST).read_bytes())


def overwrite_some_bytes(path: Path, count: int = 23) -> None:
    """In the second half of the file: the numbers, not the header."""
    generator, content = random.Random(1), bytearray(path.read_bytes())
    start = generator.randrange(len(content) // 2, len(content) - count)
    content[start : start + count] = generator.randbytes(count)
    path.write_bytes(content)


def refusal(directory: Path, name: str) -> str:
    return f"{directory / name}: its SHA-256 is not the one in manifest.json; restore the file or train again"


def load_error(directory: Path) -> str:
    with pytest.raises(ModelError) as caught:
        bundle.load_bundle(directory)
    return str(caught.value)


def test_the_manifest_has_the_hashes_of_weights_and_tokenizer(quick_run: Path) -> None:
    assert manifest(quick_run) == {name: [digest(quick_run / name)] for name in ("tokenizer.model", WEIGHTS)}


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.model"])
def test_overwritten_bytes_are_detected_on_load(copied: Path, name: str) -> None:
    overwrite_some_bytes(copied / name)
    assert load_error(copied) == refusal(copied, name)


def test_without_a_manifest_overwritten_weights_load(copied: Path) -> None:
    """Like directories saved by older versions; the control of the test above."""
    before = tensors.named_weights(bundle.load_bundle(copied).model)
    overwrite_some_bytes(copied / WEIGHTS)
    (copied / bundle.MANIFEST).unlink()
    after = tensors.named_weights(bundle.load_bundle(copied).model)
    assert [name for name in before if not torch.equal(before[name], after[name])] != []


def test_hash_mismatch_is_reported_before_other_errors(copied: Path) -> None:
    (copied / WEIGHTS).write_bytes((copied / WEIGHTS).read_bytes()[:-1])
    assert load_error(copied) == refusal(copied, WEIGHTS)
    seal(copied)
    assert "not a safetensors file" in load_error(copied)


def test_a_file_that_the_manifest_does_not_list_is_refused(copied: Path) -> None:
    listed = manifest(copied)
    del listed[WEIGHTS]
    (copied / bundle.MANIFEST).write_text(json.dumps(listed))
    assert load_error(copied) == refusal(copied, WEIGHTS)


def test_config_and_card_may_be_edited(copied: Path) -> None:
    (copied / "card.md").write_text("another card")
    config = (copied / "config.toml").read_text()
    (copied / "config.toml").write_text(config.replace("beam = 4", "beam = 2"))
    assert bundle.load_bundle(copied).config.decode.beam == 2


@pytest.mark.parametrize("content", ["", "{", "[]", "5", "null", '{"a": "b"}', '{"a": [1]}', "[" * 100_000, "\x80"])
def test_invalid_manifest_is_refused(copied: Path, content: str) -> None:
    (copied / bundle.MANIFEST).write_text(content, encoding="latin-1")
    expected = "not a manifest of SHA-256; restore the file, or remove it to load without checks"
    assert load_error(copied) == f"{copied / bundle.MANIFEST}: {expected}"


# Saving


class Killed(BaseException):
    """An exception that no code catches, like SIGKILL."""


def kill_at(number: int) -> Callable[[int], None]:
    def kill(event: int) -> None:
        if event == number:
            raise Killed

    return kill


def other_weights(directory: Path) -> dict[str, torch.Tensor]:
    return {name: tensor + 1 for name, tensor in load_file(directory / WEIGHTS).items()}


def save(directory: Path, weights: dict[str, torch.Tensor], card: str = "a new card") -> None:
    loaded = bundle.load_bundle(directory)
    bundle.save_bundle(directory, loaded.config, loaded.tokenizers, weights, card)


def record_events(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> list[str]:
    """Every write and rename from now on; `act` is called with the number of each."""
    events: list[str] = []

    def after(event: str, path: Path) -> None:
        events.append(f"{event} {path.name}")
        act(len(events))

    monkeypatch.setattr(files, "after", after)
    return events


EVENTS = [
    f"{event} {name.join(around)}"
    for name in (bundle.MANIFEST, WEIGHTS, bundle.CARD, bundle.MANIFEST)
    for event, around in (("write", (".", ".partial")), ("rename", ("", "")))
]


def test_old_hash_is_accepted_until_the_new_file_is_in_place(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, weights = digest(copied / WEIGHTS), other_weights(copied)
    tokenizer = [digest(copied / "tokenizer.model")]
    seen: list[Any] = []
    events = record_events(monkeypatch, lambda _: seen.append(manifest(copied)))
    save(copied, weights)
    new = digest(copied / WEIGHTS)
    before, both, after = ({"tokenizer.model": tokenizer, WEIGHTS: hashes} for hashes in ([old], [new, old], [new]))
    assert (events, seen) == (EVENTS, [before, *[both] * 6, after])


@pytest.mark.parametrize("has_manifest", [True, False])
@pytest.mark.parametrize("number", range(1, len(EVENTS) + 1))
def test_a_kill_after_any_write_or_rename_leaves_a_directory_that_loads(
    copied: Path, monkeypatch: pytest.MonkeyPatch, number: int, has_manifest: bool
) -> None:
    if not has_manifest:
        (copied / bundle.MANIFEST).unlink()
    new, old = other_weights(copied), load_file(copied / WEIGHTS)
    with monkeypatch.context() as patched:
        record_events(patched, kill_at(number))
        with pytest.raises(Killed):
            save(copied, new)
    found = tensors.named_weights(bundle.load_bundle(copied).model)
    expected = new if number >= EVENTS.index(f"rename {WEIGHTS}") + 1 else old
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    save(copied, new)  # as the next start does
    assert manifest(copied)[WEIGHTS] == [digest(copied / WEIGHTS)]


def test_damaged_weights_are_still_refused_after_a_kill_during_their_replacement(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, weights = bundle.load_bundle(copied), other_weights(copied)
    overwrite_some_bytes(copied / WEIGHTS)
    with monkeypatch.context() as patched:
        events = record_events(patched, kill_at(EVENTS.index(f"rename {bundle.MANIFEST}") + 1))
        with pytest.raises(Killed):
            bundle.save_bundle(copied, loaded.config, loaded.tokenizers, weights, "card")
    assert events[-1] == f"rename {bundle.MANIFEST}"
    assert load_error(copied) == refusal(copied, WEIGHTS)


def test_a_damaged_manifest_is_replaced_by_the_next_save(copied: Path) -> None:
    loaded, weights = bundle.load_bundle(copied), other_weights(copied)
    (copied / bundle.MANIFEST).write_text("{")
    bundle.save_bundle(copied, loaded.config, loaded.tokenizers, weights, "card")
    assert manifest(copied)[WEIGHTS] == [digest(copied / WEIGHTS)]
    bundle.load_bundle(copied)


def test_saving_unchanged_files_writes_nothing(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = (copied / "card.md").read_text()
    events = record_events(monkeypatch, lambda _: None)
    save(copied, load_file(copied / WEIGHTS), card)
    assert events == []


def test_a_new_directory_gets_its_manifest_first(quick_run: Path, tmp_path: Path) -> None:
    loaded = bundle.load_bundle(quick_run)
    weights = tensors.named_weights(loaded.model)
    with pytest.MonkeyPatch.context() as patched:
        events = record_events(patched, lambda _: None)
        bundle.save_bundle(tmp_path / "new", loaded.config, loaded.tokenizers, weights, "card")
    renamed = [event.removeprefix("rename ") for event in events if event.startswith("rename ")]
    assert renamed == ["manifest.json", "tokenizer.model", "config.toml", WEIGHTS, "card.md"]
    assert manifest(tmp_path / "new")[WEIGHTS] == [digest(tmp_path / "new" / WEIGHTS)]


def test_two_tokenizers_are_both_listed(quick_run: Path, tmp_path: Path) -> None:
    loaded = bundle.load_bundle(quick_run)
    joint = loaded.tokenizers.source
    two = bundle.Tokenizers(joint, type(joint).from_bytes(joint.to_bytes()))
    bundle.save_bundle(tmp_path, loaded.config, two, tensors.named_weights(loaded.model), "card")
    assert set(manifest(tmp_path)) == {"source.model", "target.model", WEIGHTS}


def test_model_published_during_loading_loads(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest was read for the old weights, but the weights are new."""
    real, new = files.read_checked, other_weights(copied)
    published: list[str] = []

    def read(directory: Path, name: str, max_bytes: float, *, within: Sequence[Path]) -> bytes:
        if name == WEIGHTS and not published:
            published.append(name)
            save(copied, new)
        return real(directory, name, max_bytes, within=within)

    monkeypatch.setattr(bundle, "read_checked", read)
    found = tensors.named_weights(bundle.load_bundle(copied).model)
    assert published == [WEIGHTS]
    assert all(torch.equal(found[name], tensor) for name, tensor in new.items())
