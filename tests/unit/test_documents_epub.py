"""EPUB books: chapters in reading order, contents and title, and the rest of the book as it was."""

import io
import re
import zipfile
from collections.abc import Mapping

import pytest

from dragoman.documents import epub
from dragoman.documents.document import Mark, Options
from dragoman.errors import DataError
from tests.fake_translator import shout, shuffle

pytest.importorskip("dragoman.documents.html")

CONTAINER = """<?xml version="1.0"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
<rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"""
PACKAGE = """<?xml version="1.0" encoding="utf-8"?>
<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id">
  <metadata xmlns:dc="http://purl.org/dc/elements/1.1/">
    <dc:identifier id="id">urn:x</dc:identifier><dc:title>The Old House</dc:title>
    <dc:creator>A. Writer</dc:creator><dc:language>en</dc:language>
  </metadata>
  <manifest>
    <item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>
    <item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/>
    <item id="one" href="text/chapter%201.xhtml" media-type="application/xhtml+xml"/>
    <item id="two" href="text/two.html" media-type="application/xhtml+xml"/>
    <item id="unread" href="unread.xhtml" media-type="application/xhtml+xml"/>
    <item id="gone" href="gone.xhtml" media-type="application/xhtml+xml"/>
    <item id="style" href="style.css" media-type="text/css"/>
  </manifest>
  <spine toc="ncx"><itemref idref="two"/><itemref idref="one"/><itemref idref="gone"/><itemref idref="two"/></spine>
</package>"""
CONTENTS = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE ncx PUBLIC "-//NISO//DTD ncx 2005-1//EN" "http://www.daisy.org/z3986/2005/ncx-2005-1.dtd">
<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/" version="2005-1"><docTitle><text>The Old House</text></docTitle>
<navMap><navPoint id="p1"><navLabel><text>The garden</text></navLabel><content src="text/two.html"/></navPoint></navMap>
</ncx>"""


def page(body: str) -> str:
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<html xmlns="http://www.w3.org/1999/xhtml" xml:lang="en" lang="en">'
        f"<head><title>A page</title></head>\n<body>{body}</body></html>\n"
    )


FILES = {
    "META-INF/container.xml": CONTAINER,
    "OEBPS/style.css": "p { color: red }",
    "OEBPS/book.opf": PACKAGE,
    "OEBPS/text/chapter 1.xhtml": page("<h1>The house</h1><p>It was <b>very</b> old.<br/>And dark.</p>"),
    "OEBPS/text/two.html": page("<h1>The garden</h1>\n<p>Roses&#160;grew <i>there</i>.</p><img src='a.png' alt=''/>"),
    "OEBPS/unread.xhtml": page("<p>Never shown</p>"),
    "OEBPS/nav.xhtml": page('<nav><ol><li><a href="text/two.html">The garden</a></li></ol></nav>'),
    "OEBPS/toc.ncx": CONTENTS,
}


def book(changes: Mapping[str, str] | None = None) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("mimetype"), "application/epub+zip")
        for name, content in {**FILES, **(changes or {})}.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()


def members(content: bytes) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_chapters_are_read_in_the_order_of_the_spine() -> None:
    segments = epub.parse(book(), Options(), "book.epub").segments
    assert [(segment.text, segment.place.partition(", ")[0]) for segment in segments] == [
        ("The Old House", "title"),
        ("A page", "OEBPS/text/two.html"),
        ("The garden", "OEBPS/text/two.html"),
        ("Roses\u00a0grew there.", "OEBPS/text/two.html"),
        ("A page", "OEBPS/text/chapter 1.xhtml"),
        ("The house", "OEBPS/text/chapter 1.xhtml"),
        ("It was very old.\nAnd dark.", "OEBPS/text/chapter 1.xhtml"),
        ("A page", "OEBPS/nav.xhtml"),
        ("The garden", "OEBPS/nav.xhtml"),
        ("The Old House", "contents"),
        ("The garden", "contents"),
    ]
    assert segments[6].parts == (
        "It was ", Mark(1, "open"), "very", Mark(1, "close"), " old.", Mark(2, "single"), "\nAnd dark."
    )  # fmt: skip


def test_book_with_its_own_words_is_the_same_file() -> None:
    content = book()
    for options in (Options(), Options(target_language="de")):
        document = epub.parse(content, options)
        assert document.render([segment.parts for segment in document.segments]) == content
        assert document.render([None] * len(document.segments)) == content


def test_translated_book_keeps_the_rest_and_says_its_language() -> None:
    content = book()
    document = epub.parse(content, Options(target_language="de"))
    after = document.render([shout(segment.parts) for segment in document.segments])
    assert after[30:58] == b"mimetypeapplication/epub+zip"
    old, new = members(content), members(after)
    assert list(old) == list(new)
    assert {name for name in old if old[name] == new[name]} == {
        "mimetype", "META-INF/container.xml", "OEBPS/style.css", "OEBPS/unread.xhtml"
    }  # fmt: skip
    assert "<dc:title>THE OLD HOUSE</dc:title>" in new["OEBPS/book.opf"]
    assert "<dc:language>de</dc:language>" in new["OEBPS/book.opf"]
    assert "<dc:creator>A. Writer</dc:creator>" in new["OEBPS/book.opf"]
    assert '<navLabel><text>THE GARDEN</text></navLabel><content src="text/two.html"/>' in new["OEBPS/toc.ncx"]
    assert re.search("<!DOCTYPE ncx PUBLIC .*ncx-2005-1.dtd", new["OEBPS/toc.ncx"])
    assert re.search(r"<p>IT WAS <b>VERY</b> OLD\.<br/> ?AND DARK\.</p>", new["OEBPS/text/chapter 1.xhtml"])
    assert "<img src='a.png' alt=''/>" in new["OEBPS/text/two.html"]

    without = epub.parse(content, Options())
    unchanged = members(without.render([shout(segment.parts) for segment in without.segments]))
    assert "<dc:language>en</dc:language>" in unchanged["OEBPS/book.opf"]


def test_one_changed_chapter_changes_no_other() -> None:
    content = book()
    document = epub.parse(content, Options())
    segments = document.segments
    own = [shuffle(segment.parts, 3) if "house" in segment.text else None for segment in segments]
    old, new = members(content), members(document.render(own))
    assert {name for name in old if old[name] != new[name]} == {"OEBPS/text/chapter 1.xhtml"}


def refusal(content: bytes) -> str:
    with pytest.raises(DataError) as caught:
        epub.parse(content, Options(), "book.epub")
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_other_archives_and_copy_protection_are_refused() -> None:
    file = io.BytesIO()
    zipfile.ZipFile(file, "w").close()
    assert refusal(file.getvalue()) == (
        "book.epub: has no META-INF/container.xml, so it is not an EPUB book; check that it is the file you mean"
    )
    assert refusal(book({"META-INF/container.xml": CONTAINER.replace("book.opf", "other.opf")})) == (
        "book.epub: META-INF/container.xml names no package document; open and save the book with an EPUB editor"
    )
    protection = (
        '<encryption xmlns="urn:oasis:names:tc:opendocument:xmlns:container" xmlns:enc="enc"><enc:EncryptedData>'
        '<enc:CipherData><enc:CipherReference URI="{}"/></enc:CipherData></enc:EncryptedData></encryption>'
    )
    chapter = protection.format("OEBPS/text/chapter%201.xhtml")
    assert refusal(book({"META-INF/encryption.xml": chapter})) == (
        "book.epub: OEBPS/text/chapter 1.xhtml is encrypted (copy protection); use a copy without it"
    )
    font = protection.format("OEBPS/fonts/a.otf")
    assert len(epub.parse(book({"META-INF/encryption.xml": font}), Options()).segments) == 11


def test_entities_in_the_package_are_refused() -> None:
    trap = '<!DOCTYPE package [<!ENTITY e SYSTEM "file:///etc/passwd">]>'
    assert refusal(book({"OEBPS/book.opf": PACKAGE.replace("<package ", f"{trap}<package ", 1)})) == (
        "book.epub: OEBPS/book.opf: declares XML entities, which can hide anything; remove them from its DOCTYPE"
    )
