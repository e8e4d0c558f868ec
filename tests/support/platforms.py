"""The table in docs/platforms.md: what is tested on each architecture.

A test declares this with a mark: pytest.mark.platform(ARCHITECTURE, ROW, ..., of=VERSIONS). A cell is "yes" or the versions if all tests
with its mark pass, and "no" if there is no such test. tests/unit/test_platforms.py compares the page with the marks. Run as a program
(`make platforms`), this file runs the tests that have a mark, and writes the table of those that passed.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from findleaks.target.arch import ARCHES

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "platforms.md"
ROWS = {
    "Front ends": (
        *("cores, on the command line", "cores, in GDB", "cores, in LLDB", "live, on the command line", "live, in GDB", "live, in LLDB"),
        *(
            "cores of gcore",
            "minidumps",
            "`--fork`",
            "`count`, in GDB and on the command line",
            "`count`, in LLDB",
            "`count --inject`, `track`",
            "a wheel with the C engine",
        ),
    ),
    "Allocators": (
        *(
            "glibc",
            "glibc, static programs",
            "jemalloc",
            "musl's mallocng",
            "musl's oldmalloc",
            "gperftools' tcmalloc",
            "Google's tcmalloc",
        ),
        *("mimalloc", "scudo", "PartitionAlloc", "AddressSanitizer", "pages of 16 KiB", "pages of 64 KiB"),
    ),
    "Runtimes": (
        "CPython",
        "Ruby",
        "Node: stacks, scopes, V8's heap",
        "Node: JavaScript objects",
        "Node: frames of JavaScript functions",
        "Node: what retains JavaScript objects",
        "Node: what V8's spaces use",
        "JVM",
        "Go",
    ),
    "Code": (
        *(
            "whole stacks",
            "variables, containers and their owners",
            "heap damage, C++ types, headers",
            "signed return addresses",
            "tags in pointers",
        ),
        "origins of pointers in crashes",
        "pointers passed to free() in crashes",
        "dead registers",
        "dead words of frames",
    ),
}
"""By group."""
BEGIN, END = "<!-- what the tests prove: make platforms -->\n", "<!-- end -->\n"


class Proof(NamedTuple):
    """A row that a test proves on an architecture. `of`: the versions; "" if the row has no versions."""

    architecture: str
    row: str
    of: str


def table(proofs: Iterable[Proof]) -> str:
    """Return the table in Markdown. Raises ValueError for an unknown row or architecture."""
    cells: dict[tuple[str, str], list[str]] = {}
    names = [arch.name for arch in ARCHES]
    rows = {row for group in ROWS.values() for row in group}
    for proof in sorted(proofs):
        if proof.architecture not in names or proof.row not in rows:
            raise ValueError(f"no such row or architecture: {proof}")
        said = cells.setdefault((proof.architecture, proof.row), [])
        if proof.of and proof.of not in said:
            said.append(proof.of)
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for group, members in ROWS.items():
        lines.append(f"| **{group}** |" + " |" * len(names))
        for row in members:
            shown = ((", ".join(cells[name, row]) or "yes") if (name, row) in cells else "no" for name in names)
            lines.append(f"| {row} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def read_table(path: Path = PAGE) -> str:
    """Return the table of the page."""
    return path.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


def write(made: str, path: Path = PAGE) -> None:
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    path.write_text(before + BEGIN + made + END + rest.partition(END)[2], encoding="utf-8")


def read_marks(folder: Path = ROOT / "tests") -> Iterator[Proof]:
    """Return the proofs that the marks in test files declare. The files are parsed, not run: all arguments of a mark are literals."""
    for file in sorted(folder.glob("*/test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.platform":
                yield from _proofs(
                    [ast.literal_eval(word) for word in node.args], {str(one.arg): ast.literal_eval(one.value) for one in node.keywords}
                )


def _proofs(words: Sequence[str], more: dict[str, str]) -> Iterator[Proof]:
    architectures, *rows = words
    return (Proof(architecture, row, more.get("of", "")) for architecture in architectures.split(", ") for row in rows)


class Recorder:
    """A pytest plugin that records what the tests that ran prove."""

    def __init__(self) -> None:
        self._marks: dict[str, list[Proof]] = {}
        self._passed: set[str] = set()
        self._failed: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            found = [proof for mark in item.iter_markers("platform") for proof in _proofs(mark.args, dict(mark.kwargs))]
            self._marks[item.nodeid] = found

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._passed.add(report.nodeid)
        elif not report.passed:
            self._failed.add(report.nodeid)

    def proofs(self) -> set[Proof]:
        """Return the proofs of tests that passed, without proofs for which another test did not pass."""
        refuted = {proof for test in self._failed for proof in self._marks.get(test, ())}
        return {proof for test in self._passed for proof in self._marks.get(test, ())} - refuted


def main(words: Sequence[str]) -> int:
    """Run the tests with marks, or those that pytest's arguments select, and write the table."""
    recorder = Recorder()
    status = pytest.main(["-m", "platform", *words], plugins=[recorder])
    made = table(recorder.proofs())
    write(made)
    lost = [line for line in table(read_marks()).splitlines() if not re.search(f"^{re.escape(line)}$", made, re.M)]
    print("\n".join(["not proven by this run:", *lost] if lost else ["docs/platforms.md is written"]))
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
