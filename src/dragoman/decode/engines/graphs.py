"""The encoder and one decoder step of a Transformer as ONNX graphs, in float32 or int8. Runs nothing.

Embeddings are looked up outside. The self-attention of a step reads what earlier steps left in the caches and, apart
from that, its own new keys and values, which it returns: a cache is never copied. In int8, weights have a scale for
every output and activations one for every row, so a row's products do not depend on the other rows of the batch.

Shapes: B sentences, W hypotheses of each, S source positions, P entries of a cache, N rows, M width of a position,
H heads, D and E width of a head's keys and values, V vocabulary, C candidates.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from torch import Tensor, nn

from dragoman.config import StackSize
from dragoman.decode.quantized import quantize_rows
from dragoman.int8 import LEVELS
from dragoman.model.attention import MultiHeadAttention
from dragoman.model.transformer import DecoderLayer, EncoderLayer, Residual, Transformer

FUSED = "com.microsoft"  # the domain of ONNX Runtime's own operators
OPSET, IR_VERSION = 21, 10
ZERO = 128  # stands for 0 in the unsigned activations that every processor multiplies fast


class Matrix(NamedTuple):
    """The weights of one or several linear layers side by side: [out, in], and the bias if there is one."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, *linears: nn.Linear) -> "Matrix":
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        weight = torch.cat([linear.weight.detach() for linear in linears]).float()
        return cls(weight, torch.cat(biases).float() if biases else None)


class _Graph:
    """A graph under construction; names stand for its values."""

    def __init__(self, *, int8: bool) -> None:
        self._int8 = int8
        self._nodes: list[NodeProto] = []
        self._weights: list[TensorProto] = []
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []
        self._constants: dict[tuple[str, str], str] = {}
        self._zeros: dict[int, str] = {}

    def input(self, name: str, shape: Sequence[int | str], kind: int = TensorProto.FLOAT) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, value: str, shape: Sequence[int | str], kind: int = TensorProto.FLOAT) -> None:
        self._outputs.append(helper.make_tensor_value_info(name, kind, shape))
        self._nodes.append(helper.make_node("Identity", [value], [name]))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.ops(kind, *inputs, outputs=1, **attributes)[0]

    def ops(self, kind: str, *inputs: str, outputs: int, domain: str = "", **attributes: Any) -> list[str]:
        names = [f"{kind}_{len(self._nodes)}_{number}" for number in range(outputs)]
        self._nodes.append(helper.make_node(kind, inputs, names, domain=domain, **attributes))
        return names

    def weight(self, array: NDArray[Any]) -> str:
        name = f"weight_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def vector(self, parameter: Tensor) -> str:
        return self.weight(parameter.detach().float().numpy())

    def constant(self, value: Any, kind: type[np.generic] = np.float32) -> str:
        key = (repr(value), kind.__name__)
        if key not in self._constants:
            self._constants[key] = self.weight(np.array(value, dtype=kind))
        return self._constants[key]

    def integers(self, *values: int) -> str:
        return self.constant(list(values), np.int64)

    def serialized(self) -> bytes:
        graph = helper.make_graph(self._nodes, "dragoman", self._inputs, self._outputs, self._weights)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(FUSED, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION).SerializeToString()

    # Layers

    def quantized(self, x_NM: str, *, positive: bool = False) -> tuple[str, ...]:
        """What `product` takes: in int8, the rows, their scales, and what stands for zero."""
        if not self._int8:
            return (x_NM,)
        levels, zero = (2 * LEVELS + 1, 0) if positive else (LEVELS, ZERO)
        peak_N1 = self.op("ReduceMax", x_NM if positive else self.op("Abs", x_NM), self.integers(-1))
        # A row of zeros has the scale 0: whatever integers become of 0 / 0, the scale makes zeros of their products.
        scale_N1 = self.op("Mul", peak_N1, self.constant(1 / levels))
        scale_N = self.op("Squeeze", scale_N1, self.integers(1))
        if zero not in self._zeros:  # all matrices of a graph have the same number of rows
            self._zeros[zero] = self.op("Expand", self.constant(zero, np.uint8), self.op("Shape", scale_N))
        return (
            self.op("QuantizeLinear", x_NM, scale_N, self._zeros[zero], axis=0),
            scale_N1,
            self.constant(zero, np.uint8),
        )

    def product(self, rows: tuple[str, ...], weight_OM: Tensor) -> str:
        """x W^T."""
        if not self._int8:
            return self.op("MatMul", *rows, self.weight(weight_OM.T.numpy()))
        x8_NM, scale_N1, zero = rows
        weight8_OM, scale_O1 = quantize_rows(weight_OM)
        product_NO = self.op(
            "MatMulIntegerToFloat", x8_NM, self.weight(weight8_OM.T.numpy()),
            self.constant(1.0), self.weight(scale_O1[:, 0].numpy()), zero, domain=FUSED,
        )  # fmt: skip
        return self.op("Mul", product_NO, scale_N1)

    def linear(self, rows: tuple[str, ...], matrix: Matrix) -> str:
        out_NO = self.product(rows, matrix.weight)
        return out_NO if matrix.bias is None else self.op("Add", out_NO, self.weight(matrix.bias.numpy()))

    def flat(self, x: str, width: int) -> str:
        return self.op("Reshape", x, self.integers(-1, width))

    def heads(self, x: str, like: str, heads: int, width: int) -> str:
        """Split rows into heads: [B, H, T, width], with B and T from `like`."""
        leading = self.op("Shape", like, start=0, end=2)
        shape = self.op("Concat", leading, self.integers(heads, width), axis=0)
        return self.op("Transpose", self.op("Reshape", x, shape), perm=[0, 2, 1, 3])

    def joined(self, x_BHTE: str, width: int) -> str:
        """Put the heads side by side again: [B T, H E]."""
        return self.flat(self.op("Transpose", x_BHTE, perm=[0, 2, 1, 3]), width)

    def attend(self, q_BHTD: str, k_BHSD: str, v_BHSE: str, mask: str) -> str:
        scores = self.op("Add", self.op("FusedMatMul", q_BHTD, k_BHSD, transB=1, domain=FUSED), mask)
        return self.op("MatMul", self.op("Softmax", scores, axis=-1), v_BHSE)


class _Stream:
    """The values between sub-layers, with the norms in the order in which they are reached."""

    def __init__(self, graph: _Graph, x_NM: str, residuals: Sequence[Residual], final: nn.LayerNorm | None) -> None:
        norms = [residual.layer_norm for residual in residuals]
        self._graph, self._pre_norm = graph, final is not None
        self._norms: Iterator[nn.LayerNorm] = iter([*norms, final] if final is not None else norms)
        self._x_NM = x_NM
        self.h_NM = self._normalized(x_NM) if self._pre_norm else x_NM  # what the next sub-layer takes

    def add(self, rows: tuple[str, ...], matrix: Matrix) -> None:
        """Leave a sub-layer through its last matrix: add its output and normalize."""
        self._x_NM = self._graph.op("Add", self._graph.linear(rows, matrix), self._x_NM)
        self.h_NM = self._normalized(self._x_NM)
        if not self._pre_norm:
            self._x_NM = self.h_NM

    def _normalized(self, x_NM: str) -> str:
        """LayerNorm in single operators: the runtime's own, one number at a time, takes two to three times as long."""
        graph, norm = self._graph, next(self._norms)
        width, last = graph.constant(1 / norm.normalized_shape[0]), graph.integers(-1)
        centred_NM = graph.op("Sub", x_NM, graph.op("ReduceMean", x_NM, last))
        variance_N1 = graph.op("Mul", graph.op("ReduceSumSquare", centred_NM, last), width)
        deviation_N1 = graph.op("Sqrt", graph.op("Add", variance_N1, graph.constant(norm.eps)))
        scaled_NM = graph.op("Mul", graph.op("Div", centred_NM, deviation_N1), graph.vector(norm.weight))
        return graph.op("Add", scaled_NM, graph.vector(norm.bias))


def build_encoder(model: Transformer, *, int8: bool) -> bytes:
    """Embedded source tokens, end to end -> the keys and values of every decoder layer's attention over them.

    Only attention sees sentences: `token` is the row of every position, any row for padding, and `position` the place
    of every row among them.
    """
    graph, size = _Graph(int8=int8), model.config.encoder
    x_NM = graph.input("x", ["N", size.d_model])
    token_BS = graph.input("token", ["B", "S"], TensorProto.INT64)
    position_N = graph.input("position", ["N"], TensorProto.INT64)
    mask = graph.input("source_mask", ["B", 1, 1, "S"])
    layers: list[EncoderLayer] = list(model.encoder.layers)  # type: ignore[arg-type]
    residuals = [each for layer in layers for each in (layer.self_attention_residual, layer.feed_forward_residual)]
    stream = _Stream(graph, x_NM, residuals, model.encoder.final_norm)
    for layer in layers:
        attention = layer.self_attention
        q, k, v = _split_heads(graph, graph.quantized(stream.h_NM), attention, token_BS, token_BS, queries=True)
        out = graph.joined(graph.attend(q, k, v, mask), _width(attention))
        stream.add(graph.quantized(graph.op("Gather", out, position_N)), _output(attention))
        _feed_forward(graph, stream, layer)
    memory = graph.quantized(stream.h_NM)
    decoder_layers: list[DecoderLayer] = list(model.decoder.layers)  # type: ignore[arg-type]
    for number, decoder_layer in enumerate(decoder_layers):
        attention = decoder_layer.cross_attention
        parts = _split_heads(graph, memory, attention, token_BS, token_BS)
        for (name, width), part in zip(_cache_widths(model.config.decoder), parts, strict=True):
            graph.output(f"source_{name}_{number}", part, ["B", attention.num_heads, "S", width])
    return graph.serialized()


def build_step(model: Transformer, *, int8: bool) -> bytes:
    """Embedded newest ids -> the best next ids of every row, and the new keys and values of every layer."""
    graph, size = _Graph(int8=int8), model.config.decoder
    x_BWM = graph.input("x", ["B", "W", size.d_model])
    mask_BP = graph.input("mask", ["B", 1, "W", "P"])
    source_mask = graph.input("source_mask", ["B", 1, 1, "S"])
    count = graph.input("count", [1], TensorProto.INT64)
    layers: list[DecoderLayer] = list(model.decoder.layers)  # type: ignore[arg-type]
    residuals = [
        each
        for layer in layers
        for each in (layer.self_attention_residual, layer.cross_attention_residual, layer.feed_forward_residual)
    ]
    stream = _Stream(graph, graph.flat(x_BWM, size.d_model), residuals, model.decoder.final_norm)
    for number, layer in enumerate(layers):
        heads = layer.self_attention.num_heads
        past_k, past_v = (
            graph.input(f"{name}_{number}", ["B", heads, "P", width]) for name, width in _cache_widths(size)
        )
        attention = layer.self_attention
        q, k, v = _split_heads(graph, graph.quantized(stream.h_NM), attention, x_BWM, queries=True)
        out = graph.joined(_attend_to_past_and_self(graph, q, k, v, past_k, past_v, mask_BP), _width(attention))
        stream.add(graph.quantized(out), _output(attention))
        for (name, width), part in zip(_cache_widths(size), (k, v), strict=True):
            graph.output(f"new_{name}_{number}", part, ["B", heads, "W", width])

        source_k, source_v = (
            graph.input(f"source_{name}_{number}", ["B", heads, "S", width]) for name, width in _cache_widths(size)
        )
        attention = layer.cross_attention
        weight, bias = Matrix.of(attention.query)
        factor = _score_factor(attention)
        query = Matrix(weight * factor, None if bias is None else bias * factor)
        q = graph.heads(graph.linear(graph.quantized(stream.h_NM), query), x_BWM, heads, size.d_k)
        out = graph.joined(graph.attend(q, source_k, source_v, source_mask), _width(attention))
        stream.add(graph.quantized(out), _output(attention))
        _feed_forward(graph, stream, layer)
    logits_NV = graph.linear(graph.quantized(stream.h_NM), Matrix.of(model.output))
    value_NC, id_NC = graph.ops("TopK", graph.op("LogSoftmax", logits_NV, axis=-1), count, outputs=2, axis=-1)
    graph.output("values", value_NC, ["N", "C"])
    graph.output("ids", id_NC, ["N", "C"], TensorProto.INT64)
    return graph.serialized()


def build_product(weight_OM: Tensor) -> bytes:
    """x W^T in int8 alone, for positive x, to find out what a processor makes of the largest numbers."""
    graph = _Graph(int8=True)
    x_NM = graph.input("x", ["N", weight_OM.size(1)])
    graph.output("y", graph.product(graph.quantized(x_NM, positive=True), weight_OM), ["N", len(weight_OM)])
    return graph.serialized()


def _attend_to_past_and_self(
    graph: _Graph, q_BHWD: str, k_BHWD: str, v_BHWE: str, past_k_BHPD: str, past_v_BHPE: str, mask: str
) -> str:
    """Attention of every hypothesis to the entries of its own past, as the mask says, and to its newest position."""
    past_BHWP = graph.op("Add", graph.op("FusedMatMul", q_BHWD, past_k_BHPD, transB=1, domain=FUSED), mask)
    self_BHW1 = graph.op("ReduceSum", graph.op("Mul", q_BHWD, k_BHWD), graph.integers(-1))
    share = graph.op("Softmax", graph.op("Concat", past_BHWP, self_BHW1, axis=-1), axis=-1)
    last, end, axis = graph.integers(-1), graph.integers(np.iinfo(np.int64).max), graph.integers(-1)
    share_past = graph.op("Slice", share, graph.integers(0), last, axis)
    share_self = graph.op("Slice", share, last, end, axis)
    return graph.op("Add", graph.op("MatMul", share_past, past_v_BHPE), graph.op("Mul", share_self, v_BHWE))


def _split_heads(
    graph: _Graph,
    rows: tuple[str, ...],
    attention: MultiHeadAttention,
    like: str,
    token_BS: str = "",
    *,
    queries: bool = False,
) -> list[str]:
    """[queries,] keys and values of these rows, by one product; `token_BS` arranges them by sentence.

    Keys need no bias: it adds the same to all scores of a query. That of the values is in `_output`.
    """
    linears = [*([attention.query] if queries else []), attention.key, attention.value]
    widths = [linear.out_features for linear in linears]
    weight = Matrix.of(*linears).weight.clone()
    if queries:
        weight[: widths[0]] *= _score_factor(attention)
    out = graph.product(rows, weight)
    if token_BS:
        out = graph.op("Gather", out, token_BS)
    parts = graph.ops("Split", out, graph.integers(*widths), outputs=len(widths), axis=-1)
    if queries and attention.query.bias is not None:
        parts[0] = graph.op("Add", parts[0], graph.vector(attention.query.bias * _score_factor(attention)))
    return [
        graph.heads(part, like, attention.num_heads, width // attention.num_heads)
        for part, width in zip(parts, widths, strict=True)
    ]


def _score_factor(attention: MultiHeadAttention) -> float:
    """1 / sqrt(d_k), by which scores are multiplied, and here the queries."""
    return float((attention.query.out_features // attention.num_heads) ** -0.5)


def _feed_forward(graph: _Graph, stream: _Stream, layer: EncoderLayer | DecoderLayer) -> None:
    inner = graph.linear(graph.quantized(stream.h_NM), Matrix.of(layer.feed_forward.inner))
    activation = layer.feed_forward.activation
    active = _ACTIVATIONS[activation](graph, inner)
    rows = graph.quantized(active, positive=activation is nn.functional.relu)
    stream.add(rows, Matrix.of(layer.feed_forward.outer))


_ACTIVATIONS = {
    nn.functional.relu: lambda graph, x: graph.op("Relu", x),
    nn.functional.gelu: lambda graph, x: graph.op("Gelu", x),
    nn.functional.silu: lambda graph, x: graph.op("Mul", x, graph.op("Sigmoid", x)),
}


def _output(attention: MultiHeadAttention) -> Matrix:
    """The last matrix of attention. The shares of a query add up to 1, so the bias of the values can be added here."""
    matrix = Matrix.of(attention.output)
    if matrix.bias is None:
        return matrix
    return Matrix(matrix.weight, matrix.bias + matrix.weight @ attention.value.bias.detach().float())


def _width(attention: MultiHeadAttention) -> int:
    """Of all heads' values side by side."""
    return attention.output.in_features


def _cache_widths(size: StackSize) -> tuple[tuple[str, int], tuple[str, int]]:
    """The two parts of a cache, and their width in a head."""
    return ("key", size.d_k), ("value", size.d_v)
