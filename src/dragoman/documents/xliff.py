"""XLIFF 1.2 and 2.x: a target for each source that has none. Inline markup is in inline_xml.py.

A target that is empty, or that the file itself calls new or in need of work, is replaced. One without a state may be
a person's work: it stays unless the user asks for all. Whatever is not a target stays byte for byte, but for the state
of a segment and the target language of a file that has none.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lxml import etree

from dragoman.documents.document import Options, Parts, Segment
from dragoman.documents.inline_xml import (
    Code,
    Flow,
    Wrap,
    describe_code,
    has_content,
    keeps_space,
    pair_flows,
    read_flow,
)
from dragoman.documents.languages import check_agreement, check_tag
from dragoman.documents.xml_text import XML, Edit, XmlText, with_attributes
from dragoman.errors import DataError

_NAMESPACE = "urn:oasis:names:tc:xliff:document:"
_WRAPS = frozenset(("g", "mrk", "pc"))
_BEGINS, _ENDS = frozenset(("bpt", "bx", "sc")), frozenset(("ept", "ex", "ec"))
_ALONE = frozenset(("it", "cp", "sm", "em"))
_REVIEW_2 = "dragoman:needs-review"  # XLIFF 2 has no state for it, but lets a tool add its own


@dataclass(frozen=True)
class _Unit:
    """A source and its target. Of a source in segments, each has a flow."""

    source: etree._Element
    target: etree._Element | None
    holder: etree._Element  # what has the attribute `state` in XLIFF 2, and `approved` in 1.2
    flows: Mapping[etree._Element, Flow]  # by the element that holds the text: `source`, or `mrk` within `seg-source`


class XliffDocument:
    def __init__(self, file: XmlText, options: Options, version: int, units: Sequence[_Unit]) -> None:
        self._file, self._options, self._version, self._units = file, options, version, units
        self._flows = tuple(flow for unit in units for each in unit.flows.values() for flow in each.all())
        self.segments: Sequence[Segment] = tuple(flow.segment() for flow in self._flows)

    def render(self, translations: Sequence[Parts | None]) -> bytes:
        given = pair_flows(self._flows, translations)
        edits = [edit for unit in self._units for edit in self._edits(unit, given)]
        if edits:
            edits += _language_edits(self._file, self._version, self._options)
        return self._file.render(edits)

    def _edits(self, unit: _Unit, given: Mapping[Flow, Parts]) -> Iterator[Edit]:
        if not any(flow.is_translated(given) for flow in unit.flows.values()):
            return
        file, target = self._file, unit.target
        content, is_complete = _content(file, unit, given)
        states = _states_1(unit, self._options.fuzzy, is_complete) if self._version == 1 else {}
        if target is not None:
            start = with_attributes(file.start_tag(target), states)
            yield file.replace(target, f"{start}{content}{file.end_tag(target)}")
        else:
            name = file.tag_name(unit.source)
            name = name[: len(name) - len(etree.QName(unit.source).localname)] + "target"
            if unit.source.get(XML + "space"):
                states = {"xml:space": unit.source.get(XML + "space"), **states}
            start = with_attributes(f"<{name}{file.namespaces(unit.source)}>", states)
            yield file.insert_after(unit.source, f"{file.indentation(unit.source)}{start}{content}</{name}>")
        if self._version == 2:
            review = _REVIEW_2 if self._options.fuzzy else None
            yield file.replace_start_tag(unit.holder, {"state": "translated", "subState": review})
        elif unit.holder.get("approved") == "yes":  # nobody has approved this one
            yield file.replace_start_tag(unit.holder, {"approved": "no"})


def parse(content: bytes, options: Options, name: str = "the XLIFF file") -> XliffDocument:
    check_tag(options.source_language, "source language")
    check_tag(options.target_language, "target language")
    file = XmlText(content, name)
    version = _version(file)
    _check_languages(file, version, options)
    units = tuple(_units_1(file, options) if version == 1 else _units_2(file, options))
    document = XliffDocument(file, options, version, units)
    if version == 2 and units and not file.root.get("trgLang") and not options.target_language:
        raise DataError(f"{name}: names no target language (trgLang); give one")
    return document


def _version(file: XmlText) -> int:
    root = etree.QName(file.root)
    namespace = root.namespace or ""
    version = file.root.get("version") or namespace.removeprefix(_NAMESPACE)
    if (
        root.localname == "xliff"
        and (not namespace or namespace.startswith(_NAMESPACE))
        and version[:2] in ("1.", "2.")
    ):
        return int(version[0])
    raise DataError(f"{file.name}: not an XLIFF file of version 1.2, 2.0 or 2.1; check its root element and version")


def _name(element: etree._Element) -> str:
    """The name of an element of XLIFF; of one of another namespace, empty."""
    if not isinstance(element.tag, str):
        return ""
    name = etree.QName(element)
    namespace = name.namespace or ""
    return name.localname if not namespace or namespace.startswith(_NAMESPACE) else ""


def _child(element: etree._Element, name: str) -> etree._Element | None:
    return next((child for child in element if _name(child) == name), None)


def _is_translatable(element: etree._Element) -> bool:
    nearest = (each.get("translate") for each in (element, *element.iterancestors()) if each.get("translate"))
    return next(nearest, "yes") != "no"


def _all(file: XmlText, name: str) -> Iterator[etree._Element]:
    """The elements of a name. Each has an id of its own within its file."""
    seen: dict[tuple[etree._Element, str], etree._Element] = {}
    for element in file.root.iter(f"{{*}}{name}"):
        if _name(element) != name:
            continue
        identity = element.get("id")
        if identity is not None:
            around = next((each for each in element.iterancestors() if _name(each) == "file"), file.root)
            first = seen.setdefault((around, identity), element)
            if first is not element:
                first_line = file.line(first)
                raise DataError(
                    f"{file.place(element)}: {name} id {identity!r} is used on line {first_line}, too; rename one"
                )
        yield element


def _units_1(file: XmlText, options: Options) -> Iterator[_Unit]:
    for element in _all(file, "trans-unit"):
        source, target = _child(element, "source"), _child(element, "target")
        if source is None:
            raise DataError(f"{file.place(element)}: trans-unit {element.get('id', '')!r} has no source; add one")
        if not _is_translatable(element):
            continue
        segmented = _child(element, "seg-source")
        parts = [] if segmented is None else list(_segment_marks(segmented))
        if segmented is None or not parts:
            if _is_open_1(element, target, options):
                yield _Unit(source, target, element, {source: _read_1(file, source)})
            continue
        done = {mid for mid, part in _segment_targets(target).items() if has_content(part)}
        if _is_open_1(element, target, options):
            done = set()
        flows = {part: _read_1(file, part) for part in parts if part.get("mid", "") not in done}
        if flows:
            yield _Unit(segmented, target, element, flows)


def _is_open_1(unit: etree._Element, target: etree._Element | None, options: Options) -> bool:
    """Whether the target of a unit is to be replaced as a whole."""
    if options.all or target is None or not has_content(target):
        return True
    state = target.get("state", "")
    return unit.get("approved") != "yes" and (state == "new" or state.startswith("needs-"))


def _segment_marks(element: etree._Element) -> Iterator[etree._Element]:
    """The outermost segments of a `seg-source` or a segmented target."""
    for child in element:
        if _name(child) == "mrk" and child.get("mtype") == "seg":
            yield child
        elif isinstance(child.tag, str):
            yield from _segment_marks(child)


def _segment_targets(target: etree._Element | None) -> dict[str, etree._Element]:
    return {} if target is None else {part.get("mid", ""): part for part in _segment_marks(target)}


def _read_1(file: XmlText, element: etree._Element) -> Flow:
    return read_flow(file, element, _describe_1, keeps_space(element))


def _describe_1(element: etree._Element) -> Wrap | Code:
    name, native = _name(element), "".join(_own_texts(element))
    if name in _BEGINS or name in _ENDS:
        key = (name in ("bpt", "ept"), element.get("rid") or element.get("id"))
        return Code("begin" if name in _BEGINS else "end", key)
    if name == "mrk" and element.get("mtype") == "protected":
        return Code(text="".join(element.itertext()).strip())
    if name in ("x", "ph"):
        return describe_code(native, element.get("equiv-text"))
    return _describe_other(element)


def _describe_other(element: etree._Element) -> Wrap | Code:
    """One that holds text, or one of another namespace: what it holds is for the reader, as far as we can know."""
    if _name(element) in _ALONE:
        return Code()
    return Wrap() if _name(element) in _WRAPS or "".join(element.itertext()).strip() else Code()


def _own_texts(element: etree._Element) -> Iterator[str]:
    """The native code in an element, without the texts of its sub elements."""
    yield element.text or ""
    for child in element:
        yield child.tail or ""


def _states_1(unit: _Unit, needs_review: bool, is_complete: bool) -> dict[str, str | None]:
    done = "needs-review-translation" if needs_review else "translated"
    states: dict[str, str | None] = {"state": done if is_complete else "needs-translation"}
    if unit.target is not None and unit.target.get("state-qualifier"):  # it told where the old one came from
        states["state-qualifier"] = "mt-suggestion"
    return states


def _content(file: XmlText, unit: _Unit, given: Mapping[Flow, Parts]) -> tuple[str, bool]:
    """The content of a target, and whether all of it is translated."""
    whole = unit.flows.get(unit.source)
    if whole is not None:
        return whole.render(given), True
    done = _segment_targets(unit.target)
    start = file.span(unit.source).content_start
    pieces, is_complete = [], True
    for part in _segment_marks(unit.source):
        flow, old, span = unit.flows.get(part), done.get(part.get("mid", "")), file.span(part)
        if flow is not None and flow.is_translated(given):
            text = flow.render(given)
        else:
            text = "" if old is None else file.inner(old)
        is_complete = is_complete and (bool(text.strip()) or flow is None or not flow.has_words)
        pieces += [file.text[start : span.start], file.start_tag(part), text, file.end_tag(part)]
        start = span.end
    return "".join(pieces) + file.text[start : file.span(unit.source).content_end], is_complete


def _units_2(file: XmlText, options: Options) -> Iterator[_Unit]:
    for unit in _all(file, "unit"):
        if not _is_translatable(unit):
            continue
        describe = _Describe2(_original_data(unit))
        for segment in (child for child in unit if _name(child) == "segment"):
            source, target = _child(segment, "source"), _child(segment, "target")
            if source is None:
                raise DataError(f"{file.place(segment)}: segment of unit {unit.get('id', '')!r} has no source; add one")
            if options.all or target is None or not has_content(target) or segment.get("state") == "initial":
                flow = read_flow(file, source, describe, keeps_space(source))
                yield _Unit(source, target, segment, {source: flow})


def _original_data(unit: etree._Element) -> dict[str, str]:
    data = _child(unit, "originalData")
    return (
        {} if data is None else {each.get("id", ""): "".join(each.itertext()) for each in data if _name(each) == "data"}
    )


@dataclass(frozen=True)
class _Describe2:
    data: Mapping[str, str]

    def __call__(self, element: etree._Element) -> Wrap | Code:
        name = _name(element)
        if name in ("sc", "ec"):
            if element.get("isolated") == "yes":
                return Code()
            return Code("begin" if name == "sc" else "end", element.get("startRef") or element.get("id"))
        if name == "mrk" and element.get("translate") == "no":
            return Code(text="".join(element.itertext()).strip())
        if name == "ph":
            return describe_code(self.data.get(element.get("dataRef", ""), ""), element.get("equiv"))
        return _describe_other(element)


def _check_languages(file: XmlText, version: int, options: Options) -> None:
    for element, source, target in _languages(file, version):
        place = file.place(element)
        check_agreement(place, source, element.get(source, ""), options.source_language)
        check_agreement(place, target, element.get(target, ""), options.target_language)


def _languages(file: XmlText, version: int) -> list[tuple[etree._Element, str, str]]:
    """The elements that name languages, and the names of the attributes."""
    if version == 2:
        return [(file.root, "srcLang", "trgLang")]
    return [(each, "source-language", "target-language") for each in file.root if _name(each) == "file"]


def _language_edits(file: XmlText, version: int, options: Options) -> list[Edit]:
    language = options.target_language.replace("_", "-")
    return [
        file.replace_start_tag(element, {attribute: language})
        for element, _, attribute in _languages(file, version)
        if language and not element.get(attribute)
    ]
