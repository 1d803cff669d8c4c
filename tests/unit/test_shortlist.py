"""A shortlist: how it is learned, what a file of one may hold, and a search among its pieces."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from typer.testing import CliRunner

import dragoman
from dragoman import bundle
from dragoman.cli.app import app
from dragoman.config import DecodeConfig
from dragoman.data.batching import teacher_forcing
from dragoman.decode import associations
from dragoman.decode.associations import Associations, alignment
from dragoman.decode.engines import loops
from dragoman.decode.engines.candidates import ShortlistCandidates
from dragoman.decode.engines.cpu import CpuEngine
from dragoman.decode.engines.plain import Engine
from dragoman.decode.search import search
from dragoman.decode.translator import Translator
from dragoman.errors import ConfigError, ModelError
from dragoman.shortlist import MOST_PIECES, Shortlist, read_shortlist
from dragoman.tensors import named_arrays
from tests.hostile import digest, seal
from tests.searching import SPECIAL, make_jobs, random_model

BEAM = DecodeConfig(beam=4, n_best=4)
SIZE = 90  # pieces of a random model
WHOLE = Shortlist(np.full((SIZE, 1), 3), np.arange(SIZE), SIZE)


def random_shortlist(seed: int, count: int = 6, always: int = 5) -> Shortlist:
    chance = np.random.default_rng(seed)
    return Shortlist(chance.integers(3, SIZE, (SIZE, count)), np.union1d([3], chance.integers(3, SIZE, always)), SIZE)


# Learning


def learned(**given: Any) -> Associations:
    """Two sentences: the first predicts 5 while it attends to 10, the second 6 and 7 while it attends to 11."""
    counts = Associations(8)
    arrays: dict[str, Any] = {
        "source_BS": np.array([[10, 11], [11, 12]]),
        "real_BT": np.array([[True, True], [True, False]]),
        "weight_BTS": np.array([[[0.9, 0.1], [0.5, 0.5]], [[0.8, 0.2], [1.0, 0.0]]]),
        "probability_BTC": np.array([[[1.0, 0.0], [0.5, 0.25]], [[0.75, 0.25], [1.0, 0.0]]]),
        "id_BTC": np.array([[[5, 4], [3, 5]], [[6, 7], [2, 1]]]),
    }
    counts.add(**{**arrays, **given})
    return counts


def test_counts_are_attention_times_probability() -> None:
    counts = learned()
    counts._merge()
    found = dict(zip(zip(*np.divmod(counts._key, 8), strict=True), counts._weight, strict=True))
    expected = {
        (10, 5): 0.9 + 0.5 * 0.25, (10, 3): 0.25, (11, 5): 0.1 + 0.5 * 0.25, (11, 3): 0.25,
        (11, 6): 0.6, (11, 7): 0.2, (12, 6): 0.15, (12, 7): 0.05,
    }  # fmt: skip
    assert found == pytest.approx(expected)
    assert counts.frequency_V == pytest.approx([0, 0, 0, 0.5, 0, 1.25, 0.75, 0.25]), "padding predicts nothing"


def test_counts_of_several_batches_are_summed_however_often_they_are_merged() -> None:
    once, twice = learned(), learned()
    for counts in (once, twice):
        counts._merge()
        counts.add(*(np.array(part) for part in ([[10]], [[True]], [[[1.0]]], [[[1.0]]], [[[5]]])))
    twice._merge()
    twice._merge()
    once._merge()
    assert (twice._key == once._key).all()
    assert (twice._weight == once._weight).all()
    assert once._weight.max() == pytest.approx(0.9 + 0.5 * 0.25 + 1.0)


def test_the_best_pieces_are_kept_without_those_that_are_always_allowed() -> None:
    best_SK = learned().best(13, 2, np.array([3]), unused=3)
    assert best_SK[10:].tolist() == [[5, 3], [6, 5], [6, 7]]
    assert (best_SK[:10] == 3).all(), "never seen"
    assert learned().best(13, 2, np.array([], int), unused=3)[11].tolist() == [6, 3], "the control"


def test_the_layer_whose_heads_agree_is_the_alignment() -> None:
    """The control attends to </s> only."""
    batch = teacher_forcing([[5, 6], [7]], [[8], [9]])
    even, sharp, end = np.full((2, 2, 3), 1 / 3), np.zeros((2, 2, 3)), np.zeros((2, 2, 3))
    sharp[:, :, 0] = 1.0
    end[0, :, 2] = end[1, :, 1] = 1.0
    assert (alignment(np.stack([even, end, sharp]), batch, 3) == sharp).all()
    assert (alignment(np.stack([end, even]), batch, 3) == even).all()


@pytest.mark.parametrize("settings", [{}, {"norm": "pre", "positions": "learned"}], ids=str)
def test_engines_predict_the_same_and_attend_to_the_same(settings: dict[str, Any]) -> None:
    model = random_model(5, **settings)
    sources = [source[:-1] for source in make_jobs(5, 9)[0]]
    batch = teacher_forcing(sources, sources[::-1])
    with torch.inference_mode():
        expected = Engine(model, "cpu").predict(batch, 6)
    found = CpuEngine(model.config, named_arrays(model), "float32").predict(batch, 6)
    np.testing.assert_allclose(found.weight_LBTS, expected.weight_LBTS, atol=1e-5)
    np.testing.assert_allclose(found.weight_LBTS.sum(axis=3), 1.0, atol=1e-5)
    np.testing.assert_allclose(found.log_prob_BTC, expected.log_prob_BTC, atol=1e-4)
    assert (found.id_BTC == expected.id_BTC).all()


def test_engines_attend_to_the_same_with_every_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in several passes, which may divide a sentence."""
    model = random_model(6)
    sources = make_jobs(6, 9)[0]
    targets = [[1, *source[:-1]] for source in sources[::-1]]
    with torch.inference_mode():
        expected = Engine(model, "cpu").cross_attention(sources, targets)
    engine = CpuEngine(model.config, named_arrays(model), "float32")
    at_once = engine.cross_attention(sources, targets)
    for found, other, source, target in zip(at_once, expected, sources, targets, strict=True):
        assert found.shape == (2, 2, len(target), len(source))
        np.testing.assert_allclose(found, other, atol=1e-5)
    assert sum(map(len, targets)) > 3 * 7
    monkeypatch.setattr("dragoman.decode.engines.cpu.TOKENS_PER_PASS", 7)
    for found, other in zip(engine.cross_attention(sources, targets), at_once, strict=True):
        assert (found == other).all()


# The file


def written(**changes: Any) -> bytes:
    arrays = {"pieces": np.full((SIZE, 2), 5, np.int16), "always": np.array([3, 4], np.int16)}
    return bytes(
        safetensors.numpy.save({name: each for name, each in {**arrays, **changes}.items() if each is not None})
    )


def read(content: bytes) -> Shortlist:
    return read_shortlist(content, SIZE, SIZE, 3, Path("s"))


@pytest.mark.parametrize("size", [1 << 15, (1 << 15) + 1])
def test_files_round_trip_in_the_smallest_integers(size: int) -> None:
    before = Shortlist(np.full((4, 2), size - 1), np.array([3]), size)
    content = before.to_bytes()
    after = read_shortlist(content, 4, size, 3, Path("s"))
    assert (after.pieces_SK == before.pieces_SK).all()
    assert after.always.tolist() == [3]
    assert after.pieces_SK.dtype == (np.int16 if size == 1 << 15 else np.int32)


HOSTILE = {
    "not safetensors": (b"PK\x03\x04", "not a safetensors file"),
    "nothing": (written(pieces=None, always=None), "holds nothing, expected always, pieces; make it again"),
    "another tensor": (written(more=np.zeros(1, np.int16)), "holds always, more, pieces, expected always, pieces;"),
    "floats": (written(pieces=np.zeros((SIZE, 2), np.float32)), "its ids are not int16 or int32;"),
    "too few source pieces": (written(pieces=np.zeros((SIZE - 1, 2), np.int16)), r"pieces is \[89, 2\], expected"),
    "too many pieces": (written(pieces=np.zeros((SIZE, MOST_PIECES + 1), np.int16)), r"pieces is \[90, 1001\]"),
    "one dimension": (written(pieces=np.zeros(SIZE, np.int16)), r"pieces is \[90\]"),
    "too many always": (written(always=np.zeros(SIZE + 1, np.int16)), r"always is \[91\], expected \[at most 90\]"),
    "beyond the vocabulary": (written(pieces=np.full((SIZE, 2), SIZE, np.int16)), "holds the id 90, of 90"),
    "a negative id": (written(always=np.array([3, -1], np.int16)), "holds the id -1, of 90 target pieces;"),
    "no end": (written(always=np.array([4], np.int16)), "does not always allow </s>, without which"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_refused(kind: str) -> None:
    content, message = HOSTILE[kind]
    with pytest.raises(ModelError, match=rf"^s: {message}"):
        read(content)
    assert read(written()).always.tolist() == [3, 4], "the control"


# The search


def engine_of(seed: int, precision: str, **settings: Any) -> CpuEngine:
    model = random_model(seed, **settings)
    return CpuEngine(model.config, named_arrays(model), precision)


def found(engine: CpuEngine, shortlist: Shortlist | None, job: Any, options: DecodeConfig = BEAM) -> Any:
    sources, limits = job
    return search(engine.start(sources, shortlist), limits, options, range(len(sources)), **SPECIAL)


@pytest.mark.parametrize("precision", ["int8", "float32"])
@pytest.mark.parametrize("beam", [1, 4])
def test_a_shortlist_of_the_whole_vocabulary_changes_nothing(precision: str, beam: int) -> None:
    engine, job, options = engine_of(3, precision), make_jobs(3, 20), DecodeConfig(beam=beam, n_best=beam)
    assert found(engine, WHOLE, job, options) == found(engine, None, job, options)
    assert found(engine, random_shortlist(1), job, options) != found(engine, None, job, options), "the control"


def test_a_translation_has_no_other_pieces_than_its_own_sentence_allows() -> None:
    engine, job, shortlist = engine_of(3, "int8", end_bias=0.0), make_jobs(3, 30), random_shortlist(2)
    allowed_BV = shortlist.allowed(job[0])
    assert len(np.unique(allowed_BV, axis=0)) > 20, "sentences allow different pieces"

    def all_allowed(results: Any) -> bool:
        rows = [(row, each) for row, hypotheses in enumerate(results) for each in hypotheses]
        return all(allowed_BV[row, list(each.ids)].all() for row, each in rows)

    assert all_allowed(found(engine, shortlist, job))
    assert not all_allowed(found(engine, None, job)), "the control"


@pytest.mark.parametrize("precision", ["int8", "float32"])
def test_a_sentence_has_the_same_bits_in_any_batch_with_a_shortlist(precision: str) -> None:
    chance = random.Random(3)
    sources = [[chance.randrange(4, SIZE) for _ in range(chance.randrange(20))] + [3] for _ in range(40)]
    limits = [len(source) + 10 for source in sources]
    engine, shortlist = engine_of(7, precision, end_bias=1.0), random_shortlist(4)
    together = found(engine, shortlist, (sources, limits))
    assert found(engine, shortlist, (sources[::-1], limits[::-1]))[::-1] == together
    for size in (1, 7):
        parts = [slice(first, first + size) for first in range(0, 40, size)]
        apart = [each for part in parts for each in found(engine, shortlist, (sources[part], limits[part]))]
        assert apart == together
    assert len({hypotheses[0].ids for hypotheses in together}) > 20, "the control: they differ"


def test_candidates_of_a_shortlist_are_the_best_of_it() -> None:
    chance = np.random.default_rng(1)
    logit_NV = chance.integers(-9, 9, (6, 300)).astype(np.float32)
    allowed_BV = chance.random((3, 300)) < 0.6
    ones, zeros = np.ones(300, np.float32), np.zeros(300, np.float32)
    length_B = allowed_BV.sum(axis=1)
    _, id_L = np.nonzero(allowed_BV)
    value_NC, id_NC = np.empty((6, 5), np.float32), np.empty((6, 5), np.int64)
    own = id_L, id_L, np.cumsum(length_B) - length_B, length_B
    loops.best_of_shortlist(logit_NV, np.ones(6, np.float32), ones, zeros, *own, value_NC, id_NC)
    masked_NV = np.where(allowed_BV.repeat(2, axis=0), logit_NV, -np.inf).astype(np.float64)
    expected = torch.log_softmax(torch.from_numpy(masked_NV), dim=1).numpy()
    order = np.argsort(-masked_NV, axis=1, kind="stable")[:, :5]
    assert (id_NC == order).all()
    np.testing.assert_allclose(value_NC, np.take_along_axis(expected, order, axis=1), atol=2e-6)


def test_fewer_allowed_pieces_than_candidates_are_enough() -> None:
    """A shortlist of </s> and one piece; the beam has room for eight candidates and three forbidden ones."""
    only = Shortlist(np.full((SIZE, 1), 3), np.array([3, 40]), SIZE)
    results = found(engine_of(3, "int8"), only, ([[5, 6, 3], [7, 3]], [4, 4]))
    assert {token for hypotheses in results for each in hypotheses for token in each.ids} <= {40}
    assert all(np.isfinite(each.score) for hypotheses in results for each in hypotheses)
    assert len(results[0]) == 4


def test_only_pieces_that_a_sentence_of_the_batch_allows_are_multiplied() -> None:
    engine, shortlist = engine_of(3, "int8"), random_shortlist(6)
    candidates = engine.start([[5, 6, 3], [7, 3]], shortlist)._candidates
    assert isinstance(candidates, ShortlistCandidates)
    expected = np.union1d(shortlist.always, shortlist.pieces_SK[[5, 6, 7, 3]])
    assert candidates.matrix.size == len(expected) < SIZE


# In a model directory


@pytest.fixture
def copied(quick_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(quick_run, tmp_path / "model", ignore=shutil.ignore_patterns("checkpoints", "data"))


def whole(model: Path) -> Shortlist:
    size = bundle.load_bundle(model).tokenizers.target.size
    return Shortlist(np.full((size, 2), 3), np.arange(size), size)


def test_a_shortlist_is_listed_in_the_manifest_and_verified(copied: Path) -> None:
    assert bundle.load_bundle(copied).shortlist is None
    bundle.save_shortlist(copied, whole(copied))
    manifest = json.loads((copied / bundle.MANIFEST).read_bytes())
    assert manifest[bundle.SHORTLIST] == [digest(copied / bundle.SHORTLIST)]
    loaded = bundle.load_bundle(copied).shortlist
    assert loaded is not None
    assert (loaded.always == whole(copied).always).all()
    path = copied / bundle.SHORTLIST
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    with pytest.raises(
        ModelError, match=r"its SHA-256 is not the one in manifest.json; make it again with `dragoman shortlist`$"
    ):
        bundle.load_bundle(copied)
    seal(copied)
    with pytest.raises(ModelError, match=r"holds the id \d+, of"):
        bundle.load_bundle(copied)


def test_a_shortlist_outside_of_its_directory_or_too_large_is_refused(copied: Path) -> None:
    bundle.save_shortlist(copied, whole(copied))
    moved = (copied / bundle.SHORTLIST).rename(copied.parent / "outside")
    (copied / bundle.SHORTLIST).symlink_to(moved)
    with pytest.raises(ModelError, match="links to a file outside of its directory"):
        bundle.load_bundle(copied)
    (copied / bundle.SHORTLIST).unlink()
    with (copied / bundle.SHORTLIST).open("wb") as file:
        file.truncate(10**9)
    with pytest.raises(ModelError, match="has 1,000,000,000 bytes, at most"):
        bundle.load_bundle(copied)


def test_new_weights_remove_the_shortlist_of_the_old_ones(copied: Path) -> None:
    bundle.save_shortlist(copied, whole(copied))
    loaded = bundle.load_bundle(copied)
    weights = {name: torch.from_numpy(array) for name, array in loaded.weights.items()}
    bundle.save_bundle(copied, loaded.config, loaded.tokenizers, weights, "card")
    assert not (copied / bundle.SHORTLIST).exists()
    assert bundle.load_bundle(copied).shortlist is None


def test_compress_keeps_the_shortlist(copied: Path, tmp_path: Path) -> None:
    bundle.save_shortlist(copied, whole(copied))
    assert CliRunner().invoke(app, ["compress", "--model", str(copied), "--out", str(tmp_path / "out")]).exit_code == 0
    assert (tmp_path / "out" / bundle.SHORTLIST).read_bytes() == (copied / bundle.SHORTLIST).read_bytes()
    assert bundle.load_bundle(tmp_path / "out").shortlist is not None


def test_a_shortlist_that_cannot_be_used_is_refused_if_asked_for(copied: Path) -> None:
    """And ignored if it is the model's own setting."""
    config = copied / bundle.CONFIG
    config.write_text(config.read_text().replace("shortlist = false", "shortlist = true"))
    without = dragoman.load(copied, "cpu", engine="cpu")
    assert without.translate("a b c").status in ("translated", "truncated")
    with pytest.raises(ConfigError, match=r"^shortlist: the model has none; make one with `dragoman shortlist`, or"):
        without.translate("a b c", shortlist=True)
    bundle.save_shortlist(copied, whole(copied))
    plain = dragoman.load(copied, "cpu", engine="plain")
    assert plain.translate("a b c").status in ("translated", "truncated")
    with pytest.raises(
        ConfigError, match=r"^shortlist: runs in the CPU engine only, this is the plain engine in float32"
    ):
        plain.translate("a b c", shortlist=True)
    assert dragoman.load(copied, "cpu", engine="cpu").options(shortlist=True).shortlist, "the control"


# The command


@pytest.fixture
def text(tmp_path: Path) -> Path:
    chance = random.Random(1)
    lines = [" ".join(chance.choices("abcdefghij", k=chance.randrange(1, 8))) for _ in range(60)]
    (tmp_path / "text").write_text("\n".join([*lines, "", "a " * 500]) + "\n")
    return tmp_path / "text"


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_the_command_learns_a_shortlist_that_translate_uses(copied: Path, text: Path, tmp_path: Path) -> None:
    done = run("shortlist", "--model", copied, "--source", text, "--pieces", 3, "--frequent", 2, "--json")
    assert done.exit_code == 0, done.exception
    record = json.loads(done.stdout)
    assert record["file"] == str(copied / bundle.SHORTLIST)
    assert 0 < record["pairs"] <= 60, "blank and long lines teach nothing"
    loaded = bundle.load_bundle(copied)
    assert loaded.shortlist is not None
    assert loaded.shortlist.pieces_SK.shape == (loaded.tokenizers.source.size, 3)
    translator = dragoman.load(copied, "cpu", engine="cpu")
    lines = text.read_text().split("\n")[:20]
    allowed_BV = loaded.shortlist.allowed([[*ids, 3] for ids in loaded.tokenizers.source.encode_batch(lines)])
    table = {piece: token for token, piece in enumerate(loaded.tokenizers.target.pieces(range(len(allowed_BV[0]))))}
    for allowed_V, each in zip(allowed_BV, translator.translate(lines, shortlist=True), strict=True):
        assert allowed_V[[table[piece] for piece in each.tokens]].all()
    shown = run("translate", "--model", copied, "--engine", "cpu", "--device", "cpu", "--shortlist", "a b c")
    assert shown.exit_code == 0
    assert shown.stdout == translator.translate("a b c", shortlist=True).text + "\n"


def test_batches_of_any_size_have_their_own_shortlists(copied: Path, text: Path) -> None:
    """No sentence joins others in mid-search."""
    bundle.save_shortlist(copied, whole(copied))
    translator, lines = dragoman.load(copied, "cpu", engine="cpu"), text.read_text().split("\n")[:20]
    expected = translator.translate(lines, shortlist=True, batch_size=64)
    assert translator.translate(lines, shortlist=True, batch_size=3) == expected


def test_the_command_translates_greedily_whatever_the_model_is_set_to(
    copied: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a shortlist it may have already."""
    settings = (copied / "config.toml").read_text()
    for old, new in {"sampling = false": "sampling = true", "top_k = 0": "top_k = 5"}.items():
        assert old in settings
        settings = settings.replace(old, new)
    (copied / "config.toml").write_text(settings.replace("shortlist = false", "shortlist = true"))
    stream, seen = Translator.stream, []

    def watching(self: Translator, *arguments: Any, options: DecodeConfig, **more: Any) -> Any:
        seen.append((options.sampling, options.beam, options.top_k, options.shortlist))
        return stream(self, *arguments, options=options, **more)

    monkeypatch.setattr(Translator, "stream", watching)
    done = run("shortlist", "--model", copied, "--source", text)
    assert done.exit_code == 0, done.exception
    assert seen == [(False, 1, 0, False)]


def test_a_model_without_attention_is_refused_before_its_text_is_translated(
    copied: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(associations, "TransformerConfig", int)
    monkeypatch.setattr(Translator, "stream", lambda *arguments, **more: pytest.fail("translated"))
    done = run("shortlist", "--model", copied, "--source", text)
    assert str(done.exception).startswith("shortlist: the model is recurrent; ")


def test_weights_that_change_while_the_command_learns_are_noticed(
    copied: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a training run published better ones."""
    learn = associations.learn_shortlist

    def overtaken(*arguments: Any) -> Shortlist:
        with (copied / bundle.WEIGHTS).open("ab") as file:
            file.write(b" ")
        return learn(*arguments)

    monkeypatch.setattr(associations, "learn_shortlist", overtaken)
    done = run("shortlist", "--model", copied, "--source", text, "--target", text)
    assert (
        str(done.exception) == f"{copied}: its weights changed while the shortlist was learned; run the command again"
    )
    assert not (copied / bundle.SHORTLIST).exists()


def test_the_command_can_write_a_copy_and_take_given_translations(quick_run: Path, text: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in quick_run.iterdir())
    out = tmp_path / "out"
    arguments = ["shortlist", "--model", quick_run, "--source", text, "--target", text, "--out", out]
    done = run(*arguments)
    assert done.exit_code == 0, done.exception
    assert done.stdout.startswith(f"{out / bundle.SHORTLIST}: ")
    assert sorted(path.name for path in quick_run.iterdir()) == before
    assert bundle.load_bundle(out).shortlist is not None
    assert str(run(*arguments).exception) == f"--out {out}: is not an empty directory; give another one"


def test_too_little_text_is_reported(copied: Path, text: Path) -> None:
    size = bundle.load_bundle(copied).tokenizers.target.size
    arguments = ["shortlist", "--model", copied, "--source", text, "--target", text, "--frequent"]
    few = run(*arguments, size - 1)
    assert few.exit_code == 0, few.exception
    shortlist = bundle.load_bundle(copied).shortlist
    assert shortlist is not None
    assert len(shortlist.always) < size - 1, "the control"
    assert (
        f"shortlist: the text has only {len(shortlist.always):,} of the {size - 1:,} frequent pieces wanted; "
        "learn from more text, or translations will get worse\n"
    ) in few.stderr
    assert "the text has only" not in run(*arguments, 1).stderr


def test_the_command_refuses_what_it_cannot_learn_from(copied: Path, tmp_path: Path) -> None:
    (tmp_path / "blank").write_text("\n\n")
    message = f"{tmp_path / 'blank'}: no line to learn from; give sentences that are not blank or too long"
    assert str(run("shortlist", "--model", copied, "--source", tmp_path / "blank").exception) == message
    message = "--model en-de: is part of the package; give --out"
    assert str(run("shortlist", "--model", "en-de", "--source", tmp_path / "blank").exception) == message
    message = "--pieces: 1001 is more than 1000; ask for fewer"
    arguments = ("shortlist", "--model", copied, "--source", tmp_path / "blank", "--pieces", 1_001)
    assert str(run(*arguments).exception) == message
    assert not (copied / bundle.SHORTLIST).exists()


def test_every_piece_of_one_character_is_always_allowed(copied: Path) -> None:
    tokenizers = bundle.load_bundle(copied).tokenizers
    empty = Associations(tokenizers.target.size).shortlist(tokenizers, 4, 10)
    names = tokenizers.target.pieces(range(tokenizers.target.size))
    characters = {each for each, name in enumerate(names) if len(name.removeprefix("▁")) == 1}
    assert {*characters, 3, *tokenizers.target.piece_table().byte_ids} <= set(empty.always.tolist())
    assert (empty.pieces_SK[:, 0] == np.arange(tokenizers.source.size)).all(), "a joint vocabulary: copies"
    assert (empty.pieces_SK[:, 1:] == 3).all()
