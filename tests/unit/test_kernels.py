"""The Triton kernels against the plain formulas: on CUDA, or in Triton's interpreter where only the CPU is there."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
pytest.importorskip("triton", reason="Triton is not installed: the kernels were not tested")

from dragoman.config import TransformerConfig
from dragoman.model import kernels

# Triton's interpreter turns arrays of one element into numbers, which NumPy will forbid one day
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def starts_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths], device=DEVICE).cumsum(0).to(torch.int32)


def blocks_of(lengths: list[int], room: int = 16) -> Tensor:
    size = kernels.BLOCK
    places = [(row, number) for row, length in enumerate(lengths) for number in range(-(-length // size))]
    return torch.tensor(places + [(-1, 0)] * (room - len(places)), dtype=torch.int32, device=DEVICE)


def plain(q: Tensor, k: Tensor, v: Tensor, q_lengths: list[int], k_lengths: list[int], causal: bool) -> Tensor:
    sides = ((q, q_lengths), (k, k_lengths), (v, k_lengths))
    heads = []
    for one, two, three in zip(
        *(torch.split(part.transpose(0, 1), sizes, dim=1) for part, sizes in sides), strict=True
    ):
        heads.append(F.scaled_dot_product_attention(one, two, three, is_causal=causal))
    return torch.cat(heads, dim=1).transpose(0, 1)


@pytest.mark.parametrize(
    ("q_lengths", "k_lengths", "causal"),
    [([5, 33, 1, 70], [40, 3, 65, 9], False), ([5, 33, 1, 70], [5, 33, 1, 70], True), ([32, 64], [32, 64], True)],
)
def test_attention_and_its_gradients_within_each_sentence(
    q_lengths: list[int], k_lengths: list[int], causal: bool
) -> None:
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(sum(lengths), 2, 16, device=DEVICE, requires_grad=True)
        for lengths in (q_lengths, k_lengths, k_lengths)
    )
    sides = (blocks_of(q_lengths), blocks_of(k_lengths), starts_of(q_lengths), starts_of(k_lengths))
    out, _ = kernels.packed_attention(q, k, v, *sides, causal)
    expected = plain(q, k, v, q_lengths, k_lengths, causal)
    upstream = torch.randn_like(expected)
    tolerance = 1e-2 if DEVICE == "cuda" else 1e-5  # tf32 there
    torch.testing.assert_close(out, expected, atol=tolerance, rtol=0)
    found, right = (torch.autograd.grad(result, (q, k, v), upstream) for result in (out, expected))
    for one, two in zip(found, right, strict=True):
        torch.testing.assert_close(one, two, atol=tolerance, rtol=0)
    other = plain(q, k, v, q_lengths, k_lengths, not causal) if q_lengths == k_lengths else out + 1
    assert (out - other).abs().max() > 10 * tolerance, "the control"


def test_the_loss_and_its_gradient_in_place_of_the_logits() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(6, 5001, device=DEVICE), torch.tensor([4, 0, 77, 5000, 0, 9], device=DEVICE)
    copied = logits.clone().requires_grad_()
    expected = F.cross_entropy(copied, targets, ignore_index=0, label_smoothing=0.1, reduction="none")
    (gradient,) = torch.autograd.grad(expected.sum(), copied)
    losses = kernels.loss_and_gradient_(logits, targets, 0.1, 0)
    torch.testing.assert_close(losses, expected.detach(), atol=1e-4, rtol=0)
    torch.testing.assert_close(logits, gradient, atol=1e-6, rtol=0)


def test_which_models_fit() -> None:
    assert kernels.fits(TransformerConfig.base())
    assert not kernels.fits(TransformerConfig.base(attention_dropout=0.1))
    assert not kernels.fits(TransformerConfig.base(d_k=48, d_v=48))
