"""PowerPoint presentations: slides with their tables and diagrams, and notes. Layouts and charts stay as they are.

A paragraph is a segment, and each of its lines is translated alone. A field (the date, the number of the slide) is
kept as it is.
"""

import copy
import re
from collections.abc import Iterator, Sequence

from lxml import etree

from dragoman.documents.archives import Archive
from dragoman.documents.document import Document, Options
from dragoman.documents.package import (
    Format,
    Package,
    append,
    content_types,
    find_main,
    grouped,
    local_name,
    own_text,
    parse_part,
    read_format,
    relationships,
    xml_member,
    xml_text,
)
from dragoman.documents.runs import Fixed, Item, Nested, Text
from dragoman.errors import DataError

_DRAWING = ("http://schemas.openxmlformats.org/drawingml/2006/main", "http://purl.oclc.org/ooxml/drawingml/main")
_MAIN = re.compile(r".*(presentationml|ms-powerpoint)\.(presentation|slideshow|template)(\.macroEnabled)?\.main\+xml")
_SLIDE = "presentationml.slide+xml"
# what a slide refers to: a diagram is stored twice, as data and as PowerPoint has drawn it
_WITH_SLIDE = {"notesSlide": "notes of slide", "diagramData": "diagram of slide", "diagramDrawing": "diagram of slide"}
_UNSEEN = ("lang", "altLang", "noProof", "dirty", "err", "smtClean", "smtId", "bmk")  # spelling and bookkeeping


def parse(content: bytes, options: Options, name: str = "slides.pptx") -> Document:
    archive = Archive(content, name)
    types = content_types(archive, name)
    main = find_main(archive, types, _MAIN, name)
    if main is None:
        raise DataError(f"{name}: holds no PowerPoint presentation; check that it is the file you mean")
    slides = [
        path for path in _in_order(archive, main, name) if types.get(path, "").endswith(_SLIDE) and path in archive
    ]
    labels: dict[str, str] = {}  # by path, in reading order
    for number, slide in enumerate(slides, 1):
        labels.setdefault(slide, f"slide {number}")
        for kind, path in relationships(archive, slide, name).values():
            label = _WITH_SLIDE.get(kind.rpartition("/")[2])
            if label is not None and path in archive:
                labels.setdefault(path, f"{label} {number}")
    return Package(archive, [xml_member(archive, path, label, name, _PowerPoint) for path, label in labels.items()])


def _in_order(archive: Archive, main: str, name: str) -> Iterator[str]:
    """The slides as they are shown, which is not the order of their names."""
    targets = relationships(archive, main, name)
    for slide in parse_part(archive.read(main), f"{name}: {main}").getroot().iter("{*}sldId"):
        for key, value in slide.attrib.items():
            if etree.QName(key).localname == "id" and value in targets:
                yield targets[str(value)][1]


def _name(node: etree._Element) -> str:
    return local_name(node, _DRAWING)


class _PowerPoint:
    def __init__(self, root: etree._Element) -> None:
        self._root = root

    def paragraphs(self) -> Iterator[etree._Element]:
        for namespace in _DRAWING:
            yield from self._root.iter(f"{{{namespace}}}p")

    def read(self, paragraph: etree._Element) -> list[Item]:
        return list(_read(paragraph))

    def write(self, paragraph: etree._Element, items: Sequence[Item]) -> None:
        last = next((child for child in paragraph if _name(child) == "endParaRPr"), None)
        for child in list(paragraph):
            if _name(child) != "pPr":
                paragraph.remove(child)
        for group in grouped(items):
            assert not isinstance(group, Nested)  # a hyperlink is a style here
            style, run_items = group
            for item in run_items if style is None else ():
                if isinstance(item, Fixed):
                    append(paragraph, item.content)
            texts = (xml_text(each.text) if isinstance(each, Text) else each.content for each in run_items)
            text = "".join(each for each in texts if isinstance(each, str))
            if text:
                _append_run(paragraph, style, text)
        if last is not None:
            append(paragraph, last)


def _read(paragraph: etree._Element) -> Iterator[Item]:
    for child in paragraph:
        name = _name(child)
        text = "".join(own_text(each) for each in child if _name(each) == "t")
        if name == "r":
            properties = next((each for each in child if _name(each) == "rPr"), None)
            style = read_format(properties, lambda key: key in _UNSEEN)
            for place, piece in enumerate(text.split("\t")):  # a tab is a character here
                if place:
                    yield Fixed("\t", style, is_space=True)
                yield Text(piece, style)
        elif name not in ("pPr", "endParaRPr"):
            yield Fixed(child, text=text if name == "fld" else "", is_break=name == "br")


def _append_run(paragraph: etree._Element, style: Format | None, text: str) -> None:
    namespace = etree.QName(paragraph).namespace
    run = etree.SubElement(paragraph, f"{{{namespace}}}r")
    if style is not None and style.element is not None:
        append(run, copy.deepcopy(style.element))
    etree.SubElement(run, f"{{{namespace}}}t").text = text
