"""Constraints: rules over what is written so far, in every search; prefixes, banned words, repetition, least length."""

import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import dragoman
from dragoman import Config, ConfigError, Translator
from dragoman.bundle import Bundle, Tokenizers
from dragoman.config import DecodeConfig, TransformerConfig
from dragoman.decode.batches import Job, Outcomes, Special, search_in_batches
from dragoman.decode.constraints import (
    FREE,
    AtLeast,
    Banned,
    CheckableRule,
    Choice,
    Constrained,
    Ids,
    NoRepeatedNgram,
    OneSentence,
    Prefix,
    Rule,
    Spelling,
)
from dragoman.decode.engines.plain import Engine
from dragoman.decode.search import Hypothesis, length_penalty, search
from dragoman.decode.searcher import Searcher
from dragoman.model.transformer import Transformer
from dragoman.text.tokenizer import Tokenizer
from tests.searching import SPECIAL, random_model

TEXTS = ["the old house", "das alte Haus", "ein Haus, das Hausboot", "größer als die Häuser", "zum Beispiel."] * 8
LIMIT = 3


def rules_of(number: int) -> Sequence[Rule]:
    """Rules that differ between sentences, the first of which has none."""

    def odd(ids: Ids) -> Choice:
        return Choice(only=[3, 4, 5, 7]) if len(ids) == number else Choice(never=[6])

    every: list[list[Rule]] = [
        [], [NoRepeatedNgram(1)], [AtLeast(3, 3)], [odd], [NoRepeatedNgram(2), AtLeast(2, 3), odd]
    ]  # fmt: skip
    return every[number]


def allowed(ids: Ids, rules: Sequence[Rule]) -> bool:
    for place, index in enumerate(ids):
        for only, never in (rule(ids[:place]) for rule in rules):
            if (only is not None and index not in only) or index in never:
                return False
    return True


def best_of_all(engine: Engine, source: list[int], rules: Sequence[Rule], options: DecodeConfig) -> Hypothesis:
    """By trying every sequence that ends within the limit."""
    found = []
    for length in range(LIMIT + 1):
        for ids in itertools.product(range(4, 9), repeat=length):
            if not allowed((*ids, 3), rules):
                continue
            log_prob_TV = engine.log_probs(source, [2, *ids])
            score = float(log_prob_TV[range(length + 1), [*ids, 3]].double().sum())
            penalty = length_penalty(length + 1, options.length_penalty, options.length_penalty_form)
            found.append(Hypothesis(ids, score, score / penalty, True))
    return max(found, key=lambda each: each.normalized_score)


@torch.inference_mode()
def test_a_wide_search_finds_the_best_of_what_is_allowed() -> None:
    engine = Engine(random_model(5, vocab_size=9, end_bias=0.5), "cpu")
    options, sources = DecodeConfig(beam=160, batch_size=8), [[4, 5, 3], [6, 3], [8, 8, 4, 3], [5, 3], [7, 4, 3]]
    decoding = Constrained(engine.start(sources), [rules_of(number) for number in range(5)])
    found = search(decoding, [LIMIT] * 5, options, range(5), **SPECIAL)
    free = search(engine.start(sources), [LIMIT] * 5, options, range(5), **SPECIAL)
    changed = 0
    for number, source in enumerate(sources):
        expected = best_of_all(engine, source, rules_of(number), options)
        assert found[number][0].ids == expected.ids
        assert found[number][0].score == pytest.approx(expected.score, abs=1e-4)
        changed += found[number][0].ids != free[number][0].ids
    assert found[0][0].ids == free[0][0].ids
    assert changed >= 2, "the control: without rules other translations are best"


@torch.inference_mode()
@pytest.mark.parametrize(
    "options",
    [DecodeConfig(beam=1, batch_size=3), DecodeConfig(beam=4, n_best=3, batch_size=3),
     DecodeConfig(sampling=True, n_best=3, batch_size=3)],
    ids=["greedy", "beam", "sampling"],
)  # fmt: skip
def test_every_search_keeps_the_rules_of_each_sentence(options: DecodeConfig) -> None:
    engine, chance = Engine(random_model(7), "cpu"), random.Random(1)
    special = Special(SPECIAL["start"], SPECIAL["end"], SPECIAL["forbidden"])
    sources = [[chance.randrange(4, 90) for _ in range(chance.randrange(1, 7))] + [3] for _ in range(10)]
    jobs = [Job(source, 8, number, rules_of(number % 5)) for number, source in enumerate(sources)]
    together = dict(search_in_batches(engine.start, jobs, options, special, "cpu"))
    broken = 0
    for number, job in enumerate(jobs):
        hypotheses = together[number]
        assert not isinstance(hypotheses, str)
        for each in hypotheses:
            assert allowed((*each.ids, 3) if each.finished else each.ids, job.rules)
        (_, alone), = search_in_batches(engine.start, [job], options, special, "cpu")  # fmt: skip
        assert [each.ids for each in alone] == [each.ids for each in hypotheses]  # type: ignore[union-attr]
        (_, free), = search_in_batches(engine.start, [job._replace(rules=())], options, special, "cpu")  # fmt: skip
        broken += any(not allowed((*each.ids, 3), job.rules) for each in free)  # type: ignore[union-attr]
    assert broken >= 2, "the control: without rules they are broken"


def test_rules_by_their_definition() -> None:
    assert NoRepeatedNgram(2)((5, 6, 7, 5)) == Choice(never=[6])
    assert NoRepeatedNgram(2)((5,)) == Choice(never=[])
    assert NoRepeatedNgram(1)((5, 6)).never == [5, 6]
    assert NoRepeatedNgram(3)((1, 2, 3, 1, 2, 4, 1, 2)).never == [3, 4]
    assert AtLeast(2, 3)((9,)) == Choice(never=(3,))
    assert AtLeast(2, 3)((9, 9)) == FREE


@torch.inference_mode()
def test_an_id_must_be_allowed_by_every_rule() -> None:
    engine = Engine(random_model(3, vocab_size=9), "cpu")
    rules: list[Rule] = [
        lambda ids: Choice(only=[4, 5, 6, 6]), lambda ids: Choice(only=[5, 6, 7]), lambda ids: Choice(never=[6, 8]),
    ]  # fmt: skip
    sources, start = [[4, 3], [5, 3]], np.array([[2], [2]])
    log_probs = Constrained(engine.start(sources), [rules, []]).log_probs(start)
    assert torch.isfinite(log_probs[0]).nonzero().flatten().tolist() == [5]
    free = engine.start(sources).log_probs(start)
    assert torch.equal(log_probs[0, 5], free[0, 5])
    assert torch.equal(log_probs[1], free[1]), "the control: a sentence without rules"


# Text


@pytest.fixture(scope="module", params=["unigram", "bpe", "char"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    config = Config.build("tiny", None, [f"text.model={request.param}", "text.vocab_size=340"])
    return Tokenizer.train(TEXTS, config.text)


def make_translator(tokenizer: Tokenizer, seed: int = 1) -> Translator:
    """One with random weights, which writes anything."""
    torch.manual_seed(seed)
    sizes = {"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2}
    model = Transformer(TransformerConfig(vocab_size=tokenizer.size, **sizes))  # type: ignore[arg-type]
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    config = Config.build("tiny").with_vocabulary(tokenizer.size, tokenizer.size)
    return Translator(Bundle(config, Tokenizers(tokenizer, tokenizer), model.eval()), "cpu", engine="plain")


def test_the_output_begins_with_its_prefix(tokenizer: Tokenizer) -> None:
    translator = make_translator(tokenizer)
    prefixes = ["das alte Haus", "das al", "d", "größ", "das  alte", "日本 😀", "", " ", "zum Beispiel. ", "Hausbo"]
    for options in ({"beam": 1}, {"beam": 3}, {"sampling": True}):
        found = translator.translate(["the old house"] * len(prefixes), prefix=prefixes, max_extra=3, **options)
        for prefix, result in zip(prefixes, found, strict=True):
            assert result.text.startswith(" ".join(prefix.split())), (prefix, result.text)
    free = translator.translate("the old house", max_extra=3)
    assert not any(free.text.startswith(prefix) for prefix in prefixes if prefix.strip()), "the control"


def test_a_prefix_may_be_spelled_in_any_way(tokenizer: Tokenizer) -> None:
    """Not only as the tokenizer would: a prefix may end where no piece of the whole word does."""
    rule = Prefix(Spelling(tokenizer), "ein Hau")
    spellings = set()
    chance = random.Random(1)
    for _ in range(200):
        ids: Ids = ()
        while (choice := rule(ids)).only is not None:
            assert choice.only
            ids = (*ids, chance.choice(sorted(choice.only)))
        spellings.add(ids)
        assert tokenizer.decode(ids).startswith("ein Hau")
    assert len(spellings) > 10
    completed = {tokenizer.decode(ids) for ids in spellings} - {"ein Hau"}
    assert bool(completed) == (tokenizer.kind != "char"), "a piece may go past the end"


def test_a_space_at_the_end_of_a_prefix_ends_its_word(tokenizer: Tokenizer) -> None:
    spelling = Spelling(tokenizer)
    text = spelling.of("das Haus ")
    assert text == "▁das▁Haus▁".encode()
    assert spelling.of("das Haus") == "▁das▁Haus".encode()
    ids = tuple(tokenizer.encode("das Haus"))
    assert Prefix(spelling, "das Haus")(ids) == FREE
    only = Prefix(spelling, "das Haus ")(ids).only
    assert only
    assert all(spelling.text((index,)).startswith("▁".encode()) or index in spelling.byte_ids for index in only)


def test_banned_words_do_not_appear(tokenizer: Tokenizer) -> None:
    spelling = Spelling(tokenizer)
    rule = Banned(spelling, ["Haus", "zum Beispiel"])
    for text, word in (("das alte Haus", "Haus"), ("zum Beispiel", "zum Beispiel")):
        ids = tuple(tokenizer.encode(text))
        assert not allowed(ids, [rule]), word
    for text in ("das alte Hausboot"[:8], "zum Haue", "Beispiel", "die Häuser"):
        assert allowed(tuple(tokenizer.encode(text)), [rule]), text
    chance, written = random.Random(1), 0
    for _ in range(500):
        words = chance.choices(["Haus", "Haus.", "Hausboot", "das", "zum", "Beispiel", "ein"], k=4)
        ids = tuple(tokenizer.encode(" ".join(words)))
        if re.search(r"(?<=\s)(Haus|zum Beispiel)(?=[\s.])", f" {' '.join(words)} "):
            written += 1
            assert not allowed(ids, [rule]), words
    assert written > 5, "the control: the words can be written"


def test_banned_words_do_not_appear_after_quotes_and_brackets(tokenizer: Tokenizer) -> None:
    rule = Banned(Spelling(tokenizer), ["Haus"])
    for text in ("das „Haus“", "das (Haus)", "ein-Haus", "das „ Haus"):
        assert not allowed(tuple(tokenizer.encode(text)), [rule]), text
    for text in ("das „Hau“", "das xHaus", "das (xHaus)", "das ßHaus"):
        assert allowed(tuple(tokenizer.encode(text)), [rule]), text


def test_words_that_begin_with_a_banned_one_can_be_banned_too(tokenizer: Tokenizer) -> None:
    spelling = Spelling(tokenizer)
    rule, whole = Banned(spelling, ["Hau"], longer=True), Banned(spelling, ["Hau"])
    for text in ("ein Haus", "das Hausboot", "das (Haus)", "ein Hau"):
        assert not allowed(tuple(tokenizer.encode(text)), [rule]), text
    for text in ("das alte", "die Häuser", "Beispiel", "ein xHaus"):
        assert allowed(tuple(tokenizer.encode(text)), [rule]), text
    assert allowed(tuple(tokenizer.encode("ein Haus")), [whole]) == (tokenizer.kind != "char"), "the control"


def test_a_rule_is_kept_if_it_allows_every_id(tokenizer: Tokenizer) -> None:
    spelling, chance = Spelling(tokenizer), random.Random(4)
    rules: list[CheckableRule] = [
        NoRepeatedNgram(1), NoRepeatedNgram(3), AtLeast(4, 3), Banned(spelling, ["Haus", "das"]), Banned(spelling, "e")
    ]  # fmt: skip
    seen = {(number, kept): 0 for number in range(len(rules)) for kept in (True, False)}
    for _ in range(400):
        text = " ".join(
            chance.choices(["das", "Haus", "Hausboot", "(Haus)", "alte", "e", "die"], k=chance.randrange(5))
        )
        ids = (*tokenizer.encode(text), *chance.choices(range(4, tokenizer.size), k=chance.randrange(3)))
        ids = (*ids, 3) if chance.random() < 0.5 else ids
        for number, rule in enumerate(rules):
            kept = rule.is_kept(ids)
            assert kept == allowed(ids, [rule])
            seen[number, kept] += 1
    assert min(seen.values()) > 5, "the control: each is kept, and broken"


def test_no_word_follows_the_end_of_one_sentence(tokenizer: Tokenizer) -> None:
    rule = OneSentence(Spelling(tokenizer))
    for text in ("zum Beispiel.", "das 3.5 Haus", "das Haus.“", "das Haus...", "", "."):
        assert allowed(tuple(tokenizer.encode(text)), [rule]), text
    for text in ("das Haus. Haus", "das Haus.“ Haus", "das? ein", "das Haus.- Haus"):
        assert not allowed(tuple(tokenizer.encode(text)), [rule]), text


def test_a_vocabulary_without_bytes_says_what_it_cannot_spell() -> None:
    config = Config.build("tiny", None, ["text.vocab_size=60", "text.byte_fallback=false", "text.model=char"])
    translator = make_translator(Tokenizer.train(TEXTS, config.text))
    assert translator.translate("house", prefix="das", max_extra=2).text.startswith("das")
    with pytest.raises(ConfigError, match=r"^prefix: the vocabulary cannot spell 'x日'; use other characters$"):
        translator.translate("house", prefix="x日")


# Options


@pytest.fixture(scope="module")
def german() -> Translator:
    return dragoman.load("en-de", "cpu")


def test_options_hold_in_a_trained_model(german: Translator) -> None:
    text = "The house is big and the house is old."
    free = german.translate(text)
    assert "Haus" in free.text.split()
    assert "Haus" not in german.translate(text, banned=["Haus"]).text.split()
    longer = german.translate(text, min_length=2 * len(free.tokens))
    assert len(longer.tokens) >= 2 * len(free.tokens)
    pairs = list(itertools.pairwise(german.translate(text, no_repeat_ngram=2).tokens))
    assert len(set(pairs)) == len(pairs)
    pairs = list(itertools.pairwise(free.tokens))
    assert len(set(pairs)) < len(pairs), "the control"
    begun = german.translate([text, text], prefix=["Das Geb", ""])
    assert begun[0].text.startswith("Das Gebäude ist")
    assert begun[1].text == free.text


RULES: dict[str, dict[str, Any]] = {
    "min_length": {"min_length": 9}, "no_repeat_ngram": {"no_repeat_ngram": 2}, "banned": {"banned": ["Haus"]},
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_only_what_breaks_a_rule_is_searched_with_it(
    german: Translator, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[list[int]] = []
    run = Searcher.search

    def noted(self: Searcher, jobs: list[Job], options: DecodeConfig) -> Outcomes:
        searched.append([len(job.rules) for job in jobs])
        return run(self, jobs, options)

    texts = ["The house is big and the house is old. The house is old.", "My brother plays the piano every evening."]
    free = german.translate(texts)
    monkeypatch.setattr(Searcher, "search", noted)
    found = german.translate(texts, **RULES[rule])
    assert searched == [[0, 0, 0], [1, 1] if rule == "banned" else [1]]
    assert found[1].text == free[1].text
    assert found[0].text != free[0].text


def test_alternatives_keep_the_rules_too(german: Translator) -> None:
    text = "The old man went home."
    free = german.translate(text, n_best=4)
    words = [set(each.text.strip(".").split()) for each in free.alternatives]
    (other, *_) = sorted(set.union(*words) - words[0])
    found = german.translate(text, n_best=4, banned=[other])
    assert all(other not in each.text.strip(".").split() for each in found.alternatives)
    assert [each.text for each in found.alternatives] != [each.text for each in free.alternatives]


@pytest.mark.slow
def test_constraints_run_in_the_cpu_engine_as_in_the_plain_one() -> None:
    engines = [dragoman.load("en-de", "cpu", "float32", engine=engine) for engine in ("cpu", "plain")]
    texts = ["The house is big and the house is old.", "No, no, no, no!", "I know that he is here."]
    for options in (
        {"banned": ["Haus", "ich"]},
        {"no_repeat_ngram": 2, "min_length": 6},
        {"beam": 1, "banned": ["ist"]},
    ):
        on_cpu, plain = ([each.text for each in own.translate(texts, **options)] for own in engines)
        assert on_cpu == plain
        assert on_cpu != [each.text for each in engines[0].translate(texts)], "the control"
    begun = [own.translate(texts, prefix=["Das Geb", "", "Mir"]) for own in engines]
    assert [each.text for each in begun[0]] == [each.text for each in begun[1]]
    assert engines[0].choice_for(engines[0].options(banned=["x"])).engine == "cpu"


def test_a_banned_word_does_not_appear_after_a_quote(german: Translator) -> None:
    for text in ('He said: "House".', "The building (house) is old."):
        assert "Haus" in re.findall(r"\w+", german.translate(text).text), "the control"
        assert "Haus" not in re.findall(r"\w+", german.translate(text, banned=["Haus"]).text)


@pytest.mark.parametrize(
    ("banned", "prefix"),
    [
        ("Haus", "Das Haus "),
        ("Haus", "Das Haus_x"),
        ("das  Haus", "Und das Haus ist"),
        ("Haus ", "Das Haus x"),
        ("H\u00e4user", "Die Ha\u0308user sind"),
    ],
)
def test_a_prefix_with_a_banned_word_is_refused(german: Translator, banned: str, prefix: str) -> None:
    with pytest.raises(ConfigError, match=rf"^prefix: {prefix!r} has a word that is banned; leave out one of them$"):
        german.translate("The house is old.", prefix=prefix, banned=["Boot", banned])
    assert german.translate("The house is old.", prefix=prefix, banned=["Boot"]).text.startswith(prefix[:3])


def test_a_prefix_may_end_with_a_banned_word_that_goes_on(german: Translator) -> None:
    begun = german.translate("The houseboat is old.", prefix="Das Haus", banned=["Haus"]).text
    assert re.match(r"Das Haus\w", begun), "the control: a longer word"


def test_what_is_no_text_is_refused_everywhere(german: Translator) -> None:
    message = r"^text: is int; give a list of strings$"
    for options in ({}, {"prefix": "a"}):
        with pytest.raises(ConfigError, match=message):
            german.translate(5, **options)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=r"^prefix: is int; give a list of strings$"):
        german.translate("a", prefix=5)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=r"^text: is int; give a string$"):
        list(german.stream_text(5))  # type: ignore[arg-type]


def test_only_a_shortlist_that_was_asked_for_is_refused() -> None:
    translator = dragoman.load("en-de", "cpu", engine="plain")
    plain = translator.config
    message = r"^shortlist: runs in the CPU engine only, this is the plain engine"
    translator.config = replace(plain, decode=replace(plain.decode, shortlist=True, beam=1))
    assert translator.options().shortlist
    assert translator.translate("I love dogs.", prefix="Wir").text.startswith("Wir"), "the model's own gives way"
    with pytest.raises(ConfigError, match=message):
        translator.options(shortlist=True)


def test_wrong_constraints_are_refused(german: Translator) -> None:
    for options, message in (
        ({"banned": [" "]}, "decode.banned: a word is blank; leave it out"),
        ({"banned": "Haus"}, "banned: is str; give a list of strings"),
        ({"min_length": -1}, "decode.min_length: -1 is out of range"),
        ({"prefix": ["a", "b"]}, "prefix: 2 for 1 texts; give one for each"),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
            german.translate("b c", **options)


def test_rows_follow_their_sentences(tokenizer: Tokenizer) -> None:
    """Reordered and selected as the decoding is."""

    class Recorded:
        def log_probs(self, id_BW: np.ndarray) -> torch.Tensor:
            return torch.zeros((id_BW.size, 9))

        def reorder(self, parent_BW: np.ndarray) -> None:
            pass

        def select(self, sentence_B: np.ndarray) -> None:
            pass

    seen: list[tuple[str, Ids]] = []

    def rule(name: str) -> Rule:
        return lambda ids: seen.append((name, ids)) or FREE  # type: ignore[func-returns-value]

    constrained = Constrained(Recorded(), [[rule("a")], [rule("b")]])  # type: ignore[arg-type]
    constrained.log_probs(np.array([[2], [2]]))
    constrained.reorder(np.array([[0, 0], [0, 0]]))
    constrained.log_probs(np.array([[4, 5], [6, 7]]))
    constrained.reorder(np.array([[1, 0], [0, 0]]))
    constrained.select(np.array([1, 0]))
    seen.clear()
    constrained.log_probs(np.array([[8, 8], [8, 8]]))
    assert seen == [("b", (6, 8)), ("b", (6, 8)), ("a", (5, 8)), ("a", (4, 8))]
