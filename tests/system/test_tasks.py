"""Other tasks than translation, from the command line: train, resume, use, and what does not fit."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman import Classifier, Config, ConfigError, DataError, LanguageModel, ModelError, train
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


@pytest.mark.slow
def test_a_language_model_resumes_to_the_bit(texts: Path, language_model: Path, tmp_path: Path) -> None:
    train(lm_config(texts, "train.max_steps=40", "train.save_every=20"), tmp_path / "lm")
    train(lm_config(texts, "train.max_steps=60", "train.save_every=20"), tmp_path / "lm")
    ours, theirs = (load_bundle(run).weights for run in (tmp_path / "lm", language_model))
    assert all((ours[name] == theirs[name]).all() for name in theirs)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_labels_keep_their_case_whatever_the_text_does(tmp_path: Path) -> None:
    rows = [
        f"{word} film {number}\t{label}\n" for number in range(20) for word, label in (("Good", "Pos"), ("Bad", "Neg"))
    ]
    (tmp_path / "all.tsv").write_text("".join(rows))
    names = ("source", "target", "valid_source", "valid_target")
    settings = [
        *LABELS,
        "text.normalization=nfc-lowercase",
        "train.max_steps=2",
        "train.save_every=2",
        "train.r_drop=1.0",
    ]
    config = Config.build("tiny", None, settings, data=dict.fromkeys(names, str(tmp_path / "all.tsv")))
    train(config, tmp_path / "run")
    assert Classifier.load(tmp_path / "run", "cpu").labels.names == ["Neg", "Pos"]


def test_an_unknown_label_of_a_test_set_is_found_before_training(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("great\tpos\ngreat\tposs\n")
    files = {"source": "train.tsv", "target": "train.tsv", "valid_source": "valid.tsv", "valid_target": "valid.tsv"}
    data = {name: str(texts / file) for name, file in files.items()}
    data |= dict.fromkeys(("test_source", "test_target"), str(tmp_path / "test.tsv"))
    with pytest.raises(DataError, match=r"test.tsv:2: 'poss' is not a label of the training data; did you mean pos\?"):
        train(Config.build("tiny", None, LABELS, data=data), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize(("architecture", "setting", "message"), [
    ("decoder", "train.valid_metric=bleu", "train.valid_metric: bleu is not measured in language modelling; use loss"),
    ("encoder", "train.valid_metric=chrf",
     "train.valid_metric: chrf is not measured in classification; use accuracy or macro_f1 or loss"),
    ("transformer", "train.valid_metric=accuracy",
     "train.valid_metric: accuracy is not measured in translation; use chrf or bleu or loss or exact_match"),
    ("decoder", "train.class_weights=balanced",
     "train.class_weights: there are no classes in language modelling; leave it out"),
    ("decoder", "text.joint=false", "text.joint: only translation has two vocabularies; leave it out"),
    ("encoder", "text.sampling=0.1", "text.sampling: segments pairs of sentences only; leave it out"),
    ("transformer", "text.normalization=none",
     "text.normalization: none is for language models and classifiers; use nfc or another form"),
])  # fmt: skip
def test_settings_that_do_not_fit_the_task_are_refused(architecture: str, setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.build("tiny", None, [f"model.architecture={architecture}", setting])
    assert str(caught.value) == message


def test_files_of_another_task_are_refused(texts: Path, tmp_path: Path) -> None:
    data = {"text": str(texts / "train.txt"), "valid_text": str(texts / "valid.txt")}
    with pytest.raises(ConfigError) as caught:
        train(Config.build("tiny", None, SMALL, data=data), tmp_path / "run")
    assert str(caught.value) == (
        "data.text: not used in translation; leave it out, or set the model.architecture that uses it"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["language_model", "classifier"])
def test_a_run_starts_from_a_model_of_its_own_task(
    name: str, texts: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    before = request.getfixturevalue(name)
    if name == "language_model":
        files = ["--text", texts / "train.txt", "--valid-text", texts / "valid.txt"]
    else:
        sides = ("source", "target", "valid-source", "valid-target")
        files = [word for side in sides for word in (f"--{side}", texts / "train.tsv")]
    settings = ["--set", "train.max_steps=1", "--set", "train.learning_rate=0", "--set", "train.trackers=[]"]
    output_of("train", "--from", before, *files, *settings, "--out", tmp_path / "run")
    ours, theirs = load_bundle(tmp_path / "run"), load_bundle(before)
    assert ours.config.model == theirs.config.model
    assert all((ours.weights[name] == theirs.weights[name]).all() for name in theirs.weights if "output" not in name)


@pytest.mark.slow
def test_a_language_model_starts_from_the_decoder_of_a_translator(quick_run: Path, texts: Path, tmp_path: Path) -> None:
    files = ["--text", texts / "train.txt", "--valid-text", texts / "valid.txt"]
    asked = ("model.architecture=decoder", "train.max_steps=1", "train.learning_rate=0", "train.trackers=[]")
    settings = [word for one in asked for word in ("--set", one)]
    output_of("train", "--from", quick_run, *files, *settings, "--out", tmp_path / "run")
    ours, theirs = load_bundle(tmp_path / "run").weights, load_bundle(quick_run).weights
    assert (ours["target_embedding.weight"] == theirs["source_embedding.weight"]).all(), "which the translator shares"
    own = [name for name in ours if name.startswith("decoder")]
    assert own
    assert all((ours[name] == theirs[name]).all() for name in own)


def test_bad_options_are_refused_before_anything_is_printed(language_model: Path) -> None:
    for words, message in (
        (["--top-p", "2"], "decode.top_p: 2.0 is out of range; use 0.001 to 1.0"),
        (["--threads", "-1"], "decode.threads: -1 is out of range; use 0 to 1024"),
        (["--temperature", "0.001"], "decode.temperature: 0.001 is out of range; use 0.01 to 100.0"),
    ):
        ended = shared_server().run(["generate", "--model", str(language_model), "ab", *words])
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr == f"dragoman: {message}\n"
    with pytest.raises(ConfigError, match="max_tokens: 0 is too few; use at least 1"):
        LanguageModel.load(language_model, "cpu").generate("a", max_tokens=0)


def test_unknown_characters_are_counted(language_model: Path, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("ab\u4e2d\n")
    ended = shared_server().run(["score", "--model", str(language_model), str(tmp_path / "other.txt"), "--json"])
    assert json.loads(ended.stdout)["unknown"] == 1
    assert ended.stderr == "score: 1 tokens are characters unknown to the model; its numbers are not comparable\n"
    ended = shared_server().run(["generate", "--model", str(language_model), "\u4e2d", "--max-tokens", "1"])
    assert ended.stderr == "generate: 1 tokens of the prompt are characters unknown to the model\n"


def test_every_line_of_a_file_is_scored(language_model: Path, tmp_path: Path) -> None:
    model = LanguageModel.load(language_model, "cpu")
    for text in ("ab\n", "ab", "ab\n\n", "\n\n\n"):
        (tmp_path / "text").write_text(text)
        found = json.loads(output_of("score", "--model", language_model, tmp_path / "text", "--json"))
        assert found["nats"] == pytest.approx(model.score(text).nats)
        assert found["bytes"] == len(text.removesuffix("\n")) + 1


def test_classify_reports_what_it_could_not_read_and_keeps_its_input(classifier: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text(f"great\n\n{'great film ' * 300}\n")
    words = ["classify", "--model", str(classifier), "--input", str(tmp_path / "in.txt")]
    ended = shared_server().run(words)
    assert ended.stderr == (
        "classify: 1 of 3 texts: nothing to read\nclassify: 1 of 3 texts: too long, only their beginning was read\n"
    )
    ended = shared_server().run([*words, "--output", str(tmp_path / "in.txt")])
    assert ended.returncode == 2
    assert ended.stderr.endswith("is the input too; give another file\n")
    assert (tmp_path / "in.txt").read_text().startswith("great\n")


def test_page_has_every_text(classifier: Path, tmp_path: Path) -> None:
    shown = output_of("inspect", "--model", classifier, "great film", "awful plot", "--out", tmp_path / "page.html")
    assert shown == f"{tmp_path / 'page.html'}: 2 inspected; open it in a browser\n"
    page = (tmp_path / "page.html").read_text()
    assert "great film: label pos" in page
    assert "awful plot: label neg" in page


# What does not fit


@pytest.mark.slow
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
