"""The roles of query, key and value: each is shifted in turn in a trained model.

Shapes: B sentences, S source positions, T target positions.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.claims.training import Ids, batch_of
from dragoman.model.attention import AttentionWeights, KeysValues
from dragoman.model.transformer import DecoderLayer, Transformer

PLACES = 3  # by how many to move
LENGTH = 8  # letters in the sentences used


@torch.no_grad()
def query_key_value(model: Transformer, valid: Sequence[Ids]) -> dict[str, Any]:
    """The decoder's one cross-attention on `reverse`, with values, keys, both or queries shifted by three places.

    For each: the share of positions with the same output as before and with the right output, how much of the weights
    moved, and the shares that attend to the letter to output or three places after it, and that output the letter three
    places before or after it.
    """
    source, fed, goal = batch_of([pair for pair in valid if len(pair[0]) == LENGTH])
    layer: DecoderLayer = model.decoder.layers[0]  # type: ignore[assignment]

    def look(keys: bool = False, values: bool = False, queries: bool = False) -> tuple[Tensor, Tensor]:
        cache = model.start(model.encode(source))
        attended = cache.layers[0].source
        assert attended is not None
        k_BHSD, v_BHSE = attended
        cache.layers[0].source = KeysValues(
            k_BHSD.roll(PLACES, dims=2) if keys else k_BHSD, v_BHSE.roll(PLACES, dims=2) if values else v_BHSE
        )
        weights = AttentionWeights()
        hook = layer.cross_attention.query.register_forward_hook(
            lambda _, __, q_BTM: q_BTM.roll(PLACES, dims=1) if queries else None
        )
        said_BT = model.decode(fed, cache, weights).argmax(-1)
        hook.remove()
        return said_BT, weights.cross[0].mean(dim=1)  # over heads

    said_before, weights_before = look()
    results = {}
    for name in ("nothing", "values", "keys", "keys, values", "queries"):
        said, weights = look(**{part: True for part in name.split(", ") if part != "nothing"})
        results[name] = {
            "word as before": share(said == said_before),
            "right word": share(said == goal),
            "weights moved": float((weights - weights_before).abs().sum(-1).mean() / 2),
            "looks at its letter": share(looks_at(weights)),
            "looks three behind": share(looks_at(weights.roll(-PLACES, dims=2))),
            "says three before": share(said[:, :-1] == source.roll(PLACES, dims=1)[:, :-1].flip(1)),
            "says three behind": share(said[:, :-1] == source.roll(-PLACES, dims=1)[:, :-1].flip(1)),
        }
    return results


def share(true: Tensor) -> float:
    return float(true.float().mean())


def looks_at(weights_BTS: Tensor) -> Tensor:
    """True where the largest weight is on the letter to output: reversed, with </s> last on both sides."""
    own_T = torch.arange(weights_BTS.size(1) - 1).flip(0)
    return weights_BTS[:, :-1].argmax(-1) == own_T
