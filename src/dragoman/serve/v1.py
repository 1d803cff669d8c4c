"""The API under /v1: everything the search can do, one request at a time."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from dragoman.errors import DragomanError
from dragoman.serve.pool import STREAM, ModelWorker
from dragoman.serve.requests import check_size, identify, note_texts, service_of, spend
from dragoman.serve.schema import (
    ERRORS,
    InspectRequest,
    ModelRecord,
    ModelRequest,
    ScoreAnswer,
    ScoreRequest,
    TranslateAnswer,
    TranslateRequest,
)
from dragoman.serve.service import Failure, Service, Stream

router = APIRouter(prefix="/v1", tags=["v1"], responses=ERRORS)


def _worker(service: Service, given: ModelRequest, text: str) -> ModelWorker:
    """The model that is meant."""
    if given.model is not None:
        worker = service.worker_named(given.model)
        if worker is None:
            raise Failure(404, f"model: there is no {given.model!r}; see /v1/models")
        return worker
    source = None if given.source == "auto" else given.source
    fitting = _translating(service, source, given.target)
    if given.source == "auto" or (source is None and len(fitting) > 1):
        found = service.detect_source(text, given.target)
        source = found.language if found else None
        fitting = _translating(service, source, given.target)
    if not fitting:
        pair = f"{source or 'any language'} to {given.target or 'any language'}"
        raise Failure(400, f"source, target: no model translates {pair}; see /v1/models")
    if len(fitting) > 1:
        raise Failure(400, "source, target: several models fit; give both languages, or model")
    return fitting[0]


def _translating(service: Service, source: str | None, target: str | None) -> list[ModelWorker]:
    """The models of a pair of languages, or of all pairs with one of them."""
    pairs = {worker: service.pair_of(worker) for worker in service.workers}
    return [
        worker
        for worker, (own_source, own_target) in pairs.items()
        if (source or own_source).lower() == own_source and (target or own_target).lower() == own_target
    ]


def _seconds(service: Service, given: ModelRequest) -> float:
    return min(given.seconds or service.settings.seconds, service.settings.seconds)


def _payload(service: Service, given: TranslateRequest, texts: list[str]) -> dict[str, Any]:
    options = given.options.model_dump(exclude_none=True)
    for name, count in (("n_best", given.n_best), ("options.beam", options.get("beam", 1))):
        if count > service.settings.max_beam:
            raise Failure(400, f"{name}: {count} is more than {service.settings.max_beam}; ask for less")
    options |= {name: True for name in ("confidence", "token_scores") if getattr(given, name)}
    if given.n_best > options.get("beam", given.n_best):
        raise Failure(400, f"n_best: {given.n_best} is more than options.beam, {options['beam']}; widen the beam")
    if given.n_best > 1:
        options |= {"n_best": given.n_best, "beam": options.get("beam", max(given.n_best, 4))}
    prefixes = [given.prefix] if isinstance(given.prefix, str) else given.prefix
    if prefixes is not None and len(prefixes) != len(texts):
        raise Failure(400, f"prefix: {len(prefixes)} for {len(texts)} texts; give one for each")
    if prefixes or given.attention:
        options.setdefault("split", "long")
    return {
        "texts": texts,
        "options": options,
        "prefixes": prefixes,
        "glossary": [(term.source, term.target) for term in given.glossary],
        "alignment": given.alignment,
        "attention": given.attention,
    }


@router.post("/translate", response_model=TranslateAnswer, response_model_exclude_unset=True)
async def translate(request: Request, given: TranslateRequest) -> Any:
    """Translate a text or several. With `stream`, one text comes in parts."""
    service, caller = service_of(request), identify(request, given.api_key)
    texts = _texts(given)
    prefixes = [given.prefix] if isinstance(given.prefix, str) else given.prefix or []
    given_texts = [given.text] if isinstance(given.text, str) else given.text
    characters = check_size(service, "text", given_texts) + check_size(service, "prefix", prefixes)
    worker, payload = _worker(service, given, "\n".join(given_texts)), _payload(service, given, texts)
    if given.stream and (len(texts) > 1 or given.prefix or given.attention or given.n_best > 1):
        raise Failure(400, "stream: is for one text; leave out prefix, attention and n_best")
    spend(request, caller, worker, characters)
    source, target = service.pair_of(worker)
    about = {"model": worker.settings.name, "source": source, "target": target}
    if given.stream:
        payload["text"] = texts[0]
        return _Events(await service.stream(request, worker, STREAM, payload, _seconds(service, given)), about)
    result = await service.ask(request, worker, "translate", payload, _seconds(service, given))
    note_texts(request, texts, result["translations"])
    return {**about, **result}


def _texts(given: TranslateRequest) -> list[str]:
    """What is translated at a time: the texts of a list, or the lines of one text."""
    if not isinstance(given.text, str):
        if not given.text:
            raise Failure(400, "text: is an empty list; give one text or more")
        return given.text
    if given.stream:
        return [given.text]
    lines = given.text.removesuffix("\n").split("\n")
    if len(lines) > 1 and given.prefix is not None:
        raise Failure(400, "prefix: is for one line, and text has several; send them as a list, with a prefix for each")
    return lines


class _Events(StreamingResponse):
    """Server-sent events. Whatever ends them, the worker is told, and their place in the queue is free."""

    def __init__(self, stream: Stream, about: dict[str, str]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(self._events(stream, about), media_type="text/event-stream", headers=headers)
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout_at(self._stream.deadline):  # also for a client that does not read
                await super().__call__(scope, receive, send)
        except TimeoutError:
            pass  # the connection is closed
        finally:
            await self._stream.close()

    @staticmethod
    async def _events(stream: Stream, about: dict[str, str]) -> AsyncIterator[str]:
        try:
            async for message in stream.messages():
                name = "part" if "part" in message else "result"
                content = message["part"] if name == "part" else {**about, **message["result"]}
                yield f"event: {name}\ndata: {json.dumps(content)}\n\n"
        except (Failure, DragomanError) as error:
            about_error: dict[str, Any] = {"error": str(error)}  # the status of the answer is long sent
            if isinstance(error, Failure):
                about_error |= {"status": error.status, "retry_seconds": error.retry_seconds}
            yield f"event: error\ndata: {json.dumps(about_error)}\n\n"


@router.post("/score", response_model=ScoreAnswer)
async def score(request: Request, given: ScoreRequest) -> Any:
    """How likely the model finds given translations."""
    service, caller = service_of(request), identify(request, given.api_key)
    if len(given.sources) != len(given.targets):
        counts = f"{len(given.sources)} sources and {len(given.targets)} targets"
        raise Failure(400, f"sources, targets: {counts}; give one target per source")
    characters = check_size(service, "sources", given.sources) + check_size(service, "targets", given.targets)
    worker = _worker(service, given, "\n".join(given.sources))
    spend(request, caller, worker, characters)
    payload = {"sources": given.sources, "targets": given.targets}
    return await service.ask(request, worker, "score", payload, _seconds(service, given))


@router.post("/inspect", response_class=HTMLResponse)
async def inspect(request: Request, given: InspectRequest) -> Response:
    """The page of `dragoman inspect` for one sentence."""
    service, caller = service_of(request), identify(request, given.api_key)
    characters = check_size(service, "text", [given.text])
    worker = _worker(service, given, given.text)
    spend(request, caller, worker, characters)
    payload = {"text": given.text, "model": worker.settings.name}
    result = await service.ask(request, worker, "inspect", payload, _seconds(service, given))
    return HTMLResponse(result["page"])


@router.get("/models")
async def models(request: Request) -> list[ModelRecord]:
    """The models and their languages."""
    service = service_of(request)
    identify(request, request.query_params.get("api_key"))
    return [
        ModelRecord(
            name=worker.settings.name,
            source=service.pair_of(worker)[0],
            target=service.pair_of(worker)[1],
            parameters=worker.description["parameters"],
            engine=worker.description["engine"],
            is_ready=worker.is_ready,
            is_calibrated=worker.description["is_calibrated"],
        )
        for worker in service.workers
    ]
