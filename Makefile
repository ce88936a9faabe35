# Needs make and python3 (3.11 or newer, with venv), nothing else.
#
#   VENV=path      the environment to create and use   (default .venv)
#   PYTHON=python  the interpreter to create it with   (default python3)

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-slow coverage test-package test-oldest test-newest test-wheel lint fuzz docs
.PHONY: test-gpu-counts
.PHONY: build examples-smoke report bench-smoke bench torch-check
.PHONY: detection-check clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.installed-examples  ## Train a small transformer with AdamW, Muon and Jorge; write demo.png
	$(BIN)/python -m examples.language_model.main

SMOKE := --optimizer jorge-whitening/sgd-schedule --steps 2
examples-smoke: $(VENV)/.installed-examples  ## Run each example for a few steps
	$(BIN)/python -m examples.language_model.main --quick --figure build/examples/demo.png --out build/examples/language_model
	$(BIN)/python -m examples.classification.main $(SMOKE) --out build/examples/classification
	$(BIN)/python -m examples.segmentation.main $(SMOKE) --out build/examples/segmentation
	$(BIN)/python -m examples.detection.main $(SMOKE) --out build/examples/detection

test: $(VENV)/.installed-test-all  ## Run all tests but the slow ones, in minutes
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-fast: $(VENV)/.installed-test-all  ## Run the package's own tests, while editing
	$(BIN)/python -m pytest -n 2 -m "not slow" tests/package

test-slow: $(VENV)/.installed-test-all  ## Run the slow tests: processes, full-size models
	$(BIN)/python -m pytest -n 2 -m slow

coverage: $(VENV)/.installed-test-all  ## Run the package's own tests, with coverage
	$(BIN)/python -m pytest -n 2 --cov tests/package tests/contracts

test-package:  ## Run the package's own tests, in .venv-package, with its test extra alone
	$(MAKE) VENV=.venv-package .venv-package/.installed-test
	.venv-package/bin/python -m pytest -n 2 tests/package

# The lower bounds that pyproject.toml declares, as exact versions.
OLDEST := $(shell sed -nE 's/^    "(jax|optax)>=([0-9.]+)",/\1==\2/p' pyproject.toml)

test-oldest:  ## Run the package's own tests with the oldest jax and optax allowed
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --editable ".[test]" $(OLDEST)
	.venv-oldest/bin/python -m pytest -n 2 tests/package

test-newest:  ## Run the package's own tests with the newest jax and optax for PYTHON
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --upgrade --editable ".[test]" jax optax
	.venv-newest/bin/python -m pytest -n 2 tests/package

# The version of jax that the counts were made with, as an exact version.
COUNTED := $(shell sed -nE 's/^WITH_JAX = "([0-9.]+)"/\1/p' tests/compiled/test_gpu_counts.py)

test-gpu-counts:  ## Compile for a GPU, without one, and compare with the pinned counts
	$(PYTHON) -m venv .venv-gpu
	.venv-gpu/bin/python -m pip install --quiet --editable ".[test-all,gpu]" \
		jax==$(COUNTED) jax-cuda12-plugin==$(COUNTED)
	JAX_PLATFORMS=cpu GPU_COUNTS=1 .venv-gpu/bin/python -m pytest -n 2 \
		tests/compiled/test_gpu_counts.py tests/compiled/test_gpu_programs.py

build:  ## Build the source distribution and the wheel into dist
	$(PYTHON) -m venv .venv-build
	.venv-build/bin/python -m pip install --quiet build
	rm -rf dist
	.venv-build/bin/python -m build --outdir dist

test-wheel: build  ## Test the built wheel, installed, from a folder without the sources
	$(PYTHON) -m venv --clear .venv-wheel
	wheel=$$(ls dist/*.whl) && .venv-wheel/bin/python -m pip install --quiet "$$wheel[test]"
	folder=$$(mktemp -d) && mkdir $$folder/tests \
	&& cp -r tests/__init__.py tests/conftest.py tests/helpers tests/package $$folder/tests \
	&& cp pyproject.toml $$folder && python=$(CURDIR)/.venv-wheel/bin/python && cd $$folder \
	&& $$python -c "import jorge_optax; assert '.venv-wheel' in jorge_optax.__file__" \
	&& $$python -m pytest -n 2 tests && rm -r $$folder

lint: $(VENV)/.installed-dev  ## Check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright --pythonpath $(BIN)/python

fuzz: $(VENV)/.installed-test-all  ## Attack the package with thousands of random cases
	$(BIN)/python -m benchmarks.robustness.fuzz

docs: $(VENV)/.installed-docs  ## Build the site into build/docs; warnings are errors
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/docs

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

detection-check: $(VENV)/.installed-test-all  ## Take a step of Mask R-CNN at full size, in minutes
	DETECTION_CHECK=1 $(BIN)/python -m pytest tests/examples/test_configs.py -k mask_rcnn

clean:  ## Remove the default environment, caches and outputs
	rm -rf .venv .venv-* build dist .pytest_cache .ruff_cache htmlcov .coverage demo.png
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# One stamp for each set of extras: installs again only when pyproject.toml changes.
$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV), which takes a minute or two the first time ..."
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	touch $@
