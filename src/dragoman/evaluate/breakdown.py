"""Where a score comes from: by length, and sentence by sentence, worst first. Knows nothing of files."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dragoman.evaluate.metrics import bleu_metric, capped, check_lines, is_exact, token_counter
from dragoman.text.normalize import Normalization

LONGEST = (5, 10, 20, 30, 50)  # tokens; each bucket ends at one of these, the last has no limit
COLUMNS = ("line", "chrf", "bleu", "source", "hypothesis", "reference")
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


@dataclass(frozen=True)
class LengthBucket:
    """Sentences of similar length. BLEU is over the n-gram orders they have: of one-word lines, over words alone."""

    side: Literal["source", "reference"]  # whose length
    shortest: int
    longest: int | None  # None: no limit
    count: int
    bleu: float
    chrf: float
    length_ratio: float | None  # hypothesis tokens over reference tokens; None if the references have none

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class SentenceScore:
    line: int  # from 1
    chrf: float
    bleu: float  # over the n-gram orders that the sentence has
    source: str | None
    hypothesis: str
    reference: str
    right: bool = False  # an exact match

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "right"}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def to_tsv(self) -> str:
        """The COLUMNS; a backslash, tab or carriage return in a text is written \\\\, \\t, \\r."""
        texts = [(text or "").translate(_ESCAPES) for text in (self.source, self.hypothesis, self.reference)]
        return "\t".join([str(self.line), f"{self.chrf:.4f}", f"{self.bleu:.4f}", *texts])


def by_length(
    hypotheses: Sequence[str],
    references: Sequence[str],
    sources: Sequence[str] | None = None,
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> list[LengthBucket]:
    """Scores of the non-empty buckets, by source tokens, or by reference tokens if there is no source."""
    from sacrebleu.metrics.chrf import CHRF

    check_lines(hypotheses, references)
    if sources is not None:
        check_lines(sources, references)
    bleu = bleu_metric(tokenize, lowercase=lowercase, effective_order=True, force=True)
    chrf, tokens = CHRF(lowercase=lowercase), token_counter(tokenize)
    lengths = [tokens(line) for line in (references if sources is None else sources)]
    buckets = []
    for shortest, longest in zip((0, *(edge + 1 for edge in LONGEST)), (*LONGEST, None), strict=True):
        rows = [row for row, size in enumerate(lengths) if shortest <= size and (longest is None or size <= longest)]
        if not rows:
            continue
        mine, theirs = [hypotheses[row] for row in rows], [references[row] for row in rows]
        result = bleu.corpus_score(mine, [theirs])
        buckets.append(
            LengthBucket(
                side="reference" if sources is None else "source",
                shortest=shortest,
                longest=longest,
                count=len(rows),
                bleu=capped("bleu", result.score),
                chrf=chrf.corpus_score(mine, [theirs]).score,
                length_ratio=result.sys_len / result.ref_len if result.ref_len else None,
            )
        )
    return buckets


def sentence_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    sources: Sequence[str] | None = None,
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    normalization: Normalization = "nfc",
) -> list[SentenceScore]:
    """Score every sentence, worst chrF first. Those equal to their reference come last, a blank one (chrF 0) too."""
    from sacrebleu.metrics.chrf import CHRF

    check_lines(hypotheses, references)
    if sources is not None:
        check_lines(sources, references)
    bleu = bleu_metric(tokenize, lowercase=lowercase, effective_order=True)
    chrf = CHRF(lowercase=lowercase)
    scores = [
        SentenceScore(
            line=row + 1,
            chrf=chrf.sentence_score(mine, [theirs]).score,
            bleu=capped("bleu", bleu.sentence_score(mine, [theirs]).score),
            source=None if sources is None else sources[row],
            hypothesis=mine,
            reference=theirs,
            right=is_exact(mine, theirs, normalization, lowercase=lowercase),
        )
        for row, (mine, theirs) in enumerate(zip(hypotheses, references, strict=True))
    ]
    return sorted(scores, key=lambda one: (one.right, one.chrf, one.bleu, one.line))
