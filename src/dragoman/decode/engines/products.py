"""Matrix products on a CPU, in int8 or float32, by ONNX Runtime. Knows nothing of layers.

In int8, weights have a scale for every output and activations one for every row, so a row's products do not depend on
the other rows of the batch.

Shapes: N rows, I inputs, O outputs.
"""

import functools
import os
import threading
from typing import Any

import numpy as np

from dragoman.decode.engines import loops
from dragoman.int8 import LEVELS, SCALE, Array, expand, quantize_rows
from dragoman.weights import Weights

OPSET, IR_VERSION = 21, 10
STRIP = 32  # rows
ZERO = 128  # stands for 0 in the unsigned activations that every processor multiplies fast

Product = tuple[Array, Array, Array, Array]  # values [N, O], scales of rows and of columns, bias


class Matrix:
    """Linear layers side by side, as x W^T + b. Weights are int8 as stored, or quantized here, or float32."""

    def __init__(
        self,
        weight_OI: Array,
        scale_O: Array | None,
        bias_O: Array | None,
        *,
        positive: bool = False,
        together: bool = False,
    ) -> None:
        """`scale_O` makes it int8. `positive`: no input is negative, so that inputs have twice as many levels.

        `together`: threads share each product; ask `can_share_threads` first.
        """
        self._weight_IO, self._int8 = _transposed(weight_OI), scale_O is not None
        outputs = len(weight_OI)
        self._scale_O = np.ones(outputs, np.float32) if scale_O is None else scale_O.astype(np.float32)
        self._bias_O = np.zeros(outputs, np.float32) if bias_O is None else bias_O.astype(np.float32)
        levels, zero = (2 * LEVELS + 1, 0) if positive else (LEVELS, ZERO)
        self._levels, self._zero = np.float32(levels), np.float32(zero)
        self._together = together
        self._session = _create_session(self._weight_IO, zero if self._int8 else None, together=together)

    @classmethod
    def of(
        cls,
        weights: Weights,
        *names: str,
        int8: bool,
        bias_O: Array | None = None,
        positive: bool = False,
        together: bool = False,
    ) -> "Matrix":
        """The matrices of these names."""
        if not int8:
            weight_OI = np.concatenate([expand(weights, f"{name}.weight") for name in names])
            return cls(weight_OI, None, bias_O, together=together)
        rows, scales = zip(*(_int8_rows(weights, f"{name}.weight") for name in names), strict=True)
        return cls(np.concatenate(rows), np.concatenate(scales), bias_O, positive=positive, together=together)

    @property
    def size(self) -> int:
        """How many outputs it has."""
        return self._weight_IO.shape[1]

    def select(self, output_P: Array) -> "Matrix":
        """A matrix with these outputs only."""
        scale_P = self._scale_O[output_P] if self._int8 else None
        weight_PI, bias_P = self._weight_IO[:, output_P].T, self._bias_O[output_P]
        return Matrix(weight_PI, scale_P, bias_P, positive=self._zero == 0, together=self._together)

    def __call__(self, x_NI: Array) -> Product:
        """The product with these rows, [N, ...], for a loop to restore."""
        x_NI = x_NI.reshape(len(x_NI), -1)
        if not self._int8:
            return self._run(x_NI), np.ones(len(x_NI), np.float32), self._scale_O, self._bias_O
        x8_NI, scale_N = np.empty(x_NI.shape, np.uint8), np.empty(len(x_NI), np.float32)
        loops.quantize(x_NI, self._levels, self._zero, x8_NI, scale_N)
        return self._run(x8_NI), scale_N, self._scale_O, self._bias_O

    def _run(self, x_NI: Array) -> Array:
        try:
            (product_NO,) = self._session.run(["y"], {"x": x_NI})
        except Exception as error:  # its exceptions derive from nothing more specific
            raise RuntimeError(str(error)) from error
        return product_NO


def _create_session(weight_IO: Array, zero: int | None, *, together: bool) -> Any:
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
    if together:
        options.use_per_session_threads = False
    else:
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


class _Shared:
    """The threads that products share, of which ONNX Runtime has one pool in a process."""

    lock = threading.Lock()
    size = 0  # 0: not created
    process = 0  # that has the threads: a fork has none


def can_share_threads(count: int) -> bool:
    """Whether so many threads can share a product. The first who asks for several decides how many there are.

    They wait actively between products, so one product after another does not wake them.
    """
    if count == 1:
        return False
    with _Shared.lock:
        if not _Shared.size:
            _Shared.size, _Shared.process = _create_threads(count), os.getpid()
    return 1 < _Shared.size <= count and _Shared.process == os.getpid()


def _create_threads(count: int) -> int:
    import onnxruntime

    try:
        onnxruntime.set_global_thread_pool_sizes(count, 1)
    except Exception:  # it is too old to have them, or someone else has created them
        return 1
    return count


@functools.cache
def int8_is_exact() -> bool:
    """Whether ONNX Runtime's int8 product is exact on this processor, tested with the largest values.

    x86 processors without VNNI add pairs of products in 16 bits, which saturate without an error.
    """
    x = np.ones((64, 64), np.float32)
    for split in (4, 2, 0):
        sign_OI = np.broadcast_to(np.where(np.arange(64) % 4 < split, 1, -1), (64, 64))
        matrix = Matrix((LEVELS * sign_OI).astype(np.int8), np.ones(64), None, positive=True)
        value_NO, _, _, _ = matrix(x)
        if (value_NO != (2 * LEVELS + 1) * LEVELS * sign_OI.sum(axis=1)).any():
            return False
    return True
