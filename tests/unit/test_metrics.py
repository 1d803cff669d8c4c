"""Metrics with signatures: sacrebleu's, the paper's, COMET's."""

import sys
from collections import OrderedDict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dragoman.errors import ConfigError, DataError
from dragoman.evaluate.comet import comet_score
from dragoman.evaluate.metrics import bleu_cautions, evaluate, quick_scores
from dragoman.evaluate.paper import paper_bleu, split_compounds, tokenized_bleu
from dragoman.evaluate.significance import compare

REFERENCES = ["the cat sat on the mat", "a man rides a horse today", "it is raining again in town"]


def test_perfect_and_wrong_translations_get_extreme_scores() -> None:
    perfect = evaluate(REFERENCES, REFERENCES)
    assert (round(perfect.bleu.score), round(perfect.chrf.score), perfect.ter.score) == (100, 100, 0)
    assert perfect.exact_match == 100.0
    wrong = evaluate(["dogs bark"] * 3, REFERENCES)
    assert wrong.bleu.score < 5
    assert wrong.exact_match == 0.0


def test_signatures_identify_the_metric() -> None:
    result = evaluate(REFERENCES, REFERENCES)
    assert "tok:13a" in result.bleu.signature
    assert "version:" in result.chrf.signature
    assert "tok:char" in evaluate(REFERENCES, REFERENCES, tokenize="char").bleu.signature


def test_case_counts_unless_lowercase_is_set() -> None:
    shouted = [line.upper() for line in REFERENCES]
    plain, lower = evaluate(shouted, REFERENCES), evaluate(shouted, REFERENCES, lowercase=True)
    assert plain.bleu.score < 5
    assert plain.exact_match == 0.0
    assert lower == evaluate(REFERENCES, REFERENCES, lowercase=True)
    assert "case:lc" in lower.bleu.signature
    assert "case:lc" in lower.chrf.signature
    assert "case:mixed" in plain.bleu.signature
    for metric in (tokenized_bleu, paper_bleu):
        assert metric(shouted, REFERENCES, "de").score == 0
        assert round(metric(shouted, REFERENCES, "de", lowercase=True).score) == 100
        assert "case:lc" in metric(shouted, REFERENCES, "de", lowercase=True).signature


def test_intervals_contain_the_score() -> None:
    result = evaluate([REFERENCES[0], REFERENCES[1], "it rains again in town"], REFERENCES)
    assert result.chrf.low < result.chrf.score < result.chrf.high
    record = result.to_dict()
    assert record["bleu"].keys() == {"score", "low", "high", "signature"}


def test_bleu_matches_sacrebleu() -> None:
    import sacrebleu

    hypotheses = ["the cat sat on a mat", "a man rides horses", "it is raining in town"]
    expected = sacrebleu.corpus_bleu(hypotheses, [REFERENCES]).score
    assert quick_scores(hypotheses, REFERENCES)["bleu"] == pytest.approx(expected)
    assert evaluate(hypotheses, REFERENCES).bleu.score == pytest.approx(expected)


def test_quick_bleu_uses_characters_for_scripts_without_spaces() -> None:
    references = ["สวัสดีครับทุกคน", "วันนี้อากาศดีมาก"]
    hypotheses = [references[0], "วันนี้อากาศไม่ดี"]
    scores = evaluate(hypotheses, references, tokenize="char")
    assert quick_scores(hypotheses, references)["bleu"] == pytest.approx(scores.bleu.score)
    assert scores.bleu.score > 10 + evaluate(hypotheses, references).bleu.score, "the control"


def test_bleu_never_exceeds_100() -> None:
    lines = ["the quick brown fox jumps over the lazy dog", *REFERENCES] * 7
    assert quick_scores(lines, lines)["bleu"] <= 100
    (compared,) = compare(lines, [["nothing"] * len(lines)], lines)
    assert compared["bleu"].score <= 100
    assert compared["ter"].other >= 100, "the control: TER may be more"


def test_invalid_input_is_reported() -> None:
    with pytest.raises(DataError, match="2 hypotheses, 3 references; each line needs one reference"):
        evaluate(["a", "b"], REFERENCES)
    with pytest.raises(DataError, match="nothing to evaluate"):
        evaluate([], [])
    with pytest.raises(ConfigError, match=r"^--tokenize: '14a' is not a choice; did you mean 13a\?$"):
        evaluate(REFERENCES, REFERENCES, tokenize="14a")


@pytest.mark.parametrize(
    ("hypotheses", "references"),
    [
        (REFERENCES, REFERENCES),
        (["a man rides"], ["a man rides a horse"]),
        (["", "a b", ""], ["", "a b", "c"]),  # some resamples have no match at all
        (["x", ""], ["", ""]),
        (["wrong"] * 3, REFERENCES),
    ],
)
def test_intervals_contain_the_score_for_any_lines(hypotheses: list[str], references: list[str]) -> None:
    result = evaluate(hypotheses, references)
    for score, most in ((result.bleu, 100), (result.chrf, 100), (result.ter, float("inf"))):
        assert 0 <= score.low <= score.score <= score.high <= most


def test_intervals_match_sacrebleu() -> None:
    from sacrebleu.metrics.bleu import BLEU

    hypotheses = ["the cat sat on a mat", "a man rides a horse", "it is raining in town"] * 5
    metric = BLEU()
    theirs: Any = metric.corpus_score(hypotheses, [REFERENCES * 5], n_bootstrap=1000)
    ours = evaluate(hypotheses, REFERENCES * 5).bleu
    assert (ours.low, ours.high) == pytest.approx((theirs._mean - theirs._ci, theirs._mean + theirs._ci), abs=1e-4)
    assert ours.signature == str(metric.get_signature())


# where BLEU misleads


def test_short_references_and_scripts_without_spaces_are_noted() -> None:
    assert bleu_cautions(REFERENCES, "13a") == []
    assert evaluate(["yes", "no"], ["yes", "no"]).bleu.score == 0  # why it is worth a note
    (short,) = bleu_cautions(["yes", "no thanks"], "13a")
    assert short.startswith("the references have 1.5 tokens per line")
    assert "--tokenize char" in short
    assert bleu_cautions(["yes please, now", "no thanks"], "char") == []
    for script, text in (
        ("Thai", "สวัสดีครับ วันนี้อากาศดี"),
        ("Chinese", "今天天气很好"),
        ("Japanese and Chinese", "今日は天気がいい"),
    ):
        (note,) = bleu_cautions([text], "13a")
        assert note.startswith(f"the references are in {script} script")
        assert note.endswith("look at chrF, or use --tokenize char")
        assert bleu_cautions([text], "char") == []
    assert bleu_cautions(["the city of 北京 is large and lively"], "13a") == []  # a name is no script


# the paper's


def test_compounds_are_split_like_the_reference_script() -> None:
    assert split_compounds("rich-text format") == "rich ##AT##-##AT## text format"
    assert split_compounds("E-Mail-Adresse - ja") == "E ##AT##-##AT## Mail ##AT##-##AT## Adresse - ja"
    assert split_compounds("a-b-c") == "a ##AT##-##AT## b-c"  # matches do not overlap


def test_paper_style_bleu_matches_a_hand_computed_example() -> None:
    hypothesis, reference = "Das ist ein rich-text-Format.", "Das ist ein rich-text-Dokument."
    # Das ist ein rich ## text ## X . : 8 of 9 words right, 6 of 8 pairs, 5 of 7 triples, 4 of 6 runs of four
    paper = paper_bleu([hypothesis], [reference], "de")
    assert paper.score == pytest.approx(100 * (8 / 9 * 6 / 8 * 5 / 7 * 4 / 6) ** 0.25)
    assert "|tok:none|smooth:none|" in paper.signature
    assert "|moses:de|compounds:split|sacremoses:" in paper.signature
    # 13a leaves the compound whole: 4 of 5, 2 of 4, 1 of 3, 0 of 2 smoothed to 1/4
    plain = evaluate([hypothesis], [reference]).bleu
    assert plain.score == pytest.approx(100 * (4 / 5 * 2 / 4 * 1 / 3 * 1 / 4) ** 0.25)
    assert paper.score > plain.score
    tokenized = tokenized_bleu([hypothesis], [reference], "de")  # as 13a here, and nothing smoothed
    assert tokenized.score == 0
    assert "|moses:de|sacremoses:" in tokenized.signature


def test_paper_style_bleu_follows_the_moses_rules() -> None:
    # z.B. is known not to end a sentence and stays whole; the comma and the last dot are words
    assert paper_bleu(["Ein Tier, z.B. ein Hund."], ["Ein Tier , z.B. ein Hund ."], "de").score == pytest.approx(100)
    assert paper_bleu(["Ein Tier, z.B. ein Hund."], ["Ein Tier , z . B . ein Hund ."], "de").score < 100
    assert tokenized_bleu(["Ein Tier, z.B. ein Hund."], ["Ein Tier , z.B. ein Hund ."], "de").score > 99.9
    assert paper_bleu(["nichts davon passt hier"], ["ganz andere Worte stehen da"], "de").score == 0  # no smoothing
    with pytest.raises(ConfigError, match="--language dee: Moses has no rules for it; did you mean de"):
        paper_bleu(REFERENCES, REFERENCES, "dee")


# COMET's


class Prediction(OrderedDict[str, Any]):
    """What COMET 2.2 returns: a dictionary with `scores` and `system_score`."""


class FakeModel:
    def predict(
        self,
        samples: list[dict[str, str]],
        batch_size: int = 16,
        gpus: int = 1,
        devices: Any = None,
        mc_dropout: int = 0,
        progress_bar: bool = True,
        accelerator: str = "auto",
        num_workers: int | None = None,
        length_batching: bool = True,
    ) -> Prediction:
        assert gpus == 0  # tests see no GPU
        assert all(sample.keys() == {"src", "mt", "ref"} and sample["src"] for sample in samples)
        print("Predicting")
        scores = [float(sample["mt"] == sample["ref"]) for sample in samples]
        return Prediction(scores=scores, system_score=sum(scores) / len(scores))


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """unbabel-comet's three functions, with its signatures, and a checkpoint that they can load."""
    path = tmp_path / "model.ckpt"
    path.write_bytes(b"")
    fake: Any = ModuleType("comet")

    def download_model(model: str, saving_directory: str | None = None, local_files_only: bool = False) -> str:
        if model != "Unbabel/wmt22-comet-da":
            raise KeyError(f"Model '{model}' not supported by COMET.")
        return str(path)

    def load_from_checkpoint(
        checkpoint_path: str, reload_hparams: bool = False, strict: bool = False, local_files_only: bool = False
    ) -> FakeModel:
        if not Path(checkpoint_path).is_file():
            raise Exception(f"Invalid checkpoint path: {checkpoint_path}")
        return FakeModel()

    fake.__version__, fake.download_model, fake.load_from_checkpoint = "2.2.7", download_model, load_from_checkpoint
    monkeypatch.setitem(sys.modules, "comet", fake)
    return path


def test_comet_loads_by_name_and_by_file(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hypotheses = [*REFERENCES[:2], "something else"]
    by_name = comet_score("Unbabel/wmt22-comet-da", REFERENCES, hypotheses, REFERENCES)
    assert by_name.score == pytest.approx(2 / 3)
    assert by_name.low < by_name.score < by_name.high
    assert by_name.signature == "comet:wmt22-comet-da|version:2.2.7|bs:1000|seed:12345"
    by_file = comet_score(str(checkpoint), REFERENCES, hypotheses, REFERENCES)
    assert (by_file.score, by_file.low, by_file.high) == (by_name.score, by_name.low, by_name.high)
    assert by_file.signature.startswith("comet:model.ckpt|")
    assert capsys.readouterr().out == ""  # what COMET prints goes to stderr
    with pytest.raises(ConfigError, match=r"--comet no-such: cannot be loaded \(Model 'no-such' not supported"):
        comet_score("no-such", REFERENCES, hypotheses, REFERENCES)


def test_missing_comet_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "comet", None)
    with pytest.raises(
        ConfigError, match=r"--comet: unbabel-comet is not installed .* pip install 'dragoman\[comet\]'"
    ):
        comet_score("Unbabel/wmt22-comet-da", REFERENCES, REFERENCES, REFERENCES)
