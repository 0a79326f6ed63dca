# Two commands: `make demo` and `make test`. Each does its own set-up first, in .venv; a second run skips it.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.setup-stamp
RUN := scripts/run.sh

.DEFAULT_GOAL := help
.PHONY: help demo test lint setup bench clean

help:
	@echo "make demo   watch a refresh be killed half way, resumed by Airflow's retry, and published whole"
	@echo "make test   lint, types, rules of the house, and every test"
	@echo "make lint   ruff, mypy, import-linter"
	@echo "make bench  the benchmark of docs/benchmarks.md"
	@echo "make setup  only the set-up: .venv from the lock, Java, PostgreSQL for the tests"

demo: setup
	$(RUN) python -m demo.run

test: setup lint
	$(RUN) python -m pytest $(PYTEST_ARGS)

lint: setup
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(RUN) lint-imports

bench: setup
	$(RUN) python -m benchmarks.refresh $(BENCH_ARGS)

setup:
	@PYTHON="$(PYTHON)" scripts/setup.sh

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
