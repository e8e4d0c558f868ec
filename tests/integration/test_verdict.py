"""`verdict` on real programs: shares add up to the kernel's resident memory, and predictions equal what malloc_trim then returns."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import building
import jvms
import mallocs_jemalloc
import mallocs_tcmalloc
import nodes
import pytest
from counting import compile_sources, suspend
from debuggers import ROOT, findleaks, gdb, lldb, objects
from real import PROGRAMS, Idle
from verdicts import anonymous, build, finding, given_back, near, resident, running, send_signal, share, sorts, verdict

from cores import Running
from findleaks import commands
from findleaks.audit.residency import save_residency
from findleaks.session import Session
from findleaks.target.copied import attach

LOST, KEPT, PINNED = 20_000, 30_000, 2000
BLOCK = 104  # usable bytes that verdict.c leaks
NOTHING = {"nothing-lost", "next-to-nothing-lost"}


program = building.by(build)


def test_plain_leak(program: Path, tmp_path: Path) -> None:
    with running(program, tmp_path / "run", (LOST, 0, 0)) as run:
        size = resident(run.pid)  # read before findleaks runs, because reading a process makes pages of its files resident
        live = verdict("--pid", str(run.pid))
        assert near(live["resident"], size, 0.01)
        assert live["rss"] == live["resident"]
        core = run.kernel_core()
    for found in (live, verdict(str(core))):
        assert sorts(found)[0] == "lost"
        leak = finding(found, "lost")
        assert (leak["bytes"], leak["evidence"]["blocks"], leak["evidence"]["leaks"]) == (LOST * BLOCK, LOST, LOST)
        group = leak["evidence"]["groups"][0]
        assert (group["size"], group["blocks"]) == (BLOCK, LOST)
        assert f"whatis {group['examples'][0]}" in leak["next"]
        assert set(sorts(found)) == {"lost"}


_MIDDLES = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
char *middles[20000]; /* at offsets that no header of the program's own explains */
int main(void) {
    for (int i = 0; i < 20000; i++)
        middles[i] = (char *)malloc(104) + (i * 7919 % 12 + 1) * 8;
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
"""


def test_possible_leaks_are_reported_once(tmp_path: Path) -> None:
    compile_sources(tmp_path, middles=_MIDDLES)
    with Running([str(tmp_path / "middles")], tmp_path / "run") as run:
        found = verdict("--pid", str(run.pid))
    first, last = found["findings"]
    assert (first["finding"], last["finding"]) == ("possible", "nothing-lost")
    assert (first["bytes"], first["evidence"]["blocks"]) == (20_000 * 104, 20_000)
    assert "possible" not in last["text"]
    assert last["evidence"]["possible_blocks"] == 20_000


_ONE = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
char *middle;
static void *build(void *unused) { /* a table that only a pointer to its 2,048th word holds, with blocks that hold others */
    void **table = malloc(81920);
    for (int i = 0; i < 10240; i++) {
        void **node = table[i] = malloc(104);
        for (int j = 0; j < 5; j++)
            node[j] = memset(malloc(104), 'x', 104);
    }
    middle = (char *)table + 16384;
    return unused;
}
int main(void) {
    pthread_t thread; /* which leaves no registers behind */
    if (pthread_create(&thread, NULL, build, NULL) || pthread_join(thread, NULL))
        return 1;
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
"""


def test_one_interior_pointer_gives_one_group(tmp_path: Path) -> None:
    """The block, the word that points into it and the offset are named. `find` lists one group, although other lost blocks are reachable
    from this block."""
    compile_sources(tmp_path, one=_ONE)
    with Running([str(tmp_path / "one")], tmp_path / "run") as run:
        found = verdict("--pid", str(run.pid))
        groups = json.loads(findleaks("find", "--json", "--pid", str(run.pid)))
    blocks = 1 + 10240 * 6
    total = groups["totals"]["possible"]
    assert total["blocks"] == blocks
    (group,) = groups["groups"]
    assert (group["kind"], group["blocks"], group["size"], group["indirect_blocks"]) == ("possible", 1, 81928, blocks - 1)
    assert group["bytes"] + group["indirect_bytes"] == total["bytes"]
    first = finding(found, "possible")
    (pointer,) = first["evidence"]["head"]["pointers"]
    assert (first["evidence"]["head"]["size"], first["evidence"]["head"]["heads"], pointer["offset"]) == (81928, 1, 16384)
    assert "All of it is reached through one pointer into the middle of one block." in first["text"]
    assert f"The word at {pointer['address']} points 16,384 B into the block of 81,928 B at {group['examples'][0]}" in first["cause"]
    assert first["cause"].endswith(" The word is in middle (one, data).")


def test_several_causes_are_all_reported(program: Path, tmp_path: Path) -> None:
    with running(program, tmp_path / "run", (LOST, KEPT, 40)) as run:
        found = verdict("--pid", str(run.pid))
        assert sorts(found) == ["kept", "lost", "unjoined-threads"]
        assert [one["bytes"] for one in found["findings"]] == sorted((one["bytes"] for one in found["findings"]), reverse=True)
        kept = finding(found, "kept")
        assert kept["evidence"]["causes"] == ["between"]
        assert near(kept["bytes"], KEPT * 2016 - LOST * 112, 0.01)  # the lost blocks were cut from it
        assert finding(found, "lost")["bytes"] == LOST * BLOCK
        ended = finding(found, "unjoined-threads")
        assert ended["evidence"]["threads"] == 40
        assert ended["evidence"]["started"] == [{"function": "ends", "threads": 40}]
        assert ended["bytes"] == share(found, "unjoined") >= 40 * 4096
        assert near(kept["evidence"]["returnable"], given_back(run), 0.02)
        after = verdict("--pid", str(run.pid))
        assert "kept" not in sorts(after)
        assert {"lost", "unjoined-threads"} == set(sorts(after))


def test_list_that_grows(program: Path, tmp_path: Path) -> None:
    """The list is reachable, and the finding names the variable. In a stripped program, the variable has no name, and the other output is
    the same."""
    bare = tmp_path / "bare"
    subprocess.run(["strip", "-o", str(bare), str(program)], check=True)
    for path in (program, bare):
        with running(path, tmp_path / f"run-{path.name}", (100, 0, 0, 0, 200_000)) as run:
            found = verdict("--pid", str(run.pid))
        assert sorts(found) == ["held", "next-to-nothing-lost"]
        held = finding(found, "held")
        assert (held["bytes"], held["evidence"]["blocks"]) == (200_000 * BLOCK, 200_000)
        assert held["evidence"]["length"] == 200_000
        assert "linked list" in held["cause"]
        if path is program:
            assert held["evidence"]["root"] == "g_sessions"
            assert held["next"][0] == "roots g_sessions --depth 4"
        assert findleaks_takes(held["next"][0])


def findleaks_takes(words: str) -> bool:
    """Return whether findleaks can parse a suggested command."""
    made = commands.find_command(shlex.split(words)[0])
    return made is not None and commands.parse(commands.parser(made, "leaks"), shlex.split(words)[1:]) is not None


def test_fragmentation_without_a_free_page(program: Path, tmp_path: Path) -> None:
    """There is a block in use on every page, so no page can be returned, and the finding says so."""
    with running(program, tmp_path / "run", (0, KEPT, 0, 2)) as run:
        found = verdict("--pid", str(run.pid))
        kept = finding(found, "kept")
        assert kept["evidence"]["causes"] == ["fragmentation"]
        assert near(kept["bytes"], KEPT // 2 * 2000, 0.02)
        assert kept["evidence"]["returnable"] < 1 << 20
        assert not any("malloc_trim" in one for one in kept["try"])
        assert given_back(run) < 1 << 20
        assert near(share(found, "in-use", "glibc"), KEPT // 2 * 2000, 0.02)


def test_top_that_the_threshold_keeps(program: Path, tmp_path: Path) -> None:
    """All memory is freed, but because of a threshold (M_TRIM_THRESHOLD), it stays at the end of the main arena."""
    with running(program, tmp_path / "run", (0, KEPT, 0, 1 << 30), MALLOC_TRIM_THRESHOLD_=str(1 << 30)) as run:
        pinned = int(run.output.split()[1])
        assert pinned == 2
        found = verdict("--pid", str(run.pid))
        kept = finding(found, "kept")
        assert kept["evidence"]["trim_threshold"] == 1 << 30
        assert near(kept["evidence"]["returnable"], given_back(run), 0.02)


def test_jemalloc_with_dirty_pages(program: Path, tmp_path: Path) -> None:
    library = str(mallocs_jemalloc.get("5.3.0").library)
    conf = {"LD_PRELOAD": library, "MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:0,narenas:1"}
    with running(program, tmp_path / "run", (0, KEPT, 0), **conf) as run:
        size = resident(run.pid)
        found = verdict("--pid", str(run.pid))
        assert near(found["resident"], size, 0.01)
        kept = finding(found, "kept")
        assert kept["evidence"]["allocator"] == "jemalloc"
        assert kept["evidence"]["causes"] == ["decay"]
        assert kept["evidence"]["dirty_decay_ms"] == -1
        assert any("dirty_decay_ms" in one for one in kept["try"])
        assert any("arena.4096.purge" in one for one in kept["try"])
        assert found["findings"][0] == kept
        assert found["findings"][1]["text"].startswith("Nothing leaked: 0 blocks")
        assert found["warnings"] == []
        assert near(kept["evidence"]["returnable"], given_back(run), 0.02)
        assert "kept" not in sorts(verdict("--pid", str(run.pid)))


def test_tcmalloc_with_a_full_page_heap(program: Path, tmp_path: Path) -> None:
    conf = {**mallocs_tcmalloc.get("2.10").environment(), "TCMALLOC_RELEASE_RATE": "0"}
    with running(program, tmp_path / "run", (0, KEPT, 0), **conf) as run:
        size = resident(run.pid)
        found = verdict("--pid", str(run.pid))
        assert near(found["resident"], size, 0.01)
        kept = finding(found, "kept")
        assert kept["evidence"]["allocator"] == "tcmalloc"
        assert kept["evidence"]["causes"] == ["page heap"]
        assert any("TCMALLOC_AGGRESSIVE_DECOMMIT" in one for one in kept["try"])
        assert any("ReleaseFreeMemory" in one for one in kept["try"])
        assert near(kept["evidence"]["returnable"], given_back(run), 0.02)
        assert "kept" not in sorts(verdict("--pid", str(run.pid)))


@pytest.fixture(scope="module")
def ruby(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    words = [str(shutil.which("ruby")), str(ROOT / "tests/programs/verdict_threads.rb")]
    with Running(words, tmp_path_factory.mktemp("ruby")) as run:
        yield run


def test_threaded_ruby(ruby: Running) -> None:
    """RSS is many times the size of the blocks. Live and in a kernel's core, the prediction of what malloc_trim(0) returns is correct."""
    size = resident(ruby.pid)
    live = verdict("--pid", str(ruby.pid))
    assert near(live["resident"], size, 0.01)
    assert send_signal(ruby, signal.SIGUSR2) == ["dumped"]
    (core,) = ruby.folder.glob("core*")
    dumped = verdict(str(core))
    returned = given_back(ruby)
    for found in (live, dumped):
        assert found["shares"][0]["share"] == "kept"
        assert found["resident"] > 10 * share(found, "in-use")
        kept = found["findings"][0]
        assert kept["finding"] == "kept"
        assert "arenas" in kept["evidence"]["causes"]
        assert any("MALLOC_ARENA_MAX=2" in one for one in kept["try"])
        assert near(kept["evidence"]["returnable"], returned, 0.02)
        assert "lost" not in sorts(found)
    assert dumped["residency"] == "holes of the core"
    after = verdict("--pid", str(ruby.pid))
    assert "kept" not in sorts(after)
    assert near(live["resident"] - after["resident"], returned, 0.02)


def test_ruby_with_two_arenas(tmp_path: Path) -> None:
    words = [str(shutil.which("ruby")), str(ROOT / "tests/programs/verdict_threads.rb")]
    with Running(words, tmp_path / "run", {**os.environ, "MALLOC_ARENA_MAX": "2"}) as run:
        found = verdict("--pid", str(run.pid))
        for one in found["findings"]:
            assert "arenas" not in one["evidence"].get("causes", [])
            assert not any("MALLOC_ARENA_MAX" in words for words in one["try"])
        for one in [each for each in found["findings"] if each["finding"] == "kept"]:
            assert near(one["evidence"]["returnable"], given_back(run), 0.02)


def call_malloc_trim(pid: int) -> int:
    """Return the number of bytes that malloc_trim(0) returns to the system. GDB calls it in a thread of a suspended process while no
    other thread runs."""
    before = anonymous(pid)
    steps = ["set scheduler-locking on", "handle SIGSTOP nostop noprint nopass", "print (int) malloc_trim(0)"]
    words = ["gdb", "-batch", "-nx", "-p", str(pid), *(word for step in steps for word in ("-ex", step))]
    said = subprocess.run(words, check=True, capture_output=True, text=True, timeout=180)
    assert "$1 = 1" in said.stdout, said
    return before - anonymous(pid)


def test_java_with_threads_that_deflate(tmp_path: Path) -> None:
    """The JVM runs without compilers, because compiler threads allocate and free memory at any time."""
    jvms.compile_java(ROOT / "tests/programs/VerdictDeflaters.java", tmp_path)
    flags = ["-Xint", "-Xmx64m", "-XX:+UseSerialGC", "-XX:CompressedClassSpaceSize=16m"]
    with Running(["java", *flags, "-cp", str(tmp_path), "VerdictDeflaters"], tmp_path / "run") as run:
        suspend(run.pid)
        size = resident(run.pid)
        found = verdict("--pid", str(run.pid))
        returned = call_malloc_trim(run.pid)
        os.kill(run.pid, signal.SIGCONT)
        said = subprocess.run(["jcmd", str(run.pid), "System.trim_native_heap"], check=True, capture_output=True, text=True, timeout=180)
    assert near(found["resident"], size, 0.01)
    kept = finding(found, "kept")
    assert "arenas" in kept["evidence"]["causes"]
    assert f"jcmd {run.pid} System.trim_native_heap, which calls malloc_trim(0)" in " ".join(kept["try"])
    assert "Trim native heap" in said.stdout
    assert near(kept["evidence"]["returnable"], returned, 0.02)


@pytest.mark.parametrize("name", ["nginx", "redis"])
def test_healthy_idle_server(name: str, tmp_path: Path) -> None:
    """A healthy idle server has no finding."""
    with Idle(PROGRAMS[name], tmp_path) as idle:
        size = resident(idle.pid)
        found = verdict("--pid", str(idle.pid))
        assert near(found["resident"], size, 0.01)
        core = verdict(str(idle.kernel_core()))
    assert len(found["findings"]) == len(core["findings"]) == 1
    assert {found["findings"][0]["finding"], core["findings"][0]["finding"]} <= NOTHING


def test_scopes_with_many_handles(tmp_path: Path) -> None:
    """Node 0.10.21 leaks a handle for each TCP handle that is closed with a callback, and ten more. Version 0.10.22 does not have the
    leak."""
    for version, more in (("0.10.21", 200_000), ("0.10.22", 0)):
        words = [nodes.get(version), str(ROOT / "tests/programs/node_closing.js"), "200000"]
        with Running(words, tmp_path / version) as run:
            found = verdict("--pid", str(run.pid))
        assert ("handle-scopes" in sorts(found)) == bool(more)
        if more:
            hoard = finding(found, "handle-scopes")
            assert hoard["evidence"]["handles"] == more + 10
            assert hoard["next"][0] == "scopes"


def test_gcore_does_not_tell_what_was_resident(program: Path, tmp_path: Path) -> None:
    side = tmp_path / "residency"
    with running(program, tmp_path / "run", (LOST, KEPT, 0)) as run:
        live = verdict("--pid", str(run.pid))
        with attach(run.pid) as target:
            save_residency(Session(target), str(side))
        core = str(run.gcore())
    found = verdict(core)
    assert (found["resident"], found["residency"]) == (None, "unknown")
    assert found["mapped"] > live["resident"]
    assert finding(found, "kept")["evidence"]["returnable"] is None
    assert "It is unknown which pages" in findleaks("verdict", core)
    known = verdict("--residency", str(side), core)
    assert known["residency"] == "side file"
    # Pages of files became resident when the process was read for the first time.
    assert near(known["resident"] - share(known, "files"), live["resident"] - share(live, "files"), 0.01)
    assert finding(known, "kept")["evidence"]["returnable"] == finding(live, "kept")["evidence"]["returnable"]


def test_front_ends_agree(program: Path, tmp_path: Path) -> None:
    with running(program, tmp_path / "run", (LOST, KEPT, 20)) as run:
        os.kill(run.pid, signal.SIGSTOP)
        alive = verdict("--pid", str(run.pid))
        for front_end in (gdb(["leaks verdict --json"], "-p", str(run.pid)), lldb(["leaks verdict --json"], "-p", str(run.pid))):
            (line,) = objects(front_end)
            same = json.loads(line)
            assert same["findings"] == alive["findings"]
            assert same["allocators"] == alive["allocators"]
            for sort in ("in-use", "kept", "cached", "metadata", "unjoined", "unknown"):  # any reader makes pages of files resident
                assert share(same, sort) == share(alive, sort)
        os.kill(run.pid, signal.SIGCONT)
        core = str(run.kernel_core())
    of_core = objects(findleaks("verdict", "--json", core))
    assert objects(gdb(["leaks verdict --json"], str(program), core)) == of_core
    assert objects(lldb(["leaks verdict --json"], str(program), "-c", core)) == of_core
    assert objects(findleaks("verdict", "--json", core, FINDLEAKS_PURE="1")) == of_core
    assert near(json.loads(of_core[0])["resident"], os.stat(core).st_blocks * 512, 0.01)  # the note that the kernel wrote about the process
    words = " ".join(findleaks("verdict", core).split())
    assert f"{LOST:,} blocks that nothing refers to" in words
    assert "20 threads ended and were never joined" in words
