"""Small faults, each with the tests that must notice it: `python -m tests.mutants`, or `make test-mutants`."""
