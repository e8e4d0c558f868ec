"""Several allocators in one process: each block belongs to exactly one of them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import accuracy
import evidence
import mallocs_jemalloc
import mallocs_python
import mallocs_tcmalloc
import pytest
import truth
from mallocs_python import CHURN, FLAGS, compare_statistics, pymalloc_of

import cores
from findleaks.allocators.directory import Directory
from findleaks.engine.terms import Kind, State
from findleaks.session import Session
from findleaks.target.copied import attach
from findleaks.target.core import open_core

VERSION = "3.11"


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the command of a program with libpython whose arenas come from malloc."""
    python = mallocs_python.get(VERSION)
    program = tmp_path_factory.mktemp("embedded") / "pymalloc_embedded"
    source = truth.PROGRAMS / "pymalloc_embedded.c"
    flags = [*FLAGS, "-Wl,--no-as-needed", str(python.library()), "-Wl,--allow-shlib-undefined"]
    subprocess.run(["gcc", *flags, "-o", str(program), str(source)], check=True)
    return [*python.command()[:3], str(program)]


def one_owner(directory: Directory) -> None:
    """Check that heaps are disjoint, that every block is in one part of one heap, and that the blocks of all allocators add up."""
    parts = list(directory.heaps)
    for before, after in zip(parts, parts[1:]):
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
    """pymalloc's arenas are blocks of malloc. Each arena counts as allocator metadata, and contains blocks of pymalloc."""
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
        core = running.kernel_core()
    blocks, _ = truth.ask(str(core))
    verdict = truth.compare(records, blocks)
    if verdict.held:  # frames of the interpreter contain words that were never initialized
        verdict = evidence.explain(verdict, records, blocks, core, [file.name for file in modules.iterdir()])
    assert verdict.perfect, str(verdict)


@pytest.mark.parametrize("picture", ["live", "kernel"])
def test_a_plugin_with_an_allocator_of_its_own(tmp_path: Path, picture: str) -> None:
    """The process uses glibc's malloc, and a jemalloc in a library that does not export it. Blocks of each allocator refer to blocks of the
    other allocator. Some of the blocks are leaked."""
    source, plugin, program = truth.PROGRAMS / "plugin.c", tmp_path / "plugin.so", tmp_path / "plugin"
    exported = tmp_path / "exported"
    exported.write_text("{ global: plugin_*; local: *; };\n")
    shared = ["-DPLUGIN", "-shared", "-fPIC", f"-Wl,--version-script={exported}", *mallocs_jemalloc.get("5.3.0").static]
    subprocess.run(["gcc", *accuracy.FLAGS, "-O1", "-o", str(plugin), str(source), *shared], check=True)
    subprocess.run(["gcc", *accuracy.FLAGS, "-O1", "-o", str(program), str(source), "-ldl"], check=True)
    # Jemalloc's own TLS, in a library that was loaded later
    room = {**os.environ, "GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=16384"}
    with cores.Running([str(program), str(plugin)], tmp_path / "run", room) as running:
        records = truth.parse(running.output)
        core = None if picture == "live" else str(running.kernel_core())
        target = ["--pid", str(running.pid)] if core is None else [core]
        blocks, warnings = truth.ask(*target)
        session = Session(attach(running.pid) if core is None else open_core(core))
        try:
            one_owner(session.directory)
            assert {a.name for a in session.directory.allocators} == {"jemalloc", "glibc"}
        finally:
            session.close()
    verdict = truth.compare(records, blocks)
    assert verdict.perfect, str(verdict)
    assert len(records) == 900
    assert warnings == []
    owners = {int(block["address"], 16): block["allocator"] for block in blocks}
    assert {owners[r.address] for r in records if r.category == "plugin"} == {"jemalloc"}
    assert {owners[r.address] for r in records if r.category == "program"} == {"glibc"}


@pytest.mark.parametrize("malloc", ["jemalloc", "tcmalloc"])
def test_pymalloc_over_another_malloc(embedded: Sequence[str], tmp_path: Path, malloc: str) -> None:
    """A preloaded malloc provides the arenas: pymalloc's blocks are in its large blocks."""
    library = mallocs_jemalloc.get("5.3.0").library if malloc == "jemalloc" else mallocs_tcmalloc.get("2.10").library()
    environment = {**mallocs_python.get(VERSION).environment(), "LD_PRELOAD": str(library)}
    with cores.Running([*embedded, str(CHURN)], tmp_path, environment) as running:
        session = Session(open_core(str(running.kernel_core())))
        try:
            allocator, directory = pymalloc_of(session), session.directory
            one_owner(directory)
            around = [directory.owner(arena.address - 1) for arena in allocator.arena_objects]
            names = {owned.allocator.name for owned in around if owned}
            assert names <= {malloc, "pymalloc"}, names
            held = {a.name: sum(directory.blocks.totals(State.IN_USE, *p).blocks for p in directory.of(a)) for a in directory.allocators}
            assert held["pymalloc"] > 1000
            assert held[malloc] > 1000
            assert held.get("glibc", 0) == 0
            graph = session.graph()
            assert [graph.totals(kind).blocks for kind in (Kind.DEFINITE, Kind.INDIRECT)] == [0, 0]
        finally:
            session.close()
