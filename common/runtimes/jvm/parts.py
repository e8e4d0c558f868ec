"""Memory that is the JVM's own: Java heap, code cache, metaspace, class data archive, stacks of Java threads.

Sources: OpenJDK 17 and 21, src/hotspot/share: memory/heap.hpp, memory/virtualspace.hpp, memory/metaspace/virtualSpaceNode.hpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.runtimes.base import Part
from findleaks.runtimes.jvm.spaces import REGION, Space, reserved
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.jvm.threads import java_stacks
from findleaks.target.base import Range
from findleaks.target.ranges import merged

MOST_HEAPS = 64
MOST_NODES = 1 << 16
NODE = 3
"""Words of a metaspace's node that are read."""

LIST = 4

CONTEXTS = ("_ZN9metaspace16MetaspaceContext23_nonclass_space_contextE", "_ZN9metaspace16MetaspaceContext20_class_space_contextE")
PAGE = 4096


def parts(tables: Tables, spaces: Sequence[Space]) -> list[Part]:
    """Those that are there, in the order in which they are best read. `spaces` are the Java heap's."""
    made = (_java_heap(tables, spaces), _code_cache(tables), _metaspace(tables), _archive(tables), _stacks(tables))
    return [part for part in made if part is not None]


def _committed(tables: Tables, start: int, end: int) -> list[Range]:
    """What is accessible of a range that was reserved as a whole."""
    regions = tables.target.regions()
    found = [Range(max(r.start, start), min(r.end, end)) for r in regions if r.readable and r.start < end and start < r.end]
    return merged(found)


def _java_heap(tables: Tables, spaces: Sequence[Space]) -> Optional[Part]:
    whole = reserved(tables)
    if whole is None:
        return None
    used, detail = _used(spaces)
    reserve = f"{(whole.end - whole.start) >> 20:,} MiB reserved"
    return Part("Java heap", _committed(tables, *whole), used, False, f"{detail}, {reserve}" if detail else reserve)


def _used(spaces: Sequence[Space]) -> tuple[Optional[int], str]:
    """Bytes below the tops of the heap's spaces; None where these are not known."""
    used = sum(space.top - space.bottom for space in spaces)
    if not spaces or spaces[0].name != REGION:
        return (used, f"{len(spaces)} spaces") if spaces else (None, "")
    count = sum(space.top > space.bottom for space in spaces)
    return used, f"{count:,} regions of {(spaces[0].end - spaces[0].bottom) >> 20} MiB in use"


def _code_cache(tables: Tables) -> Optional[Part]:
    heaps = tables.word("CodeCache", "_heaps")
    length = tables.int32("GrowableArrayBase", "_len", heaps or 0)
    data = tables.word("GrowableArray<int>", "_data", heaps or 0)
    if not length or not data or length > MOST_HEAPS:
        return None
    found: list[Range] = []
    for heap in tables.memory.words(data, length) or ():
        space = tables.place("CodeHeap", "_memory", heap)
        low, high = tables.word("VirtualSpace", "_low", space), tables.word("VirtualSpace", "_high", space)
        if low and high and low < high:
            found.append(Range(low, high))
    return Part("code cache", merged(found), None, False, f"{length} heaps") if found else None


def _metaspace(tables: Tables) -> Optional[Part]:
    """The nodes of both lists of virtual spaces. A node begins with its next one, its base, and its size in bytes."""
    ranges: list[Range] = []
    reserved = 0
    for symbol in CONTEXTS:
        context = tables.symbol(symbol)
        context = tables.memory.word(context) or 0 if context else 0
        spaces = tables.memory.word(context + tables.memory.size) if context else None
        words = next((node for node in map(tables.memory.words, *_columns(tables, spaces or 0)) if _is_node(node)), None)
        for _ in range(MOST_NODES):
            if words is None or not _is_node(words):
                break
            base, size = words[1], words[2]
            ranges += [part for part in _committed(tables, base, base + size) if _writable(tables, part)]
            reserved += size
            words = tables.memory.words(words[0], NODE) if words[0] else None
    if not ranges:
        return None
    return Part("metaspace", merged(ranges), None, False, f"{reserved >> 20:,} MiB reserved")


def _columns(tables: Tables, spaces: int) -> tuple[Sequence[int], Sequence[int]]:
    """What the first words of a list of spaces point to: behind its name, and in 17 a table of functions, comes its first node."""
    words = tables.memory.words(spaces, LIST) or ()
    return words, [NODE] * len(words)


def _is_node(words: Optional[tuple[int, ...]]) -> bool:
    return words is not None and words[1] > 0 and words[2] > 0 and not (words[1] % PAGE or words[2] % PAGE)


def _writable(tables: Tables, part: Range) -> bool:
    return any(region.writable and region.start <= part.start < region.end for region in tables.target.regions())


def _archive(tables: Tables) -> Optional[Part]:
    base, top = tables.word("MetaspaceObj", "_shared_metaspace_base"), tables.word("MetaspaceObj", "_shared_metaspace_top")
    if not base or not top or base >= top:
        return None
    return Part("class data archive", _committed(tables, base, top), None)


def _stacks(tables: Tables) -> Optional[Part]:
    ranges = sorted(Range(base - size, base) for base, size in java_stacks(tables))
    return Part("stacks of Java threads", merged(ranges), None, False, f"{len(ranges):,} threads") if ranges else None
