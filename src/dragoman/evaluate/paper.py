"""BLEU as in papers before sacreBLEU: over Moses tokens, without smoothing. For comparison with papers only.

Most papers used Moses' tokenizer.perl and multi-bleu.perl, which neither tokenises nor smooths. For the numbers of
"Attention Is All You Need", compounds were split at hyphens in between (tensor2tensor's get_ende_bleu.sh):
`(\\S)-(\\S)` becomes `\\1 ##AT##-##AT## \\2`.
"""

import re
from collections.abc import Sequence

from dragoman.errors import ConfigError, suggestion
from dragoman.evaluate.metrics import Score, bleu_metric, check_lines, with_interval

DEFAULT_LANGUAGE = "de"  # the script's default
EXPLANATION = (
    "words split at hyphens count as several, easily matched: usually higher than BLEU; "
    "compare it with the numbers of such papers only, never with sacreBLEU"
)

_HYPHENATED = re.compile(r"(\S)-(\S)")


def tokenized_bleu(
    hypotheses: Sequence[str], references: Sequence[str], language: str, *, lowercase: bool = False
) -> Score:
    """BLEU over Moses tokens; `language` selects the rules for abbreviations and apostrophes."""
    return _moses_bleu(hypotheses, references, language, lowercase=lowercase, split=False)


def paper_bleu(
    hypotheses: Sequence[str], references: Sequence[str], language: str, *, lowercase: bool = False
) -> Score:
    """The same with compounds split, as for the paper's own numbers."""
    return _moses_bleu(hypotheses, references, language, lowercase=lowercase, split=True)


def _moses_bleu(
    hypotheses: Sequence[str], references: Sequence[str], language: str, *, lowercase: bool, split: bool
) -> Score:
    import sacremoses

    check_lines(hypotheses, references)
    check_language(language)
    tokenizer = sacremoses.MosesTokenizer(language)

    def prepare(lines: Sequence[str]) -> list[str]:
        tokenized = [tokenizer.tokenize(line, return_str=True) for line in lines]
        return list(map(split_compounds, tokenized)) if split else tokenized

    # force: the text is meant to look tokenised
    metric = bleu_metric("none", lowercase=lowercase, smooth_method="none", force=True)
    plain = with_interval(metric, prepare(hypotheses), prepare(references))
    compounds = "|compounds:split" if split else ""
    signature = f"{plain.signature}|moses:{language}{compounds}|sacremoses:{sacremoses.__version__}"
    return Score(plain.score, plain.low, plain.high, signature)


def split_compounds(tokenized: str) -> str:
    """`rich-text format` -> `rich ##AT##-##AT## text format`; in a-b-c only the first hyphen, as in the script."""
    return _HYPHENATED.sub(r"\1 ##AT##-##AT## \2", tokenized)


def check_language(language: str) -> None:
    """Reject an unknown language: sacremoses would use English rules for it."""
    known = languages()
    if language not in known:
        raise ConfigError(f"--language {language}: Moses has no rules for it; {suggestion(language, known)}")


def languages() -> set[str]:
    """The codes of the languages that Moses has rules for."""
    from sacremoses.corpus import NonbreakingPrefixes

    return set(NonbreakingPrefixes().available_langs.values())
