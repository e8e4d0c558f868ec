"""For glibc's size classes, arenas and thread caches, findleaks reports the figures that mallinfo and malloc_info print at the same
stop."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import libcs
import pytest

import cores
from findleaks.allocators.directory import Directory, build_directory
from findleaks.allocators.glibc.instance import Glibc
from findleaks.engine.load import load
from findleaks.engine.terms import State
from findleaks.target.copied import attach
from findleaks.target.core import open_core

SOURCE = Path(__file__).parents[1] / "programs" / "caches_glibc.c"
FLAGS = ("-O1", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations", "-pthread")
STATES = (State.IN_USE, State.CACHED, State.FREE)


def compile_program(folder: Path, libc: str = "", *flags: str) -> Path:
    """Compile the program for the host's libc or another one."""
    output = folder / f"caches{libc}{''.join(flags)}"
    if libc:
        return libcs.get(libc).compile(SOURCE, output, [*FLAGS, *flags])
    subprocess.run(["gcc", *FLAGS, *flags, "-o", str(output), str(SOURCE)], check=True)
    return output


@contextmanager
def run_program(program: Path, threads: int, folder: Path, picture: str, **environment: str) -> Iterator[tuple[str, Glibc, Directory]]:
    """The output of the program, and the results of findleaks."""
    with cores.Running([str(program), str(threads)], folder, {**os.environ, **environment}) as running:
        if picture == "live":
            target = attach(running.pid)
        else:
            target = open_core(str(running.kernel_core() if picture == "kernel" else running.gcore()))
        try:
            directory = build_directory(target, load(target.arch))
            (glibc,) = directory.allocators
            assert isinstance(glibc, Glibc)
            yield running.output, glibc, directory
        finally:
            target.close()


def malloc_info(glibc: Glibc, directory: Directory) -> str:
    """Return malloc_info(0, …) in the format of malloc/malloc.c, from the counters of each arena and of the allocator."""
    counted = glibc.read_counters()
    lines = ['<malloc version="1">']
    arenas = [arena for arena in glibc.arenas(directory.blocks) if arena.name != "mmapped"]
    rests = ("fast", "rest") if glibc.instance.layout.fastbins else ("rest",)
    for number, arena in enumerate(arenas):
        own = arena.own
        lines += [f'<heap nr="{number}">', "<sizes>"]
        for name in own:
            sort, _, rest = name.partition(" ")
            if sort in ("size", "unsorted") and rest.endswith(" total"):
                least, _, most = rest.split()[0].partition("-")
                count = own[f"{sort} {least}-{most} count"]
                lines.append(f'  <{sort} from="{least}" to="{most}" total="{own[name]}" count="{count}"/>')
        lines.append("</sizes>")
        lines += [f'<total type="{sort}" count="{own[f"{sort} count"]}" size="{own[f"{sort} size"]}"/>' for sort in rests]
        lines += [f'<system type="{sort}" size="{own[f"system {sort}"]}"/>' for sort in ("current", "max")]
        sorts = ("total", "mprotect", "subheaps") if number else ("total", "mprotect")
        lines += [f'<aspace type="{sort}" size="{own[f"aspace {sort}"]}"/>' for sort in sorts]
        lines.append("</heap>")
    for sort in rests:
        count, size = (sum(arena.own[f"{sort} {what}"] for arena in arenas) for what in ("count", "size"))
        lines.append(f'<total type="{sort}" count="{count}" size="{size}"/>')
    lines.append(f'<total type="mmap" count="{counted["hblks"]}" size="{counted["hblkhd"]}"/>')
    lines.append(f'<system type="current" size="{counted["arena"]}"/>')
    lines += [f'<{name.split()[0]} type="{name.split()[1]}" size="{counted[name]}"/>' for name in ("system max", "aspace total")]
    lines += [f'<aspace type="mprotect" size="{counted["aspace mprotect"]}"/>', "</malloc>", ""]
    return "\n".join(lines)


def check(printed: str, glibc: Glibc, directory: Directory) -> None:
    """Check the allocator's own counters to the last byte, and all sums that findleaks computes."""
    assert directory.problems == []
    reported = {line.split()[1]: int(line.split()[2]) for line in printed.splitlines() if line.startswith("mallinfo ")}
    counted = glibc.read_counters()
    assert {name: counted[name] for name in reported} == reported
    assert len(reported) == 10 and reported["ordblks"] > 20
    xml = "".join(line + "\n" for line in printed.splitlines() if line.startswith(("<", "  <")))
    assert xml.count("<heap") > 1
    assert malloc_info(glibc, directory) == xml
    assert glibc.problems == []  # the free lists and the heaps agree

    blocks = directory.blocks
    caches, arenas, threads = glibc.caches(blocks), glibc.arenas(blocks), glibc.thread_caches(blocks)
    totals = [blocks.totals(state) for state in STATES]
    assert [total.blocks > 10 for total in totals] == [True] * 3
    counts = [(cache.in_use, cache.cached, cache.free) for cache in caches]
    sizes = [(cache.in_use_bytes, cache.cached_bytes, cache.free_bytes) for cache in caches]
    assert [sum(column) for column in zip(*counts)] == [total.blocks for total in totals]
    assert [sum(column) for column in zip(*sizes)] == [total.bytes for total in totals]
    assert [sum(column) for column in zip(*((a.in_use, a.cached, a.free) for a in arenas))] == [total.bytes for total in totals]
    for arena in arenas:
        mine = [cache for cache in caches if cache.arena == arena.name]
        assert sum(cache.in_use_bytes for cache in mine) == arena.in_use
        assert sum(cache.memory for cache in mine) + arena.spare <= arena.mapped
    assert sum(arena.mapped for arena in arenas) == reported["arena"] + reported["hblkhd"]
    assert sum(cache.memory for cache in caches if cache.arena == "mmapped") == reported["hblkhd"]
    # Chunks and tops are all memory except headers of arenas and heaps, the chunks of the thread caches themselves, and fenceposts.
    own = sum(arena.mapped - arena.spare for arena in arenas) - sum(cache.memory for cache in caches)
    assert 0 <= own < 4096 * len(arenas)

    kept: dict[str, int] = {}
    for cache in threads:
        kept[cache.name] = kept.get(cache.name, 0) + cache.blocks
    by_class: dict[str, int] = {}
    for cache in caches:
        if cache.cached:
            by_class[cache.name] = by_class.get(cache.name, 0) + cache.cached
    assert kept == by_class
    tids = {thread.tid for thread in glibc.target.threads()}
    assert {cache.thread for cache in threads} == tids


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("caches"))


@pytest.mark.parametrize("picture", ["live", "kernel", "gcore"])
def test_figures_equal_those_of_glibc(program: Path, tmp_path: Path, picture: str) -> None:
    with run_program(program, 5, tmp_path, picture) as (printed, glibc, directory):
        check(printed, glibc, directory)
        names = {arena.name for arena in glibc.arenas(directory.blocks)}
        threads = printed.count("<heap nr=") - 1  # a thread may use the arena of a thread that has ended
        assert names == {"main", *(f"arena {n + 1}" for n in range(threads)), "mmapped"}
        assert threads >= 2
        subheaps = [arena.own.get("aspace subheaps", 0) for arena in glibc.arenas(directory.blocks)]
        assert max(subheaps) == 2


@pytest.mark.matrix
@pytest.mark.parametrize("flags", [(), ("-static",)], ids=["shared", "static"])
@pytest.mark.parametrize("threads", [5, 33])
@pytest.mark.parametrize("version", libcs.SUITES)
def test_releases(tmp_path: Path, version: str, threads: int, flags: tuple[str, ...]) -> None:
    program = compile_program(tmp_path, version, *flags)
    # GDB 13's gcore omits memory after the guard pages of stacks in glibc 2.42 and later, so thread pointers refer to missing memory.
    for picture in ("live", "kernel") if version == "2.43" else ("live", "kernel", "gcore"):
        with run_program(program, threads, tmp_path / picture, picture) as (printed, glibc, directory):
            check(printed, glibc, directory)
