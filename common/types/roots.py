"""Find typed memory outside of blocks: thread-local variables, and local variables of frames."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.debuginfo.local_variables import Place
from findleaks.debuginfo.program_types import ProgramTypes
from findleaks.debuginfo.type_index import TypeIndex
from findleaks.libc.thread_local import thread_local_blocks
from findleaks.target.base import Target
from findleaks.target.separate import is_c_library
from findleaks.unwind.frames import FrameRegisters, Unwinder
from findleaks.value_classes import NamedTuple

MOST_FRAMES = 64  # Innermost frames of a thread whose locals are read.
MOST_THREADS = 256  # Threads whose locals are read.


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
