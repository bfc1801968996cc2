# The commands of this repository, for people and for CI. `make help` lists them.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
SECONDS ?= 60
MINUTES ?= 10
VARIANT ?= cpu
SEED ?= $(shell date +%s)
EXTRAS ?= tasks
SERVER_TESTS := tests/server tests/compat tests/tasks tests/attacks tests/backends
STOPS := tests/server/test_stops.py::test_what_was_received_is_answered

# For `make accept` and `make upstream`; see CONTRIBUTING.md.
ACCEPTANCE ?=
UPSTREAM_SERVER ?=
UPSTREAM_CLIENT ?=
UPSTREAM_PYTHON_BACKEND ?=
UPSTREAM_TUTORIALS ?=
UPSTREAM_VLLM_BACKEND ?=
UPSTREAM_CORE ?=
SUITE ?= examples L0_string_io L0_scalar_io L0_nan_inf L0_output_name L0_client_nobatch L0_batcher L0_model_update

BIN := $(VENV)/bin
# The pins apply to the Python and platform they were made for; others get the newest versions.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# In an environment of its own: its hundred packages do not fit together with ours.
CHECKOV := .tools/checkov-3.3.30

SPHINX := $(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build

.DEFAULT_GOAL := help
.PHONY: help serve test test-quick test-modes chaos fuzz coverage check docs layers dashboard chart constraints dist \
    image test-image bench bench-quick accept accept-clients upstream clean

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-22s %s\n", $$1, $$2 }'
	@echo
	@echo '  PYTHON=python3.12    the interpreter of the virtual environment (3.10 or newer)'
	@echo '  VENV=.venv           where that environment is'
	@echo '  ARGS="..."           more arguments: make test ARGS="tests/unit -x", make serve ARGS="--http-port=9000"'

serve: $(VENV)/.installed ## install, then serve the demo models on ports 8000 (HTTP, console), 8001 (gRPC) and 8002 (metrics)
	@$(BIN)/shoal serve --demo $(ARGS)

test: $(VENV)/.installed-dev ## install, then run the whole test suite
	@tools/test_programs.sh
	@$(BIN)/python tools/perf_analyzer.py >/dev/null || echo "skipped: the tests marked 'perf_analyzer'"
	@$(BIN)/python tools/kserve_client.py >/dev/null || echo "skipped: the tests marked 'kserve'"
	@# Beside the tests that run first: npm takes a minute.
	@($(BIN)/python tools/azurite.py >/dev/null || echo "skipped: the tests marked 'azurite'") &
	@PATH="$(CURDIR)/.tools/bin:$$PATH" $(BIN)/python tools/run_tests.py $(ARGS)

test-quick: $(VENV)/.installed-dev ## install, then run the unit tests: no sockets, at most a minute on two cores
	@$(BIN)/python tools/run_tests.py --quick

test-modes: $(VENV)/.installed-dev ## run the suite with loop execution and plans each forced on and off, and with front-end processes
	@for execution in loop threads; do for plans in true false; do \
	    echo "SHOAL_EXECUTION=$$execution SHOAL_PLANS=$$plans"; \
	    SHOAL_EXECUTION=$$execution SHOAL_PLANS=$$plans PATH="$(CURDIR)/.tools/bin:$$PATH" \
	        $(BIN)/python tools/run_tests.py $(ARGS) || exit 1; \
	done; done
	@for servers in linked processes; do \
	    echo "SHOAL_SERVERS=$$servers"; \
	    SHOAL_SERVERS=$$servers PATH="$(CURDIR)/.tools/bin:$$PATH" \
	        $(BIN)/python tools/run_tests.py $(or $(ARGS),$(SERVER_TESTS)) || exit 1; \
	done

chaos: $(VENV)/.installed-dev ## faults against a real server for MINUTES: killed processes, full disks, no memory; SEED repeats a run
	@echo "make chaos MINUTES=$(MINUTES) SEED=$(SEED)"
	@SHOAL_CHAOS_MINUTES=$(MINUTES) SHOAL_CHAOS_SEED=$(SEED) SHOAL_STOPS=50 \
	    $(BIN)/python -m pytest --timeout 600 --durations 5 tests/chaos tests/server/test_reloads_under_load.py \
	    tests/ray/test_long_runs.py tests/ray/test_commands.py \
	    tests/backends/common/test_formats.py::test_unloading_gives_memory_back \
	    $(foreach kind,http-0 http-0.1 grpc_own-0 grpc_own-0.1,'$(STOPS)[$(kind)]') $(ARGS)

fuzz: $(VENV)/.installed-dev ## search for inputs that break a parser, SECONDS for each (fuzz/README.md)
	@$(PIP) --editable '.[fuzz]'
	@$(BIN)/python -m fuzz --seconds $(SECONDS) $(ARGS)

coverage: $(VENV)/.installed-dev ## run tests under coverage.py: unit and server tests, or those that ARGS names
	@$(BIN)/python -m coverage erase
	@PATH="$(CURDIR)/.tools/bin:$$PATH" $(BIN)/python -m coverage run -m pytest -q $(or $(ARGS),tests/unit tests/server)
	@$(BIN)/python -m coverage combine -q
	@$(BIN)/python -m coverage report

check: $(VENV)/.installed-dev $(CHECKOV)/.installed ## ruff, Bandit, mypy --strict, import-linter, GitHub's schemas, image, Helm chart and compose file, and the documentation builds
	$(BIN)/ruff check .
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive src demo packages tools fuzz
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/layers.py --check
	$(BIN)/python tools/dashboard.py --check
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/python tools/chart.py --check
	$(BIN)/python tools/check_chart.py --checkov $(CHECKOV)/bin/checkov
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose/compose.yaml
	@# There is no wheel of it for every platform.
	@if [ -x $(BIN)/hadolint ]; then set -x; $(BIN)/hadolint deploy/docker/Dockerfile; else echo "skipped: hadolint"; fi
	$(SPHINX)

docs: $(VENV)/.installed-docs ## build the documentation into docs/_build
	@$(SPHINX)
	@echo "open docs/_build/index.html"

layers: $(VENV)/.installed-dev ## copy the import layers from pyproject.toml into ARCHITECTURE.md
	@$(BIN)/python tools/layers.py

dashboard: $(VENV)/.installed-dev ## write the Grafana dashboard into deploy/monitoring
	@$(BIN)/python tools/dashboard.py

chart: $(VENV)/.installed-dev ## write the table of values into the README of the Helm chart
	@$(BIN)/python tools/chart.py

constraints: $(VENV)/bin/python ## pin the newest versions of all dependencies in constraints.txt
	@$(BIN)/python tools/constraints.py

dist: $(VENV)/.installed-dev ## build sdists and wheels of shoal, shoal-demo and shoal-tritonserver into dist/
	@$(BIN)/python -m build --outdir dist .
	@$(BIN)/python -m build --outdir dist demo
	@$(BIN)/python -m build --outdir dist packages/tritonserver

image: ## build the image VARIANT=cpu, gpu or full with docker, podman or buildah (docs/deploy/docker.md)
	@tools/image.sh $(VARIANT) $(ARGS)

test-image: $(VENV)/.installed-dev ## build images and run them with compose, on a base made here; needs root, installs podman and buildah
	@tools/image_programs.sh
	@SHOAL_TEST_IMAGE=yes $(BIN)/python -m pytest --timeout 1800 -rs tests/deploy $(ARGS)

pyz: $(VENV)/.installed-dev ## build dist/shoal.pyz, one file with the server and the extras EXTRAS=tasks, for this Python and platform
	@$(PIP) 'shiv>=1.0'
	@mkdir -p dist
	@$(BIN)/shiv --quiet --compressed --extend-pythonpath --console-script shoal --output-file dist/shoal.pyz \
	    --python "/usr/bin/env $$($(BIN)/python -c 'import sys; print("python%d.%d" % sys.version_info[:2])')" '.[$(EXTRAS)]'
	@ls -lh dist/shoal.pyz

bench: $(VENV)/.installed ## compare Shoal with its peers, side by side; about half an hour (docs/benchmarks.md)
	@$(BIN)/python -m benchmarks.startup
	@$(BIN)/python -m benchmarks.load_check
	@$(BIN)/python -m benchmarks $(ARGS)

bench-quick: $(VENV)/.installed ## the tiny model and four servers of that comparison, in about five minutes
	@$(BIN)/python -m benchmarks --workloads W1 --peers shoal,triton,mosec,fastapi,onnxruntime \
	    --seconds 1 --growth no --name quick $(ARGS)

accept: $(if $(ACCEPTANCE),$(VENV)/.installed) ## run Triton's own tests; needs clones of its repositories (see CONTRIBUTING.md)
	@PATH="$(abspath $(BIN)):$$PATH" ACCEPTANCE="$(ACCEPTANCE)" UPSTREAM_SERVER="$(UPSTREAM_SERVER)" \
	    UPSTREAM_CLIENT="$(UPSTREAM_CLIENT)" PYTHON="$(PYTHON)" tools/accept.sh $(SUITE)

accept-clients: $(VENV)/.installed ## run NVIDIA's Model Analyzer and pytriton's clients, from PyPI; five minutes (see CONTRIBUTING.md)
	@$(BIN)/python tools/nvidia_clients.py $(ARGS)

upstream: $(if $(UPSTREAM_PYTHON_BACKEND)$(UPSTREAM_TUTORIALS)$(UPSTREAM_CORE),$(VENV)/.installed-dev) ## run NVIDIA's examples; needs clones of them (see docs/upstream-examples.md)
	@UPSTREAM_PYTHON_BACKEND="$(UPSTREAM_PYTHON_BACKEND)" UPSTREAM_TUTORIALS="$(UPSTREAM_TUTORIALS)" \
	    UPSTREAM_VLLM_BACKEND="$(UPSTREAM_VLLM_BACKEND)" UPSTREAM_CORE="$(UPSTREAM_CORE)" \
	    UPSTREAM_SERVER="$(UPSTREAM_SERVER)" $(BIN)/python tools/upstream_examples.py $(ARGS)

clean: ## remove everything that the other targets create
	rm -rf $(VENV) .tools docs/_build dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	    .import_linter_cache .coverage .coverage.* src/shoal/_version.py
	find src demo packages tests tools benchmarks examples docs -name __pycache__ -type d -prune -exec rm -rf {} +

# Time stamps of the installations: each is repeated when one of these files has changed.
PINNED := pyproject.toml demo/pyproject.toml packages/tritonserver/pyproject.toml constraints.txt

$(VENV)/bin/python:
	@tools/make_venv.sh "$(PYTHON)" "$(VENV)"

$(VENV)/.installed: $(PINNED) | $(VENV)/bin/python
	@echo "installing shoal into $(VENV)"
	@$(PIP) --editable '.[demo]' --editable demo
	@touch $@

$(VENV)/.installed-dev: $(PINNED) | $(VENV)/bin/python
	@echo "installing shoal and its development tools into $(VENV)"
	@$(PIP) --editable '.[dev,deploy,docs,demo,tritonserver]' --editable demo \
	    --editable packages/tritonserver
	@touch $(VENV)/.installed $(VENV)/.installed-docs $@

$(VENV)/.installed-docs: $(PINNED) | $(VENV)/bin/python
	@echo "installing shoal and Sphinx into $(VENV)"
	@$(PIP) --editable '.[docs,demo]' --editable demo
	@touch $(VENV)/.installed $@

$(CHECKOV)/.installed: | $(VENV)/bin/python
	@echo "installing checkov into $(CHECKOV)"
	@$(BIN)/python -m venv $(CHECKOV)
	@$(CHECKOV)/bin/python -m pip install --quiet --disable-pip-version-check \
	    $(subst checkov-,checkov==,$(notdir $(CHECKOV)))
	@touch $@
