# The commands of the house. `make demo` and `make test` need only Python 3.11+, make and the package index.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: setup demo serve test test-slow triton node test-kernels test-gpu test-recipes test-mutants check format bench clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "make: $$($(PYTHON) --version) is too old; dragoman needs Python 3.11 or newer (make PYTHON=python3.12 ...)"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: setup
	@$(BIN)/dragoman demo

serve: setup
	@$(BIN)/dragoman serve

test: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-slow: setup
	$(BIN)/python -m pytest -m slow -n 2 --dist loadfile --no-loadscope-reorder

# All five generated recipes trained to their promise, some 20 minutes; test-slow trains two of them.
test-recipes: setup
	$(BIN)/python -m pytest -m recipe -n 2 --dist loadfile --no-loadscope-reorder

# Triton comes with PyTorch for CUDA; its interpreter, which runs the kernels on a CPU, needs no more than the package.
triton: setup
	@PYTHONPATH=.venv/triton $(BIN)/python -c 'import triton' 2> /dev/null \
	  || $(BIN)/python -m pip install --quiet --no-deps --target .venv/triton triton==3.9.0

test-kernels: triton
	PYTHONPATH=.venv/triton $(BIN)/python -m pytest -n 2 tests/unit/test_kernels.py tests/unit/test_decoding_kernels.py

# What tests need of npm: transformers.js runs exports in Node, axe-core checks pages for accessibility, and
# translate is a client of the service.
NODE_PACKAGES := @huggingface/transformers@4.3.1 axe-core@4.14.0 translate@3.1.0
NODE_MODULES := .venv/node/node_modules

node: setup
	@test -d $(NODE_MODULES)/@huggingface/transformers -a -d $(NODE_MODULES)/axe-core -a -d $(NODE_MODULES)/translate \
	  || npm install --silent --ignore-scripts --no-save --prefix .venv/node $(NODE_PACKAGES)

# On a machine with CUDA: kernels, the CUDA graph, compiled packed training, bf16 decoding, deterministic resume.
GPU_TESTS := tests/gpu $(addprefix tests/unit/test_,kernels.py decoding_kernels.py attention.py loss.py packed.py)

test-gpu: setup
	@$(BIN)/python -c 'import torch; assert torch.cuda.is_available(), "make test-gpu: PyTorch finds no CUDA device here"'
	DRAGOMAN_TEST_GPU=1 $(BIN)/python -m pytest $(GPU_TESTS)

# Some two hundred small faults, one at a time: each must make a test fail. Half an hour on two cores.
test-mutants: setup
	$(BIN)/python -m tests.mutants

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python -m benchmarks.train_cpu
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python benchmarks/complexity.py
	$(BIN)/python benchmarks/long_range.py
	$(BIN)/python -m benchmarks.claims
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' \
	  && PYTHONPATH=. $(BIN)/python benchmarks/train_gpu.py || echo "no CUDA here: benchmarks/train_gpu.py was not run"

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
