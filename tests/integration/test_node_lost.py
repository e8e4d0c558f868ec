"""Blocks that an addon of Node.js leaks: `verdict` names the addon if the blocks refer to it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import building
import debuggers
import nodes
import pytest
from variants import mark_matrix_except

import cores

COUNT = 8000
SCRIPT = """
const addon = require(process.argv[1])
for (let at = 0; at < {count}; at++) addon.{kind}()
console.log("ready")
setInterval(() => {{}}, 1e6)
"""


@pytest.mark.parametrize("kind", mark_matrix_except(["typed", "called", "plain"], "called"))
def test_the_addon_is_named_if_the_blocks_refer_to_it(kind: str, tmp_path: Path) -> None:
    addon = building.compile_program(tmp_path, "node_lost.c", "-shared", "-fPIC", "-O1", name="node_lost.node")
    script = SCRIPT.format(count=COUNT, kind=kind)
    with cores.Running([nodes.get(nodes.NEWEST), *nodes.STEADY, "-e", script, str(addon)], tmp_path) as one:
        answer = json.loads(debuggers.findleaks("verdict", "--json", "--pid", str(one.pid)))
    found = answer["findings"][0]
    assert COUNT * 0.9 * 240 <= found["bytes"] <= COUNT * 1.1 * 256
    symbol = {"typed": "session_operations", "called": "release_session"}.get(kind)
    words = f"sampled blocks of this size refer to {symbol} in node_lost.node at offset 0."
    assert (words in found["cause"]) is (symbol is not None)
    assert found["evidence"].get("module", {}).get("symbol") == symbol
    assert any(command.startswith("track --size ") for command in found["next"])


UNSETTLED = """
const addon = require(process.argv[1])
async function handle () {{ return Promise.race([addon.request(), addon.answer()]) }}
(async () => {{
  for (let at = 0; at < {count}; at++) await handle()
  gc()
  console.log("ready")
  setInterval(() => {{}}, 1e6)
}})()
"""


@pytest.mark.parametrize("version", mark_matrix_except(["12.22.12", "18.20.8", nodes.NEWEST], nodes.NEWEST))
def test_promises_that_are_never_settled(version: str, tmp_path: Path) -> None:
    """Node-API allocates a deferred for each promise of an addon, and frees it when the promise is settled."""
    addon = building.compile_program(tmp_path, "node_deferreds.c", "-shared", "-fPIC", "-O1", name="node_deferreds.node")
    with cores.Running(
        [nodes.get(version), "--expose-gc", *nodes.STEADY, "-e", UNSETTLED.format(count=COUNT), str(addon)], tmp_path
    ) as one:
        found, answer = (
            json.loads(debuggers.findleaks(*words, "--json", "--pid", str(one.pid))) for words in (("find", "--limit", "0"), ("verdict",))
        )
    blocks = dict.fromkeys(("definite", "possible"), 0)
    for group in found["groups"]:
        if group["type"] == f"Node-API deferred ({addon})":
            assert group["size"] == 24
            blocks[group["kind"]] += group["blocks"]
    # Stale words refer to some of the leaked blocks.
    assert 0.85 * COUNT <= blocks["definite"] <= sum(blocks.values()) <= COUNT - 100
    handles = next(one for one in answer["findings"] if one["finding"] == "retained-objects")
    # A block may begin with the stale address of a handle that was freed and is in use again: then neither block is a deferred for certain.
    count = re.search(rf"([\d,]+) Node-API deferreds of {re.escape(str(addon))} retain", handles["text"])
    assert count is not None and COUNT * 0.95 <= int(count[1].replace(",", "")) <= COUNT
    assert any("napi_resolve_deferred" in remedy for remedy in handles["try"])


@pytest.mark.matrix
def test_deferreds_are_not_named_if_the_addon_may_make_other_handles(tmp_path: Path) -> None:
    addon = building.compile_program(tmp_path, "node_deferreds.c", "-shared", "-fPIC", "-O1", "-DOTHER", name="node_deferreds.node")
    with cores.Running(
        [nodes.get(nodes.NEWEST), "--expose-gc", *nodes.STEADY, "-e", UNSETTLED.format(count=2000), str(addon)], tmp_path
    ) as one:
        text = debuggers.findleaks("find", "--pid", str(one.pid))
    assert "24 B" in text and "deferred" not in text.replace(str(tmp_path), "")


ASYNC = """
const addon = require(process.argv[1])
let at = 0
function step () {{
  for (let of = 0; of < 100 && at < {count}; of++, at++) addon.{kind}()
  if (at < {count}) return setTimeout(step, 1)
  if ("{kind}" === "task" && addon.ended() < {count}) return setTimeout(step, 1)
  setTimeout(() => {{ gc(); console.log("ready"); setInterval(() => {{}}, 1e6) }}, 100)
}}
step()
"""
FORGOTTEN = 3000


# Not found: tasks in Node 22.12, to which a structure of this version refers. Without a name: contexts in Node 12.
TASKS, CONTEXTS = ("12.22.12", "14.21.3", "18.20.8", nodes.NEWEST), ("14.21.3", "18.20.8", "22.12.0", nodes.NEWEST)
FOUND = {f"{version}-{kind}": (version, kind) for kind, versions in (("task", TASKS), ("context", CONTEXTS)) for version in versions}


@pytest.mark.parametrize("variant", mark_matrix_except(FOUND, f"{nodes.NEWEST}-task"))
def test_asynchronous_work_that_is_not_deleted(variant: tuple[str, str], tmp_path: Path) -> None:
    """After a task has ended, libuv's links to other tasks are stale. They must not hide leaked tasks behind each other. Tasks
    that wait are not leaked: libuv refers to them. Before Node 14.16, the addon is known only because it is the only one."""
    version, kind = variant
    addon = building.compile_program(tmp_path, "node_async.c", "-shared", "-fPIC", "-O1", name="node_async.node")
    script = ASYNC.format(count=FORGOTTEN, kind=kind) + ("addon.wait()\n" * 100 if kind == "context" else "")
    with cores.Running([nodes.get(version), "--expose-gc", *nodes.STEADY, "-e", script, str(addon)], tmp_path) as one:
        found, answer = (
            json.loads(debuggers.findleaks(*words, "--json", "--pid", str(one.pid))) for words in (("find", "--limit", "0"), ("verdict",))
        )
    title = {"task": "Node-API asynchronous task", "context": "Node-API asynchronous context"}
    definite = [group for group in found["groups"] if group["kind"] == "definite" and group["type"]]
    counts = {name: sum(group["blocks"] for group in definite if group["type"] == f"{text} ({addon})") for name, text in title.items()}
    assert 0.9 * FORGOTTEN <= counts[kind] <= FORGOTTEN
    assert not sum(counts.values()) - counts[kind]
    first = answer["findings"][0]
    assert first["finding"] == "lost" and f" × {title[kind]} ({addon})" in first["cause"]
    assert any(f"(napi_{'delete_async_work' if kind == 'task' else 'async_destroy'})" in one for one in first["try"])
