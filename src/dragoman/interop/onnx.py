"""Writes a model as ONNX graphs, under the names that Optimum and transformers.js expect.

The encoder and a decoder with cache, each in float32 and int8 (`_quantized`); ONNX Runtime runs them alone. One decoder
serves the first step and all others: `use_cache_branch` says whether there is a past.
"""

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.config import ModelConfig, TransformerConfig, require_choice
from dragoman.errors import ConfigError
from dragoman.files import make_directory, write_synced
from dragoman.int8 import Array
from dragoman.interop.common import (
    Exported,
    Source,
    check_tokens,
    directory_size,
    load_source,
    new_directory,
    normalization_code,
    normalization_imports,
    readme,
    refuse_recurrent,
    source_ids,
)
from dragoman.interop.huggingface import model_config, special_ids, to_json
from dragoman.interop.onnx_graph import BOOL, FLOAT, INT64, Dims, Graph, Products
from dragoman.interop.onnx_layers import (
    Memory,
    decode,
    encode,
    padding_mask,
    project_to_vocabulary,
    source_memory,
)
from dragoman.interop.tokenizer_json import to_tokenizer_json

FOLDER = "onnx"
ENCODER, DECODER = "encoder_model", "decoder_model_merged"
SUFFIXES = {"float32": "", "int8": "_quantized"}
KINDS = ("decoder", "encoder")  # of the caches: the target so far, and the source
PARTS = ("key", "value")
LARGEST_FILE = 2_000_000_000  # bytes: a protocol buffer has less than 2 GiB


def to_onnx(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    quantization: str | None = None,
    check: bool = True,
) -> Exported:
    """Export a model directory, or a bundled model, to the new directory `out`.

    quantization: float32 or int8 to write only one of them; None writes both.
    check: compare a few sentences in ONNX Runtime, before weights are rounded.
    """
    if quantization is not None:
        require_choice("quantization", quantization, tuple(SUFFIXES))
    out = Path(out)
    with new_directory(out) as directory:
        source = load_source(model, refuse)
        make_directory(directory / FOLDER)
        checked = None
        if check or quantization != "int8":
            _write_graphs(source, directory, "float32")
        if check:
            checked = check_tokens(source, partial(translate, directory, source), "onnxruntime", out)
        if quantization == "int8":
            for path in (directory / FOLDER).iterdir():
                path.unlink()
        if quantization != "float32":
            _write_graphs(source, directory, "int8")
        for name, content in _files(source, quantization).items():
            write_synced(directory / name, content)
    return Exported(out, "onnxruntime", directory_size(out), checked)


def refuse(config: ModelConfig) -> None:
    """Raise an error for what the readers of these names cannot run."""
    refuse_recurrent(config, "ONNX")
    assert isinstance(config, TransformerConfig)
    size = config.decoder
    found = [
        f"model.{name}: {getattr(size, name)} is not possible in transformers.js, where it is d_model / num_heads, "
        f"here {size.d_model} / {size.num_heads}"
        for name in ("d_k", "d_v")
        if getattr(size, name) * size.num_heads != size.d_model
    ]
    if found:
        raise ConfigError("; ".join(found) + "; export to ctranslate2")


# Graphs


def _write_graphs(source: Source, directory: Path, kind: Products) -> None:
    for name, build in ((ENCODER, encoder_graph), (DECODER, decoder_graph)):
        graph = build(source, kind)
        if graph.num_bytes > LARGEST_FILE:
            raise ConfigError(
                f"model: {name}.onnx would have {graph.num_bytes:,} bytes in {kind}, and ONNX has at most "
                f"{LARGEST_FILE:,}; give --quantization int8, or export to ctranslate2"
            )
        write_synced(directory / FOLDER / f"{name}{SUFFIXES[kind]}.onnx", graph.to_bytes({"source": source.name}))


def encoder_graph(source: Source, products: Products) -> Graph:
    graph = Graph(ENCODER, products)
    ids_BS = graph.input("input_ids", INT64, ["batch_size", "encoder_sequence_length"])
    mask_BS = graph.input("attention_mask", INT64, ["batch_size", "encoder_sequence_length"])
    state_BSM = encode(graph, source.model, ids_BS, padding_mask(graph, mask_BS), source.num_positions)
    width = source.shape.encoder.d_model
    graph.output("last_hidden_state", state_BSM, FLOAT, ["batch_size", "encoder_sequence_length", width])
    return graph


def decoder_graph(source: Source, products: Products) -> Graph:
    graph = Graph(DECODER, products)
    model, config, size = source.model, source.shape, source.shape.decoder
    mask_BS = graph.input("encoder_attention_mask", INT64, ["batch_size", "encoder_sequence_length"])
    ids_BT = graph.input("input_ids", INT64, ["batch_size", "decoder_sequence_length"])
    memory_BSM = graph.input(
        "encoder_hidden_states", FLOAT, ["batch_size", "encoder_sequence_length", config.encoder.d_model]
    )
    given: dict[str, list[Memory]] = {kind: [] for kind in KINDS}
    for layer in range(size.num_layers):
        for kind in KINDS:
            dims: Dims = ["batch_size", size.num_heads, f"past_{kind}_sequence_length", size.d_k]
            given[kind].append(
                Memory(*(graph.input(f"past_key_values.{layer}.{kind}.{part}", FLOAT, dims) for part in PARTS))
            )
    has_past = graph.input("use_cache_branch", BOOL, [1])

    target = [Memory(*(_kept(graph, each, has_past) for each in memory)) for memory in given["decoder"]]
    cached = _source_memory(graph, source, memory_BSM, given["encoder"], has_past)
    decoded = decode(graph, model, ids_BT, target, cached, padding_mask(graph, mask_BS), source.num_positions)
    logits_BTV = project_to_vocabulary(graph, model, decoded.state_BTM)

    graph.output("logits", logits_BTV, FLOAT, ["batch_size", "decoder_sequence_length", config.target_vocabulary])
    for layer, memories in enumerate(zip(decoded.target, cached, strict=True)):
        for kind, memory in zip(KINDS, memories, strict=True):
            for part, value in zip(PARTS, memory, strict=True):
                dims = ["batch_size", size.num_heads, f"{kind}_sequence_length_out", size.d_k]
                graph.output(f"present.{layer}.{kind}.{part}", value, FLOAT, dims)
    return graph


def _kept(graph: Graph, past_BHTD: str, has_past: str) -> str:
    """The past, or nothing of what is given as one in the first step."""
    length = graph.add("Mul", graph.size(past_BHTD, 2), graph.add("Cast", has_past, to=INT64))
    return graph.add("Slice", past_BHTD, graph.ints(0), length, graph.ints(2))


def _source_memory(
    graph: Graph, source: Source, memory_BSM: str, past: Sequence[Memory], has_past: str
) -> list[Memory]:
    """Keys and values of the source: computed in the first step, then passed on."""
    size = source.shape.decoder
    dims: Dims = ["batch_size", size.num_heads, "source_length", size.d_k]
    with graph.branch() as passed_on:
        for memory in past:
            passed_on.results += [(graph.add("Identity", each), dims) for each in memory]
    with graph.branch() as computed:
        for memory in source_memory(graph, source.model, memory_BSM):
            computed.results += [(each, dims) for each in memory]
    names = graph.choose(has_past, passed_on, computed)
    return [Memory(*names[place : place + 2]) for place in range(0, len(names), 2)]


# Files


def _files(source: Source, quantization: str | None) -> dict[str, bytes]:
    tokenizers, ids = source.tokenizers, source.tokenizers.target.vocabulary
    joint = tokenizers.source is tokenizers.target
    names = {"pad_token": ids.pad, "unk_token": ids.unk, "bos_token": ids.bos, "eos_token": ids.eos}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: tokenizers.target.pieces([index])[0] for name, index in names.items()},
        "model_max_length": source.config.text.max_length,
        "clean_up_tokenization_spaces": False,
    }
    generation = {
        **special_ids(source),
        "suppress_tokens": list(ids.never_predicted),
        "max_new_tokens": _longest_target(source),  # with </s>
    }
    files = {
        "config.json": to_json({**model_config(source), "d_model": source.shape.decoder.d_model}),
        "generation_config.json": to_json(generation),
        "tokenizer.json": _compact(to_tokenizer_json(tokenizers.source)),
        "tokenizer_config.json": to_json(tokenizer_config),
        "README.md": _readme(source, quantization).encode(),
    }
    if not joint:
        files["target_tokenizer.json"] = _compact(to_tokenizer_json(tokenizers.target))
    return files


def _longest_target(source: Source) -> int:
    asked = source.config.text.max_length + source.config.decode.max_extra
    return min(asked, source.num_positions - 1)


def _compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


CARD_HEAD = """\
---
library_name: transformers.js
pipeline_tag: translation
tags: [onnx, dragoman]
---

"""  # what the hub reads of a model card


def _readme(source: Source, quantization: str | None) -> str:
    form, decode_config, size = source.config.text.normalization, source.config.decode, source.shape.decoder
    suffix = SUFFIXES[quantization or "float32"]
    joint = source.tokenizers.source is source.tokenizers.target
    target = "tokenizer" if joint else 'Tokenizer.from_file("target_tokenizer.json")'
    ids = source.tokenizers.target.vocabulary
    program = f"""\
{normalization_imports(form)}
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
encoder = onnxruntime.InferenceSession("onnx/{ENCODER}{suffix}.onnx")
decoder = onnxruntime.InferenceSession("onnx/{DECODER}{suffix}.onnx")
text = "..."  # one sentence
ids = np.array([tokenizer.encode({normalization_code(form)}).ids])
mask = np.ones_like(ids)
(states,) = encoder.run(None, {{"input_ids": ids, "attention_mask": mask}})
empty = np.zeros((1, {size.num_heads}, 0, {size.d_k}), np.float32)
given = {{each.name: empty for each in decoder.get_inputs()}}
given |= {{"encoder_attention_mask": mask, "encoder_hidden_states": states, "use_cache_branch": np.array([False])}}
names, output = [each.name for each in decoder.get_outputs()], [{ids.bos}]
limit = min(ids.shape[1] + {decode_config.max_extra}, {source.num_positions - 1})
while len(output) <= limit and output[-1] != {ids.eos}:
    results = dict(zip(names, decoder.run(None, given | {{"input_ids": np.array([output[-1:]])}})))
    logits = results.pop("logits")[0, -1]
    logits[{list(ids.never_predicted)}] = -np.inf
    output.append(int(logits.argmax()))
    given |= {{name.replace("present", "past_key_values"): value for name, value in results.items()}}
    given["use_cache_branch"] = np.array([True])
print({target}.decode(output))
"""
    notes = [
        "This is greedy search. transformers.js: `await pipeline('translation', FOLDER, {dtype: 'q8'})`, or `'fp32'`; "
        "it searches greedily too.",
        "Characters that the vocabulary does not have are spelled in bytes; transformers.js has no bytes for a unigram "
        "vocabulary and reads `<unk>`.",
    ]
    if not joint:
        notes.append("transformers.js knows one vocabulary: decode its ids with `target_tokenizer.json`.")
    return CARD_HEAD + readme(source, "ONNX Runtime", "onnx", program, *notes)


# The check


def translate(
    directory: Path, source: Source, texts: Sequence[str], limit: int, kind: str = "float32"
) -> list[list[int]]:
    """Greedy search in ONNX Runtime, one sentence at a time."""
    ids = source.tokenizers.target.vocabulary
    run = GreedySearch(directory, kind, ids.never_predicted)
    return [run(source_ids(source.tokenizers.source, text), ids.bos, ids.eos, limit) for text in texts]


class GreedySearch:
    """The graphs of a folder in ONNX Runtime."""

    def __init__(self, directory: Path, kind: str, never: Sequence[int]) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.encoder, self._decoder = (
            onnxruntime.InferenceSession(
                directory / FOLDER / f"{name}{SUFFIXES[kind]}.onnx", options, providers=["CPUExecutionProvider"]
            )
            for name in (ENCODER, DECODER)
        )
        self._never = list(never)
        self._names = [each.name for each in self._decoder.get_outputs()]
        pasts = [each for each in self._decoder.get_inputs() if each.name.startswith("past")]
        self.empty = {each.name: np.zeros((1, each.shape[1], 0, each.shape[3]), np.float32) for each in pasts}

    def __call__(self, source: Sequence[int], start: int, end: int, limit: int) -> list[int]:
        ids = np.array([source], np.int64)
        mask = np.ones_like(ids)
        (states,) = self.encoder.run(None, {"input_ids": ids, "attention_mask": mask})
        given: dict[str, Any] = {"encoder_attention_mask": mask, "encoder_hidden_states": states, **self.empty}
        found: list[int] = []
        while len(found) < limit and (not found or found[-1] != end):
            given["input_ids"] = np.array([[found[-1] if found else start]], np.int64)
            given["use_cache_branch"] = np.array([bool(found)])
            logits_BTV, present = self.step(given)
            logits_V = logits_BTV[0, -1]
            logits_V[self._never] = -np.inf
            found.append(int(logits_V.argmax()))
            given |= present
        return found

    def step(self, given: dict[str, Any]) -> tuple[Array, dict[str, Array]]:
        """The logits of the next ids, and the past for the step after."""
        results = dict(zip(self._names, self._decoder.run(None, given), strict=True))
        logits_BTV = results.pop("logits")
        return logits_BTV, {name.replace("present", "past_key_values"): value for name, value in results.items()}
