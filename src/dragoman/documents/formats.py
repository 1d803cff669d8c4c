"""Which format a file has, and reading it. Knows the formats by name only; each is imported when it is needed."""

import importlib
from pathlib import Path

from dragoman.documents.document import LARGEST, Document, Options
from dragoman.errors import ConfigError, DataError, suggestion

FORMATS = {
    name: f"dragoman.documents.{module}"
    for name, module in {
        "text": "text",
        "markdown": "markdown",
        "html": "html",
        "po": "po",
        "xliff": "xliff",
        "tmx": "tmx",
        "srt": "subtitles",
        "vtt": "subtitles",
        "json": "json_values",
        "jsonl": "json_values",
        "csv": "tables",
        "tsv": "tables",
        "docx": "docx",
        "odt": "odt",
        "pptx": "pptx",
        "epub": "epub",
    }.items()
}
SUFFIXES = {
    ".txt": "text", ".md": "markdown", ".markdown": "markdown", ".html": "html", ".htm": "html", ".xhtml": "html",
    ".po": "po", ".pot": "po", ".xlf": "xliff", ".xliff": "xliff", ".tmx": "tmx", ".srt": "srt", ".vtt": "vtt",
    ".json": "json", ".jsonl": "jsonl", ".csv": "csv", ".tsv": "tsv", ".docx": "docx", ".odt": "odt", ".pptx": "pptx",
    ".epub": "epub",
}  # fmt: skip
COMPRESSED = (".gz", ".bz2", ".xz")
# of structured files that are none of these: as lines of text they would be destroyed
UNSUPPORTED = (".doc", ".odp", ".ods", ".pdf", ".ppt", ".rtf", ".xls", ".xlsx", ".xml", ".yaml", ".yml", ".zip")
ARCHIVES = ("docx", "odt", "pptx", "epub")
LARGEST_ARCHIVE = 512 << 20  # bytes, mostly of pictures; archives.py limits what is unpacked
_OPTIONAL = ("lxml",)


def recognise(path: Path) -> str | None:
    """The format by the suffix of a name; None if that does not say it."""
    return SUFFIXES.get(path.suffix.lower())


def refuse_unreadable(path: Path) -> None:
    """Raise ConfigError for a file that is no text, by its name."""
    suffix = path.suffix.lower()
    if suffix in UNSUPPORTED:
        raise ConfigError(f"{path}: {suffix} files are not supported; convert it, or use --format text for plain lines")
    inner = Path(path.stem).suffix.lower()
    if suffix in COMPRESSED and SUFFIXES.get(inner, "text") != "text":
        raise ConfigError(f"{path}: a compressed {inner} file is not supported; decompress it first")


def parse_document(path: Path, options: Options, format: str | None = None) -> Document:
    """Read a file in its format, or in the one given."""
    format = format or recognise(path)
    if format is None:
        raise ConfigError(f"{path}: unknown format {path.suffix or 'without a suffix'}; known: {', '.join(SUFFIXES)}")
    if format not in FORMATS:
        raise ConfigError(f"{path}: unknown format {format}; {suggestion(format, FORMATS)}")
    content = _read(path, LARGEST_ARCHIVE if format in ARCHIVES else LARGEST)
    try:
        module = importlib.import_module(FORMATS[format])
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _OPTIONAL:
            raise
        raise ConfigError(f'{path}: .{format} needs {package}; pip install "dragoman[documents]"') from None
    document: Document = module.parse(content, options, path.name)
    return document


def _read(path: Path, largest: int) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(largest + 1)
            size = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give another file") from None
    if len(content) > largest:
        raise DataError(f"{path}: has {max(size, len(content)):,} bytes, at most {largest:,} are possible; split it")
    return content
