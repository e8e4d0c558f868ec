"""Find the memory that HotSpot reserves for class metadata.

From JDK 16 on, two static variables refer to the lists of reserved ranges. In JDK 8 to 15, two
lists of type VirtualSpaceList exist. Debian's JDK 8 has no symbols of the variables that refer to
them. The lists of JDK 8 are therefore found by structure: a static variable of libjvm refers to a
list, the list begins with its first node, and a node contains its range twice.

Sources: src/hotspot/share/memory/metaspace/virtualSpaceNode.hpp of OpenJDK 11, 17 and 21;
src/share/vm/memory/metaspace.cpp of JDK 8 (VirtualSpaceNode, VirtualSpaceList)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from findleaks.runtimes.jvm.tables import Tables
from findleaks.target.base import Range

MAX_NODES = 1 << 16
MAX_STATIC = 1 << 20  # most bytes of static variables of libjvm that are read; JDK 8 has 380 KiB
LIST = 4  # words that are read of each list of nodes
PAGE = 4096
CONTEXTS = ("_ZN9metaspace16MetaspaceContext23_nonclass_space_contextE", "_ZN9metaspace16MetaspaceContext20_class_space_contextE")
OLD_LISTS = ("_ZN9Metaspace11_space_listE", "_ZN9Metaspace17_class_space_listE")
_NODE = 3  # words that are read of each node
_OLD_NODE = 10  # words that are read of each node of JDK 8 to 15
_OLD_SPACE = 8  # index in such a node of the first word of its VirtualSpace (low, high)
_RESERVED = (3, 2)  # index in a node of the first word of its ReservedSpace: JDK 8, JDK 11


def metaspace_nodes(tables: Tables) -> list[Range]:
    """Return the reserved ranges of class metadata, which are committed in part."""
    found = list(_new_nodes(tables))
    return found or list(_old_nodes(tables))


def _new_nodes(tables: Tables) -> Iterator[Range]:
    """Yield the range of each node of both lists. A node begins with the address of the next node,
    the start of its range, and the size of its range in bytes. In a list, the address of the first
    node follows the list's name and, in 17, the address of a table of functions."""
    for symbol in CONTEXTS:
        context = tables.symbol(symbol)
        context = tables.memory.word(context) or 0 if context else 0
        spaces = tables.memory.word(context + tables.memory.size) if context else None
        pointers = tables.memory.words(spaces or 0, LIST) or ()
        words = next(filter(_is_node, (tables.memory.words(pointer, _NODE) for pointer in pointers)), None)
        for _ in range(MAX_NODES):
            if words is None or not _is_node(words):
                break
            yield Range(words[1], words[1] + words[2])
            words = tables.memory.words(words[0], _NODE) if words[0] else None


def _is_node(words: Optional[tuple[int, ...]]) -> bool:
    return words is not None and words[1] > 0 and words[2] > 0 and not (words[1] % PAGE or words[2] % PAGE)


def _old_nodes(tables: Tables) -> Iterator[Range]:
    """Yield the range of each node of the lists of JDK 8 to 15."""
    seen: set[int] = set()
    for pointer in _old_lists(tables):
        first = tables.memory.word(pointer) or 0
        while first and first not in seen and len(seen) < MAX_NODES:
            words = tables.memory.words(first, _OLD_NODE)
            found = _old_range(words) if words is not None else None
            if words is None or found is None:
                break
            seen.add(first)
            yield found
            first = words[0]


def _old_range(words: tuple[int, ...]) -> Optional[Range]:
    """Return the range of a node; None if its ReservedSpace (start, number of bytes) and its
    VirtualSpace (low, high) differ."""
    low, high = words[_OLD_SPACE], words[_OLD_SPACE + 1]
    if 0 < low < high and not (low % PAGE or high % PAGE) and (low, high - low) in [words[at : at + 2] for at in _RESERVED]:
        return Range(low, high)
    return None


def _old_lists(tables: Tables) -> Iterator[int]:
    """Yield possible addresses of lists: the values of two static variables. If these
    variables have no symbols, and the JVM is JDK 8, yield the values of all static variables that
    refer to writable memory outside of libjvm."""
    named = [tables.symbol(name) for name in OLD_LISTS]
    if any(named):
        yield from filter(None, (tables.memory.word(place) for place in named if place))
    elif tables.word("CodeCache", "_heap"):
        yield from list_static_pointers(tables)


def list_static_pointers(tables: Tables) -> Iterator[int]:
    """Yield the aligned values of libjvm's static variables that are addresses of writable
    memory, each once."""
    module, memory = tables.module, tables.memory
    regions = [region for region in tables.target.regions() if region.writable and region.readable]
    within = [Range(max(one.start, module.start), min(one.end, module.end)) for one in regions]
    values: set[int] = set()
    left = MAX_STATIC
    for part in within:
        length = min(part.end - part.start, left)
        if length > 0:
            left -= length
            values.update(memory.words(part.start, length // memory.size) or ())
    lowest, highest = (regions[0].start, regions[-1].end) if regions else (0, 0)
    for value in values:
        if lowest <= value < highest and not value % memory.size and not module.start <= value < module.end:
            yield value
