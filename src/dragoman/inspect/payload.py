"""The data that a page shows about a model and some sentences, as JSON. Knows nothing of HTML.

Numbers are rounded, and attention is stored as bytes, so that a page with many sentences stays small.
"""

import base64
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch

from dragoman.config import TransformerConfig
from dragoman.decode.translator import Translator
from dragoman.inspect.capture import KINDS, Inspection, head_names, inspect_sentence, score_of, without_heads
from dragoman.inspect.heads import HeadStatistics, HeadTally, rank_heads
from dragoman.progress import Advance, no_progress

POSITIONS = 64  # drawn

Payload = dict[str, Any]
Counting = Callable[[str, int], AbstractContextManager[Advance]]  # what is counted, and the total


def _no_counting(what: str, total: int) -> AbstractContextManager[Advance]:
    return nullcontext(no_progress)


class Masking(NamedTuple):
    """The same sentence with some heads masked."""

    heads: Sequence[str]
    before: Inspection
    score_of_before: float  # of the unmasked model's translation, under the masked model


def inspect_many(
    translator: Translator,
    name: str,
    sentences: Sequence[tuple[str, str | None]],
    *,
    masked: Sequence[str] = (),
    most: int = 100,
    ranked: int = 10,
    counting: Counting = _no_counting,
) -> Payload:
    """All sentences count for the statistics; the first `most` are shown; heads are ranked on the first `ranked`."""
    used = without_heads(translator, masked)
    tally = HeadTally()
    shown: list[Payload] = []
    to_rank: list[Inspection] = []
    with counting("inspecting sentences", len(sentences)) as advance:
        for source, target in sentences:
            before = inspect_sentence(translator, source, target) if masked else None
            found = inspect_sentence(used, source, target)
            tally.add(found.attention)
            if len(shown) < most:
                masking = None
                if before is not None:
                    masking = Masking(masked, before, score_of(used, before.source_ids, before.target_ids))
                shown.append(sentence_payload(found, masking))
                if len(to_rank) < ranked:
                    to_rank.append(found)
            advance(1)
    with counting("ranking heads", len(to_rank) * len(head_names(translator.engine.model))) as advance:
        for sentence, found in zip(shown, to_rank, strict=False):  # the first ones
            sentence["ranking"] = [[head.name, round(head.cost, 4)] for head in rank_heads(used, found, advance)]
    return {
        "kind": "inspection",
        "model": _model(translator, name),
        "sentences": shown,
        "statistics": statistics_payload(tally.statistics()),
        "counted": tally.sentences,
        "positions": _positions(translator),
    }


def sentence_payload(inspection: Inspection, masking: Masking | None = None) -> Payload:
    """One sentence in the form the page's script expects, its heads not ranked yet."""
    payload: Payload = {
        "source": inspection.source,
        "translation": inspection.translation,
        "forced": inspection.forced,
        "score": round(inspection.score, 4),
        "source_tokens": inspection.source_tokens,
        "input_tokens": inspection.input_tokens,
        "tokens": inspection.tokens,
        "steps": [
            {
                "p": round(step.probability, 6),
                "rank": step.rank,
                "candidates": [[token, round(probability, 6)] for token, probability in step.candidates],
            }
            for step in inspection.steps
        ],
        "attention": {kind: _packed(getattr(inspection.attention, kind)) for kind in KINDS},
        "alignment_layer": inspection.attention.alignment_layer if len(inspection.attention.cross) else None,
        "beam": [[node.parent, node.depth, node.token, round(node.score, 4), node.fate] for node in inspection.beam],
        "ranking": [],
    }
    if masking is not None:
        before = masking.before
        payload["masked"] = {
            "heads": list(masking.heads),
            "before": {"translation": before.translation, "score": round(before.score, 4)},
            "after": {"translation": inspection.translation, "score": round(inspection.score, 4)},
            "score_of_before": round(masking.score_of_before, 4),
        }
    return payload


def statistics_payload(statistics: Sequence[HeadStatistics]) -> list[Payload]:
    return [
        {**{key: round(value, 4) if isinstance(value, float) else value for key, value in vars(head).items()},
         "dead": head.dead}
        for head in statistics
    ]  # fmt: skip


def _packed(weights: np.ndarray) -> Payload:
    """Weights in 0..1 as bytes, 255 for 1."""
    levels = np.rint(np.clip(weights, 0.0, 1.0) * 255).astype(np.uint8)
    return {"shape": list(weights.shape), "bytes": base64.b64encode(levels.tobytes()).decode("ascii")}


def _model(translator: Translator, name: str) -> Payload:
    model, decode = translator.config.model, translator.config.decode
    described: Payload = {
        "name": name,
        "architecture": model.architecture,
        "search": {"beam": decode.beam, "length_penalty": decode.length_penalty},
        "d_model": model.d_model,
    }
    if isinstance(model, TransformerConfig):
        for side, size in (("encoder", model.encoder), ("decoder", model.decoder)):
            described |= {f"{side}_layers": size.num_layers, f"{side}_heads": size.num_heads}
    return described


def _positions(translator: Translator) -> Payload | None:
    """The vectors added to the source embeddings, if any."""
    encoder: Any = translator.engine.model.encoder
    positions = getattr(encoder, "positions", None)
    if positions is None:
        return None
    count = min(POSITIONS, translator.config.model.longest or POSITIONS)
    with torch.inference_mode():
        vectors = positions.vectors(torch.arange(count, device=translator.engine.device), torch.float32)
    if vectors is None:
        return None
    table = vectors.float().cpu().numpy()
    largest = float(np.abs(table).max()) or 1.0
    return {
        "kind": positions.kind,
        "table": _packed((table / largest + 1) / 2),  # the byte 0 is -largest, 255 is +largest
        "largest": round(largest, 4),
        "dots": [round(float(table[0] @ row), 4) for row in table],
    }
