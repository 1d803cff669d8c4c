"""The summary of a run: it matches the log, the model directory and the Translator, and text stays text."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import dragoman
from dragoman.markdown import escape
from dragoman.pictures import svg_heatmap, svg_plot
from dragoman.tasks.task import PreparedData
from dragoman.training.data import prepare_data
from dragoman.training.loop import train
from dragoman.training.reports import curves, summary
from dragoman.training.reports.log import SilentReporter, read_log
from dragoman.training.reports.results import PICTURE, SUMMARY
from dragoman.training.reports.summary import write_summary
from tests.conftest import QUICK, quick_config

SVG = "{http://www.w3.org/2000/svg}"
CPU = torch.device("cpu")
SHORT = ("train.max_steps=4", "train.save_every=4", "train.log_every=2", "train.trackers=[]")


class Cells(HTMLParser):
    """The text of every cell of every table, row by row, and the tags seen."""

    def __init__(self, markdown: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self._open = False
        self.feed(MarkdownIt("commonmark").enable("table").render(markdown))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._open = True

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._open:
            self.rows[-1][-1] += data


def samples(markdown: str) -> list[list[str]]:
    rows = Cells(markdown).rows
    return rows[rows.index(["source", "reference", "translation", "status"]) + 1 :]


@pytest.fixture(scope="module")
def prepared(quick_run: Path) -> PreparedData:
    return prepare_data(quick_config(), quick_run, SilentReporter())


@pytest.fixture(scope="module")
def summarised(quick_run: Path, prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the quick run with a new summary."""
    run = shutil.copytree(quick_run, tmp_path_factory.mktemp("summary") / "a_run")
    for name in (SUMMARY, summary.CURVES, PICTURE):
        (run / name).unlink(missing_ok=True)
    assert write_summary(prepared, run, CPU, "reached train.max_steps=60") == run / "summary.md"
    return run


def words(run: Path) -> str:
    return (run / "summary.md").read_text(encoding="utf-8")


def test_finished_run_has_a_summary(quick_run: Path) -> None:
    assert "**Stopped**: reached train.max\\_steps=60" in words(quick_run)


def test_result_matches_the_log_and_the_directory(summarised: Path) -> None:
    records = read_log(summarised)
    valid = [record for record in records if record["kind"] == "valid"]
    text = words(summarised)
    best = max(valid, key=lambda record: record["chrf"])
    assert f"**Best validation**: step {best['step']}, chrF {best['chrf']:.4g}\n" in text
    published = json.loads((summarised / "published.json").read_bytes())
    chosen = "the average of the last 3 checkpoints, at " if published["kind"] == "average" else "those of "
    assert f"**Weights**: {chosen}step {published['step']}; chrF {published['metric']:.4g} on 20 sentences" in text
    lowest = min(valid, key=lambda record: record["loss"])
    (row,) = [cells for cells in Cells(text).rows if cells[0] == "loss"]
    assert row[1:3] == [f"{lowest['loss']:.4g}", str(lowest["step"])]
    assert re.search(
        r"\*\*Effort\*\*: 60 steps, into epoch \d+ of 2,000 pairs; [\d,]+ target tokens; \d+\.\d minutes", text
    )
    assert "target tokens per second between validations" in text
    assert "# How the run a\\_run went" in text


def test_memory_is_shown_if_logged(summarised: Path, prepared: PreparedData, tmp_path: Path) -> None:
    run = shutil.copytree(summarised, tmp_path / "run")
    records = [record for record in read_log(run) if record["kind"] != "memory"]
    lines = {False: records, True: [*records, {"kind": "memory", "step": 60, "peak_bytes": 3 * 2**30}]}
    for has_record, log in lines.items():
        (run / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in log))
        write_summary(prepared, run, CPU, "done")
        assert ("**Memory**: 3.00 GiB at its peak\n" in words(run)) == has_record


def test_samples_match_the_translator(summarised: Path, prepared: PreparedData) -> None:
    rows = [number * 20 // 10 for number in range(10)]
    translator = dragoman.load(str(summarised), device="cpu")
    expected = [
        [result.source, prepared.valid_references[row], result.text, result.status]
        for row in rows
        for result in [translator.translate(prepared.valid_sources[row])]
    ]
    assert samples(words(summarised)) == expected


def test_links_are_relative_and_resolve(summarised: Path) -> None:
    links = re.findall(r"\]\(([^)]*)\)", words(summarised))
    assert links == ["curves.svg", "sample.svg", "card.md", "log.jsonl"]
    assert all((summarised / link).is_file() for link in links)


# Pictures


def polylines(picture: str) -> list[int]:
    root = ElementTree.fromstring(picture)
    return [len(element.attrib["points"].split()) for element in root.iter(f"{SVG}polyline")]


def test_every_log_record_is_a_point_of_its_curve(summarised: Path) -> None:
    picture = (summarised / "curves.svg").read_text(encoding="utf-8")
    steps, looks = 60 // 5, 60 // 20
    assert polylines(picture) == [steps, looks, looks, looks, steps, steps]
    titles = [element.text for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]
    assert {"Loss", "Validation", "Learning rate", "Gradient norm"} <= set(titles)


def test_long_curves_are_thinned_and_missing_values_omitted() -> None:
    record: dict[str, Any] = {"kind": "step", "loss": 2.0, "gradient_norm": 0.0}
    many = [{**record, "step": step} for step in range(1, 4_501)]
    assert polylines(curves.curves(many, 0.1)) == [900, 900]
    assert curves._points(many, "step", "loss")[-1] == (4_500, 2.0)
    assert curves.curves([{"kind": "valid", "step": 1, "loss": "nan"}], 0.1) == ""


def test_attention_has_a_cell_for_every_pair_of_tokens(summarised: Path) -> None:
    root = ElementTree.fromstring((summarised / "sample.svg").read_text(encoding="utf-8"))
    cells = [title.text or "" for rect in root.iter(f"{SVG}rect") for title in rect.iter(f"{SVG}title")]
    translator = dragoman.load(str(summarised), device="cpu")
    sources = [row[0] for row in samples(words(summarised))]
    shown = [result for result in translator.translate(sources, attention=True) if result.attention]
    longest = max(shown, key=lambda result: max(len(result.tokens), len(result.source_tokens)))
    assert longest.attention is not None
    weights = longest.attention.cross[-1].mean(axis=0)
    assert weights.shape == (len(longest.tokens), len(longest.source_tokens))
    assert [cell.rpartition(": ")[2] for cell in cells] == [f"{value:.2f}" for value in weights.reshape(-1)]
    assert cells[0].startswith(f"{longest.tokens[0]} · {longest.source_tokens[0]}: ")


def test_markup_in_tokens_stays_text_and_every_cell_lies_inside_the_card() -> None:
    label = "<script>alert(1)</script>&\x00"
    picture = svg_heatmap(np.array([[0.5, np.nan]]), [label], [label, "x" * 99], title=label, caption=label)
    root = ElementTree.fromstring(picture)
    assert "<script" not in picture
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {"svg", "g", "rect", "text", "title"}
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for rect in root.iter(f"{SVG}rect"):
        x, y = float(rect.get("x", 0)), float(rect.get("y", 0))
        assert 0 <= x <= x + float(rect.attrib["width"]) <= width
        assert 0 <= y <= y + float(rect.attrib["height"]) <= height


def test_small_numbers_keep_their_digits() -> None:
    picture = svg_plot({"rate": [(1, 0.0), (2, 1.15e-5)]}, title="", x_label="", y_label="")
    ticks = [element.text for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]
    assert {"1.2·10⁻⁵", "10⁻⁵", "8·10⁻⁶"} <= set(ticks)


# Text that is not to be trusted

HOSTILE = [
    "a | b || c",
    "<script>alert(1)</script>",
    "![x](https://example.org/x.png) [y](z) <b>bold</b>",
    "`code` **bold** _i_ ~~gone~~ $x$ &amp; \\| \\",
    "# heading",
]


@pytest.mark.slow
def test_markup_in_samples_stays_text(tmp_path: Path) -> None:
    lines = HOSTILE * 40
    paths = {}
    for side in ("source", "target"):
        path = tmp_path / f"text.{side}"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        paths[side] = paths[f"valid_{side}"] = [str(path)]
    sizes = ("text.vocab_size=320", "model.d_model=16", "model.num_layers=1")
    train(dragoman.Config.build("tiny", None, [*sizes, *SHORT], data=paths), tmp_path / "run")
    text = words(tmp_path / "run")
    assert {row[0] for row in samples(text)} <= set(HOSTILE)
    assert [row[0] for row in samples(text)] == [row[1] for row in samples(text)]
    assert Cells(text).tags <= {
        "h1", "h2", "ul", "li", "p", "strong", "img", "a", "table", "thead", "tbody", "tr", "th", "td",
    }  # fmt: skip
    assert len(re.findall("<img", MarkdownIt("commonmark").render(text))) == 2


@pytest.mark.slow
@settings(max_examples=300)
@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp", "Cf")), min_size=1))
def test_any_text_is_shown_unchanged(text: str) -> None:
    markdown = f"| a | b |\n| --- | --- |\n| {escape(text)} | end |\n"
    shown, end = Cells(markdown).rows[1]
    assert shown.split() == text.split()
    assert end == "end"


@pytest.mark.parametrize("character", ["\n", "\r", "\x00", "\x1b", "\u2028", "\u202e", "\ud800", "\x85"])
def test_control_characters_are_escaped(character: str) -> None:
    shown = escape(f"a{character}b")
    assert character not in shown
    assert re.fullmatch(r"a\\\\[a-z0-9]+b", shown)
    shown.encode("utf-8")


# Other models, other ends


def test_model_without_attention_has_no_attention_picture(tmp_path: Path) -> None:
    plain = [setting for setting in QUICK if not setting.startswith("model.d_ff")]
    train(
        dragoman.Config.build("tiny", None, [*plain, *SHORT, "model.architecture=rnn", "model.context=none"]), tmp_path
    )
    assert not (tmp_path / "sample.svg").exists()
    assert "sample.svg" not in words(tmp_path)
    assert len(samples(words(tmp_path))) == 10


def test_run_without_validation_is_marked_not_measured(
    summarised: Path, prepared: PreparedData, tmp_path: Path
) -> None:
    run = shutil.copytree(summarised, tmp_path / "run")
    (run / "published.json").unlink()
    (run / "log.jsonl").unlink()
    write_summary(prepared, run, CPU, "interrupted")
    assert "**Weights**: not measured: the run stopped before its first validation" in words(run)
    assert "## Curves" not in words(run)


def test_lowest_loss_is_best(summarised: Path, prepared: PreparedData, tmp_path: Path) -> None:
    run = shutil.copytree(summarised, tmp_path / "run")
    records = [{"kind": "valid", "step": step, "loss": loss} for step, loss in ((20, 2.5), (40, 1.25), (60, 1.5))]
    (run / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    told = {"judge": "loss on 20 of some text", "metric": -1.25, "kind": "valid", "step": 40}
    (run / "published.json").write_text(json.dumps(told))
    by_loss = replace(
        prepared, config=replace(prepared.config, train=replace(prepared.config.train, valid_metric="loss"))
    )
    write_summary(by_loss, run, CPU, "done")
    assert "**Weights**: those of step 40; loss 1.25 on 20 sentences" in words(run)
    assert "**Best validation**: step 40, loss 1.25\n" in words(run)
