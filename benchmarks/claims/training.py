"""A minimal training loop for a Transformer on pairs of ids, shared by the experiments.

Shapes: B sentences, S source positions, T target positions.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.config import TrainConfig, TransformerConfig
from dragoman.model.loss import smoothed_cross_entropy
from dragoman.text.vocabulary import VOCABULARY
from dragoman.training.optimizer import learning_rate

PAD, BOS, EOS = VOCABULARY.pad, VOCABULARY.bos, VOCABULARY.eos

Ids = tuple[list[int], list[int]]  # source and target, without BOS and EOS
BATCH = 64
SMALL = TransformerConfig(num_layers=2, d_model=64, d_ff=256, num_heads=4, dropout=0.0)
SCHEDULE = TrainConfig(learning_rate=2e-3, warmup_steps=100)


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


def batch_of(pairs: Sequence[Ids]) -> tuple[Tensor, Tensor, Tensor]:
    """The source, the decoder's input, and its expected output."""
    source = padded([[*source, EOS] for source, _ in pairs])
    return (
        source,
        padded([[BOS, *target] for _, target in pairs]),
        padded([[*target, EOS] for _, target in pairs]),
    )


def loss_of(model: nn.Module, pairs: Sequence[Ids]) -> Tensor:
    """Cross-entropy per target token."""
    source, fed, goal = batch_of(pairs)
    return smoothed_cross_entropy(model(source, fed, source != PAD), goal, 0.0) / (goal != PAD).sum()


def train(model: nn.Module, pairs: Sequence[Ids], steps: int, rows: int = BATCH) -> None:
    random = np.random.default_rng(0)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    model.train()
    for step in range(1, steps + 1):
        loss = loss_of(model, [pairs[index] for index in random.integers(len(pairs), size=rows)])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, SCHEDULE, SMALL.d_model)
        optimizer.step()
    model.eval()


@torch.no_grad()
def mean_loss(model: nn.Module, pairs: Sequence[Ids], rows: int = BATCH) -> float:
    """The mean over all target tokens, in batches of this many sentences."""
    batches = [pairs[start : start + rows] for start in range(0, len(pairs), rows)]
    tokens = [sum(len(target) + 1 for _, target in batch) for batch in batches]
    losses = [float(loss_of(model, batch)) for batch in batches]
    return float(np.average(losses, weights=tokens))


@torch.no_grad()
def exact_match(model: nn.Module, pairs: Sequence[Ids]) -> float:
    """Percentage of sentences with every token correct, by teacher forcing: the same sentences as in greedy search."""
    source, fed, goal = batch_of(pairs)
    right = (model(source, fed, source != PAD).argmax(-1) == goal) | (goal == PAD)
    return 100 * float(right.all(dim=1).float().mean())
