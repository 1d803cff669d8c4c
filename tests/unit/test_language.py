"""Which language a text is in, which bundled model reads it, and what is said of lines in another one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.cli import direction
from dragoman.cli.direction import choose_model
from dragoman.cli.tally import MOST_DETECTED, Tally
from dragoman.decode.translation import Translation
from dragoman.errors import ConfigError
from dragoman.text.language import Detected, Detector, name_of, obvious_language
from tests.forked import shared_server

ENGLISH, GERMAN = "Where is the nearest train station?", "Wo ist der nächste Bahnhof, bitte?"


def test_the_language_of_a_sentence_is_obvious_and_that_of_a_word_is_not() -> None:
    assert obvious_language(ENGLISH) == "en"
    assert obvious_language(GERMAN) == "de"
    assert obvious_language(GERMAN.upper()) == "de"
    assert obvious_language("Je voudrais une tasse de café.\nMerci beaucoup !") == "fr"
    for text in (
        "",
        "Hand",
        "NATO",
        "1234567890 1234567890",
        "Tom, Berlin",
        "Das ist gut.",
        "Harry Potter met Hermione Granger.",
    ):
        assert obvious_language(text) is None, text


def test_a_few_letters_of_another_script_are_enough() -> None:
    for text, language in (
        ("Привет, как дела?", "ru"),
        ("你好,世界", "zh"),
        ("مرحبا كيف حالك", "ar"),
        ("こんにちは", "ja"),
    ):
        assert obvious_language(text) == language
    for text in ("π", "Das π, α", "Öl, Äpfel"):
        assert obvious_language(text) is None, text


def test_only_languages_in_question_are_told_apart() -> None:
    found = Detector(["en", "de"]).detect("Das Haus ist rot.")
    assert [each.language for each in found] == ["de", "en"]
    assert sum(each.confidence for each in found) == pytest.approx(100, abs=0.2)
    neither = Detector(["fi", "sv"]).detect("Das ist ein langer deutscher Satz.")
    assert neither == [Detected("fi", 50.0), Detected("sv", 50.0)], "one is as unlikely as the other"
    assert Detector().detect("Das ist ein langer \ud800 deutscher Satz.")[0].language == "de"
    assert name_of("de") == "German"


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.bundle.bundled_models", lambda: ["de-en", "en-de"])


@pytest.mark.usefixtures("both")
def test_the_model_is_chosen_by_what_is_asked_for() -> None:
    assert choose_model(None, "de", [GERMAN], None) == Path("en-de")
    assert choose_model(None, "en", ["x"], None) == Path("de-en")
    for written in ("EN", "en-US", "en_GB"):
        assert choose_model(None, written, ["x"], None) == Path("de-en")
    assert choose_model(Path("runs/mine"), None, [GERMAN], None) == Path("runs/mine")
    with pytest.raises(
        ConfigError, match=r"^--to fr: no bundled model translates into it; use de, en, or give --model$"
    ):
        choose_model(None, "fr", ["x"], None)
    with pytest.raises(ConfigError, match=r"^--to: chooses among the bundled models; leave out --to or --model$"):
        choose_model(Path("runs/mine"), "de", ["x"], None)


@pytest.mark.usefixtures("both")
def test_the_model_is_chosen_by_the_language_of_the_text(tmp_path: Path) -> None:
    assert choose_model(None, None, [GERMAN], None) == Path("de-en")
    assert choose_model(None, None, [ENGLISH], None) == Path("en-de")
    assert choose_model(None, None, ["Wo ist das?"], None) == Path("de-en"), "a few letters"
    assert choose_model(None, None, ["Nest"], None) == Path("en-de"), "the default for a word of both languages"
    assert choose_model(None, None, [""], None) == Path("en-de")
    file = tmp_path / "text"
    file.write_text(f"{GERMAN}\n" * 1_000)
    assert choose_model(None, None, None, file) == Path("de-en")
    assert choose_model(None, None, None, tmp_path / "missing") == Path("en-de"), "reported by what reads it"
    shards = tmp_path / "shards"
    (shards / ".cache").mkdir(parents=True)
    (shards / ".cache" / "a.txt").write_text(ENGLISH)
    (shards / "b.txt").write_text(GERMAN)
    assert choose_model(None, None, None, shards) == Path("de-en"), "what is translated"
    (shards / "a.jsonl").write_text(json.dumps({"text": ENGLISH, "german": f"{GERMAN} " * 2}) + "\n")
    assert choose_model(None, None, None, shards) == Path("en-de")
    assert choose_model(None, None, None, shards, None, {"columns": ("german",)}) == Path("de-en")
    (tmp_path / "empty").mkdir()
    assert choose_model(None, None, None, tmp_path / "empty") == Path("en-de")
    for name in ("damaged.gz", "damaged.xz", "damaged.bz2"):
        (tmp_path / name).write_bytes(b"\x1f\x8b\x08\x00" + b"\xff" * 50)
        assert choose_model(None, None, None, tmp_path / name) == Path("en-de"), "reported by what reads it"


@pytest.mark.usefixtures("both")
def test_the_model_is_chosen_by_the_text_of_a_document(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    style = "<style>.the-house { color: of the red and of all the others that are there }</style>" * 100
    page.write_text(f"<html><head>{style}</head><body><p>{GERMAN}</p></body></html>")
    assert choose_model(None, None, None, page, "html") == Path("de-en")
    assert choose_model(None, None, None, page) == Path("en-de"), "the control: its markup looks English"
    table = tmp_path / "table.csv"
    table.write_text(f"id,text\n{ENGLISH},{GERMAN}\n")
    assert choose_model(None, None, None, table, "csv", {"columns": ("text",)}) == Path("de-en")
    assert choose_model(None, None, None, table, "csv", {"columns": ("id",)}) == Path("en-de")
    assert choose_model(None, None, None, table, "csv", {"columns": ("no",)}) == Path("en-de"), (
        "reported by what reads it"
    )


def test_standard_input_is_looked_at_and_not_taken() -> None:
    lines = 300 * [GERMAN]
    text = "".join(f"{line}\n" for line in lines).encode()
    command = [sys.executable, "-m", "dragoman", "translate", "--beam", "1"]
    chosen, asked = (
        subprocess.run([*command, *options], input=text, capture_output=True, timeout=300)
        for options in ([], ["--to", "en"])
    )
    assert chosen.returncode == 0, chosen.stderr
    assert chosen.stdout == asked.stdout, "the same model, and the same lines"
    assert chosen.stdout.count(b"\n") == len(lines)
    empty = subprocess.run(command, input=b"", capture_output=True, timeout=300)
    assert (empty.returncode, empty.stdout) == (0, b"")


@pytest.mark.usefixtures("both")
def test_a_pipe_that_is_named_needs_a_language(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    message = r".*pipe: is a pipe, whose language cannot be detected in advance; add --to or --model"
    with pytest.raises(ConfigError, match=f"^{message}$"):
        choose_model(None, None, None, tmp_path / "pipe")
    assert choose_model(None, "en", None, tmp_path / "pipe") == Path("de-en")


def test_single_words_are_known_to_their_model() -> None:
    for word in ("Hund", "Montag", "Brot", "14:30 Uhr", "Abbrechen"):
        assert choose_model(None, None, [word], None) == Path("de-en"), word
    for word in ("dog", "Monday", "bread", "Cancel", "Internet", "12345"):
        assert choose_model(None, None, [word], None) == Path("en-de"), word


@pytest.mark.usefixtures("both")
def test_the_languages_that_a_document_declares_choose_the_model(tmp_path: Path) -> None:
    for source, target, model in (("de", "en", "de-en"), ("en", "de", "en-de")):
        document = tmp_path / f"{source}.xlf"
        document.write_text(
            f'<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="{source}" '
            f'target-language="{target}" datatype="plaintext" original="a"><body><trans-unit id="1"><source>OK'
            "</source></trans-unit></body></file></xliff>"
        )
        assert choose_model(None, None, None, document, "xliff") == Path(model)


def test_one_bundled_model_needs_no_detection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.bundle.bundled_models", lambda: ["en-de"])
    monkeypatch.setattr(direction, "_beginning", lambda *_: pytest.fail("looked at the text"))
    assert choose_model(None, None, [GERMAN], None) == Path("en-de")


def tally(texts: list[str]) -> Tally:
    found = Tally(language="en")
    for text in texts:
        found.add(Translation(text, "x", "translated"))
    return found


def test_lines_in_another_language_are_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.bundle.bundled_models", lambda: ["en-de"])
    assert tally([ENGLISH, GERMAN, "NATO", GERMAN]).finish() == 0
    message = "translate: 2 of 4 lines look like German, not English (first: line 2)"
    assert capsys.readouterr().err == f"{message}\n"
    monkeypatch.setattr("dragoman.bundle.bundled_models", lambda: ["de-en", "en-de"])
    tally([ENGLISH, GERMAN, "NATO", GERMAN]).finish()
    assert capsys.readouterr().err == f"{message}; try --model de-en\n"
    tally([ENGLISH, "NATO"]).finish()
    assert capsys.readouterr().err == "", "the control"


def test_the_first_lines_tell_enough(capsys: pytest.CaptureFixture[str]) -> None:
    tally([GERMAN, *[""] * (MOST_DETECTED - 1), GERMAN]).finish()
    message = f"translate: 1 of the first {MOST_DETECTED:,} lines look like German, not English (first: line 1)"
    assert capsys.readouterr().err == f"{message}; try --model de-en\n"


def test_translate_chooses_the_model_and_reports_another_language() -> None:
    done = shared_server().run(["translate", "--to", "de", ENGLISH, GERMAN])
    assert done.returncode == 0
    assert done.stdout.count("\n") == 2
    message = "translate: 1 of 2 lines look like German, not English (first: line 2); try --model de-en\n"
    assert done.stderr == message
    done = shared_server().run(["translate", ENGLISH])
    assert (done.stdout, done.stderr) == ("Wo ist der nächste Bahnhof?\n", "")
    for options in ([], ["--to", "en"]):
        done = shared_server().run(["translate", *options, "Wo ist der nächste Bahnhof?"])
        assert (done.stdout, done.stderr) == ("Where's the nearest station?\n", "")
    done = shared_server().run(["translate", "--to", "fr", GERMAN])
    assert done.returncode == 2
    assert done.stderr == "dragoman: --to fr: no bundled model translates into it; use de, en, or give --model\n"
