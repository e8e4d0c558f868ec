"""`verdict` on stripped Go programs that leak, live and in a core: it reports the cause."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from debuggers import findleaks, runtime_page
from go_programs import STRIPPED, build

from cores import Running

# By kind: the number of leaked objects, the finding, and patterns of its text.
KINDS = {
    "bodies": (500, "goroutines", r"500 goroutines wait in net/http\.\(\*persistConn\)\.readLoop .* close the body of each response"),
    "timers": (30_000, "go-timers", r"timers that have not fired retain .* 30,000 of the timers call main\.timers\.func1\. stop timers"),
    "tickers": (5_000, "goroutines", r"5,000 goroutines wait in main\.\(\*Session\)\.refresh \(programs/go_leaks\.go:\d+\): chan receive"),
    "senders": (
        5_000,
        "goroutines",
        r"goroutines (wait|are blocked for good) in main\.query\.func1 .*: chan send\. .* main\.query at",
    ),
    "history": (500_000, "retained-objects", r"variable at 0x\w+ \(used in main\.record.* map\[string\]\[\]main\.Event .*\[\]main\.Event"),
    "headers": (
        200,
        "go-arrays",
        r"slices and strings use 3\.1 KiB of (200|199) arrays of .* MiB\. .*: (200|199) from \[\]\[\]uint8\. .*main\.read",
    ),
    "documents": (200, "retained-objects", r"variable at 0x\w+ \(used in main\.read.* retains 50 MiB in 20\d objects"),
    "contexts": (
        40_000,
        "retained-objects",
        r"context\.cancelCtx\.children → .* (40,000|39,9\d\d) main\.Session .* call the cancel function of each context: ",
    ),
    "deadlines": (
        20_000,
        "go-timers",
        r"(20,000|19,9\d\d) main\.Session .* call the cancel function of each context with a timeout stop timers",
    ),
    "syncmap": (
        20_000,
        "live-objects",
        r"(20,000|19,9\d\d) main\.Session .* by variable at 0x\w+ \(at \+16 of one used in main\.store\): .* main\.Session",
    ),
    "list": (
        60_000,
        "live-objects",
        r"(60,000|59,9\d\d) main\.entry .* is reached by variable at 0x\w+ \(used in main\.push",
    ),
    "cycles": (
        10_000,
        "go-finalizer-cycles",
        r"Probably leaked: finalizers of .* in (20,0|19,9)\d\d objects .*: (20,000|19,9\d\d) main\.node .* break cycles",
    ),
    "handles": (
        5_000,
        "go-finalizers",
        r"finalizers that have not run .* in main\.\(\*Handle\)\.close \(\S+\): .*(5,000|4,99\d) main\.Handle .* keep finalizers",
    ),
    "finalizers": (
        20_000,
        "go-finalizers",
        r"finalizers that have not run .* in main\.\(\*Session\)\.close \(\S+\): .*(20,000|19,9\d\d) main\.Session .* keep finalizers",
    ),
}


def first_finding(*where: str) -> dict[str, Any]:
    return dict(json.loads(findleaks("verdict", "--json", *where))["findings"][0])


def join_text(finding: dict[str, Any]) -> str:
    return " ".join(f"{finding['text']} {finding['cause']} {' '.join(finding['try'])}".split())


@pytest.mark.parametrize("kind", [one if one == "senders" else pytest.param(one, marks=pytest.mark.matrix) for one in KINDS])
def test_the_first_finding_is_the_cause(kind: str, tmp_path: Path) -> None:
    count, name, text = KINDS[kind]
    with Running([str(build(tmp_path, "", STRIPPED, name="go_leaks")), kind, str(count)], tmp_path / "run") as run:
        live = first_finding("--pid", str(run.pid))
        of_core = first_finding(str(run.gcore()))
    for found in (live, of_core):
        assert found["finding"] == name
        assert re.search(text, join_text(found)), join_text(found)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["headers", "documents"])
def test_types_of_old_objects_in_a_large_program(kind: str, tmp_path: Path) -> None:
    """Objects have no headers, and many functions of net/http refer to variables. The code of the program is read before theirs."""
    _, name, text = KINDS[kind]
    with Running([str(build(tmp_path, "1.18.10", STRIPPED, name="go_leaks")), kind, "200"], tmp_path / "run") as run:
        found = first_finding("--pid", str(run.pid))
        types = {one["name"] for one in runtime_page("go", "--pid", str(run.pid))["types"]}
    assert found["finding"] == name and re.search(text, join_text(found)), join_text(found)
    assert "[][]uint8" in types


@pytest.mark.matrix
def test_finalizers_that_wait_beside_a_cache(tmp_path: Path) -> None:
    """The objects are small, but may refer to much memory of C code. Neither finding replaces the other."""
    with Running([str(build(tmp_path, "", STRIPPED, name="go_leaks")), "cached", "5000"], tmp_path / "run") as run:
        found = json.loads(findleaks("verdict", "--json", "--pid", str(run.pid)))["findings"]
    assert found[0]["finding"] == "retained-objects" and found[0]["bytes"] >= 8000 * 4096 and "main.main" in join_text(found[0])
    (held,) = (one for one in found if one["finding"] == "go-finalizers")
    assert re.search(KINDS["handles"][2], join_text(held)), join_text(held)


@pytest.mark.matrix
def test_handles_of_cgo(tmp_path: Path) -> None:
    with Running([str(build(tmp_path, "", STRIPPED, name="go_handles", cgo=True)), "20000"], tmp_path / "run") as run:
        found = first_finding("--pid", str(run.pid))
    assert found["finding"] == "live-objects"
    text = r"20,00\d main\.Session .* \(at \+16 of one used in runtime/cgo\.NewHandle\): .* call Delete for each cgo\.Handle"
    assert re.search(text, join_text(found)), join_text(found)


@pytest.mark.matrix
def test_objects_in_spans_that_had_large_objects(tmp_path: Path) -> None:
    """The types of all live arrays are known. Stale words may refer to a few more arrays, which then count as live."""
    with Running([str(build(tmp_path, "", STRIPPED, name="go_leaks")), "history", "50000"], tmp_path / "run") as run:
        types = {one["name"]: one["objects"] for one in runtime_page("go", "--pid", str(run.pid))["types"]}
    assert 5_000 <= types["[]main.Event"] <= 5_010


STRINGS = 2_000


def strings_of_c(folder: Path) -> Running:
    return Running([str(build(folder, "", STRIPPED, name="go_strings", cgo=True)), str(STRINGS)], folder / "run")


def test_strings_of_c(tmp_path: Path) -> None:
    """Their contents are an example. Blocks to which only stacks refer are not leaked. Blocks of objects that the collector has freed
    are leaked, although the objects' memory still refers to them. Stale words of stacks may refer to a few of them."""
    with strings_of_c(tmp_path) as run:
        live = first_finding("--pid", str(run.pid))
        core = str(run.gcore())
    for found in (live, first_finding(core)):
        assert found["finding"] == "lost"
        leaked = re.match(r"Leaked: \S+ [KM]iB in ([\d,]+) blocks that nothing refers to\b", join_text(found))  # or "1 possible"
        assert leaked is not None and "nnnn" in join_text(found)
        call = r"allocates such blocks of text in these calls: C\.CString in main\.encode \(programs/go_strings\.go:24\)\. Inferred: "
        assert re.search(call, join_text(found)) and found["try"] == ["free each of these blocks with C.free, for example with defer"]
        every = STRINGS + STRINGS * 9 // 10
        assert every - 20 <= int(leaked[1].replace(",", "")) <= every
    names = {one["name"]: one["retained_blocks"] for one in json.loads(findleaks("roots", "--json", core))["roots"]}
    (records,) = (blocks for name, blocks in names.items() if "(used in main.load" in name)
    assert STRINGS // 10 - 2 <= records <= STRINGS // 10  # stale words of stacks may refer to one or two, too
    assert not [name for name in names if "finalizer" in name]


OWNERS = 3_000


@pytest.mark.parametrize("version", ["", *(pytest.param(one, marks=pytest.mark.matrix) for one in ("1.18.10", "1.22.12", "1.27.4"))])
def test_owners_of_blocks_of_c(version: str, tmp_path: Path) -> None:
    """The path ends at the field with the address. Calls of C functions that do not allocate are not named."""
    program = build(tmp_path, version, STRIPPED, name="go_owners", cgo=True)
    with Running([str(program), "kept", str(OWNERS)], tmp_path / "run") as run:
        held = first_finding("--pid", str(run.pid))
    with Running([str(program), "dropped", str(OWNERS)], tmp_path / "run2") as run:
        lost = first_finding("--pid", str(run.pid))
    assert held["finding"] == "held-by-managed-objects" and lost["finding"] == "lost"
    # Stale words of stacks may refer to a few blocks.
    assert 2 * OWNERS - 80 <= held["evidence"]["native_blocks"] <= 2 * OWNERS
    assert 2 * OWNERS - 80 <= lost["evidence"]["blocks"] <= 2 * OWNERS + 10
    assert re.search(rf"{OWNERS:,} objects of main\.Image retain [\d.]+ MiB; one of them is reached by variable at ", join_text(held))
    assert re.search(r"main\.Image\.handle → block of 24 B\. free memory of C with C\.free", join_text(held)), join_text(held)
    calls = lost["evidence"]["allocating_calls"]["calls"]
    assert calls == ["C.image_new in main.open (programs/go_owners.go:41)", "C.malloc in main.size (programs/go_owners.go:49)"]
    assert any(one.startswith("call the function of the library that deletes such an object") for one in lost["try"])


def test_owners_and_calls_of_leaked_blocks(tmp_path: Path) -> None:
    """Some objects that own such blocks are live. The finding names their type, and the calls that allocate: first that of a
    function of C, because the blocks refer to others."""
    with Running([str(build(tmp_path, "", STRIPPED, name="go_owners", cgo=True)), "some", "800"], tmp_path / "run") as run:
        lost = first_finding("--pid", str(run.pid))
    assert (lost["finding"], lost["evidence"]["living_owner"]["type"]) == ("lost", "main.Image")
    assert "may allocate such objects in these calls: C.image_new in main.open (programs/go_owners.go:41) and C.malloc in " in lost["cause"]


USED = 300


@pytest.mark.parametrize("version", ["", *(pytest.param(one, marks=pytest.mark.matrix) for one in ("1.18.10", "1.22.12", "1.27.4"))])
def test_used_parts_of_stacks(version: str, tmp_path: Path) -> None:
    """Words in unused parts of stacks are not roots. Words on stacks of goroutines that wait, are in a system call, in C or in a
    function that C calls, and of those that a signal has interrupted, are roots."""
    program = build(tmp_path, version, STRIPPED, name="go_used_stacks", cgo=True)
    with Running([str(program)], tmp_path / "run") as run:
        found = json.loads(findleaks("find", "--json", "--pid", str(run.pid)))
    assert {one["size"] for one in found["groups"]} == {1032}
    assert USED - 5 <= sum(found["totals"][kind]["blocks"] for kind in ("definite", "possible")) <= USED, found["totals"]


@pytest.mark.matrix
def test_blocks_of_goroutines(tmp_path: Path) -> None:
    """Blocks to which only stacks refer belong to the goroutines."""
    with strings_of_c(tmp_path) as run:
        core = str(run.gcore())
    roots = {one["name"]: one for one in json.loads(findleaks("roots", "--json", core))["roots"]}
    (waiting,) = (one for name, one in roots.items() if name.startswith("goroutines in main.hold (sleep), created by main.main"))
    assert waiting["retained_blocks"] == STRINGS // 50


@pytest.mark.parametrize("version", ["", *(pytest.param(one, marks=pytest.mark.matrix) for one in ("1.24.11", "1.27.4"))])
def test_cleanups_that_wait(version: str, tmp_path: Path) -> None:
    """Their arguments are not garbage. The goroutine that runs them belongs to the program, as pprof says."""
    count = 3_000
    program = str(build(tmp_path, version, STRIPPED, name="go_cleanups"))
    with Running([program, str(count)], tmp_path / "run") as run:
        found = first_finding("--pid", str(run.pid))
        types = runtime_page("go", "--pid", str(run.pid))["types"]
        stacks = json.loads(findleaks("stacks", "--json", "--pid", str(run.pid)))["user_stacks"]
    assert found["finding"] == "go-finalizers"
    text = join_text(found)
    assert re.search(r"leaked: cleanups that have not run .* in main\.release \(\S+\): sync\.Mutex\.Lock", text), text
    assert found["evidence"]["retained_bytes"] >= (count - 2) * 3072
    assert sum(one["own"]["garbage_bytes"] for one in types) < 2 * count * 16 + (64 << 10)
    (group,) = (one for one in stacks if "main.release" in [frame["function"] for frame in one["frames"]])
    assert (group["internal"], group["reason"]) == (False, "sync.Mutex.Lock")
    with Running([program, str(count), "forever"], tmp_path / "run") as run:
        found = first_finding("--pid", str(run.pid))
    assert found["finding"] == "go-finalizer-cycles"
    text = join_text(found)
    assert re.search(r"leaked: cleanups of objects that refer to themselves .* 16 objects were .* argument of runtime\.AddCleanup", text), (
        text
    )
