"""The inline markup of XLIFF and TMX: from an element to a segment's parts, and back. Knows neither format.

A format says what each inline element is. An element with text inside becomes a pair of marks. Native code becomes a
mark, or a kept text if it is something to read, such as `%s`. Codes that begin and end something become a pair if they
are properly nested, else each stands alone. The markup itself is copied from the file as it is written there.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from lxml import etree

from dragoman.documents.document import Kept, Mark, Parts, Segment, text_of
from dragoman.documents.placeholders import find_placeholders
from dragoman.documents.xml_text import XML, XmlText
from dragoman.errors import DataError


class Wrap(NamedTuple):
    """An element around text to translate: `<g>`."""


class Code(NamedTuple):
    """An element that holds native code, or stands for it."""

    role: Literal["begin", "end", "alone"] = "alone"
    key: Hashable = None  # the same for a begin and its end
    text: str = ""  # what the reader sees in its place


Describe: TypeAlias = Callable[[etree._Element], Wrap | Code]


class _Tag(NamedTuple):
    role: Literal["begin", "end", "alone"]
    key: Hashable
    is_element: bool  # its begin and end are tags of one element, so they cannot be separated
    text: str
    markup: "Markup"


Markup: TypeAlias = "tuple[str | Flow, ...]"  # as the file writes it, with the texts of sub elements between

_INDENTED = re.compile(r"[ \t\r]*\n[ \t\r\n]*")
_ICU = re.compile(r"\{[^{}]*,\s*(?:plural|select)")
_TAG_CODE = re.compile(r"<\s*(/?)\s*([A-Za-z][\w:.-]*)[^<>]*?(/?)\s*>", re.DOTALL)
_NAME_AFTER_AT = re.compile(r"@[A-Za-z_]\w*")  # in code a placeholder, in text a person


@dataclass(frozen=True, eq=False)
class Flow:
    """The content of an element: one segment, and those of the sub elements within its codes."""

    parts: Parts
    before: str  # white space around the parts
    after: str
    written: str  # the content as it is in the file
    markup: Mapping[Mark | Kept, Markup]
    inner: "tuple[Flow, ...]"  # of sub elements
    place: str
    file: XmlText

    @property
    def has_words(self) -> bool:
        return any(isinstance(part, str) and not part.isspace() for part in self.parts)

    def is_translated(self, translations: "Mapping[Flow, Parts]") -> bool:
        """Whether there is a translation of its words; if it has none, of what is inside."""
        if self.has_words:
            return self in translations
        return any(flow.is_translated(translations) for flow in self.inner)

    def all(self) -> "Iterator[Flow]":
        """This flow and those inside it that have something to translate."""
        if self.has_words:
            yield self
        for flow in self.inner:
            yield from flow.all()

    def segment(self) -> Segment:
        return Segment(self.parts, self.place)

    def render(self, translations: "Mapping[Flow, Parts]") -> str:
        """The content as XML, translated; as it was if there is no translation."""
        if not self.is_translated(translations):
            return self.written
        parts = translations.get(self, self.parts)
        given = Counter(part for part in parts if not isinstance(part, str))
        assert given == Counter(self.markup.keys()), f"{self.place}: the translation has other marks"
        assert _is_nested(parts), f"{self.place}: the marks of the translation overlap"
        as_cdata = not self.markup and self.written.strip().startswith("<![CDATA[")
        write = self.file.write
        body = "".join(
            write(part, as_cdata) if isinstance(part, str) else _render_markup(self.markup[part], translations)
            for part in parts
        )
        return write(self.before) + body + write(self.after)


def read_flow(file: XmlText, element: etree._Element, describe: Describe, keep_space: bool) -> Flow:
    """Read the content of an element such as `<source>` or `<seg>`."""
    reader = _Reader(file, describe, keep_space)
    items = reader.items(element)
    parts, markup = _paired(items)
    parts, before, after = _stripped(parts)
    if not keep_space:  # the file was indented for people
        parts = tuple(_INDENTED.sub(" ", part) if isinstance(part, str) else part for part in parts)
    place = f"line {file.line(element)}"
    return Flow(parts, before, after, file.inner(element), markup, tuple(reader.inner), place, file)


def pair_flows(flows: Sequence[Flow], translations: Sequence[Parts | None]) -> dict[Flow, Parts]:
    """The translation of each flow that has one with any text."""
    pairs = zip(flows, translations, strict=True)
    return {flow: parts for flow, parts in pairs if parts is not None and text_of(parts).strip()}


def has_content(element: etree._Element) -> bool:
    """Whether an element holds text that is not blank, or markup; comments do not count."""
    return any(isinstance(child.tag, str) or (child.tail or "").strip() for child in element) or bool(
        (element.text or "").strip()
    )


def keeps_space(element: etree._Element) -> bool:
    """Whether `xml:space` says that white space is part of the text."""
    nearest = next(
        (each.get(XML + "space") for each in (element, *element.iterancestors()) if each.get(XML + "space")), ""
    )
    return nearest == "preserve"


def describe_code(code: str, equivalent: str | None = None) -> Code:
    """Describe one that stands alone by what it stands for: `<b>` may begin something, and `%s` is kept as a text.

    `equivalent` is what the file says the reader sees, `code` is native code.
    """
    tag = _TAG_CODE.fullmatch((equivalent or code).strip())
    if tag is not None:
        closes, name, is_empty = tag.groups()
        if is_empty:
            return Code()
        return Code("end" if closes else "begin", ("tag", name.lower()))
    if equivalent is not None:
        is_markup = "<" in equivalent or _ICU.search(equivalent) is not None
        return Code(text="" if is_markup else equivalent.strip())
    code = code.strip()
    is_placeholder = [*find_placeholders(code)] == [(0, len(code))] or _NAME_AFTER_AT.fullmatch(code) is not None
    return Code(text=code if is_placeholder else "")


@dataclass
class _Reader:
    file: XmlText
    describe: Describe
    keep_space: bool
    inner: list[Flow] = field(default_factory=list)

    def items(self, element: etree._Element) -> "list[str | _Tag]":
        items: list[str | _Tag] = [element.text or ""]
        for child in element:
            if isinstance(child, etree._Entity):
                place = self.file.place(element)
                raise DataError(f"{place}: nothing declares the entity {child.text}; write the character itself")
            if isinstance(child.tag, str):  # else a comment or a processing instruction
                items += self._element(child)
            items.append(child.tail or "")
        return items

    def _element(self, element: etree._Element) -> "list[str | _Tag]":
        described = self.describe(element)
        file = self.file
        if isinstance(described, Code):
            return [_Tag(described.role, described.key, False, described.text, self._code(element))]
        if not len(element) and not element.text:
            return [_Tag("alone", None, True, "", (file.outer(element),))]
        return [
            _Tag("begin", element, True, "", (file.start_tag(element),)),
            *self.items(element),
            _Tag("end", element, True, "", (file.end_tag(element),)),
        ]

    def _code(self, element: etree._Element) -> Markup:
        """A code as the file writes it, with a flow for the text of each sub element."""
        markup: list[str | Flow] = []
        whole = self.file.span(element)
        place = whole.start
        for child in element:
            if isinstance(child.tag, str) and etree.QName(child).localname == "sub":
                flow = read_flow(self.file, child, self.describe, self.keep_space)
                span = self.file.span(child)
                markup += [self.file.text[place : span.content_start], flow]
                place = span.content_end
                self.inner.append(flow)
        return (*markup, self.file.text[place : whole.end])


def _paired(items: "list[str | _Tag]") -> tuple[Parts, dict[Mark | Kept, Markup]]:
    """Number the markup in the order of the file; pair what begins and ends properly nested."""
    partners = _partners(items)
    numbers: dict[int, int] = {}
    parts: list[str | Mark | Kept] = []
    markup: dict[Mark | Kept, Markup] = {}
    for place, item in enumerate(items):
        if isinstance(item, str):
            if parts and isinstance(parts[-1], str):
                parts[-1] += item
            elif item:
                parts.append(item)
            continue
        partner = partners.get(place)
        if partner is not None and partner < place:
            part: Mark | Kept = Mark(numbers[partner], "close")
        else:
            numbers[place] = len(numbers)
            number = numbers[place]
            if partner is not None:
                part = Mark(number, "open")
            else:
                part = Kept(number, item.text) if item.text else Mark(number, "single")
        parts.append(part)
        markup[part] = item.markup
    return tuple(parts), markup


def _partners(items: "list[str | _Tag]") -> dict[int, int]:
    """For each end its begin, and for each begin its end. Codes that overlap or lack the other half have none."""
    partners: dict[int, int] = {}
    levels: list[list[int]] = [[]]  # codes begun, for each element begun
    begun: list[Counter[Hashable]] = [Counter()]
    elements: list[int] = []
    for place, item in enumerate(items):
        if isinstance(item, str) or item.role == "alone":
            continue
        if item.role == "begin" and item.is_element:
            elements.append(place)
            levels.append([])
            begun.append(Counter())
        elif item.role == "begin":
            levels[-1].append(place)
            begun[-1][item.key] += 1
        elif item.is_element:
            levels.pop()
            begun.pop()
            partners[place] = elements.pop()
            partners[partners[place]] = place
        elif begun[-1][item.key]:
            while True:
                other = levels[-1].pop()
                tag = items[other]
                assert isinstance(tag, _Tag)
                begun[-1][tag.key] -= 1
                if tag.key == item.key:
                    break
            partners[place], partners[other] = other, place
    return partners


def _stripped(parts: Parts) -> tuple[Parts, str, str]:
    """The parts without white space at either end, and that white space."""
    rest = list(parts)
    before = after = ""
    if rest and isinstance(rest[0], str):
        text = rest[0]
        rest[0] = text.lstrip()
        before = text[: len(text) - len(text.lstrip())]
    if rest and isinstance(rest[-1], str):
        text = rest[-1]
        rest[-1] = text.rstrip()
        after = text[len(text.rstrip()) :]
    return tuple(part for part in rest if part != ""), before, after


def _render_markup(markup: Markup, translations: Mapping[Flow, Parts]) -> str:
    return "".join(piece if isinstance(piece, str) else piece.render(translations) for piece in markup)


def _is_nested(parts: Parts) -> bool:
    begun: list[int] = []
    for part in parts:
        if isinstance(part, Mark) and part.kind == "open":
            begun.append(part.number)
        elif isinstance(part, Mark) and part.kind == "close" and (not begun or begun.pop() != part.number):
            return False
    return not begun
