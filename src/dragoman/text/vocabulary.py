"""The special ids of a vocabulary: one object, which goes with its tokenizer. Knows nothing of text."""

from dataclasses import dataclass

NUM_SPECIAL = 4


@dataclass(frozen=True)
class Vocabulary:
    """Which ids are special. The defaults are those of every tokenizer trained here; imported models have others."""

    pad: int = 0  # fills up short rows
    unk: int = 1  # text that no piece spells
    bos: int = 2  # what the decoder is fed first
    eos: int = 3  # ends every source and every target

    @property
    def textless(self) -> frozenset[int]:
        """Ids that stand for no text."""
        return frozenset({self.pad, self.bos, self.eos})

    @property
    def never_predicted(self) -> tuple[int, ...]:
        """Ids that search must not produce."""
        return (self.pad, self.unk, self.bos)


VOCABULARY = Vocabulary()  # of what is trained here
