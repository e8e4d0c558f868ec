"""What objects refer to that a collection has left behind: blocks that a Java program has forgotten, and such as it keeps, one by one."""

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
"""Four blocks a connection, and 9 or 8 in a table."""

LOST = ("definite", "possible", "indirect")
COLLECTORS = ("Serial", "Parallel", "G1")
MATRIX = [
    *(pytest.param(c, jvms.SYSTEM, marks=pytest.mark.matrix) for c in ("Serial", "Parallel")),
    *(pytest.param(c, v, marks=pytest.mark.matrix) for c in COLLECTORS for v in jvms.VERSIONS),
]


def kinds(output: str) -> dict[str, str]:
    """Of blocks in use, by address."""
    rows = map(json.loads, output.splitlines())
    return {row["address"]: row["kind"] for row in rows if "address" in row}


def exact(found: Mapping[str, str], truth: Mapping[str, str], core: Path) -> None:
    """What is kept is reachable, every block of it; what is forgotten is lost, but for a few that stale native words hold."""
    assert Counter(truth.values()) == MADE
    assert {found[address] for address, what in truth.items() if what == "kept"} == {"reachable"}
    forgotten = Counter(found[address] for address, what in truth.items() if what == "forgotten")
    held = [address for address, what in truth.items() if what == "forgotten" and found[address] not in LOST]
    assert len(held) <= MADE["forgotten"] / 100
    picture = evidence.read(core) if held else None
    assert all(picture is not None and held_by_a_native_word(int(address, 16), core, picture) for address in held)
    assert forgotten["definite"] >= 0.9 * MADE["forgotten"]  # a block may be handed out again, with an old word in it


def held_by_a_native_word(block: int, core: Path, picture: evidence.Picture) -> bool:
    """Whether `refs` and a scan of the core's bytes name the same word outside the Java heap, which is all that the program writes."""
    scanned = {word.address for word in picture.words(block, block + 16)}
    references = json.loads(debuggers.findleaks("refs", "--json", "--limit", "0", hex(block), str(core)))["references"]
    native = [one for one in references if one["live"] and "Java heap" not in debuggers.place(one)]
    return any((int(one["address"], 16) if "address" in one else None) in scanned for one in native)


@pytest.mark.parametrize(("collector", "version"), [("G1", jvms.SYSTEM), *MATRIX])
def test_what_a_program_forgot_is_lost_and_what_it_keeps_is_not(tmp_path: Path, collector: str, version: str) -> None:
    """Kept in objects that were moved, in young ones, and in arrays of all sizes. Live, and of the kernel's core."""
    with jvms.addresses(tmp_path, version, COUNT, f"-XX:+Use{collector}GC", "-Xms64m", "-Xmx64m") as running:
        truth = jvms.said(running.output)
        suspend(running.pid)  # so that the core has the same evidence as the live process
        live = kinds(debuggers.findleaks("blocks", "--json", "--pid", str(running.pid)))
        core = running.kernel_core()
    exact(live, truth, core)
    exact(kinds(debuggers.findleaks("blocks", "--json", str(core))), truth, core)


def test_every_door_and_what_dead_words_are(tmp_path: Path) -> None:
    """GDB and LLDB on a core of Serial's heap, of which every block is right; `refs` lists what is in the eden where no object is, and says
    that it is dead."""
    with jvms.addresses(tmp_path, jvms.SYSTEM, COUNT, "-XX:+UseSerialGC", "-Xms64m", "-Xmx64m") as running:
        truth, program = jvms.said(running.output), str(jvms.jdk() / "bin" / "java")
        core = str(running.kernel_core())
    outputs = [debuggers.gdb(["leaks find --json"], program, core), debuggers.lldb(["leaks find --json"], program, "-c", core)]
    totals = [json.loads(debuggers.objects(output)[0])["totals"] for output in outputs]
    reported = json.loads(debuggers.findleaks("find", "--json", core))
    assert totals == [reported["totals"]] * 2
    assert reported["totals"]["definite"]["blocks"] >= 0.9 * MADE["forgotten"]
    exact(kinds(debuggers.findleaks("blocks", "--json", core)), truth, Path(core))
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
    exact(kinds(debuggers.findleaks("blocks", "--json", core)), jvms.said(running.output), Path(core))


@pytest.mark.matrix
@pytest.mark.parametrize("collector", mark_matrix_except(["Z", "Shenandoah"], "Z"))
def test_of_other_collectors_nothing_is_reported(tmp_path: Path, collector: str) -> None:
    """Their objects may be moved at any time: what they keep is held, and mostly what they forgot, too."""
    with jvms.addresses(tmp_path, jvms.SYSTEM, COUNT, f"-XX:+Use{collector}GC", "-Xmx64m") as running:
        truth = jvms.said(running.output)
        found = kinds(debuggers.findleaks("blocks", "--json", "--pid", str(running.pid)))
    assert {found[address] for address, what in truth.items() if what == "kept"} == {"reachable"}
