"""Names of languages, and which one a text is in."""

import functools
from collections.abc import Collection, Iterable
from typing import NamedTuple

LONGEST = 2_000  # characters that are looked at
PLAUSIBLE = 40.0  # percent


class Detected(NamedTuple):
    language: str
    confidence: float  # from 0 to 100


@functools.cache
def name_of(code: str) -> str:
    """In English; the code itself if it is not known."""
    from babel import Locale, UnknownLocaleError

    try:
        return Locale.parse(code.replace("-", "_")).get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code


class Detector:
    """Tells the given languages apart."""

    def __init__(self, languages: Iterable[str]) -> None:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        self._identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        known = set(self._identifier.nb_classes)
        self._languages = [code for code in languages if code in known]
        if self._languages:
            self._identifier.set_languages(self._languages)

    def detect(self, text: str) -> list[Detected]:
        """The likeliest first."""
        if not self._languages:
            return []
        ranked = self._identifier.rank(text[:LONGEST])
        return [Detected(str(code), round(100 * float(share), 1)) for code, share in ranked]

    def detect_one_of(self, text: str, possible: Collection[str]) -> Detected | None:
        """The likeliest plausible one of the possible ones, else the likeliest: a word may be of many languages."""
        found = self.detect(text)
        plausible = (each for each in found if each.language in possible and each.confidence >= PLAUSIBLE)
        return next(plausible, found[0] if found else None)
