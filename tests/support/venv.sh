#!/bin/sh
# Make a virtual environment and install the checkout into it, editable.
# usage: venv.sh PYTHON FOLDER .          findleaks alone
#        venv.sh PYTHON FOLDER '.[test]'  with the tests' Python packages
set -eu

python=$1
venv=$2
what=$3
cd "$(dirname "$0")/../.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT

say() { echo "venv: $*" >&2; }

fail() {
    sed 's/^/    /' "$log" | tail -n 15 >&2
    say "$*"
    exit 1
}

command -v "$python" >/dev/null || fail "there is no $python: install Python 3.9 or newer, or say make PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' || fail "$python is $("$python" -V 2>&1): 3.9 or newer is needed; say make PYTHON=…"

usable() { "$venv/bin/python" -m pip --version >>"$log" 2>&1; }

# Debian splits the module venv off Python (python3-venv); virtualenv does as well, and pip can fetch that to a folder of ours.
create() {
    "$python" -m venv --clear "$venv" >>"$log" 2>&1 && usable && return
    rm -rf "$venv"
    "$python" -m virtualenv -q "$venv" >>"$log" 2>&1 && usable && return
    "$python" -m pip install -q --target build/virtualenv virtualenv >>"$log" 2>&1 &&
        PYTHONPATH=build/virtualenv "$python" -m virtualenv -q "$venv" >>"$log" 2>&1 && usable && return
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ "$(command -v "$python")" = /usr/bin/python3 ] || return 1
    say "python3-venv is missing: installing it with apt"
    apt-get update -qq >>"$log" 2>&1 </dev/null &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv >>"$log" 2>&1 </dev/null &&
        "$python" -m venv --clear "$venv" >>"$log" 2>&1 && usable
}

# A good one is kept: it may be in use.
usable || create || fail "$python can make no virtual environment: neither venv (Debian: apt install python3-venv) nor virtualenv nor pip works"

# pip must not compile the C engine: `make native` does so at the same time.
CC=/bin/false "$venv/bin/python" -m pip install -q --no-compile -e "$what" >>"$log" 2>&1 </dev/null || fail "pip could not install findleaks ($what)"
