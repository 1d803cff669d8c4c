"""Small faults, each with the tests that must detect it: `python -m tests.mutants`, or `make test-mutants`."""
