"""The service on Ray Serve: every replica is a whole service with workers of its own, run and checked by Ray.

    serve run dragoman.serve.on_ray:application settings=serve.toml replicas=2 cpus=4

Ray's proxies take the place of server.py. Knows nothing of translation.
"""

import asyncio
import logging
import math
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman.bundle import resolve_model
from dragoman.serve.app import create_app
from dragoman.serve.guard import JsonLines
from dragoman.serve.service import Service
from dragoman.serve.settings import (
    KeySettings,
    ModelSettings,
    ServeSettings,
    SettingsFile,
    bundled_settings,
    read_settings,
)

LOADING_SECONDS = 600.0  # that a worker may take to start again
LAST_SECONDS = 10.0  # beyond drain_seconds, before Ray kills a replica
FETCH_SECONDS = 20.0  # that the other replicas have to send a file
MOST_FETCHES = 4  # at a time: each asks every replica
DOWNLOAD = re.compile(r"/download_file/([\w-]{22}\.[\w.-]{1,40})", re.ASCII)  # as TranslatedFiles names them
log = logging.getLogger("dragoman.serve")


class Arguments(BaseModel):
    """Of `serve run`, and under `args` in a Serve config file."""

    model_config = ConfigDict(extra="forbid")
    settings: str = ""  # a file as of `dragoman serve --settings`; empty: the bundled models
    replicas: int = Field(default=1, ge=1)
    cpus: int = Field(default=1, ge=1)  # of a replica: cores that Ray reserves for it, and threads that search
    gpus: float = Field(default=0, ge=0)


def application(arguments: Arguments) -> serve.Application:
    found = read_settings(Path(arguments.settings)) if arguments.settings else SettingsFile({}, [], [])
    settings = _located(ServeSettings(**found.serve))
    models = [_placed(model, arguments.cpus) for model in found.models or bundled_settings()]
    deployment = serve.deployment(
        name="dragoman",
        num_replicas=arguments.replicas,
        ray_actor_options={"num_cpus": arguments.cpus, "num_gpus": arguments.gpus},
        # Beyond `queue` a replica answers 503 itself. The rest is for what needs no place in it, such as the page.
        max_ongoing_requests=2 * settings.queue,
        max_queued_requests=settings.queue,
        graceful_shutdown_timeout_s=settings.drain_seconds + LAST_SECONDS,
        logging_config={"enable_access_log": False},  # Replica logs requests
    )
    return deployment(serve.ingress()(Replica)).bind(settings, models, found.keys)


def _located(settings: ServeSettings) -> ServeSettings:
    """The same for a process with another working directory."""
    return (
        replace(settings, suggestions=str(Path(settings.suggestions).absolute())) if settings.suggestions else settings
    )


def _placed(model: ModelSettings, cpus: int) -> ModelSettings:
    """The same for a process with another working directory, and with the cores that it gets."""
    place, threads = Path(model.model), model.threads or cpus
    is_here = place.is_dir() and resolve_model(place) == place  # not a bundled one
    return replace(model, model=str(place.absolute()) if is_here else model.model, threads=threads)


class Replica:
    """Ready when all models are loaded."""

    def __init__(self, settings: ServeSettings, models: Sequence[ModelSettings], keys: Sequence[KeySettings]) -> None:
        _log_to_stderr()
        self.service = Service(settings, models, keys)
        self._last_ready = math.inf  # until the first check

    async def __serve_build_asgi_app__(self) -> FastAPI:
        try:
            await self.service.start()
        except BaseException:
            self.service.stop()
            raise
        app = create_app(self.service)
        app.add_middleware(_Downloads, service=self.service)
        return app

    async def check_health(self) -> None:
        """Fail if a worker cannot be started again; one that is loading its model has time. Ray then replaces this."""
        now = asyncio.get_running_loop().time()
        if self.service.is_ready:
            self._last_ready = now
        for worker in self.service.workers:
            if worker.failure and not worker.is_ready:
                raise RuntimeError(f"{worker.settings.name}: the worker does not start ({worker.failure})")
        if now - self._last_ready > LOADING_SECONDS:
            raise RuntimeError(f"no worker for {LOADING_SECONDS:g} s")

    async def send_file(self, name: str) -> tuple[bytes, float] | None:
        """A translated document for another replica, and the seconds that it is still kept."""
        path = self.service.files.find(name)
        if path is None:
            return None
        return await asyncio.to_thread(path.read_bytes), self.service.files.seconds_left(name)

    def __del__(self) -> None:
        """Ray calls this when the last request is answered."""
        self.service.stop()


class _Downloads:
    """Fetches a translated document from the replica that has it, before the application looks for it here."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._files = app, service.files
        self._fetching = asyncio.Semaphore(MOST_FETCHES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (match := DOWNLOAD.fullmatch(scope["path"])):
            name = match[1]
            if self._files.find(name) is None:
                async with self._fetching:
                    await self._fetch(name)
        await self._app(scope, receive, send)

    async def _fetch(self, name: str) -> None:
        own = serve.get_replica_context()
        try:
            others = serve.get_deployment_handle(own.deployment, own.app_name)
            answers = await others.broadcast("send_file", name).results_async(
                timeout_s=FETCH_SECONDS, return_exceptions=True
            )
        except Exception as error:  # then it is not found
            log.warning("replicas not asked for a file", extra={"reason": type(error).__name__})
            return
        for content, seconds in (answer for answer in answers if isinstance(answer, tuple)):
            with tempfile.TemporaryDirectory(prefix="dragoman-") as folder:
                path = Path(folder) / "file"
                await asyncio.to_thread(path.write_bytes, content)
                self._files.keep(name, path, seconds)
            return


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
