"""The inlines of CommonMark: where emphasis, links, code and the like lie in the text of a block.

What is not found to be markup is text. The scan is linear: a search that failed once is not repeated.
"""

import html
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Container
from dataclasses import dataclass

from dragoman.documents.html import KEPT, VOID
from dragoman.documents.markdown_blocks import CLOSE_TAG, OPEN_TAG, normalize_label
from dragoman.documents.spans import BREAK, Piece, collapse_space, pair

_INTERESTING = re.compile(r"[\\`*_~!\[\]<\n{:$]")  # one set of characters, which `re` finds fast
_SPECIAL = re.compile(
    r"""\\(?:\n[ \t]*|[!-/:-@\[-`{-~])|(?P<ticks>`+)|(?P<run>\*+|_+|~+)|(?P<open>!?\[)|(?P<close>\])|(?P<tag><)"""
    r"""|(?P<break>\n[ \t]*)|(?P<template>\{\{|\{%)|(?P<attributes>\{[:#.])|(?P<address>://[^\s<>\[\]`|]+)"""
    r"""|(?P<math>\$)"""
)
_MATH = re.compile(
    r"""\$\$(?:\\.|[^$\\]){1,1000}\$\$|\$`[^`$\n]{1,200}`\$"""
    r"""|(?<![\w$])\$(?! )(?:\\[^\n]|[^$\\\n]){1,200}(?<! )\$(?![\w$])""",
    re.DOTALL,
)
_TEX = re.compile(r"\\(?:[A-Za-z]+|[{}(),;!|])")
_IN_FORMULA = re.compile(r"[=^_{}<>]")
_IN_PROSE = re.compile(r"\]\(|</?[A-Za-z][^<>]*>|[^\W\d_]{2,} [^\W\d_]{2,}")  # a link, a tag, two words
_SCHEME = re.compile(r"(?<![A-Za-z0-9])https?\Z")
_AUTOLINK = re.compile(
    r"<(?:[A-Za-z][A-Za-z0-9+.-]{1,31}:[^\s<>]*|[\w.!#$%&'*+/=?^`{|}~-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*)>"
)
_TAG = re.compile(rf"(?=<([A-Za-z][A-Za-z0-9-]*)){OPEN_TAG}|(?=</([A-Za-z][A-Za-z0-9-]*)){CLOSE_TAG}")
_SPANS = (  # comments and the like
    (re.compile(r"<!--"), "-->"),
    (re.compile(r"<\?"), "?>"),
    (re.compile(r"<!\[CDATA\["), "]]>"),
    (re.compile(r"<![A-Za-z]"), ">"),
)
_ANGLED = re.compile(r"<(?:[^<>\n\\]|\\.)*>")
_BARE = re.compile(r"(?:[^\s()\\\x00-\x1f\x7f]|\\[!-/:-@\[-`{-~]|\\)+|[()]")
_TITLE = re.compile(r""""(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+'|\((?:[^()\\]|\\.)*+\)""", re.DOTALL)
_LABEL = re.compile(r"\[((?:[^\[\]\\]|\\.){0,999})\]", re.DOTALL)
_FOOTNOTE = re.compile(r"\[\^[^\[\]\s]+\]")
_READ = re.compile(r"\\([!-/:-@\[-`{-~])|&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")


def read_text(source: str) -> str:
    """What the reader sees of a stretch of text."""
    if "\n" in source:
        source = collapse_space(source)
    return _READ.sub(lambda match: match[1] or html.unescape(match[0]), source)


def find_inlines(text: str, labels: Container[str]) -> list[Piece]:
    """Cut the text of a block into pieces; `labels` are those of the reference definitions of the document."""
    scanner = _Scanner(text, labels)
    scanner.scan()
    return _keep_code(text, _fill(text, scanner.pieces))


def _fill(text: str, markup: list[Piece]) -> list[Piece]:
    """Markup in its order, with text between."""
    pieces, place = [], 0
    for piece in sorted(markup, key=lambda piece: (piece.start, piece.end)):
        if place < piece.start:
            pieces.append(Piece("text", place, piece.start))
        pieces.append(piece)
        place = piece.end
    return [*pieces, Piece("text", place, len(text))] if place < len(text) else pieces


def _keep_code(text: str, pieces: list[Piece]) -> list[Piece]:
    """Join `<kbd>`, its text and `</kbd>` to one kept piece."""
    if not any(piece.kind == "open" and piece.name in KEPT for piece in pieces):
        return pieces
    partners, kept, index = pair(pieces), [], 0
    while index < len(pieces):
        piece, partner = pieces[index], partners[index]
        if piece.kind == "open" and piece.name in KEPT and partner is not None:
            inside = pieces[index + 1 : partner]
            words = "".join(
                read_text(text[each.start : each.end]) if each.kind == "text" else each.text for each in inside
            )
            kind = "kept" if words.strip() else "single"
            kept.append(Piece(kind, piece.start, pieces[partner].end, text=words.strip()))  # type: ignore[arg-type]
            index = partner
        else:
            kept.append(piece)
        index += 1
    return kept


@dataclass
class _Run:
    """A run of `*`, `_` or `~`, or what is left of it."""

    start: int
    end: int
    character: str
    length: int  # of the whole run
    can_open: bool
    can_close: bool
    before: "_Run | None" = None
    after: "_Run | None" = None


@dataclass
class _Bracket:
    start: int
    end: int
    is_image: bool
    last_run: _Run | None  # before it
    has_brackets: bool = False  # inside it


class _Scanner:
    def __init__(self, text: str, labels: Container[str]) -> None:
        self.text, self.labels = text, labels
        self.pieces: list[Piece] = []
        self._brackets: list[_Bracket] = []
        self._last: _Run | None = None
        self._ticks: dict[int, list[int]] | None = None
        self._absent: set[str] = set()  # ends of comments that do not occur any more
        self._count = 0
        self._dead = 0  # brackets below this depth hold a link, so they are none

    def scan(self) -> None:
        place = 0
        while found := _INTERESTING.search(self.text, place):
            match = _SPECIAL.match(self.text, found.start())
            place = found.end() if match is None else self._take(match, place)
        self._match_runs(None)

    def _take(self, match: re.Match[str], place: int) -> int:
        """Deal with what was found after `place`, and return where to go on."""
        start, end = match.span()
        kind = match.lastgroup
        if kind is None:  # an escape; before a line break it is a hard one
            if self.text[start + 1] == "\n":
                self._add("single", start, end, BREAK)
            elif self.text[start + 1] == "|":  # a bar that ends no cell is rarely a word
                self._add("kept", start, end, text="|")
        elif kind == "break":
            first = start
            while first and self.text[first - 1] == " ":
                first -= 1
            if start - first >= 2:
                self._add("single", first, end, BREAK)
        elif kind == "ticks":
            return self._take_code(start, end)
        elif kind == "run":
            self._add_run(match)
        elif kind == "open":
            return self._take_open(start, end)
        elif kind == "close":
            return self._take_close(start, end)
        elif kind == "tag":
            return self._take_tag(start, end)
        elif kind == "math":
            if (math := _MATH.match(self.text, start)) is not None and _is_formula(math[0]):
                self._add("kept", *math.span(), text=math[0].replace("\n", " "))
                return math.end()
        elif kind == "address":
            scheme = _SCHEME.search(self.text, max(place, start - 6), start)
            if scheme is not None and scheme.start() >= place:
                end = start + len(_without_punctuation(match[0]))
                self._add("kept", scheme.start(), end, text=self.text[scheme.start() : end])
            else:
                end = start + 1
        else:
            return self._take_braces(start, end)
        return end

    def _add(self, kind: str, start: int, end: int, name: str = "", text: str = "") -> None:
        self.pieces.append(Piece(kind, start, end, name, text))  # type: ignore[arg-type]

    def _add_pair(self, opening: tuple[int, int], closing: tuple[int, int]) -> None:
        self._count += 1
        self._add("open", *opening, f"pair {self._count}")
        self._add("close", *closing, f"pair {self._count}")

    # Code, tags, templates

    def _take_code(self, start: int, end: int) -> int:
        if self._ticks is None:
            self._ticks = {}
            for match in re.finditer("`+", self.text):
                self._ticks.setdefault(len(match[0]), []).append(match.start())
        closings = self._ticks.get(end - start, [])
        index = bisect_left(closings, end)
        if index == len(closings):
            return end
        text = self.text[end : closings[index]].replace("\n", " ").replace("\\|", "|").strip()
        self._add("kept" if text else "single", start, closings[index] + end - start, text=text)
        return closings[index] + end - start

    def _take_tag(self, start: int, end: int) -> int:
        if match := _AUTOLINK.match(self.text, start):
            self._add("kept", *match.span(), text=match[0][1:-1])
            return match.end()
        if match := _TAG.match(self.text, start):
            name = match[1] or match[2]
            kind = "single" if match[0].endswith("/>") or name.lower() in VOID else "open" if match[1] else "close"
            self._add(kind, *match.span(), name.lower())
            return match.end()
        for opening, closing in _SPANS:
            if match := opening.match(self.text, start):
                found = self._find(closing, match.end())
                if found >= 0:
                    self._add("single", start, found + len(closing))
                    return found + len(closing)
                break
        return end

    def _take_braces(self, start: int, end: int) -> int:
        """Take `{{ a template }}`, or `{#attributes}`, on one line and not long."""
        closing = {"{{": "}}", "{%": "%}"}.get(self.text[start:end], "}")
        found = self.text.find(closing, end, end + 1000)
        if found < 0 or "\n" in self.text[end:found]:
            return end
        end = found + len(closing)
        if closing == "}":
            self._add("single", start, end)
        else:
            self._add("kept", start, end, text=self.text[start:end])
        return end

    def _find(self, wanted: str, place: int) -> int:
        """As `str.find`, but what is not found is not looked for again."""
        if wanted in self._absent:
            return -1
        found = self.text.find(wanted, place)
        if found < 0:
            self._absent.add(wanted)
        return found

    # Links

    def _take_open(self, start: int, end: int) -> int:
        note = _FOOTNOTE.match(self.text, start)
        if note and not self.text.startswith("(", note.end()):
            self._add("single", *note.span())
            return note.end()
        if self._brackets:
            self._brackets[-1].has_brackets = True
        self._brackets.append(_Bracket(start, end, self.text[start] == "!", self._last))
        return end

    def _take_close(self, start: int, end: int) -> int:
        if not self._brackets:
            return end
        bracket = self._brackets.pop()
        depth = len(self._brackets)
        is_dead = not bracket.is_image and depth < self._dead
        self._dead = min(self._dead, depth)
        target = None if is_dead else self._end_of_target(bracket, start, end)
        if target is None:
            return end
        self._match_runs(bracket.last_run)
        if bracket.is_image and bracket.end == start:
            self._add("single", bracket.start, target)
        else:
            self._add_pair((bracket.start, bracket.end), (start, target))
        if not bracket.is_image:
            self._dead = depth
        return target

    def _end_of_target(self, bracket: _Bracket, start: int, end: int) -> int | None:
        """Where `(address "title")` or `[label]` ends; None if the brackets are no link."""
        text = self.text
        if text.startswith("(", end) and (target := self._end_of_address(end + 1)) is not None:
            return target
        label = _LABEL.match(text, end)
        if label and label[1].strip():
            return label.end() if normalize_label(label[1]) in self.labels else None
        if bracket.has_brackets or start - bracket.end > 999:
            return None
        is_known = normalize_label(text[bracket.end : start]) in self.labels
        return None if not is_known else label.end() if label and not label[1] else end

    def _end_of_address(self, place: int) -> int | None:
        text = self.text
        place = _end_of_space(text, place)
        if text.startswith("<", place):
            angled = _ANGLED.match(text, place)
            if angled is None:
                return None
            after = angled.end()
        else:
            after = self._end_of_bare_address(place)
        place = _end_of_space(text, after)
        if place > after and (title := _TITLE.match(text, place)):
            place = _end_of_space(text, title.end())
        return place + 1 if text.startswith(")", place) else None

    def _end_of_bare_address(self, place: int) -> int:
        """After an address with balanced parentheses; at the one that is too many."""
        depth = 0
        while match := _BARE.match(self.text, place):
            depth += {"(": 1, ")": -1}.get(match[0], 0)
            if not 0 <= depth <= 32:
                break
            place = match.end()
        return place

    # Emphasis

    def _add_run(self, match: re.Match[str]) -> None:
        character, (start, end) = match[0][0], match.span()
        if character == "~" and end - start != 2:
            return
        before, after = self.text[start - 1 : start] or " ", self.text[end : end + 1] or " "
        left = not after.isspace() and (not _is_punctuation(after) or before.isspace() or _is_punctuation(before))
        right = not before.isspace() and (not _is_punctuation(before) or after.isspace() or _is_punctuation(after))
        if character == "_":
            can_open, can_close = (
                left and (not right or _is_punctuation(before)),
                right and (not left or _is_punctuation(after)),
            )
        else:
            can_open, can_close = left, right
        if can_open or can_close:
            run = _Run(start, end, character, end - start, can_open, can_close, self._last)
            if self._last is not None:
                self._last.after = run
            self._last = run

    def _match_runs(self, bottom: _Run | None) -> None:
        """Pair the runs after `bottom`, and forget them."""
        closer, first = None, self._last
        while first is not None and first is not bottom:
            closer, first = first, first.before
        limits: dict[tuple[str, bool, int], int] = {}  # no opener lies before these for closers of a kind
        while closer is not None:
            if not closer.can_close:
                closer = closer.after
                continue
            kind = (closer.character, closer.can_open, closer.length % 3)
            opener = closer.before
            while opener is not None and opener is not bottom and opener.start >= limits.get(kind, 0):
                if opener.can_open and opener.character == closer.character and _may_pair(opener, closer):
                    break
                opener = opener.before
            else:
                opener = None
            if opener is None:
                limits[kind] = closer.start
                if not closer.can_open:
                    _remove(closer)
                closer = closer.after
                continue
            size = 2 if min(opener.end - opener.start, closer.end - closer.start) >= 2 else 1
            self._add_pair((opener.end - size, opener.end), (closer.start, closer.start + size))
            opener.end -= size
            closer.start += size
            opener.after, closer.before = closer, opener
            if opener.start == opener.end:
                _remove(opener)
            if closer.start == closer.end:
                _remove(closer)
                closer = closer.after
        self._last = bottom
        if bottom is not None:
            bottom.after = None


def _may_pair(opener: _Run, closer: _Run) -> bool:
    """The rule of three: `*a**b*` is not strong, `***a***` is both."""
    is_both = opener.can_close or closer.can_open
    return not is_both or closer.length % 3 == 0 or (opener.length + closer.length) % 3 != 0


def _remove(run: _Run) -> None:
    if run.before is not None:
        run.before.after = run.after
    if run.after is not None:
        run.after.before = run.before


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


def _is_formula(text: str) -> bool:
    """Whether what dollars enclose is one, and not prose between prices, variables of a shell or links."""
    inner = text.strip("$")
    if _TEX.search(inner) is not None or "`" in inner:
        return True
    is_short = len(inner) == 1 and inner.isalpha()
    return (is_short or text.startswith("$$") or _IN_FORMULA.search(inner) is not None) and not _IN_PROSE.search(inner)


def _end_of_space(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\n":
        place += 1
    return place


def _without_punctuation(address: str) -> str:
    """An address without what ends the sentence or the brackets that it stands in."""
    end, surplus = len(address), address.count(")") - address.count("(")
    while address[end - 1] in "?!.,:;*_~'\"}" or (address[end - 1] == ")" and surplus > 0):
        surplus -= address[end - 1] == ")"
        end -= 1
    return address[:end]
