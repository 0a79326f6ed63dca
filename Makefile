# `make demo` and `make test` each do their whole set-up first, in .venv; a second run skips it.

SHELL := /bin/bash
PYTHON ?= python3
RUN := scripts/run.sh

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench setup lock clean

help:
	@echo "make demo    a refresh is killed half way, resumed by Airflow's retry, and published whole"
	@echo "make test    lint, types, the rules of the house, and every test; PYTEST_ARGS go to pytest"
	@echo "make lint    ruff, mypy, import-linter"
	@echo "make format  write the code as ruff would have it"
	@echo "make bench   the benchmark; BENCH_ARGS go to it"
	@echo "make setup   only the set-up: .venv from constraints.txt, and Java"
	@echo "make lock    write constraints.txt anew, with the newest versions that pyproject.toml allows"
	@echo "make clean   remove .venv and all caches"

demo: setup
	@$(RUN) python -m demo.run

test: lint
	@scripts/postgres.sh
	@$(RUN) python -m pytest $(PYTEST_ARGS)

lint: setup
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy
	@$(RUN) lint-imports --no-cache --no-logo

format: setup
	@$(RUN) ruff check --fix .
	@$(RUN) ruff format .

bench: setup
	@$(RUN) python -m benchmarks.refresh $(BENCH_ARGS)

setup:
	@PYTHON="$(PYTHON)" scripts/setup.sh

lock: setup
	@scripts/lock.sh

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
