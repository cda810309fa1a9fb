PYTHON := $(shell for p in python3.12 $(HOME)/.pyenv/versions/3.12.*/bin/python3.12 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
CONTRACT ?= contracts/qwen3_5_35b_a3b.yaml
CONTRACTS := $(wildcard contracts/*.yaml)
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help install compile check test lint types golden verify deep demo bench clean

help:  ## say what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/isoexec: pyproject.toml
	@test -n "$(PYTHON)" || { echo "isoexec needs Python 3.11 or newer" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(BIN)/.test: requirements/test.lock $(BIN)/isoexec
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' || { echo "the tests need Python 3.12" >&2; exit 2; }
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --requirement requirements/test.lock
	@touch $@

install: $(BIN)/isoexec  ## the compiler, into .venv

compile: $(BIN)/isoexec  ## one contract: make compile CONTRACT=contracts/x.yaml
	$(BIN)/isoexec compile $(CONTRACT)

check: lint types verify test  ## all that CI runs

test: $(BIN)/.test  ## every test that needs no GPU
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(BIN)/.test  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(BIN)/.test  ## mypy, strict
	$(BIN)/mypy

verify: $(BIN)/isoexec  ## generated/ is what contracts/ compile to
	$(BIN)/isoexec verify $(CONTRACTS)

deep: $(BIN)/.test  ## and so is its PTX
	$(BIN)/isoexec verify --deep $(CONTRACTS)

golden: $(BIN)/.test  ## rewrite what tests compare: contracts, generated packages, expected cases, docs
	$(BIN)/python -m tests.update_contracts
	$(BIN)/python -m tests.update_cases
	$(BIN)/isoexec compile $(CONTRACTS)
	$(BIN)/isoexec support $(CONTRACTS) > docs/support.md
	$(BIN)/python bench/page.py

demo: $(BIN)/.test  ## stock frameworks disagree, bound ones do not
	$(BIN)/python -m examples.demo

bench: $(BIN)/.test  ## what compiling costs; the GPU benchmarks are `python -m bench.<name>`
	$(BIN)/python -m bench.compiler

clean:  ## remove what make installed
	rm -rf $(VENV)
