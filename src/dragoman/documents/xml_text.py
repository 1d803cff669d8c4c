"""The text of an XML file and where each element stands in it, so that an edit keeps every other byte. Knows no format.

lxml says what the elements mean, but not where they are, and writes a file in its own manner. Here the file is read by
lxml first, which refuses what is not well-formed. Its tags are then found again in the text, in the same order.
"""

import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from lxml import etree

from dragoman.documents.safe_xml import parse_xml, valid_text
from dragoman.documents.spans import BYTE_ORDER_MARKS
from dragoman.errors import DataError

XML = "{http://www.w3.org/XML/1998/namespace}"

# Of a well-formed file. Quantifiers are possessive: a file cannot make the search slow.
_DECLARATIONS = r"""\[(?:<!--.*?-->|<\?.*?\?>|"[^"]*"|'[^']*'|[^\]"'])*+\]"""
_TAG = re.compile(
    r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>"
    rf"""|<!DOCTYPE(?:[^\[>"']++|"[^"]*"|'[^']*'|{_DECLARATIONS})*+>"""
    r"""|(?P<end></[^>]*>)|(?P<start><[^>"'!?/](?:[^>"']++|"[^"]*"|'[^']*')*+>)""",
    re.DOTALL,
)
_NAME = re.compile(r"<([^\s/>]+)")
_NAMESPACE = re.compile(r"""\s+xmlns(?::[^\s=]+)?\s*=\s*(?:"[^"]*"|'[^']*')""")


class Span(NamedTuple):
    """Where an element stands. Of `<x/>`, the content is empty and stands behind the tag."""

    start: int
    content_start: int
    content_end: int
    end: int


class Edit(NamedTuple):
    start: int
    end: int
    text: str


class XmlText:
    def __init__(self, content: bytes, name: str) -> None:
        self.content, self.name = content, name
        tree = parse_xml(content, name)
        self.root: etree._Element = tree.getroot()
        self._mark, self._codec = _encoding(content, tree.docinfo.encoding or "utf-8")
        self.text = self._decode()
        self._newline = "\r\n" if "\r\n" in self.text else "\n"
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", self.text))]
        # The elements are held: lxml would make new objects for them, and these are the keys.
        self._spans = dict(zip(self.root.iter("*"), _spans(self.text), strict=True))

    def _decode(self) -> str:
        try:
            text = self.content[len(self._mark) :].decode(self._codec)
            if self._mark + text.encode(self._codec) == self.content:
                return text
        except (LookupError, UnicodeError):
            pass
        raise DataError(f"{self.name}: its encoding {self._codec} cannot be rewritten exactly; save it as UTF-8")

    def span(self, element: etree._Element) -> Span:
        return self._spans[element]

    def line(self, element: etree._Element) -> int:
        return bisect(self._line_starts, self._spans[element].start)

    def place(self, element: etree._Element) -> str:
        """For messages: `file.xlf:12`."""
        return f"{self.name}:{self.line(element)}"

    def outer(self, element: etree._Element) -> str:
        """An element as the file writes it."""
        span = self._spans[element]
        return self.text[span.start : span.end]

    def inner(self, element: etree._Element) -> str:
        span = self._spans[element]
        return self.text[span.content_start : span.content_end]

    def start_tag(self, element: etree._Element) -> str:
        """The start tag; one of an empty element, `<x/>`, is written as that of one with content, `<x>`."""
        span = self._spans[element]
        tag = self.text[span.start : span.content_start]
        return tag[:-2].rstrip() + ">" if tag.endswith("/>") else tag

    def end_tag(self, element: etree._Element) -> str:
        span = self._spans[element]
        return self.text[span.content_end : span.end] or f"</{self.tag_name(element)}>"

    def tag_name(self, element: etree._Element) -> str:
        """With its prefix: `xlf:source`."""
        found = _NAME.match(self.text, self._spans[element].start)
        assert found is not None
        return found[1]

    def namespaces(self, element: etree._Element) -> str:
        """The namespace declarations of a start tag, as they are written."""
        return "".join(_NAMESPACE.findall(self.start_tag(element)))

    def indentation(self, element: etree._Element) -> str:
        """The white space before an element if it begins a line, with the newline."""
        start = self._spans[element].start
        before = self.text[:start] if start < 1000 else self.text[start - 1000 : start]
        space = before[len(before.rstrip(" \t\r\n")) :]
        return space[space.rindex("\n") - space[: space.rindex("\n")].endswith("\r") :] if "\n" in space else ""

    def write(self, text: str, as_cdata: bool = False) -> str:
        """Text as this file would write it."""
        if as_cdata and self._can_encode(text):
            text = valid_text(text).replace("\r", "").replace("]]>", "]]]]><![CDATA[>")
            return f"<![CDATA[{text}]]>".replace("\n", self._newline)
        return escape(text).replace("\n", self._newline)

    def _can_encode(self, text: str) -> bool:
        try:
            text.encode(self._codec)
        except UnicodeEncodeError:
            return False
        return True

    def replace(self, element: etree._Element, text: str) -> Edit:
        span = self._spans[element]
        return Edit(span.start, span.end, text)

    def replace_start_tag(self, element: etree._Element, values: Mapping[str, str | None]) -> Edit:
        """Set attributes; None removes one."""
        span = self._spans[element]
        return Edit(span.start, span.content_start, with_attributes(self.text[span.start : span.content_start], values))

    def insert_after(self, element: etree._Element, text: str) -> Edit:
        end = self._spans[element].end
        return Edit(end, end, text)

    def render(self, edits: Iterable[Edit]) -> bytes:
        """The file with its edits. They do not overlap."""
        pieces, place = [], 0
        for start, end, text in sorted(edits):
            assert place <= start <= end
            pieces += [self.text[place:start], text]
            place = end
        if not pieces:
            return self.content
        pieces.append(self.text[place:])
        return self._mark + "".join(pieces).encode(self._codec, errors="xmlcharrefreplace")


def escape(text: str) -> str:
    """Text as XML. What XML cannot say at all, such as a null character, is left out."""
    text = valid_text(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("\r", "&#13;")


def with_attributes(tag: str, values: Mapping[str, str | None]) -> str:
    """A start tag with attributes set, or removed where the value is None. The others stay as they are written."""
    for name, value in values.items():
        written = "" if value is None else f' {name}="{_escape_attribute(value)}"'
        old = next((match for match in _attributes(tag) if match[1] == name), None)
        if old is not None:
            tag = tag[: old.start()] + written + tag[old.end() :]
        elif written:
            end = len(tag) - (2 if tag.endswith("/>") else 1)
            end = len(tag[:end].rstrip())
            tag = tag[:end] + written + tag[end:]
    return tag


def _attributes(tag: str) -> Iterator[re.Match[str]]:
    return re.finditer(r"""\s+([^\s=/>"']+)\s*=\s*(?:"[^"]*"|'[^']*')""", tag)


def _escape_attribute(value: str) -> str:
    return escape(value).replace('"', "&quot;").replace("\n", "&#10;").replace("\t", "&#9;")


def _encoding(content: bytes, declared: str) -> tuple[bytes, str]:
    """The byte order mark and the codec."""
    for mark, codec in BYTE_ORDER_MARKS.items():
        if content.startswith(mark):
            return mark, codec
    if content.startswith(b"<\0"):
        return b"", "utf-16-le"
    if content.startswith(b"\0<"):
        return b"", "utf-16-be"
    return b"", declared


def _spans(text: str) -> list[Span]:
    """Those of all elements, in the order of their start tags."""
    spans: list[Span] = []
    open_elements: list[int] = []
    for match in _TAG.finditer(text):
        if match["start"] is not None:
            if not match["start"].endswith("/>"):
                open_elements.append(len(spans))
            spans.append(Span(match.start(), match.end(), match.end(), match.end()))
        elif match["end"] is not None:
            number = open_elements.pop()
            spans[number] = spans[number]._replace(content_end=match.start(), end=match.end())
    return spans
