"""Paragraphs as runs: stretches of text that each have a style. Knows no file format.

Office formats write a paragraph as a list of runs. A segment shows the most common style as plain text; a stretch in
another style, a hyperlink and the like have an opening and a closing mark, a tab or a picture has a single one.
What stands at either end of a paragraph and is not visible text stays there and is no part of the segment.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from dragoman.documents.document import Kept, Mark, Parts, merge_text

Style: TypeAlias = Hashable
_LETTER = re.compile(r"[^\W\d_]")
_LINE_END = re.compile(r"\s*\n\s*")


@dataclass(frozen=True)
class Text:
    text: str
    style: Style = None


@dataclass(frozen=True, eq=False)
class Fixed:
    """Something that is moved as it is: a tab, a picture, a field. With a text it is kept, else a single mark."""

    content: Any
    style: Style = None
    text: str = ""
    is_space: bool = False  # a tab: words on either side are two words
    is_break: bool = False  # a line break: what is on either side is translated alone


@dataclass(frozen=True, eq=False)
class Nested:
    """Something with text of its own: a hyperlink, a tracked insertion."""

    content: Any
    items: tuple["Item", ...]
    head: tuple["Item", ...] = ()  # stay first and last in it, whatever its text becomes
    tail: tuple["Item", ...] = ()


Item: TypeAlias = Text | Fixed | Nested


@dataclass(frozen=True)
class _Level:
    """An open mark: the style of text within it, and where its items go."""

    number: int
    style: Style
    items: list[Item]
    nested: Nested | None


class Paragraph:
    """The items of a paragraph, and what a translator sees of them: `parts`, empty if no word is in them."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._inner = _trim(Nested(None, _without_empty(items)), left=True, right=True)
        self._around: list[Nested] = []
        while len(self._inner.items) == 1 and isinstance(only := self._inner.items[0], Nested):
            self._around.append(self._inner)  # a paragraph that is one hyperlink: the segment is within the link
            self._inner = only
        self._numbered: list[Item] = []  # what each mark stands for; a text for its style
        self._base = _most_common(self._inner.items, deep=bool(self._around))
        described: list[str | Mark | Kept] = []
        self._describe(self._inner.items, self._base, described)
        self._spaced = dict(self._find_spaced(described))  # marks that have a space after them in the segment only
        parts = merge_text(each for part in described for each in (part, self._spaced.get(part, "")))
        self.parts: Parts = parts if any(isinstance(part, str) and _LETTER.search(part) for part in parts) else ()

    def _find_spaced(self, parts: Sequence[str | Mark | Kept]) -> Iterator[tuple[str | Mark | Kept, str]]:
        """Tabs and breaks, and the space or the end of a line that a reader sees there and a translator should too."""
        following = ""  # the next character that is seen
        nexts: list[str] = []
        for part in reversed(parts):
            nexts.append(following)
            following = (_text(part) or following)[:1]
        spaced, depth = True, 0  # whether the text so far ends with a space; elements around it
        for part, after in zip(parts, reversed(nexts), strict=True):
            if text := _text(part):
                spaced = text[-1].isspace()
            elif isinstance(part, Mark) and part.kind != "single":
                depth += 1 if part.kind == "open" else -1
            elif isinstance(part, Mark) and isinstance(item := self._numbered[part.number - 1], Fixed):
                if item.is_break and not depth:  # within an element it is a space: a line has all of an element
                    yield part, "\n"
                    spaced = True
                elif (item.is_space or item.is_break) and not spaced and not after.isspace():
                    yield part, " "
                    spaced = True

    def _describe(self, items: Sequence[Item], base: Style, parts: list[str | Mark | Kept]) -> None:
        place = 0
        while place < len(items):
            item = items[place]
            place += 1
            if _is_single(item):
                parts.append(Mark(self._number(item), "single"))
            elif isinstance(item, Fixed):
                parts.append(Kept(self._number(item), item.text))
            elif isinstance(item, Nested):
                number = self._number(item)
                parts.append(Mark(number, "open"))
                self._describe(item.items, _most_common(item.items, deep=True), parts)
                parts.append(Mark(number, "close"))
            elif item.style == base:
                parts.append(item.text)
            else:
                start, place = place - 1, _end_of_stretch(items, place - 1)
                number = self._number(item)
                parts.append(Mark(number, "open"))
                self._describe(items[start:place], item.style, parts)
                parts.append(Mark(number, "close"))

    def _number(self, item: Item) -> int:
        self._numbered.append(item)
        return len(self._numbered)

    def translated(self, parts: Parts) -> tuple[Item, ...]:
        """The items with a translation in place of the text. Raises ValueError unless each mark is there once."""
        unused = dict(enumerate(self._numbered, 1))
        levels = [_Level(0, self._base, [], None)]
        for part in _without_spaces(parts, self._spaced):
            style, items = levels[-1].style, levels[-1].items
            if isinstance(part, str):
                items += [Text(part, style)] if part else []
            elif isinstance(part, Mark) and part.kind == "close":
                closed = levels.pop() if len(levels) > 1 else None
                if closed is None or closed.number != part.number:
                    raise ValueError(f"mark {part.number} closes where another is open: {parts}")
                if closed.nested is not None:
                    levels[-1].items.append(replace(closed.nested, items=tuple(closed.items)))
            else:
                found = unused.pop(part.number, None)
                opens = isinstance(part, Mark) and part.kind == "open"
                if found is None or opens == (_is_single(found) or isinstance(found, Fixed)):
                    raise ValueError(f"{part} does not belong here, or not twice: {parts}")
                if not opens:
                    items.append(found)
                elif isinstance(found, Nested):
                    levels.append(_Level(part.number, _most_common(found.items, deep=True), [], found))
                else:
                    levels.append(_Level(part.number, found.style, items, None))
        if unused or len(levels) > 1:
            raise ValueError(f"marks are missing: {sorted(unused)}, or not closed: {parts}")
        inner = replace(self._inner, items=tuple(levels[0].items))
        for outer in reversed(self._around):
            inner = replace(outer, items=(inner,))
        return (*inner.head, *inner.items, *inner.tail)


def _without_empty(items: Iterable[Item]) -> tuple[Item, ...]:
    """The items without empty texts, which say nothing of the style."""
    nested = (replace(item, items=_without_empty(item.items)) if isinstance(item, Nested) else item for item in items)
    return tuple(item for item in nested if not isinstance(item, Text) or item.text)


def _is_single(item: Item) -> bool:
    """Whether there is no text in it: a tab, a hyperlink around a picture."""
    if isinstance(item, Nested):
        return all(_is_single(each) for each in item.items)
    return isinstance(item, Fixed) and not item.text


def _is_visible(item: Item) -> bool:
    if isinstance(item, Nested):
        return any(_is_visible(each) for each in item.items)
    return bool(item.text.strip())


def _trim(nested: Nested, left: bool, right: bool) -> Nested:
    """Move what is not visible from the ends of the items to head and tail, down to the first and the last word."""
    visible = [place for place, item in enumerate(nested.items) if _is_visible(item)]
    if not visible:
        return nested
    start = visible[0] if left else 0
    stop = visible[-1] + 1 if right else len(nested.items)
    items = list(nested.items[start:stop])
    head, tail = [*nested.head, *nested.items[:start]], [*nested.items[stop:], *nested.tail]
    if left and not isinstance(first := items[0], Nested) and (text := first.text.lstrip()) != first.text:
        items[0] = replace(first, text=text)
        if isinstance(first, Text):  # what is kept keeps its space, but the segment does not show it
            head.append(Text(first.text.removesuffix(text), first.style))
    if right and not isinstance(last := items[-1], Nested) and (text := last.text.rstrip()) != last.text:
        items[-1] = replace(last, text=text)
        if isinstance(last, Text):
            tail.insert(0, Text(last.text.removeprefix(text), last.style))
    if isinstance(first := items[0], Nested):
        items[0] = _trim(first, left, right and len(items) == 1)
    if len(items) > 1 and isinstance(last := items[-1], Nested):
        items[-1] = _trim(last, left=False, right=right)
    return replace(nested, items=tuple(items), head=tuple(head), tail=tuple(tail))


def _most_common(items: Iterable[Item], deep: bool) -> Style:
    """The style of most of the text; of deeper text only if there is none at this level, and that is wanted."""
    lengths: Counter[Style] = Counter()
    for item in items:
        if isinstance(item, Text):
            lengths[item.style] += len("".join(item.text.split()))  # the same however runs are cut
    if lengths:
        return max(lengths, key=lambda style: lengths[style])
    if not deep:
        return None
    found = (_most_common(item.items, deep) for item in items if isinstance(item, Nested))
    return next((style for style in found if style is not None), None)


def _end_of_stretch(items: Sequence[Item], start: int) -> int:
    """After the last text in the same style before text in another, or a line break. What stands between is part of
    it."""
    first, end = items[start], start + 1
    assert isinstance(first, Text)
    for place in range(start + 1, len(items)):
        item = items[place]
        if isinstance(item, Text):
            if item.style != first.style:
                break
            end = place + 1
        elif isinstance(item, Fixed) and item.is_break:
            break
    return end


def _without_spaces(parts: Parts, spaced: Mapping[str | Mark | Kept, str]) -> Iterator[str | Mark | Kept]:
    """The parts with no space around these marks: each is a tab or a break, and stood without."""
    for place, part in enumerate(parts):
        if isinstance(part, str):
            before = spaced.get(parts[place - 1], "") if place else ""
            after = spaced.get(parts[place + 1], "") if place + 1 < len(parts) else ""
            part = _LINE_END.sub(" ", part.removeprefix("\n") if before == "\n" else part)
            part = part.lstrip(" ") if before == " " else part
            part = part.rstrip(" ") if after == " " else part
        yield part


def _text(part: str | Mark | Kept) -> str:
    return part if isinstance(part, str) else part.text if isinstance(part, Kept) else ""
