"""The label-smoothed loss against its definition."""

import pytest
import torch

from dragoman.model import loss as losses
from dragoman.model.loss import divergence, projected_cross_entropy, smoothed_cross_entropy
from dragoman.text.vocabulary import VOCABULARY

PAD = VOCABULARY.pad


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_loss_matches_its_definition_and_ignores_padding(smoothing: float) -> None:
    torch.manual_seed(0)
    logits, target = (
        torch.randn(2, 3, 7, dtype=torch.float64),
        torch.tensor([[4, 5, PAD], [6, PAD, PAD]]),
    )
    expected = torch.zeros((), dtype=torch.float64)
    for row, position in ((0, 0), (0, 1), (1, 0)):
        goal = torch.full((7,), smoothing / 7, dtype=torch.float64)
        goal[target[row, position]] += 1 - smoothing
        expected -= (goal * logits[row, position].log_softmax(-1)).sum()
    torch.testing.assert_close(smoothed_cross_entropy(logits, target, smoothing), expected)


def test_low_precision_logits_are_summed_in_float32() -> None:
    logits = torch.zeros(1, 1, 7, dtype=torch.bfloat16)
    assert smoothed_cross_entropy(logits, torch.tensor([[4]]), 0.1).dtype == torch.float32


@pytest.mark.parametrize("pad", [PAD, 1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("r_drop", [0.0, 1.0, 5.0])
def test_chunked_loss_matches_the_loss_over_all_logits(
    r_drop: float, bias: bool, pad: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss and its gradients, of one pass or two; the rows of a token's passes are adjacent."""
    for name in ("CHUNK", "CUDA_CHUNK"):
        monkeypatch.setattr(losses, name, 8)
    monkeypatch.setattr(losses, "CPU_ROWS", 3)
    device, dtype = ("cuda", torch.float32) if torch.cuda.is_available() else ("cpu", torch.float64)
    torch.manual_seed(0)
    passes = 2 if r_drop else 1
    target_N = torch.tensor([4, 5, pad, 6, 4, 3, pad, 6, 5], device=device)
    sizes = [(9, passes, 4), (7, 4), *([(7,)] if bias else [])]
    given = [torch.randn(size, device=device, dtype=dtype, requires_grad=True) for size in sizes]
    hidden_NPM, weight, bias_V = (*given, None)[:3]
    assert hidden_NPM is not None
    assert weight is not None

    logits_PNV = torch.nn.functional.linear(hidden_NPM.transpose(0, 1), weight, bias_V)
    plain = smoothed_cross_entropy(logits_PNV, target_N.expand(passes, -1), 0.1, pad) / passes
    if r_drop:
        plain = plain + r_drop * divergence(logits_PNV, (target_N != pad)[None])
    rows, targets = hidden_NPM.flatten(0, 1), target_N.repeat_interleave(passes)
    chunked = projected_cross_entropy(rows, weight, bias_V, targets, 0.1, r_drop, pad)
    torch.testing.assert_close(chunked, plain)
    for one, other in zip(torch.autograd.grad(chunked, given), torch.autograd.grad(plain, given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    if r_drop:
        other = projected_cross_entropy(rows, weight, bias_V, targets, 0.1, r_drop + 1, pad)
        assert other > chunked + 0.01, "the control: the passes differ"
