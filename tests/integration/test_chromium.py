"""Debian's Chromium: findleaks reads the heaps of all its processes without errors, and reports the figures that Chromium itself counts."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from debuggers import gdb, lldb, objects, run_cli
from devtools import Chromium

pytestmark = pytest.mark.matrix

PAGE = """<script>
for (let i = 0; i < 20000; i++) { const one = document.createElement("div"); one.textContent = "row " + i; document.body.append(one); }
window.kept = []; for (let i = 0; i < 20000; i++) window.kept.push(new ArrayBuffer(5000));
window.large = new ArrayBuffer(3000000); document.title = "ready";
</script>"""
QUIET = ("partition_alloc/partitions/array_buffer", "malloc/partitions/original")
"""Partitions in which an idle page allocates nothing. The buffers of PAGE are in the first one. The partition "buffer" is missing here,
because each dump allocates in it."""
SAME = (
    "allocated_objects_size",
    "active_slot_spans",
    "full_slot_spans",
    "empty_slot_spans",
    "decommitted_slot_spans",
    "total_slot_span_size",
)
BUFFERS = 20000


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    folder = tmp_path_factory.mktemp("chromium")
    page = folder / "page.html"
    page.write_text(f"<html><body>{PAGE}</body></html>")
    with Chromium(page, folder) as running:
        yield running


def find_page(chromium: Chromium) -> int:
    """Return the process of the page after the page has allocated all its blocks."""
    for _ in range(60):
        for pid, found in chromium.dump().items():
            if found.get(QUIET[0], {}).get("allocated_objects_count", 0) >= BUFFERS:
                return pid
    raise AssertionError("the page has no buffers")


def quiet(dump: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    return {path: values for path, values in dump.items() if path.startswith(QUIET)}


def at_rest(chromium: Chromium, pid: int) -> tuple[dict[str, Any], dict[str, dict[str, int]]]:
    """Return the results of findleaks and the figures of Chromium, read while the figures before and after are the same."""
    before = quiet(chromium.dump()[pid])
    for _ in range(40):
        found = json.loads(run_cli("caches", "--by-arena", "--limit", "0", "--json", "--pid", str(pid)).stdout)
        after = quiet(chromium.dump()[pid])
        if after == before:
            return found, after
        before = after
    raise AssertionError("the page is never at rest")


@pytest.mark.platform("x86-64", "PartitionAlloc", of="Chromium 156")
def test_statistics(chromium: Chromium) -> None:
    """For each bucket of the partitions that do not change, findleaks reports the same figures as Chromium's memory-infra."""
    found, dump = at_rest(chromium, find_page(chromium))
    assert found["warnings"] == [] or all("unattributed" in warning for warning in found["warnings"])
    compared = 0
    for path in QUIET:
        (arena,) = (
            one["name"]
            for one in found["arenas"]
            if one["allocator"] == "PartitionAlloc" and one["own"]["total_size_of_allocated_bytes"] == dump[path]["allocated_size"]
        )
        rows = {row["name"]: row["own"] for row in found["caches"] if row["arena"] == arena and row["allocator"] == "PartitionAlloc"}
        begin = f"{path}/buckets/bucket_"
        buckets = {key[len(begin) :].lstrip("0"): one for key, one in dump.items() if key.startswith(begin) and key.count("/") == 4}
        for name, row in rows.items():
            if name != "direct":
                assert {key: row[key] for key in SAME} == {key: buckets[name][key] for key in SAME}, (path, name)
                compared += 1
    assert compared > 20


def heap(output: str) -> dict[str, Any]:
    """Return the arenas and size classes of PartitionAlloc in the output of `caches --json`."""
    lines = objects(output)
    assert lines, output
    found = json.loads(lines[0])
    return {key: [row for row in found[key] if row["allocator"] == "PartitionAlloc"] for key in ("arenas", "caches")}


def test_a_core(chromium: Chromium, tmp_path: Path) -> None:
    """A core of a stopped process gives the same results as the process, in each front end."""
    pid, core = find_page(chromium), tmp_path / "page.core"  # `snapshot` adds .core to the name
    words = ("caches", "--by-arena", "--limit", "0", "--json")
    os.kill(pid, signal.SIGSTOP)
    try:
        live = heap(run_cli(*words, "--pid", str(pid)).stdout)
        assert run_cli("snapshot", str(core.with_suffix("")), "--weight", "core", "--pid", str(pid)).returncode == 0
    finally:
        os.kill(pid, signal.SIGCONT)
    assert len(live["arenas"]) >= len(QUIET) and sum(row["in_use"] for row in live["caches"]) >= BUFFERS
    line = [f"leaks {' '.join(words)}"]
    for output in (run_cli(*words, str(core)).stdout, gdb(line, "-c", str(core)), lldb(line, "-c", str(core))):
        assert heap(output) == live
    checked = run_cli("verify", "--allocator", "PartitionAlloc", str(core))
    assert "nothing wrong" in checked.stdout, (checked.stdout, checked.stderr)


def test_every_process_is_sound(chromium: Chromium) -> None:
    """In the browser, its renderers and its helpers, counters, lists and thread caches agree with the spans."""
    find_page(chromium)
    pids = chromium.processes()
    assert len(pids) >= 5 and any("type=renderer" in words for words in pids.values())
    for pid, words in pids.items():
        checked = run_cli("verify", "--allocator", "PartitionAlloc", "--pid", str(pid))
        assert checked.returncode == 0 and "heap sound" in checked.stdout, (words, checked.stdout, checked.stderr)
