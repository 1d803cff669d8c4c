"""The requests and answers of /v1, checked by pydantic and shown by OpenAPI."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dragoman.config import PROTECTED

Text = Annotated[str, Field(description="UTF-8 text", examples=["The house is old."])]
Language = Annotated[str, Field(min_length=2, max_length=16, pattern="^[A-Za-z-]+$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


class Term(_Strict):
    source: str = Field(min_length=1, max_length=200, examples=["house"])
    target: str = Field(min_length=1, max_length=200, examples=["Gebäude"])


class SearchOptions(_Strict):
    """As in Python and on the command line; the model's own where not given."""

    beam: int | None = Field(default=None, ge=1, description="hypotheses kept at each step; 1 is greedy search")
    length_penalty: float | None = Field(default=None, ge=0, le=10)
    max_extra: int | None = Field(
        default=None, ge=1, le=1_000, description="tokens the output may have more than the input"
    )
    min_length: int | None = Field(default=None, ge=0, le=1_000)
    no_repeat_ngram: int | None = Field(default=None, ge=0, le=100)
    split: Literal["sentences", "long"] | None = None
    recase: bool | None = None
    restore_names: bool | None = None
    banned: list[str] | None = Field(default=None, max_length=100, description="words that do not appear")
    protect: list[Literal[PROTECTED]] | None = Field(  # type: ignore[valid-type]
        default=None, max_length=len(PROTECTED), description="what comes out as it is"
    )
    sampling: bool | None = None
    temperature: float | None = Field(default=None, ge=0.01, le=100)
    top_k: int | None = Field(default=None, ge=0, le=1_000_000)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    diversity_groups: int | None = Field(default=None, ge=1)
    diversity_penalty: float | None = Field(default=None, ge=0, le=100)
    coverage_penalty: float | None = Field(default=None, ge=0, le=100)


class ModelRequest(_Strict):
    source: Language | None = Field(
        default=None, description='language; "auto": that of the text; left out: the same where several models fit'
    )
    target: Language | None = None
    model: str | None = Field(default=None, max_length=200, description="its name, in place of source and target")
    seconds: float | None = Field(default=None, gt=0, le=3_600, description="until when the answer is of use")
    api_key: str | None = Field(default=None, max_length=500)


class TranslateRequest(ModelRequest):
    text: str | list[str] = Field(
        examples=["The house is old."], description="texts, or one text, each line of which has a record"
    )
    n_best: int = Field(default=1, ge=1)
    prefix: str | list[str] | None = Field(
        default=None, description="what the translation begins with; one for each text"
    )
    glossary: list[Term] = Field(default=[], max_length=1_000)
    alignment: bool = Field(default=False, description="which characters of text and translation belong together")
    attention: bool = Field(default=False, description="tokens, and which attend to each other")
    confidence: bool = Field(default=False, description="the probability that a translation needs no review")
    token_scores: bool = False
    stream: bool = Field(
        default=False, description="server-sent events: `part`s as they become certain, then the `result`"
    )
    options: SearchOptions = SearchOptions()


class Alternative(BaseModel):
    translation: str
    score: float
    normalized_score: float


class TranslationRecord(BaseModel):
    model_config = ConfigDict(extra="allow")

    source: str
    translation: str
    status: Literal["translated", "split", "truncated", "altered", "empty", "failed"]
    score: float | None
    normalized_score: float | None
    reason: str | None = Field(default=None, description="why it failed, or what was altered")
    confidence: float | None = None
    alternatives: list[Alternative] | None = None
    alignment: list[list[int]] | None = Field(
        default=None, description="[start, end, start, end]: characters of the source, characters of the translation"
    )


class TranslateAnswer(BaseModel):
    model: str
    source: str
    target: str
    translations: list[TranslationRecord]


class ScoreRequest(ModelRequest):
    sources: list[str]
    targets: list[str]


class ScoreAnswer(BaseModel):
    scores: list[float] = Field(description="log P(target | source) of each pair")


class InspectRequest(ModelRequest):
    text: str


class ModelRecord(BaseModel):
    name: str
    source: str
    target: str
    parameters: int
    engine: str
    is_ready: bool
    is_calibrated: bool


class ErrorAnswer(BaseModel):
    error: str


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": why}
    for status, why in {
        400: "The request is wrong; the message names the field",
        401: "No valid key",
        404: "There is no such model",
        413: "Too large",
        429: "Too many requests; see Retry-After",
        503: "No room; see Retry-After",
        504: "The deadline passed",
    }.items()
}
