"""What a translation is: text, status, scores, tokens, and attention on request. Knows nothing of models."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Generic, Literal, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from dragoman.decode.alignment import agreeing_layer

Status = Literal["translated", "empty", "split", "truncated", "altered", "failed"]
REPLACEMENT = "\ufffd"  # what some of the bytes of a character decode to
Array = npt.NDArray[np.float32]
T = TypeVar("T")


@dataclass(frozen=True)
class Attention:
    """The attention weights of every head for this translation: [layer, head, query, key]; rows sum to 1.

    Encoder and cross keys are `source_tokens`; decoder keys are `input_tokens`, which start with <s>; decoder and
    cross queries are the translation's own `tokens`: each row is the one that produced its token.
    """

    encoder: Array
    decoder: Array
    cross: Array
    source_tokens: tuple[str, ...]
    input_tokens: tuple[str, ...]
    tokens: tuple[str, ...]

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}={getattr(self, name).shape}" for name in ("encoder", "decoder", "cross"))
        return f"Attention({shapes})"

    @property
    def alignment_weights(self) -> Array:
        """[target token, source token]: the mean over heads in the layer that aligns best."""
        return self.cross[self.alignment_layer].mean(axis=0)

    @property
    def alignment_layer(self) -> int:
        """Index of the layer whose heads agree most on what to attend to, not counting the source's </s>."""
        return agreeing_layer(self.cross[..., :-1])

    def _repr_html_(self) -> str:
        """The alignment as a heatmap, for notebooks."""
        from dragoman.pictures import svg_heatmap

        if not len(self.cross):
            return "<p>This model does not look back at the source.</p>"
        return svg_heatmap(
            self.alignment_weights,
            self.tokens,
            self.source_tokens,
            title="Where each target token looked in the source",
            caption=f"mean over heads of layer {self.alignment_layer + 1}",
        )


class _Detail(Generic[T]):
    """A field that most callers never read: all details of a translation are computed when one is first read."""

    def __init__(self, default: T) -> None:
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __set__(self, instance: Any, value: T) -> None:
        instance.__dict__[self._name] = value

    def __get__(self, instance: Any, owner: type) -> T:
        if instance is None:
            return self._default
        own = instance.__dict__
        if self._name not in own and (details := own.get("_details")) is not None:
            own.update(details())
            own.pop("_details", None)  # another thread may have been here
        value: T = own.get(self._name, self._default)
        return value


@dataclass(frozen=True)
class Alternative:
    """One of the n best translations."""

    text: str
    score: float
    normalized_score: float
    tokens: tuple[str, ...] = ()


class Details(TypedDict):
    """What of a translation is computed when it is first read."""

    score: float
    normalized_score: float
    source_tokens: tuple[str, ...]
    tokens: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    pieces: tuple[tuple[str, str], ...]
    token_scores: tuple[float, ...]
    confidence: float | None


@dataclass(frozen=True)
class Translation:
    """One line's translation. `score` is its total log-probability with </s>; `normalized_score` ranks it.

    Details are plain values: numbers and tuples.
    """

    source: str
    text: str
    status: Status
    score: _Detail[float] = _Detail(0.0)
    normalized_score: _Detail[float] = _Detail(0.0)
    source_tokens: _Detail[tuple[str, ...]] = _Detail(())
    tokens: _Detail[tuple[str, ...]] = _Detail(())
    alternatives: _Detail[tuple[Alternative, ...]] = _Detail(())  # best first, including this one
    pieces: _Detail[tuple[tuple[str, str], ...]] = _Detail(())  # what was translated on its own, and to what
    token_scores: _Detail[tuple[float, ...]] = _Detail(())  # log-probability of each of `tokens`; only on request
    confidence: _Detail[float | None] = _Detail(None)  # probability that it needs no review; only on request
    attention: Attention | None = None  # only on request
    reason: str = ""  # why it failed, or what was altered

    def __getstate__(self) -> dict[str, Any]:
        """Copies hold the details, not what computes them."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def __repr__(self) -> str:
        """Source, text and status without the tokens, and which other fields are set."""
        parts = [f"{self.source!r} -> {self.text!r}", self.status, f"score={self.score:.4g}"]
        if self.confidence is not None:
            parts.append(f"confidence={self.confidence:.2f}")
        if self.reason:
            parts.append(f"reason={self.reason!r}")
        if len(self.alternatives) > 1:
            parts.append(f"{len(self.alternatives)} alternatives")
        if self.attention is not None:
            parts.append(f"attention={self.attention}")
        return f"Translation({', '.join(parts)})"

    @property
    def alignment(self) -> list[tuple[int, int]] | None:
        """(source token, target token) pairs: where each target token attends most, over all heads of one layer."""
        if self.attention is None or not len(self.attention.cross):
            return None
        looks = self.attention.alignment_weights
        ends = len(self.tokens) - (self.tokens[-1:] == ("</s>",))
        return [(int(looks[target].argmax()), target) for target in range(ends)]

    def to_dict(self) -> dict[str, Any]:
        """What --json prints."""
        scored = self.status not in ("empty", "failed") and bool(self.tokens)  # 0 would be the best of all scores
        record: dict[str, Any] = {
            "source": self.source,
            "translation": self.text,
            "score": self.score if scored else None,
            "normalized_score": self.normalized_score if scored else None,
            "status": self.status,
        }
        if self.confidence is not None:
            record["confidence"] = self.confidence
        if self.reason:
            record["reason"] = self.reason
        if len(self.alternatives) > 1:
            record["alternatives"] = [
                {"translation": other.text, "score": other.score, "normalized_score": other.normalized_score}
                for other in self.alternatives
            ]
        if self.attention is not None:
            record["source_tokens"] = self.source_tokens
            record["tokens"] = self.tokens
            record["alignment"] = self.alignment
        if self.token_scores:
            record["tokens"] = self.tokens
            record["token_scores"] = self.token_scores
        return record


def translated(
    source: str,
    text: str,
    status: Status,
    details: Callable[[], Details],
    attention: Attention | None = None,
    reason: str = "",
) -> Translation:
    """A translation whose details are computed when one is read."""
    if REPLACEMENT in text and REPLACEMENT not in source and status in ("translated", "split"):
        status, reason = "altered", "the model wrote only some of the bytes of a character"
    created = object.__new__(Translation)
    # __init__ of a frozen dataclass makes a call for every field
    created.__dict__.update(
        source=source, text=text, status=status, attention=attention, reason=reason, _details=details
    )
    return created
