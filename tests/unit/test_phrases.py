"""Phrases that must appear: the search for them, and the terms of a glossary that ask for them."""

import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import dragoman
from dragoman import ConfigError, DataError, Translator
from dragoman.config import DecodeConfig
from dragoman.decode import replacing
from dragoman.decode.alignment import Alignment
from dragoman.decode.batches import Job, Special, search_phrases
from dragoman.decode.constraints import AtLeast, Choice, Ids, NoRepeatedNgram
from dragoman.decode.engines.plain import Engine
from dragoman.decode.phrases import Form, Phrase, Phrases, Progress, search_with_phrases
from dragoman.decode.replacing import aligned_stems, replaced_stems
from dragoman.decode.search import Hypothesis, length_penalty
from dragoman.decode.terms import Glossary, Term, glossary_of, read_glossary
from dragoman.text.offsets import PieceSpans, word_spans
from tests.searching import SPECIAL, random_model

LIMIT = 3
IDS = range(4, 9)


def phrase(*forms: Ids, extends: frozenset[int] = frozenset(), once: bool = False) -> Phrase:
    return Phrase(tuple(Form(ids) for ids in forms), extends, once)


def count(ids: Ids, wanted: Phrase) -> int:
    """How often a phrase is in a sequence, by its definition."""
    found = 0
    for form in wanted.forms:
        for place in range(len(ids) - len(form.ids) + 1):
            end = place + len(form.ids)
            before = ids[place - 1] if place else SPECIAL["start"]
            follows = form.follows is None or before in form.follows
            if ids[place:end] == form.ids and follows and not (end < len(ids) and ids[end] in wanted.extends):
                found += 1
    return found


def best_of_all(engine: Engine, source: list[int], wanted: Sequence[Phrase], options: DecodeConfig) -> Hypothesis:
    """By trying every sequence that ends within the limit."""
    found = []
    for length in range(LIMIT + 1):
        for ids in itertools.product(IDS, repeat=length):
            if all(count(ids, each) == 1 if each.once else count(ids, each) for each in wanted):
                log_prob_TV = engine.log_probs(source, [2, *ids])
                score = float(log_prob_TV[range(length + 1), [*ids, 3]].double().sum())
                penalty = length_penalty(length + 1, options.length_penalty, options.length_penalty_form)
                found.append(Hypothesis(ids, score, score / penalty, True))
    return max(found, key=lambda each: each.normalized_score)


@torch.inference_mode()
@pytest.mark.parametrize(
    "wanted",
    [
        [],
        [phrase((5, 6))],
        [phrase((5, 6), (7,)), phrase((8,))],
        [phrase((4, 4), extends=frozenset({4, 5}))],
        [phrase((6,), once=True), phrase((7, 6), (4,))],
        [phrase((4, 4), once=True)],
        [Phrase((Form((5,), frozenset({SPECIAL["start"], 8})),))],
    ],
)  # fmt: skip
def test_a_wide_search_finds_the_best_translation_with_the_phrases(wanted: list[Phrase]) -> None:
    engine = Engine(random_model(5, vocab_size=9, end_bias=0.5), "cpu")
    options, sources = DecodeConfig(beam=160), [[4, 5, 3], [6, 3]]
    phrases = [Phrases(wanted)] * len(sources)
    found = search_with_phrases(engine.start(sources), [LIMIT] * 2, options, phrases, **SPECIAL)
    for hypotheses, source in zip(found, sources, strict=True):
        expected = best_of_all(engine, source, wanted, options)
        assert hypotheses[0].ids == expected.ids
        assert hypotheses[0].score == pytest.approx(expected.score, abs=1e-4)
        assert all(count(each.ids, one) for each in hypotheses for one in wanted)


@torch.inference_mode()
def test_a_narrow_search_finds_phrases_in_every_batch() -> None:
    engine, chance = Engine(random_model(7), "cpu"), random.Random(3)
    special = Special(SPECIAL["start"], SPECIAL["end"], SPECIAL["forbidden"])
    jobs = []
    for number in range(12):
        source = [chance.randrange(4, 90) for _ in range(chance.randrange(1, 7))] + [3]
        wanted = [
            phrase(tuple(chance.randrange(4, 90) for _ in range(chance.randrange(1, 4)))) for _ in range(number % 4)
        ]
        jobs.append(Job(source, 16, number, [NoRepeatedNgram(3)], Phrases(wanted)))
    options = DecodeConfig(beam=2, n_best=2, batch_size=16)
    together = search_phrases(engine.start, jobs, options, special, "cpu", threads=1)
    unconstrained = search_phrases(
        engine.start, [job._replace(phrases=None) for job in jobs], options, special, "cpu", threads=1
    )
    lacking = 0
    for job, hypotheses, free in zip(jobs, together, unconstrained, strict=True):
        assert job.phrases is not None
        (alone,) = search_phrases(engine.start, [job], options, special, "cpu", threads=1)
        assert [each.ids for each in alone] == [each.ids for each in hypotheses]
        for each in hypotheses:
            assert all(count(each.ids, one) for one in job.phrases)
            assert each.finished
        lacking += any(not count(free[0].ids, one) for one in job.phrases)
    assert lacking >= 6, "the control: without phrases most do not appear"


@torch.inference_mode()
def test_wishes_give_way_where_they_leave_nothing() -> None:
    engine = Engine(random_model(7), "cpu")
    special = Special(SPECIAL["start"], SPECIAL["end"], SPECIAL["forbidden"])

    def found(*jobs: Job) -> list[list[Ids]]:
        results = search_phrases(engine.start, jobs, DecodeConfig(batch_size=8), special, "cpu", threads=1)
        return [[each.ids for each in own] for own in results]

    def never(ids: Ids) -> Choice:
        return Choice(never=[7, 8])

    job = Job([5, 6, 3], 12, 0, [], Phrases([phrase((7, 8))]))
    (free,) = found(job)
    longer = len(free[0]) + 2
    assert found(job._replace(rules=[never])) == [[]], "the control: as a rule it leaves nothing"
    given_way, kept = found(job._replace(wishes=[never]), job._replace(wishes=[AtLeast(longer, SPECIAL["end"])]))
    assert given_way == free
    assert len(kept[0]) >= longer


def test_impossible_phrases_give_no_hypothesis() -> None:
    engine = Engine(random_model(5, vocab_size=9), "cpu")
    with torch.inference_mode():
        found = search_with_phrases(
            engine.start([[4, 3]]), [2], DecodeConfig(), [Phrases([phrase((5, 6, 7))])], **SPECIAL
        )
    assert found == [[]]


def test_a_phrase_is_met_when_its_word_ends() -> None:
    phrases = Phrases([phrase((5, 6), extends=frozenset({7}))])
    started = phrases.advance(Progress(2), 5)
    assert started is not None
    assert phrases.wanted(started) == {6}
    met = phrases.advance(started, 6)
    assert met is not None
    assert phrases.are_met(met)
    longer, ended = phrases.advance(met, 7), phrases.advance(met, 8)
    assert longer is not None
    assert ended is not None
    assert not phrases.are_met(longer)
    assert phrases.are_met(ended)
    again = phrases.advance(ended, 7)
    assert again is not None
    assert phrases.are_met(again), "only what follows at once extends a word"


def test_a_phrase_that_must_appear_once_cannot_be_written_again() -> None:
    for once in (True, False):
        phrases = Phrases([phrase((5, 6), once=once)])
        progress: Progress | None = Progress(2)
        for new in (5, 6, 8, 5):
            assert progress is not None
            progress = phrases.advance(progress, new)
        assert progress is not None
        assert (phrases.advance(progress, 6) is None) == once


# Terms


def found_in(text: str, *pairs: tuple[str, ...], language: str = "") -> list[str]:
    return [term.targets[0] for term in glossary_of(pairs, language).terms_in(text)]


def test_a_term_applies_where_its_source_occurs_as_a_word() -> None:
    assert found_in("The car is red.", ("car", "Wagen")) == ["Wagen"]
    assert found_in("Cars!", ("car", "Wagen")) == ["Wagen"]
    assert found_in("Take care of the cart.", ("car", "Wagen")) == []
    assert found_in("the heart attack", ("heart", "Herz"), ("heart attack", "Infarkt")) == ["Infarkt"]
    assert found_in("heart  attacks", ("heart attack", "Infarkt")) == ["Infarkt"]
    assert found_in("a car and a car", ("car", "Wagen")) == ["Wagen"]
    assert found_in("two mice", ("mouse|mice", "Maus")) == ["Maus"]


def test_case_matters_for_terms_with_capitals_unless_told_otherwise() -> None:
    assert found_in("give us time", ("US", "USA")) == []
    assert found_in("the US", ("US", "USA")) == ["USA"]
    assert found_in("give us time", ("US", "USA", "any")) == ["USA"]
    assert found_in("Apple", ("apple", "Apfel")) == ["Apfel"]
    assert found_in("Apple", ("apple", "Apfel", "exact", "a note")) == []
    both = [("may", "dürfen"), ("May", "Mai")]
    for terms in (both, both[::-1]):
        assert found_in("You may leave in May.", *terms) == ["dürfen", "Mai"], "in any order of lines"


def test_symbols_belong_to_a_term() -> None:
    assert found_in("I write C++.", ("C++", "C++")) == ["C++"]
    assert found_in("I write C+++.", ("C++", "C++")) == []
    assert found_in("the .NET committee", (".NET", "Netz")) == ["Netz"]
    assert found_in("the ASP.NET committee", (".NET", "Netz")) == []
    for text, symbol in [
        ("50% of it", "%"),
        ("20°C today", "°C"),
        ("50€ now", "€"),
        ("§5 says", "§"),
        ("in 2(a) x", "(a)"),
    ]:
        assert found_in(text, (symbol, "x")) == ["x"]
        assert Term(("x",), (symbol,)).is_kept(text)


def test_german_words_inflect() -> None:
    assert found_in("den Häusern", ("Haus|Häuser", "house"), language="de") == ["house"]
    assert found_in("des Hauses", ("Haus", "house"), language="de") == ["house"]
    assert found_in("des Hauses", ("Haus", "house"), language="en") == ["house"]
    assert found_in("den Kindern", ("Kind", "child"), language="de") == ["child"]
    assert found_in("den Kindern", ("Kind", "child")) == []
    assert found_in("Hausboot", ("Haus", "house"), language="de") == []


def test_languages_without_spaces_have_terms_anywhere() -> None:
    assert found_in("私は東京に住む", ("東京", "Tokyo")) == ["Tokyo"]
    assert found_in("C++ and .NET", ("c++", "C plus plus"), (".NET", "Dotnet")) == ["C plus plus", "Dotnet"]


def test_a_target_counts_as_a_word_and_may_begin_a_sentence() -> None:
    term = Term(("x",), ("haus", "Häuser"))
    texts = ("ein haus", "Haus", "„Haus“ da", "ein Haus", "hausboot", "Häuser, haus")
    assert [term.count_in(text) for text in texts] == [1, 1, 1, 0, 0, 2]
    once = Term(("5",), ("5",), once=True)
    assert [once.is_kept(text) for text in ("5 x", "5 5", "55", "")] == [True, False, False, False]
    assert Term(("x",), ("東京",)).is_kept("私は東京に")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("house\n", ":1: has no target term; write `source TAB target`"),
        ("# a comment\n\nhouse\t\n", ":3: a term is empty; write `source TAB target`"),
        ("a|\tb\n", ":1: a term is empty; write `source TAB target`"),
        ("a\tb\tsometimes\n", ":1: the case rule is 'sometimes'; write any or exact, or leave it out"),
        ("a\t" + "|".join("b" * 40) + "\n", ":1: 40 alternatives; write at most 32"),
        (
            "a\tb\nc\td\nA\tB\tany\n",
            ":3: 'A' has another translation in line 1; delete one, or write both in one, separated by |",
        ),
        (
            "a|c\tb\n\n# x\nb|c\td\n",
            ":4: 'c' has another translation in line 1; delete one, or write both in one, separated by |",
        ),
        ("# nothing\n", ": has no terms; write `source TAB target` on each line"),
        ("a\tb\0\n", ":1: NUL at byte 4; fix the line"),
    ],
)
def test_a_bad_glossary_is_refused_with_its_line(tmp_path: Path, lines: str, message: str) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text(lines)
    with pytest.raises(DataError) as caught:
        read_glossary(path)
    assert str(caught.value) == f"{path}{message}"


def test_terms_that_agree_or_overlap_do_not_conflict(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("heart\tHerz\nheart\tHerz\nheart attack\tInfarkt\nUS\tUSA\nus\tuns\n")
    glossary = read_glossary(path)
    found = [[term.targets[0] for term in glossary.terms_in(text)] for text in ("a heart attack", "a heart", "US")]
    assert found == [["Infarkt"], ["Herz"], ["USA"]]
    with pytest.raises(DataError, match=r"^glossary: entry 2: 'heart' has another translation in entry 1; delete one"):
        glossary_of([("heart", "Herz"), ("heart", "Kern")])


def test_a_case_rule_may_have_capitals() -> None:
    assert found_in("give us time", ("US", "USA", "Any")) == ["USA"]
    assert found_in("Apple", ("apple", "Apfel", " EXACT ")) == []


@pytest.mark.slow
def test_a_large_glossary_is_searched_quickly() -> None:
    glossary = glossary_of([(f"word{number}", f"Wort{number}") for number in range(50_000)])
    assert len(glossary) == 50_000
    text = "word7 and Word49999, " * 2_000
    assert [term.targets for term in glossary.terms_in(text)] == [("Wort7",), ("Wort49999",)]


# The words that terms replace


@pytest.fixture(scope="module")
def german() -> Translator:
    return dragoman.load("en-de", "cpu", "float32")  # the same words on every processor


def in_order(source: str, target: str, *links: tuple[int, int]) -> Alignment:
    """As a model would align two texts: words in the same place, but for `links` of target and source words."""
    sources, targets = (PieceSpans([], word_spans(text)) for text in (source, target))
    weight_JI = np.zeros((len(targets.spans), len(sources.spans)))
    places = {number: min(number, len(sources.spans) - 1) for number in range(len(targets.spans))} | dict(links)
    weight_JI[list(places), list(places.values())] = 1.0
    return Alignment(source, target, sources, targets, weight_JI)


def test_a_term_replaces_the_word_that_has_the_same_source() -> None:
    terms, other = [Term(("report",), ("Gutachten",))], Term(("house",), ("Berichtshaus",))

    def stems(source: str, target: str, *links: tuple[int, int], prefix: str = "") -> list[str]:
        needed = [prefix, *(target for term in terms for target in term.targets)]
        return aligned_stems(in_order(source, target, *links), terms, needed)

    assert stems("the old reports", "der alte „Bericht“.") == ["Beri"]
    assert stems("the report and the report", "der Bericht und der Bericht") == ["Beri"]
    assert stems("the old thing", "der alte Bericht") == [], "not its source"
    assert stems("the report is here", "der Bericht ist Berichterstattung") == [], "needed elsewhere"
    assert stems("the report", "der Bericht", prefix="Berichte") == [], "needed in the prefix"
    assert stems("the report", "der Gutachter") == [], "the term begins so itself"
    assert stems("the report", "報告 報告書です") == [], "no words with case"
    assert stems("a report", "im Rat") == ["Rat"]
    shared = in_order("the report", "Bericht")
    assert aligned_stems(replace(shared, weights=np.array([[0.3, 0.7]])), terms, []) == ["Beri"]
    assert aligned_stems(replace(shared, weights=np.array([[0.7, 0.3]])), terms, []) == [], "it has another source"
    assert aligned_stems(replace(shared, weights=np.array([[0.0, 0.1]])), terms, []) == [], "too little attention"
    terms.append(other)
    assert stems("the report", "der Bericht") == [], "needed in another term"
    assert stems("", "") == []


def test_a_term_takes_the_place_of_a_word(german: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    text, terms = "The committee approved the report.", [("committee", "Gremium"), ("report", "Gutachten")]
    result = german.translate(text, glossary=terms)
    assert {"Gremium", "Gutachten"} <= {*re.findall(r"\w+", result.text)}
    assert "Bericht" not in result.text
    assert "Ausschuss" not in result.text
    free, own = "Der Ausschuss hat den Bericht angenommen.", [Term((one,), (two,)) for one, two in terms]
    assert replaced_stems(german.align_pieces, text, free, own) == ["Aussc", "Beri"]
    assert replaced_stems(german.align_pieces, text, free, own, "Im Bericht hat") == ["Aussc"]
    kept = german.translate(text, glossary=terms, prefix="Im Bericht hat")
    assert kept.text.startswith("Im Bericht hat")
    assert kept.status == "translated"
    monkeypatch.setattr(replacing, "aligned_stems", lambda *_: [])
    assert "Bericht" in german.translate(text, glossary=terms).text, "the control"


def test_a_term_that_fits_nowhere_does_not_come_after_the_sentence(
    german: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, terms = "My watch was stolen last night.", [("night", "Aufsichtsbehörden")]
    assert german.translate(text, glossary=terms).text.count(".") == 1
    monkeypatch.setattr(replacing, "_has_inner_end", lambda text: True)
    assert german.translate(text, glossary=terms).text.count(".") == 2, "the control"


# In the bundled model


PAIRS = [
    ("He bought a new car.", "car", "Kraftfahrzeug"),
    ("The committee approved the proposal.", "committee", "Gremium"),
    ("I love dogs.", "dog", "Katzen|Hunde"),
    ("Where is the station?", "station", "Haltestelle"),
]


def test_terms_of_a_glossary_appear(german: Translator, tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for _, source, target in PAIRS))
    texts = [text for text, _, _ in PAIRS]
    free, kept = german.translate(texts), german.translate(texts, glossary=path)
    for before, after, (_, _, target) in zip(free, kept, PAIRS, strict=True):
        assert Term((), tuple(target.split("|"))).is_kept(after.text), after.text
        assert after.status == "translated"
        assert (before.text == after.text) == Term((), tuple(target.split("|"))).is_kept(before.text)
    assert kept[2].text == free[2].text == "Ich liebe Hunde."
    assert sum(before.text != after.text for before, after in zip(free, kept, strict=True)) == 3, "the control"
    assert [german.translate(text, glossary=path).text for text in texts] == [each.text for each in kept]
    pairs = [(source, target) for _, source, target in PAIRS]
    assert [each.text for each in german.translate(texts, glossary=pairs)] == [each.text for each in kept]
    engines = [dragoman.load("en-de", "cpu", "float32", engine=engine) for engine in ("plain", "cpu")]
    on_plain, on_cpu = ([each.text for each in own.translate(texts, glossary=pairs)] for own in engines)
    assert on_plain == on_cpu


def test_a_symbol_makes_another_word_of_a_term_with_symbols(german: Translator) -> None:
    def extends(target: str) -> set[str]:
        phrase = german.steering.speller.phrase(Term(("x",), (target,)))
        assert phrase is not None
        return {german.steering.spelling.text((index,)).decode(errors="replace")[:1] for index in phrase.extends}

    assert {"+", "a", "1"} <= extends("C++")
    assert "+" not in extends("Haus"), "the control"
    assert "a" in extends("Haus")
    assert extends("委员会") == set(), "in a language without spaces any word may follow"


def test_a_term_with_symbols_stands_alone(german: Translator) -> None:
    terms = {"language": "C++", "framework": ".NET"}
    for text, (source, target) in zip(["I write the language.", "We use the framework."], terms.items(), strict=True):
        translation = german.translate(text, glossary=[(source, target)]).text
        assert re.search(rf"(?<!\S){re.escape(target)}(?!\w)", translation), translation


def test_a_term_and_a_prefix_work_together(german: Translator) -> None:
    result = german.translate("He bought a new car.", prefix="Gestern", glossary=[("car", "Kraftfahrzeug")])
    assert result.text.startswith("Gestern")
    assert "Kraftfahrzeug" in result.text


def test_what_cannot_be_kept_is_said(german: Translator) -> None:
    impossible = german.translate("He bought a car.", glossary=[("car", "Wagen")], banned=["Wagen"])
    assert impossible.status == "altered"
    assert impossible.reason == "'Wagen' could not be placed"
    assert impossible.text
    other = german.translate(["He bought a car.", "I love dogs."], glossary=[("car", "Wagen")], banned=["Wagen"])
    assert [each.status for each in other] == ["altered", "translated"]
    assert impossible.to_dict()["reason"] == impossible.reason


def test_wrong_glossaries_are_refused(german: Translator, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^glossary: entry 2: has no target term; write `source TAB target`$"):
        german.translate("x", glossary=[("a", "b"), ("c",)])
    with pytest.raises(DataError, match="no such file"):
        german.translate("x", glossary=tmp_path / "none.tsv")
    with pytest.raises(ConfigError, match=r"^glossary: not with sampling; leave one of them out$"):
        german.translate("x", glossary=[("a", "b")], sampling=True)
    assert isinstance(german.glossary([("a", "b")]), Glossary)
