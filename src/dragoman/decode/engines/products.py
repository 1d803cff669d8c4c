"""Matrix products on a CPU, in int8 or float32, by ONNX Runtime. Knows nothing of layers.

In int8, weights have a scale for every output and activations one for every row, so a row's products do not depend on
the other rows of the batch.

Shapes: N rows, I inputs, O outputs.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from dragoman.decode.engines import loops
from dragoman.int8 import LEVELS, SCALE, Array, expand, quantize_rows
from dragoman.weights import Weights

OPSET, IR_VERSION = 21, 10
STRIP = 32  # rows
_NOT_ROUNDED, _NO_BYTES = np.float32(0), np.zeros((0, 0), np.uint8)
ZERO = 128  # stands for 0 in the unsigned activations that every processor multiplies fast

Product = tuple[Array, Array, Array, Array]  # values [N, O], scales of rows and of columns, bias


class Rows(NamedTuple):
    """What a matrix takes, in the order in which loops write it."""

    x_NI: Array  # in int8 it may be a single row, which loops overwrite: the rounded form is all that is needed
    levels: np.float32  # 0: the product is in float32
    zero: np.float32
    x8_NI: Array  # x_NI rounded to integers
    scale_N: Array


class Matrix:
    """Linear layers side by side, as x W^T + b. Weights are int8 as stored, or quantized here, or float32."""

    def __init__(
        self, weight_OI: Array, scale_O: Array | None, bias_O: Array | None, *, positive: bool = False
    ) -> None:
        """`scale_O` makes it int8. `positive`: no input is negative, so that inputs have twice as many levels."""
        self._weight_IO, self._int8 = _transposed(weight_OI), scale_O is not None
        outputs = len(weight_OI)
        self._scale_O = np.ones(outputs, np.float32) if scale_O is None else scale_O.astype(np.float32)
        self._bias_O = np.zeros(outputs, np.float32) if bias_O is None else bias_O.astype(np.float32)
        levels, zero = (2 * LEVELS + 1, 0) if positive else (LEVELS, ZERO)
        self._levels, self._zero = np.float32(levels), np.float32(zero)
        self._session = _create_session(self._weight_IO, zero if self._int8 else None)

    @classmethod
    def of(
        cls, weights: Weights, *names: str, int8: bool, bias_O: Array | None = None, positive: bool = False
    ) -> "Matrix":
        """The matrices of these names."""
        if not int8:
            return cls(np.concatenate([expand(weights, f"{name}.weight") for name in names]), None, bias_O)
        rows, scales = zip(*(_int8_rows(weights, f"{name}.weight") for name in names), strict=True)
        return cls(np.concatenate(rows), np.concatenate(scales), bias_O, positive=positive)

    @property
    def size(self) -> int:
        """How many outputs it has."""
        return self._weight_IO.shape[1]

    def select(self, output_P: Array) -> "Matrix":
        """A matrix with these outputs only."""
        scale_P = self._scale_O[output_P] if self._int8 else None
        return Matrix(self._weight_IO[:, output_P].T, scale_P, self._bias_O[output_P], positive=self._zero == 0)

    def rows(self, count: int, *, kept: bool = False) -> Rows:
        """Space for what it takes; `kept`: its float32 rows are needed after the product."""
        inputs = len(self._weight_IO)
        if not self._int8:
            return Rows(
                np.empty((count, inputs), np.float32), _NOT_ROUNDED, _NOT_ROUNDED, _NO_BYTES, np.ones(count, np.float32)
            )
        x_NI = np.empty((count if kept else 1, inputs), np.float32)
        return Rows(x_NI, self._levels, self._zero, np.empty((count, inputs), np.uint8), np.empty(count, np.float32))

    def __call__(self, rows: Rows) -> Product:
        """The product with these rows, for a loop to restore."""
        value_NO = self._run(rows.x8_NI if self._int8 else rows.x_NI)
        return value_NO, rows.scale_N, self._scale_O, self._bias_O

    def _run(self, x_NI: Array) -> Array:
        try:
            (product_NO,) = self._session.run(["y"], {"x": x_NI})
        except Exception as error:  # its exceptions derive from nothing more specific
            raise RuntimeError(str(error)) from error
        return product_NO


def _create_session(weight_IO: Array, zero: int | None) -> Any:
    """A graph of one product, whose weights the runtime packs as this processor needs them; in float32 without `zero`.

    The weights stay where they are and must outlive the session: protobuf would copy them several times.
    """
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    inputs, outputs = weight_IO.shape
    kinds = (TensorProto.FLOAT,) * 3 if zero is None else (TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32)
    weight = TensorProto(name="w", data_type=kinds[1], dims=(inputs, outputs), data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="memory")
    constants, node = [weight], helper.make_node("MatMul", ["x", "w"], ["y"])
    if zero is not None:
        constants.append(numpy_helper.from_array(np.array(zero, np.uint8), "zero"))
        node = helper.make_node("MatMulInteger", ["x", "w", "zero"], ["y"])
    x = helper.make_tensor_value_info("x", kinds[0], ["N", inputs])
    y = helper.make_tensor_value_info("y", kinds[2], ["N", outputs])
    graph = helper.make_graph([node], "product", [x], [y], constants)
    opset = helper.make_opsetid("", OPSET)
    content = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION).SerializeToString()

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # waking others takes longer than most products
    options.enable_mem_pattern = False  # patterns are kept for every number of rows
    options.log_severity_level = 3
    try:
        given = onnxruntime.OrtValue.ortvalue_from_numpy(weight_IO)
        options.add_external_initializers(["w"], [given])
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise RuntimeError(str(error)) from error


def _transposed(weight_OI: Array) -> Array:
    """In strips that stay in the cache: twice as fast as NumPy's own."""
    out_IO = np.empty(weight_OI.shape[::-1], weight_OI.dtype)
    for first in range(0, len(weight_OI), STRIP):
        out_IO[:, first : first + STRIP] = weight_OI[first : first + STRIP].T
    return out_IO


def _int8_rows(weights: Weights, name: str) -> tuple[Array, Array]:
    if name + SCALE in weights:
        return weights[name], weights[name + SCALE]
    rows, scale_O1 = quantize_rows(weights[name])
    return rows, scale_O1[:, 0]


@functools.cache
def int8_is_exact() -> bool:
    """Whether ONNX Runtime's int8 product is exact on this processor, tested with the largest values.

    x86 processors without VNNI add pairs of products in 16 bits, which saturate without an error.
    """
    x_NI = np.ones((64, 64), np.float32)
    for split in (4, 2, 0):
        sign_OI = np.broadcast_to(np.where(np.arange(64) % 4 < split, 1, -1), (64, 64))
        matrix = Matrix((LEVELS * sign_OI).astype(np.int8), np.ones(64), None, positive=True)
        rows = matrix.rows(64)
        loops.copy(x_NI, *rows)
        value_NO, _, _, _ = matrix(rows)
        if (value_NO != (2 * LEVELS + 1) * LEVELS * sign_OI.sum(axis=1)).any():
            return False
    return True
