# `make demo` and `make test` need only Python >= 3.11, make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo test check slow lint format bench lock clean

help:  ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/'

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

demo: $(STAMP)  ## real data, from download to recommendations, in a minute
	$(BIN)/equipoise demo

test: lint check  ## everything CI runs

check: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not slow and not gpu"

slow: $(STAMP)  ## the full-size checks (minutes, up to 9 GB of memory)
	$(BIN)/python -m pytest -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(STAMP)  ## renew requirements.lock from pyproject.toml
	$(BIN)/python -m pip install --quiet --upgrade --group dev .
	$(BIN)/python -m pip freeze --exclude equipoise > requirements.lock

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
