"""The pages of `dragoman serve` in a real browser, on the real service with the bundled model.

Needs playwright and Debian's chromium; skipped where one is missing. `make node` installs axe-core. To save
screenshots, set DRAGOMAN_SCREENSHOTS=/tmp/pages.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.inspect.page import hashes
from dragoman.serve import v1
from dragoman.serve.guard import SECURITY
from dragoman.serve.service import Failure
from tests.hostile_text import TEXT as HOSTILE

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path: apt-get install chromium")

AXE = Path(__file__).parents[2] / ".venv" / "node" / "node_modules" / "axe-core" / "axe.min.js"
SCREENSHOTS = os.environ.get("DRAGOMAN_SCREENSHOTS")
SECONDS = 120.0  # for anything, however busy the machine
DESKTOP, PHONE = (1280, 860), (390, 844)
HOUSE = "The house is old."
LONG = "The committee approved the report, but nobody had read it to the end."
Open = Callable[..., Any]


class Service:
    """The command, on a port of its own."""

    def __init__(self, folder: Path) -> None:
        self._log = (folder / "log").open("w+")
        command = [sys.executable, "-m", "dragoman", "serve", "--model", "en-de", "--port", "0"]
        self._process = subprocess.Popen(command, stderr=self._log)
        self.address = self._wait()

    def _wait(self) -> str:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            if found := re.search(r"serving .* at (http://\S+)", Path(self._log.name).read_text()):
                return found[1] + "/"
            time.sleep(0.05)
        raise AssertionError(Path(self._log.name).read_text())

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(SECONDS)
        self._log.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("service"))
    yield service
    service.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any, service: Service) -> Iterator[Open]:
    """Opens the page, ready. At the end: no error was logged and nothing asked of another host."""
    contexts, problems, expected = [], list[str](), list[str]()

    def open_page(
        path: str = "", size: tuple[int, int] = DESKTOP, scheme: str = "light", errors: str = "", **mocks: Any
    ) -> Any:
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
        context.set_default_timeout(SECONDS * 1000)
        contexts.append(context)
        expected.extend(filter(None, [errors]))
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        known = (service.address, "data:", "blob:", "about:srcdoc")
        page.on("request", lambda request: None if request.url.startswith(known) else problems.append(request.url))
        for name, answer in mocks.items():
            page.route(f"**/{name.replace('__', '/')}", answer)
        page.goto(service.address + path)
        page.locator("html[data-ready]").wait_for(state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [each for each in problems if not any(part in each for part in expected)] == []


def post(service: Service, path: str, **body: Any) -> Any:
    content = json.dumps(body).encode()
    request = urllib.request.Request(service.address + path, content, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return json.load(answer)


def translation_of(service: Service, text: str, **how: Any) -> str:
    found: str = post(service, "v1/translate", text=text, **how)["translations"][0]["translation"]
    return found


def translate(page: Any, text: str) -> str:
    """Write the text and wait for all that is known of its translation."""
    page.fill("#source", text)
    return settled(page)


def settled(page: Any) -> str:
    page.locator("#translation[aria-busy=false]").wait_for()
    return shown(page)


def shown(page: Any) -> str:
    lines: list[str] = page.locator("#translation .line").all_text_contents()
    return "\n".join(lines)


def lit(page: Any, pane: str) -> list[str]:
    found: list[str] = page.locator(f"#{pane} .lit").all_text_contents()
    return found


def word(page: Any, text: str) -> Any:
    return page.locator(".word", has_text=re.compile(f"^{text}$")).first


def options(page: Any) -> list[str]:
    page.locator("[role=option]").first.wait_for()
    found: list[str] = page.locator("[role=option] strong").all_text_contents()
    return found


def save(page: Any, name: str) -> None:
    if SCREENSHOTS:
        page.screenshot(path=f"{SCREENSHOTS}/serve-{name}.png")


# In every run


def without_alignment(route: Any) -> None:
    """Its first use imports PyTorch, which takes seconds."""
    route.continue_(post_data={**route.request.post_data_json, "alignment": False})


def test_text_is_translated_as_it_is_typed(open_page: Open, service: Service) -> None:
    page = open_page(v1__translate=without_alignment)
    assert page.locator("#swap").is_disabled(), "there is no model for the other direction"
    page.locator("#source").press_sequentially(HOUSE)
    page.locator("#translation .word").first.wait_for()
    assert shown(page) == translation_of(service, HOUSE)
    confidence = page.locator("#confidence-text").text_content()
    assert re.fullmatch(r"\d+ %", confidence)
    page.locator("#announcement", has_text=f"Translation: {shown(page)} Confidence: {confidence}").wait_for()
    assert page.locator("#copy").is_enabled()
    page.fill("#source", "")
    assert (shown(page), page.locator("#copy").is_enabled()) == ("", False)


CASES = """async () => {
    const text = await import("/web/text.js");
    const record = {
        source: "😀 Hi. Old dog.", translation: "😀 Hallo. Alter Hund.", status: "translated",
        alignment: [[2, 5, 2, 8], [6, 9, 9, 14], [10, 14, 15, 20]],
        tokens: ["▁😀", "▁Hal", "lo", ".", "</s>", "▁Alter", "▁Hund", "."], token_scores: [0, -1, -3, 0, 0, 0, -0.1, 0],
    };
    const line = text.toLine(record);
    const sentence = text.sentenceAt(line, 16, ["en", "de"]);
    const other = { ...record, source: "Old dog.", translation: "Ein Hund.", tokens: [], alignment: [[4, 8, 4, 9]] };
    const changed = text.withSentence(line, sentence, text.toLine(other));
    const ranges = (each, side) => each.links.map((link) => each[side].slice(...link[side]));
    return {
        source: ranges(line, "source"), target: ranges(line, "target"),
        doubtful: text.words(line.target, "de").filter((range) => text.isDoubtful(line, range))
            .map((range) => line.target.slice(...range)),
        sentence: line.source.slice(...sentence.source),
        changed: changed.target, links: ranges(changed, "target"),
        next: text.nextWords(["Das alte Haus", "Das Haus, ja", "Das Haus", "Der Hund"], "Das ", "de"),
        characters: text.countCharacters("a😀"),
        unmatched: text.toLine({ ...record, tokens: ["▁one"] }).chances,
    };
}"""


def test_places_in_texts(open_page: Open) -> None:
    found = open_page().evaluate(CASES)
    assert found == {
        "source": ["Hi.", "Old", "dog."],
        "target": ["Hallo.", "Alter", "Hund."],
        "doubtful": ["Hallo"],
        "sentence": "Old dog.",
        "changed": "😀 Hallo. Ein Hund.",
        "links": ["Hallo.", "Hund."],
        "next": [
            {"word": "alte", "rest": " Haus", "prefix": "Das alte "},
            {"word": "Haus", "rest": ", ja", "prefix": "Das Haus, ja"[:10]},
        ],
        "characters": 2,
        "unmatched": [],
    }


def test_policy_allows_the_inspector_and_no_more(service: Service) -> None:
    def policy(path: str) -> dict[str, list[str]]:
        with urllib.request.urlopen(service.address + path, timeout=SECONDS) as answer:
            parts = [part.split() for part in answer.headers["Content-Security-Policy"].split(";")]
        return {name: sorted(values) for name, *values in parts}

    strict = {name: sorted(values) for name, *values in map(str.split, SECURITY["content-security-policy"].split(";"))}
    assert policy("docs") == policy("web/app.js") == strict
    script, style = (f"'{each}'" for each in hashes())
    assert policy("") == strict | {"script-src": sorted(["'self'", script]), "style-src": sorted(["'self'", style])}
    assert script != style


@pytest.mark.slow
def test_stream_ends_with_the_alignment(service: Service) -> None:
    body = json.dumps({"text": f"{HOUSE}\nThe dog", "stream": True, "alignment": True}).encode()
    request = urllib.request.Request(service.address + "v1/translate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        last = answer.read().decode().rstrip().rpartition("data: ")[2]
    expected = post(service, "v1/translate", text=[HOUSE, "The dog"], alignment=True)["translations"]
    found = json.loads(last)["translations"]
    assert [each["alignment"] for each in found] == [each["alignment"] for each in expected]
    assert all(each["alignment"] for each in expected), "the control"


def test_error_within_a_stream_says_when_to_try_again() -> None:
    class Busy:
        async def messages(self) -> Any:
            for each in ["too much to do"]:
                raise Failure(503, each, 7)
            yield

    events = v1._Events._events(Busy(), {})  # type: ignore[arg-type]
    with pytest.raises(StopIteration) as first:
        events.__anext__().__await__().__next__()  # nothing waits, and playwright has the event loop
    name, data = first.value.value.rstrip().split("\n")
    assert name == "event: error"
    assert json.loads(data[6:]) == {"error": "too much to do", "status": 503, "retry_seconds": 7}


# Translating


@pytest.mark.slow
def test_translation_streams_while_one_types(open_page: Open, service: Service) -> None:
    page = open_page()
    page.evaluate(
        """() => {
            window.seen = [];
            const pane = document.getElementById("translation");
            new MutationObserver(() => window.seen.push([pane.textContent, pane.getAttribute("aria-busy")]))
                .observe(pane, { childList: true });
        }"""
    )
    text = f"{HOUSE} {LONG} I see the dog. Nobody knows where the river begins."
    final = translate(page, text)
    parts = [seen for seen, busy in page.evaluate("window.seen") if busy == "true"]
    assert final == translation_of(service, text)
    assert [part for part in parts if part and final.startswith(part) and part != final], parts


@pytest.mark.slow
def test_one_request_is_sent_after_a_pause_and_the_one_before_given_up(open_page: Open) -> None:
    page = open_page()
    seen = list[tuple[str, str]]()
    for name in (
        "request",
        "requestfailed",
        "requestfinished",
    ):  # a stream that was read to its end may count as failed
        what = "sent" if name == "request" else "ended"

        def note(request: Any, what: str = what) -> None:
            if request.method == "POST":  # the icon may still be under way
                seen.append((what, request.post_data_json["text"]))

        page.on(name, note)
    page.locator("#source").press_sequentially("The dog", delay=20)
    settled(page)
    long = "\n".join([LONG] * 200)
    with page.expect_request("**/v1/translate"):
        page.fill("#source", long)
    assert "Hund" in translate(page, "The dog is here.")
    expected = [(what, text) for text in ("The dog", long, "The dog is here.") for what in ("sent", "ended")]
    assert seen[:5] == expected[:5], "the long one ends before the next is sent"


@pytest.mark.slow
def test_words_are_linked_in_every_line(open_page: Open, service: Service) -> None:
    page = open_page()
    found = translate(page, f"😀 {HOUSE}\n\nI see the dog.")
    assert found.split("\n")[1:] == ["", translation_of(service, "I see the dog.")]
    word(page, "Haus").hover()
    assert (lit(page, "mirror"), lit(page, "translation")) == (["house"], ["Haus"])
    word(page, "Hund").hover()
    assert (lit(page, "mirror"), lit(page, "translation")) == (["dog."], ["Hund"])
    page.locator("h1").hover()
    assert lit(page, "mirror") == []


@pytest.mark.slow
def test_links_are_shown_from_either_side_and_for_the_caret(open_page: Open) -> None:
    page = open_page()
    translate(page, f"{HOUSE}\nI see the dog.")
    box = page.locator("#mirror span", has_text="house").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert (lit(page, "mirror"), lit(page, "translation")) == (["house"], ["Haus"])
    page.focus("#source")
    page.keyboard.press("Control+End")
    page.keyboard.press("ArrowLeft")
    assert lit(page, "translation") == ["Hund"]
    page.keyboard.press("Control+Home")
    assert lit(page, "translation") == ["Das"]
    page.keyboard.type("x")
    assert lit(page, "translation") == [], "what is typed is not what was aligned"


@pytest.mark.slow
def test_mirror_lies_under_the_text(open_page: Open) -> None:
    """Marks are behind the words they belong to: both have the same box, however the text wraps."""
    page = open_page(size=PHONE)
    translate(page, "\n".join([LONG, "", HOUSE * 9, LONG]))
    boxes = [page.locator(each).bounding_box() for each in ("#mirror", "#source")]
    assert boxes[0] == boxes[1]
    assert page.evaluate("document.getElementById('source').scrollHeight") <= boxes[1]["height"]


@pytest.mark.slow
def test_confidence_is_shown_for_lines_and_words(open_page: Open, service: Service) -> None:
    page = open_page()
    texts = [HOUSE, "Zounds, egads ye knave!"]
    records = post(service, "v1/translate", text=texts, confidence=True)["translations"]
    high, low = (round(100 * record["confidence"]) for record in records)
    assert low < 50 < high
    translate(page, "\n".join(texts))
    assert page.locator("#confidence-text").text_content() == f"{low} to {high} %"
    assert page.locator("#confidence-meter").get_attribute("aria-labelledby") == "confidence-name"
    assert page.locator(".line").evaluate_all("all => all.map((each) => each.classList.contains('uncertain'))") == [
        False,
        True,
    ]
    assert page.locator(".line").nth(0).locator(".doubtful").count() == 0
    assert page.locator(".line").nth(1).locator(".doubtful").count() > 0
    translate(page, HOUSE)
    assert page.locator("#confidence-text").text_content() == f"{high} %"


@pytest.mark.slow
def test_languages_are_swapped_where_a_model_exists(open_page: Open) -> None:
    sent = list[Any]()

    def answer(route: Any) -> None:
        body = route.request.post_data_json
        sent.append((body["source"], body["target"], body["text"]))
        record = {"source": body["text"], "translation": f"<{body['text']}>", "status": "translated"}
        result = {"model": "m", "source": body["source"], "target": body["target"], "translations": [record]}
        route.fulfill(content_type="text/event-stream", body=f"event: result\ndata: {json.dumps(result)}\n\n")

    both = [
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "en", "name": "English", "targets": ["de", "fr"]},
    ]
    page = open_page(languages=lambda route: route.fulfill(json=both), v1__translate=answer)
    assert page.locator("#from option").all_text_contents() == ["Detect language", "German", "English"]
    translate(page, "one")
    page.click("#swap")
    page.locator("#translation", has_text="<<one>>").wait_for()
    assert sent == [("en", "de", "one"), ("de", "en", "<one>")]
    assert (page.input_value("#from"), page.input_value("#to"), page.input_value("#source")) == ("de", "en", "<one>")
    assert page.locator("#source").get_attribute("lang") == "de"
    page.select_option("#from", "en")
    page.select_option("#to", "fr")
    assert page.locator("#swap").is_disabled(), "nothing translates from French"
    page.reload()
    page.locator("html[data-ready]").wait_for(state="attached")
    assert (page.input_value("#from"), page.input_value("#to")) == ("en", "fr")


# Other words


@pytest.mark.slow
def test_a_chosen_word_completes_the_rest(open_page: Open, service: Service) -> None:
    page = open_page()
    text = f"I see the dog. {LONG}\nThe dog."
    before = translate(page, text)
    word(page, "niemand").click()
    words = options(page)
    assert words[0] == "niemand"
    assert len(words) == len(set(words)) >= 3
    save(page, "alternatives")
    page.locator("[role=option]").nth(1).click()
    page.locator("#undo:not([hidden])").wait_for()
    after = settled(page)
    start = before.index("niemand")
    assert after.startswith(before[:start] + words[1])
    assert after.split("\n")[1] == before.split("\n")[1], "the other line stays"
    first = before[: before.index(".") + 2]
    prefix = before[len(first) : start] + words[1]
    assert after.split("\n")[0] == first + translation_of(service, LONG, prefix=prefix)
    word(page, "Bericht").hover()
    assert "report," in lit(page, "mirror"), "the completed sentence is aligned"
    page.click("#undo")
    assert shown(page) == before
    assert page.locator("#undo").is_hidden()


@pytest.mark.slow
def test_only_likely_words_are_offered(open_page: Open) -> None:
    page = open_page()
    translate(page, "In summer the windows are open, and you can hear music.")
    word(page, "Musik").click()
    assert options(page) == ["Musik"], "and none that the model invents"
    assert page.locator("#alternatives-name").text_content() == "The model knows no other word here."
    page.keyboard.press("Escape")
    word(page, "offen").click()
    assert options(page)[:2] == ["offen", "geöffnet"]


@pytest.mark.slow
def test_everything_works_by_keyboard(open_page: Open) -> None:
    page = open_page()
    page.keyboard.press("Tab")
    if page.evaluate("document.activeElement.className") != "skip":  # the text has the focus at first
        page.focus(".skip")
    page.keyboard.press("Enter")
    page.focus("#source")
    page.keyboard.type(HOUSE)
    page.keyboard.press("Control+Enter")
    before = settled(page)

    reached = []
    for _ in range(4):  # clear, file, and the one stop in the translation
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.classList[0]"))
    assert reached[:3] == ["clear", "choose-file", "word"]
    page.focus(".word[tabindex='0']")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == "Haus"
    assert lit(page, "mirror") == ["house"]
    assert page.evaluate("document.activeElement.getAttribute('role')") == "button"
    assert page.locator("#translation [role=button]").count() == 1, "the others read as text"
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.textContent") == "alt"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.textContent") == "Das"

    page.keyboard.press("Enter")
    words = options(page)
    active = page.locator("#alternatives-list").get_attribute("aria-activedescendant")
    assert page.locator(f"#{active}").get_attribute("aria-selected") == "true"
    assert page.evaluate("document.activeElement.id") == "alternatives-list"
    page.keyboard.press("Escape")
    assert page.locator("#alternatives").is_hidden()
    assert page.evaluate("document.activeElement.textContent") == "Das"
    page.keyboard.press("Enter")
    assert options(page) == words
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator("#undo:not([hidden])").wait_for()
    assert settled(page).startswith(words[1])
    assert page.evaluate("document.activeElement.textContent") == words[1], "the focus is where it was"
    assert shown(page) != before


# Attention


@pytest.mark.slow
def test_attention_is_shown_in_a_frame_without_an_origin(open_page: Open) -> None:
    page = open_page()
    translate(page, f"{HOUSE}\nI see the dog.")
    page.click("#open-attention")
    page.locator("#attention iframe").wait_for()
    assert page.locator("#attention iframe").get_attribute("sandbox") == "allow-scripts"
    frame = page.frames[-1]
    frame.locator("h2", has_text="Attention").first.wait_for()
    assert "Das Haus ist alt." in frame.locator("main").text_content()
    assert frame.evaluate("window.origin") == "null"
    assert frame.evaluate("try { parent.document; 'reached' } catch { 'refused' }") == "refused"
    save(page, "attention")
    page.select_option("#sentence", "I see the dog.")
    page.locator("#attention iframe[title='Attention: I see the dog.']").wait_for()
    page.keyboard.press("Escape")
    page.locator("iframe").wait_for(state="detached")
    assert page.locator("#attention").is_hidden()
    assert page.evaluate("document.activeElement.id") == "open-attention"


@pytest.mark.slow
def test_axe_finds_nothing_in_the_drawer_or_its_frame(open_page: Open, axe: str) -> None:
    page = open_page()
    translate(page, HOUSE)
    page.click("#open-attention")
    page.locator("#attention iframe").wait_for()
    frame = page.frames[-1]
    frame.locator("h2", has_text="Attention").first.wait_for()
    page.wait_for_timeout(300)
    assert violations(frame, axe) == []
    assert violations(page, axe) == []


# Glossary


@pytest.mark.slow
def test_glossary_is_used_and_kept(open_page: Open) -> None:
    page = open_page()
    assert "Gremium" not in translate(page, LONG)
    page.click("#open-glossary")
    page.keyboard.type("committee")
    page.keyboard.press("Tab")
    page.keyboard.type("Gremium")
    page.keyboard.press("Enter")
    assert page.locator(".term").count() == 2
    save(page, "glossary")
    page.keyboard.press("Escape")
    page.locator("#translation .word", has_text="Gremium").wait_for()
    assert page.locator("#glossary-count").text_content() == "1"
    page.reload()
    page.locator("html[data-ready]").wait_for(state="attached")
    assert "Gremium" in translate(page, LONG)
    page.click("#open-glossary")
    page.click("text=×")
    page.keyboard.press("Escape")
    page.locator("#translation .word", has_text="Ausschuss").wait_for()
    assert page.locator("#glossary-count").is_hidden()
    assert page.evaluate("localStorage.getItem('dragoman.glossary.en-de')") == "[]"


# Files


@pytest.mark.slow
def test_files_are_sent_translated_and_offered(open_page: Open, service: Service) -> None:
    page = open_page(errors="400")
    page.set_input_files("#file", [{"name": "a.md", "mimeType": "", "buffer": f"# {HOUSE}\n\n*x*\n".encode()}])
    link = page.locator("#file-list a")
    link.wait_for()
    assert link.get_attribute("download") == "a.de.md"
    with urllib.request.urlopen(service.address + link.get_attribute("href"), timeout=SECONDS) as answer:
        assert answer.read().decode().startswith(f"# {translation_of(service, HOUSE)}\n")
    page.set_input_files("#file", [{"name": "b.docx", "mimeType": "", "buffer": b"no archive"}])
    page.locator("#file-list .bad").wait_for()
    assert "b.docx" in page.locator("#file-list .bad").text_content()
    page.click("text=Remove >> nth=0")
    page.click("text=Remove")
    assert page.locator("#files").is_hidden()


@pytest.mark.slow
def test_dropped_file_shows_its_progress_and_can_be_cancelled(open_page: Open) -> None:
    page = open_page()
    drop = """(name) => {
        const files = new DataTransfer();
        files.items.add(new File(["The house is old and stands on a hill.\\n".repeat(2000)], "page.txt"));
        const event = new DragEvent(name, { dataTransfer: files, bubbles: true, cancelable: true });
        document.getElementById("source").dispatchEvent(event);
    }"""
    page.evaluate(drop, "dragenter")
    assert page.locator("#drop").is_visible()
    page.evaluate(drop, "drop")
    assert page.locator("#drop").is_hidden()
    page.locator("#file-list [role=status]", has_text="Translating").wait_for()
    assert page.locator("#file-list progress:indeterminate").count() == 1
    page.locator("#file-list [role=status]", has_text=re.compile(r", \d+ s")).wait_for()
    page.click("text=Cancel >> visible=true")
    assert page.locator("#files").is_hidden()
    assert page.input_value("#source") == ""


# Copy and history


@pytest.mark.slow
def test_translation_is_copied_with_and_without_a_clipboard(open_page: Open, service: Service) -> None:
    page = open_page()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=service.address)
    found = translate(page, f"{HOUSE}\nThe dog.")
    page.click("#copy")
    page.locator("#copy", has_text="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == found
    page.evaluate("navigator.clipboard.writeText('')")
    page.focus("#source")
    page.keyboard.press("Control+Shift+Enter")
    page.wait_for_function("async (text) => (await navigator.clipboard.readText()) === text", arg=found)
    page.evaluate("navigator.clipboard.writeText('')")
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('http')); }")
    page.click("#copy")
    assert page.evaluate("navigator.clipboard.readText()") == found


@pytest.mark.slow
def test_history_stays_in_the_browser(open_page: Open) -> None:
    page = open_page()
    stored = "JSON.parse(localStorage.getItem('dragoman.history') ?? '[]').map((entry) => entry.text)"
    for text in ("The dog", "The dog is here.", HOUSE):
        translate(page, text)
        page.wait_for_function(f"(text) => ({stored})[0] === text", arg=text)
    assert page.evaluate(stored) == [HOUSE, "The dog is here."], "what was typed on is one entry"
    page.reload()
    page.locator("html[data-ready]").wait_for(state="attached")
    page.click("#open-history")
    assert "They are kept in this browser only." in page.locator("#history").text_content()
    page.locator(".entry", has_text="The dog is here.").click()
    page.locator("#translation .word", has_text="Hund").wait_for()
    assert page.input_value("#source") == "The dog is here."
    page.click("#open-history")
    page.click("#clear-history")
    assert page.locator("#no-entries").is_visible()
    assert page.evaluate(stored) == []


@pytest.mark.slow
def test_history_has_a_limit_and_bears_anything_in_storage(open_page: Open) -> None:
    page = open_page()
    entry = "{ from: 'en', to: 'de', text: `t${number}`, translation: '' }"
    page.evaluate(
        f"""() => {{
            const entries = [...Array(50).keys()].map((number) => ({entry}));
            localStorage.setItem('dragoman.history', JSON.stringify([null, 7, {{}}, ...entries]));
            localStorage.setItem('dragoman.glossary.en-de', '{{"no": "list"}}');
            localStorage.setItem('dragoman.pair', 'no JSON');
        }}"""
    )
    page.reload()
    page.locator("html[data-ready]").wait_for(state="attached")
    translate(page, HOUSE)
    texts = "JSON.parse(localStorage.getItem('dragoman.history')).map((entry) => entry.text)"
    page.wait_for_function(f"() => ({texts.replace('entry.text', 'entry?.text')})[0] === 'The house is old.'")
    assert page.evaluate(texts) == [HOUSE, *(f"t{number}" for number in range(49))]


# Errors


def failing(status: int, times: int, **headers: str) -> Callable[[Any], None]:
    left = [times]

    def answer(route: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            route.continue_()
        else:
            route.fulfill(status=status, headers=headers, json={"error": f"refused with {status}"})

    return answer


@pytest.mark.slow
@pytest.mark.parametrize("status", [429, 503])
def test_busy_service_is_asked_again(status: int, open_page: Open, service: Service) -> None:
    page = open_page(errors=f"status of {status}", v1__translate=failing(status, 2, **{"Retry-After": "1"}))
    page.fill("#source", HOUSE)
    page.locator("#state", has_text="The service is busy; trying again in 1 s").wait_for()
    page.locator(".word", has_text="Haus").wait_for()
    assert shown(page) == translation_of(service, HOUSE)
    assert page.locator("#state").text_content() == ""
    assert page.locator("#problem").is_hidden()


@pytest.mark.slow
def test_busy_service_within_a_stream_is_asked_again(open_page: Open) -> None:
    event = {"error": "too much to do", "status": 503, "retry_seconds": 1}
    answers = [f'event: part\ndata: "Das"\n\nevent: error\ndata: {json.dumps(event)}\n\n']

    def answer(route: Any) -> None:
        if answers:
            route.fulfill(content_type="text/event-stream", body=answers.pop())
        else:
            route.continue_()

    page = open_page(v1__translate=answer)
    page.fill("#source", HOUSE)
    page.locator("#state", has_text="trying again").wait_for()
    page.locator(".word", has_text="Haus").wait_for()


@pytest.mark.slow
def test_other_errors_are_shown_and_can_be_retried(open_page: Open) -> None:
    page = open_page(errors="status of 504")
    translate(page, "The dog")
    page.route("**/v1/translate", failing(504, 1))
    page.fill("#source", HOUSE)
    page.locator("#problem", has_text="refused with 504").wait_for()
    assert (shown(page), page.locator("#copy").is_enabled()) == ("", False), "not the translation of another text"
    page.click("#retry")
    page.locator(".word", has_text="Haus").wait_for()
    assert page.locator("#problem").is_hidden()


@pytest.mark.slow
def test_a_service_that_is_gone_is_reported(open_page: Open) -> None:
    page = open_page(errors="ERR_FAILED", v1__translate=lambda route: route.abort())
    page.fill("#source", HOUSE)
    page.locator("#problem", has_text="The service cannot be reached. Check the connection.").wait_for()


@pytest.mark.slow
def test_a_key_is_asked_for_and_kept_for_the_tab(open_page: Open) -> None:
    def answer(route: Any) -> None:
        if route.request.headers.get("x-api-key") == "the right key":
            route.continue_()
        else:
            route.fulfill(status=401, json={"error": "api_key: missing or wrong; give a valid key"})

    page = open_page(errors="status of 401", v1__translate=answer)
    page.fill("#source", HOUSE)
    page.locator("#key-problem", has_text="missing or wrong").wait_for()
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.locator("#key[open]").wait_for()
    page.fill("#key-value", "the right key")
    page.keyboard.press("Enter")
    page.locator(".word", has_text="Haus").wait_for()
    assert page.evaluate("sessionStorage.getItem('dragoman.key')") == "the right key"
    assert "right key" not in page.evaluate("JSON.stringify({ ...localStorage })")
    page.evaluate("sessionStorage.clear()")
    page.fill("#source", "The dog")
    page.locator("#key[open]").wait_for()
    page.keyboard.press("Escape")
    page.locator("#problem", has_text="missing or wrong").wait_for()


@pytest.mark.slow
def test_a_text_over_the_limit_is_not_sent(open_page: Open) -> None:
    page = open_page()
    sent = list[str]()
    page.on("request", lambda request: sent.append(request.url))
    page.fill("#source", "😀" * 20_001)
    assert page.locator("#characters").text_content() == "20,001 / 20,000"
    message = "The text has more than 20,000 characters. Shorten it, or send it as a file."
    assert page.locator("#problem-text").text_content() == message
    page.wait_for_timeout(600)
    assert sent == []
    page.click("#clear")
    assert page.locator("#problem").is_hidden()
    assert page.evaluate("document.activeElement.id") == "source"


@pytest.mark.slow
def test_lines_that_failed_are_named(open_page: Open) -> None:
    page = open_page()
    page.locator("#source").evaluate(
        "(box) => { box.value = 'The dog\\nA\\u0000b'; box.dispatchEvent(new Event('input')); }"
    )
    page.locator("#notes li").wait_for()
    assert page.locator("#notes").text_content() == "Line 2 could not be translated (NUL at character 2)."


# Safety


@pytest.mark.slow
def test_markup_in_texts_stays_text(open_page: Open) -> None:
    markup = "<script>window.hit = 1</script><img src=x onerror='window.hit = 1'>"

    def answer(route: Any) -> None:
        body = route.request.post_data_json
        record = {"source": body["text"], "translation": markup, "status": "altered", "reason": markup}
        if body.get("stream"):
            result = {"model": "m", "source": "en", "target": "de", "translations": [record]}
            event = f"event: part\ndata: {json.dumps(markup)}\n\nevent: result\ndata: {json.dumps(result)}\n\n"
            route.fulfill(content_type="text/event-stream", body=event)
        else:
            route.fulfill(status=400, json={"error": markup})

    page = open_page(errors="status of 400", v1__translate=answer)
    translate(page, f"{markup} {HOSTILE[:500]}")
    assert shown(page) == markup
    page.locator(".word").first.click()
    page.locator("#alternatives-name", has_text=markup).wait_for()
    page.keyboard.press("Escape")
    page.wait_for_function("() => localStorage.getItem('dragoman.history') !== null")
    page.click("#open-history")
    page.locator(".entry", has_text=markup).wait_for()
    assert page.locator("main img, main script, dialog img, dialog script").count() == 0
    assert page.evaluate("window.hit") is None


@pytest.mark.slow
def test_policy_runs_no_script_of_a_text(open_page: Open) -> None:
    page = open_page(errors="Executing inline script violates the following Content Security Policy directive")
    with page.expect_event("console"):
        page.evaluate(
            """() => {
                const script = document.createElement("script");
                script.text = "window.hit = 1";
                document.body.append(script);
            }"""
        )
    assert page.evaluate("window.hit") is None


# Shapes, colours, accessibility


def overflow(page: Any) -> int:
    found: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 768, 1280, 2000])
def test_nothing_is_wider_than_the_window(width: int, open_page: Open) -> None:
    page = open_page(size=(width, 844))
    translate(page, f"{LONG}\n{'x' * 100}\n{HOUSE}")
    assert overflow(page) == 0
    word(page, "Bericht").click()
    options(page)
    assert overflow(page) == 0
    box = page.locator("#alternatives").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    page.keyboard.press("Escape")
    page.click("summary")
    assert overflow(page) == 0
    docs = open_page("docs", size=(width, 844))
    assert overflow(docs) == 0


@pytest.mark.slow
def test_phone_has_one_column_and_targets_for_fingers(open_page: Open) -> None:
    page = open_page(size=PHONE)
    translate(page, LONG)
    text, translation = (page.locator(each).bounding_box() for each in ("#source", "#translation"))
    assert text["x"] == translation["x"]
    assert text["y"] + text["height"] <= translation["y"]
    for button in page.locator("button:visible, nav a:visible, select:visible").all():
        box = button.bounding_box()
        assert min(box["width"], box["height"]) >= 32, button.text_content()
    save(page, "phone")


@pytest.mark.slow
def test_colours_follow_the_system_and_motion_can_be_reduced(open_page: Open) -> None:
    background = "getComputedStyle(document.documentElement).backgroundColor"
    light, dark = open_page(), open_page(scheme="dark")
    assert light.evaluate(background) != dark.evaluate(background)
    motion = "(translate) => getComputedStyle(document.querySelector('.word')).transitionDuration"
    translate(light, HOUSE)
    assert light.evaluate(motion) != "0s"
    light.emulate_media(reduced_motion="reduce")
    assert light.evaluate(motion) == "0s"


@pytest.fixture(scope="module")
def axe() -> str:
    if not AXE.is_file():
        pytest.skip("axe-core is not here: make node")
    return AXE.read_text(encoding="utf-8")


def violations(page: Any, axe: str) -> list[str]:
    """What axe-core finds, best practices too; the browser runs its code outside the page's policy."""
    page.evaluate(axe)
    found = page.evaluate("axe.run().then(({ violations }) => violations)")
    return [f"{each['id']}: {node['html']}" for each in found for node in each["nodes"]]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_axe_finds_nothing(scheme: str, size: tuple[int, int], open_page: Open, axe: str) -> None:
    page = open_page(size=size, scheme=scheme, errors="status of 504")
    name = f"{scheme}-{size[0]}"

    def check(state: str) -> None:
        page.mouse.move(0, 0)
        page.wait_for_timeout(300)  # until drawers have come in
        save(page, f"{state}-{name}")
        assert violations(page, axe) == [], state

    check("empty")
    translate(page, f"{LONG}\nHello 😀 dear friend")
    word(page, "Bericht").focus()
    check("translated")
    word(page, "niemand").click()
    options(page)
    check("alternatives")
    page.keyboard.press("Escape")
    for button, drawer in (("#open-glossary", "glossary"), ("#open-history", "history")):
        page.wait_for_function("() => localStorage.getItem('dragoman.history') !== null")
        page.click(button)
        check(drawer)
        page.keyboard.press("Escape")
    page.set_input_files("#file", [{"name": "a.txt", "mimeType": "", "buffer": HOUSE.encode()}])
    page.locator("#file-list a").wait_for()
    page.click("summary")
    check("files")
    page.route("**/v1/translate", failing(504, 1))
    page.fill("#source", HOUSE)
    page.locator("#problem:not([hidden])").wait_for()
    check("problem")
    page.evaluate("document.getElementById('key').showModal()")
    check("key")
    docs = open_page("docs", size=size, scheme=scheme)
    docs.click("summary >> nth=0")
    save(docs, f"docs-{name}")
    assert violations(docs, axe) == []


@pytest.mark.slow
def test_axe_notices_a_missing_label(open_page: Open, axe: str) -> None:
    page = open_page()
    page.evaluate("document.getElementById('source').removeAttribute('aria-label')")
    page.evaluate("document.getElementById('source').removeAttribute('placeholder')")
    assert any(each.startswith("label:") for each in violations(page, axe)), "the control"


# The page of the API


@pytest.mark.slow
def test_docs_show_every_operation_and_try_one(open_page: Open, service: Service) -> None:
    with urllib.request.urlopen(service.address + "spec", timeout=SECONDS) as answer:
        paths = json.load(answer)["paths"]
    page = open_page("docs")
    assert page.locator(".group > h2").all_text_contents() == ["LibreTranslate", "v1", "operation"]
    headings = page.locator(".operation h3").all_text_contents()
    assert headings == [f"{method.upper()}{path}" for path in paths for method in paths[path]] or set(headings) == {
        f"{method.upper()}{path}" for path in paths for method in paths[path]
    }
    section = page.locator(".operation", has=page.locator("#post-v1-translate"))
    fields = section.locator("table").first.locator("tbody th").all_text_contents()
    assert {"text", "prefix", "glossary", "alignment", "stream", "options", "beam"} <= set(fields)
    assert """-d '{"text":"The house is old."}'""" in section.locator("pre").first.text_content()
    section.locator("summary").click()
    section.locator("button").click()
    section.locator("pre", has_text='"translation": "Das Haus ist alt."').wait_for()
    libre = page.locator(".operation", has=page.locator("#post-translate"))
    libre.locator("summary").click()
    libre.locator("button").click()
    libre.locator("pre", has_text='"translatedText": "Das Haus ist alt."').wait_for()
    file = page.locator(".operation", has=page.locator("#post-translate_file"))
    assert "-F file=@page.html" in file.locator("pre").first.text_content()
    save(page, "docs")
