"""Decoding speed on a CPU: a model here and, with the same weights, in CTranslate2.

    python -m benchmarks.decode_cpu --input FILE [--model en-de] [--lines 192] [--batch 64] [--beam 4 1] [--shortlist]
        [--json]
    python -m benchmarks.decode_cpu --curve batch beam length vocabulary [--json]

Ours is `Translator.translate`, from text to text, with splitting, tokenization and detokenization. The peer gets
the pieces of the same lines; its tokenization is not counted. It runs twice, with all threads on each batch and with a
batch on each thread; the better counts. All systems run every setting in turns, and the best of `--repeats` times
counts. Also the share of equal lines, and steal time.

`--input` translates the lines of a file, and some one at a time. `--shortlist` adds rows in which
ours searches among the pieces of the model's shortlist.

`--curve` takes random weights in int8 and lines of invented words (benchmarks/random_models.py): a model of the bundled
model's layers with 16,000 pieces, batches of 32, beam 4, 26 tokens in and 32 out for every sentence. A curve varies one
of these; `length` is that of source and translation. Every system translates the same lines, a batch for each thread
and at least 8. Random weights have close decisions, which int8 changes at once: that both systems compute the same is
checked in float32, before the measurements. `--quick` tries out the program; its times mean nothing.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dragoman
from benchmarks.decoding import (
    OURS,
    Curves,
    Row,
    Setting,
    Task,
    Tokens,
    add_curve_options,
    by_vocabulary,
    measure,
    one_by_one,
    our_task,
    require_equal,
    require_length,
    translated_tokens,
)
from benchmarks.random_models import random_shape, save_random_model
from dragoman.decode.translator import Translator
from dragoman.interop import to_ctranslate2
from dragoman.text.tokenizer import Tokenizer

PEER = "CTranslate2"
ALONE = 24  # sentences translated one at a time
PRECISIONS = ("int8", "float32")
FEWEST = 8  # sentences of a measurement with a random model
CHECKED = 32  # sentences compared in float32
START = Setting(batch=32, beam=4, source=26, target=32, vocabulary=16_000)
VALUES = {
    "batch": (1, 4, 16, 64),
    "beam": (1, 2, 4, 8),
    "length": (8, 16, 32, 64, 128),
    "vocabulary": (8_000, 16_000, 32_000, 64_000),
}
QUICK_START = Setting(batch=4, beam=4, source=6, target=8, vocabulary=1_000)
QUICK_VALUES = {"batch": (1, 8), "beam": (1, 2), "length": (4, 8), "vocabulary": (500, 1_000)}


class CTranslate2:
    """An exported model in CTranslate2."""

    def __init__(self, folder: str, precision: str, threads: int, *, workers: bool) -> None:
        import ctranslate2

        self._threads, self._workers = threads, workers
        self._model = ctranslate2.Translator(
            folder, compute_type=precision, inter_threads=threads if workers else 1,
            intra_threads=1 if workers else threads,
        )  # fmt: skip

    def translate(self, pieces: list[list[str]], beam: int, batch: int, limit: int = 256) -> list[Any]:
        # a batch on each thread needs as many batches as threads
        size = min(batch, math.ceil(len(pieces) / self._threads)) if self._workers else batch
        found: list[Any] = self._model.translate_batch(
            pieces, beam_size=beam, max_batch_size=size, length_penalty=0.6, max_decoding_length=limit
        )
        return found


class Peers:
    """CTranslate2 in both ways to use threads."""

    def __init__(self, folder: str, precision: str, threads: int) -> None:
        self.systems = {
            PEER: CTranslate2(folder, precision, threads, workers=False),
            f"{PEER}, workers": CTranslate2(folder, precision, threads, workers=True),
        }

    def tasks(self, pieces: list[list[str]], *options: int) -> dict[str, Task]:
        """`options` are beam, batch size and, optionally, the limit of a translation."""
        return {
            name: Task(len(pieces), partial(system.translate, pieces, *options), best_hypotheses)
            for name, system in self.systems.items()
        }


def encode(tokenizer: Tokenizer, lines: Sequence[str]) -> list[list[str]]:
    """The pieces of each line; CTranslate2 adds </s>."""
    return [tokenizer.pieces(ids) for ids in tokenizer.encode_batch(lines)]


def best_hypotheses(results: Sequence[Any]) -> list[Tokens]:
    return [each.hypotheses[0] for each in results]


def stolen_share(before: list[int], after: list[int]) -> float:
    spent = [end - start for start, end in zip(before, after, strict=True)]
    return spent[7] / max(1, sum(spent))


def processor_times() -> list[int]:
    """Since the machine started; the eighth is what its host gave to others. Zeros except on Linux."""
    path = Path("/proc/stat")
    return [int(word) for word in path.read_text().split("\n")[0].split()[1:9]] if path.exists() else [0] * 8


# Text


def measure_text(arguments: argparse.Namespace) -> dict[str, Row]:
    lines = arguments.input.read_text(encoding="utf-8").rstrip("\n").split("\n")
    lines = lines[:: max(1, len(lines) // arguments.lines)][: arguments.lines]
    rows: dict[str, Row] = {}
    with tempfile.TemporaryDirectory() as parent:
        folder = str(Path(parent) / "exported")
        to_ctranslate2(arguments.model, folder, check=False)
        for precision in arguments.precision:
            translator = dragoman.load(arguments.model, "cpu", precision, threads=arguments.threads)
            print(f"{len(lines)} lines; {translator.choice.describe()}", flush=True)
            peers = Peers(folder, precision, arguments.threads)
            for beam in arguments.beam:
                plain = text_tasks(translator, peers, lines, beam, arguments.batch)
                short = text_tasks(translator, peers, lines, beam, arguments.batch, shortlist=True)
                for name, tasks in [*plain, *(short if arguments.shortlist else [])]:
                    key = f"{precision}, beam {beam}, {name}"
                    rows[key] = measure(tasks, arguments.repeats)
                    print(f"{key}: {rows[key].describe()}", flush=True)
    return rows


def text_tasks(
    translator: Translator,
    peers: Peers,
    lines: list[str],
    beam: int,
    batches: Sequence[int],
    *,
    shortlist: bool = False,
) -> Iterator[tuple[str, dict[str, Task]]]:
    """The name of every row and what the systems do for it."""
    ours: Callable[..., Any] = partial(translator.translate, beam=beam, split="long", shortlist=shortlist)
    suffix = ", shortlist" if shortlist else ""
    pieces = encode(translator.tokenizers.source, lines)
    for batch in batches:
        own = Task(len(lines), partial(ours, lines, batch_size=batch), translated_tokens)
        yield f"batch {batch}{suffix}", {OURS: own, **peers.tasks(pieces, beam, batch)}
    few = slice(None, None, max(1, len(lines) // ALONE))
    count = len(lines[few])
    own = Task(count, partial(one_by_one, ours, lines[few]), translated_tokens)
    theirs = {
        name: Task(
            count, partial(one_by_one, partial(system.translate, beam=beam, batch=1), pieces[few]), best_hypotheses
        )
        for name, system in peers.systems.items()  # the workers translate it on one thread
    }
    yield f"alone{suffix}", {OURS: own, **theirs}


# Random models


def measure_random(
    arguments: argparse.Namespace, settings: Sequence[Setting]
) -> tuple[dict[Setting, Row], dict[str, float]]:
    """The rows of these settings, and the share of equal sentences in float32, by beam."""
    rows: dict[Setting, Row] = {}
    equal: dict[str, float] = {}
    sizes = {} if arguments.quick else {"num_layers": 8, "decoder_num_layers": 2}
    for vocabulary, group in by_vocabulary(settings).items():
        with tempfile.TemporaryDirectory() as parent:
            model, folder = Path(parent) / "model", str(Path(parent) / "exported")
            save_random_model(model, random_shape("tiny" if arguments.quick else "base", vocabulary, **sizes))
            to_ctranslate2(model, folder, check=False)
            if not equal:
                tasks = random_tasks(model, folder, "float32", arguments.threads)
                for beam in arguments.beam:
                    setting = replace(group[0], beam=beam, batch=CHECKED)
                    share = measure(tasks(setting, CHECKED), 1).equal
                    assert share is not None
                    equal[f"beam {beam}"] = share
                    print(f"float32, {setting.describe()}: {share:.1%} of sentences equal", flush=True)
            tasks = random_tasks(model, folder, "int8", arguments.threads)
            for setting in group:
                measure(tasks(setting, FEWEST), 1)  # warms up
                sentences = max(FEWEST, arguments.threads * setting.batch)
                rows[setting] = measure(tasks(setting, sentences), arguments.repeats)
                print(f"{setting.describe()}: {rows[setting].describe()}", flush=True)
    return rows, equal


def random_tasks(model: Path, folder: str, precision: str, threads: int) -> Callable[[Setting, int], dict[str, Task]]:
    """What the systems do in a setting with so many sentences."""
    translator = dragoman.load(model, "cpu", precision, threads=threads)
    peers = Peers(folder, precision, threads)

    def tasks(setting: Setting, sentences: int) -> dict[str, Task]:
        pieces = encode(translator.tokenizers.source, setting.lines(sentences))
        theirs = peers.tasks(pieces, setting.beam, setting.batch, setting.target)
        checked = {name: replace(task, tokens=tokens(setting.target)) for name, task in theirs.items()}
        return {OURS: our_task(translator, setting, sentences), **checked}

    def tokens(length: int) -> Callable[[Any], list[Tokens]]:
        return lambda found: require_length(best_hypotheses(found), length)

    return tasks


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, help="text to translate with --model")
    parser.add_argument("--model", default="en-de")
    add_curve_options(parser)
    parser.add_argument("--lines", type=int, default=192, help="number of lines, spread over the input")
    parser.add_argument("--batch", type=int, nargs="+", default=[64], help="of --input")
    parser.add_argument("--beam", type=int, nargs="+", default=[4, 1], help="of --input")
    parser.add_argument("--precision", nargs="+", default=list(PRECISIONS), choices=PRECISIONS, help="of --input")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--shortlist", action="store_true", help="also with the model's shortlist")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.input is None and not arguments.curve:
        parser.error("nothing to measure: give --input or --curve")
    return arguments


def main() -> None:
    arguments = read_arguments()
    before = processor_times()
    rows = {} if arguments.input is None else measure_text(arguments)
    start, values = (QUICK_START, QUICK_VALUES) if arguments.quick else (START, VALUES)
    curves = Curves(start, values, arguments.curve)
    random_rows, equal = measure_random(arguments, curves.settings())
    ratios = {name: row.ratio for name, row in rows.items() if row.ratio is not None} | curves.ratios(random_rows)
    curves.print(random_rows)
    for name, ratio in ratios.items():
        print(f"{OURS} / {PEER}, {name}: {ratio:.2f}")
    stolen = stolen_share(before, processor_times())
    print(f"steal time: {stolen:.1%}")
    if arguments.json:
        from dragoman.training.reports.provenance import source_commit

        record = {
            "results": {name: row.to_dict() for name, row in rows.items()},
            "curves": curves.results(random_rows),
            "equal_in_float32": equal,
            "ratios": ratios,
            "stolen": stolen,
            "git_commit": source_commit(),
        }
        print(json.dumps(record))
    require_equal(equal)


if __name__ == "__main__":
    main()
