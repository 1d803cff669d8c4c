"""The ONNX export of the bundled model in transformers.js, in Node: the same translations.

`make node` installs it; skipped where it is missing.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import dragoman
from dragoman.interop import to_onnx
from tests.system.test_exported_model import english

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv" / "node"
HERE = shutil.which("node") is not None and (FOLDER / "node_modules" / "@huggingface" / "transformers").is_dir()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HERE, reason="transformers.js is not here: make node"),
]
PROGRAM = """
import { env, pipeline } from "@huggingface/transformers";
const [folder, name, dtype] = process.argv.slice(2);
Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: folder });
const translate = await pipeline("translation", name, { dtype });
const texts = JSON.parse(await new Response(process.stdin).text());
const found = [];
for (const text of texts) found.push((await translate(text))[0].translation_text);
console.log(JSON.stringify(found));
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return to_onnx("en-de", tmp_path_factory.mktemp("onnx") / "en-de").directory


def translate(exported: Path, dtype: str, texts: list[str]) -> list[str]:
    program = FOLDER / "translate.mjs"  # beside node_modules, where Node looks for packages
    program.write_text(PROGRAM)
    command = ["node", str(program), str(exported.parent), exported.name, dtype]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return [" ".join(text.split()) for text in found]  # as dragoman normalises its output


def test_float32_gives_our_translations_and_int8_most_of_them(exported: Path) -> None:
    texts = [*english(40), "An  “odd” text — with ﬁve 5 € and 1,234.5 km…"]
    expected = [each.text for each in dragoman.load("en-de", "cpu", "float32").translate(texts, beam=1, split="long")]
    assert translate(exported, "fp32", texts) == expected
    same = sum(one == other for one, other in zip(translate(exported, "q8", texts), expected, strict=True))
    assert same >= 0.8 * len(texts)
