"""Stripped programs have Go arrays of which slices and strings include little, or mappings of syscall.Mmap to which only C code refers. The
first finding of `verdict` has the program's counts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from debuggers import findleaks
from go_programs import STRIPPED, build

from cores import Running

COUNT = 10_000
# For each kind: its number, the finding, and facts of the finding.
KINDS: dict[str, tuple[int, str, dict[str, int]]] = {
    "queue": (COUNT, "go-unused-elements", {"arrays": 1, "retained_objects": COUNT - 10, "included_elements": 10}),
    "queues": (COUNT, "go-unused-elements", {"arrays": 50, "retained_objects": 50 * 198, "included_elements": 2}),
    "cleared": (COUNT, "go-unused-elements", {"arrays": 1, "retained_objects": COUNT, "included_elements": 0}),
    "headers": (5_000, "go-arrays", {"arrays": 5_000, "used_bytes": 200_000}),
    "keys": (5_000, "go-arrays", {"arrays": 5_000, "used_bytes": 100_000}),
    "tail": (50 << 20, "go-arrays", {"arrays": 1, "array_bytes": 50 << 20}),
    "full": (COUNT, "", {}),
    "steady": (COUNT, "", {}),
}
DEFAULT = ("queue", "tail")
EVERY_VERSION = ("queue", "cleared", "headers", "keys", "tail", "full", "steady")  # since 1.22


def findings(arguments: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    with Running(arguments, folder / "run") as run:
        core = str(run.gcore())
    return list(json.loads(findleaks("verdict", "--json", core))["findings"])


@pytest.mark.parametrize(
    ("kind", "version"),
    [
        pytest.param(kind, version, marks=() if kind in DEFAULT and not version else pytest.mark.matrix)
        for kind in KINDS
        for version in ("", "1.22.12")
        if not version or kind in EVERY_VERSION
    ],
)
def test_arrays_of_which_slices_include_little(kind: str, version: str, tmp_path: Path) -> None:
    count, name, facts = KINDS[kind]
    found = findings([str(build(tmp_path, version, STRIPPED, name="go_slices")), kind, str(count)], tmp_path)
    if not name:
        assert not {one["finding"] for one in found} & {"go-unused-elements", "go-arrays"}, found
        return
    assert found[0]["finding"] == name, found
    evidence = found[0]["evidence"]
    assert {key: evidence[key] for key in facts} == facts, found[0]
    if name == "go-unused-elements":
        assert evidence["types"][0]["type"] == "main.Message"
        assert evidence["types"][0]["objects"] == facts["retained_objects"]
    if kind == "tail":
        assert 100 <= evidence["used_bytes"] <= 100 + 8192  # the size of an element is not known


def test_mappings_to_which_only_c_refers(tmp_path: Path) -> None:
    """Blocks in use and variables of C count as references; freed blocks do not."""
    program = build(tmp_path, "", STRIPPED, name="go_mapped", cgo=True)
    found = {one["finding"]: one for one in findings([str(program), "20"], tmp_path)}
    assert found["go-mappings"]["evidence"]["mappings"] == 40, found
