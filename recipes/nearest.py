"""Training targets in a model's own words: of its hypotheses for each line, the one nearest to what people wrote.

    python recipes/nearest.py --model NAME|DIR --source F --target F --out DIR [--beam 8]

Kim & Rush (2016) call this sequence-level interpolation: a model's own words are easier to learn than people's, and the
choice keeps them close to the corpus. The nearest hypothesis has most n-grams of words in common with the target text
(GLEU, Wu et al. 2016).

Writes DIR/target, to be listed beside the source in `data.target`: line N translates line N, and is empty where a side
is blank or invalid, or the translation incomplete. Run the same command again to resume.
"""

import itertools
import json
import multiprocessing
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import steps
import typer

from dragoman import DataError, Translator, __version__
from dragoman.data.corpus import content_hash, count_lines, read_lines
from dragoman.decode.bulk import model_hash
from dragoman.decode.translation import Translation
from dragoman.files import lock_directory
from dragoman.machine import find_device
from dragoman.text.normalize import is_blank

BEAM = 8
LINES_OF_PART = 16_384  # each process loses at most so many when it is killed
LONGEST_NGRAM = 4  # words
MOST_PROCESSES_ON_GPU = 8  # that share one, so that it does not wait for one that compares hypotheses
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
    made_by = {"model": model_hash(model), "version": __version__, "beam": beam, "lines_of_part": LINES_OF_PART}
    missing = [text for text in texts if not _is_done(text, made_by)]
    if not missing:
        return
    context = multiprocessing.get_context("spawn")  # CUDA cannot be used after a fork
    devices, queue = _devices(), context.SimpleQueue()
    for device in devices:
        queue.put(device)
    threads = max(1, (os.cpu_count() or 1) // len(devices))
    with ProcessPoolExecutor(len(devices), context, _load, (model, queue, beam, threads)) as pool:
        try:
            parts = [_submit_parts(pool, text) for text in missing]
            for text, futures in zip(missing, parts, strict=True):
                _join([each.result() for each in futures], text.out)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # else all parts are translated before it is reported
            raise


def _devices() -> list[str]:
    """One for each process: on a CPU, the search has threads."""
    if find_device("auto") != "cuda":
        return ["cpu"]
    import torch

    gpus = torch.cuda.device_count()
    count = max(1, min(MOST_PROCESSES_ON_GPU, (os.cpu_count() or 1) // 2 // gpus))
    return [f"cuda:{number % gpus}" for number in range(count * gpus)]


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
    while part := list(itertools.islice(pairs, LINES_OF_PART)):
        parts.append(pool.submit(_provide_part, part, text.out / f"part-{len(parts):06d}"))
    return parts


def _pairs(text: Text) -> Iterator[tuple[str, str]]:
    """Both are empty where one cannot be used."""
    sides = itertools.zip_longest(*(read_lines(path) for path in (text.source, text.target)))
    for number, lines in enumerate(sides, start=1):
        if None in lines:
            raise DataError(f"{text.source}, {text.target}: one ends before line {number}; both need as many lines")
        source, target = lines
        is_usable = not (source.problem or target.problem or is_blank(target.text))
        yield (source.text, target.text) if is_usable else ("", "")


def _join(parts: Sequence[Path], out: Path) -> None:
    with steps.replacing(out / "target") as stream:
        for part in parts:
            stream.write(part.read_text(encoding="utf-8"))
    for part in parts:
        part.unlink()


# In each process

_translator: Translator
_options: dict[str, Any]


def _load(model: str, devices: "SimpleQueue[str]", beam: int, threads: int) -> None:
    global _translator, _options
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends the others
    _translator = Translator.load(model, devices.get(), threads=threads)
    _options = {"beam": beam, "n_best": beam, "split": "sentences", "protect": (), "threads": threads}


def _provide_part(pairs: Sequence[tuple[str, str]], place: Path) -> Path:
    if not place.exists():
        lines = [source for source, _ in pairs]
        results = _translator.stream([lines], options=_translator.options(**_options))
        with steps.replacing(place) as stream:
            for result, (_, target) in zip(results, pairs, strict=True):
                stream.write(choose_nearest(result, target) + "\n")
    return place


def choose_nearest(result: Translation, target: str) -> str:
    """Return the alternative that is nearest to the target text; among equals, the model's best."""
    if result.status not in ("translated", "split"):
        return ""
    ngrams = _ngrams(target)
    return max((" ".join(each.text.split()) for each in result.alternatives), key=lambda text: gleu(text, ngrams))


def gleu(text: str, reference: "Counter[tuple[str, ...]]") -> float:
    """The n-grams in common with the reference, as a share of those of the longer one."""
    ngrams = _ngrams(text)
    return (ngrams & reference).total() / max(ngrams.total(), reference.total(), 1)


def _ngrams(text: str) -> "Counter[tuple[str, ...]]":
    words = _WORD.findall(text)
    return Counter(
        tuple(words[first : first + length])
        for length in range(1, LONGEST_NGRAM + 1)
        for first in range(len(words) - length + 1)
    )


if __name__ == "__main__":
    steps.run_command(command)
