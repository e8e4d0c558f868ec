"""Findings of `verdict` for every combination of leaked, retained, free and unread memory: they add up, and do not contradict one
another."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import building
import pytest
from variants import mark_matrix_except
from verdicts import finding, near, sorts, verdict

from cores import Running

MIB = 1 << 20
AMOUNT = 24  # size of each part in MiB
BLOCK = (2000 + 8 + 15) // 16 * 16 - 8


program = building.fixture("combined.c", "-O1", "-g")


def read_truth(run: Running) -> dict[str, list[int]]:
    lines = (line.split() for line in run.output.splitlines())
    return {words[0]: [int(word) for word in words[1:]] for words in lines}


def unread(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in found["findings"] if one["finding"] in ("unread-memory", "unknown-owner")]


PARTS = {"-".join(map(str, parts)): parts for parts in itertools.product((0, AMOUNT), repeat=4)}
# The cases are each kind of memory alone, no kind, all kinds, and two pairs. The matrix tests the other pairs and triples.
KEPT = ["24-0-24-0", "0-24-0-24", *(name for name, parts in PARTS.items() if parts.count(AMOUNT) in (0, 1, 4))]


@pytest.mark.parametrize("parts", mark_matrix_except(PARTS, *KEPT))
def test_findings_add_up(program: Path, tmp_path: Path, parts: tuple[int, int, int, int]) -> None:
    leaked, held, freed, other = parts
    with Running([str(program), *map(str, parts)], tmp_path / "run") as run:
        truth = read_truth(run)
        found = verdict("--pid", str(run.pid))
    expected = {name for name, one in (("lost", leaked), ("held", held), ("kept", freed)) if one}
    others = {"unread-memory", "unknown-owner", *([] if leaked else ["nothing-lost", "next-to-nothing-lost"])}
    assert set(sorts(found)) - others == expected
    assert len(unread(found)) == bool(other)
    # Each byte belongs to at most one finding.
    resident = [one["resident_bytes"] for one in found["findings"]]
    assert None not in resident
    assert sum(resident) <= found["resident"]
    assert sum(resident) >= 0.9 * sum(truth["held"][:1] + truth["freed"] + truth["unread"] + truth["leaked"][1:])
    if leaked:
        one = finding(found, "lost")
        assert one["bytes"] == truth["leaked"][0]
        assert near(one["resident_bytes"], truth["leaked"][1], 0.02)  # each block begins 16 bytes after the start of a page
        assert f"(6.1 MiB of it resident) in {AMOUNT * 2 // 3} blocks" in one["text"]
    if held:
        one = finding(found, "held")
        assert (one["bytes"], one["evidence"]["blocks"]) == (truth["held"][0], truth["held"][1])
        assert one["resident_bytes"] <= one["bytes"]
        assert near(one["resident_bytes"], one["bytes"], 0.01)
    if freed:
        assert near(finding(found, "kept")["resident_bytes"], truth["freed"][0], 0.02)
    if other:
        (one,) = unread(found)
        assert near(one["resident_bytes"], truth["unread"][0], 0.02)
        most = other > (leaked // 4 + held + freed)
        assert (one["finding"] == "unread-memory") == most
        assert not most or found["findings"][0] == one
        assert found["unread"]["percent"] >= 10


def test_figures_of_a_sentence_are_of_the_same_blocks(tmp_path: Path) -> None:
    """The sentence about reachable blocks has their most common size, also if there are more leaked blocks of another size."""
    source = tmp_path / "mixed.c"
    source.write_text(MIXED)
    subprocess.run(["gcc", "-O1", "-o", str(tmp_path / "mixed"), str(source)], check=True)
    with Running([str(tmp_path / "mixed")], tmp_path / "run") as run:
        found = verdict("--pid", str(run.pid))
    many, leaked = finding(found, "held-by-many"), finding(found, "lost")
    assert 0 <= many["bytes"] - 6000 * BLOCK < 1 << 16
    assert (many["evidence"]["size"], many["evidence"]["blocks_of_size"]) == (BLOCK, 6000)
    assert leaked["evidence"]["groups"][0]["blocks"] == 9
    assert many["bytes"] + leaked["bytes"] <= found["resident"]


MIXED = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
char *a[2000], *b[2000], *c[2000]; /* each with a third */
static void *made(size_t size) { return memset(malloc(size), 'x', size); }
__attribute__((noinline)) static void leak(void) { for (int i = 0; i < 9; i++) made(1000000); }
__attribute__((noinline)) static void wipe(void) { volatile char stack[30000]; memset((void *)stack, 0, sizeof stack); }
int main(void) {
    for (int i = 0; i < 2000; i++) { a[i] = made(2000); b[i] = made(2000); c[i] = made(2000); }
    leak();
    wipe();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
"""


def test_cores_have_the_same_findings(program: Path, tmp_path: Path) -> None:
    """The kernel's core gives the same figures. gcore's core does not record which pages are resident, so it gives the same findings
    without resident bytes."""
    with Running([str(program), *[str(AMOUNT)] * 4], tmp_path / "run") as run:
        live = verdict("--pid", str(run.pid))
        gcore = verdict(str(run.gcore()))
        kernel = verdict(str(run.kernel_core()))
    figures = [{one["finding"]: one[key] for one in found["findings"]} for found in (live, kernel) for key in ("bytes", "resident_bytes")]
    assert figures[0].keys() == figures[2].keys()
    for name, size in figures[1].items():
        assert near(figures[3][name], size, 0.02)
    assert figures[0]["lost"] == figures[2]["lost"]
    assert set(sorts(gcore)) == set(sorts(live))
    assert [one["resident_bytes"] for one in gcore["findings"]] == [None] * len(gcore["findings"])
    assert finding(gcore, "lost")["bytes"] == figures[0]["lost"]
    assert near(unread(gcore)[0]["bytes"], unread(live)[0]["bytes"], 0.02)


STRINGS = """
import ctypes, signal, sys
count = int(sys.argv[1])
kept = ["kept %060d" % number for number in range(count)]
for number in range(count):
    text = "lost %060d" % number
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(text))
del text
print("ready", flush=True)
signal.pause()
"""


def test_leaked_strings_are_not_in_use(tmp_path: Path) -> None:
    """Strings contain no references, so reachable and leaked strings look alike. Each string still counts in one finding only."""
    count = 60_000
    with Running([sys.executable, "-c", STRINGS, str(count)], tmp_path / "run") as run:
        found = verdict("--pid", str(run.pid))
    lost, held = finding(found, "lost"), finding(found, "held")
    assert near(lost["evidence"]["blocks"], count, 0.01)
    assert 0.99 * count <= held["evidence"]["blocks"] <= 1.6 * count
    assert lost["bytes"] + held["bytes"] <= sum(one["bytes"] for one in found["shares"] if one["share"] == "in-use")
