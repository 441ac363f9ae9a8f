# Every target sets up .venv from requirements.lock by itself.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test check gpu torture bench docs tutorials tables lock clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

.venv/.locked: requirements.lock
	@command -v $(PYTHON) >/dev/null || \
		{ echo "Python 3.10 or newer is needed, but '$(PYTHON)' was not found; set PYTHON=/path/to/python3." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Python 3.10 or newer is needed, but '$(PYTHON)' is $$($(PYTHON) -V 2>&1); set PYTHON=/path/to/python3." >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet -r requirements.lock
	@touch $@

.venv/.ready: .venv/.locked pyproject.toml
	$(BIN)/pip install --quiet --no-deps -e .
	@touch $@

demo: .venv/.ready  ## train on the embedded digits (minutes) and write the report to runs/demo
	$(BIN)/gppvae demo --out runs/demo

check: .venv/.ready  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check  ## check, then every test
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

gpu: .venv/.ready  ## the tests that need a GPU
	OMP_NUM_THREADS=1 $(BIN)/pytest -m gpu -rs

torture: .venv/.ready  ## attack it all: kills, failing disks, 10^5 changed inputs (half an hour), into results/torture.json
	OMP_NUM_THREADS=1 $(BIN)/python tests/torture/run.py

bench: .venv/.ready  ## every script in benchmarks/, one after the other
	@set -e; for script in benchmarks/[!_]*.py; do \
		[ -e "$$script" ] || { echo "benchmarks/ holds no script." >&2; exit 1; }; \
		echo "== $$script"; $(BIN)/python "$$script"; \
	done

docs: .venv/.ready  ## the documentation, into docs/_build/html
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

tutorials: .venv/.ready  ## run the pages that are programs: pictures, printed lines, results/tutorials.json
	OMP_NUM_THREADS=1 $(BIN)/python docs/run_pages.py

tables: .venv/.ready  ## the result tables, from results/*.json
	$(BIN)/python -m gppvae.paper.tables

# CUDA libraries stay out of the lock: pip adds them where the torch build that it installs asks for them.
lock:  ## renew requirements.lock from pyproject.toml
	$(PYTHON) -m venv build/uv
	build/uv/bin/pip install --quiet uv
	echo "torch==2.13.0" > build/constraints.txt
	build/uv/bin/uv pip compile pyproject.toml --extra zarr --extra parquet --extra anndata --extra onnx --extra explore \
		--extra dev --extra docs \
		--constraint build/constraints.txt \
		--universal --python-version 3.10 --upgrade --no-annotate --quiet --custom-compile-command "make lock" \
		--output-file build/full.lock
	grep -vE '^(nvidia|cuda|triton)[-=]' build/full.lock > build/requirements.lock
	mv build/requirements.lock requirements.lock

clean:  ## remove .venv, caches and built files; runs/ stays
	rm -rf .venv build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
