"""What LibreTranslate's routes take, for OpenAPI: they read JSON, forms and queries themselves."""

from typing import Any

_FIELDS: dict[str, dict[str, Any]] = {
    "q": {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "description": "a text, or a list of texts",
        "examples": ["The house is old."],
    },
    "source": {"type": "string", "description": "its language, or `auto`", "examples": ["en"]},
    "target": {"type": "string", "description": "the language to translate into", "examples": ["de"]},
    "format": {"enum": ["text", "html"], "default": "text", "description": "with `html`, tags are kept"},
    "alternatives": {"type": "integer", "minimum": 0, "maximum": 10, "default": 0, "description": "other translations"},
    "s": {"type": "string", "description": "a better translation", "examples": ["Das Haus ist alt."]},
    "file": {"type": "string", "format": "binary", "description": "the document", "examples": ["@page.html"]},
    "api_key": {"type": "string", "description": "or in the header X-API-Key, or as a bearer token"},
}


def _takes(required: str, optional: str = "", content_type: str = "application/json") -> dict[str, Any]:
    names = [*required.split(), *optional.split(), "api_key"]
    schema = {
        "type": "object",
        "properties": {name: _FIELDS[name] for name in names},
        "required": required.split(),
    }
    return {"requestBody": {"required": True, "content": {content_type: {"schema": schema}}}}


TRANSLATE = _takes("q source target", "format alternatives")
DETECT = _takes("q")
SUGGEST = _takes("q s source target")
TRANSLATE_FILE = _takes("file source target", content_type="multipart/form-data")
