"""The offsets that findleaks derives from AArch64 code of Node.js are compared with those of x86-64, of the same version. The programs
are read, not run."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import astuple
from typing import Optional

import nodes
import pytest

from findleaks.errors import UnreadableMemory
from findleaks.runtimes.v8 import globals as globals_
from findleaks.runtimes.v8 import layout
from findleaks.target import elf
from findleaks.target.arch import X86_64
from findleaks.target.base import Symbol

pytestmark = pytest.mark.matrix

PER_THREAD = {62: 18, 183: 1030}
"""By machine: the type of relocation for a word that will contain an offset from the thread pointer (R_X86_64_TPOFF64,
R_AARCH64_TLS_TPREL)."""

FUNCTIONS = (layout.COUNT, layout.ENTER, layout.SEAL, layout.CURRENT, globals_.STATS, globals_.MAKERS, globals_.CREATE)


class Program:
    """A program file, mapped as when it is loaded, as far as the functions from which offsets are derived need it."""

    def __init__(self, path: str, name: str) -> None:
        self.arch = X86_64._replace(name=name)
        with open(path, "rb") as file:
            self.data = file.read()
        head = elf.header(self.data)
        self.loads = [one for one in elf.segments(self.data, head) if one.type == elf.PT_LOAD]
        self.found: dict[str, Symbol] = {}
        for table in elf.tables_of_file(self.data, head):
            self._names(table, {name for names in FUNCTIONS for name in names})
        self.relocated = {}
        for section in elf.sections(self.data, head):
            if section.name == ".rela.dyn":
                rows = struct.iter_unpack("<QQq", self.data[section.offset : section.offset + section.size])
                self.relocated = {at: 16 for at, info, _ in rows if info & 0xFFFFFFFF == PER_THREAD[head.machine]}

    def _names(self, table: elf.Table, wanted: Iterable[str]) -> None:
        strings = bytes(table.strings)
        places = {strings.find(b"\0" + name.encode() + b"\0") + 1: name for name in wanted}
        for place, _, _, _, value, size in struct.iter_unpack(table.form, table.symbols):
            if place in places and place:
                self.found[places[place]] = Symbol(places[place], value, size)

    def symbol(self, name: str) -> Optional[Symbol]:
        return self.found.get(name)

    def read(self, address: int, size: int) -> bytes:
        for load in self.loads:
            if load.vaddr <= address and address + size <= load.vaddr + load.filesz:
                at = address - load.vaddr + load.offset
                return self.data[at : at + size]
        raise UnreadableMemory(address, size)

    read_code = read

    def word(self, address: int) -> int:
        return self.relocated.get(address) or int.from_bytes(self.read(address, 8), "little")


@pytest.fixture(params=nodes.ON_ARM)
def both(request: pytest.FixtureRequest) -> tuple[Program, Program]:
    return Program(nodes.get(request.param), "x86-64"), Program(nodes.on_arm(request.param), "AArch64")


def test_the_same_offsets(both: tuple[Program, Program]) -> None:
    """Offsets within V8's structures are the same. Offsets in the isolate have the same differences, but each mutex before them is 8
    bytes longer on AArch64 (glibc, pthread_mutex_t)."""
    fields = [layout._count_fields(layout.code_of(one, layout.COUNT) or ()) for one in both]
    levels = [layout._level(layout.code_of(one, layout.ENTER) or (), found[1]) for one, found in zip(both, fields) if found is not None]
    nodes_of = [globals_.derive(one) for one in both]
    x86, arm = fields
    assert x86 is not None and arm is not None
    assert x86[2:] == arm[2:]
    assert (levels[0] - x86[1], x86[0] - x86[1]) == (levels[1] - arm[1], arm[0] - arm[1]) == (16, 32)
    first, second = nodes_of
    assert first is not None and second is not None
    assert astuple(first)[1:] == astuple(second)[1:]
    apart = {arm[0] - x86[0], arm[1] - x86[1], second.holder - first.holder}
    assert len(apart) == 1
    assert apart.pop() in (0, 8, 16, 24, 32, 40)


def test_how_a_thread_finds_its_isolate(both: tuple[Program, Program]) -> None:
    (key, local), (arm_key, arm_local) = (layout._current(one) for one in both)
    assert bool(key) == bool(arm_key)
    assert local == arm_local == (0 if key else 16)
    if key:
        with pytest.raises(layout.Underivable, match=r"AArch64 .* thread-specific data"):
            layout.derive(both[1])
    else:
        assert layout.derive(both[1]).handles == 1022
