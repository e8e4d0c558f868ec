"""findleaks reports the same figures for V8's spaces as V8 at the same stop. The addon node_spaces.c reads them in a copy of the
process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import debuggers
import nodes
import pytest
import truth
from nodespaces import RUNTIME, make_program, parse_spaces

import cores

VERSIONS = ("18.20.8", "20.20.0", "22.12.0", nodes.NEWEST)
READ_ONLY = "V8's read_only_space"


def page(output: str) -> tuple[dict[str, Any], list[str]]:
    """Return the section about Node, and the warnings."""
    (line,) = debuggers.objects(output)
    answer = json.loads(line)
    (found,) = answer["runtimes"]
    return dict(found), list(answer["warnings"])


def check_spaces(found: Mapping[str, Any], truths: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that every space of every isolate has the bytes that V8 reports, and that no chunk is in two spaces."""
    heap = next(part for part in found["parts"] if part["name"] == "V8's heap")
    isolates = {part["name"].partition(" ")[2]: part for part in heap["parts"] if part["name"].startswith("isolate")}
    assert set(isolates) == set(truths)
    for address, isolate in isolates.items():
        counted = {name: sizes for name, sizes in truths[address]["spaces"].items() if name != "read_only_space"}
        spaces = {part["name"]: [part["bytes"], part["used"]] for part in isolate["parts"]}
        # findleaks does not list spaces that exist only in processes with a shared heap. V8 reports 0 bytes for them.
        assert {name: spaces.get(name, [0, 0]) for name in counted} == counted
        assert set(spaces) <= set(counted)
        assert sum(size for size, _ in counted.values()) == isolate["bytes"]
        assert sum(used for _, used in counted.values()) == isolate["used"]
        assert all(part["bytes"] == width(part) for part in isolate["parts"])
    ranges = sorted(tuple(row) for part in heap["parts"] for row in part["ranges"])
    assert ranges == sorted(tuple(row) for row in heap["ranges"])
    only = next(part for part in found["parts"] if part["name"] == READ_ONLY)
    (shared,) = {tuple(line["shared"]) for line in truths.values()}
    assert (only["bytes"], only["used"]) == shared


def width(part: Mapping[str, Any]) -> int:
    return sum(int(end, 16) - int(start, 16) for start, end in part["ranges"])


def read_everywhere(running: cores.Running, program: str, every: bool) -> dict[str, str]:
    """Return the results for the process and for the kernel's core. With `every`, also those for gcore's core, and those in GDB and
    LLDB."""
    pid, words = str(running.pid), [f"leaks {' '.join(RUNTIME)} --json"]
    reported = {"live": debuggers.findleaks(*RUNTIME, "--json", "--pid", pid)}
    if every:
        reported |= {"live, gdb": debuggers.gdb(words, "-p", pid), "live, lldb": debuggers.lldb(words, "-p", pid)}
    for name, make in (("gcore", running.gcore), ("kernel", running.kernel_core))[not every :]:
        core = make()
        reported[name] = debuggers.findleaks(*RUNTIME, "--json", str(core))
        if every:
            reported[f"{name}, gdb"] = debuggers.gdb(words, program, str(core))
            reported[f"{name}, lldb"] = debuggers.lldb(words, program, "-c", str(core))
        core.unlink()  # gcore writes all memory reserved for code
    return reported


@pytest.mark.platform("x86-64", "Node: what V8's spaces use")
@pytest.mark.parametrize(
    ("version", "every"),
    [(nodes.NEWEST, False), *(pytest.param(version, True, marks=pytest.mark.matrix) for version in VERSIONS)],
)
def test_spaces_have_the_figures_of_v8(tmp_path: Path, version: str, every: bool) -> None:
    """Three isolates, each in its own thread. The matrix tests all kinds of cores in all front ends; `make test` tests some."""
    with make_program(tmp_path, version, 2) as running:
        reported = read_everywhere(running, nodes.get(version), every)
    truths = parse_spaces(running.output)
    assert len(truths) == 3
    first, _ = page(reported["live"])
    for name, output in reported.items():
        found, warnings = page(output)
        assert [warning for warning in warnings if warning.startswith("node:")] == [], name
        check_spaces(found, truths)
        assert found["parts"] == first["parts"], name


def test_page_and_places(tmp_path: Path) -> None:
    """The text has the rows of the JSON that are not empty, and `whatis` on an address names its space."""
    with make_program(tmp_path, nodes.NEWEST, 0) as running:
        core = str(running.kernel_core())
    found, _ = page(debuggers.findleaks(*RUNTIME, "--json", core))
    text = debuggers.findleaks(*RUNTIME, core, COLUMNS="80")
    heap = next(part for part in found["parts"] if part["name"] == "V8's heap")
    spaces = [part for part in heap["parts"][0]["parts"] if part["bytes"]]
    starts = [part["ranges"][0][0] for part in spaces]
    answers = json.loads(debuggers.findleaks("whatis", "--json", *starts, core))["answers"]
    managed = json.loads(debuggers.findleaks("map", "--json", "--limit", "1", core))["managed"]
    check_spaces(found, parse_spaces(running.output))
    assert max(len(line) for line in text.splitlines() if " -m findleaks " not in line) <= 80
    rows = [line.split() for line in text.splitlines()]
    for part in spaces:
        (row,) = (row for row in rows if part["name"] in row)
        assert row[-2:] == [f"{len(part['ranges']):,}", "chunk" if len(part["ranges"]) == 1 else "chunks"]
    assert all(part["name"] not in text.split() for part in heap["parts"][0]["parts"] if not part["bytes"])
    for part, answer in zip(spaces, answers):
        assert answer["text"].endswith(f"; V8's heap, a chunk of {part['name']}")
    sizes = {one["name"]: one["mapped"] for one in managed}
    assert sizes["Node V8's heap"] == heap["bytes"]


@pytest.mark.parametrize("version", [nodes.NEWEST, pytest.param("22.12.0", marks=pytest.mark.matrix)])
def test_free_memory_that_v8_has_not_returned(tmp_path: Path, version: str) -> None:
    """The memory that V8 reports as freed and that the kernel reports as resident is the memory in the finding. `verdict` names the
    cause."""
    program = [nodes.get(version), "--expose-gc", *nodes.STEADY, str(truth.PROGRAMS / "node_freed.js"), "100000"]
    with cores.Running(program, tmp_path) as running:
        said = json.loads(running.output.splitlines()[0])
        where = ("--pid", str(running.pid))
        found, _ = page(debuggers.findleaks(*RUNTIME, "--json", *where))
        verdict = json.loads(debuggers.findleaks("verdict", "--json", *where))
        chunk = next(part for part in found["parts"] if part["name"] == "V8's heap")["parts"][-1]["ranges"][0][0]
        (answer,) = json.loads(debuggers.findleaks("whatis", "--json", chunk, *where))["answers"]
        resident = sum(
            int(line.split()[1]) << 10 for line in Path(f"/proc/{running.pid}/smaps").read_text().splitlines() if line.startswith("Rss")
        )
    heap = next(part for part in found["parts"] if part["name"] == "V8's heap")
    isolate, freed = heap["parts"]
    assert isolate["bytes"] == said["heapTotal"]
    assert freed["freed"] and not isolate["freed"]
    assert 0.95 <= freed["bytes"] / (said["before"] - said["after"]) <= 1.0
    assert resident >= isolate["used"] + freed["bytes"] * 0.95
    (one,) = (row for row in verdict["findings"] if row["finding"] == "freed-by-runtime")
    assert 0.95 * freed["bytes"] <= one["bytes"] <= one["evidence"]["mapped_bytes"] == freed["bytes"]
    assert one["next"] == ["runtime"]
    assert answer["text"].endswith("; V8's heap, a chunk that V8 freed but did not unmap")
