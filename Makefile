# Everything a contributor runs. Each target sets up what it needs in its own virtual environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Containers often keep Python from writing bytecode; then each test process would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup quickstart test test-long test-web screenshots test-torch check docs format benchmarks web-scripts clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: $(STAMP)  ## create .venv and install torch-diode with its development tools

$(STAMP): pyproject.toml constraints.txt constraints-cpu.txt
	@echo "setting up $(VENV) (about a minute; PyTorch is the large part)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@# A GPU build of torch brings the triton it needs; a CPU build brings none, and the tests compile with it.
	@$(BIN)/python -c 'import triton' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints-cpu.txt triton
	@touch $@

quickstart: $(STAMP)  ## run the whole loop on the bundled measurements
	$(BIN)/python examples/quickstart.py

# Tests wait for processes, servers and clocks part of the time: one worker more than there are processors.
test: $(STAMP)  ## run the tests
	$(BIN)/python -m pytest -n $$(($$(nproc) + 1)) --dist loadgroup -m 'not long and not web' --durations 20 $(TESTS)

# FOR_S=600 begins no campaign after ten minutes; each day it draws others.
test-long: $(STAMP)  ## run the campaigns: kills, races, fuzzing, installs, many examples (about half an hour)
	$(BIN)/python -m pytest -n $$(($$(nproc) + 1)) --dist loadgroup -m '(long or hypothesis) and not web' --hypothesis-profile=long \
		--timeout 1800 --durations 20 $(if $(FOR_S),--for-seconds $(FOR_S)) $(TESTS)

test-web: $(STAMP)  ## run the tests of diode serve in a browser: Debian's chromium, or the one that CHROMIUM names
	$(BIN)/python -m pytest -n $$(nproc) --dist loadgroup -m web --durations 10 tests/web

screenshots: $(STAMP)  ## take the pictures in docs/explorer of every page of diode serve
	PYTHONPATH=tests $(BIN)/python tests/web/screenshots.py docs/explorer

test-torch: $(STAMP)  ## run the collectors' and the hook's tests against torch 2.10 to 2.15, each in an environment of its own
	$(BIN)/python tests/run_torch_versions.py

web-scripts:  ## write the script that draws the pictures of diode serve, from the npm packages in explorer/scripts
	cd explorer/scripts && npm ci --no-audit --no-fund && node build.mjs

check: $(STAMP) docs  ## format, lint, types, import rules, prose and the pages, without changing a source
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/prose.py

docs: $(STAMP)  ## build the pages into site/; every link must lead somewhere
	$(BIN)/python .ci/reference.py
	$(BIN)/python .ci/results_picture.py
	$(BIN)/zensical build --clean --strict

format: $(STAMP)  ## format, and fix what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmarks: $(STAMP)  ## run every benchmark that needs no GPU
	@for script in bench_collector_overhead bench_ingest bench_ingest_postgres bench_daemon bench_cache bench_views \
		bench_predict bench_hook bench_import bench_query bench_corrections; do \
		echo "== benchmarks/$$script.py"; $(BIN)/python benchmarks/$$script.py || exit 1; done

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
