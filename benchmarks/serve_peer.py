"""A CTranslate2-backed translation server, built as LibreTranslate is: Flask on waitress, one CTranslate2 translator.

    python -m benchmarks.serve_peer FOLDER PORT [--threads 4]

It needs `pip install flask waitress ctranslate2`. FOLDER is what `dragoman export --to ctranslate2` writes. Requests
are split into sentences and translated one by one by beam search, with all cores; waitress runs four at a
time, LibreTranslate's default.
"""

import argparse
import os
from pathlib import Path
from unicodedata import normalize

import ctranslate2
import sentencepiece
from flask import Flask, jsonify, request
from waitress import serve

from dragoman.text.sentences import sentences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--beam", type=int, default=4)
    arguments = parser.parse_args()
    model = ctranslate2.Translator(
        str(arguments.folder), compute_type="int8", inter_threads=1, intra_threads=os.cpu_count() or 1
    )
    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=str(arguments.folder / f"{side}.spm"))
        for side in ("source", "target")
    )
    app = Flask(__name__)

    @app.post("/translate")
    def translate():  # type: ignore[no-untyped-def]
        given = request.get_json()
        texts = given["q"] if isinstance(given["q"], list) else [given["q"]]
        found = []
        for text in texts:
            rows = [source.encode(normalize("NFC", each), out_type=str) for each in sentences(text)]
            results = model.translate_batch(
                rows, beam_size=arguments.beam, length_penalty=0.6, max_batch_size=32, disable_unk=True
            )
            found.append(" ".join(target.decode(result.hypotheses[0]) for result in results))
        return jsonify({"translatedText": found if isinstance(given["q"], list) else found[0]})

    @app.get("/health")
    def health():  # type: ignore[no-untyped-def]
        return jsonify({"status": "ok"})

    serve(app, host="127.0.0.1", port=arguments.port, threads=arguments.threads, _quiet=True, connection_limit=2_000)


if __name__ == "__main__":
    main()
