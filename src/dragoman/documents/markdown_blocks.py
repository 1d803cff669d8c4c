"""The blocks of CommonMark, line by line: where paragraphs, headings, cells and HTML lie. Knows nothing of inlines.

Containers (quotes, list items) are a stack. A line first continues as many of them as it can, then opens new blocks,
and what is left is text. The depth of the stack is bounded, so that time is linear in the length of the source.
"""

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

from dragoman.documents.spans import split_lines

DEEPEST = 100  # containers inside each other; deeper ones are text


class Block(NamedTuple):
    """Text to be translated. A line of a paragraph has no white space at its start, but may have some at its end."""

    kind: Literal["paragraph", "heading", "cell", "html"]
    lines: list[tuple[int, int]]  # where each line lies, without the marks of containers


class Blocks(NamedTuple):
    blocks: list[Block]
    labels: set[str]  # of reference definitions, normalized


def read_blocks(source: str, begin: int) -> Blocks:
    reader = _Reader(source)
    for start, end in split_lines(source, _after_front_matter(source, begin)):
        reader.read_line(start, end)
    reader.close(0)
    return Blocks(reader.blocks, reader.labels)


def normalize_label(label: str) -> str:
    return " ".join(label.casefold().split())


def _after_front_matter(source: str, begin: int) -> int:
    """Where the text begins after a block of YAML or TOML, which has no empty first line."""
    opening = re.compile(r"(---|\+\+\+)[ \t]*\r?\n(?=[ \t]*[^\s])").match(source, begin)
    if opening is None:
        return begin
    fences = r"(?:---|\.\.\.)" if opening[1] == "---" else r"\+\+\+"
    closing = re.compile(rf"^{fences}[ \t]*\r?$\n?", re.MULTILINE).search(source, opening.end())
    return closing.end() if closing else begin


# Block starts


_HEADING = re.compile(r"#{1,6}(?=[ \t]|$)")
_UNDERLINE = re.compile(r"(?:=+|-+)[ \t]*$")
_RULE = re.compile(r"(?:(?:\*[ \t]*){3,}|(?:_[ \t]*){3,}|(?:-[ \t]*){3,})$")
_FENCE = re.compile(r"`{3,}(?=[^`]*$)|~{3,}")
_ITEM = re.compile(r"(?:[-+*]|([0-9]{1,9})[.)])(?=[ \t]|$)")
_DELIMITERS = re.compile(r"\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")
_STARTS = frozenset("#`~<>=-_*+|:[$0123456789")  # whatever begins a block begins with one of these
_BLOCK_TAGS = (
    "address|article|aside|base|basefont|blockquote|body|caption|center|col|colgroup|dd|details|dialog|dir|div|dl|dt|"
    "fieldset|figcaption|figure|footer|form|frame|frameset|h[1-6]|head|header|hr|html|iframe|legend|li|link|main|menu|"
    "menuitem|nav|noframes|ol|optgroup|option|p|param|search|section|summary|table|tbody|td|tfoot|th|thead|title|tr|"
    "track|ul"
)
OPEN_TAG = (
    r"<[A-Za-z][A-Za-z0-9-]*+(?:\s++[A-Za-z_:][\w.:-]*+"
    r"""(?:\s*+=\s*+(?:[^\s"'=<>`]++|'[^']*+'|"[^"]*+"))?+)*+\s*+/?>"""
)
CLOSE_TAG = r"</[A-Za-z][A-Za-z0-9-]*+\s*+>"
# how HTML begins, and how it ends: None is an empty line
_HTML: tuple[tuple[re.Pattern[str], re.Pattern[str] | None], ...] = (
    (
        re.compile(r"<(?:script|pre|textarea|style)(?:\s|>|$)", re.IGNORECASE),
        re.compile(r"</(?:script|pre|textarea|style)>", re.IGNORECASE),
    ),
    (re.compile(r"<!--"), re.compile(r"-->")),
    (re.compile(r"<\?"), re.compile(r"\?>")),
    (re.compile(r"<![A-Za-z]"), re.compile(r">")),
    (re.compile(r"<!\[CDATA\["), re.compile(r"\]\]>")),
    (re.compile(rf"</?(?:{_BLOCK_TAGS})(?:\s|/?>|$)", re.IGNORECASE), None),
    (re.compile(rf"(?:{OPEN_TAG}|{CLOSE_TAG})[ \t]*$"), None),
)
_DEFINITION = re.compile(
    r"""\[(?!\^)((?:[^\[\]\\]|\\.){1,999})\]:[ \t]*\n?[ \t]*(?:<(?:[^<>\n\\]|\\.)*>|[^\s<]\S*)"""
    r"""(?:[ \t]*[ \t\n][ \t]*(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\((?:[^()\\]|\\.)*\)))?[ \t]*(?:\n|$)""",
    re.DOTALL,
)
_ASIDE = re.compile(r":::|!!![ \t]|\?\?\?|\[![A-Za-z]+\][-+]?[ \t]*$|\[TOC\][ \t]*$|\[\[_TOC_\]\][ \t]*$")
_FOOTNOTE = re.compile(r"\[\^[^\]\s]+\]:")
_MATH = re.compile(r"\$\$[ \t]*$")
_MATH_OR_FENCE = re.compile(r"^([ \t>]*)(?:(\$\$)[ \t]*\r?$|`{3}|~{3})", re.MULTILINE)
_PREFIX = re.compile(r"\[[ xX]\][ \t]+(?=\S)")  # of a task


# The reader


@dataclass
class _Container:
    is_quote: bool
    width: int = 0  # of an item: columns from the content of what it is in to its own
    has_content: bool = True  # an item that begins with an empty line ends with the next one


@dataclass
class _Leaf:
    kind: Literal["paragraph", "fence", "code", "html", "table"]
    lines: list[tuple[int, int]] = field(default_factory=list)
    fence: str = ""
    end: re.Pattern[str] | None = None  # of HTML; None: an empty line
    columns: int = 0  # of a table


class _Reader:
    def __init__(self, source: str) -> None:
        self.source = source
        self.blocks: list[Block] = []
        self.labels: set[str] = set()
        self._containers: list[_Container] = []
        self._leaf: _Leaf | None = None
        # the place in the line: an index, and a column, which may lie inside a tab; and the first text after it
        self._place = self._column = self._end = self._text = self._text_column = 0

    def read_line(self, start: int, end: int) -> None:
        self._place, self._column, self._end = start, 0, end
        self._find_text()
        matched = self._continue_containers()
        leaf = self._leaf
        is_inside = matched == len(self._containers)
        if leaf is not None and is_inside and self._continue_leaf(leaf):
            return
        if leaf is not None and leaf.kind != "paragraph" and not is_inside:
            self.close(matched)
        opened = False
        while self._text < end:  # open blocks until text is left
            if self._column_of_text() >= 4:
                if self._leaf is None or self._leaf.kind != "paragraph":
                    self.close(matched)
                    self._open(_Leaf("code"))
                    return
                break
            if self.source[self._text] not in _STARTS:
                break
            paragraph = None if opened or self._leaf is None or self._leaf.kind != "paragraph" else self._leaf
            if self._open_container(matched, paragraph if is_inside else None):
                matched, opened = len(self._containers), True
                continue
            if self._open_leaf(matched, paragraph, is_inside):
                return
            break
        self._add_text(matched, is_inside or opened)

    def close(self, count: int) -> None:
        """End the open leaf, and all containers but the first `count`."""
        del self._containers[count:]
        leaf, self._leaf = self._leaf, None
        if leaf is None:
            return
        if leaf.kind == "paragraph":
            self._add_paragraph(self._without_definitions(leaf.lines))
        elif leaf.kind == "html" and leaf.lines and not self._containers:
            self.blocks.append(Block("html", leaf.lines))

    # Where the line stands

    def _find_text(self) -> None:
        place, column = self._place, self._column
        while place < self._end and (character := self.source[place]) in " \t":
            column += 4 - column % 4 if character == "\t" else 1
            place += 1
        self._text, self._text_column = place, column

    def _column_of_text(self) -> int:
        return self._text_column - self._column

    def _skip_to(self, place: int) -> None:
        """Go to an index that no tab lies before, but those already skipped."""
        self._column = self._text_column + place - self._text
        self._place = place
        self._find_text()

    def _skip_columns(self, count: int) -> None:
        target = self._column + count
        while self._place < self._text and self._column < target:
            width = 4 - self._column % 4 if self.source[self._place] == "\t" else 1
            if self._column + width > target:  # the rest of a tab stays
                self._column = target
                return
            self._column += width
            self._place += 1

    # Continuing

    def _continue_containers(self) -> int:
        matched = 0
        for container in self._containers:
            is_blank = self._text == self._end
            if container.is_quote:
                if is_blank or self.source[self._text] != ">" or self._column_of_text() >= 4:
                    break
                self._skip_to(self._text + 1)
                self._skip_columns(1)
            elif is_blank:
                if not container.has_content:
                    break
            elif self._column_of_text() >= container.width:
                self._skip_columns(container.width)
            else:
                break
            matched += 1
        return matched

    def _continue_leaf(self, leaf: _Leaf) -> bool:
        """Whether the line belongs to a block of code or HTML."""
        is_blank = self._text == self._end
        if leaf.kind == "fence":
            mark = self.source[self._text : self._end].rstrip(" \t")
            if mark.startswith(leaf.fence) and not mark.strip(leaf.fence[0]) and self._column_of_text() < 4:
                self.close(len(self._containers))
            return True
        if leaf.kind == "html":
            if is_blank and leaf.end is None:
                self.close(len(self._containers))
                return True
            self._add_html_line(leaf)
            return True
        if leaf.kind == "code" and (is_blank or self._column_of_text() >= 4):
            return True
        if is_blank or leaf.kind == "code":
            self.close(len(self._containers))
        return False

    # Opening

    def _open_container(self, matched: int, paragraph: _Leaf | None) -> bool:
        """Whether a quote or an item begins here; `paragraph` is what it would interrupt."""
        if len(self._containers) >= DEEPEST and matched >= DEEPEST:
            return False
        text, end = self._text, self._end
        if self.source[text] == ">":
            self.close(matched)
            self._skip_to(text + 1)
            self._skip_columns(1)
            self._push(_Container(is_quote=True))
            return True
        if note := _FOOTNOTE.match(self.source, text, end):
            self.close(matched)
            self._skip_to(note.end())
            self._skip_to(self._text)
            self._push(_Container(is_quote=False, width=4))
            return True
        match = _ITEM.match(self.source, text, end)
        if match is None or _RULE.match(self.source, text, end):
            return False
        is_empty = not self.source[match.end() : end].strip(" \t")
        if paragraph is not None and (is_empty or match[1] not in (None, "1")):
            return False
        self.close(matched)
        indent = self._column_of_text()
        self._skip_to(match.end())
        spaces = self._column_of_text()
        padding = spaces if 1 <= spaces <= 4 and not is_empty else 1
        self._skip_columns(padding)
        self._push(_Container(False, indent + len(match[0]) + padding, has_content=not is_empty))
        return True

    def _open_leaf(self, matched: int, paragraph: _Leaf | None, is_inside: bool) -> bool:
        """Whether the line is a heading, a rule, or the first of a table, of code or of HTML."""
        source, text, end = self.source, self._text, self._end
        if match := _HEADING.match(source, text, end):
            self.close(matched)
            self._add_heading(match.end(), end)
            return True
        if _MATH.match(source, text, end) and self._has_math_end(matched):
            self.close(matched)
            self._open(_Leaf("fence", fence="$$"))
            return True
        if match := _FENCE.match(source, text, end):
            self.close(matched)
            self._open(_Leaf("fence", fence=match[0]))
            return True
        if source[text] == "<" and (html := self._html_end(paragraph is not None)):
            self.close(matched)
            self._open(leaf := _Leaf("html", end=html[0]))
            self._add_html_line(leaf)
            return True
        if paragraph is not None and is_inside:
            if self._open_table(paragraph):
                return True
            if _UNDERLINE.match(source, text, end) and (lines := self._without_definitions(paragraph.lines)):
                self._leaf = None
                self._add_paragraph(lines)
                return True
        if _RULE.match(source, text, end):
            self.close(matched)
            self._touch()
            return True
        return False

    def _has_math_end(self, matched: int) -> bool:
        """Whether two dollars follow in as many quotes, before any code; without them, two dollars are text."""
        following = bisect_left(self._math_and_fences, self._end, key=lambda match: match.start())
        if following == len(self._math_and_fences):
            return False
        prefix, dollars = self._math_and_fences[following].groups()
        return bool(dollars) and prefix.count(">") == sum(each.is_quote for each in self._containers[:matched])

    @cached_property
    def _math_and_fences(self) -> list[re.Match[str]]:
        return [*_MATH_OR_FENCE.finditer(self.source)]

    def _html_end(self, interrupts: bool) -> tuple[re.Pattern[str] | None] | None:
        for number, (begin, end) in enumerate(_HTML):
            if begin.match(self.source, self._text, self._end) and not (interrupts and number == len(_HTML) - 1):
                return (end,)
        return None

    def _open_table(self, paragraph: _Leaf) -> bool:
        """Whether the line is a row of delimiters below a header, which is the last line of a paragraph."""
        if not _DELIMITERS.match(self.source, self._text, self._end):
            return False
        header = paragraph.lines[-1]
        if "|" not in self.source[header[0] : header[1]]:
            return False
        cells = _split_row(self.source, *header)
        if len(cells) != len(_split_row(self.source, self._text, self._end)):
            return False
        paragraph.lines.pop()
        self.close(len(self._containers))
        self._open(_Leaf("table", columns=len(cells)))
        self._add_cells(cells)
        return True

    def _push(self, container: _Container) -> None:
        self._touch()
        self._containers.append(container)

    def _open(self, leaf: _Leaf) -> None:
        self._touch()
        self._leaf = leaf

    def _touch(self) -> None:
        if self._containers:
            self._containers[-1].has_content = True

    # Text

    def _add_text(self, matched: int, is_inside: bool) -> None:
        is_blank = self._text == self._end
        line = (self._text, self._end)
        leaf = self._leaf
        if leaf is not None and leaf.kind == "paragraph" and not is_blank:  # also if it is lazy: marks left out
            leaf.lines.append(line)
        elif is_blank:
            self.close(len(self._containers) if is_inside else matched)
        elif leaf is not None and leaf.kind == "table" and is_inside:
            self._add_cells(_split_row(self.source, *line)[: leaf.columns])
        else:
            self.close(matched)
            self._open(_Leaf("paragraph", [line]))

    def _add_html_line(self, leaf: _Leaf) -> None:
        leaf.lines.append((self._place, self._end))
        if leaf.end is not None and leaf.end.search(self.source, self._place, self._end):
            self.close(len(self._containers))

    def _add_heading(self, start: int, end: int) -> None:
        self._touch()
        text = self.source[start:end].rstrip(" \t")
        if not (without := text.rstrip("#")) or without[-1] in " \t":
            text = without.rstrip(" \t")
        stripped = text.lstrip(" \t")
        if stripped:
            start += len(text) - len(stripped)
            self.blocks.append(Block("heading", [(start, start + len(stripped))]))

    def _add_cells(self, cells: list[tuple[int, int]]) -> None:
        self.blocks += [Block("cell", [cell]) for cell in cells if cell[0] < cell[1]]

    def _add_paragraph(self, lines: list[tuple[int, int]]) -> None:
        """Add a block for the lines between those that are marks of extensions."""
        group: list[tuple[int, int]] = []
        for number, (start, end) in enumerate(lines):
            if _ASIDE.match(self.source, start, end):
                self._add_group(group)
                group = []
                continue
            if number == 0 and (prefix := _PREFIX.match(self.source, start, end)):
                start = prefix.end()
            group.append((start, end))
        self._add_group(group)

    def _add_group(self, group: list[tuple[int, int]]) -> None:
        if group:
            self.blocks.append(Block("paragraph", group))

    def _without_definitions(self, lines: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Note the reference definitions that a paragraph begins with, and return its other lines."""
        if not lines or self.source[lines[0][0]] != "[":
            return lines
        text = "\n".join(self.source[start:end] for start, end in lines)
        place = 0
        while match := _DEFINITION.match(text, place):
            self.labels.add(normalize_label(match[1]))
            place = match.end()
        return [] if place == len(text) else lines[text.count("\n", 0, place) :]


def _split_row(source: str, start: int, end: int) -> list[tuple[int, int]]:
    """Where the text of each cell lies, between bars that are not escaped."""
    bars = [match.start() for match in _BAR.finditer(source, start, end) if match[0] == "|"]
    edges = [start - 1, *bars, end]
    cells = [_strip(source, left + 1, right) for left, right in pairwise(edges)]
    if cells[0][0] == cells[0][1] and bars:
        cells = cells[1:]
    if cells and cells[-1][0] == cells[-1][1] and bars:
        cells = cells[:-1]
    return cells


_BAR = re.compile(r"\\.|\|")


def _strip(source: str, start: int, end: int) -> tuple[int, int]:
    text = source[start:end]
    start += len(text) - len(text.lstrip(" \t"))
    return start, start + len(text.strip(" \t"))
