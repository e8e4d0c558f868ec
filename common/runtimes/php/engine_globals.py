"""Find variables of PHP's engine by their values: the store of objects, the stacks of frames, and
the collector of cycles.

Sources: Zend/zend_globals.h (executor_globals), zend_objects_API.h (zend_objects_store),
zend_execute.h (zend_vm_stack), zend_gc.c (zend_gc_globals) of PHP 8.1 to 8.4. The offsets of the
variables differ between versions and builds. Their structures do not. In a thread-safe build, the
variables are in a block of malloc or in thread-local storage, and are not found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.allocators.base import size_at
from findleaks.allocators.bulk import find_pointers
from findleaks.allocators.images import find_images
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory

IS_OBJECT, TYPE_MASK = 8, 15  # IS_OBJECT and GC_TYPE_MASK of zend_types.h
LEAST = 1 << 12  # bytes of the smallest block that the variables refer to
LEAST_ROOTS = 1 << 13  # least entries of the collector's buffer; PHP allocates at least 16,384
MOST_OBJECTS = 1 << 28
MOST_PAGES = 1 << 12  # pages of a stack
LOOK = 64  # most objects of a store that are checked


class Store(NamedTuple):
    """The store of objects: an array of pointers at `table`. Its first `top` entries have been
    used."""

    table: int
    top: int


class Collector(NamedTuple):
    """The collector of cycles. `buffer` is the address of its list of possible roots of cycles."""

    buffer: int
    enabled: bool
    active: bool
    threshold: int
    roots: int
    runs: int
    collected: int


class Stack(NamedTuple):
    """A stack of frames. `frame` is the address of the innermost frame. `pages` are the pages of
    the stack, and `unused` are the parts of these pages after the last frame in each page."""

    frame: int
    pages: list[Range]
    unused: list[Range]


class EngineGlobals(NamedTuple):
    """The variables that were found."""

    store: Optional[Store]
    collector: Optional[Collector]
    stacks: Sequence[Stack]


class GlobalsSearch:
    """Searches the writable data of the file that contains PHP."""

    def __init__(self, target: Target, engine: Engine, directory: Directory, file: str) -> None:
        self._target, self._engine, self._blocks = target, engine, directory.blocks
        self._memory = Memory(target)
        self._ranges = directory.ranges()
        self._images = [image for image in find_images(target) if image.name == file]

    def find(self) -> EngineGlobals:
        """Return the variables that are found."""
        store: Optional[Store] = None
        collector: Optional[Collector] = None
        stacks: dict[int, Stack] = {}
        for address in self._pointers():
            store = store or self._store_at(address)
            collector = collector or self._collector_at(address)
            stack = self._stack_at(address)
            if stack is not None:
                stacks.setdefault(stack.pages[0].start, stack)
        return EngineGlobals(store, collector, list(stacks.values()))

    def _pointers(self) -> Iterator[int]:
        """Yield the addresses of words that refer to large blocks."""
        for image in self._images:
            for piece in image.pieces(self._target):
                for start, end in self._ranges:
                    addresses, values = find_pointers(self._engine, piece, start, end)
                    _, sizes = self._blocks.find_all(values)
                    yield from (address for address, size in zip(addresses, sizes) if size >= LEAST)

    def _store_at(self, address: int) -> Optional[Store]:
        """Return the zend_objects_store at an address, or None. It has object_buckets, top, size
        and free_list_head. Entry 0 is not used."""
        memory = self._memory
        table, top, size = memory.members(address, "PII") or (0, 0, 0)
        if not 1 < top <= size <= MOST_OBJECTS or size * memory.size > size_at(self._blocks, table):
            return None
        entries = memory.words(table, min(top, LOOK)) or ()
        objects = [(number, entry) for number, entry in enumerate(entries) if number and not entry & 1]
        heads = [(number, memory.members(entry, "III")) for number, entry in objects]
        sound = all(head is not None and head[1] & TYPE_MASK == IS_OBJECT and head[2] == number for number, head in heads)
        return Store(table, top) if heads and sound else None

    def _collector_at(self, address: int) -> Optional[Collector]:
        """Return the zend_gc_globals at an address, or None. It has buf, four flags of one byte
        (enabled, active, protected, full), unused, first_unused, gc_threshold, buf_size,
        num_roots, gc_runs and collected."""
        found = self._memory.members(address, "PIIIIIIII")
        if found is None or found[1] & ~0x01010101:
            return None
        buffer, flags, _, first, threshold, size, roots, runs, collected = found
        enabled, active = flags.to_bytes(4, self._memory.arch.byteorder)[:2]
        if size < LEAST_ROOTS or not 1 <= first <= size or roots > first or not threshold:
            return None
        if size * self._memory.size > size_at(self._blocks, buffer):
            return None
        return Collector(buffer, bool(enabled), bool(active), threshold, roots, runs, collected)

    def _stack_at(self, address: int) -> Optional[Stack]:
        """Return the stack whose vm_stack is at an address, or None.

        In executor_globals, vm_stack_top and vm_stack_end precede vm_stack, which refers to a page.
        vm_stack_page_size and current_execute_data follow. A page begins with its top, its end and
        the address of the previous page. In the newest page, the stored top is out of date."""
        memory, width = self._memory, self._memory.size
        top, end, page, _, frame = memory.words(address - 2 * width, 5) or (0, 0, 0, 0, 0)
        pages: list[Range] = []
        unused: list[Range] = []
        while page and len(pages) < MOST_PAGES:
            size = size_at(self._blocks, page) if page < top <= end else 0
            header = memory.words(page, 3) if size and end <= page + size else None
            if header is None or header[1] != end:
                break
            pages.append(Range(page, end))
            unused.append(Range(top, end))
            page = header[2]
            top, end = memory.words(page, 2) or (0, 0)
        return Stack(frame, pages, unused) if pages else None
