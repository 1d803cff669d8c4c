"""`dragoman export --to web` in a real browser: the tokenizer and the search of the page, then the page itself.

Needs playwright and Debian's chromium, and for the page also ONNX Runtime Web, which the export downloads once; skipped
where one is missing. To save a screenshot, set DRAGOMAN_SCREENSHOTS=/tmp/pages.
"""

import functools
import hashlib
import http.server
import io
import os
import random
import shutil
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch

import dragoman
from dragoman.bundle import load_bundle
from dragoman.config import DecodeConfig, TextConfig
from dragoman.decode.pipeline import Pipeline
from dragoman.decode.request import Request
from dragoman.decode.search import search
from dragoman.errors import ConfigError
from dragoman.int8 import compact, expanded
from dragoman.interop import common, to_web, web, web_runtime
from dragoman.tensors import named_weights, set_weights
from dragoman.text.tokenizer import Tokenizer
from tests.exporting import LINES, SEPARATE, random_model
from tests.hostile_text import SHORT
from tests.system.test_exported_model import english
from tests.unit.test_export import TEXTS
from tests.unit.test_search import END, START, Fake, hashed

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path: apt-get install chromium")

END_OF_TEXT = 3
POSITIONS = ["text.max_length=20", "model.positions=learned", "model.max_positions=20"]
MILLISECONDS = 300_000  # for anything on the page, however busy the machine
SCREENSHOTS = os.environ.get("DRAGOMAN_SCREENSHOTS")
PAGE = Path(str(web.PAGE))


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


class Server:
    """The files of a folder on a free port; it can be stopped, as a network can."""

    def __init__(self, folder: Path) -> None:
        self._server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))
        )
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def modules(browser: Any) -> Iterator[Any]:
    """A page that can import the modules of the web page."""
    server = Server(PAGE)
    page = browser.new_page()
    page.goto(server.address + "style.css")
    yield page
    page.close()
    server.stop()


# Its parts


ALL_TEXTS = [*TEXTS, *SHORT, "ΟΔΟΣ Σ", "x" * 300, "the </s> <pad>", "\ufeff\u200b a"]
KNOWN = [*LINES, "0x41 < 42, the 0xa! > 1 7 x"]


@pytest.mark.parametrize("kind", ["unigram", "bpe", "word", "char"])
@pytest.mark.parametrize("form", ["nfc", "nfkc-lowercase", "nfc-nbsp"])
@pytest.mark.parametrize("with_bytes", [True, False])
def test_tokenizer_gives_our_ids_and_our_text(kind: Any, form: Any, with_bytes: bool, modules: Any) -> None:
    config = TextConfig(model=kind, normalization=form, vocab_size=330 if with_bytes else 80, byte_fallback=with_bytes)
    assert_same_ids(Tokenizer.train(KNOWN, config), ALL_TEXTS, modules)


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nfkc_cf"])
def test_normalization_of_imported_tokenizers_is_kept(rule: str, modules: Any) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*KNOWN, "A B ア ～ ~ 1 ( )"] * 5), model_writer=model, vocab_size=340,
        byte_fallback=True, hard_vocab_limit=False, pad_id=0, unk_id=1, bos_id=2, eos_id=3, minloglevel=5,
        normalization_rule_name=rule,
    )  # fmt: skip
    tokenizer = Tokenizer(model.getvalue(), "nfc")
    texts = [*ALL_TEXTS, "ｱ ① ª～b", "  a\u00ad\u200b  b ", "ﬀ ¨ ½ Ａｃ　ｂ", "a\u0308\u0301 ｶﾞ"]
    assert tokenizer.encode("ﬀ") == tokenizer.encode("ff"), "the control: it has its own table"
    assert_same_ids(tokenizer, texts, modules)


def test_bytes_that_are_no_text_are_decoded_as_we_do(modules: Any) -> None:
    tokenizer = Tokenizer.train(KNOWN, TextConfig(model="bpe", vocab_size=330))
    table, chance = tokenizer.piece_table(), random.Random(0)
    usual = [table.byte_ids[byte] for text in ("é日😀", "\ufeff") for byte in text.encode()]
    rows = [chance.choices([*usual, *table.byte_ids, *table.ids.values(), 0, 1, 2, 3], k=9) for _ in range(300)]
    rows += [chance.choices(usual, k=6) for _ in range(300)]
    found = modules.evaluate(
        """async ([settings, rows]) => {
            const { Tokenizer } = await import("/tokenizer.js");
            const tokenizer = new Tokenizer(settings);
            return rows.map((ids) => tokenizer.decode(ids));
        }""",
        [web._tokenizer(tokenizer), rows],
    )
    assert found == [tokenizer.decode(ids) for ids in rows]
    assert sum("\ufffd" in text for text in found) > 50, "the control"


def assert_same_ids(tokenizer: Tokenizer, texts: Sequence[str], modules: Any) -> None:
    found = modules.evaluate(
        """async ([settings, texts]) => {
            const { Tokenizer } = await import("/tokenizer.js");
            const tokenizer = new Tokenizer(settings);
            return texts.map((text) => [tokenizer.encode(text), tokenizer.decode(tokenizer.encode(text))]);
        }""",
        [web._tokenizer(tokenizer), texts],
    )
    for text, (ids, decoded) in zip(texts, found, strict=True):
        assert ids == tokenizer.encode(text), text
        assert decoded == tokenizer.decode(ids), text
    assert len({tuple(ids) for ids, _ in found}) > 8, "the control: texts differ"


LONG = (
    'Dr. Smith went. He saw Mr. Jones! No. 5 is «here». "Yes?" she said... And then? e.g. this. On 12. May it rained.',
    "今天天气很好。我们去散步！「真的吗？」他说。 OK",
    "one, two; three: four " * 12,
    "x" * 70,
    "a b. " * 30 + "\u00a0 end",
    "",
    " \t ",
    "😀 😀. 😀! Ω? Ja… Nein.",
    "He came at 5 p.m. She left at 6 p.m. Monday, see no. 7 (incl. that). It was p. m. Then",
    "2,5 Mio. Euro, lt. Abb. 3 in der Goethestr. 12. Und dann? Die Str. Bei Dr. med. Maier.",
    "(It rained. We stayed [in. And] out. So it went.) Then it stopped (at last).",
)


@pytest.mark.parametrize("by_sentences", [True, False])
@pytest.mark.parametrize("longest", [9, 40])
def test_lines_are_split_as_we_split_them(by_sentences: bool, longest: int, modules: Any, tmp_path: Path) -> None:
    model = random_model(tmp_path / "model", f"text.max_length={longest}")
    translator = dragoman.load(model, "cpu")
    options = translator.options(split="sentences" if by_sentences else "long")
    texts = [*LONG, *SHORT]
    found = modules.evaluate(
        """async ([settings, texts, options]) => {
            const { Tokenizer } = await import("/tokenizer.js");
            const { split } = await import("/split.js");
            const tokenizer = new Tokenizer(settings);
            const encode = (text) => tokenizer.encode(text);
            return texts.map((text) => split(text, { encode, ...options }).map(({ ids, glue }) => [ids, glue]));
        }""",
        [web._tokenizer(translator.tokenizers.source), texts, {"longest": longest, "bySentences": by_sentences}],
    )
    for text, parts in zip(texts, found, strict=True):
        pieces = Pipeline(translator, Request(options))._prepare([text]).pieces
        if pieces:  # a blank line is not split
            assert [([*ids, END_OF_TEXT], glue) for ids, glue in parts] == [(each.ids, each.glue) for each in pieces], (
                text
            )
    assert max(map(len, found)) > 2, "the control: some are split"


STEP = """async ([limit, options]) => {
    const { search } = await import("/search.js");
    let fed = [[]];
    const step = async (ids, parents) => {
        fed = ids.map((id, row) => [...fed[parents[row]], id]);
        const rows = await window.best(fed);
        return rows.map((candidates, row) => ({ candidates, attention: [fed[row]] }));
    };
    const { ids, score, normalized, finished, attention } = await search(step, limit, options);
    return { ids, score, normalized, finished, fed: attention.map(([ids]) => ids) };
}"""


CASES: list[tuple[int, int, Any]] = [(1, 6, "gnmt"), (2, 5, "power"), (4, 7, "gnmt"), (5, 0, "gnmt"), (4, 1, "power")]


def test_search_finds_what_ours_finds(modules: Any) -> None:
    """Probabilities depend on everything fed, so that a hypothesis that follows another parent is noticed."""
    never, vocabulary, seen = [2], 7, set()
    state: dict[str, Any] = {}

    def best(fed: Sequence[Sequence[int]]) -> list[list[dict[str, float]]]:
        rows = [state["fake"].log_probs_of(state["sentence"], tuple(ids)).numpy() for ids in fed]
        ordered = [np.argsort(-row, kind="stable") for row in rows]
        return [
            [{"id": int(each), "value": float(row[each])} for each in order]
            for row, order in zip(rows, ordered, strict=True)
        ]

    modules.expose_function("best", best)
    for sentence in range(12):
        for beam, limit, form in CASES:
            logits = hashed(vocabulary, spread=1.0 + sentence / 4)
            state.update(fake=Fake([sentence], logits), sentence=sentence)
            config = DecodeConfig(beam=beam, length_penalty=0.6, length_penalty_form=form)
            [[ours, *_]] = search(state["fake"], [limit], config, [0], start=START, end=END, forbidden=never)
            options = {"beam": beam, "start": START, "end": END, "never": never, "lengthPenalty": 0.6}
            found = modules.evaluate(STEP, [limit, {**options, "lengthPenaltyForm": form}])
            assert (tuple(found["ids"]), found["finished"]) == (ours.ids, ours.finished), (sentence, beam, limit)
            assert found["score"] == pytest.approx(ours.score, abs=1e-6)
            assert found["normalized"] == pytest.approx(ours.normalized_score, abs=1e-6)
            tokens = [*ours.ids, END] if ours.finished else list(ours.ids)
            fed = [[START, *tokens[:place]] for place in range(len(tokens))]
            assert found["fed"] == fed, "what each token looked at is of the step that chose it"
            seen.add((beam, ours.finished))
    assert {(1, True), (1, False), (4, True), (4, False)} <= seen, "the control: both ends occur"


# The export


def fake_runtime(folder: Path) -> Path:
    """Files with the names of ONNX Runtime Web."""
    (folder / "dist").mkdir(parents=True)
    for name in web_runtime.FILES:
        (folder / "dist" / name).write_text(name)
    return folder


def test_both_graphs_share_one_file_of_weights(tmp_path: Path) -> None:
    model = random_model(tmp_path / "model")
    done = to_web(model, tmp_path / "out", runtime=fake_runtime(tmp_path / "runtime"))
    assert done.checked == 5
    assert done.num_bytes == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    parameters = sum(weight.numel() for weight in load_bundle(model).model.parameters())
    [weights] = (tmp_path / "out").glob("weights-*.bin")
    assert parameters < weights.stat().st_size < 2.5 * parameters, "bytes, scales, positions"
    policy = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'"
    assert (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}' in (tmp_path / "out" / "index.html").read_text()
    )
    worker = (tmp_path / "out" / "service-worker.js").read_text()
    assert "%" not in worker
    for name in {path.name for path in (tmp_path / "out").iterdir()} - {"service-worker.js", "README.md"}:
        assert f'"{name}"' in worker, "kept for use offline"


def test_graphs_as_written_choose_the_tokens_of_the_rounded_weights(tmp_path: Path) -> None:
    """Weights that are int8 already, as those of a bundled model, are the same after the export."""
    model = random_model(tmp_path / "model")
    source = common.load_source(model, lambda _: None)
    rounded = expanded(compact({name: weight.detach().numpy() for name, weight in named_weights(source.model).items()}))
    set_weights(source.model, {name: torch.from_numpy(array) for name, array in rounded.items()}, model)
    texts = common.sample_texts(source)
    assert web.translate(source, web.graphs(source), texts, 20) == common.greedy_ids(source, texts, 20)


@pytest.mark.parametrize("settings", [["text.max_length=12", "decode.max_extra=8"], POSITIONS])
def test_short_limits_are_exported(settings: list[str], tmp_path: Path) -> None:
    model = random_model(tmp_path / "model", *settings)
    assert to_web(model, tmp_path / "out", runtime=fake_runtime(tmp_path / "runtime")).checked == 5


def test_a_changed_model_has_other_names_and_another_version(tmp_path: Path) -> None:
    runtime = fake_runtime(tmp_path / "runtime")
    models = [random_model(tmp_path / "one"), random_model(tmp_path / "two", "model.activation=gelu")]
    workers = []
    for number, model in enumerate([*models, models[0]]):
        to_web(model, tmp_path / f"out{number}", runtime=runtime, check=False)
        workers.append((tmp_path / f"out{number}" / "service-worker.js").read_text())
    assert workers[0] == workers[2] != workers[1]


def test_what_the_page_cannot_do_is_refused(tmp_path: Path) -> None:
    model = random_model(tmp_path / "model")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError) as error:
        to_web(model, tmp_path / "out", runtime=tmp_path / "empty")
    assert str(error.value) == (
        f"--runtime: {tmp_path / 'empty'} does not hold ort.wasm.min.mjs, ort-wasm-simd-threaded.mjs, "
        "ort-wasm-simd-threaded.wasm; give node_modules/onnxruntime-web"
    )
    assert not (tmp_path / "out").exists()


def test_a_changed_download_is_refused_and_a_damaged_cache_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO(b"other"))
    with pytest.raises(ConfigError, match=r"onnxruntime-web-[\d.]+\.tgz: is not the file that was published; check"):
        web_runtime.read_runtime(None)
    contents = {name: name.encode() for name in web_runtime.FILES}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(web_runtime, "FILES", hashes)
    downloads: list[int] = []

    def download() -> dict[str, bytes]:
        downloads.append(1)
        return contents

    monkeypatch.setattr(web_runtime, "_download", download)
    assert web_runtime.read_runtime(None) == web_runtime.read_runtime(None) == contents
    assert len(downloads) == 1
    (web_runtime.cache_folder() / "ort.wasm.min.mjs").write_text("half")
    assert web_runtime.read_runtime(None) == contents
    assert len(downloads) == 2


# The page


@pytest.fixture(scope="module")
def runtime() -> Path:
    try:
        web_runtime.read_runtime(None)
    except ConfigError as error:
        pytest.skip(f"ONNX Runtime Web is not here: {error}")
    return web_runtime.cache_folder()


def open_page(browser: Any, address: str, **options: Any) -> tuple[Any, list[str]]:
    """The page, ready; and what it asked of other addresses or said in errors."""
    context = browser.new_context(viewport={"width": 1100, "height": 800}, **options)
    page, problems = context.new_page(), []
    page.set_default_timeout(MILLISECONDS)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on(
        "request", lambda request: None if request.url.startswith((address, "data:")) else problems.append(request.url)
    )
    page.goto(address)
    page.locator("html[data-ready]").wait_for(state="attached")
    return page, problems


def translate(page: Any, text: str, beam: int) -> str:
    page.select_option("#beam", str(beam))
    page.fill("#source", text)
    page.press("#source", "Control+Enter")
    page.locator("#status", has_text="words per second").wait_for()
    found: str = page.locator("#translation").text_content()
    return found


def looked_at(translator: dragoman.Translator, text: str) -> list[list[float]]:
    """For each word of the translation, how much it looked at each word of the text."""
    attention = translator.translate(text, beam=4, attention=True).attention
    assert attention is not None
    weights = attention.alignment_weights
    rows, columns = groups(attention.tokens), groups(attention.source_tokens)
    return [[float(weights[row][:, column].sum(axis=1).mean()) for column in columns] for row in rows]


def groups(pieces: Sequence[str]) -> list[list[int]]:
    """The places of words and punctuation, without </s>."""
    found: list[list[int]] = []
    for place, piece in enumerate(pieces):
        if piece == "</s>":
            continue
        if not found or piece.startswith("▁") or piece in ".,?":
            found.append([])
        found[-1].append(place)
    return found


@pytest.mark.slow
def test_page_translates_100_sentences_as_we_do_and_then_offline(browser: Any, runtime: Path, tmp_path: Path) -> None:
    to_web("en-de", tmp_path / "out", runtime=runtime)
    server = Server(tmp_path / "out")
    page, problems = open_page(browser, server.address)
    texts = [*english(97), "Ein ﬁsh — 日本 😀 <b>&amp;", "", "What? Yes! No. 1,234.5 km"]
    translator = dragoman.load("en-de", "cpu", "float32")
    for beam in (1, 4):
        expected = [each.text for each in translator.translate(texts, beam=beam, protect=())]
        assert translate(page, "\n".join(texts), beam).split("\n") == expected, beam
    assert problems == []

    page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    server.stop()
    page.reload()
    page.locator("html[data-ready]").wait_for(state="attached")
    [text] = english(1)
    assert translate(page, text, 4) == translator.translate(text, beam=4).text
    for place, weights in enumerate(looked_at(translator, text)):
        page.locator(".target").nth(place).hover()
        colours = page.locator(".source").evaluate_all("spans => spans.map((span) => span.style.background)")
        alphas = [float(colour.rpartition(",")[2].strip(" )")) for colour in colours]
        assert alphas == pytest.approx([0.85 * weight for weight in weights], abs=2e-3), place
    assert place > 3
    if SCREENSHOTS:
        page.screenshot(path=f"{SCREENSHOTS}/web-page.png", full_page=True)
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [SEPARATE, ["model.positions=rotary", "model.norm=pre", "model.d_k=12"]])
def test_page_runs_models_of_other_shapes(settings: list[str], browser: Any, runtime: Path, tmp_path: Path) -> None:
    model = random_model(tmp_path / "model", *settings, "decode.beam=3")
    to_web(model, tmp_path / "out", runtime=runtime)
    server = Server(tmp_path / "out")
    page, problems = open_page(browser, server.address)
    texts = ["the cat sat", "forty two red birds and a dog", "we " * 30]
    translator = dragoman.load(model, "cpu", "float32")
    expected = [each.text for each in translator.translate(texts[:2], beam=3)]
    found = translate(page, "\n".join(texts), 3).split("\n")
    assert found[:2] == expected
    assert found[2], "a text that is too long is split"
    assert problems == []
    page.close()
    server.stop()


@pytest.mark.slow
def test_a_newer_text_replaces_the_one_before(browser: Any, runtime: Path, tmp_path: Path) -> None:
    model = random_model(tmp_path / "model")
    to_web(model, tmp_path / "out", runtime=runtime)
    server = Server(tmp_path / "out")
    page, problems = open_page(browser, server.address)
    translator = dragoman.load(model, "cpu", "float32")
    # at once: typing so much takes the browser long
    page.locator("#source").evaluate("box => (box.value = 'the cat sat on the mat\\n'.repeat(3000))")
    page.press("#source", "Control+Enter")
    page.locator("#status", has_text="Translating line").wait_for()
    assert translate(page, "a dog", 1) == translator.translate("a dog", beam=1).text
    page.fill("#source", "")
    page.press("#source", "Control+Enter")
    page.locator("#status:empty").wait_for(state="attached")
    assert page.locator("#translation").text_content() == ""
    assert problems == []
    page.close()
    server.stop()


@pytest.mark.slow
def test_missing_and_short_files_are_reported(browser: Any, runtime: Path, tmp_path: Path) -> None:
    to_web(random_model(tmp_path / "model"), tmp_path / "out", runtime=runtime)
    server = Server(tmp_path / "out")
    [weights] = (tmp_path / "out").glob("weights-*.bin")
    content = weights.read_bytes()

    def problem() -> str:
        page = browser.new_context(service_workers="block").new_page()
        page.goto(server.address)
        page.locator("#status.problem").wait_for(timeout=MILLISECONDS)
        said: str = page.locator("#status").text_content()
        page.close()
        return said

    weights.write_bytes(content[:-7])
    said = problem()
    assert said == (
        f"The model cannot be loaded: {weights.name}: has {len(content) - 7} bytes and should have {len(content)}; "
        "copy the folder again"
    )
    weights.unlink()
    assert problem() == (
        f"The model cannot be loaded: {weights.name}: the host answers 404; "
        "check the network and the folder on the host, then load the page again"
    )
    server.stop()
