"""The encoder of a search on a GPU, up to the keys and values that the decoder looks at. Knows nothing of search.

Sentences are packed end to end. Where the kernels for packed sentences run, a pass of the encoder is a CUDA graph of
one of few sizes: launched one by one, its hundred kernels take the host longer than the device.

Shapes: S source tokens of all sentences, M width of a position, C keys and values of all heads of a decoder layer.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.data.batching import split_by_tokens
from dragoman.data.packing import Shape, pack_sources
from dragoman.decode.engines.program import capture, copy_to_device, next_power_of_two
from dragoman.model.packed import PackedTransformer, Segments, kernels_fit
from dragoman.model.transformer import Transformer

SIZES = (256, 1_024, 4_096, 16_384)  # tokens of a pass
TOKENS_PER_SENTENCE = 8  # on average, at least: a pass has room for so many sentences
TOKENS_WITHOUT_GRAPH = 1 << 17  # of a pass, at most
LONGEST = 1_024  # tokens of a sentence that the table of positions has room for; it grows

Memory = list[Tensor]  # [S, C] for each layer of the decoder


class SourceEncoder:
    """Encodes sentences; `project` computes the keys and values of the decoder's layers from the encoder's output."""

    def __init__(
        self,
        model: Transformer,
        project: Callable[[Tensor], Memory],
        device: torch.device,
        precision: torch.dtype,
    ) -> None:
        self._project, self._device, self._precision = project, device, precision
        self._half = precision != torch.float32
        self._model = _in_precision(model, precision)
        self._packed: PackedTransformer | None = None
        self._longest = LONGEST
        self._tile: tuple[int, int] | None = None
        if self._half and kernels_fit(model.config, device):
            from dragoman.model.kernels import BLOCK, LONGEST_WHOLE

            self._tile = (LONGEST_WHOLE, BLOCK)
        self._passes: dict[int, _Pass] = {}

    def __call__(self, sources: Sequence[Sequence[int]]) -> Iterator[Memory]:
        """Encode sentences in passes, in order. What one pass returns is overwritten by the next."""
        self._make_table(max(map(len, sources)))
        tokens = TOKENS_WITHOUT_GRAPH if self._tile is None else SIZES[-1]
        for part in split_by_tokens(sources, tokens, tokens // TOKENS_PER_SENTENCE):
            yield self._encode(part)

    def free_memory(self) -> None:
        self._passes.clear()

    def _encode(self, sources: Sequence[Sequence[int]]) -> Memory:
        if self._tile is None:
            return self._run(*_to_device(*pack_sources(sources), self._device))
        tokens = sum(map(len, sources))
        needed = max(tokens, len(sources) * TOKENS_PER_SENTENCE)
        size = next((size for size in SIZES if size >= needed), None)
        if size is None:  # a very long sentence
            shape = Shape(tokens, tokens, len(sources), *self._tile)
            return self._run(*_to_device(*pack_sources(sources, shape), self._device))
        if size not in self._passes:
            shape = Shape(size, size, size // TOKENS_PER_SENTENCE, *self._tile)
            self._passes[size] = _Pass(self._run, shape, self._device)
        return self._passes[size](sources)

    def _run(self, ids_S: Tensor, segments: Segments) -> Memory:
        assert self._packed is not None
        with torch.autocast(self._device.type, self._precision, enabled=self._half):
            memory_SM = self._packed.encode(ids_S, segments).to(self._precision)
        return self._project(memory_SM)

    def _make_table(self, longest: int) -> None:
        """Make sure that the table of positions covers a sentence this long."""
        if self._packed is not None and longest <= self._longest:
            return
        self._passes.clear()  # they use the old table
        longest = max(self._longest, next_power_of_two(longest))
        self._packed = PackedTransformer(self._model, longest)
        self._longest = longest  # not before: there may be no memory for the table


class _Pass:
    """A pass of the encoder over packed sentences of one shape, as a CUDA graph."""

    def __init__(self, run: Callable[[Tensor, Segments], Memory], shape: Shape, device: torch.device) -> None:
        self._shape = shape
        ids_S, segments = _to_device(*pack_sources([[0]], shape), device)
        self._inputs = _tensors(ids_S, segments)
        self._graph, self._memory = capture(lambda: run(ids_S, segments), device)

    def __call__(self, sources: Sequence[Sequence[int]]) -> Memory:
        for own, given in zip(self._inputs, _tensors(*pack_sources(sources, self._shape)), strict=True):
            own.copy_(given.pin_memory(), non_blocking=True)
        self._graph.replay()
        tokens = sum(map(len, sources))
        return [each_SC[:tokens] for each_SC in self._memory]


def _to_device(ids_S: Tensor, segments: Segments, device: torch.device) -> tuple[Tensor, Segments]:
    return copy_to_device(ids_S, device), segments.map(lambda part: copy_to_device(part, device))


def _tensors(ids_S: Tensor, segments: Segments) -> list[Tensor]:
    assert segments.blocks is not None
    return [ids_S, segments.positions_N, segments.starts, segments.blocks]


def _in_precision(model: Transformer, precision: torch.dtype) -> Transformer:
    """The model with the encoder's matrices in the precision of the search; norms and embeddings stay float32."""
    if precision == torch.float32:
        return model
    shared: dict[int, Any] = {id(part): part for part in (model.decoder, model.output, *model.parameters())}
    converted = copy.deepcopy(model, shared)
    for part in converted.encoder.modules():
        if isinstance(part, nn.Linear):
            part.weight = nn.Parameter(part.weight.to(precision), requires_grad=False)
            if part.bias is not None:
                part.bias = nn.Parameter(part.bias.to(precision), requires_grad=False)
    return converted
