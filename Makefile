# The commands of the house. `make demo` and `make test` need only Python 3.11+, make and the package index.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: setup demo test test-slow check format bench clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "make: $$($(PYTHON) --version) is too old; dragoman needs Python 3.11 or newer (make PYTHON=python3.12 ...)"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: setup
	@$(BIN)/dragoman demo

test: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: setup
	$(BIN)/python -m pytest -m slow

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	@for each in benchmarks/[a-z]*.py; do echo "== $$each"; $(BIN)/python $$each || exit 1; done

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
