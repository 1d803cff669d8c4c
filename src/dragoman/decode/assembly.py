"""Makes the translation of a line from the hypotheses of its pieces. Knows nothing of models or files."""

from dragoman.bundle import Tokenizers
from dragoman.confidence import Calibration, features
from dragoman.config import DecodeConfig
from dragoman.decode.combinations import best_combinations
from dragoman.decode.pieces import Piece, join
from dragoman.decode.search import Hypothesis
from dragoman.decode.translation import Alternative, Details, Status

Combination = list[Hypothesis]  # one for each piece of a line


def details_of(
    tokenizers: Tokenizers,
    pieces: list[Piece],
    choices: list[list[Hypothesis]],
    own: list[str],
    text: str,
    options: DecodeConfig,
    calibration: Calibration | None = None,
) -> Details:
    """The rest of a line's translation, from the hypotheses of each piece, their own texts and that of the line."""
    if options.sampling and not options.mbr:
        # a piece that was searched again, for a term, may have fewer
        combinations = [[*samples] for samples in zip(*choices, strict=False)]
    else:
        combinations = best_combinations(choices, options.n_best)
    rows = [hypothesis.ids for combination in combinations[1:] for hypothesis in combination]
    decoded = iter(tokenizers.target.decode_batch(rows))
    others = [join(pieces, [piece.finish(next(decoded)) for piece in pieces]) for _ in combinations[1:]]
    texts = [text, *others]
    found = list(zip(combinations, texts, strict=True))
    if any(piece.may_change for piece in pieces) and not options.sampling:
        found = _without_duplicates(found)
    alternatives = tuple([_alternative(tokenizers, *each) for each in found])
    source_tokens = tuple(tokenizers.source.pieces([token for piece in pieces for token in piece.ids]))
    token_scores = tuple([score for hypothesis in combinations[0] for score in hypothesis.token_scores])
    confidence = None
    if options.confidence and calibration is not None and token_scores:
        confidence = calibration.confidence(features(source_tokens, alternatives[0].tokens, token_scores))
    return Details(
        score=alternatives[0].score,
        normalized_score=alternatives[0].normalized_score,
        source_tokens=source_tokens,
        tokens=alternatives[0].tokens,
        alternatives=alternatives,
        pieces=tuple(zip((piece.text for piece in pieces), own, strict=True)),
        token_scores=token_scores if options.token_scores else (),
        confidence=confidence,
    )


def _without_duplicates(found: list[tuple[Combination, str]]) -> list[tuple[Combination, str]]:
    """The best of those that have the same text, such as du and Du in capitals."""
    first: dict[str, Combination] = {}
    for combination, text in found:
        first.setdefault(text, combination)
    return [(combination, text) for text, combination in first.items()]


def _alternative(tokenizers: Tokenizers, combination: Combination, text: str) -> Alternative:
    """A translation of a line from one hypothesis per piece."""
    eos = tokenizers.target.vocabulary.eos
    ids = [token for hypothesis in combination for token in produced(hypothesis, eos)]
    return Alternative(
        text,
        sum([hypothesis.score for hypothesis in combination]),
        sum([hypothesis.normalized_score for hypothesis in combination]) / len(combination),
        tuple(tokenizers.target.pieces(ids)),
    )


def status_of(pieces: list[Piece], best: Combination) -> Status:
    if False in [hypothesis.finished for hypothesis in best]:
        return "truncated"
    return "split" if len(pieces) > 1 and any(piece.cut for piece in pieces) else "translated"


def produced(hypothesis: Hypothesis, eos: int) -> list[int]:
    """All ids of a hypothesis, with </s> if it is finished."""
    return [*hypothesis.ids, eos] if hypothesis.finished else list(hypothesis.ids)
