"""Inspecting translations: capture.py records what a model does, heads.py compares heads, page.py shows it all."""
