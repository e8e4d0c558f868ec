"""References in objects that the collector has left behind: the state of each block is correct, both of blocks that a Java program
dropped and of blocks that it keeps."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import debuggers
import evidence
import jvms
import pytest
from counting import suspend
from variants import mark_matrix_except

COUNT = 200
MADE = {"kept": 4 * COUNT + 4 * (COUNT // 10) * 4 + 25, "forgotten": 4 * COUNT + 25}
"""A connection has four blocks, and a table has 8 or 9 more."""

LOST = ("definite", "possible", "indirect")
COLLECTORS = ("Serial", "Parallel", "G1")
MATRIX = [
    *(pytest.param(c, jvms.SYSTEM, marks=pytest.mark.matrix) for c in ("Serial", "Parallel")),
    *(pytest.param(c, v, marks=pytest.mark.matrix) for c in COLLECTORS for v in jvms.VERSIONS),
]


def kinds(output: str) -> dict[str, str]:
    """Return the kinds of the blocks in use, by address."""
    rows = map(json.loads, output.splitlines())
    return {row["address"]: row["kind"] for row in rows if "address" in row}


def check_kinds(found: Mapping[str, str], truth: Mapping[str, str], core: Path) -> None:
    """Check that every kept block is reachable, and that dropped blocks are lost, except for a few to which stale native words refer."""
    assert Counter(truth.values()) == MADE
    assert {found[address] for address, what in truth.items() if what == "kept"} == {"reachable"}
    forgotten = Counter(found[address] for address, what in truth.items() if what == "forgotten")
    held = [address for address, what in truth.items() if what == "forgotten" and found[address] not in LOST]
    assert len(held) <= MADE["forgotten"] / 100
    picture = evidence.read(core) if held else None
    assert all(picture is not None and has_native_reference(int(address, 16), core, picture) for address in held)
    assert forgotten["definite"] >= 0.9 * MADE["forgotten"]  # a block may be reused with a stale word in it


def has_native_reference(block: int, core: Path, picture: evidence.Picture) -> bool:
    """Return whether `refs` and a scan of the core find the same references outside the Java heap, the only memory that the program
    writes."""
    scanned = {word.address for word in picture.words(block, block + 16)}
    references = json.loads(debuggers.findleaks("refs", "--json", "--limit", "0", hex(block), str(core)))["references"]
    native = [one for one in references if one["live"] and "Java heap" not in debuggers.place(one)]
    return any((int(one["address"], 16) if "address" in one else None) in scanned for one in native)


@pytest.mark.parametrize(("collector", "version"), [("G1", jvms.SYSTEM), *MATRIX])
def test_dropped_blocks_are_lost_and_kept_blocks_are_reachable(tmp_path: Path, collector: str, version: str) -> None:
    """Kept objects are moved, young, or in arrays of all sizes. The test reads the live process and the kernel's core."""
    with jvms.addresses(tmp_path, version, COUNT, f"-XX:+Use{collector}GC", "-Xms64m", "-Xmx64m") as running:
        truth = jvms.parse_states(running.output)
        suspend(running.pid)  # the core then has the same references as the live process
        live = kinds(debuggers.findleaks("blocks", "--json", "--pid", str(running.pid)))
        core = running.kernel_core()
    check_kinds(live, truth, core)
    check_kinds(kinds(debuggers.findleaks("blocks", "--json", str(core))), truth, core)


def test_front_ends_and_dead_words(tmp_path: Path) -> None:
    """GDB and LLDB read a core of the Serial collector, in which every block is correct. `refs` lists references in unused memory of the
    eden, and marks them as dead."""
    with jvms.addresses(tmp_path, jvms.SYSTEM, COUNT, "-XX:+UseSerialGC", "-Xms64m", "-Xmx64m") as running:
        truth, program = jvms.parse_states(running.output), str(jvms.jdk() / "bin" / "java")
        core = str(running.kernel_core())
    outputs = [debuggers.gdb(["leaks find --json"], program, core), debuggers.lldb(["leaks find --json"], program, "-c", core)]
    totals = [json.loads(debuggers.objects(output)[0])["totals"] for output in outputs]
    reported = json.loads(debuggers.findleaks("find", "--json", core))
    assert totals == [reported["totals"]] * 2
    assert reported["totals"]["definite"]["blocks"] >= 0.9 * MADE["forgotten"]
    check_kinds(kinds(debuggers.findleaks("blocks", "--json", core)), truth, Path(core))
    lost = [address for group in reported["groups"] for address in group["examples"] if truth.get(address) == "forgotten"]
    answer = json.loads(debuggers.findleaks("refs", "--json", lost[0], core))
    in_eden = [place for place in map(debuggers.place, answer["references"]) if "; Java heap of the JVM, in eden" in place]
    assert in_eden and all(place.endswith(": dead") for place in in_eden)
    assert answer["live"] == 0


@pytest.mark.matrix
@pytest.mark.parametrize("collector", mark_matrix_except(COLLECTORS, "G1"))
def test_gcores_core(tmp_path: Path, collector: str) -> None:
    with jvms.addresses(tmp_path, jvms.SYSTEM, COUNT, f"-XX:+Use{collector}GC", "-Xmx64m") as running:
        core = str(running.gcore())
    check_kinds(kinds(debuggers.findleaks("blocks", "--json", core)), jvms.parse_states(running.output), Path(core))


@pytest.mark.matrix
@pytest.mark.parametrize("collector", mark_matrix_except(["Z", "Shenandoah"], "Z"))
def test_other_collectors_report_no_leaks(tmp_path: Path, collector: str) -> None:
    """These collectors may move objects at any time. All blocks that the program kept and most of the blocks that it dropped are
    reachable."""
    with jvms.addresses(tmp_path, jvms.SYSTEM, COUNT, f"-XX:+Use{collector}GC", "-Xmx64m") as running:
        truth = jvms.parse_states(running.output)
        found = kinds(debuggers.findleaks("blocks", "--json", "--pid", str(running.pid)))
    assert {found[address] for address, what in truth.items() if what == "kept"} == {"reachable"}
