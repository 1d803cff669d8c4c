"""BLEU as the paper's code computed it: Moses tokens, compounds split at hyphens. For comparing with papers only.

The recipe of tensor2tensor's get_ende_bleu.sh: tokenizer.perl, then `(\\S)-(\\S)` becomes `\\1 ##AT##-##AT## \\2`, then
multi-bleu.perl, which neither tokenises nor smooths.
"""

import re
from collections.abc import Sequence

from dragoman.errors import ConfigError, suggestion
from dragoman.evaluate.metrics import Score, bleu_metric, check_lines, with_interval

DEFAULT_LANGUAGE = "de"  # the script's
EXPLANATION = (
    "words split at hyphens count as several, easily matched: usually higher than BLEU; "
    "compare it with papers' tokenised BLEU only, never with sacreBLEU"
)

_HYPHENATED = re.compile(r"(\S)-(\S)")


def paper_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Score:
    """Tokenised BLEU; `language` chooses Moses' rules for abbreviations and apostrophes."""
    import sacremoses

    check_lines(hypotheses, references)
    check_language(language)
    tokenizer = sacremoses.MosesTokenizer(language)

    def prepare(lines: Sequence[str]) -> list[str]:
        return [split_compounds(tokenizer.tokenize(line, return_str=True)) for line in lines]

    # force: text that looks tokenised is what this is about
    metric = bleu_metric("none", smooth_method="none", force=True)
    plain = with_interval(metric, prepare(hypotheses), prepare(references))
    signature = f"{plain.signature}|moses:{language}|compounds:split|sacremoses:{sacremoses.__version__}"
    return Score(plain.score, plain.low, plain.high, signature)


def split_compounds(tokenized: str) -> str:
    """`rich-text format` -> `rich ##AT##-##AT## text format`; of a-b-c only the first, as the script did."""
    return _HYPHENATED.sub(r"\1 ##AT##-##AT## \2", tokenized)


def check_language(language: str) -> None:
    """sacremoses would take English rules for any word it does not know."""
    from sacremoses.corpus import NonbreakingPrefixes

    known = set(NonbreakingPrefixes().available_langs.values())
    if language not in known:
        raise ConfigError(f"--language {language}: Moses has no rules for it; {suggestion(language, known)}")
