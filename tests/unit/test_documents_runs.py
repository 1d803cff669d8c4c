"""Paragraphs as runs: reading and writing are inverse, and any order of the marks keeps everything."""

from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.documents.document import Kept, Mark, Parts, merge_text, text_of
from dragoman.documents.runs import Fixed, Item, Nested, Paragraph, Text
from tests.fake_translator import shout, shuffle

texts = st.builds(Text, st.text("ab .\u00a0", max_size=4), st.sampled_from(["plain", "plain", "bold", "italic"]))
fixed = st.builds(
    lambda style, text: Fixed(object(), style, text, is_space=style == "bold", is_break=style == "italic"),
    st.sampled_from([None, "bold"]),
    st.sampled_from(["", "", "7", " ", " 8 "]),
)
paragraphs = st.lists(
    st.recursive(
        texts | fixed, lambda items: st.lists(items, max_size=4).map(lambda each: Nested(object(), tuple(each)))
    ),
    max_size=6,
)


def described(items: Iterable[Item], path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """Each character and each object with its style, and with what it is in."""
    for item in items:
        if isinstance(item, Text):
            yield from ((path, character, item.style) for character in item.text)
        elif isinstance(item, Fixed):
            yield path, item.content, item.style
        else:
            yield path, item.content
            yield from described((*item.head, *item.items, *item.tail), (*path, item.content))


def numbers(parts: Parts) -> list[tuple[int, str]]:
    return sorted(
        (part.number, part.kind if isinstance(part, Mark) else "kept") for part in parts if not isinstance(part, str)
    )


@settings(max_examples=60)
@given(paragraphs)
def test_writing_what_was_read_changes_nothing(items: list[Item]) -> None:
    paragraph = Paragraph(items)
    if paragraph.parts:
        written = paragraph.translated(paragraph.parts)
        assert list(described(written)) == list(described(items))
        assert Paragraph(written).parts == paragraph.parts


@settings(max_examples=60)
@given(paragraphs)
def test_segments_have_a_word_and_no_space_at_the_ends(items: list[Item]) -> None:
    parts = Paragraph(items).parts
    words = any(isinstance(part, str) and ("a" in part or "b" in part) for part in parts)
    assert words == bool(parts)
    assert all(part != "" for part in parts)
    assert parts == merge_text(parts)
    if parts:
        text = text_of(parts)
        assert text == text.strip()
        assert not isinstance(parts[0], Mark) or parts[0].kind == "open"
        assert not isinstance(parts[-1], Mark) or parts[-1].kind == "close"
        assert "".join(text.split()) == "".join("".join(_seen(items)).split())
    seen = [number for number, kind in numbers(parts) if kind != "close"]
    assert seen == list(range(1, len(seen) + 1))


def _seen(items: Sequence[Item]) -> Iterator[str]:
    for item in items:
        yield from _seen(item.items) if isinstance(item, Nested) else [item.text]


@settings(max_examples=60)
@given(paragraphs, st.integers(0, 999))
def test_any_order_keeps_everything_once(items: list[Item], seed: int) -> None:
    paragraph = Paragraph(items)
    if not paragraph.parts:
        return
    parts = shuffle(paragraph.parts, seed)
    assert numbers(parts) == numbers(paragraph.parts)
    written = paragraph.translated(parts)
    before, after = ([each for each in described(every) if each[1] != " "] for every in (items, written))
    assert sorted(map(repr, after)) == sorted(map(repr, before))  # each in the style and in the element it was in


@settings(max_examples=60)
@given(paragraphs, st.data())
def test_missing_repeated_and_crossing_marks_are_refused(items: list[Item], data: st.DataObject) -> None:
    paragraph = Paragraph(items)
    marks = [place for place, part in enumerate(paragraph.parts) if not isinstance(part, str)]
    if not marks:
        return
    place = data.draw(st.sampled_from(marks))
    parts = list(paragraph.parts)
    for wrong in (
        [*parts[:place], *parts[place + 1 :]],
        [*parts[:place], parts[place], *parts[place:]],
        [*parts, Mark(99, "single")],
    ):
        with pytest.raises(ValueError, match=r"mark|belong"):
            paragraph.translated(tuple(wrong))


def test_crossing_marks_are_refused() -> None:
    paragraph = Paragraph([Text("plain words"), Nested("link", (Text("a"),)), Text("bold", "b")])
    assert paragraph.parts == (
        "plain words", Mark(1, "open"), "a", Mark(1, "close"), Mark(2, "open"), "bold", Mark(2, "close")
    )  # fmt: skip
    crossing = (Mark(1, "open"), Mark(2, "open"), "a", Mark(1, "close"), Mark(2, "close"))
    with pytest.raises(ValueError, match="mark 1 closes where another is open"):
        paragraph.translated(crossing)


# What a segment looks like


def opened(number: int, *inside: str | Mark | Kept) -> Parts:
    return (Mark(number, "open"), *inside, Mark(number, "close"))


def test_runs_of_one_style_are_one_text() -> None:
    runs = [Text("Un", "b"), Text("believ", "b"), Text("able", "b")]
    assert Paragraph(runs).parts == ("Unbelievable",)
    assert Paragraph(runs).translated(("Unglaublich",)) == (Text("Unglaublich", "b"),)


def test_most_common_style_has_no_mark() -> None:
    runs = [Text("Note: ", "bold"), Text("the rest of the line is plain.", "plain")]
    assert Paragraph(runs).parts == (*opened(1, "Note: "), "the rest of the line is plain.")
    runs = [Text("Note: ", "plain"), Text("the rest of the line is bold.", "bold")]
    assert Paragraph(runs).parts == (*opened(1, "Note: "), "the rest of the line is bold.")


def test_stretch_includes_what_stands_in_it() -> None:
    tab, field = Fixed("tab"), Fixed("field", text="3")
    runs: list[Item] = [
        Text("mostly plain, ", "p"),
        Text("bold", "b"),
        tab,
        Text(" page ", "b"),
        field,
        Text(" end", "p"),
    ]
    parts = ("mostly plain, ", *opened(1, "bold", Mark(2, "single"), " page "), Kept(3, "3"), " end")
    assert Paragraph(runs).parts == parts


def test_tab_is_a_space_to_the_translator_only() -> None:
    tab, line, note = Fixed("tab", is_space=True), Fixed("break", is_space=True), Fixed("note")
    items: list[Item] = [Text("one"), tab, line, Text("two", "b"), note, Text("three"), tab, Text(" four plain")]
    paragraph = Paragraph(items)
    assert paragraph.parts == (
        "one", Mark(1, "single"), " ", Mark(2, "single"), *opened(3, "two"), Mark(4, "single"), "three",
        Mark(5, "single"), " four plain",
    )  # fmt: skip
    assert list(described(paragraph.translated(paragraph.parts))) == list(described(items))
    other = (
        "eins ", Mark(1, "single"), " zwei", *opened(3), Mark(4, "single"), " ", Mark(2, "single"), " drei ",
        Mark(5, "single"), " vier",
    )  # fmt: skip
    shown = [
        item.content if isinstance(item, Fixed) else item.text
        for item in paragraph.translated(other)
        if not isinstance(item, Nested)
    ]
    assert shown == ["eins", "tab", "zwei", "note", " ", "break", " drei ", "tab", " vier"]


def test_a_line_break_ends_a_line_to_the_translator_only() -> None:
    line = Fixed("break", "b", is_break=True)
    items: list[Item] = [Text("one"), line, Text("two", "b"), line, Text("three", "b"), Text("four and five")]
    paragraph = Paragraph(items)
    assert paragraph.parts == (
        "one", Mark(1, "single"), "\n", *opened(2, "two"), Mark(3, "single"), "\n", *opened(4, "three"),
        "four and five",
    )  # fmt: skip
    assert list(described(paragraph.translated(paragraph.parts))) == list(described(items))
    link = Nested("link", (Text("one"), line, Text("two")))
    assert Paragraph([Text("see "), link]).parts == (
        "see ", Mark(1, "open"), "one", Mark(2, "single"), " two", Mark(1, "close"),
    )  # fmt: skip
    assert Paragraph([link]).parts == ("one", Mark(1, "single"), "\ntwo"), "the link is around all of the text"


def test_ends_of_a_paragraph_stay_where_they_are() -> None:
    picture, note = Fixed("picture"), Fixed("note")
    runs: list[Item] = [Text(" "), picture, Text("\t A horse. "), note]
    assert Paragraph(runs).parts == ("A horse.",)
    assert Paragraph(runs).translated(("Ein Pferd.",)) == (
        Text(" "), picture, Text("\t "), Text("Ein Pferd."), Text(" "), note
    )  # fmt: skip


def test_paragraph_that_is_one_link_has_no_marks() -> None:
    link = Nested("link", (Text(" "), Nested("inserted", (Text("bold", "b"), Text(" words"))), Fixed("end")))
    paragraph = Paragraph([Fixed("start"), link])
    assert paragraph.parts == (*opened(1, "bold"), " words")
    start, written = paragraph.translated(shout(paragraph.parts))
    assert isinstance(start, Fixed)
    assert isinstance(written, Nested)
    assert written.content == "link"
    assert "".join(_seen([*written.head, *written.items, *written.tail])) == " BOLD WORDS"


def test_link_around_a_picture_is_one_mark() -> None:
    link = Nested("link", (Fixed("picture"), Nested("inserted", ())))
    paragraph = Paragraph([Text("a "), link, Text("b")])
    assert paragraph.parts == ("a ", Mark(1, "single"), "b")
    written = paragraph.translated((Mark(1, "single"), "B"))
    assert list(described(written)) == [*described([link]), ((), "B", None)]


def test_length_of_runs_does_not_decide_by_their_number() -> None:
    cut = [Text("a ", "one"), Text("b ", "one"), Text("cde", "two")]
    assert Paragraph(cut).parts == Paragraph([Text("a b ", "one"), Text("cde", "two")]).parts == (
        *opened(1, "a b "), "cde"
    )  # fmt: skip


@pytest.mark.parametrize("text", ["", " ", "12.5 %", "—", "\u00a0"])
def test_text_without_letters_is_no_segment(text: str) -> None:
    assert Paragraph([Text(text), Fixed("x"), Fixed("field", text="Monday")]).parts == ()
    assert Paragraph([Text(text + "й"), Fixed("x")]).parts != ()


def test_text_between_two_links_is_written_without_their_style() -> None:
    links = [Nested("one", (Text("a", "link"),)), Nested("two", (Text("b", "link"),))]
    written = Paragraph(links).translated((*opened(1, "A"), " und ", *opened(2, "B")))
    assert written[1] == Text(" und ", None)
    assert [item.items for item in written if isinstance(item, Nested)] == [(Text("A", "link"),), (Text("B", "link"),)]
