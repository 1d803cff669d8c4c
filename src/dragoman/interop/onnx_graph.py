"""Builds ONNX graphs: constants, matrix products in float32 or int8, files. Knows nothing of Transformers.

Weights are float32, or unsigned bytes around 128 with a scale for every output. Bytes are multiplied as they are
(int8), or restored to float32 when the graph is loaded. In int8, activations have a scale for every row, so that a
row's products do not depend on the others. Unsigned, because products of signed and unsigned bytes saturate on x86
processors without VNNI.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from dragoman.int8 import LEVELS, Array, quantize_rows

OPSET, IR_VERSION = 17, 8  # old enough for every runtime in use
ZERO = 128  # stands for 0 among unsigned bytes
FLOAT, INT32, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL
ALIGNMENT = 64  # bytes

Dims = Sequence[int | str]
Products = Literal["float32", "int8", "restored"]  # restored: stored as bytes, multiplied in float32


class WeightFile:
    """Weights that several graphs share, in one file beside them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.content = bytearray()
        self._places: dict[bytes, tuple[int, int]] = {}

    def place(self, array: Array) -> tuple[int, int]:
        """Where the array's bytes begin, and their number; equal arrays are stored once."""
        raw = array.tobytes()
        key = _digest(raw)
        if key not in self._places:
            self.content.extend(bytes(-len(self.content) % ALIGNMENT))
            self._places[key] = len(self.content), len(raw)
            self.content.extend(raw)
        return self._places[key]


def _digest(raw: bytes) -> bytes:
    return hashlib.sha256(raw).digest()


class Graph:
    """A graph under construction. Methods that add a node return the name of its result."""

    def __init__(self, name: str, products: Products, weights: WeightFile | None = None) -> None:
        """Without `weights`, they are part of the graph's own file."""
        self._name, self._products, self._weights = name, products, weights
        self._nodes: list[NodeProto] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], TensorProto] = {}
        self._count = 0

    def input(self, name: str, kind: int, dims: Dims) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, kind, list(dims)))
        return name

    def output(self, name: str, value: str, kind: int, dims: Dims) -> None:
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, kind, list(dims)))

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """A tensor of the file; equal ones are stored once."""
        array = np.asarray(value, dtype, order="C")
        key = (array.dtype.name, array.shape, _digest(array.tobytes()))
        if key not in self._constants:
            self._constants[key] = self._stored(array, f"constant_{len(self._constants)}")
        return self._constants[key].name

    def _stored(self, array: Array, name: str) -> TensorProto:
        if self._weights is None or array.nbytes < 1024:
            return numpy_helper.from_array(array, name)
        offset, length = self._weights.place(array)
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor = TensorProto(name=name, data_type=kind, dims=array.shape, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", self._weights.name), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    def ints(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node with one result."""
        return self.add_all(op, inputs, 1, **attributes)[0]

    def add_all(self, op: str, inputs: Sequence[str], results: int, **attributes: Any) -> list[str]:
        names = []
        for _ in range(results):
            self._count += 1
            names.append(f"{op}_{self._count}")
        self._nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names

    def choose(self, condition: str, then: "Branch", otherwise: "Branch") -> list[str]:
        """The results of one of two branches."""
        graphs = {"then_branch": then.to_proto("then"), "else_branch": otherwise.to_proto("else")}
        return self.add_all("If", [condition], len(then.results), **graphs)

    @contextmanager
    def branch(self) -> Iterator["Branch"]:
        """Inside the block, nodes go to a branch for `choose`; they may use what the graph already has."""
        outside, self._nodes = self._nodes, []
        branch = Branch(self._nodes)
        try:
            yield branch
        finally:
            self._nodes = outside

    # Weights

    def linear(self, x: str, weight_OI: Array, bias_O: Array | None, *, positive: bool = False) -> str:
        """x W^T + b. `positive`: no input is negative, so that in int8 it has twice as many levels."""
        if self._products == "int8":
            value = self._int8_product(x, weight_OI, positive)
        else:
            value = self.add("MatMul", x, self.add("Transpose", self._matrix(weight_OI), perm=[1, 0]))
        return value if bias_O is None or not bias_O.any() else self.add("Add", value, self.constant(bias_O))

    def _int8_product(self, x: str, weight_OI: Array, positive: bool) -> str:
        levels, zero = (2 * LEVELS + 1, 0) if positive else (LEVELS, ZERO)
        rows, scales = self._byte_rows(weight_OI)
        largest = self.add("ReduceMax", x if positive else self.add("Abs", x), axes=[-1], keepdims=1)
        scale = self.add(
            "Max", self.add("Div", largest, self.constant(levels)), self.constant(np.finfo(np.float32).tiny)
        )
        rounded = self.add("Round", self.add("Div", x, scale))
        x8 = self.add("Cast", self.add("Add", rounded, self.constant(zero)), to=TensorProto.UINT8)
        weight_IO = self.add("Transpose", rows, perm=[1, 0])
        zeros = self.constant(zero, np.uint8), self.constant(ZERO, np.uint8)
        product = self.add("Cast", self.add("MatMulInteger", x8, weight_IO, *zeros), to=FLOAT)
        return self.add("Mul", self.add("Mul", product, scale), scales)

    def look_up(self, weight_VM: Array, ids: str, factor: float) -> str:
        """The rows of these ids, times `factor`."""
        if self._products == "float32":
            return self.add("Mul", self.add("Gather", self.constant(weight_VM), ids), self.constant(factor))
        rows, scales = self._byte_rows(weight_VM)
        level = self.add("Cast", self.add("Gather", rows, ids), to=FLOAT)
        scale = self.add("Mul", self.add("Gather", scales, ids), self.constant(factor))
        scale = self.add("Unsqueeze", scale, self.ints(-1))
        return self.add("Mul", self.add("Sub", level, self.constant(ZERO)), scale)

    def _matrix(self, weight_OI: Array) -> str:
        """In float32. A runtime restores bytes once, when it folds what is constant."""
        if self._products == "float32":
            return self.constant(weight_OI)
        rows, scales = self._byte_rows(weight_OI)
        levels = self.add("Sub", self.add("Cast", rows, to=FLOAT), self.constant(ZERO))
        return self.add("Mul", levels, self.add("Unsqueeze", scales, self.ints(1)))

    def _byte_rows(self, weight_OI: Array) -> tuple[str, str]:
        rows, scale_O1 = quantize_rows(weight_OI)
        return self.constant(rows.astype(np.int16) + ZERO, np.uint8), self.constant(scale_O1[:, 0])

    # Shapes

    def size(self, x: str, axis: int) -> str:
        """[1]: the size of a dimension."""
        return self.add("Shape", x, start=axis, end=axis + 1)

    def reshape(self, x: str, *dims: int) -> str:
        """0 keeps a dimension, -1 infers it."""
        return self.add("Reshape", x, self.ints(*dims))

    def to_bytes(self, metadata: Mapping[str, str]) -> bytes:
        graph = helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, list(self._constants.values()))
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="dragoman")
        helper.set_model_props(model, dict(metadata))
        if self._weights is None:
            onnx.checker.check_model(model)
        return model.SerializeToString()

    @property
    def num_bytes(self) -> int:
        """Of its constants, which are nearly all of its file."""
        return sum(tensor.ByteSize() for tensor in self._constants.values())


class Branch:
    """One side of a choice."""

    def __init__(self, nodes: list[NodeProto]) -> None:
        self._nodes = nodes
        self.results: list[tuple[str, Dims]] = []

    def to_proto(self, name: str) -> GraphProto:
        results = [helper.make_tensor_value_info(value, FLOAT, list(dims)) for value, dims in self.results]
        return helper.make_graph(self._nodes, name, [], results)
