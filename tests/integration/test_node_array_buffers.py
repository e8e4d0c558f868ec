"""ArrayBuffers of Node, in use, garbage and with stale contents: findleaks reports the counts that the process prints."""

from __future__ import annotations

import json
from pathlib import Path

import debuggers
import nodes
import pytest
import truth
from counting import suspend
from variants import mark_matrix_except

import cores

PROGRAM = truth.PROGRAMS / "node_array_buffers.js"
STORE = "ArrayBuffer (its memory)"
SMALL = 100_000
"""The maximum number of bytes in ArrayBuffers of Node itself."""
FEW = 16
"""The maximum number of garbage ArrayBuffers of Node itself."""


@pytest.mark.parametrize("version", mark_matrix_except(("18.20.8", "20.20.0", "22.12.0", nodes.NEWEST), nodes.NEWEST))
def test_garbage_and_stale_contents(tmp_path: Path, version: str) -> None:
    with cores.Running([nodes.get(version), *nodes.STEADY, str(PROGRAM)], tmp_path) as running:
        printed = json.loads(running.output.splitlines()[0])
        where = ["--pid", str(running.pid)]
        suspend(running.pid)  # threads of V8 free memory at any time
        stores = _stores(where)
        found = json.loads(debuggers.findleaks("verdict", "--json", *where))
        listed = debuggers.findleaks("blocks", "--json", "--limit", "0", "--size", "3000-50200", *where)
        blocks = [json.loads(line) for line in listed.splitlines()]
        messages = [int(row["address"], 16) for row in blocks if row["size"] < 4200]
        memory = [int(row["address"], 16) for row in blocks if row["size"] >= printed["size"]]
        # The memory of a buffer may contain old contents of its block, such as addresses of other blocks.
        with open(f"/proc/{running.pid}/mem", "r+b", 0) as file:
            for buffer, message in zip(memory, messages):
                file.seek(buffer)
                file.write(message.to_bytes(8, "little"))
        after = _stores(where)
    assert len(messages) >= 1000 and len(memory) >= 200
    assert 0 <= stores["reported_bytes"] - printed["arrayBuffers"] <= 4096  # one for Atomics.wait, and one for the line that was written
    garbage = printed["arrayBuffers"] - printed["kept"]
    assert garbage > 10 << 20
    assert garbage - SMALL <= stores["garbage_native_bytes"] <= garbage + 0.01 * garbage
    assert -SMALL // printed["size"] <= stores["garbage_objects"] - garbage // printed["size"] <= FEW
    assert printed["arrayBuffers"] <= stores["native_bytes"] <= 1.01 * printed["arrayBuffers"] + SMALL
    assert after == stores
    (finding,) = (one for one in found["findings"] if one["finding"] == "held-by-managed-objects")
    assert finding["text"].startswith("Garbage, not collected yet: objects of Node retain ")
    assert f"{stores['garbage_objects']:,} of these are garbage that was not collected yet" in finding["cause"]
    assert "reached by" not in finding["cause"]


WEBASSEMBLY = """
class Renderer {
  constructor() {
    this.memories = []
    this.frames = []
  }
}
globalThis.renderer = new Renderer()
function fill(renderer) {
  for (let n = 0; n < 12; n++) {
    const memory = new WebAssembly.Memory({ initial: 16, maximum: 64 })
    new Uint8Array(memory.buffer).fill(7)
    renderer.memories.push(memory)
  }
  for (let n = 0; n < 300; n++) renderer.frames.push(new SharedArrayBuffer(50000))
}
fill(globalThis.renderer)
require('fs').writeSync(1, 'ready\\n')
Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)
"""
"""V8 maps 1 MiB for each memory. Only the global variable refers to the memories and to the frames."""


@pytest.mark.parametrize("version", mark_matrix_except(("18.20.8", "20.20.0", "22.12.0", nodes.NEWEST), nodes.NEWEST))
def test_memory_of_webassembly(tmp_path: Path, version: str) -> None:
    script = tmp_path / "memories.js"
    script.write_text(WEBASSEMBLY)
    with cores.Running([nodes.get(version), *nodes.STEADY, str(script)], tmp_path) as running:
        suspend(running.pid)
        found = json.loads(debuggers.findleaks("verdict", "--json", "--pid", str(running.pid)))
    (share,) = (one for one in found["shares"] if one["of"] == "Node memory of ArrayBuffers")
    assert 12 << 20 <= share["bytes"] <= (12 << 20) + SMALL
    (finding,) = (one for one in found["findings"] if one["finding"] == "mapped-array-buffers")
    assert finding["cause"].endswith("global variable renderer → Renderer.memories → Array[…] → Memory → ArrayBuffer.")
    (finding,) = (one for one in found["findings"] if one["finding"] == "held-by-managed-objects")
    assert finding["cause"].endswith("global variable renderer → Renderer.frames → Array[…] → SharedArrayBuffer.")
    assert not any("findleaks does not read" in one["text"] for one in found["findings"])


def _stores(where: list[str]) -> dict[str, int]:
    page = debuggers.runtime_page("node", *where)
    (row,) = (row for row in page["types"] if row["name"] == STORE)
    return {
        name: row.get(name, row["own"].get(name)) for name in ("native_bytes", "reported_bytes", "garbage_objects", "garbage_native_bytes")
    }
