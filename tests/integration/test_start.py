"""Limit what `find` imports: each module takes about a third of a millisecond of every start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parents[2] / "cores" / "sample.core.gz"
MODULES = 206
"""The maximum number of modules of findleaks that `find` may import for the sample core. They include the classes of its result, and a
small finder for each allocator. A change that needs more modules must import fewer elsewhere, or raise this number with a reason."""
UNNEEDED = {
    "json",  # text output
    "dataclasses", "inspect",  # slow to import; findleaks.value_classes replaces them
    "subprocess", "tempfile", "random", "urllib.request", "sqlite3", "csv", "pyarrow",
    "elftools", "capstone",  # the sample has no debug information, and no register decides about a block
    "findleaks.audit.accounting", "findleaks.audit.suppressions", "findleaks.audit.site_stacks", "findleaks.debugger_session",
}  # fmt: skip
PROGRAM = """
import contextlib, io, sys
from findleaks.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    status = main(sys.argv[1:])
print(status, *sorted(sys.modules))
"""


def modules(*words: str) -> list[str]:
    """Return the modules that are loaded after the command line has run with these arguments."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True)
    status, *found = done.stdout.split()
    assert status == "0"
    return found


@pytest.mark.parametrize("option", [[], ["--kind", "definite"]])
def test_find_imports_what_it_needs(option: list[str]) -> None:
    found = modules("find", *option, str(SAMPLE))
    assert UNNEEDED & set(found) == set()
    ours = [name for name in found if name.split(".")[0] == "findleaks"]
    assert len(ours) <= MODULES


def test_readers_of_runtimes_that_are_absent() -> None:
    """A process without Go costs no more than a look at the headers of its files; the same for the other large runtimes."""
    found = modules("verdict", str(SAMPLE))
    large = "go", "jvm", "cpython", "ruby", "php", "perl"
    assert "findleaks.runtimes.go" in found
    assert [name for name in found if name.startswith(tuple(f"findleaks.runtimes.{one}." for one in large))] == []


def test_other_commands_need_more() -> None:
    """The module names above exist: other commands import them."""
    assert "json" in modules("find", "--json", str(SAMPLE))
