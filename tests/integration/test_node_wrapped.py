"""Blocks that an addon attaches to JavaScript objects (napi_wrap) have the name of the objects' class, also if the objects were collected
and nothing freed the blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import building
import debuggers
import nodes
import pytest
from variants import mark_matrix_except

import cores

COUNT, BYTES, KEPT_OF = 4000, 12_000, 10
SCRIPT = """
const [path, count, bytes, isFreed, keptOf] = process.argv.slice(1), addon = require(path)
class Session { constructor(at) { this.at = at; addon.attach(this, +bytes, +isFreed) } }
const kept = new Map()
for (let at = 0; at < +count; at++) { const one = new Session(at); if (at % +keptOf === 0) kept.set(at, one) }
setTimeout(() => { gc(); setTimeout(() => { gc(); console.log("ready") }, 50) }, 50)
setInterval(() => kept.size, 1e6)
"""
VERSIONS = ("12.22.12", "14.21.3", "16.20.2", "18.20.8", "20.20.0", "22.12.0", nodes.NEWEST)


@pytest.fixture(scope="module")
def addon(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return building.compile_program(tmp_path_factory.mktemp("addon"), "node_wrapped.c", "-shared", "-fPIC", "-O1", name="wrapped.node")


def ask(
    addon: Path, folder: Path, version: str, is_freed: int, kept_of: int, size: int = BYTES, count: int = COUNT
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the findings of `verdict`, and the types of `runtime` by name. One of `kept_of` objects is live; a text has `size` bytes."""
    arguments = [str(addon), *map(str, (count, size, is_freed, kept_of))]
    with cores.Running([nodes.get(version), *nodes.STEADY, "--expose-gc", "-e", SCRIPT, *arguments], folder) as one:
        # In cores, it is unknown that most of V8's code range was never touched. It hides smaller findings.
        findings = json.loads(debuggers.findleaks("verdict", "--json", "--pid", str(one.pid)))["findings"]
        return findings, {row["name"]: row for row in debuggers.runtime_page("node", "--pid", str(one.pid))["types"]}


@pytest.mark.parametrize("version", mark_matrix_except(VERSIONS, nodes.NEWEST))
@pytest.mark.parametrize("is_freed", mark_matrix_except([0, 1], 0))
def test_references_are_divided_by_class(addon: Path, version: str, is_freed: int, tmp_path: Path) -> None:
    findings, types = ask(addon, tmp_path, version, is_freed, 1)
    name = f"Node-API reference to Session ({addon})"
    assert types[name]["objects"] == COUNT
    # Stale words also refer to some of the blocks.
    assert types[name]["native_blocks"] > 0.95 * 2 * COUNT and types[name]["native_bytes"] > 0.95 * COUNT * BYTES
    (found,) = (one for one in findings if one["finding"] == "held-by-managed-objects")
    assert f"{COUNT:,} objects of {name} retain" in found["cause"] and "Map" in found["cause"] and "Session" in found["cause"]
    assert found["try"] == ["remove each object from the variable or object that refers to it when it is no longer needed"]


@pytest.mark.parametrize("version", mark_matrix_except(VERSIONS, nodes.NEWEST))
def test_leaked_blocks_are_like_those_of_live_objects(addon: Path, version: str, tmp_path: Path) -> None:
    findings, _ = ask(addon, tmp_path, version, 0, KEPT_OF)
    (found,) = (one for one in findings if one["finding"] == "lost")
    leaked = COUNT - COUNT // KEPT_OF
    assert 0.95 * leaked * BYTES < found["bytes"] < 1.05 * leaked * (BYTES + 40)
    owner = found["evidence"]["living_owner"]
    assert (owner["type"], owner["call"]) == ("Session", "napi_wrap")
    # References to collected objects that Node-API has not deleted yet may have the same data.
    assert 0.9 * COUNT // KEPT_OF <= owner["blocks"] <= COUNT // KEPT_OF + 40
    assert "are attached to live objects by napi_wrap." in found["cause"] and "their objects are of Session" in found["cause"]
    assert "finalize_cb" in found["try"][0]


def test_blocks_without_pointers_are_not_compared(addon: Path, tmp_path: Path) -> None:
    """Any leaked blocks may have the same size."""
    findings, _ = ask(addon, tmp_path, nodes.NEWEST, 0, KEPT_OF, size=0, count=100_000)
    (found,) = (one for one in findings if one["finding"] == "lost")
    assert "napi_wrap" not in found["cause"]


def test_leaked_blocks_without_live_objects(addon: Path, tmp_path: Path) -> None:
    """Only the addon is known, because Node-API deletes the references to collected objects."""
    findings, _ = ask(addon, tmp_path, nodes.NEWEST, 0, COUNT)
    (found,) = (one for one in findings if one["finding"] == "lost")
    assert "living_owner" not in found["evidence"]
    assert f"the process has loaded only {addon}. Inferred from this: this library may have allocated the leaked blocks." in found["cause"]


def test_no_leaks_if_the_blocks_are_freed(addon: Path, tmp_path: Path) -> None:
    findings, _ = ask(addon, tmp_path, nodes.NEWEST, 1, KEPT_OF)
    assert not [one for one in findings if one["finding"] == "lost"]
