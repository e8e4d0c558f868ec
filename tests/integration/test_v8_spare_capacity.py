"""`verdict` reports arrays, Maps and Sets that keep much capacity without using it, with the figures that follow from the program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

import debuggers
import nodes
import pytest
from variants import mark_matrix_except

import cores

SCRIPT = """
const [kind, count] = process.argv.slice(1), make = {
  pushed: at => { const one = []; one.push(at); return one },
  exact: at => [at],
  numbers: at => { const one = []; one.push(at + 0.5); return one },
  maps: at => new Map([[at, at]]),
  deleted: at => {
    const one = new Map()
    for (let key = 0; key < 128; key++) one.set(key, at)
    for (let key = 0; key < 90; key++) one.delete(key)
    return one
  },
  sets: at => new Set([at]),
}[kind]
global.rows = new Array(+count)
for (let at = 0; at < +count; at++) rows[at] = make(at)
gc(); gc()
console.log("ready")
setInterval(() => rows.length, 1e6)
"""
KINDS = {
    # The first element that is pushed reserves room for 17; a table has four entries at least, and this one had 128.
    "pushed": (120_000, "arrays", 16 * 8),
    "numbers": (120_000, "arrays", 16 * 8),
    "exact": (120_000, "", 0),
    "maps": (120_000, "Maps and Sets", 3 * 3 * 8),
    "sets": (120_000, "Maps and Sets", 3 * 2 * 8),
    "deleted": (4_000, "Maps and Sets", 90 * 3 * 8),
}
"""For each kind, the number of objects, the noun of the finding ("": none), and the unused bytes of each object."""
VERSIONS = ("12.22.12", "16.20.2", "20.20.0", nodes.NEWEST)


def find_unused(kind: str, count: int, version: str, folder: Path) -> tuple[Optional[dict[str, Any]], str]:
    """Return the evidence about unused capacity, and the cause of the finding."""
    with cores.Running([nodes.get(version), *nodes.STEADY, "--expose-gc", "-e", SCRIPT, kind, str(count)], folder) as one:
        findings = json.loads(debuggers.findleaks("verdict", "--json", "--pid", str(one.pid)))["findings"]
    found = next(one for one in findings if one["finding"] in ("retained-objects", "large-v8-heap"))
    return found["evidence"].get("unused_capacity"), found["cause"]


@pytest.mark.parametrize("version", mark_matrix_except(VERSIONS, nodes.NEWEST))
@pytest.mark.parametrize("kind", mark_matrix_except(KINDS.keys(), "pushed", "deleted"))
def test_unused_capacity(kind: str, version: str, tmp_path: Path) -> None:
    count, noun, each = KINDS[kind]
    if version == "12.22.12" and noun == "Maps and Sets":
        noun = ""  # its tables are not measured
    found, cause = find_unused(kind, count, version, tmp_path)
    if not noun:
        assert found is None and "unused capacity" not in cause
        return
    assert found is not None
    assert (found["noun"], found["each"], found["is_estimate"]) == (noun, each, False)
    assert count <= found["alike"] <= count + 20
    # Node itself has some arrays and tables.
    assert count * each <= found["spare"] <= count * each + (1 << 20)
    assert f"{noun[0].upper()}{noun[1:]} keep " in cause and "global variable rows → Array[…]" in cause


@pytest.mark.matrix
def test_a_sample_is_an_estimate(tmp_path: Path) -> None:
    count, _, each = KINDS["pushed"]
    found, cause = find_unused("pushed", 3 * count, nodes.NEWEST, tmp_path)
    assert found is not None and found["is_estimate"]
    assert 0.99 * 3 * count * each <= found["spare"] <= 1.01 * 3 * count * each + (1 << 20)
    assert "Arrays keep about " in cause
