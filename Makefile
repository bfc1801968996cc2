# Shoal's one interface: people and CI type the same words. `make help` prints them.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

# For `make accept`; see CONTRIBUTING.md.
ACCEPTANCE ?=
UPSTREAM_SERVER ?=
UPSTREAM_CLIENT ?=
SUITE ?= examples L0_string_io L0_scalar_io L0_nan_inf L0_output_name L0_client_nobatch L0_batcher L0_model_update

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help serve test test-modes check docs bench bench-quick accept clean

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'
	@echo
	@echo '  PYTHON=python3.12    the interpreter of the virtual environment (3.10 or newer)'
	@echo '  VENV=.venv           where that environment is'
	@echo '  ARGS="..."           more arguments: make test ARGS="tests/unit -x", make serve ARGS="--http-port=9000"'

serve: $(VENV)/.installed ## install, then serve the demo models on ports 8000 (HTTP, console), 8001 (gRPC) and 8002 (metrics)
	@$(BIN)/shoal serve --demo $(ARGS)

test: $(VENV)/.installed-dev ## install, then run the whole test suite
	@tools/test_programs.sh
	@$(BIN)/python tools/perf_analyzer.py >/dev/null || echo "left out: the tests marked 'perf_analyzer'"
	@PATH="$(CURDIR)/.tools/bin:$$PATH" $(BIN)/python tools/run_tests.py $(ARGS)

test-modes: $(VENV)/.installed-dev ## run the suite with loop execution and plans each forced on and off
	@for execution in loop threads; do for plans in true false; do \
	    echo "SHOAL_EXECUTION=$$execution SHOAL_PLANS=$$plans"; \
	    SHOAL_EXECUTION=$$execution SHOAL_PLANS=$$plans PATH="$(CURDIR)/.tools/bin:$$PATH" \
	        $(BIN)/python tools/run_tests.py $(ARGS) || exit 1; \
	done; done

check: $(VENV)/.installed-dev ## lint, format, types and layers: ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(VENV)/.installed-docs ## build the documentation into docs/_build
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build
	@echo "open docs/_build/index.html"

bench: $(VENV)/.installed ## compare Shoal with its peers, side by side; about half an hour (docs/benchmarks.md)
	@$(BIN)/python -m benchmarks.startup
	@$(BIN)/python -m benchmarks.load_check
	@$(BIN)/python -m benchmarks $(ARGS)

bench-quick: $(VENV)/.installed ## the tiny model and four servers of that comparison, in about five minutes
	@$(BIN)/python -m benchmarks --workloads W1 --peers shoal,triton,mosec,fastapi,onnxruntime \
	    --seconds 1 --growth no --name quick $(ARGS)

accept: $(if $(ACCEPTANCE),$(VENV)/.installed) ## run Triton's own tests, where their clones are at hand (see CONTRIBUTING.md)
	@PATH="$(abspath $(BIN)):$$PATH" ACCEPTANCE="$(ACCEPTANCE)" UPSTREAM_SERVER="$(UPSTREAM_SERVER)" \
	    UPSTREAM_CLIENT="$(UPSTREAM_CLIENT)" PYTHON="$(PYTHON)" tools/accept.sh $(SUITE)

clean: ## remove what the other targets made
	rm -rf $(VENV) .tools docs/_build dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	    .import_linter_cache
	find src demo tests tools benchmarks examples docs -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: each says that what it is named for was installed after pyproject.toml last changed.

$(VENV)/bin/python:
	@tools/make_venv.sh "$(PYTHON)" "$(VENV)"

$(VENV)/.installed: pyproject.toml demo/pyproject.toml | $(VENV)/bin/python
	@echo "installing shoal into $(VENV)"
	@$(PIP) --editable '.[demo]' --editable demo
	@touch $@

$(VENV)/.installed-dev: pyproject.toml demo/pyproject.toml | $(VENV)/bin/python
	@echo "installing shoal and its development tools into $(VENV)"
	@$(PIP) --editable '.[dev,demo]' --editable demo
	@touch $(VENV)/.installed $@

$(VENV)/.installed-docs: pyproject.toml demo/pyproject.toml | $(VENV)/bin/python
	@echo "installing shoal and Sphinx into $(VENV)"
	@$(PIP) --editable '.[docs,demo]' --editable demo
	@touch $(VENV)/.installed $@
