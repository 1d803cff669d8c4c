"""Arrays as pictures: heat maps for a terminal. Knows nothing of models, and takes labels as text it cannot trust."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

NARROWEST = 20  # a terminal with fewer columns has no room for labels and cells
SHADES = " ░▒▓█"
CELL = 2  # columns of a cell with a short label or none: about a square
GAP = " "

# Viridis at 0, 1/4, 1/2, 3/4, 1: even steps to the eye, and to the colour-blind.
COLORS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))


def terminal_heatmap(
    weights: np.ndarray,
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    *,
    color: bool,
    width: int,
) -> str:
    """A heat map of values in 0..1, at most `width` terminal columns wide.

    Columns stand under their labels; where these do not fit, under numbers, with a legend and in as many blocks as
    it takes. With `color` cells have a 24-bit background; without, they are shades that a log file keeps.
    """
    _check(weights, row_labels, column_labels, width)
    rows = _aligned_right([_fit(_printable(label), width // 3) for label in row_labels])
    columns = [_printable(label) for label in column_labels]
    room = width - _columns(rows[0] if rows else "") - len(" ││")

    widths = [max(CELL, _columns(label)) for label in columns]
    if sum(widths) + len(GAP) * (len(widths) - 1) <= room:
        return "\n".join([*_block(weights, rows, columns, widths, color), "", _scale(color)])

    numbers = [str(number) for number in range(1, len(columns) + 1)]
    cell = max(CELL, len(numbers[-1]))
    per_block = max(1, (room + len(GAP)) // (cell + len(GAP)))
    lines: list[str] = []
    for start in range(0, len(columns), per_block):
        block = slice(start, start + per_block)
        headings = [number.rjust(cell) for number in numbers[block]]
        lines += [*_block(weights[:, block], rows, headings, [cell] * len(headings), color), ""]
    entries = [f"{number} {label}" for number, label in zip(numbers, columns, strict=True)]
    return "\n".join([*lines, *_wrapped(entries, width), "", _scale(color)])


def _check(weights: np.ndarray, row_labels: Sequence[str], column_labels: Sequence[str], width: int) -> None:
    labels = (len(row_labels), len(column_labels))
    if weights.shape != labels:
        raise ValueError(f"weights: shape {weights.shape} must be {labels}, as many rows and columns as labels")
    if width < NARROWEST:
        raise ValueError(f"width: {width} must be at least {NARROWEST} terminal columns")


def _block(
    weights: np.ndarray, rows: Sequence[str], headings: Sequence[str], widths: Sequence[int], color: bool
) -> Iterator[str]:
    """Headings over cells, each row behind its label; `rows` are of one width."""
    margin = " " * (_columns(rows[0] if rows else "") + len(" │"))
    padded = (_pad(heading, width) for heading, width in zip(headings, widths, strict=True))
    yield (margin + GAP.join(padded)).rstrip()
    for label, values in zip(rows, weights.tolist(), strict=True):
        cells = (_cell(value, width, color) for value, width in zip(values, widths, strict=True))
        yield f"{label} │{GAP.join(cells)}│"


def _cell(value: float, width: int, color: bool) -> str:
    if math.isnan(value):
        return "?".center(width)
    value = min(max(value, 0.0), 1.0)
    if not color:
        return SHADES[int(value * (len(SHADES) - 1) + 0.5)] * width
    red, green, blue = _color(value)
    return f"\x1b[48;2;{red};{green};{blue}m{' ' * width}\x1b[0m"


def _color(value: float) -> tuple[int, ...]:
    """Between the two of COLORS on either side of `value`, itself in 0..1."""
    position = value * (len(COLORS) - 1)
    index = min(int(position), len(COLORS) - 2)
    sides = zip(COLORS[index], COLORS[index + 1], strict=True)
    return tuple(round(low + (high - low) * (position - index)) for low, high in sides)


def _scale(color: bool) -> str:
    steps = 10 if color else len(SHADES)
    return "0 │" + "".join(_cell(step / (steps - 1), 1, color) for step in range(steps)) + "│ 1"


def _columns(text: str) -> int:
    """How many terminal columns `text` takes: a Thai vowel sign none, a Chinese character two."""
    from rich.cells import cell_len

    return cell_len(text)


def _printable(label: str) -> str:
    """`label` with controls and the unseen escaped, and a mark that has no letter on a dotted circle."""
    text = "".join(
        character if character.isprintable() else repr(character)[1:-1]  # such as \\x1b, \\n, \\u202e
        for character in label
    )
    return f"◌{text}" if text and _columns(text[0]) == 0 else text


def _fit(text: str, width: int) -> str:
    """`text`, cut to `width` columns; marks stay with their letter."""
    if _columns(text) <= width:
        return text
    end = 0
    while _columns(text[: end + 1]) < width:
        end += 1
    return text[:end] + "…"


def _pad(text: str, width: int) -> str:
    return text + " " * (width - _columns(text))


def _aligned_right(labels: Sequence[str]) -> list[str]:
    width = max(map(_columns, labels), default=0)
    return [" " * (width - _columns(label)) + label for label in labels]


def _wrapped(entries: Sequence[str], width: int) -> list[str]:
    """`entries` two spaces apart, in lines of at most `width` columns."""
    lines: list[str] = []
    for entry in (_fit(entry, width) for entry in entries):
        if lines and _columns(lines[-1]) + 2 + _columns(entry) <= width:
            lines[-1] += f"  {entry}"
        else:
            lines.append(entry)
    return lines
