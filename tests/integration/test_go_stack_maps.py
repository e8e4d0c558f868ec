"""findleaks reports the objects as garbage that Go's collector frees after the same stop. Only variables on the stacks of goroutines,
or pointers or integers in other objects, refer to the objects of the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from debuggers import runtime_page
from go_programs import VERSIONS, build
from go_truth import are_live, is_garbage, read_objects
from growing import Rounds

COUNT, LISTED = 20, 2_000


def count_garbage(page: dict[str, Any]) -> int:
    """Return the number of objects that are garbage."""
    return sum(one["own"]["garbage_objects"] for one in page["types"])


@pytest.mark.platform("x86-64", "Go")
@pytest.mark.parametrize("version", ["", *(pytest.param(one, marks=pytest.mark.matrix) for one in VERSIONS)])
def test_garbage_is_what_the_collector_frees(version: str, tmp_path: Path) -> None:
    """References are in local variables, arguments, structures on stacks, and integers in objects. Some functions are deferred,
    interrupted, in a system call, in a panic, or called by reflect."""
    program = build(tmp_path, version, "-ldflags=-s -w", name="go_stack_maps")
    with Rounds([str(program), str(COUNT), str(LISTED)], tmp_path / "run") as run:
        objects = read_objects(run.output)
        live = are_live(objects, "--pid", str(run.pid))
        core = str(run.gcore())
        after = run.round()
    freed = {int(line.split()[1]) for line in after if line.startswith("freed ")}
    (others,) = (int(line.split()[1]) for line in after if line.startswith("after "))
    assert len(objects) == 50 * COUNT + 1 and len(freed) == 16 * COUNT
    assert freed == {number for number, kind in objects.values() if is_garbage(kind)}
    assert {objects[address] for address, is_live in live.items() if is_live == (objects[address][0] in freed)} == set()
    assert are_live(objects, core) == live
    page = runtime_page("go", core)
    # Between the stop and the collection, the program allocates and drops a few objects.
    assert abs(count_garbage(page) - len(freed) - others) <= 16
    # The counter includes free slots of spans that had other objects before. If one kind of object had no map, the counter would be COUNT
    # or more.
    assert page["counters"]["objects without a map of pointers"] < COUNT
    # Two for each interrupted function, and those of the first goroutine's system call.
    assert 2 * COUNT <= page["counters"]["stack frames without a stack map"] <= 2 * COUNT + 8
    assert others >= LISTED
