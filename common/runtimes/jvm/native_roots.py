"""Find the Java objects that native memory refers to. They are roots of the Java heap.

Each word that contains the address of an object counts as a root. These words are searched for in:

- libjvm's data.
- Blocks of malloc: the JVM has blocks with 64 or 32 handles of objects.
- Registers.
- The live parts of Java threads' stacks. There, half of a word may be a compressed reference,
  unless the word is the address of native memory or a small negative number.

A word may be stale. Therefore more objects may count as reachable than the collector would keep,
but never fewer.

The following memory is left out:

- Large blocks of malloc: they are work queues of the collectors, and contain stale addresses.
- Blocks with handles of class loaders (loaders.py), because their objects live as long as the
  loader.
- Blocks with weak handles: these handles keep no object alive. JDK 8 has no OopStorage, but lists
  of blocks with 32 handles, and a table of protection domains.
- Tables of the collectors that contain one address in each region of the heap, and the structures
  with which G1 describes regions.
- The bounds of threads' buffers (TLABs), and of the buffers into which collectors copy objects
  (copy_buffers.py).
- Unused JNI handles of Java threads (jni_handles.py), unused parts of threads' arenas (arenas.py),
  and free chunks of arenas (chunk_pools.py).
- The words of a JavaThread that never refer to objects, and unused words of its stack of locks
  (thread_words.py).
- Monitors that no thread uses (object_monitors.py), and the table of interned strings
  (interned_strings.py).
- What follows a name of a class, a field or a method in its block (symbols.py).
- Previous values of references, which generational ZGC records for each thread.
- The code cache: compiled code lives as long as its classes.

Sources: OpenJDK 11, 17, 21 and 25, src/hotspot/share/gc/shared/oopStorage.hpp and
oopStorage.inline.hpp; OpenJDK 8, src/share/vm/runtime/jniHandles.hpp, classfile/dictionary.hpp and
utilities/hashtable.hpp; OpenJDK 21 and 25, src/hotspot/share/gc/z/zStoreBarrierBuffer.hpp."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import Enum
from functools import cached_property
from itertools import zip_longest
from typing import NamedTuple

from findleaks.allocators.bulk import find_pointers_into
from findleaks.allocators.directory import Directory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import NO_BLOCK, State
from findleaks.errors import Interrupted
from findleaks.libc.thread_state import waits_in_kernel
from findleaks.runtimes.jvm.arenas import find_others, unused_parts
from findleaks.runtimes.jvm.chunk_pools import free_chunks
from findleaks.runtimes.jvm.concurrent import shenandoah_regions
from findleaks.runtimes.jvm.copy_buffers import PLAB_SIZES, is_copy_buffer
from findleaks.runtimes.jvm.interned_strings import list_string_words
from findleaks.runtimes.jvm.jni_handles import handle_blocks, handles, released_handles, stale_handles
from findleaks.runtimes.jvm.marking_stacks import unused_segments
from findleaks.runtimes.jvm.object_monitors import idle_monitors
from findleaks.runtimes.jvm.oop_storages import ALIGNED, HANDLES, STORAGE_SIZES, read_storage_name
from findleaks.runtimes.jvm.references import BELOW, References
from findleaks.runtimes.jvm.spaces import buffer_words, has_region_bounds, region_addresses, region_size
from findleaks.runtimes.jvm.symbols import find_end_of_text
from findleaks.runtimes.jvm.tables import NMT_HEADER, Tables
from findleaks.runtimes.jvm.thread_words import words_without_objects
from findleaks.runtimes.jvm.threads import java_thread_stacks, java_threads
from findleaks.runtimes.object_graph import ObjectWord
from findleaks.target.base import Module, Piece, Range, Target, Thread
from findleaks.target.elf import occurrences
from findleaks.target.ranges import intersection, merge_ranges, nonzero_pieces, region_at

_LARGE = 64 << 10  # bytes; a block of malloc of this size or more is not read. Arenas have 32 KiB.
_MOST_PADDING = 40  # bytes around what a block of malloc contains
# The number of stores in a ZStoreBarrierBuffer, the usable bytes of its block, and the upper limit
# of a color
_STORES, _STORE_BUFFER_SIZES, _MOST_COLOR = 32, range(832, 896), 1 << 16
# Programs, libraries, stacks and blocks of malloc are above this address. The Java heap and the
# class space may be below it.
_LOWEST_NATIVE = 1 << 40
_LOWEST_NEGATIVE = (1 << 64) - (1 << 12)  # also the lowest error number of a system call
# Usable bytes of a block with entries of a hash table.
_TABLE_SIZES = tuple((1 << bits) + 8 for bits in range(10, 15))
# Names of weak handles: "JNI Weak"; in JDK 11 "VM Weak Oop Handles" and "StringTable weak".
_WEAK, _JNI_GLOBAL = " weak", "JNI Global"
_STACK = "stack of Java thread "


class RootKind(Enum):
    """The part of native memory in which the JVM refers to an object."""

    JNI_GLOBAL = "a JNI global reference"
    HANDLE = "another handle, or a static variable, of the JVM"
    THREAD = "the stack or the registers of a Java thread"
    OTHER = "other data of the JVM"


class RootObjects(NamedTuple):
    """The objects that one part of native memory refers to, by address. `stack`: the upper end of
    the stack of the Java thread, 0 if it is unknown."""

    kind: RootKind
    addresses: Sequence[int]
    stack: int = 0


class NativeRoots:
    """Finds the roots of the Java heap in native memory. `objects` has a block for each object of
    the heap. `bounds`: the addresses at which spaces of the heap begin and end. libjvm's variables
    have such addresses, too. Therefore such a word is not certain to be a reference to the first
    object of a space."""

    def __init__(
        self,
        tables: Tables,
        engine: Engine,
        directory: Directory,
        module: Module,
        objects: Blocks,
        references: References,
        bounds: Collection[int] = (),
    ) -> None:
        self._tables, self._engine, self._directory, self._module = tables, engine, directory, module
        self._objects, self._references, self._bounds = objects, references, bounds
        count = len(objects)
        self._low = objects.address(0) if count else 0
        self._high = objects.address(count - 1) + 1 if count else 0
        self._storages: dict[int, str] = {}
        self._weak_tables: dict[int, bool] = {}
        self._region_tables: dict[int, bool] = {}
        self._regions = region_addresses(tables) or shenandoah_regions(tables)
        self._region_size = region_size(tables) if region_addresses(tables) else 0
        self._text = (0, 0)  # the block that was searched last for text, and the end of its text
        data = list_data_ranges(self._tables.target, self._module)
        released = released_handles(tables, engine, data, directory)
        strings = tables.once(list_string_words, engine)
        self._unused_words = {*buffer_words(tables), *stale_handles(tables), *idle_monitors(tables), *strings}
        arenas = unused_parts(tables, find_others(tables, engine, directory, data))
        chunks = free_chunks(tables, engine, data, directory)
        segments = unused_segments(tables, engine, data, directory)
        self._unused_parts = merge_ranges([*arenas, *chunks, *released, *segments, *words_without_objects(tables)])

    def find_by_kind(self, excluded: Collection[int], unread: Sequence[Range]) -> Iterator[RootObjects]:
        """Yield objects, with the part of memory that refers to them. Blocks of malloc that contain
        one of the addresses in `excluded` are left out. `unread`: parts of the Java heap whose
        objects are unknown. Words in these parts count as roots, too."""
        if not self._objects:
            return
        for found in self._data():
            yield RootObjects(RootKind.HANDLE, [one for one in found if one not in self._bounds])
            yield RootObjects(RootKind.OTHER, [one for one in found if one in self._bounds])
        weak = handle_blocks(self._tables, self._tables.word("JNIHandles", "_weak_global_handles"))
        yield from self._blocks({self._directory.blocks.find(address) for address in (*excluded, *weak)})
        stacks = [(base, size) for _, base, size in java_thread_stacks(self._tables)]
        for thread in self._tables.target.threads():
            base = next((base for base, size in stacks if base - size <= thread.sp < base), 0)
            words = array("Q", (word for _, word in self._register_words(thread)))
            yield RootObjects(RootKind.THREAD if base else RootKind.OTHER, self._decode(words), base)
            if base:
                yield from (RootObjects(RootKind.THREAD, found, base) for found in self.words_in(Range(thread.sp & ~7, base)))
        for one in unread:
            yield from (RootObjects(RootKind.OTHER, found) for found in self.words_in(one))

    def words_in(self, memory: Range) -> Iterator[Sequence[int]]:
        """Yield the addresses of the objects to which words, or halves of words, in this memory
        refer."""
        for piece in self._tables.target.pieces(*memory):
            yield self._decode(array("Q", bytes(piece.data[: len(piece.data) // 8 * 8])))

    def words_to(self, start: int, excluded: Collection[int], name_thread: Callable[[int], str]) -> Iterator[ObjectWord]:
        """Yield the words with the address of the object at `start` that `find` counts as roots.
        `name_thread` returns the name of the thread that has this JavaThread, or ""."""
        target = self._tables.target
        for part in list_data_ranges(self._tables.target, self._module):
            for piece in nonzero_pieces(target, *part):
                yield from (ObjectWord(address, start) for address in self._search(piece, start))
        yield from sorted(self._block_words(start, excluded), key=lambda one: (not one.name, one.address))
        for thread in target.threads():
            found_in = {name for name, word in self._register_words(thread) if start in self._values(array("Q", [word]))}
            yield from (ObjectWord(0, start, "", name, thread.tid) for name in sorted(found_in))
        yield from self._stack_words(start, name_thread)

    def _block_words(self, start: int, excluded: Collection[int]) -> Iterator[ObjectWord]:
        """Yield the words in malloc's blocks. Words in a list of handles get the name of the
        list."""
        target = self._tables.target
        indices = {self._directory.blocks.find(address) for address in excluded}
        for low, high in self._directory.ranges():
            for piece in nonzero_pieces(target, low, high):
                if target.is_interrupted():
                    raise Interrupted
                for address in self._search(piece, start):
                    found = self._directory.blocks.lookup(address)
                    if found is not None and not self._is_unused(address) and self._may_refer(address, *found, indices):
                        name = self._storage_name(found[1]) if found[2] in STORAGE_SIZES else ""
                        name = name or self._old_handles.get(address, "")
                        yield ObjectWord(address, start, f"handle of the JVM: {name}" if name else "")

    @cached_property
    def _old_handles(self) -> dict[int, str]:
        """The names of handles by address: JDK 8 has no OopStorage. In JDK 8 and 11, each
        JavaThread refers to its Thread object."""
        tables = self._tables
        found: dict[int, str] = {}
        if tables.is_jdk8:
            found = dict.fromkeys((place for place, _ in handles(tables, tables.word("JNIHandles", "_global_handles"))), _JNI_GLOBAL)
        found.update((tables.place("JavaThread", "_threadObj", thread), "Thread") for thread in java_threads(tables))
        return found

    def _register_words(self, thread: Thread) -> Iterator[tuple[str, int]]:
        """Yield the words of a thread's registers, each with the name of its register. Vector
        registers of a thread that waits in the kernel are left out. C functions do not preserve
        these registers, and copies of arrays leave stale references in them."""
        waits = waits_in_kernel(self._tables.target, thread.pc)
        for name, word in zip_longest(thread.names, thread.words, fillvalue=""):
            is_vector = name != "" and name not in thread.registers
            if isinstance(word, int) and word <= 0xFFFFFFFFFFFFFFFF and not (is_vector and waits):
                yield name or "vector", word

    def _stack_words(self, start: int, name_thread: Callable[[int], str]) -> Iterator[ObjectWord]:
        size, base, shift, colors = self._references
        sources = [start, *(before for before, now in zip(*colors.young) if now == start)] if size == 4 else []
        for thread, part in self._stacks():
            for piece in self._tables.target.pieces(*part):
                places, memory = set(self._search(piece, start)), self._tables.memory
                for source in sources:
                    narrow = (source - base >> shift).to_bytes(4, memory.arch.byteorder)
                    halves = (piece.address + at for at in occurrences(bytes(piece.data), narrow))
                    places.update(at for at in halves if at % 4 == 0 and not self._is_whole(memory.word(at & ~7) or 0))
                yield from (ObjectWord(place, start, f"{_STACK}{name_thread(thread)}") for place in sorted(places))

    def _pointers(self, piece: Piece) -> tuple[array[int], array[int]]:
        """Return the addresses of the words in a piece that may refer to objects, and the addresses
        that they refer to. If a word may refer to several objects, its address occurs once for each
        of them."""
        references = self._references
        places, words = find_pointers_into(self._engine, piece, references.values(self._low, self._high))
        if references.are_addresses:
            return places, array("Q", words)
        pairs = [(place, one) for place, word in zip(places, words) for one in references.targets(word) if self._low <= one < self._high]
        return array("Q", (place for place, _ in pairs)), array("Q", (one for _, one in pairs))

    def _search(self, piece: Piece, start: int) -> Iterator[int]:
        """Yield the addresses of the words in a piece that refer to the object at `start`."""
        if self._references.are_addresses:
            return iter(self._engine.search(piece, start, start + 1))
        return (place for place, one in zip(*self._pointers(piece)) if one == start)

    def starts(self, addresses: Sequence[int]) -> list[int]:
        """Return the addresses at which an object begins; others are left out."""
        indices, _ = self._objects.find_all(addresses)
        found = self._objects.columns_of(indices).address
        return [one for one, index, start in zip(addresses, indices, found) if index != NO_BLOCK and one == start]

    def _data(self) -> Iterator[list[int]]:
        """Yield the objects to which libjvm's data refers."""
        for start, end in list_data_ranges(self._tables.target, self._module):
            for piece in nonzero_pieces(self._tables.target, start, end):
                yield self.starts(self._pointers(piece)[1])

    def _blocks(self, excluded: Collection[int]) -> Iterator[RootObjects]:
        """Yield the objects to which blocks of malloc refer."""
        target, blocks = self._tables.target, self._directory.blocks
        for start, end in self._directory.ranges():
            for piece in nonzero_pieces(target, start, end):
                if target.is_interrupted():
                    raise Interrupted
                places, values = self._pointers(piece)
                found = blocks.find_all(places)[0]
                known = blocks.columns_of(found)
                by_kind: dict[RootKind, list[int]] = {RootKind.OTHER: [], RootKind.JNI_GLOBAL: [], RootKind.HANDLE: []}
                for place, value, index, start, size, state in zip(places, values, found, *known):
                    if index != NO_BLOCK and not self._is_unused(place) and self._may_refer(place, index, start, size, state, excluded):
                        by_kind[self._kind_of(place, start, size)].append(value)
                yield from (RootObjects(kind, self.starts(some)) for kind, some in by_kind.items())

    def _kind_of(self, place: int, start: int, size: int) -> RootKind:
        """Return the kind of the root at the address `place`. `start`, `size`: the block of malloc
        that contains the root."""
        name = self._storage_name(start) if size in STORAGE_SIZES else ""
        name = name or self._old_handles.get(place, "")
        return RootKind.OTHER if not name else RootKind.JNI_GLOBAL if name == _JNI_GLOBAL else RootKind.HANDLE

    def _is_unused(self, place: int) -> bool:
        """Return whether the word at an address is stale."""
        return place in self._unused_words or region_at(self._unused_parts, place) is not None

    def _may_refer(self, place: int, index: int, start: int, size: int, state: int, excluded: Collection[int]) -> bool:
        """Return whether the word at `place`, in this block of malloc, may be a root."""
        if state != State.IN_USE or size >= _LARGE or index in excluded:
            return False
        if size in STORAGE_SIZES and _WEAK in self._storage_name(start).lower():
            return False
        if self._regions and 0 <= size - 8 * len(self._regions) < _MOST_PADDING and self._is_region_table(start):
            return False
        if self._region_size and 0 <= size - self._region_size < _MOST_PADDING and self._is_region(start):
            return False
        if size in PLAB_SIZES and is_copy_buffer(self._tables, start, self._low, self._high):
            return False
        if size in _STORE_BUFFER_SIZES and self._references.colors.place == BELOW and self._is_store_buffer(start):
            return False
        return not (size in _TABLE_SIZES and self._is_weak_table(start, size)) and not self._is_after_text(place, start, size)

    def _is_after_text(self, place: int, start: int, size: int) -> bool:
        """Return whether a word follows the text of a Symbol in its block of malloc. The end of the
        text of one block is kept, because callers ask for all words of a block in turn."""
        if self._text[0] != start:
            self._text = start, find_end_of_text(self._tables, start, size)
        return 0 < self._text[1] <= place

    def _is_store_buffer(self, start: int) -> bool:
        """Return whether a block of malloc is a ZStoreBarrierBuffer. Such a buffer has the address
        of each field that a thread wrote to, and the previous reference in this field. Two colors
        follow these pairs. The collector needs the previous references for marking. After marking,
        these references keep no object alive."""
        memory, decode = self._tables.memory, self._references.decode
        for base in (start, start + NMT_HEADER):
            words = memory.words(base, 2 * _STORES + 2) or ()
            stores, colors = list(zip(words[: 2 * _STORES : 2], words[1 : 2 * _STORES : 2])), words[2 * _STORES :]
            used = [(field, previous) for field, previous in stores if field or previous]
            if used and all(0 < color < _MOST_COLOR for color in colors):
                return all(self._low <= field < self._high and (previous < _MOST_COLOR or decode(previous)) for field, previous in used)
        return False

    def _is_region(self, start: int) -> bool:
        """Return whether a block of malloc is G1's structure for a region. This structure contains
        the bounds of the region, which are addresses of objects, but keep no object alive."""
        return any(has_region_bounds(self._tables, one) for one in (start, start + NMT_HEADER))

    def _is_region_table(self, start: int) -> bool:
        """Return whether a block of malloc contains an address in each region, or 0, in their
        order. Collectors have such tables (g1ConcurrentMark.hpp, shenandoahMarkingContext.hpp).
        They keep no object alive."""
        known = self._region_tables.get(start)
        if known is None:
            memory = self._tables.memory
            tables = (memory.words(one, len(self._regions)) or () for one in (start, start + NMT_HEADER))
            known = self._region_tables[start] = any(any(words) and self._fits_regions(words) for words in tables)
        return known

    def _fits_regions(self, words: Sequence[int]) -> bool:
        """Return whether each word is 0, or an address in the region with the same index."""
        step = self._regions.step
        return all(not word or low <= word <= low + step for low, word in zip(self._regions, words))

    def _is_weak_table(self, start: int, size: int) -> bool:
        """Return whether a block of malloc contains protection domains of JDK 8. Their table keeps
        no domain alive. An entry has a hash, the next entry, an object, and a flag."""
        known = self._weak_tables.get(start)
        if known is None:
            words = self._tables.memory.words(start, size // 32 * 4) if self._tables.is_jdk8 else None
            entries = [words[at : at + 4] for at in range(0, len(words), 4)] if words else []
            used = [one for one in entries if any(one)]
            sound = all(0 < hashed < 1 << 32 and following % 8 == 0 and place and flag < 2 for hashed, following, place, flag in used)
            known = self._weak_tables[start] = sound and bool(used)
        return known

    def _storage_name(self, start: int) -> str:
        """Return the name of the OopStorage to which a block of malloc with handles belongs ("JNI
        Global"), or ""."""
        if start not in self._storages:
            names = []
            for base in (start, start + NMT_HEADER):  # with NMT, its header comes first
                owner, memory = self._tables.memory.words(base + -base % ALIGNED + 8 * (HANDLES + 1), 2) or (0, 0)
                names.append(read_storage_name(self._tables, owner) if memory == base and owner % 8 == 0 else "")
            self._storages[start] = next(filter(None, names), "")
        return self._storages[start]

    def _stacks(self) -> Iterator[tuple[int, Range]]:
        """Yield the live parts of Java threads' stacks, each with the address of the JavaThread."""
        pointers = [thread.sp for thread in self._tables.target.threads()]
        for thread, base, size in java_thread_stacks(self._tables):
            yield from ((thread, Range(sp & ~7, base)) for sp in pointers if base - size <= sp < base)

    def _decode(self, words: array[int]) -> list[int]:
        """Return the addresses of the objects to which words, or halves of words, refer."""
        return self.starts(sorted(self._values(words)))

    def _values(self, words: array[int]) -> set[int]:
        """Return the addresses in the heap to which words, or halves of words, refer."""
        found = {one for word in words for one in self._references.targets(word) if self._low <= one < self._high}
        size, base, shift, _ = self._references
        if size == 4:
            sources = self._references.sources(self._low, self._high)
            low, high = max(sources.start - base, 0) >> shift, (sources.end - base >> shift) + 1
            halves = memoryview(words).cast("B").cast("I")
            places = (place for place, half in enumerate(halves) if low <= half < high and half)
            found.update(self._references.decode(halves[place]) for place in places if not self._is_whole(words[place // 2]))
        return found

    def _is_whole(self, word: int) -> bool:
        """Return whether a word is the address of native memory or a small negative number, so that
        its halves are not compressed references. Example: many stacks contain -128, whose lower
        half is an address in the last bytes of a heap that ends at 4 GiB. Other words may also
        consist of a compressed reference and a small number."""
        return word >= _LOWEST_NEGATIVE or (word >= _LOWEST_NATIVE and region_at(self._native, word) is not None)

    @cached_property
    def _native(self) -> list[Range]:
        """The readable memory from _LOWEST_NATIVE on. Reserved memory is left out: it may have many
        GiB, and a compressed reference next to another number may look like its address."""
        regions = self._tables.target.regions()
        return merge_ranges([Range(region.start, region.end) for region in regions if region.readable and region.start >= _LOWEST_NATIVE])


def list_data_ranges(target: Target, module: Module) -> list[Range]:
    """Return the memory of a module's variables."""
    parts = [Range(region.start, region.end) for region in target.regions() if region.readable and region.writable]
    return intersection(merge_ranges(parts), [Range(module.start, module.end)])


def is_stack_word(word: ObjectWord) -> bool:
    """Return whether a root of `NativeRoots.words_to` is on a stack or in a register."""
    return bool(word.register) or word.name.startswith(_STACK)
