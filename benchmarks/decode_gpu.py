"""Decoding speed on one GPU: a model here and, with the same weights, in Hugging Face's `generate`.

    python -m benchmarks.decode_gpu --input FILE [--model en-de] [--batch 64 512 2048] [--beam 4 1] [--json]
    python -m benchmarks.decode_gpu --base --curve batch beam length vocabulary [--json]
    python -m benchmarks.decode_gpu --quick --device cpu --precision float32 --base --curve batch beam length vocabulary

Ours is `Translator.translate`, from text to text: splitting, tokenization and detokenization are included. The peer
gets the ids of the same pieces, sorted by length; its tokenization is not counted. Both run every setting twice, in
turns, and the better time counts. How many lines are equal is printed too.

`--input` translates the lines of a file, and some one at a time. In batches of 64 the peer gets `--peer-lines` only,
every n-th line: it would take minutes otherwise.

`--base` and `--curve` take random weights and lines of invented words (benchmarks/random_models.py): the base model
with 32,000 pieces, 26 tokens in and 32 out for every sentence. A curve varies one of batch size (512), beam (4), length
of source and translation, and vocabulary. The peer translates one batch, ours as many batches as take about a second,
in one call. What comes before the first measurement, such as the capture of CUDA graphs, is not counted. Random weights
have close decisions, which bfloat16 changes at once: that both systems compute the same is checked in float32, before
the measurements.

`--device cpu` and `--quick` try out the program; their times mean nothing.
"""

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

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
from dragoman.bundle import Bundle, load_bundle
from dragoman.decode.translator import Translator
from dragoman.device import choose_device
from dragoman.interop import to_huggingface
from dragoman.text.tokenizer import Tokenizer

PEER = "Hugging Face"
ALONE = 20  # sentences translated one at a time
SMALL_BATCH = 64
CHECKED = 64  # sentences compared in float32
START = Setting(batch=512, beam=4, source=26, target=32, vocabulary=32_000)
VALUES = {
    "batch": (1, 4, 16, 64, 256, 1024, 4096),
    "beam": (1, 2, 4, 8),
    "length": (8, 16, 32, 64, 128),
    "vocabulary": (8_000, 16_000, 32_000, 64_000),
}
QUICK_START = Setting(batch=4, beam=4, source=6, target=8, vocabulary=1_000)
QUICK_VALUES = {"batch": (1, 8), "beam": (1, 2), "length": (4, 8), "vocabulary": (500, 1_000)}


class HuggingFace:
    """An exported model in MarianMTModel.generate. Sources are ids that end in </s>."""

    def __init__(self, model: str | Path, device: torch.device, precision: str) -> None:
        from transformers import MarianMTModel
        from transformers.utils import logging

        logging.disable_progress_bar()
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "exported"
            to_huggingface(model, out, check=False)
            loaded: Any = MarianMTModel.from_pretrained(out, dtype=getattr(torch, precision))
        self._model, self._device = loaded.to(device).eval(), device
        self._model.generation_config.suppress_tokens = None  # it hardly predicts them; checking takes time

    @torch.inference_mode()
    def translate(
        self, sources: Sequence[Sequence[int]], beam: int, batch: int, limit: int | None = None
    ) -> list[list[int]]:
        """The ids of translations, in the order of the sources; at most `limit` each."""
        config = self._model.config
        special = (config.pad_token_id, config.bos_token_id, config.eos_token_id)
        order = sorted(range(len(sources)), key=lambda number: len(sources[number]))
        found: dict[int, list[int]] = {}
        for first in range(0, len(order), batch):
            numbers = order[first : first + batch]
            longest = max(len(sources[number]) for number in numbers)
            rows = torch.full((len(numbers), longest), config.pad_token_id)
            for row, number in enumerate(numbers):
                rows[row, : len(sources[number])] = torch.tensor(sources[number])
            rows = rows.to(self._device)
            output = self._model.generate(
                input_ids=rows, attention_mask=rows != config.pad_token_id, num_beams=beam, do_sample=False,
                max_new_tokens=limit or longest + 50, length_penalty=0.6 if beam > 1 else 1.0,
            )  # fmt: skip
            for number, row in zip(numbers, output.tolist(), strict=True):
                found[number] = [token for token in row if token not in special]
        return [found[number] for number in range(len(sources))]


def encode(tokenizer: Tokenizer, lines: Sequence[str]) -> list[list[int]]:
    return [[*ids, tokenizer.vocabulary.eos] for ids in tokenizer.encode_batch(lines)]


def pieces(tokenizer: Tokenizer, rows: Iterable[Sequence[int]]) -> list[Tokens]:
    return [tokenizer.pieces(row) for row in rows]


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# Text


def measure_text(arguments: argparse.Namespace, device: torch.device) -> dict[str, Row]:
    lines = arguments.input.read_text(encoding="utf-8").rstrip("\n").split("\n")
    translator = dragoman.load(arguments.model, arguments.device, arguments.precision)
    print(f"{len(lines)} lines; {translator.choice.describe()}", flush=True)
    peer = None if arguments.no_peer else HuggingFace(arguments.model, device, arguments.precision)
    rows: dict[str, Row] = {}
    for beam in arguments.beam:
        for name, tasks in text_tasks(arguments, translator, peer, lines, beam):
            rows[f"beam {beam}, {name}"] = row = measure(tasks, arguments.repeats, partial(wait_for, device))
            print(f"beam {beam}, {name}: {row.describe()}", flush=True)
    return rows


def text_tasks(
    arguments: argparse.Namespace, translator: Translator, peer: HuggingFace | None, lines: list[str], beam: int
) -> Iterator[tuple[str, dict[str, Task]]]:
    """The name of every row and what the systems do for it."""
    source, target = translator.tokenizers.source, translator.tokenizers.target
    step = -(-len(lines) // arguments.peer_lines)
    ours: Callable[..., Any] = partial(translator.translate, beam=beam, split="long")
    for batch in arguments.batch:
        some = lines if batch > SMALL_BATCH else lines[::step]
        text = lines * arguments.copies if batch > SMALL_BATCH else some
        tasks = {OURS: Task(len(text), partial(ours, text, batch_size=batch), translated_tokens)}
        if peer is not None:
            work = partial(peer.translate, encode(source, some), beam, batch)
            tasks[PEER] = Task(len(some), work, partial(pieces, target))
        yield f"batch {batch}", tasks
    few = lines[:ALONE]
    tasks = {OURS: Task(len(few), partial(one_by_one, ours, few), translated_tokens)}
    if peer is not None:
        work = partial(one_by_one, partial(peer.translate, beam=beam, batch=1), encode(source, few))
        tasks[PEER] = Task(len(few), work, partial(pieces, target))
    yield "alone", tasks


def best_batch_ratios(rows: dict[str, Row], beams: Sequence[int]) -> dict[str, float]:
    """Our speed at our best batch size divided by the peer's at its own."""
    ratios = {}
    for beam in beams:
        speeds = [row.speeds for name, row in rows.items() if name.startswith(f"beam {beam}, batch")]
        if speeds and all(PEER in each for each in speeds):
            best = {system: max(each[system] for each in speeds) for system in (OURS, PEER)}
            ratios[f"beam {beam}, each at its best batch"] = best[OURS] / best[PEER]
    return ratios


# Random models


class RandomModel:
    """A random model of one vocabulary, in both systems."""

    def __init__(self, arguments: argparse.Namespace, device: torch.device, vocabulary: int, folder: str) -> None:
        self._arguments, self._device, self._folder = arguments, device, Path(folder)
        save_random_model(self._folder, random_shape("tiny" if arguments.quick else "base", vocabulary))
        self._bundle: Bundle = load_bundle(self._folder)
        self._peer = None if arguments.no_peer else self._load_peer(arguments.precision)

    def _load_peer(self, precision: str) -> HuggingFace:
        return HuggingFace(self._folder, self._device, precision)

    def measure(self, setting: Setting) -> Row:
        # a new one for each setting: the caches of other settings would take the peer's memory
        translator = Translator(self._bundle, self._device, self._arguments.precision)
        ours = self._long_task(translator, setting)
        ours.work()
        tasks = {OURS: ours}
        if self._peer is not None:
            tasks[PEER] = self._peer_task(self._peer, setting, setting.batch)
        row = measure(tasks, self._arguments.repeats, partial(wait_for, self._device))
        del translator, ours, tasks
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return row

    def _long_task(self, translator: Translator, setting: Setting) -> Task:
        """As many batches as take about `--seconds`."""
        once = our_task(translator, setting, setting.batch)
        once.work()  # compiles kernels, captures a graph
        started = time.perf_counter()
        once.work()
        batches = max(1, round(self._arguments.seconds / (time.perf_counter() - started)))
        return our_task(translator, setting, batches * setting.batch)

    def _peer_task(self, peer: HuggingFace, setting: Setting, sentences: int) -> Task:
        tokenizer = self._bundle.tokenizers.source
        sources = encode(tokenizer, setting.lines(sentences))
        return Task(
            sentences,
            partial(peer.translate, sources, setting.beam, setting.batch, setting.target),
            lambda found: require_length(pieces(tokenizer, found), setting.target),
        )

    def equal_in_float32(self, setting: Setting, beams: Sequence[int]) -> dict[str, float]:
        """The share of sentences with equal tokens in both systems, by beam."""
        translator, peer = Translator(self._bundle, self._device, "float32"), self._load_peer("float32")
        shares: dict[str, float] = {}
        for beam in beams:
            checked = replace(setting, batch=CHECKED, beam=beam)
            tasks = {OURS: our_task(translator, checked, CHECKED), PEER: self._peer_task(peer, checked, CHECKED)}
            share = measure(tasks, 1).equal
            assert share is not None
            print(f"float32, {checked.describe()}: {share:.1%} of sentences equal", flush=True)
            shares[f"beam {beam}"] = share
        return shares


def measure_random(
    arguments: argparse.Namespace, device: torch.device, settings: Sequence[Setting]
) -> tuple[dict[Setting, Row], dict[str, float]]:
    """The rows of these settings, and the share of equal sentences in float32, by beam."""
    rows: dict[Setting, Row] = {}
    equal: dict[str, float] = {}
    for vocabulary, group in by_vocabulary(settings).items():
        with tempfile.TemporaryDirectory() as folder:
            model = RandomModel(arguments, device, vocabulary, folder)
            if not equal and not arguments.no_peer:
                equal = model.equal_in_float32(group[0], arguments.beam)
            for setting in group:
                rows[setting] = model.measure(setting)
                print(f"{setting.describe()}: {rows[setting].describe()}", flush=True)
    return rows, equal


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, help="text to translate with --model")
    parser.add_argument("--model", default="en-de")
    parser.add_argument("--base", action="store_true", help="the base model with random weights")
    add_curve_options(parser)
    parser.add_argument("--batch", type=int, nargs="+", help="of --input and --base  [default: 64 512 2048]")
    parser.add_argument("--beam", type=int, nargs="+", default=[4, 1], help="of --input and --base")
    parser.add_argument("--copies", type=int, default=8, help="how often our side gets the text, to run for a while")
    parser.add_argument("--peer-lines", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a measurement of ours with a random model")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.input is None and not arguments.base and not arguments.curve:
        parser.error("nothing to measure: give --input, --base or --curve")
    arguments.batch = arguments.batch or ([2, 8] if arguments.quick else [64, 512, 2048])
    if arguments.quick:
        arguments.seconds = 0.05
    return arguments


def main() -> None:
    arguments = read_arguments()
    device = choose_device(arguments.device)
    text_rows = {} if arguments.input is None else measure_text(arguments, device)
    start, values = (QUICK_START, QUICK_VALUES) if arguments.quick else (START, VALUES)
    base = {
        f"base, beam {beam}, batch {batch}": replace(start, batch=batch, beam=beam)
        for beam in (arguments.beam if arguments.base else [])
        for batch in arguments.batch
    }
    curves = Curves(start, values, arguments.curve)
    random_rows, equal = measure_random(arguments, device, [*base.values(), *curves.settings()])
    rows = text_rows | {name: random_rows[setting] for name, setting in base.items()}
    ratios = {name: row.ratio for name, row in rows.items() if row.ratio is not None}
    ratios |= best_batch_ratios(text_rows, arguments.beam) | curves.ratios(random_rows)
    curves.print(random_rows)
    for name, ratio in ratios.items():
        print(f"{OURS} / {PEER}, {name}: {ratio:.2f}")
    if arguments.json:
        from dragoman.training.reports.provenance import source_commit

        record = {
            "results": {name: row.to_dict() for name, row in rows.items()},
            "curves": curves.results(random_rows),
            "equal_in_float32": equal,
            "ratios": ratios,
            "git_commit": source_commit(),
        }
        print(json.dumps(record))
    require_equal(equal)


if __name__ == "__main__":
    main()
