"""PO files: what is translated, that nothing else changes, and that gettext and polib accept what is written."""

import gettext
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import polib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.documents import po
from dragoman.documents.document import Document, Options, Segment
from dragoman.documents.plural_forms import read_rule, rule_of
from dragoman.errors import ConfigError, DataError

TEMPLATE = rb"""# Translations of a file manager.
# Copyright (C) 2024 The Authors
#
#, fuzzy
msgid ""
msgstr ""
"Project-Id-Version: files 1.0\n"
"PO-Revision-Date: YEAR-MO-DA HO:MI+ZONE\n"
"Last-Translator: FULL NAME <EMAIL@ADDRESS>\n"
"Language-Team: LANGUAGE <LL@li.org>\n"
"Language: \n"
"MIME-Version: 1.0\n"
"Content-Type: text/plain; charset=CHARSET\n"
"Content-Transfer-Encoding: 8bit\n"
"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\n"

#. Shown at the start.
#: src/main.c:12 src/main.c:80
msgid "Welcome to the \"file\" manager"
msgstr ""

#: src/main.c:14
#, c-format
msgid "%d file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""
"""

CATALOGUE = """# German.
msgid ""
msgstr ""
"Project-Id-Version: files 1.0\\n"
"PO-Revision-Date: 2024-05-01 10:00+0200\\n"
"Last-Translator: A <a@example.org>\\n"
"Language-Team: German\\n"
"Language: de\\n"
"MIME-Version: 1.0\\n"
"Content-Type: text/plain; charset=UTF-8\\n"
"Content-Transfer-Encoding: 8bit\\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\\n"

# The translator was here.
#. Extracted.
#: a.c:1
msgctxt "menu"
msgid "Open"
msgstr   "Öffnen"

#: a.c:2
#, fuzzy, c-format
#| msgctxt "button"
#| msgid "Open the file %s"
msgctxt "button"
msgid "Open the files %s"
msgstr "Datei %s öffnen"

#  Laid out by hand.
#: a.c:3
#, python-format
msgid ""
"\\n"
"  First line,\\tand %(name)s.\\n"
"Second line in C:\\\\temp.\\n"
msgstr ""

#, fuzzy
msgid "One message"
msgid_plural "%d messages"
msgstr[0] "Eine Nachricht"
msgstr[1] "%d Nachrichten"

#, fuzzy
#~| msgid "Gone before"
#~ msgid "Gone"
#~ msgstr "Weg"

#~ msgid "Gone, too"
#~ msgstr "Auch weg"

msgid "Close"
msgstr ""
""".encode()


def translate(content: bytes, options: Options, change: Callable[[str], str] = str.upper) -> bytes:
    document: Document = po.parse(content, options, "a.po")
    return document.render([(change(segment.text),) for segment in document.segments])


def texts(content: bytes, **options: object) -> list[str]:
    return [segment.text for segment in po.parse(content, Options(**options), "a.po").segments]  # type: ignore[arg-type]


def check_with_msgfmt(content: bytes) -> None:
    """Where gettext is installed, it accepts the file, with the checks of formats, header and newlines."""
    if shutil.which("msgfmt"):
        command = ["msgfmt", "--check", "--output-file=/dev/null", "-"]
        result = subprocess.run(command, input=content, capture_output=True, check=False)
        assert result.returncode == 0, result.stderr.decode()


def blocks(content: bytes) -> list[bytes]:
    return content.replace(b"\r\n", b"\n").split(b"\n\n")


def test_untranslated_and_fuzzy_entries_are_segments() -> None:
    assert po.parse(CATALOGUE, Options(), "a.po").segments == (
        Segment(("Open the files %s",), "line 26"),
        Segment(("First line,\tand %(name)s.\nSecond line in C:\\temp.",), "line 32"),
        Segment(("One message",), "line 39"),
        Segment(("%d messages",), "line 40"),
        Segment(("Close",), "line 52"),
    )
    assert texts(CATALOGUE, all=True)[0] == "Open"
    assert len(texts(CATALOGUE, all=True)) == 6


@pytest.mark.parametrize("options", [Options(), Options(all=True), Options(target_language="de", fuzzy=True)])
def test_file_without_translations_keeps_its_bytes(options: Options) -> None:
    for content in (TEMPLATE, CATALOGUE, CATALOGUE.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + CATALOGUE, b""):
        if b"INTEGER" in content:
            options = Options(target_language="de")
        document = po.parse(content, options, "a.po")
        nothing = [None] * len(document.segments)
        assert document.render(nothing) == content
        assert document.render([("",)] * len(nothing)) == content


def test_only_the_lines_of_a_translation_change() -> None:
    new = translate(CATALOGUE, Options()).decode()
    expected = (
        CATALOGUE.decode()
        .replace('#, fuzzy, c-format\n#| msgctxt "button"\n#| msgid "Open the file %s"\n', "#, c-format\n")
        .replace('"Datei %s öffnen"', '"OPEN THE FILES %S"')
        .replace(
            'C:\\\\temp.\\n"\nmsgstr ""\n',
            'C:\\\\temp.\\n"\nmsgstr ""\n"\\n"\n"  FIRST LINE,\\tAND %(NAME)S.\\n"\n"SECOND LINE IN C:\\\\TEMP.\\n"\n',
        )
        .replace('#, fuzzy\nmsgid "One', 'msgid "One')
        .replace('"Eine Nachricht"', '"ONE MESSAGE"')
        .replace('"%d Nachrichten"', '"%D MESSAGES"')
        .replace('msgid "Close"\nmsgstr ""', 'msgid "Close"\nmsgstr "CLOSE"')
    )
    assert new == expected
    assert texts(new.encode()) == []


def test_msgfmt_accepts_translations() -> None:
    for options in (Options(), Options(fuzzy=True), Options(all=True, target_language="de_AT")):
        check_with_msgfmt(translate(CATALOGUE, options, lambda text: f"Ä {text}"))
    check_with_msgfmt(translate(TEMPLATE, Options(target_language="pt-BR"), lambda text: f"ção {text}"))


def test_fuzzy_option_flags_what_was_translated() -> None:
    new = polib.pofile(translate(CATALOGUE, Options(fuzzy=True)).decode())
    flags = {(entry.msgctxt, entry.msgid.split(" ")[0].strip()): entry.flags for entry in new if not entry.obsolete}
    assert flags == {
        ("menu", "Open"): [],
        ("button", "Open"): ["fuzzy", "c-format"],
        (None, ""): ["fuzzy", "python-format"],
        (None, "One"): ["fuzzy"],
        (None, "Close"): ["fuzzy"],
    }
    assert [entry.previous_msgid for entry in new if not entry.obsolete] == [None] * 5


def test_all_replaces_existing_translations() -> None:
    new = translate(CATALOGUE, Options(all=True))
    assert b'msgid "Open"\nmsgstr "OPEN"\n' in new
    assert 'msgstr   "Öffnen"\n'.encode() in translate(CATALOGUE, Options())


def test_template_gets_language_plural_forms_and_charset() -> None:
    new = translate(TEMPLATE, Options(target_language="pt-BR"), lambda text: f"á {text}")
    metadata = polib.pofile(new.decode()).metadata
    assert metadata["Language"] == "pt_BR"
    assert metadata["Plural-Forms"] == "nplurals=2; plural=(n > 1);"
    assert metadata["Content-Type"] == "text/plain; charset=UTF-8"
    old = polib.pofile(TEMPLATE.decode().replace("CHARSET", "UTF-8")).metadata
    changed = {"Language", "Plural-Forms", "Content-Type"}
    assert {key: metadata[key] for key in old if key not in changed} == {
        key: old[key] for key in old if key not in changed
    }
    assert list(metadata) == list(old)
    assert len(blocks(new)) == len(blocks(TEMPLATE))


def test_existing_header_is_not_changed() -> None:
    content = CATALOGUE.replace(b"Language: de", b"Language: de_CH").replace(b"(n != 1)", b"(n > 1)")
    assert blocks(translate(content, Options(target_language="de")))[0] == blocks(content)[0]


def test_file_without_header_gets_one() -> None:
    content = b'msgid "Open"\nmsgstr ""\n'
    new = translate(content, Options(target_language="de", fuzzy=True), lambda text: "Öffnen")
    catalogue = polib.pofile(new.decode())
    assert catalogue.metadata["Language"] == "de"
    assert catalogue.metadata["Plural-Forms"] == "nplurals=2; plural=(n != 1);"
    assert not catalogue.metadata_is_fuzzy
    assert [(entry.msgid, entry.msgstr, entry.flags) for entry in catalogue] == [("Open", "Öffnen", ["fuzzy"])]
    check_with_msgfmt(new)
    assert "charset=UTF-8" in translate(content, Options(), lambda text: "Öffnen").decode()  # msgfmt needs it


# The rules as CLDR's tables state them, with the forms in the order of the header.
RULES: dict[str, Callable[[int], int]] = {
    "en": lambda n: 0 if n == 1 else 1,
    "de": lambda n: 0 if n == 1 else 1,
    "fr": lambda n: 0 if n in (0, 1) else 1,
    "ja": lambda n: 0,
    "pl": lambda n: 0 if n == 1 else 1 if n % 10 in (2, 3, 4) and n % 100 not in (12, 13, 14) else 2,
    "ru": lambda n: (
        0 if n % 10 == 1 and n % 100 != 11 else 1 if n % 10 in (2, 3, 4) and n % 100 not in (12, 13, 14) else 2
    ),
    "ar": lambda n: n if n < 3 else 3 if 3 <= n % 100 <= 10 else 4 if n % 100 < 3 else 5,
}
# Which forms translate msgid when it says the number, as "%d file" does.
SINGULAR = {"en": [0], "de": [0], "fr": [0], "ja": [], "pl": [0], "ru": [0], "ar": [1]}
# And when it does not, as "One file": Russian's form is for 21 as well.
SINGULAR_WITHOUT_NUMBER = SINGULAR | {"ru": []}


@pytest.mark.parametrize("language", RULES)
def test_plural_forms_follow_the_rule_of_the_language(language: str) -> None:
    rule = RULES[language]
    forms = read_rule(rule_of(language))
    assert [form for number in range(1001) for form in range(len(forms.numbers)) if number in forms.numbers[form]] == [
        rule(number) for number in range(1001)
    ]
    count = len(forms.numbers)
    for singular, expected in ((b"%d file", SINGULAR), (b"One file", SINGULAR_WITHOUT_NUMBER)):
        content = TEMPLATE.replace(b'"%d file"', b'"' + singular + b'"')
        new = translate(content, Options(target_language=language), lambda text: f"[{text}]")
        check_with_msgfmt(new)
        entry = next(entry for entry in polib.pofile(new.decode()) if entry.msgid_plural)
        one = f"[{singular.decode()}]"
        assert entry.msgstr_plural == {
            form: one if form in expected[language] else "[%d files]" for form in range(count)
        }


@pytest.mark.parametrize("language", RULES)
def test_compiled_catalogue_gives_the_right_form(language: str, tmp_path: Path) -> None:
    new = translate(TEMPLATE, Options(target_language=language), lambda text: f"[{text}]")
    (tmp_path / "a.po").write_bytes(new)
    polib.pofile(str(tmp_path / "a.po")).save_as_mofile(str(tmp_path / "a.mo"))
    with (tmp_path / "a.mo").open("rb") as file:
        catalogue = gettext.GNUTranslations(file)
    expected = {number: RULES[language](number) in SINGULAR[language] for number in range(200)}
    found = {number: catalogue.ngettext("%d file", "%d files", number) == "[%d file]" for number in range(200)}
    assert found == expected


def test_singular_comes_before_plural_whatever_the_order_of_forms() -> None:
    assert texts(TEMPLATE, target_language="ar")[1:] == ["%d file", "%d files"]


def test_header_rule_wins_over_the_rule_of_the_language() -> None:
    content = CATALOGUE.replace(b"nplurals=2; plural=(n != 1);", b"nplurals=3; plural=n==1 ? 2 : n==0 ? 0 : 1;")
    entry = next(e for e in polib.pofile(translate(content, Options(target_language="de")).decode()) if e.msgid_plural)
    assert entry.msgstr_plural == {0: "%D MESSAGES", 1: "%D MESSAGES", 2: "ONE MESSAGE"}


def test_existing_plural_forms_stay_and_missing_ones_are_added() -> None:
    content = CATALOGUE.replace(b'#, fuzzy\nmsgid "One', b'msgid "One').replace(b'"%d Nachrichten"', b'""')
    new = translate(content, Options()).decode()
    assert 'msgstr[0] "Eine Nachricht"\nmsgstr[1] "%D MESSAGES"\n' in new
    assert "One message" not in texts(content)


def test_entry_waits_until_each_of_its_forms_is_translated() -> None:
    document = po.parse(TEMPLATE, Options(target_language="de"), "a.po")
    assert [segment.text for segment in document.segments][1:] == ["%d file", "%d files"]
    new = document.render([("eins",), ("zwei",), None])
    assert blocks(new)[-1] == blocks(TEMPLATE)[-1]
    assert b'msgstr "eins"' in new


WORDS = st.text(alphabet='ab "\\\n\t%é{}<&>', min_size=1, max_size=12)
TRANSLATION = st.text(alphabet='xy "\\\n\tßж\u3042%', min_size=1, max_size=100).filter(lambda text: text.strip() != "")


def quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'


@st.composite
def written_strings(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> str:
    """A string as some tool may write it: on one line, or cut anywhere. polib cannot read two on one line."""
    pieces = draw(st.lists(texts, min_size=1, max_size=3))
    separator = draw(st.sampled_from(["\n", "\n  "]))
    return separator.join(map(quote, ["", *pieces] if draw(st.booleans()) else pieces))


@st.composite
def catalogues(draw: st.DrawFn) -> bytes:
    """Entries with comments, flags and contexts, some translated, in the order and manner of anybody."""
    entries = [
        'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: nplurals=2; plural=n>1;\\n"'
    ]
    for number in range(draw(st.integers(0, 5))):
        lines = draw(
            st.lists(st.sampled_from(["# by hand", "#. to you", "#: a.c:1", "#", '#| msgid "old"']), max_size=3)
        )
        flags = draw(st.sampled_from(["", "#, fuzzy", "#, fuzzy, c-format", "#, python-format, fuzzy", "#, no-wrap"]))
        lines += [flags] if flags else []
        lines += draw(st.sampled_from([[], ['msgctxt "one"'], ['msgctxt "two\\n"']]))
        lines.append(f"msgid {quote(str(number))}\n{draw(written_strings(WORDS))}")
        translation = st.one_of(st.just('""'), written_strings(TRANSLATION))
        if draw(st.booleans()):
            lines += [f"msgid_plural {draw(written_strings(WORDS))}", f"msgstr[0] {draw(translation)}"]
            lines.append(f"msgstr[1] {draw(translation)}")
        else:
            lines.append(f"msgstr {draw(translation)}")
        entries.append("\n".join(lines))
        if draw(st.booleans()):
            entries.append('#, fuzzy\n#~ msgid "gone"\n#~ msgstr ""')
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    end = draw(st.sampled_from(["", "\n", "\n\n"]))
    return ("\n\n".join(entries) + end).replace("\n", newline).encode()


@settings(max_examples=50)
@given(catalogues(), st.data())
def test_catalogue_keeps_what_was_not_translated(content: bytes, data: st.DataObject) -> None:
    options = Options(all=data.draw(st.booleans()), fuzzy=data.draw(st.booleans()))
    document = po.parse(content, options, "a.po")
    assert document.render([None] * len(document.segments)) == content

    old = [entry for entry in polib.pofile(content.decode()) if not entry.obsolete]
    wanted = [entry for entry in old if options.all or not entry.translated()]
    parts = [text for entry in wanted for text in (entry.msgid, entry.msgid_plural) if text.strip()]
    found = [segment.text for segment in document.segments]
    if any(entry.msgid_plural for entry in old):  # of a plural, one of the two may be all that is missing
        assert set(found) <= {text.strip() for text in parts}
    else:
        assert found == [text.strip() for text in parts]

    translations = [data.draw(st.one_of(st.none(), TRANSLATION)) for _ in document.segments]
    new = document.render([None if text is None else (text,) for text in translations])
    given_for = dict(zip(document.segments, translations, strict=True))
    reread = [entry for entry in polib.pofile(new.decode()) if not entry.obsolete]
    assert len(blocks(new)) == len(blocks(content))
    for before, after, block, new_block in zip(old, reread, live_blocks(content), live_blocks(new), strict=True):
        assert (before.msgctxt, before.msgid, before.msgid_plural) == (after.msgctxt, after.msgid, after.msgid_plural)
        assert (before.comment, before.tcomment, before.occurrences) == (
            after.comment,
            after.tcomment,
            after.occurrences,
        )
        if before.msgstr == after.msgstr and before.msgstr_plural == after.msgstr_plural and block == new_block:
            continue
        assert before in wanted
        assert after.fuzzy == options.fuzzy
        assert {*before.flags} - {"fuzzy"} == {*after.flags} - {"fuzzy"}
        assert after.translated() or options.fuzzy
        assert after.previous_msgid is None
        if not after.msgid_plural:
            text = next(text for segment, text in given_for.items() if segment.text == after.msgid.strip())
            assert text is not None
            assert after.msgstr.strip() == text.strip()
            assert after.msgstr.startswith("\n") == after.msgid.startswith("\n")
            assert after.msgstr.endswith("\n") == after.msgid.endswith("\n")


def live_blocks(content: bytes) -> list[bytes]:
    """The blocks of the entries that are not obsolete, without the header."""
    return [block for block in blocks(content)[1:] if b"#~" not in block and block.strip()]


@given(TRANSLATION)
def test_polib_reads_what_was_written(text: str) -> None:
    for content in (b'msgid "a"\nmsgstr ""', CATALOGUE_THAT_WRAPS):
        new = translate(content, Options(), lambda _: text)
        entry = polib.pofile(new.decode())[-1]
        assert entry.msgstr == text.strip()
        assert texts(new) == []


CATALOGUE_THAT_WRAPS = b"""msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"

msgid ""
"Some text that was wrapped "
"by gettext"
msgstr "x"

msgid "a"
msgstr ""
"""


def test_long_translation_is_wrapped_where_the_file_wraps() -> None:
    text = "word " * 40 + "\nend"
    wrapped = translate(CATALOGUE_THAT_WRAPS, Options(), lambda _: text)
    assert 70 < max(len(line) for line in wrapped.splitlines()) <= 79
    plain = translate(CATALOGUE_THAT_WRAPS.replace(b'wrapped "\n"', b""), Options(), lambda _: text)
    assert max(len(line) for line in plain.splitlines()) > 200
    assert polib.pofile(wrapped.decode())[-1].msgstr == polib.pofile(plain.decode())[-1].msgstr == text


def test_file_keeps_its_line_ends_charset_and_byte_order_mark() -> None:
    windows = CATALOGUE.replace(b"\n", b"\r\n")
    assert translate(windows, Options()) == translate(CATALOGUE, Options()).replace(b"\n", b"\r\n")
    marked = b"\xef\xbb\xbf" + CATALOGUE
    assert translate(marked, Options()) == b"\xef\xbb\xbf" + translate(CATALOGUE, Options())
    latin = CATALOGUE.decode().replace("UTF-8", "ISO-8859-1").encode("latin-1")
    new = translate(latin, Options(), lambda text: "Ä" + text)
    assert (
        new.decode("latin-1").replace("ISO-8859-1", "UTF-8")
        == translate(CATALOGUE, Options(), lambda text: "Ä" + text).decode()
    )
    without_end = CATALOGUE.removesuffix(b"\n")
    assert translate(without_end, Options()) == translate(CATALOGUE, Options()).removesuffix(b"\n")


def test_escapes_are_read_as_in_c() -> None:
    content = rb'msgid "\101\x42 \"q\" \\n \t\a\303\251"' + b'\nmsgstr ""\n'
    assert texts(content) == ['AB "q" \\n \t\aé']
    new = translate(b'msgid "a"\nmsgstr ""\n', Options(), lambda _: "x\x1b\x7fy\\")
    assert rb'msgstr "x\033\177y\\"' in new
    check_with_msgfmt(new)


def test_strings_on_one_line_are_joined() -> None:
    assert texts(b'msgid "a" "b"  \n "c"\nmsgstr "" ""\n') == ["abc"]


@pytest.mark.parametrize(
    ("source", "seen", "translation", "written"),
    [
        ("&File", "File", "Datei", "&Datei"),
        ("_Save", "Save", "Speichern", "_Speichern"),
        ("Save &As...", "Save As...", "Speichern unter...", "&Speichern unter..."),
        ("E&xit", "Exit", "Beenden", "&Beenden"),
        ("Pre_ferences", "Preferences", "Einstellungen", "_Einstellungen"),
        ("&Open %s", "Open %s", "%s öffnen", "%s &öffnen"),
        ("&Open %(name)s", "Open %(name)s", "%(name)s öffnen", "%(name)s &öffnen"),
        ("&Open {name}", "Open {name}", "{name} öffnen", "{name} &öffnen"),
        # none of these is the mark of an access key
        ("R&D", "R&D", "F&E", "F&E"),
        ("Tea & coffee", "Tea & coffee", "Tee & Kaffee", "Tee & Kaffee"),
        ("Tea &amp; coffee", "Tea &amp; coffee", "Tee", "Tee"),
        ("file_name", "file_name", "dateiname", "dateiname"),
        ("&Save && &quit", "&Save && &quit", "Sichern", "Sichern"),
        ("_Open file_name", "_Open file_name", "Öffnen", "Öffnen"),
        ("See the _id of the table you made", "See the _id of the table you made", "Siehe", "Siehe"),
    ],
)
def test_access_keys_are_marked_in_the_translation(source: str, seen: str, translation: str, written: str) -> None:
    content = f'msgid "{source}"\nmsgstr ""\n'.encode()
    document = po.parse(content, Options())
    assert [segment.text for segment in document.segments] == [seen]
    rendered = document.render([(translation,)]).decode()
    assert f'msgid "{source}"\nmsgstr "{written}"\n' in rendered


def test_previous_messages_of_what_was_translated_are_removed() -> None:
    """The new translation is not of the old message, so a reviewer has nothing to compare, as after msgattrib."""
    for options in (Options(), Options(fuzzy=True)):
        assert b"#| msgid" not in translate(CATALOGUE, options)
        document = po.parse(CATALOGUE, options)
        assert b"#| msgid" in document.render([None] * len(document.segments))


def test_newlines_at_both_ends_are_those_of_the_source() -> None:
    content = b'msgid "\\n  Hello \\n\\n"\nmsgstr ""\n'
    assert texts(content) == ["Hello"]
    new = translate(content, Options(), lambda text: f" {text}\n")
    assert polib.pofile(new.decode())[0].msgstr == "\n  Hello \n\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'msgid "a"\nmsgstr ""\n\nmsgid "a"\nmsgstr ""\n',
            "4: the message of line 1 again; remove one, or use msguniq",
        ),
        (b'msgid "a"\n\nmsgid "b"\nmsgstr ""\n', "1: msgid is not followed by msgstr; add it"),
        (b'msgctxt "a"\n', "1: msgctxt is not followed by msgid; add it"),
        (b'msgid "a"\nmsgid_plural "b"\n', "2: msgid_plural is not followed by msgstr[0]; add it"),
        (b'msgstr "a"\n', "1: msgstr is out of place; expected msgid"),
        (b'msgid "a"\nmsgstr[0] "b"\n', "2: msgstr[0] is out of place; expected msgstr"),
        (b'msgid "a"\nmsgid_plural "b"\nmsgstr[1] "b"\n', "3: msgstr[1] is out of place; expected msgstr[0]"),
        (b'msgid "a"\nmsgstr "b"\nmsgstr[0] "b"\n', "3: msgstr[0] is out of place; its entry has no msgid_plural"),
        (b'msgid "a"\nmsgstr "b"\nmsgstr "b"\n', "3: a second msgstr in one entry; remove it"),
        (b'msgid\nmsgstr "b"\n', '1: msgid has no text; write "" for an empty one'),
        (b'"a"\n', "1: a text before the first msgid; remove it"),
        (b'msgid "a"\nmsgstr "b\n', "2: neither a comment, a keyword nor a quoted text; fix the line"),
        (b"PK\x03\x04\n", "1: neither a comment, a keyword nor a quoted text; fix the line"),
        (b'msgidx "a"\n', "1: neither a comment, a keyword nor a quoted text; fix the line"),
        (b'msgid "a\\d"\nmsgstr ""\n', "1: unknown escape \\d; write a backslash as two"),
        (b'msgid "a"\nmsgstr "\xff"\n', "2: invalid utf-8 at byte 9; fix the line or the charset of the header"),
        (
            b'msgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\n',
            "1: a message with a plural, but the target language is missing; add Plural-Forms to the header",
        ),
    ],
)
def test_invalid_file_is_refused_with_its_line(content: bytes, message: str) -> None:
    with pytest.raises(DataError) as caught:
        po.parse(content, Options(), "a.po")
    assert str(caught.value) == f"a.po:{message}"


@pytest.mark.parametrize(
    "charset", ["klingon", "utf-16", "utf-7", "unicode_escape", "rot13", "idna", "punycode", "a\0b"]
)
def test_charset_that_does_not_extend_ascii_is_refused(charset: str) -> None:
    with pytest.raises(DataError, match=r"^a\.po: its charset .* is not supported; convert the file to UTF-8$"):
        po.parse(CATALOGUE.replace(b"UTF-8", charset.encode()), Options(), "a.po")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("2", "Plural-Forms is '2'; write it as nplurals=2; plural=(n != 1);"),
        ("nplurals=99999999999; plural=0;", "nplurals=99999999999 must be from 1 to 100; fix Plural-Forms"),
        ("nplurals=0; plural=0;", "nplurals=0 must be from 1 to 100; fix Plural-Forms"),
        ("nplurals=2; plural=n;", "invalid rule of plurals 'n' (gives form 2 for 2, of 2); fix Plural-Forms"),
    ],
)
def test_invalid_plural_forms_are_refused(rule: str, message: str) -> None:
    content = CATALOGUE.replace(b"nplurals=2; plural=(n != 1);", rule.encode())
    with pytest.raises(DataError) as caught:
        po.parse(content, Options(), "a.po")
    assert str(caught.value) == f"a.po:3: {message}"


@pytest.mark.parametrize("rule", ["1/n", "__import__('os')", "n ? 1", "(" * 200 + "n" + ")" * 200, "n n"])
def test_rule_that_cannot_be_evaluated_is_refused(rule: str) -> None:
    content = CATALOGUE.replace(b"(n != 1)", rule.encode())
    with pytest.raises(DataError, match=r"^a\.po:3: invalid rule of plurals [^\n]*; fix Plural-Forms$"):
        po.parse(content, Options(), "a.po")


def test_languages_are_checked() -> None:
    with pytest.raises(DataError) as caught:
        po.parse(CATALOGUE, Options(target_language="fr"), "a.po")
    assert str(caught.value) == "a.po:3: Language is de, not fr; change the file or the language"
    with pytest.raises(DataError) as caught:
        po.parse(TEMPLATE, Options(target_language="tlh"), "a.po")
    assert str(caught.value) == (
        "a.po:24: a message with a plural, but the plural rule of 'tlh' is not known; add Plural-Forms to the header"
    )
    with pytest.raises(ConfigError) as wrong:
        po.parse(TEMPLATE, Options(target_language='de"\n'), "a.po")
    assert str(wrong.value) == "target language 'de\"\\n' is not a language tag; use one such as de or pt-BR"


def test_character_outside_the_charset_is_refused() -> None:
    latin = CATALOGUE.decode().replace("UTF-8", "ISO-8859-1").encode("latin-1")
    with pytest.raises(DataError) as caught:
        translate(latin, Options(), lambda text: "あ")
    assert str(caught.value) == (
        "a.po:27: ISO-8859-1 has no character '\\u3042' of the translation; convert the file to UTF-8"
    )


def test_contexts_have_messages_of_their_own() -> None:
    entries = [context + b'msgid "a"\nmsgstr ""\n' for context in (b"", b'msgctxt ""\n', b'msgctxt "b"\n')]
    assert texts(b"".join(entries)) == ["a", "a", "a"]
    with pytest.raises(DataError, match=r"^a\.po:7: the message of line 4 again; remove one, or use msguniq$"):
        po.parse(b"".join([*entries[:2], entries[1]]), Options(), "a.po")


def test_domains_have_messages_of_their_own() -> None:
    content = b'msgid "a"\nmsgstr ""\ndomain "other"\nmsgid "a"\nmsgstr ""\n'
    assert texts(content) == ["a", "a"]
    new = translate(content, Options())
    assert new.endswith(content.replace(b'msgstr ""', b'msgstr "A"'))
