"""A folder with a BART model as Hugging Face's library writes it: Marian's layers with another bottom.

BART learns its positions, normalizes embeddings, and has byte-level BPE for both sides, in which every text begins
with <s>.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dragoman.bundle import MAX_TOKENIZER, Tokenizers
from dragoman.config import Config, TextConfig, TransformerConfig
from dragoman.errors import ConfigError, ModelError
from dragoman.interop.marian_folder import MarianFolder, Shapes
from dragoman.interop.vocabularies import NORMALIZATION, Imported, byte_level_tokenizer, read_ids

VOCABULARY_FILE, MERGES, FAST_TOKENIZER = "vocab.json", "merges.txt", "tokenizer.json"
OFFSET = 2  # rows of the table of positions before the first
# what old files may say, with the only value that today's library and ours have
FIXED = {"normalize_before": False, "add_final_layer_norm": False, "normalize_embedding": True,
         "static_position_embeddings": False}  # fmt: skip


class BartFolder(MarianFolder):
    KIND = "BART"
    LIBRARY = ("AutoTokenizer", "BartForConditionalGeneration")

    # Text

    @cached_property
    def _vocabulary_and_merges(self) -> tuple[dict[str, int], list[tuple[str, str]]]:
        """From vocab.json and merges.txt, or from tokenizer.json, which newer versions of the library write alone."""
        size = self._sizes[0]
        if self._vocabulary("source") == VOCABULARY_FILE:
            content = self._read(VOCABULARY_FILE, MAX_TOKENIZER)
            with self._naming(VOCABULARY_FILE):
                ids = read_ids(content, size)
            lines = self._read(MERGES, MAX_TOKENIZER).decode(errors="replace").split("\n")
            with self._naming(MERGES):
                return ids, [_pair(line) for line in lines if line and not line.startswith("#version")]
        found = self._json(FAST_TOKENIZER, MAX_TOKENIZER)
        with self._naming(FAST_TOKENIZER):
            try:
                model, is_byte_level = found["model"], found["pre_tokenizer"]["type"] == "ByteLevel"
                added = {token["content"]: token["id"] for token in found["added_tokens"]}
                vocabulary, merges = {**added, **model["vocab"]}, [_pair(pair) for pair in model["merges"]]
            except (TypeError, KeyError):
                is_byte_level = False
            if not is_byte_level:
                raise ModelError("not byte-level BPE")
            return read_ids(json.dumps(vocabulary).encode(), size), merges

    def _vocabulary(self, side: str) -> str:
        return VOCABULARY_FILE if (self.folder / VOCABULARY_FILE).exists() else FAST_TOKENIZER

    def _ids(self, side: str) -> dict[str, int]:
        return self._vocabulary_and_merges[0]

    @cached_property
    def source(self) -> Imported:
        (ids, merges), size = self._vocabulary_and_merges, self._sizes[0]
        special, text_start = self._special(ids, "source"), self._id("bos_token_id", size)
        with self._naming(MERGES if self._vocabulary("source") == VOCABULARY_FILE else FAST_TOKENIZER):
            return byte_level_tokenizer(ids, merges, special, text_start, size)

    @property
    def target(self) -> Imported:
        return self.source

    @property
    def tokenizers(self) -> Tokenizers:
        return Tokenizers(self.source.tokenizer, self.source.tokenizer)

    # Configuration

    def _config(self) -> Config:
        for name, value in FIXED.items():
            if self.settings.get(name, value) is not value:
                raise ConfigError(f"{name} is {self.settings[name]!r}, which has no counterpart here; only {value} has")
        config = super()._config()
        assert isinstance(config.model, TransformerConfig)
        model = replace(
            config.model,
            target_vocab_size=None,
            share_source_target=True,
            positions="learned",
            max_positions=self._size("max_position_embeddings", 1024),
            embedding_norm=True,
        )
        return replace(config, model=model)

    def _text(self) -> TextConfig:
        return TextConfig(
            model="bpe",
            vocab_size=self.source.tokenizer.size,
            byte_fallback=False,
            normalization=NORMALIZATION,
            max_length=self._size("max_position_embeddings", 1024),
        )

    # Weights

    def _shapes(self) -> Shapes:
        width, positions = self._size("d_model"), self._size("max_position_embeddings", 1024) + OFFSET
        shapes = super()._shapes()
        for side in ("encoder", "decoder"):
            shapes[f"model.{side}.embed_positions.weight"] = (positions, width)
            shapes |= {f"model.{side}.layernorm_embedding.{part}": (width,) for part in ("weight", "bias")}
        return shapes

    def _order(self, width: int) -> Tensor:
        return torch.arange(width)

    def _check_positions(self, stored: Mapping[str, Tensor]) -> None:
        """They are learned, and read."""

    def _embeddings(
        self,
        config: TransformerConfig,
        stored: Mapping[str, Tensor],
        take: Callable[[str, tuple[int, ...]], Tensor],
        order: Tensor,
    ) -> dict[str, Tensor]:
        found = super()._embeddings(config, stored, take, order)
        del found["target_embedding.weight"]  # that of the source
        shapes = self._shapes()
        for side in ("encoder", "decoder"):
            name = f"model.{side}.embed_positions.weight"
            found[f"{side}.positions.learned.weight"] = take(name, shapes[name])[OFFSET:]
            for part in ("weight", "bias"):
                name = f"model.{side}.layernorm_embedding.{part}"
                found[f"{side}.embedding_norm.{part}"] = take(name, shapes[name])
        return found


def _pair(merge: Any) -> tuple[str, str]:
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
        raise ModelError(f"{merge!r} is not a pair of pieces")
    return parts[0], parts[1]
