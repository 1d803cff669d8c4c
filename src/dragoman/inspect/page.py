"""Data as one self-contained HTML file: JSON, a style sheet and a script, all inline.

Knows nothing of models. Text is untrusted and goes into the page as JSON only, never as markup. If some did get in as
markup, the page's policy would still run no script but its own and fetch nothing.
"""

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

ASSETS = files("dragoman.inspect") / "assets"
SCRIPTS = (  # in order: each defines what the next ones use
    "state", "elements", "colors", "weights", "header", "sentences", "translation", "attention", "probabilities",
    "steps", "beam", "heads", "positions", "main",
)  # fmt: skip


def page(title: str, payload: Mapping[str, Any]) -> str:
    """The whole file."""
    style, script = _style(), _script()
    script_hash, style_hash = hashes()
    policy = POLICY.format(script=script_hash, style=style_hash)
    # "</script>" and "<!--" inside a string would end the element that holds it
    data = json.dumps(payload, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return PAGE.format(policy=policy, title=html.escape(title), style=style, script=script, data=data)


def hashes() -> tuple[str, str]:
    """Of the script and of the style sheet: what the policy of a document that embeds the page must allow."""
    return _hash(_script()), _hash(_style())


def _style() -> str:
    return (ASSETS / "page.css").read_text(encoding="utf-8")


def _script() -> str:
    """The parts of the script as one function, so that nothing they define is global."""
    parts = [(ASSETS / "page" / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    return SCRIPT.format(parts="\n".join(parts))


def _hash(content: str) -> str:
    """The hash by which a Content-Security-Policy identifies the content of an element."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode("ascii")


# Text is untrusted: the script puts it into the document as text nodes and attributes only, never as markup
SCRIPT = """"use strict";

(() => {{
{parts}}})();
"""

POLICY = "default-src 'none'; script-src '{script}'; style-src '{style}'; base-uri 'none'; form-action 'none'"


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main id="app"></main>
<noscript>This page shows its pictures with a script of its own; allow scripts to see them.</noscript>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""
