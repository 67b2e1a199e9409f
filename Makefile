# The commands of ringloader. Everything is built into a virtual environment of its own, .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CARGO ?= cargo

.PHONY: help venv build demo test test-rust test-python lint format doc bench bench-leaks clean

help: ## List these commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 10), "ringloader needs Python 3.10 or newer"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'

build: $(BIN)/python ## Build the package into .venv
	$(BIN)/python -m pip install --quiet .

demo: build ## Do the main job on real data: write stores, check them, train from random batches
	$(BIN)/python -m pip install --quiet --group demo
	$(BIN)/python demo/demo.py

test: test-rust test-python ## Run every test

test-rust: ## Run the tests of the Rust crates
	$(CARGO) test --workspace --exclude ringloader-bindings

test-python: build ## Run the Python tests by the engine's choice, through io_uring, and through pread
	$(BIN)/python -m pip install --quiet --group test
	RINGLOADER_IO=auto $(BIN)/python -m pytest
	RINGLOADER_IO=uring $(BIN)/python -m pytest
	RINGLOADER_IO=pread $(BIN)/python -m pytest

lint: build ## Check formatting, lints, types and documentation
	$(BIN)/python -m pip install --quiet --group lint --group test
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --quiet
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --python-executable $(BIN)/python bindings/python/ringloader

format: ## Rewrite sources in the house format
	$(CARGO) fmt --all
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

doc: ## Build the documentation of the Rust crates into target/doc
	$(CARGO) doc --workspace --no-deps

bench: build ## Compare with loaderx, numpy mmap and the limits of the machine (about twenty minutes; root drops the page cache)
	$(BIN)/python -m pip install --quiet --group test --group bench
	$(BIN)/python benches/gathers.py
	$(BIN)/python benches/appends.py
	$(BIN)/python benches/ablation.py
	$(BIN)/python benches/locations.py
	$(BIN)/python benches/scaling.py

bench-leaks: build ## Gather 100,000 batches and watch memory, descriptors and threads
	$(BIN)/python benches/leaks.py

clean: ## Remove everything that was built
	rm -rf $(VENV) target dist .demo
