"""BLEU, chrF and TER by sacrebleu, each with its signature. Knows nothing of models."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.errors import ConfigError, DataError

BOOTSTRAP_SAMPLES = 1_000


@dataclass(frozen=True)
class Score:
    """A corpus score with its 95 % interval (by bootstrap) and the signature that says how it was computed."""

    score: float
    low: float
    high: float
    signature: str

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Evaluation:
    bleu: Score
    chrf: Score
    ter: Score
    exact_match: float  # share of lines equal to their reference
    sentences: int

    def to_dict(self) -> dict[str, Any]:
        scores = {name: getattr(self, name).to_dict() for name in ("bleu", "chrf", "ter")}
        return {**scores, "exact_match": self.exact_match, "sentences": self.sentences}


def evaluate(hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "13a") -> Evaluation:
    """Every metric at once. `tokenize` is BLEU's: 13a for most languages, char for those without spaces."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    _check(hypotheses, references)
    if tokenize not in BLEU.TOKENIZERS:
        raise ConfigError(f"--tokenize {tokenize}: no such tokenisation; known: {', '.join(sorted(BLEU.TOKENIZERS))}")

    try:
        bleu = BLEU(tokenize=tokenize)
    except (RuntimeError, OSError, SystemExit) as error:  # a tokenisation that needs a package or a download
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise ConfigError(f"--tokenize {tokenize}: not to be had here ({reason}); use 13a or char") from None

    def measure(metric: Any, most: float | None = 100.0) -> Score:
        result = metric.corpus_score(list(hypotheses), [list(references)], n_bootstrap=BOOTSTRAP_SAMPLES)
        center, half = (result._mean, result._ci) if len(references) > 1 else (result.score, 0.0)
        low, high = max(0.0, float(center - half)), float(center + half)  # sacrebleu hands out numpy numbers
        if most is not None:
            high = min(most, high)
        return Score(float(result.score), low, high, str(metric.get_signature()))

    return Evaluation(
        bleu=measure(bleu),
        chrf=measure(CHRF()),
        ter=measure(TER(), most=None),
        exact_match=exact_match(hypotheses, references),
        sentences=len(references),
    )


def quick_scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU, chrF and exact match as plain numbers, for looking at a model in training."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    _check(hypotheses, references)
    return {
        "bleu": BLEU(force=True).corpus_score(list(hypotheses), [list(references)]).score,
        "chrf": CHRF().corpus_score(list(hypotheses), [list(references)]).score,
        "exact_match": exact_match(hypotheses, references),
    }


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    same = sum(mine == theirs for mine, theirs in zip(hypotheses, references, strict=True))
    return same / len(references)


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise DataError(f"{len(hypotheses)} hypotheses, {len(references)} references; each line needs one reference")
    if not references:
        raise DataError("nothing to evaluate: the reference is empty")
