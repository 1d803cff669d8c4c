"""Where the marks of a source text go in its translation, by links between words."""

import re
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.decode.alignment import Alignment
from dragoman.decode.projection import TokenLinks, find_emptied, keep_spaces, link, project
from dragoman.documents.document import Kept, Mark, Parts
from dragoman.text.offsets import PieceSpans

TOKEN = re.compile(r"\w+|[^\w\s]")


def alignment(source: str, target: str, source_of: dict[int, int]) -> Alignment:
    """Tokens of the target attend to those of the source as given."""
    spans = [[match.span() for match in TOKEN.finditer(text)] for text in (source, target)]
    weights = np.zeros((len(spans[1]), len(spans[0])))
    for token, other in source_of.items():
        weights[token, other] = 1.0
    sources, targets = (PieceSpans(list(range(len(own))), own) for own in spans)
    return Alignment(source, target, sources, targets, weights)


def linked(source: str, target: str, *pairs: tuple[str, str]) -> TokenLinks:
    """Links between words that occur once."""
    sources, targets = TOKEN.findall(source), TOKEN.findall(target)
    source_of = {targets.index(other): sources.index(word) for word, other in pairs}
    return link(source, target, [(0, 0, alignment(source, target, source_of))])


MARK = re.compile(r"<(?P<closes>/?)(?P<name>\w)(?P<single>/?)>")


def projected(marked: str, target: str, *pairs: tuple[str, str], whole: tuple[str, ...] = ()) -> str:
    """Project `<a>the</a> house`: elements are named by one letter, `<a/>` is single."""
    marks: list[tuple[int, Mark]] = []
    source, place = "", 0
    for match in MARK.finditer(marked):
        source += marked[place : match.start()]
        place = match.end()
        kind = "single" if match["single"] else "close" if match["closes"] else "open"
        marks.append((len(source), Mark(ord(match["name"]), kind)))  # type: ignore[arg-type]
    source += marked[place:]
    spans = [(target.index(each), target.index(each) + len(each)) for each in whole]
    return spelled(project(marks, target, linked(source, target, *pairs), spans))


def spelled(parts: Parts) -> str:
    forms = {"open": "<{}>", "close": "</{}>", "single": "<{}/>"}
    return "".join(forms[part.kind].format(chr(part.number)) if isinstance(part, Mark) else str(part) for part in parts)


SEEN = [("i", "ich"), ("saw", "gesehen"), ("the", "das"), ("red", "rote"), ("house", "haus"), (".", ".")]
SOURCE, TARGET = "i saw the red house.", "ich habe das rote haus gesehen."


def see(marked: str, *less: str) -> str:
    assert MARK.sub("", marked) == SOURCE
    return projected(marked, TARGET, *(pair for pair in SEEN if pair[0] not in less))


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ("i <a>saw</a> the red house.", "ich habe das rote haus <a>gesehen</a>."),
        ("i saw <a>the red house</a>.", "ich habe <a>das rote haus</a> gesehen."),
        ("i saw <a>the <b>red</b> house</a>.", "ich habe <a>das <b>rote</b> haus</a> gesehen."),
        ("<a>i</a> <b>saw</b> the red house.", "<a>ich</a> habe das rote haus <b>gesehen</b>."),
        ("<a>i saw the red house.</a>", "<a>ich habe das rote haus gesehen.</a>"),
        ("<a><b>i saw the red house.</b></a>", "<a><b>ich habe das rote haus gesehen.</b></a>"),
        ("i saw the red <a>house.</a>", "ich habe das rote <a>haus</a> gesehen."),
        ("i <a>saw the</a> red house.", "ich habe <a>das</a> rote haus gesehen."),
        ("i saw the r<a>e</a>d house.", "ich habe das <a>rote</a> haus gesehen."),
    ],
)
def test_an_element_covers_the_translation_of_its_words(marked: str, expected: str) -> None:
    assert see(marked) == expected


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ("<a/>i saw the red house.", "<a/>ich habe das rote haus gesehen."),
        ("i saw the red house.<a/>", "ich habe das rote haus gesehen.<a/>"),
        ("i saw<a/> the red house.", "ich habe das rote haus gesehen<a/>."),
        ("i saw <a/>the red house.", "ich habe <a/>das rote haus gesehen."),
        ("i saw the red house<a/>.", "ich habe das rote haus<a/> gesehen."),
        ("i saw <a></a>the red house.", "ich habe <a></a>das rote haus gesehen."),
        ("i saw the <a><b/>red</a> house.", "ich habe das <a><b/>rote</a> haus gesehen."),
        ("i saw the <a>red<b/></a> house.", "ich habe das <a>rote<b/></a> haus gesehen."),
        ("<a/><b/>i saw the red house.", "<a/><b/>ich habe das rote haus gesehen."),
        ("i <a/>saw <b/>the red house.", "ich habe <b/>das rote haus <a/>gesehen."),
    ],
)
def test_a_mark_of_its_own_goes_with_the_word_it_touches(marked: str, expected: str) -> None:
    assert see(marked) == expected


@pytest.mark.parametrize(
    ("marked", "less", "expected"),
    [
        ("i saw the <a>red</a> house.", ["red"], "ich habe das<a></a> rote haus gesehen."),
        ("i saw the <a/>red house.", ["red"], "ich habe das<a/> rote haus gesehen."),
        ("i saw the <a/>red house.", ["red", "the", "saw"], "ich<a/> habe das rote haus gesehen."),
        ("i saw the red<a/> house.", ["red"], "ich habe das rote <a/>haus gesehen."),
        (
            "i saw <a>the red</a> house.",
            ["i", "saw", "the", "red", "house", "."],
            "<a></a>ich habe das rote haus gesehen.",
        ),
    ],
)
def test_words_without_a_translation_leave_marks_near_their_neighbours(
    marked: str, less: list[str], expected: str
) -> None:
    assert see(marked, *less) == expected


def test_a_reversed_translation_reverses_the_elements() -> None:
    pairs = [("one", "drei"), ("two", "zwei"), ("three", "eins")]
    assert projected("<a>one</a> <b>two</b> <c>three</c>", "eins zwei drei", *pairs) == (
        "<c>eins</c> <b>zwei</b> <a>drei</a>"
    )
    assert projected("<a>one <b>two</b></a> three", "eins zwei drei", *pairs) == "eins <a><b>zwei</b> drei</a>"


def test_many_words_to_one_leave_the_second_element_empty() -> None:
    pairs = [("ice", "eiscreme")]
    assert projected("<a>ice</a> <b>cream</b>", "eiscreme", *pairs) == "<a>eiscreme</a><b></b>"
    both = link("ice cream", "eiscreme", [(0, 0, alignment("ice cream", "eiscreme", {0: 0}))])
    assert both.source_of == [0]


def test_of_scattered_words_the_most_are_covered_with_few_others() -> None:
    source, target = "the big old house", "ein grosses x y z altes haus"
    pairs = [("the", "ein"), ("big", "grosses"), ("old", "altes"), ("house", "haus")]
    assert projected("<a>the old house</a> big", "ein x y z altes haus", pairs[0], *pairs[2:]) == (
        "ein x y z <a>altes haus</a>"
    )
    assert projected(f"<a>{source}</a> .", target + " .", *pairs) == "<a>ein grosses x y z altes haus</a> ."
    assert projected("<a>big house</a> .", "grosses x haus .", pairs[1], pairs[3]) == "<a>grosses x haus</a> ."
    others = [*pairs[1:], ("x", "x"), ("y", "y")]
    assert projected("<a>big house</a> x y old", "grosses x haus y altes", *others) == "<a>grosses x haus</a> y altes"
    assert projected("<a>big house</a> x y old", "grosses x y haus altes", *others) == "<a>grosses</a> x y haus altes"


def test_siblings_never_overlap() -> None:
    pairs = [("one", "a"), ("two", "b"), ("three", "c"), ("four", "d")]
    target = "a c b d"
    assert projected("<x>one two</x> <y>three four</y>", target, *pairs) == "<x>a c b</x> <y>d</y>"


def test_an_element_stays_inside_the_one_around_it() -> None:
    pairs = [("one", "eins"), ("two", "zwei"), ("x", "x"), ("y", "y"), ("three", "drei")]
    assert projected("<a>one two <b>three</b></a> x y", "eins zwei x y drei", *pairs) == (
        "<a>eins zwei<b></b></a> x y drei"
    )
    assert projected("<a>one two <b/>three</a> x y", "eins zwei x y drei", *pairs) == "<a>eins zwei<b/></a> x y drei"


def test_punctuation_stays_with_its_element() -> None:
    pairs = [("no", "nein"), ("yes", "ja")]
    assert projected("<a>no!</a> yes", "nein! ja", *pairs) == "<a>nein!</a> ja"
    assert projected("<a>no</a>! yes", "nein! ja", *pairs) == "<a>nein</a>! ja"
    assert projected('<a>"no"</a> yes', '"nein" ja', *pairs) == '<a>"nein"</a> ja'
    assert projected('"<a>no</a>" yes', '"nein" ja', *pairs) == '"<a>nein</a>" ja'


def test_a_span_that_stays_whole_is_never_cut() -> None:
    pairs = [("name", "name"), ("is", "ist")]
    target = "www.name.de ist hier"
    assert projected("<a>www.name.de</a> is here", target, *pairs) == "www.<a>name</a>.de ist hier", "the control"
    whole = ("www.name.de",)
    assert projected("<a>www.name.de</a> is here", target, *pairs, whole=whole) == "<a>www.name.de</a> ist hier"
    assert projected("www.name<a/>.de is here", target, *pairs, whole=whole) == "www.name.de<a/> ist hier"
    assert (
        projected("<a>www.</a><b>name.de</b> is", target, *pairs, whole=whole) == "<a></a><b>www.name.de</b> ist hier"
    )


def test_copies_are_linked_to_what_they_copy_and_to_nothing_else() -> None:
    source, target = "417 is here", "hier ist 417"
    links = linked(source, target, ("417", "hier"), ("is", "ist"))
    assert links.source_of == [0, 1, -1]
    assert links.with_copies([((0, 3), (9, 12))]).source_of == [-1, 1, 0]
    assert links.source_of == [0, 1, -1]


def test_pieces_are_linked_where_they_stand() -> None:
    source, target = "Yes. I see.", "Ja. Ich sehe."
    aligned = [
        (0, 0, alignment("Yes. ", "Ja.", {0: 0, 1: 1})),
        (5, 4, alignment("I see.", "Ich sehe.", {0: 0, 1: 1, 2: 2})),
    ]
    assert link(source, target, aligned).source_of == [0, 1, 2, 3, 4]
    assert link(source, target, aligned[1:]).source_of == [-1, -1, 2, 3, 4]
    assert link(source, target, []).source_of == [-1] * 5
    assert project([(0, Mark(0, "single"))], "", link(source, "", [])) == (Mark(0, "single"),)


def test_a_very_long_text_takes_no_quadratic_memory() -> None:
    """A table of all its words by all its words for every sentence would have 110 million numbers."""
    count = 1_500
    source, target = "One two three four five six. " * count, "Eins zwei drei vier fuenf sechs. " * count
    piece = alignment("One two three four five six. ", "Eins zwei drei vier fuenf sechs. ", {n: n for n in range(7)})
    links = link(source, target, [(29 * n, 33 * n, piece) for n in range(count)])
    assert links.source_of == list(range(7 * count))
    marks = [(29 * n + 3, Mark(n, "single")) for n in range(count)]
    parts = project(marks, target, links)
    assert parts[:3] == ("Eins", Mark(0, "single"), " zwei drei vier fuenf sechs. Eins")
    assert len(parts) == 2 * count + 1


@pytest.mark.parametrize("source_of", [-1, 0], ids=["unlinked", "all linked to one word"])
@pytest.mark.parametrize("kind", ["single", "empty", "around words"])
def test_many_marks_take_linear_time(kind: str, source_of: int) -> None:
    """Looking through all words before each mark takes ten seconds."""
    count = 5_000
    links = link("word " * count, "wort " * count, [])
    links = replace(links, source_of=[source_of] * count)
    width = 4 if kind == "around words" else 0
    marks = [
        (5 * number + (width if way == "close" else 0), Mark(number, way))  # type: ignore[arg-type]
        for number in range(count)
        for way in (("single",) if kind == "single" else ("open", "close"))
    ]
    start = time.process_time()
    parts = project(marks, "wort " * count, links)
    assert time.process_time() - start < 3
    assert len([part for part in parts if isinstance(part, Mark)]) == len(marks)


# What the source has around and within its marks


def parts(marked: str) -> Parts:
    """`<a>the</a> house`, in parts; `{x}` is kept."""
    found: list[str | Mark | Kept] = []
    for piece in re.findall(r"<[^<>]*>|\{\w\}|[^<{]+", marked):
        match = MARK.fullmatch(piece)
        if match is not None:
            kind = "single" if match["single"] else "close" if match["closes"] else "open"
            found.append(Mark(ord(match["name"]), kind))  # type: ignore[arg-type]
        else:
            found.append(Kept(ord(piece[1]), piece) if piece[0] == "{" else piece)
    return tuple(found)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("<a/> the house", "<a/>das haus", "<a/> das haus"),
        ("the house. <a/>", "das haus.<a/>", "das haus. <a/>"),
        ("the <a/> house", "das <a/>haus", "das <a/> haus"),
        ("the <a></a> house", "das<a></a> haus", "das <a></a> haus"),
        ("<a/> <b>the</b> house", "<a/><b>das</b> haus", "<a/> <b>das</b> haus"),
        ("<a/><b/> the house", "<a/><b/>das haus", "<a/><b/> das haus"),
        ("the <a/> <b/> house", "das <a/><b/>haus", "das <a/> <b/> haus"),
        ("{x} <a/> house", "haus<a/> {x}", "haus <a/> {x}"),
        # these have no space of their own, or one that is not to be there
        ("the <a/>house", "das <a/>haus", "das <a/>haus"),
        ("the<a/> house", "das<a/> haus", "das<a/> haus"),
        ("<a/>the house", "<a/>das haus", "<a/>das haus"),
        ("the <a>old</a> house", "das <a>alte</a>haus", "das <a>alte</a>haus"),
        ("the <a/> house", "das haus<a/>.", "das haus<a/>."),
        ("the <a/> house", "das (<a/>haus)", "das (<a/>haus)"),
        ("the <a/> house", "das <a/> haus", "das <a/> haus"),
        # a space before punctuation
        ("the house <a/>!", "das haus<a/>!", "das haus <a/>!"),
        ("the <a/>, house", "das<a/>, haus", "das <a/>, haus"),
        ("the house<a/>!", "das haus<a/>!", "das haus<a/>!"),
        ("the house <a/>!", "das <a/>haus!", "das <a/>haus!"),
        ("the house <a></a>!", "das haus<a></a>!", "das haus<a></a>!"),
    ],
)
def test_a_mark_without_words_keeps_the_spaces_around_it(source: str, target: str, expected: str) -> None:
    assert keep_spaces(parts(source), parts(target)) == parts(expected)


def test_elements_that_lost_their_words_are_found() -> None:
    source = parts("<a>ice</a> <b>cold <c>cream</c></b> <d></d><e>!</e> <f>{x}</f>")
    assert find_emptied(source, source) == []
    assert find_emptied(source, parts("<a>eis</a><b><c></c></b><d></d><e></e><f> </f>")) == [
        "cold cream", "cream", "{x}",
    ]  # fmt: skip
    assert find_emptied(source, parts("<a>eis</a><b>creme<c> </c></b><d></d><e></e><f>{x}</f>")) == ["cream"]


# Any elements, any links


@st.composite
def elements(draw: st.DrawFn) -> tuple[list[tuple[int, Mark]], str, str, TokenLinks, list[tuple[int, int]]]:
    """Marks at places of a source, a target, links between them, and spans of the target that stay whole."""
    words = st.sampled_from(["a", "bb", "ccc", ".", "{x}", " ", "  ", "é1"])
    source, target = ("".join(draw(st.lists(words, max_size=10))) for _ in range(2))
    places = sorted(draw(st.lists(st.integers(0, len(source)), max_size=12)))
    marks: list[tuple[int, Mark]] = []
    stack: list[int] = []
    for number, place in enumerate(places):
        action = draw(st.sampled_from(["open", "single", "close"]))
        if action == "close" and stack:
            marks.append((place, Mark(stack.pop(), "close")))
        elif action == "open":
            stack.append(number)
            marks.append((place, Mark(number, "open")))
        else:
            marks.append((place, Mark(number, "single")))
    marks += [(len(source), Mark(number, "close")) for number in reversed(stack)]
    counts = len(TOKEN.findall(source)), len(TOKEN.findall(target))
    source_of = {}
    if all(counts):
        source_of = draw(st.dictionaries(st.integers(0, counts[1] - 1), st.integers(0, counts[0] - 1)))
    links = link(source, target, [(0, 0, alignment(source, target, source_of))])
    whole = [match.span() for match in re.finditer(r"\{x\}", target)]
    return marks, source, target, links, whole


@given(elements())
def test_marks_survive_nested_and_the_text_is_unchanged(
    example: tuple[list[tuple[int, Mark]], str, str, TokenLinks, list[tuple[int, int]]],
) -> None:
    marks, _, target, links, whole = example
    parts = project(marks, target, links, whole)
    assert "".join(part for part in parts if isinstance(part, str)) == target
    assert Counter(part for part in parts if isinstance(part, Mark)) == Counter(mark for _, mark in marks)
    assert "" not in parts
    stack, place, cuts = [], 0, []
    for part in parts:
        if isinstance(part, str):
            place += len(part)
            continue
        assert isinstance(part, Mark)
        cuts.append(place)
        if part.kind == "open":
            stack.append(part.number)
        elif part.kind == "close":
            assert stack.pop() == part.number
    assert not [cut for cut in cuts for start, end in whole if start < cut < end]
