"""attend() and MultiHeadAttention: the formula, the masks, the fused kernel."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.model.attention import MultiHeadAttention, attend, look_ahead_mask, padding_mask


def queries_keys_values(seed: int = 0, num_queries: int = 5, num_keys: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    shapes = ((2, 3, num_queries, 8), (2, 3, num_keys, 8), (2, 3, num_keys, 6))
    q, k, v = (torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes)
    return q, k, v


def some_mask() -> Tensor:
    allowed_BK = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    return padding_mask(allowed_BK)


def test_attention_matches_the_formula_of_the_paper() -> None:
    q, k, v = queries_keys_values()
    expected = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(8), dim=-1) @ v
    out, weights = attend(q, k, v, need_weights=True)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)
    assert weights is not None
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 3, 5, dtype=torch.float64))


def test_attention_without_the_scale_differs() -> None:
    q, k, v = queries_keys_values()
    out, _ = attend(q, k, v, need_weights=True)
    unscaled = torch.softmax(q @ k.mT, dim=-1) @ v
    assert (out - unscaled).abs().max() > 1e-3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("num_queries", [1, 5, 7])
def test_fused_and_plain_agree(causal: bool, masked: bool, num_queries: int) -> None:
    q, k, v = queries_keys_values(num_queries=num_queries)
    allowed = some_mask() if masked else None
    fused, nothing = attend(q, k, v, allowed, causal=causal)
    plain, weights = attend(q, k, v, allowed, causal=causal, need_weights=True)
    assert nothing is None
    assert weights is not None
    torch.testing.assert_close(fused, plain, atol=1e-12, rtol=0)


def test_gradients_of_fused_and_plain_agree_even_where_nothing_is_allowed() -> None:
    gradients = []
    for need_weights in (False, True):
        q, k, v = (tensor.requires_grad_() for tensor in queries_keys_values())
        allowed = some_mask().clone()
        allowed[1] = False  # the second sentence is all padding
        out, _ = attend(q, k, v, allowed, need_weights=need_weights)
        assert out.isfinite().all()
        assert (out[1] == 0).all()
        gradients.append(torch.autograd.grad(out.square().sum(), (q, k, v)))
    for fused, plain in zip(*gradients, strict=True):
        assert plain.isfinite().all()
        torch.testing.assert_close(fused, plain, atol=1e-12, rtol=0)


def test_masked_positions_have_no_weight_and_the_rest_sum_to_one() -> None:
    q, k, v = queries_keys_values()
    _, weights = attend(q, k, v, some_mask(), need_weights=True)
    assert weights is not None
    assert (weights[1, ..., 4:] == 0).all()
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 3, 5, dtype=torch.float64))


def test_masked_keys_and_values_do_not_change_the_output() -> None:
    q, k, v = queries_keys_values()
    out, _ = attend(q, k, v, some_mask())
    poisoned_k, poisoned_v = k.clone(), v.clone()
    poisoned_k[1, :, 4:], poisoned_v[1, :, 4:] = 1e10, 1e10
    same, _ = attend(q, poisoned_k, poisoned_v, some_mask())
    torch.testing.assert_close(out, same, atol=0, rtol=0)
    without_mask, _ = attend(q, poisoned_k, poisoned_v)  # the control
    assert (without_mask - out).abs().max() > 1.0


def test_look_ahead_mask_allows_every_earlier_position() -> None:
    expected = [[True, False, False], [True, True, False], [True, True, True]]
    assert look_ahead_mask(3, 3).tolist() == expected
    assert look_ahead_mask(2, 3).tolist() == expected[1:]  # with a cache, queries are the last keys
    assert look_ahead_mask(1, 3).tolist() == expected[2:]


def test_returned_weights_are_before_dropout() -> None:
    q, k, v = queries_keys_values()
    _, weights = attend(q, k, v, need_weights=True)
    out, dropped = attend(q, k, v, dropout=0.5, need_weights=True)
    clean, _ = attend(q, k, v, need_weights=True)
    torch.testing.assert_close(weights, dropped)
    assert (out - clean).abs().max() > 1e-3


@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_dropout_preserves_the_mean_of_outputs_and_gradients(causal: bool, masked: bool, need_weights: bool) -> None:
    """On CUDA, where there is one, in the precision of training: there PyTorch's own kernel makes the draws."""
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 2, 11, 16, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    towards = torch.randn(3, 2, 11, 16, device=device, dtype=dtype)
    allowed = None
    if masked:
        allowed = padding_mask(torch.arange(11, device=device) < torch.tensor([[11], [7], [4]], device=device))

    def outcome(dropout: float) -> Tensor:
        heads, _ = attend(q, k, v, allowed, causal=causal, dropout=dropout, need_weights=need_weights)
        return torch.cat(
            [heads.flatten(), *(g.flatten() for g in torch.autograd.grad(heads, (q, k, v), towards))]
        ).float()

    expected, draws = outcome(0.0), torch.stack([outcome(0.2) for _ in range(400)])
    assert (draws.mean(dim=0) - expected).norm() < 0.06 * expected.norm()
    assert (draws[0] - expected).norm() > 0.2 * expected.norm(), "the control: one draw is not the mean"


def test_bfloat16_attention_weights_are_float32() -> None:
    q, k, v = (tensor.bfloat16() for tensor in queries_keys_values())
    _, weights = attend(q, k, v, need_weights=True)
    assert weights is not None
    assert weights.dtype == torch.float32


def test_multi_head_attention_matches_separate_heads() -> None:
    torch.manual_seed(0)
    attention = MultiHeadAttention(12, 3, d_k=5, d_v=7, d_memory=10).double()
    x, memory = torch.randn(2, 4, 12, dtype=torch.float64), torch.randn(2, 6, 10, dtype=torch.float64)
    out, weights = attention(x, attention.keys_values(memory), need_weights=True)
    heads = []
    for head in range(3):
        keys, values = slice(5 * head, 5 * head + 5), slice(7 * head, 7 * head + 7)
        q = F.linear(x, attention.query.weight[keys], attention.query.bias[keys])
        k = F.linear(memory, attention.key.weight[keys], attention.key.bias[keys])
        v = F.linear(memory, attention.value.weight[values], attention.value.bias[values])
        mine = torch.softmax(q @ k.mT / math.sqrt(5), dim=-1)
        torch.testing.assert_close(weights[:, head], mine)
        heads.append(mine @ v)
    expected = F.linear(torch.cat(heads, dim=-1), attention.output.weight, attention.output.bias)
    torch.testing.assert_close(out, expected)


def test_cudnn_attention_is_switched_off() -> None:
    """It would plan anew for every shape; tests/gpu shows that nothing runs through it."""
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
