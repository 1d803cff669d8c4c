"""Documents that are ZIP archives of XML parts, and what their formats share. Knows none of the formats."""

import posixpath
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from urllib.parse import unquote

from lxml import etree

from dragoman.documents.archives import Archive
from dragoman.documents.document import Document, Parts, Segment, merge_text
from dragoman.documents.runs import Fixed, Item, Nested, Paragraph, Text
from dragoman.documents.safe_xml import parse_xml, valid_text
from dragoman.errors import DataError

MAX_TAGS = 4_000_000  # of a part, ends counted too; an element takes far more memory than its tag
_BREAKS = re.compile("[\t\n\r]")
_PAIR = re.compile("(.*?)(-?)(start|end)", re.IGNORECASE)  # bookmarkStart and bookmarkEnd, bookmark-start and -end
_IDENTITY = ("id", "change-id", "name")  # attributes that a start and its end share, the first that is there


@dataclass(frozen=True)
class Member:
    """A part with text, named by its path in the archive."""

    path: str
    document: Document
    label: str  # for people: "slide 3"


class Package:
    """A document whose segments are those of its members, in their order."""

    def __init__(self, archive: Archive, members: Sequence[Member]) -> None:
        self._archive, self._members = archive, members
        self.segments: Sequence[Segment] = [
            replace(segment, place=", ".join(filter(None, [member.label, segment.place])))
            for member in members
            for segment in member.document.segments
        ]

    def render(self, translations: Sequence[Parts | None]) -> bytes:
        return self._archive.rewrite(self.changes(translations))

    def changes(self, translations: Sequence[Parts | None]) -> dict[str, bytes]:
        """The content of each member that a translation changes."""
        if len(translations) != len(self.segments):
            raise ValueError(f"translations: {len(translations)} for {len(self.segments)} segments; give one for each")
        changes, start = {}, 0
        for member in self._members:
            segments = member.document.segments
            own = translations[start : start + len(segments)]
            start += len(segments)
            pairs = zip(own, segments, strict=True)
            if any(parts is not None and merge_text(parts) != segment.parts for parts, segment in pairs):
                changes[member.path] = member.document.render(own)
        return changes


def xml_member(archive: Archive, path: str, label: str, name: str, markup: "type[Markup]") -> Member:
    """A part whose paragraphs are segments; `name` is the archive's."""
    return Member(path, XmlPart(archive.read(path), f"{name}: {path}", markup), label)


class Markup(Protocol):
    """How a format writes the paragraphs of a part."""

    def paragraphs(self) -> Iterator[etree._Element]:
        """In reading order; one may contain others, in a text box or a note."""
        ...

    def read(self, paragraph: etree._Element) -> list[Item]: ...

    def write(self, paragraph: etree._Element, items: Sequence[Item]) -> None: ...


class XmlPart:
    """A part whose paragraphs are segments. Holds bytes, not a tree: the tree is parsed again to be changed."""

    def __init__(self, content: bytes, name: str, markup: Callable[[etree._Element], Markup]) -> None:
        self._content, self._name, self._markup = content, name, markup
        self.segments: Sequence[Segment] = [
            Segment(paragraph.parts, f"paragraph {number}")
            for number, (_, paragraph) in enumerate(_paragraphs(self._open()[1]), 1)
        ]

    def _open(self) -> tuple[etree._ElementTree, Markup]:
        tree = parse_part(self._content, self._name)
        return tree, self._markup(tree.getroot())

    def render(self, translations: Sequence[Parts | None]) -> bytes:
        tree, markup = self._open()
        changed = False
        for (element, paragraph), parts in zip(_paragraphs(markup), translations, strict=True):
            if parts is not None and merge_text(parts) != paragraph.parts:
                markup.write(element, paragraph.translated(parts))
                changed = True
        return serialize(tree) if changed else self._content


def _paragraphs(markup: Markup) -> Iterator[tuple[etree._Element, Paragraph]]:
    """Those with something to translate."""
    for element in list(markup.paragraphs()):
        paragraph = Paragraph(markup.read(element))
        if paragraph.parts:
            yield element, paragraph


def parse_part(content: bytes, name: str) -> etree._ElementTree:
    if content.count(b"<") > MAX_TAGS:
        raise DataError(f"{name}: has over {MAX_TAGS:,} tags; split the document")
    return parse_xml(content, name)


def serialize(tree: etree._ElementTree) -> bytes:
    encoding = tree.docinfo.encoding or "UTF-8"
    return etree.tostring(tree, encoding=encoding, xml_declaration=True, standalone=tree.docinfo.standalone)


# Elements


@dataclass(frozen=True)
class Format:
    """A run's style: equal if it looks equal, whichever element says so."""

    look: Hashable
    element: etree._Element | None = field(compare=False)


def local_name(node: Any, namespaces: Collection[str]) -> str:
    """An element's name, or an empty one if it is a comment or from another namespace."""
    if not isinstance(node.tag, str):
        return ""
    namespace, _, name = node.tag.rpartition("}")
    return name if namespace[1:] in namespaces else ""


def read_format(properties: etree._Element | None, ignored: Callable[[str], bool]) -> Format:
    """The style that a run's properties describe; none if they say nothing that is not ignored."""
    if properties is None:
        return Format((), None)
    tag, *said = describe(properties, ignored)
    return Format((tag, *said) if said != [(), ()] else (), properties)


def describe(element: etree._Element, ignored: Callable[[str], bool]) -> tuple[Hashable, ...]:
    """What an element says, as a value that can be compared; without the attributes and children to ignore."""
    attributes = sorted((key, value) for key, value in element.attrib.items() if not ignored(str(key)))
    children = [describe(child, ignored) for child in element if isinstance(child.tag, str) and not ignored(child.tag)]
    return str(element.tag), tuple(attributes), tuple(children)


def own_text(element: etree._Element) -> str:
    """The text directly in an element, without that of comments."""
    return (element.text or "") + "".join(child.tail or "" for child in element)


def xml_text(text: str) -> str:
    """A translation as XML can hold it: on one line, and without control characters."""
    return valid_text(_BREAKS.sub(" ", text))


def append(parent: etree._Element, child: etree._Element) -> etree._Element:
    """Move an element here, without the text that followed it elsewhere."""
    child.tail = None
    parent.append(child)
    return child


def grouped(items: Iterable[Item]) -> Iterator[tuple[Any, list[Text | Fixed]] | Nested]:
    """Runs: neighbouring items in one style. A nested item is no part of a run."""
    run: list[Text | Fixed] = []
    for item in items:
        if run and (isinstance(item, Nested) or item.style != run[0].style):
            yield run[0].style, run
            run = []
        if isinstance(item, Nested):
            yield item
        elif run and isinstance(item, Text) and isinstance(last := run[-1], Text):
            run[-1] = replace(last, text=last.text + item.text)
        else:
            run.append(item)
    if run:
        yield run[0].style, run


def order_pairs(paragraph: etree._Element) -> None:
    """Swap the end of a bookmark with its start where a translation has put the end first."""
    ends: dict[tuple[str, str], etree._Element] = {}
    for element in list(paragraph.iter("{*}*")):
        name = etree.QName(element).localname
        match = _PAIR.fullmatch(name)
        values = {etree.QName(key).localname: value for key, value in element.attrib.items()} if match else {}
        identity = next((values[key] for key in _IDENTITY if key in values), None)
        if match is None or identity is None:
            continue
        if match[3].lower() == "end":
            ends[match[1], identity] = element
        elif (end := ends.pop((match[1], identity), None)) is not None:
            _swap(element, end)


def _swap(one: etree._Element, other: etree._Element) -> None:
    places = [(each.getparent(), each.tail) for each in (one, other)]
    blank = etree.Element("blank")
    for (parent, tail), old, new in zip(places, (one, other), (blank, one), strict=True):
        assert parent is not None  # a paragraph's content is within it
        parent.replace(old, new)
        new.tail = tail
    parent = blank.getparent()
    assert parent is not None
    parent.replace(blank, other)
    other.tail = places[0][1]


# Open Packaging Conventions: Word's and PowerPoint's archives

_RELATIONSHIPS = "{http://schemas.openxmlformats.org/package/2006/relationships}Relationship"


def content_types(archive: Archive, name: str) -> Mapping[str, str]:
    """The content type of each part, by path."""
    path = "[Content_Types].xml"
    if path not in archive:
        raise DataError(f"{name}: has no {path}, so it is not an Office document; check that it is the file you mean")
    root = parse_part(archive.read(path), f"{name}: {path}").getroot()
    defaults = {each.get("Extension", "").lower(): each.get("ContentType", "") for each in root.iter("{*}Default")}
    types = {part: defaults.get(part.rpartition(".")[2].lower(), "") for part in archive.names}
    own = {each.get("PartName", "").lstrip("/"): each.get("ContentType", "") for each in root.iter("{*}Override")}
    return types | own


def find_main(archive: Archive, types: Mapping[str, str], kind: re.Pattern[str], name: str) -> str | None:
    """The part that a document of this kind begins with, or None if it is of another kind."""
    parts = [path for path, each in types.items() if kind.fullmatch(each)]
    for relation, path in relationships(archive, "", name).values():
        if relation.endswith("/officeDocument") and path in parts:
            return path
    return next(iter(parts), None)


def relationships(archive: Archive, part: str, name: str) -> Mapping[str, tuple[str, str]]:
    """Where each of a part's relationships leads: by id, its type and the path of the part."""
    folder, file = posixpath.split(part)
    path = posixpath.join(folder, "_rels", f"{file}.rels")
    if path not in archive:
        return {}
    root = parse_part(archive.read(path), f"{name}: {path}").getroot()
    found = (each for each in root.iter(_RELATIONSHIPS) if each.get("TargetMode") != "External")
    return {each.get("Id", ""): (each.get("Type", ""), resolve(folder, each.get("Target", ""))) for each in found}


def resolve(folder: str, target: str) -> str:
    """The path of a member that a part in `folder` refers to, written as in a URL."""
    path = unquote(target.partition("#")[0])
    return posixpath.normpath(posixpath.join(folder, path)) if not path.startswith("/") else path.lstrip("/")
