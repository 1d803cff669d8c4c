"""The corpora of English and German that the bundled models learn from, in both directions."""

import itertools
import json
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import hardening
import nearest
import steps

from dragoman import DragomanError
from dragoman.cli.words import list_words
from dragoman.data.corpus import read_lines
from dragoman.decode.names import find_names
from dragoman.machine import find_device
from dragoman.text.words import KnownWords, WordList

LANGUAGES = ("en", "de")
DIRECTIONS = ("en-de", "de-en")
EVERYDAY = "tatoeba-en-de/train"
TEXTS = (*(f"europarl-en-de/train.{part}of4" for part in (1, 2, 3, 4)), EVERYDAY)
EPOCHS_OF_EVERYDAY = 6  # in one of the rest: they are a tenth of the pairs, and a thirtieth of the words
VALIDATION = "europarl-en-de/valid"
VALIDATION_OF_EVERYDAY = "tatoeba-en-de/valid"
TESTS = ("europarl-en-de/test", "tatoeba-en-de/test", "newstest2014-en-de/test")
FOLDER = "$DRAGOMAN_DATA"  # in the settings of a training
FRESH = multiprocessing.get_context("spawn")  # forking would copy locks that other threads hold
MOST_WORKERS = 4  # that translate on one GPU, which would otherwise wait for the host that prepares its lines
CORES_OF_WORKER = 4


class Pairs(NamedTuple):
    """Files of pairs: line N of one belongs to line N of the other."""

    source: list[str]
    target: list[str]

    def swapped(self) -> "Pairs":
        return Pairs(self.target, self.source)

    def with_pairs(self, *others: "Pairs") -> "Pairs":
        both = [self, *others]
        return Pairs([name for each in both for name in each.source], [name for each in both for name in each.target])


def pairs_of(names: Sequence[str], data: Path, direction: str, folder: str = "") -> Pairs:
    """Files of corpora, as paths below `folder` or the data, compressed or not."""
    files = [_files(name, data, folder or str(data)) for name in names]
    sides = {code: [each[code] for each in files] for code in LANGUAGES}
    source, target = direction.split("-")
    return Pairs(sides[source], sides[target])


def _files(name: str, data: Path, folder: str) -> dict[str, str]:
    """By language; one that is not there is reported by what reads it."""
    suffixes = ("", ".bz2", ".xz", ".gz")
    return {
        code: f"{folder}/{name}.{code}"
        + next((suffix for suffix in suffixes if (data / f"{name}.{code}{suffix}").exists()), "")
        for code in LANGUAGES
    }


def repeat_everyday(pairs: Pairs, times: int = EPOCHS_OF_EVERYDAY) -> Pairs:
    """Pairs of TEXTS, with the everyday sentences as often as they count."""
    return Pairs(*([*names, *names[-1:] * (times - 1)] for names in pairs))


def harden(pairs: Pairs, direction: str, out: Path, share: float) -> Pairs:
    """Pairs made of each text by itself, at the same time; what is there is not made again."""
    source, target = direction.split("-")
    places = [out / name for name in _names(len(pairs.source))]
    with ProcessPoolExecutor(mp_context=FRESH) as pool:
        work = [
            pool.submit(hardening.provide_pairs, [one], [other], hardening.Languages(source, target), place, share)
            for one, other, place in zip(*pairs, places, strict=True)
        ]
        for each in work:
            each.result()
    return Pairs([str(place / "source") for place in places], [str(place / "target") for place in places])


def translate(model: str | Path, texts: Sequence[str], out: Path, beam: int | None) -> Pairs:
    """Texts and their translations, line by line; what is there is not translated again (docs/bulk.md)."""
    names = [f"{name}.txt" for name in _names(len(texts))]
    for text, name in zip(texts, names, strict=True):
        with steps.replacing(out / "source" / name) as stream:
            stream.writelines(f"{line.text}\n" for line in read_lines(Path(text)))
    # Of several sentences at once, a model that learned from single ones drops some.
    options = ["--beam", beam or 4, "--split", "sentences", "--protect", "none"]
    options += _workers()
    folders = ["-i", out / "source", "-o", out / "translated"]
    steps.run_dragoman("translate", "--model", model, *folders, *options, may_fail_lines=True)
    for name in names:  # a command that failed as a whole has not written all
        if not (out / "translated" / name).exists():
            raise DragomanError(f"{out / 'translated' / name}: is missing; the message of the command is above")
    return Pairs(*([str(out / side / name) for name in names] for side in ("source", "translated")))


def _workers() -> list[Any]:
    """Several for each GPU; on a CPU, one, which has threads."""
    if find_device("auto") != "cuda":
        return []
    import torch

    gpus = torch.cuda.device_count()
    return ["--workers", gpus * max(1, min(MOST_WORKERS, (os.cpu_count() or 1) // gpus // CORES_OF_WORKER))]


def provide_nearest(model: str | Path, pairs: Pairs, out: Path, beam: int = nearest.BEAM) -> list[str]:
    """Files with the hypotheses of a model that are nearest to the target text, line by line (nearest.py)."""
    texts = [
        nearest.Text(Path(source), Path(target), out / name)
        for source, target, name in zip(*pairs, _names(len(pairs.source)), strict=True)
    ]
    nearest.provide_nearest(texts, str(model), beam)
    return [str(text.out / "target") for text in texts]


def drop_lost_names(texts: Sequence[str], translations: Sequence[str], known: KnownWords, out: Path) -> list[str]:
    """Copies of the translations, blank where a rare name of the text is missing: they would teach to write another."""
    places = [out / f"{name}.txt" for name in _names(len(texts))]
    with ProcessPoolExecutor(mp_context=FRESH) as pool:
        list(pool.map(_drop_lost_names, texts, translations, itertools.repeat(known), places))
    return [str(place) for place in places]


def _drop_lost_names(text: str, translation: str, known: KnownWords, place: Path) -> None:
    lines = zip(read_lines(Path(text)), read_lines(Path(translation)), strict=True)
    with steps.replacing(place) as stream:
        for own, made in lines:
            stream.write("\n" if has_lost_names(own.text, made.text, known) else f"{made.text}\n")


def has_lost_names(text: str, translation: str, known: KnownWords) -> bool:
    """Whether a translation lacks a name that the training text hardly has; not at the start of a sentence, where any
    word has a capital."""
    names = find_names(text, known)
    if names is None:
        return False
    return any(name.lower() not in translation.lower() for name in {*names.unknown} - names.doubtful)


def _names(count: int) -> list[str]:
    """Of what is made from so many texts, of which the last is the everyday one."""
    return [f"{place}-{'everyday' if place == count - 1 else 'europarl'}" for place in range(count)]


def words_of(language: str, data: Path) -> WordList:
    """The words of the training text in a language."""
    return list_words([Path(_files(name, data, str(data))[language]) for name in TEXTS])


def data_settings(learned: Pairs, data: Path, direction: str, tests: Sequence[str] = TESTS) -> list[str]:
    """The settings of a training on these pairs, with the validation and test sets of a direction."""
    held_out = {"valid_": [VALIDATION], "test_": tests}
    files = {"": learned} | {kind: pairs_of(names, data, direction, FOLDER) for kind, names in held_out.items()}
    sides = ((kind + side, names) for kind, pairs in files.items() for side, names in pairs._asdict().items())
    return [f"data.{name}={json.dumps(names)}" for name, names in sides]
