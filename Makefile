# Every target sets up .venv by itself. On Linux, PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu" saves the
# download of CUDA where no GPU is wanted.
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: setup quickstart test lint format bench clean

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints-cpu.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dapo needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints-cpu.txt -e ".[dev]"
	touch $@

quickstart: $(INSTALLED)
	$(BIN)/dapo train quickstart

test: $(INSTALLED)
	$(BIN)/python -m pytest

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy dapo_cli

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-cpu.txt -e ".[bench]"
	$(BIN)/python scripts/bench/step.py
	$(BIN)/python scripts/bench/lengths.py --completion-logits
	$(BIN)/python scripts/bench/head.py
	$(BIN)/python scripts/bench/verifier.py $(CASES)

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
