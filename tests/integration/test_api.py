"""The Python API on a program that prints its blocks (tests/programs/sessions.c): its core, the live process, and a snapshot."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any, NamedTuple

import building
import debian
import numpy
import pyarrow
import pytest
from counts import until
from debuggers import PATIENCE, ROOT, run_cli

import findleaks
from cores import Running, all_sleep, states
from findleaks import session as session_module
from findleaks.results.addresses import Block
from findleaks.session.reference_graphs import ReferenceGraphs

SESSIONS, REQUESTS = 50, 200
PAGE = ROOT / "docs" / "python-api.md"


class Printed(NamedTuple):
    """Usable sizes of the blocks that the program printed, by address, and the retained size of g_sessions."""

    session: dict[int, int]
    head: dict[int, int]
    indirect: dict[int, int]
    retained: tuple[int, int]


def parse_output(output: str) -> Printed:
    lines = [line.split() for line in output.splitlines()]
    found = {kind: {int(line[1], 16): int(line[2]) for line in lines if line[0] == kind} for kind in ("session", "head", "indirect")}
    retained = [(int(line[1]), int(line[2])) for line in lines if line[0] == "retained"]
    return Printed(**found, retained=retained[0])


program = building.fixture("sessions.c", "-g", "-O1")


running = building.running(SESSIONS, REQUESTS)


core = building.core()


@pytest.fixture(scope="module")
def process(core: Path) -> Iterator[findleaks.Process]:
    with findleaks.open(core) as opened:
        yield opened


@pytest.fixture(scope="module")
def truth(running: Running) -> Printed:
    return parse_output(running.output)


def sizes(blocks: findleaks.Blocks) -> dict[int, int]:
    return {block.address: block.size for block in blocks}


def test_blocks_are_those_of_the_program(process: findleaks.Process, truth: Printed) -> None:
    assert len(truth.head) == REQUESTS
    assert sizes(process.blocks(kind="definite")) == truth.head
    assert sizes(process.blocks(kind="indirect")) == truth.indirect
    leaked = process.blocks(kind="leaked")
    assert sizes(leaked) == {**truth.head, **truth.indirect}
    assert len(leaked) == 2 * REQUESTS
    assert leaked.total().bytes == sum(truth.head.values()) + sum(truth.indirect.values())
    assert truth.session.items() <= sizes(process.blocks(kind="reachable")).items()
    (size,) = set(truth.head.values())
    assert sizes(process.blocks(kind="definite", size=size)) == sizes(process.blocks(kind="definite", size=f"{size}-")) == truth.head
    assert sizes(process.blocks(kind="definite", size=(0, size - 1))) == {}
    assert list(sizes(process.blocks(kind="definite", limit=3))) == sorted(truth.head)[:3]


def test_leaks_are_groups_of_these(process: findleaks.Process, truth: Printed) -> None:
    (group,) = process.leaks(kind="definite")
    assert (group.blocks, group.bytes) == (REQUESTS, sum(truth.head.values()))
    assert (group.indirect_blocks, group.indirect_bytes) == (REQUESTS, sum(truth.indirect.values()))
    assert set(group.examples) <= truth.head.keys()
    assert process.leaks(kind="possible") == []
    found = process.find()
    assert found.trusted
    assert (found.leaked.blocks, found.leaked.bytes) == (2 * REQUESTS, group.bytes + group.indirect_bytes)
    with pytest.raises(FrozenInstanceError):
        group.blocks = 0  # type: ignore[misc]


def test_columns_wrap_without_a_copy(process: findleaks.Process, truth: Printed) -> None:
    blocks = process.blocks(kind="leaked", largest=True)
    columns = blocks.columns()
    address, size = numpy.frombuffer(columns.address, "u8"), numpy.frombuffer(columns.size, "u8")
    assert dict(zip(address.tolist(), size.tolist())) == {**truth.head, **truth.indirect}
    assert size.tolist() == sorted(size.tolist(), reverse=True)
    frame, table = blocks.to_pandas(), blocks.to_arrow()
    assert numpy.shares_memory(frame["size"].to_numpy(), size)
    assert table.column("size").chunk(0).buffers()[1].address == size.__array_interface__["data"][0]
    assert frame.groupby("kind", observed=True)["size"].sum().to_dict() == {
        "definite": sum(truth.head.values()),
        "indirect": sum(truth.indirect.values()),
    }
    assert set(frame["allocator"]) == {"glibc"} and set(frame["state"]) == {"in-use"} and frame["type"].isna().all()
    leak_of = dict(zip(frame["address"], frame["group"]))
    assert len({leak_of[head] for head in truth.head}) == REQUESTS and set(frame["group"]) == {leak_of[head] for head in truth.head}
    assert table.column("kind").to_pylist() == frame["kind"].tolist()
    assert table.schema.field("address").type == pyarrow.uint64()
    assert len(process.blocks(kind="definite", size=1).to_pandas()) == process.blocks(kind="definite", size=1).to_arrow().num_rows == 0


def test_roots_retain_what_the_program_counted(process: findleaks.Process, truth: Printed) -> None:
    (root,) = process.roots("g_sessions", depth=4)
    assert (root.retained_blocks, root.retained_bytes) == truth.retained
    assert root.container is not None and (root.container.length, root.container.what) == (SESSIONS, "array of pointers")
    (strings,) = [other for other in root.container.others if other.strings]
    assert strings.blocks == SESSIONS
    every = process.roots()
    assert every[0].name.startswith("g_sessions")
    assert [one.retained_bytes for one in every] == sorted((one.retained_bytes for one in every), reverse=True)
    heads = process.leaked_roots(limit=0)
    assert {one.address for one in heads} == truth.head.keys()


def test_addresses(process: findleaks.Process, truth: Printed) -> None:
    head, session = min(truth.head), min(truth.session)
    block = process.block_at(head + 8)
    assert (block.address, block.size, block.kind) == (head, truth.head[head], "definite")
    assert process.referrers(block).count == 0
    assert not process.path(block).steps
    assert process.path(block).leak_head == head
    held = process.block_at(session)
    assert held.kind == "reachable"
    found = process.referrers(held)
    assert found.live >= 1 and all(one.value == session for one in found.references if one.live)
    steps = process.path(held).steps
    assert steps[0].origin.startswith("g_sessions") and steps[-1].value == session
    assert (process.whatis(16).sort, process.whatis(16).block) == ("unmapped", None)


def test_results_equal_those_of_the_commands(process: findleaks.Process, core: Path) -> None:
    def run_json(*words: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(run_cli(*words, "--json", str(core), check=True).stdout)
        return {key: value for key, value in found.items() if key not in ("schema", "command", "warnings", "next")}

    found = json.loads(json.dumps(process.find().to_json()))
    assert {key: value for key, value in found.items() if key != "next"} == run_json("find")
    assert json.loads(json.dumps(process.verdict().to_json())) == run_json("verdict")
    assert json.loads(json.dumps(process.caches().to_json())) == run_json("caches")
    assert [one.to_json() for one in process.threads(lines=False)] == run_json("stacks", "--no-lines")["stacks"]
    assert process.runtimes() == []
    for method in (process.caches, process.blocks):
        with pytest.raises(findleaks.UsageError, match="no allocator 'jemalloc' in this process; found: glibc"):
            method(allocator="jemalloc")


def test_live_process_continues(running: Running, truth: Printed) -> None:
    with findleaks.attach(running.pid) as process:
        until(lambda: states(running.pid) == {"S"}, "the process to sleep on")
        assert process.pid == running.pid and process.name == "sessions"
        blocks = process.blocks(kind="definite")
        assert sizes(blocks) == truth.head
    for use in (process.leaks, blocks.columns, blocks.total, lambda: len(blocks), lambda: list(blocks)):
        with pytest.raises(findleaks.TargetError, match="the process is closed"):
            use()


def test_closing_frees_the_data(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` frees data with reference cycles at once, not at Python's next automatic garbage collection."""
    made: list[weakref.ref[object]] = []

    class Observed(ReferenceGraphs):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(weakref.ref(self))

    monkeypatch.setattr(session_module, "ReferenceGraphs", Observed)
    gc.collect()
    process = findleaks.attach(running.pid)
    assert process.leaks()
    process.close()
    assert made and all(one() is None for one in made)


def test_growth_since_a_snapshot(program: Path, tmp_path: Path) -> None:
    with Running([str(program), str(SESSIONS), str(REQUESTS)], tmp_path / "run") as run:
        file = tmp_path / "a.snapshot"
        with findleaks.attach(run.pid) as process:
            process.snapshot("before").save(str(file))
        _ask(run)
        more = parse_output((run.folder / "stdout").read_text())
        before = parse_output(run.output)
        old, new = findleaks.load(file), findleaks.attach(run.pid)
        growth = findleaks.diff(old, new)
        leaked = [sum(one.head.values()) + sum(one.indirect.values()) for one in (before, more)]
        assert old.leaked_bytes == leaked[0] and old.program == "sessions" and old.pid == run.pid
        assert growth.leaked_bytes == leaked[1] - leaked[0] > 0
        assert growth.leaked_blocks == 2 * REQUESTS
        assert findleaks.diff(old, old).leaked_bytes == 0


def _ask(run: Running) -> None:
    """Make the program leak the same number of requests again."""
    os.kill(run.pid, signal.SIGUSR1)
    until(lambda: (run.folder / "stdout").read_text().endswith("again\n") and all_sleep(run.pid), "the requests to be leaked")


def test_errors_have_one_base_class(process: findleaks.Process, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no core\n")
    for call, message in (
        (lambda: findleaks.open(text), "text"),
        (lambda: findleaks.open(tmp_path / "missing"), "missing"),
        (lambda: findleaks.open(""), "the name of the core file is empty"),
        (lambda: findleaks.open(text, sysroot=str(tmp_path / "none")), "sysroot .*: not found"),
        (lambda: findleaks.load(text), "not a snapshot"),
        (lambda: findleaks.load(tmp_path / "missing"), "missing: no such file"),
        (lambda: findleaks.attach("no such program"), "no process is called"),
        (lambda: findleaks.current(), "no debugger"),
        (lambda: process.blocks(kind="lots"), "no kind 'lots'"),
        (lambda: process.blocks(allocator="none"), "no allocator 'none'"),
        (lambda: process.leaks(kind="reachable"), "no kind 'reachable'"),
        (lambda: process.roots("no_such_root"), "is neither the name of a root nor an address"),
        (lambda: process.path(16), "0x10 is in no block"),
        (lambda: process.block_at(16), "0x10 is in no block: not mapped"),
    ):
        with pytest.raises(findleaks.FindleaksError, match=message) as raised:
            call()
        assert "\n" not in str(raised.value)
    with pytest.raises(AttributeError, match="no attribute 'leaks'"):
        findleaks.leaks  # type: ignore[attr-defined]  # noqa: B018


def _example() -> str:
    """Return the first example of the page."""
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_first_example_of_the_page(running: Running, core: Path, truth: Printed, tmp_path: Path) -> None:
    (tmp_path / "app.core").symlink_to(core)
    (tmp_path / "tree").symlink_to("/")
    with findleaks.attach(running.pid) as process:
        process.snapshot("a").save(str(tmp_path / "a.snapshot"))
    script = _example().replace("4711", str(running.pid)).replace("0x557D0E65EA60", hex(min(truth.head)))
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"{sum(truth.head.values())} {REQUESTS} None None"
    assert lines[1].startswith(f"{truth.retained[1]} ") and lines[2].startswith("definite None References(")


def test_mypy_knows_the_types(tmp_path: Path) -> None:
    """mypy --strict finds the types of the API in an installed package, and reports a wrong attribute."""
    package = tmp_path / "tree" / "findleaks"
    package.mkdir(parents=True)
    for path in [*(ROOT / "common").iterdir(), ROOT / "gdb", ROOT / "lldb"]:
        (package / path.name).symlink_to(path)
    (tmp_path / "script.py").write_text(_example())
    (tmp_path / "wrong.py").write_text("import findleaks\n\nprint(findleaks.open('core').leaks()[0].lost)\nfindleaks.load(1)\n")
    environment = {**os.environ, "MYPYPATH": str(tmp_path / "tree")}
    words = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(debian.cache() / "mypy" / "scripts")]
    done = subprocess.run(
        [*words, "script.py", "wrong.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    errors = [line for line in done.stdout.splitlines() if ": error:" in line and line.startswith(("script", "wrong"))]
    assert [line.partition(": error:")[0] for line in errors if line.startswith("wrong")] == ["wrong.py:3", "wrong.py:4"]
    assert [line for line in errors if line.startswith("script") and "pandas" not in line] == []


def test_iteration_yields_blocks(process: findleaks.Process) -> None:
    assert all(isinstance(one, Block) for one in process.blocks(limit=5))
    assert repr(process.blocks(kind="definite")).startswith(f"<Blocks: {REQUESTS} blocks of ")
