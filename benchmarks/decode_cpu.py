"""Decoding speed on a CPU: a model here and, with the same weights, in CTranslate2.

    python -m benchmarks.decode_cpu --input FILE [--model en-de] [--lines 192] [--batch 64] [--beam 4 1] [--shortlist]
        [--json]

Ours is `Translator.translate`, from text to text, with splitting, tokenization and detokenization. The peer gets
the pieces of the same lines; its tokenization is not counted. It runs twice, with all threads on each batch and with a
batch on each thread; the better counts. All systems run every setting in turns, and the best of `--repeats` times
counts. Also one sentence at a time, the share of equal lines, and steal time. With `--shortlist`, ours runs a second
time with the model's shortlist; its ratio to ours without it is printed apart.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import dragoman
from dragoman.decode.translator import Translation, Translator

ALONE = 24  # sentences translated one at a time
PRECISIONS = ("int8", "float32")
OURS, SHORTLIST, PEER = "dragoman", "dragoman, shortlist", "CTranslate2"


class CTranslate2:
    """The exported model in CTranslate2."""

    def __init__(self, folder: str, translator: Translator, precision: str, threads: int, *, workers: bool) -> None:
        import ctranslate2

        self._source, self._target = translator.tokenizers.source, translator.tokenizers.target
        self._threads, self._workers = threads, workers
        self._model = ctranslate2.Translator(
            folder, compute_type=precision, inter_threads=threads if workers else 1,
            intra_threads=1 if workers else threads,
        )  # fmt: skip

    def pieces(self, lines: Sequence[str]) -> list[list[str]]:
        return [[*self._source.pieces(ids), "</s>"] for ids in self._source.encode_batch(lines)]

    def translate(self, pieces: list[list[str]], beam: int, batch: int) -> list[Any]:
        # a batch on each thread needs as many batches as threads
        size = min(batch, math.ceil(len(pieces) / self._threads)) if self._workers else batch
        found: list[Any] = self._model.translate_batch(
            pieces, beam_size=beam, max_batch_size=size, length_penalty=0.6, max_decoding_length=256
        )
        return found


def stolen_share(before: list[int], after: list[int]) -> float:
    spent = [end - start for start, end in zip(before, after, strict=True)]
    return spent[7] / max(1, sum(spent))


def processor_times() -> list[int]:
    """Since the machine started; the eighth is what its host gave to others. Zeros except on Linux."""
    path = Path("/proc/stat")
    return [int(word) for word in path.read_text().split("\n")[0].split()[1:9]] if path.exists() else [0] * 8


def best_times(systems: dict[str, Callable[[], Any]], repeats: int) -> tuple[dict[str, float], dict[str, Any]]:
    """The shortest of `repeats` runs of each, in turns, and the last result."""
    times: dict[str, list[float]] = {name: [] for name in systems}
    results: dict[str, Any] = {}
    for _ in range(repeats):
        for name, work in systems.items():
            started = time.perf_counter()
            results[name] = work()
            times[name].append(time.perf_counter() - started)
    return {name: min(each) for name, each in times.items()}, results


def one_by_one(translate: Callable[[Any], list[Any]], items: Sequence[Any]) -> list[Any]:
    return [result for item in items for result in translate([item])]


def equal_lines(ours: Sequence[Translation], theirs: Sequence[Any]) -> int:
    texts = [tuple(piece for piece in each.tokens if piece != "</s>") for each in ours]
    return sum(text == tuple(each.hypotheses[0]) for text, each in zip(texts, theirs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--model", default="en-de")
    parser.add_argument("--lines", type=int, default=192, help="number of lines, spread over the input")
    parser.add_argument("--batch", type=int, nargs="+", default=[64])
    parser.add_argument("--beam", type=int, nargs="+", default=[4, 1])
    parser.add_argument("--precision", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--shortlist", action="store_true", help="also with the model's shortlist")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    threads, before = arguments.threads, processor_times()
    lines = arguments.input.read_text(encoding="utf-8").rstrip("\n").split("\n")
    lines = lines[:: max(1, len(lines) // arguments.lines)][: arguments.lines]
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as parent:
        folder = str(Path(parent) / "exported")
        words = ("export", "--model", arguments.model, "--to", "ctranslate2", "--no-check", folder)
        subprocess.run([sys.executable, "-m", "dragoman", *words], check=True, stdout=subprocess.DEVNULL)
        for precision in arguments.precision:
            translator = dragoman.load(arguments.model, "cpu", precision, threads=threads)
            print(f"{len(lines)} lines; {translator.choice.describe()}", flush=True)
            together = CTranslate2(folder, translator, precision, threads, workers=False)
            apart = CTranslate2(folder, translator, precision, threads, workers=True)
            pieces = together.pieces(lines)
            for beam in arguments.beam:
                ours: Callable[..., Any] = partial(translator.translate, beam=beam, split="long")
                rows: dict[str, dict[str, Callable[[], Any]]] = {}
                for batch in arguments.batch:
                    rows[f"batch {batch}"] = {
                        OURS: partial(ours, lines, batch_size=batch),
                        PEER: partial(together.translate, pieces, beam, batch),
                        f"{PEER}, workers": partial(apart.translate, pieces, beam, batch),
                    }
                    if arguments.shortlist:
                        rows[f"batch {batch}"][SHORTLIST] = partial(ours, lines, batch_size=batch, shortlist=True)
                few = slice(None, None, max(1, len(lines) // ALONE))
                rows["alone"] = {
                    OURS: partial(one_by_one, ours, lines[few]),
                    PEER: partial(one_by_one, partial(together.translate, beam=beam, batch=1), pieces[few]),
                }
                if arguments.shortlist:
                    rows["alone"][SHORTLIST] = partial(one_by_one, partial(ours, shortlist=True), lines[few])
                for name, systems in rows.items():
                    count = len(lines[few]) if name == "alone" else len(lines)
                    times, found = best_times(systems, arguments.repeats)
                    key = f"{precision}, beam {beam}, {name}"
                    results[key] = {system: count / seconds for system, seconds in times.items()}
                    results[key]["equal lines"] = equal_lines(found[OURS], found[PEER]) / count
                    if arguments.shortlist:
                        changed = sum(a.text != b.text for a, b in zip(found[OURS], found[SHORTLIST], strict=True))
                        results[key]["lines that the shortlist changes"] = changed / count
                    print(key, {system: round(value, 2) for system, value in results[key].items()}, flush=True)
    ratios = {
        name: row[OURS] / max(speed for system, speed in row.items() if system.startswith(PEER))
        for name, row in results.items()
    }
    for name, ratio in ratios.items():
        print(f"{OURS} / {PEER}, {name}: {ratio:.2f}")
    for name, row in results.items():
        if SHORTLIST in row:
            print(f"{SHORTLIST} / {OURS}, {name}: {row[SHORTLIST] / row[OURS]:.2f}")
    stolen = stolen_share(before, processor_times())
    print(f"steal time: {stolen:.1%}")
    if arguments.json:
        from dragoman.training.reports.provenance import source_commit

        record = {"results": results, "ratios": ratios, "stolen": stolen, "git_commit": source_commit()}
        print(json.dumps(record))


if __name__ == "__main__":
    main()
