# `make demo` and `make test` each do their whole set-up first, in .venv; a second run skips it.

SHELL := /bin/bash
PYTHON ?= python3
RUN := scripts/run.sh
CHAOS_ARGS ?= --kills 1000 --seed 1
MIGRATIONS_CHAOS_ARGS ?= --kills 100 --seed 1

.DEFAULT_GOAL := help
.PHONY: help demo screenshots check test test-all tests messages lint format bench chaos migrations-chaos setup lock clean

help:
	@echo "make demo    a refresh is killed half way, resumed by Airflow's retry, and published whole"
	@echo "make screenshots  the pictures in docs/images, of a running Airflow; needs Chromium"
	@echo "make check   lint, types, rules, and all tests without Spark, Airflow and servers; some minutes"
	@echo "make test    that, and a part of the tests with them; a quarter of an hour. PYTEST_ARGS go to pytest"
	@echo "make test-all  every test, random ones at full length"
	@echo "make lint    ruff, mypy, import-linter"
	@echo "make messages  rewrite the messages that unit tests expect, for you to read in the diff"
	@echo "make format  write the code as ruff would have it"
	@echo "make bench   the benchmark; BENCH_ARGS go to it"
	@echo "make chaos   1,000 kills, with a reader looking on; CHAOS_ARGS instead of '$(CHAOS_ARGS)'"
	@echo "make migrations-chaos  100 kills of deploys, release after release; MIGRATIONS_CHAOS_ARGS likewise"
	@echo "make setup   only the set-up: .venv from constraints.txt, and Java"
	@echo "make lock    write constraints.txt anew, with the newest versions that pyproject.toml allows"
	@echo "make clean   remove .venv and all caches"

demo: setup
	@$(RUN) python -m demo.run

screenshots: setup
	@scripts/packages.sh chromium
	@$(RUN) python -m demo.screenshots

# Lint beside the tests: the type checker keeps one core busy, the tests wait a lot.
check: setup
	@$(MAKE) -s -j 2 lint tests TIER=check

test: setup
	@scripts/packages.sh postgresql chromium
	@$(MAKE) -s -j 2 lint tests TIER=test

test-all: setup
	@scripts/packages.sh postgresql chromium
	@$(MAKE) -s -j 2 lint tests TIER=all

tests:
	@scripts/test.sh $(TIER) $(PYTEST_ARGS)

# Without a tier: only a run of all unit tests can tell that a message is no longer used.
messages: setup
	@scripts/packages.sh postgresql
	@$(RUN) python -m pytest tests/unit -n 3 --dist worksteal --snapshot-update $(PYTEST_ARGS)

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

chaos: setup
	@$(RUN) python -m tests.chaos $(CHAOS_ARGS)

migrations-chaos: setup
	@$(RUN) python -m tests.migrations_chaos $(MIGRATIONS_CHAOS_ARGS)

setup:
	@PYTHON="$(PYTHON)" scripts/setup.sh

lock: setup
	@scripts/lock.sh

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
