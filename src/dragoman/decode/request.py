"""What a caller asks of the translations of some lines. Knows nothing of models or searches."""

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.config import DecodeConfig
from dragoman.decode.pieces import Piece
from dragoman.decode.terms import TermsIn, no_terms
from dragoman.text.normalize import is_blank


@dataclass(frozen=True)
class Request:
    """Everything besides the lines themselves."""

    options: DecodeConfig
    attention: bool = False  # keep the weights of every head
    terms_in: TermsIn = no_terms  # what must appear, by source text
    prefixes: Sequence[str] = ()  # how translations begin: none, or one for each line

    @property
    def is_sampled(self) -> bool:
        return self.options.sampling or self.options.mbr > 0

    def prefix_of(self, piece: Piece) -> str:
        """What a piece must begin with: the first one of a line, if that has a prefix."""
        if piece.number or not self.prefixes or is_blank(self.prefixes[piece.line]):
            return ""
        return self.prefixes[piece.line]

    def apply_to(self, piece: Piece) -> Piece:
        """Words that were asked for stay as they are; so does one that is there because another is banned."""
        if not piece.may_change:
            return piece
        terms, prefix = tuple(self.terms_in(piece.text)), self.prefix_of(piece)
        asked = [*(target for term in terms for target in term.targets), prefix]
        names = piece.names.excluding(asked) if piece.names and not self.options.banned else None
        return piece._replace(names=names, terms=terms, prefix=prefix)
