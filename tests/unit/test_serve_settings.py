"""Files of settings: what is wrong is said in one line that names the file and the setting."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import ConfigError
from dragoman.serve.settings import KeySettings, ModelSettings, ServeSettings, read_settings

GOOD = """
host = "0.0.0.0"
port = 5000
cors = "https://a.example"
seconds = 5
[[models]]
model = "en-de"
[[models]]
model = "/models/fr-de"
source = "fr"
target = "de"
threads = 2
[[keys]]
key = "0123456789abcdef"
name = "ann"
requests_per_minute = 60
"""


def read(tmp_path: Path, content: str | bytes) -> Any:
    path = tmp_path / "serve.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = read_settings(path)
    return ServeSettings(**found.serve), found.models, found.keys


def test_a_good_file_is_read(tmp_path: Path) -> None:
    settings, models, keys = read(tmp_path, GOOD)
    assert (settings.host, settings.port, settings.cors, settings.seconds) == (
        "0.0.0.0", 5000, ("https://a.example",), 5.0,
    )  # fmt: skip
    assert models == [ModelSettings("en-de"), ModelSettings("/models/fr-de", "fr", "de", threads=2)]
    assert [model.name for model in models] == ["en-de", "fr-de"]
    assert keys == [KeySettings("0123456789abcdef", "ann", 60)]
    assert read(tmp_path, "") == (ServeSettings(), [], [])


KEY = '[[keys]]\nkey = "0123456789abcdef"\nname = "ann"\n'
WRONG: dict[str, tuple[str | bytes, str]] = {
    "not TOML": ("port = ", "not valid TOML"),
    "not UTF-8": (b"\xff", "not valid TOML"),
    "twice": ("port = 1\nport = 2", "not valid TOML"),
    "deep": ("cors = " + "[" * 10_000, "nested too deeply; fix it"),
    "typo": ("quene = 4", "quene: unknown setting; did you mean queue?"),
    "section": ("[serve]\nport = 1", "serve: unknown setting"),
    "type": ("port = '8000'", "serve.port: '8000' is not"),
    "boolean": ("queue = true", "serve.queue: True is not"),
    "list": ("cors = [1]", "serve.cors: [1] is not a string or a list of strings"),
    "port": ("port = 70000", "serve.port: 70000 is out of range; use 0 to 65535"),
    "queue": ("queue = 0", "serve.queue: 0 is not positive; use 1 or more"),
    "kept": ("max_kept = -1", "serve.max_kept: -1 is not positive; use 1 or more"),
    "huge": ("queue = 99999999999999999999", "serve.queue: the number has 67 bits"),
    "digits": (f"queue = {'9' * 5_000}", "not valid TOML"),
    "zero seconds": ("seconds = 0", "serve.seconds: 0 is out of range; use more than 0, at most 1000000"),
    "nan": ("seconds = nan", "serve.seconds: nan is out of range"),
    "inf": ("drain_seconds = inf", "serve.drain_seconds: inf is out of range"),
    "negative limit": ("requests_per_minute = -1", "serve.requests_per_minute: -1 is negative; use 0 for no limit"),
    "models a table": ("[models]\nmodel = 'a'", "models: is not a list of tables; write [[models]] above each"),
    "models a list": ("models = ['en-de']", "models: is not a list of tables"),
    "model missing": ("[[models]]\nsource = 'en'", "models.model: is missing; add it"),
    "model empty": ("[[models]]\nmodel = ''", "models.model: is empty"),
    "model typo": ("[[models]]\nmodel = 'a'\ntreads = 1", "models.treads: unknown setting; did you mean threads?"),
    "threads": ("[[models]]\nmodel = 'a'\nthreads = -1", "models.threads: -1 is negative"),
    "key missing": ("[[keys]]\nname = 'ann'", "keys.key: is missing; add it"),
    "name missing": ("[[keys]]\nkey = '0123456789abcdef'", "keys.name: is missing; add it"),
    "name empty": ("[[keys]]\nkey = '0123456789abcdef'\nname = ''", "keys: a name is empty"),
    "key limit": (KEY + "characters_per_minute = -1", "keys.characters_per_minute: -1 is negative"),
    "key twice": (KEY + KEY.replace("ann", "bob"), "keys: one is given twice; remove it"),
    "name twice": (KEY + KEY.replace("0123", "4567"), "keys: a name is given twice; give each key its own"),
    "origin": (
        "cors = 'example.org'",
        'serve.cors: \'example.org\' is no origin; write it as "https://example.org", or "*"',
    ),
    "suggestions": (
        "suggestions = '/none/at/all'",
        "serve.suggestions: /none/at/all cannot be a file; name one in an existing folder",
    ),
    "suggestions a folder": ("suggestions = '/'", "serve.suggestions: / cannot be a file"),
    "keys a table": ("[keys]\nkey = 'a'", "keys: is not a list of tables; write [[keys]] above each"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_one_clear_line(tmp_path: Path, name: str) -> None:
    content, message = WRONG[name]
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, content)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "__init__" not in str(caught.value)


def test_a_short_key_is_not_repeated_in_the_message(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the key of 'ann' has fewer than 16 characters; make it longer") as caught:
        read(tmp_path, KEY.replace("0123456789abcdef", "secret"))
    assert "secret" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.toml"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_settings(path)


def test_numbers_are_normalised_and_the_defaults_are_for_this_machine_only() -> None:
    assert ServeSettings(seconds=5).seconds == 5.0
    assert (ServeSettings().host, ServeSettings().cors, ServeSettings().log_text) == ("127.0.0.1", (), False)


def test_a_model_that_is_not_there_is_named() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "dragoman", "serve", "--model", "nope", "--port", "0"], capture_output=True, text=True
    )
    assert result.returncode == 4
    assert re.fullmatch(r"dragoman: nope: no such model directory; [^\n]+\n", result.stderr)
