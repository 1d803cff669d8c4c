"""TMX 1.4: a variant in the target language for each unit that has none. Inline markup is in inline_xml.py.

Whatever is not a variant in the target language stays byte for byte.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lxml import etree

from dragoman.documents.document import Options, Parts, Segment
from dragoman.documents.inline_xml import Code, Flow, Wrap, describe_code, has_content, pair_flows, read_flow
from dragoman.documents.languages import check_tag, matches
from dragoman.documents.xml_text import XML, Edit, XmlText
from dragoman.errors import DataError

_ANY = "*all*"  # what a file says that has no source language


@dataclass(frozen=True)
class _Unit:
    source: etree._Element  # the seg
    target: etree._Element | None  # the seg, if there is a tuv for it
    last: etree._Element  # the last tuv of the unit
    flow: Flow


class TmxDocument:
    def __init__(self, file: XmlText, language: str, units: Sequence[_Unit]) -> None:
        self._file, self._language, self._units = file, language, units
        self._flows = tuple(flow for unit in units for flow in unit.flow.all())
        self.segments: Sequence[Segment] = tuple(flow.segment() for flow in self._flows)

    def render(self, translations: Sequence[Parts | None]) -> bytes:
        given = pair_flows(self._flows, translations)
        return self._file.render(self._edit(unit, given) for unit in self._units if unit.flow.is_translated(given))

    def _edit(self, unit: _Unit, given: Mapping[Flow, Parts]) -> Edit:
        file = self._file
        content = unit.flow.render(given)
        if unit.target is not None:
            return file.replace(unit.target, f"{file.start_tag(unit.target)}{content}{file.end_tag(unit.target)}")
        around = unit.source.getparent()
        assert around is not None
        variant, inside = file.indentation(around), file.indentation(unit.source)
        attribute = "xml:lang" if around.get(XML + "lang") is not None else "lang"
        end = variant if inside else ""
        text = f'{variant}<tuv {attribute}="{self._language}">{inside}<seg>{content}</seg>{end}</tuv>'
        return file.insert_after(unit.last, text)


def parse(content: bytes, options: Options, name: str = "the TMX file") -> TmxDocument:
    check_tag(options.source_language, "source language")
    check_tag(options.target_language, "target language")
    file = XmlText(content, name)
    if file.root.tag != "tmx":
        raise DataError(f"{name}: not a TMX file; its root element is {etree.QName(file.root).localname}")
    if not options.target_language:
        raise DataError(f"{name}: the target language is missing; a TMX file may hold several, so give one")
    return TmxDocument(file, options.target_language.replace("_", "-"), tuple(_units(file, options)))


def _units(file: XmlText, options: Options) -> Iterator[_Unit]:
    header = file.root.find("header")
    default = "" if header is None else header.get("srclang", "")
    found: set[str] = set()
    has_source = False
    for unit in file.root.iterfind("body/tu"):
        language = options.source_language or unit.get("srclang", default)
        if not language or language == _ANY:
            raise DataError(f"{file.place(unit)}: the file names no source language; give one")
        if matches(language, options.target_language):
            raise DataError(f"{file.place(unit)}: source and target language are both {language}; give two")
        variants = unit.findall("tuv")
        found.update(_language(variant) for variant in variants)
        source, target = (_find(file, variants, each) for each in (language, options.target_language))
        if source is None:
            continue
        has_source = True
        if target is None or options.all or not has_content(target):
            flow = read_flow(file, source, _describe, keep_space=True)
            yield _Unit(source, target, variants[-1], flow)
    if found and not has_source:
        raise DataError(f"{file.name}: has no text in {language!r}; its languages are {', '.join(sorted(found))}")


def _language(variant: etree._Element) -> str:
    return variant.get(XML + "lang") or variant.get("lang") or ""  # TMX before 1.4 writes lang


def _find(file: XmlText, variants: Sequence[etree._Element], language: str) -> etree._Element | None:
    """The seg in a language: of the same tag if there is one, else of one that says more or less (`en`, `en-US`)."""
    wanted = language.lower().replace("_", "-")
    same = [each for each in variants if _language(each).lower().replace("_", "-") == wanted]
    if len(same) > 1:
        raise DataError(f"{file.place(same[1])}: the unit has two variants in {language}; remove one")
    variant = next(iter(same or (each for each in variants if matches(_language(each), language))), None)
    if variant is None:
        return None
    segment = variant.find("seg")
    if segment is None:
        raise DataError(f"{file.place(variant)}: a tuv has no seg; add one")
    return segment


def _describe(element: etree._Element) -> Wrap | Code:
    match element.tag:
        case "bpt":
            return Code("begin", element.get("i"))
        case "ept":
            return Code("end", element.get("i"))
        case "it" | "ut":
            return Code()
        case "ph":
            return describe_code("".join([element.text or "", *(child.tail or "" for child in element)]))
        case _:
            return Wrap()  # hi
