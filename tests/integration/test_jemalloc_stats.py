"""Statistics of jemalloc at the same stop: jemalloc and findleaks report the same table of bins, large classes and totals."""

from __future__ import annotations

import json
import os
import re
import subprocess
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import libcs
import mallocs_jemalloc
import pytest
import truth
from accuracy import FLAGS
from variants import mark_matrix_except

import cores
from findleaks.allocators.base import State
from findleaks.allocators.jemalloc import report, retention
from findleaks.allocators.jemalloc.instance import Jemalloc
from findleaks.session import Session
from findleaks.target.core import open_core

SOURCE = truth.PROGRAMS / "jemalloc_stats.c"
BUFFER = 65536
"""malloc_stats_print allocates a block of this size before it counts, and frees it at the end (5.3: stats.h, STATS_PRINT_BUFSIZE)."""

SETTINGS = (
    "",
    "narenas:1",
    "tcache:false",
    "retain:false",
    "bin_shards:1-160:4|161-14336:2",
    "dirty_decay_ms:0",
    "percpu_arena:percpu",
    "dirty_decay_ms:-1,muzzy_decay_ms:3000",
)

BINS = {"nmalloc", "ndalloc", "curregs", "nrequests", "nfills", "nflushes", "reslabs", "curslabs", "nonfull_slabs"}
"""Columns of the table of bins that are counters. The JSON calls "reslabs" "nreslabs"."""


def run(folder: Path, version: str, conf: str, threads: int = 5) -> tuple[str, dict[str, Any], Path]:
    """Run the program with a release of jemalloc. Return the tables of bins, the JSON, and the core."""
    program, libc = folder / "program", mallocs_jemalloc.LIBCS.get(version)
    if libc:
        libcs.get(libc).compile(SOURCE, program, FLAGS)
    else:
        subprocess.run(["gcc", *FLAGS, "-o", str(program), str(SOURCE), "-pthread", "-ldl"], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(mallocs_jemalloc.get(version).library), "MALLOC_CONF": conf}
    with cores.Running([str(program), str(threads)], folder / "run", environment) as running:
        table, _, rest = running.output.partition("\n--json--\n")
        return table, json.loads(rest.rpartition("\nready\n")[0])["jemalloc"], running.kernel_core()


def util(counters: Mapping[str, int]) -> str:
    """Compute the column "util" of the table of bins (stats.c, get_rate_str)."""
    total, used = counters["nregs"] * counters["curslabs"], counters["curregs"]
    if not total or used == total:
        return "1"
    if used > total:
        return " race"
    return f"0.{1000 * used // total:03d}"


def tables(text: str) -> Iterator[tuple[int, dict[int, dict[str, str]]]]:
    """Return (arena, {class: {column: text}}) for each printed table of bins."""
    for part in re.split(r"^arenas\[(?=\d+\]:)", text, flags=re.M)[1:]:
        number = int(part.partition("]")[0])
        found: dict[int, dict[str, str]] = {}
        columns: list[str] = []
        for line in part.splitlines():
            if line.startswith("bins:"):
                columns = line[5:].replace("(#/sec)", " persec ").split()
            elif columns and re.match(r"\s+\d", line):
                row = dict(zip(columns, line.split()))
                found[int(row["ind"])] = row
            elif columns and not re.match(r"\s+---", line):
                break
        yield number, found


def compare(folder: Path, version: str, conf: str, threads: int = 5) -> None:
    text, printed, core = run(folder, version, conf, threads)
    session = Session(open_core(str(core)))
    try:
        directory = session.directory
        (jemalloc,) = [allocator for allocator in directory.allocators if isinstance(allocator, Jemalloc)]
        assert [problem for problem in directory.problems if "jemalloc" in problem.what or problem.corrupt] == []
        assert list(jemalloc.verify(directory.blocks)) == []
        rows = jemalloc.caches(directory.blocks)
        ours = {(cache.arena, cache.own["ind"]): cache for cache in rows}
        wanted = printed["opt"]["dirty_decay_ms"], printed["opt"]["muzzy_decay_ms"]
        assert {retention.find_decay_times(jemalloc.memory, arena) for arena in jemalloc.parts.arenas} == {wanted}
        blocks = 0
        arenas = {name: arena for name, arena in printed["stats.arenas"].items() if name.isdigit()}
        assert arenas
        for name, arena in arenas.items():
            for index, printed_bin in enumerate(arena["bins"]):
                cache = ours.get((f"arena {name}", index))
                mine = {"nreslabs" if key == "reslabs" else key: cache.own[key] for key in BINS} if cache else {}
                reported = {key: value for key, value in printed_bin.items() if key in mine or (cache is None and key in BINS)}
                assert reported == (mine or dict.fromkeys(reported, 0)), (name, index)
            for index, printed_large in enumerate(arena["lextents"], len(arena["bins"])):
                cache = ours.get((f"arena {name}", index))
                own = cache.own["curlextents"] if cache else 0
                is_buffer = name == "0" and own == printed_large["curlextents"] - 1
                blocks += is_buffer
                assert own == printed_large["curlextents"] or is_buffer, (name, index)
        buffer = 0 if version == "5.2.1" else BUFFER
        assert blocks == bool(buffer), "the buffer of malloc_stats_print itself, and nothing else"
        seen = 0
        for number, table in tables(text):
            for index, row in table.items():
                cache = ours[f"arena {number}", index]
                own = {**cache.own, "size": cache.size, "regs": cache.own["nregs"], "pgs": cache.own["slab_size"] // 4096}
                for column in (
                    "size",
                    "allocated",
                    "nmalloc",
                    "ndalloc",
                    "nrequests",
                    "curregs",
                    "curslabs",
                    "nonfull_slabs",
                    "regs",
                    "pgs",
                ):
                    assert row[column] == str(own[column]), (number, index, column)
                assert row["util"] == util(cache.own)
                seen += 1
        assert seen > 30
        identities(jemalloc, directory.blocks, rows)
        totals = {name: printed["stats"][name] for name in ("allocated", "active", "metadata", "resident", "mapped", "retained")}
        totals["allocated"] -= buffer
        totals["metadata"] -= buffer
        counted = dict(jemalloc.read_counters())
        # Pages of that buffer count as active. Later they may be returned to the kernel.
        left = buffer + 4096 * bool(buffer)
        assert totals.pop("active") == counted.pop("active") + left
        # Adjacent dirty pages may also be returned.
        dirty = sum(arena["pdirty"] for arena in arenas.values()) - sum(row.own["pdirty"] for row in report.list_arenas(jemalloc))
        for name in ("resident", "mapped", "retained"):
            assert abs(totals.pop(name) - counted.pop(name)) in (0, left, left + 4096 * dirty), name
        assert totals == counted
    finally:
        session.close()


def identities(jemalloc: Jemalloc, blocks: Any, rows: Any) -> None:
    """Check that in use + cached + free = total for each class, and that all classes together have all blocks."""
    found = dict.fromkeys(State, 0)
    for heap in jemalloc.heaps():
        for _, state, count in blocks.by_size(array("Q", [heap.start, heap.end])):
            found[state] += count
    for cache in rows:
        if cache.own.get("nregs"):
            assert cache.total + cache.own["internal"] == cache.own["nregs"] * cache.own["curslabs"], cache
            assert cache.in_use + cache.cached + cache.own["internal"] == cache.own["curregs"], cache
    assert sum(cache.in_use for cache in rows) == found[State.IN_USE]
    assert sum(cache.cached for cache in rows) == found[State.CACHED]
    assert sum(cache.free for cache in rows) == found[State.FREE]
    assert sum(cache.own["internal"] for cache in rows) == found[State.METADATA]
    cached = jemalloc.thread_caches(blocks)
    assert sum(cache.blocks for cache in cached) == found[State.CACHED]
    assert all(cache.thread for cache in cached)
    kept = {arena.name: arena.own["tcache_bytes"] for arena in jemalloc.arenas(blocks)}
    assert sum(kept.values()) == sum(cache.bytes for cache in cached)


@pytest.mark.parametrize("version", mark_matrix_except(["5.2.1", "5.3.0", "5.3.1"], "5.2.1", "5.3.1"))
def test_statistics_equal_the_printed_ones(tmp_path: Path, version: str) -> None:
    compare(tmp_path, version, "")


@pytest.mark.matrix
@pytest.mark.parametrize("threads", [1, 33])
@pytest.mark.parametrize("conf", SETTINGS)
@pytest.mark.parametrize("version", mallocs_jemalloc.SUITES)
def test_statistics_equal_the_printed_ones_with_every_setting(tmp_path: Path, version: str, conf: str, threads: int) -> None:
    compare(tmp_path, version, conf, threads)
