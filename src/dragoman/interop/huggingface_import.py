"""Reads a model of Hugging Face's library into a model directory: Marian, such as those of OPUS-MT, or BART.

The reverse of huggingface.py, for Marian.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from dragoman import hub
from dragoman.bundle import save_bundle
from dragoman.errors import ConfigError
from dragoman.interop.bart_folder import BartFolder
from dragoman.interop.common import check_tokens, is_installed, load_source, new_directory
from dragoman.interop.marian_folder import CONFIG, MODEL_FILES, MarianFolder

NO_COUNTERPART = {"t5": "relative position bias and RMS norm", "mt5": "relative position bias and RMS norm"}
FOLDERS = {"marian": MarianFolder, "bart": BartFolder}


@dataclass(frozen=True)
class ImportedModel:
    """What an import wrote. `checked` sentences give the same tokens in transformers; None: not checked."""

    directory: Path
    parameters: int
    source_pieces: int
    target_pieces: int
    languages: tuple[str, ...]  # of which a tag selects one
    checked: int | None


def from_huggingface(
    model: str | os.PathLike[str], out: str | os.PathLike[str], *, target_language: str = "", check: bool = True
) -> ImportedModel:
    """Import a folder with a Marian or BART model, or hf://owner/name, to the new model directory `out`.

    target_language: the default, if the model translates into several.
    check: compare a few sentences with transformers, if it is installed.
    """
    folder = hub.download(model, MODEL_FILES) if hub.is_on_hub(model) else Path(model)
    on_hub = hub.hub_name(model).partition("@")[0].rpartition("/")[2] if hub.is_on_hub(model) else ""
    theirs, out = _open(folder, on_hub), Path(out)
    with new_directory(out) as directory:
        tokenizers = theirs.tokenizers
        languages = tokenizers.source.languages
        if target_language and target_language not in languages:
            known = f"give one of {', '.join(languages)}" if languages else "the model has only one; leave it out"
            raise ConfigError(f"target_language: {target_language!r} is unknown; {known}")
        config = replace(theirs.config, decode=replace(theirs.config.decode, target_language=target_language))
        weights = theirs.weights()
        save_bundle(directory, config, tokenizers, weights, _card(theirs))
        checked = None
        if check and is_installed("transformers"):
            source = load_source(directory, lambda _: None, byte_level=True)
            checked = check_tokens(source, theirs.translate, "transformers", out)
    return ImportedModel(
        out,
        sum(weight.numel() for weight in weights.values()),
        tokenizers.source.size,
        tokenizers.target.size,
        languages,
        checked,
    )


def _open(folder: Path, name: str) -> MarianFolder:
    """The folder as what its config.json says it is."""
    kind = str(MarianFolder(folder, name).settings.get("model_type"))
    if kind not in FOLDERS:
        missing = NO_COUNTERPART.get(kind)
        reason = f"has no counterpart here for its {missing}" if missing else "cannot be imported"
        raise ConfigError(f"{folder / CONFIG}: model_type {kind!r} {reason}; give a Marian or BART model")
    return FOLDERS[kind](folder, name)


def _card(folder: MarianFolder) -> str:
    languages = folder.source.tokenizer.languages
    lines = [
        f"# {folder.name}",
        f"Imported by `dragoman import huggingface` from a {folder.KIND} model of Hugging Face's library: the same "
        "weights, the same tokens. Its licence is that of the original model; see the page it came from.",
    ]
    if languages:
        lines.append(f"Target languages (`--target-language`): {', '.join(languages)}.")
    return "\n\n".join(lines) + "\n"
