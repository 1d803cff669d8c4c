"""A language model ready to use: text from a prompt, the likelihood of a text. Knows nothing of files or training.

Text is lines, each ending in </s>, which also precedes the first. Shapes: B windows, T positions, V vocabulary.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from dragoman.config import LANGUAGE_MODEL, DecodeConfig, require
from dragoman.data.corpus import text_line
from dragoman.decode.runner import Runner
from dragoman.decode.translation import REPLACEMENT
from dragoman.errors import DataError
from dragoman.progress import Advance, no_progress
from dragoman.text.normalize import normalize
from dragoman.text.tokenizer import Tokenizer

Ids = npt.NDArray[np.int64]

SCORED_TOKENS = 8_192  # at once


@dataclass(frozen=True)
class TextScore:
    """How likely a text is: `tokens` and `bytes` include the end of every line."""

    nats: float  # the negative log-probability of the whole text
    tokens: int
    unknown: int  # tokens that stand for characters the model does not know; with any, no number is comparable
    bytes: int  # of the normalised text, in UTF-8

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """Per token: to be compared between models with the same vocabulary only."""
        return math.exp(min(self.nats_per_token, 700.0))  # beyond, no float holds it

    @property
    def bits_per_byte(self) -> float:
        """To be compared between any two models."""
        return self.nats / self.bytes / math.log(2)

    def to_dict(self) -> dict[str, float]:
        names = ("perplexity", "nats_per_token", "bits_per_byte", "tokens", "unknown", "bytes", "nats")
        return {name: getattr(self, name) for name in names}


class SamplingOptions(TypedDict, total=False):
    """The keyword arguments of `LanguageModel.stream`."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int


class LanguageModel(Runner):
    """A decoder that continues and scores text. Create one with `LanguageModel.load`."""

    task = LANGUAGE_MODEL

    @property
    def tokenizer(self) -> Tokenizer:
        return self.tokenizers.target

    @property
    def context(self) -> int:
        """How many tokens the model looks back on."""
        return min(self.config.text.max_length, self.config.model.longest or sys.maxsize)

    def generate(self, prompt: str = "", **options: Unpack[SamplingOptions]) -> str:
        """Continue `prompt` by sampling; returns the continuation only. The options are those of `stream`."""
        return "".join(self.stream(prompt, **options))

    def stream(
        self,
        prompt: str = "",
        *,
        max_tokens: int = 200,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 1,
    ) -> Iterator[str]:
        """Yield the continuation as it is sampled. Temperature 0 takes the likeliest token.

        A draw depends on (seed, number of the token) only.
        """
        require(max_tokens > 0, f"max_tokens: {max_tokens} is too few; use at least 1")
        options = DecodeConfig(
            sampling=True, temperature=temperature or 1.0, top_k=top_k if temperature else 1, top_p=top_p, seed=seed
        )
        return self._stream(self._encode(prompt), max_tokens, options)

    def _stream(self, prompt: list[list[int]], max_tokens: int, options: DecodeConfig) -> Iterator[str]:
        end, line = self.tokenizer.vocabulary.eos, prompt[-1]
        past = [end, *(piece for ids in prompt for piece in ids)]
        shown = self.tokenizer.decode(line)
        for piece in self._sample(past, max_tokens, options):
            if piece == end:
                yield self._rest(line, shown, final=True) + "\n"
                line, shown = [], ""
                continue
            line.append(piece)
            new = self._rest(line, shown)
            if new:
                shown += new
                yield new
        if rest := self._rest(line, shown, final=True):
            yield rest

    def _rest(self, line: list[int], shown: str, *, final: bool = False) -> str:
        """What is new in the text of a line. A character whose bytes are not complete waits for them."""
        text = self.tokenizer.decode(line)
        text = text if final else text.rstrip(REPLACEMENT)
        return text[len(shown) :] if text.startswith(shown) else ""

    def _encode(self, text: str) -> list[list[int]]:
        """The ids of every line; all but the last end in </s>."""
        rows = self.tokenizer.encode_batch(valid_lines(text))
        return [*([*ids, self.tokenizer.vocabulary.eos] for ids in rows[:-1]), rows[-1]]

    def _sample(self, past: list[int], count: int, options: DecodeConfig) -> Iterator[int]:
        import torch

        from dragoman.decode.sampling import draw, forbid, uniforms

        uniform_T = torch.from_numpy(uniforms(options.seed, 0, 0, count + 1)).to(self.device)
        cache, fed = self.model.start(), past[-self.context :]
        for number in range(count):
            with self.inference():
                logits_V = self.model.decode(torch.tensor([fed], device=self.device), cache)[:, -1].float()
                log_prob_1V = forbid(logits_V.log_softmax(dim=-1), self.tokenizer.vocabulary.never_predicted)
                piece = int(draw(log_prob_1V, uniform_T[number : number + 1], options))
            yield piece
            past.append(piece)
            fed = [piece]
            if cache.length == self.context:  # begin again with the newest half, which leaves room for the rest
                cache, fed = self.model.start(), past[-max(1, self.context // 2) :]

    def score(self, text: str, advance: Advance = no_progress) -> TextScore:
        """The likelihood of a text, given nothing. `advance` counts tokens.

        A text longer than the model looks back is scored in windows that overlap by half: every token but the first
        ones has at least half a window before it.
        """
        lines = valid_lines(text.removesuffix("\n"))
        eos = self.tokenizer.vocabulary.eos
        rows = self.tokenizer.encode_batch(lines)
        ids = np.fromiter((piece for row in rows for piece in (*row, eos)), np.int64)
        normalization = self.tokenizer.normalization
        size = sum(len(normalize(line, normalization).encode()) + 1 for line in lines)
        unknown = int((ids == self.tokenizer.vocabulary.unk).sum())
        return TextScore(self._nats(np.concatenate(([eos], ids)), advance), len(ids), unknown, size)

    def unknown(self, text: str) -> int:
        """How many tokens of a text stand for characters that the model does not know."""
        return sum(ids.count(self.tokenizer.vocabulary.unk) for ids in self._encode(text))

    def _nats(self, ids: Ids, advance: Advance) -> float:
        """Of all ids but the first."""
        import torch
        import torch.nn.functional as F

        count, length = len(ids) - 1, min(self.context, len(ids) - 1)
        # where each window ends; all have one size, so the last may overlap more
        ends = [*range(length, count, max(1, length // 2)), count]
        total, group = 0.0, max(1, SCORED_TOKENS // length)
        for first in range(0, len(ends), group):
            some = ends[first : first + group]
            part_BT = torch.from_numpy(np.stack([ids[end - length : end + 1] for end in some])).to(self.device)
            with self.inference():
                logits_BTV = self.model(part_BT[:, :-1]).float()
                nats_BT = F.cross_entropy(logits_BTV.transpose(1, 2), part_BT[:, 1:], reduction="none")
            for number, (end, nats_T) in enumerate(zip(some, nats_BT, strict=True), start=first):
                new = end - (ends[number - 1] if number else 0)  # earlier windows have scored the others
                total += float(nats_T[-new:].double().sum())
                advance(new)
        return total


def valid_lines(text: str) -> list[str]:
    """The lines of a text, each checked to be one."""
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if problem := text_line(line).problem:
            raise DataError(f"text:{number}: {problem}; fix the text")
    return lines
