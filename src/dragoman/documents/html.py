"""HTML as it is found, and XHTML: text and some attributes are replaced in the source, no tree is built.

Blocks end segments, inline elements are marks in them. Everything else keeps its bytes: comments, scripts, white
space, spelling of tags, errors. Unclosed and crossing tags are marks that stand alone.
"""

import bisect
import codecs
import html
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple

from dragoman.documents.document import Document, Mark, Options, Parts, Segment, text_of
from dragoman.documents.spans import (
    BREAK,
    Copy,
    Decoded,
    Edit,
    Piece,
    Run,
    Slot,
    SpanDocument,
    collapse_space,
    decode,
    find_segment,
    line_starts,
    one_line,
)
from dragoman.errors import DataError

BLOCKS = frozenset((
    "address", "article", "aside", "base", "blockquote", "body", "caption", "center", "col", "colgroup", "dd",
    "details", "dialog", "dir", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "frame",
    "frameset", "h1", "h2", "h3", "h4", "h5", "h6", "head", "header", "hgroup", "hr", "html", "legend", "li", "link",
    "listing", "main", "menu", "meta", "nav", "noframes", "noscript", "ol", "optgroup", "option", "p", "plaintext",
    "pre", "search", "section", "select", "summary", "table", "tbody", "td", "template", "textarea", "tfoot", "th",
    "thead", "title", "tr", "ul", "xmp",
))  # fmt: skip
VOID = frozenset((
    "area", "base", "basefont", "bgsound", "br", "col", "embed", "frame", "hr", "img", "input", "keygen", "link",
    "meta", "param", "source", "track", "wbr",
))  # fmt: skip
KEPT = frozenset(("code", "kbd", "samp", "var"))
UNTOUCHED = frozenset((
    "audio", "canvas", "iframe", "listing", "math", "noembed", "noframes", "object", "plaintext", "pre", "script",
    "style", "svg", "textarea", "video", "xmp",
))  # fmt: skip
# tags have no meaning inside these
_RAW = frozenset((
    "iframe", "noembed", "noframes", "plaintext", "script", "style", "textarea", "title", "xmp",
))  # fmt: skip
_ATTRIBUTES = frozenset(("title", "alt", "placeholder", "aria-label"))
_DESCRIPTIONS = frozenset((
    "description", "og:title", "og:description", "og:image:alt", "twitter:title", "twitter:description",
))  # fmt: skip


def parse(content: bytes, options: Options, name: str = "page.html", xhtml: bool | None = None) -> Document:
    """A page, or a chapter of a book with `xhtml=True`. None: XHTML if it says so in its name or first line."""
    decoded = _decode(content, name)
    if xhtml is None:
        xhtml = name.lower().endswith((".xhtml", ".xht")) or decoded.text[decoded.begin :].startswith("<?xml")
    tokens = list(_tokens(decoded.text, xhtml))
    slots = find_slots(decoded.text, tokens, xhtml)
    edits = _language_edits(tokens, options.target_language)
    return SpanDocument(decoded.text, slots, lambda text: text.encode(decoded.encoding, "xmlcharrefreplace"), edits)


def parse_fragment(source: str, xhtml: bool = False) -> list[Slot]:
    """The slots of HTML inside another document, which may begin or end in the middle of an element."""
    return find_slots(source, list(_tokens(source, xhtml)), xhtml)


# Tags


class Attribute(NamedTuple):
    name: str
    start: int  # of its value, with the quotes
    end: int
    value: str  # as written, without the quotes


class Token(NamedTuple):
    kind: Literal["text", "open", "close", "other"]  # other: a comment, a declaration, an instruction, CDATA
    start: int
    end: int
    name: str = ""  # of a tag
    is_single: bool = False  # nothing closes it
    attributes: tuple[Attribute, ...] = ()

    def get(self, name: str) -> str:
        return next((html.unescape(each.value) for each in self.attributes if each.name == name), "")


_SPACES = " \t\r\n\f"
_MARKUP = re.compile(
    rf"<(?:(?P<comment>!--)|(?P<cdata>!\[CDATA\[)|(?P<other>[!?]|/(?![a-zA-Z]))|(?P<close>/?)(?P<tag>[a-zA-Z][^{_SPACES}/>]*))"
)
_COMMENT_END = re.compile(r"--!?>")
_ATTRIBUTE = re.compile(
    rf"""[{_SPACES}/]*(?:(?P<end>>)|(?P<name>[^{_SPACES}/>][^{_SPACES}/>=]*)"""
    rf"""(?:[{_SPACES}]*=[{_SPACES}]*(?P<value>"[^"]*"|'[^']*'|[^{_SPACES}>"'][^{_SPACES}>]*))?)"""
)


def _tokens(source: str, xhtml: bool) -> Iterator[Token]:
    """Cut a source into tokens; joined, they are the source again. Each character is looked at a few times at most."""
    place, unclosed = 0, set[str]()
    while match := _MARKUP.search(source, place):
        if place < match.start():
            yield Token("text", place, match.start())
        if match["tag"] is None:
            token = Token("other", match.start(), _end_of_other(source, match, xhtml))
        else:
            token = _read_tag(source, match, xhtml)
        yield token
        place = token.end
        if token.kind == "open" and token.name in _RAW and not token.is_single and token.name not in unclosed:
            end = _end_of_raw(source, place, token.name)
            if end is None:
                unclosed.add(token.name)
            elif place < end:
                yield Token("text" if token.name == "title" else "other", place, end)
                place = end
    if place < len(source):
        yield Token("text", place, len(source))


def _end_of_other(source: str, match: re.Match[str], xhtml: bool) -> int:
    place = match.end()
    if match["comment"]:
        short = next((mark for mark in (">", "->") if source.startswith(mark, place)), "")
        end = _COMMENT_END.search(source, place)
        return place + len(short) if short else end.end() if end else len(source)
    closing = "]]>" if match["cdata"] and xhtml else "?>" if source.startswith("<?", match.start()) and xhtml else ">"
    found = source.find(closing, match.start() + 2)
    return len(source) if found < 0 else found + len(closing)


def _read_tag(source: str, match: re.Match[str], xhtml: bool) -> Token:
    attributes = []
    place = match.end()
    while (found := _ATTRIBUTE.match(source, place)) and not found["end"]:
        place = found.end()
        if value := found["value"]:
            text = value[1:-1] if value[0] in "\"'" else value
            attributes.append(Attribute(found["name"].lower(), *found.span("value"), text))
    if found is None:  # the file ends inside the tag
        return Token("other", match.start(), len(source))
    name = match["tag"].lower()
    if match["close"]:
        return Token("close", match.start(), found.end(), name)
    is_single = name in VOID or (xhtml and source[found.end() - 2] == "/")
    return Token("open", match.start(), found.end(), name, is_single, tuple(attributes))


def _end_of_raw(source: str, place: int, name: str) -> int | None:
    if name == "plaintext":
        return len(source)
    end = _RAW_ENDS[name].search(source, place)
    if end is None:  # a browser would take the rest for a title; more likely its end is missing
        return None if name in ("title", "textarea") else len(source)
    return end.start()


_RAW_ENDS = {name: re.compile(rf"</{name}(?=[{_SPACES}/>])", re.IGNORECASE) for name in _RAW}


# Segments


def find_slots(source: str, tokens: Sequence[Token], xhtml: bool) -> list[Slot]:
    finder = _Finder(source, tokens, xhtml)
    finder.walk()
    return sorted(finder.slots, key=lambda slot: (slot.start, -slot.end))


class _Finder:
    """Walks over the tokens of a page once and collects slots."""

    def __init__(self, source: str, tokens: Sequence[Token], xhtml: bool) -> None:
        self.source, self.tokens = source, tokens
        self.slots: list[Slot] = []
        self.escapes = _ESCAPES | {ord("\xa0"): "&#160;" if xhtml else "&nbsp;"}
        self._pieces: list[Piece] = []
        self._closes = _match_tags(tokens)
        self._lines = line_starts(source)

    def walk(self) -> None:
        index = 0
        while index < len(self.tokens):
            token = self.tokens[index]
            if token.kind == "text":
                self._pieces.append(_piece(token))
                index += 1
                continue
            if token.kind == "open" and (_is_kept(token) or token.name in UNTOUCHED):
                index = self._skip(index)
                continue
            if token.attributes:
                self._add_attributes(token)
            if token.name in BLOCKS:
                self._end_segment()
            elif token.name == BREAK and self._follows_break():
                self._end_segment()  # two breaks in a row stand between paragraphs
            else:
                self._pieces.append(_piece(token))
            index += 1
        self._end_segment()

    def _skip(self, index: int) -> int:
        """Take an element that is not translated as a whole, and return the index after it."""
        token, close = self.tokens[index], self._closes.get(index)
        if token.name in BLOCKS:
            self._end_segment()
            if close is None and not token.is_single:  # to the next block, as if that one closed it
                return next(
                    (at for at in range(index + 1, len(self.tokens)) if self.tokens[at].name in BLOCKS),
                    len(self.tokens),
                )
            return (index if close is None else close) + 1
        if close is None:
            self._pieces.append(Piece("single", token.start, token.end))
            return index + 1
        inside = self.tokens[index + 1 : close]
        end = self.tokens[close].end
        if token.name not in UNTOUCHED and any(each.name in BLOCKS for each in inside):
            self._end_segment()
            return close + 1
        text = "".join(self.source[each.start : each.end] for each in inside if each.kind == "text")
        text = "" if token.name in UNTOUCHED else read_text(text).strip()
        self._pieces.append(Piece("kept" if text else "single", token.start, end, text=text))
        return close + 1

    def _follows_break(self) -> bool:
        for piece in reversed(self._pieces):
            if piece.kind == "text" and not self.source[piece.start : piece.end].strip():
                continue
            return piece.name == BREAK
        return False

    def _end_segment(self) -> None:
        run = find_segment(self.source, self._pieces, read_text, entities=True) if self._pieces else None
        self._pieces = []
        if run is not None:
            segment = Segment(run.parts, self._place(run.start))
            self.slots.append(Slot(run.start, run.end, segment, partial(self._write, run)))

    def _write(self, run: Run, parts: Parts, copy: Copy) -> str:
        return "".join(
            one_line(part).translate(self.escapes)
            if isinstance(part, str)
            else copy(*run.markup[part if isinstance(part, Mark) else part.number])
            for part in parts
        )

    def _add_attributes(self, token: Token) -> None:
        seen = set()
        for attribute in token.attributes:
            if attribute.name in seen or not _is_text(token, attribute.name):
                continue
            seen.add(attribute.name)
            quote = attribute.end - attribute.start > len(attribute.value)
            whole = Piece("text", attribute.start + quote, attribute.end - quote)
            run = find_segment(self.source, [whole], read_text, entities=True)
            if run is not None:
                place = f"{self._place(token.start)}, {attribute.name}"
                mark = self.source[attribute.start] if quote else '"'
                before = mark + self.source[whole.start : run.start]
                after = self.source[run.end : whole.end] + mark
                write = partial(self._write_attribute, before, after)
                self.slots.append(Slot(attribute.start, attribute.end, Segment(run.parts, place), write, is_inner=True))

    def _write_attribute(self, before: str, after: str, parts: Parts, copy: Copy) -> str:
        quote = before[0]
        text = one_line(text_of(parts)).translate(self.escapes).replace(quote, _QUOTES[quote])
        return f"{before}{text}{after}"

    def _place(self, start: int) -> str:
        return f"line {bisect.bisect_right(self._lines, start)}"


_ESCAPES = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}
_QUOTES = {'"': "&quot;", "'": "&#39;"}


def read_text(source: str) -> str:
    return collapse_space(html.unescape(source) if "&" in source else source)


def _match_tags(tokens: Sequence[Token]) -> dict[int, int]:
    """For each open tag the tag of the same name that closes it, by index."""
    closes: dict[int, int] = {}
    opened: dict[str, list[int]] = {}
    for index, token in enumerate(tokens):
        if token.kind == "open" and not token.is_single:
            opened.setdefault(token.name, []).append(index)
        elif token.kind == "close" and opened.get(token.name):
            closes[opened[token.name].pop()] = index
    return closes


def _piece(token: Token) -> Piece:
    if token.kind == "text":
        return Piece("text", token.start, token.end)
    if token.kind == "other" or token.is_single:
        return Piece("single", token.start, token.end, token.name)
    return Piece(token.kind, token.start, token.end, token.name)


def _is_kept(token: Token) -> bool:
    if token.name in KEPT:
        return True
    return bool(token.attributes) and (
        token.get("translate").strip().lower() == "no" or "notranslate" in token.get("class").split()
    )


def _is_text(token: Token, attribute: str) -> bool:
    if token.name == "meta":
        return attribute == "content" and (token.get("name") or token.get("property")).lower() in _DESCRIPTIONS
    if token.name == "input" and attribute == "value":
        return token.get("type").lower() in ("submit", "button", "reset")
    return attribute in _ATTRIBUTES


def _language_edits(tokens: Sequence[Token], language: str) -> list[Edit]:
    root = next((token for token in tokens if token.kind == "open" and token.name == "html"), None)
    if root is None or not language:
        return []
    value = html.escape(language)
    return [Edit(each.start, each.end, f'"{value}"') for each in root.attributes if each.name in ("lang", "xml:lang")]


# Bytes


_DECLARED = re.compile(
    rb"""^(?:\xef\xbb\xbf)?\s*<\?xml[^>]*?encoding\s*=\s*["']([\w.:-]+)|<meta[^>]*?charset\s*=\s*["']?\s*([\w.:-]+)""",
    re.IGNORECASE | re.ASCII,
)
_CHARSETS = (
    "utf-8", "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp874",
    "iso8859-2", "iso8859-3", "iso8859-4", "iso8859-5", "iso8859-6", "iso8859-7", "iso8859-8", "iso8859-10",
    "iso8859-13", "iso8859-14", "iso8859-15", "iso8859-16", "koi8-r", "koi8-u", "mac-roman", "cp866", "gb2312", "gbk",
    "gb18030", "big5", "euc_jp", "iso2022_jp", "shift_jis", "euc_kr",
)  # fmt: skip


def _decode(content: bytes, name: str) -> Decoded:
    """Text in the charset that its first bytes declare; UTF-8 if none is declared."""
    match = _DECLARED.search(content[:1024])
    label = (match[1] or match[2]).decode("ascii") if match else "utf-8"
    charset = _charset(label)
    if charset is None:
        raise DataError(f"{name}: unknown charset {label}; save it as UTF-8 and declare that")
    decoded = decode(content, name, charset)
    if decoded.encoding != "utf-8" and decoded.encode(decoded.text) != content:
        raise DataError(f"{name}: its {label} has two spellings of a character; save it as UTF-8 and declare that")
    return decoded


def _charset(label: str) -> str | None:
    """The codec for a charset as browsers take it: Latin-1 means Windows-1252, UTF-16 without a mark means UTF-8."""
    try:
        codec = codecs.lookup(label).name
    except LookupError:
        return None
    codec = {"iso8859-1": "cp1252", "ascii": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874"}.get(codec, codec)
    return "utf-8" if codec.startswith("utf-16") else codec if codec in _CHARSETS else None
