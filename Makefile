# Everything is run through these targets; `make test` is what CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEED ?=
SCENARIO ?=
MINUTES ?= 10
ONLY ?=
AGAINST ?=
ROUNDS ?=
ROWS ?=
QUICK ?=
PYTEST := $(BIN)/python -m pytest

.PHONY: help setup check test docs demo bench chaos simulate soak mutants clean

help:
	@echo "make setup         create .venv with everything in it"
	@echo "make check         types, lints, layers and style, in seconds"
	@echo "make test          everything that must pass, in about 15 minutes on two cores"
	@echo "make docs          writes docs/generated (modules, rules and tests, mutants), and the pages"
	@echo "                       in git that are made from the code"
	@echo "make demo          the main job: flights through the log into a lake, audited"
	@echo "make bench         side by side with Apache Kafka, how the controller grows, and our Python clients"
	@echo "                       beside aiokafka and kafka-python; writes benchmarks/*.md; QUICK=1 with"
	@echo "                       smaller rows and fewer rounds (40 minutes), ROUNDS=N"
	@echo "make bench AGAINST=COMMIT   two versions of tidelog beside each other: a ratio and a verdict"
	@echo "                       per row; ROWS=word,word ROUNDS=N QUICK=1 for less"
	@echo "make chaos         the long forms of the kill and fault runs; ONLY=resizes takes the ten minutes"
	@echo "                       of a topic that grows and shrinks all the time"
	@echo "make simulate SEED=N   replay one seed of the simulation; SCENARIO=cluster, moves, resizes,"
	@echo "                       autoscaling, compacted, stock, transactions, broker or log alone"
	@echo "make soak MINUTES=N    seeds of the simulation that have not run before, printed; MOVERS=300"
	@echo "                       runs so many pinned seeds of moves, and finds their planted bugs;"
	@echo "                       RESIZES=1000 of a topic that grows and shrinks, in WORKERS=N processes,"
	@echo "                       and writes the verdict to docs/internals/order-checker.md;"
	@echo "                       TRANSACTIONS=300 of transactions, and finds their bugs"
	@echo "make mutants           breaks one rule of the product after another; each must be found by"
	@echo "                       the tests named for it; ONLY=word,word takes some"

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock requirements-setup.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "tidelog needs Python 3.11 or newer: install it, or name one: make PYTHON=python3.12 setup" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "Python's venv module is missing: install it (Debian: python3-venv)" >&2; exit 1; }
	@echo "setting up $(VENV): about a minute, most of it Spark"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --require-hashes -r requirements-setup.lock
	@$(BIN)/uv pip sync -q --compile-bytecode --python $(BIN)/python --require-hashes requirements.lock requirements-setup.lock
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: java
java:
	@java -version 2>&1 | $(PYTHON) -c 'import re, sys; v = re.search(r"version \"(\d+)", sys.stdin.read()); sys.exit(not v or int(v.group(1)) < 17)' || { echo "Spark needs Java 17 or newer: install a JDK (Debian: openjdk-17-jdk-headless)" >&2; exit 1; }
	@java --list-modules 2>/dev/null | grep -q '^jdk.incubator.vector' || { echo "Spark needs a complete Java, and this one lacks the module jdk.incubator.vector: install a JDK (Debian: openjdk-17-jdk-headless)" >&2; exit 1; }

check: setup
	@$(BIN)/python -m tidelog.protocol.stubs
	@$(BIN)/ruff check -q .
	@$(BIN)/ruff format -q --check .
	@$(BIN)/mypy src/tidelog src/pyspark_tidelog
	@$(BIN)/lint-imports --no-cache >.cache-lint-imports 2>&1 || { cat .cache-lint-imports; rm -f .cache-lint-imports; exit 1; }
	@rm -f .cache-lint-imports
	@$(PYTEST) -n 2 tests/tidy tests/unit/model/configs/test_kafka_names.py tests/wire/test_golden_refusals.py
	@$(BIN)/python -m tests.mutants.run --list

test: setup java check
	@$(BIN)/python -m tests.support.run_all

demo: setup java
	@$(BIN)/python -m examples.flights.demo

bench: setup java
ifeq ($(AGAINST),)
	@$(BIN)/python -m benchmarks.run $(if $(QUICK),--quick) $(if $(ROUNDS),--rounds $(ROUNDS))
	@$(BIN)/python -m benchmarks.controller_scale
	@$(BIN)/python -m benchmarks.resizing
	@$(BIN)/python -m benchmarks.python_producers
	@$(BIN)/python -m benchmarks.python_consumers
else
	@$(BIN)/python -m benchmarks.against $(AGAINST) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(ROWS),--rows "$(ROWS)") $(if $(QUICK),--quick)
endif

chaos: setup java
	@TIDELOG_CHAOS=long $(PYTEST) tests/chaos tests/wire/test_worst_requests*.py tests/spark/test_spark_kills.py \
		tests/cluster/test_reassignments.py $(if $(ONLY),-k "$(ONLY)")

simulate: setup
	@$(BIN)/python -m tests.simulation.run --seed $(SEED) $(if $(SCENARIO),--scenario $(SCENARIO))

soak: setup
	@$(BIN)/python -m tests.simulation.soak --minutes $(MINUTES) $(if $(SCENARIO),--scenario $(SCENARIO)) \
	    $(if $(MOVERS),--movers $(MOVERS)) $(if $(RESIZES),--resizes $(RESIZES)) \
	    $(if $(TRANSACTIONS),--transactions $(TRANSACTIONS)) \
	    $(if $(WORKERS),--workers $(WORKERS))

docs: setup
	@$(BIN)/python docs/operating/write_configuration.py
	@$(BIN)/python -m tests.support.maps
	@$(BIN)/python -m tests.support.rules
	@$(BIN)/python -m tests.mutants.run --list

mutants: setup
	@$(BIN)/python -m tests.mutants.run $(if $(ONLY),--only "$(ONLY)")

clean:
	rm -rf .tools .cache .mypy_cache .ruff_cache build dist
