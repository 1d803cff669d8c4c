"""`dragoman inspect` and `dragoman report` as a person runs them."""

import json
import re
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from dragoman.cli.app import app
from dragoman.pictures import png_pixels, svg_grid
from dragoman.training.reports.attention import read_snapshots
from dragoman.training.reports.log import read_log

SOURCE = "a b c d e"


def run(*arguments: str | Path, code: int = 0) -> Result:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert (done.exit_code, type(done.exception)) == ((0, type(None)) if not code else (1, type(done.exception)))
    return done


def error_of(*arguments: str | Path) -> str:
    return str(run(*arguments, code=1).exception)


def data_of(page: Path) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found
    data: dict[str, object] = json.loads(found[1])
    return data


# inspect


def test_terminal_output_shows_probabilities_and_attention(quick_run: Path) -> None:
    lines = run("inspect", "--model", quick_run, SOURCE).stdout.split("\n")
    assert lines[0] == SOURCE
    assert any(re.match(r"[ !] \S+ +\d+\.\d% █* +\S+ \d+%", line) for line in lines)
    assert any("│" in line for line in lines)


def test_page_is_self_contained_and_escapes_text(quick_run: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    hostile = "</script><script>alert(1)</script> <!-- a"
    run("inspect", "--model", quick_run, SOURCE, hostile, "--out", page)
    text = page.read_text()
    assert text.count("<script") == 2, "the data and the page's own, none of the text's"
    assert not re.search(
        r"(src|href)=|url\(|https?://(?!www\.w3\.org/)", text.split('<script type="application/json"')[0]
    )
    data = data_of(page)
    assert [sentence["source"] for sentence in data["sentences"]] == [SOURCE, hostile]  # type: ignore[attr-defined]


def test_sentences_of_a_file_are_limited_by_most(quick_run: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a b\n\nc d e\n" + "a " * 300 + "\nf\n")
    done = run(
        "inspect", "--model", quick_run, "--source", tmp_path / "in.txt", "--out", tmp_path / "x.html", "--most", "2"
    )
    assert f"{tmp_path / 'in.txt'}: 1 lines left out, too long for this model, the first: 4" in done.stderr
    data = data_of(tmp_path / "x.html")
    assert (len(data["sentences"]), data["counted"]) == (2, 3)  # type: ignore[arg-type]


@pytest.mark.slow
def test_forced_translation_and_masked_head_are_shown(quick_run: Path) -> None:
    text = run("inspect", "--model", quick_run, SOURCE, "--target", "z z").stdout
    assert "! the model would have preferred the first of the others" in text
    data = json.loads(run("inspect", "--model", quick_run, SOURCE, "--target", "z z", "--json").stdout)
    steps = data["sentences"][0]["steps"]
    rows = re.findall(r"^([ !]) (\S+) +\d+\.\d% (.*)", text, re.MULTILINE)
    assert [mark == "!" for mark, _, _ in rows] == [step["rank"] > 1 for step in steps]
    for (_, token, others), step in zip(rows, steps, strict=True):
        first = next(other for other, _ in step["candidates"] if other != token)
        assert others.strip("█ ").startswith(f"{first} "), "the likeliest other token"
    text = run("inspect", "--model", quick_run, SOURCE, "--mask-head", "cross.1.1").stdout
    assert re.search(r"without cross.1.1: score -[0-9.]+; with all heads -[0-9.]+", text)
    data = json.loads(run("inspect", "--model", quick_run, SOURCE, "--mask-head", "cross.1.1", "--json").stdout)
    assert data["sentences"][0]["masked"]["heads"] == ["cross.1.1"]


def test_progress_is_shown_on_a_terminal_only(quick_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for terminal, shown in (("1", True), ("0", False)):
        monkeypatch.setenv("TTY_COMPATIBLE", terminal)
        done = run("inspect", "--model", quick_run, SOURCE, "--out", tmp_path / "x.html")
        assert ("inspecting sentences" in done.stderr) == shown
        assert ("ranking heads" in done.stderr) == shown
        assert done.stdout == f"{tmp_path / 'x.html'}: 1 of 1 sentences; open it in a browser\n"


def test_masked_heads_are_masked_during_search(quick_run: Path) -> None:
    heads = [f"--mask-head=cross.1.{head}" for head in (1, 2, 3, 4)]
    (sentence,) = json.loads(run("inspect", "--model", quick_run, SOURCE, *heads, "--json").stdout)["sentences"]
    (other,) = json.loads(run("inspect", "--model", quick_run, "t s r q p", *heads, "--json").stdout)["sentences"]
    assert sentence["translation"] != sentence["masked"]["before"]["translation"]
    assert sentence["translation"] == other["translation"], (
        "without cross-attention every source gives the same translation"
    )
    assert sentence["masked"]["before"] != other["masked"]["before"], "the control: with it they differ"
    error = error_of("inspect", "--model", quick_run, SOURCE, "--mask-head", "cross.9.1")
    assert error.startswith("--mask-head cross.9.1: no such head; this model has encoder.1.1 to")


def test_svg_and_png_files_are_written(quick_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    run("inspect", "--model", quick_run, SOURCE, "--svg", tmp_path, "--png", tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 12
    assert (tmp_path / "1-cross-heads.svg").read_text().startswith("<svg ")
    assert (tmp_path / "1-cross-mean.png").read_bytes().startswith(b"\x89PNG")


def test_invalid_arguments_are_reported(quick_run: Path, tmp_path: Path) -> None:
    assert error_of("inspect", "--model", quick_run) == "inspect: give sentences as arguments, or a file with --source"
    assert error_of("inspect", "--model", quick_run, "a", "b", "--target", "c") == (
        "--target: is the translation of one sentence; give exactly one as an argument"
    )
    assert error_of("inspect", "--model", quick_run, "a", "--source", "f") == (
        "--source: sentences were given as arguments too; give one or the other"
    )
    assert error_of("inspect", "--model", quick_run, "a", "--out", tmp_path / "no" / "x.html") == (
        f"--out {tmp_path / 'no' / 'x.html'}: its directory does not exist; make it or choose another place"
    )
    (tmp_path / "binary").write_bytes(b"a b\n\x7fELF\0\1\nc\n")
    assert error_of("inspect", "--model", quick_run, "--source", tmp_path / "binary") == (
        f"{tmp_path / 'binary'}:2: NUL at byte 5; fix the line"
    )
    (tmp_path / "blank").write_text("\n \n")
    assert error_of("inspect", "--model", quick_run, "--source", tmp_path / "blank") == (
        f"{tmp_path / 'blank'}: no sentence in it; give a file with text"
    )


# report


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not any(name in ("src", "onload", "onclick") for name, _ in attrs)


def test_training_writes_a_report_and_attention_snapshots(quick_run: Path) -> None:
    text = (quick_run / "report.html").read_text()
    tags = _Tags()
    tags.feed(text)
    assert "script" not in tags.tags
    for heading in (
        "Validation",
        "Curves",
        "One translation over time",
        "Attention over time",
        "Data",
        "Every setting",
    ):
        assert f"<h2>{heading}</h2>" in text
    steps = [record["step"] for record in read_log(quick_run) if record["kind"] == "valid"]
    looks = read_snapshots(quick_run, last_step=60)
    assert [look.step for look in looks] == steps
    np.testing.assert_allclose(looks[-1].weights.sum(axis=-1), 1.0, atol=0.05)
    assert not np.array_equal(looks[0].weights, looks[-1].weights), "attention changes during training"
    assert [look.step for look in read_snapshots(quick_run, last_step=40)] == [step for step in steps if step <= 40]


def test_report_can_be_written_to_another_file(quick_run: Path, tmp_path: Path) -> None:
    done = run("report", quick_run, "--out", tmp_path / "r.html")
    assert done.stdout == f"{tmp_path / 'r.html'}: open it in a browser\n"
    assert (tmp_path / "r.html").read_text() == (quick_run / "report.html").read_text()
    assert error_of("report", tmp_path) == f"{tmp_path}: no log of a run here; give the --out of a training run"


# Pixels


def test_png_has_one_pixel_per_value() -> None:
    weights = np.array([[0.0, 0.5, 1.0], [np.nan, 2.0, -1.0]])
    content = png_pixels(weights)
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", content[16:24]) == (3, 2)
    chunks, place = {}, 8
    while place < len(content):
        (size,) = struct.unpack(">I", content[place : place + 4])
        kind, body = content[place + 4 : place + 8], content[place + 8 : place + 8 + size]
        assert struct.unpack(">I", content[place + 8 + size : place + 12 + size])[0] == zlib.crc32(kind + body)
        chunks[kind], place = body, place + 12 + size
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(2, 4)[:, 1:]
    assert rows.tolist() == [[0, 128, 255], [0, 255, 0]]


def test_grid_omits_cells_without_values() -> None:
    weights = np.random.default_rng(0).random((2, 2, 3, 5))
    weights[1, 1] = np.nan
    picture = svg_grid(weights, [["a", "<b>"], ["c", ""]], title="t", caption="c")
    assert picture.count("<image ") == 3
    assert "&lt;b&gt;" in picture
