"""Placeholders, addresses and tags in the translations of real text: how many survive, and what the rest is worth.

    python -m benchmarks.kept_spans --data FOLDER [--model en-de] [--lines 300] [--json]

Sentences of test sets in which a word or number is the same in source and reference get a placeholder or an address in
its place, or a tag around it. Three ways to translate: with nothing protected, as dragoman does it, and with the
original word. A span counts if it is in the output exactly once. For BLEU the word takes the place of its span again.
"""

import argparse
import bz2
import json
import random
import re
import sys
from pathlib import Path
from typing import NamedTuple

import sacrebleu

import dragoman

SETS = ("tatoeba-en-de", "newstest2014-en-de")
SPANS = ("{name}", "%s", "$USER", "{{ user.name }}", "https://example.com/a?b=1", "info@example.org", "%(count)d")
TAGS = (("<b>", "</b>"), ('<a href="/x">', "</a>"))
COPIED = re.compile(r"(?<![\w-])(?<!\d[.,:])(?:[A-Z][a-z]{2,}|\d{1,4})(?![\w-]|[.,:]\d)")  # no part of a number


class Example(NamedTuple):
    source: str
    original: str
    reference: str
    word: str
    spans: tuple[str, ...]

    def without_spans(self, translation: str) -> str:
        for span in self.spans:
            translation = translation.replace(span, self.word if len(self.spans) == 1 else "")
        return translation


def examples(folder: Path, most: int) -> list[Example]:
    """Sentences with exactly one occurrence of a copied word on both sides, not at the start."""
    sources, references = (
        bz2.decompress((folder / f"test.{side}.bz2").read_bytes()).decode().splitlines() for side in ("en", "de")
    )
    chance, found = random.Random(1), list[Example]()
    for source, reference in zip(sources, references, strict=True):
        words = words_in_both(source, reference)
        if not words:
            continue
        word = chance.choice(words)
        spans: tuple[str, ...] = (SPANS[len(found) % len(SPANS)],)
        if len(found) % 4 == 3:
            spans = TAGS[len(found) // 4 % len(TAGS)]
        new = spans[0] if len(spans) == 1 else spans[0] + word + spans[1]
        found.append(Example(source.replace(word, new), source, reference, word, spans))
    return found[:: max(1, len(found) // most)][:most]


def words_in_both(source: str, reference: str) -> list[str]:
    """Names and numbers that occur exactly once on both sides, and not at the start."""
    return [word for word in dict.fromkeys(COPIED.findall(source[1:])) if _is_once(word, source, reference)]


def _is_once(word: str, source: str, reference: str) -> bool:
    whole = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
    return all(text.count(word) == 1 and whole.search(text) is not None for text in (source, reference))


def measure(translator: dragoman.Translator, found: list[Example]) -> dict[str, dict[str, float]]:
    results = {}
    sources, references = [each.source for each in found], [[each.reference for each in found]]

    def bleu(texts: list[str]) -> float:
        return sacrebleu.corpus_bleu(texts, references).score

    for way, protect in (("unprotected", []), ("protected", ["placeholders", "addresses", "tags"])):
        translations = translator.translate(sources, protect=protect)
        kept = [
            translation.text.count(span) == 1
            for translation, each in zip(translations, found, strict=True)
            for span in each.spans
        ]
        results[way] = {
            "kept": 100 * sum(kept) / len(kept),
            "altered": sum(translation.status == "altered" for translation in translations),
            "bleu": bleu([each.without_spans(own.text) for each, own in zip(found, translations, strict=True)]),
        }
    originals = [each.text for each in translator.translate([each.original for each in found])]
    return {**results, "original words": {"bleu": bleu(originals)}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder of corpora")
    parser.add_argument("--model", default="en-de")
    parser.add_argument("--lines", type=int, default=300, help="of each test set")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    translator = dragoman.load(options.model)
    sets: dict[str, dict[str, dict[str, float]]] = {}
    for name in SETS:
        found = examples(options.data / name, options.lines)
        sets[name] = measure(translator, found)
        print(f"{name}: {len(found)} lines: {json.dumps(sets[name])}", file=sys.stderr)
    ratios = {
        f"{name} BLEU, with spans / with words": own["protected"]["bleu"] / own["original words"]["bleu"]
        for name, own in sets.items()
    }
    print(json.dumps({"model": options.model, "sets": sets, "ratios": ratios}, indent=None if options.json else 1))


if __name__ == "__main__":
    main()
