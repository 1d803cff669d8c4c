"""Greedy and beam search on a CPU, in int8 or float32: graphs run by ONNX Runtime. Knows nothing of text.

`engines/plain.py` says what is correct. Every hypothesis has a row of the mask that allows the cache entries of its own
past. When the search moves hypotheses, only these rows move: keys and values stay where they were written.

Shapes: B sentences, W hypotheses of each, P entries of a cache, S source positions, M width of a position,
C candidates.
"""

import functools
import itertools
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from dragoman.config import DecodeConfig, TransformerConfig
from dragoman.data.batching import split_by_tokens
from dragoman.int8 import SCALE, Array
from dragoman.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor

    from dragoman.decode.engines.graphs import Graph

MASKED = -1e9  # added to a score
MOST_HYPOTHESES = 16  # a hypothesis looks at the entries of all; wider beams are for the plain engine
# Keys are padded to a multiple of this many, and caches grow by this many steps. A softmax adds up this many numbers at
# a time: with whole groups, further padding adds zeros only, and a sentence has the same bits in any batch.
MULTIPLE = 16
INITIAL_POSITIONS = 256  # rows computed at first; doubled when needed
ENCODER_TOKENS = 256  # per call of the encoder, unless a sentence is longer: more do not fit in a core's own cache
BASE = 10_000.0  # of the sinusoids
SESSIONS = 2  # kept: for one thread and for all


class CpuEngine:
    """A Transformer as two ONNX graphs, with its weights as they are stored. Sources are ids that end in </s>."""

    def __init__(self, config: TransformerConfig, weights: Weights, precision: str) -> None:
        self._config, self._weights, self._int8 = config, weights, precision == "int8"
        target = "source" if config.share_source_target else "target"
        self._source = _Embedding(weights, "source_embedding", "encoder", config)
        self._target = _Embedding(weights, f"{target}_embedding", "decoder", config)
        self._sessions: dict[int, tuple[Any, Any]] = {}
        self._lock = threading.Lock()

    def start(self, sources: Sequence[Sequence[int]], threads: int) -> "CpuDecoding":
        """Encode a batch, which `threads` threads will decode."""
        encoder, step = self._sessions_for(threads)
        parts = [self._encode(encoder, part) for part in split_by_tokens(sources, ENCODER_TOKENS)]
        longest = max(part["source_mask"].shape[3] for part in parts)
        memory = {name: np.concatenate([_padded(name, part[name], longest) for part in parts]) for name in parts[0]}
        return CpuDecoding(step, self._target, memory)

    def _encode(self, encoder: Any, sources: Sequence[Sequence[int]]) -> dict[str, Array]:
        """The keys and values of the source for every decoder layer, and its mask."""
        length_B = np.array([len(source) for source in sources])
        longest = -(-length_B.max() // MULTIPLE) * MULTIPLE
        real_BS = np.arange(longest) < length_B[:, np.newaxis]
        token_BS = np.where(real_BS, np.cumsum(real_BS).reshape(real_BS.shape) - 1, 0)
        place_BS = np.broadcast_to(np.arange(longest), real_BS.shape)
        source_mask = np.where(real_BS, np.float32(0.0), np.float32(MASKED))[:, np.newaxis, np.newaxis]
        feeds = {
            "x": self._source(np.fromiter(itertools.chain(*sources), np.int64), place_BS[real_BS]),
            "token": token_BS,
            "position": np.flatnonzero(real_BS),
            "source_mask": source_mask,
        }
        outputs = [output.name for output in encoder.get_outputs()]
        return {"source_mask": source_mask, **dict(zip(outputs, _run(encoder, outputs, feeds), strict=True))}

    def _sessions_for(self, threads: int) -> tuple[Any, Any]:
        """Encoder and step that run on `threads` threads, created when first used."""
        from dragoman.decode.engines.graphs import build_encoder, build_step

        with self._lock:
            if threads not in self._sessions:
                while len(self._sessions) >= SESSIONS:  # each has the weights
                    del self._sessions[max(self._sessions)]
                builds = (build_encoder, build_step)
                graphs = (build(self._config, self._weights, int8=self._int8) for build in builds)
                encoder, step = (_create_session(graph, threads) for graph in graphs)
                self._sessions[threads] = encoder, step
            return self._sessions[threads]


class CpuDecoding:
    """One batch being decoded (search's Decoding protocol, without what only sampling needs).

    Sentences that are done leave by moving another one into their place, so arrays are in another order than in the
    search: `_place_B` says where a sentence of the search is.
    """

    def __init__(self, session: Any, embedding: "_Embedding", source: dict[str, Array]) -> None:
        self._session, self._embedding = session, embedding
        self._outputs = [output.name for output in session.get_outputs()]
        self._source = source
        batch = len(source["source_mask"])
        self._cache = {
            each.name: np.zeros((batch, each.shape[1], 0, each.shape[3]), dtype=np.float32)
            for each in session.get_inputs()
            if each.name.startswith(("key_", "value_"))
        }
        self._mask = np.zeros((batch, 1, 1, 0), dtype=np.float32)
        self._used = self._position = 0  # cache entries, target positions
        self._place_B = np.arange(batch)

    def best(self, id_BW: Array, count: int) -> tuple[Array, Array]:
        width = id_BW.shape[1]
        own_BW = np.empty_like(id_BW)
        own_BW[self._place_B] = id_BW
        self._grow(width)
        feeds = {
            "x": self._embedding(own_BW, np.array([self._position])),
            "mask": self._mask,
            "count": np.array([min(count, self._embedding.size)]),
            **self._source,
            **self._cache,
        }
        results = dict(zip(self._outputs, _run(self._session, self._outputs, feeds), strict=True))
        entries = slice(self._used, self._used + width)
        for name, cache in self._cache.items():
            cache[:, :, entries] = results["new_" + name]
        self._mask[:, 0, np.arange(width), np.arange(self._used, self._used + width)] = 0.0
        self._used += width
        self._position += 1
        value_NC, id_NC = (
            results[name].reshape(*id_BW.shape, -1)[self._place_B].reshape(id_BW.size, -1) for name in ("values", "ids")
        )
        return value_NC, id_NC

    def log_probs(self, id_BW: Array) -> "Tensor":
        raise NotImplementedError("the CPU engine does not sample")

    def reorder(self, parent_BW: Array) -> None:
        own_BW = np.empty_like(parent_BW)
        own_BW[self._place_B] = parent_BW
        self._mask = np.take_along_axis(self._mask, own_BW[:, np.newaxis, :, np.newaxis], axis=2)

    def select(self, sentence_B: Array) -> None:
        """Move kept sentences from the end into the places of dropped ones, then cut off the end."""
        place_B = self._place_B[sentence_B]
        kept = len(place_B)
        assert len(np.unique(place_B)) == kept, "sentences are repeated for sampling only"
        free = np.setdiff1d(np.arange(kept), place_B)
        moved = np.flatnonzero(place_B >= kept)
        for arrays in (self._source, self._cache):
            for name, array in arrays.items():
                array[free] = array[place_B[moved]]
                arrays[name] = array[:kept]
        self._mask[free] = self._mask[place_B[moved]]
        self._mask = self._mask[:kept]
        place_B[moved] = free
        self._place_B = place_B

    def _grow(self, width: int) -> None:
        """Make room for the entries of a step."""
        if self._used + width <= self._mask.shape[3]:
            return
        more = MULTIPLE * width
        for name, cache in self._cache.items():
            new = np.zeros((*cache.shape[:2], more, cache.shape[3]), dtype=np.float32)
            self._cache[name] = np.concatenate([cache, new], axis=2)
        self._mask = np.concatenate([self._mask, np.full((*self._mask.shape[:3], more), MASKED, np.float32)], axis=3)


class _Embedding:
    """Rows of an embedding with positions added; the table is the model's own, int8 rows are expanded one by one."""

    def __init__(self, weights: Weights, name: str, stack: str, config: TransformerConfig) -> None:
        self._table, self._scale_V = weights[f"{name}.weight"], weights.get(f"{name}.weight{SCALE}")
        self.size, self._width = self._table.shape
        self._factor = np.float32(math.sqrt(self._width))
        self._kind, self._learned = config.positions, weights.get(f"{stack}.positions.learned.weight")
        self._vectors: Array = np.zeros((0, 0), dtype=np.float32)

    def __call__(self, ids: Array, places: Array) -> Array:
        """The vectors of these ids at these places: [..., M]."""
        x = self._table[ids]
        if self._scale_V is not None:
            x = x * self._scale_V[ids][..., np.newaxis]
        x = x * self._factor
        return x if self._kind == "none" else x + self._position_vectors(int(places.max()) + 1)[places]

    def _position_vectors(self, least: int) -> Array:
        if self._learned is not None:
            return self._learned
        vectors = self._vectors  # another thread may replace it, even by a shorter table
        if least > len(vectors):
            vectors = self._vectors = sinusoids(max(INITIAL_POSITIONS, 2 * least), self._width)
        return vectors


def sinusoids(count: int, width: int) -> Array:
    """The vectors of `model.positions.sinusoids` for the first `count` positions."""
    angles = np.arange(count)[:, np.newaxis] * BASE ** (-np.arange(0, width, 2) / width)
    vectors = np.stack((np.sin(angles), np.cos(angles)), axis=-1).reshape(count, -1)
    return vectors[:, :width].astype(np.float32)


def _padded(name: str, array: Array, longest: int) -> Array:
    """With source positions added up to the longest: masked in the mask, zeros in keys and values."""
    axis, value = (3, MASKED) if name == "source_mask" else (2, 0.0)
    missing = [(0, longest - size if number == axis else 0) for number, size in enumerate(array.shape)]
    return np.pad(array, missing, constant_values=value) if longest > array.shape[axis] else array


@functools.cache
def int8_is_exact() -> bool:
    """Whether ONNX Runtime's int8 product is exact on this processor, tested with the largest values.

    x86 processors without VNNI add pairs of products in 16 bits, which saturate without an error.
    """
    from dragoman.decode.engines.graphs import build_product

    x = np.ones((64, 64), dtype=np.float32)
    for split in (4, 2, 0):
        weight = np.where(np.arange(64) % 4 < split, x, -x)
        (found,) = _run(_create_session(build_product(weight), 1), ["y"], {"x": x})
        if np.abs(found - x @ weight.T).max() > 1e-4:
            return False
    return True


def _create_session(graph: "Graph", threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_mem_pattern = False  # patterns are kept for every shape, and every step has another
    # two sessions take turns: idle threads of one must not keep those of the other from a core
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3
    with _runtime_errors():
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in graph.weights.values()]
        options.add_external_initializers(list(graph.weights), values)
        session = onnxruntime.InferenceSession(graph.content, options, providers=["CPUExecutionProvider"])
    session.weights = graph.weights  # it may refer to them, and does not keep them alive
    return session


def _run(session: Any, outputs: Sequence[str], feeds: dict[str, Array]) -> list[Array]:
    with _runtime_errors():
        results: list[Array] = session.run(outputs, feeds)
    return results


@contextmanager
def _runtime_errors() -> Iterator[None]:
    """Raise the exceptions of ONNX Runtime, which derive from nothing more specific than Exception, as RuntimeError."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(str(error)) from error


def supports(options: DecodeConfig) -> bool:
    """Whether the CPU engine has this search."""
    return not options.sampling and options.beam <= MOST_HYPOTHESES
