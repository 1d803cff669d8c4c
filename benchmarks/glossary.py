"""Terms of a glossary in the translations of real text: how many appear, and what that costs in BLEU.

    python -m benchmarks.glossary --data FOLDER [--model en-de] [--lines 300] [--unlikely] [--json]

Terms are pairs of words that go together in training text (by the Dice coefficient, each the other's best), for which
the reference of a test sentence has the target where the source has the source. So the target is known to be right, in
the form that the reference has. Three ways to translate: without the glossary, with it, and by the usual trick of
putting a number into the source and the term in its place into the output. `--unlikely` gives nouns another noun as
their target, in the reference too: terms that a model would never choose. `remaining` is the percentage of words that
terms should replace, those aligned to their sources in the translation without the glossary, that are still there.
"""

import argparse
import bz2
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import sacrebleu

import dragoman
from dragoman.decode.terms import Glossary, Term

SETS = ("tatoeba-en-de", "europarl-en-de", "newstest2014-en-de")
TRAINED_ON = ("tatoeba-en-de", "europarl-en-de")
LEAST_LETTERS = 5
LEAST_PAIRS, LEAST_DICE = 5, 0.3
WORD = re.compile(r"[^\W\d_]+")


class Example(NamedTuple):
    source: str
    reference: str
    terms: list[tuple[str, str]]


def read(folder: Path, name: str, most: int) -> list[tuple[str, str]]:
    paths = [sorted(folder.glob(f"{name}*.{side}.bz2"))[0] for side in ("en", "de")]
    with bz2.open(paths[0], "rt") as sources, bz2.open(paths[1], "rt") as targets:
        pairs = zip(sources, targets, strict=True)
        return [(source.strip(), target.strip()) for _, (source, target) in zip(range(most), pairs, strict=False)]


def words(text: str) -> set[str]:
    return {word for word in WORD.findall(text) if len(word) >= LEAST_LETTERS}


def dictionary(pairs: Sequence[tuple[str, str]], wanted: set[str]) -> dict[str, str]:
    """Words of the source and the words that translate them: each the other's best by Dice."""
    source_counts, target_counts, both = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for source, target in pairs:
        own, other = words(source.lower()) & wanted, words(target)
        source_counts.update(own)
        target_counts.update(other)
        both.update((one, two) for one in own for two in other)
    best: dict[str, tuple[float, str]] = {}
    back: dict[str, tuple[float, str]] = {}
    for (one, two), count in both.items():
        dice = 2 * count / (source_counts[one] + target_counts[two])
        if count >= LEAST_PAIRS and dice >= LEAST_DICE:
            best[one] = max(best.get(one, (0.0, "")), (dice, two))
            back[two] = max(back.get(two, (0.0, "")), (dice, one))
    return {one: two for one, (_, two) in best.items() if back[two][1] == one}


def examples(data: Path, name: str, known: dict[str, str], most: int) -> list[Example]:
    found = []
    for source, reference in read(data / name, "test", 10_000):
        lower, there = words(source.lower()), words(reference)
        terms = [(one, two) for one, two in known.items() if one in lower and two in there]
        if terms:
            found.append(Example(source, reference, terms[:4]))
    return found[:: max(1, len(found) // most)][:most]


def unlikely(found: Sequence[Example], known: dict[str, str]) -> list[Example]:
    """The same with other nouns as targets."""
    chance, nouns = random.Random(1), sorted(target for target in known.values() if target[0].isupper())
    changed = []
    for source, reference, terms in found:
        own = [(one, two, chance.choice(nouns)) for one, two in terms if two[0].isupper()][:2]
        for _, two, other in own:
            reference = re.sub(rf"(?<!\w){two}(?!\w)", other, reference)
        if own:
            changed.append(Example(source, reference, [(one, other) for one, _, other in own]))
    return changed


def replaced_words(translator: dragoman.Translator, each: Example, translation: str) -> list[str]:
    """Words of a translation that are aligned to terms it lacks, and occur once."""
    source, target = each.source.split(), translation.split()
    found = set()
    for one, two in each.terms:
        for i, j in translator.align(each.source, translation) if two not in words(translation) else []:
            if re.fullmatch(rf"\W*{one}\w{{0,2}}\W*", source[i], re.IGNORECASE):
                found |= {word for word in words(target[j]) if word[0].isupper() and translation.count(word) == 1}
    return sorted(found - {two for _, two in each.terms})


def with_placeholders(translator: dragoman.Translator, each: Example) -> str:
    """Numbers in place of terms, and the terms in their place again: what users do without a glossary."""
    text = each.source
    numbers = [str(717 + 101 * place) for place in range(len(each.terms))]
    for number, (source, _) in zip(numbers, each.terms, strict=True):
        text = re.sub(rf"(?<!\w){source}(?!\w)", number, text, flags=re.IGNORECASE)
    translation = translator.translate(text).text
    for number, (_, target) in zip(numbers, each.terms, strict=True):
        translation = translation.replace(number, target)
    return translation


def remaining(texts: Sequence[str], replaced: Sequence[Sequence[str]]) -> float:
    """The share of replaced words that are still there."""
    left = [word in words(text) for text, own in zip(texts, replaced, strict=True) for word in own]
    return sum(left) / max(1, len(left))


def measure(translator: dragoman.Translator, found: Sequence[Example]) -> dict[str, dict[str, float]]:
    sources = [each.source for each in found]

    def without() -> list[str]:
        return [each.text for each in translator.translate(sources)]

    def with_glossary() -> list[str]:
        glossaries = [Glossary([Term((one,), (two,)) for one, two in each.terms]) for each in found]
        pairs = zip(sources, glossaries, strict=True)
        return [translator.translate(source, glossary=glossary).text for source, glossary in pairs]

    def with_numbers() -> list[str]:
        return [with_placeholders(translator, each) for each in found]

    results: dict[str, dict[str, float]] = {}
    replaced = [replaced_words(translator, each, text) for each, text in zip(found, without(), strict=True)]
    references = [[each.reference for each in found]]
    for way, translate in (("none", without), ("glossary", with_glossary), ("placeholders", with_numbers)):
        start = time.perf_counter()
        texts = translate()
        seconds = time.perf_counter() - start
        pairs = zip(texts, found, strict=True)
        kept = [Term((), (target,)).is_kept(text) for text, each in pairs for _, target in each.terms]
        results[way] = {
            "terms": 100 * sum(kept) / len(kept),
            "bleu": sacrebleu.corpus_bleu(texts, references).score,
            "chrf": sacrebleu.corpus_chrf(texts, references).score,
            "seconds": seconds,
            "remaining": 100 * remaining(texts, replaced),
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder of corpora")
    parser.add_argument("--model", default="en-de")
    parser.add_argument("--lines", type=int, default=300, help="of each test set")
    parser.add_argument("--unlikely", action="store_true", help="terms that the model would never choose")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tests = {name: read(options.data / name, "test", 10_000) for name in SETS}
    wanted = {word for pairs in tests.values() for source, _ in pairs for word in words(source.lower())}
    text = [pair for name in TRAINED_ON for pair in read(options.data / name, "train", 60_000)]
    known = dictionary(text, wanted)
    print(f"{len(known):,} pairs of words", file=sys.stderr)
    translator = dragoman.load(options.model)
    sets: dict[str, dict[str, dict[str, float]]] = {}
    for name in SETS:
        found = examples(options.data, name, known, options.lines)
        found = unlikely(found, known) if options.unlikely else found
        sets[name] = measure(translator, found)
        terms = sum(len(each.terms) for each in found)
        print(f"{name}: {len(found)} lines, {terms} terms: {json.dumps(sets[name])}", file=sys.stderr)
    ratios = {
        f"{name} terms kept, glossary / placeholders": own["glossary"]["terms"] / own["placeholders"]["terms"]
        for name, own in sets.items()
    }
    print(json.dumps({"model": options.model, "sets": sets, "ratios": ratios}, indent=None if options.json else 1))


if __name__ == "__main__":
    main()
