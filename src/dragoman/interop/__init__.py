"""Model directories for other libraries, with the same weights and the same output."""

from dragoman.interop.common import Exported
from dragoman.interop.ctranslate2 import to_ctranslate2
from dragoman.interop.huggingface import to_huggingface

__all__ = ["Exported", "to_ctranslate2", "to_huggingface"]
