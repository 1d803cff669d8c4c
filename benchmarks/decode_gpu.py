"""Decoding speed on one GPU: a model here and, with the same weights, in Hugging Face's `generate`.

    python -m benchmarks.decode_gpu --input FILE [--model en-de] [--batch 64 512 2048] [--beam 4 1] [--json]

Ours is `Translator.translate` on the lines of a file, from text to text: splitting, tokenization and detokenization are
included. The peer gets the ids of the same pieces, sorted by length, in bfloat16; its tokenization is not counted. Both
run every setting twice, in turns, and the better time counts. In batches of 64 the peer gets `--peer-lines` only, every
n-th line: it would take minutes otherwise. Also one sentence at a time, and how many lines are equal.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import dragoman
from dragoman.decode.translator import Translator

ALONE = 20  # sentences translated one at a time
SMALL_BATCH = 64


def clock(work: Callable[[], Any]) -> tuple[Any, float]:
    torch.cuda.synchronize()
    started = time.perf_counter()
    result = work()
    torch.cuda.synchronize()
    return result, time.perf_counter() - started


class HuggingFace:
    """The exported model in MarianMTModel.generate."""

    def __init__(self, model: str, translator: Translator) -> None:
        from transformers import MarianMTModel

        self._translator = translator
        with tempfile.TemporaryDirectory() as folder:
            out = str(Path(folder) / "exported")
            words = ("export", "--model", model, "--to", "huggingface", "--no-check", out)
            subprocess.run([sys.executable, "-m", "dragoman", *words], check=True, stdout=subprocess.DEVNULL)
            loaded: Any = MarianMTModel.from_pretrained(out, dtype=torch.bfloat16)
        self._model = loaded.cuda().eval()
        self._model.generation_config.suppress_tokens = None  # it hardly predicts them; checking takes time

    @torch.inference_mode()
    def translate(self, sources: Sequence[Sequence[int]], beam: int, batch: int) -> list[list[int]]:
        """The ids of translations, in the order of the sources."""
        ids, pad = self._translator.tokenizers.target.vocabulary, self._model.config.pad_token_id
        order = sorted(range(len(sources)), key=lambda number: len(sources[number]))
        found: dict[int, list[int]] = {}
        for first in range(0, len(order), batch):
            numbers = order[first : first + batch]
            longest = max(len(sources[number]) for number in numbers)
            rows = torch.full((len(numbers), longest), pad)
            for row, number in enumerate(numbers):
                rows[row, : len(sources[number])] = torch.tensor(sources[number])
            rows = rows.cuda()
            output = self._model.generate(
                input_ids=rows, attention_mask=rows != pad, num_beams=beam, do_sample=False,
                max_new_tokens=longest + 50, length_penalty=0.6 if beam > 1 else 1.0,
            )  # fmt: skip
            for number, row in zip(numbers, output.tolist(), strict=True):
                found[number] = [token for token in row if token not in (pad, ids.bos, ids.eos)]
        return [found[number] for number in range(len(sources))]


def pieces_of(translator: Translator, lines: Sequence[str]) -> list[list[int]]:
    return [
        [*ids, translator.tokenizers.source.vocabulary.eos] for ids in translator.tokenizers.source.encode_batch(lines)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--model", default="en-de")
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 512, 2048])
    parser.add_argument("--beam", type=int, nargs="+", default=[4, 1])
    parser.add_argument("--copies", type=int, default=8, help="how often our side gets the text, to run for a while")
    parser.add_argument("--peer-lines", type=int, default=2048)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    lines = arguments.input.read_text(encoding="utf-8").rstrip("\n").split("\n")
    translator = dragoman.load(arguments.model, "cuda")
    print(f"{len(lines)} lines; {translator.choice.describe()}", flush=True)
    step = -(-len(lines) // arguments.peer_lines)
    peer = None if arguments.no_peer else HuggingFace(arguments.model, translator)
    results: dict[str, dict[str, float]] = {}
    for beam in arguments.beam:
        for batch in arguments.batch:
            some = lines if batch > SMALL_BATCH else lines[::step]
            sources = pieces_of(translator, some)
            text = lines * arguments.copies if batch > SMALL_BATCH else some
            times: dict[str, list[float]] = {"dragoman": [], "Hugging Face": []}
            for _ in range(2):
                _, seconds = clock(lambda: translator.translate(text, beam=beam, batch_size=batch, split="long"))  # noqa: B023
                times["dragoman"].append(seconds / len(text))
                if peer is not None:
                    output, seconds = clock(lambda: peer.translate(sources, beam, batch))  # noqa: B023
                    times["Hugging Face"].append(seconds / len(some))
            name = f"beam {beam}, batch {batch}"
            results[name] = {system: 1 / min(each) for system, each in times.items() if each}
            if peer is not None:
                ours = [each.text for each in translator.translate(some, beam=beam, batch_size=batch, split="long")]
                theirs = translator.tokenizers.target.decode_batch(output)
                results[name]["equal lines"] = sum(map(str.__eq__, ours, theirs)) / len(some)
            print(name, {key: round(value, 3) for key, value in results[name].items()}, flush=True)
        alone: dict[str, float] = {}
        few, sources = lines[:ALONE], pieces_of(translator, lines[:ALONE])
        for _ in range(2):
            systems: dict[str, Callable[[], Any]] = {
                "dragoman": lambda: [translator.translate(each, beam=beam, split="long") for each in few]  # noqa: B023
            }
            if peer is not None:
                systems["Hugging Face"] = lambda: [peer.translate([each], beam, 1) for each in sources]  # noqa: B023
            for system, work in systems.items():
                alone[system] = min(alone.get(system, math.inf), clock(work)[1])
        results[f"beam {beam}, alone"] = {name: len(few) / seconds for name, seconds in alone.items()}
        shown = {name: round(1000 * seconds / len(few), 1) for name, seconds in alone.items()}
        print(f"beam {beam}, one at a time, ms: {shown}", flush=True)
    ratios = {
        name: result["dragoman"] / result["Hugging Face"]
        for name, result in results.items()
        if "Hugging Face" in result
    }
    for beam in arguments.beam if ratios else []:
        rows = [result for name, result in results.items() if name.startswith(f"beam {beam}, batch")]
        best = {system: max(row[system] for row in rows) for system in ("dragoman", "Hugging Face")}
        ratios[f"beam {beam}, each at its best batch"] = best["dragoman"] / best["Hugging Face"]
    for name, ratio in ratios.items():
        print(f"dragoman / Hugging Face, {name}: {ratio:.2f}")
    if arguments.json:
        from dragoman.training.reports.provenance import source_commit

        print(json.dumps({"results": results, "ratios": ratios, "git_commit": source_commit()}))


if __name__ == "__main__":
    main()
