"""Subtitles: cues, speakers and tags; translations wrapped to lines; everything else byte for byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.documents import subtitles
from dragoman.documents.document import Document, Mark, Parts
from dragoman.documents.subtitles import WIDEST
from dragoman.errors import DataError
from tests.translated import OPTIONS, check_round_trip, parts_of, texts, translate, translated

SRT = """\ufeff1
00:00:01,000 --> 00:00:03,500
Hello there,
<i>my friend</i>.

2
00:00:04,000 --> 00:00:06,000 X1:10 X2:20
- {\\an8}Who is it?
- Nobody.

3
00:00:07,000 --> 00:00:08,000
<i>- Come in,
  please.
- <b>Thanks.</b></i>

4
00:00:09,000 --> 00:00:10,000
[ 1984 ]

5
00:00:11,000 --> 00:00:12,000
- One voice

and more of it
"""

VTT = """WEBVTT Kind: captions; Language: en

NOTE
A note --> not text

STYLE
::cue { color: red }

REGION
id:fred

intro
00:01.000 --> 01:00:02.000 align:start position:0%
<v Ann>Tea &amp; <c.loud>coffee</c>
for <00:00:01.500>two

00:03.000 --> 00:04.000
Nothing &lt;here&gt;&nbsp;

NOTE the end
"""


def parse(source: str) -> Document:
    return subtitles.parse(source.encode(), OPTIONS)


def test_subrip_is_cut_into_segments() -> None:
    document = parse(SRT)
    check_round_trip(document, SRT.encode())
    assert parts_of(document) == [
        ("Hello there, ", Mark(1, "open"), "my friend", Mark(1, "close"), "."),
        ("Who is it?",),
        ("Nobody.",),
        ("Come in, please.",),
        ("Thanks.",),
        ("One voice",),
        ("and more of it",),
    ]
    assert [segment.place for segment in document.segments][:3] == ["cue 1", "cue 2", "cue 2"]


def test_webvtt_is_cut_into_segments() -> None:
    document = parse(VTT)
    check_round_trip(document, VTT.encode())
    assert parts_of(document) == [
        ("Tea & ", Mark(1, "open"), "coffee", Mark(1, "close"), " for ", Mark(2, "single"), "two"),
        ("Nothing <here>",),
    ]


def vtt(cue: str) -> str:
    return f"WEBVTT\n\n00:01.000 --> 00:02.000\n{cue}\n"


@pytest.mark.parametrize(
    ("cue", "expected"),
    [
        ("<v Ann>Tea?\n<v Bob>No\nthanks.", ["Tea?", "No thanks."]),
        ("<v Ann>Tea?</v> <v.loud Bob>No</v>", ["Tea?", "No"]),
        ("Well, <v Ann>tea?</v> <v Bob>No</v>", ["Well,", "tea?", "No"]),
        ("<v Ann>Tea\nfor <v>two", ["Tea for two"]),
        ("- <v Ann>Tea?\n- <v Bob>No <v Ann>way", ["Tea?", "No way"]),  # dashes come first
    ],
)
def test_each_voice_of_webvtt_is_a_segment(cue: str, expected: list[str]) -> None:
    source = vtt(cue)
    document = parse(source)
    check_round_trip(document, source.encode())
    assert texts(document) == expected
    upper = translated(document, str.upper)
    assert upper.count("<v") == source.count("<v")
    assert texts(parse(upper)) == [text.upper() for text in expected]


def test_voices_keep_their_lines() -> None:
    changed = translated(parse(vtt("<v Ann>Tea?\n<v Bob>No <i>thanks</i>")), str.upper)
    assert changed == vtt("<v Ann>TEA?\n<v Bob>NO <i>THANKS</i>")


def test_a_note_of_music_stays_where_it_is() -> None:
    source = "1\n00:00:01,000 --> 00:00:02,000\n♪ Over the hills\nand far away ♪♪\n"
    document = parse(source)
    check_round_trip(document, source.encode())
    assert parts_of(document) == [("Over the hills and far away",)]
    words = "Over the hills\nand far away"
    assert translated(document, str.upper) == source.replace(words, words.upper())
    assert texts(parse(source.replace("♪", "&"))) == ["& Over the hills and far away &&"], "the control"


@pytest.mark.parametrize("content", ["", "\ufeff", "1\n00:00:01,000 --> 00:00:02,000\nx\n", "WEBVTTX\n"])
def test_a_vtt_file_begins_with_its_name(content: str) -> None:
    with pytest.raises(DataError, match=r"^a\.VTT:1: does not begin with WEBVTT; add that line"):
        subtitles.parse(content.encode(), OPTIONS, "a.VTT")
    assert subtitles.parse(b"WEBVTT", OPTIONS, "a.vtt").segments == []
    assert len(subtitles.parse(content.encode(), OPTIONS, "a.srt").segments) == content.count("x")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_only_text_changes(newline: str) -> None:
    for source in (SRT, VTT):
        source = source.replace("\n", newline)
        document = parse(source)
        check_round_trip(document, source.encode())
        changed = translated(document, lambda text: "".join("x" if c.isalpha() else c for c in text))
        lines, expected = changed.split(newline), source.split(newline)
        assert len(lines) == len(expected)
        assert "\n" not in changed.replace(newline, "")
        for line, old in zip(lines, expected, strict=True):
            assert line == old or ("x" in line and "-->" not in old and not old.startswith(("NOTE", "STYLE")))


def test_translations_are_escaped_in_webvtt() -> None:
    document = parse("WEBVTT\n\n00:01.000 --> 00:02.000\nx\n")
    rendered = document.render([("a < b & c --> d",)]).decode()
    assert rendered.endswith("\na &lt; b &amp; c --&gt; d\n")
    assert texts(parse(rendered)) == ["a < b & c --> d"]


def test_a_translation_cannot_be_a_timing() -> None:
    document = parse("1\n00:00:01,000 --> 00:00:02,000\nx\n")
    rendered = document.render([("00:00:03,000 --> 00:00:04,000 y",)]).decode()
    assert len(parse(rendered).segments) == 1


def cue(text: str, count: int) -> list[str]:
    """The lines of a translation in a cue that had `count` lines."""
    source = "1\n00:00:01,000 --> 00:00:02,000\n" + "\n".join(["word"] * count)
    return parse(source).render([(text,)]).decode().split("\n")[2:]


def test_translations_are_wrapped_to_as_many_lines() -> None:
    assert cue("Ein kurzer Satz auf zwei Zeilen", 2) == ["Ein kurzer Satz", "auf zwei Zeilen"]
    assert cue("Kurz", 2) == ["Kurz"]
    assert cue("Ein kurzer Satz auf einer Zeile", 1) == ["Ein kurzer Satz auf einer Zeile"]
    assert cue("a b c d e f", 3) == ["a b", "c d", "e f"]


def test_lines_that_are_too_wide_become_more() -> None:
    text = "word " * 20 + "end"
    lines = cue(text, 1)
    assert len(lines) == 3
    assert all(len(line) <= WIDEST for line in lines)
    assert " ".join(lines) == text
    assert cue("x" * 100, 1) == ["x" * 100]  # no place to break


def test_chinese_is_wrapped_between_characters_but_not_before_punctuation() -> None:
    text = "我们今天去喝茶，" * 4
    lines = cue(text, 2)
    assert "".join(lines) == text
    assert len(lines) == 2
    assert not any(line.startswith("，") for line in lines)
    assert texts(parse("1\n00:00:01,000 --> 00:00:02,000\n" + "\n".join(lines))) == [text]


def test_marks_may_be_reordered_and_have_no_width() -> None:
    source = "1\n00:00:01,000 --> 00:00:02,000\n<font color='#ffffff'>one</font> two\n<b>three</b> four"
    parts: Parts = (
        "vier ", Mark(2, "open"), "drei", Mark(2, "close"), " ", Mark(1, "open"), "eins", Mark(1, "close"), " zwei",
    )  # fmt: skip
    assert parse(source).render([parts]).decode().split("\n")[2:] == [
        "vier <b>drei</b>",
        "<font color='#ffffff'>eins</font> zwei",
    ]


SOUP = [
    "1\n", "00:00:01,000 --> 00:00:02,000\n", "00:01.000 --> 00:02.000 align:end\r\n", "\n", "\n\n", "\r\n", "\r", "- ",
    "-", "text", "Two words", "<i>", "</i>", "<v Ann>", "{\\an8}", "<", ">", "&amp;", "&", "NOTE", "é", "茶", " ",
]  # fmt: skip


@given(st.sampled_from(["", "WEBVTT\n\n", "\ufeffWEBVTT\n\n"]), st.lists(st.sampled_from(SOUP), max_size=14))
def test_any_subtitles_survive_and_take_translations(head: str, pieces: list[str]) -> None:
    content = (head + "".join(pieces)).encode()
    document = subtitles.parse(content, OPTIONS)
    check_round_trip(document, content)
    translations = [translate(segment.parts, lambda text: f"Q{len(text)} & so") for segment in document.segments]
    rendered = subtitles.parse(document.render(translations), OPTIONS)
    assert ["".join(text.split()) for text in texts(rendered)] == [
        "".join("".join(part for part in parts if isinstance(part, str)).split()) for parts in translations
    ]


@pytest.mark.parametrize("count", [2_000, pytest.param(50_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("unit", ["<i ", "- a\n", "ab ", "{\\a", "<i>a", "1:", "\n", "0" * 9, "00:00:01,000 --> "])
def test_hostile_subtitles_take_linear_time(unit: str, count: int) -> None:
    content = ("1\n00:00:01,000 --> 00:00:02,000\nword " + unit * count).encode()
    document = subtitles.parse(content, OPTIONS)
    check_round_trip(document, content)
    assert document.render([("x",)] * len(document.segments))


@pytest.mark.parametrize(
    "cue",
    [
        "2\n00:00:01 -> 3",
        "2\n0:01,000 -> 0:02,000",
        "2\n00:00:01,000 -> 00:00:02,000",
        "2\n00:00:01,000 - 00:00:02,000",
        "2\n00;00;01,000 --> 00;00;02,000",
        "2\n\n00:00:01 --> 00:00:02",
        "\n00:00:01 --> 00:00:02",
        "still text\n2\n00:00:01,000 -> 00:00:02,000",
    ],
)
def test_a_broken_timing_is_named(cue: str) -> None:
    good = (
        "1\n00:00:01,000 --> 00:00:02,000\nFrom 10:30 -> 11:00\nat platform\n9\n10:30 -> 11:00\n\n"
        "12.30 train --> B\n\n5\n3:2 - 4:1, he said\n\n"
    )
    found = texts(subtitles.parse(good.encode(), OPTIONS, "a.srt"))
    assert found[0] == "From 10:30 -> 11:00 at platform 9 10:30 -> 11:00", "the control"
    assert "3:2 - 4:1" in " ".join(found)
    line = 13 + cue.count("\n")
    message = rf"^a\.srt:{line}: invalid timing; write it as 00:00:01,000 --> 00:00:03,000$"
    with pytest.raises(DataError, match=message):
        subtitles.parse(f"{good}{cue}\nHello there\n".encode(), OPTIONS, "a.srt")


def test_a_broken_timing_of_webvtt_is_named() -> None:
    good = "WEBVTT\n\nNOTE\n7\n10:30 -> 11:00\n\n00:01.000 --> 00:02.000\nHello\n"
    assert texts(subtitles.parse(good.encode(), OPTIONS, "a.vtt")) == ["Hello"], "the control"
    message = r"^a\.vtt:7: invalid timing; write it as 00:00:01\.000 --> 00:00:03\.000$"
    with pytest.raises(DataError, match=message):
        subtitles.parse(good.replace("00:01.000", "00:01").encode(), OPTIONS, "a.vtt")
