"""Recurrent models: masking, the score functions, the same interface as the Transformer."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.config import Config, RecurrentConfig
from dragoman.errors import ConfigError
from dragoman.model.footprint import parameter_counts
from dragoman.model.recurrent import Recurrent, Score
from tests.hypotheses import check_hypotheses_follow_their_parents

LOOKING = [("source", score) for score in ("dot", "scaled_dot", "general", "additive")] + [("self", "scaled_dot")]
VARIANTS: list[dict[str, Any]] = [
    {"cell": cell, "context": context, "score": score, "num_layers": layers}
    for (cell, layers), (context, score) in itertools.product((("rnn", 1), ("lstm", 2)), [("none", "dot"), *LOOKING])
]
IDS = ["-".join(map(str, variant.values())) for variant in VARIANTS]


def small_model(**options: Any) -> Recurrent:
    torch.manual_seed(0)
    return Recurrent(RecurrentConfig(vocab_size=40, d_model=16, **options)).double().eval()


def some_ids() -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    source_ids = torch.randint(4, 40, (3, 8), generator=random)
    target_ids = torch.randint(4, 40, (3, 6), generator=random)
    return source_ids, target_ids, torch.arange(8) < torch.tensor([[8], [7], [5]])


def largest(difference: Tensor) -> float:
    return float(difference.detach().abs().max())


@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_no_target_token_sees_a_later_one(variant: dict[str, Any]) -> None:
    model = small_model(**variant)
    source_ids, target_ids, allowed = some_ids()
    changed = target_ids.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 40
    before, after = model(source_ids, target_ids, allowed), model(source_ids, changed, allowed)
    assert largest(after[:, 3:] - before[:, 3:]) > 1e-6
    assert largest(after[:, :3] - before[:, :3]) < 1e-12


@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_padding_and_batch_neighbours_change_nothing(variant: dict[str, Any]) -> None:
    model = small_model(**variant)
    source_ids, target_ids, allowed = some_ids()
    together = model(source_ids, target_ids, allowed)
    poisoned = torch.where(allowed, source_ids, 9)
    assert largest(model(poisoned, target_ids, allowed) - together) < 1e-12
    assert largest(model(source_ids[2:, :5], target_ids[2:]) - together[2:]) < 1e-12
    assert largest(model(source_ids, target_ids)[2] - together[2]) > 1e-4, "the control: without the mask they would"


@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_step_by_step_decoding_matches_one_pass(variant: dict[str, Any]) -> None:
    model = small_model(**variant)
    source_ids, target_ids, allowed = some_ids()
    logits = model(source_ids, target_ids, allowed)
    state = model.start(model.encode(source_ids, allowed), allowed)
    steps = [model.step(target_ids[:, position], state) for position in range(6)]
    assert largest(torch.stack(steps, dim=1) - logits) < 1e-12


@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_hypotheses_of_a_sentence_follow_their_parents(variant: dict[str, Any]) -> None:
    check_hypotheses_follow_their_parents(small_model(**variant), *some_ids())


@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_selecting_sentences_selects_their_state(variant: dict[str, Any]) -> None:
    model = small_model(**variant)
    source_ids, target_ids, allowed = some_ids()
    order = torch.tensor([2, 0, 0])
    expected = model(source_ids[order], target_ids[order], allowed[order])[:, 1]
    for selected in (True, False):
        state = model.start(model.encode(source_ids, allowed), allowed)
        model.step(target_ids[:, 0], state)
        if selected:
            state.select(order)
        difference = largest(model.step(target_ids[order, 1], state) - expected)
        assert difference < 1e-12 if selected else difference > 1e-4


@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_attention_uses_the_record_of_the_transformer(variant: dict[str, Any]) -> None:
    model = small_model(**variant)
    source_ids, target_ids, allowed = some_ids()
    logits, weights = model(source_ids, target_ids, allowed, need_weights=True)
    assert largest(logits - model(source_ids, target_ids, allowed)) == 0
    assert weights.encoder == []
    assert len(weights.cross) == (variant["context"] == "source")
    assert len(weights.decoder) == (variant["context"] == "self")
    for layer in weights.cross:
        assert layer.shape == (3, 1, 6, 8)
        torch.testing.assert_close(layer.sum(-1), torch.ones(3, 1, 6, dtype=torch.float64))
        assert (layer[2, :, :, 5:] == 0).all()
    for layer in weights.decoder:
        assert layer.shape == (3, 1, 6, 6)
        assert (layer.triu(1) == 0).all()


@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_parameters_are_counted_without_building(variant: dict[str, Any]) -> None:
    for sharing in itertools.product((True, False), repeat=2):
        model = small_model(**variant, share_source_target=sharing[0], share_target_output=sharing[1])
        assert sum(parameter_counts(model.config).values()) == sum(weight.numel() for weight in model.parameters())


def test_without_attention_the_source_passes_through_one_state() -> None:
    """The bottleneck: two sources with the same last state cannot be told apart, whatever their length."""
    model = small_model(context="none")
    source_ids, target_ids, _ = some_ids()
    memory = model.encode(source_ids)
    other = model.encode(source_ids[:, :4])
    other.last = memory.last
    plain = model.decode(target_ids, model.start(memory))
    assert largest(model.decode(target_ids, model.start(other)) - plain) == 0
    looking = small_model(context="source")
    memory, other = looking.encode(source_ids), looking.encode(source_ids[:, :4])
    other.last = memory.last
    assert (
        largest(looking.decode(target_ids, looking.start(other)) - looking.decode(target_ids, looking.start(memory)))
        > 1e-3
    )


def test_score_functions_match_their_formulas() -> None:
    torch.manual_seed(0)
    s, h = torch.randn(2, 3, 16, dtype=torch.float64), torch.randn(2, 5, 16, dtype=torch.float64)
    scores = {kind: Score(kind, 16).double() for kind in ("dot", "scaled_dot", "general", "additive")}
    for batch, target, source in itertools.product(range(2), range(3), range(5)):
        mine, theirs = s[batch, target], h[batch, source]
        additive = scores["additive"]
        expected = {
            "dot": mine @ theirs,
            "scaled_dot": mine @ theirs / math.sqrt(16),
            "general": mine @ scores["general"].matrix.weight @ theirs,
            "additive": additive.vector.weight[0]
            @ torch.tanh(additive.query.weight @ mine + additive.key.weight @ theirs),
        }
        for kind, value in expected.items():
            torch.testing.assert_close(scores[kind](s, h)[batch, target, source], value)


def test_sentence_of_only_padding_stays_finite() -> None:
    source_ids, target_ids, allowed = some_ids()
    allowed = allowed.clone()
    allowed[1] = False
    for context in ("none", "source", "self"):
        assert small_model(context=context)(source_ids, target_ids, allowed).isfinite().all()


def test_config_accepts_both_architectures() -> None:
    config = Config.build("tiny", None, ["model.architecture=rnn", "model.cell=rnn"])
    assert isinstance(config.model, RecurrentConfig)
    assert (config.model.d_model, config.model.num_layers, config.model.cell) == (128, 2, "rnn")
    with pytest.raises(ConfigError, match=r"model\.architecture: 'rrn' is not a choice; did you mean rnn\?"):
        Config.build("tiny", None, ["model.architecture=rrn"])
    with pytest.raises(ConfigError, match=r"model\.num_heads: unknown key; "):
        Config.build("tiny", None, ["model.architecture=rnn", "model.num_heads=4"])
