"""Blocks that only the kernel refers to (epoll data, timers, queued signals, buffers of an io_uring) are reachable, and the reference has
a name."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import truth
from debuggers import gdb, lldb, objects, run_cli

import cores

FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread")
NAMES = {
    "epoll": r"epoll data of descriptor \d+ \(target \d+\)",
    "flagged": r"epoll data of descriptor \d+ \(target \d+\)",
    "timer": r"timer \d",
    "signal": r"signal 34 queued for the process",
    "directed": r"signal 34 queued for thread \d+",
    "buffer": r"io_uring descriptor \d+ \(registered buffer\)",
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cores.Running]:
    folder = tmp_path_factory.mktemp("kernel_held")
    program = folder / "kernel_held"
    subprocess.run(["gcc", *FLAGS, "-o", str(program), str(truth.PROGRAMS / "kernel_held.c"), "-lrt"], check=True)
    with cores.Running([str(program)], folder) as made:
        yield made


@pytest.fixture(scope="module")
def own_core(running: cores.Running) -> Path:
    """Return a core that findleaks wrote."""
    path = running.folder / "own.core"
    run_cli("snapshot", "--weight", "core", "-o", str(path), "--pid", str(running.pid), check=True)
    return path


def list_blocks(running: cores.Running) -> dict[int, tuple[str, str]]:
    """Map the address of each block to "held" or "lost" and the kind of reference."""
    rows = (line.split() for line in running.output.splitlines() if " 0x" in line)
    return {int(address, 16): (kind, what) for kind, what, address in rows}


def rings(running: cores.Running) -> int:
    """Return the number of io_urings of the program: 1, or 0 if the system does not permit them."""
    return int(re.search(r"^rings (\d)$", running.output, re.MULTILINE)[1])  # type: ignore[index]


def kinds(where: list[str]) -> dict[int, str]:
    blocks, _ = truth.ask(*where)
    return {int(block["address"], 16): block["kind"] for block in blocks if block["state"] == "in-use"}


def check(found: dict[int, str], wanted: dict[int, tuple[str, str]]) -> None:
    right = {address: "reachable" if kind == "held" else "definite" for address, (kind, _) in wanted.items()}
    assert {address: found[address] for address in wanted} == right
    assert len(wanted) >= 35


def test_a_live_process(running: cores.Running) -> None:
    check(kinds(["--pid", str(running.pid)]), list_blocks(running))


def test_a_core_that_findleaks_wrote(running: cores.Running, own_core: Path) -> None:
    check(kinds([str(own_core)]), list_blocks(running))


@pytest.mark.parametrize("picture", ["live", "own core"])
def test_each_reference_has_a_name(running: cores.Running, own_core: Path, picture: str) -> None:
    where = ["--pid", str(running.pid)] if picture == "live" else [str(own_core)]
    by_kind = {what: address for address, (kind, what) in list_blocks(running).items() if kind == "held"}
    for what, address in by_kind.items():
        found = json.loads(run_cli("refs", hex(address), "--json", *where, check=True).stdout)
        assert [one["live"] for one in found["references"] if "kernel" in one] == [True]
        assert re.fullmatch(NAMES[what], found["references"][0]["kernel"]), what
        text = run_cli("path", hex(address), *where, check=True).stdout
        assert re.match(rf"kept by the kernel: {NAMES[what]}\n", text), text
    roots = json.loads(run_cli("roots", "--json", "--limit", "0", *where, check=True).stdout)["roots"]
    kept = {root["name"]: root["retained_blocks"] for root in roots if root["sort"] == "kernel"}
    assert [count for name, count in kept.items() if name.startswith("epoll data")] == [10]
    assert kept["POSIX timers (kept by the kernel)"] == 5
    assert kept["queued signals (kept by the kernel)"] == 10


def test_what_cannot_be_read_is_named(running: cores.Running, own_core: Path) -> None:
    """A warning names what could not be read, and how much was read. It is printed only if this memory may refer to blocks that are
    reported as leaked."""
    unreadable = [{"what": "io_uring descriptor", "count": 1}] if rings(running) else []
    lost = sum(kind == "lost" for kind, _ in list_blocks(running).values())
    for where in (["--pid", str(running.pid)], [str(own_core)]):
        for command in ("find", "verdict"):
            found = json.loads(run_cli(command, "--json", *where).stdout)
            assert found["kernel"]["unreadable"] == unreadable
            assert found["kernel"]["references"] == sum(kind == "held" for kind, _ in list_blocks(running).values())
            assert found["kernel"]["epoll_waiters"] == 0
            assert [note.startswith(f"any of the {lost} leaked blocks (") for note in found["notes"]] == [True] * rings(running)
            assert all(note.endswith("pointers cannot be read: 1 io_uring descriptor") for note in found["notes"])
            assert found["kernel"]["doubtful"]["blocks"] == lost * rings(running)
            texts = [one["text"] for one in found.get("findings", ()) if one["finding"] == "lost"]
            assert ["Requests in flight of 1 io_uring descriptor may refer" in text for text in texts] == [rings(running) == 1] * len(texts)


def test_core_without_kernel_references_has_a_warning(running: cores.Running) -> None:
    """The core lacks these references. A thread that waits in epoll_wait, and imported functions that pass pointers to the kernel, are
    evidence of them."""
    found = json.loads(run_cli("find", "--json", str(running.gcore())).stdout)
    assert (found["kernel"]["references"], found["kernel"]["epoll_waiters"]) == (None, 1)
    assert {(one["what"], one["module"]) for one in found["kernel"]["uses"]} == {
        (what, "kernel_held") for what in ("POSIX timers", "queued signals", "pipes and sockets")
    }
    assert found["kernel"]["unreadable"] == []  # the program does not map its io_uring
    assert found["kernel"]["doubtful"]["blocks"] == len(list_blocks(running))
    (note,) = found["notes"]
    assert "epoll registrations (1 thread in epoll_wait)" in note and "POSIX timers (kernel_held uses timer_create)" in note


def test_gdb_reads_all_of_it(running: cores.Running) -> None:
    (found,) = objects(gdb(["leaks find --json"], "-p", str(running.pid)))
    assert json.loads(found)["kernel"]["references"] == sum(kind == "held" for kind, _ in list_blocks(running).values())


def test_lldb_names_what_it_cannot_read(running: cores.Running) -> None:
    """Only the tracer of a process may read its queued signals, and the tracer is LLDB's server."""
    (found,) = objects(lldb(["leaks find --json"], "-p", str(running.pid)))
    body = json.loads(found)
    held = [what for kind, what in list_blocks(running).values() if kind == "held"]
    assert body["kernel"]["references"] == sum(what not in ("signal", "directed") for what in held)
    assert {"what": "unread signal queue", "count": 2} in body["kernel"]["unreadable"]
    assert any("2 unread signal queues" in note for note in body["notes"])
