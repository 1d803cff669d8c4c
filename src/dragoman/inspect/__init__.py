"""Looking into translations: capture.py takes what a model did, heads.py compares heads, page.py shows it all."""
