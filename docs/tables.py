"""Writes the tables of the documentation: python docs/tables.py [--check]. Every figure comes from results/.

A table goes between `<!-- table KIND RECIPE ... -->` and `<!-- end -->`; without a recipe, or a model
if KIND is bundled, it has all. The text around it is written by hand. Results come from these files:

    results/RECIPE.json             result.json of `dragoman train` with a recipe
    results/ablations/ROW.json      result.json of a row of recipes/ablations.py; with another seed ROW.seed-N.json
    results/tried/RECIPE.WHAT.json  result.json of a variant of a recipe that was not adopted
    results/bundled/MODEL.TEST.json output of `dragoman evaluate --paper --json` for a bundled model
    results/trained/SCRIPT.MODEL.json  result.json of a training by a script of recipes/; in no table
    results/tasks/RECIPE.WHAT.json  result.json of a recipe of another task; in no table
    results/races/RECIPE.json       last line of `python -m benchmarks.time_to_quality --json`

Every file records the commit of the source and the configuration. If an older one did not, its `note` says how they
were established.
"""

import itertools
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES, RESULTS = ROOT / "docs", ROOT / "results"
CARDS = ROOT / "src" / "dragoman" / "models"
OWN_FOLDER = ("ablations", "bundled", "races", "tried")  # kinds whose results are in results/KIND
_TABLE = re.compile(r"(<!-- table (\w+)((?: [\w-]+)*) -->\n)((?!<!-- table).)*?(<!-- end -->)", re.DOTALL)

Result = dict[str, Any]


def read(folder: Path) -> dict[str, Result]:
    return {path.stem: json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))}


def scores_table(results: dict[str, Result]) -> Iterable[str]:
    """One row per test set of each recipe."""
    yield from head("recipe", "test set", "sentences", "BLEU [95 %]", "tokenised BLEU", "chrF [95 %]", "exact match")
    for name, result in results.items():
        for test, found in result["tests"].items():
            yield row(
                f"`{name}`",
                test,
                f"{found['sentences']:,}",
                interval(found["bleu"]),
                tokenized(found),
                interval(found["chrf"]),
                f"{found['exact_match']:.1f}%",
            )


def origins_table(results: dict[str, Result]) -> Iterable[str]:
    """How each result was produced."""
    yield from head(
        "recipe",
        "command",
        "parameters",
        "pairs",
        "data key",
        "seed",
        "steps",
        "target tokens",
        "minutes",
        "device",
        "source",
    )
    for name, result in results.items():
        yield row(
            f"`{name}`",
            f"`{command(result)}`",
            millions(result["parameters"]),
            f"{result['pairs']:,}",
            f"`{result['data_key'][:16]}`",
            result["seed"],
            f"{result['steps']:,}",
            millions(result["target_tokens"]),
            f"{result['minutes']:.1f}",
            machine(result),
            commit(result),
        )


def ablations_table(results: dict[str, Result]) -> Iterable[str]:
    yield from head(
        "row", "command", "parameters", "steps", "minutes", "BLEU [95 %]", "chrF [95 %]", "data key", "seed", "source"
    )
    for name, result in sorted(results.items(), key=lambda item: _place(item[0])):
        (found,) = result["tests"].values()
        yield row(
            f"`{name.split('.')[0]}`",
            f"`{command(result)}`",
            millions(result["parameters"]),
            f"{result['steps']:,}",
            f"{result['minutes']:.1f}",
            interval(found["bleu"]),
            interval(found["chrf"]),
            f"`{result['data_key'][:16]}`",
            result["seed"],
            commit(result),
        )


def tried_table(results: dict[str, Result]) -> Iterable[str]:
    """A recipe's own run and its variants: the validation score that selected the weights, and the test scores."""
    yield from head(
        "command",
        "steps",
        "target tokens",
        "minutes",
        "validation",
        "test set",
        "BLEU [95 %]",
        "tokenised BLEU",
        "data key",
        "seed",
        "source",
    )
    for result in results.values():
        chosen = result["weights"]
        for test, found in result["tests"].items():
            yield row(
                f"`{command(result)}`",
                f"{result['steps']:,}",
                millions(result["target_tokens"]),
                f"{result['minutes']:.1f}",
                judged(chosen),
                test,
                interval(found["bleu"]),
                tokenized(found),
                f"`{result['data_key'][:16]}`",
                result["seed"],
                commit(result),
            )


def bundled_table(results: dict[str, Result]) -> Iterable[str]:
    """Scores of a bundled model. Its weights are compressed, so they differ slightly from those of the training."""
    metrics = {
        "bleu": "BLEU",
        "chrf": "chrF",
        "ter": "TER",
        "tokenized_bleu": "tokenised BLEU",
        "paper_bleu": "paper-style BLEU",
    }
    yield from head("test set", "sentences", *(f"{label} [95 %]" for label in metrics.values()))
    for name, found in results.items():
        test = name.partition(".")[2]
        yield row(test, f"{found['sentences']:,}", *(interval(found[metric]) for metric in metrics))
    yield ""
    for metric, label in metrics.items():
        for signature in sorted({found[metric]["signature"] for found in results.values()}):
            yield f"- {label}: `{signature}`"


def races_table(results: dict[str, Result]) -> Iterable[str]:
    """The BLEU of each system at each validation, side by side."""
    for result in results.values():
        curves = result["curves"]
        yield from head(*(f"{name}: {what}" for name in curves for what in ("minutes", "steps", "BLEU")))
        for points in zip(*curves.values(), strict=True):
            cells = ((f"{at['minutes']:.2f}", f"{at['steps']:,}", f"{at['bleu']:.2f}") for at in points)
            yield row(*itertools.chain.from_iterable(cells))
        yield ""
        yield from (
            f"- {name}: {ratio:.2f} times as fast, measured at validations" for name, ratio in result["ratios"].items()
        )
        yield ""


def signatures(results: dict[str, Result]) -> Iterable[str]:
    """The signatures of all scores, each listed once."""
    found = {
        f"{label}: `{scores[metric]['signature']}`"
        for result in results.values()
        for scores in result["tests"].values()
        for metric, label in (("bleu", "BLEU"), ("tokenized_bleu", "tokenised BLEU"), ("chrf", "chrF"))
        if metric in scores
    }
    yield from (f"- {line}" for line in sorted(found))


def head(*names: str) -> Iterable[str]:
    yield row(*names)
    yield row(*("---" for _ in names))


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def interval(score: dict[str, float]) -> str:
    return f"{score['score']:.2f} [{score['low']:.2f}, {score['high']:.2f}]"


def tokenized(found: Result) -> str:
    return f"{found['tokenized_bleu']['score']:.2f}" if "tokenized_bleu" in found else ""


def judged(chosen: Result) -> str:
    """The metric that selected a run's weights, and its value."""
    metric, value = chosen["judge"].split()[0], abs(float(chosen["metric"]))
    return f"{metric} {value:.1f}%" if metric == "exact_match" else f"{metric} {value:.2f}"


def millions(count: int) -> str:
    return f"{count / 1e6:,.1f}M"


def command(result: Result) -> str:
    """The command as it was run, without the options that name local folders."""
    words, kept = iter(result["command"][1:]), ["dragoman"]
    for word in words:
        if word in ("--out", "--data"):
            next(words)
        else:
            kept.append(word)
    return shlex.join(kept).replace("|", "\\|")


def commit(result: Result) -> str:
    return f"`{(result['git_commit'] or 'unknown')[:12]}`"


def machine(result: Result) -> str:
    device, threads = result["machine"]["device"], result["machine"]["threads"]
    return f"CPU, {threads} threads" if device == "cpu" else str(device)


TABLES: dict[str, Callable[[dict[str, Result]], Iterable[str]]] = {
    "scores": scores_table,
    "origins": origins_table,
    "signatures": signatures,
    "ablations": ablations_table,
    "bundled": bundled_table,
    "races": races_table,
    "tried": tried_table,
}


def filled(page: str) -> str:
    """Return the page with its tables filled in from results/."""

    def fill(match: re.Match[str]) -> str:
        kind, names = match[2], match[3].split()
        if kind not in TABLES:
            sys.exit(f"{match[1].strip()}: there is no such table; known: {', '.join(TABLES)}")
        found = read(RESULTS / kind if kind in OWN_FOLDER else RESULTS)
        if kind == "tried":
            found = {**read(RESULTS), **found}
        recipes = {stem: stem.split(".")[0] for stem in found}
        missing = [name for name in names if name not in recipes.values()]
        for name in missing:
            if not (ROOT / "recipes" / f"{name}.toml").exists():
                sys.exit(f"{match[1].strip()}: there is no recipe {name}")
        chosen = {stem: found[stem] for name in names for stem in found if recipes[stem] == name} if names else found
        lines = list(TABLES[kind](chosen)) if chosen else []
        if missing and chosen:
            lines += ["", f"Not measured yet: {', '.join(missing)}."]
        return f"{match[1]}\n" + "".join(f"{line}\n" for line in lines or ["Not measured yet."]) + f"\n{match[5]}"

    new = _TABLE.sub(fill, page)
    if len(_TABLE.findall(page)) != page.count("<!-- table "):
        sys.exit("a table has no <!-- end -->, or its <!-- table --> cannot be read")
    return new


def _place(row: str) -> tuple[bool, bool, list[str]]:
    """Sort key: base first, rows with a letter before those without, numbers by value, then seeds."""
    parts = [part.zfill(9) if part.isdigit() else part for part in re.split("[-.]", row)]
    return parts[0] != "base", not row[0].isupper(), parts


def main() -> None:
    changed = []
    for path in sorted([*PAGES.rglob("*.md"), *CARDS.rglob("*.md")]):
        page = path.read_text(encoding="utf-8")
        if filled(page) != page:
            changed.append(path)
    if "--check" in sys.argv[1:]:
        sys.exit(f"not what results/ says: {', '.join(map(str, changed))}; run python docs/tables.py" if changed else 0)
    for path in changed:
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
