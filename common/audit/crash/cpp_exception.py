"""The C++ exception that nothing caught, found from the stack of the thread that terminated.

A thrown object lies in a block of malloc, behind a header that ends in the unwinder's record. That
record begins with eight bytes that name language and vendor ("GNUCC++\\0"), and the stack of
__cxa_throw refers to it. Layout (Itanium C++ ABI, "Exception Handling", 2.2.1; libstdc++'s
unwind-cxx.h and libc++abi's cxa_exception.h agree in the part that is used here):

    W = 8: -80   W = 4: -48   std::type_info *exceptionType
    0    _Unwind_Exception: exception_class (8 bytes) …
    32   the thrown object

std::logic_error and std::runtime_error, and what derives from them, keep the text of what() behind
the object's vtable: libstdc++'s __cow_string and libc++'s __libcpp_refstring are pointers to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.audit.crash.abort_message import read_text
from findleaks.demangle import demangle_type
from findleaks.engine.terms import State
from findleaks.session import Session
from findleaks.target.base import Thread

STACK = 64 << 10  # bytes of the stack that are searched
THROWN = 32  # bytes from the unwinder's record to the object
TYPE = {8: 80, 4: 48}
"""Distance in bytes from the type to the unwinder's record, by word size."""

_CLASSES = (0x474E5543432B2B00, 0x434C4E47432B2B00)  # "GNUCC++\\0", "CLNGC++\\0"
_WITH_TEXT = {"St11logic_error", "St13runtime_error", "NSt3__111logic_errorE", "NSt3__113runtime_errorE"}
_TERMINATE = ("std::terminate", "__cxxabiv1::__terminate", "__cxa_rethrow", "__cxa_throw")


class CppException(NamedTuple):
    """An exception. `type`: the demangled type. `what`: the text that what() returns, or a thrown C
    string; "" if unknown."""

    type: str
    what: str


def is_terminating(functions: list[str]) -> bool:
    """Whether one of these functions ends the process because of an exception."""
    return any(function.startswith(_TERMINATE) for function in functions)


def find_exception(session: Session, thread: Thread) -> Optional[CppException]:
    """Return the exception that the innermost frames refer to; None if there is none."""
    memory = Memory(session.target)
    for record in _records(session, memory, thread):
        typeinfo = memory.word(record - TYPE[memory.size])
        names = session.types.primary_bases(typeinfo) if typeinfo else []
        type_name = demangle_type(names[0]) if names else ""
        if type_name:
            return CppException(type_name, _text(memory, names, record + THROWN))
    return None


def _records(session: Session, memory: Memory, thread: Thread) -> Iterator[int]:
    """Yield the addresses of the unwinder's records that the thread's stack refers to. They are in
    blocks in use."""
    blocks = session.directory.blocks
    seen: set[int] = set()
    for at in range(thread.sp & -memory.size, thread.sp + STACK, memory.size):
        word = memory.word(at)
        if word is None:
            return
        if word in seen or word % 16:
            continue
        seen.add(word)
        index = blocks.find(word)
        if index >= 0 and blocks.state(index) == State.IN_USE and _exception_class(memory, word) in _CLASSES:
            yield word


def _exception_class(memory: Memory, address: int) -> int:
    return int.from_bytes(memory.read(address, 8), memory.arch.byteorder)


def _text(memory: Memory, names: list[str], thrown: int) -> str:
    if names[0] in ("PKc", "Pc"):
        pointer = memory.word(thrown)
    else:
        pointer = memory.word(thrown + memory.size) if _WITH_TEXT & set(names) else None
    return read_text(memory, pointer) if pointer else ""
