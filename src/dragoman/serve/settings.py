"""The settings of the service, from a TOML file and options. Knows nothing of HTTP."""

import re
import tomllib
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from dragoman.bundle import bundled_models
from dragoman.config import check_fields, require
from dragoman.errors import ConfigError, suggestion

MOST_SECONDS = 1_000_000
FIRST_SERVED = "en-de"  # of the bundled models: the page begins with its languages


@dataclass(frozen=True)
class ModelSettings:
    """A model to serve."""

    model: str  # a name or a directory
    source: str = ""  # language codes; empty: as the model's training files are named
    target: str = ""
    device: str = "auto"
    precision: str = "auto"
    engine: str = "auto"
    threads: int = 0  # that search; 0: one per core

    def __post_init__(self) -> None:
        check_fields("models", self)
        require(bool(self.model), "models.model: is empty; give a name or a directory")
        require(self.threads >= 0, f"models.threads: {self.threads} is negative; use 0 for one per core")

    @property
    def name(self) -> str:
        return Path(self.model).name


def bundled_settings() -> list[ModelSettings]:
    """The models that are served if none is given."""
    return sorted(map(ModelSettings, bundled_models()), key=lambda model: model.name != FIRST_SERVED)


def _check_limits(section: str, settings: "KeySettings | ServeSettings") -> None:
    for name in ("requests_per_minute", "characters_per_minute"):
        value = getattr(settings, name)
        require(value >= 0, f"{section}.{name}: {value} is negative; use 0 for no limit")


@dataclass(frozen=True)
class KeySettings:
    """Somebody who may use the service."""

    key: str
    name: str  # what logs and metrics call it
    requests_per_minute: int = 0  # 0: the service's own limit
    characters_per_minute: int = 0

    def __post_init__(self) -> None:
        check_fields("keys", self)
        _check_limits("keys", self)
        require(bool(self.name), "keys: a name is empty; say who has the key")
        require(len(self.key) >= 16, f"keys: the key of {self.name!r} has fewer than 16 characters; make it longer")


@dataclass(frozen=True)
class ServeSettings:
    host: str = "127.0.0.1"
    port: int = 8000
    cors: tuple[str, ...] = ()  # origins whose pages may use it, or "*"
    max_characters: int = 20_000  # of a request
    max_texts: int = 256  # of a request
    max_body: int = 2_000_000  # bytes
    max_file: int = 20_000_000  # bytes of a document
    max_beam: int = 16
    queue: int = 128  # requests under way; more are refused with 503
    seconds: float = 30.0  # that a request may take; a request may ask for less
    file_seconds: float = 300.0
    keep_seconds: float = 3600.0  # that a translated document can be downloaded
    max_kept: int = 1_000_000_000  # bytes of all translated documents; the oldest are removed
    header_seconds: float = 10.0  # that a client may take to send its headers
    body_seconds: float = 20.0
    drain_seconds: float = 30.0  # that requests have to finish after SIGTERM
    requests_per_minute: int = 0  # of a key, or of an address without keys; 0: no limit
    characters_per_minute: int = 0
    files: bool = True  # /translate_file
    suggestions: str = ""  # a file to which /suggest adds lines; empty: refused
    log_text: bool = False  # write what is translated to the log
    watch_seconds: float = 2.0  # how often to look for new files of a model

    def __post_init__(self) -> None:
        check_fields("serve", self)
        for each in fields(self):
            name, value = each.name, getattr(self, each.name)
            if name.startswith("max_") or name == "queue":
                require(value > 0, f"serve.{name}: {value} is not positive; use 1 or more")
            if name.endswith("seconds"):
                is_possible = 0 < value <= MOST_SECONDS  # neither nan nor inf
                require(
                    is_possible, f"serve.{name}: {value:g} is out of range; use more than 0, at most {MOST_SECONDS}"
                )
        _check_limits("serve", self)
        for origin in self.cors:
            is_origin = origin == "*" or re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+|null", origin) is not None
            require(is_origin, f'serve.cors: {origin!r} is no origin; write it as "https://example.org", or "*"')
        folder = Path(self.suggestions).parent
        is_writable = not self.suggestions or (folder.is_dir() and not Path(self.suggestions).is_dir())
        require(is_writable, f"serve.suggestions: {self.suggestions} cannot be a file; name one in an existing folder")
        require(0 <= self.port <= 65535, f"serve.port: {self.port} is out of range; use 0 to 65535")


@dataclass(frozen=True)
class SettingsFile:
    """What a file says."""

    serve: dict[str, Any]  # of ServeSettings, as far as given
    models: list[ModelSettings]
    keys: list[KeySettings]  # none: everybody may use the service


def read_settings(path: Path) -> SettingsFile:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give another file") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply; fix it") from None
    except ValueError as error:  # also of the encoding, and of numbers with thousands of digits
        raise ConfigError(f"{path}: not valid TOML ({error}); fix it") from None
    try:
        models = [
            ModelSettings(**_known(ModelSettings, entry, "models."))
            for entry in _tables("models", content.pop("models", []))
        ]
        keys = [
            KeySettings(**_known(KeySettings, entry, "keys.")) for entry in _tables("keys", content.pop("keys", []))
        ]
        require(len({key.name for key in keys}) == len(keys), "keys: a name is given twice; give each key its own")
        require(len({key.key for key in keys}) == len(keys), "keys: one is given twice; remove it")
        return SettingsFile(_known(ServeSettings, content), models, keys)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _tables(name: str, value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ConfigError(f"{name}: is not a list of tables; write [[{name}]] above each")
    return value


def _known(kind: type, content: dict[str, Any], section: str = "") -> dict[str, Any]:
    known = {each.name for each in fields(kind)}
    for name in content:
        if name not in known:
            raise ConfigError(f"{section}{name}: unknown setting; {suggestion(name, known)}")
    for each in fields(kind):
        if each.default is MISSING and each.name not in content:
            raise ConfigError(f"{section}{each.name}: is missing; add it")
    return dict(content)
