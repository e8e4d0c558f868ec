"""Find the exceptions inside a C++ exception: those that were handled when it was thrown.

std::throw_with_nested throws an object whose class derives from the given class and from
std::nested_exception, which refers to the exception that is being handled:

    std::_Nested_exception<E> : E, std::nested_exception     (libstdc++)
    std::__nested<E> : E, std::nested_exception              (libc++)
    std::nested_exception: vtable, then the address of the thrown object

Layout of the type of a class with several bases (__vmi_class_type_info; Itanium C++ ABI, 2.9.5):
vtable, name, flags (4 bytes), number of bases (4), then for each base its type and a word whose
bits from 8 on are the offset of the base in the object."""

from __future__ import annotations

from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.target.encoded_numbers import decode_signed
from findleaks.value_classes import NamedTuple

_NESTED = ("St17_Nested_exceptionI", "NSt3__18__nestedI")  # starts of the names of the class
_HOLDER = ("St16nested_exception", "NSt3__116nested_exceptionE")


class NestedParts(NamedTuple):
    """The bases of an object that std::throw_with_nested threw. `typeinfo`: the type that the
    program threw. `inner`: the address of the object that was thrown before; 0 if none."""

    typeinfo: int
    inner: int


def find_nested_parts(memory: Memory, typeinfo: int, thrown: int) -> Optional[NestedParts]:
    """Return the parts of a thrown object; None if std::throw_with_nested did not throw it."""
    if not _name(memory, typeinfo).startswith(_NESTED) or memory.int32(typeinfo + 2 * memory.size + 4) != 2:
        return None
    words = memory.words(typeinfo + 2 * memory.size + 8, 4)
    if words is None or words[1] >> 8 or _name(memory, words[2]) not in _HOLDER:
        return None
    offset = decode_signed(words[3], 8 * memory.size) >> 8
    return NestedParts(words[0], memory.word(thrown + offset + memory.size) or 0) if offset > 0 else None


def _name(memory: Memory, typeinfo: int) -> str:
    pointer = memory.word(typeinfo + memory.size) if typeinfo else None
    return memory.c_string(pointer, 256).decode("latin-1").lstrip("*") if pointer else ""
