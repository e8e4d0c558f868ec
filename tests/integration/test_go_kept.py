"""Objects of Go whose types only the runtime, a stack or code shows, in stripped programs: findleaks reports the types and numbers of the
program."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from debuggers import findleaks, runtime_page
from go_programs import STRIPPED, build
from variants import mark_matrix_except

from cores import Running

COUNT = 300
WEAK = """import ("runtime"; "unique"; "weak")
type blob struct { number int; data [1000]byte }
var cached []weak.Pointer[blob]
var blobs []*blob
var names []unique.Handle[[3]int]
//go:noinline
func keep(i int) {
    one := &blob{number: i}
    cached = append(cached, weak.Make(one))
    runtime.AddCleanup(one, func(number int) { total += number }, i)
    if i%2 == 0 { blobs = append(blobs, one) }
    names = append(names, unique.Make([3]int{i, i, i}))
}
func init() {
    other["weak"] = func(count int) { for i := 0; i < count; i++ { keep(i) } }
}
"""


def first_finding(*where: str) -> dict[str, Any]:
    return dict(json.loads(findleaks("verdict", "--json", *where))["findings"][0])


def count_objects(*where: str) -> dict[str, int]:
    return {one["name"]: one["objects"] for one in runtime_page("go", *where)["types"]}


@pytest.mark.parametrize("version", mark_matrix_except(("", "1.18.10", "1.22.12", "1.24.11", "1.27.4"), ""))
def test_a_sparse_map_that_is_a_local_variable(version: str, tmp_path: Path) -> None:
    entries = 60_000
    program = build(tmp_path, version, STRIPPED, name="go_kept")
    with Running([str(program), "local", str(entries)], tmp_path / "run") as run:
        found = first_finding("--pid", str(run.pid))
        types = count_objects("--pid", str(run.pid))
    evidence = found["evidence"]
    assert (found["finding"], evidence["type"], evidence["entries"]) == ("go-map", "map[int64][30]uint8", 1)
    assert evidence["slots"] >= entries and found["bytes"] >= 40 * entries
    assert re.search(r"of the stack of goroutine 1 \(waiting, sleep\), in main\.work takes ", found["text"])
    assert any(name.startswith("[]map[int64][30]uint8 ") for name in types)


def test_what_retains_the_objects_of_a_small_heap(tmp_path: Path) -> None:
    with Running([str(build(tmp_path, "", STRIPPED, name="go_kept")), "hooks", "3000"], tmp_path / "run") as run:
        found = json.loads(findleaks("verdict", "--json", "--pid", str(run.pid)))["findings"]
    assert [one["finding"] for one in found] == ["retained-objects", "no-blocks"]
    # Stale words of stacks may refer to a few of the objects.
    assert 2 * 3000 - 20 <= found[0]["evidence"]["retained_objects"] <= 2 * 3000 + 1
    assert (found[0]["evidence"]["type"], found[1]["next"]) == ("[]func()", ["runtime --only go", "roots"])


@pytest.mark.matrix
@pytest.mark.parametrize("version", ["", "1.18.10", "1.21.13", "1.27.4"])
def test_channels_without_pointers(version: str, tmp_path: Path) -> None:
    with Running([str(build(tmp_path, version, STRIPPED, name="go_kept")), "waiting", str(COUNT)], tmp_path / "run") as run:
        assert count_objects("--pid", str(run.pid))["chan int"] == COUNT


@pytest.mark.parametrize("version", mark_matrix_except(("", "1.18.10", "1.22.12", "1.27.4"), ""))
def test_objects_that_a_method_stores(version: str, tmp_path: Path) -> None:
    """Only the name of the method shows the type of what it returns: it may return its receiver."""
    with Running([str(build(tmp_path, version, STRIPPED, name="go_kept")), "tree", "10000"], tmp_path / "run") as run:
        assert count_objects("--pid", str(run.pid))["main.node"] == 10_000


@pytest.mark.parametrize("version", mark_matrix_except(("", "1.18.10", "1.22.12", "1.27.4"), ""))
def test_objects_whose_first_field_is_a_receiver(version: str, tmp_path: Path) -> None:
    """The type of the receiver is that of the first field. The objects are larger. Their type is unknown or correct."""
    with Running([str(build(tmp_path, version, STRIPPED, name="go_kept")), "whole", str(COUNT)], tmp_path / "run") as run:
        types = count_objects("--pid", str(run.pid))
    assert "main.part" not in types and types["unknown type"] + types.get("main.whole", 0) >= COUNT


@pytest.mark.parametrize("version", mark_matrix_except(("", "1.24.11", "1.27.4"), ""))
def test_weak_pointers_handles_and_cleanups(version: str, tmp_path: Path) -> None:
    """The handle of a weak pointer stays when its object is freed. Each handle of package unique has a weak pointer and, since 1.25, a
    cleanup. In 1.24, two handles may share a slot. Stale words of stacks may refer to a few blobs."""
    program = build(tmp_path, version, STRIPPED, name="go_kept", more=WEAK)
    with Running([str(program), "weak", str(COUNT)], tmp_path / "run") as run:
        types = count_objects("--pid", str(run.pid))
    assert COUNT <= types["weak pointer"] <= 2 * COUNT
    assert COUNT // 2 <= types["main.blob"] <= COUNT // 2 + 5
    if version != "1.24.11":
        assert types["weak pointer"] == 2 * COUNT
        assert types["argument of a cleanup"] == COUNT + types["main.blob"]
        assert types["unique.entry[[3]int]"] == COUNT
        assert types["unknown type"] < COUNT // 10
