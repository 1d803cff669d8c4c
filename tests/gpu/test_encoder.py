"""Passes of the encoder as CUDA graphs give what the same pass gives without a graph, whatever was encoded before."""

import itertools
import random

import pytest
import torch

import dragoman
from dragoman.decode.engines import encoder as encoding
from dragoman.decode.engines.encoder import SIZES, SourceEncoder


@pytest.fixture(scope="module")
def encoder() -> SourceEncoder:
    search = dragoman.load("en-de", "cuda", "bfloat16").searcher.cuda_engine
    return search._encoder


def sentences(lengths: list[int]) -> list[list[int]]:
    draw = random.Random(1)
    return [[*(draw.randrange(300, 10_000) for _ in range(length - 1)), 3] for length in lengths]


def memory(encoder: SourceEncoder, sources: list[list[int]]) -> list[torch.Tensor]:
    """What all passes return, put together."""
    with torch.inference_mode():
        passes = [[layer.clone() for layer in each] for each in encoder(sources)]
    return [torch.cat(layers) for layers in zip(*passes, strict=True)]


def without_graphs(
    encoder: SourceEncoder, sources: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> list[torch.Tensor]:
    with monkeypatch.context() as patch:
        patch.setattr(encoding, "SIZES", (0,))  # every sentence is too long, and encoded alone
        return memory(encoder, sources)


@pytest.mark.parametrize(
    "lengths",
    [[7], [1, 2, 64, 65, 66, 200], [3] * 100, [40] * 500, [1] * 3_000, [5, 900, 12], [5, 17_000, 5]],
    ids=["one", "long and short", "many", "several passes", "tiny", "of many blocks", "longer than any pass"],
)
def test_a_pass_gives_what_it_gives_without_a_graph(
    encoder: SourceEncoder, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = sentences(lengths)
    found, expected = memory(encoder, sources), without_graphs(encoder, sources, monkeypatch)
    for own, other in zip(found, expected, strict=True):
        assert own.shape == other.shape == (sum(lengths), own.size(1))
        difference = (own.float() - other.float()).abs().mean() / other.float().abs().mean()
        assert difference < 0.02, "bfloat16 rounds in other places where matrices have other sizes"


def test_what_was_encoded_before_leaves_nothing_behind(encoder: SourceEncoder) -> None:
    few, many = sentences([9, 30]), sentences([200] * 5)
    alone = memory(encoder, few)
    memory(encoder, many)
    again = memory(encoder, few)
    assert sum(map(len, few)) < SIZES[0] < sum(map(len, many))
    assert all(map(torch.equal, alone, again))
    longer = memory(encoder, [*few, *sentences([180])])  # in a pass of the same size
    again = memory(encoder, few)
    assert all(map(torch.equal, alone, again))
    assert all(torch.equal(one[: len(two)], two) for one, two in zip(longer, alone, strict=True))


def test_sentences_in_one_pass_do_not_see_each_other(encoder: SourceEncoder) -> None:
    sources = sentences([10, 70, 5, 33])
    together, starts = memory(encoder, sources), [0, *itertools.accumulate(map(len, sources))]
    for number, source in enumerate(sources):
        alone = memory(encoder, [source])
        for all_rows, rows in zip(together, alone, strict=True):
            assert torch.equal(all_rows[starts[number] : starts[number + 1]], rows)


def test_a_longer_table_of_positions_is_used_by_new_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    own = dragoman.load("en-de", "cuda", "bfloat16").searcher.cuda_engine._encoder
    short = sentences([9, 30])
    before = memory(own, short)
    (first,) = own._passes.values()
    memory(own, sentences([encoding.LONGEST + 1]))
    assert first not in own._passes.values()
    again = memory(own, short)
    assert all(map(torch.equal, before, again))
