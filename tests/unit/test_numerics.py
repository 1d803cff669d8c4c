"""Gradients against numerical derivatives in float64; padding, neighbours and batching do not change gradients."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from dragoman.config import TransformerConfig
from dragoman.model import attention
from dragoman.model.attention import attend, padding_mask
from dragoman.model.loss import smoothed_cross_entropy
from dragoman.model.transformer import Transformer
from dragoman.text.vocabulary import VOCABULARY

PAD = VOCABULARY.pad

# Derivatives against central differences. Each control holds something constant that is not.


def inputs(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=random, dtype=torch.float64).requires_grad_() for shape in shapes)


def is_derivative(function: Callable[..., Any], arguments: tuple[Tensor, ...]) -> bool:
    return gradcheck(function, arguments, raise_exception=False)


RAGGED = padding_mask(torch.tensor([[True] * 5, [True, True, False, False, False]]))
ONE_EMPTY = padding_mask(torch.tensor([[True] * 5, [False] * 5]))
MASKS = {"none": None, "ragged": RAGGED, "one empty": ONE_EMPTY}


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_gradients_of_attention(mask: str, causal: bool, need_weights: bool) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        out, weights = attend(q, k, v, MASKS[mask], causal=causal, need_weights=need_weights)
        return (out, weights) if need_weights else out

    assert is_derivative(function, inputs((2, 2, 5, 3), (2, 2, 5, 3), (2, 2, 5, 4)))


def test_gradients_of_attention_with_a_constant_denominator_are_detected() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        powers = (q @ k.mT / math.sqrt(3)).exp()
        return powers / powers.sum(dim=-1, keepdim=True).detach() @ v

    arguments = inputs((2, 2, 5, 3), (2, 2, 5, 3), (2, 2, 5, 4))
    torch.testing.assert_close(function(*arguments), attend(*arguments)[0])
    assert not is_derivative(function, arguments)


def test_gradients_of_layer_norm() -> None:
    def function(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        norm = nn.LayerNorm(4).double()
        return torch.func.functional_call(norm, {"weight": scale, "bias": shift}, (x,))

    assert is_derivative(function, inputs((2, 3, 4), (4,), (4,)))


@pytest.mark.parametrize("constant", ["mean", "deviation"])
def test_gradients_of_layer_norm_with_constant_statistics_are_detected(constant: str) -> None:
    def function(x: Tensor) -> Tensor:
        mean, deviation = x.mean(-1, keepdim=True), (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
        return (x - (mean.detach() if constant == "mean" else mean)) / (
            deviation.detach() if constant == "deviation" else deviation
        )

    (x,) = inputs((2, 3, 4))
    torch.testing.assert_close(function(x), nn.LayerNorm(4).double()(x))
    assert not is_derivative(function, (x,))


TARGET = torch.tensor([[4, 1, 2], [3, PAD, PAD]])


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_gradients_of_the_loss(smoothing: float) -> None:
    assert is_derivative(lambda logits: smoothed_cross_entropy(logits, TARGET, smoothing), inputs((2, 3, 5)))


def test_gradients_of_the_loss_with_a_constant_denominator_are_detected() -> None:
    def function(logits: Tensor) -> Tensor:
        goal = 0.9 * nn.functional.one_hot(TARGET, 5) + 0.1 / 5
        log_p = logits - logits.logsumexp(-1, keepdim=True).detach()
        return -(goal * log_p * TARGET.ne(PAD)[..., None]).sum()

    (logits,) = inputs((2, 3, 5))
    torch.testing.assert_close(function(logits), smoothed_cross_entropy(logits, TARGET, 0.1))
    assert not is_derivative(function, (logits,))


# What must change no gradient


def small_model(**options: Any) -> Transformer:
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "num_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 4}
    return Transformer(TransformerConfig(**{**sizes, **options})).double().eval()


def ragged_batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Source ids with their mask, target ids with their labels; lengths 6, 4, 1 and 5, 2, 3."""
    random = torch.Generator().manual_seed(1)
    source_ids = torch.randint(4, 30, (3, 6), generator=random)
    target_ids, goal_ids = (torch.randint(4, 30, (3, 5), generator=random) for _ in range(2))
    source_allowed = torch.arange(6) < torch.tensor([[6], [4], [1]])
    target_allowed = torch.arange(5) < torch.tensor([[5], [2], [3]])
    return (
        source_ids.where(source_allowed, PAD),
        source_allowed,
        target_ids.where(target_allowed, PAD),
        goal_ids.where(target_allowed, PAD),
    )


def gradients(
    model: Transformer, batch: tuple[Tensor, Tensor, Tensor, Tensor], need_weights: bool = False
) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits, and the gradient of the summed loss by every parameter."""
    source_ids, source_allowed, target_ids, goal_ids = batch
    if need_weights:
        logits, _ = model(source_ids, target_ids, source_allowed, need_weights=True)
    else:
        logits = model(source_ids, target_ids, source_allowed)
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(smoothed_cross_entropy(logits, goal_ids, 0.1), parameters)
    return logits.detach(), dict(zip(names, found, strict=True))


def largest_difference(these: dict[str, Tensor], those: dict[str, Tensor]) -> float:
    differences = [(these[name] - those[name]).abs().max() for name in these]
    return float(torch.stack(differences).max())  # keeps a NaN


@contextmanager
def without_padding_mask() -> Iterator[None]:
    """The control: attention without the padding mask."""
    masked = attention.attend

    def unmasked(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None = None, **options: Any) -> Any:
        return masked(q, k, v, None, **options)

    with patch.object(attention, "attend", unmasked):
        yield


NORMS_AND_KERNELS = [(norm, need_weights) for norm in ("post", "pre") for need_weights in (False, True)]


def huge_padding(norm: str, need_weights: bool) -> tuple[float, float]:
    """How much padding embeddings of 1e10 change the logits of real tokens and the gradients."""
    model, batch = small_model(norm=norm, share_source_target=False), ragged_batch()
    logits, before = gradients(model, batch, need_weights)
    model.source_embedding.weight.data[PAD] = 1e10
    huge_logits, after = gradients(model, batch, need_weights)
    real = batch[3] != PAD
    return float((huge_logits - logits)[real].abs().max()), largest_difference(before, after)


@pytest.mark.parametrize(("norm", "need_weights"), NORMS_AND_KERNELS)
def test_huge_embeddings_in_padding_change_nothing(norm: str, need_weights: bool) -> None:
    logits, changed = huge_padding(norm, need_weights)
    assert logits < 1e-10
    assert changed < 1e-10


def test_without_the_mask_huge_padding_changes_logits_and_gradients() -> None:
    with without_padding_mask():
        logits, changed = huge_padding("post", False)
    assert logits > 1e-3
    assert changed > 1e-3


def more_padding(norm: str, need_weights: bool) -> float:
    """How much three more padded positions at the end of each side, whatever stands there, change the gradients."""
    model, batch = small_model(norm=norm), ragged_batch()
    rows = torch.full((3, 3), 7)
    longer = (
        torch.cat((batch[0], rows), dim=1),
        torch.cat((batch[1], rows < 0), dim=1),
        torch.cat((batch[2], rows), dim=1),
        torch.cat((batch[3], torch.full_like(rows, PAD)), dim=1),
    )
    return largest_difference(gradients(model, batch, need_weights)[1], gradients(model, longer, need_weights)[1])


@pytest.mark.parametrize(("norm", "need_weights"), NORMS_AND_KERNELS)
def test_more_padding_changes_no_gradient(norm: str, need_weights: bool) -> None:
    assert more_padding(norm, need_weights) < 1e-10


def test_without_the_mask_more_padding_changes_gradients() -> None:
    with without_padding_mask():
        assert more_padding("post", False) > 1e-3


@pytest.mark.parametrize(("norm", "need_weights"), NORMS_AND_KERNELS)
def test_fully_padded_sentence_has_finite_gradients_and_none_in_its_source(norm: str, need_weights: bool) -> None:
    model = small_model(norm=norm, share_source_target=False)
    source_ids, source_allowed, target_ids, goal_ids = ragged_batch()
    source_ids[1], source_allowed[1] = 29, False
    assert not (source_ids[[0, 2]] == 29).any()
    logits, found = gradients(model, (source_ids, source_allowed, target_ids, goal_ids), need_weights)
    assert logits.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in found.values())
    assert (found["source_embedding.weight"][29] == 0).all()
    assert (found["target_embedding.weight"][target_ids[1, 0]] != 0).any(), "its target still learns"


# A batch is its sentences


def neighbour_influence(norm: str, need_weights: bool) -> tuple[float, float]:
    """How much another sentence 1, of other lengths, changes the logits of 0 and 2, and the gradients of their loss."""
    model = small_model(norm=norm)
    source_ids, source_allowed, target_ids, goal_ids = ragged_batch()
    goal_ids[1] = PAD  # its own loss does not count
    logits, before = gradients(model, (source_ids, source_allowed, target_ids, goal_ids), need_weights)
    source_ids, source_allowed, target_ids = source_ids.clone(), source_allowed.clone(), target_ids.clone()
    source_ids[1], source_allowed[1], target_ids[1] = 5, True, 6
    changed, after = gradients(model, (source_ids, source_allowed, target_ids, goal_ids), need_weights)
    assert (changed - logits)[1].abs().max() > 1e-6, "sentence 1 itself must change"
    return float((changed - logits)[[0, 2]].abs().max()), largest_difference(before, after)


@pytest.mark.parametrize(("norm", "need_weights"), NORMS_AND_KERNELS)
def test_sentence_does_not_change_other_sentences(norm: str, need_weights: bool) -> None:
    logits, changed = neighbour_influence(norm, need_weights)
    assert logits < 1e-12
    assert changed < 1e-10


def test_norm_over_the_batch_makes_sentences_change_each_other() -> None:
    def batch_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.var(0, correction=0) + norm.eps).sqrt() * norm.weight + norm.bias

    with patch.object(nn.LayerNorm, "forward", batch_norm):
        logits, changed = neighbour_influence("post", False)
    assert logits > 1e-3
    assert changed > 1e-3


@pytest.mark.parametrize(("norm", "need_weights"), NORMS_AND_KERNELS)
@pytest.mark.parametrize("together", [True, False])
def test_accumulated_gradients_match_one_large_batch(norm: str, need_weights: bool, together: bool) -> None:
    """Sums over batches divided by the tokens of all; the control divides each batch by its own tokens."""
    model, batch = small_model(norm=norm), ragged_batch()
    total = int((batch[3] != PAD).sum())
    expected = {name: each / total for name, each in gradients(model, batch, need_weights)[1].items()}
    accumulated = {name: torch.zeros_like(each) for name, each in expected.items()}
    for row, (source_length, target_length) in enumerate(((6, 5), (4, 2), (1, 3))):  # each without any padding
        widths = (source_length, source_length, target_length, target_length)
        source_ids, source_allowed, target_ids, goal_ids = (
            part[row : row + 1, :width] for part, width in zip(batch, widths, strict=True)
        )
        _, found = gradients(model, (source_ids, source_allowed, target_ids, goal_ids), need_weights)
        tokens = total if together else 3 * target_length
        accumulated = {name: each + found[name] / tokens for name, each in accumulated.items()}
    difference = largest_difference(expected, accumulated)
    assert difference < 1e-10 if together else difference > 1e-3
