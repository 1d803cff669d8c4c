"""Spans that come out of a translation unchanged, each exactly once: by rule, and with the bundled model."""

import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman
from dragoman import Translator
from dragoman.config import PROTECTED
from dragoman.decode.alignment import Alignment, diagonal
from dragoman.decode.keeping import (
    Align,
    Restored,
    _with_kept,
    restore_kept,
    restored_line,
    unchanged_line,
    with_spaces_around,
)
from dragoman.decode.pipeline import Pipeline
from dragoman.decode.projection import find_emptied
from dragoman.decode.protected import Located, Place, Protected
from dragoman.decode.protection import Protector
from dragoman.decode.scoring import PairError
from dragoman.decode.terms import Term
from dragoman.decode.translation import Alternative, Translation
from dragoman.documents.document import Kept, Mark, Parts, text_of
from dragoman.text.offsets import PieceSpans

DEFAULT = ("placeholders", "addresses", "tags")
TOKEN = re.compile(r"\w+|[^\w\s]")


def protected(line: str, *kinds: str) -> Protected:
    found = Protector(kinds or DEFAULT).protect(line)
    assert found is not None, line
    return found


def translation_of(source: str, text: str, *others: str) -> Translation:
    alternatives = tuple(Alternative(each, -1.0, -1.0) for each in (text, *others))
    return Translation(source, text, "translated", -1.0, -1.0, alternatives=alternatives, pieces=((source, text),))


def align_by_order(sources: list[str], targets: list[str]) -> list[Alignment]:
    """The first token belongs to the first, the second to the second, and so on."""
    return [_alignment(*pair, lambda row, column, *_: row == column) for pair in zip(sources, targets, strict=True)]


def align_by_word(sources: list[str], targets: list[str]) -> list[Alignment]:
    """Every token belongs to the same token."""
    return [_alignment(*pair, lambda *which: which[2] == which[3]) for pair in zip(sources, targets, strict=True)]


def _alignment(source: str, target: str, belong: Callable[[int, int, str, str], bool]) -> Alignment:
    found = [list(TOKEN.finditer(text)) for text in (source, target)]
    weights = np.array(
        [
            [float(belong(row, column, own.group(), other.group())) for column, other in enumerate(found[0])]
            for row, own in enumerate(found[1])
        ]
    ).reshape(len(found[1]), len(found[0]))
    sources, targets = (PieceSpans(list(range(len(own))), [match.span() for match in own]) for own in found)
    return Alignment(source, target, sources, targets, weights)


class Fake:
    """Translates by rule, once for each attempt, and notes what it was asked."""

    def __init__(self, *rules: Callable[[str], str], align: Align = align_by_order) -> None:
        self._rules, self._align, self.asked = rules, align, list[tuple[list[str], list[str]]]()
        self.places = list[list[int]]()

    def __call__(self, texts: list[str], terms: list[Term], places: list[int]) -> list[Translation]:
        self.asked.append((texts, [term.targets[0] for term in terms]))
        self.places.append(places)
        rule = self._rules[len(self.asked)]
        return [translation_of(text, rule(text)) for text in texts]

    def restore(self, lines: Sequence[Protected]) -> list[Restored]:
        first = [translation_of(line.text, self._rules[0](line.text)) for line in lines]
        return restore_kept(lines, first, self, self._align)


def same(text: str) -> str:
    return text


def lose(text: str) -> str:
    return re.sub(r"(^|\()\s+", r"\1", re.sub(r"\s*(\{\w+\}|%\w|\d+)", "", text))


def lines_of(fake: Fake, *lines: str) -> list[Translation]:
    own = [protected(line) for line in lines]
    return [
        restored_line(line, parts, restored)
        for line, parts, restored in zip(lines, own, fake.restore(own), strict=True)
    ]


def test_what_a_model_copies_is_translated_once() -> None:
    fake = Fake(str.upper)
    (result,) = lines_of(fake, "see %S and $A")
    assert (result.text, result.status, result.reason) == ("SEE %S AND $A", "translated", "")
    assert fake.asked == []


def test_only_lines_that_lost_something_are_translated_again() -> None:
    fake = Fake(lose, same)
    results = lines_of(fake, "see {a} now", "see <b>it</b>", "{x} and {y} here")
    assert [each.text for each in results] == ["see {a} now", "see <b>it</b>", "{x} and {y} here"]
    assert fake.asked == [(["see 417 now", "417 and 518 here"], [])]
    assert [each.status for each in results] == ["translated"] * 3


def test_the_third_attempt_must_write_the_numbers() -> None:
    fake = Fake(lose, lambda text: lose(text) if "now" in text else text, same)
    results = lines_of(fake, "see {a} now", "{x} and {y} here")
    assert fake.asked == [(["see 417 now", "417 and 518 here"], []), (["see 417 now"], ["417"])]
    assert [each.text for each in results] == ["see {a} now", "{x} and {y} here"]


def test_the_same_word_twice_comes_out_twice() -> None:
    fake = Fake(lambda text: text.replace("{n} cats", "cats"), lambda text: "518 und 417")
    (result,) = lines_of(fake, "{n} cats and {n} dogs")
    assert fake.asked == [(["417 cats and 518 dogs"], [])]
    assert result.text == "{n} und {n}"


def test_a_lost_word_goes_where_its_neighbours_went_and_the_status_says_so() -> None:
    fake = Fake(lose, lose, lambda text: "die gelben katzen schlafen .")
    (result,) = lines_of(fake, "the yellow cats {n} sleep .")
    assert result.status == "altered"
    assert result.reason == "'{n}' could not be placed by the model"
    assert result.text == "die gelben katzen schlafen {n} ."
    assert [len(asked) for asked in fake.asked] == [2, 2]
    (result,) = lines_of(Fake(lose, lose, lose), "{a}, or {b} (<b>{c}</b>)")
    assert result.reason == "'{a}', '{b}', '{c}' could not be placed by the model"
    assert sorted(re.findall(r"\{.\}", result.text)) == ["{a}", "{b}", "{c}"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{n} hello you", "{n} hello you"),
        ("hello you {n}", "hello you {n}"),
        ("hello {n} you.", "hello {n} you."),
        ("hello {n}.", "hello {n}."),
        ("({n} hello)", "({n} hello)"),
        ("{a} {b} hello {c} {d}", "{a} {b} hello {c} {d}"),
        ("hello <b>{n}</b> you", "hello <b>{n}</b> you"),
        ("hello<b> {n}friends</b>", "hello <b>{n} friends</b>"),
    ],
)
def test_lost_words_stand_apart_from_others(line: str, expected: str) -> None:
    (result,) = lines_of(Fake(lose, lose, lose, align=align_by_word), line)
    assert result.text == expected
    assert result.status == "altered"


def test_an_element_goes_with_the_word_that_it_keeps() -> None:
    """Attention may say otherwise: here the first word belongs to the first."""
    (result,) = lines_of(Fake(lambda text: "hier ist {n}"), "<b>{n}</b> is here")
    assert result.text == "hier ist <b>{n}</b>"


def test_an_element_without_words_in_the_translation_alters_it() -> None:
    fake = Fake(lambda text: "eiscreme", align=align_by_word)
    (result,) = lines_of(fake, "<b>eiscreme</b> <i>cold</i>")
    assert (result.text, result.status) == ("<b>eiscreme</b><i></i>", "altered")
    assert result.reason == "the markup around 'cold' has no words in the translation"
    (result,) = lines_of(fake, "<b>eiscreme</b> cold<i></i>")
    assert (result.text, result.status, result.reason) == ("<b>eiscreme</b><i></i>", "translated", "")
    (result,) = lines_of(fake, "eiscreme <a>a</a> <b>b</b> <i>c</i> <u>d</u> <p>e</p>")
    assert result.reason == "the markup around 'a', 'b', 'c' and 2 more has no words in the translation"


def test_a_comment_keeps_its_space() -> None:
    lines = ["<!-- c --> the house", "the house. <!-- c -->", "the <!-- c --> house", "the <!-- c -->house"]
    fake = Fake(lambda text: " ".join(text.split()), align=align_by_word)
    assert [result.text for result in lines_of(fake, *lines)] == lines


def test_a_line_of_which_nothing_is_left_has_its_kept_words() -> None:
    (result,) = lines_of(Fake(lose, lose, lambda text: ""), "x {n}")
    assert (result.text, result.status) == ("{n}", "altered")


def test_a_number_that_appears_twice_does_not_stay() -> None:
    fake = Fake(lose, lose, lambda text: "417 katzen 417 und 518 .")
    (result,) = lines_of(fake, "{a} cats and {b} .")
    assert result.text == "{a} katzen und {b} ."
    assert result.reason == "'{a}' could not be placed by the model"


def test_an_attempt_that_fails_leaves_the_one_before_it() -> None:
    line, asked = protected("see {a}"), []

    def fail(texts: list[str], terms: list[Term], places: list[int]) -> list[Translation]:
        asked.append(texts)
        return [Translation(text, "", "failed", reason="out of memory") for text in texts]

    (restored,) = restore_kept([line], [translation_of(line.text, "siehe")], fail, align_by_order)
    assert restored_line("see {a}", line, restored).text == "siehe {a}"
    assert restored.translation.status == "altered"
    assert len(asked) == 2


def test_failed_and_empty_lines_are_left_alone() -> None:
    line = protected("see {a} <b>x</b>")
    for status in ("failed", "empty"):
        given_back = Translation(line.text, "", status, reason="why" if status == "failed" else "")
        fake = Fake()
        (restored,) = restore_kept([line], [given_back], fake, align_by_order)
        assert fake.asked == []
        assert restored.translation == given_back
        assert restored.parts == line.parts
    failed = Translation(line.text, "", "failed", reason="why")
    result = restored_line("see {a} <b>x</b>", line, Restored(failed, line.parts, []))
    assert (result.source, result.text, result.status, result.reason) == ("see {a} <b>x</b>", "", "failed", "why")


def test_lines_translated_again_are_named() -> None:
    fake = Fake(lambda text: text.replace("{b}", ""), same, same)
    fake.restore([protected("see {a}"), protected("see {b}"), protected("or {b}")])
    assert fake.places == [[1, 2]]


def test_time_is_proportional_to_the_number_of_kept_words_and_tags() -> None:
    count = 20_000
    words = [Kept(number, f"k{number}") for number in range(count)]
    found = [Place(7 * number, 7 * number + 6, kept) for number, kept in enumerate(words)]
    pairs = [("w12345 ", Mark(count + number, "single")) for number in range(count)]
    start = time.perf_counter()
    parts = _with_kept(tuple(itertools.chain.from_iterable(pairs)), Located(found, [], [], []))
    assert time.perf_counter() - start < 10, "two minutes if every part looks at every word"
    expected = [(kept, " ", mark) for kept, (_, mark) in zip(words, pairs, strict=True)]
    assert parts == tuple(itertools.chain.from_iterable(expected))


def test_marks_survive_a_translation_of_nothing() -> None:
    (result,) = lines_of(Fake(lambda text: "", lambda text: "", lambda text: ""), "<b>x</b> and <br>")
    assert result.text == "<b></b><br>"


def test_other_translations_are_kept_only_with_all_their_words() -> None:
    line = protected("see {a}")
    first = translation_of(line.text, "siehe {a}", "schau {a} an", "schau", "{a} {a}")
    (restored,) = restore_kept([line], [first], Fake(), align_by_order)
    result = restored_line("see {a}", line, restored)
    assert [each.text for each in result.alternatives] == ["siehe {a}", "schau {a} an"]
    assert [each.score for each in result.alternatives] == [-1.0, -1.0]
    marked = protected("see <b>{a}</b>")
    first = translation_of(marked.text, "siehe {a}", "schau {a} an")
    (restored,) = restore_kept([marked], [first], Fake(), align_by_order)
    result = restored_line("see <b>{a}</b>", marked, restored)
    assert [each.text for each in result.alternatives] == ["siehe <b>{a}</b>"]


def test_a_line_without_words_is_its_own_translation() -> None:
    result = unchanged_line("<keep>x</keep>: {a}", protected("<keep>x</keep>: {a}"))
    assert (result.text, result.status) == ("x: {a}", "translated")
    assert [each.text for each in result.alternatives] == ["x: {a}"]


def test_pieces_of_a_line_are_aligned_each_on_its_own() -> None:
    line = protected("One. <b>Two three.</b> Four.")
    pieces = (("One. ", "Eins."), ("Two three. ", "Drei zwei."), ("Four.", "Vier."))
    first = Translation(line.text, "Eins. Drei zwei. Vier.", "translated", pieces=pieces)
    asked: list[tuple[list[str], list[str]]] = []

    def align(sources: list[str], targets: list[str]) -> list[Alignment]:
        asked.append((sources, targets))
        return align_by_order(sources, targets)

    (restored,) = restore_kept([line], [first], Fake(), align)
    assert line.line(restored.parts) == "Eins. <b>Drei zwei.</b> Vier."
    assert asked == [([source for source, _ in pieces], [target for _, target in pieces])]


# Whatever a model writes

LINE = st.lists(
    st.sampled_from(["{a}", "{b}", "%s", "<b>", "</b>", "<i>", "</i>", "<br/>", "cat", "dog", " ", ".", "7"]),
    min_size=1, max_size=14,
).map("".join)  # fmt: skip


@st.composite
def bad_models(draw: st.DrawFn) -> Callable[[str], str]:
    """Drops, doubles and moves words."""
    choices = draw(st.lists(st.sampled_from(["keep", "drop", "double", "glue"]), min_size=1, max_size=6))
    is_reversed, lead = draw(st.booleans()), draw(st.sampled_from(["", " ", "417 ", "x"]))

    def translate(text: str) -> str:
        words = text.split()
        written = []
        for number, word in enumerate(reversed(words) if is_reversed else words):
            choice = choices[number % len(choices)]
            written += {"keep": [word], "drop": [], "double": [word, word], "glue": [word + "er"]}[choice]
        return lead + " ".join(written)

    return translate


@given(LINE, st.lists(bad_models(), min_size=3, max_size=3), st.sampled_from([DEFAULT, PROTECTED]))
def test_every_kept_span_comes_out_once_whatever_a_model_writes(
    line: str, models: list[Callable[[str], str]], kinds: tuple[str, ...]
) -> None:
    own = Protector(kinds).protect(line)
    if own is None:
        return
    (restored,) = Fake(*models).restore([own])
    wanted = Counter(part for part in own.parts if not isinstance(part, str))
    assert Counter(part for part in restored.parts if not isinstance(part, str)) == wanted
    assert_nested(restored.parts)
    located = own.locate(restored.translation.text, restored.spellings)
    is_kept = located.is_complete and not find_emptied(own.parts, restored.parts)
    assert (restored.translation.status == "altered") == (not is_kept)
    invented = {*restored.spellings} - {*own.spellings}
    left = "".join(part if isinstance(part, str) else f" {own.originals[part]} " for part in restored.parts)
    if not {*re.findall(r"\d+er", restored.translation.text)}:
        assert not [stand_in for stand_in in invented if re.search(rf"(?<!\w){stand_in}(?!\w)", left)]


def assert_nested(parts: Parts) -> None:
    stack = []
    for part in parts:
        if isinstance(part, Mark) and part.kind == "open":
            stack.append(part.number)
        elif isinstance(part, Mark) and part.kind == "close":
            assert stack.pop() == part.number
    assert stack == []


# With the bundled model


@pytest.fixture(scope="module")
def german() -> Translator:
    return dragoman.load("en-de", "cpu")


EXAMPLES = [
    ("Hello {name}, you have {count} new messages.", ["{name}", "{count}"]),
    ("%d files were copied to %s.", ["%d", "%s"]),
    ("Set $HOME before you start ${program}.", ["$HOME", "${program}"]),
    (
        "Visit https://example.com/a?b=c or write to me+x@example.org.",
        ["https://example.com/a?b=c", "me+x@example.org"],
    ),
    ("The <keep>Big Apple</keep> is a city.", ["Big Apple"]),
    ("{count, plural, one {# file} other {# files}} deleted.", ["{count, plural, one {# file} other {# files}}"]),
    ("You have {n} apples and {n} pears.", ["{n}", "{n}"]),
    ("The picture is %dx%d pixels large.", ["%dx%d"]),
]


def test_examples_come_out_with_everything_once(german: Translator) -> None:
    texts = [text for text, _ in EXAMPLES]
    results, control = german.translate(texts), german.translate(texts, protect=[])
    for result, (text, expected) in zip(results, EXAMPLES, strict=True):
        assert result.source == text
        for kept, count in Counter(expected).items():
            assert result.text.count(kept) == count, result.text
        assert "keep>" not in result.text
        assert result.status == "translated"
        assert [other.text for other in result.alternatives] == [result.text]
    lost = [
        result.text
        for result, (_, expected) in zip(control, EXAMPLES, strict=True)
        if any(kept not in result.text for kept in expected)
    ]
    assert len(lost) >= 6, "the control: the model alone loses them"
    assert [german.translate(text).text for text in texts] == [result.text for result in results]


def test_words_are_translated_around_what_is_kept(german: Translator) -> None:
    assert german.translate(EXAMPLES[0][0]).text == "Hallo {name}, Sie haben {count} neue Nachrichten."
    first, last = german.translate(EXAMPLES[1][0]).text.split(" Dateien wurden ")
    assert first == "%d"
    assert last.endswith("kopiert.")


def test_tags_go_with_their_words(german: Translator) -> None:
    line = '<p>The <b>red</b> house<br/> is <a href="x?a>b">very old</a>.</p>'
    assert german.translate(line).text == ('<p>Das <b>rote</b> Haus<br/> ist <a href="x?a>b">sehr alt</a>.</p>')
    plain = german.translate("The red house is very old.").text
    assert re.sub(r"<.*?>", "", german.translate("The <i>red</i> house is <b>very</b> old.").text) == plain


@pytest.mark.slow
def test_tags_may_span_sentences_and_pieces(german: Translator) -> None:
    line = "I see <b>the house. The house</b> is red. <i>It is old.</i>"
    result = german.translate(line)
    assert re.findall(r"<.*?>", result.text) == ["<b>", "</b>", "<i>", "</i>"]
    assert re.sub(r"<.*?>", "", result.text) == german.translate(re.sub(r"<.*?>", "", line)).text
    assert "<i>Es ist alt.</i>" in result.text
    words = " ".join(["the red house and"] * 50)
    long = german.translate(f"I see <b>{{name}} and {words} the garden</b> today.")
    assert long.status == "split"
    assert re.findall(r"<.*?>|\{name\}", long.text) == ["<b>", "{name}", "</b>"]


def test_lines_without_words_come_out_as_they_are(german: Translator) -> None:
    lines = ["{name}", "<br/>", "https://example.com", "%s: 5 %", "{a}<br/>{b}", "", "x"]
    results = german.translate(lines)
    assert [result.text for result in results[:5]] == lines[:5]
    assert [result.status for result in results] == ["translated"] * 5 + ["empty", "translated"]
    assert [[other.text for other in result.alternatives] for result in results[:5]] == [[line] for line in lines[:5]]


def test_numbers_are_kept_on_request(german: Translator) -> None:
    line = "Take 10mg of it 3 times on 5 days, 1,250 people did in 1999."
    result = german.translate(line, protect=["numbers"])
    assert sorted(re.findall(r"\d[\d.,]*\d|\d", result.text)) == sorted(["10", "3", "5", "1,250", "1999"])
    assert "1,250" not in german.translate(line).text, "the control: Germans write 1.250"


def test_failed_lines_keep_their_reason(german: Translator) -> None:
    failed, fine = german.translate(["<b>{x}\0</b>", "{x}"])
    assert (failed.source, failed.text, failed.status, failed.reason) == (
        "<b>{x}\0</b>", "", "failed", "NUL at character 7",
    )  # fmt: skip
    assert fine.text == "{x}"


@pytest.mark.slow
def test_other_ways_to_translate_keep_spans_too(german: Translator) -> None:
    line = "Hello {name}, you have <b>{count}</b> new messages. Please visit https://example.com."
    for options in ({"sampling": True, "seed": 3}, {"attention": True, "beam": 1}):
        result = german.translate(line, **options)  # type: ignore[call-overload]
        for kept in ("{name}", "{count}", "https://example.com", "<b>", "</b>"):
            assert result.text.count(kept) == 1, (options, result.text)
        assert result.status == "translated"
        assert (result.attention is not None) == ("attention" in options)


@pytest.mark.slow
def test_several_translations_of_a_line_keep_spans_each(german: Translator) -> None:
    line = "Hello {name}. You have {count} new messages."
    for options in ({"n_best": 4}, {"n_best": 3, "sampling": True, "beam": 3}):
        result = german.translate(line, **options)  # type: ignore[call-overload]
        assert result.alternatives[0].text == result.text
        for other in result.alternatives:
            assert other.text.count("{name}") == other.text.count("{count}") == 1


@pytest.mark.slow
def test_a_piece_searched_again_may_have_fewer_samples(german: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    search, searched = german.searcher.search_with_phrases, []

    def first_only(*arguments: Any) -> Any:
        found = search(*arguments)
        searched.extend(found)
        return [own[:1] for own in found]

    monkeypatch.setattr(german.searcher, "search_with_phrases", first_only)
    options: dict[str, Any] = {"sampling": True, "temperature": 2.0, "beam": 3, "n_best": 3}
    result = german.translate("It is late. Hello {name}, see %s.", **options)
    assert searched, "the control: samples this wild lose something"
    assert [other.text for other in result.alternatives] == [result.text]
    assert result.text.count("{name}") == result.text.count("%s") == 1


def test_a_line_translated_again_keeps_its_number(german: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sample must not depend on which other lines are translated again."""
    jobs, keys = german.steering.jobs, list[list[int]]()

    def record(*arguments: Any) -> Any:
        keys.append([job.key for job in jobs(*arguments)])
        return jobs(*arguments)

    monkeypatch.setattr(german.steering, "jobs", record)
    texts = ["No.", "Yes.", "{a} or {b}"]
    options: dict[str, Any] = {"sampling": True, "seed": 3, "max_extra": 2}
    result = german.translate(texts, **options)
    assert keys[:2] == [[0, 1, 2], [2]]
    assert german.translate(["", "", texts[2]], **options)[2].text == result[2].text
    keys.clear()
    german.translate(texts, prefix=["", "", ""], **options)
    assert keys[:2] == [[0, 1, 2], [2]]
    keys.clear()
    windows: list[list[Parts]] = [[("No.",), ("{a}",)], [(texts[2],)]]
    list(german.stream_parts(windows, options=german.options(**options)))
    assert keys[:3] == [[0], [2], [2]]


def test_a_prefix_and_placeholders_work_together(german: Translator) -> None:
    texts = ["Hello {name}, you have <b>{count}</b> new messages.", "{name} is here.", "The house."]
    prefixes = ["Guten Tag {name}, Sie", "", "Unser"]
    first, second, third = german.translate(texts, prefix=prefixes)
    assert first.source == texts[0]
    assert first.text.startswith("Guten Tag {name}, Sie haben ")
    for kept in ("{name}", "{count}", "<b>", "</b>"):
        assert first.text.count(kept) == 1, first.text
    assert second.text.count("{name}") == 1
    assert third.text.startswith("Unser")
    assert [each.status for each in (first, second, third)] == ["translated"] * 3


def test_tags_have_a_place_without_an_alignment(german: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = german.align_pieces

    def refuse(sources: list[str], targets: list[str]) -> list[Alignment]:
        if any("garden" in source for source in sources):
            raise PairError(1, "out of memory")
        return plain(sources, targets)

    lines = ["The <b>red</b> house is old.", "The <b>old</b> garden is <i>green</i>."]
    aligned = german.translate(lines)
    monkeypatch.setattr(german, "align_pieces", refuse)
    first, second = german.translate(lines)
    assert first.text == aligned[0].text == "Das <b>rote</b> Haus ist alt."
    assert second.text == "Der <b>alte</b> Garten ist <i>grün</i>."
    assert second.status == "translated"


def test_without_a_model_words_belong_together_in_order() -> None:
    assert diagonal("a b c d", "x y").links == [(0, 0), (2, 1)]
    assert diagonal("a b", "w x y z").links == [(0, 0), (0, 1), (1, 2), (1, 3)]
    assert diagonal("", "x").links == diagonal("a", "").links == []


def test_a_glossary_and_placeholders_work_together(german: Translator) -> None:
    result = german.translate("{name} bought a new car for %s.", glossary=[("car", "Kraftfahrzeug")])
    assert "Kraftfahrzeug" in result.text
    assert result.text.count("{name}") == result.text.count("%s") == 1
    assert result.status == "translated"


def test_texts_of_documents_are_restored_with_their_marks(german: Translator) -> None:
    parts: list[Parts] = [
        ("The ", Mark(0, "open"), "red", Mark(0, "close"), " house of {name}."),
        (Kept(0, "x = 1"),),
        ("a\0b",),
        ("Run ", Kept(7, "make"), " now."),
    ]
    results = list(german.stream_parts([parts]))
    translations, own = zip(*results, strict=True)
    assert own[0][:4] == ("Das ", Mark(0, "open"), "rote", Mark(0, "close"))
    assert translations[0].source == "The red house of {name}."
    assert translations[0].text.count("{name}") == 1
    assert [each.number for each in own[3] if isinstance(each, Kept)] == [7]
    assert own[1] == parts[1]
    assert own[2] is None
    assert [each.status for each in translations] == ["translated", "translated", "failed", "translated"]
    for translation, found in zip(translations, own, strict=True):
        assert translation.text == ("" if found is None else text_of(found)), "the record shows what the reader sees"
    assert not re.search(r"\d", translations[0].text)


SPACED = ["  The house is small.", "Good morning!\t", "\t I have {count} messages. ", "   ", " No."]


def test_spaces_around_a_line_stay(german: Translator) -> None:
    found = german.translate(SPACED, n_best=2)
    plain = german.translate([line.strip() for line in SPACED], n_best=2)
    for line, spaced, alone in zip(SPACED, found, plain, strict=True):
        assert spaced.source == line
        assert spaced.text == (line.replace(line.strip(), alone.text) if line.strip() else "")
        assert spaced.text.strip() == alone.text, "the control"
        assert [each.text.strip() for each in spaced.alternatives] == [each.text for each in alone.alternatives]
        assert not spaced.alternatives or spaced.alternatives[0].text == spaced.text
        assert (spaced.status, spaced.score, spaced.tokens) == (alone.status, alone.score, alone.tokens)


def test_spaces_around_stay_in_streams_and_beside_prefixes(german: Translator) -> None:
    for line in SPACED:
        assert "".join(german.stream_text(line)) == german.translate(line).text
        assert german.translate(line, prefix="").text == german.translate(line).text
    begun = german.translate("  The house is small.\t", prefix="Dieses Haus").text
    assert re.fullmatch(r"Dieses Haus.*\S\t", begun)
    assert german.translate("  The house is small.", prefix=" ").text.startswith("  "), "a blank prefix is none"


def test_a_line_without_a_translation_has_no_spaces() -> None:
    nothing, word = (Translation("  x ", text, "translated") for text in ("", "y"))
    assert with_spaces_around(nothing).text == ""
    assert with_spaces_around(word).text == "  y ", "the control"


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\u2028", "\x85"])
def test_line_breaks_around_a_line_are_not_part_of_it(german: Translator, ending: str) -> None:
    alone = german.translate("The house is small.").text
    assert german.translate(f"The house is small.{ending}").text == alone
    assert german.translate(f"{ending}\tThe house is small. {ending}").text == f"\t{alone} "
    assert "".join(german.stream_text(f"The house is small.{ending}")).rstrip("\n") == alone, "lines are separated"


def test_a_segment_that_is_translated_to_nothing_stays(german: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    window = Pipeline._translate_window

    def nothing(self: Pipeline, lines: Any, *rest: Any, **more: Any) -> list[Translation]:
        found = window(self, lines, *rest, **more)
        return [
            Translation(line, "", "translated") if line == "one" else each
            for line, each in zip(lines, found, strict=True)
        ]

    monkeypatch.setattr(Pipeline, "_translate_window", nothing)
    (lost, lost_parts), (kept, _) = german.stream_parts([[("one",), ("Good morning!",)]])
    assert (lost.text, lost.status, lost_parts) == ("one", "altered", ("one",))
    assert lost.reason == "the model wrote nothing; it stays as it was"
    assert (kept.text, kept.status) == ("Guten Morgen!", "translated"), "the control"
