"""Ways to encode a token's position: sinusoids, learned vectors, the raw index, nothing.

Shapes: B sentences, T positions, M width.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.claims.training import SMALL, Ids, exact_match, mean_loss, train
from dragoman.data.generated import SYMBOLS, generate
from dragoman.model.positions import Positions
from dragoman.model.transformer import Transformer
from dragoman.text.vocabulary import NUM_SPECIAL


class RawIndex(nn.Module):
    """The index itself, added to every dimension."""

    def forward(self, x_BTM: Tensor, start: int = 0) -> Tensor:
        return x_BTM + torch.arange(start, start + x_BTM.size(1))[None, :, None]


class OneRawIndex(nn.Module):
    """The index in the first dimension only: a layer norm cannot remove it as part of the mean."""

    def forward(self, x_BTM: Tensor, start: int = 0) -> Tensor:
        rank_T = torch.arange(start, start + x_BTM.size(1), dtype=x_BTM.dtype)
        return torch.cat((rank_T[None, :, None].expand(x_BTM.size(0), -1, 1), x_BTM[..., 1:]), dim=-1)


class CountedFrom(nn.Module):
    """The same positions, starting above 0: a sentence late in a long text."""

    def __init__(self, first: int, positions: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.positions = positions

    def forward(self, x_BTM: Tensor, start: int = 0) -> Tensor:
        return self.positions(x_BTM, self.first + start)


def letters(size: int) -> tuple[list[Ids], list[Ids]]:
    """`reverse` with letters as ids: training and validation pairs."""
    splits = generate("reverse", size)

    def ids(text: str) -> list[int]:
        return [NUM_SPECIAL + SYMBOLS.index(letter) for letter in text.split()]

    train_pairs, valid_pairs = (
        [(ids(source), ids(target)) for source, target in part] for part in (splits.train, splits.valid)
    )
    return train_pairs, valid_pairs


def positions(quick: bool) -> tuple[dict[str, Any], Transformer, list[Ids]]:
    """Exact match on `reverse` for each; and the model with sinusoids, with its validation pairs."""
    pairs, valid = letters(2_000 if quick else 20_000)
    config = replace(SMALL, vocab_size=NUM_SPECIAL + len(SYMBOLS), decoder_num_layers=1)
    kinds: dict[str, Callable[[], nn.Module]] = {
        "sinusoids": lambda: Positions("sinusoidal", config.d_model, 0),
        "learned": lambda: Positions("learned", config.d_model, 64),
        "raw index, every dimension": RawIndex,
        "raw index, one dimension": OneRawIndex,
        "sinusoids, from 100": lambda: CountedFrom(100, Positions("sinusoidal", config.d_model, 0)),
        "raw index, every dimension, from 100": lambda: CountedFrom(100, RawIndex()),
        "raw index, one dimension, from 100": lambda: CountedFrom(100, OneRawIndex()),
        "none": lambda: Positions("none", config.d_model, 0),
    }
    results: dict[str, Any] = {}
    models: dict[str, Transformer] = {}
    for name, kind in kinds.items():
        torch.manual_seed(0)
        model = models[name] = Transformer(config)
        model.encoder.positions, model.decoder.positions = kind(), kind()  # type: ignore[assignment]
        train(model, pairs, 10 if quick else 600)
        results[name] = {"exact match": exact_match(model, valid), "loss": mean_loss(model, valid)}
    return results, models["sinusoids"], valid
