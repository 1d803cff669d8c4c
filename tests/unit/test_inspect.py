"""Inspection: recorded values match the model; masked heads add nothing; statistics of hand-made heads."""

import base64
import copy
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dragoman
from dragoman.config import Config, DecodeConfig
from dragoman.data.batching import Batch
from dragoman.decode.engines.plain import PRECISIONS, Engine, EngineDecoding
from dragoman.decode.search import BeamStep, beam_search
from dragoman.decode.translation import Attention
from dragoman.decode.translator import Translator
from dragoman.errors import ConfigError, DataError
from dragoman.inspect import heads
from dragoman.inspect.capture import Inspection, inspect_sentence, parse_head, score_of, without_heads
from dragoman.inspect.gallery import labels, pictures_of
from dragoman.inspect.heads import HeadTally, rank_heads
from dragoman.inspect.payload import inspect_many, sentence_payload
from dragoman.model.positions import sinusoids
from dragoman.progress import Advance
from dragoman.training.loop import train
from tests.conftest import QUICK

SOURCE = "a b c d e f"


@pytest.fixture(scope="module")
def translator(quick_run: Path) -> Translator:
    return dragoman.load(str(quick_run), "cpu", engine="plain")  # whose model a test can change


@pytest.fixture(scope="module")
def inspected(translator: Translator) -> Inspection:
    return inspect_sentence(translator, SOURCE)


# One sentence


def test_inspection_matches_the_translator(translator: Translator, inspected: Inspection) -> None:
    result = translator.translate(SOURCE, attention=True)
    assert (inspected.translation, inspected.tokens) == (result.text, result.tokens)
    assert inspected.score == pytest.approx(result.score, abs=1e-4)
    assert result.attention is not None
    np.testing.assert_array_equal(inspected.attention.cross, result.attention.cross)


def test_probabilities_match_step_by_step_decoding(translator: Translator, inspected: Inspection) -> None:
    """All positions at once, as in training, and one by one, as in inference, give the same numbers."""
    with torch.inference_mode():
        decoding = translator.engine.start([[*translator.tokenizers.source.encode(SOURCE), 3]])
        fed = 2  # <s>
        for step, token in zip(inspected.steps, inspected.target_ids, strict=True):
            log_prob_V = decoding.log_probs(np.array([[fed]]))[0]
            assert step.probability == pytest.approx(float(log_prob_V[token].exp()), abs=1e-5)
            assert step.candidates[0][1] == pytest.approx(float(log_prob_V.max().exp()), abs=1e-5)
            assert step.rank == 1 + int((log_prob_V > log_prob_V[token]).sum())
            fed = token


def test_a_forced_translation_shows_where_the_model_disagrees(translator: Translator, inspected: Inspection) -> None:
    forced = inspect_sentence(translator, SOURCE, "z z z")
    assert forced.forced
    assert forced.translation == "z z z"
    assert not forced.beam
    assert forced.disagreements
    assert forced.score < inspected.score
    assert forced.score == pytest.approx(translator.score([SOURCE], ["z z z"])[0], abs=1e-4)
    for place in forced.disagreements:
        assert forced.steps[place].candidates[0][0] != forced.tokens[place]
    again = inspect_sentence(translator, SOURCE, inspected.translation)
    assert [step.probability for step in again.steps] == [step.probability for step in inspected.steps]


def test_a_byte_order_mark_at_the_start_is_not_inspected(translator: Translator, inspected: Inspection) -> None:
    marked = inspect_sentence(translator, f"\ufeff{SOURCE}", f"\ufeff{inspected.translation}")
    assert (marked.source, marked.source_ids, marked.target_ids) == (SOURCE, inspected.source_ids, inspected.target_ids)


def test_invalid_input_is_refused(translator: Translator) -> None:
    with pytest.raises(DataError, match=r"^inspect: the text is blank; give a sentence$"):
        inspect_sentence(translator, " \t")
    with pytest.raises(DataError, match=r"^inspect: invalid UTF-8 at character 3; give a sentence$"):
        inspect_sentence(translator, "a \udcff")
    with pytest.raises(DataError, match=r"^inspect: NUL at character 2; give a sentence$"):
        inspect_sentence(translator, "a\0b")
    with pytest.raises(DataError, match=r"^--target: NUL at character 2; give text$"):
        inspect_sentence(translator, SOURCE, "a\0b")
    with pytest.raises(DataError, match=r"^--target: \d+ pieces; at most 1024 can be shown; give a shorter one$"):
        inspect_sentence(translator, SOURCE, "a " * 1200)
    with pytest.raises(
        DataError, match=r"^inspect: \d+ pieces; this model takes at most 256; give a shorter sentence$"
    ):
        inspect_sentence(translator, "a " * 300)


# The beam


def test_search_tree_has_every_candidate_and_its_best_path_is_the_translation(inspected: Inspection) -> None:
    best = [node for node in inspected.beam if node.fate == "best"]
    assert tuple(node.token for node in best) == inspected.tokens
    assert best[-1].score == pytest.approx(inspected.score, abs=1e-4)
    for index, node in enumerate(inspected.beam):
        assert node.parent < index
        if node.parent >= 0:
            parent = inspected.beam[node.parent]
            assert parent.depth == node.depth - 1
            assert parent.fate in ("kept", "best"), "dropped or finished hypotheses are not extended"
            assert parent.score >= node.score
        else:
            assert node.depth == 1
    depths = [node.depth for node in inspected.beam]
    for depth in set(depths):
        here = [node for node in inspected.beam if node.depth == depth]
        assert len(here) <= 8, "twice the beam"
        gone_on = {node.parent for node in inspected.beam if node.depth == depth + 1}
        assert len(gone_on) <= 4, "the beam"
        kept = [node.score for node in here if node.fate in ("kept", "best") and node.token != "</s>"]
        dropped = [node.score for node in here if node.fate == "dropped" and node.token != "</s>"]
        assert not dropped or min(kept) >= max(dropped), "better hypotheses come first"


def test_watching_does_not_change_the_search(translator: Translator) -> None:
    steps: list[BeamStep] = []
    ids = [*translator.tokenizers.source.encode(SOURCE), 3]

    def found(watched: bool) -> object:
        with torch.inference_mode():
            decoding = translator.engine.start([ids, ids[2:]])
            return beam_search(
                decoding, [20, 20], DecodeConfig(n_best=3), start=2, end=3, watch=steps.append if watched else None
            )

    assert found(True) == found(False)
    assert {int(sentence) for step in steps for sentence in step.sentence_B} == {0, 1}


# Masked heads


def zeroed(translator: Translator, names: Sequence[str]) -> Translator:
    """A copy of the model with zeros for the outputs of the heads: what a mask should be equivalent to."""
    model = copy.deepcopy(translator.engine.model)
    for kind, layer, head in (parse_head(name, model) for name in names):
        block: Any = (model.encoder if kind == "encoder" else model.decoder).layers[layer]
        part = block.cross_attention if kind == "cross" else block.self_attention
        width = part.output.in_features // part.num_heads
        with torch.no_grad():
            part.output.weight[:, head * width : (head + 1) * width] = 0.0
    twin = copy.copy(translator)
    twin.engine = Engine(model, translator.engine.device)
    return twin


CROSS = ["cross.1.1", "cross.1.2", "cross.1.3"]


@pytest.mark.parametrize(
    "names", [["encoder.1.2"], ["decoder.1.4"], CROSS, ["encoder.1.1", "decoder.1.1", "cross.1.4"]]
)
def test_masked_head_equals_zeros_in_the_output_matrix(translator: Translator, names: list[str]) -> None:
    """In the search, one cached step at a time; in what is scored; in the attention after it."""
    expected, found = (
        inspect_sentence(each, SOURCE) for each in (zeroed(translator, names), without_heads(translator, names))
    )
    assert found.tokens == expected.tokens
    np.testing.assert_allclose(
        [step.log_probability for step in found.steps], [step.log_probability for step in expected.steps], atol=1e-4
    )
    np.testing.assert_allclose([node.score for node in found.beam], [node.score for node in expected.beam], atol=1e-4)
    for kind in ("encoder", "decoder", "cross"):
        np.testing.assert_allclose(getattr(found.attention, kind), getattr(expected.attention, kind), atol=1e-5)
    assert found.score != pytest.approx(inspect_sentence(translator, SOURCE).score, abs=1e-3), "the control"


@pytest.mark.parametrize("beam", [1, 4])
def test_a_masked_translator_translates_any_batch(translator: Translator, beam: int) -> None:
    lines = [SOURCE, "c b", "", "a b c d e f g h"]
    masked = without_heads(translator, CROSS)
    expected = zeroed(translator, CROSS).translate(lines, beam=beam, n_best=beam)
    found = masked.translate(lines, beam=beam, n_best=beam)
    assert [result.text for result in found] == [result.text for result in expected]
    assert [result.score for result in found] == pytest.approx([result.score for result in expected], abs=1e-4)
    assert masked.translate(lines[0], beam=beam).score == pytest.approx(found[0].score, abs=1e-4), "batch neighbours"
    assert [result.text for result in translator.translate(lines, beam=beam)] != [result.text for result in expected]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_masked_head_adds_nothing_in_any_precision(quick_run: Path, precision: str) -> None:
    own = dragoman.load(str(quick_run), "cpu", precision)
    before = {name: tensor.clone() for name, tensor in own.engine.model.state_dict().items()}
    target = own.translate(SOURCE).text
    whole = inspect_sentence(own, SOURCE, target)
    masked = inspect_sentence(without_heads(own, CROSS), SOURCE, target)
    attention: Any = own.engine.model.decoder.layers[0].cross_attention
    width = attention.output.in_features // attention.num_heads

    def without_columns(_: Any, arguments: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        heads = arguments[0].clone()
        heads[..., : 3 * width] = 0.0
        return (heads,)

    hook = attention.output.register_forward_pre_hook(without_columns)
    hooked = inspect_sentence(own, SOURCE, target)
    hook.remove()
    assert [step.log_probability for step in masked.steps] == [step.log_probability for step in hooked.steps]
    assert masked.score != pytest.approx(whole.score, abs=1e-2), "the control: these heads did add something"
    assert inspect_sentence(own, SOURCE, target).score == whole.score
    after = own.engine.model.state_dict()
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items()), "no weight was changed"
    assert len(rank_heads(own, whole)) == 12


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_translator_can_be_used_in_the_middle_of_a_masked_inspection(
    quick_run: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = dragoman.load(str(quick_run), "cpu", precision)
    plain, alone = own.translate(SOURCE), inspect_sentence(without_heads(own, CROSS), SOURCE)
    assert alone.translation != plain.text, "the control: the mask shows"
    step, found = EngineDecoding.step, []
    main = threading.get_ident()

    def interrupted(self: EngineDecoding, ids: torch.Tensor) -> torch.Tensor:
        """Each step of the masked search waits for a whole translation in another thread."""
        if threading.get_ident() == main:
            other = threading.Thread(target=lambda: found.append(own.translate(SOURCE)))
            other.start()
            other.join()
        return step(self, ids)

    monkeypatch.setattr(EngineDecoding, "step", interrupted)
    masked = inspect_sentence(without_heads(own, CROSS), SOURCE)
    assert (masked.tokens, masked.steps, masked.beam) == (alone.tokens, alone.steps, alone.beam)
    assert len(found) >= len(masked.tokens)
    assert all((result.text, result.score) == (plain.text, plain.score) for result in found)


def test_masking_heads_in_two_steps_equals_masking_them_at_once(translator: Translator) -> None:
    twice = without_heads(without_heads(translator, ["cross.1.1"]), ["encoder.1.2"])
    once = without_heads(translator, ["cross.1.1", "encoder.1.2"])
    assert inspect_sentence(twice, SOURCE).score == inspect_sentence(once, SOURCE).score
    assert without_heads(translator, []) is translator


@pytest.mark.parametrize("name", ["cross.2.1", "cross.1.5", "cross.1.0", "cross", "cross.one.1", "output.1.1"])
def test_unknown_head_is_refused(translator: Translator, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_head(name, translator.engine.model)
    assert str(caught.value) == (
        f"--mask-head {name}: no such head; this model has encoder.1.1 to encoder.1.4, "
        "decoder.1.1 to decoder.1.4, cross.1.1 to cross.1.4"
    )


def test_ranking_orders_every_head_by_the_cost_of_removing_it(translator: Translator, inspected: Inspection) -> None:
    ranking = rank_heads(translator, inspected)
    heads = [f"{kind}.1.{head}" for kind in ("encoder", "decoder", "cross") for head in range(1, 5)]
    assert sorted(head.name for head in ranking) == sorted(heads)
    assert [head.cost for head in ranking] == sorted((head.cost for head in ranking), reverse=True)
    ids = inspected.source_ids, inspected.target_ids
    assert score_of(translator, *ids) == pytest.approx(inspected.score, abs=1e-4)
    expected = {name: inspected.score - score_of(zeroed(translator, [name]), *ids) for name in heads}
    assert {head.name: head.cost for head in ranking} == pytest.approx(expected, abs=1e-4)
    assert len({round(cost, 3) for cost in expected.values()}) > 6, "the control: heads differ"


def test_batch_size_does_not_change_the_ranking(
    translator: Translator, inspected: Inspection, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    run = Engine.token_log_probs

    def counted(self: Engine, batch: Batch) -> torch.Tensor:
        sizes.append(len(batch.source_ids))
        return run(self, batch)

    monkeypatch.setattr(Engine, "token_log_probs", counted)
    advanced: list[int] = []
    costs = {head.name: head.cost for head in rank_heads(translator, inspected, advanced.append)}
    assert sizes == [1, 12], "all heads at once, where there is room"
    longer = max(len(inspected.source_ids), len(inspected.target_ids))
    for limit, expected in ((5 * longer, [5, 5, 2]), (1, [1] * 12)):
        sizes.clear()
        monkeypatch.setattr(heads, "MAX_TOKENS", limit)
        small = {head.name: head.cost for head in rank_heads(translator, inspected)}
        assert sizes == [1, *expected]
        assert small == pytest.approx(costs, abs=1e-4)
    assert sum(advanced) == 12


def test_heads_of_a_truncated_translation_can_be_ranked(translator: Translator, inspected: Inspection) -> None:
    """Where the search stops at its limit there is no </s>, and none is scored."""
    ids = inspected.source_ids, inspected.target_ids[:3]
    whole = sum(step.log_probability for step in inspected.steps[:3])
    costs = {head.name: head.cost for head in rank_heads(translator, replace(inspected, target_ids=ids[1]))}
    assert score_of(translator, *ids) == pytest.approx(whole, abs=1e-4)
    assert costs["cross.1.1"] == pytest.approx(whole - score_of(zeroed(translator, ["cross.1.1"]), *ids), abs=1e-4)


def test_a_ranking_of_a_masked_model_keeps_the_mask(translator: Translator) -> None:
    masked = without_heads(translator, ["cross.1.1"])
    found = inspect_sentence(masked, SOURCE)
    costs = {head.name: head.cost for head in rank_heads(masked, found)}
    assert costs["cross.1.1"] == pytest.approx(0.0, abs=1e-4)
    both = score_of(zeroed(translator, ["cross.1.1", "cross.1.2"]), found.source_ids, found.target_ids)
    assert costs["cross.1.2"] == pytest.approx(found.score - both, abs=1e-4)


# What heads are like


def attention_of(weights: np.ndarray) -> Attention:
    """One layer of self-attention in the encoder."""
    none = np.zeros((0, 0, 0, 0), np.float32)
    return Attention(weights[None].astype(np.float32), none, none, (), (), ())


def test_statistics_of_hand_made_heads() -> None:
    size = 8
    following = np.eye(size, k=-1)
    following[0, 0] = 1.0
    sink = np.zeros((size, size))
    sink[:, -1] = 1.0
    even = np.full((size, size), 1 / size)
    tally = HeadTally()
    for _ in range(3):
        tally.add(attention_of(np.stack([following, sink, even])))
    one, two, three = tally.statistics()
    assert (one.name, one.offset, one.dead) == ("encoder.1.1", -1, False)
    assert [one.following, one.entropy, one.confidence, one.distance] == pytest.approx([7 / 8, 0.0, 1.0, 7 / 8])
    assert two.dead
    assert two.sink == pytest.approx(1.0)
    assert [three.entropy, three.evenness] == pytest.approx([3.0, 1.0])
    assert three.distance == pytest.approx(np.abs(np.subtract.outer(np.arange(8), np.arange(8))).mean())
    assert tally.sentences == 3


def test_uniform_causal_attention_has_high_evenness() -> None:
    """A decoder query sees nothing after itself: evenness is relative to its past."""
    past = np.tril(np.ones((8, 8)))
    tally = HeadTally()
    tally.add(attention_of((past / past.sum(axis=1, keepdims=True))[None]))
    (head,) = tally.statistics()
    assert head.evenness == pytest.approx(7 / 8), "the first query has only one key and no evenness"
    assert head.entropy == pytest.approx(np.log2(np.arange(1, 9)).mean())


# What pages and pictures are made of


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["bytes"]), np.uint8).reshape(packed["shape"]) / 255


def test_payload_is_json_with_every_section(translator: Translator, inspected: Inspection) -> None:
    payload = json.loads(json.dumps(sentence_payload(inspected)))
    assert payload["tokens"] == list(inspected.tokens)
    assert payload["attention"]["cross"]["shape"] == [1, 4, len(inspected.tokens), len(inspected.source_tokens)]
    assert len(payload["beam"]) == len(inspected.beam)
    assert payload["alignment_layer"] == 0
    many = inspect_many(translator, "reverse", [(SOURCE, None), ("c b a", None), ("d e", None)], most=2, ranked=1)
    assert (len(many["sentences"]), many["counted"]) == (2, 3)
    assert [bool(sentence["ranking"]) for sentence in many["sentences"]] == [True, False]
    assert len(many["statistics"]) == 12
    assert many["positions"]["kind"] == "sinusoidal"
    assert many["model"]["search"] == {"beam": 4, "length_penalty": 0.6}
    assert (many["model"]["encoder_layers"], many["model"]["decoder_heads"]) == (1, 4)
    json.dumps(many, allow_nan=False)


def test_the_payload_has_the_numbers_of_the_inspection(translator: Translator) -> None:
    forced = inspect_sentence(translator, SOURCE, "z z z")
    payload = sentence_payload(forced)
    assert [step["rank"] for step in payload["steps"]] == [step.rank for step in forced.steps]
    assert [step["p"] for step in payload["steps"]] == pytest.approx(
        [step.probability for step in forced.steps], abs=1e-6
    )
    assert [step["candidates"][0][0] for step in payload["steps"]] == [step.candidates[0][0] for step in forced.steps]
    for kind in ("encoder", "decoder", "cross"):
        weights = getattr(forced.attention, kind)
        np.testing.assert_allclose(unpacked(payload["attention"][kind]), weights, atol=0.5001 / 255)


def test_the_payload_has_the_positions_of_the_model(translator: Translator) -> None:
    positions = inspect_many(translator, "reverse", [(SOURCE, None)], ranked=0)["positions"]
    expected = sinusoids(torch.arange(64), 32).numpy()
    assert positions["largest"] == pytest.approx(np.abs(expected).max(), abs=1e-4)
    np.testing.assert_allclose(2 * unpacked(positions["table"]) - 1, expected, atol=0.01)
    assert positions["dots"] == pytest.approx((expected @ expected[0]).tolist(), abs=1e-3)


def test_masking_shows_both_translations(translator: Translator, inspected: Inspection) -> None:
    (sentence,) = inspect_many(translator, "reverse", [(SOURCE, None)], masked=["cross.1.1", "cross.1.2"])["sentences"]
    masked = sentence["masked"]
    assert masked["heads"] == ["cross.1.1", "cross.1.2"]
    assert masked["before"] == {"translation": inspected.translation, "score": pytest.approx(inspected.score, abs=1e-3)}
    assert masked["after"]["translation"] == sentence["translation"]
    assert masked["score_of_before"] != pytest.approx(inspected.score, abs=1e-3)


def test_progress_counts_sentences_then_heads(translator: Translator) -> None:
    counted: list[list[Any]] = []

    @contextmanager
    def counting(what: str, total: int) -> Iterator[Advance]:
        counted.append([what, total, 0])

        def advance(count: int) -> None:
            counted[-1][2] += count

        yield advance

    sentences = [(SOURCE, None), ("c b a", None), ("d e", None)]
    inspect_many(translator, "reverse", sentences, ranked=2, counting=counting)
    assert counted == [["inspecting sentences", 3, 3], ["ranking heads", 24, 24]]


def test_pictures_cover_every_kind_of_attention(inspected: Inspection) -> None:
    pictures = pictures_of(inspected)
    assert list(pictures) == [
        f"{kind}-{what}" for kind in ("encoder", "decoder", "cross") for what in ("heads", "mean")
    ]
    assert pictures["cross-heads"].count("<image ") == 4
    assert "cross.1.4" in pictures["cross-heads"]


def test_rows_of_pictures_are_queries_and_columns_keys(inspected: Inspection) -> None:
    attention = inspected.attention
    assert labels(attention, "encoder") == (inspected.source_tokens, inspected.source_tokens)
    assert labels(attention, "decoder") == (inspected.tokens, inspected.input_tokens)
    assert labels(attention, "cross") == (inspected.tokens, inspected.source_tokens)
    assert inspected.input_tokens == ("<s>", *inspected.tokens[:-1])


def test_single_layer_picture_shows_the_alignment_layer(inspected: Inspection) -> None:
    cross = inspected.attention.cross
    even = np.full_like(cross, 1 / cross.shape[-1])
    for layers, number in (((even, cross, even), 2), ((cross, even, even), 1)):
        attention = replace(inspected.attention, cross=np.concatenate(layers))
        picture = pictures_of(replace(inspected, attention=attention))["cross-mean"]
        assert f"mean over heads of layer {number}<" in picture


# The recurrent ancestors


@pytest.mark.parametrize("context", ["source", "self", "none"])
def test_recurrent_model_has_the_same_views(tmp_path: Path, context: str) -> None:
    kept = [setting for setting in QUICK if not setting.startswith("model.")]
    own = ["model.architecture=rnn", "model.d_model=16", f"model.context={context}", "train.max_steps=2"]
    train(Config.build("tiny", None, [*kept, *own, "train.save_every=2"]), tmp_path / "run")
    recurrent = dragoman.load(str(tmp_path / "run"), "cpu")
    payload = inspect_many(recurrent, "rnn", [(SOURCE, None)])
    (sentence,) = payload["sentences"]
    heads = {
        "source": {"cross": 1, "decoder": 0},
        "self": {"cross": 0, "decoder": 1},
        "none": {"cross": 0, "decoder": 0},
    }
    assert {kind: sentence["attention"][kind]["shape"][0] for kind in ("cross", "decoder")} == heads[context]
    assert sentence["beam"]
    assert sentence["ranking"] == []
    assert payload["positions"] is None
    assert len(pictures_of(inspect_sentence(recurrent, SOURCE))) == 2 * (context != "none")
    with pytest.raises(ConfigError, match=r"^--mask-head cross.1.1: this model has no heads; only a Transformer does$"):
        parse_head("cross.1.1", recurrent.engine.model)


# In a notebook


def test_attention_has_a_notebook_repr(translator: Translator) -> None:
    attention = translator.translate(SOURCE, attention=True).attention
    assert attention is not None
    picture = attention._repr_html_()
    assert picture.startswith("<svg ")
    assert picture.count("<rect") > attention.alignment_weights.size
    assert "layer 1" in picture
    none = np.zeros((0, 0, 0, 0), np.float32)
    assert (
        Attention(none, none, none, (), (), ())._repr_html_() == "<p>This model does not look back at the source.</p>"
    )


def test_alignment_layer_is_the_one_whose_heads_agree() -> None:
    sharp = np.tile(np.eye(4, 5), (2, 1, 1))  # both heads look at one and the same place
    torn = np.stack([np.eye(4, 5), np.eye(4, 5)[::-1]])  # each at another
    at_end = np.zeros((2, 4, 5))
    at_end[:, :, -1] = 1.0  # both at </s>: no alignment
    none = np.zeros((0, 0, 0, 0), np.float32)
    attention = Attention(none, none, np.stack([torn, at_end, sharp, torn]).astype(np.float32), (), (), ())
    assert attention.alignment_layer == 2
    np.testing.assert_array_equal(attention.alignment_weights, np.eye(4, 5))
