"""A record of what a language model or a classifier does with a text. Knows nothing of files or terminals.

Shapes: L layers, H heads, T tokens, C labels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dragoman import pictures
from dragoman.data.corpus import text_line
from dragoman.decode.classifier import Classifier
from dragoman.decode.language_model import LanguageModel, valid_lines
from dragoman.errors import DataError
from dragoman.model.attention import AttentionWeights
from dragoman.static_page import document, section, table

CANDIDATES = 5  # shown of each token
MAX_DRAWN = 60  # tokens of a heat map; more would not be legible

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TextInspection:
    """Plain data: the tokens, what the model made of each, and the attention of every head."""

    text: str
    summary: str
    tokens: list[str]  # the rows and columns of the attention
    attention_LHTT: Array  # self-attention, each row sums to 1
    headings: tuple[str, ...]
    table: Sequence[Sequence[str]]
    data: dict[str, Any]  # the same for programs

    def to_dict(self) -> dict[str, Any]:
        return {"text": self.text, "tokens": self.tokens, **self.data, "attention": self.attention_LHTT.tolist()}


def inspect_text(model: LanguageModel, text: str) -> TextInspection:
    """How likely each token is after the ones before it, what else was likely, and where the model looked."""
    special, tokenizer = model.tokenizer.vocabulary, model.tokenizer
    ids = [piece for line in valid_lines(text) for piece in (*tokenizer.encode(line), special.eos)]
    if len(ids) > model.context:
        raise DataError(f"text: {len(ids)} tokens; this model looks back on {model.context}; give a shorter text")
    weights = AttentionWeights()
    with model.inference():
        fed = torch.tensor([[special.eos, *ids[:-1]]], device=model.device)
        logits_TV = model.model.decode(fed, model.model.start(), weights)[0].float()
        log_prob_TV = logits_TV.log_softmax(dim=-1).cpu()
    best = log_prob_TV.topk(min(CANDIDATES, log_prob_TV.shape[1]), dim=-1)
    names = tokenizer.pieces(ids)
    steps, rows = [], []
    for place, (piece, name) in enumerate(zip(ids, names, strict=True)):
        likely = list(
            zip(tokenizer.pieces(best.indices[place].tolist()), best.values[place].exp().tolist(), strict=True)
        )
        probability = float(log_prob_TV[place, piece].exp())
        steps.append({"token": name, "probability": probability, "candidates": likely})
        others = "  ".join(f"{other} {share:.0%}" for other, share in likely if other != name)
        rows.append((name, f"{probability:.1%}", others))
    nats = -sum(float(log_prob_TV[place, piece]) for place, piece in enumerate(ids))
    summary = f"{nats:.2f} nats, {nats / len(ids):.3f} per token"
    return TextInspection(
        text,
        summary,
        tokenizer.pieces([special.eos, *ids[:-1]]),
        stacked(weights.decoder),
        ("token", "probability", "others"),
        rows,
        {"steps": steps, "nats": nats},
    )


def inspect_label(classifier: Classifier, text: str) -> TextInspection:
    """The label of a text, what each token adds to it, and where </s> looked, whose state is classified.

    The influence of a token is what its removal takes from the label's log-odds. With pooling = "mean" the mean over
    all tokens is shown in place of </s>.
    """
    if problem := text_line(text).problem:
        raise DataError(f"text: {problem}; fix the text")
    source = classifier.tokenizers.source
    ids = classifier.cut(source.encode(text))
    without = [ids[:place] + ids[place + 1 :] for place in range(len(ids) - 1)]  # </s> stays
    log_probs = classifier.log_probs([ids, *without])
    label = int(log_probs[0].argmax())
    others = np.logaddexp.reduce(np.delete(log_probs, label, axis=1), axis=1)
    odds = log_probs[:, label] - others  # not the probability alone, which hardly changes near 1
    influence = [float(odds[0] - one) for one in odds[1:]]
    with classifier.inference():
        _, weights = classifier.model(torch.tensor([ids], device=classifier.device), need_weights=True)
    attention_LHTT = stacked(weights.encoder)
    ends = classifier.config.model.pooling == "end"  # type: ignore[union-attr]
    looked_T = (attention_LHTT[-1, :, -1] if ends else attention_LHTT[-1].mean(axis=1)).mean(axis=0)
    tokens = source.pieces(ids)
    names = classifier.labels.names
    said = {name: float(np.exp(value)) for name, value in zip(names, log_probs[0], strict=True)}
    rows = [
        (token, f"{change:+.2f}", f"{share:.1%}")
        for token, change, share in zip(tokens, [*influence, 0.0], looked_T.tolist(), strict=True)
    ]
    return TextInspection(
        text,
        f"label {names[label]}, {said[names[label]]:.1%}",
        tokens,
        attention_LHTT,
        ("token", "influence", "attention"),
        rows,
        {"label": names[label], "probabilities": said, "influence": influence, "class_attention": looked_T.tolist()},
    )


def stacked(weights: list[torch.Tensor]) -> Array:
    """Of one text: [L, H, T, T]."""
    return torch.stack([weight[0] for weight in weights]).double().cpu().numpy()


def draw(found: TextInspection) -> Iterator[tuple[str, str]]:
    """Pictures by name: the mean over heads of every layer, and all heads."""
    attention, tokens = found.attention_LHTT, found.tokens
    caption = "rows: the token that looks; columns: where it looks"
    if len(tokens) <= MAX_DRAWN:
        for layer, mean_TT in enumerate(attention.mean(axis=1), start=1):
            title = f"Self-attention, layer {layer}, mean of all heads"
            yield f"layer-{layer}", pictures.svg_heatmap(mean_TT, tokens, tokens, title=title, caption=caption)
    names = [[f"{layer}.{head}" for head in range(1, attention.shape[1] + 1)] for layer in range(1, len(attention) + 1)]
    yield "heads", pictures.svg_grid(attention, names, title="Every head (layer.head)", caption=caption)


def page(inspected: Sequence[TextInspection], model_name: str) -> str:
    """Everything as one HTML file."""
    parts: list[str] = []
    for found in inspected:
        parts += section(f"{found.text}: {found.summary}", table(found.headings, found.table))
        for name, picture in draw(found):
            parts += section("All heads" if name == "heads" else name.replace("-", " ").capitalize(), picture)
    return document(f"{model_name}: {inspected[0].text}", parts)
