"""For Ruby, `runtime` reports the same figures as the interpreter at the same stop, and the sizes that libpq reports for its results."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import debuggers
import pytest
import rubies
import truth
from variants import mark_matrix_except

import cores

OBJECTS = truth.PROGRAMS / "ruby_objects.rb"
ASKS = truth.PROGRAMS / "ruby_pg.rb"
SHIM = truth.PROGRAMS / "pg_shim.c"
WORDS = ("runtime", "--only", "ruby", "--json")
VERSIONS = [pytest.param(v, marks=() if v == rubies.SYSTEM else pytest.mark.matrix) for v in rubies.READ]


def page(*where: str) -> dict[str, Any]:
    """Return the output of `runtime` as JSON."""
    answer = json.loads(debuggers.findleaks(*WORDS, *where))
    (found,) = answer["runtimes"]
    return {**found, "warnings": answer.get("warnings", [])}


def truths(line: str) -> dict[str, str]:
    return dict(word.rsplit("=", 1) for word in line.split())


def check_equal(found: Mapping[str, Any], said: Mapping[str, str], version: str) -> None:
    """Check that every counter of GC.stat and ObjectSpace.count_objects, and the objects of each kind of class, are equal."""
    counters = {name: str(value) for name, value in found["counters"].items()}
    assert counters == {name: said[name] for name in counters}
    objects = {row["name"].partition(" [")[0]: str(row["objects"]) for row in found["types"]}
    classes = {name: count for name, count in said.items() if name not in counters and name != "version"}
    assert len(classes) == 14
    if version == "2.7":  # for a class in an anonymous module, Ruby has no name either
        assert not [name for name in classes if "::Named" in name]
    assert {name: objects.get(name, "0") for name in classes} == classes
    assert len(counters) >= 40
    assert sum(row["objects"] for row in found["types"]) == found["counters"]["TOTAL"] - found["counters"]["FREE"]
    assert (found["version"], "libruby" in found["where"]) == (said["version"], True)
    assert not [warning for warning in found["warnings"] if "Ruby" in warning and "managed heap" not in warning]


def assert_equal_types(found: Mapping[str, Any], live: Mapping[str, Any]) -> None:
    """Check that all figures are equal. Stale words on a stack, which differ between process and cores, may retain a few objects."""
    for one, other in zip(found["types"], live["types"]):
        assert {**one, "retained_bytes": 0} == {**other, "retained_bytes": 0}
        assert abs((one["retained_bytes"] or 0) - (other["retained_bytes"] or 0)) <= 4096 + (other["retained_bytes"] or 0) // 20
    assert len(found["types"]) == len(live["types"])


@pytest.mark.platform("x86-64", "Ruby", of="2.7, 3.1, 3.3, 3.4")
@pytest.mark.parametrize("version", VERSIONS)
def test_counters_and_objects_are_rubys_own(tmp_path: Path, version: str) -> None:
    with rubies.Pausing(version, OBJECTS, tmp_path) as program:
        program.go(2)
        found = page("--pid", str(program.pid), "--no-native")
        program.go(3)
        check_equal(found, truths(program.said()[1]), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_cores_and_front_ends_agree(tmp_path: Path, version: str) -> None:
    """The live process, gcore's core and the kernel's core give the same result, on the command line, in GDB and in LLDB."""
    with rubies.Pausing(version, OBJECTS, tmp_path) as program:
        program.go(2)
        live = page("--pid", str(program.pid))
        gcore = program.gcore()
        core = program.kernel_core()
    # zlib.h: a compressor takes 2^(windowBits + 2) + 2^(memLevel + 9) bytes, here 256 KiB, "plus a few kilobytes for small objects"
    (deflate,) = [row for row in live["types"] if row["name"].startswith("Zlib::Deflate")]
    assert 20 * (256 << 10) <= deflate["native_bytes"] <= 20 * (270 << 10)
    assert deflate["objects"] == 20
    assert live["native"]["bytes"] > deflate["native_bytes"] + 100_000
    words = "leaks " + " ".join(WORDS)
    exe = rubies.get(version).words[0]
    doors = {
        "gcore": page(str(gcore)),
        "kernel": page(str(core)),
        "gdb": json.loads(debuggers.objects(debuggers.gdb([words], exe, str(core)))[0])["runtimes"][0],
        "lldb": json.loads(debuggers.objects(debuggers.lldb([words], exe, "-c", str(core)))[0])["runtimes"][0],
    }
    for front_end, found in doors.items():
        for part in ("version", "counters", "parts"):
            assert found[part] == live[part], (front_end, part)
        assert_equal_types(found, live)


@pytest.mark.matrix
@pytest.mark.parametrize("version", rubies.READ)
def test_attached_debuggers_agree(tmp_path: Path, version: str) -> None:
    words = "leaks " + " ".join(WORDS)
    with rubies.Pausing(version, OBJECTS, tmp_path) as program:
        program.go(2)
        live = page("--pid", str(program.pid))
        answers = [front_end([words], "-p", str(program.pid)) for front_end in (debuggers.gdb, debuggers.lldb)]
        program.go(3)
        check_equal(live, truths(program.said()[1]), version)
    for answer in answers:
        (found,) = json.loads(debuggers.objects(answer)[0])["runtimes"]
        assert {part: found[part] for part in found if part != "types"} == {part: live[part] for part in found if part != "types"}
        assert_equal_types(found, live)


def test_text_matches_json(tmp_path: Path) -> None:
    with rubies.Pausing(rubies.SYSTEM, OBJECTS, tmp_path) as program:
        program.go(2)
        found = page("--pid", str(program.pid), "--no-native")
        text = debuggers.findleaks("runtime", "--only", "ruby", "--no-native", "--limit", "0", "--pid", str(program.pid))
    assert f"Ruby {found['version']} in {found['where']}: {sum(row['objects'] for row in found['types']):,} live objects" in text
    lines = [line.split() for line in text.splitlines()]
    for row in found["types"]:
        assert any(line[:1] == [f"{row['objects']:,}"] and " ".join(line[3:]) == row["name"] for line in lines), row
    for name in ("count", "heap_live_slots", "T_DATA"):
        assert [f"{found['counters'][name]:,}", name] in lines


@pytest.mark.parametrize("counted", mark_matrix_except([True, False], False))
def test_results_of_libpq(tmp_path: Path, counted: bool) -> None:
    """ruby-pg reports PQresultMemorySize to Ruby. If this function is missing, as in older libpq, Ruby does not know the size of
    results."""
    shim = tmp_path / "shim.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", shim, SHIM, "-ldl"], check=True)
    # glibc fills blocks, so that no stale word refers to a result, or from a result to other memory.
    more = {"LD_PRELOAD": str(shim), "MALLOC_PERTURB_": "165", **({} if counted else {"PG_UNCOUNTED": "1"})}
    with (
        rubies.postgres(tmp_path) as port,
        rubies.Pausing(rubies.SYSTEM, ASKS, tmp_path / "run", str(port), "800", "100000", **more) as program,
    ):
        said = {name: int(value) for name, value in truths(program.said()[0]).items()}
        pages = [page("--pid", str(program.pid))]
        for core in () if counted else (program.gcore(), program.kernel_core()):
            pages.append(page(str(core)))
            core.unlink()  # 100 MB
    for found in pages:
        rows = {row["name"]: row for row in found["types"]}
        results = rows["PG::Result"]
        assert said["results"] <= results["objects"] <= said["results"] + 2
        assert abs(results["native_bytes"] - said["bytes"]) <= said["bytes"] / 100
        assert results["reported_bytes"] == (said["bytes"] if counted else 0)
        assert (said["increase"] >= said["bytes"]) is counted
        assert all(row["reported_bytes"] is None for name, row in rows.items() if name != "PG::Result")


def test_an_address_is_named(tmp_path: Path) -> None:
    """A class without a name has its address in the name that Ruby prints."""
    with rubies.Pausing(rubies.SYSTEM, OBJECTS, tmp_path) as program:
        program.go(5)
        name = next(word for word in truths(program.said()[1]) if word.startswith("#<Class:0x"))
        address = hex(int(name[8:-1], 16))
        text = debuggers.findleaks("whatis", address, hex(int(address, 16) + 8), "--pid", str(program.pid))
    assert re.search(rf"^{address}  live \d+-byte Ruby object, class {re.escape(name)} at {address}$", text, re.M)
    assert re.search(rf"its class, 8 bytes into a live \d+-byte Ruby object, class {re.escape(name)} at {address}$", text, re.M)


LEAK = """
require "fiddle"
wrap = Fiddle::Function.new(Fiddle::Handle::DEFAULT["rb_data_object_wrap"], [Fiddle::TYPE_VOIDP] * 4, Fiddle::TYPE_UINTPTR_T)
malloc = Fiddle::Function.new(Fiddle::Handle::DEFAULT["malloc"], [Fiddle::TYPE_SIZE_T], Fiddle::TYPE_UINTPTR_T)
def run(wrap, malloc)
  3000.times { wrap.call(Fiddle.dlwrap(Object), malloc.call(777), 0, 0) } # whose objects free nothing
end
GC.start
run(wrap, malloc)
4.times { GC.start }
GC.disable
puts "ready"
$stdout.flush
sleep
"""


def test_blocks_of_dead_objects_are_lost(tmp_path: Path) -> None:
    """An extension does not free its blocks. The slots of its dead objects still contain the pointers, which do not count as references."""
    ruby = rubies.get(rubies.SYSTEM)
    with cores.Running([*ruby.words, "-e", LEAK], tmp_path, ruby.environment) as program:
        found = json.loads(debuggers.findleaks("find", "--json", "--pid", str(program.pid)))
    lost = sum(group["blocks"] for group in found["groups"] if group["kind"] == "definite" and group["size"] == 792)
    assert 2900 <= lost <= 3000


COLLECT = "GC.disable; garbage = Array.new(3000) { |n| (0..20).to_h { |i| [i, n] } }; GC.enable; garbage = nil; global_variables; GC.start"


@pytest.mark.parametrize(("function", "doing"), [("rb_st_free_table", "sweeping"), ("rb_gc_mark", "marking")])
def test_stopped_in_the_middle_of_a_collection(function: str, doing: str) -> None:
    """A message says that a collection is running. All objects are still counted."""
    commands = [
        "set breakpoint pending on",
        "tbreak rb_f_global_variables",
        "run",
        f"break {function}",
        "continue",
        "leaks runtime --only ruby --json",
        "kill",
    ]
    ruby = rubies.get(rubies.SYSTEM)
    output = debuggers.gdb(commands, "--args", *ruby.words, "-e", COLLECT)
    answers = debuggers.objects(output)
    assert answers, output
    answer = json.loads(answers[0])
    (found,) = answer["runtimes"]
    assert [warning for warning in answer["warnings"] if f"middle of a garbage collection ({doing})" in warning]
    assert found["counters"]["T_STRING"] > 5000
    assert found["counters"]["heap_live_slots"] > 10000
    assert sum(row["objects"] for row in found["types"]) == found["counters"]["TOTAL"] - found["counters"]["FREE"]


def test_another_program_has_no_ruby(tmp_path: Path) -> None:
    with cores.Running(["sh", "-c", "echo ready; exec sleep 3600"], tmp_path) as program:
        answer = json.loads(debuggers.findleaks(*WORDS, "--pid", str(program.pid)))
    assert answer["runtimes"] == []
