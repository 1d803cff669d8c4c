"""Office documents: written and read again with the libraries of their formats, with all but the words the same."""

import functools
import io
import random
import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import docx as word
import odf.opendocument
import odf.style
import odf.text
import pptx as powerpoint
import pytest
from docx.opc.constants import RELATIONSHIP_TYPE
from docx.oxml import parse_xml as parse_word_xml
from docx.shared import Pt, RGBColor
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree
from odf import teletype
from pptx.util import Inches

from dragoman.documents import docx, odt, package, pptx
from dragoman.documents.document import Document, Kept, Mark, Options, Parts
from dragoman.errors import DataError
from tests.fake_translator import shout, shuffle

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
A = "http://schemas.openxmlformats.org/drawingml/2006/main"
TEXT = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"


def saved(document: Any) -> bytes:
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def member(content: bytes, name: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.read(name)


def with_members(content: bytes, members: Mapping[str, bytes]) -> bytes:
    """The archive with some members replaced or added, as a program would save it."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            if info.filename not in members:
                new.writestr(info, old.read(info))
        for name, part in members.items():
            new.writestr(name, part)
    return file.getvalue()


def translated(document: Document, translate: Callable[[Parts], Parts]) -> bytes:
    return document.render([translate(segment.parts) for segment in document.segments])


def opened(number: int, *inside: str | Mark | Kept) -> Parts:
    return (Mark(number, "open"), *inside, Mark(number, "close"))


def single(number: int) -> Mark:
    return Mark(number, "single")


def png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">L", len(data)) + kind + data + struct.pack(">L", zlib.crc32(kind + data))

    header = struct.pack(">2L5B", 1, 1, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")


# Word: documents of python-docx


def word_document() -> Any:
    document = word.Document()
    document.add_heading("A short report", 1)
    paragraph: Any = document.add_paragraph("Most of this is plain, ", style="List Bullet")
    paragraph.add_run("some is bold").bold = True
    paragraph.add_run(", and ")
    run = paragraph.add_run("a little")
    run.italic, run.font.size, run.font.color.rgb = True, Pt(14), RGBColor(200, 0, 0)
    paragraph.add_run(" is red.\tAfter a tab\nand a break.")
    link = paragraph.part.relate_to("https://example.org/", RELATIONSHIP_TYPE.HYPERLINK, True)
    paragraph._p.append(
        parse_word_xml(
            f'<w:hyperlink xmlns:w="{W}" xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships" '
            f'r:id="{link}"><w:r><w:rPr><w:u w:val="single"/></w:rPr><w:t xml:space="preserve"> Read more</w:t></w:r>'
            "</w:hyperlink>"
        )
    )
    paragraph.add_run().add_picture(io.BytesIO(png()))
    paragraph.add_run(" The end.")
    table = document.add_table(2, 2)
    for number, cell in enumerate(cell for row in table.rows for cell in row.cells):
        cell.text = f"Cell {'abcd'[number]}"
    table.cell(1, 1).add_table(1, 1).cell(0, 0).text = "A table in a table"
    document.add_paragraph("2024")
    document.add_comment(document.paragraphs[1].runs[:1], "Is this so?", "A reader")
    document.sections[0].header.paragraphs[0].text = "The header"
    document.sections[0].footer.paragraphs[0].add_run("The footer").bold = True
    return document


@functools.cache
def word_content() -> bytes:
    return saved(word_document())


def words(text: str) -> Counter[str]:
    return Counter("".join(text.upper().split()))


def formatting(run: Any) -> tuple[object, ...]:
    return run.bold, run.italic, run.underline, run.font.size, run.font.color.rgb, run.style.name


def blocks(document: Any) -> list[Any]:
    """Every paragraph of a Word document, wherever it is."""

    def cells(table: Any) -> Iterator[Any]:
        for cell in (cell for row in table.rows for cell in row.cells):
            yield from cell.paragraphs
            for inner in cell.tables:
                yield from cells(inner)

    section = document.sections[0]
    tables = [paragraph for table in document.tables for paragraph in cells(table)]
    notes = [paragraph for comment in document.comments for paragraph in comment.paragraphs]
    return [*document.paragraphs, *tables, *section.header.paragraphs, *section.footer.paragraphs, *notes]


def test_word_document_is_read_in_order() -> None:
    segments = docx.parse(word_content(), Options(), "report.docx").segments
    assert [(segment.text, segment.place) for segment in segments] == [
        ("A short report", "paragraph 1"),
        (
            "Most of this is plain, some is bold, and a little is red. After a tab\nand a break. Read more The end.",
            "paragraph 2",
        ),
        ("Cell a", "paragraph 3"),
        ("Cell b", "paragraph 4"),
        ("Cell c", "paragraph 5"),
        ("Cell d", "paragraph 6"),
        ("A table in a table", "paragraph 7"),
        ("The header", "header1, paragraph 1"),
        ("The footer", "footer1, paragraph 1"),
        ("Is this so?", "comments, paragraph 1"),
    ]  # fmt: skip
    assert segments[1].parts == (
        "Most of this is plain, ", single(1), single(2), *opened(3, "some is bold"), ", and ", *opened(4, "a little"),
        " is red.", single(5), " After a tab", single(6), "\nand a break.", *opened(7, " Read more"), single(8),
        " The end.",
    )  # fmt: skip


def test_word_document_keeps_all_but_its_words() -> None:
    content = word_content()
    document = docx.parse(content, Options(), "report.docx")
    before = word.Document(io.BytesIO(content))
    after = word.Document(io.BytesIO(translated(document, shout)))
    assert len(blocks(before)) == len(blocks(after)) == 12
    for old, new in zip(blocks(before), blocks(after), strict=True):
        assert new.text == old.text.upper()
        assert new.style.name == old.style.name
        assert [(link.address, link.text) for link in new.hyperlinks] == [
            (link.address, link.text.upper()) for link in old.hyperlinks
        ]
        looks = [(run.text.upper(), formatting(run)) for run in old.runs if run.text]
        assert [(run.text, formatting(run)) for run in new.runs if run.text] == looks
    assert len(after.inline_shapes) == 1
    assert after.core_properties.author == before.core_properties.author


@pytest.mark.parametrize("seed", range(5))
def test_word_document_keeps_formatting_in_another_order(seed: int) -> None:
    content = word_content()
    document = docx.parse(content, Options(), "report.docx")
    after = word.Document(io.BytesIO(translated(document, lambda parts: shuffle(parts, seed))))
    old, new = word.Document(io.BytesIO(content)).paragraphs[1], after.paragraphs[1]
    assert words(new.text.replace("\t", "").replace("\n", "")) == words(old.text.replace("\t", "").replace("\n", ""))
    looks: dict[tuple[object, ...], str] = {}
    for run in new.runs:
        looks[formatting(run)] = looks.get(formatting(run), "") + run.text.replace("\t", "").replace("\n", "")
    assert looks[True, None, None, None, None, "Default Paragraph Font"] == "some is bold"[::-1]
    assert looks[None, True, None, Pt(14), RGBColor(200, 0, 0), "Default Paragraph Font"] == "a little"[::-1]
    assert [(link.address, link.text) for link in new.hyperlinks] == [("https://example.org/", " Read more"[::-1])]
    assert len(after.inline_shapes) == 1


# All formats: identity, and what surrounds the words


def presentation() -> Any:
    slides = powerpoint.Presentation()
    for number in (1, 2):
        slide = slides.slides.add_slide(slides.slide_layouts[1])
        slide.shapes.title.text = f"Title of slide {'ab'[number - 1]}"
        frame = slide.placeholders[1].text_frame
        frame.text = "The first point"
        paragraph = frame.add_paragraph()
        paragraph.level = 1
        for text, bold in (("Partly ", None), ("bold", True), (" and then", None), (" on", None)):
            run = paragraph.add_run()
            run.text, run.font.bold = text, bold
        paragraph.add_line_break()
        run = paragraph.add_run()
        run.text, run.hyperlink.address = "a link", "https://example.org/"
        table = slide.shapes.add_table(1, 2, Inches(1), Inches(4), Inches(4), Inches(1)).table
        table.cell(0, 0).text, table.cell(0, 1).text = "Left", "Right"
        slide.notes_slide.notes_text_frame.text = f"Say slowly {'ab'[number - 1]}"
    return slides


def open_document() -> Any:
    document = odf.opendocument.OpenDocumentText()
    bold = odf.style.Style(name="Strong", family="text")
    bold.addElement(odf.style.TextProperties(fontweight="bold"))
    typed = odf.style.Style(name="T1", family="text")  # what LibreOffice writes for text that was edited
    document.automaticstyles.addElement(bold)
    document.automaticstyles.addElement(typed)
    document.text.addElement(odf.text.H(outlinelevel=1, text="A heading"))
    paragraph = odf.text.P()
    paragraph.addText("Plain and ")
    paragraph.addElement(odf.text.Span(stylename=bold, text="bold"))
    paragraph.addElement(odf.text.Span(stylename=typed, text=" and edited"))
    paragraph.addText(", ")
    link = odf.text.A(href="https://example.org/", text="a link")
    paragraph.addElement(link)
    paragraph.addElement(odf.text.S(c=3))
    paragraph.addElement(odf.text.Tab())
    paragraph.addText("on page ")
    paragraph.addElement(odf.text.PageNumber(text="7"))
    note = odf.text.Note(id="n1", noteclass="footnote")
    note.addElement(odf.text.NoteCitation(text="1"))
    body = odf.text.NoteBody()
    body.addElement(odf.text.P(text="A note"))
    note.addElement(body)
    paragraph.addElement(note)
    paragraph.addElement(odf.text.LineBreak())
    paragraph.addText("the end.")
    document.text.addElement(paragraph)
    items = odf.text.List()
    items.addElement(odf.text.ListItem())
    items.firstChild.addElement(odf.text.P(text="An item"))
    document.text.addElement(items)
    layout = odf.style.PageLayout(name="page")
    document.automaticstyles.addElement(layout)
    page = odf.style.MasterPage(name="Standard", pagelayoutname=layout)
    page.addElement(odf.style.Header())
    page.firstChild.addElement(odf.text.P(text="The header"))
    document.masterstyles.addElement(page)
    return document


def saved_odt(document: Any) -> bytes:
    file = io.BytesIO()
    document.write(file)
    return file.getvalue()


def documents() -> list[tuple[ModuleType, bytes]]:
    return [(docx, word_content()), (pptx, saved(presentation())), (odt, saved_odt(open_document()))]


@pytest.fixture(scope="module")
def every() -> list[tuple[ModuleType, bytes]]:
    return documents()


def test_rendering_its_own_words_gives_the_same_file(every: list[tuple[ModuleType, bytes]]) -> None:
    for module, content in every:
        document = module.parse(content, Options())
        assert len(document.segments) > 4
        own = [segment.parts for segment in document.segments]
        assert document.render(own) == content
        assert document.render([None] * len(own)) == content
        pieces = [
            tuple(each for part in parts for each in ((part[:1], part[1:]) if isinstance(part, str) else (part,)))
            for parts in own
        ]
        assert document.render(pieces) == content  # the same words in more pieces
        assert document.render([shout(own[0]), *[None] * (len(own) - 1)]) != content
        with pytest.raises(ValueError, match=f"translations: 0 for {len(own)} segments; give one for each"):
            document.render([])


def skeleton(content: bytes) -> bytes:
    """A part without what is in its paragraphs, apart from their properties."""
    root = etree.fromstring(content)
    for tag in (f"{{{W}}}p", f"{{{A}}}p", f"{{{TEXT}}}p", f"{{{TEXT}}}h"):
        for paragraph in list(root.iter(tag)):
            paragraph.text = None
            for child in list(paragraph):
                if not str(child.tag).endswith(("}pPr", "}endParaRPr")):
                    paragraph.remove(child)
    return etree.tostring(root, method="c14n")


def contents(content: bytes) -> Counter[bytes]:
    """All elements of a part that have no text and no other elements in them, with their attributes."""
    root = etree.fromstring(content)
    return Counter(
        etree.tostring(each, method="c14n", exclusive=True)
        for each in root.iter("{*}*")
        if not len(each) and not each.text
    )


@pytest.mark.parametrize("seed", range(3))
def test_all_but_the_words_stays(every: list[tuple[ModuleType, bytes]], seed: int) -> None:
    for module, content in every:
        document = module.parse(content, Options())
        after = translated(document, lambda parts: shuffle(parts, seed))
        changed = 0
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
        with zipfile.ZipFile(io.BytesIO(after)) as archive:
            assert archive.namelist() == names
            assert archive.testzip() is None
        for name in names:
            old, new = member(content, name), member(after, name)
            if old != new:
                changed += 1
                assert skeleton(old) == skeleton(new)
                assert skeleton(old) != etree.tostring(etree.fromstring(old), method="c14n")
                before, now = contents(old), contents(new)
                # formatting may be said once or more often: runs are joined and split
                kept = {key for key in before | now if not re.search(rb":(rPr|b|i|u|sz|color|hlinkClick)[ >]", key)}
                assert {key: before[key] for key in kept} == {key: now[key] for key in kept}
                assert set(before) == set(now)
        assert changed >= 2


def test_segments_of_a_part_that_stay_leave_it_as_it_was(every: list[tuple[ModuleType, bytes]]) -> None:
    for module, content in every:
        document = module.parse(content, Options())
        own: list[Parts | None] = [None] * len(document.segments)
        own[0] = shout(document.segments[0].parts)
        after = document.render(own)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            differing = [name for name in archive.namelist() if member(content, name) != member(after, name)]
        assert len(differing) == 1


# Word: what python-docx cannot write


@functools.cache
def empty_word_file() -> bytes:
    return saved(word.Document())


def word_file(body: str, parts: Mapping[str, str] | None = None) -> bytes:
    """A document with this XML as its body."""
    content = empty_word_file()
    root = (
        f'<w:document xmlns:w="{W}" xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" '
        f'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"><w:body>{body}</w:body></w:document>'
    )
    types = member(content, "[Content_Types].xml").decode()
    members = {"word/document.xml": root.encode()}
    for name, part in (parts or {}).items():
        kind = f"application/vnd.openxmlformats-officedocument.wordprocessingml.{name}+xml"
        types = types.replace("</Types>", f'<Override PartName="/word/{name}.xml" ContentType="{kind}"/></Types>')
        members[f"word/{name}.xml"] = part.encode()
    return with_members(content, {"[Content_Types].xml": types.encode(), **members})


def run(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def char(kind: str) -> str:
    return f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>'


def field(code: str, result: str) -> str:
    return f"{char('begin')}<w:r><w:instrText>{code}</w:instrText></w:r>{char('separate')}{result}{char('end')}"


CASES: dict[str, tuple[str, Parts]] = {
    "runs that differ in spelling only": (
        run("One ", '<w:lang w:val="en-US"/>') + '<w:proofErr w:type="spellStart"/>' + run("wrod", "<w:noProof/>")
        + '<w:proofErr w:type="spellEnd"/><w:r w:rsidR="00AB12"><w:lastRenderedPageBreak/><w:t>.</w:t></w:r>',
        ("One wrod.",),
    ),
    "tab, break, symbol, position tab": (
        "<w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:br/><w:sym w:font='Wingdings' w:char='F04A'/><w:t>c</w:t><w:ptab/>"
        "<w:t>d</w:t></w:r>",
        ("a", single(1), " b", single(2), "\n", single(3), "c", single(4), " d"),
    ),
    "hyphens": (
        "<w:r><w:t>e</w:t><w:noBreakHyphen/><w:t>mail ad</w:t><w:softHyphen/><w:t>dress</w:t></w:r>",
        ("e\u2011mail address",),
    ),
    "hyperlink in one style": (
        run("See ") + f'<w:hyperlink w:anchor="x">{run("this", "<w:u/>")}{run(" page", "<w:u/>")}</w:hyperlink>'
        + run("."),
        ("See ", *opened(1, "this page"), "."),
    ),
    "field with a result": (
        run("On page ") + field(" PAGEREF x ", run("7")) + run(" below."),
        ("On page ", Kept(1, "7"), " below."),
    ),
    "field without a result": (
        run("An ") + f"{char('begin')}<w:r><w:instrText>XE entry</w:instrText></w:r>{char('end')}" + run("entry"),
        ("An ", single(1), "entry"),
    ),
    "field in a field": (
        run("If ") + field("IF " + "", run("a ") + field("PAGE", run("2")) + run(" b")) + run(" so"),
        ("If ", Kept(1, "a 2 b"), " so"),
    ),
    "hyperlink as a field": (
        run("See ") + field(' HYPERLINK "https://example.org/" ', run("this page", "<w:u/>")) + run("."),
        ("See ", *opened(1, "this page"), "."),
    ),
    "field that ends in another paragraph": (
        f"{char('begin')}<w:r><w:instrText>TOC</w:instrText></w:r>{char('separate')}" + run("Introduction"),
        ("Introduction",),
    ),
    "simple fields": (
        run("By ") + f'<w:fldSimple w:instr=" AUTHOR ">{run("Ada")}</w:fldSimple>' + run(" of ")
        + f'<w:fldSimple w:instr="HYPERLINK x">{run("here")}</w:fldSimple>' + run("."),
        ("By ", Kept(1, "Ada"), " of ", *opened(2, "here"), "."),
    ),
    "bookmark and comment": (
        run("a ") + '<w:bookmarkStart w:id="1" w:name="x"/>' + run("b ") + '<w:bookmarkEnd w:id="1"/>' + run("c"),
        ("a ", single(1), "b ", single(2), "c"),
    ),
    "tracked changes": (
        run("It is ") + '<w:del w:id="1"><w:r><w:delText>bad</w:delText></w:r></w:del><w:ins w:id="2">' + run("good")
        + "</w:ins>" + run(" now"),
        ("It is ", single(1), *opened(2, "good"), " now"),
    ),
    "content control": (
        run("Dear ") + f'<w:sdt><w:sdtPr><w:tag w:val="n"/></w:sdtPr><w:sdtContent>{run("name")}</w:sdtContent></w:sdt>'
        + run("!"),
        ("Dear ", *opened(1, "name"), "!"),
    ),
    "hidden text": (
        run("a ") + run("secret", "<w:vanish/>") + run("b", '<w:vanish w:val="0"/><w:b/>'),
        ("a ", single(1), *opened(2, "b")),
    ),
    "formula": (run("Let ") + "<m:oMath><m:r><m:t>x</m:t></m:r></m:oMath>" + run(" be"), ("Let ", single(1), " be")),
    "ruby": (
        run("a ") + f"<w:r><w:ruby><w:rt>{run('kan')}</w:rt><w:rubyBase>{run('漢')}</w:rubyBase></w:ruby></w:r>"
        + run(" b"),
        ("a ", Kept(1, "漢"), " b"),
    ),
    "spaces that Word does not show": ("<w:r><w:t> a </w:t></w:r>" + run(" b"), ("a b",)),
    "footnotes at the end and a picture at the start": (
        "<w:r><w:drawing/></w:r>" + run("a.")
        + '<w:r><w:rPr><w:vertAlign w:val="superscript"/></w:rPr><w:footnoteReference w:id="1"/></w:r>',
        ("a.",),
    ),
    "comment of XML": ("<!-- x -->" + run("a") + "<!-- y -->" + run("b"), ("a", single(1), "b")),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_content_of_a_word_paragraph(case: str) -> None:
    inside, parts = CASES[case]
    content = word_file(f"<w:p><w:pPr><w:keepNext/></w:pPr>{inside}</w:p>")
    document = docx.parse(content, Options())
    assert [segment.parts for segment in document.segments] == [parts]
    rendered = translated(document, shout)
    again = docx.parse(rendered, Options())
    assert [segment.parts for segment in again.segments] == [shout(parts)]
    paragraph = etree.fromstring(member(rendered, "word/document.xml"))[0][0]
    assert paragraph[0].tag == f"{{{W}}}pPr"
    unseen = re.compile(rb"proofErr|lastRenderedPageBreak|softHyphen|<w:(lang|noProof|t|rPr)[ >]")
    before, after = contents(member(content, "word/document.xml")), contents(member(rendered, "word/document.xml"))
    assert {key for key in before if not unseen.search(key)} == {key for key in after if not unseen.search(key)}
    word.Document(io.BytesIO(rendered))


def body(content: bytes) -> str:
    text = etree.tostring(
        etree.fromstring(member(content, "word/document.xml"))[0], method="c14n", exclusive=True
    ).decode()
    return re.sub(' xmlns(:[a-z]+)?="[^"]*"', "", text).removeprefix("<w:body>").removesuffix("</w:body>")


def test_runs_are_written_with_their_formatting() -> None:
    content = word_file("<w:p>" + run("Some ") + run("bo", "<w:b/>") + run("ld", "<w:b/>") + run(" words") + "</w:p>")
    document = docx.parse(content, Options())
    assert document.segments[0].parts == ("Some ", *opened(1, "bold"), " words")
    after = document.render([("Einige ", *opened(1, "fette"), " Wörter \x00\x0bund\nso")])
    assert body(after) == (
        '<w:p><w:r><w:rPr></w:rPr><w:t xml:space="preserve">Einige </w:t></w:r>'
        "<w:r><w:rPr><w:b></w:b></w:rPr><w:t>fette</w:t></w:r>"
        '<w:r><w:rPr></w:rPr><w:t xml:space="preserve"> Wörter und so</w:t></w:r></w:p>'
    )


def test_bookmark_never_ends_before_it_starts() -> None:
    inside = run("a ") + '<w:bookmarkStart w:id="1" w:name="x"/>' + run("b ") + '<w:bookmarkEnd w:id="1"/>' + run("c")
    document = docx.parse(word_file(f"<w:p>{inside}</w:p>"), Options())
    after = body(document.render([("B ", single(2), "A ", single(1), "C")]))
    assert re.findall("bookmark(?:Start|End) |[ABC]", after) == ["B", "bookmarkStart ", "A", "bookmarkEnd ", "C"]


def test_field_without_its_end_keeps_its_instruction_together() -> None:
    inside = run("See ") + f"{char('begin')}<w:r><w:instrText>TOC</w:instrText></w:r>{char('separate')}" + run("here")
    document = docx.parse(word_file(f"<w:p>{inside}</w:p><w:p>{run('more')}{char('end')}</w:p>"), Options())
    assert [segment.parts for segment in document.segments] == [("See ", single(1), "here"), ("more",)]
    after = body(document.render([("HERE", single(1), "SEE"), None]))
    assert re.findall("begin|TOC|separate|end|HERE|SEE|more", after) == [
        "HERE", "begin", "TOC", "separate", "SEE", "more", "end"
    ]  # fmt: skip


def test_text_boxes_notes_and_deleted_paragraphs() -> None:
    box = f"<w:txbxContent><w:p>{run('In a box')}</w:p></w:txbxContent>"
    choice = f"<mc:AlternateContent><mc:Choice>{box}</mc:Choice><mc:Fallback>{box}</mc:Fallback></mc:AlternateContent>"
    deleted = f'<w:del w:id="3"><w:r><w:drawing>{box}</w:drawing></w:r></w:del>'
    reference = '<w:r><w:footnoteReference w:id="2"/></w:r>'
    text = f"<w:p>{run('Before ')}<w:r>{choice}</w:r>{run('after')}{reference}{deleted}</w:p>"
    note = f'<w:footnote w:id="2"><w:p><w:r><w:footnoteRef/></w:r>{run(" A note")}</w:p></w:footnote>'
    note = f'<w:footnotes xmlns:w="{W}">{note}</w:footnotes>'
    content = word_file(text, {"footnotes": note})
    document = docx.parse(content, Options())
    assert [(segment.text, segment.place) for segment in document.segments] == [
        ("Before after", "paragraph 1"),
        ("In a box", "paragraph 2"),
        ("In a box", "paragraph 3"),  # the same box for older programs
        ("A note", "footnotes, paragraph 1"),
    ]
    after = translated(document, lambda parts: shuffle(shout(parts), 1))
    assert body(after).count("RETFA EROFEB") == 1
    assert body(after).count("XOB A NI") == 2
    assert body(after).count("In a box") == 1  # the deleted one
    assert b'<w:footnoteRef/><w:t xml:space="preserve"> ETON A</w:t>' in member(after, "word/footnotes.xml")


def test_strict_documents_and_other_names_of_the_main_part_are_read() -> None:
    content = word_file(f"<w:p>{run('Some words')}</w:p>")
    types = member(content, "[Content_Types].xml").replace(b"/word/document.xml", b"/word/document2.xml")
    strict = member(content, "word/document.xml").replace(
        W.encode(), b"http://purl.oclc.org/ooxml/wordprocessingml/main"
    )
    content = with_members(content, {"[Content_Types].xml": types, "word/document2.xml": strict})
    document = docx.parse(content, Options())
    assert [segment.text for segment in document.segments] == ["Some words"]
    after = member(translated(document, shout), "word/document2.xml")
    assert b"SOME WORDS" in after
    assert W.encode() not in after


def test_main_part_may_have_its_type_by_default() -> None:
    content = word_file(f"<w:p>{run('Some words')}</w:p>")
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    types = re.sub(rb"<Override [^>]*/>|<Default [^>]*/>", b"", member(content, "[Content_Types].xml"))
    types = types.replace(b"</Types>", f'<Default Extension="XML" ContentType="{kind}"/></Types>'.encode())
    document = docx.parse(with_members(content, {"[Content_Types].xml": types}), Options())
    assert [segment.text for segment in document.segments] == ["Some words"]


pieces = st.sampled_from([
    run("some "), run("words"), run("bold", "<w:b/>"), run(" ", "<w:b/>"), run("big", '<w:sz w:val="40"/>'),
    "<w:r><w:tab/></w:r>", '<w:bookmarkStart w:id="1" w:name="x"/>', "<w:r><w:t>a</w:t><w:br/><w:t>b</w:t></w:r>",
    field("PAGE", run("3")), field("HYPERLINK x", run("link", "<w:u/>")), char("begin"), char("end"), char("separate"),
    '<w:del w:id="9"><w:r><w:delText>gone</w:delText></w:r></w:del>', "<w:proofErr/>",
])  # fmt: skip
inline = st.recursive(
    st.lists(pieces, max_size=4).map("".join),
    lambda inner: st.lists(
        st.builds("<w:{0}>{1}</w:{0}>".format, st.sampled_from(["hyperlink", "ins", "smartTag"]), inner) | pieces,
        max_size=4,
    ).map("".join),
    max_leaves=6,
)


@settings(max_examples=60)
@given(st.lists(inline, min_size=1, max_size=3), st.integers(0, 99))
def test_any_word_paragraph_survives_any_order(insides: list[str], seed: int) -> None:
    xml = f'<w:body xmlns:w="{W}">' + "".join(f"<w:p>{inside}</w:p>" for inside in insides) + "</w:body>"
    part = package.XmlPart(xml.encode(), "part", docx._Word)
    parts = [segment.parts for segment in part.segments]
    assert part.render(parts) == xml.encode()
    after = part.render([shuffle(each, seed) for each in parts])
    ignored = re.compile(rb"<w:(t|b|sz|u|rPr|proofErr)[ >]")
    old, new = contents(xml.encode()), contents(after)
    for key in old | new:
        assert ignored.search(key) or old[key] == new[key]
    texts = ["".join(etree.fromstring(each).itertext()) for each in (xml.encode(), after)]
    assert words(texts[0]) == words(texts[1])
    again = package.XmlPart(after, "part", docx._Word)
    assert len(again.segments) == len(parts)
    assert again.render([segment.parts for segment in again.segments]) == after


# PowerPoint


def test_presentation_is_read_in_order() -> None:
    slides = presentation()
    ids = slides.slides._sldIdLst
    ids.insert(0, ids[1])  # the second slide comes first
    segments = pptx.parse(saved(slides), Options(), "talk.pptx").segments
    found = [(segment.text, segment.place) for segment in segments]
    assert found[:7] == [
        ("Title of slide b", "slide 1, paragraph 1"),
        ("The first point", "slide 1, paragraph 2"),
        ("Partly bold and then on\na link", "slide 1, paragraph 3"),
        ("Left", "slide 1, paragraph 4"),
        ("Right", "slide 1, paragraph 5"),
        ("Say slowly b", "notes of slide 1, paragraph 1"),
        ("Title of slide a", "slide 2, paragraph 1"),
    ]  # fmt: skip
    assert segments[2].parts == ("Partly ", *opened(1, "bold"), " and then on", single(2), "\n", *opened(3, "a link"))


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_presentation_keeps_all_but_its_words(seed: int | None) -> None:
    content = saved(presentation())
    document = pptx.parse(content, Options())
    after = translated(document, shout if seed is None else lambda parts: shuffle(shout(parts), seed))
    slides = powerpoint.Presentation(io.BytesIO(after)).slides
    assert [words(slide.notes_slide.notes_text_frame.text) for slide in slides] == [
        words("SAY SLOWLY A"),
        words("SAY SLOWLY B"),
    ]
    for slide in slides:
        frame = slide.placeholders[1].text_frame
        table = next(shape.table for shape in slide.shapes if shape.has_table)
        assert [words(cell.text) for cell in table.rows[0].cells] == [words("LEFT"), words("RIGHT")]
        assert [paragraph.level for paragraph in frame.paragraphs] == [0, 1]
        looks = {(run.font.bold, run.hyperlink.address): words(run.text) for run in frame.paragraphs[1].runs}
        assert looks[True, None] == words("BOLD")
        assert looks[None, "https://example.org/"] == words("A LINK")
        assert frame.paragraphs[1].text.count("\v") == 1


def test_fields_and_end_of_a_powerpoint_paragraph() -> None:
    xml = (
        f'<p:txBody xmlns:p="p" xmlns:a="{A}"><a:p><a:pPr lvl="1"/>'
        '<a:r><a:rPr lang="en-US" dirty="0"/><a:t>Slide </a:t></a:r>'
        '<a:fld id="{1}" type="slidenum"><a:rPr/><a:t>4</a:t></a:fld><a:r><a:rPr lang="en-GB"/><a:t> of</a:t></a:r>'
        '<a:r><a:t> it</a:t></a:r><a:br><a:rPr b="1"/></a:br><a:endParaRPr lang="en-US"/></a:p></p:txBody>'
    )
    part = package.XmlPart(xml.encode(), "slide", pptx._PowerPoint)
    assert [segment.parts for segment in part.segments] == [("Slide ", Kept(1, "4"), " of it")]
    after = etree.fromstring(part.render([(Kept(1, "4"), ". Folie")]))
    assert [etree.QName(child).localname for child in after[0]] == ["pPr", "fld", "r", "br", "endParaRPr"]
    assert "".join(after.itertext()) == "4. Folie"


def test_tab_of_a_powerpoint_run_is_a_mark() -> None:
    xml = f'<p:txBody xmlns:p="p" xmlns:a="{A}"><a:p><a:r><a:t>\tLeft\tright</a:t></a:r></a:p></p:txBody>'
    part = package.XmlPart(xml.encode(), "slide", pptx._PowerPoint)
    assert part.segments[0].parts == ("Left", single(1), " right")
    assert b"<a:p><a:r><a:t>\tRIGHT\tLEFT</a:t></a:r></a:p>" in part.render([("RIGHT ", single(1), " LEFT")])


def test_diagrams_of_a_slide_are_read() -> None:
    content = saved(presentation())
    rels = "ppt/slides/_rels/slide1.xml.rels"
    diagram = (
        f'<d:dataModel xmlns:d="d" xmlns:a="{A}"><d:t><a:p><a:r><a:t>In a diagram</a:t></a:r></a:p></d:t></d:dataModel>'
    )
    related = b'<Relationship Id="rIdD" Type="http://x/relationships/diagramData" Target="../diagrams/data1.xml"/>'
    changed = member(content, rels).replace(b"</Relationships>", related + b"</Relationships>")
    content = with_members(content, {rels: changed, "ppt/diagrams/data1.xml": diagram.encode()})
    places = {segment.text: segment.place for segment in pptx.parse(content, Options()).segments}
    assert places["In a diagram"] == "diagram of slide 1, paragraph 1"


# OpenDocument


def test_open_document_is_read_in_order() -> None:
    segments = odt.parse(saved_odt(open_document()), Options(), "text.odt").segments
    assert [(segment.text, segment.place) for segment in segments] == [
        ("A heading", "paragraph 1"),
        ("Plain and bold and edited, a link on page 7\nthe end.", "paragraph 2"),
        ("A note", "paragraph 3"),
        ("An item", "paragraph 4"),
        ("The header", "header or footer, paragraph 1"),
    ]
    assert segments[1].parts == (
        "Plain and ", *opened(1, "bold"), " and edited, ", *opened(2, "a link"), single(3), " ", single(4),
        "on page ", Kept(5, "7"), single(6), single(7), "\nthe end.",
    )  # fmt: skip


def plain_text(element: Any) -> str:
    return str(teletype.extractText(element))


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_open_document_keeps_all_but_its_words(seed: int | None) -> None:
    content = saved_odt(open_document())
    document = odt.parse(content, Options())
    after = translated(document, shout if seed is None else lambda parts: shuffle(shout(parts), seed))
    assert after[30:38] == b"mimetype"
    opened_again = odf.opendocument.load(io.BytesIO(after))
    body = opened_again.text
    [heading] = body.getElementsByType(odf.text.H)
    assert words(plain_text(heading)) == words("A HEADING")
    bold = [span for span in body.getElementsByType(odf.text.Span) if span.getAttribute("stylename") == "Strong"]
    assert [words(plain_text(span)) for span in bold] == [words("BOLD")]
    [link] = body.getElementsByType(odf.text.A)
    assert (link.getAttribute("href"), words(plain_text(link))) == ("https://example.org/", words("A LINK"))
    [note] = body.getElementsByType(odf.text.NoteBody)
    assert words(plain_text(note)) == words("A NOTE")
    for kind in (odf.text.S, odf.text.Tab, odf.text.LineBreak, odf.text.PageNumber, odf.text.NoteCitation):
        assert len(body.getElementsByType(kind)) == 1
    [page] = opened_again.masterstyles.getElementsByType(odf.style.MasterPage)
    assert words(plain_text(page)) == words("THE HEADER")


def open_part(inside: str) -> package.XmlPart:
    styles = (
        '<style:style style:name="T1" style:family="text"><style:text-properties o:rsid="00ab"/></style:style>'
        '<style:style style:name="B" style:family="text"><style:text-properties fo:font-weight="bold"/></style:style>'
    )
    xml = (
        f'<office:document-content xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" xmlns:text="{TEXT}" '
        'xmlns:style="urn:oasis:names:tc:opendocument:xmlns:style:1.0" xmlns:draw="draw" xmlns:fo="fo" '
        f'xmlns:o="http://openoffice.org/2009/office">{styles}<office:body>{inside}</office:body></office:document-content>'
    )
    return package.XmlPart(xml.encode(), "content.xml", odt._OpenDocument)


def span(style: str, inside: str) -> str:
    return f'<text:span text:style-name="{style}">{inside}</text:span>'


OPEN_CASES: dict[str, tuple[str, list[Parts]]] = {
    "spans of one style": (span("B", "bo") + span("B", "ld") + " and plain", [(*opened(1, "bold"), " and plain")]),
    "edited text": (
        "a " + span("T1", "b" + span("B", "c") + span("T1", "d")) + " e",
        [("a b", *opened(1, "c"), "d e")],
    ),
    "span in a span": (
        "a long text " + span("B", "b " + span("X", "c") + " d"),
        [("a long text ", *opened(1, "b ", *opened(2, "c"), " d"))],
    ),
    "link in a span": ("a " + span("B", "<text:a>b</text:a>"), [("a ", *opened(1, *opened(2, "b")))]),
    "white space": ("\n   a\n   b ", [("a b",)]),
    "bookmarks": (
        'a <text:bookmark-start text:name="x"/>b<text:bookmark-end text:name="x"/> c',
        [("a ", single(1), "b", single(2), " c")],
    ),
    "frame": (
        "a<draw:frame><draw:text-box><text:p>in it</text:p></draw:text-box></draw:frame> b",
        [("a", single(1), " b"), ("in it",)],
    ),
    "ruby": (
        "a <text:ruby><text:ruby-base>漢</text:ruby-base><text:ruby-text>kan</text:ruby-text></text:ruby> b",
        [("a ", Kept(1, "漢"), " b")],
    ),
    "page break that a program drew": ("a<text:soft-page-break/>b", [("ab",)]),
}  # fmt: skip


@pytest.mark.parametrize("case", OPEN_CASES)
def test_content_of_an_open_document_paragraph(case: str) -> None:
    inside, expected = OPEN_CASES[case]
    part = open_part(f"<text:p>{inside}</text:p>")
    assert [segment.parts for segment in part.segments] == expected
    again = package.XmlPart(part.render([shout(parts) for parts in expected]), "content.xml", odt._OpenDocument)
    assert [segment.parts for segment in again.segments] == [shout(parts) for parts in expected]


def test_deleted_text_of_an_open_document_stays() -> None:
    deleted = "<text:changed-region><text:deletion><text:p>gone</text:p></text:deletion></text:changed-region>"
    part = open_part(f"<text:tracked-changes>{deleted}</text:tracked-changes><text:p>here</text:p>")
    assert [segment.text for segment in part.segments] == ["here"]
    assert b"gone" in part.render([("HERE",)])


def test_spaces_in_a_row_are_written_as_elements() -> None:
    part = open_part("<text:p>a <text:s/>b</text:p>")
    assert part.segments[0].parts == ("a ", single(1), "b")
    after = part.render([("A  B   C", single(1))])
    assert b'<text:p>A <text:s/>B <text:s text:c="2"/>C<text:s/></text:p>' in after


def test_start_and_end_of_a_bookmark_are_swapped_in_an_open_document() -> None:
    part = open_part('<text:p>a <text:bookmark-start text:name="x"/>b<text:bookmark-end text:name="x"/> c</text:p>')
    after = part.render([("B ", single(2), "A ", single(1), "C")])
    assert b'B <text:bookmark-start text:name="x"/>A <text:bookmark-end text:name="x"/>C' in after


# Traps in parts


def replaced(module: ModuleType, content: bytes, part: bytes) -> bytes:
    name = {docx: "word/document.xml", pptx: "ppt/slides/slide1.xml", odt: "content.xml"}[module]
    return with_members(content, {name: part})


def refusal(module: ModuleType, content: bytes) -> str:
    with pytest.raises(DataError) as caught:
        module.parse(content, Options(), "a.file")
    assert str(caught.value).isprintable()
    return str(caught.value)


BILLION = "".join(f'<!ENTITY e{number} "{f"&e{number - 1};" * 10}">' for number in range(1, 10))
ENTITIES = {
    "bomb": f'<!DOCTYPE x [<!ENTITY e0 "ha">{BILLION}]><x>&e9;</x>',
    "file": '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><x>&e;</x>',
    "parameter": '<!DOCTYPE x [<!ENTITY % e SYSTEM "http://example.org/e.dtd">]><x/>',
}  # fmt: skip


@pytest.mark.parametrize("trap", ENTITIES)
def test_entities_are_refused(every: list[tuple[ModuleType, bytes]], trap: str) -> None:
    for module, content in every:
        message = refusal(module, replaced(module, content, ENTITIES[trap].encode()))
        reason = r"(declares XML entities, which can hide anything|invalid XML \(Maximum entity amplification.*\))"
        assert re.fullmatch(rf"a\.file: [\w/]+\.xml: {reason}; .*", message)
        assert "root:" not in message


def test_damaged_and_deep_parts_are_refused(every: list[tuple[ModuleType, bytes]]) -> None:
    for module, content in every:
        for part in ("<a>", "", "no XML", "<a>" * 300 + "</a>" * 300, '<a b="1" b="2"/>', "<a>\x00</a>"):
            message = refusal(module, replaced(module, content, part.encode()))
            assert re.fullmatch(r"a\.file: [\w/]+\.xml: invalid XML \(.*\); fix the file", message)


def test_deepest_nesting_that_is_read_can_be_written() -> None:
    depth = 245
    link = '<w:hyperlink w:anchor="x">' + run("b", "<w:b/>")
    content = word_file(
        "<w:p>" + run("start") + link * depth + run("in") + f"{run('c', '<w:b/>')}</w:hyperlink>" * depth + "</w:p>"
    )
    document = docx.parse(content, Options())
    assert len(document.segments[0].parts) > depth
    after = docx.parse(translated(document, shout), Options())
    assert after.segments[0].text == document.segments[0].text.upper()


def test_absurd_number_of_tags_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    content = word_file("<w:p/>" * 600)
    assert not docx.parse(content, Options()).segments
    monkeypatch.setattr(package, "MAX_TAGS", 500)
    assert refusal(docx, content) == "a.file: word/document.xml: has over 500 tags; split the document"


def test_paragraph_of_thousands_of_runs_is_read_and_written() -> None:
    inside = "".join(run("word ", "<w:b/>" if number % 2 else "") + "<w:r><w:tab/></w:r>" for number in range(1_000))
    part = package.XmlPart(f'<w:p xmlns:w="{W}">{inside}</w:p>'.encode(), "part", docx._Word)
    assert len(part.segments[0].parts) == 2_999
    assert b"WORD" in part.render([shout(part.segments[0].parts)])


def test_other_files_are_refused(every: list[tuple[ModuleType, bytes]]) -> None:
    for module, content in every:
        for other, file in every:
            if module is not other:
                assert refusal(module, file).endswith("; check that it is the file you mean")
        assert "is not a ZIP archive" in refusal(module, b"%PDF-1.7")
        assert "damaged" in refusal(module, content[: len(content) // 2])
    empty = io.BytesIO()
    zipfile.ZipFile(empty, "w").close()
    assert refusal(docx, empty.getvalue()) == (
        "a.file: has no [Content_Types].xml, so it is not an Office document; check that it is the file you mean"
    )
    assert refusal(odt, empty.getvalue()) == "a.file: is not an OpenDocument file; check that it is the file you mean"


def test_missing_main_part_is_named() -> None:
    content = empty_word_file()
    types = member(content, "[Content_Types].xml").replace(b"/word/document.xml", b"/word/other.xml")
    message = refusal(docx, with_members(content, {"[Content_Types].xml": types}))
    assert message == "a.file: word/other.xml is missing; save it again with its own program"


def test_open_document_with_a_password_is_refused() -> None:
    content = saved_odt(open_document())
    manifest = b'<m:manifest xmlns:m="m"><m:file-entry><m:encryption-data/></m:file-entry></m:manifest>'
    message = refusal(odt, with_members(content, {"META-INF/manifest.xml": manifest, "content.xml": b"\x01\x02"}))
    assert message == "a.file: is encrypted; remove the password"


@pytest.mark.slow
def test_damage_anywhere_is_one_line_or_a_document(every: list[tuple[ModuleType, bytes]]) -> None:
    chance = random.Random(5)
    for module, content in every:
        refused = 0
        for _ in range(20):
            damaged = bytearray(content)
            for _ in range(3):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            try:
                document = module.parse(bytes(damaged), Options(), "a.file")
            except DataError:
                refusal(module, bytes(damaged))
                refused += 1
            else:
                translated(document, shout)
        assert refused > 0
