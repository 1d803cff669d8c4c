"""What every setting means, from the comment beside it in config.py, and a configuration as TOML to edit."""

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dragoman import config
from dragoman.config import Config, toml_value

SECTIONS: dict[str, tuple[type, ...]] = {
    "data": (config.DataConfig,),
    "text": (config.TextConfig,),
    "model": (config.TransformerConfig, config.DecoderConfig, config.EncoderConfig, config.RecurrentConfig),
    "train": (config.TrainConfig,),
    "decode": (config.DecodeConfig,),
}
NOT_SETTINGS = ("vocab_size", "target_vocab_size", "num_labels")  # of a model: they follow from the text
WIDTH = 100  # columns of a comment


def meanings(cls: type) -> dict[str, str]:
    """The comment beside or above every field of a dataclass of config.py, its own or inherited."""
    source = inspect.getsource(config)
    classes = {each.name: each for each in ast.parse(source).body if isinstance(each, ast.ClassDef)}
    comments = {
        token.start[0]: token.string.removeprefix("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    code = source.splitlines()
    found = {}
    nodes = [classes[each.__name__] for each in reversed(cls.__mro__) if each.__name__ in classes]
    for field in (field for node in nodes for field in node.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            above = field.lineno - 1
            while above in comments and code[above - 1].lstrip().startswith("#"):
                above -= 1
            beside = [comments[field.lineno]] if field.lineno in comments else []
            found[field.target.id] = " ".join([*(comments[row] for row in range(above + 1, field.lineno)), *beside])
    return found


def literal_choices(cls: type, name: str) -> tuple[str, ...]:
    """The words that a setting can be; none if it is something else."""
    hint = get_type_hints(cls)[name]
    return get_args(hint) if get_origin(hint) is Literal else ()


def every_setting() -> dict[str, tuple[str, ...]]:
    """The name of every setting, and the words that it can be."""
    found: dict[str, tuple[str, ...]] = {}
    for section, classes in SECTIONS.items():
        for cls in classes:
            for field in fields(cls):
                if section == "model" and field.name in NOT_SETTINGS:
                    continue
                switch = ("true", "false") if get_type_hints(cls)[field.name] is bool else ()
                name, choices = f"{section}.{field.name}", literal_choices(cls, field.name) or switch
                found[name] = tuple(dict.fromkeys((*found.get(name, ()), *choices)))
    return found


def annotated_toml(configuration: Config) -> str:
    """Every setting with its meaning, and its default where that is another."""
    sections = [field.name for field in fields(configuration)]
    return "\n".join(line for name in sections for line in _section(name, getattr(configuration, name)))


def _section(name: str, values: Any) -> Iterator[str]:
    own = meanings(type(values))
    yield f"[{name}]"
    for field in fields(values):
        if name == "model" and field.name in NOT_SETTINGS:
            continue
        value, meaning = getattr(values, field.name), own[field.name]
        if choices := literal_choices(type(values), field.name):
            meaning = f"{meaning}: {', '.join(choices)}"
        if value != field.default:
            default = "not set" if field.default is None else toml_value(field.default)
            meaning = f"{meaning} (default: {default})"
        yield from textwrap.wrap(meaning, WIDTH, initial_indent="# ", subsequent_indent="# ")
        yield f"# {field.name} is not set" if value is None else f"{field.name} = {toml_value(value)}"
    yield ""
