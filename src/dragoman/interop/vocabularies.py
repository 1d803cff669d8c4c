"""The vocabulary of a Hugging Face model as a tokenizer of ours. Knows nothing of weights.

Marian has a sentencepiece model for each side but not its ids: those are in vocab.json. Ours are those of the
sentencepiece model, so the rows of embeddings and outputs are put in its order: `rows` gives Marian's id for each of
ours. BART has byte-level BPE for both sides; only its special ids move.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sentencepiece.sentencepiece_model_pb2

from dragoman.config import LARGEST
from dragoman.errors import ModelError
from dragoman.text import byte_level
from dragoman.text.normalize import Normalization
from dragoman.text.tokenizer import LANGUAGE_TAG, Tokenizer
from dragoman.text.vocabulary import VOCABULARY

spm: Any = sentencepiece.sentencepiece_model_pb2  # made by protobuf, which mypy cannot see into
LOWEST_SCORE = -1e9  # of pieces that text is never cut into
SPECIAL = {"<pad>": VOCABULARY.pad, "<unk>": VOCABULARY.unk, "<s>": VOCABULARY.bos, "</s>": VOCABULARY.eos}
NORMALIZATION: Normalization = "nfc"  # before the sentencepiece model's own; BART has no other


@dataclass(frozen=True)
class SpecialIds:
    """What the model's own ids mean."""

    pad: int
    unk: int
    start: int  # the decoder's first input
    end: int


@dataclass(frozen=True)
class Imported:
    """A tokenizer, and for each of its ids the one that the model has for it."""

    tokenizer: Tokenizer
    rows: list[int]

    def own_ids(self) -> dict[int, int]:
        """Our ids by theirs, each of which has one of ours that can be predicted.

        Where several of ours are the same there, it is the end of a text or the first one, and not the start.
        """
        start, end = VOCABULARY.bos, VOCABULARY.eos
        others = [(ours, theirs) for ours, theirs in enumerate(self.rows) if ours not in (start, end)]
        ordered = [(start, self.rows[start]), *reversed(others), (end, self.rows[end])]
        return {theirs: ours for ours, theirs in ordered}


def read_ids(content: bytes, size: int) -> dict[str, int]:
    """The ids of pieces from a vocab.json for a matrix of so many rows."""
    try:
        ids: Any = json.loads(content)
    except (ValueError, RecursionError):
        ids = None
    if not isinstance(ids, dict) or not ids:
        raise ModelError("not a JSON object of pieces and ids")
    for piece, index in ids.items():
        if not piece or (not piece.isascii() and not _is_text(piece)):
            raise ModelError(f"{piece!r} is not text")
        if type(index) is not int or not 0 <= index < size:
            raise ModelError(f"{piece!r} has the id {index!r}, and ids must be from 0 to {size - 1:,}")
    if len(set(ids.values())) < len(ids):
        raise ModelError("two pieces have the same id")
    return ids


def source_tokenizer(model: bytes, ids: Mapping[str, int], special: SpecialIds) -> Imported:
    """Only pieces that source text can have, and the tags of target languages, such as >>deu<<."""
    proto = _parsed(model)
    tags = [name for name in ids if LANGUAGE_TAG.fullmatch(name)]
    pieces = [piece for piece in _ordinary(proto) if piece.piece not in tags]
    rows = [ids.get(piece.piece, special.unk) for piece in pieces]
    pieces += [_piece(tag, spm.ModelProto.SentencePiece.CONTROL) for tag in tags]
    return _imported(proto, pieces, [*rows, *(ids[tag] for tag in tags)], special)


def target_tokenizer(model: bytes, ids: Mapping[str, int], special: SpecialIds, size: int) -> Imported:
    """Every id that Marian can predict, since each has its share of the probability."""
    proto = _parsed(model)
    pieces = _ordinary(proto)
    rows = [ids.get(piece.piece, special.unk) for piece in pieces]
    known = {*rows, special.pad, special.unk, special.start, special.end}
    names = {index: name for name, index in ids.items()}
    for index in range(size):
        if index in known:
            continue
        if index in names and names[index] not in SPECIAL:
            pieces.append(_piece(names[index], spm.ModelProto.SentencePiece.UNUSED))
        else:
            pieces.append(_piece(f"<id {index}>", spm.ModelProto.SentencePiece.CONTROL))
        rows.append(index)
    return _imported(proto, pieces, rows, special)


def byte_level_tokenizer(
    ids: Mapping[str, int], merges: Sequence[tuple[str, str]], special: SpecialIds, text_start: int, size: int
) -> Imported:
    """Byte-level BPE: the same pieces for both sides. `text_start` is the id with which every text begins."""
    text = {*byte_level.byte_characters().values(), *(first + second for first, second in merges)}
    names = {index: name for name, index in ids.items()}
    known = [special.pad, special.unk, special.start, special.end, text_start]
    rows = [*known, *(index for index in range(size) if index not in known)]
    pieces = [*SPECIAL, "<text>"]
    control = {*range(len(known))}
    for place, index in enumerate(rows[len(known) :], start=len(known)):
        name = names.get(index, f"<id {index}>")
        pieces.append(name)
        if name not in text:  # such as <mask>
            control.add(place)
    content = byte_level.to_bytes(pieces, control, merges)
    try:
        return Imported(byte_level.ByteLevelTokenizer(content, NORMALIZATION), rows)
    except ModelError as error:  # its remedy is for a model directory
        raise ModelError(str(error).removeprefix("tokenizer: ").partition(";")[0]) from None


def _parsed(model: bytes) -> Any:
    proto = spm.ModelProto()
    try:
        proto.ParseFromString(model)
    except Exception:  # of a type that only protobuf knows
        raise ModelError("not a sentencepiece model") from None
    if len(proto.pieces) > LARGEST:
        raise ModelError(f"{len(proto.pieces):,} pieces are more than {LARGEST:,}")
    return proto


def _is_text(piece: str) -> bool:
    try:
        piece.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _ordinary(proto: Any) -> list[Any]:
    """The pieces that text can have."""
    kinds = spm.ModelProto.SentencePiece
    found = [piece for piece in proto.pieces if piece.type not in (kinds.UNKNOWN, kinds.CONTROL)]
    if not found:
        raise ModelError("a sentencepiece model without pieces")
    return found


def _piece(name: str, kind: int) -> Any:
    return spm.ModelProto.SentencePiece(piece=name, score=LOWEST_SCORE, type=kind)


def _imported(proto: Any, pieces: list[Any], rows: list[int], special: SpecialIds) -> Imported:
    """With our special ids before all others."""
    kinds, changed = spm.ModelProto.SentencePiece, spm.ModelProto()
    changed.CopyFrom(proto)
    changed.ClearField("self_test_data")
    changed.ClearField("pieces")
    for name, index in SPECIAL.items():
        assert len(changed.pieces) == index
        changed.pieces.append(_piece(name, kinds.UNKNOWN if index == VOCABULARY.unk else kinds.CONTROL))
    changed.pieces.extend(pieces)
    spec = changed.trainer_spec
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = SPECIAL.values()
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = SPECIAL
    spec.vocab_size = len(changed.pieces)
    tokenizer = Tokenizer(changed.SerializeToString(deterministic=True), NORMALIZATION)
    return Imported(tokenizer, [special.pad, special.unk, special.start, special.end, *rows])
