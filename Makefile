# Two commands do everything on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
CC ?= cc
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(addprefix common/engine/native/_native,.so _32.so _big.so _32_big.so)
PYTEST := $(BIN)/pytest
# Tests run in parallel. Most tests wait for debuggers and programs, but some take a gigabyte: so use 2 to 4 processes. `worksteal` keeps
# neighbouring tests, which share the fixtures of a module, in one process.
JOBS ?= $(shell n=$$(nproc); echo $$((n < 2 ? 2 : 4)))
ALL := -n $(JOBS) --dist worksteal
SAMPLE := cores/sample.core.gz

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv native bytecode demo test all-tests test-matrix test-arm64 platforms lint bench fuzz fuzz-guided wheels site clean test-tools machine-tools

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/\1\t\2/' | \
		while IFS="$$(printf '\t')" read -r name what; do printf '  make %-12s %s\n' "$$name" "$$what"; done

# The demo needs none of the tests' packages, but also runs in an environment that contains them.
demo: $(or $(wildcard $(VENV)/.ready),$(VENV)/.installed) native ## find the leaks of a sample core; needs no debugger
	$(BIN)/findleaks find $(SAMPLE)

test: test-tools ## install what the tests need (as root, with apt), then lint and run all tests
	@$(MAKE) --no-print-directory --jobs=2 venv native
	@$(MAKE) --no-print-directory --keep-going --jobs=2 lint all-tests

# Collect the tests once, which compiles them. Otherwise each worker compiles all of them at the same time.
all-tests: venv native bytecode
	@$(PYTEST) --collect-only --quiet >/dev/null || true
	env -u MAKEFLAGS -u MFLAGS $(PYTEST) $(ALL) --durations=10

test-matrix: machine-tools venv native bytecode ## run the tests of many libc, debugger and Python versions, and all tests without the C engine
	$(PYTEST) $(ALL) -m matrix --hypothesis-profile=random
	FINDLEAKS_PURE=1 FINDLEAKS_TEST_FRESH=1 $(PYTEST) $(ALL) -m 'not matrix and not slow' --hypothesis-profile=random

test-arm64: machine-tools venv ## run the core tests, and those of GDB, LLDB and live processes, in an emulated AArch64 Debian
	$(BIN)/python tests/support/arm64_tests.py

platforms: machine-tools venv native bytecode ## run the tests behind docs/platforms.md, and write its table of the tests that passed
	$(BIN)/python tests/support/platforms.py

lint: venv native ## run ruff, mypy --strict and codespell, and check the C engine's warnings and the rules of the tree
	sh tests/support/lint.sh $(BIN)

bench: venv native bytecode ## measure time and memory of each phase on heaps of 1 M and 10 M blocks, of allocators, commands and exports
	$(BIN)/python tests/bench/bench.py
	$(BIN)/python tests/bench/allocators.py
	$(BIN)/python tests/bench/dominators.py
	$(BIN)/python tests/bench/owners.py
	$(BIN)/python tests/bench/pages.py
	$(BIN)/python tests/bench/stops.py
	$(BIN)/python tests/bench/snapshots.py
	$(BIN)/python tests/bench/written_cores.py
	$(BIN)/python tests/bench/forks.py
	$(BIN)/python tests/bench/inject_rate.py
	$(BIN)/python tests/bench/scopes.py
	$(BIN)/python tests/bench/diff.py
	$(BIN)/python tests/bench/exports.py
	$(BIN)/python tests/bench/triage.py
	$(BIN)/python tests/bench/java_heap.py
	$(BIN)/python tests/bench/go_heap.py

fuzz: venv native ## read 10,000 damaged cores and other files of every allocator and runtime; failures are minimized, and saved in build/fuzz
	$(BIN)/python tests/fuzz/fuzz.py --count 8500
	$(BIN)/python tests/fuzz/fuzz.py --count 1500 --seed 8501 --sanitized
	$(BIN)/python tests/fuzz/images.py

fuzz-guided: venv native ## fuzz each file reader and the C engine for a minute, guided by coverage (atheris, libFuzzer)
	$(BIN)/pip install -q 'atheris>=2.3'
	$(BIN)/python tests/fuzz/native.py 60
	for reader in core minidump image frames expression debug lines packed snapshot rows residency note suppressions names; do \
		$(BIN)/python tests/fuzz/guided.py $$reader --seconds 60 || exit 1; done

venv: $(VENV)/.ready ## create the virtual environment .venv with an editable findleaks and the tests' packages

# Without a C compiler nothing is built, and findleaks uses the Python engine.
native: ## build the C engine, for a checkout that is not installed
	@if command -v $(firstword $(CC)) >/dev/null; then env -u MAKEFLAGS -u MFLAGS $(MAKE) --silent --jobs=4 CC='$(CC)' $(NATIVE); \
	else echo "no C compiler ($(CC)): findleaks will run without its C engine, more slowly"; fi

# pip compiles nothing, as tests import a tenth of what it installs. Python compiles at the first import, but not if
# PYTHONDONTWRITEBYTECODE is set: then each of thousands of starts would compile all modules again.
bytecode: venv
	@$(BIN)/python -m compileall -q common gdb lldb tests/support $(VENV)/lib/python3*/site-packages/_pytest $(VENV)/lib/python3*/site-packages/hypothesis

wheels: venv ## build the archives of a release in dist/, and check them; needs no compiler
	$(BIN)/pip install -q 'auditwheel>=6' 'build>=1' 'check-wheel-contents>=0.6' 'twine>=6' 'ziglang>=0.12'
	rm -rf dist
	$(BIN)/python tools/build_wheels.py dist

site: venv ## render the documentation as web pages in build/site; a dead link is an error
	$(BIN)/python tools/build_site.py --needs | xargs -d '\n' $(BIN)/pip install -q
	$(BIN)/python tools/build_site.py

clean: ## remove the virtual environment and all build products
	rm -rf $(VENV) build dist *.egg-info $(NATIVE) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find common gdb lldb tests -name __pycache__ -type d -prune -exec rm -rf {} +

test-tools:
	@sh tests/support/install.sh

machine-tools:
	@sh tests/support/install.sh machines

$(VENV)/.installed: setup.py pyproject.toml tests/support/venv.sh
	@sh tests/support/venv.sh '$(PYTHON)' $(VENV) .
	@touch $@

$(VENV)/.ready: setup.py pyproject.toml tests/support/venv.sh
	@sh tests/support/venv.sh '$(PYTHON)' $(VENV) '.[test]'
	@touch $@

# One library for each word size and byte order of targets. A new file is moved into place, as the old one may be in use.
$(NATIVE): common/native/flags $(wildcard common/native/*.c common/native/*.h) common/engine/native/sources.py
	@echo "$(CC) @common/native/flags … -o $@"
	@options=$$($(PYTHON) -c 'import runpy; print(*runpy.run_path("common/engine/native/sources.py")["options"]()["$(@F)"])') && \
	$(CC) @common/native/flags $$options -shared -fPIC -o $@.new common/native/*.c && mv $@.new $@
