"""Read blocks of JNI handles.

A JNIHandleBlock contains 32 places for handles, the number of handles in use, and the address of
the next block. A thread has a list of blocks in use, and a list of free blocks. A block of the
first list contains handles only if all previous blocks are full. Handles that are no longer in use
are not cleared, so they are stale. C++ code of the JVM, such as the compilers, and native methods
leave many stale handles. Up to JDK 17, a thread that ends adds its blocks to a list of free blocks
to which a variable of libjvm refers. The first handle is often that of the thread's Thread object.

Sources: OpenJDK 8, 11, 17, 21 and 25, src/hotspot/share/runtime/jniHandles.hpp and jniHandles.cpp
(in 8, src/share/vm/runtime): JNIHandleBlock::oops_do, allocate_handle, release_block;
runtime/thread.hpp and javaThread.hpp: `_free_handle_block` follows `_active_handles`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

from findleaks.allocators.bulk import find_pointers_into
from findleaks.allocators.directory import Directory
from findleaks.engine.contract import Engine
from findleaks.runtimes.jvm.spaces import heap_addresses
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.jvm.threads import java_threads
from findleaks.target.base import Range
from findleaks.target.ranges import nonzero_pieces

_MOST_BLOCKS = 1 << 16  # blocks that are read, of all lists together
_HANDLES = 32  # places for handles in a block
_MOST_PADDING = 40  # usable bytes of malloc's block after a JNIHandleBlock


def handle_blocks(tables: Tables, first: Optional[int]) -> Iterator[int]:
    """Yield the addresses of the blocks of a list of JNI handles."""
    for _ in range(_MOST_BLOCKS):
        if not first:
            return
        yield first
        first = tables.word("JNIHandleBlock", "_next", first)


def active_handles(tables: Tables, thread: int) -> Optional[int]:
    """Return the address of the first JNIHandleBlock in use of a JavaThread."""
    return tables.word("JavaThread", "_active_handles", thread) or tables.word("Thread", "_active_handles", thread)


def handles(tables: Tables, block: Optional[int]) -> Iterator[tuple[int, int]]:
    """Yield the address of each JNI handle in use in a list of blocks, and the object that the
    handle refers to."""
    for one in handle_blocks(tables, block):
        place, top = _read_used(tables, one)
        words = tables.memory.words(place, top) if place and top else None
        objects = enumerate(map(tables.decode_oop, words or ()))
        yield from ((place + number * tables.memory.size, one) for number, one in objects if one)
        if top < _HANDLES:
            return


def stale_handles(tables: Tables) -> Iterator[int]:
    """Yield the addresses of the unused handles in the blocks of Java threads."""
    word = tables.memory.size
    # In damaged memory, several lists may contain one block. Each block is read only once.
    seen: set[int] = set()
    for thread in java_threads(tables):
        first = active_handles(tables, thread) if thread else None
        is_used = True
        for block in _iterate_unseen(tables, first, seen):
            place, top = _read_used(tables, block)
            yield from range(place + (top if is_used else 0) * word, place + _HANDLES * word, word)
            is_used = is_used and top == _HANDLES
        for block in _iterate_unseen(tables, _free_block(tables, thread) if first else None, seen):
            place, _ = _read_used(tables, block)
            yield from range(place, place + _HANDLES * word, word)


def released_handles(tables: Tables, engine: Engine, data: Iterable[Range], directory: Directory) -> Iterator[Range]:
    """Yield the handles of each free block of threads that have ended. `data`: the writable data of
    libjvm."""
    size, heaps = tables.sizes.get("JNIHandleBlock", 0), directory.ranges()
    if not size or not heaps:
        return
    # In JDK 8, lists of global handles are of the same kind.
    used = {tables.word("JNIHandles", name) for name in ("_global_handles", "_weak_global_handles")}
    seen: set[int] = set()
    for start, end in data:
        for piece in nonzero_pieces(tables.target, start, end):
            _, values = find_pointers_into(engine, piece, [Range(heaps[0].start, heaps[-1].end)])
            for first in _list_sized(directory, values, size):
                blocks = _list_sized(directory, list(_iterate_unseen(tables, first, seen)), size) if first not in used else ()
                if any(_begins_with_handle(tables, block) for block in blocks):
                    places = (_read_used(tables, block)[0] for block in blocks)
                    yield from (Range(place, place + _HANDLES * tables.memory.size) for place in places)


def _list_sized(directory: Directory, addresses: Sequence[int], size: int) -> list[int]:
    """Return those addresses that are in a block of malloc with the size of a JNIHandleBlock."""
    sizes = directory.blocks.find_all(addresses)[1]
    return [address for address, one in zip(addresses, sizes) if 0 <= one - size < _MOST_PADDING]


def _begins_with_handle(tables: Tables, block: int) -> bool:
    """Return whether the first handle of a block refers to the Java heap. The JVM does not clear
    the memory of a new block, so that other places may have any value."""
    heap, references, (place, _) = heap_addresses(tables), tables.references, _read_used(tables, block)
    word = tables.memory.word(place) or 0 if place else 0
    if references is not None and references.has_colors:
        return references.decode(word) != 0
    return heap is not None and heap.start <= word < heap.end


def _iterate_unseen(tables: Tables, first: Optional[int], seen: set[int]) -> Iterator[int]:
    """Yield the blocks of a list. Stop before a block that was already read or is damaged."""
    for block in handle_blocks(tables, first):
        if block in seen or len(seen) == _MOST_BLOCKS or not _read_used(tables, block)[0]:
            return
        seen.add(block)
        yield block


def _read_used(tables: Tables, block: int) -> tuple[int, int]:
    """Return the address of the first handle of a block, and the number of handles in use; (0, 0)
    if the block is damaged."""
    place, top = tables.place("JNIHandleBlock", "_handles", block), tables.int32("JNIHandleBlock", "_top", block)
    return (place, top) if place and top is not None and top <= _HANDLES and block % tables.memory.size == 0 else (0, 0)


def _free_block(tables: Tables, thread: int) -> Optional[int]:
    """Return the address of the first free block of a JavaThread."""
    kind = "JavaThread" if ("JavaThread", "_active_handles") in tables.fields else "Thread"
    place = tables.place(kind, "_active_handles", thread)
    return tables.memory.word(place + tables.memory.size) if place else None
