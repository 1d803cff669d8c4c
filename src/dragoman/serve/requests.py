"""What routes have in common: who is calling, which model is meant, what is too much."""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request

from dragoman.serve.access import Refused, TooMuch
from dragoman.serve.pool import ModelWorker
from dragoman.serve.service import Failure, Service
from dragoman.serve.settings import KeySettings


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def identify(request: Request, key: str | None) -> KeySettings:
    """Who is calling: by a key in the body or the query, else in a header."""
    header = request.headers.get("authorization", "")
    given = key or request.headers.get("x-api-key") or (header[7:] if header[:7].lower() == "bearer " else None)
    try:
        caller = service_of(request).access.caller(given, request.client.host if request.client else "")
    except Refused as refused:
        raise Failure(401, str(refused)) from None
    request.state.caller = caller.name
    return caller


def check_size(service: Service, field: str, texts: Sequence[str]) -> int:
    """The number of characters, if it is not too large."""
    settings = service.settings
    if len(texts) > settings.max_texts:
        raise Failure(
            400, f"{field}: has {len(texts):,} texts, at most {settings.max_texts:,} are possible; send fewer"
        )
    characters = sum(map(len, texts))
    if characters > settings.max_characters:
        raise Failure(
            400, f"{field}: has {characters:,} characters, at most {settings.max_characters:,} are possible; send less"
        )
    for text in texts:
        require_text(field, text)
    return characters


def require_text(field: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Failure(400, f"{field}: has half a character (a lone surrogate) at {error.start + 1}; fix it") from None


def spend(request: Request, caller: KeySettings, worker: ModelWorker | None, characters: int) -> None:
    """Count it against the caller's limits."""
    service = service_of(request)
    try:
        service.access.spend(caller, characters)
    except TooMuch as refused:
        service.metrics.refused.labels("limit").inc()
        raise Failure(429, str(refused), refused.seconds) from None
    if worker is not None:
        service.metrics.characters.labels(worker.settings.name).inc(characters)


def note(request: Request, **noted: Any) -> None:
    """Add to the log line of this request."""
    request.state.noted = {**getattr(request.state, "noted", {}), **noted}


def note_texts(request: Request, texts: Sequence[str], answers: Sequence[Mapping[str, Any]]) -> None:
    """Only if the service was asked to log texts."""
    if service_of(request).settings.log_text:
        note(request, texts=list(texts), translations=[answer["translation"] for answer in answers])
