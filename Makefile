# Two commands: `make demo` runs the main job on real data, `make test` passes the tests.
# A fresh machine needs python3 >= 3.11 (with venv), make, and a package index.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all lint dev bench clean

demo: $(VENV)/.sim
	$(BIN)/fljax simulate --seed 0

test: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist loadfile -q

test-all: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile -q -m "slow or not slow"

dev: $(VENV)/.dev

bench: $(VENV)/.dev
	$(BIN)/python -m bench

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "fljax needs Python >= 3.11, got " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.sim: pyproject.toml $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[sim]"
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
