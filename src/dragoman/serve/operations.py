"""What a worker can be asked for: plain values in, plain values out. Knows nothing of HTTP or of processes."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dragoman.config import DecodeConfig
from dragoman.decode.continuous import GivenUp, current_ticket
from dragoman.decode.terms import Glossary
from dragoman.decode.translation import Translation
from dragoman.decode.translator import Translator, windows
from dragoman.documents.document import Options
from dragoman.documents.formats import parse_document
from dragoman.errors import ConfigError
from dragoman.files import write_file

MOST_PIECES = 1_000  # of a text to be scored or aligned: the work grows with the square, and is not interrupted
Payload = Mapping[str, Any]
Record = dict[str, Any]


def describe(translator: Translator) -> Record:
    """What the front needs to know of a model."""
    source, target = translator.languages
    options = translator.config.decode
    return {
        "source": source,
        "target": target,
        "parameters": translator.parameters,
        "engine": translator.choice_for(options).describe(),
        "beam": options.beam,
        "is_calibrated": translator.calibration is not None,
    }


def translate(translator: Translator, payload: Payload) -> Record:
    options, texts = translator.options(**payload.get("options", {})), list(payload["texts"])
    attention, glossary = bool(payload.get("attention")), _glossary(translator, payload)
    if prefixes := payload.get("prefixes"):
        found = translator.translate_with_prefixes(texts, prefixes, options, attention, glossary)
    else:
        found = list(translator.stream([texts], attention=attention, options=options, glossary=glossary))
    return {"translations": _records(translator, payload, found)}


def _records(translator: Translator, payload: Payload, found: list[Translation]) -> list[Record]:
    records = [each.to_dict() for each in found]
    if payload.get("alignment"):
        if current_ticket().is_over:
            raise GivenUp
        for record, links in zip(records, _alignments(translator, found), strict=True):
            record["alignment"] = links
    return records


def _alignments(translator: Translator, found: list[Translation]) -> list[list[list[int]]]:
    """For each text: [start, end] of the source and [start, end] of the translation of what belongs together.

    Nothing for texts that are too long.
    """
    links: list[list[list[int]]] = [[] for _ in found]
    sides = [[each.source for each in found], [each.text for each in found]]
    tokenizers = (translator.tokenizers.source, translator.tokenizers.target)
    lengths = [map(len, own.encode_batch(side)) for own, side in zip(tokenizers, sides, strict=True)]
    numbers = [number for number, pair in enumerate(zip(*lengths, strict=True)) if max(pair) <= MOST_PIECES]
    for number, each in zip(
        numbers, translator.align_if_possible(*([side[number] for number in numbers] for side in sides)), strict=True
    ):
        links[number] = [[*source, *target] for source, target in each.linked_spans]
    return links


def paragraphs(translator: Translator, payload: Payload) -> Record:
    """Translate texts of any number of lines, or HTML: the translation of each, and others if it is one line."""
    options, texts = translator.options(**payload.get("options", {})), list(payload["texts"])
    if payload.get("format") == "html":
        return {
            "translations": [
                {"translation": text, "alternatives": [], "status": "translated", "reason": None}
                for text in _html(translator, texts, options)
            ]
        }
    lines = [text for text in texts if "\n" not in text]
    longer = [(text,) for text in texts if "\n" in text]
    single = iter(list(translator.stream([lines], options=options)) if lines else [])
    joined = iter(list(translator.stream_parts([longer], options=replace(options, n_best=1))) if longer else [])
    records = []
    for text in texts:
        found = next(joined)[0] if "\n" in text else next(single)
        others = [other.text for other in found.alternatives[1:]]
        records.append(
            {"translation": found.text, "alternatives": others, "status": found.status, "reason": found.reason}
        )
    return {"translations": records}


def _html(translator: Translator, texts: list[str], options: DecodeConfig) -> list[str]:
    """Pages or parts of pages. A segment that failed stays as it was."""
    from dragoman.documents import html

    pages = [html.parse(text.encode(), Options(*translator.languages), "q") for text in texts]
    segments = [segment.parts for page in pages for segment in page.segments]
    found = iter(list(translator.stream_parts([segments], options=options)))
    return [page.render([next(found)[1] for _ in page.segments]).decode() for page in pages]


def stream(translator: Translator, payload: Payload) -> Generator[str, None, Record]:
    """Yield the translation of a text as it becomes certain; return its lines with their statuses."""
    options, glossary = translator.options(**payload.get("options", {})), _glossary(translator, payload)
    found: list[Translation] = []
    for line in str(payload["text"]).split("\n"):
        if found:
            yield "\n"
        found.append((yield from translator.stream_line(line, options, glossary)))
    return {"translations": _records(translator, payload, found)}


def score(translator: Translator, payload: Payload) -> Record:
    for name, tokenizer in (("sources", translator.tokenizers.source), ("targets", translator.tokenizers.target)):
        longest = max(map(len, tokenizer.encode_batch([str(text) for text in payload[name]])), default=0)
        if longest > MOST_PIECES:
            raise ConfigError(f"{name}: one has {longest:,} pieces, at most {MOST_PIECES:,} are possible; split it")
    return {"scores": translator.score(list(payload["sources"]), list(payload["targets"]))}


def align(translator: Translator, payload: Payload) -> Record:
    links = translator.align(list(payload["sources"]), list(payload["targets"]))
    return {"alignments": [[list(link) for link in each] for each in links]}


def inspect(translator: Translator, payload: Payload) -> Record:
    """The page of `dragoman inspect` for one sentence."""
    from dragoman.inspect.page import page
    from dragoman.inspect.payload import inspect_many

    content = inspect_many(translator, str(payload["model"]), [(str(payload["text"]), None)])
    return {"page": page("dragoman", content)}


def document(translator: Translator, payload: Payload) -> Record:
    """Translate one file to another."""
    source, target = translator.languages
    options, glossary = translator.options(**payload.get("options", {})), _glossary(translator, payload)
    parsed = parse_document(Path(payload["input"]), Options(source, target), payload["format"])
    segments = parsed.segments
    parts = windows((segment.parts for segment in segments), translator.window_size(options))
    results = list(translator.stream_parts(parts, options=options, glossary=glossary))
    write_file(Path(payload["output"]), parsed.render([own for _, own in results]))
    statuses = [translation.status for translation, _ in results]
    return {"segments": len(segments), "statuses": {status: statuses.count(status) for status in sorted(set(statuses))}}


def _glossary(translator: Translator, payload: Payload) -> Glossary | None:
    terms = payload.get("glossary")
    return translator.glossary([(source, target) for source, target in terms]) if terms else None


OPERATIONS: dict[str, Callable[[Translator, Payload], Record]] = {
    "translate": translate,
    "paragraphs": paragraphs,
    "score": score,
    "align": align,
    "inspect": inspect,
    "document": document,
}


def run(translator: Translator, name: str, payload: Payload) -> Record:
    if name not in OPERATIONS:
        raise ConfigError(f"{name}: unknown operation")
    return OPERATIONS[name](translator, payload)
