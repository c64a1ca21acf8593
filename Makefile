# Two commands: `make demo` runs the main job on real data, `make test` passes the tests.
# A fresh machine needs python3 >= 3.11 (with venv), make, and a package index.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
AOT ?= .aot

# Bytecode is made of what is imported, when it is: of all that is installed it takes two fifths of
# an installation.
INSTALL := python -m pip install --quiet --disable-pip-version-check --no-compile
PIP := $(BIN)/$(INSTALL)
# Programs that tests compile are kept for all calls of pytest, and for a week.
PROGRAMS := $(abspath $(VENV))/programs
PYTEST := FLJAX_TEST_PROGRAMS=$(PROGRAMS) $(BIN)/python -m pytest -q
# A file at a time, in the order of their names: small files come last, so both workers end together.
BY_FILE := -n 2 --dist loadfile --no-loadscope-reorder
# Where files are large each worker has a half, and takes from the other's when it has done its own.
BY_HALVES := -n 2 --dist worksteal
# Slow tests, and properties with more examples.
LEFT_OUT := FLJAX_TEST_HYPOTHESIS=ci $(PYTEST) -m "(slow or hypothesis) and not (optimized or release)"
# With XLA's own optimisations, from the files that have such a mark.
OPTIMIZED := FLJAX_TEST_OPTIMIZED=1 $(PYTEST) -m "optimized and not release" \
  $$(grep -rl mark.optimized tests --include='test_*.py')
# Tests that wait for processes of their own: one after the other, beside those that compute.
WAIT := $(addprefix tests/,test_plugins.py test_wheels.py $(addprefix simulation/test_,allocator.py \
  disk_full.py kill_everywhere.py processes.py seeds.py simulate.py))
# Each call of pytest has each test file's asserts rewritten in each worker, unless one may keep them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-rest test-release test-all lint docs matrix release-check dev bench aot clean

demo: $(VENV)/.sim
	$(BIN)/fljax simulate --seed 0

# The tables and figures of a paper, such as `make reproduce-wfna`: ten minutes.
reproduce-%: $(VENV)/.papers
	$(BIN)/fljax reproduce $*

test: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@find $(PROGRAMS) -type f -mtime +7 -delete 2>/dev/null || true
	$(PYTEST) $(BY_FILE)

# What `make test` leaves out: slow tests and a longer search for counterexamples. Beside them, one
# after the other and said after them, so that no core waits: types, tests that wait for processes,
# with XLA's own optimisations what depends on them, and the site, whose tutorials are run.
test-rest: $(VENV)/.dev $(VENV)/.docs
	@{ $(BIN)/mypy && $(LEFT_OUT) $(WAIT) && $(OPTIMIZED) && $(MAKE) docs; } \
	  >$(VENV)/beside.txt 2>&1 & beside=$$!; \
	$(LEFT_OUT) $(BY_HALVES) $(addprefix --ignore=,$(WAIT)); failed=$$?; \
	wait $$beside || failed=1; cat $(VENV)/beside.txt; exit $$failed

# What a release waits for besides: more schemes and settings in the tests that take longest.
test-release: $(VENV)/.dev
	$(PYTEST) -m release $(BY_HALVES)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in docs/_build/html. Tutorials are run; nothing is fetched; a warning is an error.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

# Every Python with the oldest and newest dependencies, no extra, each extra: tests/matrix.json.
# `make matrix SELECTION=default` runs what `make test` runs, in each.
matrix: $(VENV)/.release
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/nox $(if $(SELECTION),-- $(SELECTION))
	$(BIN)/python -m tests.matrix

# Both packages twice, to the same bytes; then each in an empty environment.
release-check: $(VENV)/.release
	$(BIN)/python -m tests.release

test-all:
	$(MAKE) test
	$(MAKE) test-rest
	$(MAKE) test-release

dev: $(VENV)/.dev

bench: $(VENV)/.dev
	$(BIN)/python -m bench

# Compilers of a TPU and of CUDA, each in an environment of its own; about 7 GB on disk.
aot: $(VENV)/.dev $(AOT)/.tpu $(AOT)/.cuda
	$(BIN)/python -m bench.aot

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "fljax needs Python >= 3.11, got " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.sim: pyproject.toml $(VENV)/bin/python
	$(PIP) -e ".[sim]"
	@touch $@

$(VENV)/.papers: pyproject.toml $(VENV)/bin/python
	$(PIP) -e ".[sim,secure]"
	@touch $@

$(AOT)/.%: pyproject.toml $(VENV)/.dev
	$(BIN)/python -m venv $(AOT)/$*
	$(AOT)/$*/bin/$(INSTALL) -e ".[sim]" \
	  $(if $(filter tpu,$*),libtpu "jax","jax[cuda12]")==$$($(BIN)/python -c 'import jax; print(jax.__version__)')
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/bin/python
	$(PIP) -e ".[dev]"
	@touch $@

$(VENV)/.docs: pyproject.toml $(VENV)/bin/python
	$(PIP) -e ".[docs]"
	@touch $@

$(VENV)/.release: pyproject.toml $(VENV)/bin/python
	$(PIP) -e ".[release]"
	@touch $@

clean:
	rm -rf $(VENV) $(AOT) .nox docs/_build build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
