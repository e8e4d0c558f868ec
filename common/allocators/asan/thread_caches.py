"""The threads' caches of free chunks. They contain 32-bit offsets, and two adjacent offsets may
look like a pointer.

Source: sanitizer_common/sanitizer_allocator_local_cache.h of LLVM 12 to 19
(SizeClassAllocator64LocalCache): for each class {count 4, max_count 4, class_size 8, offsets}."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from findleaks.allocators.asan.layout import CHUNK_CLASSES, class_size
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.target.base import Range
from findleaks.target.ranges import nonzero_pieces

OFFSETS = 256  # offsets of a class: twice kMaxNumCachedHint
CLASS = 16 + 4 * OFFSETS  # bytes of a class
CLASS_SIZE = 8
COUNT = CHUNK_CLASSES.stop + 1  # classes, with one at each end that has no chunks


def caches(memory: Memory, engine: Engine, ranges: Iterable[Range]) -> Iterator[Range]:
    """Yield the thread caches in these ranges. They are identified by the sizes of the classes, in
    order. Raises Interrupted."""
    sizes = [class_size(number) for number in range(1, CHUNK_CLASSES.stop)]
    for start, end in ranges:
        for piece in nonzero_pieces(memory.target, start, end):
            if memory.target.is_interrupted():
                raise Interrupted
            for address in engine.search(piece, sizes[0], sizes[0] + 1):
                if all(memory.word(address + number * CLASS) == size for number, size in enumerate(sizes)):
                    base = address - CLASS_SIZE - CLASS
                    yield Range(base, base + COUNT * CLASS)
