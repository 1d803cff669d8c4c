"""Writes a model as a folder of static files: a page that translates in the browser, without a server.

Weights are stored as bytes and restored to float32 when the page loads them, so that the page and dragoman choose the
same tokens; int8 products would round differently on every machine. The page has its own tokenizer and beam search, in
`web_page/`. The graphs give it only the best candidates of each step and the attention to the source.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece.sentencepiece_model_pb2

from dragoman.config import ModelConfig
from dragoman.errors import ConfigError
from dragoman.files import write_synced
from dragoman.int8 import Array
from dragoman.interop.common import (
    Exported,
    Source,
    check_tokens,
    directory_size,
    load_source,
    new_directory,
    refuse_recurrent,
    source_ids,
)
from dragoman.interop.onnx_graph import FLOAT, INT32, Dims, Graph, WeightFile
from dragoman.interop.onnx_layers import Memory, decode, encode, project_to_vocabulary, source_memory
from dragoman.interop.web_runtime import read_runtime
from dragoman.text.tokenizer import Tokenizer

spm: Any = sentencepiece.sentencepiece_model_pb2  # made by protobuf, which mypy cannot see into
PAGE = files("dragoman.interop") / "web_page"
WEIGHTS = "weights.bin"
MAX_BEAM = 8
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
    with new_directory(out) as directory:
        source = load_source(model, refuse)
        _refuse_own_normalization(source)
        checked = None
        if check:
            checked = check_tokens(source, partial(translate, source, graphs(source, "float32")), "onnxruntime", out)
        for name, content in _files(source, read_runtime(None if runtime is None else Path(runtime))).items():
            write_synced(directory / name, content)
    return Exported(out, "onnxruntime", directory_size(out), checked)


def refuse(config: ModelConfig) -> None:
    refuse_recurrent(config, "the web page")


def _refuse_own_normalization(source: Source) -> None:
    for tokenizer in {source.tokenizers.source, source.tokenizers.target}:
        if spm.ModelProto.FromString(tokenizer.to_bytes()).normalizer_spec.precompiled_charsmap:
            raise ConfigError(
                "tokenizer: its sentencepiece model has its own table of characters, which is not possible in the web "
                "page; export to onnx, which transformers.js runs in browsers"
            )


# Graphs


def graphs(source: Source, products: Any = "restored") -> dict[str, bytes]:
    """The files of both graphs and the weights that they share."""
    weights = WeightFile(WEIGHTS)
    metadata = {"source": source.name}
    return {
        "encoder.onnx": _encoder(source, Graph("encoder", products, weights)).to_bytes(metadata),
        "decoder.onnx": _decoder(source, Graph("decoder", products, weights)).to_bytes(metadata),
        WEIGHTS: bytes(weights.content),
    }


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
    """As many as the page can use: it splits what is longer."""
    return min(source.num_positions, _longest_source(source) + source.config.decode.max_extra + 1)


def _longest_source(source: Source) -> int:
    return min(source.config.text.max_length, source.shape.longest or source.config.text.max_length)


def _candidates(source: Source) -> int:
    never = len(source.tokenizers.target.vocabulary.never_predicted)
    return min(2 * MAX_BEAM + never, source.shape.target_vocabulary)


# Files


def _files(source: Source, runtime: dict[str, bytes]) -> dict[str, bytes]:
    content = {**graphs(source), **runtime}
    page = {path.name: path.read_bytes() for path in PAGE.iterdir() if path.name.endswith((".js", ".html", ".css"))}
    content["model.json"] = _model_json(source, content)
    version = hashlib.sha256(b"".join(value for _, value in sorted((content | page).items()))).hexdigest()[:16]
    listed = json.dumps(sorted({*content, *page, "./"} - {"service-worker.js", "index.html"}))
    for name, text in (("VERSION", version), ("FILES", listed)):
        page["service-worker.js"] = page["service-worker.js"].replace(f"%{name}%".encode(), text.encode())
    return content | page | {"README.md": _readme(source).encode()}


def _model_json(source: Source, content: dict[str, bytes]) -> bytes:
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
        "bytes": {name: len(value) for name, value in content.items()},
    }
    return json.dumps(settings, ensure_ascii=False, separators=(",", ":")).encode()


def _tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    table = tokenizer.piece_table()
    names = tokenizer.pieces(range(tokenizer.size))
    return {
        "kind": tokenizer.kind,
        "normalization": tokenizer.normalization,
        "unknown": tokenizer.vocabulary.unk,
        "end": tokenizer.vocabulary.eos,
        "textless": sorted(tokenizer.vocabulary.textless),
        "bytes": table.byte_ids,
        "pieces": names,
        # nine digits restore a float32; null: not a piece of text
        "scores": [float(f"{table.scores[name]:.9g}") if name in table.scores else None for name in names],
    }


def _readme(source: Source) -> str:
    return f"""\
# {source.name} in a browser

Exported from a dragoman model by `dragoman export --to web`. Put this folder on any web host, or try it here:

    python -m http.server

and open http://localhost:8000. Nothing that is typed leaves the browser. After the first visit the page works offline,
on https and localhost.

The model card follows.

{source.card}"""


# The check


def translate(source: Source, content: dict[str, bytes], texts: Sequence[str], limit: int) -> list[list[int]]:
    """Greedy search in ONNX Runtime with the graphs of the page."""
    ids = source.tokenizers.target.vocabulary
    run = _Search(source, content)
    return [run(source_ids(source.tokenizers.source, text), ids.bos, ids.eos, limit) for text in texts]


class _Search:
    def __init__(self, source: Source, content: dict[str, bytes]) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.add_external_initializers_from_files_in_memory([WEIGHTS], [content[WEIGHTS]], [len(content[WEIGHTS])])
        self._encoder, self._decoder = (
            onnxruntime.InferenceSession(content[f"{name}.onnx"], options, providers=["CPUExecutionProvider"])
            for name in ("encoder", "decoder")
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
