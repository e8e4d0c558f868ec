#!/bin/sh
# Check the sources without running them.
# usage: lint.sh FOLDER-OF-THE-VIRTUAL-ENVIRONMENT'S-PROGRAMS
set -eu

cd "$(dirname "$0")/../.."
root=$(pwd)
bin=$(cd "$1" && pwd)
build=$root/build/lint
status=0

step() {
    name=$1
    shift
    "$@" || { echo "lint: $name failed" >&2 && status=1; }
}

# mypy's cache is outside of the checkout, so that a fresh clone in the same place takes a third of the time.
known=${FINDLEAKS_CACHE:-${HOME:-/tmp}/.cache/findleaks}/mypy/$(printf %s "$root" | cksum | tr ' ' -)

types() {
    # Packages as they are imported, of links: run in the checkout, mypy would take gdb/ and lldb/ for the debuggers' modules.
    rm -rf "$build/tree"
    mkdir -p "$build/tree/findleaks"
    ln -s "$root"/common/* "$root/gdb" "$root/lldb" "$build/tree/findleaks/"
    (cd "$build/tree" && MYPYPATH=. "$bin/mypy" --config-file "$root/pyproject.toml" --cache-dir "$known" -p findleaks) || return 1
    # Neither pytest nor anything else runs the benchmarks and fuzzers regularly. Without this, a renamed function would break them unnoticed.
    (cd "$build/tree" && MYPYPATH=.:$root/tests/support:$root/tests/unit:$root/tests/integration "$bin/mypy" --config-file "$root/pyproject.toml" \
        --cache-dir "$known" --follow-imports silent "$root"/tests/bench/*.py "$root"/tests/fuzz/*.py)
}

native() {
    for compiler in gcc clang-19 clang; do
        command -v "$compiler" >/dev/null || continue
        tried=1
        for source in common/native/*.c; do
            for words in "-DWORD=8u -DBIG=0" "-DWORD=4u -DBIG=1"; do
                # Most warnings need no code. For some of gcc's (values that may not be set) the optimizer must run: once is enough.
                made=-fsyntax-only
                [ "$compiler $words" != "gcc -DWORD=8u -DBIG=0" ] || made="-c -o build/lint/native.o"
                "$compiler" @common/native/flags $words -Werror -Wshadow -Wconversion -Wno-sign-conversion -Wmissing-prototypes -fPIC $made "$source" || return 1
            done
        done
    done
    [ -n "${tried:-}" ] || { echo "no C compiler: the C engine was not checked" >&2 && return 1; }
}

mkdir -p "$build"
step "ruff check" "$bin/ruff" check --quiet --output-format concise .
step "ruff format" "$bin/ruff" format --quiet --check --output-format concise .
step mypy types
step "the C engine" native
step codespell "$bin/codespell" common gdb lldb docs tests tools README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md setup.py Makefile
step "the tree" "$bin/python" tests/support/tree.py
exit $status
