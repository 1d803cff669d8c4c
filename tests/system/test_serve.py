"""The routes under /v1, and the operation of the service: what it answers is what the library answers."""

import json
import random
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.bundle import resolve_model
from dragoman.decode.translator import Translator
from tests.serving import LINES, RunningService, running, wait_until

HOUSE = "The house is old."
MIXED = [
    HOUSE,
    "",
    "   ",
    "I have two cats and a dog. They sleep all day. Why?",
    "Hello {name}, you have {count} new messages.",
    "Write to me@example.org or see https://example.org/a?b=c.",
    "Click <b>here</b> to open it.",
    "It costs 1,234.50 € — or does it?",
    "日本語 and 😀",
    "word " * 300,
    *LINES[:10],
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A link to a model, which can be set to another one at once."""
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(resolve_model("en-de"), folder / "first")
    (folder / "house").symlink_to(folder / "first")
    return folder / "house"


@pytest.fixture(scope="module")
def service(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    settings = f'watch_seconds = 0.1\n[[models]]\nmodel = "{model}"\n'
    with running(tmp_path_factory.mktemp("serve"), settings) as service:
        yield service


@pytest.fixture(scope="module")
def translator() -> Translator:
    return dragoman.load("en-de", "cpu")


def records(answer: Any) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["model"], found["source"], found["target"]) == ("house", "en", "de")
    translations: list[dict[str, Any]] = found["translations"]
    return translations


WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # a request, and the same in Python
    "plain": ({}, {}),
    "greedy": ({"options": {"beam": 1}}, {"beam": 1}),
    "n-best": ({"n_best": 3}, {"n_best": 3, "beam": 4}),
    "confidence": ({"confidence": True}, {"confidence": True}),
    "token scores": ({"token_scores": True}, {"token_scores": True}),
    "unprotected": ({"options": {"protect": []}}, {"protect": []}),
    "banned": ({"options": {"banned": ["Haus"]}}, {"banned": ["Haus"]}),
    "glossary": ({"glossary": [{"source": "house", "target": "Gebäude"}]}, {"glossary": [("house", "Gebäude")]}),
    "diverse": (
        {"n_best": 2, "options": {"beam": 4, "diversity_groups": 2}},
        {"n_best": 2, "beam": 4, "diversity_groups": 2},
    ),
    "search": (
        {"options": {"length_penalty": 1.0, "max_extra": 10, "no_repeat_ngram": 3, "split": "long"}},
        {"length_penalty": 1.0, "max_extra": 10, "no_repeat_ngram": 3, "split": "long"},
    ),
}  # fmt: skip


QUICK = ("plain", "n-best", "confidence", "glossary")


@pytest.mark.parametrize("way", [pytest.param(way, marks=() if way in QUICK else pytest.mark.slow) for way in WAYS])
def test_an_answer_is_what_the_library_finds(service: RunningService, translator: Translator, way: str) -> None:
    request, options = WAYS[way]
    texts = [HOUSE, "", "I have two cats and a dog.", "Hello {name}!"]
    expected = json.loads(json.dumps([each.to_dict() for each in translator.translate(texts, **options)]))
    assert records(service.translate(texts, **request)) == expected
    if way not in ("plain", "greedy", "unprotected", "search"):
        assert records(service.translate(texts)) != expected, "the control: it matters"


def test_one_text_or_several(service: RunningService) -> None:
    (one,) = records(service.translate(HOUSE))
    assert (one["translation"], one["status"]) == ("Das Haus ist alt.", "translated")
    assert records(service.translate([HOUSE])) == [one]
    assert records(service.translate(HOUSE, source="en", target="de", model="house")) == [one]
    assert records(service.translate(HOUSE, source="EN", target="DE")) == [one]
    assert records(service.translate(HOUSE, source="auto")) == [one]
    assert service.translate("One.", source="auto", target="de").status_code == 200, "of no certain language"
    for wrong in ({"source": "fr"}, {"target": "fr"}, {"source": "de", "target": "en"}):
        answer = service.translate(HOUSE, **wrong)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("source, target: no model translates ")


def test_a_prefix_begins_the_translation(service: RunningService, translator: Translator) -> None:
    (found,) = records(service.translate(HOUSE, prefix="Dieses"))
    assert found["translation"].startswith("Dieses ")
    both = records(service.translate([HOUSE, HOUSE], prefix=["Alt", ""]))
    assert both[0]["translation"].startswith("Alt ")
    assert both[1] == records(service.translate(HOUSE))[0]


def test_alignment_tells_which_characters_belong_together(service: RunningService) -> None:
    for text in (HOUSE, MIXED[3], "日本語 and 😀 houses"):
        (found,) = records(service.translate(text, alignment=True))
        spans = found["alignment"]
        assert spans
        for start, end, other_start, other_end in spans:
            assert 0 <= start < end <= len(text)
            assert 0 <= other_start < other_end <= len(found["translation"])
    (found,) = records(service.translate(HOUSE, alignment=True))
    pairs = {
        (HOUSE[start:end].strip(" ."), found["translation"][other_start:other_end].strip(" ."))
        for start, end, other_start, other_end in found["alignment"]
    }
    assert {("house", "Haus"), ("old", "alt")} <= pairs
    words = [match.span() for match in re.finditer(r"\w+", HOUSE)]
    covered = [any(start <= first and last <= end for start, end, *_ in found["alignment"]) for first, last in words]
    assert all(covered), "no word is cut in two"


@pytest.mark.slow
def test_a_text_that_is_too_long_has_no_alignment(service: RunningService) -> None:
    both = records(service.translate(["house " * 1_500, HOUSE], alignment=True, options={"beam": 1}))
    assert [bool(each["alignment"]) for each in both] == [False, True]


def test_attention_comes_with_its_tokens(service: RunningService) -> None:
    (found,) = records(service.translate(HOUSE, attention=True))
    assert "".join(found["source_tokens"]).replace("▁", " ").strip().startswith(HOUSE[:-1])
    assert "".join(found["tokens"]).replace("▁", " ").strip().startswith("Das Haus ist alt")
    assert found["alignment"]
    (both,) = records(service.translate(HOUSE, attention=True, alignment=True))
    assert both["source_tokens"] == found["source_tokens"]
    assert all(len(link) == 4 for link in both["alignment"])


def events(answer: Any) -> list[tuple[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = [block.splitlines() for block in answer.text.split("\n\n") if block]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


@pytest.mark.parametrize("text", [HOUSE, MIXED[3], MIXED[4], "", f"{HOUSE}\n\n{MIXED[3]}", "a\0b"])
def test_the_parts_of_a_stream_are_the_translation(service: RunningService, text: str) -> None:
    found = events(service.translate(text, stream=True))
    assert [name for name, _ in found] == ["part"] * (len(found) - 1) + ["result"]
    plain = [records(service.translate(line))[0] for line in text.split("\n")]
    assert "".join(part for _, part in found[:-1]) == "\n".join(each["translation"] for each in plain)
    assert found[-1][1]["translations"] == plain
    if text == MIXED[3]:
        assert len(found) >= 4, "the control: it comes in parts"


def test_a_stream_may_have_an_alignment_and_a_glossary(service: RunningService) -> None:
    plain = records(service.translate(HOUSE, alignment=True))
    assert events(service.translate(HOUSE, alignment=True, stream=True))[-1][1]["translations"] == plain
    terms = [{"source": "house", "target": "Gebäude"}]
    assert (
        "Gebäude"
        in events(service.translate(HOUSE, glossary=terms, stream=True))[-1][1]["translations"][0]["translation"]
    )


def test_a_stream_that_cannot_begin_has_a_status(service: RunningService) -> None:
    late = service.translate(" ".join(LINES[:50]), stream=True, seconds=0.001)
    assert late.status_code == 504
    wrong = service.translate(HOUSE, stream=True, options={"banned": [" "]})
    assert (wrong.status_code, wrong.json()) == (400, {"error": "options.banned: a word is blank; leave it out"})


def test_a_stream_that_is_overdue_ends_with_an_error(service: RunningService) -> None:
    found = events(service.translate(" ".join(LINES[:100]), stream=True, seconds=0.5))
    assert [name for name, _ in found[:-1]] == ["part"] * (len(found) - 1)
    assert found[-1][0] == "error"
    assert found[-1][1]["error"].startswith("the deadline passed")


def test_scores_are_those_of_the_library(service: RunningService, translator: Translator) -> None:
    sources, targets = [HOUSE, HOUSE, LINES[0]], ["Das Haus ist alt.", "Die Katze schläft.", ""]
    answer = service.post("/v1/score", {"sources": sources, "targets": targets})
    assert answer.json()["scores"] == pytest.approx(translator.score(sources, targets), abs=1e-3)
    assert answer.json()["scores"][0] > answer.json()["scores"][1] + 5
    uneven = service.post("/v1/score", {"sources": sources, "targets": targets[:1]})
    assert (uneven.status_code, uneven.json()) == (
        400, {"error": "sources, targets: 3 sources and 1 targets; give one target per source"},
    )  # fmt: skip


def test_the_page_of_inspect(service: RunningService) -> None:
    answer = service.post("/v1/inspect", {"text": HOUSE})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.text.startswith("<!doctype html>")
    assert "house" in answer.text
    blank = service.post("/v1/inspect", {"text": " "})
    assert (blank.status_code, blank.json()) == (400, {"error": "inspect: the text is blank; give a sentence"})


def test_a_text_of_several_lines_has_a_record_for_each(service: RunningService) -> None:
    found = records(service.translate(f"{HOUSE}\n\n  {HOUSE}"))
    assert [each["translation"] for each in found] == ["Das Haus ist alt.", "", "  Das Haus ist alt."]
    assert [each["source"] for each in found] == [HOUSE, "", f"  {HOUSE}"]
    assert [each["translation"] for each in records(service.translate(f"{HOUSE}\n"))] == ["Das Haus ist alt."]
    assert [each["translation"] for each in records(service.translate([f"{HOUSE}\n"] * 2))] == ["Das Haus ist alt."] * 2
    message = "prefix: is for one line, and text has several; send them as a list, with a prefix for each"
    answer = service.post("/v1/translate", {"text": f"{HOUSE}\n{HOUSE}", "prefix": "Das"})
    assert (answer.status_code, answer.json()) == (400, {"error": message})
    message = "text: has 257 texts, at most 256 are possible; send fewer"
    answer = service.post("/v1/translate", {"text": ["x"] * 257})
    assert (answer.status_code, answer.json()) == (400, {"error": message})
    assert len(records(service.translate("\n" * 257 + HOUSE))) == 258, "the control: one text"


def test_models_languages_and_the_description(service: RunningService, translator: Translator) -> None:
    (found,) = service.client.get("/v1/models").json()
    assert found.pop("engine").startswith("cpu")
    assert found == {
        "name": "house", "source": "en", "target": "de", "parameters": translator.parameters, "is_ready": True,
        "is_calibrated": True,
    }  # fmt: skip
    assert service.client.get("/ready").json() == {"status": "ready"}
    paths = service.client.get("/spec").json()["paths"]
    assert {"/translate", "/v1/translate", "/v1/score", "/v1/inspect", "/v1/models", "/health"} <= set(paths)
    assert service.client.get("/").text.lower().startswith("<!doctype html>")
    for path in ("/", "/health", "/ready"):
        answer = service.client.head(path)
        assert (answer.status_code, answer.text) == (200, ""), "as curl -I and some monitors ask"


def ask_other_things(service: RunningService, over: threading.Event, number: int) -> None:
    """Requests of many kinds, some of which are given up."""
    chance = random.Random(number)
    while not over.is_set():
        text = " ".join(chance.choice(LINES).split()[: chance.randrange(1, 15)])
        kind = chance.randrange(5)
        if kind == 0:
            service.send("/v1/translate", {"text": [text] * 4}).close()
        elif kind == 1:
            service.translate(text, stream=True)
        elif kind == 2:
            service.translate([text] * 3, seconds=0.01)
        elif kind == 3:
            service.post("/translate", {"q": f"<p>{text}</p>", "source": "en", "target": "de", "format": "html"})
        else:
            service.translate(text, n_best=2, options={"beam": chance.choice([2, 4, 6])})


def test_other_requests_change_no_translation(service: RunningService, translator: Translator) -> None:
    texts = MIXED[:9]
    expected = [record for text in texts for record in records(service.translate(text))]
    assert expected == json.loads(json.dumps([each.to_dict() for each in translator.translate(texts)]))
    over = threading.Event()
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(ask_other_things, service, over, number) for number in range(1)]
        try:
            found = [answer.result() for answer in [pool.submit(service.translate, text) for text in texts]]
            together = service.translate(texts)
        finally:
            over.set()
        for other in others:
            other.result()
    assert [records(answer)[0] for answer in found] == expected
    assert records(together) == expected
    wait_until(service.is_idle)


@pytest.mark.slow
def test_other_requests_change_none_of_many_translations(service: RunningService, tmp_path: Path) -> None:
    chance = random.Random(1)
    lines = [
        *MIXED,
        *LINES,
        *(" ".join(chance.choices(" ".join(LINES).split(), k=chance.randrange(1, 60))) for _ in range(90)),
    ]
    lines = [line.replace("\n", " ") for line in lines]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "dragoman", "translate", "--input", str(tmp_path / "in.txt")]
    expected = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\n")[:-1]
    over = threading.Event()
    with ThreadPoolExecutor(12) as pool:
        others = [pool.submit(ask_other_things, service, over, number) for number in range(4)]
        try:
            found = [answer.result() for answer in [pool.submit(service.translate, line) for line in lines]]
        finally:
            over.set()
        for other in others:
            other.result()
    assert [records(answer)[0]["translation"] for answer in found] == expected


def test_metrics_count_what_happens(service: RunningService) -> None:
    wait_until(service.is_idle)
    before = service.metrics()
    service.translate("12345")
    service.translate(["123", "45"], options={"beam": 0})
    service.client.get("/nothing/here")
    after = service.metrics()

    def more(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert more('dragoman_requests_total{route="/v1/translate",status="200"}') == 1
    assert more('dragoman_requests_total{route="/v1/translate",status="400"}') == 1
    assert more('dragoman_requests_total{route="unknown",status="404"}') == 1
    assert more('dragoman_characters_total{model="house"}') == 5
    assert more('dragoman_request_seconds_count{route="/v1/translate"}') == 2
    assert after['dragoman_model_ready{model="house"}'] == 1
    assert after['dragoman_worker_restarts{model="house"}'] == 0
    assert after["dragoman_requests_in_flight"] == 0
    assert not any("nothing" in name for name in after), "unknown names do not become labels"


def test_logs_are_lines_of_json_without_texts(service: RunningService) -> None:
    secret = "Zanzibar"
    service.translate(f"I was in {secret}.")
    service.translate(f"I was in {secret}.", stream=True)
    service.translate(f"I was in {secret}.", options={"banned": [" "]})
    service.client.get(f"/{secret}", params={"q": secret})
    service.client.post("/translate", data={"q": secret, "source": "en", "target": secret[:2]})
    service.client.post("/translate", content=f"{{{secret}".encode(), headers={"content-type": "application/json"})
    found = service.events  # each is JSON
    assert {event["event"] for event in found} >= {"request"}
    assert all({"time", "level", "event"} <= set(event) for event in found)
    assert secret not in service.log
    last = [event for event in found if event.get("route") == "/v1/translate"][-1]
    assert (last["method"], last["status"], last["caller"]) == ("POST", 400, "127.0.0.1")


@pytest.mark.slow
def test_a_new_model_is_loaded_without_a_failed_request(service: RunningService, model: Path) -> None:
    """Must be the last one: it changes the model."""
    (old,) = service.workers
    over, statuses = threading.Event(), list[int]()

    def ask() -> None:
        while not over.is_set():
            statuses.append(service.translate(HOUSE).status_code)
            over.wait(0.05)

    def replace(name: str) -> None:
        (model.parent / "next").symlink_to(model.parent / name)
        (model.parent / "next").replace(model)

    broken = shutil.copytree(model.parent / "first", model.parent / "broken")
    (broken / "weights.safetensors").write_bytes(b"broken")
    second = shutil.copytree(model.parent / "first", model.parent / "second")
    config = (second / "config.toml").read_text()
    (second / "config.toml").write_text(config.replace("[decode]\n", '[decode]\nbanned = ["Haus"]\n'))
    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            replace("broken")
            wait_until(lambda: "new model not loaded" in service.log)
            assert "Haus" in records(service.translate(HOUSE))[0]["translation"]
            assert service.client.get("/ready").status_code == 200
            replace("second")
            wait_until(lambda: "model replaced" in service.log)
            assert "Haus" not in records(service.translate(HOUSE))[0]["translation"].split()
            wait_until(lambda: old not in service.workers)
        finally:
            over.set()
        for each in asking:
            each.result()
    assert set(statuses) == {200}
    assert len(statuses) > 20
    assert len(service.workers) == 1


def test_bundled_models_are_served_for_the_language_of_the_text(tmp_path: Path) -> None:
    german, english = "Das rote Haus ist sehr alt.", "The red house is very old."
    with running(tmp_path, models="") as service:
        chosen = service.client.get("/frontend/settings").json()["language"]
        assert (chosen["source"]["code"], chosen["target"]["code"]) == ("en", "de"), "what the page begins with"
        for asked in ({}, {"source": "auto"}):
            for text, pair in ((german, ("de", "en")), (english, ("en", "de"))):
                answer = service.client.post("/v1/translate", json={"text": text, **asked}).json()
                assert (answer["source"], answer["target"]) == pair
        answer = service.client.post("/v1/translate", json={"text": german, "target": "de"}).json()
        assert answer["source"] == "en", "the control: what is asked for"
        answer = service.client.post("/translate", data={"q": german, "source": "auto", "target": "en"}).json()
        assert answer["translatedText"] == english
