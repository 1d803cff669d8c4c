"""TMX files: which units are translated, into which language, and that nothing else changes."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from dragoman.documents import tmx
from dragoman.documents.document import Document, Kept, Mark, Options, Parts, Segment
from dragoman.errors import ConfigError, DataError

LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"

MEMORY = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<!-- exported -->
<tmx version="1.4">
  <header creationtool="OmegaT" creationtoolversion="6.0" segtype="sentence" o-tmf="OmegaT TMX" adminlang="EN-US"
          srclang="EN-US" datatype="plaintext">
    <note>keep &amp; hold</note>
    <prop type="x-project">demo</prop>
  </header>
  <body>
    <tu tuid="1" creationdate="20240101T000000Z">
      <note>both are here</note>
      <tuv xml:lang="EN-US">
        <seg>Done</seg>
      </tuv>
      <tuv xml:lang="DE-DE">
        <seg>Fertig</seg>
      </tuv>
    </tu>
    <tu tuid="2">
      <tuv xml:lang="FR">
        <seg>Bonjour</seg>
      </tuv>
      <tuv xml:lang="EN-US">
        <prop type="origin">x</prop>
        <seg>Press <bpt i="1" x="1">&lt;b&gt;</bpt>Start<ept i="1">&lt;/b&gt;</ept> &amp; <ph x="2">%s</ph><ph x="3">&lt;br/&gt;</ph></seg>
      </tuv>
    </tu>
    <tu><tuv xml:lang="EN-US"><seg>Tip <hi type="term">here</hi> <it pos="begin">\\i </it><ut>{\\b</ut>  <ph>&lt;img alt="<sub>A red <ph>%d</ph> flag</sub>"/&gt;</ph></seg></tuv><tuv xml:lang="de"><seg/></tuv></tu>
    <tu srclang="FR">
      <tuv xml:lang="FR"><seg>Rien en anglais</seg></tuv>
    </tu>
  </body>
</tmx>
"""  # noqa: E501
GERMAN = Options(target_language="de")


def parse(text: str, options: Options = GERMAN) -> Document:
    return tmx.parse(text.encode(), options, "a.tmx")


def upper(parts: Parts) -> Parts:
    return tuple(part.upper() if isinstance(part, str) else part for part in parts)


def translate(text: str, options: Options = GERMAN) -> str:
    document = parse(text, options)
    return document.render([upper(segment.parts) for segment in document.segments]).decode()


def variants(text: str, language: str) -> list[str | None]:
    """The text of each unit in a language, read by lxml alone."""
    units = etree.fromstring(text.encode()).findall("body/tu")
    found = [[tuv.find("seg") for tuv in unit.findall("tuv") if tuv.get(LANGUAGE) == language] for unit in units]
    assert all(len(segments) <= 1 for segments in found)
    return [inner(segments[0]) if segments else None for segments in found]


def inner(element: Any) -> str:
    return (element.text or "") + "".join(etree.tostring(child, encoding="unicode") for child in element)


def test_units_without_the_target_language_are_segments() -> None:
    assert parse(MEMORY).segments == (
        Segment(
            ("Press ", Mark(0, "open"), "Start", Mark(0, "close"), " & ", Kept(1, "%s"), Mark(2, "single")), "line 26"
        ),
        Segment(
            ("Tip ", Mark(0, "open"), "here", Mark(0, "close"), " ", Mark(1, "single"), Mark(2, "single"), "  ",
             Mark(3, "single")),
            "line 29",
        ),
        Segment(("A red ", Kept(0, "%d"), " flag"), "line 29"),
        Segment(("Rien en anglais",), "line 31"),
    )  # fmt: skip


def test_variants_are_added_or_filled() -> None:
    new = translate(MEMORY)
    assert variants(new, "DE-DE") == ["Fertig", None, None, None]
    assert variants(new, "de") == [
        None,
        'PRESS <bpt i="1" x="1">&lt;b&gt;</bpt>START<ept i="1">&lt;/b&gt;</ept> &amp; <ph x="2">%s</ph>'
        '<ph x="3">&lt;br/&gt;</ph>',
        'TIP <hi type="term">HERE</hi> <it pos="begin">\\i </it><ut>{\\b</ut>  '
        '<ph>&lt;img alt="<sub>A RED <ph>%d</ph> FLAG</sub>"/&gt;</ph>',
        "RIEN EN ANGLAIS",
    ]
    assert '      <tuv xml:lang="de">\n        <seg>PRESS ' in new
    assert "</ph></seg>\n      </tuv>\n    </tu>" in new
    assert (
        '<seg>Rien en anglais</seg></tuv>\n      <tuv xml:lang="de"><seg>RIEN EN ANGLAIS</seg></tuv>\n    </tu>' in new
    )
    assert parse(new).segments == ()


def test_nothing_else_changes() -> None:
    new = translate(MEMORY)
    added = re.compile(r'\s*<tuv xml:lang="de">\s*<seg>.*?</seg>\s*</tuv>|(?<=<tuv xml:lang="de">)<seg.*?>(?=</tuv>)')
    assert added.sub("", new) == added.sub("", MEMORY.replace('<tuv xml:lang="de"><seg/></tuv>', ""))
    for content in (MEMORY.encode(), MEMORY.replace("\n", "\r\n").encode(), b"\xef\xbb\xbf" + MEMORY.encode()):
        document = tmx.parse(content, Options(target_language="de", all=True), "a.tmx")
        assert document.render([None] * len(document.segments)) == content
    windows = tmx.parse(MEMORY.replace("\n", "\r\n").encode(), GERMAN, "a.tmx")
    assert windows.render([upper(segment.parts) for segment in windows.segments]) == new.replace("\n", "\r\n").encode()


def test_all_replaces_existing_variants() -> None:
    new = translate(MEMORY, Options(target_language="de", all=True))
    assert variants(new, "DE-DE")[0] == "DONE"
    assert variants(new, "EN-US") == variants(MEMORY, "EN-US")


def test_source_language_is_that_of_the_user_then_the_unit_then_the_header() -> None:
    options = Options(source_language="fr", target_language="de")
    assert [segment.text for segment in parse(MEMORY, options).segments] == ["Bonjour", "Rien en anglais"]
    first, *_, last = parse(MEMORY, Options(target_language="es")).segments
    assert (first.text, last.text) == ("Done", "Rien en anglais")


@pytest.mark.parametrize(
    ("language", "expected"), [("en", "plain"), ("en-US", "American"), ("EN_us", "American"), ("en-NZ", "plain")]
)
def test_variant_of_the_same_tag_is_preferred(language: str, expected: str) -> None:
    languages = {"en-GB": "British", "en-US": "American", "en": "plain"}
    unit = "".join(f'<tuv xml:lang="{each}"><seg>{text}</seg></tuv>' for each, text in languages.items())
    text = f'<tmx version="1.4"><header srclang="*all*"/><body><tu>{unit}</tu></body></tmx>'
    document = parse(text, Options(source_language=language, target_language="de"))
    assert [segment.text for segment in document.segments] == [expected]


def test_new_variant_is_the_last_of_its_unit() -> None:
    new = translate(MEMORY, Options(target_language="es"))
    unit = etree.fromstring(new.encode()).find("body/tu")
    assert unit is not None
    assert [variant.get(LANGUAGE) for variant in unit.findall("tuv")] == ["EN-US", "DE-DE", "es"]


def test_language_attribute_is_written_as_in_the_file() -> None:
    text = MEMORY.replace("xml:lang", "lang")
    new = translate(text)
    assert new == translate(MEMORY).replace("xml:lang", "lang")
    assert '<tuv lang="pt-BR">' in translate(text, Options(target_language="pt_BR"))


def test_marks_may_be_reordered() -> None:
    document = parse(MEMORY)
    parts: list[Parts | None] = [None] * len(document.segments)
    parts[0] = (Kept(1, "%s"), " & ", Mark(2, "single"), Mark(0, "open"), "Start", Mark(0, "close"), " drücken")
    parts[2] = ("Eine Fahne, ", Kept(0, "%d"))  # of a unit that is not translated
    assert variants(document.render(parts).decode(), "de") == [
        None,
        '<ph x="2">%s</ph> &amp; <ph x="3">&lt;br/&gt;</ph><bpt i="1" x="1">&lt;b&gt;</bpt>Start'
        '<ept i="1">&lt;/b&gt;</ept> drücken',
        "",
        None,
    ]


def test_text_within_a_code_is_translated_where_there_is_no_other() -> None:
    text = MEMORY.replace("Rien en anglais", '<ph>&lt;img alt="<sub>Drapeau</sub>"/&gt;</ph>')
    assert parse(text).segments[-1].text == "Drapeau"
    assert variants(translate(text), "de")[-1] == '<ph>&lt;img alt="<sub>DRAPEAU</sub>"/&gt;</ph>'


@pytest.mark.parametrize(
    ("old", "new", "options", "message"),
    [
        ("", "", Options(), "a.tmx: the target language is missing; a TMX file may hold several, so give one"),
        ("EN-US", "*all*", GERMAN, "a.tmx:11: the file names no source language; give one"),
        (' srclang="EN-US"', "", GERMAN, "a.tmx:11: the file names no source language; give one"),
        ('srclang="EN-US"', 'srclang="sv"', Options(source_language="it", target_language="de"),
         "a.tmx: has no text in 'it'; its languages are DE-DE, EN-US, FR, de"),
        ("", "", Options(target_language="en"),
         "a.tmx:11: source and target language are both EN-US; give two"),
        ('xml:lang="FR"', 'xml:lang="en-us"', GERMAN, "a.tmx:24: the unit has two variants in EN-US; remove one"),
        ("<seg/>", "", GERMAN, "a.tmx:29: a tuv has no seg; add one"),
        ("<seg>Fertig</seg>", "", Options(target_language="de", all=True), "a.tmx:16: a tuv has no seg; add one"),
        ("tmx version", "xliff version", GERMAN,
         "a.tmx: invalid XML (Opening and ending tag mismatch: xliff line 4 and tmx, line 34, column 7); fix the file"),
        ('SYSTEM "tmx14.dtd"', '[<!ENTITY lol "lol">]', GERMAN,
         "a.tmx: declares XML entities, which can hide anything; remove them from its DOCTYPE"),
        ("Bonjour", "&copy;", Options(source_language="fr", target_language="de"),
         "a.tmx:22: nothing declares the entity &copy;; write the character itself"),
    ],
)  # fmt: skip
def test_invalid_file_is_refused(old: str, new: str, options: Options, message: str) -> None:
    with pytest.raises(DataError) as caught:
        parse(MEMORY.replace(old, new) if old else MEMORY, options)
    assert str(caught.value) == message


def test_other_root_and_language_are_refused() -> None:
    with pytest.raises(DataError) as caught:
        parse("<xliff/>")
    assert str(caught.value) == "a.tmx: not a TMX file; its root element is xliff"
    with pytest.raises(ConfigError) as wrong:
        parse(MEMORY, Options(target_language="de<"))
    assert str(wrong.value) == "target language 'de<' is not a language tag; use one such as de or pt-BR"


WORDS = st.text(alphabet="ab \n&<>é\t", max_size=8)
INLINE = [
    "<ph>%s</ph>",
    '<bpt i="1"/>',
    '<ept i="1"/>',
    '<bpt i="2"/>',
    "<ept i='2' />",
    "<hi>b</hi>",
    "<it pos='end'/>",
]


def xml(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@st.composite
def memories(draw: st.DrawFn) -> str:
    content = st.lists(st.one_of(WORDS.map(xml), st.sampled_from(INLINE)), max_size=5).map("".join)
    units = []
    for _ in range(draw(st.integers(0, 4))):
        languages = draw(st.lists(st.sampled_from(["en", "de", "fr"]), unique=True))
        inside = "".join(f'<tuv xml:lang="{each}"><seg>{draw(content)}</seg></tuv>' for each in languages)
        units.append(f"<tu>{draw(st.sampled_from(['', '<note>n</note>', '<!-- <tu> -->']))}{inside}</tu>")
    indent = draw(st.sampled_from(["", "\n  "]))
    units.append('<tu><tuv xml:lang="en"><seg/></tuv></tu>')
    body = "".join(indent + unit for unit in units)
    return f'<tmx version="1.4"><header srclang="en"/><body>{body}</body></tmx>'


@settings(max_examples=50)
@given(memories(), st.booleans(), st.data())
def test_any_memory_keeps_its_other_variants(text: str, everything: bool, data: st.DataObject) -> None:
    document = parse(text, Options(target_language="de", all=everything))
    assert document.render([None] * len(document.segments)) == text.encode()
    chosen = [segment.parts if data.draw(st.booleans()) else None for segment in document.segments]
    new = document.render(chosen).decode()
    for language in ("en", "fr"):
        assert variants(new, language) == variants(text, language)
    old = variants(text, "de")
    changes = 0
    for source, before, after in zip(variants(text, "en"), old, variants(new, "de"), strict=True):
        if before != after:
            changes += 1
            assert after == source
            assert everything or not (before or "").strip()
    equal = sum(before == source for before, source in zip(old, variants(text, "en"), strict=True))
    assert sum(map(bool, chosen)) - equal <= changes <= sum(map(bool, chosen))
