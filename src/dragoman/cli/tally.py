"""How many lines were not plainly translated, and why: for standard error and the exit code."""

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dragoman.cli.direction import model_from

if TYPE_CHECKING:
    from dragoman.decode.translation import Translation

MOST_DETECTED = 1_000  # lines of which the language is looked at
MEANINGS = {  # of what is counted
    "split": "too long, translated in pieces",
    "truncated": "cut at the length limit",
    "altered": "without something that was to be kept",
    "without words": "translated to nothing",
    "failed": "failed",
}


@dataclass
class Tally:
    """Counts lines that were not plainly translated, reports them on stderr, and gives the exit code."""

    unit: str = "lines"
    lines: int = 0
    counts: dict[str, int] = field(default_factory=dict)  # by status, and of lines "without words"
    first: dict[str, str] = field(default_factory=dict)  # of the same, where it first occurred
    language: str = ""  # that the model reads; empty if it is not known
    others: dict[str, int] = field(default_factory=dict)  # lines that are obviously in another language

    def add(self, translation: "Translation", to_review: bool = False, place: str = "") -> None:
        """`place` names it, unless it is a line."""
        self.lines += 1
        place = place or f"line {self.lines}"
        if self.language and self.lines <= MOST_DETECTED:
            self._detect(translation.source, place)
        if to_review:
            self._count("review", place)
        self._count(translation.status, place + (f": {translation.reason}" if translation.reason else ""))
        if not translation.text and translation.status not in ("empty", "failed"):
            self._count("without words", place)

    def _detect(self, text: str, place: str) -> None:
        from dragoman.text.language import obvious_language

        language = obvious_language(text)
        if language not in (None, self.language):
            assert language is not None
            self.others[language] = self.others.get(language, 0) + 1
            self.first.setdefault("language", place)

    def _describe_others(self) -> str:
        """Which lines look as if the model cannot read them, and what could."""
        from dragoman.text.language import name_of

        count, most = sum(self.others.values()), max(self.others, key=lambda code: self.others[code])
        looked_at = f"{self.lines}" if self.lines <= MOST_DETECTED else f"the first {MOST_DETECTED:,}"
        names = ", ".join(name_of(code) for code in self.others)
        remedy = f"; try --model {other}" if (other := model_from(most)) else ""
        first = f"(first: {self.first['language']})"
        return f"{count} of {looked_at} {self.unit} look like {names}, not {name_of(self.language)} {first}{remedy}"

    def _count(self, what: str, place: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        self.first.setdefault(what, place)

    def finish(self, min_confidence: float | None = None) -> int:
        for status, meaning in MEANINGS.items():
            if status in self.counts:
                count, first = self.counts[status], self.first[status]
                print(f"translate: {count} of {self.lines} {self.unit} {meaning} (first: {first})", file=sys.stderr)
        if self.others:
            print(f"translate: {self._describe_others()}", file=sys.stderr)
        if min_confidence is not None:
            count = self.counts.get("review", 0)
            where = f"; first: {self.first['review']}" if count else ""
            what = f"to review (confidence below {min_confidence:g}{where})"
            print(f"translate: {count} of {self.lines} {self.unit} {what}", file=sys.stderr)
        return 1 if "failed" in self.counts else 0


def is_to_review(translation: "Translation", min_confidence: float | None) -> bool:
    """Whether it failed or its confidence is too low; never a line without words."""
    has_no_words = translation.status == "empty" or (translation.status == "translated" and not translation.tokens)
    if min_confidence is None or has_no_words:
        return False
    return translation.confidence is None or translation.confidence < min_confidence
