"""Word documents: text, headers, footers, notes, comments and text boxes. Styles and pictures stay as they are.

A paragraph is a segment, and each of its lines is translated alone. A field (a page number, a reference) is kept as it
is, except for a hyperlink's text. Deleted and hidden text stays as it is; inserted text is text.
"""

import copy
import re
from collections.abc import Iterator, Sequence

from lxml import etree

from dragoman.documents.archives import Archive
from dragoman.documents.document import Document, Options
from dragoman.documents.package import (
    Package,
    append,
    content_types,
    find_main,
    grouped,
    local_name,
    order_pairs,
    own_text,
    read_format,
    xml_member,
    xml_text,
)
from dragoman.documents.runs import Fixed, Item, Nested, Text
from dragoman.errors import DataError

_WORD = (
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    "http://purl.oclc.org/ooxml/wordprocessingml/main",  # "Strict Open XML Document"
)
_MAIN = re.compile(r".*(wordprocessingml|ms-word)\.(document|template)(\.macroEnabled\w*)?\.main\+xml")
_OTHERS = (".header+xml", ".footer+xml", ".footnotes+xml", ".endnotes+xml", ".comments+xml")
_SPACE = "{http://www.w3.org/XML/1998/namespace}space"
_NESTED = {"hyperlink", "ins", "moveTo", "smartTag", "customXml", "dir", "bdo", "sdt", "fldSimple"}
_PROPERTIES = {"pPr", "rPr", "sdtPr", "sdtEndPr", "smartTagPr", "customXmlPr", "fldData"}
_DROPPED = {"proofErr", "lastRenderedPageBreak", "softHyphen"}  # of no use in another language
_SPACES, _BREAKS = {"tab", "ptab"}, {"br", "cr"}
_NO_BREAK_HYPHEN = "\u2011"
_UNSEEN = ("lang", "noProof")  # what a run says of spelling; it splits runs that look the same


def parse(content: bytes, options: Options, name: str = "document.docx") -> Document:
    archive = Archive(content, name)
    types = content_types(archive, name)
    main = find_main(archive, types, _MAIN, name)
    if main is None:
        raise DataError(f"{name}: holds no Word document; check that it is the file you mean")
    others = [path for ending in _OTHERS for path, kind in types.items() if kind.endswith(ending)]
    parts = [main, *(path for path in others if path in archive)]
    labels = {path: "" if path == main else path.rpartition("/")[2].removesuffix(".xml") for path in parts}
    return Package(archive, [xml_member(archive, path, label, name, _Word) for path, label in labels.items()])


def _name(node: etree._Element) -> str:
    return local_name(node, _WORD)


class _Word:
    def __init__(self, root: etree._Element) -> None:
        self._root = root

    def paragraphs(self) -> Iterator[etree._Element]:
        for namespace in _WORD:
            for paragraph in self._root.iter(f"{{{namespace}}}p"):
                if not any(_name(each) in ("del", "moveFrom") for each in paragraph.iterancestors()):
                    yield paragraph

    def read(self, paragraph: etree._Element) -> list[Item]:
        return _read(paragraph)

    def write(self, paragraph: etree._Element, items: Sequence[Item]) -> None:
        _write(paragraph, items)
        order_pairs(paragraph)


# Reading


def _read(parent: etree._Element) -> list[Item]:
    items: list[Item] = []
    for child in parent:
        name = _name(child)
        if name == "r":
            items.extend(_read_run(child))
        elif name in _NESTED:
            content = _content(child)
            nested = Nested(child, tuple(_read(content)))
            if name == "fldSimple" and not _is_link(_instruction(child)):
                items.append(Fixed(child, text=_visible(nested.items)))
            else:
                items.append(nested)
        elif name not in _PROPERTIES and name not in _DROPPED:
            items.append(Fixed(child))
    return _with_fields(items)


def _content(element: etree._Element) -> etree._Element:
    """Where the runs are: an sdt has an element of its own for them."""
    return next((child for child in element if _name(child) == "sdtContent"), element)


def _read_run(run: etree._Element) -> Iterator[Item]:
    properties = next((child for child in run if _name(child) == "rPr"), None)
    style = read_format(properties, lambda key: key.rpartition("}")[2] in _UNSEEN)
    hidden = properties is not None and any(_name(each) == "vanish" and _is_on(each) for each in properties)
    for child in run:
        name = _name(child)
        if name in ("t", "noBreakHyphen") and not hidden:
            yield Text(_NO_BREAK_HYPHEN if name == "noBreakHyphen" else _text(child), style)
        elif name == "ruby":
            yield Fixed(child, style, text=_base_text(child))
        elif name not in _PROPERTIES and name not in _DROPPED:
            yield Fixed(child, style, is_space=name in _SPACES, is_break=name in _BREAKS)


def _text(element: etree._Element) -> str:
    text = own_text(element)
    return text if element.get(_SPACE) == "preserve" else text.strip(" \t\r\n")  # as Word does


def _base_text(ruby: etree._Element) -> str:
    """The characters that have their reading above them."""
    bases = (each for each in ruby if _name(each) == "rubyBase")
    return "".join(_text(each) for base in bases for each in base.iter() if _name(each) == "t")


def _is_on(element: etree._Element) -> bool:
    values = [value for key, value in element.attrib.items() if etree.QName(key).localname == "val"]
    return not values or values[0] not in ("0", "false", "off")


# Fields: a run with fldChar begin, the instruction, perhaps separate and the result, and end. They may be nested.


def _with_fields(items: list[Item]) -> list[Item]:
    """The items with each field as one. A field that goes on in another paragraph, such as a table of contents, has
    only its instruction replaced: what it shows is text."""
    found: list[Item] = []
    open_fields: list[list[int]] = []  # of each, where it begins and where its result does
    for item in items:
        kind = _field_char(item)
        found.append(item)
        if kind == "begin":
            open_fields.append([len(found) - 1, 0])
        elif kind == "separate" and open_fields:
            open_fields[-1][1] = len(found)
        elif kind == "end" and open_fields:
            start, result = open_fields.pop()
            found[start:] = [_field(found[start:], result - start)]
    for start, result in reversed(open_fields):
        stop = result or len(found)
        found[start:stop] = [Fixed(tuple(found[start:stop]))]
    return found


def _field(items: list[Item], result: int) -> Item:
    if result <= 0:
        return Fixed(tuple(items))  # nothing to see: an index entry
    head, shown, tail = tuple(items[:result]), tuple(items[result:-1]), tuple(items[-1:])
    code = "".join(own_text(each.content) for each in head if isinstance(each, Fixed) and _is_code(each))
    if _is_link(code):
        return Nested(None, shown, head, tail)
    return Fixed(tuple(items), text=_visible(shown))


def _field_char(item: Item) -> str:
    if not isinstance(item, Fixed) or isinstance(item.content, tuple) or _name(item.content) != "fldChar":
        return ""
    values = (value for key, value in item.content.attrib.items() if etree.QName(key).localname == "fldCharType")
    return str(next(values, ""))


def _is_code(item: Fixed) -> bool:
    return not isinstance(item.content, tuple) and _name(item.content) == "instrText"


def _instruction(field: etree._Element) -> str:
    return str(next((value for key, value in field.attrib.items() if etree.QName(key).localname == "instr"), ""))


def _is_link(instruction: str) -> bool:
    return instruction.split()[:1] == ["HYPERLINK"]


def _visible(items: Sequence[Item]) -> str:
    return "".join(_visible(item.items) if isinstance(item, Nested) else item.text for item in items)


# Writing


def _write(parent: etree._Element, items: Sequence[Item]) -> None:
    for child in list(parent):
        if _name(child) not in _PROPERTIES:
            parent.remove(child)
        else:
            child.tail = None
    parent.text = None
    _append_items(parent, items)


def _append_items(parent: etree._Element, items: Sequence[Item]) -> None:
    for group in grouped(items):
        if isinstance(group, Nested):
            inside = (*group.head, *group.items, *group.tail)
            if group.content is None:
                _append_items(parent, inside)
            else:
                append(parent, group.content)
                _write(_content(group.content), inside)
            continue
        style, run_items = group
        for item in run_items if style is None else ():
            if isinstance(item, Text):
                _append_run(parent, None, [item])
            elif isinstance(item.content, tuple):
                _append_items(parent, item.content)
            else:
                append(parent, item.content)
        if style is not None:
            _append_run(parent, style.element, run_items)


def _append_run(parent: etree._Element, properties: etree._Element | None, items: Sequence[Text | Fixed]) -> None:
    namespace = etree.QName(parent).namespace
    run = etree.SubElement(parent, f"{{{namespace}}}r")
    if properties is not None:
        append(run, copy.deepcopy(properties))
    for item in items:
        if isinstance(item, Fixed):
            append(run, item.content)
            continue
        for place, piece in enumerate(xml_text(item.text).split(_NO_BREAK_HYPHEN)):
            if place:
                etree.SubElement(run, f"{{{namespace}}}noBreakHyphen")
            if piece:
                element = etree.SubElement(run, f"{{{namespace}}}t")
                element.text = piece
                if piece != piece.strip():
                    element.set(_SPACE, "preserve")
