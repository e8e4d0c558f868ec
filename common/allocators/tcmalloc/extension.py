"""tcmalloc's own C++ objects, identified by their run-time types (Itanium C++ ABI).

tcmalloc itself leaks one block, which is not a leak of the program. Releases 2.7 to 2.15 create a
MallocExtension in the first call of malloc. When constructors run, they replace it by a
TCMallocImplementation, and do not free it (malloc_extension.cc, InitModule and Register).

The block is identified as follows. A variable of the image refers to a small object (the
TCMallocImplementation) with a long table of virtual functions, whose type has one base. The leaked
block is an object of this base, and contains only a pointer to the base's table of virtual
functions."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.allocators.tcmalloc.heap import TcmallocHeap
from findleaks.allocators.tcmallocs.page_map import WORD
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.target.base import Range
from findleaks.target.ranges import nonzero_pieces

MIN_SLOTS = 20

MAX_VARIABLES = 100_000  # pointers to spans that are examined


def find_replaced_extension(one: TcmallocHeap, blocks: Blocks) -> list[int]:
    """Return a list with the address of the leaked MallocExtension; [] if there is none."""
    spans = one.spans_of(1)
    if not spans:
        return []
    for base in dict.fromkeys(_bases(one, blocks)):
        for table in _tables(one, base):
            found = []
            for span in spans:
                for piece in nonzero_pieces(one.target, span.start, span.end):
                    for at in one.engine.search(piece, table, table + 1):
                        index = blocks.find(at)
                        if index >= 0 and blocks.state(index) == State.IN_USE:
                            found.append(at)
            if len(found) == 1:
                return found
    return []


def _bases(one: TcmallocHeap, blocks: Blocks) -> Iterator[int]:
    """Yield run-time types. Each is the only base of the type of an object to which a variable of
    the image refers."""
    memory, module = one.memory, one.place.image.module
    low, high = one.spans[0].start, one.spans[-1].end
    left = MAX_VARIABLES
    for piece in one.place.image.pieces(one.target):
        for at in one.engine.search(piece, low, high):
            left -= 1
            span = one.span_at(memory.word(at) or 0) if left > 0 else None
            if span is None or span.number not in (1, 2):  # up to 16 bytes
                continue
            table = memory.word(memory.word(at) or 0) or 0
            if module.start <= table < module.end and _slots(one, table):
                base = memory.word((memory.word(table - WORD) or 0) + 2 * WORD)
                if base and module.start <= base < module.end:
                    yield base


def _tables(one: TcmallocHeap, kind: int) -> Iterator[int]:
    """Yield the tables of virtual functions of this run-time type."""
    module = one.place.image.module
    for region in one.target.regions():
        part = Range(max(region.start, module.start), min(region.end, module.end))
        if region.readable and not region.executable and part.start < part.end:
            for piece in nonzero_pieces(one.target, *part):
                for at in one.engine.search(piece, kind, kind + 1):
                    if _slots(one, at + WORD):
                        yield at + WORD


def _slots(one: TcmallocHeap, table: int) -> bool:
    """Return whether a table of at least MIN_SLOTS functions of the image begins here."""
    module = one.place.image.module
    words = one.memory.words(table, MIN_SLOTS)
    return words is not None and all(module.start <= word < module.end for word in words)


MMAP = b"MmapSysAllocator"


def hints(one: TcmallocHeap) -> list[Range]:
    """Return the places of words that contain the end of MmapSysAllocator's last mapping, because
    this may be the address of a block (hint_ of system-alloc.cc, since 2.16). They are identified
    by the name of the run-time type, if it is readable."""
    memory, module, found = one.memory, one.place.image.module, []
    low, high = one.spans[0].start, one.spans[-1].end
    for piece in one.place.image.pieces(one.target):
        for at in one.engine.search(piece, low, high + 1):
            table = memory.word(at - WORD) or 0
            if not (memory.word(at) or 1) % memory.arch.page and module.start <= table < module.end:
                name = memory.words((memory.word((memory.word(table - WORD) or 0) + WORD) or 0), 4)
                if name is not None and MMAP in b"".join(word.to_bytes(WORD, "little") for word in name):
                    found.append(Range(at, at + WORD))
    return found
