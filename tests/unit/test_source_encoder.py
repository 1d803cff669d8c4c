"""Which pass of the encoder runs, without a GPU; tests/gpu/test_encoder.py runs them."""

from collections.abc import Sequence

import pytest
import torch

from dragoman.config import TransformerConfig
from dragoman.data.packing import Shape
from dragoman.decode.engines import encoder as encoding
from dragoman.decode.engines.encoder import LONGEST, SIZES, SourceEncoder
from dragoman.model.transformer import Transformer

Lengths = list[int]


class Recorded:
    """In place of a graph: notes the sizes of passes and the lengths of their sentences."""

    log: list[tuple[int | None, Lengths]] = []

    def __init__(self, run: object, shape: Shape, device: torch.device) -> None:
        self.shape = shape

    def __call__(self, sources: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        assert len(sources) <= self.shape.sentences
        assert sum(map(len, sources)) <= self.shape.source_tokens
        self.log.append((self.shape.source_tokens, [len(source) for source in sources]))
        return []


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> SourceEncoder:
    monkeypatch.setattr(encoding, "_Pass", Recorded)
    monkeypatch.setattr(Recorded, "log", [])
    model = Transformer(TransformerConfig.tiny(vocab_size=20, d_model=16, d_ff=16, num_layers=1)).eval()
    made = SourceEncoder(model, lambda memory: [memory], torch.device("cpu"), torch.float32)
    made._tile = (64, 32)  # as if the kernels ran here

    def without_graph(ids: torch.Tensor, segments: object) -> list[torch.Tensor]:
        Recorded.log.append((None, [len(ids)]))
        return []

    monkeypatch.setattr(made, "_run", without_graph)
    return made


def passes(encoder: SourceEncoder, lengths: Lengths) -> list[tuple[int | None, Lengths]]:
    Recorded.log.clear()
    for _ in encoder([[5] * length for length in lengths]):
        pass
    return list(Recorded.log)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([7], [(256, [7])]),
        ([200, 56], [(256, [200, 56])]),
        ([200, 57], [(1_024, [200, 57])]),
        ([1] * 32, [(256, [1] * 32)]),
        ([1] * 33, [(1_024, [1] * 33)]),
        ([9_000, 7_000, 400, 9], [(16_384, [9_000, 7_000]), (1_024, [400, 9])]),
        ([1] * 2_049, [(16_384, [1] * 2_048), (256, [1])]),
        ([20_000, 3], [(None, [20_000]), (256, [3])]),
    ],
)
def test_a_pass_is_the_smallest_that_has_room(
    encoder: SourceEncoder, lengths: Lengths, expected: list[tuple[int | None, Lengths]]
) -> None:
    assert SIZES == (256, 1_024, 4_096, 16_384)
    assert passes(encoder, lengths) == expected


def test_passes_are_captured_again_for_a_longer_table_and_after_memory_was_freed(encoder: SourceEncoder) -> None:
    passes(encoder, [7])
    first = encoder._passes[256]
    passes(encoder, [LONGEST])
    assert encoder._passes[256] is first
    passes(encoder, [LONGEST + 1])
    passes(encoder, [7])
    second = encoder._passes[256]
    assert second is not first
    encoder.free_memory()
    passes(encoder, [7])
    assert encoder._passes[256] is not second


def test_a_table_for_which_there_is_no_memory_is_tried_again(
    encoder: SourceEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes(encoder, [7])

    def full(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(encoding, "PackedTransformer", full)
        with pytest.raises(MemoryError):
            passes(encoder, [LONGEST + 1])
    passes(encoder, [LONGEST + 1])
    assert encoder._packed is not None
    assert encoder._packed.source_table is not None
    assert len(encoder._packed.source_table) == 2 * LONGEST
