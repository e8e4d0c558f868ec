"""The examples of CONTRIBUTING.md that add an allocator work as described."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import textwrap
import types
from collections import Counter
from pathlib import Path

import building
import pytest
import truth

import cores
from findleaks import commands
from findleaks.allocators import directory
from findleaks.allocators.aprbuckets.instance import BucketAllocators
from findleaks.allocators.asan.instance import Asan
from findleaks.allocators.boostpool.instance import BoostPools
from findleaks.allocators.glibc.instance import Glibc
from findleaks.allocators.gslice.instance import GSlice
from findleaks.allocators.jemalloc.instance import Jemalloc
from findleaks.allocators.luajit.instance import LuaJitAllocator
from findleaks.allocators.mimalloc.instance import Mimalloc
from findleaks.allocators.musl.ng import MallocNG
from findleaks.allocators.partitionalloc.instance import PartitionAlloc
from findleaks.allocators.perl.instance import PerlArenas
from findleaks.allocators.pmr.instance import PoolResources
from findleaks.allocators.pymalloc.instance import Pymalloc
from findleaks.allocators.scudo.instance import Scudo
from findleaks.allocators.sqlite.instance import LookasideBuffers
from findleaks.allocators.tcmalloc.instance import Tcmalloc
from findleaks.allocators.tcmalloc_google.instance import GoogleTcmalloc
from findleaks.allocators.zend.instance import ZendHeap
from findleaks.audit.block_type import find_block_type
from findleaks.runtimes import directory as runtimes
from findleaks.session import Session
from findleaks.target.core import open_core

ROOT = Path(__file__).parents[2]


def example(number: int, name: str) -> types.ModuleType:
    """Return the Python module that one of the examples of CONTRIBUTING.md shows."""
    codes = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    module = types.ModuleType(name)
    exec(compile(textwrap.dedent(codes[number]), "CONTRIBUTING.md", "exec"), module.__dict__)
    return module


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Build a program with a pool, and a findleaks that includes the example's reader."""
    monkeypatch.setitem(sys.modules, "pool_reader", example(0, "pool_reader"))
    monkeypatch.setattr(directory, "FINDERS", ("pool_reader", *directory.FINDERS))
    made = tmp_path / "pool"
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-o", str(made), str(truth.PROGRAMS / "pool.c")], check=True)
    return made


def test_example_of_a_reader(program: Path, tmp_path: Path) -> None:
    with cores.Running([str(program)], tmp_path / "run") as running:
        expected = {int(a, 16): kind for a, kind in (line.split() for line in running.output.splitlines()[:-1])}
        core = running.kernel_core()
    session = Session(open_core(str(core)))
    blocks, graph = session.directory.blocks, session.graph()
    pool = next(allocator for allocator in session.directory.allocators if allocator.name == "pool")
    (part,) = session.directory.of(pool)
    found = {}
    for index in range(blocks.at_or_after(part.start), blocks.at_or_after(part.end)):
        if blocks.state(index) == 0:
            found[blocks.address(index)] = graph.kind(index).name.lower()
    assert found == expected
    assert set(expected.values()) == {"reachable", "definite", "indirect"}
    (cache,) = pool.caches(blocks)
    assert (cache.size, cache.in_use, cache.free) == (48, len(expected), 64 - len(expected))
    session.close()


def test_verdict_on_the_free_memory_of_the_example(program: Path, tmp_path: Path) -> None:
    """`verdict` reports the free pages of an allocator that only the example describes, and suggests the example's call and setting."""
    with cores.Running([str(program), "keeps"], tmp_path / "run") as running:
        kept = int(running.output.split()[1])
        core = running.kernel_core()
    out = io.StringIO()
    assert commands.execute(lambda: Session(open_core(str(core))), ["verdict", "--json"], out, width=80) == 0
    (found,) = [one for one in json.loads(out.getvalue())["findings"] if one["finding"] == "kept"]
    facts = found["evidence"]
    assert (found["bytes"], facts["allocator"], facts["free_pages"], facts["causes"]) == (kept, "pool", kept, ["page heap"])
    assert (facts["call"], facts["returnable"]) == ("pool_trim()", kept)
    assert found["text"].startswith("Not a leak: pool has ") and "pool_trim() would return" in found["text"]
    assert found["try"] == ["POOL_KEEP=0 in the environment", "pool_trim() when the process is idle"]


def test_the_example_of_a_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pools by name, the types of their blocks, and the finding agree with the output of the program."""
    monkeypatch.setitem(sys.modules, "region_reader", example(1, "region_reader"))
    monkeypatch.setattr(runtimes, "FINDERS", ("region_reader", *runtimes.FINDERS))
    with cores.Running([str(building.compile_program(tmp_path, "region_pools.c", "-O1"))], tmp_path / "run") as running:
        expected = {name: (int(pools), int(size)) for name, pools, size in map(str.split, running.output.splitlines()[:-1])}
        core = running.kernel_core()
    out = io.StringIO()
    assert commands.execute(lambda: Session(open_core(str(core))), ["runtime", "--json"], out, width=80) == 0
    (one,) = json.loads(out.getvalue())["runtimes"]
    assert {row["name"]: (row["objects"], row["bytes"]) for row in one["types"]} == expected
    out = io.StringIO()
    assert commands.execute(lambda: Session(open_core(str(core))), ["verdict", "--json"], out, width=80) == 0
    (found,) = [one for one in json.loads(out.getvalue())["findings"] if one["finding"] == "regions"]
    assert found["bytes"] == sum(size for _, size in expected.values())
    assert "the region server and 100 regions below it have 9.6 MiB, 100 % of all regions" in found["text"]
    session = Session(open_core(str(core)))
    names = Counter(find_block_type(session, index) for index in range(len(session.directory.blocks)))
    assert (names["server"], names["request"]) == (1, 400)
    session.close()


def test_names_of_the_allocators_that_can_be_read(program: Path) -> None:
    """The list has the names that the allocators define, including a newly added one."""
    nested = [BoostPools, BucketAllocators, LookasideBuffers, PoolResources]
    classes = [
        *nested,
        LuaJitAllocator,
        Asan,
        GSlice,
        GoogleTcmalloc,
        Glibc,
        Jemalloc,
        Mimalloc,
        MallocNG,
        PartitionAlloc,
        PerlArenas,
        Pymalloc,
        Scudo,
        Tcmalloc,
        ZendHeap,
    ]
    assert sorted(directory.list_names()) == sorted(["pool_reader", *(one.name for one in classes)])
