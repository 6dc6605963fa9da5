# make setup | check | test | demo | bench | chaos | simulate SEED=N
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup check test demo bench chaos simulate clean

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock requirements-setup.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tidelog needs Python 3.11 or newer: install it, or name one with make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --require-hashes -r requirements-setup.lock
	@$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements.lock
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps -e .
	@touch $@
