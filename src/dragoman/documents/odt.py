"""OpenDocument texts: paragraphs, headings, headers, footers, notes, comments and frames. Styles stay as they are.

A paragraph is a segment, and each of its lines is translated alone. A field (a page number, a date) is kept as it is,
and so is deleted text of tracked changes.
"""

import re
from collections.abc import Iterator, Sequence

from lxml import etree

from dragoman.documents.archives import Archive
from dragoman.documents.document import Document, Options
from dragoman.documents.package import (
    Format,
    Package,
    append,
    grouped,
    local_name,
    order_pairs,
    parse_part,
    xml_member,
    xml_text,
)
from dragoman.documents.runs import Fixed, Item, Nested, Text
from dragoman.errors import DataError

_MIME_TYPE = b"application/vnd.oasis.opendocument."
_URN = "urn:oasis:names:tc:opendocument:xmlns:"
_TEXT, _STYLE = f"{_URN}text:1.0", f"{_URN}style:1.0"
_STYLE_NAME = f"{{{_TEXT}}}style-name"
_REVISION = "{http://openoffice.org/2009/office}"  # when a stretch was typed; looks like nothing
_NESTED = {"a", "meta", "meta-field"}
_SPACING, _BREAK = {"s", "tab"}, "line-break"
_SPACES = re.compile("[ \t\r\n]+")  # are one space, as in HTML
_EXTRA_SPACES = re.compile("(?<= )( +)")


def parse(content: bytes, options: Options, name: str = "document.odt") -> Document:
    archive = Archive(content, name)
    if "content.xml" not in archive or not ("mimetype" in archive and archive.read("mimetype").startswith(_MIME_TYPE)):
        raise DataError(f"{name}: is not an OpenDocument file; check that it is the file you mean")
    _check_password(archive, name)
    labels = {"content.xml": "", "styles.xml": "header or footer"}
    members = [
        xml_member(archive, path, label, name, _OpenDocument) for path, label in labels.items() if path in archive
    ]
    return Package(archive, members)


def _check_password(archive: Archive, name: str) -> None:
    path = "META-INF/manifest.xml"
    if path in archive:
        root = parse_part(archive.read(path), f"{name}: {path}").getroot()
        if next(root.iter("{*}encryption-data", "{*}keyinfo"), None) is not None:
            raise DataError(f"{name}: is encrypted; remove the password")


def _name(node: etree._Element) -> str:
    return local_name(node, (_TEXT,))


class _OpenDocument:
    def __init__(self, root: etree._Element) -> None:
        self._root = root
        styles = root.iter(f"{{{_STYLE}}}style")
        self._plain = {style.get(f"{{{_STYLE}}}name") for style in styles if _is_plain(style)}

    def paragraphs(self) -> Iterator[etree._Element]:
        for paragraph in self._root.iter(f"{{{_TEXT}}}p", f"{{{_TEXT}}}h"):
            if not any(_name(each) == "tracked-changes" for each in paragraph.iterancestors()):
                yield paragraph

    def read(self, paragraph: etree._Element) -> list[Item]:
        return self._read(paragraph, None)

    def write(self, paragraph: etree._Element, items: Sequence[Item]) -> None:
        _write(paragraph, items)
        order_pairs(paragraph)

    def _read(self, parent: etree._Element, style: Format | None) -> list[Item]:
        items: list[Item] = [Text(_one_spaced(parent.text), style)]
        for child in parent:
            name = _name(child)
            if name == "span" and self._is_plain_span(child):
                items.extend(self._read(child, style))
            elif name == "span" and not any(self._has_text(each) for each in child):
                items.extend(self._read(child, Format(tuple(sorted(child.attrib.items())), child)))
            elif name == "span" or name in _NESTED:
                items.append(Nested(child, tuple(self._read(child, None))))
            elif name != "soft-page-break":
                text, is_break = _field_text(child), name == _BREAK
                items.append(Fixed(child, style, text, is_space=name in _SPACING, is_break=is_break))
            items.append(Text(_one_spaced(child.tail), style))
        return [item for item in items if not isinstance(item, Text) or item.text]

    def _is_plain_span(self, span: etree._Element) -> bool:
        return span.get(_STYLE_NAME) in self._plain

    def _has_text(self, child: etree._Element) -> bool:
        """Whether a span with this child is more than a run in one style."""
        name = _name(child)
        if name == "span" and self._is_plain_span(child):
            return any(self._has_text(each) for each in child)
        return name == "span" or name in _NESTED


def _is_plain(style: etree._Element) -> bool:
    """Whether a style of characters does not change how they look."""
    parent = style.get(f"{{{_STYLE}}}parent-style-name")
    return (
        style.get(f"{{{_STYLE}}}family") == "text"
        and parent is None
        and all(str(key).startswith(_REVISION) for child in style for key in child.attrib)
        and not any(len(child) for child in style)
    )


def _one_spaced(text: str | None) -> str:
    return _SPACES.sub(" ", text or "")


def _field_text(element: etree._Element) -> str:
    """What a field shows. Notes and frames have paragraphs of their own, and their text is no part of this one."""
    name = _name(element)
    if not name or next(element.iter(f"{{{_TEXT}}}p", f"{{{_TEXT}}}h"), None) is not None:
        return ""
    shown = next((child for child in element if _name(child) == "ruby-base"), element)
    return _one_spaced(str(shown.xpath("string()")))


def _write(parent: etree._Element, items: Sequence[Item]) -> None:
    for child in list(parent):
        parent.remove(child)
    parent.text = None
    for group in grouped(items):
        if isinstance(group, Nested):
            _write(append(parent, group.content), (*group.head, *group.items, *group.tail))
            continue
        style, run_items = group
        place = parent if style is None else etree.SubElement(parent, style.element.tag, dict(style.element.attrib))
        for item in run_items:
            if isinstance(item, Fixed):
                append(place, item.content)
            else:
                _append_text(place, xml_text(item.text))


def _append_text(parent: etree._Element, text: str) -> None:
    """Write text; of several spaces in a row all but the first are elements."""
    for place, piece in enumerate(_EXTRA_SPACES.split(text)):
        if place % 2:
            spaces = etree.SubElement(parent, f"{{{_TEXT}}}s")
            if len(piece) > 1:
                spaces.set(f"{{{_TEXT}}}c", str(len(piece)))
        elif len(parent):
            parent[-1].tail = (parent[-1].tail or "") + piece
        else:
            parent.text = (parent.text or "") + piece
