"""Blocks with a header of the program: findleaks reports the state that the program prints for each block. The file also tests libraries
that use such headers."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import building
import mallocs_python
import pytest
import truth
from debuggers import ROOT, findleaks, gdb, lldb, objects, run_cli

import cores

HEADERS = ("8", "16", "24", "96")


def compile_program(folder: Path, name: str, *libraries: str) -> Path:
    return building.compile_program(folder, f"{name}.c", "-O1", "-g", "-std=gnu11", *libraries)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("program"), "headers")


def find(*words: str) -> dict[str, Any]:
    return dict(json.loads(findleaks("find", "--json", *words)))


@pytest.mark.platform("x86-64", "heap damage, C++ types, headers")
@pytest.mark.parametrize("header", HEADERS)
def test_state_of_each_block(program: Path, tmp_path: Path, header: str) -> None:
    """findleaks reports the state of each block correctly. A block with a pointer to another place inside stays possibly lost."""
    with cores.Running([str(program), header, "400"], tmp_path) as run:
        records = truth.parse(run.output)
        blocks, _ = truth.ask("--pid", str(run.pid))
        core = str(run.kernel_core())
    verdict = truth.compare(records, blocks)
    assert verdict.perfect, str(verdict)
    assert truth.compare(records, truth.ask(core)[0]).perfect
    said = find(core)["heuristics"]
    held = [r for r in records if r.category.startswith("header")]
    total = {"blocks": len(held), "bytes": sum(r.usable for r in held)}
    assert said["held"] == total
    assert said["conventions"] == [{"offset": int(header), "sizes": None, "heuristic": None, **total}]
    assert f"403 blocks ({total['bytes'] / 1024:.0f} KiB) have a header of {header} B that the program added" in findleaks("find", core)


def test_python_reference_engine_and_memcheck_rules(program: Path, tmp_path: Path) -> None:
    with cores.Running([str(program), "24", "100"], tmp_path) as run:
        records = truth.parse(run.output)
        core = str(run.kernel_core())
    blocks, _ = truth.ask(core, environment={"FINDLEAKS_PURE": "1"})
    assert truth.compare(records, blocks).perfect
    plain = [replace(r, kind="possible") if r.category.startswith("header") else r for r in records]
    none = find("--heuristics", "none", core)
    possible = [r for r in plain if r.kind == "possible"]
    assert none["totals"]["possible"] == {"blocks": len(possible), "bytes": sum(r.usable for r in possible)}
    assert (none["heuristics"]["asked"], none["heuristics"]["conventions"], none["heuristics"]["held"]["blocks"]) == ("none", [], 0)
    for kind in ("definite", "indirect"):
        assert none["totals"][kind] == find(core)["totals"][kind]


def test_a_size_that_is_also_used_without_the_header(program: Path, tmp_path: Path) -> None:
    """The header counts in each size in which at least 16 blocks, and two thirds of all, have it."""
    with cores.Running([str(program), "16", "400", "p"], tmp_path) as run:
        records = truth.parse(run.output)
        core = str(run.kernel_core())
    every = Counter(r.usable for r in records if r.kind == "reachable" or r.category in ("two-places", "anywhere"))
    has_header = Counter(r.usable for r in records if r.category.startswith("header"))
    accepted = {size for size, blocks in has_header.items() if blocks >= max(16, 2 / 3 * every[size])}
    assert len(accepted) == len({r.usable for r in records if r.category == "header"}) - 1 == 9
    expected = [replace(r, kind="possible") if r.category.startswith("header") and r.usable not in accepted else r for r in records]
    verdict = truth.compare(expected, truth.ask(core)[0])
    assert verdict.perfect, str(verdict)


def test_a_header_that_is_the_length(program: Path, tmp_path: Path) -> None:
    with cores.Running([str(program), "8", "200", "l"], tmp_path) as run:
        said = find("--pid", str(run.pid))
        plain = find("--heuristics", "length64", "--pid", str(run.pid))
    assert [one["heuristic"] for one in said["heuristics"]["conventions"]] == ["length64"]
    assert said["totals"] == plain["totals"]


def test_a_small_number_is_not_the_count_of_an_array(program: Path, tmp_path: Path) -> None:
    """If only sizes were compared, nearly every small number would look like the element count of new T[n]."""
    with cores.Running([str(program), "8", "200", "k"], tmp_path) as run:
        records = truth.parse(run.output)
        core = str(run.kernel_core())
    (one,) = find(core)["heuristics"]["conventions"]
    assert (one["offset"], one["heuristic"], one["blocks"]) == (8, None, 203)
    assert truth.compare(records, truth.ask(core)[0]).perfect


def test_arrays_of_objects(tmp_path: Path) -> None:
    """In a process with C++, the same number before objects is the element count of new T[n]."""
    program = building.compile_program(tmp_path, "counted_arrays.cpp", "-O1")
    names = []
    for word in ("arrays", "kinds"):
        with cores.Running([str(program), word], tmp_path / word) as run:
            (one,) = find("--pid", str(run.pid))["heuristics"]["conventions"]
        assert (one["offset"], one["blocks"]) == (8, 600)
        names.append(one["heuristic"])
    assert names == ["newarray", None]


def test_a_header_before_links(program: Path, tmp_path: Path) -> None:
    """Pointers to half of the blocks are links, but the header of all blocks is recognised."""
    with cores.Running([str(program), "24", "200", "r"], tmp_path) as run:
        records = truth.parse(run.output)
        core = str(run.kernel_core())
    verdict = truth.compare(records, truth.ask(core)[0])
    assert verdict.perfect, str(verdict)
    said = find(core)["heuristics"]
    assert [(one["offset"], one["sizes"], one["blocks"]) for one in said["conventions"]] == [(24, None, 203)]
    assert said["structures"] == []


def test_few_blocks_are_no_evidence(program: Path, tmp_path: Path) -> None:
    with cores.Running([str(program), "24", "8"], tmp_path) as run:
        said = find("--pid", str(run.pid))
    assert said["heuristics"]["conventions"] == []
    assert said["totals"]["possible"]["blocks"] == 11 + 80


def test_front_ends_agree(program: Path, tmp_path: Path) -> None:
    with cores.Running([str(program), "16", "100"], tmp_path) as run:
        core = str(run.kernel_core())
    plain = find(core)
    for said in (gdb(["leaks find --json"], str(program), core), lldb(["leaks find --json"], str(program), "-c", core)):
        one = json.loads(objects(said)[0])
        assert (one["heuristics"], one["totals"]) == (plain["heuristics"], plain["totals"])


def test_sqlite(tmp_path: Path) -> None:
    """Memory that SQLite counts as used is reachable, except for lengths. One tenth is in structures with pointers to their middle."""
    with cores.Running([str(compile_program(tmp_path, "headers_sqlite", "-lsqlite3")), "100"], tmp_path / "run") as run:
        used = int(run.output.split()[0])
        said, plain = find("--pid", str(run.pid)), find("--heuristics", "none", "--pid", str(run.pid))
    assert plain["totals"]["possible"]["bytes"] >= used
    assert said["totals"]["possible"]["blocks"] == 0
    assert said["heuristics"]["held"] == plain["totals"]["possible"]
    first = said["heuristics"]["conventions"][0]
    assert (first["offset"], first["heuristic"], first["sizes"]) == (8, "length64", None)
    assert first["blocks"] >= 0.9 * said["heuristics"]["held"]["blocks"]


MANY_CONNECTIONS = """
kept = [sqlite3.connect(':memory:') for _ in range(100)]
for one in kept:
    one.execute('create table t (a)')
"""
MANY_PAGES = """
one = sqlite3.connect(':memory:')
one.execute('create table t (a)')
one.executemany('insert into t values (?)', (('x' * 500,) for _ in range(20000)))
"""


PAGE = 4376  # usable bytes of the block of a page


@pytest.mark.parametrize(("work", "least"), [(MANY_CONNECTIONS, 10_000), (MANY_PAGES, 2500)], ids=["connections", "pages"])
def test_python_s_sqlite3(tmp_path: Path, work: str, least: int) -> None:
    """With many connections, most blocks of each size have the offset behind the length. With one, CPython has more blocks of these sizes,
    but the lengths are proof."""
    script = tmp_path / "many.py"
    script.write_text(f"import os, signal, sqlite3\n{work}\nos.write(1, b'ready\\n')\nsignal.pause()\n")
    python = mallocs_python.get("3.11")
    with cores.Running(python.command(str(script)), tmp_path / "run", python.environment()) as run:
        said, plain = find("--pid", str(run.pid)), find("--heuristics", "none", "--pid", str(run.pid))
    assert plain["totals"]["possible"]["blocks"] > least
    # Stale words lead to the middle of some objects of the interpreter, which stay possible.
    assert said["heuristics"]["held"]["blocks"] > least
    assert PAGE not in [one["size"] for one in said["groups"]]
    lengths = [one for one in said["heuristics"]["conventions"] if one["heuristic"] == "length64"]
    assert [(one["offset"], one["sizes"]) for one in lengths] == [(8, None)] and lengths[0]["blocks"] > 100


def test_old_cursors_behind_a_length(tmp_path: Path) -> None:
    """Structs that begin with their length have no header, so old pointers behind the length do not make leaked ones reachable."""
    with cores.Running([str(compile_program(tmp_path, "old_cursors")), "400", "80"], tmp_path) as run:
        said = find("--pid", str(run.pid))
    assert {kind: said["totals"][kind]["blocks"] for kind in ("possible", "definite", "indirect")} == {
        "possible": 80,
        "definite": 0,
        "indirect": 0,
    }
    assert said["heuristics"]["applied"] == said["heuristics"]["conventions"] == []


def test_talloc(tmp_path: Path) -> None:
    with cores.Running([str(compile_program(tmp_path, "headers_talloc", "-ltalloc")), "1000"], tmp_path / "run") as run:
        held, lost = map(int, run.output.split()[:2])
        said, plain = find("--pid", str(run.pid)), find("--heuristics", "none", "--pid", str(run.pid))
    assert held == 2001
    assert plain["totals"]["possible"]["blocks"] == held
    assert said["totals"]["possible"]["blocks"] == 0
    assert said["totals"]["definite"]["blocks"] == plain["totals"]["definite"]["blocks"] == lost
    (one,) = said["heuristics"]["conventions"]
    assert (one["offset"], one["sizes"], one["heuristic"], one["blocks"]) == (96, None, None, held)


def test_an_unknown_heuristic_is_named() -> None:
    done = run_cli("find", "--heuristics", "auto,some", str(ROOT / "cores" / "sample.core.gz"))
    assert done.returncode == 2
    assert "no heuristic 'some'" in done.stderr
