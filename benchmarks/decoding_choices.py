"""What ways to choose a translation are worth, on real text: BLEU, chrF and time beside plain beam search.

    python -m benchmarks.decoding_choices --source FILE --reference FILE [--model en-de] [--lines 300]
        [--ensemble DIR ...] [--rerank-with DIR] [--mbr 16] [--only WORD ...] [--threads N] [--json]

Rows: greedy and beam search, beam search with a coverage penalty, the first of a diverse beam, minimum Bayes risk over
samples, the most probable of the same samples, and, where the models are given, reranking with several weights
and an ensemble by the mean of probabilities and by that of log-probabilities. `differs` is the number of
distinct texts among four of the beam and of the diverse beam. Lines are taken evenly from the files.
`--only` leaves out rows, but beam search, whose names have none of these words. `ratios` are chrF relative to that of
beam search.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dragoman
from benchmarks.confidence import read
from dragoman.decode import ensemble
from dragoman.decode.translation import Translation
from dragoman.decode.translator import Translator
from dragoman.evaluate.metrics import quick_scores

BEAM = 4
WEIGHTS = (0.25, 0.5, 0.75)


def log_prob_mean(log_probs: Sequence[Tensor]) -> Tensor:
    """The other way to combine models: the normalized geometric mean of probabilities."""
    return torch.stack(list(log_probs)).mean(dim=0).log_softmax(dim=-1)


def measure(translate: Callable[[], list[Translation]], references: list[str]) -> dict[str, float]:
    start = time.perf_counter()
    found = translate()
    seconds = time.perf_counter() - start
    scores = quick_scores([each.text for each in found], references)
    texts = [len({other.text for other in each.alternatives}) for each in found]
    return {
        "bleu": scores["bleu"],
        "chrf": scores["chrf"],
        "seconds": seconds,
        "differs": sum(texts) / len(texts),
    }


def of_one_model(translator: Translator, lines: list[str], mbr: int) -> dict[str, Callable[[], list[Translation]]]:
    """Ways that need no other model."""
    choices: dict[str, dict[str, Any]] = {
        "greedy": {"beam": 1},
        f"beam {BEAM}": {"beam": BEAM, "n_best": 4},
        "coverage penalty 0.2": {"beam": BEAM, "coverage_penalty": 0.2},
        "diverse beam, 2 groups": {"beam": BEAM, "n_best": 4, "diversity_groups": 2},
        "diverse beam, 4 groups": {"beam": BEAM, "n_best": 4, "diversity_groups": 4},
        f"best of {mbr} samples by score": {"sampling": True, "n_best": mbr},
        f"minimum Bayes risk, {mbr} samples": {"mbr": mbr},
        f"minimum Bayes risk, {mbr} samples, top_p 0.9": {"mbr": mbr, "top_p": 0.9},
    }

    def runner(options: dict[str, Any]) -> Callable[[], list[Translation]]:
        return lambda: translator.translate(lines, **options)

    return {name: runner(options) for name, options in choices.items()}


def show(name: str, row: dict[str, float]) -> None:
    print(
        f"{name:48} BLEU {row['bleu']:5.2f}  chrF {row['chrf']:5.2f}  {row['seconds']:6.1f} s"
        f"  {row['differs']:.2f} texts",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="en-de")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--ensemble", nargs="*", default=[])
    parser.add_argument("--rerank-with")
    parser.add_argument("--mbr", type=int, default=16)
    parser.add_argument("--lines", type=int, default=300)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    lines, references = read(arguments.source, arguments.lines), read(arguments.reference, arguments.lines)
    rows: dict[str, dict[str, float]] = {}

    def add(name: str, translate: Callable[[], list[Translation]]) -> None:
        if name == f"beam {BEAM}" or not arguments.only or any(word in name for word in arguments.only):
            rows[name] = measure(translate, references)
            show(name, rows[name])

    translator = dragoman.load(arguments.model, threads=arguments.threads)
    for name, translate in of_one_model(translator, lines, arguments.mbr).items():
        add(name, translate)
    if arguments.rerank_with:
        reranking = dragoman.load(arguments.model, threads=arguments.threads, rerank_with=arguments.rerank_with)
        for beam in (BEAM, 4 * BEAM):
            for weight in WEIGHTS:
                add(
                    f"beam {beam}, reverse model, weight {weight}",
                    lambda beam=beam, weight=weight: reranking.translate(lines, beam=beam, rerank_weight=weight),  # type: ignore[misc]
                )
    for number, other in enumerate(arguments.ensemble, start=2):
        single = dragoman.load(other, threads=arguments.threads)
        add(f"model {number} alone, beam {BEAM}", lambda single=single: single.translate(lines, beam=BEAM))  # type: ignore[misc]
    if arguments.ensemble:
        together = dragoman.load(arguments.model, threads=arguments.threads, ensemble=arguments.ensemble)
        count = 1 + len(arguments.ensemble)
        add(f"ensemble of {count}, mean of probabilities", lambda: together.translate(lines, beam=BEAM))
        ours, ensemble.log_of_mean = ensemble.log_of_mean, log_prob_mean
        add(f"ensemble of {count}, mean of log-probabilities", lambda: together.translate(lines, beam=BEAM))
        ensemble.log_of_mean = ours
    if arguments.json:
        base = rows[f"beam {BEAM}"]["chrf"]
        ratios = {name: row["chrf"] / base for name, row in rows.items()}
        print(json.dumps({"model": arguments.model, "lines": len(lines), "rows": rows, "ratios": ratios}))


if __name__ == "__main__":
    main()
