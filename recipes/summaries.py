"""Summaries: from the description of a software package to its headline, beside baselines that need no model.

    /usr/lib/apt/apt-helper cat-file /var/lib/apt/lists/*_dists_*_main_i18n_Translation-en* > descriptions.txt
    python recipes/summaries.py --descriptions descriptions.txt [--out runs/summaries] [--seeds 3] [--jobs N]

The descriptions are Debian's, as `apt-get -o Acquire::Languages=en update` downloads them. Packages with the same first
paragraph are in the same part, so that no test document has been seen. Trains `recipes/summaries.toml` with each seed
and prints ROUGE (pip install rouge-score) of its summaries, of the first sentence, and of the most central sentence.
Run the same command again to resume.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from steps import Settings, run_command, say, train_rows

from dragoman import ConfigError
from dragoman.data.corpus import read_lines, valid_line
from dragoman.evaluate.rouge import check_installed, rouge
from dragoman.files import make_directory, write_file
from dragoman.text.sentences import sentences

RECIPE = Path(__file__).with_suffix(".toml")
SHORTEST = 120  # characters of a document
PARTS = {"valid": 2, "test": 4}  # of 100; the rest is for training
WORD = re.compile(r"\w+")


class Package(NamedTuple):
    headline: str
    paragraphs: list[str]

    @property
    def document(self) -> str:
        return " ".join(self.paragraphs)

    @property
    def part(self) -> str:
        """Where it belongs, from a hash of its first paragraph, which packages of one source often share."""
        place = int(hashlib.sha256(self.paragraphs[0].encode()).hexdigest(), 16) % 100
        if place < PARTS["valid"]:
            return "valid"
        return "test" if place < PARTS["valid"] + PARTS["test"] else "train"


def summaries(
    descriptions: Annotated[Path, typer.Option(metavar="FILE", help="Debian's Translation-en, unpacked, or as .xz.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory for corpus and runs.")] = Path(
        "runs/summaries"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Runs.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Runs in parallel.")] = 1,
    settings: Settings = None,
) -> None:
    """Make the corpus, train with every seed, and print ROUGE beside the baselines."""
    check_installed()
    make_directory(out)
    documents, headlines = write_corpus(descriptions, out)
    say(f"{len(documents):,} test documents")
    baselines = {"first sentence": [lead(text) for text in documents], "central sentence": _central(documents)}
    for name, said in baselines.items():
        _report(name, said, headlines)
    files = [
        f'data.{prefix}{side}=["{out / part}.{name}"]'
        for part, prefix in (("train", ""), ("valid", "valid_"), ("test", "test_"))
        for side, name in (("source", "document"), ("target", "headline"))
    ]
    rows = {f"seed-{seed}": [*files, f"train.seed={seed}"] for seed in range(1, seeds + 1)}
    for name, tests in train_rows(rows, RECIPE, out, out, jobs, settings or []).items():
        for test in tests:
            written = (out / name / "tests" / f"{test}.txt").read_text(encoding="utf-8").splitlines()
            _report(name, written, headlines)


def write_corpus(path: Path, out: Path) -> tuple[list[str], list[str]]:
    """Write train, valid and test, each as documents and headlines; return those of test."""
    lines: dict[str, list[Package]] = {"train": [], "valid": [], "test": []}
    seen = set()
    for package in read_packages(path):
        if len(package.document) >= SHORTEST and package.document not in seen:
            seen.add(package.document)
            lines[package.part].append(package)
    if not all(lines.values()):
        raise ConfigError(f"{path}: no packages with descriptions; give Debian's Translation-en")
    for part, packages in lines.items():
        write_file(out / f"{part}.document", "".join(f"{one.document}\n" for one in packages).encode())
        write_file(out / f"{part}.headline", "".join(f"{one.headline}\n" for one in packages).encode())
    return [one.document for one in lines["test"]], [one.headline for one in lines["test"]]


def read_packages(path: Path) -> Iterator[Package]:
    """Every description: its first line is the headline, a line with a dot alone separates paragraphs."""
    headline, paragraphs = "", [""]
    for line in read_lines(path):
        text = valid_line(line, path).text
        if text.startswith("Description-en: "):
            headline, paragraphs = text.removeprefix("Description-en: ").strip(), [""]
        elif text == " .":
            paragraphs.append("")
        elif text.startswith(" "):
            paragraphs[-1] = f"{paragraphs[-1]} {' '.join(text.split())}".strip()
        elif not text and headline:
            kept = [paragraph for paragraph in paragraphs if paragraph]
            if kept:
                yield Package(headline, kept)
            headline = ""


def lead(document: str) -> str:
    return sentences(document)[0].strip()


def _central(documents: list[str]) -> list[str]:
    """The sentence whose words are closest to those of the document, rare words counting more (tf-idf, cosine)."""
    frequency = Counter(word for document in documents for word in set(_words(document)))
    rarity = {word: math.log(len(documents) / count) for word, count in frequency.items()}

    def vector(text: str) -> dict[str, float]:
        weighted = {word: count * rarity[word] for word, count in Counter(_words(text)).items()}
        length = math.sqrt(sum(value * value for value in weighted.values())) or 1.0
        return {word: value / length for word, value in weighted.items()}

    def best(document: str) -> str:
        whole = vector(document)
        near = {one: sum(value * whole[word] for word, value in vector(one).items()) for one in sentences(document)}
        return max(near, key=lambda one: near[one])

    return [best(document) for document in documents]


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def _report(name: str, written: list[str], headlines: list[str]) -> None:
    scores = rouge(written, headlines)
    shown = (f"{kind} {score.score:.1f} [{score.low:.1f}, {score.high:.1f}]" for kind, score in scores.items())
    say(f"{name:<17} {', '.join(shown)}")


if __name__ == "__main__":
    run_command(summaries)
