"""Writes docs/settings.md from src/dragoman/config.py: python docs/settings.py [--check].

Keys, types and defaults come from the dataclasses, meanings from the comments beside them.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dragoman import config
from dragoman.settings import NOT_SETTINGS, SECTIONS, meanings

PAGE = Path(__file__).parent / "settings.md"

HEAD = """# Settings

Every setting, its type, default and meaning, generated from `src/dragoman/config.py` by `python docs/settings.py`.

A setting has a section and a key. In a TOML file it is a line under `[section]`; on the command line it is
`--set section.key=value`. Later ones win: the defaults below, then a preset (`--preset`), the file, `--set`, and an
option of its own such as `--beam`. A typo is an error with a suggestion. `dragoman config --preset small --out my.toml`
writes all settings of a preset with their meanings, to edit; a model directory holds its own in `config.toml`.
"""


PRESETS_HEAD = """## Presets

`--preset` sets sizes, warm-up, batch and learning rate together; `train` takes `small` unless it is told otherwise.

"""


def type_name(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return "list of strings"
    names = {int: "whole number", float: "number", str: "string", bool: "true or false", type(None): ""}
    parts = [hint] if hint in names else list(get_args(hint))
    return " or ".join(names[part] for part in parts if names[part])


def default_name(value: Any) -> str:
    if value is None or value in ("", ()):
        return "not set"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return ", ".join(f"`{each}`" for each in value)
    return f"`{value}`"


def table(section: str, cls: type) -> Iterator[str]:
    own, hints = meanings(cls), get_type_hints(cls)
    yield "| key | type | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for field in fields(cls):
        if section == "model" and field.name in NOT_SETTINGS:
            continue
        meaning = own[field.name]
        assert meaning, f"{section}.{field.name}: no meaning in config.py; write a comment beside it"
        cells = (
            f"`{field.name}`",
            type_name(hints[field.name]),
            default_name(field.default),
            re.sub(r"\b[a-z]+_[a-z_]+\b|<unk>", lambda word: f"`{word[0]}`", meaning.replace("None:", "if not set:")),
        )
        yield f"| {' | '.join(cells)} |"


def presets() -> Iterator[str]:
    """What each preset sets, besides the defaults."""
    yield f"| setting | {' | '.join(f'`{name}`' for name in config.PRESETS)} |"
    yield "| --- |" + " --- |" * len(config.PRESETS)
    keys = dict.fromkeys(
        (section, key) for preset in config.PRESETS.values() for section, values in preset.items() for key in values
    )
    for section, key in keys:
        default = getattr(getattr(config.Config(), section), key)
        chosen = [preset.get(section, {}).get(key, default) for preset in config.PRESETS.values()]
        yield f"| `{section}.{key}` | {' | '.join(map(default_name, chosen))} |"


def page() -> str:
    parts = [HEAD, PRESETS_HEAD + "\n".join(presets()) + "\n"]
    for section, classes in SECTIONS.items():
        for cls in classes:
            heading = f"## `[{section}]`"
            names = [name for name, kind in config.ARCHITECTURES.items() if kind is cls and name != "transformer"]
            if names:
                heading += " with " + " or ".join(f'`architecture = "{name}"`' for name in names)
            parts.append(f"{heading}\n\n{(cls.__doc__ or '').strip()}\n\n" + "\n".join(table(section, cls)) + "\n")
    return "\n".join(parts)


def main() -> None:
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
