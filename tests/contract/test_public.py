"""The public API: few names, imported lazily, with the documented signatures."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dragoman
from dragoman import Transformer, TransformerConfig

HEAVY = ("torch", "sentencepiece", "sacrebleu", "numpy", "num2words", "babel")


def test_public_api_is_small_and_every_name_resolves() -> None:
    assert len(dragoman.__all__) <= 20
    for name in dragoman.__all__:
        assert getattr(dragoman, name) is not None
    assert set(dragoman.__all__) <= set(dir(dragoman))


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'dragoman' has no attribute 'translte'"):
        _ = dragoman.translte  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", ["dragoman", "dragoman.cli.app"])
def test_import_loads_no_heavy_module(module: str) -> None:
    code = f"import sys, {module}; print(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.slow
def test_control_importing_transformer_loads_torch() -> None:
    code = "import sys; from dragoman import Transformer; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.slow
def test_training_loop_import_skips_modules_a_single_process_does_not_need() -> None:
    """Each takes a second or more. Control: torch is found in the same way."""
    names = ("torch", "torch.distributed.fsdp", "torch.distributed.tensor", "torch._dynamo", "sacrebleu", "tensorboard")
    code = f"import sys, dragoman.training.loop; print(*[name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["torch"]


@pytest.mark.slow
def test_training_and_decoding_import_without_cli_and_metric_packages() -> None:
    missing = dict.fromkeys(("typer", "rich", "sacrebleu"))
    code = f"import sys; sys.modules.update({missing}); import dragoman.training.loop, dragoman.decode.translator"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_model_call_signature() -> None:
    model = Transformer(TransformerConfig.tiny(vocab_size=100))
    source_ids, target_ids = torch.randint(4, 100, (2, 5)), torch.randint(4, 100, (2, 3))
    logits = model(source_ids, target_ids, source_allowed=None)
    assert logits.shape == (2, 3, 100)
    allowed = torch.ones(2, 5, dtype=torch.bool)
    assert model(source_ids, target_ids, allowed).shape == (2, 3, 100)


def test_transformer_source_is_under_600_lines() -> None:
    from dragoman.model import attention, transformer

    lines = sum(len(inspect.getsource(module).split("\n")) for module in (attention, transformer))
    assert lines < 600


def test_train_can_be_called_before_and_after_its_package_is_imported(tmp_path: Path) -> None:
    """Importing a package of the same name would replace the function."""
    for _ in range(2):
        with pytest.raises(dragoman.ConfigError, match=r"data\.source: missing"):
            dragoman.train(dragoman.Config(), tmp_path)
        importlib.import_module("dragoman.training.loop")
