"""Pictures: heat maps aligned by display width, plots that are valid SVG, control characters and markup escaped."""

import re
import subprocess
import sys
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from dragoman.inspect.vectors import grouped
from dragoman.pictures import (
    COLORS,
    SHADES,
    png_pixels,
    svg_field,
    svg_frames,
    svg_grid,
    svg_heatmap,
    svg_panels,
    svg_patches,
    svg_plot,
    terminal_heatmap,
)  # fmt: skip


def without_color(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_small_heat_map_is_drawn_exactly() -> None:
    weights = np.array([[1.0, 0.0, 0.25], [0.5, np.nan, 0.75]])
    picture = terminal_heatmap(weights, ["สี่", "</s>"], ["four", "-", "漢字"], color=False, width=40)
    assert picture.split("\n") == [
        "      four -  漢字",
        "   สี่ │████    ░░░░│",
        "</s> │▒▒▒▒ ?  ▓▓▓▓│",
        "",
        "0 │ ░▒▓█│ 1",
    ]


def test_color_draws_backgrounds_instead_of_shades() -> None:
    weights = np.array([[0.0, 0.5, 1.0]])
    picture = terminal_heatmap(weights, ["a"], ["x", "y", "z"], color=True, width=40)
    row = picture.split("\n")[1]
    assert row == "a │\x1b[48;2;68;1;84m  \x1b[0m \x1b[48;2;33;145;140m  \x1b[0m \x1b[48;2;253;231;37m  \x1b[0m│"
    assert picture.count("\x1b[48") == picture.count("\x1b[0m")
    assert not set(without_color(picture)) & set(SHADES[1:])


def test_values_are_clipped_and_shades_increase() -> None:
    weights = np.array([[-3.0, 0.0, 0.2, 0.5, 0.8, 1.0, 7.0, np.inf, -np.inf]])
    row = terminal_heatmap(weights, ["r"], list("abcdefghi"), color=False, width=60).split("\n")[1]
    assert row == "r │      ░░ ▒▒ ▓▓ ██ ██ ██   │"


def test_labels_that_do_not_fit_become_numbers_with_a_legend() -> None:
    labels = [f"word{index}" for index in range(12)]
    narrow = terminal_heatmap(np.eye(12), labels, labels, color=False, width=40)
    wide = terminal_heatmap(np.eye(12), labels, labels, color=False, width=100)
    assert "word0 word1" in wide
    assert "1 word0" not in wide
    assert "1 word0  2 word1" in narrow
    assert narrow.split("\n")[0] == " " * 8 + " 1  2  3  4  5  6  7  8  9 10"
    assert narrow.count("█") == 2 * 12 + 1  # every cell of the diagonal once, and the scale


def test_blocks_of_a_wide_map_join_to_the_whole_map() -> None:
    weights = np.random.default_rng(0).random((3, 40))
    labels = [str(index) * 3 for index in range(40)]
    rows = ["a", "b", "c"]
    blocks = terminal_heatmap(weights, rows, labels, color=False, width=30).split("\n")
    joined = [" ".join(line[3:-1] for line in blocks if line.startswith(f"{row} │")) for row in rows]
    whole = terminal_heatmap(weights, rows, ["xx"] * 40, color=False, width=200).split("\n")[1:4]
    assert joined == [line[3:-1] for line in whole]


@pytest.mark.parametrize("label", ["\x1b[31mred", "a\nb", "\r", "\x00", "\u202eright", "\u2028", "\x9b2J"])
def test_control_characters_are_escaped(label: str) -> None:
    for width in (20, 80):
        picture = terminal_heatmap(np.zeros((1, 3)), [label], [label, "long label", label], color=False, width=width)
        assert all(character == "\n" or character.isprintable() for character in picture)
        assert len(picture.split("\n")) == len(picture.splitlines())
    assert "\\" in picture


def test_combining_mark_without_a_letter_gets_a_dotted_circle() -> None:
    picture = terminal_heatmap(np.ones((1, 2)), ["่"], ["ี", "ก"], color=False, width=40)
    assert picture.split("\n")[:2] == ["   ◌ี  ก", "◌่ │██ ██│"]


def test_a_long_row_label_is_cut_between_letters() -> None:
    picture = terminal_heatmap(np.ones((1, 1)), ["ที่นี่" * 10], ["x"], color=False, width=30)
    label = picture.split("\n")[1].partition(" │")[0]
    assert label == "ที่นี่" * 4 + "ที่…"
    assert cell_len(label) == 10


texts = st.text(max_size=12)


@settings(max_examples=60)
@given(st.lists(texts, max_size=5), st.lists(texts, max_size=30), st.booleans(), st.integers(20, 90))
def test_heat_map_is_never_wider_than_the_terminal(
    rows: list[str], columns: list[str], color: bool, width: int
) -> None:
    weights = np.linspace(0, 1, len(rows) * len(columns)).reshape(len(rows), len(columns))
    picture = terminal_heatmap(weights, rows, columns, color=color, width=width)
    for line in without_color(picture).split("\n"):
        assert cell_len(line) <= width
        assert line.isprintable()


@settings(max_examples=60)
@given(st.lists(st.text("aกี่漢é</", max_size=8), min_size=2, max_size=5))
def test_row_borders_align_in_one_column(rows: list[str]) -> None:
    picture = terminal_heatmap(np.zeros((len(rows), 2)), rows, ["x", "y"], color=False, width=60)
    bars = [line for line in picture.split("\n")[1:] if line.endswith("│")]
    assert len(bars) == len(rows)
    assert len({cell_len(line.partition("│")[0]) for line in bars}) == 1


def test_errors_give_name_value_and_constraint() -> None:
    with pytest.raises(ValueError, match=r"^weights: shape \(2, 3\) must be \(2, 2\)"):
        terminal_heatmap(np.zeros((2, 3)), ["a", "b"], ["x", "y"], color=False, width=80)
    with pytest.raises(ValueError, match=r"^weights: shape \(4,\) must be"):
        terminal_heatmap(np.zeros(4), ["a", "b"], ["x", "y"], color=False, width=80)
    with pytest.raises(ValueError, match=r"^width: 8 must be at least 20"):
        terminal_heatmap(np.zeros((1, 1)), ["a"], ["x"], color=False, width=8)


def test_import_loads_no_heavy_module() -> None:
    code = "import sys, dragoman.pictures; print({'rich', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


SVG = "{http://www.w3.org/2000/svg}"


def plot(
    series: dict[str, list[tuple[float, float]]], *, log_x: bool = False, log_y: bool = False
) -> ElementTree.Element:
    picture = svg_plot(series, title="Title", x_label="length", y_label="seconds", log_x=log_x, log_y=log_y)
    return ElementTree.fromstring(picture)


def polylines(root: ElementTree.Element) -> list[list[tuple[float, float]]]:
    lines = (element.attrib["points"].split() for element in root.iter(f"{SVG}polyline"))
    return [[(float(x), float(y)) for x, y in (point.split(",") for point in line)] for line in lines]


def texts_of(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


numbers = st.floats(1e-6, 1e6)
lines = st.dictionaries(texts, st.lists(st.tuples(numbers, numbers), min_size=1, max_size=5), min_size=1, max_size=9)


@settings(max_examples=60)
@given(lines, st.booleans(), st.booleans())
def test_a_plot_is_xml_with_every_point_inside_the_card(
    series: dict[str, list[tuple[float, float]]], log_x: bool, log_y: bool
) -> None:
    root = plot(series, log_x=log_x, log_y=log_y)
    drawn = polylines(root)
    assert [len(line) for line in drawn] == [len(line) for line in series.values()]
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert all(0 < x < width and 0 < y < height for line in drawn for x, y in line)


def test_a_plot_keeps_the_order_of_values() -> None:
    (rising,) = polylines(plot({"rising": [(1, 10), (2, 100), (4, 1_000), (8, 10_000)]}, log_x=True, log_y=True))
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(rising)]
    assert all(right > 0 > down for right, down in steps)
    np.testing.assert_allclose(steps, [steps[0]] * 3, atol=0.11)  # a power is a straight line on two log axes


def test_ticks_are_round_numbers() -> None:
    assert {"0", "0.2", "0.4", "0.6", "0.8", "1"} <= set(texts_of(plot({"a": [(0, 0.03), (3, 0.98)]})))
    logarithmic = texts_of(plot({"a": [(1e-5, 64), (0.1, 3_072)]}, log_x=True, log_y=True))
    assert {"10⁻⁵", "0.01", "50", "100", "1,000", "5,000"} <= set(logarithmic)


def test_markup_and_controls_in_labels_stay_text() -> None:
    label = "<script>alert(1)</script> & \"'\x00\x1b"
    picture = svg_plot({label: [(1, 1)]}, title=label, x_label=label, y_label=label)
    root = ElementTree.fromstring(picture)
    assert "<script" not in picture
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {"svg", "rect", "text", "path", "polyline"}
    assert sum(text.startswith("<script>alert(1)</script> & \"'") for text in texts_of(root)) == 4


@pytest.mark.parametrize(("point", "log", "message"), [
    ((0.0, 1.0), "x", "'time' has x=0.0, and a log axis begins above 0"),
    ((1.0, -2.0), "y", "'time' has y=-2.0, and a log axis begins above 0"),
    ((1.0, float("nan")), "", "'time' has the point (1.0, nan), which is not finite"),
])  # fmt: skip
def test_points_that_cannot_be_drawn_are_refused(point: tuple[float, float], log: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^series: {re.escape(message)}"):
        plot({"time": [(1.0, 1.0), point]}, log_x=log == "x", log_y=log == "y")
    with pytest.raises(ValueError, match=r"^series: 'time' has no points"):
        plot({"time": []})
    with pytest.raises(ValueError, match=r"^series: nothing to draw"):
        plot({})


# Heat maps


def test_heat_map_uses_the_whole_colour_scale() -> None:
    root = ElementTree.fromstring(
        svg_heatmap(np.array([[0.0, 0.5, 1.0, 7.0]]), ["r"], list("abcd"), title="", caption="")
    )
    cells = [rect for rect in root.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    assert [rect.attrib["fill"] for rect in cells] == [f"rgb{COLORS[place]}" for place in (0, 2, 4, 4)]
    assert [rect.findtext(f"{SVG}title") for rect in cells] == [
        "r · a: 0.00",
        "r · b: 0.50",
        "r · c: 1.00",
        "r · d: 7.00",
    ]
    content = png_pixels(np.zeros((1, 1)))
    palette = content[content.index(b"PLTE") + 4 :][: 3 * 256]
    assert [tuple(palette[3 * level :][:3]) for level in (0, 255)] == [COLORS[0], COLORS[-1]]


def test_cells_are_in_the_row_of_their_query_and_the_column_of_their_key() -> None:
    root = ElementTree.fromstring(svg_heatmap(np.zeros((2, 3)), ["q", "r"], ["a", "b", "c"], title="", caption=""))
    places = {
        str(rect.findtext(f"{SVG}title"))[:5]: (float(rect.attrib["x"]), float(rect.attrib["y"]))
        for rect in root.iter(f"{SVG}rect")
        if rect.find(f"{SVG}title") is not None
    }
    (x, y), step = places["q · a"], places["q · b"][0] - places["q · a"][0]
    assert step > 0
    assert places == {
        f"{row} · {column}": (x + step * across, y + step * down)
        for down, row in enumerate("qr")
        for across, column in enumerate("abc")
    }


def test_a_grid_has_a_row_for_each_layer_and_a_column_for_each_head() -> None:
    names = [[f"{layer}.{head}" for head in range(3)] for layer in range(2)]
    root = ElementTree.fromstring(svg_grid(np.ones((2, 3, 4, 4)), names, title="t", caption="c"))
    images = {str(image.findtext(f"{SVG}title")): image.attrib for image in root.iter(f"{SVG}image")}
    assert list(images) == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    for layer in range(2):
        assert len({images[name]["y"] for name in names[layer]}) == 1
        assert [float(images[name]["x"]) for name in names[layer]] == sorted(
            float(images[name]["x"]) for name in names[0]
        )
    assert float(images["0.0"]["y"]) < float(images["1.0"]["y"])
    assert len({image["x"] for image in images.values()}) == 3


def test_panels_are_laid_out_row_by_row() -> None:
    root = ElementTree.fromstring(svg_panels(["<path/>"] * 3, columns=2, width=100, height=40))
    assert [group.attrib["transform"] for group in root] == ["translate(0 0)", "translate(100 0)", "translate(0 40)"]
    assert (root.attrib["width"], root.attrib["height"]) == ("200", "80")


def test_field_ticks_are_centred_under_their_columns() -> None:
    picture = svg_field(
        np.zeros((4, 10)), low=-1.0, high=1.0, title="", x_label="across", y_label="down", width=592, height=400
    )
    root = ElementTree.fromstring(picture)
    image = root.find(f"{SVG}image")
    assert image is not None
    left, width = float(image.attrib["x"]), float(image.attrib["width"])
    ticks = {
        text.text: float(text.attrib["x"]) for text in root.iter(f"{SVG}text") if text.get("text-anchor") == "middle"
    }
    assert ticks["4"] == pytest.approx(left + width * 4.5 / 10)
    assert "10" not in ticks, "there is no such column"


def test_groups_of_vectors_share_all_attention() -> None:
    attention = np.random.default_rng(1).dirichlet(np.ones(50), size=3)
    shown = grouped(attention, "title", ["a", "b", "c"])
    assert shown.weights.shape == (3, 20)
    assert shown.weights.max(axis=1).tolist() == [1.0] * 3
    starts = [int(column) - 1 for column in shown.columns]
    sums = np.array([[row[start:end].sum() for start, end in pairwise([*starts, 50])] for row in attention])
    np.testing.assert_allclose(shown.weights, sums / sums.max(axis=1, keepdims=True))
    few = grouped(attention[:, :5], "title", ["a", "b", "c"])
    assert few.columns == ["1", "2", "3", "4", "5"]


def test_attention_is_drawn_once_for_each_token_on_the_picture() -> None:
    drawn = svg_patches(np.eye(8), np.ones((3, 2, 2)), ["a", "b", "</s>"], title="t")
    assert drawn.count("<image") == 1 + 2 * 3
    assert "&lt;/s&gt;" in drawn
    frames = svg_frames(np.ones((30, 4)), np.ones((3, 30)), ["a", "b", "</s>"], title="t")
    assert frames.count("<image") == 2
    assert png_pixels(np.ones((1, 1)), grey=True) != png_pixels(np.ones((1, 1)))
