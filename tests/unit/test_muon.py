"""Muon: matrices of the layers by their orthogonal momentum, as torch.optim.Muon does it; the rest by Adam."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dragoman.config import Config, TrainConfig, TransformerConfig
from dragoman.errors import ConfigError, ModelError
from dragoman.model.transformer import Transformer
from dragoman.training.loop import train
from dragoman.training.muon import Muon, orthogonal_update, orthogonalize
from dragoman.training.optimizer import build_optimizer
from tests.survival import SETTINGS, Corpus, write_corpus

CPU = torch.device("cpu")
SHAPES = ((16, 16), (24, 8), (8, 24), (16, 16))


def random_matrices(shapes: Sequence[tuple[int, int]] = SHAPES, seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("shape", [(12, 12), (20, 6), (6, 20)])
def test_singular_values_become_about_one_and_directions_stay(shape: tuple[int, int]) -> None:
    matrix = torch.stack(random_matrices([shape] * 3))
    left, before, right = torch.linalg.svd(matrix, full_matrices=False)
    found = orthogonalize(matrix)
    after = torch.linalg.svdvals(found)
    assert before.max() / before.min() > 2, "the control"
    assert after.min() > 0.5
    assert after.max() < 1.3
    assert (left.mT @ found @ right.mT).diagonal(dim1=-2, dim2=-1).min() > 0.5
    assert torch.allclose(found, orthogonalize(100 * matrix), atol=1e-4), "its size does not count"


def adam_of(parameters: Sequence[Tensor]) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, lr=0.0, fused=True)


def test_updates_are_those_of_pytorch() -> None:
    ours, theirs = ([nn.Parameter(matrix.clone()) for matrix in random_matrices()] for _ in range(2))
    bias = nn.Parameter(torch.zeros(4))
    optimizer = Muon(ours, adam_of([bias]), scale=1.0)
    peer = torch.optim.Muon(theirs, lr=0.1, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    for step in range(4):
        gradients = random_matrices(seed=10 + step)
        for parameter, other, gradient in zip(ours, theirs, gradients, strict=True):
            parameter.grad, other.grad = gradient.clone(), gradient.clone()
        bias.grad = torch.ones(4)
        optimizer.step()
        peer.step()  # type: ignore[no-untyped-call]
    for parameter, other, start in zip(ours, theirs, random_matrices(), strict=True):
        moved = (parameter - start).norm()
        assert (parameter - other).norm() < 0.02 * moved, "theirs is in bfloat16"
    assert torch.allclose(bias.detach(), torch.full((4,), -0.4), atol=1e-5), "Adam with the same learning rate"


def test_matrices_of_layers_are_muons_and_the_rest_is_adams() -> None:
    model = Transformer(TransformerConfig.tiny(vocab_size=50))
    model.get_parameter("encoder.layers.0.feed_forward.inner.weight").requires_grad_(False)
    settings = TrainConfig(optimizer="muon")
    optimizer = build_optimizer(model, settings, CPU)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    matrices, others = ([names[id(each)] for each in group["params"]] for group in optimizer.param_groups)
    assert "decoder.layers.0.cross_attention.key.weight" in matrices
    assert "source_embedding.weight" in others
    assert all(name.endswith("weight") and "norm" not in name for name in matrices)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {*matrices, *others} == trained
    assert len(matrices) + len(others) == len(trained) == len(names) - 1
    assert isinstance(build_optimizer(model, TrainConfig(), CPU), torch.optim.Adam), "the default"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_changes_nothing(value: float) -> None:
    matrices = [nn.Parameter(matrix) for matrix in random_matrices()]
    bias = nn.Parameter(torch.zeros(3))
    optimizer = Muon(matrices, adam_of([bias]), scale=1.0)

    def step(gradient: float, found_inf: float) -> list[Tensor]:
        for group in optimizer.param_groups:
            group["lr"] = 0.1
        for parameter, own in zip([*matrices, bias], [*random_matrices(seed=5), torch.ones(3)], strict=True):
            parameter.grad = own * gradient
        optimizer.found_inf = torch.tensor(found_inf)
        optimizer.step()
        state = [value for each in optimizer.state.values() for value in each.values()]
        return [value.detach().clone() for value in [*matrices, bias, *state]]

    before = step(1.0, 0.0)
    assert all(map(torch.equal, before, step(value, 1.0)))
    assert not any(torch.equal(old, new) for old, new in zip(before, step(1.0, 0.0), strict=True)), "the control"
    assert not all(torch.isfinite(each).all() for each in step(value, 0.0)), "the control"


def test_an_update_is_as_large_as_one_of_adam() -> None:
    for matrix in random_matrices([(64, 64), (256, 64), (64, 256)]):
        _, update = orthogonal_update([1e-6 * matrix], [torch.zeros_like(matrix)], None)
        assert update.square().mean().sqrt() == pytest.approx(0.2, rel=0.2)


# Runs


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def run(corpus: Corpus, directory: Path, *settings: str) -> bytes:
    config = Config.build("tiny", None, [*SETTINGS, "train.optimizer=muon", *settings], data=corpus.data)
    train(config, directory)
    return (directory / "weights.safetensors").read_bytes()


def test_a_resumed_run_is_bit_for_bit_the_same(corpus: Corpus, tmp_path: Path) -> None:
    settings = ("train.save_every=3", "train.average=1", "model.dropout=0.1")
    whole = run(corpus, tmp_path / "whole", *settings, "train.max_steps=6")
    run(corpus, tmp_path / "parts", *settings, "train.max_steps=3")
    assert run(corpus, tmp_path / "parts", *settings, "train.max_steps=6") == whole
    with pytest.raises(ModelError, match="optimizer was 'muon' when this run began and is 'adam' now"):
        run(corpus, tmp_path / "parts", *settings, "train.optimizer=adam")
    assert run(corpus, tmp_path / "slower", *settings, "train.max_steps=6", "train.muon_scale=1") != whole, (
        "the control"
    )


def test_sharded_matrices_are_refused() -> None:
    message = r"^train.optimizer: muon needs whole matrices, and train.parallel=fsdp divides them; use ddp or adam$"
    with pytest.raises(ConfigError, match=message):
        TrainConfig(optimizer="muon", parallel="fsdp")
