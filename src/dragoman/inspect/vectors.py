"""Records of what a model does with vectors: frames of sound, patches of a picture, rows of a time series.

Shapes: L layers, H heads, T tokens or rows put out, S vectors given, F features.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dragoman import pictures
from dragoman.data.features import as_picture
from dragoman.decode.forecaster import Forecaster
from dragoman.decode.runner import Runner
from dragoman.decode.transcriber import Transcriber
from dragoman.inspect.record import Array, Heatmap, Pictures, Record, candidates, draw_heads, stacked
from dragoman.model.attention import AttentionWeights

CANDIDATES = 5  # shown of each token
COLUMNS = 20  # of a heat map in a terminal; more vectors are shown in groups
ROWS = 12  # of a forecast that are shown
COLUMNS_DRAWN = 12  # of a series
PANEL_WIDTH, PANEL_HEIGHT = 520, 260
LOOKED = "rows: the output; columns: the vector where it looked"
LOOKS = "rows: the vector that looks; columns: where it looks"

Picture = tuple[int, int] | None  # height and width, where the vectors are patches


def inspect_transcription(transcriber: Transcriber, vectors_SF: Any, name: str, picture: Picture = None) -> Record:
    """How likely each token of the text is, what else was likely, and which vectors it looked at."""
    said = transcriber.transcribe([vectors_SF])[0]
    log_prob_TV, weights = transcriber.forced(vectors_SF, said.ids)
    tokenizer = transcriber.tokenizers.target
    ids, tokens = [*said.ids, tokenizer.vocabulary.eos], [*said.tokens, "</s>"]
    steps, rows = [], []
    for token, piece, log_prob_V in zip(tokens, ids, log_prob_TV, strict=True):
        probability = float(log_prob_V[piece].exp())
        likely = candidates(log_prob_V, tokenizer.pieces, CANDIDATES)
        steps.append({"token": token, "probability": probability, "candidates": likely})
        rows.append((token, f"{probability:.1%}", others(token, likely)))

    def draw() -> Pictures:
        if weights.cross:
            shown_SF = transcriber.encode([vectors_SF])[0] if picture is None else vectors_SF
            title = "Cross-attention, last layer, mean of all heads"
            yield "attention", draw_attention(shown_SF, last_layer(weights), tokens, picture, title=title)
        yield from _heads(weights)

    return Record(
        name,
        f"{said.text} (score {said.score:.2f}{unread(transcriber, vectors_SF)})",
        ("token", "probability", "others"),
        rows,
        _heatmap(weights, tokens),
        draw,
        {"name": name, **said.to_dict(), "tokens": tokens, "steps": steps, **_attention(weights)},
    )


def inspect_forecast(forecaster: Forecaster, rows_SF: Any, name: str) -> Record:
    """The rows that it forecasts, and which of the rows given each looked at."""
    forecast_TF, weights = forecaster.forecast(rows_SF), forecaster.attention(rows_SF)
    given_SF = rows_SF[-forecaster.lookback :]
    shown = _evenly(forecaster.horizon, ROWS)
    labels = [f"row +{row + 1}" for row in shown]

    def draw() -> Pictures:
        yield "forecast", draw_forecast(forecaster.names, given_SF, forecast_TF)
        if weights.cross:
            scaled_SF = forecaster.tokenizers.scale.encode(given_SF)
            title = "Cross-attention, last layer, mean of all heads"
            yield "attention", draw_attention(scaled_SF, last_layer(weights)[shown], labels, None, title=title)
        yield from _heads(weights)

    return Record(
        name,
        f"{forecaster.horizon} rows from the last {forecaster.lookback}"
        f"{f', of which {len(shown)} are shown' if len(shown) < forecaster.horizon else ''}",
        ("", *forecaster.names),
        [(label, *(f"{value:.4g}" for value in forecast_TF[row])) for label, row in zip(labels, shown, strict=True)],
        _heatmap(weights, labels, shown, "rows given"),
        draw,
        {"name": name, "columns": forecaster.names, "forecast": forecast_TF.tolist(), **_attention(weights)},
    )


def unread(model: Runner, vectors_SF: Any) -> str:
    """What a reader must know of a sequence that is too long for the model."""
    total = len(vectors_SF)
    return f"; read: the first {model.longest} of {total} vectors" if total > model.longest else ""


def others(token: str, likely: Sequence[tuple[str, float]]) -> str:
    return "  ".join(f"{other} {share:.0%}" for other, share in likely if other != token)


def _evenly(total: int, most: int) -> list[int]:
    """At most `most` of `total` rows, evenly apart, the first and the last among them."""
    return sorted({round(row) for row in np.linspace(0, total - 1, min(total, most)).tolist()})


def last_layer(weights: AttentionWeights) -> Array:
    """The cross-attention of the last layer, the mean of its heads: [T, S]."""
    mean_TS: Array = stacked(weights.cross[-1:])[0].mean(axis=0)
    return mean_TS


def draw_attention(vectors_SF: Any, attention_TS: Array, labels: Sequence[str], picture: Picture, *, title: str) -> str:
    """Where each row looked: on the picture, or below the vectors over time."""
    if picture is None:
        return pictures.svg_frames(vectors_SF, attention_TS, labels, title=title)
    side = math.isqrt(vectors_SF.shape[1])
    unread = len(vectors_SF) - attention_TS.shape[1]  # a model reads as many patches as it was trained with
    attention_TS = np.pad(attention_TS, ((0, 0), (0, unread)))
    patches_TPQ = attention_TS.reshape(-1, picture[0] // side, picture[1] // side)
    return pictures.svg_patches(as_picture(vectors_SF, picture), patches_TPQ, labels, title=title)


def draw_forecast(names: Sequence[str], given_SF: Any, forecast_TF: Any, right_TF: Any | None = None) -> str:
    """The first columns: what was given, what was forecast, and what happened."""
    panels = []
    for column, name in enumerate(names[:COLUMNS_DRAWN]):
        if column == COLUMNS_DRAWN - 1 and len(names) > COLUMNS_DRAWN:
            name += f" ({len(names) - COLUMNS_DRAWN} more columns are not drawn)"
        lines = {"given": _points(given_SF[:, column], 1 - len(given_SF)), "forecast": _points(forecast_TF[:, column])}
        if right_TF is not None:
            lines["what happened"] = _points(right_TF[:, column])
        panels.append(
            pictures.svg_plot(
                lines, title=name, x_label="rows from now", y_label="", width=PANEL_WIDTH, height=PANEL_HEIGHT
            )
        )
    return pictures.svg_panels(panels, columns=2, width=PANEL_WIDTH, height=PANEL_HEIGHT)


def _points(values: Any, start: int = 1) -> list[tuple[float, float]]:
    return [(float(start + place), float(value)) for place, value in enumerate(values)]


def grouped(attention_TS: Array, title: str, labels: Sequence[str]) -> Heatmap:
    """For a terminal: vectors in groups, numbered by their first, and every row up to its maximum."""
    count = attention_TS.shape[1]
    starts = np.linspace(0, count, min(count, COLUMNS), endpoint=False).astype(int)
    shares = np.add.reduceat(attention_TS, starts, axis=1)
    columns = [str(start + 1) for start in starts]
    return Heatmap(title, shares / np.maximum(shares.max(axis=1, keepdims=True), 1e-9), labels, columns)


def _heatmap(
    weights: AttentionWeights, labels: Sequence[str], rows: Sequence[int] | None = None, columns: str = "vectors"
) -> Heatmap | None:
    if not weights.cross:
        return None
    attention_TS = last_layer(weights)
    title = f"cross-attention of the last layer, mean of all heads, each row up to its maximum; columns: {columns}"
    return grouped(attention_TS if rows is None else attention_TS[rows], title, labels)


def _heads(weights: AttentionWeights) -> Pictures:
    if weights.cross:
        yield "heads", draw_heads(stacked(weights.cross), LOOKED, stretched=True)
    if weights.encoder:
        yield "heads-of-the-encoder", draw_heads(stacked(weights.encoder), LOOKS, stretched=True)


def _attention(weights: AttentionWeights) -> dict[str, Any]:
    return {"attention": stacked(weights.cross).tolist() if weights.cross else []}
