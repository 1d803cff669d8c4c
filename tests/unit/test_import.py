"""Marian models of Hugging Face's library, imported: the same numbers, the same output, and refusals."""

import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import dragoman
from dragoman.bundle import load_bundle
from dragoman.cli.app import app
from dragoman.errors import ConfigError, ModelError
from dragoman.interop import from_huggingface, to_huggingface
from dragoman.interop.marian_folder import NEVER, MarianFolder
from tests.exporting import random_model
from tests.marian import OTHERS, TRANSLATIONS, WORDS, lines, marian_folder

SHAPES: dict[str, dict[str, Any]] = {
    "swish": {},
    "relu and other sizes": {
        "activation_function": "relu", "decoder_layers": 1, "decoder_ffn_dim": 40, "decoder_attention_heads": 2,
    },
    "gelu without a scale": {"activation_function": "gelu", "scale_embedding": False},
    "bpe with tags": {"kind": "bpe", "tags": True},
    "separate vocabularies": {"separate": True},
    "separate and untied": {"separate": True, "tie_word_embeddings": False},
    "pickled": {"pickled": True, "activation_function": "silu"},
    "pieces without an id": {"left_out": 8},
    "float16": {"pickled": True, "half": True},
    "odd width": {"d_model": 33, "encoder_attention_heads": 3, "decoder_attention_heads": 3},
}  # fmt: skip
QUICK = ("swish", "separate and untied")
TRAINED = ("swish", "gelu without a scale", "bpe with tags")


def shapes(names: Iterable[str]) -> list[Any]:
    """All in make test-slow, some in make test."""
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


TEXTS = ["the cat sat on a mat", *lines(WORDS, 3, 8), "two Birds  over\tthe riverhouse — forty-seven 42 €", "x"]


@pytest.fixture(scope="module", params=shapes(SHAPES))
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A Marian model, and what it becomes."""
    place = tmp_path_factory.mktemp("marian")
    steps = 60 if request.param in TRAINED else 0  # what is not trained says the same word again and again
    folder = marian_folder(place / "theirs", steps=steps, **SHAPES[request.param])
    done = from_huggingface(folder, place / "ours")
    assert done.checked == 5
    return folder, place / "ours"


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return marian_folder(tmp_path_factory.mktemp("marian") / "tagged", tags=True, steps=60)


def library(folder: Path) -> tuple[Any, Any]:
    from transformers import MarianMTModel, MarianTokenizer

    model = MarianMTModel.from_pretrained(folder, dtype=torch.float32)
    return MarianTokenizer.from_pretrained(folder), model.eval()


# The same numbers


@pytest.mark.slow
def test_every_logit_is_that_of_transformers(folders: tuple[Path, Path]) -> None:
    theirs, ours = MarianFolder(folders[0]), load_bundle(folders[1])
    tokenizer, model = library(folders[0])
    rows = theirs.target.rows
    atol = 1e-3 if "float16" in (folders[0] / "config.json").read_text() else 1e-4  # its positions are rounded there
    target = tokenizer(text_target="die Katze saß auf der Matte", return_tensors="pt").input_ids[0].tolist()
    own = theirs.target.own_ids()
    for text in TEXTS:
        batch = tokenizer([text], return_tensors="pt")
        start = model.config.decoder_start_token_id
        encode = ours.tokenizers.source.encode
        with torch.inference_mode():
            expected = model(**batch, decoder_input_ids=torch.tensor([[start, *target]])).logits[0]
            given = torch.tensor([[*encode(text), 3]])
            found = ours.model(given, torch.tensor([[2, *(own[index] for index in target)]]))[0]
        real = [place for place, index in enumerate(rows) if own[index] == place]
        torch.testing.assert_close(found[:, real], expected[:, [rows[place] for place in real]], atol=atol, rtol=0)
        doubles = [place for place in range(len(rows)) if place not in real]
        assert (found[:, doubles] < NEVER / 2).all()
        assert sorted(rows[place] for place in real) == list(range(expected.size(1))), "each of theirs once"


@pytest.mark.parametrize("folders", shapes(TRAINED), indirect=True)
@pytest.mark.parametrize("beam", [1, 4])
def test_output_is_that_of_transformers(folders: tuple[Path, Path], beam: int) -> None:
    """Text to text; the ids that we never predict are suppressed there."""
    translator = dragoman.load(folders[1], "cpu")
    tokenizer, model = library(folders[0])
    config = translator.config.decode
    options: Any = {"split": "long", "max_extra": 12, "beam": beam, "target_language": ""}
    assert (config.beam, config.length_penalty, config.length_penalty_form) == (4, 1.0, "power")
    said = []
    if translator.tokenizers.source.languages:
        options["target_language"] = "fra"
    for text in TEXTS:
        tag = ">>fra<<" if options["target_language"] else ""
        batch = tokenizer([tag + text], return_tensors="pt")
        never = [tokenizer.unk_token_id, tokenizer.pad_token_id]
        limit = batch.input_ids.shape[1] - 1 + 12
        model.generation_config.forced_eos_token_id = None
        row = model.generate(**batch, num_beams=beam, max_new_tokens=limit + 1, suppress_tokens=never)[0]
        found = translator.translate(text, **options)
        if row[-1] == tokenizer.eos_token_id and found.status != "truncated":  # what does not end is cut in other ways
            assert found.text == tokenizer.decode(row, skip_special_tokens=True), text
            said.append(found.text)
    assert len(said) > 7
    assert len(set(said)) > 4, "the control: different things"


def test_engines_agree(folders: tuple[Path, Path]) -> None:
    language = load_bundle(folders[1]).tokenizers.source.languages[:1]
    plain, fast = (dragoman.load(folders[1], "cpu", engine=engine) for engine in ("plain", "cpu"))
    options: Any = {"target_language": language[0]} if language else {}
    one, other = (each.translate(TEXTS, **options) for each in (plain, fast))
    assert [each.tokens for each in one] == [each.tokens for each in other]


def test_export_and_import_give_the_same_model(tmp_path: Path) -> None:
    model = random_model(tmp_path / "ours", "model.output_bias=true")
    to_huggingface(model, tmp_path / "theirs", check=False)
    from_huggingface(tmp_path / "theirs", tmp_path / "again")
    first, second = (dragoman.load(tmp_path / name, "cpu") for name in ("ours", "again"))
    for text in ("the cat sat on the mat", "forty two birds"):
        options: Any = {"beam": 3, "n_best": 3, "length_penalty": 1.0, "length_penalty_form": "power", "max_extra": 8}
        one, other = first.translate(text, **options), second.translate(text, **options)
        assert [each.text for each in one.alternatives] == [each.text for each in other.alternatives]
        assert one.score == pytest.approx(other.score, abs=1e-4)


# Target languages


def test_a_tag_selects_the_target_language(tagged: Path, tmp_path: Path) -> None:
    done = from_huggingface(tagged, tmp_path / "ours", target_language="deu")
    assert done.languages == ("deu", "fra")
    translator = dragoman.load(tmp_path / "ours", "cpu")
    text = "the cat sat on a mat"
    assert translator.translate(text).source_tokens[0] == ">>deu<<"
    assert translator.translate(text, target_language="fra").source_tokens[0] == ">>fra<<"
    both = [translator.translate(text, target_language=language).score for language in ("deu", "fra")]
    assert both[0] != both[1], "the control: the tag matters"
    assert translator.score(text, translator.translate(text).text) == pytest.approx(both[0], abs=1e-4)
    literal = translator.translate(">>fra<< " + text)
    assert literal.source_tokens[0] == ">>deu<<", "text is text"
    assert ">>fra<<" not in literal.source_tokens


def test_a_missing_or_unknown_language_is_an_error(tagged: Path, tmp_path: Path) -> None:
    from_huggingface(tagged, tmp_path / "ours", check=False)
    translator = dragoman.load(tmp_path / "ours", "cpu")
    with pytest.raises(
        ConfigError, match=r"^target_language: none was given; give one of deu, fra, or set it in the model"
    ):
        translator.translate("the cat")
    with pytest.raises(
        ConfigError, match=r"^target_language: 'eng' is not among them; give one of deu, fra, or set it in the model"
    ):
        translator.translate("the cat", target_language="eng")
    with pytest.raises(ConfigError, match=r"^target_language: 'eng' is unknown; give one of deu, fra$"):
        from_huggingface(tagged, tmp_path / "other", target_language="eng")
    assert not (tmp_path / "other").exists()
    single = dragoman.load(random_model(tmp_path / "single"), "cpu")
    with pytest.raises(ConfigError, match=r"^target_language: 'deu' was given, but the model has only one; leave it"):
        single.translate("the cat", target_language="deu")


def test_long_text_has_the_tag_in_every_part(tagged: Path, tmp_path: Path) -> None:
    from_huggingface(tagged, tmp_path / "ours", target_language="deu", check=False)
    translator = dragoman.load(tmp_path / "ours", "cpu")
    result = translator.translate(" ".join(lines(WORDS, 5, 40)))
    parts = result.source_tokens.count(">>deu<<")
    assert result.status == "split"
    assert parts == result.source_tokens.count("</s>") > 1
    ids = translator.cutter.split(" ".join(lines(WORDS, 5, 40)), [7])
    assert all(len(part) <= translator.config.text.max_length for _, part, _ in ids)
    assert all(part[0] == 7 for _, part, _ in ids)


# The command


def test_command_reports_what_it_imported(tagged: Path, tmp_path: Path) -> None:
    out = tmp_path / "ours"
    result = CliRunner().invoke(app, ["import", "huggingface", str(tagged), str(out)])
    assert result.exit_code == 0, result.output
    first, second, third = result.output.splitlines()
    assert re.fullmatch(rf"{out}: [\d,]+ parameters, 48 source and \d+ target pieces", first)
    assert second == "--target-language: deu, fra"
    assert third == "checked: 5 sentences give the same tokens in transformers"
    card = (out / "card.md").read_text()
    assert card.startswith("# tagged\n")
    assert "Target languages (`--target-language`): deu, fra." in card


def test_a_check_that_fails_leaves_nothing(tagged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = MarianFolder.weights

    def wrong(self: MarianFolder) -> dict[str, torch.Tensor]:
        found = weights(self)
        found["source_embedding.weight"] = found["source_embedding.weight"].flip(0)
        return found

    monkeypatch.setattr(MarianFolder, "weights", wrong)
    with pytest.raises(ModelError, match="transformers gives other tokens than dragoman"):
        from_huggingface(tagged, tmp_path / "ours")
    assert not list(tmp_path.iterdir())


def test_a_folder_of_links_is_read(tagged: Path, tmp_path: Path) -> None:
    """Downloads are links to a cache."""
    (tmp_path / "snapshot").mkdir()
    for path in tagged.iterdir():
        (tmp_path / "snapshot" / path.name).symlink_to(path)
    assert from_huggingface(tmp_path / "snapshot", tmp_path / "ours", check=False).languages == ("deu", "fra")


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
        ({"model_type": "t5"}, "model_type 't5' has no counterpart here for its relative position bias and RMS norm"),
        ({"model_type": "bert"}, "model_type 'bert' cannot be imported; give a Marian or BART model"),
        ({"activation_function": "tanh"}, "activation_function 'tanh' has no counterpart here; only relu, gelu"),
        ({"d_model": "32"}, "d_model is '32', not a number from 1 to 1,000,000"),
        ({"d_model": 1 << 30}, "d_model is 1073741824, not a number from 1"),
        ({"scale_embedding": 1}, "scale_embedding is 1, not true or false"),
        ({"eos_token_id": -1}, "eos_token_id is -1, not an id from 0 to"),
        ({"encoder_layers": 3}, "model.encoder.layers.2.self_attn.q_proj.weight is missing, expected [32, 32]"),
        ({"encoder_ffn_dim": 47}, "model.encoder.layers.0.fc1.weight is torch.float32 [48, 32], expected [47, 32]"),
        ({"vocab_size": 50}, "and ids must be from 0 to 49; download the model again"),
    ],
)
def test_settings_without_a_counterpart_are_refused(
    tagged: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, ModelError), match=re.escape(message)):
        from_huggingface(changed(tagged, tmp_path / "theirs", **settings), tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"[]", "config.json: not a JSON object; download"),
        ("config.json", b"[" * 100_000, "config.json: not a JSON object; download"),
        ("vocab.json", b'{"a": 1.5}', "vocab.json: 'a' has the id 1.5, and ids must be from 0 to"),
        ("vocab.json", b'{"a": 1, "b": 1}', "vocab.json: two pieces have the same id; download"),
        ("vocab.json", b'{"a": 1}', "vocab.json: has no <unk>; download"),
        ("vocab.json", b"nonsense", "vocab.json: not a JSON object of pieces and ids; download"),
        ("source.spm", b"nonsense", "source.spm: not a sentencepiece model; download"),
        ("target.spm", b"", "target.spm: a sentencepiece model without pieces; download"),
        ("model.safetensors", b"nonsense", "model.safetensors: not a safetensors file"),
    ],
)
def test_damaged_files_are_refused(tagged: Path, tmp_path: Path, name: str, content: bytes, message: str) -> None:
    folder = changed(tagged, tmp_path / "theirs")
    (folder / name).write_bytes(content)
    with pytest.raises(ModelError, match="^" + re.escape(f"{folder}/{message}")):
        from_huggingface(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_missing_files_are_named(tagged: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"nowhere: no such folder; give one with config\.json, a vocabulary and weights"
    ):
        from_huggingface(tmp_path / "nowhere", tmp_path / "ours")
    folder = changed(tagged, tmp_path / "theirs")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has neither model\.safetensors nor pytorch_model\.bin; download"):
        from_huggingface(folder, tmp_path / "ours")
    (folder / "source.spm").unlink()
    with pytest.raises(ModelError, match=r"source\.spm: cannot be read \(No such file or directory\); download"):
        from_huggingface(folder, tmp_path / "ours")


def test_numbers_that_are_not_finite_are_refused(tagged: Path, tmp_path: Path) -> None:
    folder = changed(tagged, tmp_path / "theirs")
    weights = load_file(folder / "model.safetensors")
    weights["model.encoder.layers.0.fc1.bias"][3] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"layers\.0\.fc1\.bias has numbers that are not finite; download"):
        from_huggingface(folder, tmp_path / "ours")


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        (torch.zeros(1).expand(100_000, 512), "model.shared.weight is larger than the file"),
        (torch.zeros(8, 8).to_sparse(), "model.shared.weight is larger than the file"),
        ("text", "not a dictionary of tensors"),
    ],
)
def test_a_pickle_that_is_larger_in_memory_is_refused(tagged: Path, tmp_path: Path, weights: Any, problem: str) -> None:
    folder = changed(tagged, tmp_path / "theirs")
    (folder / "model.safetensors").unlink()
    torch.save({"model.shared.weight": weights}, folder / "pytorch_model.bin")  # noqa: TID251
    with pytest.raises(ModelError, match=re.escape(f"pytorch_model.bin: {problem}; download")):
        from_huggingface(folder, tmp_path / "ours")
    if isinstance(weights, torch.Tensor):
        return
    with zipfile.ZipFile(folder / "packed.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("archive/data.pkl", bytes(1_000_000))
    (folder / "packed.zip").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"not a checkpoint of tensors \(it is compressed\); download"):
        from_huggingface(folder, tmp_path / "ours")


def test_tags_are_words(tagged: Path, tmp_path: Path) -> None:
    """What a model calls its languages is printed."""
    folder = changed(tagged, tmp_path / "theirs")
    ids = json.loads((folder / "vocab.json").read_text())
    index = ids.pop(">>fra<<")
    (folder / "vocab.json").write_text(json.dumps({**ids, ">>f\x1b[31m<<": index}))
    assert from_huggingface(folder, tmp_path / "ours", check=False).languages == ("deu",)
    (folder / "vocab.json").write_text(json.dumps({**ids, ">>\ud800<<": index}))
    with pytest.raises(ModelError, match=r"vocab\.json: '>>\\ud800<<' is not text; download"):
        from_huggingface(folder, tmp_path / "other", check=False)


class _Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_does_not_run(tagged: Path, tmp_path: Path) -> None:
    folder, trace = changed(tagged, tmp_path / "theirs"), tmp_path / "it ran"
    (folder / "model.safetensors").unlink()
    torch.save({"model.shared.weight": _Touch(trace)}, folder / "pytorch_model.bin")  # noqa: TID251
    with pytest.raises(ModelError, match=r"pytorch_model\.bin: not a checkpoint of tensors"):
        from_huggingface(folder, tmp_path / "ours")
    assert not trace.exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)  # noqa: TID251
    assert trace.exists(), "the control"


@pytest.mark.parametrize(
    ("files", "library"),
    [
        (["onnx/encoder_model.onnx", "onnx/decoder_model_merged.onnx"], "ONNX Runtime"),
        (["model.onnx"], "ONNX Runtime"),
        (["model.bin", "shared_vocabulary.json"], "CTranslate2"),
    ],
)
def test_models_for_other_libraries_are_named_and_not_opened(
    files: list[str], library: str, tagged: Path, tmp_path: Path
) -> None:
    """Whatever is in them: here a pickle, and links to a file that never ends."""
    folder, trace = changed(tagged, tmp_path / "theirs"), tmp_path / "it ran"
    for name in files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to("/dev/zero")
    torch.save({"weight": _Touch(trace)}, folder / "weights.bin")  # noqa: TID251
    from_huggingface(folder, tmp_path / "both", check=False)  # weights that it can read are beside them
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError) as error:
        from_huggingface(folder, tmp_path / "ours")
    assert str(error.value) == (f"{folder}: is for {library} and cannot be read; give the model it was made from")
    assert not trace.exists()
    assert not (tmp_path / "ours").exists()


def test_an_oversized_checkpoint_is_not_read(tagged: Path, tmp_path: Path) -> None:
    folder = changed(tagged, tmp_path / "theirs")
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(1 << 30)
    with pytest.raises(ModelError, match=r"model\.safetensors: has 1,073,741,824 bytes, at most [\d,]+ are allowed"):
        from_huggingface(folder, tmp_path / "ours")


def test_target_text_is_in_the_language_of_the_target(folders: tuple[Path, Path]) -> None:
    """Targets are cut into the pieces that transformers cuts them into."""
    tokenizer, _ = library(folders[0])
    ours = load_bundle(folders[1]).tokenizers.target
    own = MarianFolder(folders[0]).target.own_ids()
    for text in lines(OTHERS, 4, 20):
        expected = tokenizer(text_target=text).input_ids[:-1]
        assert ours.encode(text) == [own[index] for index in expected]


def test_positions_that_are_not_sinusoidal_are_refused(tmp_path: Path) -> None:
    folder = marian_folder(tmp_path / "theirs", pickled=True)
    weights = torch.load(folder / "pytorch_model.bin")  # noqa: TID251
    weights["model.decoder.embed_positions.weight"][5, 3] += 0.01
    torch.save(weights, folder / "pytorch_model.bin")  # noqa: TID251
    with pytest.raises(ConfigError, match=r"the positions of its decoder are not sinusoidal; give another model"):
        from_huggingface(folder, tmp_path / "ours")


@pytest.mark.slow
def test_training_continues_from_an_imported_model(tmp_path: Path, tagged: Path) -> None:
    sources = lines(WORDS, 6, 40)
    targets = [" ".join(TRANSLATIONS[word] for word in line.split()) for line in sources]
    corpus = {"en": sources, "de": targets}
    for side, texts in corpus.items():
        (tmp_path / f"train.{side}").write_text("\n".join(texts) + "\n")
    folders = {"plain": marian_folder(tmp_path / "plain"), "tagged": tagged}
    results = {}
    for name, folder in folders.items():
        from_huggingface(folder, tmp_path / f"imported {name}", check=False)
        data = [f"--{part}{side}" for part in ("", "valid-") for side in ("source", "target")]
        files = [str(tmp_path / f"train.{side}") for side in ("en", "de")] * 2
        arguments = [word for pair in zip(data, files, strict=True) for word in pair]
        settings = ["--set", "train.max_steps=3", "--set", "train.learning_rate=1e-3", "--preset", "tiny"]
        out = ["--from", str(tmp_path / f"imported {name}"), "--out", str(tmp_path / f"tuned {name}")]
        results[name] = CliRunner().invoke(app, ["train", *arguments, *settings, *out])
    assert results["plain"].exit_code == 0, results["plain"].output
    records = [json.loads(line) for line in (tmp_path / "tuned plain" / "log.jsonl").read_text().splitlines()]
    assert all(record["loss"] < 20 for record in records if record["kind"] == "train"), "outputs it lacks cost little"
    assert dragoman.load(tmp_path / "tuned plain", "cpu").translate("the cat").status in ("translated", "truncated")
    assert str(results["tagged"].exception) == (
        f"train.start_from: {tmp_path / 'imported tagged'} translates into several languages, and training does not "
        "add their tags to sources; start from a model with one target language"
    )


def test_pieces_without_an_id_are_unknown(tmp_path: Path) -> None:
    folder = marian_folder(tmp_path / "theirs", left_out=8)
    tokenizer, _ = library(folder)
    imported = MarianFolder(folder).source
    left_out = [index for index, row in enumerate(imported.rows) if row == tokenizer.unk_token_id]
    assert len(left_out) == 1 + 8
    for text in lines(WORDS, 7, 30):
        assert [imported.rows[index] for index in imported.tokenizer.encode(text)] == tokenizer(text).input_ids[:-1]
