# Every target creates .venv where it is missing, or brings it up to date where pyproject.toml or constraints.txt changed.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# Through dask_rl/, so that relative imports resolve as dask_rl.*: the bare folders would be other packages.
SOURCES := dask_rl/ dask_rl/storage/ dask_rl/learners/ dask_rl/pipeline/ tests benchmarks notebooks

.PHONY: setup demo test data services notebooks storm check bench chaos format clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is $$($(PYTHON) -V 2>&1); dask-rl needs 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "creating .venv …" >&2
	@$(PYTHON) -m venv .venv
	@echo "installing dask-rl and what it needs (a few minutes at the first time, most of it torch) …" >&2
	@$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e ".[dev,formats]"
	@touch $@
	@echo "ready" >&2

demo: $(STAMP)
	$(BIN)/dask-rl demo

test: $(STAMP)
	$(BIN)/pytest -m "not storm and not notebook and not service and not data"

data: $(STAMP)
	$(BIN)/pytest -m "data and not storm and not service"

services: $(STAMP)
	$(BIN)/pytest -m "service and not storm"

notebooks: $(STAMP)
	$(BIN)/pytest -m notebook

storm: $(STAMP)
	$(BIN)/pytest -m storm

check: $(STAMP)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

chaos: $(STAMP)
	$(BIN)/python benchmarks/chaos.py --faults 20
	$(BIN)/python benchmarks/chaos.py --faults 3 --kinds kill --compile on

format: $(STAMP)
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

clean:
	rm -rf .venv build dist *.egg-info
