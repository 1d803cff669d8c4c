"""BART models of Hugging Face's library, imported: the same ids, the same numbers, the same output, and refusals."""

import json
import re
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

import dragoman
from dragoman.bundle import load_bundle
from dragoman.cli.app import app
from dragoman.config import Config
from dragoman.decode.associations import require_transformer
from dragoman.errors import ConfigError, ModelError
from dragoman.interop import from_huggingface, to_ctranslate2, to_huggingface, to_onnx, to_web
from dragoman.interop.bart_folder import BartFolder
from dragoman.interop.marian_folder import NEVER
from dragoman.text.byte_level import TEXT_START, ByteLevelTokenizer, byte_characters, to_bytes
from dragoman.text.normalize import normalize
from dragoman.text.tokenizer import Tokenizer
from dragoman.training.loop import train
from tests.bart import bart_folder
from tests.marian import TRANSLATIONS, WORDS, lines

SHAPES: dict[str, dict[str, Any]] = {
    "trained": {"steps": 60},
    "tokenizer.json": {"fast": True, "activation_function": "relu", "decoder_layers": 1, "decoder_ffn_dim": 40},
    "with a scale": {"scale_embedding": True, "pickled": True},
}
TEXTS = ["the cat sat on a mat", *lines(WORDS, 3, 8), "two Birds over the riverhouse — it's forty-seven 42 €", "x"]


@pytest.fixture(scope="module", params=[
    name if name == "trained" else pytest.param(name, marks=pytest.mark.slow) for name in SHAPES
])  # fmt: skip
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A BART model, and what it becomes."""
    place = tmp_path_factory.mktemp("bart")
    folder = bart_folder(place / "theirs", **SHAPES[request.param])
    assert from_huggingface(folder, place / "ours").checked == 5
    return folder, place / "ours"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bart_folder(tmp_path_factory.mktemp("bart") / "plain")


def library(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoTokenizer, BartForConditionalGeneration

    model = BartForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    return AutoTokenizer.from_pretrained(folder), model.eval()


# The same numbers


def test_every_logit_is_that_of_transformers(folders: tuple[Path, Path]) -> None:
    theirs, ours = BartFolder(folders[0]), load_bundle(folders[1])
    tokenizer, model = library(folders[0])
    rows, own = theirs.target.rows, theirs.target.own_ids()
    target = tokenizer("die Katze saß auf der Matte").input_ids
    for text in TEXTS:
        batch = tokenizer([text], return_tensors="pt")
        given = [*ours.tokenizers.source.encode(text), 3]
        assert [rows[index] for index in given] == batch.input_ids[0].tolist()
        with torch.inference_mode():
            expected = model(**batch, decoder_input_ids=torch.tensor([[2, *target]])).logits[0]
            found = ours.model(torch.tensor([given]), torch.tensor([[2, *(own[index] for index in target)]]))[0]
        real = [place for place, index in enumerate(rows) if own[index] == place]
        torch.testing.assert_close(found[:, real], expected[:, [rows[place] for place in real]], atol=1e-4, rtol=0)
        assert [place for place in range(len(rows)) if place not in real] == [2], "it starts with </s>, and ends so"
        assert (found[:, 2] < NEVER / 2).all()
        assert sorted(rows[place] for place in real) == list(range(expected.size(1))), "each of theirs once"


@pytest.mark.parametrize("folders", ["trained"], indirect=True)
@pytest.mark.parametrize("beam", [1, 4])
def test_output_is_that_of_transformers(folders: tuple[Path, Path], beam: int) -> None:
    translator = dragoman.load(folders[1], "cpu")
    tokenizer, model = library(folders[0])
    model.generation_config.forced_eos_token_id = None
    said = []
    for text in TEXTS:
        batch = tokenizer([text], return_tensors="pt")
        limit = batch.input_ids.shape[1] - 1 + 12
        row = model.generate(**batch, num_beams=beam, max_new_tokens=limit + 1, suppress_tokens=[1, 3])[0]
        found = translator.translate(text, split="long", max_extra=12, beam=beam)
        if row[-1] == tokenizer.eos_token_id and found.status != "truncated":  # what does not end is cut in other ways
            assert found.text == tokenizer.decode(row, skip_special_tokens=True), text
            said.append(found.text)
    assert len(said) > 7
    assert len(set(said)) > 4, "the control: different things"


def test_engines_agree(folders: tuple[Path, Path]) -> None:
    one, other = (dragoman.load(folders[1], "cpu", engine=engine).translate(TEXTS) for engine in ("plain", "cpu"))
    assert [each.tokens for each in one] == [each.tokens for each in other]
    assert "".join(one[0].source_tokens) == "<text>the▁cat▁sat▁on▁a▁mat</s>"


@pytest.mark.slow
def test_training_continues_from_an_imported_model(tmp_path: Path, plain: Path) -> None:
    sources = lines(WORDS, 6, 40)
    (tmp_path / "train.en").write_text("\n".join(sources) + "\n")
    targets = [" ".join(TRANSLATIONS[word] for word in line.split()) for line in sources]
    (tmp_path / "train.de").write_text("\n".join(targets) + "\n")
    from_huggingface(plain, tmp_path / "imported", check=False)
    data = [f"--{part}{side}" for part in ("", "valid-") for side in ("source", "target")]
    files = [str(tmp_path / f"train.{side}") for side in ("en", "de")] * 2
    arguments = [word for pair in zip(data, files, strict=True) for word in pair]
    settings = ["--set", "train.max_steps=3", "--set", "train.learning_rate=1e-3", "--preset", "tiny"]
    out = ["--from", str(tmp_path / "imported"), "--out", str(tmp_path / "tuned")]
    result = CliRunner().invoke(app, ["train", *arguments, *settings, *out])
    assert result.exit_code == 0, result.output
    assert dragoman.load(tmp_path / "tuned", "cpu").translate("the cat").status in ("translated", "truncated")


# The vocabulary


@cache
def vocabulary(folder: Path) -> Tokenizer:
    return BartFolder(folder).source.tokenizer


@given(
    text=st.text(st.sampled_from("ab the it's 42€—\u0301\u2581<s></s>\n") | st.characters(exclude_categories=["Cs"]))
)
@example("it's <s> the </s> <mask>  cat")
def test_any_text_round_trips_with_the_ids_of_the_library(plain: Path, text: str) -> None:
    import tokenizers

    theirs = tokenizers.ByteLevelBPETokenizer(str(plain / "vocab.json"), str(plain / "merges.txt"))
    own, rows = vocabulary(plain), BartFolder(plain).source.rows
    ids = own.encode(text)
    assert own.decode(ids) == normalize(text)
    assert ids[0] == TEXT_START
    assert [rows[index] for index in ids[1:]] == theirs.encode(normalize(text)).ids
    assert own.encode_batch([text, text]) == [ids, ids]


def test_pieces_are_shown_as_text(plain: Path) -> None:
    own = vocabulary(plain)
    first, *others = own.pieces(own.encode("the cat ü"))
    assert first == "<text>"
    assert "".join(others).replace("<0x20>", "▁").replace("<0xC3><0xBC>", "ü") == "the▁cat▁ü"
    assert own.pieces(own.encode("日"))[1:] == ["<0xE6>", "<0x97>", "<0xA5>"]
    assert "▁cat" in others
    shown = own.pieces(range(own.size))
    assert all(name.isprintable() for name in shown)
    assert "<0x1B>" in shown
    assert own.decode([0, 1, 2, 3, TEXT_START, own.size - 1]) == ""
    assert own.languages == ()


def test_a_stored_vocabulary_is_the_same(plain: Path) -> None:
    own = vocabulary(plain)
    again = Tokenizer.from_bytes(own.to_bytes())
    assert isinstance(again, ByteLevelTokenizer)
    assert again.digest == own.digest
    assert again.encode("forty two birds") == own.encode("forty two birds")


BYTES = list(byte_characters().values())
NAMES = ["<pad>", "<unk>", "<s>", "</s>", "<text>", *BYTES]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "not a byte-level vocabulary"),
        (b"{}", "not a byte-level vocabulary"),
        (b'{"pieces": 1, "control": [], "merges": []}', "not a byte-level vocabulary"),
        (b'{"pieces": ["a"], "control": [[]], "merges": []}', "not a byte-level vocabulary"),
        (b"{" * 100_000, "not a byte-level vocabulary"),
        (to_bytes(NAMES, range(5), []).replace(b'"<pad>"', b'"\\ud800"'), "not a byte-level vocabulary"),
        (b'{"pieces": "abcde", "control": [0, 1, 2, 3, 4], "merges": []}', "not a byte-level vocabulary"),
        (to_bytes(NAMES, range(5), []).replace(b'"merges": []', b'"merges": ["ab"]'), "not a byte-level vocabulary"),
        (to_bytes(NAMES, range(4), []), "not a byte-level vocabulary"),
        (to_bytes(NAMES, [*range(5), 300], []), "not a byte-level vocabulary"),
        (to_bytes(NAMES[:-1], range(5), []), "its pieces do not spell every byte"),
        (to_bytes([*NAMES, "日"], range(5), []), "its pieces do not spell every byte"),
        (to_bytes([*NAMES, "a"], range(5), []), "its pieces do not spell every byte"),
        (to_bytes(NAMES, range(5), [("a", "b")]), "Token `ab` out of vocabulary"),
    ],
)
def test_damaged_vocabularies_are_refused(content: bytes, problem: str) -> None:
    with pytest.raises(ModelError, match=f"^tokenizer: .*{re.escape(problem)}"):
        Tokenizer.from_bytes(content)
    assert Tokenizer.from_bytes(to_bytes(NAMES, range(5), [])).encode("a") == [TEXT_START, NAMES.index("a")]


def test_without_the_package_the_error_names_it(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = vocabulary(plain).to_bytes()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r'needs the package tokenizers; pip install "dragoman\[huggingface\]"$'):
        Tokenizer.from_bytes(content)


# Refusals


def changed(folder: Path, place: Path, **settings: Any) -> Path:
    """A copy with other settings."""
    shutil.copytree(folder, place)
    config = {**json.loads((place / "config.json").read_text()), **settings}
    (place / "config.json").write_text(json.dumps(config))
    return place


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"normalize_before": True},
            "config.json: normalize_before is true, and only false has a counterpart here; give",
        ),
        ({"normalize_embedding": False}, "normalize_embedding is false, and only true has a counterpart here; give"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is false, and only true has a counterpart here; give"),
        (
            {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 5},
            "share_encoder_decoder_embeddings is false, and only true has a counterpart here; give another model",
        ),
        ({"max_position_embeddings": 63}, "model.encoder.embed_positions.weight is torch.float32 [66, 32], expected"),
        ({"max_position_embeddings": 15}, "config.json: max_position_embeddings is below 16; give another model"),
        ({"bos_token_id": -1}, "bos_token_id is -1, not an id from 0 to"),
        ({"bos_token_id": 2}, "config.json: bos_token_id is 2, and <s> has the id 0; download"),
        ({"eos_token_id": 0}, "config.json: eos_token_id is 0, and </s> has the id 2; download"),
        ({"model_type": "mbart"}, "model_type 'mbart' cannot be imported; give a Marian or BART model"),
    ],
)
def test_settings_without_a_counterpart_are_refused(
    plain: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, ModelError), match=re.escape(message)):
        from_huggingface(changed(plain, tmp_path / "theirs", **settings), tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", b'{"a": 1}', "vocab.json: has no <unk>; download"),
        ("merges.txt", b"a b c\n", "merges.txt: 'a b c' is not a pair of pieces; download"),
        (
            "merges.txt",
            b"a " + b"b" * 100_000 + b" c\n",
            f"merges.txt: 'a {'b' * 38}' is not a pair of pieces; download",
        ),
        (
            "merges.txt",
            b"\xff \xff\n",
            "merges.txt: Error while initializing BPE: Token `\ufffd` out of vocabulary; download",
        ),
        ("merges.txt", b"q q\n", "merges.txt: Error while initializing BPE: Token `qq` out of vocabulary; download"),
    ],
)
def test_damaged_files_are_refused(plain: Path, tmp_path: Path, name: str, content: bytes, message: str) -> None:
    folder = changed(plain, tmp_path / "theirs")
    (folder / name).write_bytes(content)
    with pytest.raises(ModelError, match="^" + re.escape(f"{folder}/{message}")):
        from_huggingface(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"model": {"vocab": 5}, "pre_tokenizer": {"type": "ByteLevel"}}',
                '{"model": {}, "pre_tokenizer": {"type": "Whitespace"}}',
                '{"model": {"vocab": {"a": 0}}, "added_tokens": [5], "pre_tokenizer": {"type": "ByteLevel"}}'],
)  # fmt: skip
def test_damaged_tokenizers_are_refused(plain: Path, tmp_path: Path, content: str) -> None:
    folder = changed(plain, tmp_path / "theirs")
    for name in ("vocab.json", "merges.txt"):
        (folder / name).unlink()
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match="^" + re.escape(f"{folder}/tokenizer.json: not ")):
        from_huggingface(folder, tmp_path / "ours")


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bart_folder(tmp_path_factory.mktemp("bart") / "fast", fast=True)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("normalizer",), {"type": "Lowercase"}),
        (("post_processor", "type"), "TemplateProcessing"),
        (("pre_tokenizer", "add_prefix_space"), True),
        (("pre_tokenizer", "use_regex"), False),
        (("pre_tokenizer", "type"), "Sequence"),
        (("model", "dropout"), 0.1),
        (("model", "end_of_word_suffix"), "</w>"),
        (("model", "ignore_merges"), True),
    ],
)
def test_other_ways_to_prepare_text_are_refused(fast: Path, tmp_path: Path, where: tuple[str, ...], value: Any) -> None:
    folder = changed(fast, tmp_path / "theirs")
    content = json.loads((folder / "tokenizer.json").read_text())
    part = content
    for name in where[:-1]:
        part = part[name]
    part[where[-1]] = value
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(
        ConfigError, match=r"tokenizer\.json: prepares text in another way than BART; give another model$"
    ):
        from_huggingface(folder, tmp_path / "ours")
    from_huggingface(fast, tmp_path / "control", check=False)


def test_added_words_are_refused(plain: Path, fast: Path, tmp_path: Path) -> None:
    message = r"'COVID' was added to its vocabulary, which has no counterpart here; give another model$"
    in_json = changed(fast, tmp_path / "json")
    content = json.loads((in_json / "tokenizer.json").read_text())
    content["added_tokens"].append({"id": 5, "content": "COVID", "special": False})
    (in_json / "tokenizer.json").write_text(json.dumps(content))
    in_config, beside = changed(plain, tmp_path / "config"), changed(plain, tmp_path / "beside")
    token = {"content": "COVID", "special": False}
    (in_config / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {"5": token}}))
    (beside / "added_tokens.json").write_text(json.dumps({"<mask>": 3, "COVID": 5}))
    for folder in (in_json, in_config, beside):
        with pytest.raises(ConfigError, match=message):
            from_huggingface(folder, tmp_path / "ours")
    spaced = changed(plain, tmp_path / "spaced")
    (spaced / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": True}))
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json: add_prefix_space has no counterpart here; give"):
        from_huggingface(spaced, tmp_path / "ours")


def test_files_of_windows_and_a_lone_vocabulary_are_read(plain: Path, fast: Path, tmp_path: Path) -> None:
    windows = changed(plain, tmp_path / "windows")
    merges = (windows / "merges.txt").read_bytes()
    (windows / "merges.txt").write_bytes(merges.replace(b"\n", b"\r\n"))
    assert BartFolder(windows).source.tokenizer.digest == vocabulary(plain).digest
    lone = changed(fast, tmp_path / "lone")
    shutil.copy(plain / "vocab.json", lone)
    assert BartFolder(lone).source.tokenizer.digest == vocabulary(fast).digest


def test_special_ids_that_coincide(plain: Path, tmp_path: Path) -> None:
    """The end can be predicted whatever else it means; so can the start of a text."""
    same_end = BartFolder(changed(plain, tmp_path / "end", pad_token_id=2))
    assert same_end.target.own_ids()[2] == 3
    same_start = changed(plain, tmp_path / "start", decoder_start_token_id=0)
    (same_start / "generation_config.json").unlink()  # it says something else
    assert BartFolder(same_start).target.own_ids()[0] == TEXT_START
    assert from_huggingface(same_start, tmp_path / "ours").checked == 5


def test_what_needs_pieces_of_characters_is_refused(plain: Path, tmp_path: Path) -> None:
    from_huggingface(plain, tmp_path / "ours", check=False)
    with pytest.raises(ConfigError, match=r"^shortlist: not possible with byte-level BPE; use a model with another"):
        require_transformer(dragoman.load(tmp_path / "ours", "cpu"))
    (tmp_path / "text").write_text("a b\n" * 20)
    names = ("source", "target", "valid_source", "valid_target")
    data = [f'data.{name}=["{tmp_path / "text"}"]' for name in names]
    start = [f"train.start_from={tmp_path / 'ours'}", "text.sampling=0.1", "train.max_steps=1"]
    config = Config.build("tiny", None, [*data, *start])
    with pytest.raises(
        ConfigError, match=r"^text\.sampling: not possible with the byte-level BPE of train\.start_from"
    ):
        train(config, tmp_path / "run")


def test_exports_are_refused(plain: Path, tmp_path: Path) -> None:
    from_huggingface(plain, tmp_path / "ours", check=False)
    for export in (to_ctranslate2, to_onnx, to_web):
        with pytest.raises(ConfigError, match=r"^export: byte-level BPE is not possible in an export; use the model"):
            export(tmp_path / "ours", tmp_path / "out")
    with pytest.raises(ConfigError, match=r"^model\.positions: learned is not possible in Hugging Face Marian"):
        to_huggingface(tmp_path / "ours", tmp_path / "out")
    assert not (tmp_path / "out").exists()
