"""Other tasks than translation, from the command line: train, resume, use, and what does not fit."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman import Classifier, Config, LanguageModel, ModelError, train
from dragoman.bundle import load_bundle
from tests.forked import shared_server

SMALL = (
    "model.num_layers=1", "model.d_model=32", "model.d_ff=64", "model.num_heads=2", "train.batch_tokens=256",
    "train.log_every=5", "train.warmup_steps=5", "train.trackers=[]", "train.learning_rate=5e-3",
)  # fmt: skip
LM = (*SMALL, "model.architecture=decoder", "text.model=char", "text.byte_fallback=false", "text.max_length=32")
LABELS = (*SMALL, "model.architecture=encoder", "text.vocab_size=300", "text.byte_fallback=false")


def error_of(*words: object) -> str:
    ended = shared_server().run(list(map(str, words)))
    assert ended.returncode == 4, ended.stderr
    return ended.stderr.strip().removeprefix("dragoman: ")


def output_of(*words: object) -> str:
    ended = shared_server().run(list(map(str, words)))
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("texts")
    draw = random.Random(1)
    words = ["ab", "abc", "abcd", "ba", "cab"]
    for name, lines in (("train", 200), ("valid", 20)):
        content = "".join(f"{' '.join(draw.choices(words, k=4))}\n" for _ in range(lines))
        (place / f"{name}.txt").write_text(content)
    for name, count in (("train", 300), ("valid", 30), ("test", 40)):
        rows = []
        for _ in range(count):
            good = draw.random() < 0.5
            kept = [*draw.choices(["film", "plot", "scene", "music"], k=3), "great" if good else "awful"]
            draw.shuffle(kept)
            rows.append(f"{' '.join(kept)}\t{'pos' if good else 'neg'}\n")
        (place / f"{name}.tsv").write_text("".join(rows))
    return place


def lm_config(texts: Path, *settings: str) -> Config:
    data = {
        "text": str(texts / "train.txt"),
        "valid_text": str(texts / "valid.txt"),
        "test_text": str(texts / "valid.txt"),
    }
    return Config.build("tiny", None, [*LM, *settings], data=data)


@pytest.fixture(scope="module")
def language_model(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "lm"
    train(lm_config(texts, "train.max_steps=60", "train.save_every=20"), run)
    return run


@pytest.fixture(scope="module")
def classifier(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "labels"
    sides = [(f"{part}_{side}", f"{part}.tsv") for part in ("valid", "test") for side in ("source", "target")]
    files = [("source", "train.tsv"), ("target", "train.tsv"), *sides]
    data = {name: str(texts / file) for name, file in files}
    train(Config.build("tiny", None, [*LABELS, "train.max_steps=60", "train.save_every=20"], data=data), run)
    return run


# Language models


def test_a_language_model_learns_its_text(language_model: Path, texts: Path) -> None:
    model = LanguageModel.load(language_model, "cpu")
    score = model.score((texts / "valid.txt").read_text())
    assert score.tokens == score.bytes == len((texts / "valid.txt").read_text())
    assert score.nats_per_token < 1.3, "a uniform guess of six characters has 1.8"
    written = set(model.generate(max_tokens=300, temperature=0.5).split())
    assert len(written & {"ab", "abc", "abcd", "ba", "cab"}) >= 3
    result = json.loads((language_model / "result.json").read_bytes())
    (tested,) = result["tests"].values()
    assert tested["nats"] == pytest.approx(score.nats, rel=1e-6)


def test_a_language_model_resumes_to_the_bit(texts: Path, language_model: Path, tmp_path: Path) -> None:
    train(lm_config(texts, "train.max_steps=40", "train.save_every=20"), tmp_path / "lm")
    train(lm_config(texts, "train.max_steps=60", "train.save_every=20"), tmp_path / "lm")
    ours, theirs = (load_bundle(run).weights for run in (tmp_path / "lm", language_model))
    assert all((ours[name] == theirs[name]).all() for name in theirs)


def test_commands_of_a_language_model(language_model: Path, texts: Path) -> None:
    model = ("--model", language_model)
    shown = output_of("generate", *model, "ab", "--max-tokens", 20, "--seed", 3)
    record = json.loads(output_of("generate", *model, "ab", "--max-tokens", 20, "--seed", 3, "--json"))
    assert shown == f"ab{record['text']}\n"
    two = output_of("generate", *model, "--max-tokens", 5, "--samples", 2)
    assert two.startswith("--- seed 1\n")
    assert "--- seed 2\n" in two
    lines = output_of("generate", *model, "ab\\nc", "--max-tokens", 3)
    assert lines.startswith("ab\nc")
    score = json.loads(output_of("score", *model, texts / "valid.txt", "--json"))
    assert {"perplexity", "nats_per_token", "bits_per_byte"} <= score.keys()
    assert f"{score['bits_per_byte']:.4f} bits per byte" in output_of("score", *model, texts / "valid.txt")
    assert "\n  a " in output_of("inspect", *model, "ab abc")
    assert json.loads(output_of("info", *model, "--json"))["parameters"].keys() >= {"target embedding"}
    assert "decoder cross-attention" not in output_of("info", *model)
    page = (language_model / "report.html").read_text(encoding="utf-8")
    assert "nats a token" in page
    assert "One text over time" in page


def test_summary_and_card_speak_of_text(language_model: Path) -> None:
    card = (language_model / "card.md").read_text(encoding="utf-8")
    assert card.startswith("# A dragoman language model\n")
    assert "| perplexity |" in card
    summary = (language_model / "summary.md").read_text(encoding="utf-8")
    assert "From an empty prompt, temperature 1, 200 tokens each" in summary
    assert " blocks; " in summary


# Classifiers


def test_a_classifier_learns_its_labels(classifier: Path, texts: Path) -> None:
    model = Classifier.load(classifier, "cpu")
    assert model.labels.names == ["neg", "pos"]
    assert [one.label for one in model.classify(["a great film", "an awful film"])] == ["pos", "neg"]
    pair = ("--source", texts / "test.tsv", "--reference", texts / "test.tsv")
    scores = json.loads(output_of("evaluate", "--model", classifier, *pair, "--json"))
    assert scores["accuracy"]["score"] == 100.0 == scores["macro_f1"]["high"]
    assert scores["confusion"][0][1] == scores["confusion"][1][0] == 0
    shown = output_of("evaluate", "--model", classifier, *pair)
    assert "accuracy  100.0 (100.0 to 100.0)\n" in shown
    tested = json.loads((classifier / "result.json").read_bytes())["tests"]
    assert next(iter(tested.values()))["accuracy"]["score"] == 100.0


def test_commands_of_a_classifier(classifier: Path, texts: Path, tmp_path: Path) -> None:
    model = ("--model", classifier)
    label, probability = output_of("classify", *model, "great music").strip().split("\t")
    assert label == "pos"
    record = json.loads(output_of("classify", *model, "great music", "--json"))
    assert f"{record['probability']:.4f}" == probability
    assert sum(record["probabilities"].values()) == pytest.approx(1.0)
    (tmp_path / "in.txt").write_text("great\n\nawful\n")
    output_of("classify", *model, "--input", tmp_path / "in.txt", "--output", tmp_path / "out.tsv")
    assert len((tmp_path / "out.tsv").read_text().splitlines()) == 3
    pair = ("--source", texts / "test.tsv", "--reference", texts / "test.tsv")
    output_of("evaluate", *model, *pair, "--confusion", tmp_path / "confusion.svg")
    assert (tmp_path / "confusion.svg").read_text().startswith("<svg")
    output_of("inspect", *model, "great film", "--out", tmp_path / "page.html", "--svg", tmp_path / "pictures")
    page = (tmp_path / "page.html").read_text()
    assert "influence" in page
    assert "<script" not in page
    assert (tmp_path / "pictures" / "1-heads.svg").exists()
    assert "influence" in json.loads(output_of("inspect", *model, "great film", "--json"))


def test_a_classifier_starts_from_a_translator(quick_run: Path, texts: Path, tmp_path: Path) -> None:
    files: dict[str, Any] = {"source": "train.tsv", "target": "train.tsv", "valid-source": "valid.tsv"}
    files["valid-target"] = "valid.tsv"
    options = [word for name, file in files.items() for word in (f"--{name}", texts / file)]
    settings = [word for one in ("model.architecture=encoder", "train.max_steps=1", "train.learning_rate=0",
                                 "train.trackers=[]") for word in ("--set", one)]  # fmt: skip
    output_of("train", "--from", quick_run, *options, *settings, "--out", tmp_path / "run")
    ours, theirs = load_bundle(tmp_path / "run"), load_bundle(quick_run)
    shared = [name for name in ours.weights if name in theirs.weights]
    assert {name.split(".")[0] for name in shared} == {"source_embedding", "encoder"}
    assert all((ours.weights[name] == theirs.weights[name]).all() for name in shared)
    assert ours.tokenizers.source.digest == theirs.tokenizers.source.digest
    assert {*ours.weights} - {*shared} == {"output.weight", "output.bias"}


# What does not fit


def test_commands_name_the_one_that_fits(language_model: Path, classifier: Path, quick_run: Path) -> None:
    lm, labels, pairs = language_model, classifier, quick_run
    is_lm, is_labels, is_pairs = "is a language model", "is a classifier", "is a translation model"
    translator = "and a translation model is needed"
    assert error_of("translate", "--model", lm, "x") == (
        f"{lm}: {is_lm}, {translator}; use `dragoman generate --model {lm}`"
    )
    assert error_of("translate", "--model", labels, "x") == (
        f"{labels}: {is_labels}, {translator}; use `dragoman classify --model {labels}`"
    )
    assert error_of("generate", "--model", pairs, "x") == (
        f"{pairs}: {is_pairs}, and a language model is needed; use `dragoman translate --model {pairs}`"
    )
    assert error_of("classify", "--model", lm, "x").startswith(f"{lm}: {is_lm}, and a classifier is needed; ")
    assert error_of("evaluate", "--model", lm, "--source", "x", "--reference", "x") == (
        f"{lm}: {is_lm}; use `dragoman score --model {lm} FILE`"
    )
    assert error_of("score", "--model", labels, "x") == (
        f"{labels}: {is_labels}; use `dragoman evaluate --model {labels} --source F --reference F`"
    )
    for to in ("onnx", "ctranslate2", "huggingface", "web"):
        assert error_of("export", "--model", lm, "--to", to, lm / "out").startswith(f"{lm}: {is_lm}, ")
    with pytest.raises(ModelError, match="is a language model"):
        dragoman.load(lm)
