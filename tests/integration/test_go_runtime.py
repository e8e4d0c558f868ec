"""Goroutines and counters of Go programs without symbols are what the program's own pprof and runtime.MemStats say."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import truth
from debuggers import findleaks, gdb, lldb, objects

from cores import Running

COUNT = 300
VERSIONS = ("1.18.10", "1.20.14", "1.22.12", "1.24.11")
Place = tuple[str, int]


def toolchain(version: str) -> str:
    """The program `go` of a version, from the module proxy; "": the machine's own."""
    if not version:
        return "go"
    environment = {**os.environ, "GOFLAGS": "-modcacherw", "GOTOOLCHAIN": "local"}
    words = ["go", "mod", "download", "-json", f"golang.org/toolchain@v0.0.1-go{version}.linux-amd64"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=600)
    folder = Path(json.loads(done.stdout)["Dir"])
    for tool in (folder / "bin" / "go", *(folder / "pkg" / "tool").rglob("*")):
        tool.chmod(0o755)
    return str(folder / "bin" / "go")


def build(folder: Path, version: str, *flags: str) -> Path:
    program = folder / "go_truth"
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "", "CGO_ENABLED": "0"}
    words = [toolchain(version), "build", *flags, "-o", str(program), str(truth.PROGRAMS / "go_truth.go")]
    subprocess.run(words, check=True, cwd=folder, env=environment, timeout=600)
    return program


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


@pytest.mark.matrix
@pytest.mark.parametrize("flags", [(), ("-ldflags=-s -w",)], ids=["symbols", "stripped"])
@pytest.mark.parametrize("version", VERSIONS)
def test_versions(version: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    program = build(tmp_path, version, *flags)
    with Running([str(program), str(COUNT), "goroutines"], tmp_path / "run") as run:
        compare(run, tmp_path / "run" / "goroutines", "--pid", str(run.pid))
        sparse_map("--pid", str(run.pid))
