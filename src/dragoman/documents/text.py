"""Plain text: one segment for each line that is not blank. A line ends with a line feed and nothing else."""

from dragoman.documents.document import Document, Options, Parts, Segment, text_of
from dragoman.documents.spans import Copy, Slot, SpanDocument, decode, one_line


def parse(content: bytes, options: Options, name: str = "text") -> Document:
    decoded = decode(content, name)
    slots, place = [], decoded.begin
    for number, line in enumerate(decoded.text[place:].split("\n"), start=1):
        if text := line.strip():  # a carriage return at its end is white space, too
            start = place + line.index(text[0])
            slots.append(Slot(start, start + len(text), Segment((text,), f"line {number}"), _write))
        place += len(line) + 1
    return SpanDocument(decoded.text, slots, decoded.encode)


def _write(parts: Parts, copy: Copy) -> str:
    return one_line(text_of(parts))
