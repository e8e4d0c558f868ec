"""`roots` on real programs: variables and their fields retain exactly the bytes that the programs count."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from pathlib import Path

import doors
import jvms
import pytest
import real
import truth
from counts import until
from debuggers import gdb, lldb, objects, run_cli
from kernel_cores import run_until_crash
from rooted import BYTES, WHAT, Row, check_c, check_maps, parse_output, run_roots

import cores

EVENTS = 2000


def build(folder: Path, source: str, *flags: str) -> Path:
    output = folder / source.split(".")[0]
    compiler = "g++" if source.endswith("pp") else "gcc"
    subprocess.run(
        [compiler, "-Wall", "-Wextra", "-Werror", *flags, "-o", str(output), str(truth.PROGRAMS / source), "-pthread"], check=True
    )
    return output


@pytest.mark.parametrize(
    "flags",
    [("-g", "-O1"), pytest.param(("-O2",), marks=pytest.mark.matrix), ("-O2", "-s")],
    ids=["debug", "plain", "stripped"],
)
def test_maps_that_are_not_cleaned(flags: tuple[str, ...], tmp_path: Path) -> None:
    program = build(tmp_path, "roots_maps.cpp", *flags)
    with cores.Running([str(program), str(EVENTS)], tmp_path / "run") as running:
        expected = parse_output(running.output)
        check_maps(expected, "-g" in flags, "--pid", str(running.pid))
        check_maps(expected, "-g" in flags, str(running.gcore()))
        core = running.kernel_core()
    check_maps(expected, "-g" in flags, str(core))
    named = run_roots("--limit", "0", str(core))["roots"]
    names = {row["name"] for row in named}
    if "-s" in flags:
        assert any(re.fullmatch(r"roots_maps, data\+0x[0-9a-f]+", name) for name in names)
        assert "g_agent (roots_maps, data)" not in names
    else:
        assert {"g_agent (roots_maps, data)", "local_sites (roots_maps, data)"} <= names


_DERIVED = """#include <cstdlib>
#include <map>
#include <memory>
struct Animal { virtual ~Animal() {} long own[5]; };
struct Cat : Animal { long lives = 9; };
struct Dog : Animal { long bones = 3; };
std::map<int, std::unique_ptr<Animal>> cats, animals;
int main() {
    for (int i = 0; i < 4000; i++) {
        cats[i].reset(new Cat);
        if (i % 8) animals[i].reset(new Cat);
        else animals[i].reset(new Dog);
    }
    abort();
}
"""


def test_objects_of_several_classes_in_a_map(tmp_path: Path) -> None:
    source, program = tmp_path / "program.cpp", tmp_path / "program"
    source.write_text(_DERIVED)
    subprocess.run(["g++", "-O1", "-g", str(source), "-o", str(program)], check=True)
    core, _ = run_until_crash([str(program)], tmp_path / "run")
    text = run_cli("roots", str(core)).stdout
    assert re.search(r"cats .*4,000 Cat of 56 B", text) and re.search(r"animals.*4,000 blocks of 56 B", text), text


@pytest.mark.matrix
def test_libcxx_has_other_layouts(tmp_path: Path) -> None:
    """libc++ has other nodes and heads than libstdc++."""
    output = tmp_path / "roots_maps"
    command = [
        "clang++-19",
        "-stdlib=libc++",
        "-O1",
        "-o",
        str(output),
        str(truth.PROGRAMS / "roots_maps.cpp"),
        "-Wl,-rpath,/usr/lib/llvm-19/lib",
    ]
    subprocess.run(command, check=True)
    with cores.Running([str(output), str(EVENTS)], tmp_path / "run") as running:
        expected = parse_output(running.output)
        core = running.kernel_core()
    (agent,) = run_roots("g_agent", "--limit", "0", str(core))["roots"]
    fields = {row["offset"]: row for row in agent["children"]}
    for name in ("names", "sites", "words", "counts", "events", "recent", "order", "samples"):
        offset, length, blocks, size = expected[name]
        container = fields[offset]["container"]
        assert (name, fields[offset]["retained_blocks"], fields[offset]["retained_bytes"]) == (name, blocks, size)
        assert (container["what"], container["length"]) == (WHAT[name], length * (8 if name in BYTES else 1))


@pytest.mark.platform("x86-64", "variables, containers and their owners")
def test_what_c_programs_keep(tmp_path: Path) -> None:
    program = build(tmp_path, "roots_c.c", "-O1", "-g")
    with cores.Running([str(program), "1000"], tmp_path / "run") as running:
        expected = parse_output(running.output)
        live = run_roots("--limit", "0", "--pid", str(running.pid))
        core = running.kernel_core()
    for found in (live, run_roots("--limit", "0", str(core))):
        check_c(expected, found)


def test_front_ends_and_selected_roots(tmp_path: Path) -> None:
    program = build(tmp_path, "roots_maps.cpp", "-g", "-O1")
    with cores.Running([str(program), "300"], tmp_path / "run") as running:
        core = running.kernel_core()
    (agent,) = run_roots("g_agent", str(core))["roots"]
    block = agent["address"]
    assert run_roots("g_*", str(core))["roots"] == [agent]
    assert run_roots(agent["name"], str(core))["roots"] == [agent]
    words = [["roots", "--json"], ["roots", "g_agent", "--json", "--limit", "0"], ["roots", "local_sites", "--depth", "1", "--json"]]
    reported = objects("".join(f"{json.dumps(run_roots(*w[1:], str(core)))}\n" for w in words))
    typed = ["leaks " + " ".join(w) for w in words]
    in_gdb = gdb([*typed, "print/x (long)g_agent", "leaks roots g_agent --limit 3"], str(program), str(core))
    assert objects(in_gdb) == reported
    assert objects(lldb(typed, str(program), "-c", str(core))) == reported
    pointer, text = in_gdb.rpartition("$1 = ")[2].split("\n", 1)
    (profiler,) = run_roots(pointer, "--limit", "0", str(core))["roots"]
    assert profiler["holder"] == "g_agent (roots_maps, data)"
    assert (profiler["retained_blocks"], profiler["retained_bytes"]) == (agent["retained_blocks"], agent["retained_bytes"])
    assert run_roots(block, str(core))["roots"] == [agent]  # the address of the variable itself
    assert "g_agent (roots_maps, data)" in text
    assert re.search(r"└ Profiler\.names: std::map, 300 nodes of [\d–]+ B and 1\d\d strings of ", " ".join(text.split()))
    assert f"next: leaks whatis {block}" in text  # there is no level below those shown
    for word in ("no_owner", "0x10"):
        done = run_cli("roots", word, str(core))
        assert done.returncode != 0
        assert len(done.stderr.splitlines()) == 1


def test_leak_heads(tmp_path: Path) -> None:
    """The blocks that are reachable from the leak heads add up to all lost blocks of `find`. The
    address of a leak head shows the same blocks as its row; the address of an indirect block names
    the block that retains it."""
    program = doors.build(tmp_path)
    with cores.Running([str(program), "50"], tmp_path / "run") as running:
        leader = doors.parse_blocks(running.output)["leader"]
        core = running.kernel_core()
    found = run_roots("--lost", "--limit", "0", str(core))
    find = json.loads(run_cli("find", "--json", str(core)).stdout)
    kinds = find["totals"]
    lost = [kinds[kind] for kind in ("definite", "indirect", "possible")]
    assert found["total"] == {key: sum(kind[key] for kind in lost) for key in ("blocks", "bytes")}
    assert sum(row["kind"] == "definite" for row in found["roots"]) >= 1
    assert any(row["address"] == leader and row["retained_blocks"] == 3 for row in found["roots"])
    leaders = sum(row["retained_blocks"] for row in found["roots"])
    assert leaders + found["more"]["retained_blocks"] == found["total"]["blocks"]
    one = run_roots(leader, str(core))
    (row,) = one["roots"]
    assert (row["kind"], row["retained_blocks"], row["holder"], one["total"]) == ("definite", 3, None, found["total"])
    pointed = next(row for row in objects(run_cli("blocks", "--kind", "indirect", "--json", str(core)).stdout))
    (below,) = run_roots(json.loads(pointed)["address"], str(core))["roots"]
    assert below["kind"] == "indirect"
    assert below["holder"]
    assert f"definite: {row['name']}" in run_cli("roots", leader, str(core)).stdout


def test_a_profiler_in_a_real_jvm(tmp_path: Path) -> None:
    """An agent whose maps are never cleaned (docs/stories.md). The number of nodes is exact, whatever stale pointers the JVM has."""
    home = Path(shutil.which("javac") or "").resolve().parents[1]
    library = tmp_path / "libagent.so"
    include = [f"-I{home}/include", f"-I{home}/include/linux"]
    source = str(truth.PROGRAMS / "roots_agent.cpp")
    command = ["g++", "-O1", "-shared", "-fPIC", "-Wl,-Bsymbolic-functions", *include, source, "-o", str(library)]
    subprocess.run(command, check=True)
    jvms.compile_java(truth.PROGRAMS / "Threads.java", tmp_path)
    options = ["-Xmx32m", "-XX:CompressedClassSpaceSize=16m", "-XX:ReservedCodeCacheSize=16m", f"-agentpath:{library}"]
    words = ["java", *options, "-cp", str(tmp_path), "Threads", str(library), "3000"]
    with cores.Running(words, tmp_path / "run") as running:
        expected = parse_output(running.output)
        live = run_roots("g_agent", "--limit", "0", "--pid", str(running.pid))
        core = running.kernel_core()
    for found in (live, run_roots("g_agent", "--limit", "0", str(core))):
        (agent,) = found["roots"]
        assert agent["name"] == "g_agent (libagent.so, data)"
        fields = {row["offset"]: row for row in agent["children"]}
        offset, length, blocks, size = expected["spans"]
        spans = fields[offset]
        assert (spans["retained_blocks"], spans["retained_bytes"]) == (blocks, size)
        made = spans["container"]
        assert (made["length"], made["nodes"], made["recorded_length"]) == (length, length, length)
        offset, length, blocks, size = expected["names"]
        names = fields[offset]
        assert (names["name"], names["container"]["length"], names["container"]["nodes"]) == (f"Profiler+{offset:#x}", length, length)
        # If a stale pointer refers to a name, the map does not retain this name
        assert blocks * 9 // 10 <= names["retained_blocks"] <= blocks * 11 // 10
        assert names["container"]["others"][0]["strings"]


def test_redis_keys_are_counted(tmp_path: Path) -> None:
    # While Redis enlarges a table, at each power of two, its keys are in two tables.
    keys = 8000
    with real.Idle(real.PROGRAMS["redis"], tmp_path / "run") as idle:
        with socket.create_connection(("127.0.0.1", idle.port), timeout=180) as wire:
            wire.sendall(b"".join(b"SET counted:%d value-%d\r\n" % (i, i) for i in range(keys)) + b"DBSIZE\r\n")
            answer = b""
            while b":" not in answer or not answer.endswith(b"\r\n"):
                answer += wire.recv(65536)
        size = int(answer.rsplit(b":", 1)[1])
        until(lambda: cores.all_sleep(idle.pid), "redis to wait for commands")
        core = idle.kernel_core()
    assert size >= keys
    found = run_roots("--limit", "5", "--depth", "6", str(core))

    def tables(row: Row) -> list[Row]:
        mine = [row] if row.get("container") and row["container"]["what"] == "hash table" else []
        return mine + [table for child in row["children"] for table in tables(child)]

    rows = [*found["roots"], *found["shared"]["children"]]
    lengths = [table["container"]["length"] for row in rows for table in tables(row)]
    assert size in lengths
