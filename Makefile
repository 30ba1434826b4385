# Everything below sets itself up from nothing: Python 3.11 (or newer) and make are enough.
.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV := .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := $(VENV)/bin
SETUP := pyproject.toml lab/pyproject.toml constraints.txt hatch_build.py $(wildcard src/vertex_softmax/softmax_box/native/*.[ch])
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: help demo quick test test-lab test-all lint bench figures docs release-check clean

help: ## say what there is to do
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /make \1\t/' | expand -t 18

demo: $(VENV)/.demo ## certify on embedded data; a table here, a report in out/demo/report.html
	$(BIN)/vertex demo --out out/demo

# Tests run in one worker more than there are cores, because they sometimes wait for processes and disks. A worker runs one
# file of tests at a time, in one thread. Bytecode is written even if the environment forbids it: otherwise every worker,
# and every process that a test starts, would compile each module again.
WORKERS := $(shell $(PYTHON) -c 'import os; print(len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else os.cpu_count())')
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

# `make quick` runs the tests of ops, bounds, sets and the primitive, except the slow ones: mutants; networks of several
# blocks or with norms; float32, batches and NaN of every op; and every test whose name begins with one of the prefixes in
# LATER. `make test` leaves nothing out.
BOUNDS_LATER := ascent boxes branch_and_bound depth frontier generators memory parts
OPS_LATER := parallel.py contract.py::test_no_finite contract.py::test_a_batch contract.py::test_bounds_in_float32 \
  contract.py::test_float32 contract.py::test_every_value_of_a_free
BOX_LATER := argmin gradients layout optimality triton
LATER := $(BOUNDS_LATER:%=tests/bounds/test_%) $(OPS_LATER:%=tests/ops/test_%) tests/sets/test_region \
  $(BOX_LATER:%=tests/softmax_box/test_%)

quick: $(VENV)/.dev ## the tests that a change of a bound breaks first (about a minute on two idle cores)
	$(PYTEST) --ignore-glob="*mutants*" $(LATER:%=--deselect %) \
	  -k "not blocks and not [pre and not [post and not (never_above and dtype0)" \
	  tests/ops tests/bounds tests/sets tests/softmax_box

test: $(VENV)/.dev ## the tests of the product (some thirteen minutes on two idle cores)
	$(PYTEST) --ignore tests/lab --ignore tests/mutation

test-lab: $(VENV)/.dev ## the tests of what is not shipped, the laboratory and the mutants (two minutes)
	$(PYTEST) tests/lab tests/mutation

test-all: $(VENV)/.dev ## both, and the slow suites
	$(PYTEST) -m 'slow or not slow'

lint: $(VENV)/.dev ## ruff and mypy, as CI runs them
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.demo ## the benchmarks; JSON under out/bench
	$(BIN)/vertex bench softmax-box --out out/bench

figures: $(VENV)/.python ## the figures of README.md and docs/, from lab/benchmarks/runs and results
	$(BIN)/python lab/benchmarks/readme_figures.py

docs: $(VENV)/.docs ## the pages, into out/docs/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# PYTHONS="python3.12 /path/to/python3.13" also tries the wheel with these interpreters. Each environment downloads a torch
# of its own, which is several gigabytes if it includes CUDA.
release-check: ## builds the release and tries it in empty environments; the files are in out/release/dist
	$(PYTHON) lab/release_check.py $(PYTHONS:%=--python %)

clean: ## remove what the other targets made
	rm -rf $(VENV) out build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/.python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and was not found; set PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than Python 3.11; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.python $(SETUP)
	$(PIP) --editable '.[demo,onnx]' --editable ./lab
	@touch $@

$(VENV)/.docs: $(VENV)/.python $(SETUP)
	$(PIP) --editable '.[docs]'
	@touch $@

# Both packages are installed by one run of pip, because every run of pip builds both of them. Nothing is compiled during
# the installation: of its 20,000 files only those that are imported are compiled, on their first import.
$(VENV)/.dev: $(VENV)/.python $(SETUP)
	$(PIP) --no-compile --editable '.[dev]' --editable ./lab
	@touch $(VENV)/.demo $@
