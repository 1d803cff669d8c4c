"""Smaller weights on disk: error, size, and the same model for every command."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import dragoman
from dragoman import bundle, files, int8
from dragoman.cli.app import app
from dragoman.decode.quantized import QuantizedLinear, quantized
from dragoman.errors import DiskError, ModelError
from dragoman.int8 import compact, expanded, without_scales
from tests.hostile import seal

LINES = ["a b c d", "j i h g f e", "c"]


@pytest.fixture
def small(quick_run: Path, tmp_path: Path) -> Path:
    done = CliRunner().invoke(app, ["compress", "--model", str(quick_run), "--out", str(tmp_path / "small")])
    assert done.exit_code == 0
    assert done.stdout.startswith(f"{tmp_path / 'small'}: weights in int8, ")
    return tmp_path / "small"


def rows_off_by_more_than_half_their_scale() -> int:
    random = np.random.default_rng(1)
    weights = {
        name: random.standard_normal(shape, np.float32) for name, shape in (("matrix", (20, 50)), ("vector", 50))
    }
    weights["matrix"][3] *= 100.0  # one loud row must not cost the others anything
    again = expanded(compact(weights))
    assert (again["vector"] == weights["vector"]).all()
    assert list(again) == list(weights)
    scale_N1 = np.abs(weights["matrix"]).max(axis=1, keepdims=True) / 127
    return int((np.abs(again["matrix"] - weights["matrix"]) > 0.5001 * scale_N1).any(axis=1).sum())


def test_row_error_is_at_most_half_its_scale_and_vectors_are_exact() -> None:
    assert rows_off_by_more_than_half_their_scale() == 0


def test_one_scale_per_matrix_loses_rows_of_small_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole_matrix(x_NI: int8.Array) -> tuple[int8.Array, int8.Array]:
        scale_N1 = np.full((len(x_NI), 1), np.abs(x_NI).max() / 127)
        return (x_NI / scale_N1).round().astype(np.int8), scale_N1

    monkeypatch.setattr(int8, "quantize_rows", whole_matrix)
    assert rows_off_by_more_than_half_their_scale() == 19


def test_compressing_twice_changes_nothing() -> None:
    first = compact({"matrix": np.random.default_rng(1).standard_normal((20, 50), np.float32)})
    second = compact(expanded(first))
    assert (first["matrix"] == second["matrix"]).all()


def test_weight_named_scale_is_not_taken_for_a_scale() -> None:
    assert set(without_scales({"norm.scale", "a", "a.scale"})) == {"norm.scale", "a"}


def test_compressed_model_works_like_the_original(quick_run: Path, small: Path) -> None:
    stored = load_file(small / bundle.WEIGHTS)
    assert {str(tensor.dtype) for name, tensor in stored.items() if tensor.dim() == 2} == {"torch.int8"}
    assert (small / bundle.WEIGHTS).stat().st_size < 0.5 * (quick_run / bundle.WEIGHTS).stat().st_size
    exact = dragoman.load(str(quick_run), "cpu").score(LINES, LINES)
    near = dragoman.load(str(small), "cpu").score(LINES, LINES)
    assert near == pytest.approx(exact, rel=0.05)
    assert near != exact, "the control: something was rounded"


def test_the_int8_engine_computes_with_the_same_integers(quick_run: Path, small: Path) -> None:
    models = [quantized(bundle.load_bundle(place).model) for place in (quick_run, small)]
    layers = [[part for part in model.modules() if isinstance(part, QuantizedLinear)] for model in models]
    assert len(layers[0]) > 5
    for one, two in zip(*layers, strict=True):
        assert torch.equal(one.weight_OI, two.weight_OI)


@pytest.mark.parametrize("weights", ["bfloat16", "float32"])
def test_weights_can_be_saved_in_other_dtypes(quick_run: Path, tmp_path: Path, weights: str) -> None:
    arguments = ["compress", "--model", str(quick_run), "--out", str(tmp_path / "out"), "--weights", weights]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert {str(tensor.dtype) for tensor in load_file(tmp_path / "out" / bundle.WEIGHTS).values()} == {
        f"torch.{weights}"
    }
    assert dragoman.load(str(tmp_path / "out"), "cpu").translate("a b c").status in ("translated", "truncated")


def test_invalid_arguments_are_reported(quick_run: Path, small: Path, tmp_path: Path) -> None:
    def error(*arguments: str) -> str:
        return str(CliRunner().invoke(app, ["compress", "--model", str(quick_run), *arguments]).exception)

    assert error("--out", str(small)) == f"--out {small}: holds a model; give another directory"
    assert error("--out", str(tmp_path / "x"), "--weights", "int4") == (
        "--weights: 'int4' is not a choice; did you mean int8?"
    )


def test_missing_scales_are_detected(small: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(small, tmp_path / "broken"))
    stored = load_file(broken / bundle.WEIGHTS)
    del stored["source_embedding.weight.scale"]
    save_file(stored, broken / bundle.WEIGHTS)
    seal(broken)
    with pytest.raises(ModelError, match=r"source_embedding.weight is int8 without its scales"):
        bundle.load_bundle(broken)


@pytest.mark.parametrize(
    ("shape", "scales"), [((4,), (4,)), ((4, 3), (3,)), ((4, 3), (4, 1)), ((4, 3), ()), ((2, 2, 2), (2,))]
)
def test_scales_of_another_shape_are_not_broadcast(shape: tuple[int, ...], scales: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=r"^a has "):
        expanded({"a": np.ones(shape, np.int8), "a.scale": np.ones(scales, np.float32)})


@pytest.mark.parametrize(("dtype", "scale_dtype"), [("float32", "float32"), ("int8", "int8")])
def test_wrong_dtypes_of_weights_or_scales_are_refused(dtype: str, scale_dtype: str) -> None:
    with pytest.raises(ModelError, match=r"^a has "):
        expanded({"a": np.ones((4, 3), dtype), "a.scale": np.ones(4, scale_dtype)})


# A full disk


@pytest.fixture
def fill_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """The disk is full at the number-th write or rename."""

    def fill(number: int) -> None:
        events: list[str] = []

        def after(event: str, path: Path) -> None:
            events.append(event)
            if len(events) == number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(files, "after", after)

    return fill


EVENTS = 10  # manifest, tokenizer, config, weights and card, each written and renamed


@pytest.mark.parametrize("number", range(1, EVENTS + 1))
def test_full_disk_leaves_no_new_files(
    quick_run: Path, tmp_path: Path, fill_disk: Callable[[int], None], number: int
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "notes.txt").write_text("mine")
    for out in (tmp_path / "new" / "small", kept):
        fill_disk(number)
        done = CliRunner().invoke(app, ["compress", "--model", str(quick_run), "--out", str(out)])
        assert isinstance(done.exception, DiskError)
        name = ("manifest.json", "tokenizer.model", "config.toml", "weights.safetensors", "card.md")[(number - 1) // 2]
        assert str(done.exception).startswith(f"{out / name}: cannot write ")
        assert str(done.exception).endswith("(No space left on device); free some space or choose another place")
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == [Path("kept"), Path("kept/notes.txt")]


def test_full_disk_leaves_existing_files_unchanged(
    quick_run: Path, tmp_path: Path, fill_disk: Callable[[int], None]
) -> None:
    (tmp_path / "card.md").write_text("mine")
    fill_disk(8)
    done = CliRunner().invoke(app, ["compress", "--model", str(quick_run), "--out", str(tmp_path)])
    assert isinstance(done.exception, DiskError)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"card.md": "mine"}


def test_control_every_file_is_written_without_a_full_disk(
    quick_run: Path, tmp_path: Path, fill_disk: Callable[[int], None]
) -> None:
    """The control of the test above."""
    fill_disk(EVENTS + 1)
    assert CliRunner().invoke(app, ["compress", "--model", str(quick_run), "--out", str(tmp_path)]).exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        "manifest.json", "tokenizer.model", "config.toml", "weights.safetensors", "card.md"
    }  # fmt: skip


# Bundled models


def test_local_model_takes_precedence_over_bundled_model(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "BUNDLED_MODELS", small.parent)
    monkeypatch.chdir(tmp_path / "..")
    assert bundle.resolve_model("small") == small
    assert bundle.bundled_models() == ["small"]
    assert dragoman.load("small", "cpu").translate("a b").source == "a b"
    Path("small").mkdir(exist_ok=True)
    assert bundle.resolve_model("small") == small, "a folder without a model is ignored"
    for part in (bundle.CONFIG, bundle.WEIGHTS, bundle.CHECKPOINTS):
        Path("small", part).touch()
        assert bundle.resolve_model("small") == Path("small"), "the local model comes first"
        Path("small", part).unlink()
    assert bundle.resolve_model("..") == Path("..")
    assert bundle.resolve_model("../small") == Path("../small"), "paths never name bundled models"
    with pytest.raises(ModelError, match="or use a bundled one: small"):
        dragoman.load("smal")
