"""Model directories for other libraries, with the same weights and the same output."""

from dragoman.export.common import Exported
from dragoman.export.ctranslate2 import to_ctranslate2
from dragoman.export.huggingface import to_huggingface

__all__ = ["Exported", "to_ctranslate2", "to_huggingface"]
