"""Test sets in training: measured once, at the end, with the published model, and recorded with what was measured."""

import json
import os
from pathlib import Path

import pytest

import dragoman
from dragoman.config import Config
from dragoman.errors import ConfigError, DataError
from dragoman.evaluate.metrics import evaluate
from dragoman.evaluate.paper import tokenized_bleu
from dragoman.training.loop import train
from dragoman.training.reports.log import SilentReporter
from dragoman.training.reports.provenance import source_commit
from dragoman.training.test_sets import _name
from tests.conftest import quick_config
from tests.forked import shared_server

PLACED = "$DRAGOMAN_DATA/text.tsv"
LINES = [("a b c d e", "e d c b a"), ("j i h g f", "f g h i j"), ("c d c d", "d c d c")]


class Notes(SilentReporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def with_tests(folder: Path, *settings: str) -> Config:
    """A quick run with two test sets: files of two columns, and one with its sides apart."""
    folder.mkdir(exist_ok=True)
    (folder / "both.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in LINES))
    (folder / "one.src").write_text("".join(f"{source}\n" for source, _ in LINES))
    (folder / "one.de").write_text("".join(f"{target}\n" for _, target in LINES))
    sources, targets = [f"{folder}/both.tsv", f"{folder}/one.src"], [f"{folder}/both.tsv", f"{folder}/one.de"]
    return quick_config(f"data.test_source={json.dumps(sources)}", f"data.test_target={json.dumps(targets)}", *settings)


@pytest.mark.slow
def test_result_has_scores_and_provenance_of_the_published_model(tmp_path: Path) -> None:
    notes = Notes()
    config = with_tests(tmp_path / "sets")
    train(config, tmp_path / "run", notes)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert list(result["tests"]) == ["sets-both", "sets-one"]
    translator = dragoman.load(str(tmp_path / "run"), "cpu")
    translations = [found.text for found in translator.translate([source for source, _ in LINES])]
    expected = evaluate(translations, [target for _, target in LINES]).to_dict()
    expected["failed"] = 0
    assert result["tests"]["sets-both"] == expected
    # a file's name may tell the language, which tokenised BLEU needs
    tokenized = tokenized_bleu(translations, [target for _, target in LINES], "de").to_dict()
    assert result["tests"]["sets-one"] == {**expected, "tokenized_bleu": tokenized}
    assert (tmp_path / "run" / "tests" / "sets-one.txt").read_text() == "".join(f"{line}\n" for line in translations)
    assert (result["steps"], result["seed"]) == (60, 1)
    assert result["search"] == {"beam": 4, "length_penalty": 0.6}
    assert result["weights"]["step"] <= 60
    assert any(note.startswith("test sets-both: BLEU ") for note in notes.notes)
    assert result["configuration"] == (tmp_path / "run" / "config.toml").read_text()
    assert result["git_commit"] == source_commit()


@pytest.mark.slow
def test_lowercase_model_is_scored_in_lower_case_and_capitals_give_a_warning(tmp_path: Path) -> None:
    lower = ("text.normalization=nfc-lowercase", "train.max_steps=4", "train.save_every=4")
    train(with_tests(tmp_path / "sets", *lower), tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert all("case:lc" in result["tests"]["sets-one"][name]["signature"] for name in ("bleu", "tokenized_bleu"))
    (tmp_path / "capitals").write_text("".join(f"{target.upper()}\n" for _, target in LINES))
    caution = "evaluate: the model writes lower case only and the references have capitals; --lowercase compares"
    for reference, more, told in (
        ("capitals", (), True),
        ("capitals", ("--lowercase",), False),
        ("sets/one.de", (), False),
    ):
        files = ("--source", str(tmp_path / "sets/one.src"), "--reference", str(tmp_path / reference))
        # a process of its own: the command takes SIGPIPE for itself
        words = ("evaluate", "--model", str(tmp_path / "run"), *files, "--device", "cpu", *more)
        done = shared_server().run(words)
        assert done.returncode == 0, done.stderr
        assert (caution in done.stderr) is told


def test_names_of_test_sets_are_unique() -> None:
    taken: dict[str, object] = {}
    for source in ("d/test-3.en", "d/test.a.en", "d/test.b.en", "d/test.c.en", "d/test.d.en"):
        taken[_name(source, taken)] = source
    assert list(taken) == ["d-test-3", "d-test", "d-test-2", "d-test-4", "d-test-5"]


def test_skipped_pairs_are_reported(tmp_path: Path) -> None:
    config = with_tests(tmp_path / "sets", "train.max_steps=4", "train.save_every=4")
    (tmp_path / "sets" / "one.src").write_text(f"{LINES[0][0]}\n\n{LINES[2][0]}\n")
    notes = Notes()
    train(config, tmp_path / "run", notes)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert [result["tests"][name]["sentences"] for name in ("sets-both", "sets-one")] == [3, 2]
    told = [note for note in notes.notes if "left out" in note]
    assert told == [f"test sets-one: 1 pair left out, blank on a side: {tmp_path}/sets/one.src:2"]


@pytest.mark.slow
def test_generated_test_pairs_are_scored_on_request(tmp_path: Path) -> None:
    train(quick_config("train.max_steps=4", "train.save_every=4", "data.generated_test=true"), tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["tests"]["corpus-test"]["sentences"] == 1_000
    with pytest.raises(ConfigError, match=r"^data.generated_test: measures the test pairs of data.generated, and none"):
        Config.build(data={"generated_test": True})


@pytest.mark.slow
def test_scores_are_measured_again_only_after_further_training(tmp_path: Path) -> None:
    train(with_tests(tmp_path / "sets", "train.max_steps=20"), tmp_path / "run")
    result = tmp_path / "run" / "result.json"
    before = result.stat().st_mtime_ns
    train(with_tests(tmp_path / "sets", "train.max_steps=20"), tmp_path / "run")
    assert result.stat().st_mtime_ns == before
    train(with_tests(tmp_path / "sets", "train.max_steps=40"), tmp_path / "run")
    assert json.loads(result.read_text())["steps"] == 40


def test_missing_test_set_is_reported_before_the_first_step(tmp_path: Path) -> None:
    config = with_tests(tmp_path / "sets")
    (tmp_path / "sets" / "one.de").unlink()
    with pytest.raises(DataError, match=r"one\.de: no such file; check its name"):
        train(config, tmp_path / "run")
    (tmp_path / "sets" / "one.de").write_text("one line\n")
    with pytest.raises(DataError, match=r"one\.de: 1 lines, .*one\.src: 3; line N of one belongs to line N"):
        train(config, tmp_path / "run")
    (tmp_path / "sets" / "one.de").write_bytes(b"one\ntwo\n\xff\n")
    with pytest.raises(DataError, match=r"one\.de:3: invalid UTF-8 at byte 1; fix the line"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "log.jsonl").exists()
    with pytest.raises(ConfigError, match=r"^data.test_source: 1 files, data.test_target: 0; give as many"):
        Config.build(data={"test_source": ["a"]})


def test_missing_data_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = with_tests(tmp_path / "sets")
    placed = [path.replace(str(tmp_path), "$DRAGOMAN_DATA") for path in config.data.test_source]
    targets = [path.replace(str(tmp_path), "$DRAGOMAN_DATA") for path in config.data.test_target]
    config = quick_config(
        "data.generated=", "data.source=x", "data.target=x", "data.valid_source=x", "data.valid_target=x",
        f"data.test_source={json.dumps(placed)}", f"data.test_target={json.dumps(targets)}",
    )  # fmt: skip
    monkeypatch.delenv("DRAGOMAN_DATA", raising=False)
    with pytest.raises(ConfigError, match=r"^data.test_source: \$DRAGOMAN_DATA/sets/both.tsv needs \$DRAGOMAN_DATA, "):
        train(config, tmp_path / "run")
    monkeypatch.setenv("DRAGOMAN_DATA", f"{tmp_path}/none")
    with pytest.raises(
        ConfigError, match=rf"^--data {tmp_path}/none: no such folder; it is where the corpora of data\.test"
    ):
        train(config, tmp_path / "run")
    monkeypatch.setenv("DRAGOMAN_DATA", f"{tmp_path}/sets")
    with pytest.raises(
        DataError, match=rf"^{tmp_path}/sets/sets/both\.tsv: no such file; --data names the folder of the"
    ):
        train(config, tmp_path / "run")
    with pytest.raises(DataError, match=r"^x: no such file"):
        train(config, tmp_path / "run", data_folder=tmp_path)
    assert os.environ["DRAGOMAN_DATA"] == f"{tmp_path}/sets", "a parameter changes no variable"
    monkeypatch.setenv("DRAGOMAN_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"^x: no such file"):
        train(config, tmp_path / "run")


def test_command_line_passes_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAGOMAN_DATA", raising=False)
    files = [item for side in ("source", "target", "valid-source", "valid-target") for item in (f"--{side}", PLACED)]
    command = ["train", *files, "--out", str(tmp_path / "run"), "--data"]
    missing = shared_server().run([*command, str(tmp_path / "none")])
    assert missing.returncode == 2
    assert missing.stderr.startswith(f"dragoman: --data {tmp_path / 'none'}: no such folder")
    found = shared_server().run([*command, str(tmp_path)])
    assert found.returncode == 3
    assert found.stderr.startswith(f"dragoman: {tmp_path}/text.tsv: no such file")
