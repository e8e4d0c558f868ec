"""Find Rust's panic message and its place from the stack of the thread that panicked.

Before a panic aborts, a function of the library calls the panic hook. The stack of this function
contains a PanicHookInfo (library/std/src/panicking.rs of Rust 1.60 to 1.95; PanicInfo before 1.81):

    payload: &dyn Any      address of the payload, its vtable
    [message               a pointer, before 1.81]
    location: &Location    file: &str (address, length); line: u32, column: u32

A vtable is {drop function or null, size, alignment, functions …}. The payload is a String (three
words in any order: capacity, address, length) or a &str (address, length). All of this is
recognised by its structure, so it is found in stripped programs, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.terms import State
from findleaks.session import Session
from findleaks.target.base import Range, Thread
from findleaks.target.ranges import range_at
from findleaks.value_classes import NamedTuple

STACK = 64 << 10  # bytes of the stack that are searched
LONGEST = 4096  # bytes of a message that are read
_LARGEST = 1 << 30  # bytes of a message
_MOST_LINES = 1 << 24
_RUNTIME = ("std::", "core::", "alloc::", "__rustc::", "rust_", "__rust")
"""Prefixes of the names of functions that implement panics."""


ALLOCATION_FAILURES = ("std::alloc::rust_oom", "alloc::alloc::handle_alloc_error")
"""Functions of Rust's libraries (1.36 to 1.95) that end the process if memory is exhausted."""


# The first word of the exceptions of panics, as bytes: first that of current versions
_CLASSES = (b"MOZ\0RUST", b"TSUR\0ZOM")
_LIBRARY = "library/core/src/panicking.rs:"  # the end of the path of this file contains this
PHASE = "looking for panics"
_MOST_EARLIER = 4  # earlier panics that are listed
_CAUSES = (40, 32)  # offsets of the payload in an exception, since and before Rust 1.73


class RustPanic(NamedTuple):
    """A panic. `message`: "" if the payload is not text. `place`: "src/main.rs:6:21". `earlier`:
    the messages of the panics during whose unwinding this one occurred."""

    message: str
    place: str
    earlier: tuple[str, ...] = ()


def describe_allocation_failure(functions: Sequence[str]) -> str:
    """Return a message if one of these functions ended the process because memory could not be
    allocated; "" otherwise."""
    return "memory allocation failed" if any(one.startswith(ALLOCATION_FAILURES) for one in functions) else ""


def is_panic_frame(function: str) -> bool:
    """Whether a function belongs to Rust's libraries."""
    return function.startswith(_RUNTIME) or (function.startswith("<") and function[1:].startswith(_RUNTIME))


def find_panic(session: Session, thread: Thread) -> Optional[RustPanic]:
    """Return the innermost panic that ended the process; None if there is none.

    If a destructor panics, or a function that cannot unwind, Rust's library panics a second time.
    Only the message of the earlier panic describes the cause."""
    found = next(_panics(session, thread), None)
    if found is None or _LIBRARY not in found.place:
        return found
    return found._replace(earlier=tuple(_unwinding_panics(session)))


def _unwinding_panics(session: Session) -> list[str]:
    """Return the messages of the exceptions in blocks in use. An exception is freed when it is
    caught.

    An exception is {class, cleanup function, two words of the unwinder, [address of a variable,
    since 1.73], &dyn Any} (library/panic_unwind/src/gcc.rs, library/unwind/src/libunwind.rs)."""
    memory, tables, blocks = Memory(session.target), session.types.vtables(), session.directory.blocks
    order = session.target.arch.byteorder
    found: dict[str, None] = {}
    for piece in session.pieces(session.heap_ranges(), PHASE):
        for value in (int.from_bytes(one[: memory.size], order) for one in _CLASSES):
            for address in session.engine.search(piece, value, value + 1):
                index = blocks.find(address)
                if index < 0 or blocks.address(index) != address or blocks.state(index) != State.IN_USE:
                    continue
                for offset in _CAUSES:
                    payload, vtable = memory.words(address + offset, 2) or (0, 0)
                    size = _payload_size(session, memory, vtable) if range_at(tables, vtable) else 0
                    if size:
                        found.setdefault(_message(memory, payload, size // memory.size))
                        break
    return [message for message in found if message][:_MOST_EARLIER]


def _panics(session: Session, thread: Thread) -> Iterator[RustPanic]:
    memory = Memory(session.target)
    word, tables = memory.size, session.types.vtables()
    for at in range(thread.sp & -word, thread.sp + STACK, word):
        words = memory.words(at, 4)
        if words is None:
            return
        if words[0] and range_at(tables, words[1]):
            # The location follows. Before Rust 1.81, the message is between the two.
            place = _location(memory, tables, words[2]) or _location(memory, tables, words[3])
            size = _payload_size(session, memory, words[1]) if place else 0
            if size:
                yield RustPanic(_message(memory, words[0], size // word), place)


def _payload_size(session: Session, memory: Memory, vtable: int) -> int:
    """Return the size in bytes of the values that this vtable belongs to; 0 if the address is not
    that of a vtable."""
    words = memory.words(vtable, 4)
    if words is None:
        return 0
    drop, size, alignment, function = words
    is_code = session.types.is_code
    plausible = 0 < size < LONGEST and alignment in (1, 2, 4, 8, 16) and is_code(function) and (not drop or is_code(drop))
    return size if plausible else 0


def _location(memory: Memory, tables: list[Range], address: int) -> str:
    """Return "src/main.rs:6:21" for the Location at an address; "" if there is none."""
    if range_at(tables, address) is None:
        return ""
    words = memory.words(address, 3)
    if words is None:
        return ""
    line, column = memory.int32(address + 2 * memory.size), memory.int32(address + 2 * memory.size + 4)
    name = _text(memory, words[0], words[1]).rstrip("\0")
    if not name.endswith(".rs") or not name.isprintable() or not line or not column or max(line, column) > _MOST_LINES:
        return ""
    return f"{name}:{line}:{column}"


def _message(memory: Memory, address: int, words: int) -> str:
    """Return the text of a payload that consists of two or three words; "" for other payloads."""
    values = memory.words(address, words) if words in (2, 3) else None
    if values is None:
        return ""
    if words == 2:
        return _text(memory, *values)
    candidates = ((pointer, length) for capacity, pointer, length in permutations(values) if 0 < length <= capacity < _LARGEST)
    return next(filter(None, (_text(memory, pointer, length) for pointer, length in candidates)), "")


def _text(memory: Memory, address: int, length: int) -> str:
    """Return the UTF-8 text at an address, at most LONGEST bytes; "" if the bytes are not text."""
    data = memory.read(address, min(length, LONGEST)) if address and 0 < length < _LARGEST else b""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        # The last character may be incomplete.
        return data[: error.start].decode("utf-8") if length > LONGEST - 4 <= error.start else ""
