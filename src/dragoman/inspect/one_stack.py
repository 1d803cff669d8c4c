"""Records of what a language model or a classifier does with a text, or a classifier with vectors.

Knows nothing of files or terminals. Shapes: L layers, H heads, T tokens, S vectors, F features, C labels.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dragoman import pictures
from dragoman.data.corpus import text_line
from dragoman.decode.classifier import Classifier
from dragoman.decode.language_model import LanguageModel, valid_lines
from dragoman.errors import DataError
from dragoman.inspect import vectors
from dragoman.inspect.record import Array, Heatmap, Pictures, Record, candidates, draw_heads, stacked
from dragoman.inspect.vectors import CANDIDATES, Picture, draw_attention, grouped, others, unread
from dragoman.model.attention import AttentionWeights

MAX_DRAWN = 60  # tokens of a heat map; more would not be legible
LOOKS = "rows: the token that looks; columns: where it looks"


def inspect_text(model: LanguageModel, text: str) -> Record:
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
    steps, rows = [], []
    for piece, name, log_prob_V in zip(ids, tokenizer.pieces(ids), log_prob_TV, strict=True):
        probability = float(log_prob_V[piece].exp())
        likely = candidates(log_prob_V, tokenizer.pieces, CANDIDATES)
        steps.append({"token": name, "probability": probability, "candidates": likely})
        rows.append((name, f"{probability:.1%}", others(name, likely)))
    nats = -sum(float(log_prob_TV[place, piece]) for place, piece in enumerate(ids))
    summary = f"{nats:.2f} nats, {nats / len(ids):.3f} per token"
    tokens = tokenizer.pieces([special.eos, *ids[:-1]])
    data = {"steps": steps, "nats": nats}
    return _record(text, summary, tokens, stacked(weights.decoder), ("token", "probability", "others"), rows, data)


def inspect_label(classifier: Classifier, text: str) -> Record:
    """The label of a text, what each token adds to it, and where </s> looked, whose state is classified.

    The influence of a token is what its removal takes from the label's log-odds. With pooling = "mean" the mean over
    all tokens is shown in place of </s>.
    """
    if problem := text_line(text).problem:
        raise DataError(f"text: {problem}; fix the text")
    source = classifier.tokenizers.source
    ids = classifier.cut(source.encode(text))
    data = _influence(classifier, ids, [ids[:place] + ids[place + 1 :] for place in range(len(ids) - 1)])  # </s> stays
    attention_LHTT, data["class_attention"] = _class_attention(classifier, ids)
    tokens = source.pieces(ids)
    rows = [
        (token, f"{change:+.2f}", f"{share:.1%}")
        for token, change, share in zip(tokens, [*data["influence"], 0.0], data["class_attention"], strict=True)
    ]
    return _record(text, _said(data), tokens, attention_LHTT, ("token", "influence", "attention"), rows, data)


def inspect_vector_label(classifier: Classifier, vectors_SF: Any, name: str, picture: Picture = None) -> Record:
    """The label of a sequence of vectors, what each vector adds to it, and where the classified state looked.

    The influence of a vector is what the label's log-odds lose if the mean of the training data stands in its place.
    """
    (row_SF,) = classifier.encode([vectors_SF])
    changed = []
    for place in range(len(row_SF)):
        without_SF = np.array(row_SF)
        without_SF[place] = 0.0
        changed.append(without_SF)
    data = _influence(classifier, row_SF, changed)
    attention_LHSS, data["class_attention"] = _class_attention(classifier, row_SF)
    looked_LS = np.stack([_looked(classifier, attention_HSS) for attention_HSS in attention_LHSS])
    layers = [f"layer {layer}" for layer in range(1, len(looked_LS) + 1)]

    def draw() -> Pictures:
        shown_SF = row_SF if picture is None else vectors_SF
        title = "Where the classified state looked, mean of all heads"
        yield "attention", draw_attention(shown_SF, looked_LS, layers, picture, title=title)
        points = [(float(place), change) for place, change in enumerate(data["influence"], start=1)]
        title = f"What each vector adds to the label {data['label']}"
        yield "influence", pictures.svg_plot({"log-odds": points}, title=title, x_label="vector", y_label="")
        yield "heads", draw_heads(attention_LHSS, vectors.LOOKS, stretched=True)

    rows = [
        (str(place), f"{change:+.2f}", f"{share:.1%}")
        for place, (change, share) in enumerate(zip(data["influence"], data["class_attention"], strict=True), start=1)
    ]
    title = "where the classified state looked, mean of all heads, each row up to its maximum; columns: vectors"
    return Record(
        name,
        _said(data) + unread(classifier, vectors_SF),
        ("vector", "influence", "attention"),
        rows,
        grouped(looked_LS, title, layers),
        draw,
        {"name": name, **data, "attention": attention_LHSS.tolist()},
    )


def _record(
    text: str, summary: str, tokens: list[str], attention_LHTT: Array, headings: Sequence[str],
    rows: Sequence[Sequence[str]], data: dict[str, Any],
) -> Record:  # fmt: skip
    mean_LTT = attention_LHTT.mean(axis=1)

    def draw() -> Pictures:
        if len(tokens) <= MAX_DRAWN:
            for layer, mean_TT in enumerate(mean_LTT, start=1):
                title = f"Self-attention, layer {layer}, mean of all heads"
                yield f"layer-{layer}", pictures.svg_heatmap(mean_TT, tokens, tokens, title=title, caption=LOOKS)
        yield "heads", draw_heads(attention_LHTT, LOOKS)

    shown = Heatmap("self-attention of the last layer, mean of all heads", mean_LTT[-1], tokens, tokens)
    everything = {"text": text, "tokens": tokens, **data, "attention": attention_LHTT.tolist()}
    return Record(text, summary, headings, rows, shown, draw, everything)


def _influence(classifier: Classifier, row: Any, changed: Sequence[Any]) -> dict[str, Any]:
    """The label, all probabilities, and what each change takes from the label."""
    log_probs = classifier.log_probs([row, *changed])
    label = int(log_probs[0].argmax())
    rest = np.logaddexp.reduce(np.delete(log_probs, label, axis=1), axis=1)
    odds = log_probs[:, label] - rest  # not the probability alone, which hardly changes near 1
    names = classifier.labels.names
    said = {name: float(np.exp(value)) for name, value in zip(names, log_probs[0], strict=True)}
    return {"label": names[label], "probabilities": said, "influence": [float(odds[0] - one) for one in odds[1:]]}


def _said(data: dict[str, Any]) -> str:
    return f"label {data['label']}, {data['probabilities'][data['label']]:.1%}"


def _class_attention(classifier: Classifier, row: Any) -> tuple[Array, list[float]]:
    """The attention of every head, [L, H, T, T], and where the classified state of the last layer looked."""
    with classifier.inference():
        _, weights = classifier.model(*classifier.padded([row]), need_weights=True)
    attention_LHTT = stacked(weights.encoder)
    return attention_LHTT, _looked(classifier, attention_LHTT[-1]).tolist()


def _looked(classifier: Classifier, attention_HTT: Array) -> Array:
    ends = classifier.config.model.pooling == "end"  # type: ignore[union-attr]
    looked_T: Array = (attention_HTT[:, -1] if ends else attention_HTT.mean(axis=1)).mean(axis=0)
    return looked_T
