"""The reader of an allocator that CONTRIBUTING.md shows does what it says."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest
import truth

import cores
from findleaks.allocators import directory
from findleaks.session import Session
from findleaks.target.core import open_core

ROOT = Path(__file__).parents[2]


def test_the_example_of_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    module = types.ModuleType("pool_reader")
    exec(compile(textwrap.dedent(re.sub(r"^   ", "", code, flags=re.M)), "CONTRIBUTING.md", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "pool_reader", module)
    monkeypatch.setattr(directory, "FINDERS", ("pool_reader", *directory.FINDERS))
    program = tmp_path / "pool"
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-o", str(program), str(truth.PROGRAMS / "pool.c")], check=True)
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
