"""Models from and for other libraries, with the same weights and the same output."""

from dragoman.interop.common import Exported
from dragoman.interop.ctranslate2 import to_ctranslate2
from dragoman.interop.huggingface import to_huggingface
from dragoman.interop.huggingface_import import ImportedModel, from_huggingface
from dragoman.interop.onnx import to_onnx
from dragoman.interop.web import to_web

__all__ = ["Exported", "ImportedModel", "from_huggingface", "to_ctranslate2", "to_huggingface", "to_onnx", "to_web"]
