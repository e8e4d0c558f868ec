"""A synthetic process with a JVM: the tables that libjvm exports, the heap of one of its collectors, and threads with buffers."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from fake import FakeTarget

from findleaks.target.base import Module, Symbol

LIBRARY, TABLE, TEXTS, STATICS, OBJECTS, HEAP = 0x7F0000000000, 0x7F0000001000, 0x7F0000010000, 0x7F0000020000, 0x10000, 0xF0000000
ENTRY, HEAP_SIZE, REGION = 48, 0x100000, 0x10000
COLLECTED, ACTIVE, THREADS = OBJECTS, OBJECTS + 0x30, OBJECTS + 0x4000
PLACES = {"TypeName": 0, "FieldName": 8, "TypeString": 16, "IsStatic": 24, "Offset": 32, "Address": 40}

FIELDS = {
    ("CollectedHeap", "_reserved"): 0x20,
    ("Thread", "_tlab"): 0x100,
    ("ThreadLocalAllocBuffer", "_start"): 0,
    ("ThreadLocalAllocBuffer", "_top"): 8,
    ("ThreadLocalAllocBuffer", "_end"): 24,
    ("ThreadsList", "_length"): 4,
    ("ThreadsList", "_threads"): 16,
}
STATIC = {("Universe", "_collectedHeap"): 0, ("ThreadsSMRSupport", "_java_thread_list"): 8}
REGIONAL = {("G1CollectedHeap", "_hrm"): 0x80, ("G1HeapRegionTable", "_base"): 0, ("G1HeapRegionTable", "_length"): 8}
YOUNG, OLD, SPACES = OBJECTS + 0x1000, OBJECTS + 0x1100, OBJECTS + 0x1200


class Image:
    """`bounds`: (bottom, top, end) of eden, from, to and the old generation, or of G1's regions. `buffers`: (start, top, end) of each
    thread's buffer. `flag`: the field that says whether a collection is running. `active`: set this field to 1."""

    def __init__(
        self,
        collector: str,
        bounds: Sequence[tuple[int, int, int]],
        buffers: Sequence[tuple[int, int, int]] = (),
        flag: str = "_is_gc_active",
        active: bool = False,
    ) -> None:
        self.memory = {start: bytearray(0x10000) for start in (TABLE, TEXTS, STATICS, OBJECTS)}
        self.memory[TABLE] = bytearray(0xF000)
        self.fields, self.statics = dict(FIELDS), dict(STATIC)
        self.sizes: dict[str, int] = {}
        self.constants: dict[str, int] = {}
        self.symbols: list[Symbol] = []  # more symbols than those of the tables
        self.words(STATICS, COLLECTED, THREADS)
        self.words(COLLECTED + 0x20, HEAP, HEAP_SIZE // 8, 0x7F00 | active)  # the bytes next to the flag do not count
        if flag:
            self.fields["CollectedHeap", flag] = ACTIVE - COLLECTED
        {"Serial": self._serial, "Parallel": self._parallel, "G1": self._regions, "Z": lambda bounds: None}[collector](bounds)
        self.words(THREADS, len(buffers) << 32, 0, THREADS + 0x100)
        for number, buffer in enumerate(buffers):
            thread = THREADS + 0x1000 * (number + 1)
            self.words(THREADS + 0x100 + 8 * number, thread)
            self.words(thread + 0x100, buffer[0], buffer[1], 0, buffer[2])

    def words(self, address: int, *values: int) -> None:
        start = max(start for start in self.memory if start <= address)
        struct.pack_into(f"<{len(values)}Q", self.memory[start], address - start, *values)

    def target(self, mapped: Sequence[int] = ()) -> FakeTarget:
        """Return the process, with a heap full of the addresses of OBJECTS. Each address in `mapped` has a MiB of ZGC's file."""
        names = [(f"gHotSpotVMStructEntry{name}Offset", place) for name, place in PLACES.items()]
        exported = [("gHotSpotVMStructs", TABLE), ("gHotSpotVMStructEntryArrayStride", ENTRY), *names]
        exported += self._numbers("gHotSpotVMType", "TypeName", "Size", self.sizes, 0x9000)
        exported += self._numbers("gHotSpotVMIntConstant", "Name", "Value", self.constants, 0xB000)
        symbols = list(self.symbols)
        for number, (name, value) in enumerate(exported):
            self.words(STATICS + 0x8000 + 8 * number, value)
            symbols.append(Symbol(name, STATICS + 0x8000 + 8 * number, 8, "libjvm.so"))
        rows = [(key, 0, offset, 0) for key, offset in self.fields.items()]
        rows += [(key, 1, 0, STATICS + place) for key, place in self.statics.items()]
        for number, ((kind, field), static, offset, address) in enumerate(rows):
            at = TEXTS + 256 * number
            for place, text in ((at, kind), (at + 128, field)):
                self.memory[TEXTS][place - TEXTS : place - TEXTS + len(text)] = text.encode()
            self.words(TABLE + ENTRY * number, at, at + 128, 0, static, offset, address)
        memory = {start: bytes(data) for start, data in self.memory.items()}
        memory[HEAP] = struct.pack("<Q", OBJECTS) * (HEAP_SIZE // 8)
        memory.update(dict.fromkeys(mapped, bytes(1 << 20)))
        modules = [Module("/jdk/lib/libjvm.so", LIBRARY, LIBRARY, LIBRARY + 0x40000)]
        return FakeTarget(memory, modules=modules, symbols=symbols, names=dict.fromkeys(mapped, "/memfd:java_heap (deleted)"))

    def _numbers(self, kind: str, name: str, value: str, numbers: Mapping[str, int], place: int) -> list[tuple[str, int]]:
        """Write a table of names and numbers at the offset `place`. Return the names and values of the symbols that describe it."""
        for number, (text, one) in enumerate(numbers.items()):
            at = TEXTS + place + 64 * number
            self.memory[TEXTS][at - TEXTS : at - TEXTS + len(text)] = text.encode()
            self.words(TABLE + place + 16 * number, at, one)
        offsets = [(f"{kind}Entry{name}Offset", 0), (f"{kind}Entry{value}Offset", 8)]
        return [(f"{kind}s", TABLE + place), (f"{kind}EntryArrayStride", 16), *offsets]

    def _serial(self, bounds: Sequence[tuple[int, int, int]]) -> None:
        self.fields.update({("GenCollectedHeap", "_young_gen"): 0x60, ("GenCollectedHeap", "_old_gen"): 0x68})
        self.words(COLLECTED + 0x60, YOUNG, OLD)
        self._spaces(("DefNewGeneration", "TenuredGeneration", "_the_space"), bounds)
        self.fields.update({("Space", "_bottom"): 8, ("Space", "_end"): 16, ("ContiguousSpace", "_top"): 24})

    def _parallel(self, bounds: Sequence[tuple[int, int, int]]) -> None:
        self.statics.update({("ParallelScavengeHeap", "_young_gen"): 16, ("ParallelScavengeHeap", "_old_gen"): 24})
        self.words(STATICS + 16, YOUNG, OLD)
        self._spaces(("PSYoungGen", "PSOldGen", "_object_space"), bounds)
        self.fields.update({("MutableSpace", "_bottom"): 8, ("MutableSpace", "_end"): 16, ("MutableSpace", "_top"): 24})

    def _spaces(self, kinds: Sequence[str], bounds: Sequence[tuple[int, int, int]]) -> None:
        for number, name in enumerate(("eden", "from", "to")):
            self.fields[kinds[0], f"_{name}_space"] = 8 * number
            self.words(YOUNG + 8 * number, SPACES + 0x40 * number)
        self.fields[kinds[1], kinds[2]] = 0
        self.words(OLD, SPACES + 0xC0)
        for number, (bottom, top, end) in enumerate(bounds):
            self.words(SPACES + 0x40 * number + 8, bottom, end, top)

    def _regions(self, bounds: Sequence[tuple[int, int, int]]) -> None:
        self.fields.update(REGIONAL)
        self.fields.update({("HeapRegionManager", "_regions"): 0x10, ("HeapRegion", "_bottom"): 0})
        self.fields.update({("HeapRegion", "_end"): 8, ("HeapRegion", "_top"): 16})
        self.statics["HeapRegion", "GrainBytes"] = 32
        self.words(STATICS + 32, REGION)
        table, count = OBJECTS + 0x2000, HEAP_SIZE // REGION
        self.words(COLLECTED + 0x80 + 0x10, table, count)
        for number, (bottom, top, end) in enumerate(bounds):
            region = OBJECTS + 0x3000 + 0x40 * (count - number)  # regions are not in the order of their addresses
            self.words(table + 8 * number, region)
            self.words(region, bottom, end, top)
