"""Find buffers: the arrays in which containers store their elements.

The pointer to a buffer may have another type than the elements, such as a pointer to bytes. Then
the type of the container names the type of the elements. Often only a part of a buffer is in use.

Sources in Rust's library: alloc/src/vec/mod.rs (Vec), alloc/src/collections/vec_deque/mod.rs
(VecDeque, with head since 1.67), alloc/src/raw_vec/mod.rs (RawVecInner, which has a pointer to
bytes, since 1.83), hashbrown's src/raw/mod.rs (RawTable: the elements end at the control bytes)."""

from __future__ import annotations

import re
from typing import Optional

from findleaks.debuginfo.type_table import UNKNOWN, FieldKind, Kind, PartKind, TypeTable
from findleaks.engine.type_spread import LENGTHS, Flag, describe_capacity
from findleaks.types.embedding import STRUCTURES
from findleaks.value_classes import NamedTuple

_VECTOR = "alloc::vec::Vec<"
_DEQUE = "alloc::collections::vec_deque::VecDeque<"
_RAW_VECTOR = "alloc::raw_vec::RawVec<"
_GLOBAL = "alloc::alloc::Global>"  # The allocator of most containers.
_TABLES = ("hashbrown::raw::RawTable<", "hashbrown::raw::inner::RawTable<")
_STARTS = (_VECTOR, _DEQUE, *_TABLES)

DEEPEST = 8  # Most structs inside each other that are searched for a member.

DANGLING = (_VECTOR, _DEQUE, "alloc::rc::Weak<", "alloc::sync::Weak<")
"""Types of Rust whose pointer may be a number instead. In a container without a buffer, it is the
alignment of the elements (alloc/src/raw_vec/mod.rs, new_in). In Weak::new(), it is usize::MAX
(alloc/src/rc.rs)."""


_COUNTED = re.compile(
    r"_Vector_impl_data$|_Deque_impl_data$"
    r"|^(std::__1::(vector|__split_buffer)|alloc::raw_vec::RawVec(Inner)?|boost::container::vector_alloc_holder)<.*>$"
)
"""Types whose pointers refer to arrays."""
_ENDED = re.compile(r"_Vector_impl_data$|^std::__1::vector<")
"""Of these types, those that begin with two addresses: of the first element, and of the end of the
elements in use."""
_BOOST_VECTOR = "boost::container::vector_alloc_holder<"
"""Of these types, the one that begins with the address of the first element and the number of
elements in use (boost/container/vector.hpp, 1.74 to 1.83)."""


class Buffer(NamedTuple):
    """The buffer of a container: the offset of its pointer in the container, the bare type of the
    elements, and flags that indicate which of them are in use (Flag)."""

    pointer: int
    element: int
    flags: int


def find_array_flags(name: str) -> Optional[int]:
    """Return the flags of the first pointer of a type whose pointers refer to arrays (Flag); None
    for other types."""
    if not _COUNTED.search(name):
        return None
    return int(Flag.END if _ENDED.search(name) else Flag.LENGTH if name.startswith(_BOOST_VECTOR) else 0)


def find_buffer(table: TypeTable, number: int) -> Optional[Buffer]:
    """Return the buffer of a container type of Rust; None for other types, and for elements without
    pointers."""
    name = table.text(table.names[number])
    if not name.startswith(_STARTS):
        return None
    element = table.bare(next((part.type for part in table.parts_of(number) if part.kind == PartKind.TYPE_ARGUMENT), UNKNOWN))
    pointer = _find_pointer(table, number, 0)
    if pointer is None or table.kinds[element] not in (*STRUCTURES, Kind.POINTER) or not table.size_of(element):
        return None
    if name.startswith(_TABLES):
        return Buffer(pointer, element, int(Flag.TABLE))
    # The pointer of an empty vector is a small number.
    return Buffer(pointer, element, Flag.OPTIONAL | _length(table, number, pointer, name.startswith(_DEQUE)))


def find_capacity(table: TypeTable, number: int, name: str) -> Optional[tuple[int, int]]:
    """Return the offset of the capacity of a RawVec of Rust, and how many bytes each element has,
    as describe_capacity encodes it; None for other types."""
    if not name.startswith(_RAW_VECTOR) or not name.endswith(_GLOBAL):
        return None
    stride = next((table.size_of(part.type) for part in table.parts_of(number) if part.kind == PartKind.TYPE_ARGUMENT), 0)
    pointer, place = _find_pointer(table, number, 0), _find_member(table, number, "cap")
    if pointer is None or place is None:
        return None
    found = describe_capacity(stride or 0, pointer - place)
    return (place, found) if found else None


def _find_member(table: TypeTable, number: int, name: str) -> Optional[int]:
    """Return the offset of a member of a type, or of its member `inner`."""
    at = 0
    for _ in range(DEEPEST):
        fields = {one.name: one for one in table.fields_of(table.bare(number))}
        if name in fields or "inner" not in fields:
            return at + fields[name].offset if name in fields else None
        at, number = at + fields["inner"].offset, fields["inner"].type
    return None


def _find_pointer(table: TypeTable, number: int, depth: int) -> Optional[int]:
    """Return the offset of the first pointer in a type."""
    number = table.bare(number)
    if table.kinds[number] == Kind.POINTER:
        return 0
    if table.kinds[number] not in STRUCTURES or depth > DEEPEST:
        return None
    for one in sorted(table.fields_of(number), key=lambda one: one.offset):
        found = _find_pointer(table, one.type, depth + 1) if one.kind <= FieldKind.BASE and table.size_of(one.type) else None
        if found is not None:
            return one.offset + found
    return None


def _length(table: TypeTable, number: int, pointer: int, is_ring: bool) -> int:
    """Return the flags for the member `len`, which has the number of elements. Return 0 if `len` is
    not within reach after the pointer, or if a ring has no `head` in the word before `len`."""
    offsets = {one.name: one.offset for one in table.fields_of(number)}
    words, rest = divmod(offsets.get("len", pointer) - pointer, table.word)
    flags = Flag.LENGTH * words
    if rest or words <= 0 or flags & ~LENGTHS:
        return 0
    if not is_ring:
        return int(flags)
    return int(flags | Flag.RING) if offsets.get("head", -1) == offsets["len"] - table.word else 0
