"""Read the message that glibc printed before it ended the process with abort().

malloc ("double free or corruption (out)"), assert(), the stack protector and fortified functions
copy their message to memory that the variable `__abort_msg` refers to, for debuggers. Layout:
struct abort_msg_s { unsigned int size; char msg[]; } in include/stdlib.h of glibc 2.10 to 2.43;
`size` is the size of the mapping in bytes. libc.so.6 exports the variable (GLIBC_PRIVATE), so a
stripped library has it, too."""

from __future__ import annotations

from findleaks.allocators.memory import Memory
from findleaks.target.base import Target

VARIABLE = "__abort_msg"
LONGEST = 1024  # bytes of a message that are read at most


def read_abort_message(target: Target) -> str:
    """Return the message without the line end, unescaped; "" if there is none."""
    memory = Memory(target)
    symbol = target.symbol(VARIABLE)
    pointer = memory.word(symbol.address) if symbol is not None else None
    size = memory.int32(pointer) if pointer else None
    if not pointer or not size or size % target.arch.page:
        return ""
    return read_text(memory, pointer + 4, min(LONGEST, size - 4)).strip()


def read_text(memory: Memory, address: int, longest: int = LONGEST) -> str:
    """Return the text at `address` up to its NUL byte, at most `longest` bytes; "" if it cannot be
    read."""
    return memory.c_string(address, longest).decode("utf-8", "backslashreplace")
