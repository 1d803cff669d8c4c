"""`dragoman translate --input FILE` for documents: what it writes, what it says, and what it refuses."""

import io
import json
import re
import zipfile
from pathlib import Path

import pytest

from tests.forked import shared_server

PAGE = """<!doctype html>
<html lang="en"><head><title>The house</title><!-- note --></head>
<body><p class="x">The <b>red</b> house is old.</p>
<p>Hello {name}, you have {count} new messages.</p>
<script>var text = "The house";</script></body></html>
"""
TIME = re.compile(r"translate: (\d+) segments in [\d.,]+ s, [\d.,]+ segments/s\n")


def translate(folder: Path, *words: str, rate: bool = True) -> tuple[int, str, str]:
    """The exit code, stdout, and stderr without the line about speed, which must be there unless nothing was read."""
    ended = shared_server().run(["translate", *words], cwd=folder)
    assert (TIME.search(ended.stderr) is not None) == rate, ended.stderr
    return ended.returncode, ended.stdout, TIME.sub("", ended.stderr)


def converted(folder: Path, name: str, content: str, *words: str) -> str:
    """The content of a file that is translated without a word on stderr."""
    path, output = folder / name, folder / f"out-{name}"
    path.write_text(content, encoding="utf-8")
    assert translate(folder, "--input", name, "--output", output.name, *words) == (0, "", "")
    assert path.read_text(encoding="utf-8") == content
    return output.read_text(encoding="utf-8")


def test_a_page_keeps_its_structure(tmp_path: Path) -> None:
    expected = (
        PAGE.replace('lang="en"', 'lang="de"')
        .replace("<title>The house", "<title>Das Haus")
        .replace("The <b>red</b> house is old", "Das <b>rote</b> Haus ist alt")
        .replace("Hello {name}, you have {count} new messages", "Hallo {name}, Sie haben {count} neue Nachrichten")
    )
    assert converted(tmp_path, "page.html", PAGE) == expected


@pytest.mark.slow
def test_messages_are_filled_in(tmp_path: Path) -> None:
    catalogue = (
        'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n'
        '#, c-format\nmsgid "%d files were copied to %s."\nmsgstr ""\n\nmsgid "The house"\nmsgstr "Die Villa"\n'
    )
    filled = converted(tmp_path, "de.po", catalogue)
    assert 'msgid "The house"\nmsgstr "Die Villa"\n' in filled
    (message,) = re.findall(r'copied to %s\."\nmsgstr "(.*)"', filled)
    assert message.startswith("%d Dateien wurden ")
    assert message.count("%s") == 1
    assert "fuzzy" not in filled
    both = converted(tmp_path, "de.po", catalogue, "--all", "--fuzzy")
    assert 'msgid "The house"\nmsgstr "Das Haus"\n' in both
    assert both.count("fuzzy") == 2


@pytest.mark.slow
def test_markdown_subtitles_and_tables_are_translated_in_place(tmp_path: Path) -> None:
    text = "# The house\n\nThe *red* house is old: https://example.com.\n\n```\nThe house\n```\n"
    assert converted(tmp_path, "page.md", text) == (
        "# Das Haus\n\nDas *rote* Haus ist alt: https://example.com.\n\n```\nThe house\n```\n"
    )
    subtitles = "1\n00:00:01,000 --> 00:00:02,500\nThe house is <i>old</i>.\n"
    assert converted(tmp_path, "film.srt", subtitles) == subtitles.replace(
        "The house is <i>old</i>", "Das Haus ist <i>alt</i>"
    )
    table = 'id,text,note\n1,The house is red.,The house\n2,"The house, which is ""red"".",x\n'
    columns = ["--column", "text", "--glossary", "terms.tsv"]
    (tmp_path / "terms.tsv").write_text("house\tGebäude\n", encoding="utf-8")
    rows = converted(tmp_path, "table.csv", table, *columns).splitlines()
    assert rows[0] == "id,text,note"
    assert rows[1] == "1,Das Gebäude ist rot.,The house"
    assert rows[2].startswith('2,"Das Gebäude')
    assert rows[2].endswith(",x")


@pytest.mark.slow
def test_a_segment_that_fails_keeps_its_source(tmp_path: Path) -> None:
    content = (
        '{"title": "The house is red.", "bad": "A bad\\u0000 word {x}.", "items": [{"title": "For %s {x}.", "n": 5}]}\n'
    )
    (tmp_path / "in.json").write_text(content)
    code, shown, errors = translate(tmp_path, "--input", "in.json", "--output", "out.json", "--json")
    assert code == 1
    assert errors == "translate: 1 of 3 segments failed (first: line 1, bad: NUL at character 6)\n"
    first, bad, last = map(json.loads, shown.splitlines())
    assert [each["place"] for each in (first, bad, last)] == ["line 1, title", "line 1, bad", "line 1, items.0.title"]
    assert [each["status"] for each in (first, bad, last)] == ["translated", "failed", "translated"]
    assert first == {**first, "source": "The house is red.", "translation": "Das Haus ist rot."}
    assert bad == {
        **bad,
        "source": "A bad\0 word {x}.",
        "translation": "",
        "score": None,
        "reason": "NUL at character 6",
    }
    assert last["source"] == "For %s {x}."
    assert sorted(re.findall(r"%s|\{x\}|\d+", last["translation"])) == ["%s", "{x}"]
    written = json.loads((tmp_path / "out.json").read_text())
    expected = {
        "title": "Das Haus ist rot.",
        "bad": "A bad\0 word {x}.",
        "items": [{"title": last["translation"], "n": 5}],
    }
    assert written == expected
    code, shown, errors = translate(tmp_path, "--input", "in.json", "--key", "items.*.title")
    assert code == 0, "the bad one was not asked for"
    assert json.loads(shown) == {**json.loads(content), "items": expected["items"]}
    assert errors == ""


@pytest.mark.slow
def test_a_word_document_keeps_its_runs(tmp_path: Path) -> None:
    docx = pytest.importorskip("docx")
    document = docx.Document()
    paragraph = document.add_paragraph("The ")
    paragraph.add_run("red").bold = True
    paragraph.add_run(" house is old.")
    document.add_table(1, 1).cell(0, 0).text = "Hello {name}!"
    document.save(str(tmp_path / "letter.docx"))
    assert translate(tmp_path, "--input", "letter.docx", "--output", "brief.docx") == (0, "", "")
    read = docx.Document(str(tmp_path / "brief.docx"))
    assert read.paragraphs[0].text == "Das rote Haus ist alt."
    assert [run.text for run in read.paragraphs[0].runs if run.bold] == ["rote"]
    assert read.tables[0].cell(0, 0).text.count("{name}") == 1


def zip_bomb() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("word/document.xml", b" " * (300 << 20))
    return content.getvalue()


PAGE_TO = ["--input", "page.html", "--output", "out"]
QUICK = [
    ([*PAGE_TO, "--format", "htm"], 2, "--format: 'htm' is unknown; did you mean html?"),
    (["x", "--format", "html"], 2, "--format: is that of a document; give it with --input"),
    (["x", "--key", "a"], 2, "--key: says how to read a document; give one with --input"),
    (["--input", "lines.txt", "--fuzzy"], 2, "--fuzzy: says how to read a document; give one with --input"),
    ([*PAGE_TO[:2], "--output", "page.html"], 2, "--output page.html: is the input too; give another file"),
    ([*PAGE_TO, "--key", "a"], 2, "--key: has no meaning in html, only in json, jsonl; leave it out"),
    (["--input", "table.csv", "--all"], 2, "--all: has no meaning in csv, only in po, xliff, tmx; leave it out"),
    ([*PAGE_TO, "--n-best", "2"], 2, "--n-best: not possible for a document; leave it out, or add --format text"),
    ([*PAGE_TO[:2], "--stream"], 2, "--stream: not possible for a document; leave it out, or add --format text"),
    (["x", "--output", "."], 6, ".: cannot be written (Is a directory); choose another place"),
    (["--input", "lines.txt", "--output", "."], 6, ".: cannot be written (Is a directory); choose another place"),
    (["--input", "page.md.gz"], 2, "page.md.gz: a compressed .md file is not supported; decompress it first"),
    (["--input", "a.PDF"], 2, "a.PDF: .pdf files are not supported; convert it, or use --format text for plain lines"),
    (["x", "--min-confidence", "5"], 2, "--min-confidence: 5 is no probability; give a number from 0 to 1"),
]
WITH_MODEL = [
    ([*PAGE_TO[:2], "--json"], 2, "--json: prints a record for each segment; give --output for the document"),
    ([*PAGE_TO[:2], "--output", "none/out"], 6,
     "none/out: cannot be written (No such file or directory); choose another place"),
    ([*PAGE_TO[:2], "--output", "."], 6, ".: cannot be written (Is a directory); choose another place"),
    (["--input", "table.csv", *PAGE_TO[2:], "--column", "no"], 3, "table.csv: no column no; columns: id, text"),
    (["--input", "none.html", *PAGE_TO[2:]], 3,
     "none.html: cannot be read (No such file or directory); give another file"),
    (["--input", "broken.xlf", *PAGE_TO[2:]], 3,
     "broken.xlf: invalid XML (Opening and ending tag mismatch: file line 1 and xliff, line 1, column 22); "
     "fix the file"),
]  # fmt: skip


@pytest.mark.parametrize("uses", [QUICK, pytest.param(WITH_MODEL, marks=pytest.mark.slow)])
def test_wrong_uses_are_refused_and_write_nothing(tmp_path: Path, uses: list[tuple[list[str], int, str]]) -> None:
    (tmp_path / "page.html").write_text(PAGE)
    (tmp_path / "table.csv").write_text("id,text\n1,The house\n")
    (tmp_path / "broken.xlf").write_text("<xliff><file></xliff>")
    (tmp_path / "lines.txt").write_text("The house\n")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for words, code, message in uses:
        assert translate(tmp_path, *words, rate=False) == (code, "", f"dragoman: {message}\n")
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.slow
def test_a_zip_bomb_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bomb.docx").write_bytes(zip_bomb())
    code, shown, errors = translate(tmp_path, "--input", "bomb.docx", "--output", "out.docx", rate=False)
    assert (code, shown) == (3, "")
    assert errors.startswith("dragoman: bomb.docx: ")
    assert errors.count("\n") == 1
    assert not (tmp_path / "out.docx").exists()


@pytest.mark.slow
def test_plain_lines_keep_spans_too(tmp_path: Path) -> None:
    lines = "Hello {name}, you have {count} new messages.\n<br/>\n\n{x}\n"
    (tmp_path / "lines.txt").write_text(lines)
    ended = shared_server().run(["translate", "--input", "lines.txt"], cwd=tmp_path)
    assert ended.returncode == 0
    assert ended.stdout == "Hallo {name}, Sie haben {count} neue Nachrichten.\n<br/>\n\n{x}\n"
    ended = shared_server().run(["translate", "Hello {name}.", "--protect", "none"], cwd=tmp_path)
    assert "{name}" not in ended.stdout, "the control"
