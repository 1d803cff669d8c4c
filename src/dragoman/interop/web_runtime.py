"""ONNX Runtime Web: three files of its npm package, downloaded once and kept in the user's cache."""

import base64
import hashlib
import io
import os
import sys
import tarfile
import urllib.request
from http.client import HTTPException
from pathlib import Path

from dragoman.errors import ConfigError
from dragoman.files import make_directory, write_file

VERSION = "1.30.0"
REGISTRY = "https://registry.npmjs.org"
INTEGRITY = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="  # SHA-512
FILES = {  # and their SHA-256
    "ort.wasm.min.mjs": "219e6a1fc8a9938268d18efca3c91d310bd2f4a59bbd13744df5b2b7fc6cee3b",
    "ort-wasm-simd-threaded.mjs": "e13f7f94fc51b4ca72b12faeb1ee95f4ace6dfbc8939bc718aabdc0a27c4299b",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
TIMEOUT_SECONDS = 60
MAX_BYTES = 200_000_000


def read_runtime(folder: Path | None) -> dict[str, bytes]:
    """The files by name: of a folder with the package, or of the cache, or of the npm registry."""
    if folder is not None:
        return _read_folder(folder)
    cache = cache_folder()
    if not all(_is_whole(cache / name) for name in FILES):
        make_directory(cache)
        for name, content in _download().items():
            write_file(cache / name, content)
    return {name: (cache / name).read_bytes() for name in FILES}


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "dragoman" / f"onnxruntime-web-{VERSION}"


def _is_whole(path: Path) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == FILES[path.name]


def _read_folder(folder: Path) -> dict[str, bytes]:
    for place in (folder, folder / "dist", folder / "onnxruntime-web" / "dist"):
        if all((place / name).is_file() for name in FILES):
            return {name: (place / name).read_bytes() for name in FILES}
    if not folder.is_dir():
        raise ConfigError(f"--runtime: {folder}: no such folder; give node_modules/onnxruntime-web")
    raise ConfigError(f"--runtime: {folder} does not hold {', '.join(FILES)}; give node_modules/onnxruntime-web")


def _download() -> dict[str, bytes]:
    registry = os.environ.get("NPM_CONFIG_REGISTRY") or REGISTRY
    address = f"{registry.rstrip('/')}/onnxruntime-web/-/onnxruntime-web-{VERSION}.tgz"
    if not address.startswith("https://"):
        raise ConfigError(
            f"NPM_CONFIG_REGISTRY: {registry} does not begin with https://; give another, or --runtime DIR"
        )
    print(f"downloading {address}", file=sys.stderr)
    remedy = f"check the network, or run `npm install onnxruntime-web@{VERSION}` and give its folder by --runtime"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as response:
            content = response.read(MAX_BYTES)
    except (OSError, HTTPException) as error:
        raise ConfigError(f"{address}: cannot be downloaded ({error}); {remedy}") from None
    if base64.b64encode(hashlib.sha512(content).digest()).decode() != INTEGRITY:
        raise ConfigError(f"{address}: is not the file that was published; {remedy}")
    with tarfile.open(fileobj=io.BytesIO(content)) as package:
        members = {name: package.extractfile(f"package/dist/{name}") for name in FILES}
        return {name: member.read() for name, member in members.items() if member is not None}
