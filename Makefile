# Needs make and python3 (3.11 or newer, with venv), nothing else.
#
#   VENV=path      the environment to create and use   (default .venv)
#   PYTHON=python  the interpreter to create it with   (default python3)

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-package lint report bench-smoke bench torch-check clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.installed-examples  ## Train on digits with SGD, AdamW and Jorge; write demo.png
	$(BIN)/python -m examples.digits.main

test: $(VENV)/.installed-test-all  ## Run all tests, with coverage
	$(BIN)/python -m pytest -n 2 --cov

test-package:  ## Run the package's own tests, in .venv-package, with its test extra alone
	$(MAKE) VENV=.venv-package .venv-package/.installed-test
	.venv-package/bin/python -m pytest -n 2 tests/package

lint: $(VENV)/.installed-dev  ## Check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright --pythonpath $(BIN)/python

report: $(VENV)/.installed-test-all  ## Make tables and plots of README and docs from benchmarks/results
	$(BIN)/python -m benchmarks.reports

bench-smoke: $(VENV)/.installed-test-all  ## Run every study at its smallest size, in minutes
	$(BIN)/python -m benchmarks.harness.run_all --smoke

bench: $(VENV)/.installed-test-all  ## Run every study, in hours; resumes after an interruption
	$(BIN)/python -m benchmarks.harness.run_all

torch-check: $(VENV)/.installed-test-all  ## Compare the examples' models with torch, at full size
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --quiet torch==2.13.0 numpy
	.venv-torch/bin/python tests/examples/torch_reference/make_reference.py --full build/torch
	TORCH_REFERENCE=build/torch $(BIN)/python -m pytest tests/examples/test_torch_forward.py

clean:  ## Remove the default environment, caches and outputs
	rm -rf .venv .venv-package .venv-torch build dist .pytest_cache .ruff_cache htmlcov .coverage demo.png
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# One stamp for each set of extras: installs again only when pyproject.toml changes.
$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	touch $@
