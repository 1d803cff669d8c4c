"""The keyword arguments of `Translator.translate`, visible to type checkers and editors."""

from collections.abc import Sequence
from typing import Literal, TypedDict


class DecodeOptions(TypedDict, total=False):
    """The fields of `dragoman.config.DecodeConfig`, which documents them; a test keeps the two in sync."""

    beam: int
    n_best: int
    length_penalty: float
    length_penalty_form: Literal["gnmt", "power"]
    max_extra: int
    split: Literal["long", "sentences"]
    recase: bool
    restore_names: bool
    target_language: str
    sampling: bool
    temperature: float
    top_k: int
    top_p: float
    seed: int
    min_length: int
    no_repeat_ngram: int
    banned: Sequence[str]
    protect: Sequence[str]
    shortlist: bool
    alignment_heads: Sequence[str]
    diversity_groups: int
    diversity_penalty: float
    coverage_penalty: float
    rerank_weight: float
    mbr: int
    token_scores: bool
    confidence: bool
    batch_size: int
    threads: int
