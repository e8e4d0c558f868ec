"""Several allocators in one process: each block belongs to exactly one of them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import mallocs_python
import pytest
import truth
from mallocs_python import CHURN, FLAGS, compare_statistics, pymalloc_of

import cores
from findleaks.allocators.directory import Directory
from findleaks.graph.base import Kind, State
from findleaks.session import Session
from findleaks.target.core import open_core
from findleaks.target.live import attach

VERSION = "3.11"


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of a program with libpython that hands arenas out of malloc."""
    python = mallocs_python.get(VERSION)
    program = tmp_path_factory.mktemp("embedded") / "pymalloc_embedded"
    source = truth.PROGRAMS / "pymalloc_embedded.c"
    flags = [*FLAGS, "-Wl,--no-as-needed", str(python.library()), "-Wl,--allow-shlib-undefined"]
    subprocess.run(["gcc", *flags, "-o", str(program), str(source)], check=True)
    return [*python.command()[:3], str(program)]


def one_owner(directory: Directory) -> None:
    """Heaps are disjoint, every block lies in one part of one heap, and the allocators' blocks add up to all."""
    for before, after in zip(directory.heaps, directory.heaps[1:]):
        assert before.end <= after.start
    blocks = directory.blocks
    for state in State:
        parts = [blocks.totals(state, *part).blocks for a in directory.allocators for part in directory.of(a)]
        assert sum(parts) == blocks.totals(state).blocks
    end = 0
    for index in range(len(blocks)):
        address = blocks.address(index)
        owner = directory.owner(address)
        assert address >= end and owner is not None
        end = address + blocks.size(index)
        assert end <= owner.end, hex(address)


@pytest.mark.parametrize("picture", ["live", "kernel"])
def test_arenas_from_malloc(embedded: Sequence[str], tmp_path: Path, picture: str) -> None:
    """pymalloc's arenas are malloc's blocks: each is the allocator's own, and what stands inside is pymalloc's."""
    environment = mallocs_python.get(VERSION).environment()
    with cores.Running([*embedded, str(CHURN)], tmp_path, environment) as running:
        session = Session(attach(running.pid) if picture == "live" else open_core(str(running.kernel_core())))
        try:
            compare_statistics(session, tmp_path)
            allocator, directory = pymalloc_of(session), session.directory
            one_owner(directory)
            assert {a.name for a in directory.allocators} == {"pymalloc", "glibc"}
            around = [directory.owner(arena.address - 1) for arena in allocator.arena_objects]
            assert [owned.allocator.name for owned in around if owned] == ["glibc"] * len(allocator.arena_objects)
            assert len(around) > 2
            graph = session.graph()
            assert [graph.totals(kind).blocks for kind in (Kind.POSSIBLE, Kind.DEFINITE, Kind.INDIRECT)] == [0, 0, 0]
        finally:
            session.close()


def test_lost_blocks_in_arenas_from_malloc(embedded: Sequence[str], tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    mallocs_python.extension(truth.PROGRAMS / "pymalloc_truth.c", modules)
    script = tmp_path / "script.py"
    script.write_text("import pymalloc_truth\npymalloc_truth.stop()\n")
    with cores.Running([*embedded, str(script)], tmp_path / "run", mallocs_python.get(VERSION).environment(modules)) as running:
        records = truth.parse(running.output)
        blocks, _ = truth.ask(str(running.kernel_core()))
    verdict = truth.compare(records, blocks)
    assert verdict.perfect, str(verdict)
