"""The Transformer as an ONNX graph, in the order of `model/transformer.py`. Knows nothing of files.

Arguments and results that are strings are names of tensors. Shapes, as suffixes of names: those of
`model/attention.py` and `model/transformer.py`, and W hypotheses of a sentence.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.int8 import Array
from dragoman.interop.onnx_graph import FLOAT, Graph
from dragoman.model.attention import MultiHeadAttention
from dragoman.model.positions import rotation_at
from dragoman.model.transformer import (
    ACTIVATIONS,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    Residual,
    Stack,
    Transformer,
)

LOWEST = float(np.finfo(np.float32).min)


class Memory(NamedTuple):
    """Keys and values of one layer."""

    k_BHKD: str
    v_BHKE: str


class Decoded(NamedTuple):
    state_BTM: str
    target: list[Memory]  # with the new positions, per layer
    cross_BHQK: list[str]  # attention to the source, per layer


class _Places(NamedTuple):
    """The positions that a stack is given, and their rotations."""

    position_T: str
    cos_TD: str | None
    sin_TD: str | None


def encode(graph: Graph, model: Transformer, ids_BS: str, allowed_B11S: str | None, num_positions: int) -> str:
    """[B, S] ids -> [B, S, M]."""
    places = _places(graph, model.encoder, graph.ints(0), graph.size(ids_BS, 1), num_positions)
    x_BSM = _embed(graph, model.source_embedding, model.encoder, ids_BS, places, num_positions)
    for layer in model.encoder.layers:
        assert isinstance(layer, EncoderLayer)
        attention, residual = layer.self_attention, layer.self_attention_residual
        q_BHQD, memory = _queries_memory(graph, attention, _enter(graph, residual, x_BSM), places)
        out_BSM, _ = _attend(graph, attention, q_BHQD, memory, allowed_B11S)
        x_BSM = _leave(graph, residual, x_BSM, out_BSM)
        x_BSM = _feed_forward(graph, layer.feed_forward, layer.feed_forward_residual, x_BSM)
    return _finish(graph, model.encoder, x_BSM)


def source_memory(graph: Graph, model: Transformer, memory_BSM: str) -> list[Memory]:
    """Keys and values of the source, for every layer of the decoder."""
    found = []
    for layer in model.decoder.layers:
        assert isinstance(layer, DecoderLayer)
        attention = layer.cross_attention
        key, value = _project(graph, memory_BSM, attention.key, attention.value)
        found.append(Memory(_split(graph, key, attention.num_heads), _split(graph, value, attention.num_heads)))
    return found


def decode(
    graph: Graph,
    model: Transformer,
    ids_BT: str,
    past: Sequence[Memory],
    source: Sequence[Memory],
    allowed_B11S: str | None,
    num_positions: int,
    *,
    one_source: bool = False,
) -> Decoded:
    """[B, T] more target ids -> their states. `one_source`: all rows are hypotheses of one sentence."""
    known, new = graph.size(past[0].k_BHKD, 2), graph.size(ids_BT, 1)
    places = _places(graph, model.decoder, known, graph.add("Add", known, new), num_positions)
    allowed_QK = _look_ahead(graph, places.position_T, graph.add("Add", known, new))
    x_BTM = _embed(graph, model.target_embedding, model.decoder, ids_BT, places, num_positions)
    present, cross = [], []
    for layer, earlier, memory in zip(model.decoder.layers, past, source, strict=True):
        assert isinstance(layer, DecoderLayer)
        residual = layer.self_attention_residual
        q_BHQD, target = _queries_memory(graph, layer.self_attention, _enter(graph, residual, x_BTM), places)
        target = Memory(*(graph.add("Concat", *pair, axis=2) for pair in zip(earlier, target, strict=True)))
        present.append(target)
        out_BTM, _ = _attend(graph, layer.self_attention, q_BHQD, target, allowed_QK)
        x_BTM = _leave(graph, residual, x_BTM, out_BTM)

        # The hypotheses of a sentence share the source's keys and values: there, each is one more query.
        attention, residual = layer.cross_attention, layer.cross_attention_residual
        width = attention.output.out_features
        h_BQM = _enter(graph, residual, x_BTM)
        h_BQM = graph.reshape(h_BQM, 1, -1, width) if one_source else h_BQM
        (query_BQM,) = _project(graph, h_BQM, attention.query)
        out_BQM, weight_BHQK = _attend(
            graph, attention, _split(graph, query_BQM, attention.num_heads), memory, allowed_B11S
        )
        cross.append(weight_BHQK)
        out_BTM = graph.reshape(out_BQM, -1, 1, width) if one_source else out_BQM
        x_BTM = _leave(graph, residual, x_BTM, out_BTM)
        x_BTM = _feed_forward(graph, layer.feed_forward, layer.feed_forward_residual, x_BTM)
    return Decoded(_finish(graph, model.decoder, x_BTM), present, cross)


def project_to_vocabulary(graph: Graph, model: Transformer, state_BTM: str) -> str:
    """Logits, [B, T, V]."""
    return _linear(graph, state_BTM, model.output)


def padding_mask(graph: Graph, mask_BS: str) -> str:
    """1 for real tokens -> what is added to scores, [B, 1, 1, S]."""
    absent = graph.add("Sub", graph.constant(1.0), graph.add("Cast", mask_BS, to=FLOAT))
    return graph.add("Unsqueeze", graph.add("Mul", absent, graph.constant(LOWEST)), graph.ints(1, 2))


def _look_ahead(graph: Graph, position_Q: str, total: str) -> str:
    """What is added to the scores of Q queries and all keys: a query sees itself and what is before it."""
    position_K = _range(graph, graph.ints(0), total)
    later_QK = graph.add("Less", graph.add("Unsqueeze", position_Q, graph.ints(1)), position_K)
    return graph.add("Where", later_QK, graph.constant(LOWEST), graph.constant(0.0))


def _range(graph: Graph, first: str, end: str) -> str:
    scalars = [graph.add("Squeeze", value, graph.ints(0)) for value in (first, end)]
    return graph.add("Range", *scalars, graph.constant(1, np.int64))


# Positions and embeddings


def _places(graph: Graph, stack: Stack, first: str, end: str, num_positions: int) -> _Places:
    position_T = _range(graph, first, end)
    if not stack.rotary:
        return _Places(position_T, None, None)
    both = rotation_at(torch.arange(num_positions), stack.size.d_k).float().repeat_interleave(2, dim=-1).numpy()
    cos_TD, sin_TD = (graph.add("Gather", graph.constant(table), position_T) for table in both)
    return _Places(position_T, cos_TD, sin_TD)


def _rotate(graph: Graph, x_BHTD: str, places: _Places, d_k: int) -> str:
    """Each pair of dimensions (a, b) becomes (a cos - b sin, a sin + b cos)."""
    if places.cos_TD is None or places.sin_TD is None:
        return x_BHTD
    quarter_turn = np.zeros((d_k, d_k), np.float32)  # (a, b) -> (-b, a)
    even = np.arange(0, d_k, 2)
    quarter_turn[even + 1, even], quarter_turn[even, even + 1] = -1.0, 1.0
    turned_BHTD = graph.add("MatMul", x_BHTD, graph.constant(quarter_turn))
    return graph.add("Add", graph.add("Mul", x_BHTD, places.cos_TD), graph.add("Mul", turned_BHTD, places.sin_TD))


def _embed(graph: Graph, embedding: nn.Module, stack: Stack, ids_BT: str, places: _Places, num_positions: int) -> str:
    assert isinstance(embedding, nn.Embedding)  # only translation models are exported
    x_BTM = graph.look_up(_array(embedding.weight), ids_BT, math.sqrt(embedding.embedding_dim))
    vectors_PM = stack.positions.vectors(torch.arange(num_positions), torch.float32)
    if vectors_PM is not None:
        x_BTM = graph.add("Add", x_BTM, graph.add("Gather", graph.constant(_array(vectors_PM)), places.position_T))
    return x_BTM if stack.embedding_norm is None else _norm(graph, stack.embedding_norm, x_BTM)


# Layers


def _norm(graph: Graph, norm: nn.LayerNorm, x_BTM: str) -> str:
    weights = graph.constant(_array(norm.weight)), graph.constant(_array(norm.bias))
    return graph.add("LayerNormalization", x_BTM, *weights, axis=-1, epsilon=norm.eps)


def _enter(graph: Graph, residual: Residual, x_BTM: str) -> str:
    return _norm(graph, residual.layer_norm, x_BTM) if residual.pre_norm else x_BTM


def _leave(graph: Graph, residual: Residual, x_BTM: str, out_BTM: str) -> str:
    sum_BTM = graph.add("Add", x_BTM, out_BTM)
    return sum_BTM if residual.pre_norm else _norm(graph, residual.layer_norm, sum_BTM)


def _finish(graph: Graph, stack: Stack, x_BTM: str) -> str:
    return x_BTM if stack.final_norm is None else _norm(graph, stack.final_norm, x_BTM)


def _feed_forward(graph: Graph, layer: FeedForward, residual: Residual, x_BTM: str) -> str:
    h_BTM = _enter(graph, residual, x_BTM)
    inner = _linear(graph, h_BTM, layer.inner)
    name = next(name for name, function in ACTIVATIONS.items() if function is layer.activation)
    active = _activate(graph, name, inner)
    return _leave(graph, residual, x_BTM, _linear(graph, active, layer.outer, positive=name == "relu"))


def _activate(graph: Graph, name: str, x: str) -> str:
    if name == "relu":
        return graph.add("Relu", x)
    if name == "swish":
        return graph.add("Mul", x, graph.add("Sigmoid", x))
    erf = graph.add("Erf", graph.add("Div", x, graph.constant(math.sqrt(2.0))))
    half = graph.add("Mul", x, graph.constant(0.5))
    return graph.add("Mul", half, graph.add("Add", erf, graph.constant(1.0)))


def _project(graph: Graph, x_BTM: str, *layers: nn.Linear) -> list[str]:
    """Several projections of the same input, in one product."""
    weight = np.concatenate([_array(layer.weight) for layer in layers])
    biases = [
        np.zeros(layer.out_features, np.float32) if layer.bias is None else _array(layer.bias) for layer in layers
    ]
    product = graph.linear(x_BTM, weight, np.concatenate(biases))
    if len(layers) == 1:
        return [product]
    sizes = graph.ints(*(layer.out_features for layer in layers))
    return graph.add_all("Split", [product, sizes], len(layers), axis=-1)


def _queries_memory(graph: Graph, attention: MultiHeadAttention, x_BTM: str, places: _Places) -> tuple[str, Memory]:
    """Queries, and keys and values of the same positions."""
    heads, d_k = attention.num_heads, attention.query.out_features // attention.num_heads
    parts = _project(graph, x_BTM, attention.query, attention.key, attention.value)
    q, k, v = (_split(graph, part, heads) for part in parts)
    return _rotate(graph, q, places, d_k), Memory(_rotate(graph, k, places, d_k), v)


def _split(graph: Graph, x_BTM: str, heads: int) -> str:
    return graph.add("Transpose", graph.reshape(x_BTM, 0, 0, heads, -1), perm=[0, 2, 1, 3])


def _attend(
    graph: Graph, attention: MultiHeadAttention, q_BHQD: str, memory: Memory, added: str | None
) -> tuple[str, str]:
    """softmax(Q K^T / sqrt(d_k)) V through the output matrix, and the softmax."""
    d_k = attention.query.out_features // attention.num_heads
    scores = graph.add("MatMul", q_BHQD, graph.add("Transpose", memory.k_BHKD, perm=[0, 1, 3, 2]))
    scores = graph.add("Mul", scores, graph.constant(d_k**-0.5))
    weight_BHQK = graph.add("Softmax", scores if added is None else graph.add("Add", scores, added), axis=-1)
    heads_BQHE = graph.add("Transpose", graph.add("MatMul", weight_BHQK, memory.v_BHKE), perm=[0, 2, 1, 3])
    flat_BQM = graph.reshape(heads_BQHE, 0, 0, attention.output.in_features)
    return _linear(graph, flat_BQM, attention.output), weight_BHQK


def _linear(graph: Graph, x: str, layer: nn.Linear, *, positive: bool = False) -> str:
    return graph.linear(x, _array(layer.weight), None if layer.bias is None else _array(layer.bias), positive=positive)


def _array(tensor: Tensor) -> Array:
    return tensor.detach().float().numpy()
