"""The benchmark of robustness: its cases are what they say, and each check accepts what is right and nothing else."""

import bz2
import re
from pathlib import Path

import pytest

from benchmarks import robustness
from benchmarks.robustness import CLASSES, Case, Outputs

PAIRS = [
    ("I met Boston and Peter there on 14 days.", "Ich traf Boston und Peter dort an 14 Tagen."),
    ("We have always lived near Hamburg.", "Wir haben immer bei Hamburg gewohnt."),
    ("There are 350 people behind the station.", "Hinter dem Bahnhof sind 350 Leute."),
    ("Nobody understands what Maria means.", "Niemand versteht, was Maria meint."),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name in robustness.SETS:
        (folder / name).mkdir()
        for place, side in enumerate(("en", "de")):
            text = "\n".join(pair[place] for pair in PAIRS * 5)
            (folder / name / f"test.{side}.bz2").write_bytes(bz2.compress(text.encode()))
    return folder


@pytest.mark.parametrize("language", ["en", "de"])
def test_every_class_has_cases_that_are_the_same_each_time(data: Path, language: str) -> None:
    found, again = (robustness.cases(data, language, 6) for _ in range(2))
    assert list(found) == list(CLASSES)
    for kind, own in found.items():
        assert [case.source for case in own] == [case.source for case in again[kind]]
        assert len(own) == 6
        assert len({case.source for case in own}) > 1


@pytest.mark.parametrize("language", ["en", "de"])
@pytest.mark.parametrize(
    "kind", ["names", "unknown words", "numbers", "units", "addresses", "code", "identifiers", "handles"]
)
def test_what_is_copied_passes_and_what_is_changed_does_not(data: Path, kind: str, language: str) -> None:
    for case in robustness.cases(data, language, 8)[kind]:
        assert case.passes(Outputs(case.source, "")), case.source
        known = {word for pair in PAIRS for side in pair for word in re.findall(r"[\w.]+", side)}
        changed = " ".join(word for word in case.source.split(" ") if word.strip(".,") in known)
        assert not case.passes(Outputs(changed, "")), case.source
        assert not case.passes(Outputs(f"{case.source} {case.source}", "")) or kind == "numbers"


@pytest.mark.parametrize("kind", ["interface text in quotes", "other languages in quotes"])
def test_quotes_may_change_but_not_what_is_in_them(data: Path, kind: str) -> None:
    for case in robustness.cases(data, "en", 8)[kind]:
        quoted = re.sub(r'"(.*)"', r"„\1“", case.source)
        assert quoted != case.source
        assert case.passes(Outputs(quoted, ""))
        assert not case.passes(Outputs(quoted.upper(), ""))


def test_numbers_may_have_the_separators_of_a_language() -> None:
    passes = robustness.has_number("3,481.50", ("en", "de"))
    assert all(passes(Outputs(text, "")) for text in ("3.481,50", "um 3481,50 Euro", "3 481,50", "3,481.50"))
    assert not any(passes(Outputs(text, "")) for text in ("3.481,5", "34,81 und 50", "13.481,50", "348.150"))
    passes = robustness.has_number("12,5", ("de", "en"))
    assert all(passes(Outputs(text, "")) for text in ("12.5 metres", "12,5"))
    assert not any(passes(Outputs(text, "")) for text in ("125 metres", "12.50"))


def test_signs_belong_to_their_numbers(data: Path) -> None:
    for case in robustness.cases(data, "en", 12)["signed numbers"]:
        assert case.passes(Outputs(case.source, ""))
        assert case.passes(Outputs(case.source.replace(" -", " −").replace(" °C", "\u00a0°C"), ""))
        assert not case.passes(Outputs(case.source.replace("-", "").replace("+", ""), ""))
        assert not case.passes(Outputs(case.source.replace("-", "- ").replace("+", "+ "), ""))


def test_dates_are_translated(data: Path) -> None:
    kinds = set()
    for case in robustness.cases(data, "en", 12)["dates"]:
        date = re.search(r"(\d{1,2}) ([A-Z][a-z]+) (\d{4})", case.source)
        kinds.add(date is None)
        if date is None:
            assert case.passes(Outputs(case.source, ""))
            assert not case.passes(Outputs(case.source.replace("-", ""), ""))
            continue
        month = robustness.MONTHS["de"][robustness.MONTHS["en"].index(date[2])]
        assert case.passes(Outputs(f"Am {date[1]}. {month} {date[3]} war es.", ""))
        assert not case.passes(Outputs(f"Am {date[1]}. {month} {int(date[3]) + 1} war es.", ""))
        assert not case.passes(Outputs(f"Am 1{date[1]}. {month} {date[3]} war es.", ""))
    assert kinds == {True, False}


def test_the_same_in_another_form(data: Path) -> None:
    found = robustness.cases(data, "en", 20)
    reference = dict(PAIRS)

    def check(kind: str, case: Case, text: str) -> bool:
        assert case in found[kind]
        return case.passes(Outputs(text, " ".join(reference[line] for line in case.undisturbed)))

    for case in found["upper case"]:
        german = reference[case.undisturbed[0]]
        assert check("upper case", case, german.upper())
        assert not check("upper case", case, german)
        assert not check("upper case", case, "GANZ ETWAS ANDERES")
    for case in found["typographic quotes"]:
        german = reference[case.undisturbed[0]]
        assert check("typographic quotes", case, f"„{german}“")
        assert check("typographic quotes", case, f"»{german.rstrip('.')}«.")
        assert not check("typographic quotes", case, german)
        assert not check("typographic quotes", case, f"„{german}")
    for case in found["spaces around"]:
        german = reference[case.undisturbed[0]]
        assert check("spaces around", case, case.source.replace(case.undisturbed[0], german))
        assert not check("spaces around", case, german)
    for case in found["emoji"]:
        german = reference[case.undisturbed[0]]
        assert check("emoji", case, case.source.replace(case.undisturbed[0], german))
        assert not check("emoji", case, german)
    for case in found["titles"]:
        german = reference[case.undisturbed[0]]
        assert check("titles", case, german.rstrip("."))
        assert not check("titles", case, german)
        assert not check("titles", case, "Ganz etwas anderes")
    for case in found["misspelt words"]:
        assert case.source != case.undisturbed[0]
        assert check("misspelt words", case, reference[case.undisturbed[0]])
        assert not check("misspelt words", case, "Ganz etwas anderes.")
    for case in found["several sentences"]:
        assert case.split == "long"
        sentences = [reference[line] for line in case.undisturbed]
        assert check("several sentences", case, " ".join(sentences))
        assert not check("several sentences", case, " ".join(sentences[:-1]))
