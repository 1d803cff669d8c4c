"""The special ids of a vocabulary: one object, held by its tokenizer. Knows nothing of text."""

from dataclasses import dataclass

NUM_SPECIAL = 4


@dataclass(frozen=True)
class Vocabulary:
    """Which ids are special. Every tokenizer trained by dragoman has the defaults; imported models have others."""

    pad: int = 0  # fills short rows
    unk: int = 1  # text that no piece covers
    bos: int = 2  # the decoder's first input
    eos: int = 3  # ends every source and every target

    @property
    def textless(self) -> frozenset[int]:
        """Ids that represent no text."""
        return frozenset({self.pad, self.bos, self.eos})

    @property
    def never_predicted(self) -> tuple[int, ...]:
        """Ids that search must not produce."""
        return (self.pad, self.unk, self.bos)


VOCABULARY = Vocabulary()  # of tokenizers trained by dragoman
NO_IDS = Vocabulary(pad=-1, unk=-1, bos=-1, eos=-1)  # where no id is special
