"""Classifiers: labels, the encoder alone, scores of labels, calibration."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.bundle import Bundle, Tokenizers
from dragoman.config import Config, EncoderConfig
from dragoman.decode.classifier import Classifier
from dragoman.errors import DataError, ModelError
from dragoman.evaluate.classification import best_temperature, score_labels
from dragoman.inspect.one_stack import inspect_label, inspect_vector_label
from dragoman.model.variants import EncoderOnly
from dragoman.scale import Scale
from dragoman.tasks.classification import ClassificationTask
from dragoman.text.labels import Labels
from dragoman.text.tokenizer import Tokenizer

TEXTS = ["a good film", "a bad film", "good, very good", "bad bad bad", "fine", "the end of it all"] * 4
LABELS = ["pos", "neg", "pos", "neg", "pos", "other"] * 4
CONFIG = Config.build("tiny", None, ["model.architecture=encoder", "text.max_length=8", "text.vocab_size=300"])


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    tokenizer = Tokenizer.train(TEXTS, CONFIG.text)
    return Tokenizers(tokenizer, Labels.learn(LABELS))


def make_classifier(tokenizers: Tokenizers, **overrides: Any) -> Classifier:
    torch.manual_seed(0)
    sizes = {"num_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2, **overrides}
    model = EncoderOnly(EncoderConfig(vocab_size=tokenizers.source.size, num_labels=3, **sizes))
    return Classifier(Bundle(CONFIG.with_vocabulary(tokenizers.source.size, 3), tokenizers, model), "cpu")


# Labels


def test_labels_are_whole_lines_in_alphabetical_order() -> None:
    labels = Labels.learn(["b", "a  b", " a b ", "b"])
    assert labels.names == ["a b", "b"]
    assert labels.find("a b ") == 0
    assert labels.find("c") is None
    assert Labels.from_bytes(labels.to_bytes()).names == labels.names


@pytest.mark.parametrize(("lines", "message"), [
    (["x", "x"], "labels: all lines have the label 'x'; give at least two labels"),
    ([str(number) for number in range(10_001)], "labels: more than 10,000 different ones; give one label per line, "
     "from a fixed set"),
])  # fmt: skip
def test_labels_that_cannot_be_learned_are_refused(lines: list[str], message: str) -> None:
    with pytest.raises(DataError) as caught:
        Labels.learn(lines)
    assert str(caught.value) == message


@pytest.mark.parametrize("content", [b"", b"one\n", b"a\na\n", b"a\n\nb\n", b"\xff\nb\n"])
def test_damaged_labels_are_refused(content: bytes) -> None:
    with pytest.raises(ModelError, match="not a list of labels, one per line"):
        Labels.from_bytes(content)


# The model


@pytest.mark.parametrize("pooling", ["end", "mean"])
def test_long_texts_are_pooled_exactly_in_bfloat16(tokenizers: Tokenizers, pooling: str) -> None:
    """bfloat16 cannot represent 259, the length of one of the texts."""
    model = make_classifier(tokenizers, pooling=pooling).model.bfloat16()
    ids = torch.randint(4, tokenizers.source.size, (2, 300), generator=torch.Generator().manual_seed(0))
    allowed = torch.arange(300) < torch.tensor([[259], [300]])
    with torch.no_grad():
        alone, together = model(ids[:1, :259]), model(ids, allowed)[:1]
    torch.testing.assert_close(alone.float(), together.float(), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("pooling", ["end", "mean"])
def test_batch_mates_and_padding_change_nothing(tokenizers: Tokenizers, pooling: str) -> None:
    classifier = make_classifier(tokenizers, pooling=pooling)
    rows = [classifier.cut(ids) for ids in tokenizers.source.encode_batch(TEXTS[:6])]
    together = classifier.log_probs(rows)
    apart = np.concatenate([classifier.log_probs([row]) for row in rows])
    np.testing.assert_allclose(together, apart, atol=1e-5)
    np.testing.assert_allclose(np.exp(together).sum(axis=1), 1.0, atol=1e-6)
    assert np.abs(together[0] - together[1]).max() > 1e-3, "the control: other texts, other numbers"


def test_poolings_are_what_they_say(tokenizers: Tokenizers) -> None:
    poolings: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "end": lambda states: states[-1],
        "mean": lambda states: states.mean(dim=0),
    }
    for pooling, reduce in poolings.items():
        model = make_classifier(tokenizers, pooling=pooling).model
        ids = torch.tensor([[5, 6, 7, 3]])
        states: list[torch.Tensor] = []
        hook = model.encoder.register_forward_hook(lambda _, __, output, kept=states: kept.append(output))
        with torch.no_grad():
            logits = model(ids)
            hook.remove()
            torch.testing.assert_close(logits[0], model.output(reduce(states[0][0])))


def test_status_of_a_text(tokenizers: Tokenizers) -> None:
    classifier = make_classifier(tokenizers)
    empty, short, long = classifier.classify(["", "fine", "a good film " * 9])
    assert (empty.status, short.status, long.status) == ("empty", "classified", "truncated")
    assert short.probabilities[short.label] == short.probability == max(short.probabilities.values())
    assert classifier.classify("fine").probabilities == pytest.approx(short.probabilities, abs=1e-5)
    assert classifier.classify([]) == []
    assert long.probabilities == pytest.approx(classifier.classify("a good film " * 20).probabilities)


# The task


def build(tmp_path: Path, tokenizers: Tokenizers, labels: list[str], *settings: str) -> Any:
    (tmp_path / "texts").write_text("".join(f"{line}\n" for line in TEXTS))
    (tmp_path / "labels").write_text("".join(f"{line}\n" for line in labels))
    files = {"source": [str(tmp_path / "texts")], "target": [str(tmp_path / "labels")]}
    asked = ["model.architecture=encoder", "text.max_length=20", *settings]
    config = Config.build("tiny", None, asked, data=files)
    task = ClassificationTask()
    return task.build_store(
        "training", config.data, ("source", "target"), config, tokenizers, tmp_path / "s", lambda *_: None
    )


def test_a_batch_has_texts_and_labels(tmp_path: Path, tokenizers: Tokenizers) -> None:
    store = build(tmp_path, tokenizers, LABELS)
    batch = ClassificationTask().collate(store, np.array([1, 5]))
    assert batch.target_output.tolist() == [0, 1], "neg, other"
    assert batch.source_ids[0][batch.source_allowed[0]].tolist() == [*tokenizers.source.encode(TEXTS[1]), 3]
    assert batch.num_tokens == 2
    assert batch.weight.tolist() == [1.0, 1.0]
    assert store.target_sizes.tolist() == [1] * 24


def test_balanced_weights_make_every_label_count_the_same(tmp_path: Path, tokenizers: Tokenizers) -> None:
    store = build(tmp_path, tokenizers, LABELS, "train.class_weights=balanced")
    batch = ClassificationTask().collate(store, np.arange(24))
    totals = [float(batch.weight[batch.target_output == label].sum()) for label in range(3)]
    assert totals == pytest.approx([8.0, 8.0, 8.0])
    logits = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    losses = torch.nn.functional.cross_entropy(logits, batch.target_output, reduction="none")
    found = ClassificationTask().loss(logits, batch, 0.0)
    torch.testing.assert_close(found, (losses * batch.weight).sum())
    assert abs(float(found - losses.sum())) > 0.1, "the control"


def test_an_unknown_label_is_named_with_its_line(tmp_path: Path, tokenizers: Tokenizers) -> None:
    with pytest.raises(DataError) as caught:
        build(tmp_path, tokenizers, [*LABELS[:7], "poss", *LABELS[8:]])
    assert str(caught.value) == (
        f"{tmp_path / 'labels'}:8: 'poss' is not a label of the training data; did you mean pos?"
    )


# Scores


def test_scores_by_their_definitions() -> None:
    right = np.array([0, 0, 0, 1, 1, 2])
    said = np.array([0, 0, 1, 1, 0, 0])
    scores = score_labels(right, np.log(np.eye(4)[said] * 0.88 + 0.03), ["a", "b", "c", "never"])
    assert scores.accuracy.score == pytest.approx(50.0)
    assert scores.confusion_CC.tolist() == [[2, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    f1 = {name: one["f1"] for name, one in scores.per_label().items()}
    assert f1 == pytest.approx({"a": 100 * 4 / 7, "b": 50.0, "c": 0.0, "never": 0.0})
    assert scores.macro_f1.score == pytest.approx((100 * 4 / 7 + 50) / 3), "a label that never occurs does not count"
    assert scores.accuracy.low < 50.0 < scores.accuracy.high
    assert scores.calibration_error == pytest.approx(100 * (0.91 - 0.5))
    assert scores.log_loss == pytest.approx(-(3 * math.log(0.91) + 3 * math.log(0.03)) / 6)


def test_texts_that_are_all_right_do_not_ask_for_certainty() -> None:
    right = np.zeros(20, np.int64)
    log_p = np.log(np.tile([[0.9, 0.1]], (20, 1)))
    assert 0.5 < best_temperature(right, log_p) < 1.0
    assert best_temperature(np.zeros(20_000, np.int64), np.log(np.tile([[0.9, 0.1]], (20_000, 1)))) < 0.5, "the control"


def test_many_labels_take_little_memory() -> None:
    right = np.arange(300) % 150
    scores = score_labels(right, np.log(np.eye(150)[right] * 0.9 + 0.1 / 150), [str(label) for label in range(150)])
    assert scores.accuracy.score == scores.macro_f1.low == 100.0


def test_interval_covers_and_shrinks_with_the_number_of_texts() -> None:
    def width(count: int) -> float:
        right = np.zeros(count, np.int64)
        wrong = np.arange(count) % 5 == 0
        scores = score_labels(right, np.log(np.where(wrong[:, None], [[0.2, 0.8]], [[0.8, 0.2]])), ["a", "b"])
        assert scores.accuracy.score == pytest.approx(80.0)
        return scores.accuracy.high - scores.accuracy.low

    expected = 2 * 1.96 * 100 * math.sqrt(0.8 * 0.2 / 400)
    assert width(400) == pytest.approx(expected, rel=0.1)
    assert width(10_000) < width(400) / 4


def test_temperature_corrects_overconfidence() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(size=(4_000, 3))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    right = np.array([random.choice(3, p=row) for row in probabilities])
    for factor in (0.5, 1.0, 3.0):
        log_p = factor * logits - np.logaddexp.reduce(factor * logits, axis=1)[:, None]
        assert best_temperature(right, log_p) == pytest.approx(factor, rel=0.1)
    weights = {"output.weight": torch.ones(3, 2), "output.bias": torch.ones(3), "encoder.x": torch.ones(1)}
    finished = ClassificationTask().finish(weights, {"temperature": 2.0})
    assert {*finished["output.weight"].flatten().tolist(), *finished["output.bias"].tolist()} == {0.5}
    assert finished["encoder.x"] is weights["encoder.x"]


# Inspection


@pytest.mark.parametrize("pooling", ["end", "mean"])
def test_influence_is_what_removal_takes(tokenizers: Tokenizers, pooling: str) -> None:
    classifier = make_classifier(tokenizers, pooling=pooling)
    found = inspect_label(classifier, "a good film")
    ids = tokenizers.source.encode("a good film")
    assert found.data["tokens"] == tokenizers.source.pieces([*ids, 3])
    label = classifier.labels.find(found.data["label"])

    def odds(row: list[int]) -> float:
        probability = float(np.exp(classifier.log_probs([row])[0, label]))
        return math.log(probability / (1 - probability))

    for place, influence in enumerate(found.data["influence"]):
        rest = [*ids[:place], *ids[place + 1 :], 3]
        assert influence == pytest.approx(odds([*ids, 3]) - odds(rest), abs=1e-4)
    attention_LHTT = np.array(found.data["attention"])
    assert attention_LHTT.shape == (2, 2, len(ids) + 1, len(ids) + 1)
    np.testing.assert_allclose(attention_LHTT.sum(axis=-1), 1.0, atol=1e-5)
    assert sum(found.data["class_attention"]) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("pooling", ["end", "mean"])
def test_influence_of_a_vector_is_what_the_mean_in_its_place_takes(pooling: str) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"num_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2, "pooling": pooling}
    settings = ["model.architecture=encoder", "model.source_features=3", f"model.pooling={pooling}"]
    tokenizers = Tokenizers(Scale([1.0, 2.0, 3.0], [1.0, 1.0, 2.0]), Labels.learn(LABELS))
    config = Config.build("tiny", None, settings).with_vocabulary(3, 3)
    model = EncoderOnly(EncoderConfig(source_features=3, num_labels=3, **sizes))
    classifier = Classifier(Bundle(config, tokenizers, model), "cpu")
    vectors_SF = np.random.default_rng(1).normal(size=(5, 3))
    found = inspect_vector_label(classifier, vectors_SF, "sequence 1").data
    label = classifier.labels.find(found["label"])

    def odds(rows_SF: Any) -> float:
        probability = float(np.exp(classifier.log_probs(classifier.encode([rows_SF]))[0, label]))
        return math.log(probability / (1 - probability))

    for place, influence in enumerate(found["influence"]):
        changed_SF = vectors_SF.copy()
        changed_SF[place] = [1.0, 2.0, 3.0]
        assert influence == pytest.approx(odds(vectors_SF) - odds(changed_SF), abs=1e-4)
    assert len(found["influence"]) == len(found["class_attention"]) == 5
    last_HSS = np.array(found["attention"])[-1]
    looked_S = (last_HSS[:, -1] if pooling == "end" else last_HSS.mean(axis=1)).mean(axis=0)
    np.testing.assert_allclose(found["class_attention"], looked_S, atol=1e-9)
