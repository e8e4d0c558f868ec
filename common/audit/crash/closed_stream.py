"""Recognise the use of a stdio stream after fclose(): the program called a function such as
fprintf() with the address of memory that is free, or that does not contain a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.audit.crash.fortified import LIBC
from findleaks.audit.crash.imported_calls import name_called
from findleaks.audit.crash.value_origin import Tracer
from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.disasm.registers import RCX, RDI, RDX, RSI
from findleaks.engine.terms import State
from findleaks.session import Session
from findleaks.target.arch import X86_64
from findleaks.target.ranges import region_at
from findleaks.unwind.stacks import NamedFrame
from findleaks.value_classes import NamedTuple

_FUNCTIONS = {
    RDI: (
        "fclose",
        "fflush",
        "fprintf",
        "vfprintf",
        "fscanf",
        "fgetc",
        "getc",
        "feof",
        "fseek",
        "fseeko",
        "ftell",
        "ftello",
        "rewind",
        "pclose",
    ),
    RSI: ("fputs", "fputc", "putc", "ungetc"),
    RDX: ("fgets", "getline"),
    RCX: ("fwrite", "fread", "getdelim"),
}
"""By register: the functions of stdio whose stream is passed in this register."""

_VTABLE = 216
"""Offset in bytes of the pointer to the functions of a stream (struct _IO_FILE_plus in
libio/libioP.h of glibc, x86-64)."""

_LEAST = _VTABLE + 8  # bytes of the smallest stream
_MUSL = "libc.so"  # the name of musl's file


class ClosedStream(NamedTuple):
    """An address that was used as a stream. `function`: the function of stdio that the program
    called, for example "fprintf". `is_freed`: whether the memory at the address is free; otherwise
    it contains no stream, and possibly never did."""

    function: str
    address: int
    is_freed: bool


def find_closed_stream(session: Session, tracer: Tracer, frames: Sequence[NamedFrame]) -> Optional[ClosedStream]:
    """Return the stream if the thread is in a function of stdio; None if the stream is not closed,
    or is unknown. `frames`: the frames of the tracer, the innermost first."""
    level = next((at for at, frame in enumerate(frames) if not frame.module.startswith(LIBC)), 0)
    if not level or level >= len(tracer.frames) or tracer.target.arch.name != X86_64.name:
        return None
    try:
        # The name without the affixes of variants: "fprintf" for __fprintf_chk
        function = name_called(tracer, level).lstrip("_").removeprefix("IO_").removeprefix("isoc99_").removeprefix("isoc23_")
        function = function.removesuffix("_chk").removesuffix("_unlocked")
        register = next((one for one, names in _FUNCTIONS.items() if function in names), None)
        address = tracer.value(level, register) if register is not None else None
    except CapstoneMissing:
        return None
    blocks = session.directory.blocks
    index = blocks.find(address) if address is not None else -1
    if address is None or index < 0 or blocks.address(index) != address:
        return None
    state, size = blocks.state(index), blocks.size(index)
    if state in (State.FREE, State.CACHED):
        return ClosedStream(function, address, True) if size >= _LEAST else None
    if state != State.IN_USE or frames[0].module == _MUSL:
        return None
    functions = Memory(session.target).word(address + _VTABLE) if size >= _LEAST else 0
    is_stream = functions is None or region_at(session.target.modules(), functions) is not None
    return None if is_stream else ClosedStream(function, address, False)


def describe_closed_stream(found: ClosedStream) -> str:
    """Return sentences about the stream."""
    if found.is_freed:
        what = f"{found.function}() was called with the stream at {found.address:#x}, but its memory is free."
        return f"{what} Probable cause: the stream was used after fclose()."
    what = f"{found.function}() was called with {found.address:#x} as a stream, but this memory does not contain a stream."
    return f"{what} Possible causes: the stream was used after fclose(), the program overwrote it, or the address is not that of a stream."
