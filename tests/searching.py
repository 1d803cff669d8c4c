"""Small models with random weights, sentences for them, and what two searches must agree on."""

import random
from typing import Any

import pytest
import torch

from dragoman.config import TransformerConfig
from dragoman.decode.search import Hypothesis
from dragoman.model.transformer import Transformer

SPECIAL: dict[str, Any] = {"start": 2, "end": 3, "forbidden": (0, 1, 2)}


def random_model(seed: int, end_bias: float = 3.0, **settings: Any) -> Transformer:
    """A small model with random weights that often ends a sentence."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 90, "num_layers": 1, "decoder_num_layers": 2, "d_model": 32, "d_ff": 48, "num_heads": 2}
    model = Transformer(TransformerConfig(**{**sizes, "dropout": 0.0, "output_bias": True, **settings})).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
        model.output.bias[3] += end_bias
    return model


def make_jobs(seed: int, count: int, vocabulary: int = 90) -> tuple[list[list[int]], list[int]]:
    """Sources and limits, among them the shortest."""
    chance = random.Random(seed)
    sources = [[chance.randrange(4, vocabulary) for _ in range(chance.randrange(8))] + [3] for _ in range(count)]
    return sources, [0, 1, *(chance.randrange(2, 9) for _ in range(count - 2))]


def assert_equal(plain: list[list[Hypothesis]], fast: list[list[Hypothesis]]) -> None:
    for one, other in zip(plain, fast, strict=True):
        assert [(each.ids, each.finished) for each in other] == [(each.ids, each.finished) for each in one]
        for expected, given in zip(one, other, strict=True):
            assert given.score == pytest.approx(expected.score, abs=1e-4)
            assert given.normalized_score == pytest.approx(expected.normalized_score, abs=1e-4)
