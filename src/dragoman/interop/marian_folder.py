"""A folder with a Marian model as Hugging Face's library writes it, and what it is in ours.

The folder is untrusted: sizes are checked before anything is read, and nothing in it is executed.
"""

import io
import json
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from torch import Tensor

from dragoman.bundle import MAX_BYTES_PER_PARAMETER, MAX_TEXT, MAX_TOKENIZER, Tokenizers
from dragoman.config import LARGEST, Config, DecodeConfig, TextConfig, TransformerConfig
from dragoman.errors import ConfigError, ModelError
from dragoman.files import RefusedFile, read_checked
from dragoman.interop import huggingface
from dragoman.interop.vocabularies import (
    NORMALIZATION,
    Imported,
    SpecialIds,
    read_ids,
    source_tokenizer,
    target_tokenizer,
)
from dragoman.model.positions import sinusoids
from dragoman.weights import MAX_HEADER, check_header, not_safetensors

CONFIG, GENERATION = "config.json", "generation_config.json"
SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
MODEL_FILES = (
    CONFIG, GENERATION, SAFETENSORS, PICKLED, "vocab.json", "target_vocab.json", "source.spm", "target.spm",
    "merges.txt", "tokenizer.json", "tokenizer_config.json", "added_tokens.json",
)  # fmt: skip
NEVER = -1e3  # the bias of an output that Marian does not have: far below all others
DOWNLOAD = "download the model again"
Activation = Literal["relu", "gelu", "swish"]
ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}
Shapes = dict[str, tuple[int, ...]]


# Folders of other libraries, by what they hold; their files are not opened.
OTHER_LIBRARIES: dict[str, Callable[[Path], bool]] = {
    "ONNX Runtime": lambda folder: any(any(place.glob("*.onnx")) for place in (folder, folder / "onnx")),
    "CTranslate2": lambda folder: (folder / "model.bin").exists(),
}


class MarianFolder:
    """A folder as Hugging Face's library writes it."""

    KIND = "Marian"
    LIBRARY = huggingface.MARIAN_CLASSES

    def __init__(self, folder: Path, name: str = "") -> None:
        self.folder, self.name = folder, name or folder.resolve().name
        if not folder.is_dir():
            raise ModelError(f"{folder}: no such folder; give one with {CONFIG}, a vocabulary and weights")
        has_weights = any((folder / name).exists() for name in (SAFETENSORS, PICKLED))
        for library, is_there in OTHER_LIBRARIES.items():
            if not has_weights and is_there(folder):
                raise ModelError(f"{folder}: is for {library} and cannot be read; give the model it was made from")
        self.settings = self._json(CONFIG)
        self._shared = self._flag("share_encoder_decoder_embeddings", True)

    # Reading

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        """Errors in the block name the file."""
        try:
            yield
        except RefusedFile as refused:
            raise ModelError(f"{self.folder / name}: {refused.reason}; {DOWNLOAD}") from None
        except ModelError as error:
            raise ModelError(f"{self.folder / name}: {error}; {DOWNLOAD}") from None

    def _read(self, name: str, most: float) -> bytes:
        with self._naming(name):
            return read_checked(self.folder, name, most, within=())  # downloads are links to a cache

    def _json(self, name: str, most: float = MAX_TEXT) -> dict[str, Any]:
        content = self._read(name, most)
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ModelError(f"{self.folder / name}: not a JSON object; {DOWNLOAD}")
        return found

    def _size(self, name: str, default: int | None = None) -> int:
        """A positive number of config.json."""
        found = self.settings.get(name, default)
        if type(found) is not int or not 1 <= found <= LARGEST:
            raise ModelError(f"{self.folder / CONFIG}: {name} is {found!r}, not a number from 1 to {LARGEST:,}")
        return found

    def _flag(self, name: str, default: bool) -> bool:
        found = self.settings.get(name, default)
        if not isinstance(found, bool):
            raise ModelError(f"{self.folder / CONFIG}: {name} is {found!r}, not true or false")
        return found

    def _id(self, name: str, size: int) -> int:
        found = self.settings.get(name)
        if type(found) is not int or not 0 <= found < size:
            raise ModelError(f"{self.folder / CONFIG}: {name} is {found!r}, not an id from 0 to {size - 1:,}")
        return found

    # Text

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        """The rows of the embeddings of both sides."""
        source = self._size("vocab_size")
        return source, source if self._shared else self._size("decoder_vocab_size", source)

    @property
    def _separate(self) -> bool:
        """Whether each side has ids of its own."""
        return (self.folder / "target_vocab.json").exists()

    def _ids(self, side: str) -> dict[str, int]:
        name = self._vocabulary(side)
        content = self._read(name, MAX_TOKENIZER)
        with self._naming(name):
            return read_ids(content, self._sizes[side == "target"])

    def _vocabulary(self, side: str) -> str:
        return "target_vocab.json" if side == "target" and self._separate else "vocab.json"

    def _special(self, ids: Mapping[str, int], side: str) -> SpecialIds:
        size = self._sizes[side == "target"]
        if "<unk>" not in ids:
            raise ModelError(f"{self.folder / self._vocabulary(side)}: has no <unk>; {DOWNLOAD}")
        pad, end = self._id("pad_token_id", size), self._id("eos_token_id", size)
        return SpecialIds(pad, ids["<unk>"], self._id("decoder_start_token_id", size), end)

    @cached_property
    def source(self) -> Imported:
        ids, model = self._ids("source"), self._read("source.spm", MAX_TOKENIZER)
        special = self._special(ids, "source")
        with self._naming("source.spm"):
            return source_tokenizer(model, ids, special)

    @cached_property
    def target(self) -> Imported:
        ids, model = self._ids("target"), self._read("target.spm", MAX_TOKENIZER)
        special = self._special(ids, "target")
        with self._naming("target.spm"):
            return target_tokenizer(model, ids, special, self._sizes[1])

    @property
    def tokenizers(self) -> Tokenizers:
        return Tokenizers(self.source.tokenizer, self.target.tokenizer)

    # Configuration

    @cached_property
    def config(self) -> Config:
        try:
            return self._config()
        except ConfigError as error:
            raise ConfigError(f"{self.folder / CONFIG}: {error}") from None

    def _config(self) -> Config:
        size, flag = self._size, self._flag
        name = str(self.settings.get("activation_function", "gelu"))
        if name not in ACTIVATIONS:
            raise ConfigError(
                f"activation_function {name!r} has no counterpart here; only {', '.join(ACTIVATIONS)} have"
            )
        model = TransformerConfig(
            vocab_size=self.source.tokenizer.size,
            target_vocab_size=self.target.tokenizer.size,
            d_model=size("d_model"),
            num_layers=size("encoder_layers"),
            d_ff=size("encoder_ffn_dim"),
            num_heads=size("encoder_attention_heads"),
            decoder_num_layers=size("decoder_layers"),
            decoder_d_ff=size("decoder_ffn_dim"),
            decoder_num_heads=size("decoder_attention_heads"),
            activation=ACTIVATIONS[name],
            output_bias=True,
            share_source_target=False,
            # without a scale, the embedding is smaller than the output by ours
            share_target_output=self._is_tied and flag("scale_embedding", False),
        )
        return Config(text=self._text(), model=model, decode=self._decode())

    def _text(self) -> TextConfig:
        return TextConfig(
            model=self.source.tokenizer.kind,
            vocab_size=self.source.tokenizer.size,
            joint=False,
            byte_fallback=bool(self.source.tokenizer.piece_table().byte_ids),
            normalization=NORMALIZATION,
            max_length=self._size("max_position_embeddings", 1024),
        )

    @property
    def _is_tied(self) -> bool:
        return self._flag("tie_word_embeddings", True)

    def _decode(self) -> DecodeConfig:
        has_own = (self.folder / GENERATION).exists()
        given = {**self.settings, **(self._json(GENERATION) if has_own else {})}
        beam, alpha = given.get("num_beams"), given.get("length_penalty")
        return DecodeConfig(
            beam=beam if type(beam) is int and 1 <= beam <= 100 else DecodeConfig.beam,
            length_penalty=float(alpha) if isinstance(alpha, int | float) and 0 <= alpha <= 10 else 1.0,
            length_penalty_form="power",
        )

    # Weights

    def _shapes(self) -> Shapes:
        """Everything that the library stores, embeddings and outputs apart."""
        config, width = self.config.model, self._size("d_model")
        assert isinstance(config, TransformerConfig)
        shapes: Shapes = {}
        for side, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
            for number in range(stack.num_layers):
                layer = f"model.{side}.layers.{number}"
                for attention in ("self_attn", *(["encoder_attn"] if side == "decoder" else [])):
                    for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                        shapes[f"{layer}.{attention}.{part}.weight"] = (width, width)
                        shapes[f"{layer}.{attention}.{part}.bias"] = (width,)
                    shapes |= {f"{layer}.{attention}_layer_norm.{part}": (width,) for part in ("weight", "bias")}
                shapes[f"{layer}.fc1.weight"], shapes[f"{layer}.fc1.bias"] = (stack.d_ff, width), (stack.d_ff,)
                shapes[f"{layer}.fc2.weight"], shapes[f"{layer}.fc2.bias"] = (width, stack.d_ff), (width,)
                shapes |= {f"{layer}.final_layer_norm.{part}": (width,) for part in ("weight", "bias")}
        return shapes

    def _stored(self, shapes: Shapes) -> dict[str, Tensor]:
        """The tensors of the checkpoint, whichever file has them; no larger than such a model can be."""
        width, rows = self._size("d_model"), 2 * sum(self._sizes) + 2 * self._size("max_position_embeddings", 1024)
        parameters = sum(map(math.prod, shapes.values())) + (rows + 8) * width + sum(self._sizes)
        most = parameters * MAX_BYTES_PER_PARAMETER + MAX_HEADER
        if (self.folder / SAFETENSORS).exists():
            path, content = self.folder / SAFETENSORS, self._read(SAFETENSORS, most)
            check_header(content, path, DOWNLOAD)
            try:
                return safetensors.torch.load(content)
            except Exception as error:  # safetensors raises its own type, and others for hostile headers
                raise not_safetensors(path, error, DOWNLOAD) from None
        if not (self.folder / PICKLED).exists():
            raise ModelError(f"{self.folder}: has neither {SAFETENSORS} nor {PICKLED}; {DOWNLOAD}")
        content = self._read(PICKLED, most)
        try:
            _refuse_compressed(content)
            # tensors only: the sole place where a pickle is read, because many of these models have nothing else
            stored = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)  # noqa: TID251
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise ModelError(f"{self.folder / PICKLED}: not a checkpoint of tensors ({reason}); {DOWNLOAD}") from None
        if not isinstance(stored, dict) or not all(isinstance(each, Tensor) for each in stored.values()):
            raise ModelError(f"{self.folder / PICKLED}: not a dictionary of tensors; {DOWNLOAD}")
        for name, tensor in stored.items():  # the same number again and again takes no room in a file
            if tensor.layout != torch.strided or tensor.numel() * tensor.element_size() > len(content):
                raise ModelError(f"{self.folder / PICKLED}: {name} is larger than the file; {DOWNLOAD}")
        return stored

    def weights(self) -> dict[str, Tensor]:
        """The weights of our model."""
        config, shapes = self.config.model, self._shapes()
        assert isinstance(config, TransformerConfig)
        stored = self._stored(shapes)
        order = self._order(config.d_model)

        def take(name: str, shape: tuple[int, ...]) -> Tensor:
            found = stored.get(name)
            if found is None or found.shape != shape or not found.is_floating_point():
                problem = "is missing" if found is None else f"is {found.dtype} {list(found.shape)}"
                raise ModelError(f"{self.folder}: {name} {problem}, expected {list(shape)} of floats; {DOWNLOAD}")
            if not found.isfinite().all():
                raise ModelError(f"{self.folder}: {name} has numbers that are not finite; {DOWNLOAD}")
            return found.float()

        self._check_positions(stored)
        taken = {name: take(name, shape) for name, shape in shapes.items()}
        found = self._embeddings(config, stored, take, order)
        for ours, theirs, norm_of in _parts(config):
            for part in ("weight", "bias"):
                found[f"{ours}.{part}"] = _permuted(f"{theirs}.{part}", taken, order, norm_of)
        return found

    def _order(self, width: int) -> Tensor:
        """Where each of our dimensions is in theirs: Marian has sines before cosines."""
        return huggingface.permutation(width).argsort()

    def _check_positions(self, stored: Mapping[str, Tensor]) -> None:
        """Old files have tables of positions; they must be those that we compute."""
        for side in ("encoder", "decoder"):
            table = stored.get(f"model.{side}.embed_positions.weight")
            if table is None:
                continue
            width, most = self._size("d_model"), self._size("max_position_embeddings", 1024)
            if table.ndim != 2 or len(table) > most or table.size(1) != width:
                raise ModelError(f"{self.folder}: the positions of its {side} are {list(table.shape)}; {DOWNLOAD}")
            expected = sinusoids(torch.arange(len(table)), width)[:, huggingface.permutation(width)].float()
            if not torch.allclose(table.float(), expected, atol=1e-4 if table.dtype == torch.float32 else 1e-2):
                raise ConfigError(f"{self.folder}: the positions of its {side} are not sinusoidal; give another model")

    def _embeddings(
        self,
        config: TransformerConfig,
        stored: Mapping[str, Tensor],
        take: Callable[[str, tuple[int, ...]], Tensor],
        order: Tensor,
    ) -> dict[str, Tensor]:
        """Embeddings and output, their rows in the order of our ids."""
        width, (sources, targets) = config.d_model, self._sizes
        scale = 1.0 if self._flag("scale_embedding", False) else config.d_model**-0.5
        if self._shared:
            names = [name for name in ("model.shared.weight", "lm_head.weight") if name in stored]
            both = take(names[0] if names else "model.shared.weight", (sources, width))
            source, target = both, both
        else:
            source = take("model.encoder.embed_tokens.weight", (sources, width))
            tied = "model.decoder.embed_tokens.weight" not in stored and self._is_tied
            target = take("lm_head.weight" if tied else "model.decoder.embed_tokens.weight", (targets, width))
        output = target if self._is_tied else take("lm_head.weight", (targets, width))
        bias = take("final_logits_bias", (1, targets))[0] if "final_logits_bias" in stored else torch.zeros(targets)
        rows = self.target.rows
        output_bias = bias[rows]
        own = self.target.own_ids()
        output_bias[[place for place, theirs in enumerate(rows) if own[theirs] != place]] = NEVER
        found = {
            "source_embedding.weight": source[self.source.rows][:, order] * scale,
            "target_embedding.weight": target[rows][:, order] * scale,
            "output.bias": output_bias,
        }
        if not config.share_target_output:
            found["output.weight"] = output[rows][:, order]
        return found

    # The check

    def _predicted(self, ids: SpecialIds) -> set[int]:
        """Special ids that are predicted, whatever else they mean."""
        return {ids.end}

    def translate(self, texts: Sequence[str], limit: int) -> list[list[int]]:
        """Greedy search with transformers, as ids of ours."""
        own = self.target.own_ids()
        ids = self._special(self._ids("target"), "target")
        never = {ids.pad, ids.unk, ids.start} - self._predicted(ids)
        # one more: the last may be forced to be the end
        try:
            found = huggingface.translate(self.folder, texts, limit + 1, never=sorted(never), classes=self.LIBRARY)
        except Exception as error:  # anything that the other library may raise
            reason = str(error).partition("\n")[0]
            raise ModelError(
                f"{self.folder}: transformers cannot run it ({type(error).__name__}: {reason}); use --no-check"
            ) from error
        return [[own[theirs] for theirs in row[:limit]] for row in found]


def _refuse_compressed(content: bytes) -> None:
    """Refuse an archive that is larger unpacked: PyTorch compresses nothing."""
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(part.file_size for part in archive.infolist()) > len(content):
                raise ValueError("it is compressed")


def _parts(config: TransformerConfig) -> Iterator[tuple[str, str, bool]]:
    """Our name of each matrix or norm, theirs, and whether it is a norm."""
    for side, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        attentions = {"self_attention": "self_attn"}
        if side == "decoder":
            attentions["cross_attention"] = "encoder_attn"
        for number in range(stack.num_layers):
            ours, theirs = f"{side}.layers.{number}", f"model.{side}.layers.{number}"
            for own, other in attentions.items():
                for part, name in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "out")):
                    yield f"{ours}.{own}.{part}", f"{theirs}.{other}.{name}_proj", False
                yield f"{ours}.{own}_residual.layer_norm", f"{theirs}.{other}_layer_norm", True
            yield f"{ours}.feed_forward.inner", f"{theirs}.fc1", False
            yield f"{ours}.feed_forward.outer", f"{theirs}.fc2", False
            yield f"{ours}.feed_forward_residual.layer_norm", f"{theirs}.final_layer_norm", True


def _permuted(name: str, taken: Mapping[str, Tensor], order: Tensor, is_norm: bool) -> Tensor:
    """A tensor with every axis of the model's width in our order."""
    found = taken[name]
    layer, kind = name.rpartition(".")[::2]
    writes = layer.endswith(("out_proj", "fc2")) or is_norm  # its output is as wide as the model, not its input
    if writes:
        return found[order]
    return found[:, order] if kind == "weight" else found
