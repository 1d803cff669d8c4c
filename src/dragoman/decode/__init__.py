"""From a model to translations: search over ids, engines, and text in, text out."""
