"""LibreTranslate's API, so that its clients work unchanged.

Parameters come as JSON, as a form or in the query; some clients mix them.
"""

import itertools
import json
import tempfile
import urllib.parse
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, JSONResponse
from starlette.datastructures import UploadFile

from dragoman.documents.formats import FORMATS, SUFFIXES
from dragoman.errors import DragomanError
from dragoman.serve import libre_schema
from dragoman.serve.pool import ModelWorker
from dragoman.serve.requests import check_size, identify, note_texts, require_text, service_of, spend
from dragoman.serve.service import Failure, Service
from dragoman.text.language import Detected, name_of

router = APIRouter(tags=["LibreTranslate"])
MOST_ALTERNATIVES = 10
MOST_FIELDS = 1_000  # of a form
FILE_SUFFIXES = sorted(suffix for suffix, name in SUFFIXES.items() if name in FORMATS)


async def parameters(request: Request) -> dict[str, Any]:
    """Those of the body, and of the query where the body has none."""
    found: dict[str, Any] = dict(request.query_params)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/x-www-form-urlencoded":
        return found | _read_form(await request.body())
    if kind == "multipart/form-data":
        try:
            form = await request.form()
        except Exception as error:  # of the parser: the body is not what its header says
            raise Failure(400, f"the form cannot be read: {getattr(error, 'detail', error)}") from None
        for name in form:
            values = form.getlist(name)
            found[name] = values[0] if len(values) == 1 else values
        return found
    body = await request.body()
    if body.strip():
        found |= _read_json(body)
    return found


def _read_form(body: bytes) -> dict[str, Any]:
    """Of letters in UTF-8, escaped or not: `curl -d` sends them as they are."""
    if body.count(b"&") > MOST_FIELDS:
        raise Failure(400, f"the form has more than {MOST_FIELDS:,} fields; send fewer")
    try:
        fields = urllib.parse.parse_qs(body.decode(), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise Failure(400, "the form cannot be read: it is not valid UTF-8") from None
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}


def _read_json(body: bytes) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        content = json.loads(body, parse_constant=refuse)
    except RecursionError:
        raise Failure(400, "the body: is nested too deeply") from None
    except ValueError as error:
        raise Failure(400, f"the body: is not valid JSON ({error})") from None
    if not isinstance(content, dict):
        raise Failure(400, "the body: is not a JSON object")
    return content


def _string(given: dict[str, Any], name: str, default: str | None = None) -> str:
    value = given.get(name, default)
    if value is None or value == "":
        raise Failure(400, f"Invalid request: missing {name} parameter")
    if not isinstance(value, str):
        raise Failure(400, f"Invalid request: {name} parameter is not a string")
    require_text(name, value)
    return value


def _key(given: dict[str, Any]) -> str | None:
    key = given.get("api_key")
    return key if isinstance(key, str) else None


def _texts(given: dict[str, Any]) -> tuple[list[str], bool]:
    """The texts, and whether there is a list of them."""
    q = given.get("q")
    if q is None or q == "" or q == []:
        raise Failure(400, "Invalid request: missing q parameter")
    texts = q if isinstance(q, list) else [q]
    if not all(isinstance(text, str) for text in texts):
        raise Failure(400, "Invalid request: q parameter is not a string or a list of strings")
    return texts, isinstance(q, list)


def _count(given: dict[str, Any], name: str) -> int:
    value = given.get(name)
    value = 0 if value is None or value == "" else value
    try:
        count = int(value) if isinstance(value, (int, str)) else -1
    except ValueError:
        count = -1
    if not 0 <= count <= MOST_ALTERNATIVES:
        raise Failure(400, f"Invalid request: {name} parameter is not a number from 0 to {MOST_ALTERNATIVES}")
    return count


@router.post("/translate", openapi_extra=libre_schema.TRANSLATE)
async def translate(request: Request) -> dict[str, Any]:
    """Translate text, or a list of texts."""
    service, given = service_of(request), await parameters(request)
    caller = identify(request, _key(given))
    texts, is_list = _texts(given)
    source, target = _string(given, "source", "auto").lower(), _string(given, "target").lower()
    style = _string(given, "format", "text")
    if style not in ("text", "html"):
        raise Failure(400, f"{style} format is not supported")
    alternatives = _count(given, "alternatives")
    characters = check_size(service, "q", texts)
    detected = [_detect(service, text, target) for text in texts] if source == "auto" else []
    sources = [found.language for found in detected] or [source] * len(texts)
    workers = [_worker(service, each, target) for each in sources]
    spend(request, caller, next((worker for worker in workers if worker), None), characters)
    found = await _translated(request, service, texts, workers, style, alternatives)
    answer: dict[str, Any] = {"translatedText": [text for text, _ in found] if is_list else found[0][0]}
    if detected:
        records = [{"confidence": each.confidence, "language": each.language} for each in detected]
        answer["detectedLanguage"] = records if is_list else records[0]
    if alternatives:
        answer["alternatives"] = [others for _, others in found] if is_list else found[0][1]
    return answer


def _detect(service: Service, text: str, target: str) -> Detected:
    found = service.detect_source(text, target)
    if found is None:
        raise Failure(400, "source: the language cannot be detected; give it")
    return found


def _worker(service: Service, source: str, target: str) -> ModelWorker | None:
    """None if nothing is to be translated."""
    if (worker := service.worker_for(source, target)) is not None:
        return worker
    known = {code for pair in map(service.pair_of, service.workers) for code in pair}
    for code in (source, target):
        if code not in known:
            raise Failure(400, f"{code} is not supported")
    if source == target:
        return None
    raise Failure(
        400, f"{name_of(target)} ({target}) is not available as a target language from {name_of(source)} ({source})"
    )


async def _translated(
    request: Request,
    service: Service,
    texts: list[str],
    workers: list[ModelWorker | None],
    style: str,
    alternatives: int,
) -> list[tuple[str, list[str]]]:
    """For each text its translation and others."""
    found: list[tuple[str, list[str]]] = [(text, []) for text in texts]
    for worker in {worker for worker in workers if worker is not None}:
        numbers = [number for number, each in enumerate(workers) if each is worker]
        own = [texts[number] for number in numbers]
        options = {"n_best": alternatives + 1, "beam": max(alternatives + 1, worker.description.get("beam", 1))}
        payload = {"texts": own, "options": options if alternatives else {}, "format": style}
        result = await service.ask(request, worker, "paragraphs", payload, service.settings.seconds)
        note_texts(request, own, result["translations"])
        for number, record in zip(numbers, result["translations"], strict=True):
            if record["status"] == "failed":
                raise Failure(400, f"q: {record['reason']}")
            found[number] = (record["translation"], record["alternatives"])
    return found


@router.post("/detect", openapi_extra=libre_schema.DETECT)
async def detect(request: Request) -> list[dict[str, Any]]:
    """Say which language a text is in."""
    service, given = service_of(request), await parameters(request)
    caller = identify(request, _key(given))
    texts, _ = _texts(given)
    spend(request, caller, None, check_size(service, "q", texts))
    found = service.detector.detect("\n".join(texts))
    return [{"confidence": each.confidence, "language": each.language} for each in found if each.confidence >= 1]


@router.get("/languages")
async def languages(request: Request) -> list[dict[str, Any]]:
    """List the languages and what they can be translated into; each into itself, which changes nothing."""
    identify(request, request.query_params.get("api_key") or _key(await parameters(request)))
    sources = service_of(request).sources
    codes = sorted({*sources, *itertools.chain.from_iterable(sources.values())})
    return [{"code": code, "name": name_of(code), "targets": sorted({*sources.get(code, []), code})} for code in codes]


@router.get("/frontend/settings")
async def frontend_settings(request: Request) -> dict[str, Any]:
    """What a page needs to know."""
    service = service_of(request)
    source, target = service.pair_of(service.workers[0])  # as they were given
    return {
        "charLimit": service.settings.max_characters,
        "frontendTimeout": 500,
        "apiKeys": service.access.needs_key,
        "keyRequired": service.access.needs_key,
        "suggestions": bool(service.settings.suggestions),
        "filesTranslation": service.settings.files,
        "supportedFilesFormat": FILE_SUFFIXES if service.settings.files else [],
        "language": {
            "source": {"code": source, "name": name_of(source)},
            "target": {"code": target, "name": name_of(target)},
        },
    }


@router.post("/suggest", openapi_extra=libre_schema.SUGGEST)
async def suggest(request: Request) -> JSONResponse:
    """Keep a better translation for later training."""
    service, given = service_of(request), await parameters(request)
    caller = identify(request, _key(given))
    if not service.settings.suggestions:
        raise Failure(403, "Suggestions are disabled on this server.")
    values = {name: _string(given, name) for name in ("q", "s", "source", "target")}
    characters = check_size(service, "q", [values["q"], values["s"]])
    spend(request, caller, None, characters)
    line = json.dumps(values, ensure_ascii=False) + "\n"
    with Path(service.settings.suggestions).open("a", encoding="utf-8") as file:
        file.write(line)
    return JSONResponse({"success": True}, 201)


@router.post("/translate_file", openapi_extra=libre_schema.TRANSLATE_FILE)
async def translate_file(request: Request) -> dict[str, str]:
    """Translate a document; its address is in the answer."""
    service, given = service_of(request), await parameters(request)
    caller = identify(request, _key(given))
    if not service.settings.files:
        raise Failure(403, "Files translation are disabled on this server.")
    file = given.get("file")
    if not isinstance(file, UploadFile) or not file.filename:
        raise Failure(400, "Invalid request: missing file parameter")
    suffix = Path(file.filename).suffix.lower()
    if suffix not in SUFFIXES:
        raise Failure(400, f"Invalid request: file format {suffix or 'without a suffix'} not supported")
    source, target = _string(given, "source").lower(), _string(given, "target").lower()
    content = await file.read()
    if source == "auto":
        source = _detect(service, content[:10_000].decode("utf-8", "ignore"), target).language
    worker = _worker(service, source, target)
    if worker is None:
        raise Failure(400, f"{source}: is the target too; give two languages")
    spend(request, caller, worker, len(content))
    with tempfile.TemporaryDirectory(prefix="dragoman-") as folder:
        place, output = Path(folder) / f"input{suffix}", Path(folder) / f"output{suffix}"
        place.write_bytes(content)
        payload = {"input": str(place), "output": str(output), "format": SUFFIXES[suffix]}
        try:
            await service.ask(request, worker, "document", payload, service.settings.file_seconds)
        except DragomanError as error:
            raise Failure(400, str(error).replace(str(place), place.name).replace(place.name, file.filename)) from None
        name = service.files.add(output, f".{target}{suffix}")
    return {"translatedFileUrl": str(request.url_for("download_file", name=name))}


@router.get("/download_file/{name}")
async def download_file(request: Request, name: str) -> FileResponse:
    """A translated document. Its name cannot be guessed."""
    path = service_of(request).files.find(name)
    if path is None:
        raise Failure(404, "there is no such file; translated documents are kept for a limited time")
    return FileResponse(path, headers={"Content-Disposition": "attachment"})  # a link's `download` names it
