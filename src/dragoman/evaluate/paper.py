"""BLEU as papers had it before sacreBLEU: over Moses tokens, without smoothing. For comparing with papers only.

Most computed it by Moses' tokenizer.perl and multi-bleu.perl, which neither tokenises nor smooths. The numbers of
"Attention Is All You Need" had compounds split at hyphens between the two (tensor2tensor's get_ende_bleu.sh):
`(\\S)-(\\S)` becomes `\\1 ##AT##-##AT## \\2`.
"""

import re
from collections.abc import Sequence

from dragoman.errors import ConfigError, suggestion
from dragoman.evaluate.metrics import Score, bleu_metric, check_lines, with_interval

DEFAULT_LANGUAGE = "de"  # the script's
EXPLANATION = (
    "words split at hyphens count as several, easily matched: usually higher than BLEU; "
    "compare it with the numbers of such papers only, never with sacreBLEU"
)

_HYPHENATED = re.compile(r"(\S)-(\S)")


def tokenized_bleu(
    hypotheses: Sequence[str], references: Sequence[str], language: str, *, lowercase: bool = False
) -> Score:
    """BLEU over Moses tokens; `language` chooses its rules for abbreviations and apostrophes."""
    return _moses_bleu(hypotheses, references, language, lowercase=lowercase, split=False)


def paper_bleu(
    hypotheses: Sequence[str], references: Sequence[str], language: str, *, lowercase: bool = False
) -> Score:
    """The same with compounds split, which is how the paper's own numbers came about."""
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

    # force: text that looks tokenised is what this is about
    metric = bleu_metric("none", lowercase=lowercase, smooth_method="none", force=True)
    plain = with_interval(metric, prepare(hypotheses), prepare(references))
    compounds = "|compounds:split" if split else ""
    signature = f"{plain.signature}|moses:{language}{compounds}|sacremoses:{sacremoses.__version__}"
    return Score(plain.score, plain.low, plain.high, signature)


def split_compounds(tokenized: str) -> str:
    """`rich-text format` -> `rich ##AT##-##AT## text format`; of letters, a-b-c, only the first, as in the script."""
    return _HYPHENATED.sub(r"\1 ##AT##-##AT## \2", tokenized)


def check_language(language: str) -> None:
    """sacremoses would take English rules for any word it does not know."""
    known = languages()
    if language not in known:
        raise ConfigError(f"--language {language}: Moses has no rules for it; {suggestion(language, known)}")


def languages() -> set[str]:
    """The codes of those that Moses has rules for."""
    from sacremoses.corpus import NonbreakingPrefixes

    return set(NonbreakingPrefixes().available_langs.values())
