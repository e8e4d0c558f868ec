"""What Node-API allocates for addons belongs to the addon that made it, even if stale words refer to another addon. The memory of cleanup
hooks belongs to the hooks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import building
import debuggers
import nodes
import pytest

import cores

VERSIONS = ("12.22.12", "14.21.3", "16.20.2", "18.20.8", "20.20.0", "22.12.0", nodes.NEWEST)
UNKNOWN = {
    *(("buffer", version) for version in VERSIONS[:2]),  # the memory has no function that frees it
    *(("reference", version) for version in VERSIONS[4:]),  # a reference without a finalizer does not refer to its addon
}
COUNT, FUNCTIONS = 500, 10
KINDS = {
    "task": "Node-API asynchronous task ({})",
    "function": "Node-API thread-safe function ({})",
    "reference": "Node-API reference ({})",
    "buffer": "ArrayBuffer (memory of {})",
}
SCRIPT = """
const [own, other] = process.argv.slice(1).map(require), held = []
for (const kind of ["task", "function", "reference", "buffer"]) {
  for (let at = 0; at < COUNT; at++) {
    if (at % 50 === 0) other.stale()
    held.push(own[kind]())
  }
}
console.log("ready")
setInterval(() => held.length, 1e6)
"""


@pytest.mark.parametrize("version", [nodes.NEWEST, *(pytest.param(one, marks=pytest.mark.matrix) for one in VERSIONS[:-1])])
def test_stale_words_refer_to_another_addon(version: str, tmp_path: Path) -> None:
    own = building.compile_program(tmp_path, "node_stale.c", "-shared", "-fPIC", "-O1", name="own.node")
    other = Path(shutil.copy(own, tmp_path / "other.node"))
    script = SCRIPT.replace("COUNT", str(COUNT))
    with cores.Running([nodes.get(version), *nodes.STEADY, "-e", script, str(own), str(other)], tmp_path) as one:
        found = debuggers.runtime_page("node", "--pid", str(one.pid))
    counts = {row["name"]: row["objects"] for row in found["types"] if row["name"].endswith(".node)")}
    for kind, name in KINDS.items():
        if (kind, version) not in UNKNOWN:
            # The finalizers of buffers, and the addon's own functions, are references, too.
            more = COUNT + FUNCTIONS if kind == "reference" else 0
            assert COUNT <= counts.get(name.format(own), 0) <= COUNT + more, counts
        assert counts.get(name.format(other), 0) <= (FUNCTIONS if kind == "reference" else 0), counts


HOOKS = """
const addon = require(process.argv[1])
for (let at = 0; at < COUNT; at++) addon.hook()
console.log("ready")
setInterval(() => {}, 1e6)
"""
HOOK_COUNT = 12_000


@pytest.mark.parametrize("version", [nodes.NEWEST, *(pytest.param(one, marks=pytest.mark.matrix) for one in VERSIONS[:-1])])
def test_cleanup_hooks_own_their_memory(version: str, tmp_path: Path) -> None:
    addon = building.compile_program(tmp_path, "node_stale.c", "-shared", "-fPIC", "-O1", name="own.node")
    script = HOOKS.replace("COUNT", str(HOOK_COUNT))
    with cores.Running([nodes.get(version), *nodes.STEADY, "-e", script, str(addon)], tmp_path) as one:
        answer = json.loads(debuggers.findleaks("verdict", "--json", "--pid", str(one.pid)))
        found = debuggers.runtime_page("node", "--pid", str(one.pid))
    (hooks,) = (row for row in found["types"] if row["name"] == f"Node-API cleanup hook ({addon})")
    assert hooks["objects"] == HOOK_COUNT
    (finding,) = (one for one in answer["findings"] if "cleanup hook" in str(one["cause"]))
    assert f"{HOOK_COUNT:,} objects of Node-API cleanup hook ({addon}) retain 11 MiB" in finding["cause"]
    assert any("(napi_remove_env_cleanup_hook)" in one for one in finding["try"])
