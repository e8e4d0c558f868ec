"""`map` on pages of other allocators' heaps, and of a threaded Ruby program before and after malloc_trim."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
from pathlib import Path
from typing import Any, Callable

import building
import mallocs_jemalloc
import mallocs_mimalloc
import mallocs_tcmalloc
import pytest
from counts import read_stdout, until
from debuggers import findleaks

from cores import Running, all_sleep
from findleaks.engine.pages import PageState

PAGE = 4096

RUBY = """
require "fiddle"
reader, writer = IO.pipe
trap("USR1") { writer.write_nonblock "x" }
threads = 24.times.map do
  Thread.new do
    made = 10000.times.map { |i| "x" * (100 + (i * 37) % 900) }
    made.each_slice(500).map(&:last) # what pins the arenas
  end
end
pins = threads.map(&:value)
threads = nil
2.times { GC.start }
sleep 4 # Ruby keeps ended threads for three seconds; then they free what they had cached
puts "ready"
$stdout.flush
reader.read(1)
Fiddle::Function.new(Fiddle::Handle::DEFAULT["malloc_trim"], [Fiddle::TYPE_SIZE_T], Fiddle::TYPE_INT).call(0)
puts "trimmed"
$stdout.flush
sleep
"""


def _jemalloc(decay: int) -> Callable[[], dict[str, str]]:
    return lambda: {
        "LD_PRELOAD": str(mallocs_jemalloc.get("5.3.0").library),
        "MALLOC_CONF": f"dirty_decay_ms:{decay},muzzy_decay_ms:{decay}",
    }


def _tcmalloc(rate: str) -> Callable[[], dict[str, str]]:
    return lambda: {**mallocs_tcmalloc.get("2.10").environment(), "TCMALLOC_RELEASE_RATE": rate}


def _mimalloc() -> dict[str, str]:
    return {"LD_PRELOAD": str(mallocs_mimalloc.library("2.0.9"))}


# Fraction of the free pages that is retained. Pages that were never touched are free, too.
ALLOCATORS = {
    "jemalloc-keeps": (_jemalloc(-1), "jemalloc", (0.7, 1.0)),
    "jemalloc-returns": (_jemalloc(0), "jemalloc", (0.0, 0.05)),
    "tcmalloc": (_tcmalloc("0"), "tcmalloc", (0.9, 1.0)),
    "mimalloc": (_mimalloc, "mimalloc", (0.1, 0.9)),
}


program = building.fixture("freed.c", "-O1")


@pytest.mark.parametrize("which", ALLOCATORS)
def test_pages_of(which: str, program: Path, tmp_path: Path) -> None:
    environment, allocator, kept = ALLOCATORS[which]
    with Running([str(program)], tmp_path / "run", {**os.environ, **environment()}) as running:
        live = json.loads(findleaks("map", "--json", "--allocator", allocator, "--pid", str(running.pid)))
        found = {page: state for heap in live["heaps"] for page, state in _states(heap)}
        truth = _present(running.pid, sorted(found))
        counted = json.loads(findleaks("caches", "--json", "--allocator", allocator, "--pid", str(running.pid)))["totals"][0]
        core = running.kernel_core()
    ours = [(int(line.split()[1], 16), int(line.split()[2])) for line in running.output.splitlines() if line.startswith("block")]
    used = {page for start, size in ours for page in range(start // PAGE * PAGE, start + size, PAGE)}
    reported = {page for page, state in found.items() if state in (PageState.IN_USE, PageState.UNTOUCHED)}
    assert used <= reported
    others, size = counted["blocks"]["in_use"] - len(ours), counted["in_use"] - sum(size for _, size in ours)
    assert len(reported - used) <= size // PAGE + 2 * others and others <= 8  # allocated by the libraries themselves
    for page, state in found.items():
        assert truth[page] == (state not in (PageState.UNTOUCHED, PageState.RETURNED)), (hex(page), state)
    free = [state for state in found.values() if state in (PageState.KEPT, PageState.RETURNED)]
    share = sum(state == PageState.KEPT for state in free) / len(free)
    assert kept[0] <= share <= kept[1]
    assert len(free) > 2000
    assert live["totals"]["resident"] == PAGE * sum(truth.values())
    after = json.loads(findleaks("map", "--json", "--allocator", allocator, str(core)))
    assert after["residency"]["source"] == "holes of the core"
    assert [heap["pages"] for heap in after["heaps"]] == [heap["pages"] for heap in live["heaps"]]


def _states(heap: dict[str, Any]) -> list[tuple[int, PageState]]:
    """Return (page, state) for each page of a heap."""
    return [
        (int(run["address"], 16) // PAGE * PAGE + PAGE * at, PageState[run["state"].upper()])
        for run in heap["pages"]
        for at in range(run["pages"])
    ]


def _present(pid: int, pages: list[int]) -> dict[int, bool]:
    """Return the resident pages from the process's pagemap, read by the test. For root, the zero page has a frame number that many pages
    share."""
    zero = _zero_page()
    found = {}
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as file:
        for page in pages:
            (entry,) = struct.unpack("Q", os.pread(file.fileno(), 8, page // PAGE * 8))
            found[page] = bool(entry >> 63) and entry & ((1 << 55) - 1) != zero
    return found


def _zero_page() -> int:
    """Return the frame number of the kernel's zero page, to which pages map that were only read."""
    import mmap

    with mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page, open("/proc/self/pagemap", "rb", buffering=0) as file:
        assert page[0] == 0
        import ctypes

        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        (entry,) = struct.unpack("Q", os.pread(file.fileno(), 8, address // PAGE * 8))
    frame = entry & ((1 << 55) - 1)
    return int(frame) or -1  # 0: without root, frame numbers are not reported


def resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Rss:")).split()[1]) << 10


def test_threaded_ruby_keeps_pages_and_returns_them(tmp_path: Path) -> None:
    with Running(["ruby", "-e", RUBY], tmp_path / "run") as running:
        before = json.loads(findleaks("map", "--json", "--pid", str(running.pid)))
        said = findleaks("map", "--pid", str(running.pid))
        held = resident(running.pid)
        os.kill(running.pid, signal.SIGUSR1)
        until(lambda: read_stdout(running).endswith("trimmed\n") and all_sleep(running.pid), "malloc_trim")
        returned = held - resident(running.pid)
        after = json.loads(findleaks("map", "--json", "--pid", str(running.pid)))
        core = running.kernel_core()
    (trim,) = before["trim"]
    assert returned > 50 << 20
    assert abs(trim["bytes"] - returned) <= returned * 0.02
    assert "malloc_trim(0) would return" in said
    kept, gone = ([one["totals"]["pages"][state] for one in (before, after)] for state in ("kept", "returned"))
    assert kept[0] > 50 << 20 and kept[0] - kept[1] >= returned * 0.95
    assert gone[1] - gone[0] >= returned * 0.95
    assert sum(one["bytes"] for one in after["trim"]) < 2 << 20
    assert before["totals"]["in_use"] * 5 < before["totals"]["resident"]
    from_core = json.loads(findleaks("map", "--json", str(core)))
    assert from_core["totals"] == after["totals"] and from_core["trim"] == after["trim"]


JAVA = """
import java.util.*;
import java.util.zip.*;

public class Churn {
    public static void main(String[] ignored) throws Exception {
        for (int round = 0; round < 3; round++) {
            List<Thread> threads = new ArrayList<>();
            for (int number = 0; number < 40; number++) {
                Thread thread = new Thread(() -> {
                    List<Deflater> kept = new ArrayList<>();
                    byte[] in = new byte[20000], out = new byte[20000];
                    for (int at = 0; at < 40; at++) {
                        Deflater made = new Deflater(9);
                        made.setInput(in);
                        made.finish();
                        made.deflate(out);
                        kept.add(made);
                    }
                    for (Deflater one : kept)
                        one.end();
                });
                threads.add(thread);
                thread.start();
            }
            for (Thread thread : threads)
                thread.join();
        }
        System.gc();
        Thread.sleep(1500);
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(600000);
    }
}
"""


@pytest.mark.matrix
def test_jvm_with_thread_churn(tmp_path: Path) -> None:
    """The JVM's own command to trim returns the predicted amount of memory."""
    (tmp_path / "Churn.java").write_text(JAVA)
    subprocess.run(["javac", "Churn.java"], cwd=tmp_path, check=True)
    with Running(["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", str(tmp_path), "Churn"], tmp_path / "run") as running:
        (trim,) = json.loads(findleaks("map", "--json", "--pid", str(running.pid)))["trim"]
        held = resident(running.pid)
        subprocess.run(["jcmd", str(running.pid), "System.trim_native_heap"], check=True, capture_output=True)
        returned = held - resident(running.pid)
    assert returned > 20 << 20
    assert abs(trim["bytes"] - returned) <= returned * 0.02
