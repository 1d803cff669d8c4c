"""The application: its routes, and errors as JSON. Started by server.py."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from dragoman.errors import ConfigError, DataError
from dragoman.inspect.page import hashes
from dragoman.serve import libre, v1
from dragoman.serve.guard import SECURITY, Guard
from dragoman.serve.requests import identify, service_of
from dragoman.serve.service import Failure, HungUp, Service

WEB = Path(__file__).parent / "web"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}


def create_app(service: Service) -> FastAPI:
    app = FastAPI(
        title="dragoman",
        version=import_module("dragoman").__version__,  # the package itself imports every layer
        description="Translation: LibreTranslate's API, and everything else under /v1.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    app.include_router(libre.router)
    app.include_router(v1.router)
    _add_operation(app)
    _add_page(app)
    _add_errors(app)
    if service.settings.cors:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(service.settings.cors), allow_methods=["*"], allow_headers=["*"]
        )
    app.add_middleware(Guard, service=service)  # the outermost
    return app


def _add_operation(app: FastAPI) -> None:
    @app.head("/health", include_in_schema=False)
    @app.get("/health", tags=["operation"])
    async def health() -> dict[str, str]:
        """Whether the process is alive."""
        return {"status": "ok"}

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", tags=["operation"])
    async def ready(request: Request) -> Response:
        """Whether it can translate: all models are loaded, and it is not about to end."""
        service = service_of(request)
        status = "ready" if service.is_ready else "draining" if service.is_draining else "loading"
        return JSONResponse({"status": status}, 200 if service.is_ready else 503)

    @app.get("/metrics", tags=["operation"])
    async def metrics(request: Request) -> Response:
        """For Prometheus."""
        service = service_of(request)
        identify(request, None)
        await service.measure()
        return Response(service.metrics.render(), media_type=service.metrics.content_type)

    @app.get("/spec", tags=["operation"])
    async def spec(request: Request) -> dict[str, Any]:
        """This description, as OpenAPI."""
        identify(request, request.query_params.get("api_key"))
        return app.openapi()


def _add_page(app: FastAPI) -> None:
    files = {path.name: path for path in WEB.iterdir() if path.suffix in TYPES}  # no other name is ever opened

    index_policy = {"Content-Security-Policy": _index_policy()}

    def answer(name: str, headers: Mapping[str, str] = {}) -> Response:
        path = files[name]
        return FileResponse(path, media_type=TYPES[path.suffix], headers={"Cache-Control": "no-cache", **headers})

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return answer("index.html", index_policy)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return answer("docs.html")

    @app.get("/web/{name}", include_in_schema=False)
    async def web(name: str) -> Response:
        if name not in files:
            raise Failure(404, "there is no such file")
        return answer(name)


def _index_policy() -> str:
    """That of every answer, and the inspector: its page is shown in a frame without an origin, which inherits this."""
    policy = SECURITY["content-security-policy"]
    for directive, known in zip(("script-src", "style-src"), hashes(), strict=True):
        policy = policy.replace(f"{directive} 'self'", f"{directive} 'self' '{known}'")
    return policy


def _add_errors(app: FastAPI) -> None:
    def failed(status: int, message: str, retry_seconds: int | None = None) -> Response:
        headers = {} if retry_seconds is None else {"Retry-After": str(retry_seconds)}
        return JSONResponse({"error": message}, status, headers)

    @app.exception_handler(Failure)
    async def failure(_: Request, error: Failure) -> Response:
        return failed(error.status, error.message, error.retry_seconds)

    @app.exception_handler(HungUp)
    async def hung_up(_: Request, __: HungUp) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        key = error.body.get("api_key") if isinstance(error.body, dict) else None
        try:
            identify(request, key if isinstance(key, str) else None)  # strangers learn nothing else
        except Failure as refused:
            return failed(refused.status, refused.message)
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return failed(400, f"the body: is not valid JSON at character {first['loc'][-1]}")
        # without the types of a union; the client may have chosen the name, of any length
        parts = [str(part)[:100] for part in first["loc"][1:] if part != "str" and not str(part).startswith("list[")]
        return failed(400, f"{'.'.join(parts) or 'the body'}: {first['msg'][:1].lower()}{first['msg'][1:]}")

    @app.exception_handler(ConfigError)
    @app.exception_handler(DataError)
    async def refused(_: Request, error: Exception) -> Response:
        message = str(error)
        return failed(400, "options" + message.removeprefix("decode") if message.startswith("decode.") else message)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        if error.status_code == 400:  # of FastAPI, which cannot parse it
            try:
                identify(request, None)
            except Failure as refused:
                return failed(refused.status, refused.message)
            return failed(400, "the body: is not valid JSON, or is nested too deeply")
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)
