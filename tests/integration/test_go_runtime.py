"""Goroutines and counters of Go programs without symbols are what the program's own pprof and runtime.MemStats say."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import truth
from debuggers import findleaks, gdb, lldb, objects
from go_programs import VERSIONS, build

from cores import Running
from findleaks import attach

COUNT = 300
Place = tuple[str, int]


def profile(text: str) -> dict[int, tuple[str, tuple[Place, ...], Place]]:
    """The goroutines of a pprof profile by number: wait reason, functions outside the package runtime, creator."""
    found = {}
    for part in text.split("\n\n"):
        head, *lines = part.strip().split("\n")
        number, state = re.match(r"goroutine (\d+) .*?\[([^,\]]*)", head).groups()  # type: ignore[union-attr]
        places = []
        for name, where in zip(lines[::2], lines[1::2]):
            plain = re.sub(r"\((?:[^()]|\{[^}]*\})*\)$", "", re.sub(r" in goroutine \d+$", "", name))
            places.append((plain, int(where.split()[0].rsplit(":", 1)[1])))
        creator = places.pop() if lines[-2].startswith("created by ") else ("created by ", 0)
        own = tuple(one for one in places if not one[0].startswith("runtime."))
        found[int(number)] = state, own, (creator[0].removeprefix("created by "), creator[1])
    return found


def said(found: dict[str, Any]) -> dict[int, tuple[str, tuple[Place, ...], Place]]:
    """The same, of findleaks' JSON."""
    made = {}
    for group in found["user_stacks"]:
        own = tuple((one["function"], one["line"]) for one in group["frames"] if not one["function"].startswith("runtime."))
        creator = (group["creator"]["function"], group["creator"]["line"]) if group["creator"] else ("", 0)
        assert group["count"] == len(group["numbers"])
        if not group["internal"]:
            made.update(dict.fromkeys(group["numbers"], (group["reason"], own, creator)))
    return made


def objects_as_counted(page: dict[str, Any], figures: dict[str, int]) -> None:
    """Counts that the program knows are exact. All objects are within 1 %, as the program continues after it printed its figures."""
    types = {one["name"]: one for one in page["types"]}
    if tuple(map(int, page["version"].split(".")[:2])) >= (1, 22):  # before, objects had no headers
        assert types["main.Session"]["objects"] == 10 * COUNT  # the others are known to stacks only, which have no types
        assert types["func main.fill.func1"]["objects"] == COUNT
        assert types["chan *main.Session"]["objects"] == COUNT
        check_retained(types)
    whole = [sum(one["objects"] + one["own"]["garbage_objects"] for one in types.values())]
    whole.append(sum(one["bytes"] + one["own"]["garbage_bytes"] for one in types.values()))
    for mine, name in zip(whole, ("HeapObjects", "HeapAlloc")):
        assert abs(mine - figures[name]) <= figures[name] // 100, name
    garbage = [one["own"]["garbage_objects"] for one in types.values()]
    assert sum(garbage) >= COUNT - 1


def sparse_map(*where: str) -> None:
    found = json.loads(findleaks("verdict", "--json", *where))["findings"]
    (one,) = [finding for finding in found if finding["finding"] == "go-map"]
    assert one["evidence"]["entries"] == 1
    assert one["evidence"]["slots"] >= 40_000
    assert one["evidence"]["type"] == "map[uint64][12]uint64"
    assert one["bytes"] >= 40_000 * 104


def addresses(run: Running) -> dict[str, str]:
    return dict(pair.split("=") for pair in run.output.splitlines()[1].split())


def ask(command: str, address: str, *where: str) -> dict[str, Any]:
    return dict(json.loads(findleaks(command, address, "--limit", "0", "--json", *where)))


def check_objects(at: dict[str, str], *where: str) -> None:
    """Types, fields, referrers and paths of objects whose addresses the program printed."""
    (found,) = json.loads(findleaks("whatis", at["holder"], "--json", *where))["answers"]
    assert found["object"] == {"address": at["holder"], "size": 24, "type": "main.Holder", "runtime": "Go", "live": True}
    assert [(word["member"], word["value"]) for word in found["words"]] == [
        (".Number", "0x5"),
        (".Data", at["data"]),
        (".Shared", at["shared"]),
    ]
    (field,) = ask("refs", at["data"], *where)["references"]
    assert (field["address"], field["live"]) == (hex(int(at["holder"], 16) + 8), True)
    assert (field["from"]["member"], field["from"]["object"]["type"]) == (".Data", "main.Holder")
    shared = ask("refs", at["shared"], *where)
    assert shared["count"] == shared["live"] == COUNT
    assert {one["from"]["member"] for one in shared["references"]} == {".Shared"}
    root, array, holder = ask("path", at["data"], *where)["path"]
    assert root["in"]["is"] == "module"
    assert array["in"]["object"]["type"] == "[]*main.Holder"
    assert array["in"]["member"] == "[5]"
    assert (holder["in"]["object"]["address"], holder["in"]["member"]) == (at["holder"], ".Data")
    stacks = [one for one in ask("refs", at["waiting"], *where)["references"] if "object" not in one["from"]]
    assert [one["from"]["text"] for one in stacks if one["from"]["text"].endswith("(waiting, chan receive), in main.waitOn")]
    gone = ask("path", at["dropped"], *where)
    assert (gone["target"]["object"]["live"], gone["path"]) == (False, [])


def check_roots(at: dict[str, str], *where: str) -> None:
    """Variables of a stripped program are named by the functions that use them. Goroutines that do the same are one root."""
    (heap,) = json.loads(findleaks("roots", "--json", *where))["heaps"]
    roots = heap["roots"]
    assert sum(one["objects"] for one in roots) + heap["shared_objects"] == heap["objects"]
    assert sum(one["bytes"] for one in roots) + heap["shared_bytes"] == heap["bytes"]
    (holders,) = (one for one in roots if [each for each in one["types"] if each["type"] == "main.Holder"])
    assert "(used in main.fill" in holders["name"]
    # A stale word of a stack may refer to the data of one Holder: then this data is shared, but variables come first.
    assert holders["objects"] == 2 * COUNT + 2  # with the array, and the 8,192 bytes that all of them share
    (waiting,) = (one for one in roots if one["name"] == "goroutines in main.waitOn (chan receive), created by main.start")
    assert waiting["threads"] == COUNT
    assert waiting["objects"] >= COUNT
    name = holders["name"].removeprefix("variable ")
    (found,) = json.loads(findleaks("roots", name, "--json", *where))["heaps"]
    assert [(one["name"], one["objects"]) for one in found["roots"]] == [(holders["name"], holders["objects"])]
    (found,) = json.loads(findleaks("roots", at["holder"], "--json", *where))["heaps"]
    (one,) = found["roots"]
    assert (one["sort"], one["objects"], one["holder"].split(" at ")[0]) == ("object", 2, "[]*main.Holder")


def check_retained(types: dict[str, dict[str, Any]]) -> None:
    """Each Holder alone retains its data, and all of them share 8,192 bytes. Stale words of stacks may refer to the data of one, to the
    shared bytes, and to a few Holders, which the array does not retain then."""
    whole = COUNT * (24 + 4096)
    assert whole - 4096 <= types["main.Holder"]["retained_bytes"] <= whole
    array = types["[]*main.Holder"]
    assert whole * 9 // 10 <= array["retained_bytes"] - array["bytes"] <= whole + 8192
    assert types["[4096]uint8"]["retained_bytes"] == types["[4096]uint8"]["bytes"] == COUNT * 4096


def compare(run: Running, file: Path, *where: str) -> None:
    figures = {name: int(value) for name, value in (pair.split("=") for pair in run.output.splitlines()[0].split())}
    found = json.loads(findleaks("stacks", "--json", *where))
    wanted, mine = profile(file.read_text()), said(found)
    assert found["user_threads"] == figures["goroutines"] == COUNT + 12 == len(mine)
    del wanted[1], mine[1]  # the program's first goroutine wrote the profile, and waits now
    assert mine == wanted
    assert Counter(reason for reason, _, _ in mine.values())["chan receive"] == COUNT
    (page,) = json.loads(findleaks("runtime", "--only", "go", "--json", *where))["runtimes"]
    counters = page["counters"]
    assert {name: counters[name] for name in figures if name.endswith(("GC", "BuckHashSys"))} == {
        name: value for name, value in figures.items() if name.endswith(("GC", "BuckHashSys"))
    }
    objects_as_counted(page, figures)
    for name in ("HeapSys", "HeapInuse", "StackInuse", "MSpanSys", "MCacheSys", "GCSys", "OtherSys"):
        assert abs(counters[name] - figures[name]) <= figures[name] // 100 + (128 << 10), name


@pytest.mark.platform("x86-64", "Go")
def test_goroutines_and_counters(tmp_path: Path) -> None:
    """Stripped and position-independent, live and in a core, in all front ends."""
    program = build(tmp_path, "", "-ldflags=-s -w", "-buildmode=pie")
    environment = {**os.environ, "GOTRACEBACK": "crash"}
    with Running([str(program), str(COUNT), "goroutines"], tmp_path / "run", environment) as run:
        file = tmp_path / "run" / "goroutines"
        compare(run, file, "--pid", str(run.pid))
        sparse_map("--pid", str(run.pid))
        at = addresses(run)
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
    assert said(json.loads(here[0])).keys() >= set(profile(file.read_text())) - {1}
    assert objects(gdb(["leaks stacks --json"], str(program), core)) == here
    assert objects(lldb(["leaks stacks --json"], str(program), "-c", core)) == here
    words = (f"whatis {at['holder']}", f"refs {at['shared']}", f"path {at['data']}", "roots --limit 3")
    asked = [f"leaks {word} --json" for word in words]
    here = [one for word in asked for one in objects(findleaks(*word.split()[1:], core))]
    assert json.loads(here[0])["answers"][0]["object"]["type"] == "main.Holder"
    assert (json.loads(here[1])["count"], json.loads(here[2])["blocks"]) == (COUNT, 3)
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
    rows = json.loads(findleaks("diff", "--json", str(before), str(after)))["grown"]
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
        (timers, _) = json.loads(findleaks("verdict", "--json", "--pid", str(run.pid)))["findings"]
    check_growth(tmp_path / "before", tmp_path / "after")
    assert (timers["finding"], timers["evidence"]["types"][0]["type"]) == ("go-timers", "main.Entry")
    assert 9_990 <= timers["evidence"]["types"][0]["objects"] <= timers["evidence"]["retained_objects"] <= 31_000
    (one,) = [finding for finding in found if finding["finding"] == "retained-objects"]
    assert one["evidence"]["root"].startswith("variable main.cache")
    assert one["evidence"]["type"] == "[]*main.Item"
    assert 2 * count - 20 <= one["evidence"]["retained_objects"] <= 2 * count + 1  # stale words may refer to some items
    assert one["next"][0] == f"path {one['evidence']['address']}"
    assert page["retainers"][0]["address"] == one["evidence"]["address"]
    assert page["retainers"][0]["retained_objects"] == one["evidence"]["retained_objects"]


@pytest.mark.matrix
@pytest.mark.parametrize("flags", [(), ("-ldflags=-s -w",)], ids=["symbols", "stripped"])
@pytest.mark.parametrize("version", VERSIONS)
def test_versions(version: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    program = build(tmp_path, version, *flags)
    with Running([str(program), str(COUNT), "goroutines"], tmp_path / "run") as run:
        compare(run, tmp_path / "run" / "goroutines", "--pid", str(run.pid))
        sparse_map("--pid", str(run.pid))
        if tuple(map(int, version.split(".")[:2])) >= (1, 22):
            check_objects(addresses(run), "--pid", str(run.pid))


@pytest.mark.platform("x86-64", "Go")
@pytest.mark.parametrize("version", ["", *(pytest.param(one, marks=pytest.mark.matrix) for one in VERSIONS)])
def test_thread_with_functions_of_c_and_go(version: str, tmp_path: Path) -> None:
    """Go calls C, which calls Go, which calls C. In a stripped program, all functions of Go have their names."""
    program = build(tmp_path, version, "-ldflags=-s -w", name="go_callbacks", cgo=True)
    with Running([str(program)], tmp_path / "run", {**os.environ, "GOTRACEBACK": "crash"}) as run:
        found = json.loads(findleaks("stacks", "--json", "--pid", str(run.pid)))
        core = str(run.kernel_core())
    frames = next(one["frames"] for one in found["stacks"] if any(frame["function"] == "main.enter" for frame in one["frames"]))
    names = [frame["function"] for frame in frames]
    first = names.index("runtime.asmcgocall")
    assert first >= 3  # C: pause, inner, and cgo's function that calls it
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


@pytest.mark.platform("x86-64", "Go")
@pytest.mark.parametrize("version", ["", *(pytest.param(one, marks=pytest.mark.matrix) for one in VERSIONS)])
def test_goroutines_that_are_blocked_for_good(version: str, tmp_path: Path) -> None:
    """None is reported that may continue. Stale words may refer to the channels of a few that cannot."""
    program = build(tmp_path, version, "-ldflags=-s -w", name="go_blocked")
    with Running([str(program)], tmp_path / "run") as run:
        with attach(run.pid) as process:
            (go,) = process._session.runtimes
            blocked, threads = go._blocked, go.user_threads()
        findings = json.loads(findleaks("verdict", "--json", "--pid", str(run.pid)))["findings"]
    functions = {one.number: next((frame.function for frame in one.frames if frame.function.startswith("main.")), "") for one in threads}
    found = Counter(functions[number] for number in blocked)
    assert {name for name in found if not name.startswith("main.never")} == set()
    never = ("Send", "Receive", "Select", "Nil", "Holds", "HeldByBlocked")
    assert set(found) == {f"main.never{name}" for name in never}
    assert all(18 <= count <= 20 for count in found.values()), found
    groups = [one["evidence"] for one in findings if one["finding"] == "goroutines"]
    assert len(groups) == 3 and all(one["function"].startswith("main.never") and one["blocked_for_good"] >= 18 for one in groups)
