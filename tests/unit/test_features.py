"""Sequences of feature vectors: their files, the models that read them, word error rates."""

import io
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dragoman.bundle import Bundle, Tokenizers
from dragoman.config import Config
from dragoman.data.batching import pad_vectors
from dragoman.data.corpus import CorpusReport, Pair
from dragoman.data.feature_store import FeatureStore
from dragoman.data.features import as_patches, as_picture, read_feature_pairs, read_features, write_features
from dragoman.data.store import build_store
from dragoman.decode.classifier import Classifier
from dragoman.decode.transcriber import Transcriber
from dragoman.errors import DataError, ModelError
from dragoman.evaluate.word_errors import word_error_rate, word_errors
from dragoman.model.build import build_model
from dragoman.model.transformer import embed, input_layer
from dragoman.scale import Scale
from dragoman.text.labels import Labels
from dragoman.text.tokenizer import Tokenizer

LENGTHS = (3, 1, 7, 4)
TEXTS = ["one two", "three", "two one two", "one three"]
SIZES = ["model.num_layers=1", "model.d_model=16", "text.max_length=8"]
NOT_VECTORS = "not a file of vectors; give .npz with `vectors` and `lengths`, or .npy with three axes"
NO_NUMBERS = "needs sequences of at least one vector of numbers each"


def make_rows(lengths: Sequence[int] = LENGTHS, features: int = 2) -> list[Any]:
    random = np.random.default_rng(0)
    return [random.normal(5.0, 3.0, size=(length, features)).astype(np.float32) for length in lengths]


def npz(**arrays: Any) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def npy(array: Any) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def message_of(call: Callable[[], Any], kind: type[Exception] = DataError) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


# Files of vectors


@pytest.mark.parametrize(("given", "stored"), [("f2", "f2"), ("f4", "f4"), ("f8", "f4"), ("i8", "f4")])
def test_sequences_survive_a_file(tmp_path: Path, given: str, stored: str) -> None:
    rows = [row.astype(given) for row in make_rows()]
    write_features(tmp_path / "rows.npz", rows)
    found = read_features(tmp_path / "rows.npz", features=2)
    assert [row.tolist() for row in found.rows] == [row.astype("f4").tolist() for row in rows]
    assert {row.dtype for row in found.rows} == {np.dtype("f4")}
    assert (found.features, found.picture) == (2, None)
    assert np.load(tmp_path / "rows.npz")["vectors"].dtype == stored


def test_mixed_precision_is_stored_in_32_bits(tmp_path: Path) -> None:
    rows: list[Any] = [np.full((1, 1), 1 / 3, np.float16), np.full((1, 1), 1 / 3, np.float32)]
    write_features(tmp_path / "rows.npz", rows)
    assert read_features(tmp_path / "rows.npz").rows[1].tolist() == rows[1].tolist()
    assert rows[1] != rows[0], "the control: 16 bits would lose digits"


def test_an_array_of_three_axes_is_sequences_of_one_length(tmp_path: Path) -> None:
    array = np.arange(30, dtype=np.int16).reshape(3, 5, 2)
    np.save(tmp_path / "rows.npy", array)
    assert [row.tolist() for row in read_features(tmp_path / "rows.npy").rows] == array.tolist()


@pytest.mark.parametrize(("shapes", "message"), [
    ([], "{path}: no sequence to write; give at least one"),
    ([(3,)], "sequence 1: its shape is [3]; give [vectors, features] like the others"),
    ([(2, 3), (2, 4)], "sequence 2: its shape is [2, 4]; give [vectors, features] like the others"),
    ([(2, 3), (0, 3)], "sequence 2: its shape is [0, 3]; give [vectors, features] like the others"),
])  # fmt: skip
def test_what_cannot_be_written_is_refused(tmp_path: Path, shapes: list[tuple[int, ...]], message: str) -> None:
    path = tmp_path / "rows.npz"
    rows = [np.zeros(shape) for shape in shapes]
    assert message_of(lambda: write_features(path, rows)) == message.format(path=path)
    assert not path.exists()


VECTORS, LENGTH = np.ones((4, 4)), np.array([4])
BAD_LENGTHS = "`lengths` needs one whole number for each sequence, at least 1"
NOT_SQUARE = "square patches of 4 numbers do not make a picture of {} by {}"


@pytest.mark.parametrize(("content", "message"), [
    (b"", NOT_VECTORS),
    (b"a,b\n1,2\n", NOT_VECTORS),
    (npz(vectors=VECTORS, lengths=LENGTH)[:-40], NOT_VECTORS),
    (npz(vectors=VECTORS, lengths=LENGTH)[:100], NOT_VECTORS),
    (npy(np.ones((2, 2, 2)))[:-1], NOT_VECTORS),
    (npz(vectors=VECTORS), "has vectors; it needs `vectors` and `lengths`"),
    (npz(lengths=LENGTH), "has lengths; it needs `vectors` and `lengths`"),
    (npz(vectors=VECTORS, lengths=np.array([3])), "`lengths` add up to 3, and there are 4 `vectors`"),
    (npz(vectors=VECTORS, lengths=np.array([3, 2])), "`lengths` add up to 5, and there are 4 `vectors`"),
    (npz(vectors=VECTORS, lengths=np.array([5, -1])), BAD_LENGTHS),
    (npz(vectors=VECTORS, lengths=np.array([4, 0])), BAD_LENGTHS),
    (npz(vectors=VECTORS, lengths=np.array([[4]])), BAD_LENGTHS),
    (npz(vectors=VECTORS, lengths=np.array([4.0])), BAD_LENGTHS),
    (npz(vectors=VECTORS, lengths=np.array(["4"])), BAD_LENGTHS),
    (npz(vectors=np.array(4.0), lengths=LENGTH), NOT_VECTORS),
    (npz(vectors=VECTORS, lengths=LENGTH, picture=np.array([4, 4, 1])), NOT_VECTORS),
    (npz(vectors=VECTORS, lengths=LENGTH, picture=np.array([4])), NOT_VECTORS),
    (npz(vectors=VECTORS, lengths=LENGTH, picture=np.array(4)), NOT_VECTORS),
    (npz(vectors=VECTORS, lengths=LENGTH, picture=np.array([[2], [8]])), NOT_VECTORS),
    (npy(np.array(1.0)), NOT_VECTORS),
    (npy(np.ones((3, 2))), NO_NUMBERS),
    (npy(np.ones((0, 3, 2))), NO_NUMBERS),
    (npy(np.ones((3, 0, 2))), NO_NUMBERS),
    (npy(np.ones((3, 2, 0))), NO_NUMBERS),
    (npy(np.ones((3, 2, 2), complex)), NO_NUMBERS),
    (npy(np.full((3, 2, 2), "1")), NO_NUMBERS),
    (npz(vectors=np.array([1.0, math.nan, 2.0, 3.0])[:, None], lengths=np.array([1, 2, 1])),
     "sequence 2 has numbers that are not finite; fix or remove it"),
    (npz(vectors=np.full((4, 4), 1e300), lengths=LENGTH),
     "sequence 1 has numbers that are not finite; fix or remove it"),
    (npy(np.array([[[1.0]], [[1.0]], [[-math.inf]]])), "sequence 3 has numbers that are not finite; fix or remove it"),
    (npz(vectors=VECTORS, lengths=LENGTH, picture=np.array([4, 6])),
     "sequence 1 has 4 patches; a picture of 4 by 6 needs 6"),
    (npz(vectors=VECTORS, lengths=LENGTH, picture=np.array([3, 5])), NOT_SQUARE.format(3, 5)),
    (npz(vectors=VECTORS, lengths=LENGTH, picture=np.array([-2, -8])), NOT_SQUARE.format(-2, -8)),
    (npz(vectors=VECTORS, lengths=np.array([1, 3]), picture=np.array([2, 2])),
     "sequence 2 has 3 patches; a picture of 2 by 2 needs 1"),
    (npz(vectors=np.ones((4, 3)), lengths=LENGTH, picture=np.array([2, 2])),
     "square patches of 3 numbers do not make a picture of 2 by 2"),
])  # fmt: skip
def test_what_is_no_file_of_vectors_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "rows"
    path.write_bytes(content)
    assert message_of(lambda: read_features(path)) == f"{path}: {message}"
    path.write_bytes(npz(vectors=VECTORS, lengths=LENGTH, picture=np.array([2, 8])))
    assert read_features(path).picture == (2, 8), "the control"


def test_damaged_files_are_refused_whatever_the_damage(tmp_path: Path) -> None:
    path, random = tmp_path / "rows.npz", np.random.default_rng(1)
    whole = npz(vectors=random.normal(size=(40, 4)).astype(np.float32), lengths=np.array([20, 20]))
    refused = 0
    for _ in range(300):
        damaged = np.frombuffer(whole, np.uint8).copy()
        places = random.integers(len(damaged), size=3)
        damaged[places] = random.integers(256, size=3)
        path.write_bytes(damaged.tobytes())
        try:
            read_features(path)
        except DataError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
def test_numbers_that_are_not_finite_are_not_written(tmp_path: Path, value: float) -> None:
    rows = [np.ones((2, 2)), np.array([[1.0, value]])]
    expected = "sequence 2 has numbers that are not finite; fix or remove it"
    assert message_of(lambda: write_features(tmp_path / "rows.npz", rows)) == expected
    assert not (tmp_path / "rows.npz").exists()


def test_vectors_must_have_the_features_of_the_model(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    write_features(path, make_rows())
    expected = f"{path}: vectors of 2 numbers; the model has model.source_features=3"
    assert message_of(lambda: read_features(path, features=3)) == expected
    assert read_features(path, features=2).features == read_features(path).features == 2


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_pickled_objects_are_never_loaded(tmp_path: Path, kind: str) -> None:
    path, touched = tmp_path / f"rows.{kind}", tmp_path / "touched"
    objects = np.array([[[Trap(touched)]]], object)
    path.write_bytes(npy(objects) if kind == "npy" else npz(vectors=objects[0], lengths=np.array([1])))
    assert message_of(lambda: read_features(path)) == f"{path}: {NOT_VECTORS}"
    assert not touched.exists()
    loaded = np.load(io.BytesIO(path.read_bytes()), allow_pickle=True)
    assert kind == "npy" or loaded["vectors"].shape == (1, 1)
    assert touched.exists(), "the control: the trap works"


def test_a_picture_is_checked_before_it_is_written(tmp_path: Path) -> None:
    path, patches = tmp_path / "pictures.npz", np.ones((4, 4))
    expected = f"{path}: sequence 2 has 3 patches; a picture of 4 by 4 needs 4"
    assert message_of(lambda: write_features(path, [patches, patches[:3]], picture=(4, 4))) == expected
    expected = f"{path}: square patches of 4 numbers do not make a picture of 4 by 4 by 3"
    assert message_of(lambda: write_features(path, [patches], picture=(4, 4, 3))) == expected  # type: ignore[arg-type]
    assert not path.exists()
    expected = "picture: its shape is [4, 4, 3]; give [height, width]"
    assert message_of(lambda: as_patches(np.ones((4, 4, 3)), 2)) == expected
    expected = f"{tmp_path / 'pictures.txt'}: is written as .npz; name it so"
    assert message_of(lambda: write_features(tmp_path / "pictures.txt", [patches])) == expected


def test_patches_are_squares_row_by_row(tmp_path: Path) -> None:
    picture = np.arange(24).reshape(4, 6)
    patches = as_patches(picture, 2)
    assert patches.tolist()[:4] == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11], [12, 13, 18, 19]]
    assert as_picture(patches, (4, 6)).tolist() == picture.tolist()
    assert as_picture(patches, (6, 4)).T.tolist() != picture.tolist(), "the control"
    expected = "picture of 4 by 6: patches of 4 by 4 do not fill it"
    assert message_of(lambda: as_patches(picture, 4)) == expected
    write_features(tmp_path / "pictures.npz", [patches, patches], picture=(4, 6))
    assert read_features(tmp_path / "pictures.npz").picture == (4, 6)


# Pairs


def pairs_of(
    tmp_path: Path, lines: bytes, report: CorpusReport, rows: Sequence[Any] | None = None, **options: Any
) -> list[Pair]:
    source, target = tmp_path / "rows.npz", tmp_path / "text"
    write_features(source, make_rows() if rows is None else rows)
    target.write_bytes(lines)
    return list(read_feature_pairs([source], [target], report=report, **options))


def test_sequence_n_belongs_to_line_n(tmp_path: Path) -> None:
    report = CorpusReport()
    pairs = pairs_of(tmp_path, b"one\n \nthree\nfour\n", report)
    assert [(pair.target, pair.part, pair.line) for pair in pairs] == [("one", 0, 1), ("three", 0, 3), ("four", 0, 4)]
    rows = make_rows()
    assert [pair.source.tolist() for pair in pairs] == [rows[number].tolist() for number in (0, 2, 3)]
    assert report.kept == 3
    assert report.notes() == [f"1 pair left out, blank on a side: {tmp_path / 'text'}:2"]


def test_bad_lines_are_reported_or_skipped(tmp_path: Path) -> None:
    lines, report = b"one\n\xfftwo\nthree\nfour\n", CorpusReport()
    expected = f"{tmp_path / 'text'}:2: invalid UTF-8 at byte 1; fix the line or use --on-bad-line skip"
    assert message_of(lambda: pairs_of(tmp_path, lines, CorpusReport())) == expected
    pairs = pairs_of(tmp_path, lines, report, on_bad_line="skip")
    assert [pair.line for pair in pairs] == [1, 3, 4]
    assert report.notes() == [f"1 pair left out, not valid text on a side: {tmp_path / 'text'}:2"]


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "rows.npz", tmp_path / "text"
    expected = f"{source}: 4 sequences, {target}: 3 lines; line N belongs to sequence N"
    assert message_of(lambda: pairs_of(tmp_path, b"a\nb\nc\n", CorpusReport())) == expected
    expected = f"{target}: no usable line; give one for each sequence of {source}"
    assert message_of(lambda: pairs_of(tmp_path, b"\n\n\n\n", CorpusReport())) == expected
    expected = f"{source}: vectors of 2 numbers; the model has model.source_features=5"
    assert message_of(lambda: pairs_of(tmp_path, b"a\nb\nc\nd\n", CorpusReport(), features=5)) == expected
    expected = "2 source files, 1 target files; give as many of one as of the other, in one order"
    assert message_of(lambda: list(read_feature_pairs([source] * 2, [target], report=CorpusReport()))) == expected
    expected = "0 source files, 0 target files; give as many of one as of the other, in one order"
    assert message_of(lambda: list(read_feature_pairs([], [], report=CorpusReport()))) == expected


def test_a_store_holds_vectors_on_the_scale_without_an_end(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = make_rows((3, 1, 12, 4))
    scale = Scale.learn(rows)

    def read(report: CorpusReport) -> Iterator[Pair]:
        return iter(pairs_of(tmp_path, b"one two\nthree\none\none\n", report, rows))

    paths = [tmp_path / "rows.npz"], [tmp_path / "text"]
    list(read(CorpusReport()))
    store = build_store(tmp_path / "a", *paths, scale, tokenizer, max_length=10, read=read, kind=FeatureStore)
    assert store.source_sizes.tolist() == [3, 1, 4], "the one of 12 vectors is too long"
    assert (store.target_sizes - store.target_lengths).tolist() == [1, 1, 1], "the control: text has </s>"
    for index, number in enumerate((0, 1, 3)):
        assert store.source(index).tolist() == scale.encode(rows[number]).tolist()
    assert store.place(2) == f"{tmp_path / 'rows.npz'}:4"


def test_a_sequence_may_be_as_long_as_the_limit(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = make_rows((8, 9))
    paths = [tmp_path / "rows.npz"], [tmp_path / "text"]

    def build(texts: bytes, some: list[Any], name: str) -> FeatureStore:
        def read(report: CorpusReport) -> Iterator[Pair]:
            return iter(pairs_of(tmp_path, texts, report, some))

        list(read(CorpusReport()))
        scale = Scale.learn(rows)
        return build_store(tmp_path / name, *paths, scale, tokenizer, max_length=8, read=read, kind=FeatureStore)

    assert build(b"one\none\n", rows, "a").source_sizes.tolist() == [8]
    expected = f"{tmp_path / 'text'}: every pair has more than text.max_length=8 pieces; raise it"
    assert message_of(lambda: build(b"one\n", rows[1:], "b")) == expected


# Models


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS * 4, Config.build("tiny", None, ["text.model=char"]).text, vocab_size=300)


def make_bundle(output: Tokenizer | Labels, *settings: str) -> Bundle:
    scale = Scale.learn(make_rows())
    config = Config.build("tiny", None, ["model.source_features=2", *SIZES, *settings]).with_vocabulary(2, output.size)
    torch.manual_seed(0)
    return Bundle(config, Tokenizers(scale, output), build_model(config.model).eval())


def test_vectors_are_projected_and_not_scaled() -> None:
    projection, embedding = input_layer(9, 3, 16), input_layer(9, None, 16)
    assert isinstance(projection, nn.Linear)
    assert isinstance(embedding, nn.Embedding)
    assert projection.weight.shape == (16, 3)
    vectors_BTF, ids_BT = torch.ones(2, 5, 3), torch.ones(2, 5, dtype=torch.long)
    assert torch.equal(embed(projection, vectors_BTF), projection(vectors_BTF))
    assert torch.equal(embed(embedding, ids_BT), embedding(ids_BT) * 4.0), "the control: sqrt(16)"


def test_vectors_are_padded_with_zeros() -> None:
    rows = make_rows()
    vectors, allowed = pad_vectors(rows)
    assert vectors.shape == (4, 7, 2)
    assert allowed.sum(dim=1).tolist() == list(LENGTHS)
    for number, row in enumerate(rows):
        assert torch.equal(vectors[number][allowed[number]], torch.from_numpy(row))
        assert torch.equal(allowed[number], torch.arange(7) < len(row))
    assert not vectors[~allowed].any()


@pytest.mark.parametrize("settings", [
    ["model.architecture=transformer"],
    ["model.architecture=transformer", "model.norm=pre", "model.positions=rotary"],
    ["model.architecture=lstm"],
    ["model.architecture=encoder", "model.pooling=end"],
    ["model.architecture=encoder", "model.pooling=mean"],
])  # fmt: skip
def test_padding_is_not_looked_at(tokenizer: Tokenizer, settings: list[str]) -> None:
    classifies = settings[0].endswith("encoder")
    config = Config.build("tiny", None, ["model.source_features=2", *SIZES, *settings]).with_vocabulary(
        2, tokenizer.size
    )
    torch.manual_seed(0)
    model = build_model(config.model).eval()
    vectors, allowed = pad_vectors(make_rows())
    vectors[~allowed] = 50.0
    target = [] if classifies else [torch.tensor([[1, 5, 6]] * len(LENGTHS))]
    with torch.no_grad():
        together, careless = model(vectors, *target, allowed), model(vectors, *target)
        for number, row in enumerate(make_rows()):
            alone = model(torch.from_numpy(row)[None], *(ids[:1] for ids in target))[0]
            torch.testing.assert_close(together[number], alone, atol=1e-5, rtol=1e-5)
            same = torch.allclose(careless[number], alone, atol=1e-2)
            assert same == (len(row) == max(LENGTHS)), "the control: without the mask padding is seen"


# Transcribers


def test_a_transcript_does_not_depend_on_the_batch(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    transcriber = Transcriber(make_bundle(tokenizer), "cpu")
    rows, counted = make_rows(), list[int]()
    together = transcriber.transcribe(rows, advance=counted.append)
    assert sum(counted) == len(rows)
    alone = [transcriber.transcribe([row])[0] for row in rows]
    assert [one.ids for one in together] == [one.ids for one in alone]
    assert [one.score for one in together] == pytest.approx([one.score for one in alone], rel=1e-4)
    assert len({round(one.score, 3) for one in alone}) == len(rows), "the control: other vectors, other scores"
    monkeypatch.setattr("dragoman.decode.transcriber.BATCH_SIZE", 3)
    assert [one.ids for one in transcriber.transcribe(rows)] == [one.ids for one in alone]
    assert transcriber.transcribe([]) == []


def test_the_score_of_a_transcript_is_that_of_its_tokens(tokenizer: Tokenizer) -> None:
    transcriber = Transcriber(make_bundle(tokenizer, "model.output_bias=true"), "cpu")
    with torch.no_grad():
        transcriber.model.output.bias[tokenizer.vocabulary.eos] = 2.5  # so that a transcript ends
    row = make_rows()[2]
    one = transcriber.transcribe([row], beam=1)[0]
    assert one.status == "transcribed"
    log_prob_TV, _ = transcriber.forced(row, one.ids)
    ids = [*one.ids, tokenizer.vocabulary.eos]
    assert one.score == pytest.approx(float(log_prob_TV[range(len(ids)), ids].sum()), rel=1e-4)
    assert (one.text, list(one.tokens)) == (tokenizer.decode(one.ids), tokenizer.pieces(one.ids))


def test_only_the_beginning_of_long_sequences_is_read(tokenizer: Tokenizer) -> None:
    transcriber = Transcriber(make_bundle(tokenizer), "cpu")
    row = make_rows([9])[0]
    cut, whole = transcriber.transcribe([row, row[:8]])
    assert cut.ids == whole.ids
    assert cut.score == pytest.approx(whole.score, rel=1e-5)
    assert transcriber.transcribe([row[:7]])[0].score != pytest.approx(whole.score, rel=1e-5), "the control"


def test_a_text_may_be_longer_than_its_vectors(tokenizer: Tokenizer) -> None:
    transcriber = Transcriber(make_bundle(tokenizer, "text.max_length=70"), "cpu")
    said = transcriber.transcribe(make_rows([1]))[0]
    assert said.status == "truncated", "an untrained model does not end"
    assert len(said.ids) == 70


@pytest.mark.parametrize("row", [
    np.ones((2, 3)), np.ones((2, 1)), np.ones((0, 2)), np.ones(2), np.full((1, 2), np.nan), np.full((1, 2), 1e300),
    [[1.0], [2.0]],
])  # fmt: skip
def test_rows_that_a_transcriber_cannot_read_are_refused(tokenizer: Tokenizer, row: Any) -> None:
    transcriber = Transcriber(make_bundle(tokenizer), "cpu")
    assert transcriber.transcribe([[[1.0, 2.0]]])[0].text, "the control: lists are read too"
    expected = f"sequence 2: needs one or more vectors of 2 finite numbers, not {list(np.shape(row))}"
    assert message_of(lambda: transcriber.transcribe([np.ones((1, 2)), row])) == expected


@pytest.mark.parametrize(
    "row", [np.ones((2, 3)), np.ones((2, 1)), np.ones((0, 2)), np.ones(2), np.full((1, 2), np.nan)]
)
def test_rows_that_a_classifier_cannot_read_are_refused(row: Any) -> None:
    classifier = Classifier(make_bundle(Labels.learn(["a", "b"]), "model.architecture=encoder"), "cpu")
    expected = f"sequence 2: needs one or more vectors of 2 finite numbers, not {list(row.shape)}"
    assert message_of(lambda: classifier.classify_vectors([np.ones((1, 2)), row])) == expected


# Classifiers


def test_vectors_are_classified_alike_alone_and_together() -> None:
    classifier = Classifier(make_bundle(Labels(["a", "b"]), "model.architecture=encoder"), "cpu")
    rows = make_rows([*LENGTHS, 8, 9])
    together = classifier.classify_vectors(rows)
    assert [one.text for one in together] == [f"sequence {number}" for number in range(1, 7)]
    assert [one.status for one in together] == ["classified"] * 5 + ["truncated"]
    for row, one in zip(rows, together, strict=True):
        alone = classifier.classify_vectors([row[:8]])[0]
        assert one.probabilities == pytest.approx(alone.probabilities, abs=1e-5)
        assert one.probability == one.probabilities[one.label] == max(one.probabilities.values())
    assert len({round(one.probabilities["a"], 4) for one in together}) > 4, "the control"
    shifted = classifier.classify_vectors([row + 3.0 for row in rows])
    assert shifted[0].probabilities != pytest.approx(together[0].probabilities, abs=1e-3)


def test_a_classifier_reads_either_text_or_vectors(tokenizer: Tokenizer) -> None:
    of_vectors = Classifier(make_bundle(Labels(["a", "b"]), "model.architecture=encoder"), "cpu")
    expected = "classify: this model reads vectors, not text; use classify_vectors"
    assert message_of(lambda: of_vectors.classify("one"), ModelError) == expected
    assert message_of(lambda: of_vectors.classify(["one"]), ModelError) == expected
    config = Config.build("tiny", None, ["model.architecture=encoder", *SIZES]).with_vocabulary(tokenizer.size, 2)
    tokenizers = Tokenizers(tokenizer, Labels(["a", "b"]))
    of_text = Classifier(Bundle(config, tokenizers, build_model(config.model)), "cpu")
    expected = "classify_vectors: this model reads text; use classify"
    assert message_of(lambda: of_text.classify_vectors(make_rows()), ModelError) == expected
    assert of_text.classify("one").label in ("a", "b"), "the control"


# Word error rate


@pytest.mark.parametrize(("said", "right", "errors"), [
    ("the cat sat", "the cat sat", 0),
    ("the dog sat", "the cat sat", 1),
    ("the cat", "the cat sat", 1),
    ("the the cat sat", "the cat sat", 1),
    ("cat sat the", "the cat sat", 2),
    ("b c d e", "a b c d", 2),
    ("", "the cat sat", 3),
    ("the cat", "", 2),
    ("", "", 0),
    ("  the   cat ", "the cat", 0),
    ("The cat", "the cat", 1),
])  # fmt: skip
def test_word_errors_are_insertions_deletions_and_substitutions(said: str, right: str, errors: int) -> None:
    assert word_errors(said, right) == word_errors(right, said) == errors


def test_word_error_rate_is_errors_per_hundred_words() -> None:
    right = ["a b c d", "e f", "g", "h i j"]
    said = ["a b c d", "e x", "g y", ""]
    rate = word_error_rate(said, right)
    assert rate.score == pytest.approx(100 * 5 / 10), "of all words, not the mean of lines"
    assert 0.0 <= rate.low < rate.score < rate.high
    assert word_error_rate(said, right) == rate, "the same resamples"
    exact = word_error_rate(said, right, resamples=0)
    assert exact.score == exact.low == exact.high == rate.score
    perfect = word_error_rate(right, right)
    assert (perfect.score, perfect.low, perfect.high) == (0.0, 0.0, 0.0)
    assert word_error_rate(["a b c"], ["a"]).score == 200.0
    assert word_error_rate(["a b"], [""]).score == 200.0, "no reference words count as one"
