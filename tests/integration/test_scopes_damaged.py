"""`scopes` on Node 0.10 if little can be read: without symbols, for an unknown V8, without an isolate, and with damaged lists of blocks.
Each case is a live process or its core. GDB, LLDB and the command line print the same line."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nodes
import pytest
import truth
from debuggers import findleaks, gdb, lldb, objects

from cores import Running
from findleaks.runtimes.v8.isolates import KEYS
from findleaks.runtimes.v8.layout import COUNT, Layout, derive
from findleaks.target import elf
from findleaks.target.core import open_core

CLOSED = 5000
BLOCKS = 5
HANDLES = 1022
SAYS = "no handle scopes can be read: "


def run_everywhere(where: list[str], of_gdb: list[str], of_lldb: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the text of the command line, and the JSON, which is the same in every front end."""
    command = "leaks scopes --json"
    lines = [*objects(findleaks("scopes", "--json", *where)), *objects(gdb([command], *of_gdb)), *objects(lldb([command], *of_lldb))]
    assert len(lines) == 3 and len(set(lines)) == 1, lines
    answer: dict[str, Any] = json.loads(lines[0])
    return findleaks("scopes", *where), answer


def live(pid: int) -> tuple[str, dict[str, Any]]:
    return run_everywhere(["--pid", str(pid)], ["-p", str(pid)], ["-p", str(pid)])


def program(folder: Path, change: Callable[[bytes], bytes]) -> Running:
    """Start Node without .symtab, with other changes to its file, after it has closed its handles."""
    made = folder / "node"
    shutil.copy(nodes.get("0.10.21"), made)
    subprocess.run(["strip", "--strip-all", made], check=True)
    made.write_bytes(change(made.read_bytes()))
    return Running([str(made), str(truth.PROGRAMS / "node_closing.js"), str(CLOSED)], folder / "run")


def without_names(data: bytes) -> bytes:
    """Rename the functions that V8 exports."""
    return data.replace(b"15NumberOfHandles", b"15HiddenOfHandles")


def other_code(data: bytes) -> bytes:
    """Replace the function that findleaks reads and the program does not call."""
    head = elf.header(data)
    load = next(one for one in elf.segments(data, head) if one.type == elf.PT_LOAD and one.flags & elf.PF_X)
    for table in elf.tables_of_file(data, head):
        for name, _, _, _, value, size in struct.iter_unpack(table.form, table.symbols):
            if elf.text(table.strings, name) in COUNT:
                at = value - load.vaddr + load.offset
                data = data[:at] + b"\x90" * size + data[at + size :]
    return data


CHANGED = [
    (without_names, "v8::HandleScope::NumberOfHandles has no symbol: node contains V8, but not its symbols"),
    (other_code, "v8::HandleScope::NumberOfHandles has unexpected code: this version of V8 is unknown; report it"),
]


@pytest.mark.parametrize(("change", "why"), CHANGED)
def test_a_v8_that_cannot_be_read(change: Callable[[bytes], bytes], why: str, tmp_path: Path) -> None:
    with program(tmp_path, change) as running:
        text, answer = live(running.pid)
    assert text.startswith(SAYS + why)
    assert len(text.splitlines()) == 1
    assert answer["isolates"] == []
    assert answer["problem"] == text[:-1]


class Dumped(NamedTuple):
    """A kernel's core, and the addresses of V8's structures in it."""

    core: Path
    layout: Layout
    isolate: int
    implementer: int
    vector: int
    slot: int

    def changed(self, folder: Path, address: int, *words: int) -> Path:
        """Return a copy of the core with these words at an address."""
        copy = folder / "core"
        shutil.copy(self.core, copy)
        with open(copy, "r+b") as file:
            start = file.read(1 << 16)
            loads = [one for one in elf.segments(start, elf.header(start)) if one.type == elf.PT_LOAD]
            load = next(one for one in loads if one.vaddr <= address < one.vaddr + one.filesz)
            file.seek(address - load.vaddr + load.offset)
            file.write(struct.pack(f"<{len(words)}Q", *words))
        return copy


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dumped]:
    folder = tmp_path_factory.mktemp("dumped")
    with Running([nodes.get("0.10.21"), str(truth.PROGRAMS / "node_closing.js"), str(CLOSED)], folder) as running:
        core = running.kernel_core()
    target = open_core(str(core))
    try:
        layout = derive(target)
        (thread,) = (thread for thread in target.threads() if thread.tid == running.pid)
        slot = thread.thread_pointer + KEYS + 16 * int.from_bytes(target.read(layout.key, 4), "little") + 8
        isolate = target.word(slot)
        implementer = target.word(isolate + layout.implementer)
        yield Dumped(core, layout, isolate, implementer, target.word(implementer + layout.blocks), slot)
    finally:
        target.close()


def of_core(core: Path) -> tuple[str, dict[str, Any]]:
    node = nodes.get("0.10.21")
    return run_everywhere([str(core)], [node, str(core)], [node, "-c", str(core)])


def test_no_thread_in_an_isolate(dumped: Dumped, tmp_path: Path) -> None:
    says = "no thread is in an isolate: V8 is loaded, but not running"
    for wild in (0xDEAD0000BEE8, dumped.isolate + 8):
        assert findleaks("scopes", str(dumped.changed(tmp_path, dumped.slot, wild))).startswith(says)
    text, answer = of_core(dumped.changed(tmp_path, dumped.slot, 0))
    assert text.startswith(says)
    assert len(text.splitlines()) == 1 + len(answer["warnings"])
    assert answer["isolates"] == []


DAMAGE = {
    "a cycle": (3, lambda dumped, first: (dumped.vector + 3 * 8, first), "block 4 of 5, {word:#x}, is in the list twice"),
    "a wild pointer": (2, lambda dumped, first: (dumped.vector + 2 * 8, 0x5_0000_0000), "block 3 of 5, {word:#x}, cannot be read"),
    "a crooked pointer": (1, lambda dumped, first: (dumped.vector + 8, first + 3), "block 2 of 5, {word:#x}, is misaligned"),
    "a count of many": (
        0,
        lambda dumped, first: (dumped.implementer + dumped.layout.count, 1 << 20),
        "the list of its 1,048,576 blocks of handles at",
    ),
    "a list that is nowhere": (
        0,
        lambda dumped, first: (dumped.implementer + dumped.layout.blocks, 0x1234),
        "the list of its 5 blocks of handles at 0x1234 cannot be read",
    ),
}


@pytest.mark.parametrize("damage", [name if name == "a cycle" else pytest.param(name, marks=pytest.mark.matrix) for name in DAMAGE])
def test_a_damaged_list_of_blocks(damage: str, dumped: Dumped, tmp_path: Path) -> None:
    """Blocks before the damage are counted."""
    blocks, change, problem = DAMAGE[damage]
    target = open_core(str(dumped.core))
    first = target.word(dumped.vector)
    target.close()
    address, word = change(dumped, first)
    text, answer = of_core(dumped.changed(tmp_path, address, word))
    (isolate,) = answer["isolates"]
    assert problem.format(word=word) in isolate["problem"]
    assert isolate["problem"].startswith(f"isolate {dumped.isolate:#x}")
    assert (isolate["blocks"], isolate["handles"]) == (blocks, HANDLES * blocks)
    assert isolate["problem"] in answer["warnings"]
    assert " ".join(isolate["problem"].split()) in " ".join(text.split())
