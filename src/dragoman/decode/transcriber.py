"""A transcriber ready to use: vectors in, text out. Knows nothing of files or training.

Shapes: B sequences, S vectors, F features, T target tokens.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from dragoman.config import TRANSCRIPTION, DecodeConfig
from dragoman.data.batching import bucket_by_length, pad_vectors
from dragoman.data.features import encode_sequences
from dragoman.decode.runner import Runner
from dragoman.decode.search import search
from dragoman.progress import Advance, no_progress

if TYPE_CHECKING:
    from torch import Tensor

    from dragoman.decode.search import Hypothesis
    from dragoman.model.attention import AttentionWeights

VECTORS = 16_384  # at once, padding included
BATCH_SIZE = 128  # sequences at once

Vectors = npt.NDArray[Any]  # [S, F]
Status = Literal["transcribed", "truncated", "cut"]


@dataclass(frozen=True)
class Transcription:
    """The text that a transcriber gives to a sequence of vectors."""

    text: str
    tokens: tuple[str, ...]
    score: float  # log-probability, </s> included
    status: Status  # truncated: the text reached its limit; cut: only the first vectors were read
    ids: tuple[int, ...]  # of the tokens

    def to_dict(self) -> dict[str, Any]:
        return {"text": self.text, "score": self.score, "status": self.status}


class Transcriber(Runner):
    """Writes down what vectors stand for: sound as text, a picture as its caption. Create one with its `load`."""

    task = TRANSCRIPTION

    def transcribe(
        self, rows: Sequence[npt.ArrayLike], *, beam: int | None = None, advance: Advance = no_progress
    ) -> list[Transcription]:
        """The text of each sequence, [S, F], in the unit of its file; `advance` counts sequences."""
        options = self.config.decode
        if beam is not None:
            options = replace(options, beam=beam, n_best=1)
        encoded = self.encode(rows)
        found: list[Any] = [None] * len(rows)
        sizes = np.array([len(row) for row in encoded], np.int64)
        for group in bucket_by_length(np.arange(len(rows)), sizes, VECTORS):
            for first in range(0, len(group), BATCH_SIZE):
                some = group[first : first + BATCH_SIZE]
                for row, hypothesis in zip(some, self._search([encoded[row] for row in some], options), strict=True):
                    found[row] = self._transcription(hypothesis, cut=len(encoded[row]) < len(np.asarray(rows[row])))
                advance(len(some))
        return found

    def encode(self, rows: Sequence[npt.ArrayLike]) -> list[npt.NDArray[np.float32]]:
        """On the model's scale, and at most as many vectors as it was trained with."""
        return encode_sequences(self.tokenizers.scale, rows, self.longest)

    def _search(self, rows: Sequence[Vectors], options: DecodeConfig) -> "list[Hypothesis]":
        from dragoman.decode.engines.plain import EngineDecoding

        special, limit = self.tokenizers.target.vocabulary, self.config.model.longest or sys.maxsize
        lengths = [min(self.config.text.max_length, limit - 1)] * len(rows)  # vectors say little of a text's length
        with self.inference():
            vectors, allowed = self.on_device(*pad_vectors(rows))
            cache = self.model.start(self.model.encode(vectors, allowed), allowed)
            found = search(
                EngineDecoding(self.model, cache, self.device),
                lengths,
                options,
                range(len(rows)),
                start=special.bos,
                end=special.eos,
                forbidden=special.never_predicted,
            )
        return [best[0] for best in found]

    def _transcription(self, hypothesis: "Hypothesis", *, cut: bool) -> Transcription:
        tokenizer = self.tokenizers.target
        status: Status = "truncated" if not hypothesis.finished else "cut" if cut else "transcribed"
        ids = tuple(int(token) for token in hypothesis.ids)
        return Transcription(tokenizer.decode(ids), tuple(tokenizer.pieces(ids)), float(hypothesis.score), status, ids)

    def forced(self, row: Vectors, ids: Sequence[int]) -> "tuple[Tensor, AttentionWeights]":
        """For a sequence and the ids of its text: log P of every token, with </s> at the end, [T, V]; the attention."""
        import torch

        with self.inference():
            vectors, _ = self.on_device(*pad_vectors(self.encode([row])))
            target = torch.tensor([[self.tokenizers.target.vocabulary.bos, *ids]], device=self.device)
            logits_1TV, weights = self.model(vectors, target, need_weights=True)
            log_prob_TV: Tensor = logits_1TV[0].float().log_softmax(dim=-1).cpu()
        return log_prob_TV, weights
