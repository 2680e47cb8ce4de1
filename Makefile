# Needs make, a Python 3 to start with, and what `make env` asks for. PYTHON=/path/to/python3.11 chooses the interpreter.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := demo

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?=

# Quickest first: a broken rule is seen before a server is started. A directory that is not named here runs last.
STAGES := control memory environment cuda gpu speech vision compute triton demo
NAMED := $(foreach stage,$(STAGES),$(wildcard tests/$(stage)))
TESTS := $(NAMED) $(filter-out $(NAMED),$(patsubst %/,%,$(wildcard tests/*/)))

.PHONY: demo test lint env bench schedules soak clean

demo: env
	$(BIN)/omniflow demo

test: lint
	$(BIN)/pytest -q -x $(TESTS)

lint: env
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

# Does nothing, quickly, when the environment is already what the lock says.
env:
	@PYTHONPATH=tools python3 -m environment.build --environment "$(VENV)" --python "$(PYTHON)"
	@$(BIN)/python cuda/build.py

# A million random schedules against the oracle; a failure prints the seed that replays it.
schedules: env
	$(BIN)/python -m tests.control.oracle --schedules 1000000

# An hour of streams, cancels and killed roles on a real server.
soak: env
	$(BIN)/python tools/load/soak.py --minutes 60

bench: env
	PYTHONPATH=tools $(BIN)/python -m bench

clean:
	rm -rf $(VENV) .venv-rivals build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
