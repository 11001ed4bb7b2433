# `make demo` and `make test` need only Python >= 3.11, make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# What is never imported need not be compiled
INSTALL := $(PIP) install --no-compile
CORE := $(VENV)/.core
DEV := $(VENV)/.dev
SERVE := $(VENV)/.serve
FLOORS := .venv-floors

.PHONY: help demo serve cluster test check kernels floors slow paper docs bench wheelcheck licences lint format lock clean

help:  ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/'

$(CORE): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -c requirements.lock -e '.[report]'
	@touch $(CORE)

# torch comes first and exactly as pinned: a range would bring gigabytes of CUDA packages
$(DEV): $(CORE)
	$(INSTALL) torch==2.13.0
	$(INSTALL) -r requirements.lock
	@touch $(DEV)

demo: $(CORE)  ## real data, from download to recommendations, in a minute
	$(BIN)/equipoise demo --report report.html

ROWS ?= 50000000
cluster: $(CORE)  ## two workers on this machine, 50 million interactions; make cluster ROWS=2000000
	$(INSTALL) -c requirements.lock -e '.[cluster]'
	$(BIN)/python benchmarks/cluster.py --interactions $(ROWS)

$(SERVE): $(CORE)
	$(INSTALL) -c requirements.lock -e '.[serve]'
	@touch $(SERVE)

PORT ?= 8000
serve: $(SERVE)  ## a page to try two models on, fitted on real data; make serve PORT=8000
	$(BIN)/equipoise serve --demo --port $(PORT) --open

test: lint check kernels floors  ## everything CI runs

# One BLAS thread a process: two test processes share two cores. A test that hangs fails by name.
TESTS := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --timeout 600 -m "not slow and not gpu"
check: $(DEV)
	$(TESTS)

# Each processor rounds sums in another order. `make test` runs the optimality conditions with the
# oldest kernels of OpenBLAS; `make slow` runs all tests of solves, also with those of most machines.
KERNELS := Prescott $(shell grep -qw avx2 /proc/cpuinfo 2>/dev/null && echo Haswell || echo Nehalem)
ROUNDED := tests/solve $(patsubst %,tests/models/test_%.py,linear lowpass optimality theorems updating)
kernels: $(DEV)
	OPENBLAS_CORETYPE=Prescott $(TESTS) tests/models/test_optimality.py

# The package as users install it, beside the oldest versions that it says it works with
floors:  ## the package with the lowest versions of its dependencies that pyproject.toml allows
	$(PYTHON) -m venv --clear $(FLOORS)
	$(FLOORS)/bin/python -m pip --quiet --disable-pip-version-check install --no-compile . $$($(PYTHON) tools/floors.py)
	$(FLOORS)/bin/python -m pip check
	$(FLOORS)/bin/python tools/smoke.py

slow: $(DEV)  ## full-size checks, faults of a cluster, other BLAS kernels (minutes, up to 9 GB of memory)
	$(BIN)/python -m pytest -m slow
	for kernel in $(KERNELS); do \
	  OPENBLAS_CORETYPE=$$kernel $(TESTS) $(ROUNDED) || exit 1; \
	done

DATA ?= ../shared/data
paper: $(CORE)  ## every table and figure of the paper; make paper DATA=folder of the data sets
	$(BIN)/python paper/run.py all --data $(DATA)

docs: $(DEV)  ## the documentation site, in docs/_build (no network, warnings are errors)
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build
	@echo "open docs/_build/index.html"

LIMIT ?= 300
bench: $(DEV)  ## comparison with other libraries on the same data (hours; 10 GB); make bench LIMIT=120
	$(BIN)/python benchmarks/bench.py --data $(DATA) --limit $(LIMIT)
	$(BIN)/python benchmarks/new_items.py --data $(DATA)
	$(BIN)/python benchmarks/new_items.py --data $(DATA) --peers .bench/env
	-PYTHONPATH=src .bench/env/RecTools/bin/python -m pytest -W ignore tests/wrappers/test_rectools.py
	-PYTHONPATH=src .bench/env/LensKit/bin/python -m pytest -W ignore tests/wrappers/test_lenskit.py
	$(BIN)/python -m pytest tests/wrappers/test_recipes.py

wheelcheck: $(DEV)  ## build twice and compare; install without extras under every Python at hand
	$(BIN)/nox -f noxfile.py

licences: $(DEV)  ## the packages equipoise needs, with versions and licences
	$(BIN)/python tools/licences.py

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/plain_words.py src tests benchmarks paper --most 1

format: $(DEV)  ## format and fix with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(DEV)  ## renew requirements.lock from the dependency groups of pyproject.toml
	$(PIP) install --upgrade --group dev -e .
	$(PIP) freeze --exclude equipoise --exclude torch > requirements.lock

clean:  ## remove the environment and all caches
	rm -rf $(VENV) $(FLOORS) .pytest_cache .mypy_cache .ruff_cache
