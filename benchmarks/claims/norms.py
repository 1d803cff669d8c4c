"""Batch norm against layer norm in the same small Transformer, on text.

Shapes: B sentences, T positions, M width.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.claims.training import BATCH, SMALL, Ids, batch_of, mean_loss, train
from dragoman.config import TextConfig, TransformerConfig
from dragoman.data.generated import generate
from dragoman.model.transformer import Transformer
from dragoman.text.tokenizer import Tokenizer
from dragoman.text.vocabulary import NUM_SPECIAL, VOCABULARY

PAD = VOCABULARY.pad


class BatchNorm(nn.BatchNorm1d):
    """Over all tokens of the batch, including padding, as an image's channels are normalised over its pixels."""

    def forward(self, x_BTM: Tensor) -> Tensor:
        return super().forward(x_BTM.flatten(0, 1)).view_as(x_BTM)


def with_batch_norm(model: Transformer) -> Transformer:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.LayerNorm):
                setattr(parent, name, BatchNorm(child.normalized_shape[0]))
    return model


def numbers(size: int) -> tuple[tuple[Tokenizer, Tokenizer], list[Ids], list[Ids]]:
    """numbers-de in pieces, one vocabulary per language so that English has its own embedding."""
    splits = generate("numbers-de", size)
    text = TextConfig(vocab_size=400, byte_fallback=False)
    source, target = (Tokenizer.train([pair[side] for pair in splits.train], text) for side in (0, 1))
    parts = [[(source.encode(s), target.encode(t)) for s, t in part] for part in (splits.train, splits.valid)]
    return (source, target), parts[0], parts[1]


def seen_ahead(model: nn.Module, pairs: Sequence[Ids]) -> float:
    """The change of the first position's logits when the last target token changes; 0 if the mask works."""
    source, fed, _ = batch_of(pairs)
    other = fed.clone()
    other[:, -1] = NUM_SPECIAL
    with torch.no_grad():
        before, after = (model(source, ids, source != PAD)[:, 0] for ids in (fed, other))
    return float((before - after).abs().max())


def norms(quick: bool) -> tuple[dict[str, Any], Transformer, Tokenizer, Tokenizer]:
    """Validation loss of each norm under several conditions; and the model with layer norm, with its tokenizers."""
    (source, target), pairs, valid = numbers(1_000 if quick else 20_000)
    valid = valid[: 64 if quick else 512]
    steps = 10 if quick else 600
    config = replace(SMALL, vocab_size=source.size, target_vocab_size=target.size, share_source_target=False)
    middle = float(np.median([len(t) for _, t in valid]))
    results: dict[str, Any] = {}
    models: dict[str, Transformer] = {}
    builders: dict[str, Callable[[TransformerConfig], Transformer]] = {
        "layer norm": Transformer,
        "batch norm": lambda config: with_batch_norm(Transformer(config)),
    }
    for name, build in builders.items():
        torch.manual_seed(0)
        model = models[name] = build(config)
        train(model, pairs, steps)
        results[name] = {
            "validation": mean_loss(model, valid),
            "short sentences": mean_loss(model, [pair for pair in valid if len(pair[1]) <= middle]),
            "long sentences": mean_loss(model, [pair for pair in valid if len(pair[1]) > middle]),
        }
        model.train()  # batch norm uses the statistics of the current batch; layer norm is unchanged
        results[name] |= {
            "statistics of 64 sentences": mean_loss(model, valid),
            "statistics of 1 sentence": mean_loss(model, valid, rows=1),
            "seen ahead in training": seen_ahead(model, valid[:BATCH]),
        }
        torch.manual_seed(0)
        small_batches = build(config)
        train(small_batches, pairs, steps, rows=2)
        results[name]["trained on batches of 2"] = mean_loss(small_batches, valid)
    return results, models["layer norm"], source, target
