"""A record of what a model does with one sentence: probabilities, attention, the beam. Knows nothing of pictures.

An `Inspection` is plain data. Token rows: `tokens` are the translation's, including </s>; `input_tokens` are what the
decoder was fed to produce each of them, starting with <s>.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from dragoman.config import DecodeConfig
from dragoman.data.batching import Batch
from dragoman.data.corpus import text_line
from dragoman.decode.assembly import produced
from dragoman.decode.engines.plain import Engine
from dragoman.decode.search import BeamStep, Hypothesis, beam_search
from dragoman.decode.translation import Attention
from dragoman.decode.translator import Translator
from dragoman.errors import ConfigError, DataError
from dragoman.model.attention import HeadMask
from dragoman.model.transformer import Transformer
from dragoman.text.normalize import is_blank
from dragoman.text.vocabulary import Vocabulary

CANDIDATES = 5  # shown for each target token
KINDS = ("encoder", "decoder", "cross")


@dataclass(frozen=True)
class Step:
    """One target token: its probability, and the alternatives."""

    token: str
    log_probability: float
    rank: int  # 1: the model's own first choice, given the tokens before
    candidates: list[tuple[str, float]]  # the most likely tokens and their probabilities

    @property
    def probability(self) -> float:
        return math.exp(self.log_probability)


@dataclass(frozen=True)
class Node:
    """A continuation that the beam considered."""

    parent: int  # index among the nodes; -1: the start
    depth: int  # tokens from the start, counted from 1
    token: str
    score: float  # total log-probability up to here
    fate: str  # kept, dropped, finished; best: on the path to the translation


@dataclass(frozen=True)
class Inspection:
    """One sentence and its translation, given or found."""

    source: str
    translation: str
    forced: bool  # whether the translation was given
    source_ids: tuple[int, ...]  # including </s>
    target_ids: tuple[int, ...]  # including </s>, unless the search stopped at its limit
    source_tokens: tuple[str, ...]
    input_tokens: tuple[str, ...]
    tokens: tuple[str, ...]
    steps: list[Step]
    attention: Attention
    beam: list[Node]  # empty if the translation was given

    @property
    def score(self) -> float:
        """Total log-probability."""
        return sum(step.log_probability for step in self.steps)

    @property
    def disagreements(self) -> list[int]:
        """The target tokens that are not the model's first choice."""
        return [place for place, step in enumerate(self.steps) if step.rank > 1]


def inspect_sentence(
    translator: Translator, source: str, target: str | None = None, options: DecodeConfig | None = None
) -> Inspection:
    """Inspect what beam search makes of a sentence, or `target`, forced on the model."""
    source_ids, special = encoded(translator, source), translator.tokenizers.target.vocabulary
    nodes: list[Node] = []
    if target is None:
        found, nodes = _searched(translator, source_ids, options or translator.config.decode)
        target_ids = produced(found, special.eos)
    else:
        target_ids = _forced(translator, target)
    pieces = translator.tokenizers.target.pieces
    steps = _steps(translator, source_ids, target_ids)
    return Inspection(
        text_line(source).text,
        translator.tokenizers.target.decode([token for token in target_ids if token != special.eos]),
        target is not None,
        tuple(source_ids),
        tuple(target_ids),
        tuple(translator.tokenizers.source.pieces(source_ids)),
        tuple(pieces([special.bos, *target_ids[:-1]])),
        tuple(pieces(target_ids)),
        steps,
        translator.attention(source_ids, target_ids),
        nodes,
    )


def encoded(translator: Translator, text: str) -> list[int]:
    """A sentence's ids, including </s>, or an error that says why it cannot be inspected."""
    line = text_line(text)
    problem = line.problem or ("the text is blank" if is_blank(line.text) else "")
    if problem:
        raise DataError(f"inspect: {problem}; give a sentence")
    source = translator.tokenizers.source
    ids = [*translator.language_tag(translator.config.decode), *source.encode(line.text), source.vocabulary.eos]
    longest = translator.config.text.max_length
    if len(ids) > longest:
        raise DataError(f"inspect: {len(ids)} pieces; this model takes at most {longest}; give a shorter sentence")
    return ids


def _forced(translator: Translator, target: str) -> list[int]:
    line = text_line(target)
    if line.problem:
        raise DataError(f"--target: {line.problem}; give text")
    ids = [*translator.tokenizers.target.encode(line.text), translator.tokenizers.target.vocabulary.eos]
    longest = translator.config.model.longest or 4 * translator.config.text.max_length
    if len(ids) > longest:
        raise DataError(f"--target: {len(ids)} pieces; at most {longest} can be shown; give a shorter one")
    return ids


def score_of(translator: Translator, source_ids: Sequence[int], target_ids: Sequence[int]) -> float:
    """log P of exactly these ids: other ids may spell the same text."""
    with translator.inference():
        special = translator.tokenizers.target.vocabulary
        return scores_of(translator.engine, special, source_ids, target_ids, 1)[0]


def scores_of(
    engine: Engine, special: Vocabulary, source_ids: Sequence[int], target_ids: Sequence[int], rows: int
) -> list[float]:
    """Score the same pair in each row of a batch: rows differ where the engine's head mask does."""
    source_BS, input_BT, output_BT = (
        torch.tensor(ids).expand(rows, -1) for ids in (source_ids, [special.bos, *target_ids[:-1]], target_ids)
    )
    real_BS = torch.ones_like(source_BS, dtype=torch.bool)
    batch = Batch(
        source_ids=source_BS,
        source_allowed=real_BS,
        target_input=input_BT,
        target_output=output_BT,
        num_tokens=output_BT.numel(),
        pad=special.pad,
    )
    scores: list[float] = engine.token_log_probs(batch).double().sum(dim=1).tolist()
    return scores


def _searched(translator: Translator, source_ids: list[int], options: DecodeConfig) -> tuple[Hypothesis, list[Node]]:
    record = _BeamRecord(translator)
    limit, special = translator.limit(len(source_ids), options), translator.tokenizers.target.vocabulary
    with translator.inference(options.threads):
        decoding = translator.engine.start([source_ids])
        ((best, *_),) = beam_search(
            decoding,
            [limit],
            options,
            start=special.bos,
            end=special.eos,
            forbidden=special.never_predicted,
            watch=record,
        )
    return best, record.nodes(best)


class _BeamRecord:
    """Beam search's steps as a tree."""

    def __init__(self, translator: Translator) -> None:
        self._pieces, self._eos = translator.tokenizers.target.pieces, translator.tokenizers.target.vocabulary.eos
        self._parents: list[int] = []  # of every node
        self._rows: list[tuple[int, int, float, str]] = []  # depth, id, score, fate
        self._live = [-1]  # nodes of the hypotheses in the beam, by place

    def __call__(self, step: BeamStep) -> None:
        depth = 1 + (self._rows[-1][0] if self._rows else 0)
        live: dict[int, int] = {}
        for column in range(step.id_BC.shape[1]):
            score = float(step.score_BC[0, column])
            if score == -np.inf:
                continue
            place, ends = int(step.kept_BC[0, column]), bool(step.ends_BC[0, column])
            if place >= 0:
                live[place] = len(self._rows)
            self._parents.append(self._live[int(step.parent_BC[0, column])])
            fate = "finished" if ends else "kept" if place >= 0 else "dropped"
            self._rows.append((depth, int(step.id_BC[0, column]), score, fate))
        # unfilled places of the beam are never a parent
        self._live = [live.get(place, -1) for place in range(max(live, default=-1) + 1)]

    def nodes(self, best: Hypothesis) -> list[Node]:
        on_the_way = self._path(best)
        names = self._pieces([token for _, token, _, _ in self._rows])
        return [
            Node(parent, depth, name, score, "best" if index in on_the_way else fate)
            for index, (parent, name, (depth, _, score, fate)) in enumerate(
                zip(self._parents, names, self._rows, strict=True)
            )
        ]

    def _path(self, best: Hypothesis) -> set[int]:
        """The nodes that spell the translation."""
        wanted = produced(best, self._eos)
        path: set[int] = set()
        parent = -1
        for depth, token in enumerate(wanted, start=1):
            for index, (row_depth, row_token, _, _) in enumerate(self._rows):
                if (row_depth, row_token, self._parents[index]) == (depth, token, parent):
                    path.add(index)
                    parent = index
                    break
        return path


def _steps(translator: Translator, source_ids: list[int], target_ids: list[int]) -> list[Step]:
    """Teacher forcing: all positions at once, each given the target before it."""
    with translator.inference():
        target_input = [translator.tokenizers.target.vocabulary.bos, *target_ids[:-1]]
        log_prob_TV = translator.engine.log_probs(source_ids, target_input)
    pieces = translator.tokenizers.target.pieces
    values_TC, ids_TC = log_prob_TV.exp().topk(min(CANDIDATES, log_prob_TV.size(1)), dim=1)
    steps = []
    for row, token in enumerate(target_ids):
        own = log_prob_TV[row, token]
        steps.append(
            Step(
                pieces([token])[0],
                float(own),
                1 + int((log_prob_TV[row] > own).sum()),
                list(zip(pieces(ids_TC[row].tolist()), values_TC[row].tolist(), strict=True)),
            )
        )
    return steps


# Masked heads


def head_counts(model: nn.Module) -> dict[str, tuple[int, int]]:
    """The layers and heads of each kind of attention; a recurrent model has none."""
    if not isinstance(model, Transformer):
        return {}
    encoder, decoder = model.config.encoder, model.config.decoder
    sizes = {"encoder": encoder, "decoder": decoder, "cross": decoder}
    return {kind: (size.num_layers, size.num_heads) for kind, size in sizes.items()}


def head_names(model: nn.Module) -> list[str]:
    """The name of every head, such as cross.3.5: head 5 of layer 3, both counted from 1."""
    return [
        f"{kind}.{layer}.{head}"
        for kind, (layers, heads) in head_counts(model).items()
        for layer in range(1, layers + 1)
        for head in range(1, heads + 1)
    ]


def parse_head(name: str, model: nn.Module) -> tuple[str, int, int]:
    """The kind of attention, the layer and the head, both counted from 0."""
    if name not in head_names(model):
        counts = head_counts(model)
        if not counts:
            raise ConfigError(f"--mask-head {name}: this model has no heads; only a Transformer does")
        known = ", ".join(f"{kind}.1.1 to {kind}.{layers}.{heads}" for kind, (layers, heads) in counts.items())
        raise ConfigError(f"--mask-head {name}: no such head; this model has {known}")
    kind, layer, head = name.split(".")
    return kind, int(layer) - 1, int(head) - 1


def head_mask(model: nn.Module, variants: Sequence[Sequence[str]]) -> HeadMask:
    """One row per variant: all heads but those it names."""
    masks = {
        kind: torch.ones(layers, len(variants), heads, dtype=torch.bool)
        for kind, (layers, heads) in head_counts(model).items()
    }
    for row, names in enumerate(variants):
        for kind, layer, head in (parse_head(name, model) for name in names):
            masks[kind][layer, row, head] = False
    return HeadMask(masks["encoder"], masks["decoder"], masks["cross"])


def without_heads(translator: Translator, names: Sequence[str]) -> Translator:
    """A translator without some heads, on the same model. The given one is unchanged; both can be used at once."""
    if not names:
        return translator
    masked = copy.copy(translator)
    masked.engine = translator.engine.masked(head_mask(translator.engine.model, [names]))
    return masked
