"""The NumPy reference by itself: its gradients, its optimiser, and that it learns."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import pytest
import torch

from dragoman.config import TrainConfig
from dragoman.model.loss import smoothed_cross_entropy
from dragoman.reference import __main__ as command
from dragoman.reference import attention, check, copying, functions, training, transformer
from dragoman.reference.functions import Array, Saved
from dragoman.reference.parameters import Config, initialise
from dragoman.reference.training import Adam
from dragoman.training import optimizer


@pytest.mark.slow
def test_reference_command_checks_gradients_and_learns_to_copy() -> None:
    """Runs the command: it checks every gradient and solves the copy task."""
    done = subprocess.run([sys.executable, "-m", "dragoman.reference"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Gradients against central differences")
    assert "  all right" in lines
    assert "  solved" in lines
    assert "copied 100.0% of 500" in done.stdout


def test_reference_imports_only_numpy() -> None:
    """Nothing of PyTorch, and nothing else of the package."""
    program = (
        "import sys, dragoman.reference.__main__\n"
        "ours = {name for name in sys.modules if name.startswith('dragoman')}\n"
        "print(sorted(name for name in ours if not name.startswith('dragoman.reference')), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['dragoman'] False"


# Gradients


def test_gradient_of_every_function_is_correct() -> None:
    differences = dict(check.check_functions(np.random.default_rng(5)))
    assert len(differences) == 16
    assert max(differences.values()) < check.TOLERANCE


@pytest.mark.parametrize("variant", command.VARIANTS)
def test_gradient_of_every_parameter_is_correct(variant: str) -> None:
    differences = dict(check.check_model(command.VARIANTS[variant], np.random.default_rng(5)))
    assert max(differences.values()) < check.TOLERANCE


def softmax_without_its_sum(d_p: Array, saved: Saved) -> Array:
    return saved[0] * d_p


def layer_norm_without_its_slope(d_y: Array, saved: Saved) -> tuple[Array, Array, Array]:
    n, deviation, scale = saved
    d_n = d_y * scale
    d_x = (d_n - d_n.mean(axis=-1, keepdims=True)) / deviation
    return d_x, (d_y * n).sum(axis=(0, 1)), d_y.sum(axis=(0, 1))


def embedding_of_last_use_only(d_x: Array, saved: Saved) -> Array:
    d_table = np.zeros_like(saved[1])
    d_table[saved[0]] = d_x
    return d_table


WRONG: list[tuple[Any, str, Any]] = [
    (attention, "softmax_backward", softmax_without_its_sum),
    (functions, "layer_norm_backward", layer_norm_without_its_slope),
    (functions, "embedding_backward", embedding_of_last_use_only),
    (training, "smoothed_loss_backward", lambda saved: np.exp(saved[0]) - saved[1]),
]


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [pytest.param(*each, marks=pytest.mark.slow if number else ()) for number, each in enumerate(WRONG)],
    ids=[each[1] for each in WRONG],
)
def test_central_differences_detect_a_wrong_backward(owner: Any, name: str, wrong: Any) -> None:
    with patch.object(owner, name, wrong):
        functions_apart = dict(check.check_functions(np.random.default_rng(5)))
        model_apart = dict(check.check_model(command.SMALL, np.random.default_rng(5)))
    assert max(functions_apart.values()) > 1e-3
    assert max(model_apart.values()) > 1e-3


@pytest.mark.slow
def test_a_wrong_gradient_fails_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with patch.object(attention, "softmax_backward", softmax_without_its_sum):
        assert command.main() == 1
    assert "WRONG" in capsys.readouterr().out


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_key_biases_have_no_gradient_and_query_biases_have_one(norm: Literal["post", "pre"]) -> None:
    """The same number on all scores of a query changes no softmax."""
    config, random = replace(command.SMALL, norm=norm), np.random.default_rng(0)
    _, gradients = training.loss_and_gradients(initialise(config, random), config, check.random_batch(config, random))
    largest = {name: np.abs(gradient).max() for name, gradient in gradients.items()}
    assert all(each < 1e-15 for name, each in largest.items() if name.endswith("key.bias"))
    assert any(each > 1e-6 for name, each in largest.items() if name.endswith("query.bias"))


# Functions at their edges


def test_fully_masked_softmax_and_its_gradient_are_zero() -> None:
    allowed = np.array([[False, False], [True, False]])
    p, saved = functions.softmax(np.array([[1.0, 2.0], [1e300, -1e300]]), allowed)
    assert p.tolist() == [[0.0, 0.0], [1.0, 0.0]]
    assert functions.softmax_backward(np.ones((2, 2)), saved).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_a_softmax_of_large_scores_is_finite() -> None:
    p, _ = functions.softmax(np.array([1e4, 1e4, -1e4]))
    assert p.tolist() == [0.5, 0.5, 0.0]


def test_splitting_and_merging_heads_undo_each_other() -> None:
    x = np.arange(24.0).reshape(1, 2, 12)
    heads = attention.split_heads(x, 3)
    assert heads.shape == (1, 3, 2, 4)
    assert heads[0, 1, 0].tolist() == [4.0, 5.0, 6.0, 7.0]
    assert (attention.merge_heads(heads) == x).all()


def test_embedding_is_a_one_hot_product() -> None:
    random = np.random.default_rng(0)
    ids, table, d_x = random.integers(0, 5, (2, 3)), random.normal(size=(5, 4)), random.normal(size=(2, 3, 4))
    one_hot = np.eye(5)[ids]
    rows, saved = functions.embedding(ids, table)
    np.testing.assert_allclose(rows, one_hot @ table, atol=1e-15)
    d_table = np.einsum("btv,btm->vm", one_hot, d_x)
    np.testing.assert_allclose(functions.embedding_backward(d_x, saved), d_table, atol=1e-15)


# Training


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_matches_the_package(smoothing: float) -> None:
    random = np.random.default_rng(0)
    logits, target = random.normal(size=(2, 3, 7)), np.array([[4, 5, 0], [6, 0, 0]])
    loss, _ = training.smoothed_loss(logits, target, smoothing)
    theirs = smoothed_cross_entropy(torch.from_numpy(logits), torch.from_numpy(target), smoothing)
    assert loss == pytest.approx(float(theirs), abs=1e-12)


def test_adam_matches_torch_and_needs_bias_correction() -> None:
    random = np.random.default_rng(0)
    start = random.normal(size=(3, 4))
    theirs = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimiser = torch.optim.Adam([theirs], betas=(0.9, 0.98), eps=1e-9)
    ours, adam = {"weight": start.copy()}, Adam()
    uncorrected = start.copy()
    for step in range(1, 21):
        gradient, rate = random.normal(size=(3, 4)), training.learning_rate(step, 16, 10)
        adam.update(ours, {"weight": gradient}, rate)
        uncorrected -= rate * adam.mean["weight"] / (np.sqrt(adam.square["weight"]) + adam.epsilon)
        theirs.grad = torch.from_numpy(gradient)
        optimiser.param_groups[0]["lr"] = rate
        optimiser.step()
    np.testing.assert_allclose(ours["weight"], theirs.detach().numpy(), atol=1e-12, rtol=0)
    assert np.abs(uncorrected - ours["weight"]).max() > 1e-3


@pytest.mark.parametrize("step", [1, 10, 4_000, 100_000])
def test_warmup_matches_the_package(step: int) -> None:
    assert training.learning_rate(step, 512, 4_000) == pytest.approx(
        optimizer.learning_rate(step, TrainConfig(), 512), rel=1e-12
    )


def test_copy_task_targets_equal_their_sources() -> None:
    batch = copying.draw(200, np.random.default_rng(0))
    lengths = batch.source_allowed.sum(axis=1)
    assert set(lengths) == set(range(1, copying.LONGEST + 1))
    for row, length in enumerate(lengths):
        symbols = batch.source_ids[row, :length]
        assert batch.target_ids[row, : length + 1].tolist() == [copying.BOS, *symbols]
        assert batch.goal_ids[row, : length + 1].tolist() == [*symbols, copying.EOS]
        assert (batch.goal_ids[row, length + 1 :] == training.PAD).all()


def test_untrained_model_does_not_copy() -> None:
    config = Config(vocab_size=copying.VOCABULARY, num_layers=1, d_model=8, d_ff=8, num_heads=2)
    random = np.random.default_rng(0)
    assert copying.share_right(initialise(config, random), config, copying.draw(50, random)) < 0.2


# The derivation


PAGE = Path(__file__).parents[2] / "docs" / "derivation.md"


def test_the_derivation_names_every_function() -> None:
    """As `file.function`, the backward too."""
    page = PAGE.read_text(encoding="utf-8")
    for module in (functions, attention, transformer, training):
        name = module.__name__.rpartition(".")[2]
        for function, value in vars(module).items():
            if isinstance(value, FunctionType) and value.__module__ == module.__name__:
                assert f"`{name}.{function}`" in page, f"{name}.{function}"


def test_every_function_named_in_the_derivation_exists() -> None:
    named = re.findall(r"`(functions|attention|parameters|transformer|training|check)\.(\w+)`", PAGE.read_text("utf-8"))
    assert len(named) > 30
    for module, function in named:
        assert hasattr(import_module(f"dragoman.reference.{module}"), function), f"{module}.{function}"


@pytest.mark.slow
def test_figures_can_be_reproduced(tmp_path: Path) -> None:
    subprocess.run([sys.executable, PAGE.parent / "figures.py", tmp_path], check=True)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["positional-encodings.svg", "softmax-saturation.svg"]
    for name in names:
        drawn, kept = (ElementTree.parse(folder / name).getroot() for folder in (tmp_path, PAGE.parent / "images"))
        assert [element.tag for element in drawn.iter()] == [element.tag for element in kept.iter()]
        assert [element.text for element in drawn.iter()] == [element.text for element in kept.iter()]
