"""Alignment error rate on generated sentences whose alignment is known, beside statistical aligners.

    python benchmarks/alignment.py [--quick] [--steps 700] [--reverse] [--json]

The two languages are invented. The source is subject, verb, object, with determiners and adjectives before the noun;
the target puts the verb last, adjectives after the noun and prepositions behind their phrase. Some words become two,
some verbs of two words become one; a determiner and an auxiliary have no counterpart, and the target marks subject and
object with words of its own, which belong to nothing. A number is copied.

A model is trained on the sentences and aligns the test set; peers are given the same training sentences and the test
set together: eflomal and fast_align (the package systran-align) where they are installed, and IBM model 1 of NLTK.
`--reverse` trains a model of the other direction too and combines both. "ratios" are our error rate divided by a
peer's: below 1, ours is better.
"""

import argparse
import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import dragoman
from dragoman.config import Config
from dragoman.decode.aligner import cross_attention
from dragoman.decode.alignment import Head, Link, symmetrize
from dragoman.decode.translator import Translator
from dragoman.evaluate.alignment import AlignmentScore, Reference, alignment_score

SOURCE_SYLLABLES = [onset + vowel for onset in "bdfgklmnprst" for vowel in "aeiou"]
TARGET_SYLLABLES = [onset + vowel for onset in ("sh", "v", "z", "ch", "y", "h", "kr", "tl") for vowel in "aeiou"]
NOUNS, VERBS, ADJECTIVES, ADVERBS, PREPOSITIONS = 400, 200, 120, 40, 5
TWO_WORDS = 0.15  # the share of source words that two target words translate
HELD_OUT = 500  # sentences in each of valid and test

Word = tuple[str, list[int]]  # a target word and the numbers of the source words it translates
Links = list[list[Link]]


@dataclass(frozen=True)
class Sentence:
    source: str
    target: str
    links: list[Link]


class Languages:
    """Two invented languages, and sentences of one with their translation into the other."""

    def __init__(self, seed: int = 1) -> None:
        self._random = np.random.default_rng(seed)
        self._taken: set[str] = set()
        sizes = {"noun": NOUNS, "verb": VERBS, "adjective": ADJECTIVES, "adverb": ADVERBS, "preposition": PREPOSITIONS}
        self._source = {kind: [self._word(SOURCE_SYLLABLES) for _ in range(size)] for kind, size in sizes.items()}
        self._target = {kind: [self._translation(kind) for _ in range(size)] for kind, size in sizes.items()}
        self._indefinite, self._definite, self._auxiliary, self._not = (self._word(SOURCE_SYLLABLES) for _ in range(4))
        self._definite_after, self._subject, self._object, self._negation = (
            self._word(TARGET_SYLLABLES) for _ in range(4)
        )
        self._particles = [self._word(SOURCE_SYLLABLES) for _ in range(3)]

    def _word(self, syllables: Sequence[str]) -> str:
        while True:
            word = "".join(self._random.choice(syllables, size=self._random.integers(2, 5)))
            if word not in self._taken:
                self._taken.add(word)
                return word

    def _translation(self, kind: str) -> list[str]:
        count = 2 if kind != "preposition" and self._random.random() < TWO_WORDS else 1
        return [self._word(TARGET_SYLLABLES) for _ in range(count)]

    def _draw(self, kind: str, place: int) -> tuple[str, list[Word], int]:
        """A source word at this place, its translation and its number: frequent ones are low, as in Zipf's law."""
        size = len(self._source[kind])
        number = int((size + 1) ** self._random.random()) - 1
        return self._source[kind][number], [(word, [place]) for word in self._target[kind][number]], number

    def _noun_phrase(self, start: int) -> tuple[list[str], list[Word]]:
        chance = self._random
        is_definite = chance.random() < 0.5
        source = [self._definite if is_definite else self._indefinite]
        adjectives: list[Word] = []
        target: list[Word] = []
        for _ in range(chance.choice(3, p=(0.5, 0.35, 0.15))):
            word, translation, _ = self._draw("adjective", start + len(source))
            source.append(word)
            adjectives += translation
        if chance.random() < 0.15:
            number = str(chance.integers(2, 2000))
            target.append((number, [start + len(source)]))
            source.append(number)
        word, translation, _ = self._draw("noun", start + len(source))
        source.append(word)
        target += [*translation, *adjectives]
        if is_definite:
            target.append((self._definite_after, [start]))
        return source, target

    def sentence(self) -> Sentence:
        """The source is subject, verb, object, adverbials; the target adverb, subject, adverbial, object, verb."""
        chance = self._random
        source, subject = self._noun_phrase(0)
        negation: list[Word] = []
        if chance.random() < 0.2:
            source += [self._auxiliary, self._not]
            negation = [(self._negation, [len(source) - 1])]
        verb, translation, number = self._draw("verb", len(source))
        places = [len(source)]
        source.append(verb)
        if number % 7 == 0:  # such a verb has a particle
            places.append(len(source))
            source.append(self._particles[number % 3])
        acting: list[Word] = [(word, places) for word, _ in translation]
        phrase, patient = self._noun_phrase(len(source))
        source += phrase
        where: list[Word] = []
        if chance.random() < 0.5:
            preposition, behind, _ = self._draw("preposition", len(source))
            phrase, place = self._noun_phrase(len(source) + 1)
            source += [preposition, *phrase]
            where = [*place, *behind]
        how: list[Word] = []
        if chance.random() < 0.4:
            adverb, how, _ = self._draw("adverb", len(source))
            source.append(adverb)
        source.append(".")
        marked_subject, marked_object = [*subject, (self._subject, [])], [*patient, (self._object, [])]
        target: list[Word] = [
            *how,
            *marked_subject,
            *where,
            *marked_object,
            *negation,
            *acting,
            (".", [len(source) - 1]),
        ]
        links = sorted((place, number) for number, (_, places) in enumerate(target) for place in places)
        return Sentence(" ".join(source), " ".join(word for word, _ in target), links)


def settings(steps: int, vocabulary: int) -> list[str]:
    return [
        f"train.max_steps={steps}",
        f"train.save_every={steps}",
        f"text.vocab_size={vocabulary}",
        "train.valid_sentences=50",
        "train.device=cpu",
        "decode.max_extra=10",
    ]


def train(folder: Path, train: Sequence[Sentence], valid: Sequence[Sentence], steps: int, turned: bool) -> Translator:
    """A tiny model of one direction."""
    sides: dict[str, Callable[[Sentence], str]] = {
        "source": lambda pair: pair.source,
        "target": lambda pair: pair.target,
    }
    paths: dict[str, tuple[str, ...]] = {}
    for side, text in sides.items():
        other = {"source": "target", "target": "source"}[side] if turned else side
        for split, pairs in (("", train), ("valid_", valid)):
            path = folder / f"{split}{other}"
            path.write_text("".join(f"{text(pair)}\n" for pair in pairs), encoding="utf-8")
            paths[f"{split}{other}"] = (str(path),)
    dragoman.train(Config.build("tiny", None, settings(steps, 2_000), data=paths), folder / "run")
    return Translator.load(folder / "run", device="cpu", engine="plain")


# Peers


def eflomal(sources: Sequence[str], targets: Sequence[str], folder: Path) -> Links:
    package: Any = importlib.import_module("eflomal")
    forward, backward = folder / "forward", folder / "backward"
    lines = [f"{text}\n" for text in sources], [f"{text}\n" for text in targets]
    package.Aligner().align(*lines, links_filename_fwd=str(forward), links_filename_rev=str(backward), quiet=True)
    return [
        symmetrize(Reference.parse(mine).sure, Reference.parse(theirs).sure, "grow-diag-final-and")
        for mine, theirs in zip(*(path.read_text().splitlines() for path in (forward, backward)), strict=True)
    ]


def fast_align(sources: Sequence[str], targets: Sequence[str], folder: Path) -> Links:
    package: Any = importlib.import_module("systran_align")
    text, forward, backward = (str(folder / name) for name in ("text", "forward", "backward"))
    pairs = zip(sources, targets, strict=True)
    Path(text).write_text("".join(f"{source} ||| {target}\n" for source, target in pairs), encoding="utf-8")
    package.generate_alignment_probabilities(
        text, forward, backward, favor_diagonal=True, optimize_tension=True, variational_bayes=True
    )
    words = [text.split() for text in sources], [text.split() for text in targets]
    found = package.Aligner(forward, backward).align_batch(*words)
    return [sorted(map(tuple, each["alignments"])) for each in found]


def ibm_model_1(sources: Sequence[str], targets: Sequence[str], folder: Path) -> Links:
    package: Any = importlib.import_module("nltk.translate")
    # NLTK's "words" are what is generated, its "mots" what from
    sentences = [
        package.AlignedSent(target.split(), source.split()) for source, target in zip(sources, targets, strict=True)
    ]
    package.IBMModel1(sentences, 5)
    return [[(mot, word) for word, mot in sorted(each.alignment) if mot is not None] for each in sentences]


PEERS: dict[str, tuple[str, Callable[[Sequence[str], Sequence[str], Path], Links]]] = {
    "eflomal, both directions": ("eflomal", eflomal),
    "fast_align, both directions": ("systran_align", fast_align),
    "IBM model 1": ("nltk", ibm_model_1),
}


# Ours


def layers_of(translator: Translator, sources: list[str], targets: list[str]) -> Iterator[tuple[str, Links]]:
    """The mean of all heads of each layer, at either row: what choosing heads is to be compared with."""
    size = translator.engine.model.config.decoder
    pairs = list(cross_attention(translator, sources, targets))
    for row in ("output", "input"):
        for layer in range(1, size.num_layers + 1):
            heads = [Head(layer, head, row) for head in range(1, size.num_heads + 1)]
            yield f"layer {layer}, {row} rows", [pair.alignment(heads).links for pair in pairs]


def measure(pairs: int, steps: int, reverse: bool) -> dict[str, Any]:
    languages = Languages()
    sentences = [languages.sentence() for _ in range(pairs + 2 * HELD_OUT)]
    test, valid, rest = sentences[:HELD_OUT], sentences[HELD_OUT : 2 * HELD_OUT], sentences[2 * HELD_OUT :]
    references = [Reference(frozenset(pair.links), frozenset(pair.links)) for pair in test]
    sources, targets = [pair.source for pair in test], [pair.target for pair in test]
    scores: dict[str, AlignmentScore] = {}

    def score(name: str, links: Links) -> None:
        scores[name] = alignment_score(links, references)

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "forward").mkdir()
        forward = train(Path(folder) / "forward", rest, valid, steps, turned=False)
        heads = forward.choose_alignment_heads(sources, targets)
        found = forward.align(sources, targets, heads)
        score("ours", found)
        score("ours, without choosing heads", forward.align(sources, targets, []))
        for name, links in layers_of(forward, sources, targets):
            score(f"ours, {name}", links)
        if reverse:
            (Path(folder) / "backward").mkdir()
            backward = train(Path(folder) / "backward", rest, valid, steps, turned=True)
            other = backward.align(targets, sources, backward.choose_alignment_heads(targets, sources))
            turned = [[(second, first) for first, second in links] for links in other]
            for method in ("grow-diag-final-and", "intersection", "union"):
                score(
                    f"ours, two models, {method}",
                    [symmetrize(*both, method) for both in zip(found, turned, strict=True)],
                )
        for name, (package, align) in PEERS.items():
            if importlib.util.find_spec(package) is not None:
                every = [*test, *rest]
                place = Path(folder) / package
                place.mkdir()
                links = align([pair.source for pair in every], [pair.target for pair in every], place)
                score(name, links[: len(test)])
    return {
        "pairs": pairs,
        "steps": steps,
        "heads": heads,
        "not installed": [name for name in PEERS if name not in scores],
        "scores": {name: each.to_dict() for name, each in scores.items()},
        "ratios": {name: scores["ours"].aer / scores[name].aer for name in PEERS if name in scores},
    }


def report(results: dict[str, Any]) -> None:
    print(f"{results['pairs']:,} training pairs, {results['steps']} steps; heads {', '.join(results['heads'])}")
    for name, score in results["scores"].items():
        print(
            f"  {name:<40} AER {score['aer']:5.1f}  precision {score['precision']:5.1f}  recall {score['recall']:5.1f}"
        )
    for name in results["not installed"]:
        print(f"  {name:<40} not installed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few sentences and steps: half a minute")
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--reverse", action="store_true", help="also a model of the other direction")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    pairs, steps = (2_000, 60) if arguments.quick else (arguments.pairs, arguments.steps)
    results = measure(pairs, steps, arguments.reverse)
    print(json.dumps(results)) if arguments.json else report(results)


if __name__ == "__main__":
    main()
