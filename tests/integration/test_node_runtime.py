"""For Node, `runtime` reports the same counts as the process itself: C++ objects by class, ArrayBuffers, V8's heap and its external
memory."""

from __future__ import annotations

import json
from pathlib import Path

import debuggers
import nodes
import pytest
import truth

import cores

PROGRAM = truth.PROGRAMS / "node_holding.js"
VERSIONS = [pytest.param(v, marks=() if v == nodes.NEWEST else pytest.mark.matrix) for v in ("18.20.8", "20.20.0", "22.12.0", nodes.NEWEST)]
STORE = "ArrayBuffer (its memory)"


@pytest.mark.platform("x86-64", "Node: stacks, scopes, V8's heap", of="18 to 24")
@pytest.mark.parametrize("picture", ["live", "kernel"])
@pytest.mark.parametrize("version", VERSIONS)
def test_counts_equal_those_of_node(tmp_path: Path, version: str, picture: str) -> None:
    with cores.Running([nodes.get(version), *nodes.STEADY, str(PROGRAM)], tmp_path) as running:
        said = json.loads(running.output.splitlines()[0])
        where = ["--pid", str(running.pid)] if picture == "live" else [str(running.kernel_core())]
        found = debuggers.runtime_page("node", *where)
        (mapped,) = json.loads(debuggers.findleaks("map", "--json", "--limit", "1", *where))["managed"][:1]
        answers = json.loads(debuggers.findleaks("whatis", "--json", *(start for start, _ in mapped["ranges"]), *where))["answers"]
    # Other names are names of JavaScript objects. Such a name may be the name of the C++ class without its namespace.
    native = [row for row in found["types"] if "::" in row["name"] or row["name"] == STORE]
    types = {row["name"].split("::", 1)[-1].removeprefix("(anonymous namespace)::").removeprefix("crypto::"): row for row in native}
    assert {name: types[name]["objects"] for name in said["classes"]} == said["classes"]
    # Each session has a socket, and each server listens with one.
    assert types["TCPWrap"]["objects"] == said["listening"] + said["classes"]["http2::Http2Session"]
    counters, stores = found["counters"], types[STORE]
    assert counters["memory of ArrayBuffers"] == stores["reported_bytes"]
    assert 0 <= counters["memory of ArrayBuffers"] - said["arrayBuffers"] <= 4096  # the last session still sleeps; a line was written
    assert abs(counters["external"] - said["external"]) <= 64 << 10
    # A mapping may contain only a buffer of zeros. The memory of all buffers is in blocks.
    assert stores["native_bytes"] >= counters["memory of ArrayBuffers"] * 0.99
    (heap,) = (part for part in found["parts"] if part["name"] == "V8's heap")
    (isolate,) = (part for part in heap["parts"] if part["name"].startswith("isolate"))
    assert 0 <= isolate["bytes"] - said["heapTotal"] <= 256 << 10  # a line was written, which may need one more chunk
    assert (mapped["name"], mapped["mapped"]) == ("Node V8's heap", heap["bytes"])
    assert 0 < mapped["resident"] <= mapped["mapped"]
    # V8 may keep freed chunks at any place between the others.
    sizes = [int(end, 16) - int(start, 16) for start, end in mapped["ranges"]]
    in_spaces = sum(size for size, answer in zip(sizes, answers) if "; V8's heap, a chunk of " in answer["text"])
    freed = sum(
        size for size, answer in zip(sizes, answers) if answer["text"].endswith("; V8's heap, a chunk that V8 freed but did not unmap")
    )
    assert (in_spaces, freed, len(answers)) == (isolate["bytes"], heap["bytes"] - isolate["bytes"], len(sizes))
    # zlib's state for deflateInit2 with 15 bits of window and a memory level of 8: about 264 KiB according to zlib's documentation
    streams = types["ZlibStream"]
    assert 260 << 10 <= streams["native_bytes"] / streams["objects"] <= 280 << 10
    sessions, contexts = types["http2::Http2Session"], types["SecureContext"]
    assert sessions["native_blocks"] > 5 * sessions["objects"]
    assert contexts["native_blocks"] > 5 * contexts["objects"]


COLLECTS = """
const fs = require('fs');
const kept = [];
setInterval(() => {
  if (!fs.readFileSync('/proc/self/status', 'latin1').includes('TracerPid:\\t0\\n')) for (;;) kept.push(new Array(1000));
}, 100);
fs.writeSync(1, 'ready\\n');
"""
"""Node waits until the debugger has set its breakpoint, however long this takes."""


def test_stopped_in_the_middle_of_a_collection(tmp_path: Path) -> None:
    """A warning says that a collection is running, and the reported figures stay within bounds."""
    with cores.Running([nodes.get(nodes.NEWEST), "-e", COLLECTS], tmp_path) as running:
        commands = ["handle SIGSEGV nostop noprint pass", "break v8::internal::Heap::PerformGarbageCollection", "continue"]
        output = debuggers.gdb([*commands, "leaks runtime --json", "kill"], "-p", str(running.pid))
    (line,) = debuggers.objects(output)
    answer = json.loads(line)
    assert any("stopped during a garbage collection" in warning for warning in answer["warnings"])
    (found,) = answer["runtimes"]
    assert any(part["name"] == "V8's heap" for part in found["parts"])
