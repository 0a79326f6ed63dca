# Every target that needs the set-up does it first, in .venv; a second run skips it.

SHELL := /bin/bash
PYTHON ?= python3
RUN := scripts/run.sh
CHAOS_ARGS ?= --kills 1000 --seed 1
MIGRATIONS_CHAOS_ARGS ?= --kills 100 --seed 1

.DEFAULT_GOAL := help
.PHONY: help demo docs diagrams screenshots check test test-all tests messages lint format bench bench-peers bench-chart chaos matrix migrations-chaos setup lock clean

help:
	@echo "make demo    kill a refresh half way, resume it by Airflow's retry, and publish it whole"
	@echo "make docs    build the site of docs/ into build/site; dead links, missing anchors and orphan pages fail"
	@echo "make diagrams  draw docs/diagrams into docs/images"
	@echo "make screenshots  take the pictures in docs/images of a running Airflow; needs Chromium"
	@echo "make check   run the linters, and all tests without Spark, Airflow and servers; some minutes"
	@echo "make test    run these, and some tests with Spark, Airflow and servers; a quarter of an hour. PYTEST_ARGS go to pytest"
	@echo "make test-all  run every test, random ones at full length"
	@echo "make lint    run ruff, mypy and import-linter"
	@echo "make messages  rewrite the messages that unit tests expect; read the diff"
	@echo "make format  format the code with ruff"
	@echo "make bench   compare refreshes with a script written by hand; BENCH_ARGS go to benchmarks.refresh"
	@echo "make bench-peers  install dlt and Airbyte's CDK into .venv/peers, for BENCH_ARGS=--peers"
	@echo "make bench-chart  write tables and chart of docs/benchmarks.md from the kept figures"
	@echo "make chaos   kill refreshes 1,000 times while a reader reads; CHAOS_ARGS instead of '$(CHAOS_ARGS)'"
	@echo "make migrations-chaos  kill deploys 100 times, release after release; MIGRATIONS_CHAOS_ARGS instead of '$(MIGRATIONS_CHAOS_ARGS)'"
	@echo "make matrix  try the wheel with each Airflow and each Spark, two hours; MATRIX_ARGS go to tests.matrix"
	@echo "make setup   install .venv from constraints.txt, and Java"
	@echo "make lock    write constraints.txt with the newest versions that pyproject.toml allows"
	@echo "make clean   remove .venv and all caches"

demo: setup
	@$(RUN) python -m demo.run

docs: setup
	@$(RUN) scripts/docs.sh

diagrams: setup
	@$(RUN) scripts/diagrams.sh

screenshots: setup
	@scripts/packages.sh chromium
	@$(RUN) python -m demo.screenshots

# Lint beside the tests: the type checker keeps one core busy, the tests wait a lot.
check: setup
	@$(MAKE) -s -j 2 lint tests TIER=check

test: setup
	@scripts/packages.sh postgresql chromium
	@scripts/axe.sh
	@$(MAKE) -s -j 2 lint tests TIER=test

test-all: setup
	@scripts/packages.sh postgresql chromium
	@scripts/axe.sh
	@scripts/weed.sh
	@$(MAKE) -s -j 2 lint tests TIER=all

tests:
	@scripts/test.sh $(TIER) $(PYTEST_ARGS)

# Without a tier: only a run of all unit tests can tell that a message is no longer used.
messages: setup
	@scripts/packages.sh postgresql
	@$(RUN) python -m pytest tests/unit -n 3 --dist worksteal --snapshot-update $(PYTEST_ARGS)
	@$(RUN) python -m scripts.troubleshooting

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

bench-peers: setup
	@$(RUN) scripts/peers.sh

bench-chart: setup
	@$(RUN) python -m benchmarks.page

chaos: setup
	@$(RUN) python -m tests.chaos $(CHAOS_ARGS)

migrations-chaos: setup
	@$(RUN) python -m tests.migrations_chaos $(MIGRATIONS_CHAOS_ARGS)

matrix: setup
	@scripts/packages.sh postgresql chromium
	@$(RUN) python -m tests.matrix $(MATRIX_ARGS)

setup:
	@PYTHON="$(PYTHON)" scripts/setup.sh

lock: setup
	@scripts/lock.sh

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
