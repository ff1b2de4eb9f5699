# make demo | make test | make quick | make lint | make docs | make notebooks. Needs make and Python 3.11 or newer with venv; everything else goes into .venv-demo and .venv here.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first of these that is new enough and can make environments; the locks hold for each of them.
IS_FIT := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
ifeq ($(origin PYTHON),undefined)
PYTHON := $(firstword $(foreach python,python3.11 python3.12 python3.13 python3,$(shell $(python) -c '$(IS_FIT)' 2>/dev/null && echo $(python))) python3)
endif
# More arguments for: pip (an index, a proxy), the demo (key=value overrides), pytest (-k, a path), the suite for GPUs.
PIP_ARGS ?=
DEMO_ARGS ?=
TEST_ARGS ?=
GPU_ARGS ?=
# Test files run side by side, each in one process; whole runs wait for their processes to start more than they compute.
TEST_PROCESSES ?= 2
# A part of the slow tests, 1/4, 2/4, 3/4 or 4/4; all of them if empty.
SHARD ?=
# Seconds after which all tests are stopped, and those that were running are named.
TEST_LIMIT_S ?= 4200
SLOW_LIMIT_S ?= 21600
RUN_TESTS = $(TEST_VENV)/bin/python -m pytest --durations=15 -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
# What tells in under a minute whether a change is on its way: no processes, no engines.
QUICK_TESTS := tests/layout tests/unit/configs tests/unit/algorithms tests/unit/types

# Never written bytecode costs every process that imports an engine 5 to 40 s.
unexport PYTHONDONTWRITEBYTECODE
export TINY_SORT_DIR ?= output/tiny-sort

# The locks of requirements/ say it all; for the demo where CUDA is, pip adds what torch needs there.
HAS_CUDA := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)
ifeq ($(HAS_CUDA),yes)
DEMO_PACKAGES := -e .[deepspeed,studio] -c requirements/cpu-demo.txt
TEST_LOCK := requirements/cuda-vllm.txt
SAY_DEVICES := CUDA devices found: they are used
else
DEMO_PACKAGES := --no-deps -r requirements/cpu-demo.txt
TEST_LOCK := requirements/cpu-all.txt
SAY_DEVICES := no CUDA device: everything runs on the CPU
endif
TEST_PACKAGES := --no-deps -r $(TEST_LOCK)

# An environment is complete when its stamp is there; the stamp's name changes with whatever went into the environment.
fingerprint = $(firstword $(shell (cat $(1); echo "$(2)"; command -v $(PYTHON)) | cksum))
DEMO_VENV := .venv-demo
DEMO_STAMP := $(DEMO_VENV)/complete-$(call fingerprint,requirements/cpu-demo.txt setup.py,$(DEMO_PACKAGES))
TEST_VENV := .venv
STAND_INS := $(wildcard tools/cpu_stand_ins/*.py tools/cpu_stand_ins/site/*.p* tools/cpu_stand_ins/site/*/*.py)
TEST_STAMP := $(TEST_VENV)/complete-$(call fingerprint,$(TEST_LOCK) setup.py $(STAND_INS),$(TEST_PACKAGES))

.PHONY: help demo demo-environment quick test test-slow durations gpu-report docs notebooks test-environment no-space lint hooks

help:
	@echo "make demo   a tiny language model learns to sort, by reinforcement, in a few minutes; DEMO_ARGS='key=value ...'"
	@echo "make test   every engine is installed, the tests that a change must pass run; TEST_ARGS='-k name' or a path narrows it"
	@echo "make test-slow  the full matrix, marked slow; SHARD=1/4 runs a quarter of it"
	@echo "make durations  measures every test, for tests/durations.json"
	@echo "make quick  the tests of layout, settings, algorithms and types, in under a minute"
	@echo "make gpu-report  on a machine with GPUs: checks every path there, and writes reports/gpu.md (GPU_ARGS='--help')"
	@echo "make docs   the pages of docs/ as a site that needs no network, in output/site"
	@echo "make notebooks  the tutorials of docs/tutorials as notebooks, in output/notebooks"
	@echo "make lint   ruff and pyright, in the environment of make test"
	@echo "make hooks  ruff, layout tests and the subject's form at each commit, pyright before each push"
	@echo "PYTHON=/path/to/python (3.11 or newer; now: $(PYTHON)) and PIP_ARGS='...' (an index, for example) work with each of them"

demo: demo-environment
	@echo "== [2/3] model and data: $(TINY_SORT_DIR)"
	@$(DEMO_VENV)/bin/python examples/tiny-sort/prepare.py --out "$(TINY_SORT_DIR)"
	@echo "== [3/3] training: examples/tiny-sort/tiny_sort.yaml ($(SAY_DEVICES)); an earlier demo is replaced, its metrics stay"
	@$(DEMO_VENV)/bin/python examples/start_rlvr_pipeline.py --config_path tiny-sort --config_name tiny_sort overwrite_output_dir=true $(DEMO_ARGS)
	@echo "== done: the run as a page is $(TINY_SORT_DIR)/tiny_sort/report.html. What next:"
	@echo "   $(DEMO_VENV)/bin/roll chat $(TINY_SORT_DIR)/tiny_sort      talk to the model, as in: 31452"
	@echo "   $(DEMO_VENV)/bin/roll studio output                  this run and others in a browser"

demo-environment: no-space
	@echo "== [1/3] environment: $(DEMO_VENV)"
	@$(MAKE) --no-print-directory --silent $(DEMO_STAMP)

$(DEMO_STAMP):
	@$(call new_environment,$(DEMO_VENV))
	@echo "   installing $(DEMO_PACKAGES) (once, one to two minutes)"
	@$(DEMO_VENV)/bin/python -m pip install -qq --no-compile $(PIP_ARGS) $(DEMO_PACKAGES)
	@$(DEMO_VENV)/bin/python -m pip install -qq --no-deps --no-build-isolation $(PIP_ARGS) -e .
	@rm -f $(DEMO_VENV)/complete-* && touch $@

quick: test-environment
	@echo "== [2/2] the quick tests"
	@$(TEST_VENV)/bin/python -m pytest -q -n $(TEST_PROCESSES) $(QUICK_TESTS) $(TEST_ARGS)

test: test-environment
	@echo "== [2/2] tests ($(SAY_DEVICES))"
	@$(RUN_TESTS) -m "not slow" --whole-limit=$(TEST_LIMIT_S) $(TEST_ARGS)

test-slow: test-environment
	@echo "== [2/2] tests marked slow $(SHARD) ($(SAY_DEVICES))"
	@$(RUN_TESTS) -m slow --whole-limit=$(SLOW_LIMIT_S) $(if $(SHARD),--shard=$(SHARD)) $(TEST_ARGS)

durations: test-environment
	@echo "== [2/2] what every test takes, for tests/durations.json (hours)"
	@$(RUN_TESTS) -m "not slow" --record-durations $(TEST_ARGS) && failed= || failed=yes; \
		$(RUN_TESTS) -m slow --record-durations $(TEST_ARGS) && test -z "$$failed"

gpu-report: test-environment
	@echo "== [2/2] checks on GPUs ($(SAY_DEVICES))"
	@$(TEST_VENV)/bin/python -m tests.gpu $(GPU_ARGS)

notebooks: test-environment
	@echo "== [2/2] the tutorials of docs/tutorials as notebooks"
	@$(TEST_VENV)/bin/python tools/notebooks.py output/notebooks

docs: test-environment
	@echo "== [2/2] the site"
	@NO_MKDOCS_2_WARNING=1 $(TEST_VENV)/bin/python -m mkdocs build --quiet --strict -f docs/site/mkdocs.yml
	@echo "== done: $(TEST_VENV)/bin/python -m http.server -b 127.0.0.1 -d output/site, then http://127.0.0.1:8000"

test-environment: no-space
	@echo "== [1/2] environment: $(TEST_VENV)"
	@$(MAKE) --no-print-directory --silent $(TEST_STAMP)

$(TEST_STAMP):
	@$(call new_environment,$(TEST_VENV))
	@echo "   installing $(TEST_PACKAGES) (once, three minutes and 4 GB)"
	@$(TEST_VENV)/bin/python -m pip install -qq --no-compile $(PIP_ARGS) $(TEST_PACKAGES)
	@$(TEST_VENV)/bin/python -m pip install -qq --no-deps --no-build-isolation $(PIP_ARGS) -e .
	@$(TEST_VENV)/bin/python tools/cpu_stand_ins/install.py
	@rm -f $(TEST_VENV)/complete-* && touch $@

no-space:
	@case "$(CURDIR)" in *\ *) echo "Ray cannot start workers from a path with a space: move this folder ($(CURDIR))." >&2; exit 2;; esac

lint: test-environment
	@echo "== [2/2] ruff, pyright"
	@$(TEST_VENV)/bin/ruff check .
	@$(TEST_VENV)/bin/ruff format --check .
	@$(TEST_VENV)/bin/pyright --threads 2 --pythonpath $(TEST_VENV)/bin/python

hooks: test-environment
	@$(TEST_VENV)/bin/pre-commit install

# $(1) is made anew unless it was complete once: then pip only changes what differs.
define new_environment
	$(PYTHON) -c '$(IS_FIT)' 2>/dev/null \
		|| { echo "Python 3.11 or newer with venv is needed and $(PYTHON) is not one: make ... PYTHON=/path/to/python" >&2; exit 2; }; \
	ls $(1)/complete-* >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(1)
endef
