# Needs git, make and a Python 3.11 or newer; everything else goes into $(VENV).
PYTHON ?= python3
VENV ?= .venv
# More arguments for pytest: make test ARGS="-k hazard"
ARGS ?=

BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# One stamp for a set of extras and the interpreter asked for, so that another PYTHON does not pass unnoticed.
stamp = $(VENV)/.installed-$(1)-$(subst /,_,$(PYTHON))

.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help demo test check lint bench sweep torch native clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16
	@echo "  PYTHON=$(PYTHON) chooses the interpreter, VENV=$(VENV) its folder."

demo: $(call stamp,checker) ## check six recorded runs of vLLM and explain the missing fence
	$(BIN)/python -m kvsan.checker.demo

test: $(call stamp,test) ## run the tests
	$(PYTEST) $(ARGS)

check: lint test ## what CI runs: lint, format, types, import contracts, tests

lint: $(call stamp,test) ## check without the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(call stamp,test+engine) ## run the benchmarks (installs torch)
	$(PYTEST) benchmarks -q --benchmark-only --benchmark-autosave --benchmark-max-time=0.2 \
		--benchmark-columns=min,median,rounds --benchmark-sort=name $(ARGS)

torch: $(call stamp,test+engine) ## the tests that need torch (installs it)
	$(PYTEST) tests/attach tests/runtime tests/explore/test_one_design.py tests/testing/test_simulated_torch.py $(ARGS)

sweep: $(call stamp,test) ## run the heavy sweeps
	$(PYTEST) -m sweep -n auto $(ARGS)

native: $(call stamp,test) ## compile the C extensions in place, warnings are errors
	$(BIN)/python scripts/native.py --strict

# An install compiles them, too, if it can: one whose source has changed is compiled anew.
NATIVE := hatch_build.py scripts/native.py $(wildcard checker/native/*.[ch] runtime/native/*.[ch])

$(call stamp,%): pyproject.toml constraints.txt scripts/bootstrap $(NATIVE)
	PYTHON=$(PYTHON) VENV=$(VENV) scripts/bootstrap $(subst +, ,$*)
	@touch $@

clean: ## remove the environment, builds and caches
	rm -rf $(VENV) build dist .benchmarks .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find model runtime checker tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
	find model runtime checker -name '*.so' -delete
