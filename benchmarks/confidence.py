"""How well confidence finds bad translations, on real text.

    python -m benchmarks.confidence --set NAME SOURCE REFERENCE [--set ...] [--model en-de] [--lines 1000] [--json]

Every set is translated with token scores. A line is bad if it is among the worst 10 % or 25 % of its set by chrF. AUC
is the probability that a good line has a higher confidence than a bad one: 1 is perfect, 0.5 is chance. `found` is
the share of the bad lines among the 20 % of lines with the lowest confidence. Four ways to sort lines are compared:

    fitted      a calibration of half of the lines, tested on the others, both ways
    model       the calibration that the model comes with, if it has one
    score       the normalized score of the search, the baseline
    mean        the mean log-probability of a token

For probabilities also the calibration error, against the model's own idea of a good line, and the table behind it.
`ratios` are AUCs relative to the baseline's. Lines are taken evenly from each file.
"""

import argparse
import bz2
import json
from pathlib import Path
from typing import Any

import numpy as np

import dragoman
from dragoman.confidence import FEATURES
from dragoman.decode.calibration import Examples, auc, confidences, examples, fit, reliability
from dragoman.decode.chrf import Array
from dragoman.decode.translator import Translator

WORST = (0.10, 0.25)
REVIEWED = 0.20


def read(path: Path, count: int) -> list[str]:
    content = bz2.decompress(path.read_bytes()) if path.suffix == ".bz2" else path.read_bytes()
    lines = content.decode().rstrip("\n").split("\n")
    return lines[:: max(1, len(lines) // count)][:count]


def translate(translator: Translator, source: Path, reference: Path, count: int) -> tuple[Examples, Array]:
    """What confidence is fitted on, and the normalized score of every line."""
    options: dict[str, Any] = {"token_scores": True}
    found = translator.translate(read(source, count), **options)
    references = read(reference, count)
    kept = [each.token_scores != () and bool(line.strip()) for each, line in zip(found, references, strict=True)]
    scores = [each.normalized_score for each, keep in zip(found, kept, strict=True) if keep]
    return examples(found, references), np.array(scores)


def fitted_on_the_other_half(found: Examples) -> Array:
    """The confidence of each line, from a fit on the half of the lines it is not in."""
    half_N = np.random.default_rng(1).permutation(len(found.chrf_N)) % 2 == 0
    confidence_N = np.zeros(len(half_N))
    for half in (half_N, ~half_N):
        confidence_N[~half] = confidences(
            fit(Examples(found.value_NF[half], found.chrf_N[half])), found.value_NF[~half]
        )
    return confidence_N


def measure(value_N: Array, chrf_N: Array) -> dict[str, float]:
    row = {}
    least_N = np.argsort(value_N, kind="stable")[: round(REVIEWED * len(value_N))]
    for share in WORST:
        bad_N = chrf_N < np.quantile(chrf_N, share)
        row[f"auc, worst {share:.0%}"] = auc(value_N, ~bad_N)
        row[f"found, worst {share:.0%}"] = float(bad_N[least_N].sum() / bad_N.sum())
    return row


def measure_set(found: Examples, score_N: Array, translator: Translator) -> dict[str, Any]:
    fitted_N, calibration = fitted_on_the_other_half(found), translator.calibration
    rows: dict[str, Any] = {"fitted": measure(fitted_N, found.chrf_N), "score": measure(score_N, found.chrf_N)}
    rows["mean"] = measure(found.value_NF[:, FEATURES.index("mean_log_prob")], found.chrf_N)
    tested = reliability(fitted_N, found.chrf_N >= np.quantile(found.chrf_N, 0.25))
    rows["fitted"]["calibration error"], rows["fitted"]["bins"] = tested.error, tested.bins
    if calibration is not None:
        model_N = confidences(calibration, found.value_NF)
        tested = reliability(model_N, found.chrf_N >= calibration.good_chrf)
        rows["model"] = {**measure(model_N, found.chrf_N), "calibration error": tested.error, "bins": tested.bins}
    return rows


def describe(name: str, rows: dict[str, Any]) -> str:
    lines = [name]
    for kind, row in rows.items():
        cells = [f"{label} {value:.3f}" for label, value in row.items() if label != "bins"]
        lines.append(f"  {kind:7} {', '.join(cells)}")
    for mean, share, count in rows.get("model", rows["fitted"])["bins"]:
        lines.append(f"    confidence {mean:.2f}: {share:.2f} good, {count} lines")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="en-de")
    parser.add_argument("--set", nargs=3, action="append", required=True, metavar=("NAME", "SOURCE", "REFERENCE"))
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    translator = dragoman.load(arguments.model)
    sets, parts = {}, []
    for name, source, reference in arguments.set:
        found, score_N = translate(translator, Path(source), Path(reference), arguments.lines)
        parts.append((found, score_N))
        sets[name] = measure_set(found, score_N, translator)
        print(describe(f"{name}, {len(score_N)} lines", sets[name]), flush=True)
    if len(parts) > 1:
        together = Examples(
            *(np.concatenate([getattr(found, field) for found, _ in parts]) for field in Examples._fields)
        )
        sets["all"] = measure_set(together, np.concatenate([score_N for _, score_N in parts]), translator)
        print(describe("all", sets["all"]), flush=True)
    if arguments.json:
        key = f"auc, worst {WORST[0]:.0%}"
        ratios = {name: rows["fitted"][key] / rows["score"][key] for name, rows in sets.items()}
        print(json.dumps({"model": arguments.model, "sets": sets, "ratios": ratios}))


if __name__ == "__main__":
    main()
