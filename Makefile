# Two commands do everything on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
CC ?= cc
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(addprefix common/engine/native/_native,.so _32.so _big.so _32_big.so)
PYTEST := $(BIN)/pytest
# Tests run side by side, twice as many as there are processors, as most wait for debuggers and programs; but no more than 4, as some take
# a gigabyte. Whole runs of neighbours keep what a module shares in one process.
JOBS ?= $(shell n=$$(nproc); echo $$((n < 2 ? 2 : 4)))
ALL := -n $(JOBS) --dist worksteal
SAMPLE := cores/sample.core.gz

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv native bytecode demo test all-tests test-matrix test-arm64 platforms lint bench fuzz fuzz-guided clean test-tools machine-tools

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/\1\t\2/' | \
		while IFS="$$(printf '\t')" read -r name what; do printf '  make %-12s %s\n' "$$name" "$$what"; done

# An environment with the tests' packages serves as well; the demo alone needs none of them.
demo: $(or $(wildcard $(VENV)/.ready),$(VENV)/.installed) native ## find the leaks of a sample core; needs no debugger
	$(BIN)/findleaks find $(SAMPLE)

test: test-tools venv native bytecode ## install what the tests need (as root, with apt), then lint and run all tests
	@$(MAKE) --no-print-directory --keep-going --jobs=2 lint all-tests

# Collected once beforehand: the workers would each compile all tests, at the same time.
all-tests: venv native bytecode
	@$(PYTEST) --collect-only --quiet >/dev/null || true
	env -u MAKEFLAGS -u MFLAGS $(PYTEST) $(ALL) --durations=10

test-matrix: machine-tools venv native bytecode ## the tests of many libc, debugger and Python versions, and all tests without the C engine
	$(PYTEST) $(ALL) -m matrix --hypothesis-profile=random
	FINDLEAKS_PURE=1 $(PYTEST) $(ALL) -m 'not matrix and not slow' --hypothesis-profile=random

test-arm64: machine-tools venv ## tests of the heart, and of GDB, LLDB and live processes, inside an emulated Debian of AArch64
	$(BIN)/python tests/support/arm64_tests.py

platforms: machine-tools venv native bytecode ## run the tests that prove what docs/platforms.md says, and write its table of those that passed
	$(BIN)/python tests/support/platforms.py

lint: venv native ## ruff, mypy --strict, the C engine's warnings, and the tree's own rules
	sh tests/support/lint.sh $(BIN)

bench: venv native bytecode ## wall, CPU and memory of each phase on heaps of 1 M and 10 M blocks; each allocator beside glibc; who holds what; files
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

fuzz: venv native ## 10,000 damaged cores and other files, of every allocator and runtime; what goes wrong is shrunk and kept in build/fuzz
	$(BIN)/python tests/fuzz/fuzz.py --count 8500
	$(BIN)/python tests/fuzz/fuzz.py --count 1500 --seed 8501 --sanitized
	$(BIN)/python tests/fuzz/images.py

fuzz-guided: venv native ## each reader of files and the C engine's loops for a minute, led by coverage (atheris, libFuzzer)
	$(BIN)/pip install -q 'atheris>=2.3'
	$(BIN)/python tests/fuzz/native.py 60
	for reader in core minidump image frames expression debug lines packed snapshot rows residency note suppressions names; do \
		$(BIN)/python tests/fuzz/guided.py $$reader --seconds 60 || exit 1; done

venv: $(VENV)/.ready ## a virtual environment in .venv with findleaks installed editable, and what the tests need

# Without a C compiler nothing is built, and the Python engine serves.
native: ## build the C engine, for a checkout that is not installed
	@if command -v $(firstword $(CC)) >/dev/null; then env -u MAKEFLAGS -u MFLAGS $(MAKE) --silent --jobs=4 CC='$(CC)' $(NATIVE); \
	else echo "no C compiler ($(CC)): findleaks will run without its C engine, more slowly"; fi

# As pip has it made when it installs: where PYTHONDONTWRITEBYTECODE is set, each of thousands of starts would compile everything anew.
bytecode: venv
	@$(BIN)/python -m compileall -q common gdb lldb tests/support

clean: ## remove the virtual environment and all that was built
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

# One for each word size and byte order of targets. A new file is moved into place: the old one may be in use.
$(NATIVE): common/native/flags $(wildcard common/native/*.c common/native/*.h) common/engine/native/sources.py
	@echo "$(CC) @common/native/flags … -o $@"
	@options=$$($(PYTHON) -c 'import runpy; print(*runpy.run_path("common/engine/native/sources.py")["options"]()["$(@F)"])') && \
	$(CC) @common/native/flags $$options -shared -fPIC -o $@.new common/native/*.c && mv $@.new $@
