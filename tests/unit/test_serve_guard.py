"""A request for which there is no room is refused before it is parsed, unless the answer depends on what it says."""

import asyncio
from typing import Any

import httpx
import pytest

from dragoman.serve.app import create_app
from dragoman.serve.service import NO_ROOM, Failure, Service
from dragoman.serve.settings import KeySettings, ModelSettings, ServeSettings

KEY = "a-key-of-sixteen-letters"


def full(keys: list[KeySettings] | None = None, **settings: Any) -> Service:
    """A service that is busy; no worker is started."""
    service = Service(ServeSettings(queue=2, **settings), [ModelSettings("en-de")], keys or [])
    service._under_way = 2
    service.files.close()  # nothing is kept
    return service


def ask(service: Service, method: str, path: str, **request: Any) -> httpx.Response:
    async def answer() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **request)

    return asyncio.run(answer())


def count(service: Service, name: str) -> int:
    lines = service.metrics.render().decode().splitlines()
    return next((int(float(line.split()[-1])) for line in lines if line.startswith(name)), 0)


def test_a_request_without_room_is_refused_before_it_is_parsed() -> None:
    service = full()
    for number, path in enumerate(("/translate", "/v1/translate"), start=1):
        answer = ask(service, "POST", path, content=b"{not JSON")
        assert (answer.status_code, answer.json()) == (503, {"error": NO_ROOM})
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "connection" not in answer.headers, "the client may go on with it"
        assert count(service, 'dragoman_refused_total{reason="queue"}') == number
        assert count(service, f'dragoman_requests_total{{route="{path}",status="503"}}') == 1
    service._under_way = 1
    assert ask(service, "POST", "/translate", content=b"{not JSON").status_code == 400, "the control: there is room"


def test_what_is_done_and_what_is_refused_are_counted() -> None:
    service = full()
    service._under_way = 1
    with service._room(), pytest.raises(Failure, match=NO_ROOM) as refused, service._room():
        pass
    assert refused.value.retry_seconds == 1
    assert (service.backoff._refused, service.backoff._done) == (1, 1)


def test_what_needs_no_room_is_answered() -> None:
    assert ask(full(), "GET", "/health").status_code == 200
    assert ask(full(), "GET", "/translate").status_code == 405


def test_strangers_learn_nothing_of_the_room() -> None:
    request = {"q": "a", "source": "en", "target": "de", "api_key": "wrong"}
    assert ask(full([KeySettings(KEY, "one")]), "POST", "/translate", json=request).status_code == 401
    assert ask(full(), "POST", "/translate", json=request).status_code == 503, "the control"


def test_a_page_of_another_origin_may_read_the_refusal() -> None:
    """It goes through the layer that allows origins."""
    origin = {"Origin": "https://example.org"}
    service = full(cors=("https://example.org",))
    answer = ask(service, "POST", "/translate", content=b"{not JSON", headers=origin)
    assert answer.headers["access-control-allow-origin"] == "https://example.org"
    assert "access-control-allow-origin" not in ask(full(), "POST", "/translate", headers=origin).headers
