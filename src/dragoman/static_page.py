"""A self-contained HTML page without scripts: sections of tables and pictures. Knows nothing of what it shows."""

import html
from collections.abc import Iterable, Iterator, Sequence


def document(title: str, parts: Iterable[str]) -> str:
    """The page with these sections; empty ones are left out."""
    body = "\n".join(part for part in parts if part)
    return DOCUMENT.format(title=html.escape(title), style=STYLE, body=body)


def section(heading: str, content: str) -> Iterator[str]:
    if content:
        yield f"<section><h2>{html.escape(heading)}</h2>\n{content}\n</section>"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in headings)
    lines = ["<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return f'<div class="wide"><table><tr>{head}</tr>\n' + "\n".join(lines) + "</table></div>"


STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --page: #f6f8fa; --card: #ffffff; --line: #d8dee4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --page: #0d1117; --card: #161b22; --line: #30363d; } }
body { margin: 0 auto; padding: 1.5rem; max-width: 70rem; font: 16px/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--page); }
section { margin: 1.5rem 0; padding: 1rem 1.25rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; overflow-x: auto; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin: 0 0 .75rem; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .3rem .8rem .3rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); overflow-wrap: break-word; } th { font-weight: 600; white-space: nowrap; }
pre { margin: 0; font-size: .85rem; white-space: pre-wrap; overflow-wrap: anywhere; }
svg { max-width: 100%; min-width: 34rem; height: auto; }
p { overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
"""

DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""
