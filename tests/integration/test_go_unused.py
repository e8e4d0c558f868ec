"""Memory of stripped Go programs that no live object uses, and goroutines whose channels explain why they wait: the first finding of
`verdict` is the cause, and findleaks reports the types and numbers of the program."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from debuggers import findleaks, runtime_page
from go_programs import STRIPPED, build

from cores import Running

# For each kind: the number, the finding, a pattern of its text, and numbers of objects by type.
KINDS: dict[str, tuple[int, str, str, dict[str, int]]] = {
    "fragments": (
        200_000,
        "go-free-slots",
        r"free slots between.* Slots of 96 B have the most free memory: 2,0\d\d of [\d,]+ slots contain objects\. These are main\.Record\b",
        {"main.Record": 2_000},
    ),
    "uncollected": (200_000, "go-garbage", r"in 2\d\d,\d\d\d objects are garbage that .* has not freed yet\. Live objects take ", {}),
    "semaphore": (
        1_000,
        "goroutines",
        r"996 goroutines wait in main\.acquire .*: chan send\. The buffer of the channel is full\. .* may be a semaphore\.",
        {},
    ),
    "polls": (
        1_000,
        "goroutines",
        r"1,000 goroutines wait in main\.\(\*Session\)\.poll .*: select\. One of the channels of the select is that of a ticker or timer\.",
        {"main.Session": 1_000},
    ),
    "times": (500, "goroutines", r"500 goroutines are blocked for good in main\.await\.func1 .*: select\. They can never continue", {}),
    "results": (
        500,
        "goroutines",
        r"500 goroutines are blocked for good in main\.query\.func\d .*: chan send\. They can never continue",
        {"main.Order": 500, "main.Failure": 500, "main.Record": 500, "[]main.Line": 500},
    ),
}
DEFAULT = ("fragments", "uncollected", "results", "times")
OLD = ("1.18.10", "1.21.13", "1.24.11", "1.27.4")


def first_finding(*where: str) -> dict[str, Any]:
    return dict(json.loads(findleaks("verdict", "--json", *where))["findings"][0])


@pytest.fixture(scope="module")
def programs() -> dict[str, Path]:
    return {}


@pytest.mark.parametrize(
    ("kind", "version"),
    [
        pytest.param(kind, version, marks=() if kind in DEFAULT and not version else pytest.mark.matrix)
        for kind in KINDS
        for version in ("", *OLD)
    ],
)
def test_the_first_finding_is_the_cause(
    kind: str, version: str, programs: dict[str, Path], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if version not in programs:
        programs[version] = build(tmp_path_factory.mktemp("go"), version, STRIPPED, name="go_unused")
    count, name, text, types = KINDS[kind]
    with Running([str(programs[version]), kind, str(count)], tmp_path / "run") as run:
        found = first_finding("--pid", str(run.pid))
        objects = {one["name"]: one["objects"] for one in runtime_page("go", "--pid", str(run.pid))["types"]} if types else {}
    said = " ".join(f"{found['text']} {found['cause']}".split())
    assert found["finding"] == name and re.search(text, said), said
    assert all(number <= objects[one] <= number + 5 for one, number in types.items()), objects
    if kind == "uncollected":  # Go 1.18 has no GOMEMLIMIT
        assert (found["evidence"]["gogc"], found["evidence"]["gomemlimit"]) == (-1, None if version == "1.18.10" else 0)


@pytest.mark.parametrize("version", ["", *(pytest.param(one, marks=pytest.mark.matrix) for one in OLD)])
def test_memory_of_c_until_finalizers_run(version: str, tmp_path: Path) -> None:
    """Stale words may refer to some objects, which count as live. SetFinalizer stores the type of the objects."""
    count = 600
    program = build(tmp_path, version, STRIPPED, name="go_lazy", cgo=True)
    with Running([str(program), str(count)], tmp_path / "run") as run:
        found = first_finding("--pid", str(run.pid))
    assert found["finding"] == "held-by-managed-objects" and found["text"].startswith("Garbage, not collected yet: objects of Go retain ")
    assert re.match(
        rf"{count} objects of main\.Buffer retain [\d.]+ MiB; garbage whose finalizers have not run yet retains ", found["cause"]
    )
    assert count - 20 <= found["evidence"]["native_blocks"] <= count


@pytest.mark.parametrize("version", ["", *(pytest.param(one, marks=pytest.mark.matrix) for one in OLD)])
def test_structures_with_the_same_name(
    version: str, programs: dict[str, Path], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Both packages are named template, so their types have the whole path, even if only one of them has objects: `diff` compares
    processes by the names of types."""
    if version not in programs:
        programs[version] = build(tmp_path_factory.mktemp("go"), version, STRIPPED, name="go_unused")
    for kind, pages, letters in ("templates", 500, 1_000), ("letters", 0, 500):
        with Running([str(programs[version]), kind, "500"], tmp_path / kind) as run:
            objects = {one["name"]: one["objects"] for one in runtime_page("go", "--pid", str(run.pid))["types"]}
        assert pages <= objects.get("html/template.Template", 0) <= pages + 5
        assert letters <= objects["text/template.Template"] <= letters + 10
        assert "template.Template" not in objects
