"""Texts with line breaks: divided, translated line by line, and joined again."""

from dragoman import Translator, load
from dragoman.decode.paragraphs import Proportional, divide, join
from dragoman.decode.translation import Status, Translation
from dragoman.documents.document import Kept, Mark, Parts, text_of


def test_lines_are_divided_and_joined_as_they_were() -> None:
    parts: Parts = ("One.\n\n  -v  two", Kept(0, "{x}"), "\nthree ", Mark(1, "open"), "a\nb", Mark(1, "close"), ".")
    lines = divide(parts)
    assert lines == [
        ("", ("One.",)),
        ("\n\n  ", ("-v  two", Kept(0, "{x}"))),
        ("\n", ("three ", Mark(1, "open"), "a\nb", Mark(1, "close"), ".")),
    ]
    results = ((Translation(text_of(line), text_of(line), "translated"), line) for _, line in lines)
    translation, joined = join(parts, lines, results)
    assert joined is not None
    assert text_of(joined) == text_of(parts) == translation.text == translation.source
    assert [part for part in joined if not isinstance(part, str)] == [p for p in parts if not isinstance(p, str)]


def test_the_worst_status_counts_and_a_failed_line_fails_the_text() -> None:
    lines = divide(("a\nb",))

    def joined(*statuses: Status) -> tuple[str, str, Parts | None]:
        own = [
            (Translation("x", "y", status, reason=status), None if status == "failed" else ("y",))
            for status in statuses
        ]
        translation, parts = join(("a\nb",), lines, iter(own))
        assert translation.source == "a\nb"
        return translation.status, translation.reason, parts

    assert joined("translated", "altered") == ("altered", "altered", ("y", "\n", "y"))
    assert joined("split", "truncated")[0] == "truncated"
    assert joined("translated", "failed") == ("failed", "failed", None)


def test_progress_is_reported_in_texts() -> None:
    reported: list[int] = []
    progress = Proportional(reported.append, 6, 2)
    for lines in (1, 2, 3):
        progress.advance(lines)
    progress.finish()
    assert reported == [0, 1, 1, 0]


def test_no_line_of_a_message_is_lost() -> None:
    german: Translator = load("en-de", "cpu")
    message = "The house is big.\n\n  I love dogs.\n  Where is {name}?"
    ((translation, parts),) = german.stream_parts([[(message,)]])
    assert parts is not None
    expected = [german.translate(line).text for line in ("The house is big.", "I love dogs.", "Where is {name}?")]
    assert text_of(parts) == translation.text == "{}\n\n  {}\n  {}".format(*expected)
    assert translation.status == "translated"
