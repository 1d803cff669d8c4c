"""A folder with a BART model as Hugging Face's library writes it: Marian's layers with another bottom.

BART learns its positions, normalizes embeddings, and has byte-level BPE for both sides, in which every text begins
with <s>.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.bundle import MAX_TOKENIZER, Tokenizers
from dragoman.config import Config, TextConfig, TransformerConfig
from dragoman.errors import ConfigError, ModelError
from dragoman.interop.marian_folder import CONFIG, DOWNLOAD, MarianFolder, Shapes
from dragoman.interop.vocabularies import NORMALIZATION, Imported, SpecialIds, byte_level_tokenizer, read_ids

VOCABULARY_FILE, MERGES, FAST_TOKENIZER = "vocab.json", "merges.txt", "tokenizer.json"
TOKENIZER_CONFIG, ADDED_TOKENS = "tokenizer_config.json", "added_tokens.json"
SPECIAL_NAMES = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
ANOTHER = "give another model"
OFFSET = 2  # rows of the table of positions before the first
FEWEST_POSITIONS = 16  # a character may have four tokens, and a text has two of its own
# what a configuration may say, with the only value that has a counterpart here
FIXED = {
    "normalize_before": False, "add_final_layer_norm": False, "normalize_embedding": True,
    "static_position_embeddings": False, "tie_word_embeddings": True, "share_encoder_decoder_embeddings": True,
}  # fmt: skip
# the same for what tokenizer.json says of its model, and of what comes before it
FIXED_MODEL = {"dropout": None, "continuing_subword_prefix": "", "end_of_word_suffix": "", "ignore_merges": False}
FIXED_BEFORE = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}


class BartFolder(MarianFolder):
    KIND = "BART"
    LIBRARY = ("AutoTokenizer", "BartForConditionalGeneration")

    def __init__(self, folder: Path, name: str = "") -> None:
        super().__init__(folder, name)
        for setting, value in FIXED.items():
            if self.settings.get(setting, value) is not value:
                raise ConfigError(
                    f"{folder / CONFIG}: {setting} is {json.dumps(self.settings[setting])[:40]}, and only "
                    f"{json.dumps(value)} has a counterpart here; give another model"
                )
        if self._size("max_position_embeddings", 1024) < FEWEST_POSITIONS:
            raise ConfigError(
                f"{folder / CONFIG}: max_position_embeddings is below {FEWEST_POSITIONS}; give another model"
            )

    # Text

    @cached_property
    def _vocabulary_and_merges(self) -> tuple[dict[str, int], list[tuple[str, str]]]:
        """From vocab.json and merges.txt, or from tokenizer.json, which newer versions of the library write alone."""
        size = self._sizes[0]
        if self._vocabulary("source") == VOCABULARY_FILE:
            content = self._read(VOCABULARY_FILE, MAX_TOKENIZER)
            with self._naming(VOCABULARY_FILE):
                ids = read_ids(content, size)
            lines = self._read(MERGES, MAX_TOKENIZER).decode(errors="replace").replace("\r\n", "\n").split("\n")
            self._refuse_added()
            with self._naming(MERGES):
                return ids, [_pair(line) for line in lines if line and not line.startswith("#version")]
        found = self._json(FAST_TOKENIZER, MAX_TOKENIZER)
        with self._naming(FAST_TOKENIZER):
            try:
                model, tokens = found["model"], found.get("added_tokens") or []
                added = {token["content"]: token["id"] for token in tokens}
                others = [token["content"] for token in tokens if not token.get("special")]
                vocabulary, merges = {**added, **model["vocab"]}, [_pair(pair) for pair in model["merges"]]
                is_plain = (
                    found.get("normalizer") is None
                    and found["post_processor"]["type"] == "RobertaProcessing"
                    and _has(found["pre_tokenizer"], FIXED_BEFORE)
                    and _has(model, FIXED_MODEL)
                )
            except (TypeError, KeyError, AttributeError):
                raise ModelError("not byte-level BPE") from None
        if not is_plain:
            raise ConfigError(f"{self.folder / FAST_TOKENIZER}: prepares text in another way than BART; {ANOTHER}")
        self._refuse_added(others)
        with self._naming(FAST_TOKENIZER):
            return read_ids(json.dumps(vocabulary).encode(), size), merges

    def _refuse_added(self, others: Sequence[str] = ()) -> None:
        """Refuse words that were added to the vocabulary, and another treatment of text."""
        settings = self._json(TOKENIZER_CONFIG) if (self.folder / TOKENIZER_CONFIG).exists() else {}
        if settings.get("add_prefix_space"):
            raise ConfigError(f"{self.folder / TOKENIZER_CONFIG}: add_prefix_space has no counterpart here; {ANOTHER}")
        decoder = settings.get("added_tokens_decoder")
        tokens = list(decoder.values()) if isinstance(decoder, dict) else []
        found = [*others, *(t.get("content") for t in tokens if isinstance(t, dict) and not t.get("special"))]
        if (self.folder / ADDED_TOKENS).exists():
            found += [name for name in self._json(ADDED_TOKENS) if name not in SPECIAL_NAMES]
        if found:
            raise ConfigError(
                f"{self.folder}: {str(found[0])[:40]!r} was added to its vocabulary, which has no counterpart here; "
                f"{ANOTHER}"
            )

    def _vocabulary(self, side: str) -> str:
        """vocab.json needs merges.txt beside it."""
        return VOCABULARY_FILE if (self.folder / MERGES).exists() else FAST_TOKENIZER

    def _ids(self, side: str) -> dict[str, int]:
        return self._vocabulary_and_merges[0]

    @cached_property
    def source(self) -> Imported:
        (ids, merges), size = self._vocabulary_and_merges, self._sizes[0]
        special, text_start = self._special(ids, "source"), self._id("bos_token_id", size)
        for setting, name, index in (("bos_token_id", "<s>", text_start), ("eos_token_id", "</s>", special.end)):
            if ids.get(name) != index:
                problem = f"{setting} is {index}, and {name} has the id {ids.get(name)}"
                raise ModelError(f"{self.folder / CONFIG}: {problem}; {DOWNLOAD}")
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

    # The check

    def _predicted(self, ids: SpecialIds) -> set[int]:
        return {ids.end, self._id("bos_token_id", self._sizes[0])}


def _has(found: Any, fixed: Mapping[str, Any]) -> bool:
    """Whether each of these settings is as here, or not there; no text is the same as none."""
    return all((found.get(name, value) or None) == (value or None) for name, value in fixed.items())


def _pair(merge: Any) -> tuple[str, str]:
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
        raise ModelError(f"{str(merge)[:40]!r} is not a pair of pieces")
    return parts[0], parts[1]
