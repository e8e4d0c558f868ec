"""Goroutines and counters of Go programs without symbols are what the program's own pprof and runtime.MemStats say."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import truth
from building import compile_program
from debuggers import findleaks, gdb, lldb, objects, runtime_page
from go_programs import STRIPPED, VERSIONS, build
from go_truth import (
    COUNT,
    addresses,
    check_interrupted,
    check_objects,
    check_plugin,
    check_roots,
    compare,
    parse_goroutines,
    profile,
    sparse_map,
)
from kernel_cores import run_until_crash

from cores import Running
from findleaks import attach


@pytest.mark.platform("x86-64", "Go")
def test_goroutines_and_counters(tmp_path: Path) -> None:
    """Stripped and position-independent, live and in a core, in all front ends."""
    program = build(tmp_path, "", STRIPPED, "-buildmode=pie")
    environment = {**os.environ, "GOTRACEBACK": "crash"}
    with Running([str(program), str(COUNT), "goroutines"], tmp_path / "run", environment) as run:
        file = tmp_path / "run" / "goroutines"
        compare(run.output, file, "--pid", str(run.pid))
        sparse_map("--pid", str(run.pid))
        at = addresses(run.output)
        check_objects(at, "--pid", str(run.pid))
        check_roots(at, "--pid", str(run.pid))
        text = findleaks("stacks", "--pid", str(run.pid))
        assert f"{COUNT + 12} goroutines of Go" in text
        assert f"  {COUNT} goroutines, waiting, chan receive" in text
        assert "created by main.start+" in text
        folded = findleaks("stacks", "--folded", "--pid", str(run.pid)).splitlines()
        assert f"runtime.goexit;main.waitOn;runtime.chanrecv1;runtime.chanrecv;runtime.gopark {COUNT}" in folded
        core = str(run.kernel_core())
    here = objects(findleaks("stacks", "--json", core))
    assert parse_goroutines(json.loads(here[0])).keys() >= set(profile(file.read_text())) - {1}
    assert objects(gdb(["leaks stacks --json"], str(program), core)) == here
    assert objects(lldb(["leaks stacks --json"], str(program), "-c", core)) == here
    words = (f"whatis {at['holder']}", f"refs {at['shared']}", f"path {at['data']}", "roots --limit 3")
    asked = [f"leaks {word} --json" for word in words]
    here = [one for word in asked for one in objects(findleaks(*word.split()[1:], core))]
    assert json.loads(here[0])["answers"][0]["object"]["type"] == "main.Holder"
    assert json.loads(here[1])["count"] >= COUNT
    assert json.loads(here[2])["blocks"] == 3
    assert objects(gdb(asked, str(program), core)) == here
    assert objects(lldb(asked, str(program), "-c", core)) == here


def check_parts(findings: list[dict[str, Any]]) -> None:
    """Of caches that have a quarter of the items each, `verdict` names the largest type and the path to it, and the waiting goroutines."""
    by_kind = {finding["finding"]: finding for finding in findings}
    assert "retained-objects" not in by_kind
    evidence = by_kind["live-objects"]["evidence"]
    types = {row["type"]: row["objects"] for row in evidence["types"]}
    assert types["main.Item"] == types["[200]uint8"] == 24_000
    assert evidence["path"].startswith("variable main.") and evidence["path"].endswith("[]*main.Item → main.Item.Body → [200]uint8")
    assert (by_kind["goroutines"]["evidence"]["goroutines"], by_kind["goroutines"]["evidence"]["function"]) == (300, "main.wait")


def check_growth(before: Path, after: Path) -> None:
    """The second process has a larger cache, and goroutines that the first one lacks."""
    answer = json.loads(findleaks("diff", "--json", str(before), str(after)))
    rows, types = answer["grown"], {row["name"]: row["counts"] for row in answer["objects"][0]["types"]}
    assert types["main.Item"] == types["[200]uint8"] == [0, 24_000]
    by_section = {section: [row for row in rows if row["what"] == section] for section in ("heap root", "user threads")}
    (cache,) = (row for row in by_section["heap root"] if row["name"] == "variable main.others")
    assert cache["within"] == "Go"
    assert cache["counts"] == [0, 3 * (1 + 2 * 6_000 + 1)]
    (timers,) = (row for row in by_section["heap root"] if row["name"].startswith("the runtime's processors"))
    assert timers["counts"][0] >= 10_000
    (stacks,) = by_section["user threads"]
    assert stacks["counts"] == [0, 300]
    assert re.match(r"chan receive: .*main\.wait ← runtime\.goexit, created by main\.main$", stacks["name"])
    text = " ".join(findleaks("diff", str(before), str(after)).split())
    assert f"stacks of 0 → 300 goroutines: {stacks['name']}" in text
    assert f"Go's heap: retained by {cache['name']}, {cache['counts'][0]:,} → {cache['counts'][1]:,} objects" in text


@pytest.mark.platform("x86-64", "Go")
def test_a_cache_that_a_variable_retains(tmp_path: Path) -> None:
    """`verdict` names the variable and the array, and `runtime` counts what the array retains."""
    count = 80_000
    program = build(tmp_path, "", name="go_cache")
    with Running([str(program), str(count)], tmp_path / "run") as run:
        found = json.loads(findleaks("verdict", "--json", "--pid", str(run.pid)))["findings"]
        (page,) = json.loads(findleaks("runtime", "--json", "--pid", str(run.pid)))["runtimes"]
    with Running([str(program), "24000", "4", "300"], tmp_path / "parts") as run:
        check_parts(json.loads(findleaks("verdict", "--json", "--pid", str(run.pid)))["findings"])
        findleaks("snapshot", "-o", str(tmp_path / "after"), "--pid", str(run.pid))
    with Running([str(program), "0", "1", "0", "10000"], tmp_path / "timers") as run:
        findleaks("snapshot", "-o", str(tmp_path / "before"), "--pid", str(run.pid))
        timers = json.loads(findleaks("verdict", "--json", "--pid", str(run.pid)))["findings"][0]
    check_growth(tmp_path / "before", tmp_path / "after")
    assert (timers["finding"], timers["evidence"]["types"][0]["type"]) == ("go-timers", "main.Entry")
    assert 9_990 <= timers["evidence"]["types"][0]["objects"] <= timers["evidence"]["retained_objects"] <= 31_000
    (one,) = [finding for finding in found if finding["finding"] == "retained-objects"]
    assert one["evidence"]["root"].startswith("variable main.cache")
    assert one["evidence"]["type"] == "[]*main.Item"
    for retained in (one["evidence"]["retained_objects"], page["retainers"][0]["retained_objects"]):
        assert 2 * count - 20 <= retained <= 2 * count + 1  # stale words may refer to some items in one of the two samples
    assert one["next"][0] == f"path {one['evidence']['address']}"
    assert page["retainers"][0]["address"] == one["evidence"]["address"]


@pytest.mark.matrix
@pytest.mark.parametrize("flags", [(), (STRIPPED,), (STRIPPED, "-buildmode=pie")], ids=["symbols", "stripped", "pie"])
@pytest.mark.parametrize("version", VERSIONS)
def test_versions(version: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    program, file = build(tmp_path, version, *flags), tmp_path / "run" / "goroutines"
    with Running([str(program), str(COUNT), "goroutines"], tmp_path / "run", {**os.environ, "GOTRACEBACK": "crash"}) as run:
        compare(run.output, file, "--pid", str(run.pid))
        sparse_map("--pid", str(run.pid))
        if tuple(map(int, version.split(".")[:2])) >= (1, 22):
            check_objects(addresses(run.output), "--pid", str(run.pid))
        if flags:
            # Before the core is written, Go prints the stacks of all goroutines, and allocates memory to do it.
            core = str(run.kernel_core())
            compare(run.output, file, core, slack=1 << 20)
            sparse_map(core)


@pytest.mark.platform("x86-64", "Go")
@pytest.mark.parametrize("version", ["", *(pytest.param(one, marks=pytest.mark.matrix) for one in VERSIONS)])
def test_thread_with_functions_of_c_and_go(version: str, tmp_path: Path) -> None:
    """Go calls C, C calls Go, and this Go function calls C. In a stripped program, all functions of Go have their names."""
    program = build(tmp_path, version, STRIPPED, name="go_callbacks", cgo=True)
    with Running([str(program)], tmp_path / "run", {**os.environ, "GOTRACEBACK": "crash"}) as run:
        found = json.loads(findleaks("stacks", "--json", "--pid", str(run.pid)))
        core = str(run.kernel_core())
    frames = next(one["frames"] for one in found["stacks"] if any(frame["function"] == "main.enter" for frame in one["frames"]))
    names = [frame["function"] for frame in frames]
    first = names.index("runtime.asmcgocall")
    assert first >= 3  # functions of C: pause, inner, and cgo's function that calls it
    own = [name for name in names[first:] if name.startswith(("main.", "_cgoexp_")) or name in ("runtime.cgocall", "runtime.cgocallback")]
    assert [re.sub("_[0-9a-f]{12}_", "_", name) for name in own] == [
        "runtime.cgocall",
        "main._Cfunc_inner",
        "main.enter",
        "main.callback",
        "_cgoexp_callback",
        "runtime.cgocallback",
        "runtime.cgocall",
        "main._Cfunc_outer",
        "main.main",
    ]
    assert names[-1] == "runtime.goexit"
    (line,) = (frame["line"] for frame in frames if frame["function"] == "main.enter")
    source = (truth.PROGRAMS / "go_callbacks.go").read_text().splitlines()
    assert source[line - 1].startswith("func enter(")
    of_core = json.loads(findleaks("stacks", "--json", core))["stacks"]
    # Go's handler of the fatal signal runs on the threads.
    crashed = [[frame["function"] for frame in one["frames"]] for one in of_core]
    assert any(one[-len(names) :] == names for one in crashed), crashed


@pytest.mark.parametrize("version", ["", *(pytest.param(one, marks=pytest.mark.matrix) for one in VERSIONS)])
def test_functions_that_were_interrupted(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that a signal handler interrupts have the correct lines, although their frames do not belong to a call."""
    monkeypatch.setenv("GOTRACEBACK", "crash")
    core, text = run_until_crash([str(build(tmp_path, version, STRIPPED, name="go_interrupted"))], tmp_path / "run")
    check_interrupted(text, version, str(core))


# Channels to which only memory of a mapping refers. Go's collector does not follow these references, but the program can.
MAPPED = """import ("syscall"; "unsafe")
var mapped []byte
func mayHeldByMapping(c chan int) { <-c }
func init() {
    mapped, _ = syscall.Mmap(-1, 0, 1 << 20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
    for i := 0; i < 20; i++ {
        c := make(chan int)
        *(*uintptr)(unsafe.Pointer(&mapped[8*i])) = *(*uintptr)(unsafe.Pointer(&c))
        go mayHeldByMapping(c)
    }
    startThread(unsafe.Pointer(&mapped[1 << 19]))
}
"""
NO_THREAD = "func startThread(unsafe.Pointer) {}"
# The stack of a thread of C code is in the same mapping, above the channels. Memory below its stack pointer is not in use. The
# thread-local variables of the thread, which refer to further channels, are in the memory of the stack. A variable of C code refers to
# others.
THREAD_OF_C = """
/*
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
static __thread volatile uintptr_t held[20];
static volatile uintptr_t held_by_all[20];
static volatile int started;
static void hold(int i, uintptr_t channel) { held_by_all[i] = channel; }
static void *run(void *given) {
    for (int i = 0; i < 20; i++) held[i] = ((uintptr_t *)given)[i], ((uintptr_t *)given)[i] = 0;
    for (started = 1;;) pause();
}
static void *make(void) { return calloc(20, sizeof(uintptr_t)); }
static int start(void *stack, void *given) {
    pthread_t thread;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) || pthread_attr_setstack(&attributes, stack, 1 << 19)) return 1;
    int status = pthread_create(&thread, &attributes, run, given);
    while (!status && !started) usleep(1000);
    return status;
}
*/
import "C"
"""
START = """
func mayHeldByThread(c chan int) { <-c }
func mayHeldByVariableOfC(c chan int) { <-c }
func startThread(stack unsafe.Pointer) {
    given := C.make()
    for i := range *(*[20]uintptr)(given) {
        c := make(chan int)
        (*(*[20]uintptr)(given))[i] = *(*uintptr)(unsafe.Pointer(&c))
        go mayHeldByThread(c)
        c = make(chan int)
        C.hold(C.int(i), *(*C.uintptr_t)(unsafe.Pointer(&c)))
        go mayHeldByVariableOfC(c)
    }
    if C.start(stack, given) != 0 { panic(1) }
}
"""


@pytest.mark.platform("x86-64", "Go")
@pytest.mark.parametrize("version", ["", "cgo", *(pytest.param(one, marks=pytest.mark.matrix) for one in (*VERSIONS, "-race", "-asan"))])
def test_goroutines_that_are_blocked_for_good(version: str, tmp_path: Path) -> None:
    """No goroutine is reported that may continue. Stale words in objects may refer to what some blocked goroutines wait for. The
    memory of the race detector refers to all channels."""
    sanitizer = [version] if version.startswith("-") else []
    is_cgo = bool(sanitizer) or version == "cgo"
    more = THREAD_OF_C + MAPPED + START if is_cgo else MAPPED + NO_THREAD
    program = build(tmp_path, "" if is_cgo else version, STRIPPED, *sanitizer, name="go_blocked", cgo=is_cgo, more=more)
    with Running([str(program)], tmp_path / "run") as run:
        with attach(run.pid) as process:
            (go,) = process._session.runtimes
            blocked, threads = go._blocked, go.user_threads()
        findings = json.loads(findleaks("verdict", "--json", "--pid", str(run.pid)))["findings"]
    functions = {one.number: next((frame.function for frame in one.frames if frame.function.startswith("main.")), "") for one in threads}
    assert Counter(functions.values())["main.mayHeldByMapping"] == 20
    assert all(Counter(functions.values())[f"main.mayHeldBy{name}"] == 20 * is_cgo for name in ("Thread", "VariableOfC"))
    found = Counter(functions[number] for number in blocked)
    assert {name for name in found if not name.startswith("main.never")} == set()
    never = ("Send", "Receive", "Select", "Nil", "SelectNil", "Holds", "HeldByBlocked")
    locks = ("Lock", "LockAsHolder", "LockOfHolder", "Read", "Write", "Group", "Condition", "Conditions")
    assert set(found) == {f"main.never{name}" for name in (*never, *locks)}
    wanted = {f"main.never{name}": 20 for name in (*never, *locks)} | {"main.neverConditions": 60}
    assert all(wanted[name] * 4 // 5 <= count <= wanted[name] for name, count in found.items()), found
    groups = [one["evidence"] for one in findings if one["finding"] == "goroutines"]
    assert len(groups) == 3 and all(one["function"].startswith("main.never") and one["blocked_for_good"] >= 20 * 4 // 5 for one in groups)


@pytest.mark.matrix
@pytest.mark.parametrize("version", ["", "1.18.10", "1.21.13", "1.24.11", "1.27.4"])
@pytest.mark.parametrize("flags", [(), (STRIPPED,)], ids=["symbols", "stripped"])
def test_plugins(flags: tuple[str, ...], version: str, tmp_path: Path) -> None:
    """A plugin has functions, types and variables of its own."""
    plugin = build(tmp_path, version, "-buildmode=plugin", *flags, name="go_plugin", cgo=True)
    host = build(tmp_path, version, *flags, name="go_plugin_host", cgo=True)
    with Running([str(host), str(plugin), str(COUNT)], tmp_path / "run") as run:
        live = parse_goroutines(json.loads(findleaks("stacks", "--json", "--pid", str(run.pid))))
        core = str(run.gcore())
    del live[1]  # the program's first goroutine wrote the profile
    assert check_plugin(run.output, tmp_path / "run" / "goroutines", core) == live


@pytest.mark.matrix
@pytest.mark.parametrize("version", ["", "1.27.4"])
def test_two_libraries_with_a_runtime_each(version: str, tmp_path: Path) -> None:
    """A program in C has loaded two libraries in Go. Each has its own heap and goroutines."""
    options = "-buildmode=c-shared", STRIPPED
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    libraries = [build(folder, version, *options, name="go_shared", cgo=True) for folder in folders]
    host = compile_program(tmp_path, "go_shared_host.c", "-ldl")
    with Running([str(host), *map(str, libraries), str(COUNT)], tmp_path / "run") as run:
        core = str(run.kernel_core())
    found = json.loads(findleaks("runtime", "--json", core))["runtimes"]
    stacks = json.loads(findleaks("stacks", "--json", core))
    groups = {one["count"]: set(one["numbers"]) for one in stacks["user_stacks"] if one["reason"] == "chan send"}
    assert stacks["user_threads"] == 3 * COUNT + 2  # and the goroutines that called Start
    for name, count in (("first", COUNT), ("second", 2 * COUNT)):
        (page,) = (one for one in found if {each["name"]: each["objects"] for each in one["types"]}.get("main.Item") == count)
        figures = dict(pair.split("=") for pair in (tmp_path / "run" / f"{name}.figures").read_text().split())
        assert abs(sum(one["objects"] for one in page["types"]) - int(figures["HeapObjects"])) <= int(figures["HeapObjects"]) // 200
        wanted = profile((tmp_path / "run" / name).read_text())
        assert groups[count] == {number for number, (reason, _, _) in wanted.items() if reason == "chan send"}


def library_host(kind: str, folder: Path) -> list[str]:
    """Return the command of a program that uses programs/go_library.go. This is a C program linked with the library, or CPython."""
    library = str(build(folder, "", f"-buildmode={kind}", STRIPPED, name="go_library", cgo=True))
    if kind == "c-shared":
        return [sys.executable, str(truth.PROGRAMS / "go_library_host.py"), library, str(COUNT)]
    return [str(compile_program(folder, "go_library_host.c", library, "-lpthread")), str(COUNT)]


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["c-archive", "c-shared"])
def test_hosts_in_other_languages(kind: str, tmp_path: Path) -> None:
    """Go objects retain blocks that malloc of the host program returned. Stale words may refer to a few of the leaked blocks."""
    with Running(library_host(kind, tmp_path), tmp_path / "run") as run:
        core = str(run.gcore())
    found = json.loads(findleaks("find", "--kind", "definite", "--json", core))["groups"]
    assert COUNT - 10 <= sum(one["blocks"] for one in found if 900 <= one["size"] < 950) <= COUNT
    types = {one["name"]: one["objects"] for one in runtime_page("go", core)["types"]}
    assert types["main.Item"] == COUNT
    (group,) = (one for one in json.loads(findleaks("stacks", "--json", core))["user_stacks"] if one["reason"] == "chan send")
    assert group["count"] == COUNT and group["creator"]["function"] == "main.Start"
    named = re.compile(r"variable (main\.items|at 0x\w+ \(used in main\.Start\)) \(Go's heap\)")
    (items,) = (one for one in json.loads(findleaks("roots", "--limit", "0", "--json", core))["roots"] if named.fullmatch(one["name"]))
    assert COUNT - 10 <= items["retained_blocks"] <= COUNT
