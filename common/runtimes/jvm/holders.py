"""List the Java objects that may refer to native memory: objects with a word that is not a Java
reference.

Such a word may be a long that contains an address, as in java.nio.DirectByteBuffer. Several objects
may contain the address of the same block: a direct buffer, all views of it, and its Deallocator,
which frees the block. Buffers and views keep the address after the block was freed. Therefore a
block whose address is in a Deallocator is attributed to java.nio.DirectByteBuffer, even if other
objects contain the address, too. The same applies to a block whose address is in a buffer without a
Deallocator. All references of such a buffer are null. Netty and native libraries create such
buffers, and their own objects also contain the address.

Sources: OpenJDK 8, 17, 21 and 25, Direct-X-Buffer.java.template in java/nio; Netty 4.1,
PlatformDependent.java (allocateDirectNoCleaner); OpenJDK 21 and 25, jdk/internal/foreign:
NativeMemorySegmentImpl.java, SegmentFactories.java (allocateNativeInternal)."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.bulk import MOST_RANGES, find_pointers_into, read_records, search_ranges
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.dominators import NO_ROOT
from findleaks.engine.terms import NO_BLOCK, State
from findleaks.runtimes.base import Holders
from findleaks.runtimes.jvm.cleanup_classes import find_cleanup_classes
from findleaks.runtimes.jvm.engine import FIXED, MIRROR
from findleaks.runtimes.jvm.java_classes import JavaClass
from findleaks.runtimes.jvm.objects import JavaObjects
from findleaks.runtimes.object_graph import GARBAGE
from findleaks.runtimes.referrers import Referrers
from findleaks.target.base import Range, Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import merge_to_most, region_at

_WORD = 8
_SOME = 1 << 14  # buffers that are read together
_SMALL = 1 << 12  # bytes of the largest object that is read as a tuple of words
_SLICE = 1 << 20  # bytes of a larger object that are searched together
_MOST_BUFFERS = 1 << 14  # direct buffers whose blocks are compared
_LONGS = "long[]"
_FILLERS = ("int[]", "jdk.internal.vm.FillerElement[]")
"""Classes of the arrays with which the JVM fills gaps. Other arrays of int contain no addresses."""
SEGMENT = "jdk.internal.foreign.NativeMemorySegmentImpl"
_SEGMENT_CLEANUPS = ("jdk.internal.foreign.SegmentFactories$1", f"{SEGMENT}$1")
_OWNING = 2  # number of the first types that own all memory they refer to: buffers, arenas
BUFFER = "java.nio.DirectByteBuffer"
_DEALLOCATOR = f"{BUFFER}$Deallocator"
_VIEWS = (BUFFER, SEGMENT)  # their garbage owns no blocks
_BOX = "java.lang.Long"


def find_holders(
    objects: JavaObjects,
    engine: Engine,
    target: Target,
    native: Sequence[Range],
    kinds: Optional[memoryview],
    unused: Sequence[Range],
) -> Holders:
    """Return the objects that may refer to native memory.

    native: the allocators' heaps, sorted. kinds: the Kind of each object in the graph of all
    objects, which separates garbage from live objects; None if it is unknown. unused: sorted parts
    of the heap in which no object starts. Words in these parts are not references.

    The first type contains Deallocators, and buffers without a Deallocator. The second type
    contains the objects that free the memory of arenas. One type for each class follows. The types
    for garbage come last: first the garbage of Deallocators, then that of each class."""
    classes, count = objects.classes, len(objects.classes)
    numbers, may_refer = objects.numbers, [_may_refer(one, objects) for one in classes]
    indices = array("I", (index for index in _find_pointing(objects, engine, native) if may_refer[numbers[index]]))
    has_deallocators = any(one.name == _DEALLOCATOR for one in classes)
    first = count + _OWNING  # the type of the garbage of Deallocators
    live, garbage = array("I", range(_OWNING, first)), array("I", range(first + 1, first + 1 + count))
    known = {one.name for one in classes}
    cleanup = next((name for name in _SEGMENT_CLEANUPS if name in known), _SEGMENT_CLEANUPS[0])
    for number, one in enumerate(classes):
        if one.name == _DEALLOCATOR:
            live[number], garbage[number] = 0, first
        elif one.name == cleanup:
            live[number] = 1
        elif one.name == SEGMENT or (one.name == BUFFER and has_deallocators):
            garbage[number] = NO_ROOT  # the program no longer uses the address of a dead buffer
        elif one.name in _FILLERS:
            live[number] = garbage[number] = NO_ROOT  # they contain former objects
    nested, boxes = find_cleanup_classes(objects, engine, target, indices, native, kinds)
    for number, outer in nested.items():
        if live[number] >= _OWNING:  # Deallocators own their memory already
            live[number], garbage[number] = live[outer], garbage[outer]
    columns = objects.blocks.columns_of(indices)
    if kinds is None:
        types = array("I", (live[numbers[index]] for index in indices))
    else:
        types = array("I", ((garbage if kinds[index] in GARBAGE else live)[numbers[index]] for index in indices))
    for at in _find_plain_buffers(objects, engine, target, indices):
        if types[at] < first:
            types[at] = 0
    for at in (at for at, index in enumerate(indices) if index in boxes) if boxes else ():
        types[at] = NO_ROOT
    names = [BUFFER if one.name == _DEALLOCATOR else one.name for one in classes]
    addresses, sizes = array("Q", bytes(columns.address)), array("Q", bytes(columns.size))
    if unused:
        addresses, sizes, types = _add_unused(addresses, sizes, types, unused)
    all_names = [BUFFER, cleanup, *names, BUFFER, *names]
    return Holders(addresses, sizes, types, all_names, owning=_OWNING, garbage=first, owning_garbage=1)


def find_example(holders: Holders, name: str) -> Optional[int]:
    """Return the address of one of the largest live objects of the class `name` that may refer to
    native memory. Return None if there is none. Most arrays of numbers, and objects that were
    closed, contain no address. For direct buffers, use `find_buffer`."""
    numbers = {number for number in range(holders.garbage) if holders.names[number] == name}
    found = [(size, address) for address, size, number in zip(holders.addresses, holders.sizes, holders.types) if number in numbers]
    most = max(found, default=(0, 0))[0]
    largest = [address for size, address in found if size == most]
    return largest[len(largest) // 2] if largest else None


def find_buffer(holders: Holders, objects: JavaObjects, contents: Memory, blocks: Blocks) -> Optional[int]:
    """Return the address of one of the live direct buffers that refer to the blocks in use of one
    size, the size that takes the most memory. Return None if there is none. `blocks`: those of the
    allocators. Buffers of mapped files, and empty ones, own no block. Raises Interrupted."""
    numbers = {number for number in range(holders.garbage) if holders.names[number] == BUFFER}
    found = [(address, size) for address, size, number in zip(holders.addresses, holders.sizes, holders.types) if number in numbers]
    buffers: dict[int, list[int]] = {}
    for address, size in interruptible(contents.target, found[:: -(-len(found) // _MOST_BUFFERS) or 1]):
        if objects.name_of(objects.index_of(address)) == BUFFER:
            known = filter(None, map(blocks.lookup, contents.words(address, size // _WORD) or ()))
            largest = max((length for _, _, length, state in known if state == State.IN_USE), default=0)
            buffers.setdefault(largest, []).append(address)
    buffers.pop(0, None)
    some = max(buffers.items(), key=lambda one: (one[0] * len(one[1]), one[0]), default=(0, []))[1]
    return some[len(some) // 2] if some else None


def list_referrers(holders: Holders, objects: JavaObjects, engine: Engine, contents: Memory, memory: Sequence[Range]) -> list[Referrers]:
    """Return the objects that refer to `memory`, by class. The class with the most objects comes
    first. Of classes with equally many objects, inner classes come last, because they often only
    free the memory that another class uses, such as FileChannelImpl$Unmapper for DirectByteBuffer.
    `holders`: the holders that were found for `memory`. They include objects that refer only to
    gaps between its ranges. `memory`: sorted and disjoint. Garbage buffers are counted, although
    they own no blocks (`find_holders`): the JVM unmaps the file of a buffer after it has collected
    it. The java.lang.Long of an address, which the JDK needs to create a buffer, comes last.
    Raises Interrupted."""
    live: dict[str, list[int]] = {}
    garbage: Counter[str] = Counter()
    used: dict[str, set[Range]] = {}
    searched = merge_to_most(memory, MOST_RANGES)
    for address, size, number in interruptible(contents.target, zip(holders.addresses, holders.sizes, holders.types)):
        name = holders.names[number] if number != NO_ROOT else objects.name_of(objects.index_of(address))
        is_owner = number != NO_ROOT or name in _VIEWS
        ranges = _find_ranges(address, size, engine, contents, memory, searched) if is_owner else None
        if ranges:
            used.setdefault(name, set()).update(ranges)
            found = live.setdefault(name, [])
            if number < holders.garbage:
                found.append(address)
            else:
                garbage[name] += 1
    sizes = {name: sum(end - start for start, end in ranges) for name, ranges in used.items()}
    rows = [Referrers(name, len(found), garbage[name], found[len(found) // 2] if found else 0, sizes[name]) for name, found in live.items()]
    return sorted(rows, key=lambda one: (one.type == _BOX, -one.objects, -one.garbage, "$" in one.type, one.type))


def _find_ranges(
    address: int, size: int, engine: Engine, contents: Memory, memory: Sequence[Range], searched: Sequence[Range]
) -> set[Range]:
    """Return the ranges of `memory` to which an object of `size` bytes refers. `searched`: a few
    ranges that cover `memory`. An array may have more than 1 GiB, so large objects are searched in
    slices."""
    if size <= _SMALL:
        words = contents.words(address, size // _WORD) or ()
        return {found for found in (region_at(memory, word) for word in words) if found is not None}
    ranges: set[Range] = set()
    for start in interruptible(contents.target, range(address, address + size, _SLICE)):
        for piece in contents.target.pieces(start, min(start + _SLICE, address + size)):
            _, values = find_pointers_into(engine, piece, searched)
            ranges.update(found for found in (region_at(memory, word) for word in set(values)) if found is not None)
    return ranges


def _find_pointing(objects: JavaObjects, engine: Engine, native: Sequence[Range]) -> Sequence[int]:
    """Return the indices of the objects with a word that points into `native`, ascending. Even in a
    large heap, there are few such objects."""
    found: set[int] = set()
    searched = merge_to_most(native, MOST_RANGES)
    for piece in objects.pieces():
        words = search_ranges(engine, piece, searched)
        if words:
            found.update(objects.blocks.find_all(words)[0])
    return sorted(found - {NO_BLOCK})


def _find_plain_buffers(objects: JavaObjects, engine: Engine, target: Target, indices: Sequence[int]) -> Iterator[int]:
    """Yield the positions in `indices` of the direct buffers whose references are all null."""
    references, numbers = objects.layout.references, objects.numbers
    classes = {number: one for number, one in enumerate(objects.classes) if one.name == BUFFER and one.kind == FIXED}
    places = [at for at, index in enumerate(indices) if numbers[index] in classes]
    size = max((one.size for one in classes.values()), default=0)
    for first in interruptible(target, range(0, len(places), _SOME)):
        some = places[first : first + _SOME]
        starts = [objects.blocks.address(indices[at]) for at in some]
        data, _ = read_records(target, engine, starts, size)
        for number, at in enumerate(some):
            offsets = classes[numbers[indices[at]]].reference_offsets(references.size)
            if not any(references.decode_at(data, number * size + offset, target.arch.byteorder) for offset in offsets):
                yield at


def _add_unused(
    addresses: array[int], sizes: array[int], types: array[int], unused: Sequence[Range]
) -> tuple[array[int], array[int], array[int]]:
    """Return the columns with the unused parts inserted, whose type is NO_ROOT."""
    made, lengths, kinds = array("Q"), array("Q"), array("I")
    first = 0
    for start, end in unused:
        at = bisect_left(addresses, start, first)
        made += addresses[first:at]
        lengths += sizes[first:at]
        kinds += types[first:at]
        start = max(start, made[-1] + lengths[-1]) if made else start
        if start < end and not (at < len(addresses) and addresses[at] < end):
            made.append(start)
            lengths.append(end - start)
            kinds.append(NO_ROOT)
        first = at
    return made + addresses[first:], lengths + sizes[first:], kinds + types[first:]


def _may_refer(one: JavaClass, objects: JavaObjects) -> bool:
    """Return whether an instance has an aligned word in which there is no Java reference."""
    if one.kind != FIXED:
        return one.kind == MIRROR or one.name == _LONGS or one.name in _FILLERS
    header = objects.layout.header
    first = header.klass_at + header.klass_bytes
    taken = {offset // _WORD for offset in one.reference_offsets(objects.layout.references.size)}
    return any(word not in taken for word in range(-(-first // _WORD), one.size // _WORD))
