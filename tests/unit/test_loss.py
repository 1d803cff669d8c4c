"""The label-smoothed loss against its definition."""

import pytest
import torch

from dragoman.text.tokenizer import PAD
from dragoman.train.loss import smoothed_cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_it_is_the_definition_and_padding_counts_nothing(smoothing: float) -> None:
    torch.manual_seed(0)
    logits, target = torch.randn(2, 3, 7, dtype=torch.float64), torch.tensor([[4, 5, PAD], [6, PAD, PAD]])
    expected = torch.zeros((), dtype=torch.float64)
    for row, position in ((0, 0), (0, 1), (1, 0)):
        goal = torch.full((7,), smoothing / 7, dtype=torch.float64)
        goal[target[row, position]] += 1 - smoothing
        expected -= (goal * logits[row, position].log_softmax(-1)).sum()
    torch.testing.assert_close(smoothed_cross_entropy(logits, target, smoothing), expected)


def test_low_precision_logits_are_summed_in_float32() -> None:
    logits = torch.zeros(1, 1, 7, dtype=torch.bfloat16)
    assert smoothed_cross_entropy(logits, torch.tensor([[4]]), 0.1).dtype == torch.float32
