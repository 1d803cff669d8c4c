"""The whole model: masking, caching, and agreement with torch.nn.Transformer."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.config import TransformerConfig
from dragoman.model import attention
from dragoman.model.attention import HeadMask, MultiHeadAttention
from dragoman.model.footprint import parameter_counts, parameter_table
from dragoman.model.positions import rotate, rotation, sinusoids
from dragoman.model.transformer import Transformer
from tests.hypotheses import check_hypotheses_follow_their_parents

VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm": "pre"},
    {"positions": "learned"},
    {"positions": "rotary"},
    {"positions": "none", "activation": "gelu"},
    {"embedding_norm": True, "positions": "learned"},
    {"activation": "swish", "output_bias": True, "attention_bias": False},
    {"d_k": 6, "d_v": 10},
    {"share_source_target": False, "target_vocab_size": 40},
    {"share_target_output": False},
    {
        "share_source_target": False,
        "decoder_d_model": 24,
        "decoder_num_layers": 1,
        "decoder_d_ff": 40,
        "decoder_num_heads": 3,
    },
]
IDS = [",".join(map(str, variant.values())) or "paper" for variant in VARIANTS]


def small_model(**options: Any) -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig.preset("tiny", **{"vocab_size": 50, "d_model": 32, "d_ff": 64, **options})
    return Transformer(config).double().eval()


def some_ids(rows: int = 3, source: int = 8, target: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    source_ids = torch.randint(4, 40, (rows, source), generator=random)
    target_ids = torch.randint(4, 40, (rows, target), generator=random)
    lengths = torch.arange(source, source - rows, -1)
    return source_ids, target_ids, torch.arange(source) < lengths[:, None]


@pytest.fixture
def no_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: attention that sees everything."""
    masked = attention.attend

    def unmasked(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None = None, **options: Any) -> Any:
        return masked(q, k, v, None, **{**options, "causal": False})

    monkeypatch.setattr(attention, "attend", unmasked)


def largest(difference: Tensor) -> float:
    return float(difference.detach().abs().max())


# What may influence what, as the largest change where there should be none


def future_influence(model: Transformer) -> float:
    """How much changing target token 3 changes the logits before it."""
    source_ids, target_ids, allowed = some_ids()
    changed = target_ids.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 40
    before, after = model(source_ids, target_ids, allowed), model(source_ids, changed, allowed)
    assert largest(after[:, 3:] - before[:, 3:]) > 1e-6, "token 3 must change its own logits"
    return largest(after[:, :3] - before[:, :3])


def padding_influence(model: Transformer) -> float:
    """How much other tokens in padding, and more of it, change the logits."""
    source_ids, target_ids, allowed = some_ids()
    padded = torch.cat((source_ids, torch.full((3, 5), 7)), dim=1)
    padded[:, :8] = torch.where(allowed, source_ids, 9)
    more = torch.cat((allowed, torch.zeros(3, 5, dtype=torch.bool)), dim=1)
    return largest(model(padded, target_ids, more) - model(source_ids, target_ids, allowed))


def batch_influence(model: Transformer) -> float:
    """How much the shorter sentence changes when it is alone, without its neighbours and their length."""
    source_ids, target_ids, allowed = some_ids()
    together = model(source_ids, target_ids, allowed)[2]
    alone = model(source_ids[2:, : int(allowed[2].sum())], target_ids[2:])[0]
    return largest(together - alone)


RELATIONS = [future_influence, padding_influence, batch_influence]


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_future_tokens_padding_and_batch_neighbours_do_not_change_logits(
    relation: Callable[[Transformer], float], variant: dict[str, Any]
) -> None:
    assert relation(small_model(**variant)) < 1e-12


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.usefixtures("no_masks")
def test_without_masks_future_tokens_padding_and_neighbours_change_logits(
    relation: Callable[[Transformer], float],
) -> None:
    assert relation(small_model()) > 1e-3


def test_a_fully_padded_sentence_stays_finite_with_and_without_weights() -> None:
    source_ids, target_ids, allowed = some_ids()
    allowed = allowed.clone()
    allowed[1] = False
    model = small_model()
    plain, weights = model(source_ids, target_ids, allowed, need_weights=True)
    assert model(source_ids, target_ids, allowed).isfinite().all()
    assert plain.isfinite().all()
    assert all((layer[1] == 0).all() for layer in weights.cross)


# Head masks

Head = tuple[str, int, int]  # encoder, decoder or cross; layer; head


def some_head_mask(model: Transformer, rows: Iterable[Head | None]) -> HeadMask:
    """One head masked in each row, or none."""
    heads = list(rows)
    encoder, decoder = model.config.encoder, model.config.decoder
    masks = {
        kind: torch.ones(size.num_layers, len(heads), size.num_heads, dtype=torch.bool)
        for kind, size in (("encoder", encoder), ("decoder", decoder), ("cross", decoder))
    }
    for row, head in enumerate(heads):
        if head is not None:
            masks[head[0]][head[1], row, head[2]] = False
    return HeadMask(masks["encoder"], masks["decoder"], masks["cross"])


def without_head(model: Transformer, head: Head) -> Transformer:
    """A copy with zeros in the columns of the output matrix that belong to the head."""
    twin = copy.deepcopy(model)
    kind, layer, number = head
    block: Any = (twin.encoder if kind == "encoder" else twin.decoder).layers[layer]
    part = block.cross_attention if kind == "cross" else block.self_attention
    width = part.output.in_features // part.num_heads
    with torch.no_grad():
        part.output.weight[:, number * width : (number + 1) * width] = 0.0
    return twin


def every_head(model: Transformer) -> list[Head]:
    encoder, decoder = model.config.encoder, model.config.decoder
    return [
        (kind, layer, head)
        for kind, size in (("encoder", encoder), ("decoder", decoder), ("cross", decoder))
        for layer in range(size.num_layers)
        for head in range(size.num_heads)
    ]


def repeated(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """One padded sentence in every row."""
    source_ids, target_ids, allowed = (part[1:2].expand(rows, -1) for part in some_ids())
    return source_ids, target_ids, allowed


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize(
    "variant",
    [VARIANTS[0], *(pytest.param(variant, marks=pytest.mark.slow) for variant in (VARIANTS[6], VARIANTS[-1]))],
    ids=[IDS[0], IDS[6], IDS[-1]],
)
def test_a_masked_head_contributes_nothing(variant: dict[str, Any], need_weights: bool) -> None:
    model = small_model(**variant)
    heads = [None, *every_head(model)]
    ids = repeated(len(heads))
    logits: Any = model(*ids, head_mask=some_head_mask(model, heads), need_weights=need_weights)
    logits = logits[0] if need_weights else logits
    plain = model(*repeated(1))[0]
    for row, head in zip(logits, heads, strict=True):
        expected = plain if head is None else without_head(model, head)(*repeated(1))[0]
        torch.testing.assert_close(row, expected, atol=1e-12, rtol=0)
        assert head is None or largest(row - plain) > 1e-6, "the control: each head contributes something"


def test_head_mask_that_keeps_all_heads_changes_no_bit() -> None:
    model = small_model()
    assert torch.equal(model(*some_ids(), head_mask=some_head_mask(model, [None] * 3)), model(*some_ids()))


def test_cached_decoding_masks_heads_and_keeps_the_mask_with_its_row() -> None:
    model = small_model()
    heads: list[Head | None] = [("decoder", 0, 1), None, ("cross", 1, 2), ("encoder", 1, 0)]
    mask = some_head_mask(model, heads)
    source_ids, target_ids, allowed = repeated(4)
    cache = model.start(model.encode(source_ids, allowed, head_mask=mask), allowed, mask)
    model.step(target_ids[:, 0], cache)
    rows = [2, 0, 0, 3, 1]  # as a beam moves
    cache.select(torch.tensor(rows))
    steps = torch.stack([model.step(target_ids[rows, place], cache) for place in range(1, 6)], dim=1)
    for step, head in zip(steps, [heads[row] for row in rows], strict=True):
        expected = (model if head is None else without_head(model, head))(*repeated(1))[0, 1:]
        torch.testing.assert_close(step, expected, atol=1e-12, rtol=0)


# Inference is training, one position at a time


@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_cached_decoding_equals_recomputation(variant: dict[str, Any]) -> None:
    model = small_model(**variant)
    source_ids, target_ids, allowed = some_ids()
    logits = model(source_ids, target_ids, allowed)
    cache = model.start(model.encode(source_ids, allowed), allowed)
    steps = [model.step(target_ids[:, position], cache) for position in range(target_ids.size(1))]
    assert largest(torch.stack(steps, dim=1) - logits) < 1e-12
    assert cache.length == target_ids.size(1)


def test_prefix_can_be_decoded_in_one_call() -> None:
    model = small_model(positions="rotary")
    source_ids, target_ids, allowed = some_ids()
    cache = model.start(model.encode(source_ids, allowed), allowed)
    parts = [model.decode(target_ids[:, :2], cache), model.decode(target_ids[:, 2:], cache)]
    assert largest(torch.cat(parts, dim=1) - model(source_ids, target_ids, allowed)) < 1e-12


@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_hypotheses_of_a_sentence_follow_their_parents(variant: dict[str, Any]) -> None:
    check_hypotheses_follow_their_parents(small_model(**variant), *some_ids())


def test_hypotheses_share_the_keys_of_the_source() -> None:
    model = small_model()
    source_ids, target_ids, allowed = some_ids()
    cache = model.start(model.encode(source_ids, allowed), allowed)
    model.step(target_ids[:, 0], cache)
    sources = [layer.source for layer in cache.layers]
    cache.reorder(torch.zeros(3, 4, dtype=torch.long))
    assert None not in sources
    assert all(layer.source is before for layer, before in zip(cache.layers, sources, strict=True))


def test_selecting_sentences_selects_their_cache() -> None:
    model = small_model()
    source_ids, target_ids, allowed = some_ids()
    order = torch.tensor([2, 0, 0])
    expected = model(source_ids[order], target_ids[order], allowed[order])[:, 1]
    for selected in (True, False):
        cache = model.start(model.encode(source_ids, allowed), allowed)
        model.step(target_ids[:, 0], cache)
        if selected:
            cache.select(order)
        difference = largest(model.step(target_ids[order, 1], cache) - expected)
        assert difference < 1e-12 if selected else difference > 1e-3


# Attention made visible


@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_weights_of_every_layer_and_head_are_returned_on_request(variant: dict[str, Any]) -> None:
    model = small_model(**variant)
    source_ids, target_ids, allowed = some_ids()
    logits, weights = model(source_ids, target_ids, allowed, need_weights=True)
    assert largest(logits - model(source_ids, target_ids, allowed)) < 1e-12, "returning weights changes nothing"
    config = model.config
    for layers, size, queries, keys in (
        (weights.encoder, config.encoder, 8, 8),
        (weights.decoder, config.decoder, 6, 6),
        (weights.cross, config.decoder, 6, 8),
    ):
        assert len(layers) == size.num_layers
        for layer in layers:
            assert layer.shape == (3, size.num_heads, queries, keys)
            torch.testing.assert_close(layer.sum(-1), torch.ones(3, size.num_heads, queries, dtype=torch.float64))
    assert all((layer.triu(1) == 0).all() for layer in weights.decoder)


def test_forward_stores_nothing_on_the_modules() -> None:
    model = small_model()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    model(*some_ids(), need_weights=True)
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before


# Positions


@pytest.mark.parametrize(
    ("positions", "equivariant"), [("none", True), ("sinusoidal", False), ("learned", False), ("rotary", False)]
)
def test_without_positions_the_encoder_is_permutation_equivariant(positions: str, equivariant: bool) -> None:
    model = small_model(positions=positions)
    source_ids, _, _ = some_ids()
    order = torch.randperm(8, generator=torch.Generator().manual_seed(3))
    difference = largest(model.encode(source_ids[:, order]) - model.encode(source_ids)[:, order])
    assert difference < 1e-12 if equivariant else difference > 1e-3


def test_sinusoids_match_the_paper() -> None:
    table = sinusoids(torch.arange(50), 16)
    assert table.shape == (50, 16)
    for position in (0, 1, 7, 49):
        for pair in range(8):
            angle = torch.tensor(position / 10_000 ** (2 * pair / 16), dtype=torch.float64)
            assert float(table[position, 2 * pair]) == pytest.approx(float(angle.sin()), abs=1e-12)
            assert float(table[position, 2 * pair + 1]) == pytest.approx(float(angle.cos()), abs=1e-12)


@pytest.mark.parametrize("distance", [1, 5, 40])
def test_a_shift_of_sinusoids_is_one_linear_map(distance: int) -> None:
    """The same map at every position: it depends only on the distance."""
    table = sinusoids(torch.arange(200), 16).double()

    def shift(distance: int) -> Tensor:
        sin, cos = table[distance, 0::2], table[distance, 1::2]
        blocks = [torch.tensor([[c, -s], [s, c]]) for s, c in zip(sin, cos, strict=True)]
        return torch.block_diag(*blocks).double()  # type: ignore[no-untyped-call]

    torch.testing.assert_close(table[:-distance] @ shift(distance), table[distance:], atol=1e-6, rtol=0)
    assert (table[:-distance] @ shift(distance + 1) - table[distance:]).abs().max() > 1e-2, "the control"


def test_rotary_scores_depend_on_the_distance_only() -> None:
    random = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, 1, 8, generator=random, dtype=torch.float64) for _ in range(2))

    def score(query_at: int, key_at: int) -> float:
        at = (rotation(place, 1, 8, torch.device("cpu")) for place in (query_at, key_at))
        return float((rotate(q, next(at)) * rotate(k, next(at))).sum())

    assert score(3, 1) == pytest.approx(score(12, 10), abs=1e-12)
    assert abs(score(3, 1) - score(3, 2)) > 1e-3


def rotation_error(rotated: Tensor, x: Tensor, turns: Tensor) -> float:
    """Against float64, in units of what rounding the exact result to the type of `x` may cost."""
    exact = rotate(x.double(), turns)
    sizes = x.double().abs()
    pairs = (sizes[..., 0::2] + sizes[..., 1::2]).repeat_interleave(2, dim=-1)
    rounding = torch.finfo(x.dtype).eps / 2 * exact.abs() + torch.finfo(torch.float32).eps * pairs  # of float32 inside
    return float(((rotated.double() - exact).abs() / rounding).max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rotations_in_half_precision_lose_no_more_than_the_rounding_of_their_result(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for start in (0, 1_000, 9_900):
        x, turns = torch.randn(2, 4, 100, 32).to(dtype), rotation(start, 100, 32, torch.device("cpu"))
        rotated = rotate(x, turns)
        assert rotated.dtype == dtype
        assert rotation_error(rotated, x, turns) <= 1.01
        cos, sin = turns.to(dtype)  # the control: all of it in half precision
        even, odd = x[..., 0::2], x[..., 1::2]
        careless = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
        assert rotation_error(careless, x, turns) > 10


def test_rotations_in_float32_match_the_plain_formula_bit_for_bit() -> None:
    """To the bit: seeded runs with rotary positions stay the same."""
    x, turns = torch.randn(2, 4, 100, 32), rotation(50, 100, 32, torch.device("cpu"))
    cos, sin = turns.float()
    even, odd = x[..., 0::2], x[..., 1::2]
    before = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    assert torch.equal(rotate(x, turns), before)


def test_exceeding_learned_positions_raises_a_clear_error() -> None:
    model = small_model(positions="learned", max_positions=7)
    with pytest.raises(ValueError, match="length=8 is over max_positions=7; split the text or train with more"):
        model(*some_ids())


# The same weights in torch.nn.Transformer


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    theirs.in_proj_weight.copy_(torch.cat((ours.query.weight, ours.key.weight, ours.value.weight)))
    theirs.in_proj_bias.copy_(torch.cat((ours.query.bias, ours.key.bias, ours.value.bias)))
    theirs.out_proj.weight.copy_(ours.output.weight)
    theirs.out_proj.bias.copy_(ours.output.bias)


@torch.no_grad()
def torch_twin(model: Transformer) -> nn.Transformer:
    """torch.nn.Transformer with our weights; in post-norm without the final norms that the paper has not."""
    size, pre = model.config.encoder, model.config.norm == "pre"
    twin = nn.Transformer(
        size.d_model, size.num_heads, size.num_layers, size.num_layers, size.d_ff, 0.0, batch_first=True, norm_first=pre
    )
    if not pre:
        twin.encoder.norm = twin.decoder.norm = None
    stacks: list[tuple[Any, Any]] = [(model.encoder, twin.encoder), (model.decoder, twin.decoder)]
    for our_stack, their_stack in stacks:
        if pre:
            their_stack.norm.load_state_dict(our_stack.final_norm.state_dict())
        for ours, theirs in zip(our_stack.layers, their_stack.layers, strict=True):
            residuals = [ours.self_attention_residual]
            copy_attention(ours.self_attention, theirs.self_attn)
            if hasattr(ours, "cross_attention"):
                copy_attention(ours.cross_attention, theirs.multihead_attn)
                residuals.append(ours.cross_attention_residual)
            theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
            theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())
            for number, residual in enumerate([*residuals, ours.feed_forward_residual], start=1):
                getattr(theirs, f"norm{number}").load_state_dict(residual.layer_norm.state_dict())
    return twin.eval()


def randomise(model: Transformer) -> None:
    """Random scales and biases: at 1 and 0 a model without them would agree too."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, mean=1.0, std=0.2)
        if isinstance(module, nn.LayerNorm | nn.Linear) and module.bias is not None:
            nn.init.normal_(module.bias, std=0.2)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning")
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("masked", [True, False])
def test_model_matches_torch_transformer(norm: str, masked: bool) -> None:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.base(vocab_size=50, num_layers=3, norm=norm, positions="none")).eval()
    randomise(model)
    twin = torch_twin(model)
    source, target = torch.randn(3, 8, 512), torch.randn(3, 6, 512)
    _, _, allowed = some_ids()
    causal = nn.Transformer.generate_square_subsequent_mask(6) < 0
    memory = model.encoder(source, allowed, None)
    ours = model.decoder(target, model.start(memory, allowed), None)
    hidden = ~allowed if masked else None  # the control compares with a twin that sees padding
    theirs = twin(  # with gradients on: without them torch takes another path, through nested tensors
        source, target, tgt_mask=causal, src_key_padding_mask=hidden, memory_key_padding_mask=hidden, tgt_is_causal=True
    )
    if masked:
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    else:
        assert largest(ours - theirs) > 1e-2


# Sizes


@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_parameters_are_counted_without_building(variant: dict[str, Any]) -> None:
    model = small_model(**variant)
    assert sum(parameter_counts(model.config).values()) == sum(weight.numel() for weight in model.parameters())


def test_base_and_big_have_the_papers_sizes() -> None:
    base, big = TransformerConfig.base(vocab_size=37_000), TransformerConfig.big(vocab_size=37_000)
    assert sum(parameter_counts(base).values()) == 63_082_496
    assert sum(parameter_counts(big).values()) == 214_245_376
    with torch.device("meta"):
        assert sum(weight.numel() for weight in Transformer(base).parameters()) == 63_082_496
        assert sum(weight.numel() for weight in Transformer(big).parameters()) == 214_245_376
    table = parameter_table(base)
    assert "source embedding            18,944,000   30.0%" in table
    assert table.endswith("total                       63,082,496  63.1M")


def test_a_gain_scales_the_matrices_and_not_the_embeddings() -> None:
    drawn = []
    for gain in (1.0, 0.5):
        torch.manual_seed(0)
        drawn.append(small_model(init_gain=gain, share_target_output=False))
    for (name, whole), half in zip(drawn[0].named_parameters(), drawn[1].parameters(), strict=True):
        matrix = whole.dim() == 2 and "embedding" not in name
        torch.testing.assert_close(half, whole * (0.5 if matrix else 1.0), msg=name)


@pytest.mark.parametrize("share_source_target", [True, False])
@pytest.mark.parametrize("share_target_output", [True, False])
def test_embedding_and_output_sharing_are_independent(share_source_target: bool, share_target_output: bool) -> None:
    model = small_model(share_source_target=share_source_target, share_target_output=share_target_output)
    assert (model.source_embedding.weight is model.target_embedding.weight) == share_source_target
    assert (model.output.weight is model.target_embedding.weight) == share_target_output


def test_initialisation_matches_the_paper() -> None:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.base(vocab_size=5_000))
    assert float(model.output.weight.detach().std()) == pytest.approx(512**-0.5, rel=0.02)
    encoder_layer: Any = model.encoder.layers[0]
    bound = (6 / (512 + 2048)) ** 0.5
    assert bound * 0.99 < largest(encoder_layer.feed_forward.inner.weight) <= bound
    decoder_layer: Any = model.decoder.layers[0]
    norm = decoder_layer.self_attention_residual.layer_norm
    assert (norm.weight == 1).all()
    assert (norm.bias == 0).all()
