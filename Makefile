# `make demo` and `make test` work on a fresh machine: they make .venv with what they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch by its plain version: the build that a bare `torch` would bring has gigabytes of CUDA beside it.
TORCH := $(shell grep '^torch==' constraints.txt)

MINUTES ?= 10

.PHONY: demo test test-fast check format bench soak fuzz clean

demo: $(VENV)/.installed
	$(BIN)/compilepool demo

test: $(VENV)/.tested
	$(BIN)/python -m pytest

test-fast: $(VENV)/.tested
	$(BIN)/python -m pytest -m "not slow"

check: $(VENV)/.checked
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.checked
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.tested
	$(BIN)/python -m benchmarks.pool

soak: $(VENV)/.tested
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

fuzz: $(VENV)/.tested
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

clean:
	rm -rf $(VENV) build dist *.egg-info

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "compilepool needs Python 3.11 or later: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch]'
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,test]'
	touch $@

$(VENV)/.checked: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,test,check]'
	touch $@
