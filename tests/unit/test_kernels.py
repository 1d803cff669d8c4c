"""The Triton kernels against the plain formulas: on CUDA, or in Triton's interpreter on a CPU."""

import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
pytest.importorskip("triton", reason="Triton is not installed: the kernels were not tested")

from dragoman.config import TransformerConfig
from dragoman.data.packing import Shape, pack_sentences
from dragoman.model import kernels
from dragoman.model.loss import divergence
from dragoman.model.packed import PackedTransformer
from dragoman.model.transformer import Transformer

# Triton's interpreter turns arrays of one element into numbers, which NumPy will forbid one day
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SCALE = 0.4  # not what heads of 16 have


def starts_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths], device=DEVICE).cumsum(0).to(torch.int32)


def blocks_of(lengths: list[int], room: int = 16) -> Tensor:
    size = kernels.BLOCK
    places = [(row, number) for row, length in enumerate(lengths) for number in range(-(-length // size))]  # of all
    return torch.tensor(places + [(-1, 0)] * (room - len(places)), dtype=torch.int32, device=DEVICE)


def plain(q: Tensor, k: Tensor, v: Tensor, q_lengths: list[int], k_lengths: list[int], causal: bool) -> Tensor:
    sides = ((q, q_lengths), (k, k_lengths), (v, k_lengths))
    heads = []
    for one, two, three in zip(
        *(torch.split(part.transpose(0, 1), sizes, dim=1) for part, sizes in sides), strict=True
    ):
        heads.append(F.scaled_dot_product_attention(one, two, three, is_causal=causal, scale=SCALE))
    return torch.cat(heads, dim=1).transpose(0, 1)


@pytest.mark.parametrize(
    ("q_lengths", "k_lengths", "causal"),
    [
        ([5, 33, 1, 70, 20], [40, 3, 65, 9, 30], False),  # whole in a tile of 32 or of 64, or block by block
        ([5, 33, 1, 70], [5, 33, 1, 70], True),
        ([5, 33, 1, 70], [5, 33, 1, 70], False),
        ([32, 64, 65], [32, 64, 65], True),
        ([70, 40, 10], [0, 0, 10], False),  # as padding may be: nothing to look at
    ],
)
def test_attention_and_gradients_match_within_each_sentence(
    q_lengths: list[int], k_lengths: list[int], causal: bool
) -> None:
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(sum(lengths), 2, 16, device=DEVICE, requires_grad=True)
        for lengths in (q_lengths, k_lengths, k_lengths)
    )
    if q_lengths == k_lengths:
        qkv = torch.cat([part.flatten(1) for part in (q, k, v)], dim=1)
        out, _ = kernels.self_attention(qkv, blocks_of(q_lengths), starts_of(q_lengths), 2, SCALE, causal)
    else:
        kv = torch.cat([k.flatten(1), v.flatten(1)], dim=1)
        sides = (blocks_of(q_lengths), blocks_of(k_lengths), starts_of(q_lengths), starts_of(k_lengths))
        out, _ = kernels.cross_attention(q.flatten(1), kv, *sides, 2, SCALE)
    out = out.unflatten(1, (2, 16))
    expected = plain(q, k, v, q_lengths, k_lengths, causal)
    upstream = torch.randn_like(expected)
    tolerance = 1e-2 if DEVICE == "cuda" else 1e-5  # tf32 there
    torch.testing.assert_close(out, expected, atol=tolerance, rtol=0)
    found, right = (torch.autograd.grad(result, (q, k, v), upstream) for result in (out, expected))
    for one, two in zip(found, right, strict=True):
        torch.testing.assert_close(one, two, atol=tolerance, rtol=0)
    if q_lengths == k_lengths:
        other = plain(q, k, v, q_lengths, k_lengths, not causal)
    else:  # as if sentences looked at one another's source
        other = plain(q, k, v, q_lengths, k_lengths[::-1], causal)
    assert (out - other).abs().max() > 10 * tolerance, "the control"


def test_loss_and_its_in_place_gradient_match_torch() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(6, 5001, device=DEVICE), torch.tensor([4, 0, 77, 5000, 0, 9], device=DEVICE)
    copied = logits.clone().requires_grad_()
    expected = F.cross_entropy(copied, targets, ignore_index=0, label_smoothing=0.1, reduction="none")
    (gradient,) = torch.autograd.grad(expected.sum(), copied)
    losses = kernels.loss_and_gradient_(logits, targets, 0.1, 0)
    torch.testing.assert_close(losses, expected.detach(), atol=1e-4, rtol=0)
    torch.testing.assert_close(logits, gradient, atol=1e-6, rtol=0)


@pytest.mark.parametrize("vocabulary", [5001, 2048])
@pytest.mark.parametrize("scale", [1.0, 30.0])  # the second: as sure as a model can be
def test_r_drop_loss_of_two_passes_matches_the_formula(vocabulary: int, scale: float) -> None:
    torch.manual_seed(0)
    passes = scale * torch.randn(2, 4, vocabulary, device=DEVICE)
    passes[1, 2] = passes[0, 2]  # nothing apart
    targets = torch.tensor([4, 77, 2047, 0], device=DEVICE)

    def plainly(smoothing: float) -> tuple[Tensor, Tensor]:
        """Each token's loss; the gradient of them all."""
        logits = passes.clone().requires_grad_()
        losses = F.cross_entropy(
            logits.flatten(0, 1), targets.repeat(2), ignore_index=0, label_smoothing=smoothing, reduction="none"
        )
        apart = [divergence(logits[:, [token]], targets[None, [token]] != 0) for token in range(4)]
        each = losses.view(2, 4).mean(dim=0) + 5 * torch.stack(apart)
        return each.detach(), torch.autograd.grad(each.sum(), logits)[0]

    both = passes.transpose(0, 1).reshape(8, vocabulary).clone()  # a token's two passes side by side
    losses = kernels.two_losses_and_gradients_(both, targets.repeat_interleave(2), 0.1, 5.0, 0)
    expected, gradient = plainly(0.1)
    torch.testing.assert_close(losses, expected, atol=1e-4, rtol=1e-5)
    tolerance = 1e-6 * scale**2
    torch.testing.assert_close(both.view(4, 2, -1).transpose(0, 1), gradient, atol=tolerance, rtol=1e-4)
    if scale == 1.0:
        assert (plainly(0.0)[1] - gradient).abs().max(dim=-1).values[:, :3].min() > 10 * tolerance, "the control"


NORM = (torch.tensor([7, 8], device=DEVICE), 1)  # seeds, and which


def norm_inputs(tokens: int, width: int) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(tokens, width), (tokens, width), (width,), (width,)]
    return [torch.randn(shape, device=DEVICE, requires_grad=True) for shape in shapes]


def test_residual_norm_matches_torch() -> None:
    inputs = norm_inputs(9, 48)
    found = kernels.residual_norm(*inputs, *NORM, 0.0, 1e-5)[0]
    expected = F.layer_norm(inputs[0] + inputs[1], (48,), inputs[2], inputs[3], 1e-5)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    upstream = torch.randn_like(expected)
    pairs = zip(*(torch.autograd.grad(result, inputs, upstream) for result in (found, expected)), strict=True)
    for one, two in pairs:
        torch.testing.assert_close(one, two, atol=1e-4, rtol=0)


def test_residual_dropout_has_its_rate_and_the_same_mask_in_backward() -> None:
    inputs = norm_inputs(200, 64)
    y, total, *_ = kernels.residual_norm(*inputs, *NORM, 0.3, 1e-5)
    added = (total - inputs[0]).detach()
    kept = added.abs() > 1e-6
    torch.testing.assert_close(added, torch.where(kept, inputs[1] / 0.7, 0.0), atol=1e-5, rtol=0)
    assert abs(kept.float().mean().item() - 0.7) < 0.02
    assert kept.float().mean(dim=0).std() < 0.06, "no column is favoured"
    expected = F.layer_norm(inputs[0] + kept * inputs[1] / 0.7, (64,), inputs[2], inputs[3], 1e-5)
    upstream = torch.randn_like(expected)
    pairs = zip(*(torch.autograd.grad(result, inputs, upstream) for result in (y, expected)), strict=True)
    for one, two in pairs:
        torch.testing.assert_close(one, two, atol=1e-4, rtol=0)
    other = kernels.residual_norm(*inputs, NORM[0], 0, 0.3, 1e-5)[1] - inputs[0]
    assert ((other.abs() > 1e-6) != kept).float().mean() > 0.3, "another seed, another mask"


def test_masks_of_different_seeds_are_not_shifted_copies() -> None:
    """The control of the mask's hash: with the seed added to the position, these two would differ in one token."""
    tokens, width = 40, 64
    inputs = norm_inputs(tokens, width)
    shift = width * 0x9E3779B9 % 2**32  # what a hash linear in place and seed would take for one token further
    seeds = torch.tensor([11, (11 + shift) % 2**32], device=DEVICE)
    masks = [
        (kernels.residual_norm(*inputs, seeds, number, 0.5, 1e-5)[1] - inputs[0]).abs() > 1e-6 for number in (0, 1)
    ]
    assert ((masks[0][1:] == masks[1][:-1]).float().mean() - 0.5).abs() < 0.1


def test_fused_linear_relu_matches_torch() -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(shape, device=DEVICE, requires_grad=True) for shape in ((6, 8), (5, 8), (5,))]
    found, expected = kernels.linear_relu(*inputs), F.relu(F.linear(*inputs))
    torch.testing.assert_close(found, expected, atol=1e-2 if DEVICE == "cuda" else 1e-6, rtol=0)
    upstream = torch.randn_like(expected)
    pairs = zip(*(torch.autograd.grad(result, inputs, upstream) for result in (found, expected)), strict=True)
    for one, two in pairs:
        torch.testing.assert_close(one, two, atol=1e-2 if DEVICE == "cuda" else 1e-6, rtol=0)


def test_only_supported_models_fit_the_kernels() -> None:
    assert kernels.fits(TransformerConfig.base())
    assert not kernels.fits(TransformerConfig.base(attention_dropout=0.1))
    assert kernels.fits(TransformerConfig.base(d_k=8, d_v=48))
    assert kernels.fits(TransformerConfig.base(d_k=128))
    assert not kernels.fits(TransformerConfig.base(d_k=129))
    assert not kernels.fits(TransformerConfig.base(d_v=129))


@pytest.mark.parametrize(("d_k", "d_v", "width"), [(8, 8, 16), (16, 16, 16), (17, 8, 32), (8, 64, 64), (128, 65, 128)])
def test_head_width_is_rounded_up_to_a_kernel_width(d_k: int, d_v: int, width: int) -> None:
    assert kernels.width_for(d_k, d_v) == width


@pytest.mark.parametrize(
    "heads", [{}, {"d_k": 24}, {"d_v": 24}, {"d_k": 6, "d_v": 10}, {"d_k": 6, "positions": "rotary"}], ids=str
)
def test_model_with_kernels_matches_the_plain_model(heads: dict[str, Any]) -> None:
    """Heads of any width: the kernel's, narrower, of queries and keys wider than of values, and narrower."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"num_layers": 1, "d_model": 32, "num_heads": 2, "d_ff": 48, "dropout": 0.0, **heads}
    # a smooth activation: where tf32 moves a number across the kink of ReLU, a gradient is another altogether
    config = TransformerConfig.tiny(vocab_size=50, activation="gelu", **sizes)
    packed = PackedTransformer(Transformer(config).to(DEVICE), 40)
    upstream = torch.randn(22, 32, device=DEVICE)

    def results(shape: Shape | None) -> list[Tensor]:
        """The decoder's output and the gradients of all weights."""
        lines = [[4] * 3 + [5] * 2, list(range(4, 16))]
        batch = pack_sentences(lines, [lines[1][:8], lines[1]], shape).to(torch.device(DEVICE))
        hidden = packed(batch.source_ids_N, batch.target_input_N, batch.source, batch.target)[:22]
        return [hidden, *torch.autograd.grad((hidden * upstream).sum(), list(packed.parameters()))]

    shape = Shape(source_tokens=24, target_tokens=24, sentences=3, whole=kernels.LONGEST_WHOLE, block=kernels.BLOCK)
    tolerance = 1e-2 if DEVICE == "cuda" else 1e-5  # tf32 there
    # at least 1: the gradient of a bias of keys is nothing but rounding
    for found, right in zip(results(shape), results(None), strict=True):
        assert (found - right).norm() <= tolerance * max(1.0, right.norm())
