"""Numbers as pictures: heat maps for a terminal, heat maps and line plots as SVG.

Knows nothing of models, and treats labels as untrusted text.
"""

import base64
import html
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dragoman.errors import ConfigError

NARROWEST = 20  # a terminal with fewer columns has no room for labels and cells
SHADES = " ░▒▓█"
CELL = 2  # columns of a cell with a short label or none: roughly square
GAP = " "

# Viridis at 0, 1/4, 1/2, 3/4, 1: perceptually even steps, also for the colour-blind.
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

    Columns are labelled above; if the labels do not fit, columns are numbered, with a legend, in as many blocks as
    needed. With `color` cells have a 24-bit background; without, they are shades that a log file keeps.
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
    """Headings above cells, each row after its label; all `rows` have the same width."""
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
    """Interpolate between the two of COLORS on either side of `value`, which is in 0..1."""
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
    """`label` with control and invisible characters escaped, and a mark that has no letter on a dotted circle."""
    text = "".join(
        character if character.isprintable() else repr(character)[1:-1]  # such as \\x1b, \\n, \\u202e
        for character in label
    )
    return f"◌{text}" if text and _columns(text[0]) == 0 else text


def _fit(text: str, width: int) -> str:
    """`text`, cut to `width` columns; combining marks stay with their letter."""
    if _columns(text) <= width:
        return text
    end = 0
    while _columns(text[: end + 1]) < width:
        end += 1
    return text[:end] + "…"


def _pad(text: str, width: int) -> str:
    return text + " " * (width - _columns(text))


def aligned_left(labels: Sequence[str]) -> list[str]:
    """Make labels safe to print, and of one width in terminal columns."""
    printable = [_printable(label) for label in labels]
    width = max(map(_columns, printable), default=0)
    return [_pad(label, width) for label in printable]


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


# Line plots

INK, GREY, GRID = "#1f2328", "#59636e", "#d8dee4"  # on white, which stays white on a dark page
# Okabe and Ito's colours without their yellow: the colour-blind can tell them apart.
LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9")
DASHES = ("", "7 4", "2 4", "9 4 2 4")
MARKERS = ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "M-3.5-3.5h7v7h-7z", "M0-5l5 8.5h-10z", "M0-5l5 5l-5 5l-5-5z")
MOST_TICKS = 8
MOST_MARKERS = 40  # a line through more points is drawn without markers: they would hide it
NEAT = (1.0, 2.0, 5.0)  # ticks stand at these, times a power of ten
LETTER = 7.3  # width of a letter at the font size of a legend, a little more than most
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def svg_plot(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
    width: int = 640,
    height: int = 400,
) -> str:
    """Lines through the points of each series, in the order given, as a self-contained SVG."""
    points = [point for line in series.values() for point in line]
    _check_points(series, log_x, log_y)
    entries, legend_height = _legend(series, width - 48)
    top, bottom, left, right = 84.0 + legend_height, height - 58.0, 72.0, width - 28.0
    x_axis, y_axis = _axis([x for x, _ in points], log_x), _axis([y for _, y in points], log_y)

    def across(x: float) -> float:
        return left + (right - left) * x_axis.place(x)

    def down(y: float) -> float:
        return bottom - (bottom - top) * y_axis.place(y)

    parts = [
        *_card(width, height, title),
        *entries,
        _text(24, top - 14, y_label, size=13, color=INK),
        _text((left + right) / 2, height - 16, x_label, size=13, color=INK, anchor="middle"),
    ]
    for tick in y_axis.ticks:
        parts.append(f'<path d="M{left:.1f} {down(tick):.1f}H{right:.1f}" stroke="{GRID}"/>')
        parts.append(_text(left - 8, down(tick) + 4, _number(tick), anchor="end"))
    parts.append(f'<path d="M{left:.1f} {bottom:.1f}H{right:.1f}" stroke="{GREY}"/>')
    for tick in x_axis.ticks:
        parts.append(f'<path d="M{across(tick):.1f} {bottom:.1f}v5" stroke="{GREY}"/>')
        parts.append(_text(across(tick), bottom + 20, _number(tick), anchor="middle"))
    for index, line in enumerate(series.values()):
        places = [(across(x), down(y)) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" {_stroke(index)}/>')
        if len(places) <= MOST_MARKERS:
            parts += [_marker(index, x, y) for x, y in places]
    return "\n".join([*parts, "</svg>"]) + "\n"


def svg_panels(pictures: Sequence[str], *, columns: int, width: int, height: int) -> str:
    """Combine pictures of one size, `width` by `height`, into one: row by row, `columns` in each."""
    rows = math.ceil(len(pictures) / columns)
    columns = min(columns, len(pictures))
    placed = [
        f'<g transform="translate({width * (index % columns)} {height * (index // columns)})">\n{picture}</g>\n'
        for index, picture in enumerate(pictures)
    ]
    size = f'width="{width * columns}" height="{height * rows}" viewBox="0 0 {width * columns} {height * rows}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{"".join(placed)}</svg>\n'


def _card(width: float, height: float, title: str) -> Iterator[str]:
    """The opening of an SVG: a white card with a title."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" '
        f'font-family="system-ui, sans-serif" role="img" aria-label="{_escaped(title)}">'
    )
    yield f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#ffffff"/>'
    yield _text(24, 32, title, size=17, color=INK)


class _Axis(NamedTuple):
    low: float  # as the logarithm on a log axis
    high: float
    ticks: list[float]
    log: bool

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        return ((math.log10(value) if self.log else value) - self.low) / (self.high - self.low)


def _check_points(series: Mapping[str, Sequence[tuple[float, float]]], log_x: bool, log_y: bool) -> None:
    if not series:
        raise ValueError("series: nothing to draw; give at least one line")
    for name, line in series.items():
        if not line:
            raise ValueError(f"series: {name!r} has no points; leave it out")
        for point in line:
            if not all(map(math.isfinite, point)):
                raise ValueError(f"series: {name!r} has the point {point}, which is not finite; leave it out")
            for axis, log, value in zip("xy", (log_x, log_y), point, strict=True):
                if log and value <= 0:
                    raise ValueError(f"series: {name!r} has {axis}={value}, and a log axis begins above 0")


def _axis(values: Sequence[float], log: bool) -> _Axis:
    """An axis from the neat number below the smallest value to the one above the largest."""
    low, high = min(values), max(values)
    if log:
        ticks = [
            step * 10.0**power
            for power in range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 2)
            for step in NEAT
        ]
        first = max(index for index, tick in enumerate(ticks) if tick <= low * (1 + 1e-9))
        last = min(index for index, tick in enumerate(ticks) if tick >= high * (1 - 1e-9) and index > first)
        ticks = ticks[first : last + 1]
        ends = math.log10(ticks[0]), math.log10(ticks[-1])
        if len(ticks) > MOST_TICKS:
            powers = [tick for tick in ticks if _neat_power(tick)]
            ticks = powers[:: math.ceil(len(powers) / MOST_TICKS)]
        return _Axis(*ends, ticks, log=True)
    if low == high:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / (MOST_TICKS - 2)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step * power for step in (*NEAT, 10.0) if step * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return _Axis(first * step, last * step, [number * step for number in range(first, last + 1)], log=False)


def _neat_power(tick: float) -> bool:
    return math.isclose(math.log10(tick), round(math.log10(tick)), abs_tol=1e-9)


def _number(value: float) -> str:
    """Format a number for reading: 0.05, 3,000, 10⁻⁵."""
    size = abs(value)
    if size and not 1e-4 <= size < 1e6:
        digits, power = f"{value:.2e}".split("e")
        digits = digits.rstrip("0").rstrip(".")
        exponent = f"10{str(int(power)).translate(SUPERSCRIPTS)}"
        return exponent if digits == "1" else f"{digits}·{exponent}"
    return f"{float(f'{value:.6g}'):,}".removesuffix(".0")


def _legend(series: Mapping[str, Sequence[tuple[float, float]]], room: float) -> tuple[list[str], float]:
    """A stroke, a marker and a name for each series, in as many rows as needed; and their height."""
    parts: list[str] = []
    x, y = 24.0, 56.0
    for index, (name, line) in enumerate(series.items()):
        taken = 44 + LETTER * _columns(_printable(name)) + 14
        if x > 24 and x + taken > room:
            x, y = 24.0, y + 20
        parts.append(f'<path d="M{x:.1f} {y:.1f}h34" {_stroke(index)}/>')
        if len(line) <= MOST_MARKERS:
            parts.append(_marker(index, x + 17, y))
        parts.append(_text(x + 42, y + 4.5, name, size=13, color=INK))
        x += taken
    return parts, y - 36


def _stroke(index: int) -> str:
    dash = DASHES[index % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'fill="none" stroke="{LINES[index % len(LINES)]}" stroke-width="2"{dashed}'


def _marker(index: int, x: float, y: float) -> str:
    shape = MARKERS[index % len(MARKERS)]
    return f'<path transform="translate({x:.1f} {y:.1f})" d="{shape}" fill="{LINES[index % len(LINES)]}"/>'


def _text(x: float, y: float, words: str, *, size: int = 12, color: str = GREY, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}"'
    return f'<text {place} text-anchor="{anchor}">{_escaped(words)}</text>'


def _escaped(text: str) -> str:
    return html.escape(_printable(text))


# Heat maps as SVG

SQUARE = 26  # pixels of a cell
LONGEST_LABEL = 24  # terminal columns; longer ones are cut
SLANT = math.sqrt(0.5)  # of column labels, which are at 45 degrees


def svg_heatmap(
    weights: np.ndarray, row_labels: Sequence[str], column_labels: Sequence[str], *, title: str, caption: str
) -> str:
    """A heat map of values in 0..1 as a self-contained SVG; each cell shows its value on hover."""
    _check(weights, row_labels, column_labels, NARROWEST)
    rows = [_fit(_printable(label), LONGEST_LABEL) for label in row_labels]
    columns = [_fit(_printable(label), LONGEST_LABEL) for label in column_labels]
    slanted = SLANT * _longest(columns)
    left, top = 32 + _longest(rows), 70 + slanted
    right, bottom = left + SQUARE * len(columns), top + SQUARE * len(rows)
    words = max(1.3 * LETTER * _columns(_printable(title)), LETTER * _columns(_printable(caption)) + 190)
    width = math.ceil(max(right + slanted + 24, words + 48))
    height = math.ceil(bottom + 56)

    parts = list(_card(width, height, title))
    for number, label in enumerate(columns):
        turned = f"translate({left + SQUARE * (number + 0.5):.1f} {top - 8:.1f}) rotate(-45)"
        parts.append(f'<g transform="{turned}">{_text(0, 4, label, size=13, color=INK)}</g>')
    for number, (label, values) in enumerate(zip(rows, weights.tolist(), strict=True)):
        y = top + SQUARE * number
        parts.append(_text(left - 8, y + SQUARE / 2 + 4.5, label, size=13, color=INK, anchor="end"))
        parts += [
            _square(left + SQUARE * column, y, SQUARE, value, f"{label} · {other}")
            for column, (other, value) in enumerate(zip(columns, values, strict=True))
        ]
    parts += [*_color_bar(24, bottom + 22), _text(190, bottom + 34, caption)]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _longest(labels: Sequence[str]) -> float:
    """The width of the longest label in pixels."""
    return LETTER * max(map(_columns, labels), default=0)


def _square(x: float, y: float, side: float, value: float, name: str) -> str:
    fill = GRID if math.isnan(value) else f"rgb{_color(min(max(value, 0.0), 1.0))}"
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{side - 1:g}" height="{side - 1:g}" fill="{fill}"'
    return f"<rect {shape}><title>{_escaped(name)}: {value:.2f}</title></rect>"


def _color_bar(x: float, y: float, low: float = 0.0, high: float = 1.0) -> Iterator[str]:
    """The legend of the colours."""
    yield _text(x + 8, y + 12, _number(low), anchor="end")
    for step in range(11):
        place = f'x="{x + 14 + 11 * step:.1f}" y="{y:.1f}" width="11" height="15"'
        yield f'<rect {place} fill="rgb{_color(step / 10)}"/>'
    yield _text(x + 14 + 11 * 11 + 6, y + 12, _number(high))


# Many heat maps at once, and pixels

TILE = 96  # pixels of one heat map of a grid


def svg_grid(weights: np.ndarray, names: Sequence[Sequence[str]], *, title: str, caption: str) -> str:
    """A grid of heat maps [rows, columns, y, x] of values in 0..1, without cell labels.

    A heat map that is all NaN is left blank.
    """
    rows, columns = weights.shape[:2]
    step = TILE + 12
    words = max(1.3 * LETTER * _columns(_printable(title)), LETTER * _columns(_printable(caption)) + 190)
    width = math.ceil(max(36 + step * columns, 48 + words))
    bottom = 60 + (step + 16) * rows
    parts = list(_card(width, bottom + 56, title))
    for row in range(rows):
        for column in range(columns):
            if np.isnan(weights[row, column]).all():
                continue
            x, y, name = 24 + step * column, 60 + (step + 16) * row, names[row][column]
            parts.append(_text(x, y + 12, name, size=11))
            pixels = base64.b64encode(png_pixels(weights[row, column])).decode("ascii")
            place = f'x="{x}" y="{y + 18}" width="{TILE}" height="{TILE}" preserveAspectRatio="none"'
            parts.append(
                f'<image {place} style="image-rendering:pixelated" href="data:image/png;base64,{pixels}">'
                f"<title>{_escaped(name)}</title></image>"
            )
    parts += [*_color_bar(24, bottom + 22), _text(190, bottom + 34, caption)]
    return "\n".join([*parts, "</svg>"]) + "\n"


def svg_field(
    values: np.ndarray, *, low: float, high: float, title: str, x_label: str, y_label: str, width: int, height: int
) -> str:
    """A table of numbers too large for cell labels, from `low` to `high`, with counts along its sides."""
    rows, columns = values.shape
    left, top, right, bottom = 64, 60, width - 28, height - 96
    pixels = base64.b64encode(png_pixels((values - low) / (high - low))).decode("ascii")
    place = f'x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" preserveAspectRatio="none"'
    parts = [
        *_card(width, height, title),
        f'<image {place} style="image-rendering:pixelated" href="data:image/png;base64,{pixels}"/>',
        _text(left, top - 8, y_label, size=13, color=INK),
        _text((left + right) / 2, bottom + 38, x_label, size=13, color=INK, anchor="middle"),
    ]
    for tick in _axis([0.0, columns], log=False).ticks:
        if tick < columns:
            x = left + (right - left) * (tick + 0.5) / columns
            parts.append(_text(x, bottom + 18, _number(tick), anchor="middle"))
    for tick in _axis([0.0, rows], log=False).ticks:
        if tick < rows:
            parts.append(_text(left - 8, top + (bottom - top) * (tick + 0.5) / rows + 4, _number(tick), anchor="end"))
    bar = _color_bar(40, height - 40, low, high)
    return "\n".join([*parts, *bar, "</svg>"]) + "\n"


FRAME_WIDTH, FRAME_HEIGHT, ROW = 640, 200, 22  # pixels of vectors over time, and of a row of attention below them
PICTURE = 160  # pixels of the longer side of a picture


def svg_frames(vectors_SF: np.ndarray, attention_TS: np.ndarray, tokens: Sequence[str], *, title: str) -> str:
    """Vectors over time, as a spectrogram is drawn, and below them where each token looked, on the same axis."""
    labels = [_fit(_printable(token), LONGEST_LABEL) for token in tokens]
    left = 32 + max(_longest(labels), 60)
    width, middle = math.ceil(left + FRAME_WIDTH + 24), 70 + FRAME_HEIGHT
    bottom = middle + 12 + ROW * len(labels)
    parts = [
        *_card(width, bottom + 60, title),
        _text(left - 8, 70 + FRAME_HEIGHT / 2, "vectors", size=13, color=INK, anchor="end"),
        _image(left, 70, FRAME_WIDTH, FRAME_HEIGHT, _stretched(vectors_SF.T[::-1])),  # low frequencies at the bottom
        _image(left, middle + 12, FRAME_WIDTH, ROW * len(labels), np.stack([*map(_scaled_to_max, attention_TS)])),
    ]
    for number, label in enumerate(labels):
        parts.append(_text(left - 8, middle + 27 + ROW * number, label, size=13, color=INK, anchor="end"))
    caption = "each row: where it looked, from 0 to its maximum"
    parts += [*_color_bar(24, bottom + 26), _text(190, bottom + 38, caption)]
    return "\n".join([*parts, "</svg>"]) + "\n"


def svg_patches(picture: np.ndarray, attention_TPQ: np.ndarray, tokens: Sequence[str], *, title: str) -> str:
    """A picture, and once more for each token with the patches where it looked: [token, row, column]."""
    height, width = (round(side * PICTURE / max(picture.shape)) for side in picture.shape)
    columns = min(4, len(tokens) + 1)
    rows = math.ceil((len(tokens) + 1) / columns)
    across, down = PICTURE + 28, height + 36
    parts = list(_card(24 + across * columns, 100 + down * rows, title))
    for number, label in enumerate(["the picture", *tokens]):
        x, y = 24 + across * (number % columns), 52 + down * (number // columns)
        parts.append(_text(x, y + 12, _fit(_printable(label), LONGEST_LABEL), size=13, color=INK))
        parts.append(_image(x, y + 20, width, height, _stretched(picture), grey=True))
        if number:
            parts.append(_image(x, y + 20, width, height, _scaled_to_max(attention_TPQ[number - 1]), opacity=0.6))
    bottom = 60 + down * rows
    parts += [*_color_bar(24, bottom + 10), _text(190, bottom + 22, "where each looked, from 0 to its maximum")]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _stretched(values: np.ndarray) -> np.ndarray:
    """From the least value to the greatest as 0 to 1."""
    return np.asarray(_scaled_to_max(values - values.min()))


def _scaled_to_max(attention: np.ndarray) -> np.ndarray:
    return np.asarray(attention / max(attention.max(), 1e-9))


def _image(
    x: float, y: float, width: float, height: float, values: np.ndarray, opacity: float = 1.0, *, grey: bool = False
) -> str:
    pixels = base64.b64encode(png_pixels(values, grey=grey)).decode("ascii")
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width}" height="{height}" preserveAspectRatio="none" opacity="{opacity}"'
    return f'<image {place} style="image-rendering:pixelated" href="data:image/png;base64,{pixels}"/>'


def png_pixels(weights: np.ndarray, *, grey: bool = False) -> bytes:
    """A PNG with one pixel per value in 0..1."""
    colors = [(level, level, level) if grey else _color(level / 255) for level in range(256)]
    palette = np.array(colors, np.uint8)
    levels = np.rint(np.nan_to_num(np.clip(weights, 0.0, 1.0)) * 255).astype(np.uint8)
    height, width = levels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), levels], axis=1)  # each row begins with its filter: none
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)  # 8 bits, palette
    chunks = (
        (b"IHDR", header),
        (b"PLTE", palette.tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )


def png_of(svg: str, zoom: float = 2.0) -> bytes:
    """Convert an SVG to PNG, if resvg is installed."""
    try:
        import resvg_py
    except ImportError:
        raise ConfigError("--png: needs resvg-py; pip install 'dragoman[png]', or write --svg") from None
    # few fonts have sentencepiece's space mark, and it would change the font of its word
    return bytes(resvg_py.svg_to_bytes(svg_string=svg.replace("\u2581", "_"), zoom=zoom))
