"""The bundled model in CTranslate2 and transformers: the same translations, sentence by sentence.

Greedy search must give the same tokens, except where two tokens are equally probable up to rounding. Beam search is
compared with the length penalty that the libraries have, length ** alpha. transformers follows the same rules as we do.
CTranslate2 stops earlier, so that a few translations differ: ours must then have the higher score. Its scores differ a
little, since it renormalises after ruling out special tokens.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import dragoman
from dragoman.interop import common, to_ctranslate2, to_huggingface
from dragoman.interop.ctranslate2 import never_predicted

ALPHA = 0.6
LIMIT = 100  # tokens; none of the sentences comes near it
SUBJECTS = (
    "The old man", "My sister", "A young teacher", "The committee", "Our neighbour", "The president of the council",
    "Nobody in this room", "Every child", "The company", "Her best friend",
)  # fmt: skip
VERBS = (
    "has bought", "would like to see", "did not understand", "is looking for", "will never forget", "wants to sell",
    "must explain", "found", "has lost", "talks about",
)  # fmt: skip
OBJECTS = (
    "the red car", "a house near the river", "the report on the budget", "this letter", "a new job in Berlin",
    "the answer to my question", "three books and a map", "the keys", "the money", "our common future",
)  # fmt: skip
ENDS = (".", " today.", " because it was raining.", " before the end of the year.", ", and that is a problem.",
        " again?", " in the summer of 1998.")  # fmt: skip


def english(count: int) -> list[str]:
    generator = random.Random(1)
    parts = [(generator.choice(SUBJECTS), generator.choice(VERBS), generator.choice(OBJECTS)) for _ in range(count)]
    return [" ".join(words) + generator.choice(ENDS) for words in parts]


class Peer:
    """The bundled model in another library."""

    def __init__(self, directory: Path, source: common.Source) -> None:
        self.source = source
        target = source.tokenizers.target
        self.translator = dragoman.load("en-de", "cpu", "float32")
        self.ids = {piece: index for index, piece in enumerate(target.pieces(range(target.size)))}

    def ours(self, texts: Sequence[str], beam: int) -> tuple[list[list[int]], list[float]]:
        """Tokens and normalized scores of our own search."""
        options: Any = {"beam": beam, "length_penalty": ALPHA, "length_penalty_form": "power", "split": "long"}
        found = self.translator.translate(texts, **options)
        assert {each.status for each in found} == {"translated"}
        return [[self.ids[piece] for piece in each.tokens] for each in found], [each.normalized_score for each in found]

    def theirs(self, texts: Sequence[str], beam: int) -> tuple[list[list[int]], list[float]]:
        raise NotImplementedError


class CTranslate2(Peer):
    def __init__(self, directory: Path, source: common.Source) -> None:
        import ctranslate2

        super().__init__(directory, source)
        to_ctranslate2("en-de", directory, check=False)
        self.library = ctranslate2.Translator(str(directory), device="cpu", compute_type="float32", intra_threads=1)

    def theirs(self, texts: Sequence[str], beam: int) -> tuple[list[list[int]], list[float]]:
        tokenizer = self.source.tokenizers.source
        found = self.library.translate_batch(
            [tokenizer.pieces(tokenizer.encode(text)) for text in texts],
            max_batch_size=20,
            beam_size=beam,
            length_penalty=ALPHA,
            min_decoding_length=0,
            max_decoding_length=LIMIT,
            disable_unk=True,
            suppress_sequences=never_predicted(self.source),
            return_end_token=True,
            return_scores=True,
        )
        return [[self.ids[piece] for piece in each.hypotheses[0]] for each in found], [each.scores[0] for each in found]


class HuggingFace(Peer):
    def __init__(self, directory: Path, source: common.Source) -> None:
        from transformers import MarianMTModel, MarianTokenizer

        super().__init__(directory, source)
        to_huggingface("en-de", directory, check=False)
        self.tokenizer = MarianTokenizer.from_pretrained(directory)
        self.model = MarianMTModel.from_pretrained(directory).eval()

    def theirs(self, texts: Sequence[str], beam: int) -> tuple[list[list[int]], list[float]]:
        tokens: list[list[int]] = []
        scores: list[float] = []
        options = {"length_penalty": ALPHA, "output_scores": True} if beam > 1 else {"length_penalty": None}
        for first in range(0, len(texts), 20):
            batch = self.tokenizer(texts[first : first + 20], return_tensors="pt", padding=True)
            with torch.inference_mode():
                found = self.model.generate(
                    **batch, num_beams=beam, max_new_tokens=LIMIT, return_dict_in_generate=True, **options
                )
            tokens += [row[1 : row.index(3) + 1] for row in found.sequences.tolist()]  # from after <s> to </s>
            scores += found.sequences_scores.tolist() if beam > 1 else []
        return tokens, scores


PEERS = {"ctranslate2": CTranslate2, "huggingface": HuggingFace}


# importing transformers and converting takes some 15 seconds
@pytest.fixture(scope="module", params=["ctranslate2", pytest.param("huggingface", marks=pytest.mark.slow)])
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Peer:
    source = common.load_source("en-de", lambda _: None)
    return PEERS[request.param](tmp_path_factory.mktemp("exports") / request.param, source)


def assert_same_greedy(peer: Peer, texts: Sequence[str]) -> None:
    for text, ours, theirs in zip(texts, peer.ours(texts, 1)[0], peer.theirs(texts, 1)[0], strict=True):
        assert ours == theirs or common.is_tie(peer.source, text, ours, theirs), text


def assert_same_beam(peer: Peer, texts: Sequence[str], share: float) -> None:
    """At least this share of the texts has the same tokens and scores; ours are better in the rest."""
    (ours, our_scores), (theirs, their_scores) = peer.ours(texts, 4), peer.theirs(texts, 4)
    same = [mine == other for mine, other in zip(ours, theirs, strict=True)]
    assert sum(same) >= share * len(texts)
    for is_same, mine, other in zip(same, our_scores, their_scores, strict=True):
        assert mine == pytest.approx(other, abs=2e-3) if is_same else mine > other - 2e-3


@pytest.mark.slow
def test_ten_sentences_have_the_same_tokens(peer: Peer) -> None:
    texts = english(10)
    assert_same_greedy(peer, texts)
    assert_same_beam(peer, texts, 0.9)


@pytest.mark.slow
def test_200_sentences_have_the_same_tokens(peer: Peer) -> None:
    texts = english(200)
    assert len(set(texts)) > 190
    assert_same_greedy(peer, texts)
    assert_same_beam(peer, texts, 0.95 if isinstance(peer, CTranslate2) else 0.99)


@pytest.mark.slow
def test_comparison_notices_other_tokens(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the other library gets the sentences in another order."""
    texts, theirs = english(2), peer.theirs
    monkeypatch.setattr(peer, "theirs", lambda texts, beam: theirs(texts[::-1], beam))
    with pytest.raises(AssertionError):
        assert_same_greedy(peer, texts)
    with pytest.raises(AssertionError):
        assert_same_beam(peer, texts, 0.9)
