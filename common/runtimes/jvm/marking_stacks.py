"""Find unused parts of the stack on which the Serial collector marks objects.

A Stack of the JVM is a list of segments. The Stack keeps a few segments that are not in use, and
does not clear them. They contain addresses of objects of the last full collection.

The JVM's tables of structures do not describe Stacks. Their members are found in libjvm's data: the
number of items in a segment, the maximum number of items, the maximum number of unused segments,
the number of items in the current segment and in all previous ones, the number of unused segments,
the address of the current segment, and that of the first unused one. The last word of a segment is
the address of the next one.

Sources: OpenJDK 8, src/share/vm/utilities/stack.hpp; 11, 17, 21 and 25,
src/hotspot/share/utilities/stack.hpp (StackBase, Stack); gc/serial/markSweep.hpp, in 25
serialFullGC.hpp (_marking_stack)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from findleaks.allocators.bulk import find_pointers_into
from findleaks.allocators.directory import Directory
from findleaks.engine.contract import Blocks, Engine
from findleaks.runtimes.jvm.tables import Tables
from findleaks.target.base import Range
from findleaks.target.ranges import nonzero_pieces

_MEMBERS = 8  # words from the number of items in a segment to the address of the first unused one
_MOST_ITEMS = 1 << 12  # of a segment
_MOST_UNUSED = 1 << 6  # segments
_MOST_PADDING = 40  # usable bytes of malloc's block after the items of a segment
_ITEM_WORDS = (1, 2)  # possible words of an item


def unused_segments(tables: Tables, engine: Engine, data: Iterable[Range], directory: Directory) -> Iterator[Range]:
    """Yield the items of segments that are not in use. `data`: the writable data of libjvm."""
    heaps, order = directory.ranges(), tables.memory.arch.byteorder
    for start, end in data if heaps else ():
        for piece in nonzero_pieces(tables.target, start, end):
            places, _ = find_pointers_into(engine, piece, [Range(heaps[0].start, heaps[-1].end)])
            for place in places:
                first = place - (_MEMBERS - 1) * tables.memory.size
                items = piece.data[first - piece.address :][: tables.memory.size] if first >= piece.address else b""
                # Few of the pointers are members of a stack, so the other words are read only if
                # the first one fits.
                if items and not 0 < int.from_bytes(items, order) <= _MOST_ITEMS:
                    continue
                members = tables.memory.words(first, _MEMBERS)
                if members is not None and _is_stack(members):
                    yield from _read_segments(tables, directory.blocks, members)


def _is_stack(members: Sequence[int]) -> bool:
    """Return whether words are the members of a Stack that has unused segments."""
    items, most, most_unused, current, previous, unused, _, _ = members
    is_possible = 0 < items <= _MOST_ITEMS and current <= items and 0 < unused <= most_unused <= _MOST_UNUSED
    return is_possible and most % items == previous % items == 0


def _read_segments(tables: Tables, blocks: Blocks, members: Sequence[int]) -> Iterator[Range]:
    items, unused, at = members[0], members[5], members[7]
    lengths = [items * words * tables.memory.size for words in _ITEM_WORDS]
    for _ in range(unused):
        found = blocks.lookup(at)
        padding = range(tables.memory.size, _MOST_PADDING + 1)
        length = next((one for one in lengths if found is not None and found[1] == at and found[2] - one in padding), 0)
        if not length:
            return
        yield Range(at, at + length)
        at = tables.memory.word(at + length) or 0
