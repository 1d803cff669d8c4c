"""`dragoman evaluate` as a person runs it."""

import gzip
import json
import os
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dragoman.bundle import load_config
from dragoman.training.reports.provenance import source_commit
from tests.forked import shared_server

SOURCES = [f"Satz {number} steht hier, kurz und klar." for number in range(1, 13)]
REFERENCES = [f"Sentence {number} stands here, short and clear." for number in range(1, 13)]
OURS = [*REFERENCES[:11], "Nothing\tof the kind."]
THEIRS = ["Quite another thing."] * 12

FAKE_COMET = """
import pathlib
__version__ = "2.2.7"
def download_model(model, saving_directory=None, local_files_only=False):
    return str(pathlib.Path(__file__))
def load_from_checkpoint(checkpoint_path, reload_hparams=False, strict=False, local_files_only=False):
    return Model()
class Model:
    def predict(self, samples, batch_size=16, gpus=1, devices=None, mc_dropout=0, progress_bar=True,
                accelerator="auto", num_workers=None, length_batching=True):
        print("noise")
        return {"scores": [float(s["mt"] == s["ref"]) for s in samples], "system_score": 0.0}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, lines in (("source", SOURCES), ("reference", REFERENCES), ("ours", OURS), ("theirs", THEIRS)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return tmp_path


def run(place: Path, arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(place / "modules")}
    done = shared_server().run(["evaluate", *arguments.split()], cwd=place, env=environment)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.slow
def test_scores_of_a_model_record_its_commit_and_configuration(place: Path, quick_run: Path) -> None:
    done = run(place, f"--model {quick_run} --source source --reference reference --beam 2 --lowercase --json")
    record = json.loads(done.stdout)
    assert record["git_commit"] == source_commit()
    configuration = record["configuration"]
    decode = asdict(replace(load_config(quick_run).decode, beam=2, batch_size=32))
    assert configuration.pop("decode") == json.loads(json.dumps(decode))  # tuples are lists there
    assert configuration == {
        "tokenize": "13a",
        "lowercase": True,
        "paper_language": None,
        "comet": None,
        "rouge": False,
        "device": "auto",
        "precision": "auto",
        "engine": "auto",
    }
    assert "configuration" not in json.loads(run(place, "--hypotheses ours --reference reference --json").stdout)


@pytest.mark.slow
def test_all_metrics_and_comparisons_as_json(place: Path) -> None:
    (place / "modules").mkdir()
    (place / "modules" / "comet.py").write_text(FAKE_COMET)
    done = run(
        place,
        "--hypotheses ours --source source --reference reference --against theirs --against ours --paper --comet x/y "
        "--worst 3 --sentences all.jsonl --device cpu --json",
    )
    record = json.loads(done.stdout)
    for name in ("bleu", "chrf", "ter", "paper_bleu", "comet"):
        assert record[name].keys() == {"score", "low", "high", "signature"}
        assert record[name]["low"] <= record[name]["score"] <= record[name]["high"]
    assert "tok:none" in record["paper_bleu"]["signature"]
    assert record["comet"]["score"] == pytest.approx(11 / 12)
    theirs, itself = record["against"]
    assert theirs["file"] == "theirs"
    assert theirs["bleu"]["verdict"] == "better, unlikely to be chance"
    assert itself["bleu"]["p_value"] == 1
    assert sum(bucket["count"] for bucket in record["by_length"]) == 12
    assert [one["line"] for one in record["worst"]] == [12]  # the others are right
    assert record["worst"][0]["source"] == SOURCES[11]
    written = [json.loads(line) for line in (place / "all.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [one["line"] for one in written] == [12, *range(1, 12)]


@pytest.mark.slow
def test_text_output_shows_scores_comparison_and_worst_lines(place: Path) -> None:
    text = run(
        place,
        "--hypotheses ours --source source --reference reference --against theirs --paper --worst 1 "
        "--sentences all.tsv",
    ).stdout
    assert text.startswith("BLEU ")
    assert "paper-style BLEU " in text
    assert "never with sacreBLEU" in text
    assert "against theirs, by paired approximate randomisation" in text
    assert "better, unlikely to be chance" in text
    assert "line 12: chrF " in text
    assert f"  source      {SOURCES[11]}\n" in text
    rows = [line.split("\t") for line in (place / "all.tsv").read_text(encoding="utf-8").split("\n")[:-1]]
    assert rows[0] == ["line", "chrf", "bleu", "source", "hypothesis", "reference"]
    assert {len(row) for row in rows} == {6}
    assert rows[1][4] == "Nothing\\tof the kind."
    assert len(rows) == 13


def test_sentence_scores_can_be_gzipped(place: Path) -> None:
    run(place, "--hypotheses ours --reference reference --sentences all.jsonl.gz")
    with gzip.open(place / "all.jsonl.gz", "rt", encoding="utf-8") as stream:
        assert [json.loads(line)["line"] for line in stream] == [12, *range(1, 12)]


@pytest.mark.slow
def test_lowercase_ignores_case_in_every_score(place: Path) -> None:
    (place / "shouted").write_text("".join(f"{line.upper()}\n" for line in REFERENCES))
    files = "--hypotheses shouted --reference reference --against ours --sentences all.jsonl"
    arguments = f"{files} --paper --worst 3 --json"
    record = json.loads(run(place, f"{arguments} --lowercase").stdout)
    assert record["exact_match"] == 100.0
    assert record["worst"] == []
    perfect = [record[name]["score"] for name in ("bleu", "chrf", "tokenized_bleu", "paper_bleu")]
    assert [round(score) for score in perfect] == [100] * 4
    assert record["against"][0]["bleu"]["difference"] > 0
    assert {round(bucket["bleu"]) for bucket in record["by_length"]} == {100}
    assert round(json.loads((place / "all.jsonl").read_text().splitlines()[0])["bleu"]) == 100
    counted = json.loads(run(place, arguments).stdout)
    assert counted["bleu"]["score"] < 50
    assert len(counted["worst"]) == 3
    assert counted["against"][0]["bleu"]["difference"] < 0


def test_notes_go_to_stderr(place: Path) -> None:
    (place / "thai").write_text("สวัสดีครับ\nวันนี้อากาศดี\n", encoding="utf-8")
    done = run(place, "--hypotheses thai --reference thai --json")
    assert "evaluate: the references are in Thai script" in done.stderr
    assert len(json.loads(done.stdout)["notes"]) == 1


def test_blank_lines_are_reported(place: Path) -> None:
    (place / "holes").write_text("".join(f"{'' if row in (3, 7) else line}\n" for row, line in enumerate(REFERENCES)))
    done = run(place, "--hypotheses ours --reference holes")
    assert "evaluate: 2 lines of the reference blank, the first is line 4: BLEU and TER count" in done.stderr
    assert "of 12 sentences\n" in done.stdout
    assert "the translation blank" not in done.stderr
    assert "blank" not in run(place, "--hypotheses ours --reference reference").stderr
    silent = run(place, "--hypotheses holes --reference reference").stderr
    assert "evaluate: 2 lines of the translation blank, the first is line 4: all that the reference" in silent
    (place / "nothing").write_text("\n \n")
    nothing = run(place, "--hypotheses nothing --reference nothing", code=3)
    assert nothing.stderr.endswith("nothing to evaluate: every line of the reference is blank\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("--hypotheses ours --against short", 3, "short: 2 lines, reference: 12; each line needs one reference"),
        ("--hypotheses short", 3, "short: 2 lines, reference: 12; each line needs one reference"),
        ("--hypotheses ours --source bad", 3, "bad:2: invalid UTF-8 at byte 1; fix the line"),
        ("--hypotheses ours --comet x/y", 2, "--comet: reads the source too; give --source"),
        ("--hypotheses ours --language de", 2,
         "--language: chooses the tokenisation of --paper; add --paper or leave it out"),
        ("--hypotheses ours --sentences ours", 2, "--sentences ours: is read too; give another file"),
        ("--hypotheses ours --sentences .", 6, "--sentences .: is a directory; name a file"),
        ("--hypotheses ours --sentences no/where", 6,
         "--sentences no/where: its directory does not exist; make it or choose another place"),
        ("--model none --source source --tokenize 14a", 2, "--tokenize: '14a' is not a choice; did you mean 13a?"),
        ("--hypotheses ours --source source --comet x/y", 2,
         "--comet: unbabel-comet is not installed (not on this machine); "
         "run pip install 'dragoman[comet]', or leave it out"),
    ],
)  # fmt: skip
def test_errors_name_the_mistake(place: Path, arguments: str, code: int, message: str) -> None:
    (place / "short").write_bytes(b"one\ntwo\n")
    (place / "bad").write_bytes(b"one\n\xff\n")
    (place / "modules").mkdir()  # a machine without COMET, whatever is installed here
    (place / "modules" / "comet.py").write_text("raise ImportError('not on this machine')")
    last = run(place, f"--reference reference {arguments}", code).stderr.rstrip("\n").split("\n")[-1]
    assert last.startswith(f"dragoman: {message}")
