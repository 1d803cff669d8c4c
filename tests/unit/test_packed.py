"""Packed batches: the same loss and gradients as padded ones, every pair once, fixed shapes."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.config import RecurrentConfig, TransformerConfig
from dragoman.data.batching import collate
from dragoman.data.packing import PackingPlan, Shape, pack, pack_sources
from dragoman.data.store import Store, build_store
from dragoman.errors import ConfigError
from dragoman.model.build import build_model
from dragoman.model.loss import projected_cross_entropy, smoothed_cross_entropy
from dragoman.model.packed import PackedTransformer, Rows, Segments, _kept, _PaddedAttention
from dragoman.model.transformer import Transformer
from dragoman.tasks.translation import TranslationTask
from dragoman.text.tokenizer import Tokenizer
from dragoman.text.vocabulary import VOCABULARY, Vocabulary
from dragoman.training.distributed import Ranks
from dragoman.training.gradients import Packed, PackedLoss, Padded, PaddedLoss, packing_pays
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
    {"embedding_norm": True},
]


def gradients(model: Transformer, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    names, weights = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, weights), strict=True))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("chunk", [8_192, 7])
def test_loss_and_gradients_match_the_padded_layout(
    store: Store, variant: dict[str, Any], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.model.loss.CHUNK", chunk)
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


def test_groups_of_a_padded_batch_give_the_gradient_of_one_batch(store: Store) -> None:
    settings = quick_config("train.batch_tokens=4096", "train.label_smoothing=0.1").train
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.tiny(vocab_size=300, d_model=32, d_ff=48, dropout=0.0)).double()
    cpu = torch.device("cpu")
    padded = Padded(TranslationTask(), settings, lambda epoch: store, 100, model, cpu, torch.float32, Ranks())
    rows = padded.epoch(0)[0]
    groups = padded.make(0, rows)
    whole = collate(store, rows)
    assert len(groups) > 1
    assert max(group.inputs[0].numel() for group in groups) <= 1_024 < whole.source_ids.numel()
    loss = padded.gradients([groups], padded.tokens(0, rows))
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    logits = model(whole.source_ids, whole.target_input, whole.source_allowed)
    plain = smoothed_cross_entropy(logits, whole.target_output, 0.1) / whole.num_tokens
    torch.testing.assert_close(loss.double(), plain.detach(), atol=1e-6, rtol=1e-6)
    for name, gradient in gradients(model, plain).items():
        torch.testing.assert_close(found[name], gradient, atol=1e-9, rtol=1e-9, msg=name)


def test_group_needs_room_for_the_longest_pair_only(store: Store) -> None:
    settings, model = quick_config("train.batch_tokens=2048").train, Transformer(TransformerConfig.tiny(vocab_size=300))
    sides = (model, torch.device("cpu"), torch.float32, Ranks())
    for longest, groups in ((1_024, 2), (1_025, 1)):
        assert Padded(TranslationTask(), settings, lambda epoch: store, longest, *sides)._groups == groups


def packed_attention(store: Store, dropout: float, seed: int = 0) -> Any:
    """Self-attention over a few sentences as a function of queries, keys and values, and example inputs."""
    batch = pack(store, np.argsort(store.source_lengths)[[20, 60, 90]])
    torch.manual_seed(1)
    inputs = [torch.randn(len(batch.source_ids_N), 2, 2, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    def attention(*qkv: torch.Tensor) -> Any:
        torch.manual_seed(seed)
        return _PaddedAttention.apply(*qkv, batch.source.rows, batch.source.rows, True, dropout)  # type: ignore[no-untyped-call]

    return attention, inputs


@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=pytest.mark.slow), 0.3])
def test_attention_passes_gradcheck(store: Store, dropout: float) -> None:
    attention, inputs = packed_attention(store, dropout)
    assert torch.autograd.gradcheck(attention, inputs)


@pytest.mark.slow
def test_attention_dropout_is_applied_and_preserves_the_mean(store: Store) -> None:
    (whole, inputs), (dropped, _) = (packed_attention(store, dropout) for dropout in (0.0, 0.5))
    other, _ = packed_attention(store, 0.5, seed=1)
    assert not torch.equal(whole(*inputs), dropped(*inputs))
    assert not torch.equal(other(*inputs), dropped(*inputs))
    many = torch.stack([packed_attention(store, 0.5, seed)[0](*inputs) for seed in range(400)])
    torch.testing.assert_close(many.mean(dim=0), whole(*inputs), atol=0.4, rtol=0.0)


@pytest.mark.parametrize("dropout", [0.1, 0.5])
@pytest.mark.parametrize("shape", [(1_000, 301), (3,)])
def test_dropout_has_its_rate_and_preserves_the_mean(dropout: float, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    kept = _kept(torch.empty(shape), dropout)
    torch.manual_seed(0)
    assert torch.equal(kept, _kept(torch.empty(shape), dropout))
    assert kept.shape == shape
    scale = pytest.approx(1 / (1 - dropout), rel=1e-4)
    assert all(value in (0.0, scale) for value in set(kept.flatten().tolist()))
    if kept.numel() > 1_000:
        assert float((kept == 0).double().mean()) == pytest.approx(dropout, abs=0.003)
        neighbours = (kept == 0).double().flatten()
        together = float((neighbours[1:] * neighbours[:-1]).mean())
        assert together == pytest.approx(dropout**2, abs=0.003), "each on its own"


@pytest.mark.slow
def test_bfloat16_is_close_to_float32(store: Store) -> None:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.tiny(vocab_size=300, d_model=64, d_ff=128)).eval()
    batch = pack(store, np.arange(10))
    found = {}
    for precision in (torch.float32, torch.bfloat16):
        loss = PackedLoss(model, PackedTransformer(model, 64), precision, 0.1)(batch)
        found[precision] = (loss.item(), torch.cat([part.flatten() for part in gradients(model, loss).values()]))
    (exact, exactly), (near, nearly) = found[torch.float32], found[torch.bfloat16]
    assert near == pytest.approx(exact, rel=2e-3)
    assert float(torch.cosine_similarity(exactly, nearly, dim=0)) > 0.999
    assert not torch.equal(exactly, nearly)


def test_missing_sentence_boundaries_are_detected(store: Store) -> None:
    """The control: all tokens of a batch as one sentence."""
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.tiny(vocab_size=300, d_model=32, d_ff=48)).double().eval()
    packed = pack(store, np.arange(5))

    def merged(segments: Segments) -> Segments:
        tokens_BL = torch.arange(len(segments.positions_N))[None]
        real_BL = torch.ones_like(tokens_BL, dtype=torch.bool)
        return segments._replace(rows=Rows((tokens_BL,), (real_BL,), tokens_BL[0]))

    run = PackedTransformer(model, 64)
    right = run(packed.source_ids_N, packed.target_input_N, packed.source, packed.target)
    wrong = run(packed.source_ids_N, packed.target_input_N, merged(packed.source), merged(packed.target))
    assert (right - wrong).abs().max() > 1e-3


def test_every_pair_is_packed_once_within_the_budget_in_a_reproducible_order(store: Store) -> None:
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


def test_fixed_shape_is_constant_and_its_blocks_cover_long_sentences(store: Store) -> None:
    shape = Shape(source_tokens=200, target_tokens=220, sentences=12, whole=24, block=16)
    sizes, short = set(), 0
    for rows in PackingPlan(store, source_tokens=200, target_tokens=220, sentences=12, seed=1).epoch(0)[:20]:
        batch = pack(store, rows, shape)
        tensors = [batch.source_ids_N, batch.target_input_N, batch.target_output_N, *batch.source, *batch.target]
        sizes.add(tuple(tensor.shape for tensor in tensors if isinstance(tensor, torch.Tensor)))
        assert int((batch.target_output_N != VOCABULARY.pad).sum()) == batch.num_tokens
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


def test_other_special_ids_with_their_embeddings_give_the_same_loss(store: Store) -> None:
    torch.manual_seed(0)
    config = TransformerConfig.tiny(vocab_size=310, d_model=32, d_ff=48, share_source_target=False)
    model, rows = Transformer(config).double().eval(), np.arange(7, 27)
    shape = Shape(source_tokens=600, target_tokens=600, sentences=30, whole=64, block=16)
    other = copy.copy(store)
    other.source_vocabulary = Vocabulary(pad=301, unk=1, bos=302, eos=303)
    other.target_vocabulary = Vocabulary(pad=304, unk=1, bos=305, eos=306)

    def losses(of: Store) -> list[float]:
        batch, packed, filled = collate(of, rows), pack(of, rows), pack(of, rows, shape)
        assert int((filled.target_output_N != filled.pad).sum()) == batch.num_tokens < 600
        assert set(filled.source_ids_N[-5:].tolist()) == {of.source_vocabulary.pad}
        batch.target_output[0, 0] = packed.target_output_N[0] = of.target_vocabulary.pad  # nothing to predict there
        fast = PackedLoss(model, PackedTransformer(model, 64), torch.float32, 0.1)
        return [PaddedLoss(TranslationTask(), model, torch.float32, 0.1)(batch).item(), fast(packed).item()]

    before, control = losses(store), losses(other)
    assert abs(control[0] - before[0]) > 1.0, "the control: other embeddings"
    with torch.no_grad():
        for table, special in (
            (model.source_embedding, other.source_vocabulary),
            (model.target_embedding, other.target_vocabulary),
        ):
            usual, new = ([ids.pad, ids.bos, ids.eos] for ids in (VOCABULARY, special))
            table.weight[usual + new] = table.weight[new + usual]
    assert losses(other) == pytest.approx(before, rel=1e-12)


def test_gathered_rows_match_single_rows(store: Store) -> None:
    rows = np.array([5, 0, 299, 5])
    ids, lengths = store.gather_source(rows)
    assert ids.tolist() == [token for row in rows for token in store.source(int(row)).tolist()]
    assert lengths.tolist() == [len(store.source(int(row))) for row in rows]


@pytest.mark.parametrize(
    ("device", "precision", "pays"),
    [
        ("cuda", torch.bfloat16, True),
        ("cuda", torch.float32, True),
        ("cpu", torch.bfloat16, True),
        ("cpu", torch.float32, False),
        ("mps", torch.bfloat16, False),
    ],
)
def test_packing_is_chosen_by_device_precision_and_architecture(
    device: str, precision: torch.dtype, pays: bool
) -> None:
    transformer = Transformer(TransformerConfig.tiny(vocab_size=300))
    assert packing_pays(transformer, torch.device(device), precision) == pays
    recurrent = build_model(RecurrentConfig(vocab_size=300, d_model=16))
    assert not packing_pays(recurrent, torch.device(device), precision)


def test_batch_has_room_for_the_longest_source(store: Store) -> None:
    class Short:
        source_sizes, target_sizes = np.full(100, 6), np.full(100, 51)

    model = Transformer(TransformerConfig.tiny(vocab_size=300))
    settings, cpu = quick_config("train.batch_tokens=1024").train, torch.device("cpu")

    def layout_for(longest: int) -> Packed:
        typical: Any = Short()
        return Packed(
            TranslationTask(), settings, lambda _: store, typical, longest, model, cpu, torch.float32, Ranks()
        )

    assert layout_for(50).plan["source_tokens"] == 128
    assert layout_for(256).plan["source_tokens"] == 384
    layout_for(1_023)
    message = "train.batch_tokens: 1024 is too small for the longest pair, 1024 pieces plus one; raise it"
    with pytest.raises(ConfigError, match=message):
        layout_for(1_024)


def test_sources_are_padded_to_a_shape_with_tokens_of_no_sentence() -> None:
    shape = Shape(source_tokens=16, target_tokens=16, sentences=5, whole=3, block=2)
    ids, segments = pack_sources([[7, 8], [5, 6, 7, 8, 9], [4]], shape)
    assert ids.tolist() == [7, 8, 5, 6, 7, 8, 9, 4, *[0] * 8]
    assert segments.positions_N.tolist() == [0, 1, 0, 1, 2, 3, 4, 0, *[0] * 8]
    assert segments.starts.tolist() == [0, 2, 7, 8, 8, 8]
    assert segments.blocks is not None
    assert len(segments.blocks) == shape.blocks(16)
    assert segments.blocks.tolist() == [[1, 0], [1, 1], [1, 2], *[[-1, -1]] * (shape.blocks(16) - 3)]
    ids, segments = pack_sources([[7, 8], [5]])
    assert (ids.tolist(), segments.starts.tolist(), segments.blocks) == ([7, 8, 5], [0, 2, 3], None)
