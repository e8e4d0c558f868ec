"""talloc's chunks by name: findleaks reports the numbers and bytes that talloc counts. Leaked trees have the name of a chunk."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from pathlib import Path
from typing import Any

import building
import debian
import pytest
import truth
from debuggers import gdb, lldb, objects, run_cli, run_json

import cores

HELD, LOST = 500, 100

OLDER: debian.Pins = {("libtalloc2", "2.3.1-2+b1"): "9a870146bfb43e8104a8fe4b2e395c65c8ca2fe30bc617e3a2ec51968b2255da"}


program = building.fixture("talloc_chunks.c", "-O1", "-ltalloc")
running = building.running()


def check(running: cores.Running, *where: str) -> None:
    blocks, size = map(int, running.output.split()[:2])
    types = {row["name"]: row for row in run_json("runtime", *where)["runtimes"][0]["types"]}
    every = HELD + LOST
    wanted = {
        "struct session": every,
        "string": every,
        "int": every,
        "struct session *": 1,
        "struct server": 1,
        "top context": 1,
        "shrunk": 1,
    }
    assert {name: row["objects"] for name, row in types.items()} == wanted
    assert sum(row["objects"] for row in types.values()) == blocks + 3 * LOST
    lost = sum(types[name]["own"]["requested"] // every * LOST for name in ("struct session", "int"))
    texts = sum(len(f"session number {number}") + 1 for number in range(LOST))
    assert sum(row["own"]["requested"] for row in types.values()) == size + lost + texts
    answer = run_json("find", *where)
    (group,) = answer["groups"]
    assert (group["type"], group["runtime"], group["blocks"], group["indirect_blocks"]) == ("struct session", "talloc", LOST, 2 * LOST)
    assert answer["trusted"] and answer["totals"]["possible"]["blocks"] == 0


def test_a_live_process(running: cores.Running) -> None:
    check(running, "--pid", str(running.pid))


def test_a_core(running: cores.Running, tmp_path: Path) -> None:
    check(running, str(running.gcore()))


@pytest.mark.matrix
@pytest.mark.parametrize("debugger", [gdb, lldb])
def test_debuggers(running: cores.Running, debugger: Any) -> None:
    core = str(running.gcore())
    outputs = [run_cli("runtime", "--json", core).stdout, debugger(["leaks runtime --json"], "-c", core)]
    here, there = (json.loads(objects(output)[0])["runtimes"] for output in outputs)
    assert here == there and here[0]["name"] == "talloc"


@pytest.mark.matrix
def test_talloc_231(program: Path, tmp_path: Path) -> None:
    folder = debian.cache() / "talloc-2.3"
    debian.unpack_packages("bullseye", ["libtalloc2"], folder, OLDER)
    with cores.Running([str(program)], tmp_path, {"LD_LIBRARY_PATH": str(folder / "root/usr/lib/x86_64-linux-gnu")}) as made:
        assert run_json("runtime", "--pid", str(made.pid))["runtimes"][0]["version"] == "2.3.1"
        check(made, "--pid", str(made.pid))


@pytest.mark.parametrize("lost", [False, True])
def test_first_screen(lost: bool, program: Path, tmp_path: Path) -> None:
    """`verdict` names the chunk below which most of the memory is, unless this chunk is leaked."""
    with cores.Running([str(program), "30000", *(["lost"] if lost else [])], tmp_path) as made:
        findings = {one["finding"]: one for one in run_json("verdict", "--pid", str(made.pid))["findings"]}
    assert ("talloc-context" in findings) != lost
    if lost:
        assert findings["lost"]["evidence"]["blocks"] >= 3 * 30000
    else:
        assert "the talloc context top context > struct server and 90,001 chunks below it have" in findings["talloc-context"]["text"]
        assert "30,000 of struct session" in findings["talloc-context"]["cause"]


def test_pools_that_were_freed(program: Path, tmp_path: Path) -> None:
    """A pool that was freed while a chunk in it is in use belongs to the parent of the chunk. The place that freed it is its name."""
    with cores.Running([str(program), "500", "kept", "freed"], tmp_path) as made:
        (finding,) = [one for one in run_json("verdict", "--pid", str(made.pid))["findings"] if one["finding"] == "talloc-context"]
    assert "the talloc context top context > struct server and 2,501 chunks below it have" in finding["text"], finding
    assert re.search(r"1,000 of pool freed at \S*talloc_chunks.c:\d+ \(3\.9 MiB\)", finding["cause"]), finding


def test_stale_words_of_pools_that_were_freed(program: Path, tmp_path: Path) -> None:
    """The header of a pool that was freed still refers to its parent and to the next chunk. Both are lost. After the last chunk in a
    pool is freed, other data may be in its block, but the header remains."""
    with cores.Running([str(program), "500", "kept", "stale"], tmp_path) as made:
        groups = run_json("find", "--pid", str(made.pid))["groups"]
        types = {one["name"]: one["objects"] for one in run_json("runtime", "--pid", str(made.pid))["runtimes"][0]["types"]}
    lost = sum(one["blocks"] for one in groups if one["kind"] == "definite" and one["type"] == "lost context")
    assert 98 <= lost <= 100, groups
    assert [count for name, count in types.items() if name.startswith("pool freed at")] == [100], types


@pytest.mark.parametrize("tracking", ["listed", "tracked"])
def test_words_that_are_not_references(tracking: str, program: Path, tmp_path: Path) -> None:
    """Lists of references, lists of chunks without a parent, and words after the requested bytes of a chunk are not references."""
    with cores.Running([str(program), "500", "kept", tracking], tmp_path) as made:
        core = str(made.kernel_core())
    blocks, warnings = truth.ask(core)
    assert not warnings
    kinds = {int(block["address"], 16): block["kind"] for block in blocks if "kind" in block}
    starts = sorted(kinds)
    said = [(word, int(address, 16)) for word, address in re.findall(r"(kept|lost) (0x\w+)", made.output)]
    assert len(said) > 7 * LOST
    for word, address in said:
        kind = kinds[starts[bisect_right(starts, address) - 1]]
        assert (kind in truth.LOST) == (word == "lost") and kind != "possible", (word, hex(address), kind)
    (group,) = (one for one in run_json("find", core)["groups"] if one["type"] == "struct session")
    assert (group["blocks"], group["indirect_blocks"], group["cycle"]) == (LOST, 2 * LOST, 1)


def test_leaks_by_site(tmp_path: Path) -> None:
    """Leaked trees have the name of their top chunk, and are not cycles, if leaks are grouped by allocation site, too."""
    program = building.compile_program(tmp_path, "talloc_chunks.c", "-O1", "-fsanitize=address", "-ltalloc")
    with cores.Running([str(program)], tmp_path / "run") as made:
        groups = run_json("find", "--by", "site", "--pid", str(made.pid))["groups"]
    assert [(one["type"], one["blocks"], one["indirect_blocks"], one["cycle"]) for one in groups] == [("struct session", LOST, 2 * LOST, 1)]


def test_chunks_of_one_size_with_several_names(tmp_path: Path) -> None:
    """A row about blocks of one size does not give all of them the type of the first one."""
    program = building.compile_program(tmp_path, "talloc_named.c", "-O1", "-ltalloc")
    with cores.Running([str(program)], tmp_path / "run") as made:
        where = "--pid", str(made.pid)
        types = {row["name"]: row["objects"] for row in run_json("runtime", *where)["runtimes"][0]["types"]}
        text = run_cli("roots", "server", "--depth", "4", *where).stdout
    assert {types[f"request {number}"] for number in range(5)} == {60}
    assert re.search(r"300 blocks of 1\d\d B such as request \d: 600 more blocks below them", text), text


def test_many_names_and_pools_without_a_name(tmp_path: Path) -> None:
    """Names that differ only in numbers are one name. A pool without a name has that of its first chunk."""
    program = building.compile_program(tmp_path, "talloc_named.c", "-O1", "-ltalloc")
    with cores.Running([str(program), "200"], tmp_path / "run") as made:
        where = "--pid", str(made.pid)
        types = {row["name"]: row["objects"] for row in run_json("runtime", "--limit", "0", *where)["runtimes"][0]["types"]}
        groups = run_json("find", *where)["groups"]
    assert {name: count for name, count in types.items() if "request" in name} == {"request #": 300, "pool of struct request": 50}
    # A stale word may refer to the last pool.
    assert [one["type"] for one in groups] == ["pool of struct request"] and groups[0]["blocks"] in (49, 50)
