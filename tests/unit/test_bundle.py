"""Model directories and checkpoints: atomic, checked, free of pickle."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dragoman import bundle, files, tensors, weights
from dragoman.config import Config
from dragoman.errors import DiskError, ModelError
from dragoman.model.build import build_model
from dragoman.training.checkpoint_files import (
    MAX_STATE,
    checkpoint_path,
    checkpoints,
    read_checkpoint,
    remove_checkpoints,
    remove_leftovers,
    write_checkpoint,
)
from tests.hostile import seal, tensors_file


@pytest.fixture
def copied(quick_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(quick_run, tmp_path / "model", ignore=shutil.ignore_patterns("checkpoints", "data"))


def test_model_directory_round_trip(quick_run: Path, tmp_path: Path) -> None:
    loaded = bundle.load_bundle(quick_run)
    weights = tensors.named_weights(loaded.model)
    bundle.save_bundle(tmp_path / "again", loaded.config, loaded.tokenizers, weights, "a card")
    again = bundle.load_bundle(tmp_path / "again")
    assert again.config == loaded.config
    assert (tmp_path / "again" / "card.md").read_text() == "a card"
    for name, tensor in tensors.named_weights(again.model).items():
        assert torch.equal(tensor, weights[name])
    assert again.model.output.weight is again.model.source_embedding.weight, "tied weights stay tied"


def test_no_break_spaces_are_kept_if_configured(copied: Path) -> None:
    text = "a\u00a0b \u202f c"
    plain = bundle.load_bundle(copied).tokenizers.source
    assert plain.decode(plain.encode(text)) == "a b c"
    config = copied / "config.toml"
    config.write_text(config.read_text().replace('normalization = "nfc"', 'normalization = "nfc-nbsp"'))
    loaded = bundle.load_bundle(copied)
    bundle.save_bundle(copied, loaded.config, loaded.tokenizers, tensors.named_weights(loaded.model), "a card")
    keeping = bundle.load_bundle(copied).tokenizers.source
    assert keeping.decode(keeping.encode(text)) == text


def test_shared_weights_are_stored_once(quick_run: Path) -> None:
    stored = load_file(quick_run / "weights.safetensors")
    assert "source_embedding.weight" in stored
    assert not {"target_embedding.weight", "output.weight"} & stored.keys()


def test_missing_directory_or_file_is_named(tmp_path: Path, copied: Path) -> None:
    with pytest.raises(ModelError, match="nowhere: no such model directory; train one with `dragoman train"):
        bundle.load_bundle(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"not a model directory \(no config.toml\)"):
        bundle.load_bundle(tmp_path)
    (copied / "tokenizer.model").unlink()
    with pytest.raises(ModelError, match=r"tokenizer.model: cannot be read \(No such file or directory\)"):
        bundle.load_bundle(copied)


def test_weights_that_do_not_fit_are_all_reported_at_once(copied: Path) -> None:
    path = copied / "weights.safetensors"
    weights = load_file(path)
    inner = weights.pop("encoder.layers.0.feed_forward.inner.bias")
    weights["stranger"] = torch.zeros_like(inner)
    weights["encoder.layers.0.feed_forward.inner.weight"] = weights[
        "encoder.layers.0.feed_forward.inner.weight"
    ].mT.contiguous()
    save_file(weights, path)
    seal(copied)
    with pytest.raises(ModelError) as caught:
        bundle.load_bundle(copied)
    for fault in (
        "encoder.layers.0.feed_forward.inner.bias is missing",
        "stranger is unknown",
        "encoder.layers.0.feed_forward.inner.weight is [32, 64] and should be [64, 32]",
    ):
        assert fault in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\x80\x04K\x01.", b"\xff" * 100, (10**15).to_bytes(8, "little") + b"{}"])
def test_weights_in_other_formats_are_refused(copied: Path, content: bytes) -> None:
    (copied / "weights.safetensors").write_bytes(content)
    seal(copied)
    with pytest.raises(ModelError, match=r"weights.safetensors: not a safetensors file"):
        bundle.load_bundle(copied)


def test_config_of_another_size_is_refused_before_building_the_model(copied: Path) -> None:
    config = (copied / "config.toml").read_text()
    (copied / "config.toml").write_text(config.replace("d_ff = 64", "d_ff = 1000000"))
    with pytest.raises(ModelError, match=r"holds [\d,]+ parameters, its config.toml describes 1\d\d,\d+,\d+"):
        bundle.load_bundle(copied)
    (copied / "config.toml").write_text(config.replace("num_layers = 1", "num_layers = 1000000000"))
    with pytest.raises(ModelError, match=r"config.toml: model.num_layers: 1000000000 is out of range"):
        bundle.load_bundle(copied)


def test_weights_of_unsupported_dtypes_are_refused(copied: Path) -> None:
    path = copied / "weights.safetensors"
    weights = load_file(path)
    weights["encoder.layers.0.feed_forward.inner.bias"] = torch.zeros(64, dtype=torch.int64)
    save_file(weights, path)
    seal(copied)
    with pytest.raises(ModelError, match=r"inner.bias is int64; use float32, bfloat16, float16, float64, or int8 as"):
        bundle.load_bundle(copied)


def test_a_tokenizer_of_another_size_is_refused(copied: Path) -> None:
    config = (copied / "config.toml").read_text()
    size = bundle.load_config(copied).model.vocab_size
    model = config.index("[model]")
    other = config[model:].replace(f"vocab_size = {size}", f"vocab_size = {size + 1}", 1)
    (copied / "config.toml").write_text(config[:model] + other)
    message = (
        rf"its vocabularies have {size} and {size} entries, its config.toml says {size + 1} and {size + 1}; restore"
    )
    with pytest.raises(ModelError, match=message):
        bundle.load_bundle(copied)


def test_deeply_nested_config_keys_are_refused(copied: Path) -> None:
    config = (copied / "config.toml").read_text()
    dots = "." * 100
    (copied / "config.toml").write_text(config.replace("source = []", f'source = [\n"{dots}/a",\n"{dots}/b"\n]', 1))
    with pytest.raises(ModelError, match=r"data.generated: 'reverse' replaces"):  # after it was parsed
        bundle.load_config(copied)
    for line in (f"a{'.a' * 21} = 1", f"[a{'.a' * 21}]"):
        (copied / "config.toml").write_text(f"{line}\n{config}")
        with pytest.raises(ModelError, match=r"config.toml: not valid TOML: nested too deeply; restore the file or"):
            bundle.load_config(copied)


def test_parsed_config_is_the_one_that_was_checked(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, read = bundle.load_config(copied), bundle._read

    def read_then_replace(directory: Path, name: str, max_bytes: float) -> bytes:
        content = read(directory, name, max_bytes)
        (directory / name).write_text("[decode]\nbeam = 9\n")
        return content

    monkeypatch.setattr(bundle, "_read", read_then_replace)
    assert bundle.load_config(copied) == expected
    assert bundle.load_config(copied).decode.beam == 9, "the control: the file was replaced"


def test_only_one_process_holds_the_lock(tmp_path: Path) -> None:
    refused = pytest.raises(ModelError, match="another run is training here")
    with files.lock_directory(tmp_path), refused, files.lock_directory(tmp_path):
        pass
    with files.lock_directory(tmp_path):
        pass


# Checkpoints

FILES = {"a.bin": b"one", "b.bin": b"two"}


def test_checkpoint_is_complete_or_absent(tmp_path: Path) -> None:
    path = checkpoint_path(tmp_path, 60)
    assert path.name == "step-000060"
    write_checkpoint(path, FILES)
    assert read_checkpoint(path) == FILES
    assert [entry.name for entry in (tmp_path / "checkpoints").iterdir()] == ["step-000060"]
    assert set(json.loads((path / "manifest.json").read_text())) == set(FILES)


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "manifest"])
def test_damaged_checkpoint_is_detected(tmp_path: Path, damage: str) -> None:
    path = checkpoint_path(tmp_path, 1)
    write_checkpoint(path, FILES)
    if damage == "flip":
        (path / "a.bin").write_bytes(b"onf")
    elif damage == "truncate":
        (path / "a.bin").write_bytes(b"on")
    elif damage == "delete":
        (path / "a.bin").unlink()
    else:
        (path / "manifest.json").write_bytes(b"{")
    with pytest.raises(ModelError, match="step-000001: damaged checkpoint"):
        read_checkpoint(path)


def damage(path: Path) -> str:
    """The damage that read_checkpoint reports."""
    with pytest.raises(ModelError) as caught:
        read_checkpoint(path)
    return str(caught.value).removeprefix(f"{path}: damaged checkpoint ")


@pytest.mark.parametrize("name", ["a.bin", "manifest.json"])
def test_links_pipes_and_oversized_checkpoint_files_are_not_read(tmp_path: Path, name: str) -> None:
    path = checkpoint_path(tmp_path, 1)
    write_checkpoint(path, FILES)
    moved = (path / name).rename(tmp_path / "moved")
    (path / name).symlink_to(moved)
    assert damage(path) == f"({name} links to a file outside of its directory)"
    (path / name).unlink()
    (path / name).mkdir()
    assert damage(path) == f"({name} is not a regular file)"
    (path / name).rmdir()
    os.mkfifo(path / name)
    assert damage(path) == f"({name} is not a regular file)"
    (path / name).unlink()
    (path / name).touch()
    os.truncate(path / name, MAX_STATE + 1)
    assert damage(path) == f"({name} has 20,000,001 bytes, at most 20,000,000 are allowed)"


def test_a_manifest_cannot_name_files_outside_of_its_checkpoint(tmp_path: Path) -> None:
    path = checkpoint_path(tmp_path, 1)
    write_checkpoint(path, FILES)
    (tmp_path / "outside").write_bytes(b"one")
    for name in ("../../outside", str(tmp_path / "outside"), "/dev/zero"):
        (path / "manifest.json").write_text(json.dumps({name: hashlib.sha256(b"one").hexdigest()}))
        assert damage(path) == f"({name} links to a file outside of its directory)"


@pytest.mark.parametrize(
    "content", ["[" * 100_000, "5", "null", '["a"]', '{"a\\u0000": "b"}', '{"a.bin": 5}', '{"": ""}']
)
def test_checkpoint_with_an_invalid_manifest_is_damaged(tmp_path: Path, content: str) -> None:
    path = checkpoint_path(tmp_path, 1)
    write_checkpoint(path, FILES)
    (path / "manifest.json").write_text(content)
    assert damage(path).startswith("(")


def test_partial_checkpoints_are_removed_and_replaced_ones_restored(tmp_path: Path) -> None:
    path = checkpoint_path(tmp_path, 1)
    write_checkpoint(path, FILES)
    path.rename(path.with_name(".step-000001.replaced"))
    shutil.copytree(path.with_name(".step-000001.replaced"), path.with_name(".step-000002.partial"))
    remove_leftovers(tmp_path)
    assert [each.name for each in path.parent.iterdir()] == ["step-000001"]
    assert read_checkpoint(path) == FILES


def test_oversized_tensor_header_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    content = tensors_file(b"{}".ljust(1001))
    assert tensors.weights_from_bytes(content, Path("a")) == {}
    monkeypatch.setattr(weights, "MAX_HEADER", 1000)
    with pytest.raises(
        ModelError, match=r"^a: its header has 1,001 bytes, at most 1,000 are allowed; restore the file"
    ):
        tensors.weights_from_bytes(content, Path("a"))


def test_checkpoints_sort_by_step_and_partial_ones_are_never_chosen(tmp_path: Path) -> None:
    for step in (5, 1_000_000, 999_999):
        write_checkpoint(checkpoint_path(tmp_path, step), FILES)
    (tmp_path / "checkpoints" / ".step-000007.partial").mkdir()
    (tmp_path / "checkpoints" / "step-backup").mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == [
        "step-000005",
        "step-999999",
        "step-1000000",
    ]
    remove_checkpoints(tmp_path, keep=checkpoints(tmp_path)[-1:])
    assert [path.name for path in checkpoints(tmp_path)] == ["step-1000000"]


def test_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weights"
    files.write_file(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_synced", full)
    with pytest.raises(DiskError, match=r"weights: cannot write 3 bytes \(No space left on device\); free some space"):
        files.write_file(path, b"new")
    assert path.read_bytes() == b"old"
    with pytest.raises(DiskError, match="step-000002: cannot write 6 bytes"):
        write_checkpoint(checkpoint_path(tmp_path, 2), FILES)
    assert checkpoints(tmp_path) == []


def test_non_finite_weights_are_refused(copied: Path) -> None:
    path = copied / "weights.safetensors"
    weights = load_file(path)
    weights["source_embedding.weight"][5, 5] = float("nan")
    save_file(weights, path)
    seal(copied)
    with pytest.raises(ModelError, match=r"source_embedding.weight and 0 more hold numbers that are not finite"):
        bundle.load_bundle(copied)


@pytest.mark.parametrize("model", [{}, {"architecture": "rnn"}])
def test_empty_model_does_not_advance_the_rng(model: dict[str, str]) -> None:
    config = Config.build("tiny", model=model)
    before = torch.get_rng_state()
    empty = tensors.empty_model(config, torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), before)
    drawn = build_model(config.model)
    assert not torch.equal(torch.get_rng_state(), before)
    assert {name: part.shape for name, part in empty.named_parameters()} == {
        name: part.shape for name, part in drawn.named_parameters()
    }
