"""Exports of small random models: the same numbers in the other library, refusals, and what is left after errors."""

import errno
import json
import os
import random
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from huggingface_hub import metadata_load
from typer.testing import CliRunner

import dragoman
from dragoman import bundle, files, tensors
from dragoman.cli.app import app
from dragoman.config import TextConfig
from dragoman.data.batching import pad_rows
from dragoman.errors import ConfigError, DiskError, DragomanError, ModelError
from dragoman.interop import (
    common,
    ctranslate2,
    huggingface,
    onnx_layers,
    to_ctranslate2,
    to_huggingface,
    to_onnx,
    to_web,
    web,
)
from dragoman.interop.common import Source
from dragoman.interop.onnx import GreedySearch
from dragoman.interop.tokenizer_json import to_tokenizer_json
from dragoman.text.normalize import Normalization, normalize
from dragoman.text.tokenizer import Tokenizer
from tests.exporting import LINES, SEPARATE, random_model

EXPORTS: dict[str, Callable[..., common.Exported]] = {
    "ctranslate2": to_ctranslate2,
    "huggingface": to_huggingface,
    "onnx": to_onnx,
    "web": to_web,
}
LIBRARIES = {"ctranslate2": "ctranslate2", "huggingface": "transformers", "onnx": "onnxruntime", "web": "onnxruntime"}
STORED = {"onnx": "float32 and int8", "web": "int8"}  # the others: float32
PROGRAMS = [to for to in EXPORTS if to != "web"]  # those with a program in their README


@pytest.fixture(autouse=True)
def _no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any bytes serve as ONNX Runtime Web, which no test here runs."""
    monkeypatch.setattr(web, "read_runtime", lambda _: {name: name.encode() for name in web.RUNTIME})


# Shapes that all formats express
ALL = {
    "paper": [],
    "gelu": ["model.activation=gelu"],
    "swish": ["model.activation=swish"],
    "no attention bias": ["model.attention_bias=false"],
    "output bias": ["model.output_bias=true"],
    "untied": ["model.share_source_target=false", "model.share_target_output=false"],
    "untied output": ["model.share_target_output=false"],
    "separate vocabularies": SEPARATE,
    "separate and untied": [*SEPARATE, "model.share_target_output=false", "model.output_bias=true"],
    "another decoder": ["model.decoder_num_heads=2", "model.decoder_num_layers=1", "model.decoder_d_ff=40"],
    "odd width": ["model.d_model=33", "model.num_heads=3"],
}
# those that Marian does not
NOT_MARIAN = {
    "pre-norm": ["model.norm=pre"],
    "learned": ["model.positions=learned", "model.max_positions=50"],
    "rotary": ["model.positions=rotary"],
    "no positions": ["model.positions=none"],
    "embedding norm": ["model.embedding_norm=true", "model.positions=learned", "model.max_positions=50"],
    "embedding norm and pre-norm": ["model.embedding_norm=true", "model.norm=pre"],
    "narrow decoder": ["model.decoder_d_model=24", "model.share_source_target=false"],
}
# and those that only CTranslate2 does
ONLY_CTRANSLATE2 = {
    "wide heads": ["model.d_k=12", "model.d_v=12"],
    "unequal heads": ["model.d_k=12", "model.d_v=10"],
    "unequal rotary heads": ["model.positions=rotary", "model.d_k=10", "model.d_v=12", "model.attention_bias=false"],
}


FAST = ("paper", "separate and untied", "rotary", "pre-norm", "narrow decoder")


def mostly_slow(shapes: dict[str, list[str]]) -> list[Any]:
    """All of them, some in `make test-slow` only."""
    return [shape if shape in FAST else pytest.param(shape, marks=pytest.mark.slow) for shape in shapes]


def anything(_: Any) -> None:
    """A refusal that never refuses."""


def load(directory: Path) -> Source:
    return common.load_source(directory, anything)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("models") / "plain")


# The same numbers


def pairs(source: Source) -> tuple[list[list[int]], list[list[int]]]:
    """Sources of several lengths with random targets: a random model's own translations repeat one token."""
    sources = [common.source_ids(source.tokenizers.source, text) for text in common.sample_texts(source)]
    generator, size = random.Random(0), source.tokenizers.target.size
    return sources, [[generator.randrange(4, size) for _ in range(7)] for _ in sources]


def logits_difference(model: Path, exported: Path) -> float:
    """The largest difference to transformers over every logit of a padded batch, special tokens included."""
    from transformers import MarianMTModel

    source = load(model)
    sources, targets = pairs(source)
    source_ids, allowed = pad_rows(sources)
    target_ids = torch.tensor([[2, *ids] for ids in targets])
    theirs = MarianMTModel.from_pretrained(exported).eval()
    with torch.inference_mode():
        ours_BTV = source.model(source_ids, target_ids, allowed)
        theirs_BTV = theirs(input_ids=source_ids, attention_mask=allowed.long(), decoder_input_ids=target_ids).logits
    return float((ours_BTV - theirs_BTV).abs().max())


def log_prob_difference(model: Path, exported: Path) -> float:
    """The largest difference to CTranslate2 over the log-probabilities of every target token."""
    import ctranslate2 as library

    source = load(model)
    translator = library.Translator(str(exported), device="cpu", compute_type="float32", intra_threads=1)
    worst = 0.0
    for source_ids, ids in zip(*pairs(source), strict=True):
        pieces = [source.tokenizers.source.pieces(source_ids[:-1]), source.tokenizers.target.pieces(ids)]
        scored = translator.score_batch([pieces[0]], [pieces[1]])[0]
        with torch.inference_mode():
            log_prob_TV = source.model(torch.tensor([source_ids]), torch.tensor([[2, *ids]]))[0].log_softmax(dim=-1)
        ours_T = log_prob_TV[range(len(ids) + 1), [*ids, 3]]
        worst = max(worst, float((ours_T - torch.tensor(scored.log_probs)).abs().max()))
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("shape", mostly_slow(ALL))
def test_logits_in_transformers_are_ours(shape: str, tmp_path: Path) -> None:
    model = random_model(tmp_path / "model", *ALL[shape])
    to_huggingface(model, tmp_path / "out", check=False)
    assert logits_difference(model, tmp_path / "out") < 1e-4


def onnx_logits(model: Path, exported: Path, kind: str, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Every logit of a padded batch, ours and those of ONNX Runtime; the target is given in so many steps."""
    source = load(model)
    sources, targets = pairs(source)
    source_ids, allowed = pad_rows(sources)
    target_ids = torch.tensor([[2, *ids] for ids in targets])
    with torch.inference_mode():
        ours_BTV = source.model(source_ids, target_ids, allowed)
    search = GreedySearch(exported, kind, ())
    mask = allowed.long().numpy()
    (states,) = search.encoder.run(None, {"input_ids": source_ids.numpy(), "attention_mask": mask})
    # Optimum gives a past of one position to the first step, where it must not matter
    past = {name: np.full((len(sources), *empty.shape[1:2], 1, empty.shape[3]), 9.0, np.float32)
            for name, empty in search.empty.items()}  # fmt: skip
    given = {"encoder_attention_mask": mask, "encoder_hidden_states": states, **past}
    found = []
    for number, part in enumerate(target_ids.chunk(steps, dim=1)):
        given |= {"input_ids": part.contiguous().numpy(), "use_cache_branch": np.array([number > 0])}
        logits, present = search.step(given)
        given |= present
        found.append(torch.tensor(logits))
    return ours_BTV, torch.cat(found, dim=1)


@pytest.mark.slow
@pytest.mark.parametrize("shape", mostly_slow(ALL | NOT_MARIAN))
def test_logits_in_onnx_runtime_are_ours(shape: str, tmp_path: Path) -> None:
    model = random_model(tmp_path / "model", *(ALL | NOT_MARIAN)[shape])
    to_onnx(model, tmp_path / "out", check=False)
    for steps in (1, 3, 8):
        ours, theirs = onnx_logits(model, tmp_path / "out", "float32", steps)
        assert (ours - theirs).abs().max() < 1e-4, steps
        ours, theirs = onnx_logits(model, tmp_path / "out", "int8", steps)
        assert 1e-4 < (ours - theirs).abs().max() < 0.1 * ours.abs().max(), steps


def test_onnx_files_that_would_be_too_large_are_refused(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.interop.onnx.LARGEST_FILE", 50_000)
    with pytest.raises(
        ConfigError, match=r"^model: encoder_model\.onnx would have [\d,]+ bytes in float32, and ONNX has"
    ):
        to_onnx(plain, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_onnx_export_does_not_go_past_learned_positions(tmp_path: Path) -> None:
    model = random_model(tmp_path / "model", "model.positions=learned", "model.max_positions=40")
    to_onnx(model, tmp_path / "out")
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation["max_new_tokens"] == 39
    assert "limit = min(ids.shape[1] + 8, 39)\n" in (tmp_path / "out" / "README.md").read_text()


def test_int8_products_in_onnx_do_not_depend_on_other_rows(plain: Path, tmp_path: Path) -> None:
    to_onnx(plain, tmp_path / "out", quantization="int8", check=False)
    source = load(plain)
    search = GreedySearch(tmp_path / "out", "int8", ())
    sources = [ids for ids in pairs(source)[0] if len(ids) > 4][:2]
    length = min(map(len, sources))
    ids = np.array([row[:length] for row in sources])
    both, alone = ({"input_ids": rows, "attention_mask": np.ones_like(rows)} for rows in (ids, ids[:1]))
    together_BSM, alone_BSM = search.encoder.run(None, both)[0], search.encoder.run(None, alone)[0]
    np.testing.assert_allclose(together_BSM[:1], alone_BSM, atol=1e-5)


TEXTS = (
    "the cat", "a  dog\u00a0 ran\tin the\u2003park ", "We See Red", "ﬁve Å E\u0301", "the <0x41> mat", "",
    "\u2581a_b\u0007c", "forty-two, 4711!", "\u0130stanbul ΟΔΟ", "日本 😀",
)  # fmt: skip


@pytest.mark.parametrize("kind", ["unigram", "bpe", "word", "char"])
@pytest.mark.parametrize("form", ["nfc", "nfkc-lowercase", "nfc-nbsp"])
def test_tokenizer_json_gives_our_ids(kind: Any, form: Any) -> None:
    from tokenizers import Tokenizer as Theirs

    lines = [*LINES, "0x41 < 42, the 0xa! > 1 7 x"]  # a piece for every character of a byte's name
    tokenizer = Tokenizer.train(lines, TextConfig(model=kind, normalization=form, vocab_size=330))
    theirs = Theirs.from_str(json.dumps(to_tokenizer_json(tokenizer)))
    spells_unknown = kind in ("unigram", "bpe")  # the others have no bytes in tokenizer.json
    for text in TEXTS:
        expected = tokenizer.encode(text)
        if not spells_unknown and any("<0x" in piece for piece in tokenizer.pieces(expected)):
            continue
        assert theirs.encode(text).ids == [*expected, 3], text
        assert theirs.decode(expected) == tokenizer.decode(expected), text


@pytest.mark.parametrize("shape", ALL | NOT_MARIAN | ONLY_CTRANSLATE2)
def test_probabilities_and_greedy_tokens_in_ctranslate2_are_ours(shape: str, tmp_path: Path) -> None:
    model = random_model(tmp_path / "model", *(ALL | NOT_MARIAN | ONLY_CTRANSLATE2)[shape])
    assert to_ctranslate2(model, tmp_path / "out").checked == common.CHECKED_SENTENCES
    assert log_prob_difference(model, tmp_path / "out") < 1e-4


def test_logits_differ_without_the_permutation(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(huggingface, "permutation", torch.arange)
    to_huggingface(plain, tmp_path / "out", check=False)
    assert logits_difference(plain, tmp_path / "out") > 0.1


def test_probabilities_differ_with_the_positions_of_ctranslate2(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without a table it computes its own."""
    monkeypatch.setattr(ctranslate2, "_set_stack", lambda *_: None)
    to_ctranslate2(plain, tmp_path / "out", check=False)
    assert log_prob_difference(plain, tmp_path / "out") > 0.1


def test_embedding_is_stored_once_when_shared(plain: Path, tmp_path: Path) -> None:
    weights = huggingface.weights(load(plain))
    assert sum(tensor.numel() for tensor in weights.values()) == 300 + sum(
        weight.numel() for weight in bundle.load_bundle(plain).model.parameters()
    ), "the parameters and final_logits_bias"


def test_marian_tokenizer_gives_our_ids(tmp_path: Path) -> None:
    from transformers import MarianTokenizer

    texts = ["the cat", "</s> <pad> the <s> mat", "a  dog", "<unk>", "日本 😀", ".,"]
    for name, settings in {"bytes": [], "no bytes": ["text.byte_fallback=false"], "separate": SEPARATE}.items():
        model = random_model(tmp_path / name, *settings)
        to_huggingface(model, tmp_path / f"{name}-out", check=False)
        theirs = MarianTokenizer.from_pretrained(tmp_path / f"{name}-out")
        tokenizers = load(model).tokenizers
        for text in texts:
            expected = common.source_ids(tokenizers.source, text)
            assert theirs(normalize(text))["input_ids"] == expected, (name, text)
        ids = tokenizers.target.encode("THE CAT ß" if name == "separate" else "the cat")
        assert theirs.decode([2, *ids, 3, 0], skip_special_tokens=True) == tokenizers.target.decode(ids)


# The check


@pytest.mark.slow
@pytest.mark.parametrize("to", EXPORTS)
def test_export_with_other_tokens_is_removed(
    to: str, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface, "permutation", torch.arange)
    monkeypatch.setitem(ctranslate2.ACTIVATIONS, "relu", "Tanh")
    monkeypatch.setattr(onnx_layers, "_activate", lambda graph, name, x: graph.add("Tanh", x))
    with pytest.raises(ModelError) as error:
        EXPORTS[to](plain, tmp_path / "new" / "out")
    library = LIBRARIES[to]
    assert re.fullmatch(
        rf"{tmp_path}/new/out: {library} gives other tokens than dragoman for '[^']+': .+ instead of .+; "
        "nothing was written, please report it",
        str(error.value),
    )
    assert list(tmp_path.iterdir()) == []


def test_tokens_of_equal_probability_are_a_tie(plain: Path) -> None:
    source = load(plain)
    text = common.sample_texts(source)[0]
    [ids] = common.greedy_ids(source, [text], 4)
    with torch.inference_mode():
        given = torch.tensor([common.source_ids(source.tokenizers.source, text)])
        order = source.model(given, torch.tensor([[2, ids[0]]]))[0, -1].argsort(descending=True).tolist()
    assert order[0] == ids[1]
    other = [ids[0], order[1], *ids[2:]]
    assert not common.is_tie(source, text, ids, other), "the second best is far behind"
    assert not common.is_tie(source, text, ids, ids[:2]), "a shorter translation is not a tie"
    with torch.no_grad():  # two pieces with the same embedding are equally likely
        source.model.output.weight[order[1]] = source.model.output.weight[order[0]]
        assert common.is_tie(source, text, ids, other)


def test_sample_texts_fit_the_shortest_models(tmp_path: Path) -> None:
    short = random_model(tmp_path / "model", "text.max_length=4", "model.positions=learned", "model.max_positions=4")
    source = load(short)
    assert all(len(common.source_ids(source.tokenizers.source, text)) <= 4 for text in common.sample_texts(source))
    assert to_ctranslate2(short, tmp_path / "out").checked == 5


# Refusals

MARIAN = "is not possible in Hugging Face Marian"
REFUSED = {
    "model.norm=pre": f"model.norm: pre {MARIAN}, which has post-norm only",
    "model.positions=learned": f"model.positions: learned {MARIAN}, which has sinusoidal positions only",
    "model.positions=rotary": f"model.positions: rotary {MARIAN}, which has sinusoidal positions only",
    "model.positions=none": f"model.positions: none {MARIAN}, which has sinusoidal positions only",
    "model.embedding_norm=true": f"model.embedding_norm: true {MARIAN}, which does not normalize embeddings",
    "model.d_k=12": f"model.d_k: 12 {MARIAN}, where it is d_model / num_heads, here 32 / 4",
    "model.d_v=12": f"model.d_v: 12 {MARIAN}, where it is d_model / num_heads, here 32 / 4",
    "model.decoder_d_model=24 model.share_source_target=false": (
        f"model.decoder_d_model: 24 {MARIAN}, which has one width, here d_model=32"
    ),
    "model.norm=pre model.positions=rotary": (
        f"model.norm: pre {MARIAN}, which has post-norm only; "
        f"model.positions: rotary {MARIAN}, which has sinusoidal positions only"
    ),
}


@pytest.mark.parametrize("settings", REFUSED)
def test_marian_refuses_what_it_cannot_express(settings: str, tmp_path: Path) -> None:
    model = random_model(tmp_path / "model", *settings.split())
    with pytest.raises(ConfigError) as error:
        to_huggingface(model, tmp_path / "out")
    assert str(error.value) == f"{REFUSED[settings]}; export to ctranslate2"
    assert not (tmp_path / "out").exists()


def test_onnx_refuses_heads_that_transformers_js_cannot_have(tmp_path: Path) -> None:
    model = random_model(tmp_path / "model", "model.d_k=12")
    with pytest.raises(ConfigError) as error:
        to_onnx(model, tmp_path / "out")
    assert str(error.value) == (
        "model.d_k: 12 is not possible in transformers.js, where it is d_model / num_heads, here 32 / 4; "
        "export to ctranslate2"
    )


@pytest.mark.parametrize(
    ("to", "name"),
    [("ctranslate2", "CTranslate2"), ("huggingface", "Hugging Face Marian"), ("onnx", "ONNX"), ("web", "the web page")],
)
def test_recurrent_models_are_refused(to: str, name: str, tmp_path: Path) -> None:
    from dragoman.config import Config, RecurrentConfig
    from dragoman.model.build import build_model

    plain = bundle.load_bundle(random_model(tmp_path / "plain"))
    config = Config(model=RecurrentConfig(vocab_size=plain.tokenizers.source.size, d_model=8), text=plain.config.text)
    weights = tensors.named_weights(build_model(config.model))
    bundle.save_bundle(tmp_path / "rnn", config, plain.tokenizers, weights, "")
    with pytest.raises(ConfigError) as error:
        EXPORTS[to](tmp_path / "rnn", tmp_path / "out")
    assert str(error.value) == (
        f"model.architecture: rnn is not possible in {name}, which runs Transformers only; export a Transformer"
    )


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["export", *arguments])


def test_invalid_arguments_are_reported(plain: Path, tmp_path: Path) -> None:
    def error(*arguments: str) -> tuple[str, int]:
        raised = invoke("--model", str(plain), *arguments).exception
        assert isinstance(raised, DragomanError)
        return str(raised), raised.exit_code

    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    for taken in (tmp_path / "full", tmp_path / "full" / "notes.txt"):
        for to in EXPORTS:
            assert error("--to", to, str(taken)) == (f"{taken}: is not an empty directory; give another one", 2)
    out = str(tmp_path / "out")
    assert error("--to", "hugingface", out) == ("--to: 'hugingface' is not a choice; did you mean huggingface?", 2)
    assert error("--to", "ctranslate2", "--quantization", "int4", out) == (
        "quantization: 'int4' is not a choice; did you mean int8?", 2
    )  # fmt: skip
    assert error("--to", "huggingface", "--quantization", "int8", out) == (
        "--quantization: huggingface is written in float32; leave it out, or export to ctranslate2", 2
    )  # fmt: skip
    assert error("--to", "web", "--quantization", "int8", out) == (
        "--quantization: web is written in int8; leave it out, or export to ctranslate2", 2
    )  # fmt: skip
    assert error("--to", "onnx", "--runtime", out, out) == ("--runtime: is for --to web, not for onnx; leave it out", 2)
    assert error("--to", "onnx", "--quantization", "int4", out) == (
        "quantization: 'int4' is not a choice; did you mean int8?", 2
    )  # fmt: skip
    assert error("--to", "huggingface", "--model", str(tmp_path / "none"), out)[1] == 4
    assert (tmp_path / "full" / "notes.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_missing_libraries_are_reported(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    done = invoke("--model", str(plain), "--to", "ctranslate2", str(tmp_path / "one"))
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == 'export: ctranslate2 is not installed; pip install "dragoman[ctranslate2]"'
    done = invoke("--model", str(plain), "--to", "huggingface", str(tmp_path / "two"))
    assert done.exit_code == 0, "transformers is needed for the check only"
    assert done.stdout.splitlines()[1] == (
        'not checked: transformers is not installed; pip install "dragoman[huggingface]"'
    )


# What is written


def written(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def size(directory: Path) -> int:
    return sum(path.stat().st_size for path in written(directory))


@pytest.mark.parametrize(
    "to", [pytest.param(to, marks=() if to == "ctranslate2" else pytest.mark.slow) for to in EXPORTS]
)
def test_command_reports_size_and_check(to: str, plain: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()  # an empty directory may exist
    done = invoke("--model", str(plain), "--to", to, str(tmp_path / "out"))
    rounding = ", before rounding to int8" if to == "web" else ""
    how = (
        f"to see it: python -m http.server --bind localhost --directory {tmp_path / 'out'}, then http://localhost:8000"
    )
    assert done.stdout.splitlines() == [
        f"{tmp_path / 'out'}: {to}, weights in {STORED.get(to, 'float32')}, {size(tmp_path / 'out'):,} bytes",
        f"checked: 5 sentences give the same tokens in {LIBRARIES[to]}{rounding}",
        *([how] if to == "web" else []),
    ]
    done = invoke("--model", str(plain), "--to", to, "--no-check", str(tmp_path / "again"))
    assert "checked" not in done.stdout
    for path in written(tmp_path / "out"):
        again = tmp_path / "again" / path.relative_to(tmp_path / "out")
        assert path.read_bytes() == again.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"out", "again"}


def test_quantized_weights_are_smaller_and_the_check_comes_before(plain: Path, tmp_path: Path) -> None:
    arguments = ["--model", str(plain), "--to", "ctranslate2", "--quantization", "int8", str(tmp_path / "int8")]
    done = invoke(*arguments)
    assert done.stdout.splitlines() == [
        f"{tmp_path / 'int8'}: ctranslate2, weights in int8, {size(tmp_path / 'int8'):,} bytes",
        "checked: 5 sentences give the same tokens in ctranslate2, before rounding to int8",
    ]
    to_ctranslate2(plain, tmp_path / "float32")
    assert 1.5 * (tmp_path / "int8" / "model.bin").stat().st_size < (tmp_path / "float32" / "model.bin").stat().st_size
    assert 1e-4 < log_prob_difference(plain, tmp_path / "int8") < 1


def test_quantization_does_not_change_the_model_in_memory(plain: Path, tmp_path: Path) -> None:
    source = load(plain)
    before = {name: weight.clone() for name, weight in tensors.named_weights(source.model).items()}
    ctranslate2._save(source, tmp_path, "int8")
    assert all(torch.equal(before[name], weight) for name, weight in tensors.named_weights(source.model).items())


@pytest.mark.parametrize("quantization", ctranslate2.QUANTIZATIONS)
def test_quantizations_are_those_of_ctranslate2(quantization: str, plain: Path, tmp_path: Path) -> None:
    from ctranslate2.specs.model_spec import ACCEPTED_MODEL_TYPES

    assert set(ctranslate2.QUANTIZATIONS) == set(ACCEPTED_MODEL_TYPES)
    to_ctranslate2(plain, tmp_path / "out", quantization=quantization, check=False)
    assert log_prob_difference(plain, tmp_path / "out") < 1


def test_generation_config_has_the_settings_of_the_model(tmp_path: Path) -> None:
    settings = ["decode.beam=3", "decode.length_penalty=0.8", "decode.length_penalty_form=power"]
    to_huggingface(random_model(tmp_path / "model", *settings), tmp_path / "out", check=False)
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == {
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": None,
        "suppress_tokens": [0, 1, 2],
        "max_new_tokens": 48,
        "num_beams": 3,
        "length_penalty": 0.8,
        "early_stopping": False,
    }
    notes = (tmp_path / "out" / "README.md").read_text()
    assert "divides a score by length ** alpha in beam search, as the model does." in notes


@pytest.mark.parametrize("to", PROGRAMS)
@pytest.mark.slow
def test_program_of_the_readme_translates_as_we_do(
    to: str, quick_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert EXPORTS[to](quick_run, tmp_path / "out").checked == 5
    page = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    card = bundle.load_card(quick_run)
    assert card
    assert page.endswith(f"The model card follows.\n\n{card}")
    if to == "huggingface":
        head = {"library_name": "transformers", "pipeline_tag": "translation", "tags": ["marian", "dragoman"]}
        assert metadata_load(tmp_path / "out" / "README.md") == head, "what the hub reads"
    [program] = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    text = "  a\tb  c d "
    options: dict[str, Any] = {"beam": 1} if to == "onnx" else {"length_penalty_form": "power"}
    expected = dragoman.load(quick_run, "cpu", "float32").translate(text, **options)
    assert expected.status == "translated"
    monkeypatch.chdir(tmp_path / "out")
    capsys.readouterr()
    exec(program.replace('"..."', repr(text)), {})
    assert capsys.readouterr().out.strip("[']\n") == expected.text.strip(), "spaces around a text are kept by us alone"


@pytest.mark.parametrize("form", [form for form in get_args(Normalization) if form != "none"])
def test_normalization_in_the_readme_is_ours(form: Normalization) -> None:
    for text in ("  A\u0308 B\u00a0 C\u2007D \t e\n", "ﬁ Å\u2003É", "\u00a0x\u00a0", "ΜΑ\u03aa\u0301ΟΥ"):
        names: dict[str, Any] = {"text": text}
        exec(f"{common.normalization_imports(form)}\nfound = {common.normalization_code(form)}", names)
        assert names["found"] == normalize(text, form), (form, text)


# After an error


@pytest.mark.parametrize("to", EXPORTS)
def test_full_disk_leaves_nothing(to: str, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[str] = []

    def after(event: str, path: Path) -> None:
        writes.append(path.name)
        if len(writes) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "after", after)
    out = tmp_path / "new" / "out"
    with pytest.raises(DiskError) as error:
        EXPORTS[to](plain, out, check=False)
    assert str(error.value) == f"{out}: cannot be written (No space left on device); choose another place"
    assert list(tmp_path.iterdir()) == []
    EXPORTS[to](plain, out, check=False)  # the control: the third write and later ones succeed
    assert (out / "README.md").exists()


def test_interrupted_export_leaves_nothing_and_a_killed_one_is_replaced(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Sequence[str]:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(common, "sample_texts", interrupted)
        with pytest.raises(KeyboardInterrupt):
            to_ctranslate2(plain, out)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "model.bin").write_text("half")
    to_huggingface(plain, out, check=False)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not (out / "model.bin").exists()


# The page

ROW = re.compile(r"\| `(model\.\w+) = ([^`]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|")
PAGE = Path(__file__).parents[2] / "docs" / "exporting.md"
# what some settings need beside them
BESIDE = {"decoder_d_model": ["model.share_source_target=false"], "max_positions": ["model.positions=learned"]}


def rows() -> list[tuple[str, str, str, str, str]]:
    return ROW.findall(PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]}={row[1]}")
@pytest.mark.slow
def test_table_of_the_page_is_true(row: tuple[str, str, str, str, str], tmp_path: Path) -> None:
    setting, value, *cells = row
    if value == '"rnn"':
        return  # refused by all: test_recurrent_models_are_refused
    beside = BESIDE.get(setting.removeprefix("model."), [])
    model = random_model(tmp_path / "model", f"{setting}={value.strip(chr(34))}", *beside)
    to_web(model, tmp_path / "web")  # runs every Transformer
    for to, cell in zip(PROGRAMS, cells, strict=True):
        if cell.startswith("yes"):
            EXPORTS[to](model, tmp_path / to, check=to != "huggingface")  # Marian: the tests of logits above
        else:
            with pytest.raises(ConfigError, match=f"^{re.escape(setting)}: .* is not possible in "):
                EXPORTS[to](model, tmp_path / to)


def test_table_of_the_page_has_every_option() -> None:
    """Each setting of docs/model.md that has options, except those that matter in training only."""
    named = {setting.removeprefix("model.") for setting, *_ in rows()}
    options = set(re.findall(r"`(?:model\.)?(\w+)`", "".join(
        line.split("|")[1] for line in (PAGE.parent / "model.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `model.")
    )))  # fmt: skip
    training_only, recurrent = {"dropout", "attention_dropout", "init_gain"}, {"cell", "context", "score"}
    assert options - training_only - recurrent == named - {"architecture"}
