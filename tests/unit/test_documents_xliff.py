"""XLIFF files: which sources are translated, where marks go, and that nothing but the targets changes."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from dragoman.documents import xliff
from dragoman.documents.document import Document, Kept, Mark, Options, Parts, Segment
from dragoman.errors import ConfigError, DataError

NAMES = {"x": "urn:oasis:names:tc:xliff:document:1.2", "y": "urn:oasis:names:tc:xliff:document:2.0"}

ANGULAR = """<?xml version="1.0" encoding="UTF-8" ?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
  <file source-language="en-US" datatype="plaintext" original="ng2.template">
    <body>
      <trans-unit id="introduction" datatype="html">
        <source>
          Hello <x id="START_BOLD_TEXT" ctype="x-b" equiv-text="&lt;b&gt;"/><x id="INTERPOLATION" equiv-text="{{ name }}"/><x id="CLOSE_BOLD_TEXT" ctype="x-b" equiv-text="&lt;/b&gt;"/>,<x id="LINE_BREAK" ctype="lb" equiv-text="&lt;br/&gt;"/>
          welcome &amp; enjoy!
        </source>
        <context-group purpose="location">
          <context context-type="sourcefile">app.component.html</context>
          <context context-type="linenumber">4</context>
        </context-group>
        <note priority="1" from="description">An introduction</note>
      </trans-unit>
      <trans-unit id="minutes" datatype="html">
        <source>Updated <x id="ICU" equiv-text="{minutes, plural, =0 {just now} other {{{minutes}} minutes ago}}"/></source>
        <target state="new">Updated <x id="ICU"/></target>
      </trans-unit>
    </body>
  </file>
</xliff>
"""  # noqa: E501

QT = """<?xml version="1.0" encoding="utf-8"?>
<!-- written by lupdate -->
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2" xmlns:trolltech="urn:trolltech:names:ts:document:1.0">
    <file original="../mainwindow.cpp" datatype="cpp" source-language="en" target-language="de"><body>
        <group restype="x-trolltech-linguist-context" resname="MainWindow">
            <trans-unit id="_msg0" approved="yes">
                <source xml:space="preserve">&amp;Open</source>
                <target xml:space="preserve">&amp;Öffnen</target>
                <context-group purpose="location"><context context-type="linenumber">30</context></context-group>
            </trans-unit>
            <trans-unit id="_msg1">
                <source xml:space="preserve">Could not open %1
in the folder</source>
                <target xml:space="preserve"></target>
                <extracted-comment xmlns="urn:trolltech:names:ts:document:1.0">%1 is a file</extracted-comment>
                <trolltech:translatorcomment>careful</trolltech:translatorcomment>
                <?tool keep="this"?>
            </trans-unit>
            <group restype="x-gettext-plurals">
                <trans-unit id="_msg2[0]"><source xml:space="preserve">%n file(s)</source><target xml:space="preserve"/></trans-unit>
                <trans-unit id="_msg2[1]"><source xml:space="preserve">%n file(s)</source></trans-unit>
            </group>
        </group>
    </body></file>
</xliff>
"""  # noqa: E501

MEMOQ = """<?xml version="1.0" encoding="UTF-8"?>
<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2" xmlns:mq="MQXliff" version="1.2">
<file original="a.docx" source-language="en" target-language="de" datatype="x-undefined">
<header><note>keep</note></header>
<body>
<trans-unit id="1" mq:status="NotStarted"><source xml:space="preserve">Press <bpt id="1" ctype="bold">{}</bpt>Start<ept id="1">{}</ept> or <ph id="2">%s</ph><ph id="3">&lt;mq:ch val="\t"/&gt;</ph> now</source><target xml:space="preserve"></target>
<mq:comments/>
<alt-trans><source>Press it</source><target>Drücken</target></alt-trans></trans-unit>
<trans-unit id="2" translate="no"><source>ACME</source></trans-unit>
<group translate="no"><trans-unit id="3"><source>Never</source></trans-unit><trans-unit id="4" translate="yes"><source>Always</source></trans-unit></group>
<trans-unit id="5"><source>First. Second.</source><seg-source><mrk mtype="seg" mid="1">First.</mrk> <g id="9"><mrk mtype="seg" mid="2">Second.</mrk></g></seg-source><target><mrk mtype="seg" mid="1">Erstens.</mrk> <g id="9"><mrk mtype="seg" mid="2"/></g></target></trans-unit>
<trans-unit id="6"><source>See <it id="1" pos="open">&lt;a&gt;</it><mrk mtype="protected">Big Ben</mrk> <bx id="2" rid="7"/>now<ex id="3" rid="7"/> <bpt id="4">&lt;a title="<sub>The tip</sub>"&gt;</bpt>there<ept id="4">&lt;/a&gt;</ept></source></trans-unit>
<trans-unit id="7"><source><![CDATA[Bold & <b>brave</b>]]></source></trans-unit>
</body>
</file>
</xliff>
"""  # noqa: E501

VERSION_2 = """<?xml version="1.0" encoding="UTF-8" standalone="yes"?>
<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" xmlns:fs="urn:oasis:names:tc:xliff:fs:2.0" version="2.0" srcLang="en">
 <file id="f1">
  <skeleton href="a.skl"/>
  <unit id="u1" name="x">
   <notes><note id="n1">keep</note></notes>
   <originalData>
    <data id="d1">%d</data>
    <data id="d2">&lt;br/&gt;</data>
    <data id="d3">&lt;b&gt;</data>
    <data id="d4">&lt;/b&gt;</data>
   </originalData>
   <segment id="s1">
    <source>Number <ph id="1" dataRef="d1"/> is<ph id="2" dataRef="d2"/> <pc id="3" dataRefStart="d3" dataRefEnd="d4" fs:fs="b">very <pc id="4">big</pc></pc>.</source>
   </segment>
   <ignorable><source> </source></ignorable>
   <segment id="s2" state="final">
    <source>Done</source>
    <target>Fertig</target>
   </segment>
   <segment id="s3" state="initial" subState="my:draft">
    <source>A <sc id="5"/>b <sc id="6" isolated="yes"/>c<ec startRef="5"/> <mrk id="m1" translate="no">ACME</mrk> <mrk id="m2" type="term">d</mrk><cp hex="001A"/></source>
    <target order="3">copy</target>
   </segment>
  </unit>
  <group id="g1" translate="no">
   <unit id="u2"><segment><source>Never</source></segment></unit>
   <unit id="u3" translate="yes"><segment><source xml:space="preserve">Two
  lines</source></segment></unit>
  </group>
 </file>
</xliff>
"""  # noqa: E501

SAMPLES = {"angular": ANGULAR, "qt": QT, "memoq": MEMOQ, "2.0": VERSION_2}
GERMAN = Options(target_language="de")


def parse(text: str, options: Options = GERMAN) -> Document:
    return xliff.parse(text.encode(), options, "a.xlf")


def upper(parts: Parts) -> Parts:
    return tuple(part.upper() if isinstance(part, str) else part for part in parts)


def translate(text: str, options: Options = GERMAN, change: Callable[[Parts], Parts] = upper) -> str:
    document = parse(text, options)
    return document.render([change(segment.parts) for segment in document.segments]).decode()


def find(text: str, path: str) -> list[Any]:
    found = etree.fromstring(text.encode()).xpath(path, namespaces=NAMES)
    assert isinstance(found, list)
    return found


def inner(element: Any) -> str:
    """The content of an element, without the namespaces that lxml repeats."""
    whole = (element.text or "") + "".join(etree.tostring(child, encoding="unicode") for child in element)
    return re.sub(r' xmlns(:\w+)?="[^"]*"', "", whole)


def without_targets(text: str) -> bytes:
    """The canonical form of a file without its targets, their states and the target language."""
    root = etree.fromstring(text.encode())
    for target in list(root.iter("{*}target")):
        parent = target.getparent()
        assert parent is not None
        if etree.QName(parent).localname != "alt-trans":
            previous = target.getprevious()
            assert previous is not None
            parent.remove(target)
            previous.tail = None
    for element in root.iter("{*}*"):
        for name in ("state", "subState", "trgLang", "target-language", "approved"):
            element.attrib.pop(name, None)
        if etree.QName(element).localname in ("source", "seg-source", "segment"):
            element.tail = None
    return etree.tostring(root, method="c14n2")  # version 1 refuses relative names of namespaces, as memoQ has


def test_inline_elements_of_angular() -> None:
    assert parse(ANGULAR).segments == (
        Segment(
            (
                "Hello ", Mark(0, "open"), Kept(1, "{{ name }}"), Mark(0, "close"), ",", Mark(2, "single"),
                " welcome & enjoy!",
            ),
            "line 6",
        ),
        Segment(("Updated ", Mark(0, "single")), "line 17"),
    )  # fmt: skip


def test_inline_elements_of_memoq() -> None:
    assert [segment.parts for segment in parse(MEMOQ).segments] == [
        ("Press ", Mark(0, "open"), "Start", Mark(0, "close"), " or ", Kept(1, "%s"), Mark(2, "single"), " now"),
        ("Always",),
        ("Second.",),
        (
            "See ", Mark(0, "single"), Kept(1, "Big Ben"), " ", Mark(2, "open"), "now", Mark(2, "close"), " ",
            Mark(3, "open"), "there", Mark(3, "close"),
        ),
        ("The tip",),
        ("Bold & <b>brave</b>",),
    ]  # fmt: skip


def test_inline_elements_of_version_2() -> None:
    assert [segment.parts for segment in parse(VERSION_2).segments] == [
        (
            "Number ", Kept(0, "%d"), " is", Mark(1, "single"), " ", Mark(2, "open"), "very ", Mark(3, "open"), "big",
            Mark(3, "close"), Mark(2, "close"), ".",
        ),
        (
            "A ", Mark(0, "open"), "b ", Mark(1, "single"), "c", Mark(0, "close"), " ", Kept(2, "ACME"), " ",
            Mark(3, "open"), "d", Mark(3, "close"), Mark(4, "single"),
        ),
        ("Two\n  lines",),
    ]  # fmt: skip


def test_codes_that_overlap_or_lack_a_half_stand_alone() -> None:
    content = ANGULAR.replace(
        "Updated <x",
        'a<bpt id="1"/>b<bpt id="2"/>c<ept id="1"/>d<ept id="2"/>e<g id="3">f<bx id="4"/>g</g>h<ex id="4"/><x',
        1,
    )
    assert [part for part in parse(content).segments[1].parts if isinstance(part, Mark)] == [
        Mark(0, "open"), Mark(1, "single"), Mark(0, "close"), Mark(2, "single"), Mark(3, "open"), Mark(4, "single"),
        Mark(3, "close"), Mark(5, "single"), Mark(6, "single"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("codes", "kinds"),
    [
        ('<bpt id="1"/>a<ept id="1"/>', ["open", "close"]),
        ('<bpt id="1"/>a<ex id="1"/>', ["single", "single"]),
        ('<bx id="1"/>a<ex id="1"/>', ["open", "close"]),
        ('<bx id="1"/>a<ex id="2"/>', ["single", "single"]),
        ('<ex id="1"/>a<bx id="1"/>', ["single", "single"]),
        ('<x id="1" equiv-text="&lt;a href=\'b\'>"/>a<x id="2" equiv-text="&lt;/a>"/>', ["open", "close"]),
        ('<x id="1" equiv-text="&lt;a/>"/>a<x id="2" equiv-text="&lt;/a>"/>', ["single", "single"]),
        ('<ph id="1">&lt;i&gt;</ph>a<ph id="2">&lt;/i&gt;</ph>', ["open", "close"]),
        ('<ph id="1">\\b </ph>a<ph id="2">&lt;/b&gt;</ph>', ["single", "single"]),
    ],
)
def test_codes_are_paired_by_what_they_begin_and_end(codes: str, kinds: list[str]) -> None:
    parts = parse(ANGULAR.replace("Updated <x", f"{codes}<x", 1)).segments[1].parts
    assert [part.kind for part in parts if isinstance(part, Mark)] == [*kinds, "single"]


def test_isolated_codes_of_version_2_stand_alone() -> None:
    paired = VERSION_2.replace("<source>Done</source>", '<source><sc id="7"/>Done<ec startRef="7"/></source>')
    isolated = paired.replace('id="7"', 'id="7" isolated="yes"').replace('startRef="7"', 'id="7" isolated="yes"')
    for text, kinds in ((paired, ["open", "close"]), (isolated, ["single", "single"])):
        segments = parse(text, Options(target_language="de", all=True)).segments
        found = next(segment for segment in segments if segment.text == "Done")
        assert [part.kind for part in found.parts if isinstance(part, Mark)] == kinds


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("options", [GERMAN, Options(target_language="de", all=True, fuzzy=True)])
def test_file_without_translations_keeps_its_bytes(name: str, options: Options) -> None:
    for content in (SAMPLES[name].encode(), SAMPLES[name].replace("\n", "\r\n").encode()):
        document = xliff.parse(content, options, "a.xlf")
        assert document.segments
        assert document.render([None] * len(document.segments)) == content
        assert document.render([("",)] * len(document.segments)) == content


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("options", [GERMAN, Options(target_language="de", all=True, fuzzy=True)])
def test_only_targets_and_their_states_change(name: str, options: Options) -> None:
    text = SAMPLES[name]
    new = translate(text, options)
    assert new != text
    assert without_targets(new) == without_targets(text)
    assert new.startswith(text[: text.index("<xliff")])
    assert parse(new, Options(target_language="de")).segments == () or options.fuzzy
    for comment in re.findall(
        r"<!--.*?-->|<\?.*?\?>|<note.*?</note>|<alt-trans>.*?</alt-trans>|<source.*?</source>", text, re.DOTALL
    ):
        assert comment in new


def test_targets_of_angular() -> None:
    new = translate(ANGULAR)
    assert find(new, "//x:file/@target-language") == ["de"]
    first, second = find(new, "//x:target")
    assert [inner(first).strip(), inner(second)] == [
        'HELLO <x id="START_BOLD_TEXT" ctype="x-b" equiv-text="&lt;b&gt;"/>'
        '<x id="INTERPOLATION" equiv-text="{{ name }}"/>'
        '<x id="CLOSE_BOLD_TEXT" ctype="x-b" equiv-text="&lt;/b&gt;"/>,<x id="LINE_BREAK" ctype="lb" '
        'equiv-text="&lt;br/&gt;"/> WELCOME &amp; ENJOY!',
        'UPDATED <x id="ICU" equiv-text="{minutes, plural, =0 {just now} other {{{minutes}} minutes ago}}"/>',
    ]
    assert '</source>\n        <target state="translated">\n          HELLO ' in new
    assert inner(first).endswith("ENJOY!\n        ")
    assert first.getprevious() is first.getparent().find("x:source", NAMES)


def test_targets_of_qt_keep_newlines_and_line_ends() -> None:
    new = translate(QT)
    assert [inner(target) for target in find(new, "//x:target")] == [
        "&Öffnen", "COULD NOT OPEN %1\nIN THE FOLDER", "%N FILE(S)", "%N FILE(S)",
    ]  # fmt: skip
    assert '<target xml:space="preserve" state="translated">%N FILE(S)</target></trans-unit>' in new
    assert new.count('xml:space="preserve" state="translated"') == 3
    windows = xliff.parse(QT.replace("\n", "\r\n").encode(), GERMAN, "a.xlf")
    assert windows.render([upper(segment.parts) for segment in windows.segments]) == new.replace("\n", "\r\n").encode()


def test_targets_of_memoq() -> None:
    new = translate(MEMOQ)
    targets = {unit.get("id"): unit for unit in find(new, "//x:trans-unit[x:target]")}
    assert {key: inner(unit.find("x:target", NAMES)) for key, unit in targets.items()} == {
        "1": 'PRESS <bpt id="1" ctype="bold">{}</bpt>START<ept id="1">{}</ept> OR <ph id="2">%s</ph>'
        '<ph id="3">&lt;mq:ch val="\t"/&gt;</ph> NOW',
        "4": "ALWAYS",
        "5": '<mrk mtype="seg" mid="1">Erstens.</mrk> <g id="9"><mrk mtype="seg" mid="2">SECOND.</mrk></g>',
        "6": 'SEE <it id="1" pos="open">&lt;a&gt;</it><mrk mtype="protected">Big Ben</mrk> <bx id="2" rid="7"/>NOW'
        '<ex id="3" rid="7"/> <bpt id="4">&lt;a title="<sub>THE TIP</sub>"&gt;</bpt>THERE<ept id="4">&lt;/a&gt;</ept>',
        "7": "BOLD & <B>BRAVE</B>",
    }
    assert '<target state="translated"><![CDATA[BOLD & <B>BRAVE</B>]]></target>' in new
    assert find(new, "//x:trans-unit[@id='2' or @id='3']/x:target") == []


def test_targets_of_version_2() -> None:
    new = translate(VERSION_2)
    assert find(new, "/y:xliff/@trgLang") == ["de"]
    assert [inner(target) for target in find(new, "//y:target")] == [
        'NUMBER <ph id="1" dataRef="d1"/> IS<ph id="2" dataRef="d2"/> <pc id="3" dataRefStart="d3" dataRefEnd="d4" '
        'fs:fs="b">VERY <pc id="4">BIG</pc></pc>.',
        "Fertig",
        'A <sc id="5"/>B <sc id="6" isolated="yes"/>C<ec startRef="5"/> <mrk id="m1" translate="no">ACME</mrk> '
        '<mrk id="m2" type="term">D</mrk><cp hex="001A"/>',
        "TWO\n  LINES",
    ]
    assert find(new, "//y:segment/@state") == ["translated", "final", "translated", "translated"]
    assert find(new, "//@subState") == []
    assert find(new, "//y:target/@order") == ["3"]
    assert find(new, "//y:unit[@id='u3']//y:target/@xml:space") == ["preserve"]
    review = translate(VERSION_2, Options(target_language="de", fuzzy=True))
    assert find(review, "//y:segment/@subState") == ["dragoman:needs-review"] * 3


@pytest.mark.parametrize(
    ("target", "replaced"),
    [
        ("", True),
        ("<target/>", True),
        ("<target> <!-- nothing --> </target>", True),
        ('<target state="final"></target>', True),
        ("<target>Alt</target>", False),
        ('<target><x id="1"/></target>', False),
        ('<target state="final">Alt</target>', False),
        ('<target state="signed-off">Alt</target>', False),
        ('<target state="translated">Alt</target>', False),
        ('<target state="new">Alt</target>', True),
        ('<target state="needs-translation">Alt</target>', True),
        ('<target state="needs-review-translation" state-qualifier="fuzzy-match">Alt</target>', True),
    ],
)
def test_finished_targets_stay_unless_all_is_asked_for(target: str, replaced: bool) -> None:
    for approved in ("", ' approved="no"', ' approved="yes"'):
        text = ANGULAR.replace('<trans-unit id="minutes" datatype="html">', f'<trans-unit id="minutes"{approved}>')
        text = re.sub(r"<source>Updated.*?</target>", f"<source>Now</source>{target}", text, flags=re.DOTALL)
        has_text = "Alt" in target
        expected = replaced and not (approved.endswith('"yes"') and has_text)
        for options in (GERMAN, Options(target_language="de", all=True)):
            new = translate(text, options)
            unit = find(new, "//x:trans-unit[@id='minutes']")[0]
            assert (unit.findtext("x:target", None, NAMES) == "NOW") == (expected or options.all)
            if expected or options.all:
                assert unit.find("x:target", NAMES).get("state") == "translated"
                assert unit.find("x:target", NAMES).get("state-qualifier") in (None, "mt-suggestion")
                assert unit.get("approved") != "yes"
            else:
                assert target in new
                assert unit.get("approved") == (re.search(r'approved="(\w+)"', text) or [None, None])[1]


def test_fuzzy_option_asks_for_review() -> None:
    new = translate(MEMOQ, Options(target_language="de", fuzzy=True))
    assert set(find(new, "//x:trans-unit/x:target/@state")) == {"needs-review-translation"}


def test_marks_may_be_reordered() -> None:
    document = parse(MEMOQ)
    parts: list[Parts | None] = [None] * len(document.segments)
    parts[0] = ("Jetzt ", Mark(2, "single"), Kept(1, "%s"), " oder ", Mark(0, "open"), "<Start>", Mark(0, "close"))
    new = document.render(parts).decode()
    assert inner(find(new, "//x:trans-unit[@id='1']/x:target")[0]) == (
        'Jetzt <ph id="3">&lt;mq:ch val="\t"/&gt;</ph><ph id="2">%s</ph> oder '
        '<bpt id="1" ctype="bold">{}</bpt>&lt;Start&gt;<ept id="1">{}</ept>'
    )
    assert len(find(new, "//x:trans-unit/x:target")) == 2


@pytest.mark.parametrize(
    "parts",
    [
        ("Jetzt",),
        (Mark(0, "open"), "a", Mark(0, "close"), Kept(1, "%s"), Kept(1, "%s"), Mark(2, "single")),
        (Mark(0, "close"), "a", Mark(0, "open"), Kept(1, "%s"), Mark(2, "single")),
    ],
)
def test_translation_with_other_marks_is_an_internal_error(parts: Parts) -> None:
    document = parse(MEMOQ)
    with pytest.raises(AssertionError, match=r"^line 6: the (translation has other marks|marks of the translation)"):
        document.render([parts, *[None] * (len(document.segments) - 1)])


def test_segments_without_a_translation_stay_empty() -> None:
    text = re.sub(r"(</seg-source>)<target>.*?</target>", r"\1", MEMOQ)
    document = parse(text)
    second = [segment.text for segment in document.segments].index("Second.")
    parts: list[Parts | None] = [None] * len(document.segments)
    parts[second] = ("Zweitens.",)
    unit = find(document.render(parts).decode(), "//x:trans-unit[@id='5']")[0]
    target = unit.find("x:target", NAMES)
    assert target.get("state") == "needs-translation"
    assert inner(target) == '<mrk mtype="seg" mid="1"/> <g id="9"><mrk mtype="seg" mid="2">Zweitens.</mrk></g>'
    again = parse(document.render(parts).decode())
    assert [segment.text for segment in again.segments if segment.text in ("First.", "Second.")] == [
        "First.",
        "Second.",
    ]


def test_prefixes_and_namespaces_of_the_source_are_those_of_the_target() -> None:
    text = (
        '<l:xliff xmlns:l="urn:oasis:names:tc:xliff:document:1.2" version="1.2"><l:file source-language="en">'
        '<l:body><l:trans-unit id="a"><l:source xmlns:o="urn:other">Hi <o:b class="c">you</o:b><o:i/></l:source>'
        "</l:trans-unit></l:body></l:file></l:xliff>"
    )
    document = parse(text)
    assert document.segments[0].parts == ("Hi ", Mark(0, "open"), "you", Mark(0, "close"), Mark(1, "single"))
    new = translate(text)
    target = find(new, "//x:target")[0]
    assert inner(target) == 'HI <o:b class="c">YOU</o:b><o:i/>'
    assert '<l:target xmlns:o="urn:other" state="translated">' in new


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "iso-8859-1", "shift_jis"])
def test_encoding_is_kept(codec: str) -> None:
    declared = codec.removesuffix("-sig")
    text = ANGULAR.replace('encoding="UTF-8"', f'encoding="{declared}"')
    document = xliff.parse(text.encode(codec), GERMAN, "a.xlf")
    new = document.render([(*segment.parts, " Ж€") for segment in document.segments])
    root = etree.fromstring(new)
    assert [target.xpath("string()").strip()[-2:] for target in root.iter("{*}target")] == ["Ж€"] * 2
    assert new.startswith(text[:60].encode(codec))  # with the byte order mark
    assert document.render([None] * len(document.segments)) == text.encode(codec)


def test_cdata_is_not_used_for_what_the_encoding_lacks() -> None:
    text = MEMOQ.replace('encoding="UTF-8"', 'encoding="iso-8859-1"')
    document = xliff.parse(text.encode("iso-8859-1"), GERMAN, "a.xlf")
    new = document.render([*[None] * (len(document.segments) - 1), ("<Ж>",)])
    assert etree.fromstring(new).findtext(".//x:trans-unit[@id='7']/x:target", None, NAMES) == "<Ж>"


def test_characters_that_xml_cannot_hold_are_left_out() -> None:
    new = translate(QT, GERMAN, lambda parts: ("a\0\x0b\ufffe]]>\r&",))
    assert find(new, "//x:target/text()")[1:] == ["a]]>\r&"] * 3
    new = translate(MEMOQ, GERMAN, lambda parts: (*(p for p in parts if not isinstance(p, str)), "a\0]]>&"))
    assert find(new, "//x:trans-unit[@id='7']/x:target/text()") == ["a]]>&"]


TEXT = st.text(alphabet="ab \n&<>\"'é]", max_size=8)
EXTRA = st.sampled_from(
    ["", "<!-- a > b -->", "<?php echo '>' ?>", "<note a='>'>n</note>", "<o:x xmlns:o='u' b = \"'\" />", "\t\n"]
)


def xml(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@st.composite
def contents(draw: st.DrawFn, depth: int = 2) -> str:
    pieces = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["text", "x", "ph", "g", "bpt", "ept", "comment", "cdata"]))
        number = draw(st.integers(1, 3))
        match kind:
            case "text":
                pieces.append(xml(draw(TEXT)))
            case "x":
                pieces.append(
                    f'<x id="{number}" equiv-text="{draw(st.sampled_from(["", "{n}", "&lt;b>", "&lt;/b>"]))}" />'
                )
            case "ph":
                pieces.append(f"<ph id='{number}'>{xml(draw(st.sampled_from(['%s', '<br/>', ''])))}</ph>")
            case "g" if depth:
                pieces.append(f'<g id="{number}">{draw(contents(depth - 1))}</g>')
            case "bpt" | "ept":
                pieces.append(f'<{kind} id="{number}"/>')
            case "comment":
                pieces.append("<!-- <g> -->")
            case "cdata":
                pieces.append("<![CDATA[<x> & ]]>")
    return "".join(pieces)


@st.composite
def files(draw: st.DrawFn) -> str:
    states = ["", ' state="new"', ' state="final"']
    units = []
    for number in range(draw(st.integers(0, 4))):
        target = f"<target{draw(st.sampled_from(states))}>{draw(contents())}</target>" if draw(st.booleans()) else ""
        space = draw(st.sampled_from(["", ' xml:space="preserve"', " xml:space = 'default'"]))
        units.append(
            f'<trans-unit id="{number}"{space}>{draw(EXTRA)}<source>{draw(contents())}</source>{target}'
            f"{draw(EXTRA)}</trans-unit>"
        )
    head = draw(st.sampled_from(["", '<?xml version="1.0" standalone="no"?>\n', "<!-- <a> --><!DOCTYPE xliff>\n"]))
    text = (
        f'{head}<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en" >'
        f"<body>{draw(EXTRA)}{''.join(units)}</body></file></xliff>{draw(st.sampled_from(['', '<!-- end -->']))}"
    )
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))


@settings(max_examples=50)
@given(files(), st.booleans(), st.data())
def test_any_file_keeps_what_is_not_translated(text: str, everything: bool, data: st.DataObject) -> None:
    document = xliff.parse(text.encode(), Options(target_language="de", all=everything), "a.xlf")
    assert document.render([None] * len(document.segments)) == text.encode()
    for segment in document.segments:
        first, last = segment.parts[0], segment.parts[-1]
        assert not isinstance(first, str) or first == first.lstrip() != ""
        assert not isinstance(last, str) or last == last.rstrip() != ""
        assert any(isinstance(part, str) and part.strip() for part in segment.parts)

    chosen = [segment.parts if data.draw(st.booleans()) else None for segment in document.segments]
    new = document.render(chosen).decode()
    assert without_targets(new) == without_targets(text)
    root = etree.fromstring(new.encode())
    old_root = etree.fromstring(text.encode())
    assert len(list(root.iterfind(".//x:target[@state='translated']", NAMES))) == sum(map(bool, chosen))
    # What was translated with its own text reads as its source does; comments are not copied.
    for unit, old in zip(root.iter("{*}trans-unit"), old_root.iter("{*}trans-unit"), strict=True):
        source, target, old_target = (each.find(name, NAMES) for each, name in
                                      ((unit, "x:source"), (unit, "x:target"), (old, "x:target")))  # fmt: skip
        assert source is not None
        if target is None or (old_target is not None and inner(target) == inner(old_target)):
            continue
        assert target.get("state") == "translated"
        assert [child.tag for child in target.iter("{*}*")][1:] == [child.tag for child in source.iter("{*}*")][1:]
        assert "".join(target.itertext()).split() == "".join(source.itertext()).split()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('id="minutes"', 'id="introduction"',
         "a.xlf:16: trans-unit id 'introduction' is used on line 5, too; rename one"),
        ("Updated", "<x id=1/>",
         "a.xlf: invalid XML (AttValue: \" or ' expected, line 17, column 23); fix the file"),
        ('version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"', 'version="3.0"',
         "a.xlf: not an XLIFF file of version 1.2, 2.0 or 2.1; check its root element and version"),
        ("en-US", "fr", "a.xlf:3: source-language is fr, not en; change the file or the language"),
        ('datatype="plaintext"', 'target-language="fr"',
         "a.xlf:3: target-language is fr, not de; change the file or the language"),
        ("<xliff", '<!DOCTYPE xliff [<!ENTITY a "b">]><xliff',
         "a.xlf: declares XML entities, which can hide anything; remove them from its DOCTYPE"),
        ("<xliff", '<!DOCTYPE xliff [<!ENTITY % a SYSTEM "file:///etc/passwd"> %a;]><xliff',
         "a.xlf: declares XML entities, which can hide anything; remove them from its DOCTYPE"),
        ("Updated", "&nbsp;", "a.xlf: invalid XML (Entity 'nbsp' not defined, line 17, column 23); fix the file"),
    ],
)  # fmt: skip
def test_invalid_file_is_refused(old: str, new: str, message: str) -> None:
    options = Options(source_language="en", target_language="de")
    parse(ANGULAR, options)
    with pytest.raises(DataError) as caught:
        parse(ANGULAR.replace(old, new), options)
    assert str(caught.value) == message


def test_entity_of_an_external_type_is_refused_and_never_fetched() -> None:
    text = ANGULAR.replace("<xliff", '<!DOCTYPE xliff SYSTEM "file:///etc/passwd"><xliff', 1)
    assert len(parse(text).segments) == 2
    with pytest.raises(DataError) as caught:
        parse(text.replace("Updated", "&secret;", 1))
    assert str(caught.value) == "a.xlf:17: nothing declares the entity &secret;; write the character itself"


def test_deep_file_is_refused() -> None:
    deep = '<g id="1">' * 300 + "a" + "</g>" * 300
    with pytest.raises(DataError, match=r"^a\.xlf: invalid XML \(Excessive depth in document[^\n]*\); fix the file$"):
        parse(ANGULAR.replace("Updated", deep, 1))
    assert len(parse(ANGULAR.replace("Updated", '<g id="1">' * 200 + "a" + "</g>" * 200, 1)).segments[1].parts) == 403


def test_languages_are_checked() -> None:
    with pytest.raises(DataError) as caught:
        parse(VERSION_2, Options())
    assert str(caught.value) == "a.xlf: names no target language (trgLang); give one"
    with pytest.raises(ConfigError) as wrong:
        parse(VERSION_2, Options(target_language='de" x="'))
    assert str(wrong.value) == "target language 'de\" x=\"' is not a language tag; use one such as de or pt-BR"
    assert find(translate(VERSION_2, Options(target_language="pt_BR")), "/y:xliff/@trgLang") == ["pt-BR"]
    assert find(translate(QT, Options(target_language="de-AT")), "//x:file/@target-language") == ["de"]
    assert find(translate(ANGULAR, Options()), "//x:file/@target-language") == []


def test_ids_may_repeat_in_another_file() -> None:
    whole = ANGULAR[ANGULAR.index("  <file") : ANGULAR.index("</xliff>")]
    assert len(parse(ANGULAR.replace(whole, whole + whole)).segments) == 4


def test_unit_without_a_source_is_refused() -> None:
    text = re.sub(r"<source>Updated.*?</source>", "", ANGULAR)
    with pytest.raises(DataError) as caught:
        parse(text)
    assert str(caught.value) == "a.xlf:16: trans-unit 'minutes' has no source; add one"
    with pytest.raises(DataError) as caught:
        parse(VERSION_2.replace("<source>Done</source>", ""))
    assert str(caught.value) == "a.xlf:17: segment of unit 'u1' has no source; add one"
