"""EPUB books: chapters in reading order, tables of contents and the title. The chapters are HTML, which `html` parses.

Books with copy protection are refused. A translated book has the target language in its metadata.
"""

import posixpath
from collections.abc import Iterator, Sequence

from lxml import etree

from dragoman.documents.archives import Archive
from dragoman.documents.document import Document, Options, Parts
from dragoman.documents.package import Member, Package, own_text, parse_part, resolve, serialize, xml_member, xml_text
from dragoman.documents.runs import Item, Nested, Text
from dragoman.errors import DataError

_CONTAINER, _ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
_BOOK = "{http://purl.org/dc/elements/1.1/}"
_CHAPTERS = ("application/xhtml+xml", "text/html", "text/x-oeb1-document")
_CONTENTS = "application/x-dtbncx+xml"


def parse(content: bytes, options: Options, name: str = "book.epub") -> Document:
    from dragoman.documents import html

    archive = Archive(content, name)
    package = _package_path(archive, name)
    chapters, contents = _files(archive, package, name)
    _check_protection(archive, {package, *chapters, *contents}, name)
    members = [xml_member(archive, package, "title", name, _Titles)]
    for path in chapters:
        chapter = html.parse(archive.read(path), options, f"{name}: {path}", xhtml=True)
        members.append(Member(path, chapter, path))
    for path in contents:
        members.append(xml_member(archive, path, "contents", name, _Labels))
    return _Book(archive, members, package, options.target_language)


class _Book(Package):
    def __init__(self, archive: Archive, members: Sequence[Member], package: str, language: str) -> None:
        super().__init__(archive, members)
        self._package, self._language = package, language

    def changes(self, translations: Sequence[Parts | None]) -> dict[str, bytes]:
        changes = super().changes(translations)
        if changes and self._language:
            tree = parse_part(changes.get(self._package) or self._archive.read(self._package), self._package)
            language = next(tree.getroot().iter(f"{_BOOK}language"), None)
            if language is not None and language.text != self._language:
                language.text = self._language
                changes[self._package] = serialize(tree)
        return changes


def _package_path(archive: Archive, name: str) -> str:
    """The path of the package document, which lists the book's files."""
    if _CONTAINER not in archive:
        raise DataError(f"{name}: has no {_CONTAINER}, so it is not an EPUB book; check that it is the file you mean")
    root = parse_part(archive.read(_CONTAINER), f"{name}: {_CONTAINER}").getroot()
    path = next((each.get("full-path", "") for each in root.iter("{*}rootfile")), "")
    if path not in archive:
        raise DataError(f"{name}: {_CONTAINER} names no package document; open and save the book with an EPUB editor")
    return path


def _files(archive: Archive, package: str, name: str) -> tuple[list[str], list[str]]:
    """The chapters in reading order, the table of contents last unless it is one of them; and those of EPUB 2."""
    root = parse_part(archive.read(package), f"{name}: {package}").getroot()
    folder = posixpath.dirname(package)
    items = {item.get("id", ""): item for item in root.iter("{*}item")}
    order = [each.get("idref", "") for each in root.iter("{*}itemref")]
    order += [key for key, item in items.items() if "nav" in item.get("properties", "").split()]
    chapters, contents = dict[str, None](), dict[str, None]()  # a file may be listed twice
    for key in (*order, *items):
        if key in items:
            path, kind = resolve(folder, items[key].get("href", "")), items[key].get("media-type", "")
            if path in archive and kind in _CHAPTERS and key in order:
                chapters[path] = None
            elif path in archive and kind == _CONTENTS:
                contents[path] = None
    return list(chapters), list(contents)


def _check_protection(archive: Archive, paths: set[str], name: str) -> None:
    """Fonts may be encrypted; a book is readable without them."""
    if _ENCRYPTION in archive:
        root = parse_part(archive.read(_ENCRYPTION), f"{name}: {_ENCRYPTION}").getroot()
        encrypted = {resolve("", each.get("URI", "")) for each in root.iter("{*}CipherReference")} & paths
        if encrypted:
            raise DataError(f"{name}: {min(encrypted)} is encrypted (copy protection); use a copy without it")


class _Plain:
    """Elements that hold nothing but text."""

    tag = ""

    def __init__(self, root: etree._Element) -> None:
        self._root = root

    def paragraphs(self) -> Iterator[etree._Element]:
        return self._root.iter(self.tag)

    def read(self, paragraph: etree._Element) -> list[Item]:
        return [Text(own_text(paragraph))]

    def write(self, paragraph: etree._Element, items: Sequence[Item]) -> None:
        for child in list(paragraph):
            paragraph.remove(child)
        paragraph.text = xml_text("".join(item.text for item in items if not isinstance(item, Nested)))


class _Titles(_Plain):
    tag = f"{_BOOK}title"


class _Labels(_Plain):
    tag = "{http://www.daisy.org/z3986/2005/ncx/}text"
