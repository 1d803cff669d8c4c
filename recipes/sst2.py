"""Film reviews, positive or negative: a Transformer from scratch beside logistic regression, on the same data.

    python recipes/sst2.py --data FOLDER [--out runs/sst2] [--seeds 3] [--jobs N] [--from en-de]

Trains `recipes/sst2.toml` with each seed; with --from, also from the encoder of a translation model. Logistic
regression over words and pairs of words (pip install scikit-learn) chooses its penalty on the validation set. Run the
same command again to resume. The results are in docs/recipes/sst2.md.
"""

from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer
from steps import Settings, run_command, say, train_rows

from dragoman import ConfigError
from dragoman.data.corpus import CorpusReport, read_pairs

RECIPE = Path(__file__).with_suffix(".toml")
PENALTIES = (0.1, 0.3, 1.0, 3.0)  # inverse strength
WORDS = ((1, 1), (1, 2))  # single words; pairs of words too
FINE_TUNING = RECIPE.with_stem("sst2-from-translator")


def sst2(
    data: Annotated[Path, typer.Option(metavar="FOLDER", envvar="DRAGOMAN_DATA", help="The folder of the corpora.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory for the runs.")] = Path("runs/sst2"),
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each kind.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Runs in parallel.")] = 1,
    start_from: Annotated[
        str | None, typer.Option("--from", metavar="MODEL", help="Also start from this translation model's encoder.")
    ] = None,
    settings: Settings = None,
) -> None:
    """Train every model and print the scores."""
    say(f"logistic regression: {_logistic_regression(data / 'sst2')}")
    kinds: dict[str, tuple[Path, list[str]]] = {"scratch": (RECIPE, [])}
    if start_from:
        kinds["translator"] = (FINE_TUNING, [f"train.start_from={start_from}"])
    found = {}
    for kind, (recipe, own) in kinds.items():
        rows = {f"{kind}-{seed}": [*own, f"train.seed={seed}"] for seed in range(1, seeds + 1)}
        found |= train_rows(rows, recipe, data, out, jobs, settings or [], _describe)
    for kind in kinds:
        scores = [score["accuracy"]["score"] for name, tests in found.items() for score in tests.values()
                  if name.startswith(kind)]  # fmt: skip
        say(f"{kind}: accuracy {mean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f}), {len(scores)} seeds")


def _describe(scores: dict[str, Any]) -> str:
    accuracy, f1 = scores["accuracy"], scores["macro_f1"]
    return (
        f"accuracy {accuracy['score']:.1f} [{accuracy['low']:.1f}, {accuracy['high']:.1f}], "
        f"macro F1 {f1['score']:.1f}, calibration error {scores['calibration_error']:.1f}"
    )


def _logistic_regression(folder: Path) -> str:
    """Accuracy on the test set of the best of several, chosen on the validation set, in words."""
    try:
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
    except ImportError:
        return "not measured; it needs pip install scikit-learn"
    train, valid, test = (_read(folder / f"{part}.tsv.bz2") for part in ("train", "dev", "test"))
    best = None
    for span in WORDS:
        for penalty in PENALTIES:
            words = CountVectorizer(ngram_range=span, binary=True, token_pattern=r"\S+")
            model = make_pipeline(words, LogisticRegression(C=penalty, max_iter=1_000)).fit(*train)
            score = model.score(*valid)
            if best is None or score > best[0]:
                best = score, model
    assert best is not None
    return f"{100 * best[1].score(*test):.1f} accuracy"


def _read(path: Path) -> tuple[list[str], list[str]]:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; --data names the folder of the corpora")
    pairs = list(read_pairs([path], [path], report=CorpusReport()))
    return [pair.source for pair in pairs], [pair.target for pair in pairs]


if __name__ == "__main__":
    run_command(sst2)
