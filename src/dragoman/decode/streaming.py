"""Text that grows and is never withdrawn, from the translations of pieces that grow. Knows nothing of models."""

import re
from collections.abc import Iterable, Iterator

# What may still change: a word, or in a language without spaces the last character, of which a byte or an accent may be
# missing. U+FFFD is decoded from some of the bytes of a character.
_OPEN_END = re.compile(r"(?:[A-Za-z\u00c0-\u058f\u10a0-\u10ff\u1c80-\u1fff'’-]+|.)?\ufffd*\Z", re.DOTALL)


def stream_joined(pieces: Iterable[tuple[str, Iterable[tuple[str, bool]]]]) -> Iterator[str]:
    """Yield what is new in a line, given for each of its pieces what joins it to the one before, and its text so far.

    A text so far is followed by whether it is complete. White space at the ends of the line is left out.
    """
    done, emitted = "", ""
    for glue, texts in pieces:
        for text, is_complete in texts:
            certain = text if is_complete else _OPEN_END.sub("", text, count=1)
            line = (done + glue + certain).strip()
            if len(line) > len(emitted):
                assert line.startswith(emitted), (line, emitted)
                yield line[len(emitted) :]
                emitted = line
            if is_complete:
                done += glue + text
