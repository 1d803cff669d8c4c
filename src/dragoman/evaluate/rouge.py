"""ROUGE for summaries (Lin 2004), by rouge-score, an optional install. Knows nothing of models.

ROUGE-1 and ROUGE-2 count shared words and pairs of words, ROUGE-L the longest common subsequence; each is the mean over
all lines of the F1 score, in per cent. rouge-score keeps Latin letters and digits only: it is of no use for other
scripts.
"""

from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np

from dragoman.errors import ConfigError
from dragoman.evaluate.metrics import Score

KINDS = ("rouge1", "rouge2", "rougeL")
RESAMPLES, SEED = 1_000, 12345  # as for the intervals of BLEU


def check_installed() -> None:
    if find_spec("rouge_score") is None:
        raise ConfigError("--rouge: rouge-score is not installed; run pip install 'dragoman[rouge]', or leave it out")


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Score]:
    """All kinds, with 95 % intervals over lines by bootstrap."""
    check_installed()
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(KINDS), use_stemmer=True)
    found = [scorer.score(reference, mine) for mine, reference in zip(hypotheses, references, strict=True)]
    drawn = np.random.default_rng(SEED).integers(len(found), size=(RESAMPLES, len(found)))
    signature = f"nrefs:1|bs:{RESAMPLES}|seed:{SEED}|stemmer:porter|version:{version('rouge-score')}"
    scores = {}
    for kind in KINDS:
        values = 100.0 * np.array([line[kind].fmeasure for line in found])
        low, high = np.quantile(values[drawn].mean(axis=1), (0.025, 0.975))
        scores[kind] = Score(float(values.mean()), float(low), float(high), signature)
    return scores
