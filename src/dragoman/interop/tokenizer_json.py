"""A tokenizer of ours as tokenizer.json, which Hugging Face tokenizers and transformers.js read.

Text is normalised there as here. Some limits are theirs: `</s>` in a text is the special token; transformers.js has no
bytes for characters that a unigram model does not know, and both have none in models of words or characters; a sigma at
the end of a word has the wrong lower case.
"""

import base64
from typing import Any

import sentencepiece.sentencepiece_model_pb2

from dragoman.text.normalize import SPACE_MARK, Normalization, is_lowercase, keeps_no_break_spaces
from dragoman.text.tokenizer import Tokenizer

spm: Any = sentencepiece.sentencepiece_model_pb2  # made by protobuf, which mypy cannot see into
NEVER = -1e9  # the score of pieces that text is never cut into
CONTROLS = r"[\x{0}-\x{1f}\x{7f}-\x{9f}]"
# what Python takes for white space, spelled out: every language has its own idea of \s
BREAKING = r"\x{20}\x{1680}\x{2000}-\x{2006}\x{2008}-\x{200a}\x{2028}\x{2029}\x{205f}\x{3000}"
NO_BREAK = r"\x{a0}\x{2007}\x{202f}"


def to_tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    names = tokenizer.pieces(range(tokenizer.size))
    controls = {*tokenizer.vocabulary.never_predicted, tokenizer.vocabulary.eos}
    controls |= {tokenizer.tag(language) for language in tokenizer.languages}
    end = names[tokenizer.vocabulary.eos]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(index, names[index]) for index in sorted(controls)],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(tokenizer)},
        "pre_tokenizer": _pre_tokenizer(tokenizer),
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": end, "type_id": 0}}],
            "pair": [{"Sequence": {"id": side, "type_id": 0}} for side in "AB"],
            "special_tokens": {end: {"id": end, "ids": [tokenizer.vocabulary.eos], "tokens": [end]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                _replace({"String": SPACE_MARK}, " "),
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": _model(tokenizer, names),
    }


def _added(index: int, name: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": index, "content": name, **flags}


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _normalizers(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The steps of `text/normalize.py`, then those of sentencepiece: its own map, and the mark of a space."""
    form: Normalization = tokenizer.normalization
    composition = {"type": "NFKC" if form.startswith("nfkc") else "NFC"}
    steps: list[dict[str, Any]] = [composition]
    if is_lowercase(form):
        steps += [{"type": "Lowercase"}, composition]
    space = BREAKING if keeps_no_break_spaces(form) else BREAKING + NO_BREAK
    steps += [
        _replace({"String": SPACE_MARK}, "_"),
        _replace({"Regex": CONTROLS}, " "),
        _replace({"Regex": f"[{space}]+"}, " "),
        _replace({"Regex": f"^[{BREAKING}{NO_BREAK}]+"}, ""),
        _replace({"Regex": f"[{BREAKING}{NO_BREAK}]+$"}, ""),
    ]
    own = spm.ModelProto.FromString(tokenizer.to_bytes()).normalizer_spec
    if own.precompiled_charsmap:
        charsmap = base64.b64encode(own.precompiled_charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if own.remove_extra_whitespaces:
        steps += [_replace({"Regex": " +"}, " "), {"type": "Strip", "strip_left": True, "strip_right": True}]
    return [*steps, {"type": "Prepend", "prepend": SPACE_MARK}, _replace({"String": " "}, SPACE_MARK)]


def _pre_tokenizer(tokenizer: Tokenizer) -> dict[str, Any] | None:
    """Where a model may not cross: before every space (word) or every character (char)."""
    pattern = {"word": f"{SPACE_MARK}[^{SPACE_MARK}]*", "char": "."}.get(tokenizer.kind)
    if pattern is None:
        return None
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _model(tokenizer: Tokenizer, names: list[str]) -> dict[str, Any]:
    table, unknown = tokenizer.piece_table(), tokenizer.vocabulary.unk
    has_bytes = bool(table.byte_ids)
    if tokenizer.kind == "unigram":
        vocabulary = [[name, table.scores.get(name, NEVER)] for name in names]
        return {"type": "Unigram", "unk_id": unknown, "vocab": vocabulary, "byte_fallback": has_bytes}
    ids = {name: index for index, name in enumerate(names)}
    if tokenizer.kind in ("word", "char"):
        return {"type": "WordLevel", "vocab": ids, "unk_token": names[unknown]}
    ranked = sorted(table.ids, key=lambda piece: -table.scores[piece])
    merges = [
        [piece[:place], piece[place:]]
        for piece in ranked
        for place in range(1, len(piece))
        if piece[:place] in table.ids and piece[place:] in table.ids
    ]
    return {
        "type": "BPE",
        "vocab": ids,
        "merges": merges,
        "unk_token": names[unknown],
        "byte_fallback": has_bytes,
        "fuse_unk": not has_bytes,
        "ignore_merges": False,
    }
