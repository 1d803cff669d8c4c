"""Writes a model as a folder of static files: a page that translates in the browser, without a server.

Weights are stored as bytes and restored to float32 when the page loads them. So the page chooses the same tokens as
dragoman in float32 with the weights of an int8 model; int8 products would round differently on every machine. The page
has its own tokenizer and beam search, in `web_page/`. The graphs give it only the best candidates of each step and the
attention to the source.
"""

import hashlib
import json
import os
import sys
import unicodedata
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sentencepiece
import sentencepiece.sentencepiece_model_pb2

from dragoman.config import ModelConfig
from dragoman.errors import ConfigError
from dragoman.files import write_synced
from dragoman.int8 import Array
from dragoman.interop.common import (
    CHECKED_TOKENS,
    Exported,
    Source,
    check_tokens,
    directory_size,
    load_source,
    new_directory,
    refuse_recurrent,
    source_ids,
)
from dragoman.interop.onnx_graph import FLOAT, INT32, Dims, Graph, Products, WeightFile
from dragoman.interop.onnx_layers import Memory, decode, encode, project_to_vocabulary, source_memory
from dragoman.interop.web_runtime import read_runtime
from dragoman.text.normalize import SPACE_MARK
from dragoman.text.tokenizer import Tokenizer

spm: Any = sentencepiece.sentencepiece_model_pb2  # made by protobuf, which mypy cannot see into
PAGE = files("dragoman.interop") / "web_page"
# Module names end in .js: not every web host knows .mjs.
RUNTIME = {
    "ort.wasm.min.mjs": "ort.js",
    "ort-wasm-simd-threaded.mjs": "ort-threads.js",
    "ort-wasm-simd-threaded.wasm": "ort.wasm",
}
MAX_BEAM = 8
MOST_KEPT = 100  # characters; sentencepiece's own tables have one
PARTS = ("key", "value")


def to_web(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    runtime: str | os.PathLike[str] | None = None,
    check: bool = True,
) -> Exported:
    """Export a model directory, or a bundled model, to the new directory `out`, for any web host.

    runtime: a folder with the npm package onnxruntime-web; None downloads it once.
    check: compare a few sentences in ONNX Runtime, before weights are rounded.
    """
    out = Path(out)
    found = read_runtime(None if runtime is None else Path(runtime))
    with new_directory(out) as directory:
        source = load_source(model, refuse)
        checked = None
        if check:
            checked = check_tokens(source, partial(translate, source, graphs(source, "float32")), "onnxruntime", out)
        for name, content in _files(source, {RUNTIME[name]: content for name, content in found.items()}).items():
            write_synced(directory / name, content)
    return Exported(out, "onnxruntime", directory_size(out), checked)


def refuse(config: ModelConfig) -> None:
    refuse_recurrent(config, "the web page")


# Graphs


class Graphs(NamedTuple):
    """The files of both graphs and the weights that they share."""

    encoder: bytes
    decoder: bytes
    weights_name: str
    weights: bytes


def graphs(source: Source, products: Products = "restored") -> Graphs:
    # a hash of the weights is in the name, so that no cache mixes those of two exports
    digest = hashlib.sha256()
    for weight in source.model.state_dict().values():
        digest.update(weight.numpy().tobytes())
    weights = WeightFile(f"weights-{digest.hexdigest()[:12]}.bin")
    encoder, decoder = (
        build(source, Graph(name, products, weights)).to_bytes({"source": source.name})
        for name, build in (("encoder", _encoder), ("decoder", _decoder))
    )
    return Graphs(encoder, decoder, weights.name, bytes(weights.content))


def _encoder(source: Source, graph: Graph) -> Graph:
    """The ids of one sentence -> the source's keys and values for every layer of the decoder."""
    ids_BS = graph.input("ids", INT32, [1, "source"])
    memory_BSM = encode(graph, source.model, ids_BS, None, num_positions(source))
    for layer, memory in enumerate(source_memory(graph, source.model, memory_BSM)):
        for part, value, dims in zip(PARTS, memory, _dims(source, 1, "source"), strict=True):
            graph.output(f"source.{layer}.{part}", value, FLOAT, dims)
    return graph


def _decoder(source: Source, graph: Graph) -> Graph:
    """The newest id of every hypothesis, and which one it continues -> the best next ids of each, and the attention."""
    size = source.shape.decoder
    ids_W = graph.input("ids", INT32, ["hypotheses"])
    parent_W = graph.input("parents", INT32, ["hypotheses"])
    past: list[Memory] = []
    cross: list[Memory] = []
    for layer in range(size.num_layers):
        for name, found, rows, length in (("past", past, "parents", "known"), ("source", cross, 1, "source")):
            names = zip(PARTS, _dims(source, rows, length), strict=True)
            found.append(Memory(*(graph.input(f"{name}.{layer}.{part}", FLOAT, dims) for part, dims in names)))
    past = [Memory(*(graph.add("Gather", each, parent_W, axis=0) for each in memory)) for memory in past]
    ids_W1 = graph.add("Unsqueeze", ids_W, graph.ints(1))
    decoded = decode(graph, source.model, ids_W1, past, cross, None, num_positions(source), one_source=True)
    logits_WV = graph.add("Squeeze", project_to_vocabulary(graph, source.model, decoded.state_BTM), graph.ints(1))
    best = [graph.add("LogSoftmax", logits_WV, axis=-1), graph.ints(_candidates(source))]
    value_WC, id_WC = graph.add_all("TopK", best, 2, axis=-1)
    graph.output("values", value_WC, FLOAT, ["hypotheses", "candidates"])
    graph.output("candidates", graph.add("Cast", id_WC, to=INT32), INT32, ["hypotheses", "candidates"])
    means = [graph.add("ReduceMean", weight_1HWS, axes=[1], keepdims=0) for weight_1HWS in decoded.cross_BHQK]
    graph.output("attention", graph.add("Concat", *means, axis=0), FLOAT, [size.num_layers, "hypotheses", "source"])
    for layer, memory in enumerate(decoded.target):
        for part, value, dims in zip(PARTS, memory, _dims(source, "hypotheses", "length"), strict=True):
            graph.output(f"present.{layer}.{part}", value, FLOAT, dims)
    return graph


def _dims(source: Source, rows: int | str, length: str) -> tuple[Dims, Dims]:
    size = source.shape.decoder
    return [rows, size.num_heads, length, size.d_k], [rows, size.num_heads, length, size.d_v]


def num_positions(source: Source) -> int:
    """As many as the page can use, which splits what is longer, or as the check needs."""
    used = _longest_source(source) + source.config.decode.max_extra + 1
    return min(source.num_positions, max(used, CHECKED_TOKENS + 1))


def _longest_source(source: Source) -> int:
    return min(source.config.text.max_length, source.shape.longest or source.config.text.max_length)


def _candidates(source: Source) -> int:
    never = len(source.tokenizers.target.vocabulary.never_predicted)
    return min(2 * MAX_BEAM + never, source.shape.target_vocabulary)


# Files


def _files(source: Source, runtime: dict[str, bytes]) -> dict[str, bytes]:
    encoder, decoder, weights_name, weights = graphs(source)
    content = {"encoder.onnx": encoder, "decoder.onnx": decoder, weights_name: weights, **runtime}
    page = {path.name: path.read_bytes() for path in PAGE.iterdir() if path.name.endswith((".js", ".html", ".css"))}
    content["model.json"] = _model_json(source, content, weights_name)
    version = hashlib.sha256(b"".join(value for _, value in sorted((content | page).items()))).hexdigest()[:16]
    listed = json.dumps(sorted({*content, *page} - {"service-worker.js"}))
    for name, text in (("VERSION", version), ("FILES", listed)):
        page["service-worker.js"] = page["service-worker.js"].replace(f"%{name}%".encode(), text.encode())
    return content | page | {"README.md": _readme(source).encode()}


def _model_json(source: Source, content: dict[str, bytes], weights_name: str) -> bytes:
    """What the page needs to know; JSON is text in every browser's cache."""
    tokenizers, decode_config, size = source.tokenizers, source.config.decode, source.shape.decoder
    ids = tokenizers.target.vocabulary
    settings = {
        "name": source.name,
        "source": _tokenizer(tokenizers.source),
        "target": None if tokenizers.source is tokenizers.target else _tokenizer(tokenizers.target),
        "start": ids.bos,
        "end": ids.eos,
        "never": list(ids.never_predicted),
        "languages": {language: tokenizers.source.tag(language) for language in tokenizers.source.languages},
        "language": decode_config.target_language or None,
        "bySentences": decode_config.split == "sentences",
        "longestSource": _longest_source(source),
        "maxExtra": decode_config.max_extra,
        "longest": num_positions(source),
        "beam": min(decode_config.beam, MAX_BEAM),
        "lengthPenalty": decode_config.length_penalty,
        "lengthPenaltyForm": decode_config.length_penalty_form,
        "layers": size.num_layers,
        "heads": size.num_heads,
        "widths": [size.d_k, size.d_v],
        "weights": weights_name,
        "bytes": {name: len(value) for name, value in content.items()},
    }
    return json.dumps(settings, ensure_ascii=False, separators=(",", ":")).encode()


def _tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    table = tokenizer.piece_table()
    names = tokenizer.pieces(range(tokenizer.size))
    return {
        "own": own_normalization(tokenizer),
        "kind": tokenizer.kind,
        "normalization": tokenizer.normalization,
        "unknown": tokenizer.vocabulary.unk,
        "end": tokenizer.vocabulary.eos,
        "textless": sorted({*range(tokenizer.size)} - {*table.ids.values(), *table.byte_ids, tokenizer.vocabulary.unk}),
        "bytes": table.byte_ids,
        "pieces": names,
        # nine digits restore a float32; null: not a piece of text
        "scores": [float(f"{table.scores[name]:.9g}") if name in table.scores else None for name in names],
    }


def own_normalization(tokenizer: Tokenizer) -> dict[str, Any] | None:
    """What an imported sentencepiece model does to text: a Unicode form, then other single characters. Ours do nothing.

    Its table is compiled and has some 200,000 entries; nearly all of them are the form. Every character is compared;
    `kept` are those that the form must not change.
    """
    model = spm.ModelProto.FromString(tokenizer.to_bytes())
    spec = model.normalizer_spec
    unusual = any(piece.type == piece.USER_DEFINED for piece in model.pieces)
    if unusual or not spec.add_dummy_prefix or model.trainer_spec.treat_whitespace_as_suffix:
        raise ConfigError(
            "tokenizer: it has symbols of its own or other marks of spaces, which the web page does not have; "
            "export to onnx"
        )
    if not spec.precompiled_charsmap:
        return None
    processor: Any = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(tokenizer.to_bytes())
    codes = map(chr, range(sys.maxunicode + 1))
    in_use = (each for each in codes if unicodedata.category(each) not in ("Cn", "Co", "Cs"))
    characters = [each for each in in_use if each != SPACE_MARK]  # no text has it
    texts = processor.normalize([f"({each})" for each in characters])  # parentheses compose with nothing
    becomes = {
        each: text.removeprefix(SPACE_MARK)[1:-1].replace(SPACE_MARK, " ")
        for each, text in zip(characters, texts, strict=True)
    }
    for form in ("NFKC", "NFC"):
        composed = {each: unicodedata.normalize(form, each) for each in characters}
        others = {each: becomes[each] for each in characters if composed[each] == each != becomes[each]}
        kept = [
            each for each in characters if "".join(others.get(part, part) for part in composed[each]) != becomes[each]
        ]
        if len(kept) <= MOST_KEPT:
            others |= {each: becomes[each] for each in kept}
            return {"form": form, "others": others, "kept": "".join(kept), "trims": spec.remove_extra_whitespaces}
    raise ConfigError(
        "tokenizer: its table of characters is neither NFC nor NFKC with other single characters, and the web page has "
        "no other; export to onnx, where the whole table is kept"
    )


def _readme(source: Source) -> str:
    return f"""\
# {source.name} in a browser

Exported from a dragoman model by `dragoman export --to web`. Put this folder on any web host, or try it here:

    python -m http.server --bind localhost

and open http://localhost:8000. Nothing that is typed leaves the browser. After the first visit the page works offline,
on https and localhost.

The model card follows.

{source.card}"""


# The check


def translate(source: Source, content: Graphs, texts: Sequence[str], limit: int) -> list[list[int]]:
    """Greedy search in ONNX Runtime with the graphs of the page."""
    ids = source.tokenizers.target.vocabulary
    run = _Search(source, content)
    return [run(source_ids(source.tokenizers.source, text), ids.bos, ids.eos, limit) for text in texts]


class _Search:
    def __init__(self, source: Source, content: Graphs) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        weights = content.weights
        options.add_external_initializers_from_files_in_memory([content.weights_name], [weights], [len(weights)])
        self._encoder, self._decoder = (
            onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
            for graph in (content.encoder, content.decoder)
        )
        self._never = source.tokenizers.target.vocabulary.never_predicted
        inputs = [each for each in self._decoder.get_inputs() if each.name.startswith("past")]
        self._empty = {each.name: np.zeros((1, each.shape[1], 0, each.shape[3]), np.float32) for each in inputs}

    def __call__(self, source: Sequence[int], start: int, end: int, limit: int) -> list[int]:
        names = [each.name for each in self._encoder.get_outputs()]
        given: dict[str, Array] = dict(
            zip(names, self._encoder.run(None, {"ids": np.array([source], np.int32)}), strict=True)
        )
        given |= self._empty | {"parents": np.zeros(1, np.int32)}
        names = [each.name for each in self._decoder.get_outputs()]
        found: list[int] = []
        while len(found) < limit and (not found or found[-1] != end):
            given["ids"] = np.array([found[-1] if found else start], np.int32)
            results = dict(zip(names, self._decoder.run(None, given), strict=True))
            found.append(next(each for each in results["candidates"][0].tolist() if each not in self._never))
            given |= {name.replace("present", "past"): value for name, value in results.items() if "present" in name}
        return found
