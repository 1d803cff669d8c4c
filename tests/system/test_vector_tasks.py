"""Vectors in place of text, from the command line: train, resume, transcribe, forecast, classify, inspect."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman import Classifier, Config, ConfigError, DataError, Forecaster, ModelError, Transcriber, train
from dragoman.bundle import load_bundle
from dragoman.cli.train import build_config
from dragoman.data.features import as_patches, series_csv
from tests.forked import shared_server

SMALL = (
    "model.num_layers=1", "model.d_model=32", "model.d_ff=64", "model.num_heads=2", "train.batch_tokens=512",
    "train.log_every=10", "train.warmup_steps=5", "train.trackers=[]", "train.learning_rate=5e-3", "train.threads=1",
)  # fmt: skip
TEXT = ("text.model=word", "text.byte_fallback=false", "text.vocab_size=12")
TRANSCRIBER = (*SMALL, *TEXT, "model.source_features=16", "train.max_steps=160", "train.save_every=80")
LABELS = (
    *SMALL,
    "model.architecture=encoder",
    "model.source_features=16",
    "train.max_steps=120",
    "train.save_every=60",
)
WAVES = (
    "model.num_layers=1", "model.source_features=2", "model.target_features=2", "model.d_model=32", "data.lookback=24",
    "data.horizon=12", "train.batch_tokens=512", "train.log_every=10", "train.warmup_steps=5", "train.trackers=[]",
    "train.learning_rate=5e-3", "train.threads=1", "train.max_steps=120", "train.save_every=60",
)  # fmt: skip
FORECASTER = (*WAVES, "model.d_ff=64", "model.num_heads=2")
LSTM = (*WAVES, "model.architecture=lstm", "train.max_steps=10", "train.save_every=10")


def run(*words: object) -> Any:
    return shared_server().run(list(map(str, words)))


def output_of(*words: object) -> str:
    ended = run(*words)
    assert ended.returncode == 0, ended.stderr
    return str(ended.stdout)


def error_of(*words: object) -> str:
    ended = run(*words)
    assert ended.returncode in (2, 3, 4), ended.stderr
    return str(ended.stderr).strip().removeprefix("dragoman: ")


def draw(random: np.random.Generator) -> tuple[Any, str]:
    """A bright half of a picture of 8 by 8."""
    side = int(random.integers(4))
    pixels = 0.2 * random.random((8, 8))
    half: Any = {0: np.s_[:4], 1: np.s_[4:], 2: np.s_[:, :4], 3: np.s_[:, 4:]}[side]
    pixels[half] += 1.0
    return pixels, ("top", "bottom", "left", "right")[side]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from dragoman.data.features import write_features

    place, random = tmp_path_factory.mktemp("vectors"), np.random.default_rng(1)
    for name, count in (("train", 200), ("valid", 20), ("test", 24)):
        drawn = [draw(random) for _ in range(count)]
        write_features(place / f"{name}.npz", [as_patches(pixels, 4) for pixels, _ in drawn], picture=(8, 8))
        (place / f"{name}.txt").write_text("".join(f"bright at the {side}\n" for _, side in drawn))
        (place / f"{name}.labels").write_text("".join(f"{side}\n" for _, side in drawn))
    time = np.arange(700)
    waves = np.stack([np.sin(time / 3) + 5, 100 * np.cos(time / 5)], axis=1)
    for name, start, end in (("train", 0, 500), ("valid", 500, 600), ("test", 600, 700)):
        (place / f"{name}.csv").write_text(series_csv(["a", "b"], waves[start:end]))
    return place


def pairs(files: Path, target: str) -> dict[str, str]:
    return {
        f"{prefix}{side}": str(files / f"{name}.{suffix}")
        for name, prefix in (("train", ""), ("valid", "valid_"), ("test", "test_"))
        for side, suffix in (("source", "npz"), ("target", target))
    }


def config(data: dict[str, str], settings: Sequence[str], *more: str) -> Config:
    return Config.build("tiny", None, [*settings, *more], data=data)


def series(files: Path) -> dict[str, str]:
    return {f"{prefix}series": str(files / f"{name}.csv") for name, prefix in
            (("train", ""), ("valid", "valid_"), ("test", "test_"))}  # fmt: skip


@pytest.fixture(scope="module")
def transcriber(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "captions"
    train(config(pairs(files, "txt"), TRANSCRIBER), place)
    return place


@pytest.fixture(scope="module")
def classifier(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "labels"
    train(config(pairs(files, "labels"), LABELS), place)
    return place


@pytest.fixture(scope="module")
def forecaster(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "waves"
    train(config(series(files), FORECASTER), place)
    return place


def same_weights(one: Path, other: Path) -> bool:
    first, second = (load_bundle(path).model.state_dict() for path in (one, other))
    return first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)


# Transcribers


@pytest.mark.slow
def test_a_transcriber_learns_its_captions(transcriber: Path, files: Path) -> None:
    lines = output_of("transcribe", "--model", transcriber, files / "test.npz").splitlines()
    assert lines == (files / "test.txt").read_text().splitlines()
    records = [
        json.loads(line)
        for line in output_of("transcribe", "--model", transcriber, files / "test.npz", "--json").splitlines()
    ]
    assert [record["text"] for record in records] == lines
    assert {record["status"] for record in records} == {"transcribed"}
    assert all(record["score"] < 0 for record in records)
    both = ("--source", files / "test.npz", "--reference", files / "test.txt")
    scores = json.loads(output_of("evaluate", "--model", transcriber, *both, "--json"))
    assert scores["word_error_rate"]["score"] == 0.0
    assert scores["exact_match"] == 100.0
    tested = json.loads((transcriber / "result.json").read_bytes())["tests"]
    assert next(iter(tested.values()))["word_error_rate"]["score"] == 0.0


def test_evaluation_of_a_transcriber_counts_words(transcriber: Path, files: Path, tmp_path: Path) -> None:
    lines = (files / "test.txt").read_text().splitlines()
    lines[0] += " corner"
    (tmp_path / "other.txt").write_text("".join(f"{line}\n" for line in lines))
    both = ("--source", files / "test.npz", "--reference", tmp_path / "other.txt")
    scores = json.loads(output_of("evaluate", "--model", transcriber, *both, "--json"))
    assert scores["word_error_rate"]["score"] == pytest.approx(100 / (4 * len(lines) + 1))
    assert scores["exact_match"] == pytest.approx(100 * (1 - 1 / len(lines)))


@pytest.mark.slow
def test_a_transcriber_resumes_to_the_bit(transcriber: Path, files: Path, tmp_path: Path) -> None:
    train(config(pairs(files, "txt"), TRANSCRIBER, "train.max_steps=80"), tmp_path / "run")
    assert not same_weights(transcriber, tmp_path / "run")
    train(config(pairs(files, "txt"), TRANSCRIBER), tmp_path / "run")
    assert same_weights(transcriber, tmp_path / "run")


@pytest.mark.slow
def test_the_text_of_a_sequence_does_not_depend_on_its_batch(transcriber: Path) -> None:
    random, model = np.random.default_rng(3), Transcriber.load(transcriber, "cpu")
    rows = [random.normal(size=(length, 16)) for length in (4, 1, 9, 2, 4)]
    together = model.transcribe(rows)
    for row, one in zip(rows, together, strict=True):
        alone = model.transcribe([row])[0]
        assert alone.text == one.text
        assert alone.score == pytest.approx(one.score, abs=1e-4)


def test_long_sequences_are_cut_and_reported(transcriber: Path, tmp_path: Path) -> None:
    from dragoman.data.features import write_features

    longest = Transcriber.load(transcriber, "cpu").config.text.max_length
    write_features(tmp_path / "long.npz", [np.zeros((longest + 1, 16)), np.zeros((2, 16))])
    ended = run("transcribe", "--model", transcriber, tmp_path / "long.npz")
    assert "transcribe: 1 of 2 sequences: only their beginning was read\n" in ended.stderr


# Classifiers of vectors


@pytest.mark.slow
def test_a_classifier_of_vectors_learns_its_labels(classifier: Path, files: Path) -> None:
    right = (files / "test.labels").read_text().splitlines()
    shown = output_of("classify", "--model", classifier, "--input", files / "test.npz").splitlines()
    assert [line.split("\t")[0] for line in shown] == right
    both = ("--source", files / "test.npz", "--reference", files / "test.labels")
    assert json.loads(output_of("evaluate", "--model", classifier, *both, "--json"))["accuracy"]["score"] == 100.0


def test_a_classifier_of_vectors_reads_no_text(classifier: Path) -> None:
    assert "vectors" in error_of("classify", "--model", classifier, "a text")
    with pytest.raises(ModelError, match=r"^classify: this model reads vectors, not text; use classify_vectors$"):
        Classifier.load(classifier, "cpu").classify("a text")


# Forecasters


@pytest.mark.slow
def test_a_forecaster_learns_its_waves(forecaster: Path, files: Path) -> None:
    scores = json.loads(output_of("evaluate", "--model", forecaster, "--reference", files / "test.csv", "--json"))
    assert scores["windows"] == 100 - 24 - 12 + 1
    assert scores["mse"] < 0.2 * scores["last_row"]["mse"]
    tested = next(iter(json.loads((forecaster / "result.json").read_bytes())["tests"].values()))
    assert tested["mse"] == pytest.approx(scores["mse"], rel=1e-4)


def test_forecasts_are_in_the_unit_of_the_file(forecaster: Path, files: Path, tmp_path: Path) -> None:
    lines = (files / "test.csv").read_text().splitlines()
    given, after = lines[:61], lines[61:73]
    (tmp_path / "given.csv").write_text("".join(f"{line}\n" for line in given))
    shown = output_of("forecast", "--model", forecaster, tmp_path / "given.csv").splitlines()
    assert shown[0] == "a,b"
    forecast, right = (np.array([line.split(",") for line in part], float) for part in (shown[1:], after))
    assert forecast.shape == (12, 2)
    assert (np.abs(forecast - right).mean(axis=0) < [0.4, 40.0]).all()
    found = Forecaster.load(forecaster, "cpu").forecast(np.array([line.split(",") for line in given[1:]], float))
    assert forecast == pytest.approx(found, rel=1e-4)


def test_a_forecast_can_be_drawn(forecaster: Path, files: Path, tmp_path: Path) -> None:
    output_of("forecast", "--model", forecaster, files / "test.csv", "--picture", tmp_path / "next.svg")
    assert (tmp_path / "next.svg").read_text().count("forecast") >= 2


@pytest.mark.slow
def test_a_forecaster_resumes_to_the_bit(forecaster: Path, files: Path, tmp_path: Path) -> None:
    train(config(series(files), FORECASTER, "train.max_steps=60"), tmp_path / "run")
    assert not same_weights(forecaster, tmp_path / "run")
    train(config(series(files), FORECASTER), tmp_path / "run")
    assert same_weights(forecaster, tmp_path / "run")


def test_an_lstm_forecasts_too(files: Path, tmp_path: Path) -> None:
    train(config(series(files), LSTM), tmp_path / "run")
    assert Forecaster.load(tmp_path / "run", "cpu").forecast(np.zeros((24, 2))).shape == (12, 2)


# The inspector


def test_the_inspector_draws_attention_on_the_picture(transcriber: Path, files: Path, tmp_path: Path) -> None:
    words = ("inspect", "--model", transcriber, "--source", files / "test.npz", "--most", 2)
    shown = output_of(*words, "--out", tmp_path / "page.html", "--svg", tmp_path / "svg")
    assert shown.splitlines()[-1] == f"{tmp_path / 'page.html'}: 2 inspected; open it in a browser"
    first = (files / "test.txt").read_text().splitlines()[0]
    assert f"sequence 1: {first} (score " in (tmp_path / "page.html").read_text()
    assert ">the picture<" in (tmp_path / "svg" / "1-attention.svg").read_text()
    names = {path.name for path in (tmp_path / "svg").iterdir()}
    kinds = ("attention", "heads", "heads-of-the-encoder")
    assert names == {f"{number}-{kind}.svg" for number in (1, 2) for kind in kinds}
    record = json.loads(output_of(*words, "--json").splitlines()[0])
    assert record["text"] == first
    assert np.array(record["attention"]).shape == (1, 2, len(record["tokens"]), 4)
    assert np.array(record["attention"]).sum(axis=-1) == pytest.approx(1.0, abs=1e-5)
    assert sum(np.log(step["probability"]) for step in record["steps"]) == pytest.approx(record["score"], abs=1e-3)


def test_the_inspector_draws_attention_below_frames(transcriber: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "frames.npy", np.random.default_rng(1).normal(size=(1, 30, 16)))
    words = ("inspect", "--model", transcriber, "--source", tmp_path / "frames.npy")
    output_of(*words, "--svg", tmp_path / "svg")
    drawn = (tmp_path / "svg" / "1-attention.svg").read_text()
    assert ">vectors<" in drawn
    assert ">the picture<" not in drawn
    shown = output_of(*words)
    heading = next(line for line in shown.splitlines() if line.split()[:2] == ["1", "2"])
    assert len(heading.split()) == 20


def test_the_inspector_shows_what_each_vector_adds(classifier: Path, files: Path, tmp_path: Path) -> None:
    words = ("inspect", "--model", classifier, "--source", files / "test.npz", "--most", 1)
    record = json.loads(output_of(*words, "--json"))
    assert record["label"] == (files / "test.labels").read_text().splitlines()[0]
    assert len(record["influence"]) == len(record["class_attention"]) == 4
    assert max(record["influence"]) > 0
    output_of(*words, "--svg", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"1-attention.svg", "1-influence.svg", "1-heads.svg"}


def test_the_inspector_shows_where_a_forecast_looked(forecaster: Path, files: Path) -> None:
    words = ("inspect", "--model", forecaster, "--source", files / "test.csv")
    record = json.loads(output_of(*words, "--json"))
    forecast = output_of("forecast", "--model", forecaster, files / "test.csv").splitlines()[1:]
    assert np.array(record["forecast"]) == pytest.approx(
        np.array([line.split(",") for line in forecast], float), rel=1e-4
    )
    assert np.array(record["attention"]).shape == (1, 2, 12, 24)
    assert "row +12" in output_of(*words)


@pytest.mark.slow
def test_an_lstm_without_attention_says_so(files: Path, tmp_path: Path) -> None:
    train(config(series(files), LSTM, "model.context=none"), tmp_path / "run")
    shown = output_of("inspect", "--model", tmp_path / "run", "--source", files / "test.csv")
    assert shown.endswith("(this model has no attention)\n")


# Reports


def test_reports_show_pictures(transcriber: Path, classifier: Path, forecaster: Path) -> None:
    for model in (transcriber, classifier):
        assert ">the picture<" in (model / "report.html").read_text()
    assert "word error rate" in (transcriber / "summary.md").read_text()
    assert "accuracy" in (classifier / "summary.md").read_text()
    assert ">what happened<" in (forecaster / "report.html").read_text()


# Precisions, other runs, unusual files


@pytest.mark.slow
def test_every_precision_gives_nearly_the_same(
    transcriber: Path, classifier: Path, forecaster: Path, files: Path
) -> None:
    for precision in ("bfloat16", "int8"):
        words = ("--precision", precision)
        lines = output_of("transcribe", "--model", transcriber, files / "test.npz", *words).splitlines()
        assert lines == (files / "test.txt").read_text().splitlines()
        shown = output_of("classify", "--model", classifier, "--input", files / "test.npz", *words).splitlines()
        assert [line.split("\t")[0] for line in shown] == (files / "test.labels").read_text().splitlines()
        rows = np.array([line.split(",") for line in (files / "test.csv").read_text().splitlines()[1:]], float)
        exact, rough = (Forecaster.load(forecaster, "cpu", each).forecast(rows) for each in ("float32", precision))
        assert rough == pytest.approx(exact, abs=0.1 * np.abs(exact).max())
        assert (rough != exact).any(), "the control: another precision"
        for model, source in ((transcriber, "test.npz"), (classifier, "test.npz"), (forecaster, "test.csv")):
            assert output_of("inspect", "--model", model, "--source", files / source, "--most", 1, *words)


def test_a_run_from_a_model_of_vectors_keeps_its_task(
    transcriber: Path, forecaster: Path, quick_run: Path, files: Path, tmp_path: Path
) -> None:
    built = build_config(None, tmp_path / "a", None, series(files), ["train.learning_rate=1e-4"], str(forecaster))
    assert (built.task, built.train.valid_metric) == ("forecasting", "mse")
    assert (built.data.lookback, built.data.horizon) == (24, 12)
    built = build_config(None, tmp_path / "a", None, series(files), ["data.horizon=6"], str(forecaster))
    assert (built.data.lookback, built.data.horizon) == (24, 6), "the control: what is given counts"
    built = build_config(None, tmp_path / "a", None, pairs(files, "txt"), [], str(transcriber))
    assert (built.task, built.train.valid_metric) == ("transcription", "word_error_rate")
    encoder = ["model.architecture=encoder"]
    for settings, model, message in (
        (encoder, transcriber, f"{transcriber} reads vectors; set it to 16, or leave --from out"),
        ([*encoder, "model.source_features=16"], quick_run, f"{quick_run} reads text; leave --from out"),
    ):
        with pytest.raises(ConfigError, match=re.escape(f"model.source_features: {message}")):
            build_config(None, tmp_path / "a", None, pairs(files, "labels"), settings, str(model))
    built = build_config(
        None, tmp_path / "a", None, pairs(files, "labels"), [*encoder, "model.source_features=16"], str(transcriber)
    )
    assert (built.task, built.model.num_layers, built.model.d_model) == ("classification", 1, 32)


def test_silence_is_scored_too(transcriber: Path, files: Path, tmp_path: Path) -> None:
    lines = (files / "test.txt").read_text().splitlines()
    (tmp_path / "blank.txt").write_text("".join(f"{line}\n" for line in ["", *lines[1:]]))
    both = ("--source", files / "test.npz", "--reference", tmp_path / "blank.txt")
    scores = json.loads(output_of("evaluate", "--model", transcriber, *both, "--json"))
    assert scores["sentences"] == len(lines)
    assert scores["word_error_rate"]["score"] == pytest.approx(100 * 4 / (4 * (len(lines) - 1)))


def test_errors_of_columns_are_in_their_own_unit(forecaster: Path, files: Path) -> None:
    scores = json.loads(output_of("evaluate", "--model", forecaster, "--reference", files / "test.csv", "--json"))
    values = np.loadtxt(files / "train.csv", delimiter=",", skiprows=1)
    scaled = [
        scores["columns"][name]["mae"] / deviation for name, deviation in zip("ab", values.std(axis=0), strict=True)
    ]
    assert np.mean(scaled) == pytest.approx(scores["mae"], rel=1e-3)
    assert scores["columns"]["b"]["mae"] > 20 * scores["columns"]["a"]["mae"], "one is a hundred times as large"


@pytest.mark.slow
def test_pictures_larger_than_the_model_reads_are_drawn(transcriber: Path, classifier: Path, tmp_path: Path) -> None:
    from dragoman.data.features import write_features

    longest = Transcriber.load(transcriber, "cpu").longest
    side = 4 * (int(longest**0.5) + 2)
    write_features(tmp_path / "big.npz", [as_patches(np.eye(side), 4)], picture=(side, side))
    for model in (transcriber, classifier):
        words = ("inspect", "--model", model, "--source", tmp_path / "big.npz")
        output_of(*words, "--svg", tmp_path / "svg")
        assert f"read: the first {longest} of {(side // 4) ** 2} vectors" in output_of(*words)
    ended = run("classify", "--model", classifier, "--input", tmp_path / "big.npz")
    assert "classify: 1 of 1 sequences: too long, only their beginning was read\n" in ended.stderr


def test_learned_positions_hold_the_windows_of_a_forecaster(files: Path) -> None:
    learned = ("model.positions=learned", "model.max_positions=24")
    assert config(series(files), FORECASTER, *learned).model.longest == 24
    message = "24 learned positions cannot hold data.lookback=25 and data.horizon=12 rows; raise it or lower them"
    with pytest.raises(ConfigError, match=f"^model.max_positions: {message}$"):
        config(series(files), FORECASTER, *learned, "data.lookback=25")


def test_numbers_too_large_for_the_model_are_refused(forecaster: Path, files: Path, tmp_path: Path) -> None:
    lines = (files / "test.csv").read_text().splitlines()
    lines[90] = "1,1e300"
    (tmp_path / "huge.csv").write_text("".join(f"{line}\n" for line in lines))
    assert error_of("forecast", "--model", forecaster, tmp_path / "huge.csv") == (
        "series: has numbers that are not finite; fix or remove their rows"
    )
    assert error_of("evaluate", "--model", forecaster, "--reference", tmp_path / "huge.csv") == (
        f"{tmp_path / 'huge.csv'}:91: the number in the column b is too large; fix the line"
    )


@pytest.mark.slow
def test_a_summary_finds_the_files_of_a_recipe(files: Path, tmp_path: Path) -> None:
    data = {name: path.replace(str(files), "$DRAGOMAN_DATA") for name, path in pairs(files, "txt").items()}
    train(config(data, TRANSCRIBER, "train.max_steps=2", "train.save_every=2"), tmp_path / "run", data_folder=files)
    assert (tmp_path / "run" / "sample.svg").exists()


# What does not fit


def test_commands_name_the_one_that_fits(
    transcriber: Path, forecaster: Path, classifier: Path, quick_run: Path, files: Path
) -> None:
    text = quick_run
    assert error_of("translate", "--model", transcriber, "x") == (
        f"{transcriber}: is a transcriber, and a translation model is needed; "
        f"use `dragoman transcribe --model {transcriber}`"
    )
    assert error_of("transcribe", "--model", forecaster, files / "test.npz") == (
        f"{forecaster}: is a forecaster, and a transcriber is needed; use `dragoman forecast --model {forecaster}`"
    )
    assert error_of("forecast", "--model", text, files / "test.csv") == (
        f"{text}: is a translation model, and a forecaster is needed; use `dragoman translate --model {text}`"
    )
    needs = "inspect: this model does not read text; give {}, with --source"
    for model in (transcriber, classifier):
        assert error_of("inspect", "--model", model, "x") == needs.format("vectors, .npz or .npy")
    assert error_of("inspect", "--model", forecaster, "x") == needs.format("a time series, .csv")
    assert error_of("inspect", "--model", transcriber, "--source", files / "test.npz", "--mask-head", "cross.1.1") == (
        "inspect: --target and --mask-head are for translation models; leave them out"
    )
    assert error_of("export", "--model", forecaster, "--to", "onnx", "out").startswith(f"{forecaster}: is a forecaster")


def test_files_that_do_not_fit_are_named(transcriber: Path, forecaster: Path, files: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", np.zeros((1, 2, 17)))
    assert error_of("transcribe", "--model", transcriber, tmp_path / "wide.npy") == (
        f"{tmp_path / 'wide.npy'}: vectors of 17 numbers; the model has model.source_features=16"
    )
    (tmp_path / "short.csv").write_text("a,b\n1,2\n")
    assert error_of("forecast", "--model", forecaster, tmp_path / "short.csv") == (
        f"{tmp_path / 'short.csv'}: 1 rows; this model looks back on 24"
    )
    (tmp_path / "other.csv").write_text("a,c\n1,2\n")
    assert error_of("forecast", "--model", forecaster, tmp_path / "other.csv") == (
        f"{tmp_path / 'other.csv'}: its columns are a, c; the model knows a, b, in this order"
    )
    both = ("--source", files / "test.npz", "--reference", files / "train.txt")
    assert "train.txt" in error_of("evaluate", "--model", transcriber, *both)


def test_a_run_needs_the_files_of_its_task(files: Path, tmp_path: Path) -> None:
    other = "leave it out, or set the model.architecture that uses it$"
    with pytest.raises(ConfigError, match=rf"^data.source: not used in forecasting; {other}"):
        train(config(pairs(files, "txt"), FORECASTER), tmp_path / "run")
    columns = "leave it out, or set model.source_features and model.target_features to its number of columns$"
    with pytest.raises(ConfigError, match=rf"^data.series: not used in transcription; {columns}"):
        train(config(series(files), TRANSCRIBER), tmp_path / "run")
    text = Config.build("tiny", None, [*SMALL, *TEXT], data=pairs(files, "txt"))
    with pytest.raises(ConfigError, match=r"train.npz has vectors; set model.source_features to the size of one$"):
        train(text, tmp_path / "run")
    with pytest.raises(ConfigError, match="--series and --valid-series"):
        train(config({}, FORECASTER), tmp_path / "run")
    assert not (tmp_path / "run" / "weights.safetensors").exists()


def test_the_wrong_number_of_features_is_found_before_training(files: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"vectors of 16 numbers; the model has model.source_features=8$"):
        train(config(pairs(files, "txt"), TRANSCRIBER, "model.source_features=8"), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"has 2 columns; set model.source_features and model.target_features to 2$"):
        train(config(series(files), FORECASTER, "model.source_features=3"), tmp_path / "run")


def test_a_model_directory_without_its_scale_is_refused(transcriber: Path, tmp_path: Path) -> None:
    shutil.copytree(transcriber, tmp_path / "model", ignore=shutil.ignore_patterns("checkpoints", "data"))
    (tmp_path / "model" / "scale.json").write_text("{}")
    with pytest.raises(ModelError, match=r"scale\.json"):
        Transcriber.load(tmp_path / "model", "cpu")
