"""Byte-level BPE, as GPT-2 and BART have it, over the package tokenizers. Knows nothing of files or models.

Such a vocabulary comes from an import and is stored as JSON: `pieces`, the name of each id; `control`, the ids that
stand for no text; `merges`, pairs of pieces in the order in which they are joined. A name spells bytes, each as one
character. Every text begins with the id `TEXT_START`, which such models expect on both sides.
"""

import functools
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

from dragoman.config import LARGEST
from dragoman.errors import ConfigError, ModelError
from dragoman.text.normalize import SPACE_MARK, Normalization, normalize, normalize_all
from dragoman.text.tokenizer import Kind, PieceTable, Span, Tokenizer
from dragoman.text.vocabulary import NUM_SPECIAL, VOCABULARY

TEXT_START = NUM_SPECIAL  # the first id after the special ones
PACKAGE = 'a byte-level vocabulary needs the package tokenizers; pip install "dragoman[huggingface]"'
NO_PIECES = (
    "text: not possible with byte-level BPE, whose pieces are not characters; use a model with another vocabulary"
)
NOT_OURS = "not a byte-level vocabulary, or damaged; copy it again from a model directory that works"


class ByteLevelTokenizer(Tokenizer):
    """A vocabulary of pieces of bytes, in which any text has ids."""

    def __init__(self, model: bytes, normalization: Normalization = "nfc") -> None:
        self._model = model
        self._names, self._control, merges = _read(model)
        self._backend = _backend(self._names, self._control, merges)
        self.vocabulary = VOCABULARY
        self.normalization: Normalization = normalization
        self.size = self.requested_size = len(self._names)

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        found = self._backend.encode_batch(normalize_all(texts, self.normalization), add_special_tokens=False)
        return [[TEXT_START, *each.ids] for each in found]

    def encode_spans(self, texts: Sequence[str]) -> list[tuple[list[int], list[Span]]]:
        found = self._backend.encode_batch(list(texts), add_special_tokens=False)
        return [([TEXT_START, *each.ids], [(0, 0), *each.offsets]) for each in found]

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        spelled = self._bytes
        texts = (b"".join([spelled[piece] for piece in ids]).decode(errors="replace") for ids in rows)
        return [normalize(text, self.normalization) for text in texts]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """What each piece says, with `▁` for a space; the bytes of one that is not a text of its own."""
        return [self._shown[piece] for piece in ids]

    @functools.cached_property
    def _bytes(self) -> list[bytes]:
        values = {character: value for value, character in byte_characters().items()}
        return [
            b"" if index in self._control else bytes(values[character] for character in name)
            for index, name in enumerate(self._names)
        ]

    @functools.cached_property
    def _shown(self) -> list[str]:
        return [
            name if index in self._control else _show(spelled)
            for index, (name, spelled) in enumerate(zip(self._names, self._bytes, strict=True))
        ]

    @functools.cached_property
    def languages(self) -> tuple[str, ...]:
        return ()

    @property
    def kind(self) -> Kind:
        return "bpe"

    def piece_table(self) -> PieceTable:
        raise ConfigError(NO_PIECES)


def to_bytes(names: Sequence[str], control: Iterable[int], merges: Iterable[tuple[str, str]]) -> bytes:
    """The stored form of a vocabulary whose first names are those of the special ids and of the start of a text."""
    return json.dumps(
        {"pieces": list(names), "control": sorted(control), "merges": [list(pair) for pair in merges]},
        ensure_ascii=False,
    ).encode()


@functools.cache
def byte_characters() -> dict[int, str]:
    """GPT-2's character for each byte: its own where that can be printed, the others from U+0100 on."""
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = itertools.count(0x100)
    return {value: chr(value if value in own else next(others)) for value in range(256)}


def _read(model: bytes) -> tuple[list[str], frozenset[int], list[tuple[str, str]]]:
    try:
        stored: Any = json.loads(model)
        names, control, merges = stored["pieces"], frozenset(stored["control"]), stored["merges"]
        is_valid = (
            all(type(part) is list and len(part) <= LARGEST for part in (names, merges))
            and all(type(pair) is list and len(pair) == 2 for pair in merges)
            and all(type(name) is str for name in itertools.chain(names, itertools.chain.from_iterable(merges)))
            and all(type(index) is int for index in control)
        )
        if is_valid:
            "".join(names).encode()  # half of a surrogate pair is not text
    except (ValueError, RecursionError, TypeError, KeyError):
        is_valid = False
    if not is_valid or not control >= {*range(TEXT_START + 1)} or max(control) >= len(names):
        raise ModelError(f"tokenizer: {NOT_OURS}")
    alphabet = {*byte_characters().values()}
    ordinary = [name for index, name in enumerate(names) if index not in control]
    if not alphabet <= {*ordinary} or not {*"".join(ordinary)} <= alphabet or len({*ordinary}) < len(ordinary):
        raise ModelError(f"tokenizer: its pieces do not spell every byte, or spell something else; {NOT_OURS}")
    return names, control, [(first, second) for first, second in merges]


def _backend(names: Sequence[str], control: frozenset[int], merges: list[tuple[str, str]]) -> Any:
    try:
        import tokenizers
    except ImportError:
        raise ConfigError(PACKAGE) from None
    ids = {name: index for index, name in enumerate(names) if index not in control}
    try:
        backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=merges))
    except Exception as error:  # the package raises plain Exceptions
        raise ModelError(f"tokenizer: {error}; {NOT_OURS}") from None
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return backend


def _show(spelled: bytes) -> str:
    try:
        text = spelled.decode().replace(" ", SPACE_MARK)
    except UnicodeDecodeError:
        text = ""
    # a terminal may obey what cannot be printed
    return text if text and text.isprintable() else "".join(f"<0x{value:02X}>" for value in spelled)
