"""Text that would run as a script if a page treated it as markup, and pages with such text."""

import html
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

from dragoman.training.reports.html import write_html_report

RUN = "document.documentElement.dataset.ran = 'yes'"
TEXT = f'</title></script></q></pre></td><script>{RUN}</script><img src="x" onerror="{RUN}"> & &amp; \'a\' "b"'
SHORT = "<img src=x>"  # short enough for a label of a picture


class Markup(HTMLParser):
    """The elements of a page with the names of their attributes, and the text inside each kind of element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.attributes: list[dict[str, str | None]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        self.attributes.append(dict(attrs))
        self.texts.setdefault(tag, []).append("")
        self._open.append(tag)

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[self._open[-1]][-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    @property
    def policies(self) -> list[str | None]:
        """Every Content-Security-Policy of the page."""
        return [each["content"] for each in self.attributes if each.get("http-equiv") == "Content-Security-Policy"]


def without_policy(page: str) -> str:
    return re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)


def without_escaping(page: str) -> str:
    """The page as if nothing had been escaped."""
    return page.replace(html.escape(TEXT), TEXT).replace(html.escape(SHORT), SHORT).replace("\\u003c", "<")


def run_page_of(run: Path, folder: Path, text: str, short: str) -> str:
    """The report of a run like the given one, with `text` or `short` wherever a run has its own text."""
    copy = shutil.copytree(run, folder / f"run {short}")

    lines = [json.loads(line) for line in (copy / "log.jsonl").read_text().splitlines()]
    sample = {"sample": {"source": text, "reference": text, "translation": text}}
    records = [{**line, **sample} if line["kind"] == "valid" else line for line in lines]
    (copy / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for look in (copy / "attention").glob("*.json"):
        old = json.loads(look.read_bytes())
        labels = {side: [short] * len(old[side]) for side in ("tokens", "source_tokens")}
        look.write_text(json.dumps(old | labels))
    start = {
        "dragoman": text,
        "git_commit": text,
        "seed": 1,
        "data": {short: {text: text}},
        "machine": {"device": text},
    }
    (copy / "provenance.json").write_text(json.dumps({"starts": [start]}))
    score = {"score": 1.0, "low": 1.0, "high": 1.0}
    test = {"bleu": score, "chrf": score, "ter": score, "exact_match": 0.5, "sentences": 1}
    (copy / "result.json").write_text(json.dumps({"tests": {text: test}, "search": {"beam": 4}, "steps": 60}))
    with (copy / "config.toml").open("a") as config:
        config.write(f"# {text}\n")
    return write_html_report(copy).read_text(encoding="utf-8")
