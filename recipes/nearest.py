"""Training targets in a model's own words: of its hypotheses for each line, the one nearest to what people wrote.

    python recipes/nearest.py --model NAME|DIR --source F --target F --out DIR [--beam 8]

A model learns its own words more easily than people's, and choosing the nearest brings what people wrote into them
(sequence-level interpolation, Kim & Rush 2016). Near is what has many n-grams of words in common (GLEU, Wu et al.
2016).

Writes DIR/target, to be listed beside the source in `data.target`: line N translates line N, and is empty where there
is nothing to learn from. The same command again resumes, or does nothing if it is done.
"""

import itertools
import json
import multiprocessing
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import steps
import typer

from dragoman import DataError, Translator
from dragoman.data.corpus import content_hash, count_lines, read_lines
from dragoman.decode.bulk import model_hash
from dragoman.decode.translation import Translation
from dragoman.files import lock_directory
from dragoman.machine import find_device

BEAM = 8
LINES_OF_PART = 16_384  # each process loses at most so many when it is killed
LONGEST_NGRAM = 4  # words
MOST_PROCESSES_ON_GPU = 8  # that share it, so that it does not wait for one that compares hypotheses
RECORD = "made-from.json"
_WORD = re.compile(r"\w+|[^\w\s]")


class Text(NamedTuple):
    """A source text, what people made of it, and the directory of what a model makes of it."""

    source: Path
    target: Path
    out: Path


def command(
    model: Annotated[str, typer.Option(metavar="NAME|DIR", help="The model that translates.")],
    source: Annotated[Path, typer.Option(help="Text, one sentence per line.")],
    target: Annotated[Path, typer.Option(help="Its translation, line by line.")],
    out: steps.Out,
    beam: Annotated[int, typer.Option(min=1, help="Hypotheses of each line to choose from.")] = BEAM,
) -> None:
    """Write the hypotheses of a model that are nearest to the target text."""
    with lock_directory(out):
        provide_nearest([Text(source, target, out)], model, beam)
    steps.say(f"{out / 'target'}: {count_lines(out / 'target'):,} lines")


def provide_nearest(texts: Sequence[Text], model: str, beam: int = BEAM) -> None:
    """Write OUT/target of each text, unless it is there from the same text, model and beam."""
    cores, context = os.cpu_count() or 1, multiprocessing.get_context("spawn")  # CUDA cannot be used after a fork
    processes = max(1, min(MOST_PROCESSES_ON_GPU, cores // 2)) if find_device("auto") == "cuda" else 1
    made_by = {"model": model_hash(model), "beam": beam}
    left = [text for text in texts if not _is_done(text, made_by)]
    if not left:
        return
    with ProcessPoolExecutor(processes, context, _load, (model, beam, max(1, cores // processes))) as pool:
        parts = [_submit_parts(pool, text) for text in left]
        for text, under_way in zip(left, parts, strict=True):
            _join([each.result() for each in under_way], text.out)


def _is_done(text: Text, made_by: dict[str, Any]) -> bool:
    """Also removes what was made from something else."""
    made_from = made_by | {side: content_hash([getattr(text, side)]) for side in ("source", "target")}
    record = text.out / RECORD
    if not record.exists() or json.loads(record.read_bytes()) != made_from:
        for path in (text.out / "target", *text.out.glob("part-*")):
            path.unlink(missing_ok=True)
        with steps.replacing(record) as stream:
            stream.write(json.dumps(made_from, indent=1) + "\n")
    return (text.out / "target").exists()


def _submit_parts(pool: ProcessPoolExecutor, text: Text) -> "list[Future[Path]]":
    pairs, parts = _pairs(text), list[Future[Path]]()
    while own := list(itertools.islice(pairs, LINES_OF_PART)):
        parts.append(pool.submit(_provide_part, own, text.out / f"part-{len(parts):06d}"))
    return parts


def _pairs(text: Text) -> Iterator[tuple[str, str]]:
    """Of lines that cannot be used, the source is empty."""
    sides = itertools.zip_longest(*(read_lines(path) for path in (text.source, text.target)))
    for number, lines in enumerate(sides, start=1):
        if None in lines:
            raise DataError(f"{text.source}, {text.target}: one ends before line {number}; both need as many lines")
        source, target = lines
        yield ("", "") if source.problem or target.problem else (source.text, target.text)


def _join(parts: Sequence[Path], out: Path) -> None:
    with steps.replacing(out / "target") as stream:
        for part in parts:
            stream.write(part.read_text(encoding="utf-8"))
    for part in parts:
        part.unlink()


# In each process

_translator: Translator
_options: dict[str, Any]


def _load(model: str, beam: int, threads: int) -> None:
    global _translator, _options
    _translator = Translator.load(model, threads=threads)
    # what is kept as it is, and names, are right already in the text that people wrote
    own = {"beam": beam, "n_best": beam, "split": "sentences", "protect": (), "restore_names": False}
    _options = {**own, "threads": threads}


def _provide_part(pairs: Sequence[tuple[str, str]], place: Path) -> Path:
    if not place.exists():
        lines = [source for source, _ in pairs]
        results = _translator.stream([lines], options=_translator.options(**_options))
        with steps.replacing(place) as stream:
            for result, (_, target) in zip(results, pairs, strict=True):
                stream.write(nearest(result, target) + "\n")
    return place


def nearest(result: Translation, target: str) -> str:
    """The alternative that is nearest to the target text; of several, the best by the model."""
    if result.status not in ("translated", "split"):
        return ""
    wanted = _ngrams(target)
    return max((" ".join(each.text.split()) for each in result.alternatives), key=lambda text: gleu(text, wanted))


def gleu(text: str, wanted: "Counter[tuple[str, ...]]") -> float:
    """The share of n-grams in common, in what has more of them."""
    own = _ngrams(text)
    return (own & wanted).total() / max(own.total(), wanted.total(), 1)


def _ngrams(text: str) -> "Counter[tuple[str, ...]]":
    words = _WORD.findall(text)
    return Counter(
        tuple(words[first : first + length])
        for length in range(1, LONGEST_NGRAM + 1)
        for first in range(len(words) - length + 1)
    )


if __name__ == "__main__":
    steps.run_command(command)
