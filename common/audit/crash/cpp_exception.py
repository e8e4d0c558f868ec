"""The C++ exception that nothing caught, found from the stack of the thread that terminated.

A thrown object lies in a block of malloc, after a header that ends in the unwinder's record. That
record begins with eight bytes that name language and vendor ("GNUCC++\\0"). The stack frame of
__cxa_throw contains the address of the record. Offsets from the record, with words of W bytes
(Itanium C++ ABI, "Exception Handling", 2.2.1; libstdc++'s unwind-cxx.h and libc++abi's
cxa_exception.h agree in this part):

    W = 8: -80   W = 4: -48   std::type_info *exceptionType
    0    _Unwind_Exception: exception_class (8 bytes) …
    32   the thrown object

std::rethrow_exception, which std::future::get calls, throws a dependent exception: its header has
no object, and the last byte of its class is 1 ("GNUCC++\\1"). The header contains the address of
the object that was thrown first: with libstdc++ in place of the type, with libc++abi (W = 8) in the
word before the type.

In std::logic_error, std::runtime_error and classes derived from them, the word after the vtable
pointer is a pointer to the text of what() (libstdc++'s __cow_string, libc++'s __libcpp_refstring).
A class that overrides what() returns another text. This text is known only if what() just returns a
literal, or an array or pointer in the object, in code that compilers generate for x86-64."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.audit.crash.abort_message import read_text
from findleaks.audit.crash.nested_exceptions import find_nested_parts
from findleaks.demangle import demangle_type
from findleaks.engine.terms import State
from findleaks.session import Session
from findleaks.target.arch import X86_64
from findleaks.target.base import Target, Thread
from findleaks.target.encoded_numbers import decode_signed
from findleaks.value_classes import NamedTuple

_MOST_NESTED = 8  # maximum number of exceptions inside another that are read
STACK = 64 << 10  # bytes of the stack that are searched
THROWN = 32  # bytes from the unwinder's record to the object
TYPE = {8: 80, 4: 48}
"""Distance in bytes from the type to the unwinder's record, by word size."""

_CLASSES = (0x474E5543432B2B00, 0x434C4E47432B2B00)  # "GNUCC++\\0", "CLNGC++\\0"
_DEPENDENT = tuple(one | 1 for one in _CLASSES)  # classes of dependent exceptions
_WITH_TEXT = {"St11logic_error", "St13runtime_error", "NSt3__111logic_errorE", "NSt3__113runtime_errorE"}
# The std::string of libstdc++. It begins with a pointer to its text.
_STRING = "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
_WHAT = 2  # number of what() in the vtable of std::exception, after two destructors
_LIBRARIES = ("libstdc++.", "libc++.", "libc++abi.")
_RETURNS = re.compile(
    rb"(?:\xf3\x0f\x1e\xfa)?(?:\x55\x48\x89\xe5\x48\x89\x7d\xf8)?"
    rb"(?:(?P<literal>\x48\x8d\x05.{4})|(?P<array>\x48\x8d\x47.)|(?P<pointer>\x48\x8b\x47.))\x5d?\xc3",
    re.DOTALL,
)
"""Code of a simple what(): optionally endbr64 and the prologue of an unoptimized function; then
`lea rax, [rip + literal]`, `lea rax, [rdi + offset]` or `mov rax, [rdi + offset]`; then the
return."""
_LONGEST_CODE = 32  # bytes of such a function
_PURE_VIRTUAL, _RAISING = "__cxa_pure_virtual", ("__cxa_throw", "__cxa_rethrow", "_Unwind_", "std::rethrow_exception")
_TERMINATE = ("std::terminate", "__cxxabiv1::__terminate", "__cxa_rethrow", "__cxa_throw")


class CppException(NamedTuple):
    """An exception. `type`: the demangled type. `what`: the text that what() returns, or a thrown
    string; "" if unknown. `nested`: the exceptions that are nested in this one, the outermost
    first."""

    type: str
    what: str
    nested: tuple[CppException, ...] = ()


def is_terminating(functions: list[str]) -> bool:
    """Whether one of these functions ends the process because of an exception."""
    return any(function.startswith(_TERMINATE) for function in functions)


def describe_termination(functions: Sequence[str]) -> str:
    """Return the message that libstdc++ prints if the process ended in one of these functions
    without an exception. Return "" if it did not end in this way."""
    if _PURE_VIRTUAL in functions:
        return "pure virtual method called"
    if any(one.startswith("std::terminate") for one in functions) and not any(one.startswith(_RAISING) for one in functions):
        return "terminate called without an active exception"
    return ""


def find_exception(session: Session, thread: Thread) -> Optional[CppException]:
    """Return the exception that the innermost frames refer to; None if there is none."""
    memory = Memory(session.target)
    for record in _records(session, memory, thread):
        outer, inner = _read_exception(session, memory, record + THROWN)
        nested: list[CppException] = []
        seen = {record + THROWN}
        while _is_thrown(memory, inner) and inner not in seen and len(nested) < _MOST_NESTED:
            seen.add(inner)
            one, inner = _read_exception(session, memory, inner)
            if one is None:
                break
            nested.append(one)
        if outer is not None:
            return outer._replace(nested=tuple(nested))
    return None


def _read_exception(session: Session, memory: Memory, thrown: int) -> tuple[Optional[CppException], int]:
    """Return the exception of a thrown object (None if it has no type), and the address of the
    thrown object that is nested in it (0 if there is none)."""
    record = _first_thrown(memory, thrown - THROWN)
    thrown = record + THROWN
    typeinfo = memory.word(record - TYPE[memory.size])
    parts = find_nested_parts(memory, typeinfo, thrown) if typeinfo else None
    names = session.types.primary_bases(typeinfo) if typeinfo else []
    type_name = demangle_type(names[0]) if names else ""
    if parts is not None:
        names = session.types.primary_bases(parts.typeinfo)
    if not type_name or not names:
        return None, 0
    return CppException(type_name, _text(session.target, memory, names, thrown)), parts.inner if parts is not None else 0


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
        if index >= 0 and blocks.state(index) == State.IN_USE and _exception_class(memory, word) in (*_CLASSES, *_DEPENDENT):
            yield word


def _is_thrown(memory: Memory, thrown: int) -> bool:
    """Whether the unwinder's record of an exception precedes the address `thrown`. If not, the
    exception that refers to this address is damaged."""
    return thrown > THROWN and _exception_class(memory, thrown - THROWN) in (*_CLASSES, *_DEPENDENT)


def _first_thrown(memory: Memory, record: int) -> int:
    """Return `record`, or, if it belongs to a dependent exception, the record of the exception to
    which this one refers."""
    if _exception_class(memory, record) not in _DEPENDENT:
        return record
    place = record - TYPE[memory.size]
    first = (memory.word(at) for at in (place, place - memory.size))
    objects = (one - THROWN for one in first if one and one > THROWN)
    return next((one for one in objects if _exception_class(memory, one) in _CLASSES), record)


def _exception_class(memory: Memory, address: int) -> int:
    return int.from_bytes(memory.read(address, 8), memory.arch.byteorder)


def _text(target: Target, memory: Memory, names: list[str], thrown: int) -> str:
    if names[0] in ("PKc", "Pc", _STRING):
        pointer = memory.word(thrown)
    elif "St9exception" in names and not _is_inherited(target, what := _what_function(memory, thrown)):
        pointer = _read_returned_address(memory, what, thrown)
    else:
        pointer = memory.word(thrown + memory.size) if _WITH_TEXT & set(names) else None
    return read_text(memory, pointer) if pointer else ""


def _what_function(memory: Memory, thrown: int) -> int:
    """Return the address of the object's function what(); 0 if this address is unreadable."""
    vtable = memory.word(thrown)
    return (memory.word(vtable + _WHAT * memory.size) if vtable else 0) or 0


def _is_inherited(target: Target, what: int) -> bool:
    """Return whether a function is a what() of the C++ library. Return True if this is unknown."""
    libraries = [one for one in target.modules() if one.path.rpartition("/")[2].startswith(_LIBRARIES)]
    if libraries:
        return any(one.start <= what < one.end for one in libraries)
    symbol = target.symbolize(what)
    return symbol is None or symbol.name.startswith("std::")


def _read_returned_address(memory: Memory, function: int, thrown: int) -> Optional[int]:
    """Return the address that a simple what() returns; None if its code does not match _RETURNS."""
    found = _RETURNS.match(memory.read(function, _LONGEST_CODE)) if memory.arch.name == X86_64.name else None
    if found is None:
        return None
    kind = found.lastgroup or ""
    if kind == "literal":
        return function + found.end(kind) + decode_signed(int.from_bytes(found[kind][3:], "little"), 32)
    member = thrown + decode_signed(found[kind][3], 8)
    return member if kind == "array" else memory.word(member)
