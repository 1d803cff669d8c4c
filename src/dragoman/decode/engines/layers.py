"""The layers of a Transformer as the CPU engine runs them. Knows nothing of attention's past, search or text.

Shapes: N rows, M width of a position.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dragoman.config import StackSize, TransformerConfig
from dragoman.decode.engines import loops
from dragoman.decode.engines.products import Matrix, Product, Rows
from dragoman.int8 import SCALE, Array
from dragoman.weights import Weights

INITIAL_POSITIONS = 256  # rows computed at first; doubled when needed
BASE = 10_000.0  # of the sinusoids
EPSILON = np.float32(1e-5)  # of a layer norm: PyTorch's default
ACTIVATIONS = {"relu": loops.relu, "gelu": loops.gelu, "swish": loops.swish}

Norm = tuple[Array, Array]  # gain and bias


class Stream:
    """The rows between sub-layers: what they add to. Its methods return what the next matrix takes."""

    def __init__(self, x_NM: Array, norms: Sequence[Norm], *, pre_norm: bool) -> None:
        self._x_NM, self._norms, self._pre_norm = x_NM, iter(norms), pre_norm

    def begin(self, following: Matrix) -> Rows:
        rows = following.rows(len(self._x_NM))
        if self._pre_norm:
            loops.normalize(self._x_NM, *next(self._norms), EPSILON, *rows)
        else:
            loops.copy(self._x_NM, *rows)
        return rows

    def add(self, product: Product, following: Matrix) -> Rows:
        """Add what a sub-layer returns, and normalize."""
        rows = following.rows(len(self._x_NM), kept=not self._pre_norm)
        loops.add_and_normalize(*product, self._x_NM, *next(self._norms), EPSILON, *rows)
        if not self._pre_norm:
            self._x_NM = rows.x_NI
        return rows


class Attention(NamedTuple):
    """The matrices before and after attention."""

    before: Matrix  # queries, keys and values; queries alone where keys and values are there already
    after: Matrix


class Layer(NamedTuple):
    """What layers of encoder and decoder have in common."""

    attention: Attention
    inner: Matrix
    activate: Callable[..., None]
    outer: Matrix

    def feed_forward(self, rows: Rows, stream: Stream, following: Matrix) -> Rows:
        active = self.outer.rows(len(rows.scale_N))
        self.activate(*self.inner(rows), *active)
        return stream.add(self.outer(active), following)


class Stack(NamedTuple):
    """An encoder or decoder."""

    size: StackSize
    layers: list[Layer]
    norms: list[Norm]  # in the order in which they are reached
    pre_norm: bool

    def stream(self, x_NM: Array) -> Stream:
        return Stream(x_NM, self.norms, pre_norm=self.pre_norm)

    def matrices_after(self, last: Matrix) -> list[Matrix]:
        """What takes the rows that each layer returns; `last` follows the stack."""
        return [*(layer.attention.before for layer in self.layers[1:]), last]


class Builder:
    """Makes the parts of the engine from the weights of a model."""

    def __init__(self, config: TransformerConfig, weights: Weights, *, int8: bool) -> None:
        self._config, self._weights = config, weights
        self._create = functools.partial(Matrix.of, weights, int8=int8)

    def encoder(self) -> Stack:
        return self._stack("encoder", self._config.encoder, ("self_attention", "feed_forward"))

    def decoder(self) -> Stack:
        return self._stack("decoder", self._config.decoder, ("self_attention", "cross_attention", "feed_forward"))

    def cross_attentions(self) -> list[Attention]:
        """Of the decoder layers."""
        return [
            Attention(self._matrix(f"{name}.query"), self._matrix(f"{name}.output"))
            for name in self._cross_attention_names()
        ]

    def memory(self) -> Matrix:
        """Keys and values for all of them, side by side."""
        return self._matrix(*(f"{name}.{part}" for name in self._cross_attention_names() for part in ("key", "value")))

    def _cross_attention_names(self) -> list[str]:
        return [f"decoder.layers.{number}.cross_attention" for number in range(self._config.decoder.num_layers)]

    def output(self) -> Matrix:
        matrix = self._target if self._config.share_target_output else "output"
        return self._create(matrix, bias_O=self._weights.get("output.bias"))

    def source_embedding(self) -> "Embedding":
        return Embedding(self._config, self._weights, "source_embedding", "encoder")

    def target_embedding(self) -> "Embedding":
        return Embedding(self._config, self._weights, self._target, "decoder")

    @property
    def _target(self) -> str:
        return "source_embedding" if self._config.share_source_target else "target_embedding"

    def _stack(self, name: str, size: StackSize, sublayers: Sequence[str]) -> Stack:
        layers = [f"{name}.layers.{number}" for number in range(size.num_layers)]
        norms = [self._norm(f"{layer}.{sublayer}_residual.layer_norm") for layer in layers for sublayer in sublayers]
        pre_norm = self._config.norm == "pre"
        final = [self._norm(f"{name}.final_norm")] if pre_norm else []
        return Stack(size, [self._layer(layer) for layer in layers], [*norms, *final], pre_norm)

    def _layer(self, name: str) -> Layer:
        attention, activation = f"{name}.self_attention", self._config.activation
        before = self._matrix(*(f"{attention}.{part}" for part in ("query", "key", "value")))
        return Layer(
            Attention(before, self._matrix(f"{attention}.output")),
            self._matrix(f"{name}.feed_forward.inner"),
            ACTIVATIONS[activation],
            self._matrix(f"{name}.feed_forward.outer", positive=activation == "relu"),
        )

    def _matrix(self, *names: str, positive: bool = False) -> Matrix:
        biases = [self._weights[f"{name}.bias"] for name in names if f"{name}.bias" in self._weights]
        bias_O = np.concatenate(biases) if biases else None
        return self._create(*names, bias_O=bias_O, positive=positive)

    def _norm(self, name: str) -> Norm:
        return self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]


class Embedding:
    """Rows of an embedding with positions added; the table is the model's own, int8 rows are expanded one by one."""

    def __init__(self, config: TransformerConfig, weights: Weights, name: str, stack: str) -> None:
        self._table, self._scale_V = weights[f"{name}.weight"], weights.get(f"{name}.weight{SCALE}")
        self._width = self._table.shape[1]
        self._factor = np.float32(math.sqrt(self._width))
        self._kind, self._learned = config.positions, weights.get(f"{stack}.positions.learned.weight")
        self._vectors: Array = np.zeros((0, 0), dtype=np.float32)
        norm = f"{stack}.embedding_norm"
        self._norm = (weights[f"{norm}.weight"], weights[f"{norm}.bias"]) if config.embedding_norm else None

    def __call__(self, id_N: Array, place_N: Array) -> Array:
        """The vectors of these ids at these places: [N, M]."""
        x_NM = self._table[id_N]
        if self._scale_V is not None:
            x_NM = x_NM * self._scale_V[id_N][:, np.newaxis]
        x_NM = x_NM * self._factor
        if self._kind != "none":
            x_NM = x_NM + self._position_vectors(int(place_N.max()) + 1)[place_N]
        return x_NM if self._norm is None else _normalized(x_NM, *self._norm)

    def _position_vectors(self, least: int) -> Array:
        if self._learned is not None:
            return self._learned
        vectors = self._vectors  # another thread may replace it, even by a shorter table
        if least > len(vectors):
            vectors = self._vectors = sinusoids(max(INITIAL_POSITIONS, 2 * least), self._width)
        return vectors


def _normalized(x_NM: Array, gain_M: Array, bias_M: Array) -> Array:
    """The layer norm of each row."""
    centred_NM = x_NM - x_NM.mean(axis=1, keepdims=True)
    variance_N1 = np.square(centred_NM).mean(axis=1, keepdims=True)
    return centred_NM / np.sqrt(variance_N1 + EPSILON) * gain_M + bias_M


def sinusoids(count: int, width: int) -> Array:
    """The vectors of `model.positions.sinusoids` for the first `count` positions."""
    angles = np.arange(count)[:, np.newaxis] * BASE ** (-np.arange(0, width, 2) / width)
    vectors = np.stack((np.sin(angles), np.cos(angles)), axis=-1).reshape(count, -1)
    return vectors[:, :width].astype(np.float32)
