"""BLEU, chrF and TER by sacrebleu, each with its interval and signature. Knows nothing of models or files."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.config import require_choice
from dragoman.errors import ConfigError, DataError
from dragoman.progress import Advance, no_progress
from dragoman.text.normalize import Normalization, normalize

BOOTSTRAP_SAMPLES = 1_000
MOST_DRAWS = 20_000_000  # samples x lines that sacrebleu holds at once, some 72 bytes each: 1.4 GB
SHORT_REFERENCES = 4.0  # tokens; BLEU counts n-grams of up to four
SPLITS_AT_SPACES = ("13a", "intl", "none")  # BLEU's tokenisations that need spaces between words
WITHOUT_SPACES = {
    "Thai": "\u0e00-\u0e7f",
    "Lao": "\u0e80-\u0eff",
    "Burmese": "\u1000-\u109f",
    "Khmer": "\u1780-\u17ff",
    "Japanese": "\u3040-\u30ff",
    "Chinese": "\u3400-\u4dbf\u4e00-\u9fff",
}


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
    exact_match: float  # per cent of lines equal to their reference
    sentences: int

    def to_dict(self) -> dict[str, Any]:
        scores = {name: getattr(self, name).to_dict() for name in ("bleu", "chrf", "ter")}
        return {**scores, "exact_match": self.exact_match, "sentences": self.sentences}


def evaluate(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    normalization: Normalization = "nfc",
    advance: Advance = no_progress,
) -> Evaluation:
    """Compute every metric. `tokenize` is BLEU's: 13a for most languages, char for those without spaces.

    `normalization`, the model's, applies to exact matches; the other metrics compare the lines as they are.
    """
    check_lines(hypotheses, references)
    scores = {}
    for name, metric in corpus_metrics(tokenize, lowercase=lowercase, force=False).items():
        scores[name] = with_interval(metric, hypotheses, references, name)
        advance(1)
    exact = exact_match(hypotheses, references, normalization, lowercase=lowercase)
    return Evaluation(**scores, exact_match=exact, sentences=len(references))


def corpus_metrics(tokenize: str, *, lowercase: bool = False, force: bool = True) -> dict[str, Any]:
    """sacrebleu's metrics under our names. Without `force` BLEU warns about text that looks tokenised already."""
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    bleu = bleu_metric(tokenize, lowercase=lowercase, force=force)
    return {"bleu": bleu, "chrf": CHRF(lowercase=lowercase), "ter": TER()}  # TER ignores case anyway


def bleu_metric(tokenize: str, **options: Any) -> Any:
    """sacrebleu's BLEU with this tokenisation, or an error that lists the available ones."""
    from sacrebleu.metrics.bleu import BLEU

    require_choice("--tokenize", tokenize, BLEU.TOKENIZERS)
    try:
        return BLEU(tokenize=tokenize, **options)
    except (RuntimeError, OSError, SystemExit) as error:  # a tokenisation that needs a package or a download
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise ConfigError(f"--tokenize {tokenize}: not available ({reason}); use 13a or char") from None


def with_interval(metric: Any, hypotheses: Sequence[str], references: Sequence[str], kind: str = "bleu") -> Score:
    """The score of a corpus and the interval of 95 % of resampled corpora; `kind`: bleu, chrf or ter."""
    from sacrebleu.significance import PairedTest

    # The paired test of a single system: corpus_score(n_bootstrap=) computes the same, but fails if some
    # resamples score a plain 0 (blank lines) and others a numpy number.
    samples = max(100, min(BOOTSTRAP_SAMPLES, MOST_DRAWS // len(references)))
    systems: list[tuple[str, Sequence[str]]] = [("ours", list(hypotheses))]
    signatures, results = PairedTest(systems, {"": metric}, [list(references)], test_type="bs", n_samples=samples)()
    (name, signature), *_ = signatures.items()
    result: Any = results[name][0]

    score, high = capped(kind, result.score), capped(kind, result.mean + result.ci)
    low = max(0.0, float(result.mean - result.ci))
    # resamples are summed in 32 bits, and those of a few lines are skewed
    return Score(score, min(low, score), max(high, score), str(signature))


def capped(kind: str, score: float) -> float:
    """Cap at 100, since a perfect BLEU is 100.00000000000004. TER has no upper bound."""
    return float(score) if kind == "ter" else min(100.0, float(score))


def quick_scores(
    hypotheses: Sequence[str], references: Sequence[str], normalization: Normalization = "nfc"
) -> dict[str, float]:
    """BLEU in a suitable tokenisation, chrF and exact match as plain numbers, for a model in training."""
    from sacrebleu.metrics.chrf import CHRF

    check_lines(hypotheses, references)
    bleu = bleu_metric(suitable_tokenization(references), force=True)
    return {
        "bleu": capped("bleu", bleu.corpus_score(list(hypotheses), [list(references)]).score),
        "chrf": CHRF().corpus_score(list(hypotheses), [list(references)]).score,
        "exact_match": exact_match(hypotheses, references, normalization),
    }


def exact_match(
    hypotheses: Sequence[str],
    references: Sequence[str],
    normalization: Normalization = "nfc",
    *,
    lowercase: bool = False,
) -> float:
    """Per cent of lines equal to their reference."""
    pairs = zip(hypotheses, references, strict=True)
    same = sum(is_exact(mine, theirs, normalization, lowercase=lowercase) for mine, theirs in pairs)
    return 100 * same / len(references)


def is_exact(hypothesis: str, reference: str, normalization: Normalization = "nfc", *, lowercase: bool = False) -> bool:
    """Whether both are equal after normalisation, like everything that a model reads or writes."""
    if lowercase:
        hypothesis, reference = hypothesis.lower(), reference.lower()
    return normalize(hypothesis, normalization) == normalize(reference, normalization)


def suitable_tokenization(references: Sequence[str]) -> str:
    """BLEU's tokenisation: 13a, or char if words are written without spaces between them."""
    return "char" if _unspaced(references) else "13a"


def _unspaced(references: Sequence[str]) -> str:
    """The scripts without spaces that a good part of the text is written in; empty if there are none."""
    text = "".join(references)
    written = len(re.sub(r"\s", "", text))
    counts = {name: len(re.findall(f"[{letters}]", text)) for name, letters in WITHOUT_SPACES.items()}
    if sum(counts.values()) <= 0.3 * written:
        return ""
    return " and ".join(name for name, count in counts.items() if count > 0.1 * written) or "unspaced"


def bleu_cautions(references: Sequence[str], tokenize: str) -> list[str]:
    """Why BLEU would mislead on these references, if it would, and what to look at instead."""
    scripts = _unspaced(references) if tokenize in SPLITS_AT_SPACES else ""
    if scripts:
        return [
            f"the references are in {scripts} script, without spaces between words: --tokenize {tokenize} takes whole "
            "phrases for one word; look at chrF, or use --tokenize char"
        ]
    tokens = token_counter(tokenize)
    mean = sum(map(tokens, references)) / len(references)
    if mean < SHORT_REFERENCES:
        other = "" if tokenize == "char" else ", or use --tokenize char"
        return [
            f"the references have {mean:.1f} tokens per line and BLEU counts runs of four: right lines that short earn "
            f"little or nothing (one word: 0); look at chrF and exact matches{other}"
        ]
    return []


def blank_cautions(hypotheses: Sequence[str], references: Sequence[str]) -> list[str]:
    """How blank lines affect the scores."""
    blank = [number for number, line in enumerate(references, start=1) if not line.strip()]
    if len(blank) == len(references):
        raise DataError("nothing to evaluate: every line of the reference is blank")
    pairs = enumerate(zip(hypotheses, references, strict=True), start=1)
    silent = [number for number, (ours, theirs) in pairs if theirs.strip() and not ours.strip()]
    effects = {
        "the reference": (blank, "BLEU and TER count what was translated there as wrong, chrF leaves such lines out"),
        "the translation": (silent, "all that the reference has there is missing"),
    }
    return [
        f"{len(lines):,} line{'s' * (len(lines) > 1)} of {name} blank, the first is line {lines[0]}: {effect}"
        for name, (lines, effect) in effects.items()
        if lines
    ]


def token_counter(tokenize: str) -> Callable[[str], int]:
    """Return a function that counts the tokens BLEU sees in a line."""
    tokenizer = bleu_metric(tokenize).tokenizer
    return lambda line: len(tokenizer(line).split())


def check_lines(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise DataError(f"{len(hypotheses)} hypotheses, {len(references)} references; each line needs one reference")
    if not references:
        raise DataError("nothing to evaluate: the reference is empty")
