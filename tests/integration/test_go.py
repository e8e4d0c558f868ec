"""Go programs, stripped and not, live and in both kinds of core: findleaks reports the same heap figures as the Go runtime, and finds lost
blocks of C code."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from debuggers import findleaks, gdb, lldb, objects, runtime_page
from go_programs import STRIPPED, build
from verdicts import share, sorts, verdict

from cores import Running

GOROUTINES, OBJECTS, KEPT, LOST = 4_000, 400, 60, 300
ABOUT_C = "if anything in Go's heap, garbage included, refers to it"
"""A part of the note about blocks of malloc."""
SLACK = 256 << 10
"""Bytes that the runtime still allocates after it has read its counters: 8 KiB in this program."""


def running(program: Path, folder: Path, *words: int) -> Running:
    """Start the program. With GOTRACEBACK=crash, a fatal signal writes a core."""
    return Running([str(program), *map(str, words)], folder, {**os.environ, "GOTRACEBACK": "crash"})


def version() -> str:
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    done = subprocess.run(["go", "env", "GOVERSION"], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip().removeprefix("go")


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("stacks")
    with running(build(folder, "", STRIPPED, name="go_stacks", cgo=True), folder / "run", GOROUTINES, OBJECTS) as run:
        yield run


@pytest.mark.platform("x86-64", "Go")
def test_heap_has_the_figures_of_the_runtime(stacks: Running) -> None:
    in_use, stack, mapped = (int(word) for word in stacks.output.split()[:3])
    found = runtime_page("go", "--pid", str(stacks.pid))
    assert found["version"] == version()
    heap, *_ = found["parts"]
    parts = {part["name"]: part["bytes"] for part in heap["parts"]}
    assert 0 <= found["counters"]["HeapInuse"] - in_use < SLACK < in_use // 20
    assert parts["objects"] == found["counters"]["HeapInuse"]
    assert 0 <= parts["stacks of goroutines"] - stack < 4 * SLACK  # some of these spans are buffers of the collector
    assert sum(parts.values()) == heap["bytes"]
    assert mapped <= heap["bytes"] + SLACK  # HeapSys does not include stacks


def test_goroutines_stacks_are_no_threads_stacks(stacks: Running) -> None:
    stack = int(stacks.output.split()[1])
    assert stack > GOROUTINES * 16 << 10
    found = json.loads(findleaks("verdict", "--json", "--pid", str(stacks.pid)))
    assert share(found, "stacks") < 1 << 20
    heap = next(one for one in found["shares"] if one["of"] == "Go heap")
    assert heap["bytes"] > stack
    assert not {"unknown-owner", "lost"} & set(sorts(found))
    assert not any(ABOUT_C in note for note in found["notes"])  # the program has no block of malloc
    assert found["warnings"] == []
    assert [one["finding"] for one in found["findings"]] == ["goroutines", "no-blocks"]
    assert found["findings"][0]["evidence"]["goroutines"] == GOROUTINES
    assert found["unread"]["percent"] < 10
    assert share(found, "unknown") < 4 << 20


def kinds(*where: str) -> dict[int, str]:
    """Return the kinds of the blocks in use, by address."""
    found = map(json.loads, findleaks("blocks", "--state", "in-use", "--json", *where).splitlines())
    return {int(block["address"], 16): block["kind"] for block in found if "kind" in block and "address" in block}


def list_errors(output: str, found: dict[int, str]) -> list[str]:
    """Return the blocks whose kind is wrong. Lost blocks must be definitely lost, except for one block to which a register refers. Kept
    blocks must be reachable."""
    said = [(line.split()[0], int(line.split()[1], 16)) for line in output.splitlines() if line.startswith(("kept ", "lost "))]
    assert [what for what, _ in said].count("kept") == 3 * KEPT
    assert [what for what, _ in said].count("lost") == LOST
    expected = {"kept": "reachable", "lost": "definite"}
    return [f"{what} {address:#x} is {found.get(address)}" for what, address in said if found.get(address) != expected[what]]


def without_details(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the result without details, because details contain the bytes of free pages. Go returns free pages to the kernel in the
    background."""
    return [{**part, "detail": None, "parts": without_details(part["parts"])} for part in parts]


@pytest.mark.parametrize("stripped", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_blocks_of_go_objects_are_reachable(stripped: bool, tmp_path: Path) -> None:
    """Go objects refer to blocks: from a list, a map, and stacks of goroutines that do not run. Three threads run on stacks in Go's heap.

    The program does not have fixed addresses, as Go programs usually do. With them, blocks of malloc would be within 1 GiB after the
    program, and short texts ("sse2") would look like pointers to blocks.
    """
    program = build(tmp_path, "", "-buildmode=pie", *([STRIPPED] if stripped else ()), name="go_holds", cgo=True)
    with running(program, tmp_path / "run", KEPT, LOST) as run:
        assert list_errors(run.output, kinds("--pid", str(run.pid))) == []
        live = runtime_page("go", "--pid", str(run.pid))
        if stripped:  # a core of 1.4 GiB, nearly all of it reserved memory
            of_gcore = run.gcore()
            assert list_errors(run.output, kinds(str(of_gcore))) == []
            assert without_details(runtime_page("go", str(of_gcore))["parts"]) == without_details(live["parts"])
            assert not {"unknown-owner"} & set(sorts(verdict(str(of_gcore))))
            of_gcore.unlink()
        core = str(run.kernel_core())
    found = kinds(core)
    assert list_errors(run.output, found) == []
    kept = next(line.split()[1] for line in run.output.splitlines() if line.startswith("kept "))
    (reference, *_) = json.loads(findleaks("refs", "--json", kept, core))["references"]
    assert re.search(r"live \S+-byte Go object, ", findleaks("whatis", reference["address"], core))
    root, *_, last = json.loads(findleaks("path", "--json", kept, core))["path"]
    assert (root["in"]["is"], last["in"]["object"]["runtime"], last["value"]) == ("module", "Go", kept)
    reported = verdict(core)
    assert sorts(reported) == ["lost"]
    assert any(ABOUT_C in note for note in reported["notes"])
    if not stripped:
        return
    here = objects(findleaks("verdict", "--json", core))
    assert objects(gdb(["leaks verdict --json"], str(program), core)) == here
    assert objects(lldb(["leaks verdict --json"], str(program), "-c", core)) == here


def test_native_memory_of_garbage(tmp_path: Path) -> None:
    """Eight of ten C parsers are referenced only from garbage of Go and are never freed. Stale words on a stack may refer to a few of
    them. The program is a PIE: at low addresses, its numbers would look like addresses of parsers."""
    count = 5000
    with running(build(tmp_path, "", "-buildmode=pie", name="go_parsers", cgo=True), tmp_path / "run", count) as run:
        (held,) = [one for one in verdict("--pid", str(run.pid))["findings"] if one["finding"] == "held-by-managed-objects"]
        types = runtime_page("go", "--pid", str(run.pid))["types"]
        roots = {
            root["name"].removesuffix(" (Go's heap)"): root
            for root in json.loads(findleaks("roots", "--json", "--pid", str(run.pid)))["roots"]
        }
    garbage = roots.pop("garbage of Go")["retained_blocks"]
    assert 2 * (8 * count // 10 - 20) <= garbage <= 2 * 8 * count // 10
    assert 2 * count // 10 - 40 <= roots["objects with a finalizer of Go"]["retained_blocks"] <= 2 * count // 10
    kept = max(root["retained_blocks"] for name, root in roots.items() if name.startswith("variable main."))
    assert 2 * count // 10 - 40 <= kept <= 2 * count // 10
    lost = sum(one["own"].get("garbage_native_blocks", 0) for one in types)
    assert 2 * (8 * count // 10 - 20) <= lost <= 2 * 8 * count // 10
    assert 2 * count - 3 * 40 <= held["evidence"]["native_blocks"] <= 2 * count  # each of the three groups may lack up to 40
    assert held["text"].startswith("Probably leaked: garbage of Go retains 16 MiB of native memory; objects in use retain ")
    assert "C.free" in held["try"][0] and "runtime.AddCleanup" in held["try"][1]


def test_track_follows_go_functions_above_those_of_c(tmp_path: Path) -> None:
    """The stack of a block includes the Go functions that called the C code, although C code runs on another stack."""
    with running(build(tmp_path, "", STRIPPED, name="go_native", cgo=True), tmp_path / "run") as run:
        found = json.loads(findleaks("track", "--for", "1", "--json", "--pid", str(run.pid)))
        counted = findleaks("count", "malloc", "--inject", "--for", "1", "--json", "--pid", str(run.pid))
    assert found["recorded"] >= 10
    (entry,) = (one for one in found["entries"] if any(frame["function"] == "main.load" for frame in one["frames"]))
    assert entry["allocated"]["bytes"] == 3000 * entry["allocated"]["blocks"]
    names = [frame["function"] for frame in entry["frames"]]
    go = [
        "runtime.asmcgocall",
        "runtime.cgocall",
        "main._Cfunc_parse",
        "main.load",
        "main.handle",
        "main.main",
        "runtime.main",
        "runtime.goexit",
    ]
    assert names[0] == "malloc" and names[-len(go) :] == go
    stacks = [[frame["function"] for frame in one["frames"]] for one in json.loads(counted)["stacks"]]
    assert any(one[-len(go) :] == go for one in stacks), stacks
