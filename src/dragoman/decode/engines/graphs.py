"""The encoder and one decoder step of a Transformer as ONNX graphs, in float32 or int8. Runs nothing.

Embeddings are looked up outside. The self-attention of a step reads what earlier steps left in the caches and, apart
from that, its own new keys and values, which it returns: a cache is never copied. In int8, weights have a scale for
every output and activations one for every row, so a row's products do not depend on the other rows of the batch.

Shapes: B sentences, W hypotheses of each, S source positions, P entries of a cache, N rows, M width of a position,
H heads, D and E width of a head's keys and values, V vocabulary, C candidates.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from dragoman.config import StackSize, TransformerConfig
from dragoman.int8 import LEVELS, SCALE, Array, expand, quantize_rows
from dragoman.weights import Weights

FUSED = "com.microsoft"  # the domain of ONNX Runtime's own operators
OPSET, IR_VERSION = 21, 10
STRIP = 32  # rows
EPSILON = 1e-5  # of a layer norm: PyTorch's default
ZERO = 128  # stands for 0 in the unsigned activations that every processor multiplies fast


class Graph(NamedTuple):
    """A serialized graph, and its large weights, which a session takes from memory: protobuf would copy them often."""

    content: bytes
    weights: dict[str, Array]


class Matrix(NamedTuple):
    """The weights of a linear layer, or of several side by side: [out, in], in int8 with a scale for every output."""

    weight: Array
    scale: Array | None = None


class _Graph:
    """A graph under construction; names stand for its values, and for the weights of the model."""

    def __init__(self, weights: Weights, *, int8: bool) -> None:
        self._model, self._int8 = weights, int8
        self._nodes: list[NodeProto] = []
        self._weights: list[TensorProto] = []
        self._in_memory: dict[str, Array] = {}
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

    def weight(self, array: Array) -> str:
        name = f"weight_{len(self._weights)}"
        if array.ndim < 2:
            self._weights.append(numpy_helper.from_array(array, name))
            return name
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        proto = TensorProto(name=name, data_type=kind, dims=array.shape, data_location=TensorProto.EXTERNAL)
        proto.external_data.add(key="location", value="memory")
        self._weights.append(proto)
        self._in_memory[name] = array
        return name

    def constant(self, value: Any, kind: type[np.generic] = np.float32) -> str:
        key = (repr(value), kind.__name__)
        if key not in self._constants:
            self._constants[key] = self.weight(np.array(value, dtype=kind))
        return self._constants[key]

    def integers(self, *values: int) -> str:
        return self.constant(list(values), np.int64)

    def serialized(self) -> Graph:
        graph = helper.make_graph(self._nodes, "dragoman", self._inputs, self._outputs, self._weights)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(FUSED, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        return Graph(model.SerializeToString(), self._in_memory)

    # The weights of the model

    def matrix(self, linear: str, factor: float = 1.0) -> Matrix:
        """The matrix of a linear layer times a factor. One that is stored in int8 is not rounded again."""
        name = f"{linear}.weight"
        if not self._int8:
            weight_OM = expand(self._model, name)
            return Matrix(weight_OM if factor == 1.0 else weight_OM * np.float32(factor))
        if name + SCALE in self._model:
            return Matrix(self._model[name], self._model[name + SCALE] * np.float32(factor))
        weight8_OM, scale_O1 = quantize_rows(self._model[name])
        return Matrix(weight8_OM, scale_O1[:, 0] * np.float32(factor))

    def bias(self, linear: str) -> Array | None:
        return self._model.get(f"{linear}.bias")

    def norm(self, name: str) -> tuple[Array, Array]:
        return self._model[f"{name}.weight"], self._model[f"{name}.bias"]

    def output_bias(self, attention: str) -> Array | None:
        """The bias at the end of attention. The shares of a query add up to 1, so that of the values is added here."""
        bias, value_bias = self.bias(f"{attention}.output"), self.bias(f"{attention}.value")
        if bias is None or value_bias is None:
            return bias
        return bias + expand(self._model, f"{attention}.output.weight") @ value_bias

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

    def product(self, rows: tuple[str, ...], matrix: Matrix) -> str:
        """x W^T."""
        if matrix.scale is None:
            return self.op("MatMul", *rows, self.weight(_transposed(matrix.weight)))
        x8_NM, scale_N1, zero = rows
        product_NO = self.op(
            "MatMulIntegerToFloat", x8_NM, self.weight(_transposed(matrix.weight)),
            self.constant(1.0), self.weight(matrix.scale), zero, domain=FUSED,
        )  # fmt: skip
        return self.op("Mul", product_NO, scale_N1)

    def linear(self, rows: tuple[str, ...], matrix: Matrix, bias: Array | None) -> str:
        out_NO = self.product(rows, matrix)
        return out_NO if bias is None else self.op("Add", out_NO, self.weight(bias))

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
    """The values between sub-layers, normalized by the norms of the stack in the order in which they are reached."""

    def __init__(
        self, graph: _Graph, x_NM: str, stack: str, sublayers: Sequence[str], config: TransformerConfig
    ) -> None:
        self._graph, self._pre_norm = graph, config.norm == "pre"
        norms = [f"{sublayer}_residual.layer_norm" for sublayer in sublayers]
        self._norms = iter([*norms, f"{stack}.final_norm"] if self._pre_norm else norms)
        self._x_NM = x_NM
        self.h_NM = self._normalized(x_NM) if self._pre_norm else x_NM  # what the next sub-layer takes

    def add(self, rows: tuple[str, ...], matrix: Matrix, bias: Array | None) -> None:
        """Leave a sub-layer through its last matrix: add its output and normalize."""
        self._x_NM = self._graph.op("Add", self._graph.linear(rows, matrix, bias), self._x_NM)
        self.h_NM = self._normalized(self._x_NM)
        if not self._pre_norm:
            self._x_NM = self.h_NM

    def _normalized(self, x_NM: str) -> str:
        """LayerNorm in single operators: the runtime's own, one number at a time, takes two to three times as long."""
        graph, norm = self._graph, next(self._norms)
        gain_M, bias_M = graph.norm(norm)
        width, last = graph.constant(1 / len(gain_M)), graph.integers(-1)
        centred_NM = graph.op("Sub", x_NM, graph.op("ReduceMean", x_NM, last))
        variance_N1 = graph.op("Mul", graph.op("ReduceSumSquare", centred_NM, last), width)
        deviation_N1 = graph.op("Sqrt", graph.op("Add", variance_N1, graph.constant(EPSILON)))
        scaled_NM = graph.op("Mul", graph.op("Div", centred_NM, deviation_N1), graph.weight(gain_M))
        return graph.op("Add", scaled_NM, graph.weight(bias_M))


def build_encoder(config: TransformerConfig, weights: Weights, *, int8: bool) -> Graph:
    """Embedded source tokens, end to end -> the keys and values of every decoder layer's attention over them.

    Only attention sees sentences: `token` is the row of every position, any row for padding, and `position` the place
    of every row among them.
    """
    graph, size = _Graph(weights, int8=int8), config.encoder
    x_NM = graph.input("x", ["N", size.d_model])
    token_BS = graph.input("token", ["B", "S"], TensorProto.INT64)
    position_N = graph.input("position", ["N"], TensorProto.INT64)
    mask = graph.input("source_mask", ["B", 1, 1, "S"])
    layers = _layers("encoder", size)
    sublayers = [f"{layer}.{part}" for layer in layers for part in ("self_attention", "feed_forward")]
    stream = _Stream(graph, x_NM, "encoder", sublayers, config)
    for layer in layers:
        attention = f"{layer}.self_attention"
        q, k, v = _split_heads(graph, graph.quantized(stream.h_NM), attention, size, token_BS, token_BS, queries=True)
        out = graph.joined(graph.attend(q, k, v, mask), size.num_heads * size.d_v)
        rows = graph.quantized(graph.op("Gather", out, position_N))
        stream.add(rows, graph.matrix(f"{attention}.output"), graph.output_bias(attention))
        _feed_forward(graph, stream, layer, config)
    memory = graph.quantized(stream.h_NM)
    size = config.decoder
    for number, layer in enumerate(_layers("decoder", size)):
        parts = _split_heads(graph, memory, f"{layer}.cross_attention", size, token_BS, token_BS)
        for (name, width), part in zip(_cache_widths(size), parts, strict=True):
            graph.output(f"source_{name}_{number}", part, ["B", size.num_heads, "S", width])
    return graph.serialized()


def build_step(config: TransformerConfig, weights: Weights, *, int8: bool) -> Graph:
    """Embedded newest ids -> the best next ids of every row, and the new keys and values of every layer."""
    graph, size = _Graph(weights, int8=int8), config.decoder
    heads, width_of_values = size.num_heads, size.num_heads * size.d_v
    x_BWM = graph.input("x", ["B", "W", size.d_model])
    mask_BP = graph.input("mask", ["B", 1, "W", "P"])
    source_mask = graph.input("source_mask", ["B", 1, 1, "S"])
    count = graph.input("count", [1], TensorProto.INT64)
    layers, parts = _layers("decoder", size), ("self_attention", "cross_attention", "feed_forward")
    sublayers = [f"{layer}.{part}" for layer in layers for part in parts]
    stream = _Stream(graph, graph.flat(x_BWM, size.d_model), "decoder", sublayers, config)
    for number, layer in enumerate(layers):
        past_k, past_v = (
            graph.input(f"{name}_{number}", ["B", heads, "P", width]) for name, width in _cache_widths(size)
        )
        attention = f"{layer}.self_attention"
        q, k, v = _split_heads(graph, graph.quantized(stream.h_NM), attention, size, x_BWM, queries=True)
        out = graph.joined(_attend_to_past_and_self(graph, q, k, v, past_k, past_v, mask_BP), width_of_values)
        stream.add(graph.quantized(out), graph.matrix(f"{attention}.output"), graph.output_bias(attention))
        for (name, width), part in zip(_cache_widths(size), (k, v), strict=True):
            graph.output(f"new_{name}_{number}", part, ["B", heads, "W", width])

        source_k, source_v = (
            graph.input(f"source_{name}_{number}", ["B", heads, "S", width]) for name, width in _cache_widths(size)
        )
        attention = f"{layer}.cross_attention"
        query = graph.matrix(f"{attention}.query", _score_factor(size))
        q_N = graph.linear(graph.quantized(stream.h_NM), query, _query_bias(graph, attention, size))
        q = graph.heads(q_N, x_BWM, heads, size.d_k)
        out = graph.joined(graph.attend(q, source_k, source_v, source_mask), width_of_values)
        stream.add(graph.quantized(out), graph.matrix(f"{attention}.output"), graph.output_bias(attention))
        _feed_forward(graph, stream, layer, config)
    target = "source_embedding" if config.share_source_target else "target_embedding"
    output = graph.matrix(target if config.share_target_output else "output")
    logits_NV = graph.linear(graph.quantized(stream.h_NM), output, graph.bias("output"))
    value_NC, id_NC = graph.ops("TopK", graph.op("LogSoftmax", logits_NV, axis=-1), count, outputs=2, axis=-1)
    graph.output("values", value_NC, ["N", "C"])
    graph.output("ids", id_NC, ["N", "C"], TensorProto.INT64)
    return graph.serialized()


def build_product(weight_OM: Array) -> Graph:
    """x W^T in int8 alone, for positive x, to find out what a processor makes of the largest numbers."""
    graph = _Graph({"linear.weight": weight_OM}, int8=True)
    x_NM = graph.input("x", ["N", weight_OM.shape[1]])
    rows = graph.quantized(x_NM, positive=True)
    graph.output("y", graph.product(rows, graph.matrix("linear")), ["N", len(weight_OM)])
    return graph.serialized()


def _transposed(weight_OM: Array) -> Array:
    """In strips that stay in the cache: twice as fast as NumPy's own."""
    weight_MO = np.empty(weight_OM.shape[::-1], weight_OM.dtype)
    for first in range(0, len(weight_OM), STRIP):
        weight_MO[:, first : first + STRIP] = weight_OM[first : first + STRIP].T
    return weight_MO


def _layers(stack: str, size: StackSize) -> list[str]:
    return [f"{stack}.layers.{number}" for number in range(size.num_layers)]


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
    attention: str,
    size: StackSize,
    like: str,
    token_BS: str = "",
    *,
    queries: bool = False,
) -> list[str]:
    """[queries,] keys and values of these rows, by one product; `token_BS` arranges them by sentence.

    Keys need no bias: it adds the same to all scores of a query. That of the values is in `output_bias`.
    """
    matrices = [graph.matrix(f"{attention}.query", _score_factor(size))] if queries else []
    matrices += [graph.matrix(f"{attention}.key"), graph.matrix(f"{attention}.value")]
    widths = [len(matrix.weight) for matrix in matrices]
    out = graph.product(rows, _side_by_side(matrices))
    if token_BS:
        out = graph.op("Gather", out, token_BS)
    parts = graph.ops("Split", out, graph.integers(*widths), outputs=len(widths), axis=-1)
    bias = _query_bias(graph, attention, size) if queries else None
    if bias is not None:
        parts[0] = graph.op("Add", parts[0], graph.weight(bias))
    return [
        graph.heads(part, like, size.num_heads, width // size.num_heads)
        for part, width in zip(parts, widths, strict=True)
    ]


def _side_by_side(matrices: Sequence[Matrix]) -> Matrix:
    scales = [matrix.scale for matrix in matrices if matrix.scale is not None]
    return Matrix(np.concatenate([matrix.weight for matrix in matrices]), np.concatenate(scales) if scales else None)


def _query_bias(graph: _Graph, attention: str, size: StackSize) -> Array | None:
    bias = graph.bias(f"{attention}.query")
    return None if bias is None else bias * np.float32(_score_factor(size))


def _score_factor(size: StackSize) -> float:
    """1 / sqrt(d_k), by which scores are multiplied, and here the queries."""
    return float(size.d_k**-0.5)


def _feed_forward(graph: _Graph, stream: _Stream, layer: str, config: TransformerConfig) -> None:
    inner, outer = f"{layer}.feed_forward.inner", f"{layer}.feed_forward.outer"
    inner_NF = graph.linear(graph.quantized(stream.h_NM), graph.matrix(inner), graph.bias(inner))
    rows = graph.quantized(_activate(graph, inner_NF, config.activation), positive=config.activation == "relu")
    stream.add(rows, graph.matrix(outer), graph.bias(outer))


def _activate(graph: _Graph, x: str, activation: str) -> str:
    if activation == "swish":
        return graph.op("Mul", x, graph.op("Sigmoid", x))
    return graph.op({"relu": "Relu", "gelu": "Gelu"}[activation], x)


def _cache_widths(size: StackSize) -> tuple[tuple[str, int], tuple[str, int]]:
    """The two parts of a cache, and their width in a head."""
    return ("key", size.d_k), ("value", size.d_v)
