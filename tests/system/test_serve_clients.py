"""LibreTranslate's clients, written by others, against our service: all they offer, and all they may send.

The client of npm needs `make node`; it is skipped where that is missing.
"""

import asyncio
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from deep_translator import LibreTranslator
from deep_translator.exceptions import ServerException
from libretranslate_aio import (
    AsyncLibreTranslate,
    BadRequestError,
    LibreTranslate,
    LibreTranslateError,
    RateLimitError,
)
from libretranslatepy import LibreTranslateAPI

from tests.serving import RunningService, running

KEY, LIMITED_KEY = "a-key-of-the-test-0123456789", "a-limited-key-0123456789abcd"
KEYS = (
    f'[[keys]]\nkey = "{KEY}"\nname = "ann"\n[[keys]]\nkey = "{LIMITED_KEY}"\nname = "bob"\nrequests_per_minute = 1\n'
)
ENGLISH, GERMAN = "The house is old.", "Das Haus ist alt."
LANGUAGES = [
    {"code": "de", "name": "German", "targets": ["de"]},
    {"code": "en", "name": "English", "targets": ["de", "en"]},
]
NODE = Path(__file__).parents[2] / ".venv" / "node"
HAS_NODE = shutil.which("node") is not None and (NODE / "node_modules" / "translate").is_dir()


@pytest.fixture(scope="module")
def suggestions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("suggestions") / "suggestions.jsonl"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, suggestions: Path) -> Iterator[RunningService]:
    """For those who have a key."""
    settings = f'max_characters = 500\nmax_file = 20_000\nmax_kept = 3_000\nsuggestions = "{suggestions}"\n'
    with running(tmp_path_factory.mktemp("keyed"), settings + KEYS) as service:
        service.client.headers["x-api-key"] = KEY
        yield service


# libretranslatepy


def test_libretranslatepy(service: RunningService) -> None:
    for client in (LibreTranslateAPI(service.url, KEY), LibreTranslateAPI(service.url + "/", KEY)):
        assert client.translate(ENGLISH, "en", "de", timeout=60) == GERMAN
        assert client.detect("Where is the railway station?", timeout=60)[0]["language"] == "en"
        assert client.detect("Wo ist hier der Bahnhof?", timeout=60)[0]["language"] == "de"
        assert client.languages(timeout=60) == LANGUAGES
    for key in (None, "a-wrong-key-0123456789"):
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            LibreTranslateAPI(service.url, key).translate(ENGLISH, "en", "de", timeout=60)
        refused.value.close()


# libretranslate-aio


def test_libretranslate_aio(service: RunningService, suggestions: Path, tmp_path: Path) -> None:
    with LibreTranslate(service.url, api_key=KEY) as client:
        found = client.translate(ENGLISH, "en", "de")
        assert (found.translated_text, found.detected_language, found.alternatives) == (GERMAN, None, None)
        found = client.translate([ENGLISH, "Good morning!"], "en", "de", alternatives=2)
        assert found.translated_text == [GERMAN, "Guten Morgen!"]
        assert [len(others) for others in found.alternatives or []] == [2, 2]
        found = client.translate("Where is the railway station?", "auto", "de", format="text")
        assert isinstance(found.translated_text, str)
        assert found.detected_language is not None
        assert not isinstance(found.detected_language, list)
        assert found.detected_language.language == "en"
        assert 50 < found.detected_language.confidence <= 100
        assert client.translate(f"<p>{ENGLISH}</p>", "en", "de", format="html").translated_text == f"<p>{GERMAN}</p>"
        assert client.detect(ENGLISH)[0].language == "en"
        with pytest.raises(LibreTranslateError) as refused:
            client.languages()  # it does not send its key; a key in a header is one way out
        assert refused.value.status_code == 401
        assert client.health()
        settings = client.frontend_settings()
        assert (settings.char_limit, settings.key_required, settings.suggestions) == (500, True, True)
        assert (settings.language.source.code, settings.language.target.name) == ("en", "German")
        assert {".txt", ".html", ".docx"} <= set(settings.supported_files_format)
        assert client.suggest(ENGLISH, "Alt ist das Haus.", "en", "de")
        suggested = [json.loads(line) for line in suggestions.read_text(encoding="utf-8").splitlines()]
        assert suggested[-1] == {"q": ENGLISH, "s": "Alt ist das Haus.", "source": "en", "target": "de"}
        page = tmp_path / "page.html"
        page.write_text(f"<p>{ENGLISH}</p>")
        url = client.translate_file(page, "en", "de").translated_file_url
        with urllib.request.urlopen(url) as answer:
            assert answer.read().decode() == f"<p>{GERMAN}</p>"
            assert "attachment" in answer.headers["content-disposition"]
    with httpx.Client(base_url=service.url, headers={"x-api-key": KEY}) as http:
        client = LibreTranslate(client=http)
        assert [(each.code, each.name, each.targets) for each in client.languages()] == [
            ("de", "German", ["de"]), ("en", "English", ["de", "en"]),
        ]  # fmt: skip
        for wrong in ("xx", ""):
            with pytest.raises(BadRequestError):
                client.translate(ENGLISH, "en", wrong)


def test_libretranslate_aio_with_other_keys(service: RunningService) -> None:
    async def ask() -> tuple[Any, ...]:
        async with AsyncLibreTranslate(service.url, api_key=KEY) as client:
            translation, detections = await asyncio.gather(
                client.translate(ENGLISH, "en", "de"), client.detect(ENGLISH)
            )
            return translation.translated_text, detections[0].language, await client.health()

    assert asyncio.run(ask()) == (GERMAN, "en", True)
    with LibreTranslate(service.url, api_key=LIMITED_KEY) as client:
        assert client.translate(ENGLISH, "en", "de").translated_text == GERMAN
        with pytest.raises(RateLimitError):
            client.translate(ENGLISH, "en", "de")
    with LibreTranslate(service.url, api_key="a-wrong-key-0123456789") as client:
        with pytest.raises(LibreTranslateError) as refused:
            client.translate(ENGLISH, "en", "de")
        assert refused.value.status_code == 401


# deep-translator, which sends everything in the query


def test_deep_translator(service: RunningService, tmp_path: Path) -> None:
    client = LibreTranslator("en", "de", api_key=KEY, custom_url=service.url + "/")
    assert client.translate(ENGLISH) == GERMAN
    assert client.translate_batch([ENGLISH, "Good morning!"]) == [GERMAN, "Guten Morgen!"]
    (tmp_path / "a.txt").write_text(ENGLISH)
    assert client.translate_file(str(tmp_path / "a.txt")) == GERMAN
    assert LibreTranslator("auto", "German", api_key=KEY, custom_url=service.url + "/").translate(ENGLISH) == GERMAN
    with pytest.raises(ServerException):
        LibreTranslator("en", "de", api_key="wrong", custom_url=service.url + "/").translate(ENGLISH)


# translate, of npm

PROGRAM = """
import translate from "translate";
const [url, key, ...texts] = process.argv.slice(2);
Object.assign(translate, { engine: "libre", url: url + "/translate", key, from: "en", to: "de" });
const found = [];
for (const text of texts) found.push(await translate(text).catch((error) => `error: ${error.message ?? error}`));
console.log(JSON.stringify(found));
"""


@pytest.mark.skipif(not HAS_NODE, reason="npm's translate is not here: make node")
def test_translate_of_npm(service: RunningService) -> None:
    program = NODE / "client.mjs"  # beside node_modules, where Node looks for packages
    program.write_text(PROGRAM)

    def run(key: str) -> Any:
        command = ["node", str(program), service.url, key, ENGLISH, "Good morning!"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
        return json.loads(done.stdout)

    assert run(KEY) == [GERMAN, "Guten Morgen!"]
    assert run("a-wrong-key")[0].startswith("error: ")


# What any client may send


@pytest.mark.parametrize("way", ["json", "data", "params", "files"])
def test_parameters_come_as_json_form_query_or_multipart(service: RunningService, way: str) -> None:
    given: dict[str, Any] = {"q": ENGLISH, "source": "EN", "target": "De", "format": "text", "alternatives": 1}
    if way == "files":
        given = {name: (None, str(value)) for name, value in given.items()}
    answer = service.client.post("/translate", **{way: given})  # type: ignore[arg-type]
    assert answer.status_code == 200
    assert answer.json()["translatedText"] == GERMAN
    assert len(answer.json()["alternatives"]) == 1
    mixed = service.client.post(
        "/translate", params={"source": "en", "target": "xx"}, json={"q": ENGLISH, "target": "de"}
    )
    assert mixed.json() == {"translatedText": GERMAN}, "the body comes before the query"


def test_lists_have_lists_as_answers(service: RunningService) -> None:
    one = service.post("/translate", {"q": [ENGLISH], "target": "de"}).json()
    assert one["translatedText"] == [GERMAN]
    assert [each["language"] for each in one["detectedLanguage"]] == ["en"]
    both = {"q": [ENGLISH, "Wo ist hier der Bahnhof?"], "source": "auto", "target": "de", "alternatives": 1}
    found = service.post("/translate", both).json()
    assert found["translatedText"] == [GERMAN, "Wo ist hier der Bahnhof?"], "German is not translated to German"
    assert [each["language"] for each in found["detectedLanguage"]] == ["en", "de"]
    assert [len(others) for others in found["alternatives"]] == [1, 0]


def test_texts_of_many_lines_keep_them(service: RunningService) -> None:
    text = f"{ENGLISH}\n\nGood morning!\n"
    answer = service.post("/translate", {"q": text, "source": "en", "target": "de"})
    assert answer.json() == {"translatedText": f"{GERMAN}\n\nGuten Morgen!\n"}


def test_html_keeps_its_markup(service: RunningService) -> None:
    page = f"<h1 class='a'>{ENGLISH}</h1><script>old()</script><p title='Good morning!'>Good <b>morning!</b></p>"
    found = service.post("/translate", {"q": page, "source": "en", "target": "de", "format": "html"}).json()
    assert f"<h1 class='a'>{GERMAN}</h1><script>old()</script>" in found["translatedText"]
    assert found["translatedText"].count("<b>") == 1


ERRORS: list[tuple[str, dict[str, Any], int, str]] = [
    ("/translate", {"source": "en", "target": "de"}, 400, "Invalid request: missing q parameter"),
    ("/translate", {"q": "", "source": "en", "target": "de"}, 400, "Invalid request: missing q parameter"),
    ("/translate", {"q": [], "source": "en", "target": "de"}, 400, "Invalid request: missing q parameter"),
    ("/translate", {"q": "a", "source": "en"}, 400, "Invalid request: missing target parameter"),
    ("/translate", {"q": "a", "source": "en", "target": "xx"}, 400, "xx is not supported"),
    ("/translate", {"q": "a", "source": "xx", "target": "de"}, 400, "xx is not supported"),
    ("/translate", {"q": "a", "source": "en", "target": "de", "format": "xml"}, 400, "xml format is not supported"),
    (
        "/translate",
        {"q": "a", "source": "de", "target": "en"},
        400,
        "English (en) is not available as a target language from German (de)",
    ),
    (
        "/translate",
        {"q": "a" * 501, "source": "en", "target": "de"},
        400,
        "q: has 501 characters, at most 500 are possible; send less",
    ),
    ("/detect", {}, 400, "Invalid request: missing q parameter"),
    ("/suggest", {"q": "a", "source": "en", "target": "de"}, 400, "Invalid request: missing s parameter"),
    ("/translate_file", {"source": "en", "target": "de"}, 400, "Invalid request: missing file parameter"),
]


@pytest.mark.parametrize(("route", "content", "status", "message"), ERRORS, ids=range(len(ERRORS)))
def test_errors_have_a_status_and_a_message(
    service: RunningService, route: str, content: dict[str, Any], status: int, message: str
) -> None:
    for answer in (service.post(route, content), service.client.post(route, data=content)):
        assert (answer.status_code, answer.json()) == (status, {"error": message})


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "application/x-www-form-urlencoded; charset=utf-8"]
)
def test_a_form_may_have_letters_as_they_are(service: RunningService, kind: str) -> None:
    """As curl sends them."""

    def form(body: bytes) -> Any:
        return service.client.post("/translate", content=body, headers={"content-type": kind})

    text = "The café is “old”."
    asked = service.client.post("/translate", json={"q": text, "source": "en", "target": "de"}).json()
    assert form(f"q={text}&source=en&target=de".encode()).json() == asked
    assert form(b"q=The+caf%C3%A9+is+%E2%80%9Cold%E2%80%9D.&source=en&target=de").json() == asked
    assert "Ã" not in asked["translatedText"]
    answer = form(f"q={text}&source=en&target=de".encode("cp1252"))
    assert (answer.status_code, answer.json()) == (400, {"error": "the form cannot be read: it is not valid UTF-8"})


@pytest.mark.parametrize("word", ["One.", "OK", "Stop!", "No."])
def test_a_word_of_no_certain_language_is_translated(service: RunningService, word: str) -> None:
    answer = service.client.post("/translate", json={"q": word, "source": "auto", "target": "de"}).json()
    assert answer["detectedLanguage"]["language"] == "en"
    for german in ("Das Haus ist alt und groß.", "Danke", "Haus"):
        sure = service.client.post("/translate", json={"q": german, "source": "auto", "target": "de"}).json()
        assert (sure["detectedLanguage"]["language"], sure["translatedText"]) == ("de", german), "the control"


def send_file(service: RunningService, name: str, content: bytes, **more: str) -> Any:
    return service.client.post(
        "/translate_file", data={"source": "en", "target": "de", **more}, files={"file": (name, content)}
    )


def test_documents_are_translated_and_kept_as_long_as_there_is_room(service: RunningService) -> None:
    first = send_file(service, "a.txt", b"Good morning!\n" * 40)
    url = first.json()["translatedFileUrl"]
    assert url.startswith(f"{service.url}/download_file/")
    assert url.endswith(".de.txt")
    answer = service.client.get(url)
    assert answer.text == "Guten Morgen!\n" * 40
    assert answer.headers["content-disposition"] == "attachment", "the name of a page's link counts"
    auto = send_file(service, "b.md", b"# Good morning!\n", source="auto").json()["translatedFileUrl"]
    assert service.client.get(auto).text == "# Guten Morgen!\n"
    for _ in range(5):  # 560 bytes each; 3,000 are kept
        last = send_file(service, "a.txt", b"Good morning!\n" * 40).json()["translatedFileUrl"]
    assert service.client.get(url).status_code == 404
    assert service.client.get(last).status_code == 200, "the control: the latest is there"


def test_documents_that_cannot_be_translated_are_named(service: RunningService) -> None:
    for name, content, message in [
        ("letter.docx", b"\0\xff", "letter.docx: is not a ZIP archive"),
        ("notes.txt", b"\xff", "notes.txt: invalid UTF-8 at byte 0"),
        ("program.exe", b"a", "Invalid request: file format .exe not supported"),
        ("nothing", b"a", "Invalid request: file format without a suffix not supported"),
    ]:
        answer = send_file(service, name, content)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(message)
    assert send_file(service, "a.txt", b"a" * 30_000).status_code == 413
