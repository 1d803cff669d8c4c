"""Text to ids and back, over sentencepiece. Knows nothing of files, pairs or models.

With byte fallback, `decode(encode(text)) == normalize(text)` for any Unicode text, without unknown ids, and no text
encodes to a special id. Whatever the ids, `decode` returns one normalised line.
"""

import functools
import hashlib
import importlib
import io
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from typing import Any, Literal, NamedTuple, Self

import sentencepiece

from dragoman.config import TextConfig
from dragoman.errors import ConfigError, DataError, ModelError
from dragoman.text.normalize import SPACE_MARK, Normalization, normalize, normalize_all
from dragoman.text.vocabulary import NUM_SPECIAL, VOCABULARY

NUM_BYTES = 256
UNSPELLED = "\0"  # occurs in no piece
TABLE_PAYS_OFF = 256  # rows to decode; the table of all pieces takes as long as a few hundred of them
# Fixed, not the machine's: unigram sums floats per thread, so a different number gives a different vocabulary.
TRAINING_THREADS = 8
# Longer lines are cut for training: sentencepiece silently skips lines over a limit, and its BPE trainer aborts the
# process at 65,536 characters without a space.
LONGEST_STRETCH = 4096
TRAINERS_OWN = "\u2585"  # marks unknown characters in the trainer, which skips whole lines that contain it
# The rarest characters of a large alphabet (Chinese, Japanese) would fill the vocabulary; as bytes they are still
# exact. Without byte fallback they would be lost, so every character is kept.
COVERAGE_WITH_BYTES = 0.9999

LANGUAGE_TAG = re.compile(r">>[\w.+@-]{1,64}<<")
Kind = Literal["unigram", "bpe", "word", "char"]
Span = tuple[int, int]  # [start, end), in characters
# Field numbers and values in sentencepiece's model file, a protocol buffer; the processor does not expose its kind.
TRAINER_SPEC, MODEL_TYPE = 2, 3
DENORMALIZER_SPEC, CHARACTER_MAP = 5, 2
KINDS: dict[int, Kind] = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


class PieceTable(NamedTuple):
    """The pieces that text can consist of."""

    ids: dict[str, int]  # of pieces that occur in text, as sentencepiece writes them
    scores: dict[str, float]  # of the same pieces: higher is merged earlier (BPE); log-probabilities (unigram)
    byte_ids: list[int]  # of the 256 bytes; empty without byte fallback


class Tokenizer:
    """One trained vocabulary. `requested_size` is the size asked for in training, `size` what the text supported."""

    def __init__(self, model: bytes, normalization: Normalization = "nfc", requested_size: int | None = None) -> None:
        self._model = model
        self._processor = _load(model)
        self.vocabulary = VOCABULARY  # checked by `_load`
        self.normalization: Normalization = normalization
        self.size = int(self._processor.get_piece_size())
        self.requested_size = requested_size or self.size
        self.threads = -1  # of `encode_batch`; -1: one for each core

    @classmethod
    def train(cls, lines: Iterable[str], config: TextConfig, *, vocab_size: int | None = None) -> Self:
        """Learn a vocabulary; the same lines and configuration give the same bytes."""
        requested = vocab_size or config.vocab_size
        normalized = (normalize(line, config.normalization) for line in lines)
        sample = _sample((line for line in normalized if line), config.training_lines)
        if not sample:
            raise DataError("text: nothing to learn a vocabulary from; give lines that are not blank")
        return cls(_train_model(sample, config, requested), config.normalization, requested)

    @classmethod
    def from_bytes(cls, data: bytes, normalization: Normalization = "nfc") -> "Tokenizer":
        if data.startswith(b"{"):  # no sentencepiece model does
            from dragoman.text.byte_level import ByteLevelTokenizer

            return ByteLevelTokenizer(data, normalization)
        return cls(data, normalization)

    def to_bytes(self) -> bytes:
        return self._model

    def __reduce__(self) -> tuple[Any, ...]:
        """For other processes."""
        return Tokenizer.from_bytes, (self.to_bytes(), self.normalization)

    @property
    def digest(self) -> str:
        """SHA-256 of everything that determines a text's ids."""
        return hashlib.sha256(self.normalization.encode() + b"\0" + self._model).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without BOS or EOS."""
        ids: list[int] = self._processor.encode(normalize(text, self.normalization))
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode each text, on all cores; a single one in this thread, because waking others takes longer."""
        if len(texts) == 1:
            return [self.encode(texts[0])]
        rows: list[list[int]] = self._processor.encode(
            normalize_all(texts, self.normalization), num_threads=self.threads
        )
        return rows

    def encode_spans(self, texts: Sequence[str]) -> list[tuple[list[int], list[Span]]]:
        """Encode each text, and say where in it each piece stands; all must be normalised.

        A piece that begins with a space covers it. Those that spell one character byte by byte all cover it.
        """
        messages: list[bytes] = self._processor.encode(list(texts), out_type="serialized_proto")
        return [self._spans(text, message) for text, message in zip(texts, messages, strict=True)]

    def _spans(self, text: str, message: bytes) -> tuple[list[int], list[Span]]:
        messages: Any = importlib.import_module("sentencepiece.sentencepiece_pb2")  # protobuf is slow to import
        pieces = messages.SentencePieceText.FromString(message).pieces
        ids, spans = [piece.id for piece in pieces], [(piece.begin, piece.end) for piece in pieces]
        for number in range(len(ids) - 2, -1, -1):
            # the last of a character's bytes covers it, and those before it cover nothing
            if spans[number][0] == spans[number][1] and self._processor.is_byte(ids[number]):
                spans[number] = spans[number + 1]
        if not text.isascii():
            characters = _character_offsets(text)
            spans = [(characters[start], characters[end]) for start, end in spans]
        return ids, spans

    def decode(self, ids: Iterable[int]) -> str:
        """Return one line of text; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_batch([[int(piece) for piece in ids]])[0]

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Decode each row of ids."""
        if len(rows) < TABLE_PAYS_OFF or self._changes_text:
            texts = [self._decode(ids) for ids in rows]
        else:
            spellings = self._spellings
            texts = ["".join([spellings[piece] for piece in ids]) for ids in rows]
            texts = [self._decode(ids) if UNSPELLED in text else text for text, ids in zip(texts, rows, strict=True)]
        # A word model spells the mark as bytes, and a model may emit the bytes of a line break.
        if self.normalization == "none":
            return [text.replace(SPACE_MARK, " ") for text in texts]
        return normalize_all([text.replace(SPACE_MARK, " ").strip(" ") for text in texts], self.normalization)

    def _decode(self, ids: Sequence[int]) -> str:
        textless = self.vocabulary.textless
        return str(self._processor.decode([piece for piece in ids if piece not in textless]))

    @functools.cached_property
    def _spellings(self) -> list[str]:
        """The text of each piece; UNSPELLED if it depends on other pieces, or is none."""
        ids, processor = list(range(self.size)), self._processor
        spellings = [name.replace(SPACE_MARK, " ") for name in self._piece_names]
        kinds = zip(processor.is_byte(ids), processor.is_control(ids), processor.is_unknown(ids), strict=True)
        odd = {index for index, kind in zip(ids, kinds, strict=True) if any(kind)}
        for index in odd | self.vocabulary.textless:
            spellings[index] = UNSPELLED
        return spellings

    @property
    def grows(self) -> bool:
        """Whether more ids only add to the text of the first ones, but for its last character."""
        return not self._changes_text

    @functools.cached_property
    def _changes_text(self) -> bool:
        """Whether sentencepiece replaces characters after it has put the pieces together."""
        spec = _field(self._model, DENORMALIZER_SPEC)
        return isinstance(spec, bytes) and bool(_field(spec, CHARACTER_MAP))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The pieces as sentencepiece writes them: `▁` for a preceding space, `<0xE2>` for a byte, `</s>` for EOS."""
        return list(map(self._piece_names.__getitem__, ids))

    @functools.cached_property
    def _piece_names(self) -> list[str]:
        names: list[str] = self._processor.id_to_piece(list(range(self.size)))
        return names

    @functools.cached_property
    def languages(self) -> tuple[str, ...]:
        """The target languages of an imported model, of which a tag such as >>deu<< selects one; its last pieces."""
        found: list[str] = []
        for index in range(self.size - 1, NUM_SPECIAL, -1):
            name = str(self._processor.id_to_piece(index))
            if not (self._processor.is_control(index) and LANGUAGE_TAG.fullmatch(name)):
                break
            found.append(name[2:-2])
        return tuple(reversed(found))

    def tag(self, language: str) -> int:
        """The id that selects one of `languages`."""
        return self.size - len(self.languages) + self.languages.index(language)

    @property
    def kind(self) -> Kind:
        """The value of `text.model` in training."""
        spec = _field(self._model, TRAINER_SPEC)
        model_type = _field(spec, MODEL_TYPE) if isinstance(spec, bytes) else None
        return KINDS[model_type] if isinstance(model_type, int) else "unigram"  # the format's default

    def piece_table(self) -> PieceTable:
        processor, every = self._processor, range(self.size)
        byte_ids = [index for index in every if processor.is_byte(index)]
        silent = (processor.is_byte, processor.is_control, processor.is_unknown, processor.is_unused)
        ids = {str(processor.id_to_piece(index)): index for index in every if not any(no(index) for no in silent)}
        scores = {piece: float(processor.get_score(index)) for piece, index in ids.items()}
        return PieceTable(ids, scores, byte_ids)


def _load(model: bytes) -> Any:
    processor = sentencepiece.SentencePieceProcessor()
    remedy = "copy it again from a model directory that works"
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError:
        raise ModelError(f"tokenizer: not a sentencepiece model, or damaged; {remedy}") from None
    found = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
    if found != astuple(VOCABULARY):
        raise ModelError(
            f"tokenizer: pad, unk, bos, eos are {found}, expected {astuple(VOCABULARY)}; "
            "give a tokenizer that dragoman trained"
        )
    return processor


def _character_offsets(text: str) -> list[int]:
    """At each offset in the UTF-8 bytes of a text, that in its characters."""
    offsets = [number for number, character in enumerate(text) for _ in character.encode()]
    return [*offsets, len(text)]


def _field(message: bytes, number: int) -> int | bytes | None:
    """The last field `number` of a protocol buffer message, as an int or bytes; None if there is none."""
    found, place = None, 0
    value: int | bytes
    while place < len(message):
        tag, place = _varint(message, place)
        if tag & 7 == 0:
            value, place = _varint(message, place)
        else:
            size = {1: 8, 5: 4}.get(tag & 7)  # fixed, else stored
            if size is None:
                size, place = _varint(message, place)
            value, place = message[place : place + size], place + size
        if tag >> 3 == number:
            found = value
    return found


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Read an integer in groups of seven bits, lowest first; return it and the position after it."""
    value = shift = 0
    while message[place] & 0x80:
        value |= (message[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
    return value | message[place] << shift, place + 1


def _sample(lines: Iterable[str], size: int) -> list[str]:
    """Pick at most `size` lines, all equally likely, the same ones every time (reservoir sampling)."""
    generator = random.Random(0)
    kept: list[str] = []
    for index, line in enumerate(lines):
        if index < size:
            kept.append(line)
        else:
            place = int(generator.random() * (index + 1))
            if place < size:
                kept[place] = line
    return kept


def _stretches(lines: Iterable[str]) -> Iterator[str]:
    """Cut the lines so that the trainer skips none of them."""
    for line in lines:
        learnable = line.replace(TRAINERS_OWN, " ")
        for start in range(0, len(learnable), LONGEST_STRETCH):
            yield learnable[start : start + LONGEST_STRETCH]


def _train_model(lines: list[str], config: TextConfig, vocab_size: int) -> bytes:
    model = io.BytesIO()
    raised: list[BaseException] = []  # while reading lines, e.g. by a signal: sentencepiece replaces it with its own

    def stretches() -> Iterator[str]:
        try:
            yield from _stretches(lines)
        except BaseException as error:
            raised.append(error)
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=stretches(),
            model_writer=model,
            model_type=config.model,
            vocab_size=vocab_size,
            hard_vocab_limit=False,  # shrinks to what the text supports
            byte_fallback=config.byte_fallback,
            character_coverage=COVERAGE_WITH_BYTES if config.byte_fallback else 1.0,
            normalization_rule_name="identity",  # dragoman's comes first
            remove_extra_whitespaces=False,
            add_dummy_prefix=config.normalization != "none",
            split_digits=True,
            max_sentence_length=LONGEST_STRETCH * 4,  # bytes
            pad_id=VOCABULARY.pad,
            unk_id=VOCABULARY.unk,
            bos_id=VOCABULARY.bos,
            eos_id=VOCABULARY.eos,
            num_threads=TRAINING_THREADS,
            minloglevel=5,
        )
    except RuntimeError as error:
        raise raised[0] if raised else _explain(str(error), config, vocab_size) from None
    return model.getvalue()


def _explain(error: str, config: TextConfig, vocab_size: int) -> ConfigError | DataError:
    """Translate sentencepiece's error: nearly always a vocabulary smaller than bytes plus alphabet."""
    alphabet = re.search(r"required_chars\. \d+ vs (\d+)", error)
    smallest = int(alphabet[1]) if alphabet else NUM_SPECIAL + NUM_BYTES * config.byte_fallback + 1
    if vocab_size >= smallest:
        return DataError(f"text: no vocabulary can be learned from it ({error.strip()}); give more text")
    remedy = f"use at least {smallest}"
    if config.byte_fallback:
        remedy += " or set text.byte_fallback = false"
    return ConfigError(f"text.vocab_size: {vocab_size} is too small for this text; {remedy}")
