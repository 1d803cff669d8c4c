"""Plain text, the parts that formats share, and which file is which format."""

import importlib
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.documents import formats, spans, text
from dragoman.documents.document import LARGEST, Kept, Mark, Options, Parts
from dragoman.documents.formats import FORMATS, SUFFIXES, parse_document, recognise
from dragoman.documents.spans import Piece, find_segment
from dragoman.errors import ConfigError, DataError
from tests.translated import OPTIONS, check_round_trip, parts_of, texts, translated

# Plain text


@given(st.text(alphabet="aé。 \t\r\n\v\x85\u2028\ufeff\0", max_size=30))
def test_plain_text_survives(content: str) -> None:
    check_round_trip(text.parse(content.encode(), OPTIONS), content.encode())


def test_every_line_that_is_not_blank_is_a_segment() -> None:
    document = text.parse(b"\xef\xbb\xbfOne\r\n\r\n  two\x0bthree\t\r\n42\rfour", OPTIONS)
    assert texts(document) == ["One", "two\vthree", "42\rfour"]
    assert [segment.place for segment in document.segments] == ["line 1", "line 3", "line 4"]
    assert document.render([("Eins",), None, ("Vier\nund\r\nmehr",)]) == (
        b"\xef\xbb\xbfEins\r\n\r\n  two\x0bthree\t\r\nVier und mehr"
    )


def test_text_may_be_utf_16_with_a_mark() -> None:
    content = "\ufeffEins\r\nzwei ä".encode("utf-16-le")
    document = text.parse(content, OPTIONS)
    check_round_trip(document, content)
    assert document.render([("Ein 😀",), None]) == "\ufeffEin 😀\r\nzwei ä".encode("utf-16-le")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"good\nb\xe4d", "invalid UTF-8 at byte 6; save it as UTF-8"),
        (b"\xff\xfea\0b", "invalid UTF-16 at byte 4; save it as UTF-8"),
    ],
)
def test_a_wrong_encoding_is_an_error_with_its_place(content: bytes, problem: str) -> None:
    with pytest.raises(DataError) as error:
        text.parse(content, OPTIONS, "notes.txt")
    assert str(error.value) == f"notes.txt: {problem}"


def test_half_a_surrogate_pair_is_replaced() -> None:
    assert text.parse(b"a", OPTIONS).render([("b\ud800",)]) == "b�".encode()


def test_there_is_one_translation_for_each_segment() -> None:
    with pytest.raises(ValueError, match=r"translations: 1 for 2 segments; give one for each"):
        text.parse(b"a\nb", OPTIONS).render([None])


# Segments


def segment(*pieces: tuple[str, str]) -> Parts | None:
    """The parts of pieces such as ("open", "<b>"), each with its source; the name is the letter in it."""
    source, made = "", []
    for kind, written in pieces:
        name = written.strip("</>")
        end = len(source) + len(written)
        made.append(Piece(kind, len(source), end, name, name if kind == "kept" else ""))  # type: ignore[arg-type]
        source += written
    run = find_segment(source, made, spans.collapse_space, entities=False)
    return None if run is None else run.parts


def test_markup_around_all_words_is_outside() -> None:
    b, close = ("open", "<b>"), ("close", "</b>")
    assert segment(b, ("text", " all bold "), close) == ("all bold",)
    assert segment(("single", "<i>"), ("text", "x"), ("single", "<br>")) == ("x",)
    assert segment(b, close, ("text", "x"), ("text", " "), b, close) == ("x",)
    assert segment(b, ("text", "x"), close, ("text", " y")) == (Mark(1, "open"), "x", Mark(1, "close"), " y")
    assert segment(("text", "y "), b, ("text", "x "), close) == ("y ", Mark(1, "open"), "x", Mark(1, "close"))


def test_kept_text_at_the_ends_is_inside() -> None:
    assert segment(("kept", "<k>"), ("text", " x "), ("kept", "<l>")) == (Kept(1, "k"), " x ", Kept(2, "l"))
    assert segment(("kept", "<k>"), ("text", " - ")) is None


def test_crossing_and_unclosed_markup_stands_alone() -> None:
    found = segment(
        ("text", "a"), ("open", "<b>"), ("text", "b"), ("open", "<i>"), ("text", "c"), ("close", "</b>"),
        ("text", "d"), ("close", "</i>"), ("text", "e"),
    )  # fmt: skip
    assert found == (
        "a", Mark(1, "open"), "b", Mark(2, "single"), "c", Mark(1, "close"), "d", Mark(3, "single"), "e",
    )  # fmt: skip


def test_a_break_ends_a_line() -> None:
    assert segment(("text", "a"), ("single", "<br>"), ("text", "b")) == ("a", Mark(1, "single"), "\nb")
    assert segment(("text", "a "), ("single", "<br>"), ("text", "b")) == ("a ", Mark(1, "single"), "\nb")
    assert segment(("text", "a"), ("single", "<hr>"), ("text", "b")) == ("a", Mark(1, "single"), "b"), "the control"


def test_a_break_within_an_element_is_a_space() -> None:
    inside = [("open", "<b>"), ("text", "b"), ("single", "<br>"), ("text", "c"), ("close", "</b>")]
    assert segment(("text", "a"), *inside) == (
        "a", Mark(1, "open"), "b", Mark(2, "single"), " c", Mark(1, "close"),
    )  # fmt: skip
    assert segment(*inside) == ("b", Mark(1, "single"), "\nc"), "the element is around all of the text"


def test_space_inside_markup_is_not_counted_twice() -> None:
    assert segment(("text", "a "), ("open", "<b>"), ("text", " b"), ("close", "</b>"), ("text", " c")) == (
        "a ", Mark(1, "open"), "b", Mark(1, "close"), " c",
    )  # fmt: skip


def test_lines_of_chinese_are_joined_without_a_space() -> None:
    assert spans.collapse_space("今日は\n  元気") == "今日は元気"
    assert spans.collapse_space("one\n  two \t three\n한국\n어") == "one two three 한국 어"


# Formats


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.txt", "text"), ("a.MD", "markdown"), ("a.markdown", "markdown"), ("a.htm", "html"), ("a.xhtml", "html"),
        ("a.pot", "po"), ("a.xlf", "xliff"), ("a.tmx", "tmx"), ("a.srt", "srt"), ("a.vtt", "vtt"), ("a.jsonl", "jsonl"),
        ("a.tsv", "tsv"), ("a.docx", "docx"), ("a.epub", "epub"), ("a.exe", None), ("a", None),
    ],
)  # fmt: skip
def test_a_format_is_recognised_by_its_suffix(name: str, expected: str | None) -> None:
    assert recognise(Path(name)) == expected


def test_every_suffix_has_a_format() -> None:
    assert set(SUFFIXES.values()) == set(FORMATS)


def test_a_file_is_parsed_in_its_format_or_in_the_one_given(tmp_path: Path) -> None:
    path = tmp_path / "page.txt"
    path.write_bytes(b"<p>One <b>two</b></p>")
    assert texts(parse_document(path, OPTIONS)) == ["<p>One <b>two</b></p>"]
    assert texts(parse_document(path, OPTIONS, "html")) == ["One two"]


@pytest.mark.parametrize(
    ("name", "format", "problem"),
    [
        ("a.exe", None, "unknown format .exe; known: .txt, .md, "),
        ("a", None, "unknown format without a suffix; known: .txt, .md, "),
        ("a.txt", "markdwn", "unknown format markdwn; did you mean markdown?"),
    ],
)
def test_an_unknown_format_is_an_error(tmp_path: Path, name: str, format: str | None, problem: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ConfigError) as error:
        parse_document(tmp_path / name, OPTIONS, format)
    assert str(error.value).startswith(f"{tmp_path / name}: {problem}")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.txt: cannot be read \(No such file or directory\); give another file"):
        parse_document(tmp_path / "a.txt", OPTIONS)


def test_a_file_too_large_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LARGEST", 10)
    path = tmp_path / "a.txt"
    path.write_bytes(b"0123456789")
    assert texts(parse_document(path, OPTIONS)) == ["0123456789"]
    path.write_bytes(b"0123456789" * 200)
    with pytest.raises(DataError) as error:
        parse_document(path, OPTIONS)
    assert str(error.value) == f"{path}: has 2,000 bytes, at most 10 are possible; split it"
    assert LARGEST == 64 << 20


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.docx"
    path.write_bytes(b"x")
    monkeypatch.setitem(FORMATS, "docx", "dragoman.documents.safe_xml")  # whatever imports lxml
    monkeypatch.delitem(sys.modules, "dragoman.documents.safe_xml", raising=False)
    monkeypatch.setitem(sys.modules, "lxml", None)
    with pytest.raises(ConfigError) as error:
        parse_document(path, OPTIONS)
    assert str(error.value) == f'{path}: .docx needs lxml; pip install "dragoman[documents]"'


def test_another_import_error_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.docx"
    path.write_bytes(b"x")
    monkeypatch.setitem(FORMATS, "docx", "dragoman.documents.nothing")
    with pytest.raises(ImportError, match="nothing"):
        parse_document(path, OPTIONS)


@pytest.mark.parametrize("format", ["text", "markdown", "html", "srt", "vtt", "json", "jsonl", "csv", "tsv"])
@given(content=st.binary(max_size=60))
def test_any_bytes_survive_or_are_refused(format: str, content: bytes) -> None:
    module = importlib.import_module(FORMATS[format])
    problem = ""
    try:
        check_round_trip(module.parse(content, Options(), f"a.{format}"), content)
    except DataError as error:
        problem = str(error)
    assert not problem or problem.startswith(f"a.{format}:")


def test_changed_text_is_what_was_given() -> None:
    assert translated(text.parse(b"one\ntwo", OPTIONS)) == "ONE\nTWO"
    assert parts_of(text.parse(b"one\ntwo", OPTIONS)) == [("one",), ("two",)]
