# Every target sets up what it needs in .venv; a second run starts at once.

PYTHON ?= python3
# `make test TENSORFLOW=2.22.0rc0`: another version, in an environment of its own.
TENSORFLOW ?=
VENV := .venv$(addprefix -,$(TENSORFLOW))
BIN := $(VENV)/bin
RUNS := $(VENV)/runs
READY := $(VENV)/ready
# `make gpu-check BIN=/usr/bin`, where nothing can be installed: that Python has it all.
ifneq ($(origin BIN),file)
override RUNS :=
override READY :=
endif
# Modules are compiled when they are first imported: all of them would take as long as the
# installation.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# Three at a time for two cores, as many tests wait: for copies in slow motion, or for
# memory that TensorFlow hopes for ten seconds long. A worker that crashes ends the run:
# with another in its place, xdist may wait for ever.
PARALLEL := --numprocesses 3 --max-worker-restart 0
# Lint runs beside the tests: both outcomes are told, and a failure of either fails.
BOTH := @$(MAKE) --no-print-directory --jobs 2 --keep-going lint tests

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all tests canary gpu-check lint docs format clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' $(MAKEFILE_LIST)

setup: $(READY)  ## make .venv with everything installed

demo: $(RUNS)  ## out of memory with plain Keras, trained with the callback
	$(BIN)/python -m experiments.demo

test: $(READY)  ## lint, the tests, and the examples in docstrings
	$(BOTH) TYPED="lms unet3d profiling experiments"

test-all: $(READY)  ## the tests that take long too, and the types of all: a quarter of an hour
	$(BOTH) MORE='-m "long or not long" --hypothesis-profile full'

# On a machine that others load, a training may miss its time or its memory once: what
# failed runs once more, alone. A crash or an error in collecting (exit codes above 1) ends
# the run.
tests: $(READY)
	$(BIN)/python -m pytest $(PARALLEL) $(MORE) || { [ $$? -eq 1 ] && \
		echo "What failed runs once more, alone." && \
		$(BIN)/python -m pytest $(MORE) --last-failed --last-failed-no-failures none; }

canary:  ## the tests on the nightly build of TensorFlow, which may fail; not in CI
	@$(MAKE) --no-print-directory tests TENSORFLOW=nightly

gpu-check: $(RUNS)  ## on a machine with a GPU: what works there, eight minutes of measuring
	@test -z "$(RUNS)" || ! command -v nvidia-smi || $(INSTALL) -e '.[gpu]'
	$(BIN)/python -m experiments run gpu --card real --minutes 5; failed=$$?; \
	$(BIN)/python -m experiments run bits --card real --minutes 3 --repeats 1 \
		--models gru seq2seq float16_cnn --shares 0.8 && exit $$failed

lint: $(READY)  ## style, formatting, types, import layers, words
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python $(TYPED)
	$(BIN)/lint-imports
	$(BIN)/python -m tests.words

docs: $(READY)  ## the pages as a site in build/site, the API from docstrings
	$(BIN)/mkdocs build --strict

format: $(READY)  ## rewrite the files the way lint wants them
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:  ## remove .venv and what tools leave behind
	rm -rf .venv .venv-* build dist .coverage .hypothesis .import_linter_cache \
		.pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written last, so that an interrupted installation is taken up again.
$(RUNS): pyproject.toml
	@echo "Installing into $(VENV): a minute or two"
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[unet3d]'
	touch $@

# Another TensorFlow may be outside of the range that pyproject.toml allows. A nightly
# build has another name, and files where `tensorflow` has its own.
$(READY): $(RUNS)
	$(INSTALL) -e '.[dev]'
ifneq ($(TENSORFLOW),)
	$(BIN)/python -m pip uninstall --quiet --yes tensorflow
	$(INSTALL) $(if $(filter nightly,$(TENSORFLOW)),--pre tf-nightly,tensorflow==$(TENSORFLOW))
endif
	touch $@
