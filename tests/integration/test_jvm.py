"""For a JVM, `runtime` reports the same figures as jcmd for the same process."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import debuggers
import jvms
import pytest
import truth
from java_heaps import ROOMY
from variants import mark_matrix_except

import cores
from findleaks.session import Session
from findleaks.target.copied import CopiedProcess

INTERPRETED = "-Xint"
"""Starts the JVM without its compiler threads, which allocate and free memory at any time. Without them, the memory of an idle JVM does not
change."""
INLINED = ("Thread::Thread()", "CodeBuffer::create_patch_overflow()")
"""Functions in which the constructor of an arena is inlined in some versions."""
QUIET = ("SIGSEGV", "SIGQUIT", "SIGPIPE")  # signals that the JVM sends to itself, and that jcmd sends to it


@contextmanager
def java(folder: Path, *options: str, version: str = jvms.SYSTEM) -> Iterator[cores.Running]:
    jvms.compile_java(truth.PROGRAMS / "Tracked.java", folder, "--release", "17")
    program = jvms.get(version) / "bin" / "java"
    with cores.Running([str(program), "-Xmx64m", *options, "-cp", str(folder), "Tracked"], folder) as running:
        yield running


def jcmd(pid: int, *words: str, version: str = jvms.SYSTEM) -> str:
    command = [jvms.get(version) / "bin" / "jcmd", str(pid), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=180).stdout


def parse_summary(text: str) -> dict[str, tuple[int, int]]:
    """Return the reserved and committed bytes by kind, as `VM.native_memory scale=b` prints them."""
    kinds = re.findall(r"^-\s+(.+?) \(reserved=(\d+), committed=(\d+)\)", text, re.M)
    return {name.strip(): (int(reserved), int(committed)) for name, reserved, committed in kinds}


def at_stop(running: cores.Running, folder: Path, function: str, *words: str, version: str = jvms.SYSTEM) -> tuple[str, str]:
    """Run a jcmd command that makes the JVM call this function. GDB runs findleaks at this call. Return the output of jcmd and the output
    of GDB."""
    commands = [f"handle {signal} nostop noprint pass" for signal in QUIET]
    commands += [f"break {function}", "shell touch stopping", "continue", "leaks runtime --no-native --json", "detach"]
    line = ["gdb", "-nx", "-batch", *debuggers.INDEXED, "-ex", f"source {debuggers.GDB_LOADER}", *(w for c in commands for w in ("-ex", c))]
    # After the first request, the JVM listens. Before it, jcmd would wait at most ten seconds.
    jcmd(running.pid, "VM.version", version=version)
    with open(folder / "gdb", "w") as out:
        gdb = subprocess.Popen([*line, "-p", str(running.pid)], cwd=folder, stdout=out, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + cores.PATIENCE
        while not (folder / "stopping").exists() and time.monotonic() < until:
            time.sleep(0.1)
        shown = jcmd(running.pid, *words, version=version)
        gdb.wait(cores.PATIENCE)
    finally:
        gdb.kill()
        gdb.wait()
    return shown, (folder / "gdb").read_text()


def test_stopped_in_the_middle_of_a_collection(tmp_path: Path) -> None:
    with java(tmp_path, "-XX:+UseSerialGC") as running:
        _, output = at_stop(running, tmp_path, "GenMarkSweep::invoke_at_safepoint", "GC.run")
    (line,) = debuggers.objects(output)
    found = json.loads(line)
    assert any("in the middle of a collection" in warning for warning in found["warnings"])
    # `find`, `verdict` and `map` print the note.
    (runtime,) = found["runtimes"]
    assert runtime["note"].startswith("Java objects are counted with garbage, and paths to them may be missing: the JVM was stopped")


@pytest.mark.platform("x86-64", "JVM", of="17, 21, 25")
@pytest.mark.parametrize("version", [jvms.SYSTEM, *(pytest.param(name, marks=pytest.mark.matrix) for name in jvms.VERSIONS)])
def test_native_memory_tracking_is_what_jcmd_prints(tmp_path: Path, version: str) -> None:
    """GDB stops the JVM just before it prints its counts. After the JVM has counted, only the memory of NMT grows, by the size of the copy
    of the counts."""
    with java(tmp_path, INTERPRETED, "-XX:+UseG1GC", "-XX:NativeMemoryTracking=detail", version=version) as running:
        words = ("VM.native_memory", "summary", "scale=b")
        shown, output = at_stop(running, tmp_path, "MemSummaryReporter::report()", *words, version=version)
        mapped = jcmd(running.pid, "VM.native_memory", "detail", version=version)
    said = parse_summary(shown)
    (line,) = debuggers.objects(output)
    (found,) = json.loads(line)["runtimes"]
    counters, own = found["counters"], "Native Memory Tracking"
    ours = {name: (counters.get(f"NMT: {name}, reserved", 0), counters.get(f"NMT: {name}, committed", 0)) for name in said}
    assert len(said) > 12
    assert {name: pair for name, pair in ours.items() if name != own} == {name: pair for name, pair in said.items() if name != own}
    assert 0 <= ours[own][0] - said[own][0] < 64 << 10
    assert counters["NMT: reserved"] == sum(reserved for reserved, _ in ours.values())
    sites = found["sites"]
    assert sum(site["bytes"] for site in sites) <= counters["NMT: malloc, with headers"]
    assert any("::" in frame for site in sites[:5] for frame in site["frames"])
    (structures,) = (part for part in found["parts"] if part["name"] == "GC structures")
    assert structures["bytes"] == sum_tables_of_g1(mapped)
    assert "mark bitmap" in structures["detail"] and "block offset table" in structures["detail"]


def sum_tables_of_g1(text: str) -> int:
    """Return the committed bytes of G1's tables beside the heap, as `VM.native_memory detail` prints them."""
    regions = re.split(r"(?m)^(?=\[0x)", text)
    tables = (one for one in regions if " for GC from" in one and ("aux_memory_mapper" in one or "MarkStack" in one))
    return sum(int(kilobytes) << 10 for one in tables for kilobytes in re.findall(r"^\s+\[.*\] committed (\d+)KB", one, re.M))


COLLECTORS = [
    "G1",
    *(pytest.param(name, marks=pytest.mark.matrix) for name in ("Serial", "Parallel")),
]


@pytest.mark.parametrize("picture", mark_matrix_except(["live", "kernel"], "kernel"))
@pytest.mark.parametrize("collector", COLLECTORS)
def test_memory_of_the_jvm_equals_that_of_jcmd(tmp_path: Path, collector: str, picture: str) -> None:
    """With -Xbatch, threads wait for the compilers. The compilers are therefore idle while jcmd and findleaks read the JVM."""
    with java(tmp_path, "-Xbatch", f"-XX:+Use{collector}GC") as running:
        codes, heap = (jcmd(running.pid, word) for word in ("Compiler.codecache", "GC.heap_info"))
        where = ["--pid", str(running.pid)] if picture == "live" else [str(running.kernel_core())]
        found = debuggers.runtime_page("jvm", "--no-native", *where)
    parts = {part["name"]: part for part in found["parts"]}
    ranges = {name: [(int(start, 16), int(end, 16)) for start, end in part["ranges"]] for name, part in parts.items()}
    bounds = re.findall(r"bounds \[(0x[0-9a-f]+), (0x[0-9a-f]+), ", codes)
    assert {(int(start, 16), int(end, 16)) for start, end in bounds} == set(ranges["code cache"])
    used = [int(number) for number in re.findall(r"used (\d+)K", heap.split("Metaspace")[0])]
    total = [int(number) for number in re.findall(r"total (\d+)K", heap.split("Metaspace")[0])]
    assert abs(parts["Java heap"]["used"] - 1024 * sum(used)) <= 1 << 20  # jcmd itself creates some objects
    assert sum(total) * 1024 <= parts["Java heap"]["bytes"] <= 64 << 20
    committed = re.search(r"Metaspace +used \d+K, committed (\d+)K", heap)
    assert committed is not None
    assert parts["metaspace"]["bytes"] == int(committed[1]) << 10
    assert found["counters"]["Java threads"] >= 8
    assert "NMT: reserved" not in found["counters"]  # NMT is off


def malloc_sites(pid: int, version: str) -> dict[tuple[int, ...], tuple[int, int]]:
    """Return blocks and bytes of each stack, of all kinds, as `VM.native_memory detail scale=b` prints them."""
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    text = jcmd(pid, "VM.native_memory", "detail", "scale=b", version=version)
    for stack, size, count in re.findall(r"((?:^\[0x[0-9a-f]+\].*\n)+) +\(+malloc=(\d+) (?:type|tag)=[^#]*?(?: #(\d+))?\)", text, re.M):
        frames = tuple(int(frame, 16) for frame in re.findall(r"^\[(0x[0-9a-f]+)\]", stack, re.M))
        blocks, total = found.get(frames, (0, 0))
        found[frames] = blocks + int(count or 1), total + int(size)
    return found


@pytest.mark.parametrize("version", mark_matrix_except([jvms.SYSTEM, "21.0.4", "25.0.2"], "25.0.2"))
def test_every_block_has_its_site(tmp_path: Path, version: str) -> None:
    """NMT puts a header before each block. For each stack, findleaks counts the blocks and bytes of NMT. Blocks of arenas and of padded
    arrays (task queues of the Parallel collector) are included."""
    with java(tmp_path, INTERPRETED, "-XX:+UseParallelGC", "-XX:NativeMemoryTracking=detail", version=version) as running:
        malloc_sites(running.pid, version)
        before = malloc_sites(running.pid, version)
        with CopiedProcess(running.pid) as target:
            session = Session(target)
            (runtime,) = (runtime for runtime in session.runtimes if runtime.name == "JVM")
            assert runtime.recorded
            (recording,) = runtime.recordings()
            sizes = [target.word(address) for address in recording.addresses]
            temporary = set(session.directory.blocks.columns_of(runtime.temporary_blocks()).address)
            names = [[symbol.name for symbol in map(target.symbolize, one.frames) if symbol] for one in recording.sites]
            permanent = set(runtime.permanent_blocks())
        after = malloc_sites(running.pid, version)
    assert recording.warnings == [] and len(recording.addresses) > 3000
    # Chunks of arenas are recognised by their layout. Functions of Arena and ChunkPool allocate the chunks.
    takes = [(stack[:1] and stack[0] in INLINED) or any("Arena::" in name or "ChunkPool::" in name for name in stack) for stack in names]
    usual = [length for chunk in (1 << 10, 10 << 10, 32 << 10) for length in range(chunk - 64, chunk + 64)]
    rows = zip(recording.addresses, recording.site_of, sizes)
    chunks = {address: site for address, site, size in rows if size in usual}
    wrong = [names[chunks[one]] if one in chunks else "" for one in temporary ^ {one for one, site in chunks.items() if takes[site]}]
    assert not wrong and len(temporary) > 20
    rows = zip(recording.addresses, recording.site_of, sizes)
    arrays = [size for address, site, size in rows if address in permanent and "PSPromotionManager::initialize()" in names[site]]
    assert max(arrays) > 1024
    found = {site: [0, 0] for site in range(len(recording.sites))}
    for site, size in zip(recording.site_of, sizes):
        found[site][0] += 1
        found[site][1] += size
    assert {site: tuple(counts) for site, counts in found.items()} == {i: tuple(one.live) for i, one in enumerate(recording.sites)}
    ours = {one.frames: tuple(one.live) for one in recording.sites}
    steady = {frames: counts for frames, counts in before.items() if after.get(frames) == counts}
    assert len(steady) > 500
    wrong = {frames: (ours.get(frames), counts) for frames, counts in steady.items() if ours.get(frames) != counts}
    assert len(wrong) < 100 and all(our == (0, 0) for our, _ in wrong.values()), wrong  # memory that each request of jcmd needs


GENERATIONAL = ("-XX:+UnlockExperimentalVMOptions", "-XX:ShenandoahGCMode=generational")
CONCURRENT = [
    pytest.param(jvms.SYSTEM, "Z", (), marks=pytest.mark.matrix),  # test_zgc.py
    (jvms.SYSTEM, "Shenandoah", ()),
    *(
        pytest.param(*row, marks=pytest.mark.matrix)
        for row in (
            ("21.0.4", "Z", ()),
            ("21.0.4", "Z", ("-XX:+ZGenerational",)),
            ("21.0.4", "Shenandoah", ()),
            ("25.0.2", "Z", ()),
            ("25.0.2", "Shenandoah", ()),
            ("25.0.2", "Shenandoah", GENERATIONAL),
        )
    ),
]


def in_bytes(heap: str, what: str) -> int:
    """Return a figure of `GC.heap_info` in bytes: "used 16M" of ZGC, "13284K used" of Shenandoah."""
    heap = heap.split("Metaspace")[0]
    found = re.search(rf"{what} (\d+)([KM])", heap) or re.search(rf"(\d+)([KM]) {what}", heap)
    assert found is not None, heap
    return int(found[1]) << {"K": 10, "M": 20}[found[2]]


@pytest.mark.platform("x86-64", "JVM", of="17, 21, 25")
@pytest.mark.parametrize(("version", "collector", "options"), CONCURRENT)
def test_figures_of_collectors_that_move_objects_meanwhile(tmp_path: Path, version: str, collector: str, options: tuple[str, ...]) -> None:
    """ZGC's heap consists of mappings of its file, which count once if the file is mapped at several addresses. The test reads the
    process and the kernel's core. With a heap of 64 MiB, ZGC might run a collection between jcmd's answer and the core."""
    room = (ROOMY, "-Xms64m") if collector == "Z" else ()
    with java(tmp_path, f"-XX:+Use{collector}GC", *room, *options, version=version) as running:
        heap = jcmd(running.pid, "GC.heap_info", version=version)
        maps = Path(f"/proc/{running.pid}/maps").read_text()
        pages = [
            debuggers.runtime_page("jvm", "--no-native", "--pid", str(running.pid)),
            debuggers.runtime_page("jvm", "--no-native", str(running.kernel_core())),
        ]
    mapped = {int(line.split("-")[0], 16) for line in maps.splitlines() if "java_heap" in line}
    for found in pages:
        parts = {part["name"]: part for part in found["parts"]}
        # ZGC maps pages for some objects that jcmd itself creates.
        assert abs(parts["Java heap"]["used"] - in_bytes(heap, "used")) <= 2 << 20
        assert parts["Java heap"]["bytes"] == in_bytes(heap, "capacity" if collector == "Z" else "committed")
        assert parts["Java heap"]["detail"].startswith("ZGC, 64 MiB" if collector == "Z" else "Shenandoah, 64 MiB")
        again = parts.get("Java heap, mapped again", {"ranges": []})
        starts = {int(start, 16) for start, _ in [*parts["Java heap"]["ranges"], *again["ranges"]]}
        assert starts == mapped if collector == "Z" else not again["ranges"]
        assert ("collections" in found["counters"]) == (collector == "Z")
