"""On machines other than x86-64, findleaks refuses unsupported actions with one line and leaves the process unharmed. Only `make
test-arm64` runs this file."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import truth
from counts import check_unharmed, code, places
from debuggers import gdb, run_cli

from cores import Running

REFUSED = {
    "count event --inject": "--inject supports x86-64 only, not AArch64; omit it",
    "track --for 1": "track supports x86-64 only, not AArch64",
    "snapshot --fork --weight core": "cannot be cloned: only x86-64 is supported; without --fork it is stopped while it is copied",
}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    built = tmp_path / "counting"
    subprocess.run(["gcc", "-O2", "-o", built, truth.PROGRAMS / "counting.c", "-pthread"], check=True)
    with Running([str(built), "2"], tmp_path / "run") as run:
        yield run


def test_refused_in_one_line(running: Running, tmp_path: Path) -> None:
    at = places(running.pid, tmp_path / "counting", ["event"])
    before = code(running.pid, at)
    for words, line in REFUSED.items():
        done = run_cli(*words.split(), "--pid", str(running.pid))
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), (words, done)
        assert line in done.stderr, words
    printed = gdb([f"leaks {words}" for words in REFUSED if "snapshot" not in words], "-p", str(running.pid))
    assert [line for line in REFUSED.values() if f"leaks: {line}" in printed] == list(REFUSED.values())[:2], printed
    check_unharmed(running, at, before)
