"""Blocks whose only reference is in data that has not been received (in pipes, sockets, eventfds and message queues), or in a memfd that
is not mapped."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import building
import pytest
import truth
from debuggers import gdb, lldb, objects, run_cli

import cores

NAMES = {
    "pipe": r"pipe, descriptor \d+ \(byte \d+\)",
    "typed": r"pipe, descriptor \d+ \(byte \d+\)",
    "stream": r"socket, descriptor \d+ \(byte \d+\)",
    "packet": r"socket, descriptor \d+ \(byte 0\)",
    "eventfd": r"eventfd, descriptor \d+ \(counter\)",
    "system-v": r"message queue \d+ \(byte \d+\)",
    "memfd": r"memfd that is not mapped, descriptor \d+ \(byte \d+\)",
}
EACH = 20
SENTENCE = "may be referenced by the kernel, by objects whose pointers"


program = building.fixture("unread_data.c", "-std=gnu11", "-O1", "-lrt")


@pytest.fixture(scope="module")
def readable(program: Path) -> Iterator[cores.Running]:
    """All unread data of this process can be read."""
    with cores.Running([str(program)], program.parent / "readable") as made:
        yield made


@pytest.fixture(scope="module")
def partly(program: Path) -> Iterator[cores.Running]:
    """This process has a second message in a packet socket, and a message in a POSIX queue. findleaks cannot read the two messages."""
    with cores.Running([str(program), "all"], program.parent / "partly") as made:
        yield made


def list_blocks(running: cores.Running) -> dict[int, tuple[str, str]]:
    """Return by address: "held", "lost" or "unreadable", and the kind of data."""
    rows = (line.split() for line in running.output.splitlines() if " 0x" in line)
    return {int(address, 16): (kind, what) for kind, what, address in rows}


def run_json(*words: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(run_cli(*words, "--json").stdout)
    return body


def check(blocks: list[dict[str, Any]], wanted: Mapping[int, tuple[str, str]]) -> None:
    kinds = {int(block["address"], 16): block["kind"] for block in blocks}
    right = {address: "reachable" if kind == "held" else "definite" for address, (kind, _) in wanted.items()}
    assert {address: kinds[address] for address in wanted} == right
    assert len(wanted) >= 8 * EACH + 1


def test_a_live_process(readable: cores.Running) -> None:
    check(truth.ask("--pid", str(readable.pid))[0], list_blocks(readable))
    for command in ("find", "verdict"):
        body = run_json(command, "--pid", str(readable.pid))
        assert (body["kernel"]["unreadable"], body["kernel"]["uses"], body["notes"]) == ([], [], [])
        assert body["kernel"]["doubtful"] == {"blocks": 0, "bytes": 0}


def test_nothing_is_received(program: Path) -> None:
    """After findleaks has read the data, it is still unreceived, and the descriptors are unchanged."""
    with cores.Running([str(program)], program.parent / "again") as running:

        def state() -> list[tuple[str, bytes]]:
            folder = Path(f"/proc/{running.pid}")
            return [
                (os.readlink(folder / "fd" / one.name), (folder / "fdinfo" / one.name).read_bytes())
                for one in sorted((folder / "fd").iterdir(), key=lambda one: int(one.name))
            ]

        before = state()
        first, second = (truth.ask("--pid", str(running.pid))[0] for _ in range(2))
        check(first, list_blocks(running))
        assert first == second
        assert state() == before


def test_a_core_that_findleaks_wrote(readable: cores.Running) -> None:
    path = readable.folder / "own.core"
    run_cli("snapshot", "--weight", "core", "-o", str(path), "--pid", str(readable.pid), check=True)
    check(truth.ask(str(path))[0], list_blocks(readable))


def test_a_clone_of_the_process(readable: cores.Running) -> None:
    """The process runs while its descriptors are read."""
    path = readable.folder / "clone.core"
    run_cli("snapshot", "--weight", "core", "--fork", "-o", str(path), "--pid", str(readable.pid), check=True)
    check(truth.ask(str(path))[0], list_blocks(readable))


def test_each_reference_has_a_name(readable: cores.Running) -> None:
    for what, address in {what: address for address, (kind, what) in list_blocks(readable).items() if kind == "held"}.items():
        references = run_json("refs", hex(address), "--pid", str(readable.pid))["references"]
        assert [re.fullmatch(NAMES[what], one["kernel"]) is not None for one in references if one["live"]] == [True], what


def test_what_cannot_be_read_is_named(partly: cores.Running) -> None:
    leaked = sum(kind != "held" for kind, _ in list_blocks(partly).values())
    for command in ("find", "verdict"):
        body = run_json(command, "--pid", str(partly.pid))
        unreadable = {one["what"]: one["count"] for one in body["kernel"]["unreadable"]}
        assert unreadable == {"unread socket": 1, "unread message queue": 1}
        assert body["kernel"]["doubtful"]["blocks"] == leaked == 2 * EACH + 2
        (note,) = body["notes"]
        assert note.startswith(f"any of the {leaked} leaked blocks (") and f"{SENTENCE} cannot be read: 1 unread socket" in note
        assert note in " ".join(run_cli(command, "--pid", str(partly.pid)).stdout.split())


def test_a_core_of_a_debugger(readable: cores.Running) -> None:
    """A core has no descriptors. The functions that the program imports show that data may be missing."""
    body = run_json("find", str(readable.gcore()))
    uses = {
        one["what"]: (one["function"] in ("pipe", "socketpair", "eventfd", "mq_send", "msgsnd", "memfd_create"), one["module"])
        for one in body["kernel"]["uses"]
    }
    assert uses == dict.fromkeys(("pipes and sockets", "message queues", "memfds that are not mapped"), (True, "unread_data"))
    assert body["kernel"]["doubtful"]["blocks"] == body["totals"]["definite"]["blocks"] == len(list_blocks(readable))
    (note,) = [note for note in body["notes"] if SENTENCE in note]
    assert "are not in this core (use --pid): " in note


_REGISTERING = """#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int io_uring_register_buffers(void *, const void *, unsigned);
int main(void) {
    io_uring_register_buffers(0, malloc(5000), 1);
    for (int i = 0; i < 9; i++) malloc(50);
    puts("ready"), fflush(stdout);
    for (;;) pause();
}
"""


def test_a_core_of_a_process_that_registers_buffers(tmp_path: Path) -> None:
    """The kernel refers to such buffers. A ring that is not mapped has no other trace in a core."""
    library, source, program = tmp_path / "liburing.so", tmp_path / "program.c", tmp_path / "program"
    source.write_text(_REGISTERING)
    stub = "int io_uring_register_buffers(void *a, const void *b, unsigned c) { return !a + !b + c; }"
    subprocess.run(["gcc", "-shared", "-fPIC", "-xc", "-", "-o", library], input=stub, text=True, check=True)
    subprocess.run(["gcc", "-w", source, library, "-o", program], check=True)
    with cores.Running([str(program)], tmp_path / "run") as run:
        body = run_json("find", str(run.gcore()))
    found = [(one["what"], one["function"], one["module"]) for one in body["kernel"]["uses"]]
    assert found == [("buffers registered with an io_uring", "io_uring_register_buffers", "program")]
    assert body["kernel"]["doubtful"]["blocks"] == body["totals"]["definite"]["blocks"] > 0


@pytest.mark.parametrize("debugger", [gdb, lldb])
def test_debuggers(partly: cores.Running, debugger: Any) -> None:
    (text,) = objects(debugger(["leaks find --json"], "-p", str(partly.pid)))
    body = json.loads(text)
    assert body["totals"]["definite"]["blocks"] == 2 * EACH + 2
    assert [SENTENCE in note for note in body["notes"]] == [True]
