"""The inspection page in a real browser: it shows the data and makes no request.

Needs playwright and Debian's chromium; skipped if either is missing. To save screenshots of the pages, set
DRAGOMAN_SCREENSHOTS=/tmp/pages.
"""

import base64
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dragoman.inspect.page import page as whole_page
from tests.hostile_text import SHORT, TEXT, run_page_of, without_escaping, without_policy

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path: apt-get install chromium")

Payload = dict[str, Any]
Open = Callable[..., Any]

SOURCE = ("▁The", "▁cat", "▁sat", ".", "</s>")
TARGET = ("▁Die", "▁Katze", "▁saß", "</s>")
HEADS = 4
SCREENSHOTS = os.environ.get("DRAGOMAN_SCREENSHOTS")
SECONDS = 60.0  # for an act on a page, however busy the machine
NODES = 20_000


# Payloads


def packed(weights: npt.NDArray[np.float64]) -> Payload:
    levels = np.rint(weights * 255).astype(np.uint8)
    return {"shape": list(weights.shape), "bytes": base64.b64encode(levels.tobytes()).decode()}


def unpacked(packed: Payload) -> npt.NDArray[np.float64]:
    levels = np.frombuffer(base64.b64decode(packed["bytes"]), dtype=np.uint8)
    return levels.reshape(packed["shape"]).astype(np.float64) / 255


def weights(rng: np.random.Generator, layers: int, heads: int, queries: int, keys: int) -> Payload:
    return packed(rng.dirichlet(np.full(keys, 0.3), size=(layers, heads, queries)))


def beam(tokens: Sequence[str]) -> list[list[Any]]:
    """A beam of two: the translation, a rival that ends early, and two that are dropped at each step."""
    nodes: list[list[Any]] = []
    live = [-1, -1]
    for depth, token in enumerate(tokens, start=1):
        first = len(nodes)
        nodes.append([live[0], depth, token, -0.1 * depth, "best"])
        nodes.append([live[1], depth, f"r{depth}", -0.3 * depth, "finished" if depth == len(tokens) else "kept"])
        nodes += [[parent, depth, f"d{depth}", -2.0 * depth, "dropped"] for parent in live]
        live = [first, first + 1]
    return nodes


def sentence(
    source: Sequence[str] = SOURCE,
    tokens: Sequence[str] = TARGET,
    *,
    text: str | None = None,
    forced: bool = False,
    layers: int = 2,
    heads: int = HEADS,
    kinds: Sequence[str] = ("encoder", "decoder", "cross"),
    seed: int = 1,
) -> Payload:
    """Every third token is not the model's first choice."""
    rng = np.random.default_rng(seed)
    sizes = {
        "encoder": (len(source), len(source)),
        "decoder": (len(tokens), len(tokens)),
        "cross": (len(tokens), len(source)),
    }
    empty = {"shape": [0, 0, 0, 0], "bytes": ""}
    attention = {kind: weights(rng, layers, heads, *size) if kind in kinds else empty for kind, size in sizes.items()}
    steps = []
    for place, token in enumerate(tokens):
        likely = [[token, 0.6], ["▁other", 0.2]] if place % 3 else [["▁other", 0.6], [token, 0.2]]
        steps.append({"p": 0.6 if place % 3 else 0.2, "rank": 1 if place % 3 else 2, "candidates": likely})
    has_cross = "cross" in kinds
    return {
        "source": text or "".join(source[:-1]).replace("▁", " ").strip(),
        "translation": "".join(tokens[:-1]).replace("▁", " ").strip(),
        "forced": forced,
        "score": -1.25,
        "source_tokens": list(source),
        "input_tokens": ["<s>", *tokens[:-1]],
        "tokens": list(tokens),
        "steps": steps,
        "attention": attention,
        "alignment_layer": layers - 1 if has_cross else None,
        "beam": [] if forced else beam(tokens),
        "ranking": [["cross.1.2", 1.5], ["encoder.2.1", 0.2], ["decoder.1.1", -0.4]] if has_cross else [],
    }


def payload(*sentences: Payload, **more: Any) -> Payload:
    model = {"name": "tiny", "architecture": "transformer", "encoder_layers": 2, "decoder_layers": 2}
    return {"kind": "inspection", "model": model, "sentences": list(sentences), **more}


def statistics() -> list[Payload]:
    rng = np.random.default_rng(3)
    names = [f"encoder.{layer}.{head}" for layer in (1, 2, 10) for head in (1, 2)]
    measures = ("entropy", "evenness", "distance", "following", "sink", "confidence")
    rows = [{"name": name, "offset": 0, "dead": False, **{m: float(rng.random()) for m in measures}} for name in names]
    rows[3] |= {"sink": 0.99, "dead": True}
    return rows


def long_sentence(seed: int) -> Payload:
    source, tokens = ([f"▁{side}{number}" for number in range(199)] for side in "st")
    return sentence([*source, "</s>"], [*tokens, "</s>"], layers=6, heads=8, seed=seed)


# The browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=180_000)
        yield chromium
        chromium.close()


class Record:
    """Requests, dialogs and errors of a page."""

    def __init__(self, page: Any, address: str) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._dialog)
        self._address = address

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def check(self) -> None:
        assert set(self.requests) == {self._address}
        assert self.complaints == []


@pytest.fixture
def show(browser: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens a payload; afterwards no page may have made a request or logged an error."""
    opened: list[tuple[Any, Any, Record]] = []

    def open_page(data: Payload, width: int = 1200, scheme: str = "light") -> Any:
        file = tmp_path / f"page{len(opened)}.html"
        file.write_text(whole_page("tiny", data), encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        page.set_default_timeout(120_000)  # milliseconds; machines are shared
        opened.append((context, page, Record(page, file.as_uri())))
        page.goto(file.as_uri())
        return page

    yield open_page
    for number, (context, page, record) in enumerate(opened):
        if SCREENSHOTS:
            page.screenshot(path=Path(SCREENSHOTS) / f"{request.node.name}-{number}.png", full_page=True)
        record.check()
        context.close()


def map_picture(page: Any) -> str:
    return str(page.evaluate("document.getElementById('map').toDataURL()"))


def select_head(page: Any, layer: int, head: int) -> None:
    page.click(f'.thumb[data-layer="{layer}"][data-head="{head}"]')


def visible_sections(page: Any) -> list[str]:
    shown: list[str] = page.locator("#sections > section").evaluate_all(
        "all => all.filter(part => !part.hidden).map(part => part.id)"
    )
    return shown


# Safety


def open_page(browser: Any, file: Path, content: str) -> tuple[Any, Record]:
    file.write_text(content, encoding="utf-8")
    page = browser.new_page()
    record = Record(page, file.as_uri())
    page.goto(file.as_uri(), wait_until="load")
    return page, record


def test_network_request_is_blocked_and_detected(browser: Any, tmp_path: Path) -> None:
    page, record = open_page(browser, tmp_path / "page.html", whole_page("tiny", payload(sentence())))
    record.check()
    refused = page.evaluate(
        """() => new Promise((done) => {
            document.addEventListener("securitypolicyviolation", (event) => done(event.effectiveDirective));
            fetch("https://example.org/").catch(() => {});
        })"""
    )
    assert refused == "connect-src"
    page.close()
    with pytest.raises(AssertionError):
        record.check()


def hostile_pages(run: Path, folder: Path) -> dict[str, str]:
    data = sentence((TEXT, SHORT, "</s>"), (SHORT, TEXT, "</s>"), text=TEXT)
    masked = {"heads": [TEXT], "before": {"translation": TEXT, "score": -1.0}}
    data["masked"] = {**masked, "after": {"translation": SHORT, "score": -2.0}, "score_of_before": -3.0}
    return {"inspector": whole_page(TEXT, payload(data)), "report": run_page_of(run, folder, TEXT, SHORT)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["inspector", "report"])
def test_a_script_in_text_runs_only_without_both_escaping_and_policy(
    browser: Any, quick_run: Path, tmp_path: Path, kind: str
) -> None:
    whole = hostile_pages(quick_run, tmp_path)[kind]
    contents = {
        (True, True): whole,
        (True, False): without_policy(whole),
        (False, True): without_escaping(whole),
        (False, False): without_policy(without_escaping(whole)),
    }
    assert len(set(contents.values())) == 4
    ran = {}
    for number, (guards, content) in enumerate(contents.items()):
        page, record = open_page(browser, tmp_path / f"{number}.html", content)
        ran[guards] = page.evaluate("document.documentElement.dataset.ran") == "yes"
        if guards == (True, True):
            record.check()
            assert TEXT in page.inner_text("#source-text" if kind == "inspector" else "q")
            assert page.title() == TEXT if kind == "inspector" else SHORT in page.title()
        page.close()
    assert ran == {(True, True): False, (True, False): False, (False, True): False, (False, False): True}


def test_markup_in_text_stays_text(show: Open) -> None:
    nasty = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    tokens = ("▁<script>", "alert(1)", "</script>", "</s>")
    data = payload(sentence(tokens, tokens, text=nasty), sentence())
    masked = {"heads": [nasty], "before": {"translation": nasty, "score": -1.0}}
    data["sentences"][0]["masked"] = {**masked, "after": {"translation": "<b>bold</b>", "score": -2.0}}
    page = show(data)
    assert page.inner_text("#source-text") == nasty
    assert page.inner_text("#strip [data-side=source] [data-index='0']") == "<script>"
    assert page.locator("#app script, #app img, #app b").count() == 0
    assert nasty in page.inner_text("#masked")


# Sentences


def test_sentences_are_chosen_by_pointer_keyboard_and_search(show: Open) -> None:
    texts = ["first one", "second one", "third thing"]
    page = show(payload(*(sentence(text=text, seed=seed) for seed, text in enumerate(texts))))
    source = page.locator("#source-text")
    assert source.inner_text() == "first one"
    page.click("#sentence-2")
    assert source.inner_text() == "third thing"
    page.focus("#sentences")
    page.keyboard.press("ArrowUp")
    assert source.inner_text() == "second one"
    page.fill("#search", "THIRD")
    assert page.locator("#sentences [role=option]").count() == 1
    page.click("#sentences [role=option]")
    assert source.inner_text() == "third thing"


def test_sentence_list_renders_few_rows_for_thousands_of_sentences(show: Open) -> None:
    some = sentence()
    page = show(payload(*({**some, "source": f"number {number}"} for number in range(3000))))
    assert page.locator("#sentences [role=option]").count() < 60
    page.focus("#sentences")
    page.keyboard.press("End")
    assert page.inner_text("#source-text") == "number 2999"
    assert page.locator("#sentence-2999").get_attribute("aria-selected") == "true"


def test_single_sentence_has_no_list(show: Open) -> None:
    assert show(payload(sentence())).locator("#sentences").count() == 0


# Source and translation


@pytest.mark.parametrize(("side", "axis"), [("target", 1), ("source", 0)])
def test_hover_highlights_the_token_with_most_attention(show: Open, side: str, axis: int) -> None:
    data = sentence()
    page = show(payload(data))
    other = {"target": "source", "source": "target"}[side]
    page.hover(f"#strip [data-side={side}] [data-index='2']")
    glows = page.locator(f"#strip [data-side={other}] .token").evaluate_all(
        "all => all.map(token => parseFloat(token.style.getPropertyValue('--glow')) || 0)"
    )
    mean_TS = unpacked(data["attention"]["cross"]).mean(axis=(0, 1))
    assert int(np.argmax(glows)) == int(np.argmax(mean_TS[2] if axis else mean_TS[:, 2]))
    page.hover("h1")
    assert page.locator("#strip .token.active").count() == 0


def test_keyboard_focus_highlights_like_hover(show: Open) -> None:
    page = show(payload(sentence()))
    page.hover("#strip [data-side=target] [data-index='1']")
    said = page.inner_text("#link-readout")
    page.hover("h1")
    page.focus("#strip [data-side=target] [data-index='0']")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#link-readout") == said


def test_each_target_token_has_an_alignment_line(show: Open) -> None:
    page = show(payload(sentence(), sentence(SOURCE[2:], TARGET[2:])))
    for number, tokens in enumerate((TARGET, TARGET[2:])):
        page.click(f"#sentence-{number}")
        assert page.locator("#lines .aligned").count() == len(tokens)
        assert page.locator("#lines").is_visible()  # an svg without width would draw none
    assert page.evaluate("document.querySelector('.strip-inner').offsetWidth") < 400  # no wider than its tokens


# Attention


def test_a_head_is_chosen_by_click_and_by_keyboard(show: Open) -> None:
    page = show(payload(sentence()))
    pictures = [map_picture(page)]
    select_head(page, 1, 2)
    assert page.get_attribute("#map", "data-shown") == "layer 2, head 3"
    pictures.append(map_picture(page))
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#map", "data-shown") == "layer 2, head 4"
    pictures.append(map_picture(page))
    page.keyboard.press("ArrowUp")
    assert page.get_attribute("#map", "data-shown") == "layer 1, head 4"
    pictures.append(map_picture(page))
    page.select_option("#head", "1.2")
    assert len(set(pictures)) == 4
    assert map_picture(page) == pictures[1]


@pytest.mark.parametrize(
    "kind", ["cross", *(pytest.param(each, marks=pytest.mark.slow) for each in ("encoder", "decoder"))]
)
def test_heat_map_and_table_show_the_weights(show: Open, kind: str) -> None:
    data = sentence()
    page = show(payload(data))
    page.check(f"#kind-{kind}", force=True)
    select_head(page, 0, 1)
    weights_QK = unpacked(data["attention"][kind])[0, 1]
    page.focus("#map-scroll")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert f"{weights_QK[1, 1]:.3f}" in page.inner_text("#map-readout")
    page.check("#view-table", force=True)
    cells = page.locator("#numbers td").all_inner_texts()
    shown_QK = np.array(cells, dtype=float).reshape(weights_QK.shape)
    np.testing.assert_allclose(shown_QK, weights_QK, atol=0.006)


def test_selecting_a_sentence_shows_its_weights(show: Open) -> None:
    both = [sentence(seed=seed) for seed in (1, 2)]
    page = show(payload(*both))
    select_head(page, 0, 1)
    for number, data in enumerate(both):
        page.click(f"#sentence-{number}")
        page.focus("#map-scroll")
        page.keyboard.press("ArrowRight")
        assert f"{unpacked(data['attention']['cross'])[0, 1, 0, 0]:.3f}" in page.inner_text("#map-readout")


def test_hovering_over_a_cell_shows_its_value(show: Open) -> None:
    data = sentence()
    page = show(payload(data))
    select_head(page, 1, 0)
    box = page.locator("#map").bounding_box()
    queries, keys = len(TARGET), len(SOURCE)
    page.mouse.move(box["x"] + box["width"] * 3.5 / keys, box["y"] + box["height"] * 2.5 / queries)
    assert f"{unpacked(data['attention']['cross'])[1, 0, 2, 3]:.3f}" in page.inner_text("#tip")
    assert page.locator(".map .lit").count() == 2


def test_word_view_shows_lines_of_all_heads_or_the_selected_one(show: Open) -> None:
    page = show(payload(sentence()))
    page.check("#view-word", force=True)
    heads = "all => [...new Set(all.map(line => Number(line.dataset.head)))].sort()"
    lines = page.locator("#word-lines path")
    assert lines.evaluate_all(heads) == list(range(HEADS))
    first = page.inner_text("#word-readout")
    page.focus("#word-queries")
    page.keyboard.press("ArrowDown")
    assert page.inner_text("#word-readout") != first
    page.click("#word-queries [data-index='0']")
    assert page.inner_text("#word-readout") == first
    select_head(page, 0, 2)
    assert lines.evaluate_all(heads) == [2]


# Probabilities and steps


def test_candidates_and_disagreements_are_shown(show: Open) -> None:
    data = sentence(forced=True)
    page = show(payload(data))
    unlikely = [place for place, step in enumerate(data["steps"]) if step["rank"] > 1]
    places = "all => all.map(item => Number(item.dataset.index))"
    assert page.locator("#probabilities .unlikely").evaluate_all(places) == unlikely
    assert page.locator("#disagreements button").evaluate_all(places) == unlikely
    assert "Where the model disagrees" in page.inner_text("#disagreements")
    page.click("#probabilities [data-index='1']")
    assert page.locator("#candidates li").count() == 2
    assert "Katze" in page.inner_text("#candidates .taken")
    assert "60.0%" in page.inner_text("#candidates .taken")
    page.keyboard.press("ArrowRight")
    assert "saß" in page.inner_text("#candidates .taken")


def test_training_and_inference_steps_are_shown(show: Open) -> None:
    page = show(payload(sentence()))
    rows = page.locator("#training tr")
    assert rows.nth(1).locator("td").all_inner_texts() == ["<s>", "Die", "Katze", "saß"]
    assert rows.nth(2).locator("td").all_inner_texts() == ["Die", "Katze", "saß", "</s>"]
    page.check("#mode-inference", force=True)
    for place, token in enumerate(TARGET):
        assert page.inner_text("#step-token") == token.removeprefix("▁")
        assert page.locator("#fed .token:not(.future)").count() == place + 1
        page.click("#step-on")
    page.focus("#step")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#step-token") == "saß"


# Beam


def test_search_tree_has_every_node(show: Open) -> None:
    data = sentence()
    page = show(payload(data))
    fates = page.locator("#tree [data-fate]").evaluate_all("all => all.map(node => node.dataset.fate)")
    assert Counter(fates) == Counter(node[4] for node in data["beam"])
    page.hover("#tree [data-node='0']")
    assert "−0.10" in page.inner_text("#beam-readout")
    page.uncheck("#dropped")
    left = page.locator("#tree [data-fate]").evaluate_all("all => all.map(node => node.dataset.fate)")
    assert Counter(left) == Counter(fate for fate in fates if fate != "dropped")


def test_arrow_keys_navigate_the_tree(show: Open) -> None:
    page = show(payload(sentence()))
    page.focus("#tree [data-node='0']")
    page.keyboard.press("ArrowRight")
    focused = page.evaluate("document.activeElement.dataset.node")
    assert sentence()["beam"][int(focused)][:3] == [0, 2, "▁Katze"]
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.dataset.node") == "0"


# Heads and positions


def test_clicking_a_ranked_head_selects_it(show: Open) -> None:
    page = show(payload(sentence()))
    assert page.locator("#ranking li").count() == 3
    assert page.locator("#ranking .below").count() == 1
    page.click("#ranking [data-head='encoder.2.1'] button")
    assert page.get_attribute("#map", "data-shown") == "layer 2, head 1"
    assert page.is_checked("#kind-encoder")


def test_missing_ranking_of_a_sentence_is_stated(show: Open) -> None:
    page = show(payload(sentence(), {**sentence(seed=2), "ranking": []}))
    assert page.is_visible("#ranking li")
    assert not page.is_visible("#ranking .unranked")
    page.locator("#sentences [role=option]").nth(1).click()
    told = "The heads of the first sentence were ranked, as --rank said; not of this one."
    assert page.inner_text("#ranking .unranked") == told
    assert not show(payload({**sentence(), "ranking": []})).is_visible("#ranking")


def test_statistics_are_sorted_by_click_and_keyboard(show: Open) -> None:
    rows = statistics()
    page = show(payload(sentence(), statistics=rows))
    order = "all => all.map(row => row.dataset.head)"
    shown = page.locator("#heads tbody tr")
    assert shown.evaluate_all(order) == [row["name"] for row in rows]
    page.click("#heads [data-key=entropy] button")
    falling = [row["name"] for row in sorted(rows, key=lambda row: -row["entropy"])]
    assert shown.evaluate_all(order) == falling
    assert page.get_attribute("#heads [data-key=entropy]", "aria-sort") == "descending"
    page.keyboard.press("Enter")
    assert shown.evaluate_all(order) == falling[::-1]
    page.click("#heads [data-key=name] button")  # layer 10 comes after layer 2
    assert shown.evaluate_all(order) == [row["name"] for row in rows]
    assert page.locator("#heads .badge.dead").count() == 1


def test_changed_words_are_marked_for_masked_heads(show: Open) -> None:
    masked: Payload = {"heads": ["cross.1.1"], "before": {"translation": "Die Katze saß", "score": -1.0}}
    masked |= {"after": {"translation": "Die Maus saß", "score": -1.5}, "score_of_before": -3.25}
    page = show(payload({**sentence(), "masked": masked}, sentence()))
    assert page.locator("#comparison mark").all_inner_texts() == ["Katze", "Maus"]
    assert "−0.50" in page.inner_text("#masked")
    assert "−3.25" in page.inner_text("#masked")
    page.locator("[role=option]").nth(1).click()
    assert page.locator("#masked").is_hidden()


def test_position_encodings_are_drawn(show: Open) -> None:
    table = {"shape": [6, 16], "bytes": base64.b64encode(bytes(range(96))).decode()}
    page = show(payload(sentence(), positions={"table": table, "dots": [8.0, 6.0, 3.0, -1.0]}))
    canvas = page.locator("#position-map")
    assert (canvas.get_attribute("width"), canvas.get_attribute("height")) == ("16", "6")
    assert page.locator("#dots .curve").get_attribute("d").count("L") == 3


# The page as a whole


def test_the_theme_cycles(show: Open) -> None:
    page = show(payload(sentence()), scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    papers = [page.evaluate(paper)]
    for _ in range(3):
        page.click("#theme")
        papers.append(page.evaluate(paper))
    auto, light, dark, again = papers
    assert auto == dark == again != light


def test_sections_without_data_are_not_shown(show: Open) -> None:
    assert visible_sections(show(payload())) == []
    assert visible_sections(show(payload(sentence(forced=True)))) == [
        "translation", "probability", "attention", "steps", "ranking",
    ]  # fmt: skip
    whole = payload(statistics=statistics())
    assert visible_sections(show(whole)) == ["statistics"]


def test_model_without_attention_hides_attention_sections(show: Open) -> None:
    page = show(payload(sentence(kinds=())))
    assert visible_sections(page) == ["translation", "probability", "steps", "beam"]
    page.hover("#strip [data-side=target] [data-index='1']")
    assert "no attention" in page.inner_text("#translation")


def test_recurrent_model_with_one_head_is_shown(show: Open) -> None:
    data = sentence(kinds=("cross",), layers=1, heads=1)
    page = show(payload(data, {**data, "source": "again"}))
    assert page.locator(".thumb").count() == 1
    assert page.get_attribute("#map", "data-shown") == "layer 1, head 1"
    for view in ("word", "table", "map"):
        page.check(f"#view-{view}", force=True)
    page.click("#sentence-1")
    page.hover("#strip [data-side=target] [data-index='1']")
    assert page.locator("#lines .looks path").count() > 0


@pytest.mark.parametrize("width", [360, *(pytest.param(each, marks=pytest.mark.slow) for each in (800, 1600))])
def test_any_writing_system_fits_any_width(show: Open, width: int) -> None:
    source = ("▁مرحبا", "▁بالعالم", "▁ภาษาไทยที่ยาวมากโดยไม่มีช่องว่าง", "日本語の文", "▁" + "long" * 20, "</s>")
    page = show(payload(sentence(source, source, text="x" * 300), statistics=statistics()), width=width)
    for view in ("word", "table", "map"):
        page.check(f"#view-{view}", force=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_two_hundred_tokens_render_fast_with_few_dom_nodes(show: Open) -> None:
    page = show(payload(long_sentence(1), long_sentence(2)))
    page.check("#kind-encoder", force=True)
    for act in (
        lambda: select_head(page, 3, 4),
        lambda: page.check("#view-table", force=True),
        lambda: page.check("#view-word", force=True),
        lambda: page.check("#view-map", force=True),
        lambda: page.click("#sentence-1"),
    ):
        start = time.perf_counter()
        act()
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert time.perf_counter() - start < SECONDS
        assert page.evaluate("document.querySelectorAll('*').length") < NODES


@pytest.mark.slow
def test_tab_key_moves_through_the_page(show: Open) -> None:
    page = show(payload(sentence(), sentence(seed=2), statistics=statistics()))
    stops = []
    for _ in range(120):
        page.keyboard.press("Tab")
        page.keyboard.press("ArrowRight")
        stops.append(
            page.evaluate(
                "document.activeElement.id || document.activeElement.className || document.activeElement.tagName"
            )
        )
    assert "BODY" not in stops[:20], "every stop is an element"
    assert stops.count("head-name") <= 2 * 120 // 20, "a list of heads is one stop"


def test_lines_connect_tokens_with_most_attention_in_the_selected_head(show: Open) -> None:
    own = sentence()
    cross = unpacked(own["attention"]["cross"])
    page = show(payload(own))
    ends = "Array.from(document.querySelectorAll('#lines .aligned'), (line) => line.getAttribute('d').split(' ')[0])"
    starts = page.evaluate(
        "Array.from(document.querySelectorAll('#strip [data-side=source] .token'),"
        " (token) => `M${token.offsetLeft + token.offsetWidth / 2}`)"
    )

    def joined(weights: Any) -> list[str]:
        return [starts[at] for at in weights.argmax(axis=1)]

    assert page.evaluate(ends) == joined(cross[-1].mean(axis=0)), "at first the alignment layer"
    page.select_option("#link-head", "0.1")
    assert page.evaluate(ends) == joined(cross[0, 1])
    assert joined(cross[0, 1]) != joined(cross[-1].mean(axis=0)), "the control"


def test_run_report_contains_no_script(browser: Any, quick_run: Path, tmp_path: Path) -> None:
    file = quick_run / "report.html"
    page = browser.new_page(viewport={"width": 900, "height": 700}, color_scheme="dark")
    record = Record(page, file.as_uri())
    page.goto(file.as_uri())
    assert page.locator("script").count() == 0
    assert page.locator("section").count() >= 5
    assert page.locator("svg image").count() >= 3, "attention at each validation"
    if SCREENSHOTS:
        page.screenshot(path=Path(SCREENSHOTS) / "report.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "wide parts scroll on their own"
    record.check()
    page.close()
