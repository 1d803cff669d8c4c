"""Packed batches: the same loss and gradients as the padded path, every pair once, the shapes that never change."""

from typing import Any

import numpy as np
import pytest
import torch

from dragoman.config import TransformerConfig
from dragoman.data.batching import collate
from dragoman.data.packing import PackingPlan, Shape, pack
from dragoman.data.store import Store, build_store
from dragoman.model.packed import PackedTransformer, Segments
from dragoman.model.transformer import Transformer
from dragoman.text.tokenizer import PAD, Tokenizer
from dragoman.train.loss import projected_cross_entropy, smoothed_cross_entropy
from tests.conftest import quick_config


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    place = tmp_path_factory.mktemp("store")
    random = np.random.default_rng(0)
    for side in ("source", "target"):
        lines = [" ".join(random.choice(list("abcdefgh"), size=random.integers(1, 40))) for _ in range(300)]
        (place / side).write_text("\n".join(lines) + "\n")
    tokenizer = Tokenizer.train((place / "source").read_text().split("\n"), quick_config().text)
    return build_store(place, [place / "source"], [place / "target"], tokenizer, tokenizer, max_length=100)


VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm": "pre", "positions": "rotary"},
    {"positions": "learned", "max_positions": 50, "share_target_output": False, "output_bias": True},
    {"d_k": 6, "d_v": 10, "attention_bias": False, "activation": "gelu"},
]


def gradients(model: Transformer, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    names, weights = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, weights), strict=True))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("chunk", [8_192, 7])
def test_loss_and_gradients_are_those_of_the_padded_path(
    store: Store, variant: dict[str, Any], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.train.loss.CHUNK_ROWS", chunk)
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.tiny(vocab_size=300, d_model=32, d_ff=48, **variant)).double().eval()
    rows = np.arange(7, 27)
    padded, packed = collate(store, rows), pack(store, rows)
    assert padded.num_tokens == packed.num_tokens
    logits = model(padded.source_ids, padded.target_input, padded.source_allowed)
    plain = smoothed_cross_entropy(logits, padded.target_output, 0.1)
    hidden = PackedTransformer(model, 64)(packed.source_ids_N, packed.target_input_N, packed.source, packed.target)
    fast = projected_cross_entropy(hidden, model.output.weight, model.output.bias, packed.target_output_N, 0.1)
    torch.testing.assert_close(fast, plain, atol=1e-9, rtol=1e-12)
    expected, found = gradients(model, plain), gradients(model, fast)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-9, rtol=1e-9, msg=name)


def test_sentences_that_forgot_where_they_end_would_be_found_out(store: Store) -> None:
    """The control: all tokens of a batch as one sentence."""
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.tiny(vocab_size=300, d_model=32, d_ff=48)).double().eval()
    packed = pack(store, np.arange(5))

    def merged(segments: Segments) -> Segments:
        grid = torch.arange(len(segments.positions_N))[None]
        return segments._replace(grid_BL=grid, real_BL=torch.ones_like(grid, dtype=torch.bool))

    run = PackedTransformer(model, 64)
    right = run(packed.source_ids_N, packed.target_input_N, packed.source, packed.target)
    wrong = run(packed.source_ids_N, packed.target_input_N, merged(packed.source), merged(packed.target))
    assert (right - wrong).abs().max() > 1e-3


def test_every_pair_once_within_the_budget_in_a_reproducible_order(store: Store) -> None:
    options = {"source_tokens": 200, "target_tokens": 220, "sentences": 9}
    plan = PackingPlan(store, **options, seed=1)
    batches = plan.epoch(3)
    assert sorted(np.concatenate(batches)) == list(range(len(store)))
    for rows in batches:
        assert (store.source_lengths[rows] + 1).sum() < 200 or len(rows) == 1
        assert (store.target_lengths[rows] + 1).sum() < 220 or len(rows) == 1
        assert len(rows) <= 8
    again = PackingPlan(store, **options, seed=1).epoch(3)
    assert all((one == two).all() for one, two in zip(batches, again, strict=True))
    assert any((one != two).any() for one, two in zip(batches, plan.epoch(4), strict=False) if len(one) == len(two))


def test_a_fixed_shape_is_the_same_for_every_batch_and_its_blocks_cover_every_long_sentence(store: Store) -> None:
    shape = Shape(source_tokens=200, target_tokens=220, sentences=12, whole=24, block=16)
    sizes, short = set(), 0
    for rows in PackingPlan(store, source_tokens=200, target_tokens=220, sentences=12, seed=1).epoch(0)[:20]:
        batch = pack(store, rows, shape)
        tensors = [batch.source_ids_N, batch.target_input_N, batch.target_output_N, *batch.source, *batch.target]
        sizes.add(tuple(tensor.shape for tensor in tensors if tensor is not None))
        assert int((batch.target_output_N != PAD).sum()) == batch.num_tokens
        lengths = [np.diff(segments.starts) for segments in (batch.source, batch.target)]
        long = np.flatnonzero(np.maximum(*lengths) > 24)
        short += int((np.maximum(*lengths) > 0).sum()) - len(long)
        for segments in (batch.source, batch.target):
            assert segments.blocks is not None
            covered: list[int] = []
            for sentence, number in segments.blocks.tolist():
                if sentence >= 0:
                    start, end = segments.starts[sentence : sentence + 2].tolist()
                    covered += range(start + number * 16, min(start + number * 16 + 16, end))
            bounds = [segments.starts[row : row + 2].tolist() for row in long]
            assert sorted(covered) == [token for start, end in bounds for token in range(start, end)]
    assert len(sizes) == 1
    assert short > 20, "the control: not all were long"


def test_the_store_gathers_what_it_gives_one_by_one(store: Store) -> None:
    rows = np.array([5, 0, 299, 5])
    ids, lengths = store.gather_source(rows)
    assert ids.tolist() == [token for row in rows for token in store.source(int(row)).tolist()]
    assert lengths.tolist() == [len(store.source(int(row))) for row in rows]
