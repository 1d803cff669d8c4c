"""The HTML that dragoman writes: a strict policy in each page, and text that stays text."""

import base64
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from dragoman.decode.translation import Attention
from dragoman.inspect.page import page
from tests.hostile_text import SHORT, TEXT, Markup, run_page_of, without_escaping


def payload_of(text: str) -> dict[str, object]:
    """Text in every kind of place, keys too; the page's script reads it, the page itself does not."""
    return {"kind": "inspection", "sentences": [{"source": text, "tokens": [text, "<!--", "]]>"], text: {text: 0.5}}]}


def hash_of(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


# The inspector's page


def test_inspector_policy_allows_only_its_own_script_and_style() -> None:
    markup = Markup(page("title", payload_of("text")))
    ((_, script), (style,)) = markup.texts["script"], markup.texts["style"]
    assert markup.policies == [
        f"default-src 'none'; script-src {hash_of(script)}; style-src {hash_of(style)}; "
        "base-uri 'none'; form-action 'none'"
    ]
    assert len(script) > 10_000
    assert len(style) > 10_000
    places = [each.get("http-equiv") for each in markup.attributes]
    first = min(markup.elements.index((name, ())) for name in ("title", "style"))
    assert places.index("Content-Security-Policy") < first, "before anything that it could forbid"


def test_text_in_the_inspector_page_stays_text() -> None:
    whole = page(TEXT, payload_of(TEXT))
    markup, plain = Markup(whole), Markup(page("title", payload_of("text")))
    assert markup.elements == plain.elements
    assert markup.texts["title"] == [TEXT]
    assert json.loads(markup.texts["script"][0]) == payload_of(TEXT)
    data = json.dumps(payload_of(TEXT), separators=(",", ":")).replace("<", "\\u003c")
    for part, escaped in (("title", whole.replace(data, "")), ("data", whole.replace("&lt;", ""))):
        unescaped = without_escaping(escaped)
        assert unescaped != escaped
        assert Markup(unescaped).elements != plain.elements, f"the control: the {part} unescaped"


def test_non_finite_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        page("title", {"score": float("nan")})


# The report of a run


def test_the_policy_of_a_report_allows_no_script(quick_run: Path) -> None:
    markup = Markup((quick_run / "report.html").read_text(encoding="utf-8"))
    assert markup.policies == [
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    ]
    assert "script" not in markup.texts


def test_text_in_a_report_stays_text(quick_run: Path, tmp_path: Path) -> None:
    whole = run_page_of(quick_run, tmp_path, TEXT, SHORT)
    markup, plain = Markup(whole), Markup(run_page_of(quick_run, tmp_path, "text", "short"))
    assert markup.elements == plain.elements
    title = f"How the run run {SHORT} went"
    assert (markup.texts["title"][0], markup.texts["h1"]) == (title, [title])
    assert markup.texts["q"] == [TEXT]
    assert markup.texts["pre"][0].endswith(f"# {TEXT}\n")
    assert markup.texts["td"].count(TEXT) >= 3 + 2 + 1, "translations over time, a file and its hash, a test set"
    assert any(text.startswith(f"{SHORT} · {SHORT}: ") for text in markup.texts["title"]), "tokens of the picture"
    assert Markup(without_escaping(whole)).elements != plain.elements, "the control"


# In a notebook


def test_text_in_a_notebook_stays_text() -> None:
    none = np.zeros((0, 0, 0, 0), np.float32)
    pictures = [
        Attention(none, none, np.full((1, 1, 1, 2), 0.5, np.float32), (short, text), (), (text,))._repr_html_()
        for text, short in ((TEXT, SHORT), ("text", "short"))
    ]
    markup, plain = map(Markup, pictures)
    assert markup.elements == plain.elements
    assert SHORT in markup.texts["text"]
