"""Exact match: one definition and one unit wherever it is measured; other guarantees of `evaluate` for a model."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dragoman.bundle import Bundle, load_bundle
from dragoman.cli.progress import TrainingReporter
from dragoman.config import Config
from dragoman.decode.translator import Translator
from dragoman.evaluate.breakdown import sentence_scores
from dragoman.evaluate.metrics import evaluate, exact_match, quick_scores
from dragoman.tasks.translation import TranslationTask
from dragoman.text.normalize import Normalization, normalize
from dragoman.training.data import prepare_data
from dragoman.training.reports.log import SilentReporter
from dragoman.training.validation import Validation
from tests.forked import shared_server

SOURCES = ["a b c d e f g h", "j i h g f e d c b a", "h g f e d c b a a b", "f g"]


@pytest.fixture(scope="module")
def translator(quick_run: Path) -> Translator:
    """With greedy search, which finds more than blank lines."""
    bundle = load_bundle(quick_run)
    config = replace(bundle.config, decode=replace(bundle.config.decode, beam=1))
    return Translator(Bundle(config, bundle.tokenizers, bundle.weights), "cpu")


@pytest.fixture
def place(tmp_path: Path, translator: Translator) -> Path:
    """References that equal the model's translations after normalisation, and a wrong one."""
    right = [f" {result.text} ".replace(" ", " \x07 ") for result in translator.translate(SOURCES[:3])]
    assert all(line.count("\x07") > 2 for line in right)
    (tmp_path / "source").write_text("".join(f"{line}\n" for line in SOURCES))
    (tmp_path / "reference").write_text("".join(f"{line}\n" for line in [*right, "something else"]))
    return tmp_path


def run(place: Path, command: str, code: int = 0) -> str:
    done = shared_server().run(command.split(), cwd=place)
    assert done.returncode == code, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("hypothesis", "reference", "normalization", "same"),
    [
        ("caf\u00e9 noir", "cafe\u0301  noir ", "nfc", True),
        ("a b", "a\u2581b", "nfc", False),
        ("a b", "a\x07b", "nfc", True),
        ("fi", "\ufb01", "nfc", False),
        ("fi", "\ufb01", "nfkc", True),
        ("A", "a", "nfc", False),
        ("A", "a", "nfc-lowercase", True),
    ],
)
def test_lines_are_normalised_before_comparison(
    hypothesis: str, reference: str, normalization: Normalization, same: bool
) -> None:
    expected = 100.0 if same else 0.0
    assert exact_match([hypothesis], [reference], normalization) == expected
    assert quick_scores([hypothesis], [reference], normalization)["exact_match"] == expected
    assert evaluate([hypothesis], [reference], normalization=normalization).exact_match == expected
    (scored,) = sentence_scores([hypothesis], [reference], normalization=normalization)
    assert scored.right is same


@pytest.mark.slow
def test_training_and_evaluate_give_the_same_exact_match(place: Path, translator: Translator, quick_run: Path) -> None:
    notes: list[str] = []
    prepared: Any = SimpleNamespace(config=translator.config)
    paths = [place / "source", place / "reference"]
    loaded = load_bundle(quick_run)
    bundle = Bundle(translator.config, loaded.tokenizers, loaded.weights)  # greedy
    tested = TranslationTask().test(bundle, prepared, torch.device("cpu"), paths, lambda *_: None, notes.append)
    trained = tested.scores
    assert trained["exact_match"] == 75.0
    written = (place / "reference").read_text().splitlines()
    ours = [result.text for result in translator.translate(SOURCES)]
    assert trained == {**evaluate(ours, [normalize(line) for line in written]).to_dict(), "failed": 0}
    assert trained["chrf"] != evaluate(ours, written).chrf.to_dict(), "the control: references without normalisation"
    files = f"--model {quick_run} --beam 1 --source source --reference reference"
    assert json.loads(run(place, f"evaluate {files} --json"))["exact_match"] == 75.0
    assert "\nexact  75.0%  of 4 sentences\n" in run(place, f"evaluate {files}")
    (place / "ours").write_text("".join(f"{line}\n" for line in ours))
    alone = json.loads(run(place, "evaluate --hypotheses ours --reference reference --worst 4 --json"))
    assert alone["exact_match"] == 75.0
    assert [one["line"] for one in alone["worst"]] == [4], "a line that matches is never among the worst"


def test_validation_normalises_its_references(place: Path) -> None:
    files = {name: str(place / "source") for name in ("source", "target", "valid_source")}
    settings = ["text.model=word", "text.vocab_size=300", "train.valid_metric=exact_match"]
    config = Config.build("tiny", None, settings, data={**files, "valid_target": str(place / "reference")})
    prepared = prepare_data(config, place / "run", SilentReporter())
    written = (place / "reference").read_text().splitlines()
    assert prepared.valid_references == [normalize(line) for line in written]
    assert prepared.valid_references != written, "the control"
    judge = Validation(prepared, torch.device("cpu"), torch.float32).judge
    assert judge.startswith("exact_match in per cent on 4 of "), "distinct from the fraction of earlier versions"


def test_validation_exact_match_is_reported_in_percent(capsys: pytest.CaptureFixture[str]) -> None:
    record = {"kind": "valid", "step": 20, "loss": 2.5, "exact_match": 3.55, "best": False}
    TrainingReporter().validated({**record, "sample": {"source": "a", "translation": "b"}})
    assert "valid  step 20: loss 2.500  exact 3.5%" in capsys.readouterr().err


# What else evaluate promises of a model


@pytest.mark.slow
def test_json_has_the_hash_of_the_weights(place: Path, quick_run: Path) -> None:
    record = json.loads(run(place, f"evaluate --model {quick_run} --source source --reference reference --json"))
    digest = hashlib.sha256((quick_run / "weights.safetensors").read_bytes()).hexdigest()
    assert record["made_by"]["sha256"] == digest
    assert record["made_by"]["model"] == str(quick_run)


@pytest.mark.slow
def test_tokenize_applies_to_every_score(place: Path) -> None:
    (place / "reference").write_text("ab cd ef gh ij kl\nmn op qr st uv\n")
    (place / "ours").write_text("ab cd ef gx ij kl\nmn op qr sx uv\n")
    (place / "theirs").write_text("xb cd ef gx ij kl\nmn op qr sx uv\n")
    files = "evaluate --hypotheses ours --reference reference --against theirs --worst 2 --json"
    words, letters = (json.loads(run(place, f"{files} --tokenize {name}")) for name in ("13a", "char"))
    for record, name in ((words, "13a"), (letters, "char")):
        assert f"tok:{name}|" in record["bleu"]["signature"]
        assert f"tok:{name}|" in record["against"][0]["bleu"]["signature"]
    assert letters["bleu"]["score"] > words["bleu"]["score"] + 10
    assert [bucket["shortest"] for bucket in words["by_length"]] == [0, 6]
    assert [bucket["shortest"] for bucket in letters["by_length"]] == [6, 11]
    for mine, theirs in zip(words["worst"], letters["worst"], strict=True):
        assert theirs["bleu"] > mine["bleu"]


def test_evaluate_exits_with_1_if_lines_failed(place: Path, quick_run: Path) -> None:
    arguments = ["evaluate", "--model", str(quick_run), "--source", str(place / "source")]
    arguments += ["--reference", str(place / "reference"), "--engine", "plain"]
    fault = {"name": "out_of_memory", "longest": 9}  # with </s>
    ended = shared_server().start(arguments, place / "errors", fault, {}).wait()
    assert ended.code == 1
    assert ended.lines[-1] == "evaluate: 2 lines failed and count as empty"
