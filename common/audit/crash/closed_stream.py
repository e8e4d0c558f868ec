"""Recognise the use of a stdio stream after fclose(): the program called a function such as
fprintf() with a FILE whose memory is free, or contains other data now."""

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

_LEAST = _VTABLE + 8


class ClosedStream(NamedTuple):
    """A stream that was closed. `function`: the function of stdio that the program called, for
    example "fprintf". `address`: the stream. `is_freed`: whether its memory is free; otherwise it
    belongs to another block."""

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
        function = name_called(tracer, level).lstrip("_").removeprefix("IO_").removesuffix("_chk").removesuffix("_unlocked")
        register = next((one for one, names in _FUNCTIONS.items() if function in names), None)
        address = tracer.value(level, register) if register is not None else None
    except CapstoneMissing:
        return None
    blocks = session.directory.blocks
    index = blocks.find(address) if address is not None else -1
    if address is None or index < 0 or blocks.address(index) != address:
        return None
    is_freed = blocks.state(index) != State.IN_USE
    is_closed = is_freed or blocks.size(index) < _LEAST or not _is_in_module(session, address + _VTABLE)
    return ClosedStream(function, address, is_freed) if is_closed else None


def _is_in_module(session: Session, address: int) -> bool:
    """Whether the word at an address is an address in a module."""
    word = Memory(session.target).word(address) or 0
    return region_at(session.target.modules(), word) is not None


def describe_closed_stream(found: ClosedStream) -> str:
    """Return sentences about the stream."""
    what = "its memory is free" if found.is_freed else "its memory contains other data now"
    return (
        f"{found.function}() was called with the stream at {found.address:#x}, but {what}. "
        "Probable cause: the stream was used after fclose()."
    )
