"""Find typed memory outside of blocks: thread-local variables, and local variables of frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from findleaks.debuginfo.local_variables import Place
from findleaks.debuginfo.program_types import ProgramTypes
from findleaks.debuginfo.type_index import TypeIndex
from findleaks.debuginfo.type_table import TypeTable
from findleaks.libc.thread_local import thread_local_blocks
from findleaks.target import elf
from findleaks.target.base import Target
from findleaks.target.separate import is_c_library
from findleaks.types.once_values import find_once_state
from findleaks.unwind.frames import FrameRegisters, Unwinder
from findleaks.value_classes import NamedTuple

MOST_FRAMES = 64  # Innermost frames of a thread whose locals are read.
MOST_THREADS = 256  # Threads whose locals are read.
_ONCE = b"::OnceLock<"
_ALLOCATED = 2  # SHF_ALLOC: the section is in memory.


def list_unset(target: Target, table: TypeTable) -> set[int]:
    """Return the addresses of variables whose value was taken out, or not set: their state equals
    that in the module's file. If the file is not found, the variable is left out."""
    if _ONCE not in table.strings:
        return set()
    states = {number: find_once_state(table, number) for number in set(table.variable_types)}
    found = set()
    for address, number in zip(table.variable_addresses, table.variable_types):
        state = states[number]
        if state is not None:
            offset, size = state
            initial = _read_initial(target, address + offset, size)
            if initial is not None and initial == target.read(address + offset, size):
                found.add(address)
    return found


def _read_initial(target: Target, address: int, size: int) -> Optional[bytes]:
    """Return the bytes that the file of a module has for an address; None if it is not found."""
    module = next((one for one in target.modules() if one.start <= address < one.end), None)
    for data in target.debug_data(module) if module is not None else ():
        place = address - module.bias if module is not None else 0
        for one in elf.sections(data, elf.header(data)):
            if one.flags & _ALLOCATED and one.addr <= place and place + size <= one.addr + one.size:
                if one.type != elf.SHT_NOBITS:
                    return bytes(data[one.offset + place - one.addr :][:size])
                if one.name == ".bss":  # A separate debug file has no bytes of other sections.
                    return bytes(size)
    return None


class TypedRoot(NamedTuple):
    """A variable outside of blocks. `type` is its number in the program's table."""

    address: int
    type: int


def find_thread_locals(target: Target, index: TypeIndex, program: ProgramTypes) -> Iterator[TypedRoot]:
    """Yield the thread-local variables of all threads."""
    for block in thread_local_blocks(target):
        table = index.of(block.module)
        for one in table.thread_locals() if table is not None else ():
            address = block.range.start + one.address
            if address < block.range.end:
                yield TypedRoot(address, program.numbers[block.module.start][one.type])


def find_locals(target: Target, index: TypeIndex, program: ProgramTypes) -> Iterator[TypedRoot]:
    """Yield the local variables and parameters in memory of the frames of all threads, without
    those of the C library's own functions."""
    unwinder = Unwinder(target)
    for thread in target.threads()[:MOST_THREADS]:
        kept: list[FrameRegisters] = []
        frames = unwinder.trace_with_registers(thread, kept, MOST_FRAMES).frames
        for frame, caller, registers in zip(frames, frames[1:], kept):
            module = unwinder.module(frame.call)
            if module is None or is_c_library(module) or not index.has_quick_locals(module):
                continue
            for one in index.locals(module, frame.call - module.bias):
                base = caller.sp if one.place == Place.CFA else registers.registers.get(one.register)
                if one.place not in (Place.CFA, Place.REGISTER_MEMORY) or base is None:
                    continue
                yield TypedRoot(base + one.offset, program.numbers[module.start][one.type])
