"""HTML: what is a segment, what keeps its bytes, how translations are escaped, and that no page is too broken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.documents import html
from dragoman.documents.document import Document, Kept, Mark, Options, Parts
from dragoman.documents.spans import SpanDocument
from dragoman.errors import DataError
from tests.translated import OPTIONS, check_round_trip, parts_of, texts, translate, translated

PAGE = """<!DOCTYPE html>
<!--[if IE]><p>Old</p><![endif]-->
<HTML class=a lang='en' >
<head><meta charset="utf-8"><title>Tea &amp; coffee</title>
<meta content="All about tea" name=description><style>p { content: "x" }</style></head>
<body onload="go('a > b')">
<!-- a <b>comment</b> -->
<h1>Tea</h1><P CLASS=x>Green <B>tea</b>,<br/>
   black&nbsp;tea &hellip; and <a href="/?a=1&b=2" title="More &quot;tea&quot;">m&#228;te</a>.
<p>Press <kbd>Ctrl</kbd> or run <code>a &lt; b</code> in <span class="brand notranslate">Teapot</span>
<p translate=no>Not this <b>one</b><ul><li>One<li>Two</ul>
<pre>  left   alone</pre><script>if (a < b) document.write("<p>no</p>")</script>
<img src=cup.png alt=Cup><input placeholder='Your name'> <button aria-label="Close it">X</button>
<table><tr><td>Cell<td> 1,000 <td>&nbsp;</table>
<svg><title>Picture</title><text>In it</text></svg><textarea>Typed</textarea>
</BODY></html>
"""


def parse(source: str, options: Options = OPTIONS) -> Document:
    return html.parse(source.encode(), options)


def test_a_page_is_cut_into_segments() -> None:
    document = parse(PAGE)
    check_round_trip(document, PAGE.encode())
    assert parts_of(document) == [
        ("Tea & coffee",),
        ("All about tea",),
        ("Tea",),
        (
            "Green ", Mark(1, "open"), "tea", Mark(1, "close"), ",", Mark(2, "single"), "\n black\xa0tea … and ",
            Mark(3, "open"), "mäte", Mark(3, "close"), ".",
        ),
        ('More "tea"',),
        ("Press ", Kept(1, "Ctrl"), " or run ", Kept(2, "a < b"), " in ", Kept(3, "Teapot")),
        ("One",),
        ("Two",),
        ("Cup",),
        ("Your name",),
        ("Close it",),
        ("X",),
        ("Cell",),
    ]  # fmt: skip
    assert [segment.place for segment in document.segments][:5] == [
        "line 4",
        "line 5, content",
        "line 8",
        "line 8",
        "line 9, title",
    ]


def test_only_text_changes() -> None:
    changed = translated(parse(PAGE), lambda text: f"«{text}»")
    expected = PAGE
    for old, new in [
        ("Tea &amp; coffee<", "«Tea &amp; coffee»<"),
        ('"All about tea"', '"«All about tea»"'),
        ("<h1>Tea<", "<h1>«Tea»<"),
        (
            "Green <B>tea</b>,<br/>\n   black&nbsp;tea &hellip; and <a",
            "«Green» <B>«tea»</b>«,»<br/> «black&nbsp;tea … and» <a",
        ),
        ("More &quot;tea&quot;", "«More &quot;tea&quot;»"),
        ("m&#228;te</a>.", "«mäte</a>«.»".replace("mäte", "mäte»")),
        (
            "Press <kbd>Ctrl</kbd> or run <code>a &lt; b</code> in <",
            "«Press» <kbd>Ctrl</kbd> «or run» <code>a &lt; b</code> «in» <",
        ),
        ("<li>One<li>Two<", "<li>«One»<li>«Two»<"),
        ("alt=Cup", 'alt="«Cup»"'),
        ("'Your name'", "'«Your name»'"),
        ('"Close it">X<', '"«Close it»">«X»<'),
        ("<td>Cell<", "<td>«Cell»<"),
    ]:
        assert expected.count(old) == 1, old
        expected = expected.replace(old, new)
    assert changed == expected


def test_text_and_attributes_are_escaped() -> None:
    nasty = "<b> & \"x\" 'y' &lt; \xa0 </p>"
    document = parse("<p title='a' class=z>b</p><img alt=\"a\"><img alt=a>")
    rendered = document.render([(nasty,)] * 4).decode()
    text = "&lt;b&gt; &amp; \"x\" 'y' &amp;lt; &nbsp; &lt;/p&gt;"
    double, single = text.replace('"', "&quot;"), text.replace("'", "&#39;")
    assert rendered == f'<p title=\'{single}\' class=z>{text}</p><img alt="{double}"><img alt="{double}">'
    assert texts(parse(rendered)) == [nasty] * 4


def test_marks_may_be_reordered_and_keep_their_attributes() -> None:
    document = parse('<p><a href=1 title="T">one</a> and <b>two</b><br>x <code>k</code></p>')
    parts: Parts = (
        "zu ", Mark(2, "open"), "zwei", Mark(2, "close"), Kept(4, "k"), Mark(3, "single"), Mark(1, "open"), "eins",
        Mark(1, "close"),
    )  # fmt: skip
    expected = '<p>zu <b>zwei</b><code>k</code><br><a href=1 title="{}">eins</a></p>'
    assert document.render([parts, None]).decode() == expected.format("T")
    assert document.render([parts, ("Titel",)]).decode() == expected.format("Titel")
    # an attribute changes in a segment that does not
    assert b'<a href=1 title="Titel">one</a> and <b>' in document.render([None, ("Titel",)])


def test_the_language_of_the_page_is_the_target() -> None:
    page = "<html lang=en xml:lang='en'><p lang=fr>Bonjour"
    assert parse(page, Options(target_language="de")).render([None]).decode() == (
        '<html lang="de" xml:lang="de"><p lang=fr>Bonjour'
    )
    assert parse("<html><p>Hi", Options(target_language="de")).render([None]) == b"<html><p>Hi"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b, a<b and c", ["a < b, a"]),  # as in a browser: the tag never ends
        ("a <3 b </ c> d", ["a <3 b  d"]),
        ("<p>un<b>closed <i>x</b></i> y", ["unclosed x y"]),
        ("<title>no end <p>text", ["no end", "text"]),
        ("one<br><br>two<br> three", ["one", "two\n three"]),
        ("<a><div>block in inline</div></a>", ["block in inline"]),
        ("&lt;b&gt; &unknown; &amp", ["<b> &unknown; &"]),
        ("<p alt='unclosed>text", ["text"]),
        ("<!-- open <p>text", []),
        ("<!--> text <!---> more", ["text  more"]),
        ("x<script>a</script>y", ["xy"]),
        ("<code>unclosed <p>text", ["unclosed", "text"]),
        ("<span translate=no><div>a</div></span> b", ["b"]),
        ("<x-y>custom</x-y> element", ["custom element"]),
        ("1 2 | &nbsp; <b>3</b>", []),
        ("<input type=submit value=Send><input value=Kept>", ["Send"]),
        ("<option>One<option>Two", ["One", "Two"]),
        ("\0<p>a\0b", ["a\0b"]),
    ],
)
def test_pages_in_the_wild(source: str, expected: list[str]) -> None:
    document = parse(source)
    check_round_trip(document, source.encode())
    assert [" ".join(text.split(" ")) for text in texts(document)] == expected


def test_xhtml_closes_elements_and_has_cdata() -> None:
    source = (
        '<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title/>'
        '<script src="a"/></head><body><p>a <a id="x"/>b&#160;c <![CDATA[ d > e ]]> f</p></body></html>'
    )
    document = parse(source)
    check_round_trip(document, source.encode())
    assert parts_of(document) == [("a ", Mark(1, "single"), "b\xa0c ", Mark(2, "single"), " f")]
    assert "B&#160;C" in translated(document)
    # the same bytes without the declaration are HTML, where <title/> and <script/> are open
    plain = source.partition("?>")[2].encode()
    assert texts(html.parse(plain, OPTIONS)) == []
    assert len(texts(html.parse(plain, OPTIONS, xhtml=True))) == 1
    assert len(texts(html.parse(plain, OPTIONS, "chapter.xhtml"))) == 1


def test_a_fragment_has_slots_without_a_document() -> None:
    source = "end</b> of it <div>more</div>"
    slots = html.parse_fragment(source)
    assert [source[slot.start : slot.end] for slot in slots] == ["end</b> of it", "more"]
    document = SpanDocument(source, slots, str.encode)
    assert document.render([None, ("mehr",)]) == b"end</b> of it <div>mehr</div>"


# Charsets


@pytest.mark.parametrize(
    ("declaration", "encoding"),
    [
        ('<meta charset="windows-1252">', "cp1252"),
        ("<meta charset=iso-8859-1>", "cp1252"),
        ('<META http-equiv="Content-Type" content="text/html; charset=koi8-r">', "koi8-r"),
        ('<?xml version="1.0" encoding="iso-8859-2"?>', "iso8859-2"),
        ("<meta charset=shift_jis>", "shift_jis"),
        ("<meta charset=utf-16>", "utf-8"),
        ("", "utf-8"),
    ],
)
def test_the_declared_charset_is_used(declaration: str, encoding: str) -> None:
    word = {"koi8-r": "чай", "shift_jis": "茶"}.get(encoding, "café")
    content = f"{declaration}<p>{word}".encode(encoding)
    document = html.parse(content, OPTIONS)
    check_round_trip(document, content)
    assert texts(document) == [word]
    # what the charset lacks is written as a reference
    expected = "&#1103;😀" if encoding not in ("utf-8", "koi8-r", "shift_jis") else "я😀"
    rendered = document.render([("я😀",)]).decode(encoding)
    assert rendered.endswith(expected if encoding == "utf-8" else expected.replace("😀", "&#128512;"))


def test_a_byte_order_mark_wins() -> None:
    content = "\ufeff<meta charset=latin1><p>café".encode("utf-16-be")
    document = html.parse(content, OPTIONS)
    check_round_trip(document, content)
    assert texts(document) == ["café"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"<p>caf\xe9", "invalid UTF-8 at byte 6; save it as UTF-8"),
        (b"<meta charset=rot13><p>a", "unknown charset rot13; save it as UTF-8 and declare that"),
        (b"<meta charset=klingon><p>a", "unknown charset klingon; save it as UTF-8 and declare that"),
        (
            b"<meta charset=iso-2022-jp><p>\x1b(Ba",
            "its iso-2022-jp has two spellings of a character; save it as UTF-8 and declare that",
        ),
    ],
)
def test_a_charset_that_cannot_be_kept_is_an_error(content: bytes, problem: str) -> None:
    with pytest.raises(DataError) as error:
        html.parse(content, OPTIONS, "a.html")
    assert str(error.value) == f"a.html: {problem}"


# Any page


SOUP = [
    "<p>", "</p>", "<b>", "</b>", "<i", ">", "<a title='x y'>", "</a>", "<br>", "<br/>", "<code>", "</code>", "<div>",
    "<span translate=no>", "</span>", "<pre>", "</pre>", "<script>", "</script>", "<title>", "</title>", "<!--", "-->",
    "<![CDATA[", "]]>", "<?", "&amp;", "&nbsp;", "&", "&#228;", "<", "text", "Two words", "é", " ", "\n", "'", '"', "=",
    "/", "!", "<img alt=cup>", "<td>", "<svg>", "</svg>", "<option>", "<P TRANSLATE=no>", "\0", "<plaintext>", "</",
]  # fmt: skip


@given(st.lists(st.sampled_from(SOUP), max_size=14), st.booleans())
def test_any_page_survives_and_takes_translations(pieces: list[str], xhtml: bool) -> None:
    content = "".join(pieces).encode()
    document = html.parse(content, OPTIONS, xhtml=xhtml)
    check_round_trip(document, content)
    translations = [translate(segment.parts, lambda text: f"Q<{len(text)}&amp;'\"") for segment in document.segments]
    rendered = document.render(translations)
    assert parts_of(html.parse(rendered, OPTIONS, xhtml=xhtml)) == translations


HOSTILE = [
    "<b>a", "<b>a</i>", "<code>a", "<pre>a", "<title>a", "<p translate=no>a", "<!--", "<a b='", "a&nbsp;", "a<br> ",
    "<", "<script>", "</b", "a&", "<![CDATA[", "&nbsp;",
]  # fmt: skip


@pytest.mark.parametrize("count", [2_000, pytest.param(50_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_pages_take_linear_time(unit: str, count: int) -> None:
    content = (unit * count).encode()  # at the larger count quadratic time would be many minutes
    check_round_trip(html.parse(content, OPTIONS), content)
