"""Translating in a browser: the page of `dragoman export --to web` and, with the same weights, transformers.js.

    python -m benchmarks.web --node-modules DIR [--model en-de] [--input FILE] [--lines 30] [--repeats 3] [--json]

DIR is the node_modules of `npm install @huggingface/transformers`. Both run in the same Chromium, in turns, one
sentence at a time on one thread, from a server on this machine. Of each: the bytes that a first visit receives, as they
are and compressed by gzip; seconds from opening an empty page to the first translation, without and with the browser's
own cache, the best of `--repeats`; target words per second over the lines, the best too. transformers.js runs the ONNX
export of the same model, in int8 and in float32. It has no beam search: ours is also timed with beam 4. In float32 both
must give the same translations.
"""

import argparse
import gzip
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from dragoman.interop import to_onnx, to_web

OURS, PEER = "dragoman", "transformers.js"
MILLISECONDS = 300_000
PEER_PAGE = """
<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">
<script type="module">
import {{ env, pipeline }} from "/node_modules/@huggingface/transformers/dist/transformers.min.js";
env.allowRemoteModels = false;
env.allowLocalModels = true;
env.localModelPath = "/";
env.backends.onnx.wasm.wasmPaths = "/node_modules/onnxruntime-web/dist/";
env.backends.onnx.wasm.numThreads = 1;
const translator = await pipeline("translation", "model", {{ dtype: "{dtype}", device: "wasm" }});
window.translate = async (line) => (await translator(line, {{ num_beams: 1 }}))[0].translation_text;
document.documentElement.dataset.ready = "true";
</script>
"""
OUR_PAGE = """
<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">
<script type="module">
import { loadModel } from "/model.js";
const model = await loadModel();
window.translate = async (line, beam) => (await model.translate(line, { beam })).text;
document.documentElement.dataset.ready = "true";
</script>
"""
TRANSLATE = """async ([lines, beam]) => {
    const translations = [];
    for (const line of lines) translations.push(await translate(line, beam));
    return translations;
}"""


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder and remembers which files were sent."""

    def __init__(self, *arguments: Any, sent: set[Path], **options: Any) -> None:
        self._sent = sent
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        self._sent.add(Path(self.translate_path(self.path)))
        super().do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serve(folder: Path) -> Iterator[tuple[str, set[Path]]]:
    """The address of a folder's files, and the set of those that were sent."""
    sent: set[Path] = set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder), sent=sent))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/", sent
    server.shutdown()
    server.server_close()


class System:
    """One of the pages."""

    def __init__(self, name: str, folder: Path, page: str) -> None:
        self.name, self.folder, self.page = name, folder, page
        self.first: list[float] = []
        self.again: list[float] = []
        self.words_per_second: dict[int, float] = {}
        self.outputs: dict[int, list[str]] = {}
        self.bytes = self.compressed = 0

    def visit(self, browser: Any, lines: list[str], beams: list[int]) -> None:
        with serve(self.folder) as (address, sent):
            context = browser.new_context(service_workers="block")
            page, seconds = self._open(context, address, lines[0])
            self.first.append(seconds)
            files = [path for path in sent if path.is_file()]
            self.bytes = sum(path.stat().st_size for path in files)
            self.compressed = self.compressed or sum(len(gzip.compress(path.read_bytes(), 6)) for path in files)
            for beam in beams:
                started = time.perf_counter()
                self.outputs[beam] = page.evaluate(TRANSLATE, [lines, beam])
                words = sum(len(text.split()) for text in self.outputs[beam])
                speed = words / (time.perf_counter() - started)
                self.words_per_second[beam] = max(speed, self.words_per_second.get(beam, 0.0))
            page.close()
            page, seconds = self._open(context, address, lines[0])
            self.again.append(seconds)
            context.close()

    def _open(self, context: Any, address: str, line: str) -> tuple[Any, float]:
        page = context.new_page()
        page.set_default_timeout(MILLISECONDS)
        started = time.perf_counter()
        page.goto(address + self.page)
        page.locator("html[data-ready]").wait_for(state="attached")
        page.evaluate(TRANSLATE, [[line], 1])
        return page, time.perf_counter() - started


def systems(model: str, node_modules: Path, folder: Path) -> list[System]:
    to_web(model, folder / "ours")
    (folder / "ours" / "benchmark.html").write_text(OUR_PAGE)
    peer = folder / "peer"
    to_onnx(model, peer / "model")
    (peer / "node_modules").symlink_to(node_modules.resolve())
    found = [System(OURS, folder / "ours", "benchmark.html")]
    for name, dtype in (("int8", "q8"), ("float32", "fp32")):
        (peer / f"{dtype}.html").write_text(PEER_PAGE.format(dtype=dtype))
        found.append(System(f"{PEER}, {name}", peer, f"{dtype}.html"))
    return found


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    lines = options.input.read_text(encoding="utf-8").splitlines()[: options.lines]
    found = systems(options.model, options.node_modules, folder)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _ in range(options.repeats):
            for system in found:
                system.visit(browser, lines, [1, 4] if system.name == OURS else [1])
        version = browser.version
        browser.close()
    ours, exact = found[0], found[-1]
    same = sum(one == other for one, other in zip(ours.outputs[1], exact.outputs[1], strict=True))
    results = {
        system.name: {
            "bytes": system.bytes,
            "gzip bytes": system.compressed,
            "seconds to the first translation": min(system.first),
            "seconds from the browser's cache": min(system.again),
            "words per second": system.words_per_second,
        }
        for system in found
    }
    ratios: dict[str, float] = {}
    for system in found[1:]:
        shares: dict[str, Callable[[System], float]] = {
            "bytes": lambda each: each.bytes,
            "gzip bytes": lambda each: each.compressed,
            "seconds to the first translation": lambda each: min(each.first),
        }
        for name, value in shares.items():
            ratios[f"{system.name} / {OURS}, {name}"] = value(system) / value(ours)
        ratios[f"{OURS} / {system.name}, words per second"] = ours.words_per_second[1] / system.words_per_second[1]
    return {"chromium": version, "lines": len(lines), "same as float32": same, "results": results, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--node-modules", type=Path, required=True)
    parser.add_argument("--model", default="en-de")
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    if options.json:
        print(json.dumps(found))
        return
    for name, values in found["results"].items():
        speeds = ", ".join(f"beam {beam}: {speed:.1f} words/s" for beam, speed in values["words per second"].items())
        seconds = values["seconds to the first translation"], values["seconds from the browser's cache"]
        print(f"{name}: {values['bytes'] / 1e6:.1f} MB ({values['gzip bytes'] / 1e6:.1f} compressed), "
              f"first translation after {seconds[0]:.1f} s, {seconds[1]:.1f} from the cache; {speeds}")  # fmt: skip
    print(f"{found['same as float32']} of {found['lines']} translations are the same in float32")
    for name, ratio in found["ratios"].items():
        print(f"{name}: {ratio:.2f}")


if __name__ == "__main__":
    main()
