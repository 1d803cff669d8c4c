"""Text inside Markdown. Knows nothing of reports."""

import html
import re
import unicodedata


def escape(text: str) -> str:
    """`text` as Markdown that shows it and does nothing else: no markup, no cell, no line of its own."""
    shown = "".join(repr(character)[1:-1] if _hides(character) else character for character in text)
    escaped = re.sub(r"([\\`*_\[\]~$])", r"\\\1", html.escape(shown, quote=False))
    return escaped.replace("|", "&#124;")  # a backslash would do for most readers of tables, not for all


def _hides(character: str) -> bool:
    """Controls, halves of a surrogate pair, and what reorders the text around it."""
    direction = unicodedata.bidirectional(character)
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or direction in (
        "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI",
    )  # fmt: skip
