"""Slots of Rust's Vec after the last element, and of VecDeque outside its elements.

Sources: std 1.95 library/alloc/src/vec/mod.rs, raw_vec/mod.rs, collections/vec_deque/mod.rs. A Vec
is {buffer, length}; a VecDeque is {buffer, first element, length}; a buffer is a pointer and a
capacity. rustc may reorder fields, and any structure with a pointer and two numbers may look the
same. Only debug information, which contains the offsets, identifies them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Optional

from findleaks.stale_slots.declared_types import standard_name
from findleaks.stale_slots.heap_memory import MAX_BLOCK, HeapMemory, HeapPointers, SequenceStorage, wastes_little
from findleaks.target.base import Range
from findleaks.target.ranges import subtract
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.debuginfo.members import Type

NEIGHBOURS = 3  # words on each side of the pointer that may contain the capacity

Around = Callable[[int], Iterable[tuple[int, "Type"]]]


class _VectorHead(NamedTuple):
    """The fields of a Vec or VecDeque, the head of its storage. `capacity`, `first` and `length`
    are counted in elements of `each` bytes."""

    start: int
    capacity: int
    first: int
    length: int
    each: int


def find_vectors(memory: HeapMemory, words: HeapPointers, around: Around) -> Iterator[SequenceStorage]:
    """Yield Vecs and VecDeques with heads among these words.
    `around` yields the declarations that contain a word (DeclaredTypes.around).

    An iterator that removes elements (drain, retain) first reduces the length, and then owns the
    elements beyond it. Therefore the caller must check that no other word refers to the head or to
    the storage."""
    for address, value in zip(words.addresses, words.values):
        if not _may_be_buffer(memory, address, value):
            continue
        memory.poll()
        for start, part in around(address):
            name = standard_name(part)
            head = _read_head(memory, start, part, name) if name in ("Vec", "VecDeque") else None
            if head is not None and head.start == value:
                whole = Range(head.start, head.start + head.capacity * head.each)
                yield SequenceStorage(Range(start, start + part.size), [whole], _find_unused(head))


def _may_be_buffer(memory: HeapMemory, address: int, value: int) -> bool:
    """Whether the words next to a pointer to a block may be a capacity and a length."""
    block = memory.block_at(value)
    if block is None or block.size > MAX_BLOCK:
        return False
    near = memory.words(address - NEIGHBOURS * memory.size, 2 * NEIGHBOURS + 1) or memory.words(address - memory.size, 4) or ()
    return any(0 < number <= block.size for number in near)


def _read_head(memory: HeapMemory, start: int, part: Type, name: str) -> Optional[_VectorHead]:
    """Return the fields of a Vec or VecDeque at `start`; None unless they fit each other and the
    block."""
    element = part.element()
    buffer, length = part.member("buf"), _read_number(memory, start, part, "len")
    first = _read_number(memory, start, part, "head") if name == "VecDeque" else 0
    if element is None or element.size <= 0 or buffer is None or length is None or first is None:
        return None
    fields = _read_buffer(memory, start + buffer[0], buffer[1])
    block = memory.block_at(fields[0]) if fields is not None else None
    if fields is None or block is None:
        return None
    found = _VectorHead(fields[0], fields[1], first, length, element.size)
    fits = wastes_little(block.size, found.capacity * found.each, memory.size)
    return found if fits and length <= found.capacity and (first < found.capacity or first == 0) else None


def _read_buffer(memory: HeapMemory, start: int, part: Type) -> Optional[tuple[int, int]]:
    """Return the pointer and the capacity of a RawVec. Since 1.83 they are in its member
    `inner`."""
    inner = part.member("inner")
    if inner is not None:
        start, part = start + inner[0], inner[1]
    pointer, capacity = part.member("ptr"), part.member("cap")
    if pointer is None or capacity is None or pointer[1].size != memory.size or capacity[1].size != memory.size:
        return None
    words = memory.word(start + pointer[0]), memory.word(start + capacity[0])
    return (words[0], words[1]) if words[0] is not None and words[1] is not None else None


def _read_number(memory: HeapMemory, start: int, part: Type, name: str) -> Optional[int]:
    found = part.member(name)
    return memory.word(start + found[0]) if found is not None and found[1].size == memory.size else None


def _find_unused(head: _VectorHead) -> list[Range]:
    """Return the parts of the storage that contain no elements. The elements of a VecDeque may wrap
    around to the start of the storage."""
    behind = head.first + head.length
    spans = [Range(head.first, min(behind, head.capacity)), Range(0, max(behind - head.capacity, 0))]
    free = subtract([Range(0, head.capacity)], [span for span in spans if span.end > span.start])
    return [Range(head.start + low * head.each, head.start + high * head.each) for low, high in free]
