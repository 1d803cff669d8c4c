"""Word vectors of four file formats, the rows of pieces that they give, and runs that start from them."""

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.bundle import load_bundle
from dragoman.cli.progress import TrainingReporter
from dragoman.config import Config, TextConfig
from dragoman.data.word_vectors import piece_vectors, read_header, read_vectors
from dragoman.errors import ConfigError, DataError, ModelError
from dragoman.text.tokenizer import Tokenizer
from dragoman.training.loop import train
from tests.conftest import quick_config

WORDS = ["the", "cat", "Katze", "über", ". . .", "10"]
WIDTH = 4
TABLE = np.random.default_rng(0).normal(size=(len(WORDS), WIDTH)).astype(np.float32)


def text_lines() -> bytes:
    rows = zip(WORDS, TABLE.tolist(), strict=True)
    return "".join(f"{word} {' '.join(map(repr, row))}\n" for word, row in rows).encode()


def binary(end: bytes) -> bytes:
    rows = zip(WORDS, TABLE, strict=True)
    body = b"".join(word.replace(" ", "_").encode() + b" " + row.astype("<f4").tobytes() + end for word, row in rows)
    return f"{len(WORDS)} {WIDTH}\n".encode() + body


FORMS: dict[str, Callable[[], bytes]] = {
    "word2vec text": lambda: f"{len(WORDS)} {WIDTH}\n".encode() + text_lines(),
    "GloVe": text_lines,
    "GloVe with tabs": lambda: text_lines().replace(b" ", b"\t").replace(b".\t.\t.", b". . ."),
    "GloVe that begins with a word of parts": lambda: b". . . .5 1e-3 -2 3.\n" + text_lines(),
    "word2vec binary": lambda: binary(b"\n"),
    "word2vec binary without line ends": lambda: binary(b""),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_every_form_gives_the_same_vectors(form: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"vectors{suffix}"
    path.write_bytes(gzip.compress(FORMS[form]()) if suffix else FORMS[form]())
    found = list(read_vectors(path))[-len(WORDS) :]
    assert [word.replace("_", " ") for word, _ in found] == WORDS
    np.testing.assert_array_equal(np.array([vector for _, vector in found]), TABLE)
    header = read_header(path)
    assert (header.width, header.binary) == (WIDTH, "binary" in form)


REFUSED = {
    "empty": (b"", "is empty; give a file of word2vec, GloVe or fastText (.vec)"),
    "no words": (b"0 64\n", "says that it has no words; give a file of word2vec, GloVe or fastText (.vec)"),
    "no vectors": (b"some text\n", "does not begin with a word and its numbers; give a file of word2vec"),
    "fastText's own": (b"\xba\x16O/\x0c\x00\x00\x00", "is a fastText model, not a file of vectors; give its .vec file"),
    "first vector": (b"2 3\na 1 nan 3\nb 1 2 3\n", ":2: has a number that is not finite or over 10,000; download"),
    "first is short": (b"2 3\na 1 2\nb 1 2 3\n", ":2: has 2 numbers, not 3; download it again"),
    "huge": (b"2 3\na 1 2 3\nb 1 1e20 2\n", ":3: has a number that is not finite or over 10,000; download it again"),
    "cut text": (b"3 3\na 1 2 3\nb 1 1 2\n", "has 2 words, its first line says 3; download it again"),
    "more than said": (binary(b"") + b"x 123", "goes on after its 6 words; download it again"),
    "too wide": (b"3 99999\na 1 2\n", "has vectors of 99,999 numbers, at most 16,384 are possible"),
    "ragged": (b"2 3\na 1 2 3\nb 1 2\n", r":3: has 2 numbers, not 3; download it again"),
    "no number": (b"2 3\na 1 2 3\nb 1 x 2\n", ":3: is not a word and 3 numbers; download it again"),
    "not finite": (b"2 3\na 1 2 3\nb 1 nan 2\n", ":3: has a number that is not finite or over 10,000; download it"),
    "cut": (binary(b"")[:-5], ": ends in word 6 of 6; download it again"),
    "cut in a word": (binary(b"")[:-18], ": ends in word 6 of 6; download it again"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_bad_files_are_refused(case: str, tmp_path: Path) -> None:
    content, message = REFUSED[case]
    path = tmp_path / "vectors"
    path.write_bytes(content)
    with pytest.raises(DataError, match="^" + re.escape(str(path)) + ".*" + re.escape(message)):
        list(read_vectors(path))
    with pytest.raises(DataError, match=r"none: no such file; check its name$"):
        read_header(tmp_path / "none")
    (tmp_path / "half.gz").write_bytes(gzip.compress(text_lines() * 1000)[:-300])
    with pytest.raises(DataError, match=r"half\.gz: ends in the middle of its compressed data; copy it again$"):
        list(read_vectors(tmp_path / "half.gz"))


def test_words_that_are_not_utf8_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "vectors").write_bytes(b"a 1 2\n\xff\xfe 3 4\nb 5 6\n")
    assert [word for word, _ in read_vectors(tmp_path / "vectors")] == ["a", "b"]


# Pieces

LINES = ["the cat sat on the mat", "a cat and a catfish", "cats sat"] * 20


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(LINES, TextConfig(model="bpe", vocab_size=285, byte_fallback=True))


def write(path: Path, vectors: dict[str, list[float]]) -> Path:
    path.write_text("".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in vectors.items()))
    return path


def test_a_piece_is_a_word_or_the_mean_of_words_it_occurs_in(tokenizer: Tokenizer, tmp_path: Path) -> None:
    ids = {piece: index for index, piece in enumerate(tokenizer.pieces(range(tokenizer.size)))}
    assert "▁cat" in ids
    assert tokenizer.pieces(tokenizer.encode("catfi")) == ["▁cat", "fi"], "the test needs these pieces"
    path = write(tmp_path / "v", {"cat": [1, 2], "catfi": [3, 5], "fi": [7, 9], "cat ": [50, 50], "日本": [90, 90]})
    found = piece_vectors([path], tokenizer, 2)
    assert found.rows[ids["▁cat"]].tolist() == [1, 2], "its own vector, the first one"
    assert found.rows[ids["fi"]].tolist() == [5, 7], "the mean over catfi and fi"
    spelled = np.flatnonzero(found.is_word).tolist()
    assert spelled == [ids["▁cat"]]
    assert not found.covered[:4].any(), "special pieces"
    assert not found.covered[tokenizer.piece_table().byte_ids].any()
    assert found.describe() == (
        f"5 words; {int(found.covered.sum())} of {tokenizer.size} pieces have vectors, 1 as words and "
        f"{int(found.covered.sum()) - 1} as means over words; the others are random"
    )
    scaled = found.scaled()[found.covered]
    assert np.square(scaled).mean() == pytest.approx(1 / 2), "as large as random embeddings"
    other = write(tmp_path / "w", {"cat": [3, 4]})
    both = piece_vectors([path, other], tokenizer, 2)
    assert both.rows[ids["▁cat"]].tolist() == [2, 3], "of two files, each counts the same"


# Runs


def letters(path: Path, width: int = 32) -> Path:
    generator = np.random.default_rng(1)
    return write(path, {letter: generator.normal(size=width).tolist() for letter in "abcdefghijklm"})


class Notes(TrainingReporter):
    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def run_config(*settings: str) -> Config:
    return quick_config(
        "data.generated_size=300", "train.max_steps=2", "train.save_every=1", "train.average=1", *settings
    )


def start(run: Path, *settings: str) -> tuple[Any, list[str]]:
    """The model after a few steps with a learning rate of nearly zero, and what was noted."""
    notes = Notes()
    train(run_config("train.learning_rate=1e-12", *settings), run, notes)
    return load_bundle(run), [note for note in notes.notes if "have vectors" in note]


@pytest.mark.slow
def test_a_run_starts_from_the_vectors(tmp_path: Path) -> None:
    path = letters(tmp_path / "vectors")
    bundle, [note] = start(tmp_path / "run", f"train.source_vectors={path}")
    assert note.startswith(f"{path}: 13 words; 13 of {bundle.tokenizers.source.size} pieces have vectors, 13 as words")
    assert f"- source embeddings began with the word vectors of {path}\n" in (tmp_path / "run" / "card.md").read_text()
    expected = piece_vectors([path], bundle.tokenizers.source, 32)
    rows = bundle.model.source_embedding.weight.detach().numpy()
    np.testing.assert_allclose(rows[expected.covered], expected.scaled()[expected.covered], atol=1e-6)
    plain, notes = start(tmp_path / "plain")
    assert notes == []
    others = plain.model.source_embedding.weight.detach().numpy()
    np.testing.assert_allclose(rows[~expected.covered], others[~expected.covered], atol=1e-6)
    assert np.abs(rows[expected.covered] - others[expected.covered]).max() > 0.1, "the control"

    path.unlink()  # a resumed run does not need them
    again = ["train.learning_rate=1e-12", "train.max_steps=3"]
    train(run_config(*again, f"train.source_vectors={path}"), tmp_path / "run")
    with pytest.raises(ModelError, match=r"train\.source_vectors was .*vectors.* when this run began and is .* now"):
        train(run_config(*again), tmp_path / "run")


@pytest.mark.slow
def test_sides_that_share_embeddings_share_vectors(tmp_path: Path) -> None:
    paths = [write(tmp_path / "source", {"a": [1.0] * 32}), write(tmp_path / "target", {"b": [-1.0] * 32})]
    _, [note] = start(tmp_path / "run", f"train.source_vectors={paths[0]}", f"train.target_vectors={paths[1]}")
    assert note.startswith(f"{paths[0]}, {paths[1]}: 1 and 1 words; 2 of ")


def test_each_side_has_its_own_vectors_and_frozen_ones_stay(tmp_path: Path) -> None:
    source, target = letters(tmp_path / "source"), write(tmp_path / "target", {"a": [1.0] * 32, "b": [-1.0] * 32})
    untied = ["model.share_source_target=false", "model.share_target_output=false"]
    settings = [*untied, f"train.source_vectors={source}", f"train.target_vectors={target}", "train.learning_rate=0.1"]
    config = run_config(*settings, "train.freeze=source_embedding")
    train(config, tmp_path / "run")
    bundle = load_bundle(tmp_path / "run")
    frozen = piece_vectors([source], bundle.tokenizers.source, 32)
    tuned = piece_vectors([target], bundle.tokenizers.target, 32)
    rows = bundle.model.source_embedding.weight.detach().numpy()
    np.testing.assert_allclose(rows[frozen.covered], frozen.scaled()[frozen.covered], atol=1e-6)
    moved = bundle.model.target_embedding.weight.detach().numpy()[tuned.covered] - tuned.scaled()[tuned.covered]
    assert 1e-4 < np.abs(moved).max() < 1, "tuned from there"


def test_vectors_that_do_not_fit_are_refused_at_once(tmp_path: Path) -> None:
    path = letters(tmp_path / "vectors", width=30)
    with pytest.raises(ConfigError) as error:
        train(run_config(f"train.target_vectors={path}"), tmp_path / "run")
    assert str(error.value) == (
        f"train.target_vectors: {path} has vectors of 30 numbers, the model is 32 wide; "
        "give others, or set model.d_model=30 and a model.num_heads that divides it"
    )
    with pytest.raises(ConfigError, match=r"train\.source_vectors: x would replace the embeddings of y; leave one"):
        run_config("train.source_vectors=x", "train.start_from=y")
    for name, vectors in {"strange": {"日本": [1.0] * 32}, "zeros": {"a": [0.0] * 32}}.items():
        path = write(tmp_path / name, vectors)
        with pytest.raises(
            DataError, match=rf"{name}: no piece of the vocabulary has a vector from it; give vectors of"
        ):
            train(run_config(f"train.source_vectors={path}"), tmp_path / "other")
