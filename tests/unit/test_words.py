"""Lists of the words that a model has read, and the command that makes them."""

import json
import lzma
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dragoman import bundle
from dragoman.cli.app import app
from dragoman.errors import ModelError
from dragoman.text import words
from dragoman.text.words import KnownWords, WordCounter, WordList
from tests.hostile import seal

LIST = WordList.of(["tree", "house"])


@pytest.fixture
def copied(quick_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(quick_run, tmp_path / "model", ignore=shutil.ignore_patterns("checkpoints", "data"))


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_words_are_counted_whatever_their_case() -> None:
    counter = WordCounter()
    counter.add(["The house, the HOUSE: 3 trees", "Äpfel"])
    counter.add(["äpfel_tree's"])
    often = counter.at_least(2)
    assert [word for word in ("the", "house", "House", "äpfel", "Äpfel", "trees", "s", "3") if word in often] == [
        "the", "house", "House", "äpfel", "Äpfel",
    ]  # fmt: skip
    assert len(often) == 3
    assert len(counter.at_least(1)) == 6


def test_words_are_listed_as_they_are_written_within_sentences() -> None:
    counter = WordCounter()
    counter.add(
        ["Laden ist zu. Der Laden ist zu, Sie laden den Laden", "Ist NATO, die NATO", "Gut. Gut", "a Haus", "b haus"]
    )
    words = counter.at_least(1)
    forms = {word: words.usual_forms(word) for word in ("LADEN", "ist", "Nato", "GUT", "HAUS", "none")}
    assert forms == {
        "LADEN": ["Laden"], "ist": ["ist"], "Nato": ["NATO"], "GUT": ["gut"], "HAUS": ["haus"], "none": [],
    }  # fmt: skip
    assert "laden" in words
    assert WordList.of(["laden", "nato"]).usual_forms("LADEN") == [], "a list without case, as they were before"


def test_words_with_sharp_s_are_found_by_their_capitals() -> None:
    words = WordList.of(["Masse", "Maße", "Straße", "groß"])
    found = {word: words.usual_forms(word) for word in ("MASSE", "STRASSE", "GROSS", "STRAẞE", "MASS")}
    assert found == {
        "MASSE": ["Masse", "Maße"], "STRASSE": ["Straße"], "GROSS": ["groß"], "STRAẞE": ["Straße"], "MASS": [],
    }  # fmt: skip


def test_a_list_survives_its_file() -> None:
    content = WordList.of(["tree", "house", "äpfel"]).to_bytes()
    assert lzma.decompress(content).decode() == "house\ntree\näpfel\n"
    assert WordList.of(["äpfel", "house", "tree"]).to_bytes() == content, "in whatever order"
    assert "tree" in WordList(content)
    assert "tre" not in WordList(content)


@pytest.mark.parametrize(
    "content", [b"", b"PK", LIST.to_bytes()[:-1], lzma.compress(b"\xff\xfe"), lzma.compress(b"a" * 5_000)], ids=len
)
def test_files_that_are_no_lists_are_refused(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MAX_TEXT", 4_000)
    with pytest.raises(ModelError, match=r"^x/y: not a list of words \(.+\); make it again with `dragoman words`$"):
        _ = "tree" in WordList(content, Path("x/y"))
    assert "tree" in WordList(LIST.to_bytes(), Path("x/y")), "the control"


def test_lists_of_very_many_words_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MAX_WORDS", 2)
    assert "tree" in WordList(LIST.to_bytes(), Path("x/y"))
    with pytest.raises(
        ModelError, match=r"^x/y: not a list of words \(3 words, at most 2 are allowed\); make it again"
    ):
        _ = "tree" in WordList(WordList.of("abc").to_bytes(), Path("x/y"))


def test_an_accent_is_part_of_its_letter() -> None:
    counter = WordCounter()
    counter.add([unicodedata.normalize("NFD", "Äpfel"), "äpfel"])
    assert "äpfel" in counter.at_least(2)


# In a model directory


def test_lists_are_in_the_manifest_and_verified(copied: Path) -> None:
    assert bundle.load_bundle(copied).known_words is None
    bundle.save_words(copied, KnownWords(LIST, LIST))
    assert {*bundle.WORDS} < {*json.loads((copied / bundle.MANIFEST).read_bytes())}
    loaded = bundle.load_bundle(copied).known_words
    assert loaded is not None
    assert "house" in loaded.source
    (copied / bundle.WORDS[1]).write_bytes(b"other")
    with pytest.raises(
        ModelError, match=r"SHA-256 is not the one in manifest.json; make it again with `dragoman words`$"
    ):
        bundle.load_bundle(copied)
    seal(copied)
    assert bundle.load_bundle(copied).known_words is not None, "what is in a list is seen when a word is looked up"
    (copied / bundle.WORDS[0]).unlink()
    assert bundle.load_bundle(copied).known_words is None, "one list alone is of no use"


def test_compress_keeps_the_lists(copied: Path, tmp_path: Path) -> None:
    bundle.save_words(copied, KnownWords(LIST, LIST))
    assert run("compress", "--model", copied, "--out", tmp_path / "out").exit_code == 0
    loaded = bundle.load_bundle(tmp_path / "out").known_words
    assert loaded is not None
    assert loaded.source.to_bytes() == LIST.to_bytes()


# The command


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_text("One tree and one house.\nOne tree.\n")
    return path


def test_the_command_adds_the_words_of_several_files(copied: Path, text: Path) -> None:
    done = run("words", "--model", copied, "--source", text, "--source", text, "--target", text, "--least", 2, "--json")
    assert done.exit_code == 0, done.exception
    source, target = (str(copied / name) for name in bundle.WORDS)
    assert json.loads(done.stdout) == {"files": {source: 4, target: 2}, "least": 2}
    known = bundle.load_bundle(copied).known_words
    assert known is not None
    assert "house" in known.source
    assert "house" not in known.target
    assert "tree" in known.target


def test_the_command_can_write_a_copy(copied: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("words", "--model", copied, "--source", text, "--target", text, "--out", out)
    assert done.exit_code == 0, done.exception
    size = (out / bundle.WORDS[0]).stat().st_size
    assert done.stdout.startswith(f"{out / bundle.WORDS[0]}: 1 words that occur 3 times or more, {size} bytes\n")
    assert bundle.load_bundle(out).known_words is not None
    assert bundle.load_bundle(copied).known_words is None


def test_the_command_refuses_what_it_cannot_use(
    copied: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def error(*arguments: Any) -> str:
        return str(run("words", "--source", text, "--target", *arguments).exception)

    out = tmp_path / "out"
    assert error(text) == "--model en-de: is part of the package; give --out"
    message = f"{text}: no word occurs 9 times; give more text, or a lower --least"
    assert error(text, "--model", copied, "--least", 9) == message
    assert error(text, "--model", copied, "--least", 9, "--out", out) == message
    assert not out.exists()
    assert error(tmp_path / "missing", "--model", copied).startswith(f"{tmp_path / 'missing'}: ")
    (tmp_path / "latin").write_bytes(b"fa\xe7ade\n")
    assert error(tmp_path / "latin", "--model", copied).startswith(f"{tmp_path / 'latin'}:1: ")
    monkeypatch.setattr(words, "MAX_WORDS", 1)
    problem = "4 words in 19 bytes occur 1 times or more, at most 1 in 40,000,000 are allowed; give a higher --least"
    assert error(text, "--model", copied, "--least", 1) == f"{text}: {problem}"
    monkeypatch.undo()
    monkeypatch.setattr(words, "MAX_TEXT", 18)
    assert error(text, "--model", copied, "--least", 1).endswith(
        "at most 2,000,000 in 18 are allowed; give a higher --least"
    )
    assert bundle.load_bundle(copied).known_words is None
