"""Blocks that an addon of Node.js leaks: `verdict` names the addon if the blocks refer to it."""

from __future__ import annotations

import json
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
    with cores.Running([nodes.get("22.12.0"), "-e", script, str(addon)], tmp_path) as one:
        answer = json.loads(debuggers.findleaks("verdict", "--json", "--pid", str(one.pid)))
    found = answer["findings"][0]
    assert COUNT * 0.9 * 240 <= found["bytes"] <= COUNT * 1.1 * 256
    symbol = {"typed": "session_operations", "called": "release_session"}.get(kind)
    words = f"sampled blocks of this size refer to {symbol} in node_lost.node at offset 0."
    assert (words in found["cause"]) is (symbol is not None)
    assert found["evidence"].get("module", {}).get("symbol") == symbol
    assert any(command.startswith("track --size ") for command in found["next"])
