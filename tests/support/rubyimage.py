"""A synthetic process with a Ruby: functions in machine code, an object space, pages of slots, and classes with names."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Optional

from fake import FakeTarget

from findleaks.target.base import Module, Symbol

CODE, DATA, VM, SPACE, HEADERS, TABLES, EXTENSION = 0x400000, 0x410000, 0x420000, 0x430000, 0x440000, 0x460000, 0x500000
OBJSPACE = 0x450
T_OBJECT, T_CLASS, T_STRING, T_ARRAY, T_DATA, T_IMEMO, T_ICLASS = 1, 2, 5, 7, 0xC, 0x1A, 0x1C
SINGLETON, NOEMBED = 1 << 12, 1 << 13
CLASSPATH = 0x1234
"""The hidden name under which classes store their path in the older layout."""


class Layout:
    """Differences between versions: bytes of a page, whether pages store the size of their slots, and offsets in the object space."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.page = 1 << 16 if version == "3.3" else 1 << 14
        self.sized = version != "2.7"
        self.pools = {"2.7": 0, "3.1": 1, "3.3": 5}[version]
        self.sorted = {"2.7": 0xF8, "3.1": 0x100, "3.3": 0x4B8}[version]
        self.count = self.sorted + (176 if version == "2.7" else 184)
        self.old = {"2.7": 0x210, "3.1": 0x238, "3.3": 0x600}[version]
        self.first_pool = 0x20 if version == "3.3" else 0x28
        self.names_in_slot = version == "3.3"


def code(layout: Layout) -> bytes:
    """Return machine code as in libruby: rb_gc_count at CODE, rb_gc_adjust_memory_usage at CODE + 0x40."""
    first = b"\x48\x8b\x05" + (DATA - CODE - 7).to_bytes(4, "little", signed=True)  # mov rax,[rip+…]
    through = b"\x48\x8b\x00\x48\x8b\x80" + OBJSPACE.to_bytes(4, "little")  # mov rax,[rax]  mov rax,[rax+…]
    count = first + through + b"\x48\x8b\x80" + layout.count.to_bytes(4, "little") + b"\xc3"
    at = CODE + 0x40
    adjust = b"\x48\x8b\x05" + (DATA - at - 7).to_bytes(4, "little", signed=True) + through
    adjust += b"\x48\x85\xff\x7f\x01\xc3"  # test rdi,rdi  jg +1  ret
    adjust += b"\xf0\x48\x01\x78\x08\xf0\x48\x01\xb8" + layout.old.to_bytes(4, "little") + b"\xc3"  # lock add [rax+8],rdi; [rax+…],rdi
    return (count.ljust(0x40, b"\x90") + adjust).ljust(0x1000, b"\x90")


class Image:
    """`page` appends a page; `put` puts an object into the next slot of the last page; `target()` returns the process."""

    def __init__(self, version: str = "3.1", start: int = 0x7F0000000000) -> None:
        self.layout = Layout(version)
        self.start = start
        self.bodies: list[bytearray] = []
        self.sizes: list[int] = []
        self._next = 0
        self.globals: dict[str, int] = {}
        self.extra: dict[int, bytes] = {}
        self.flags = 0
        self._tables = bytearray(0x20000)
        self._used = 0x100
        self.page(160 if version == "3.3" else 40)
        self.klass = self._classes()

    def _classes(self) -> dict[str, int]:
        made = {}
        for name, variable in (("Object", "rb_cObject"), ("String", "rb_cString"), ("Array", "rb_cArray"), ("Hash", "rb_cHash")):
            made[name] = self.globals[variable] = self.new_class(name)
        if self.layout.version == "3.3":
            self.page(40)
        return made

    def page(self, size: int = 40) -> None:
        """Add a page of free slots."""
        self.bodies.append(bytearray(self.layout.page))
        self.sizes.append(size)
        self._next = 0

    @property
    def first(self) -> int:
        """Return the offset of a page's first slot."""
        return 160 if self.layout.version == "3.3" else 40

    def count(self, number: int) -> int:
        """Return the number of slots in a page."""
        return (self.layout.page - self.first) // self.sizes[number]

    def address(self, number: int) -> int:
        return self.start + number * self.layout.page

    def put(self, *words: int) -> int:
        """Put an object into the next slot, and return its address."""
        number = len(self.bodies) - 1
        at = self.first + self._next * self.sizes[number]
        struct.pack_into(f"<{len(words)}Q", self.bodies[number], at, *words)
        self._next += 1
        return self.address(number) + at

    def room(self, size: int) -> int:
        """Allocate memory for a table or a text."""
        at = self._used
        self._used += size + 15 & ~15
        return TABLES + at

    def write(self, address: int, data: bytes) -> None:
        self._tables[address - TABLES : address - TABLES + len(data)] = data

    def string(self, text: str, klass: int = 0) -> int:
        """Add a String whose bytes are outside its slot."""
        where = self.room(len(text) + 1)
        self.write(where, text.encode())
        return self.put(T_STRING | NOEMBED, klass, len(text), where, 0)

    def new_class(self, name: Optional[str], flags: int = T_CLASS, parent: int = 0) -> int:
        """Add a class with this path, or an anonymous class."""
        path = self.string(name) if name is not None else 8
        if self.layout.names_in_slot:
            return self.put(flags, 0, parent, *([0] * 15), path)
        extension, table, entries = self.room(96), self.room(56), self.room(96)
        self.write(extension, struct.pack("<3Q", 0, table, 0))
        self.write(entries, struct.pack("<6Q", 1, 0x55, 3, 2, CLASSPATH, path))
        self.write(table, struct.pack("<7Q", 2, CODE, 2, 0, 0, 2, entries))
        return self.put(flags, 0, parent, extension, 0)

    def data_type(self, name: str, free: int = 0) -> int:
        text, made = self.room(len(name) + 1), self.room(64)
        self.write(text, name.encode() + b"\0")
        self.write(made, struct.pack("<5Q", text, 0, free, 0, 0))
        return made

    def header(self, number: int) -> bytes:
        """Write struct heap_page."""
        slots, start = self.count(number), self.address(number) + self.first
        if not self.layout.sized:
            return struct.pack("<4hI4xQQ", slots, 0, 0, 0, 0, 0, start)
        pool = SPACE + self.layout.first_pool + (224 * (self.sizes[number] // 80) if self.layout.pools > 1 else 0)
        return struct.pack("<5h2xIQQQ", self.sizes[number], slots, 0, 0, 0, 0, pool, 0, start)

    def space(self) -> bytes:
        """Write the object space."""
        layout, words = self.layout, bytearray(0x1000)

        def put(at: int, *values: int) -> None:
            struct.pack_into(f"<{len(values)}Q", words, at, *values)

        put(0, 16 << 20, 1000, self.flags, 5000 if layout.version != "3.3" else 0)
        put(layout.sorted - 8, 77, HEADERS - 0x8000, len(self.bodies), 0, len(self.bodies) + 3, self.start, self.start, 0, 2)
        put(layout.sorted + 128, 3, 4)
        put(layout.count, 7, 900, len(self.bodies) + 1, 1, 5_000_000)
        put(layout.old - 32, 11, 12, 13, 14, 2000, 32 << 20)
        return bytes(words)

    def target(self, stop_after: Optional[int] = None, extra: Optional[dict[int, bytes]] = None) -> FakeTarget:
        """Return the process in its current state."""
        layout = self.layout
        for number, body in enumerate(self.bodies):
            struct.pack_into("<Q", body, 0, HEADERS + 0x400 * number)
        headers = b"".join(self.header(number).ljust(0x400, b"\0") for number in range(len(self.bodies)))
        names = sorted(self.globals)
        data = struct.pack("<2Q", DATA + 8, VM) + struct.pack(f"<{len(names)}Q", *(self.globals[name] for name in names))
        data = data.ljust(0x100, b"\0") + layout.version.encode() + b".9\0"
        memory = {
            CODE: code(layout),
            DATA: data.ljust(0x200, b"\0"),
            VM: b"\0" * OBJSPACE + SPACE.to_bytes(8, "little"),
            SPACE: self.space(),
            HEADERS - 0x8000: struct.pack(f"<{len(self.bodies)}Q", *(HEADERS + 0x400 * n for n in range(len(self.bodies)))),
            HEADERS: headers,
            TABLES: bytes(self._tables),
            **{self.address(number): bytes(body) for number, body in enumerate(self.bodies)},
            **self.extra,
            **(extra or {}),
        }
        symbols = [
            Symbol("rb_gc_count", CODE, 0x20, "libruby"),
            Symbol("rb_gc_adjust_memory_usage", CODE + 0x40, 0x40, "libruby"),
            Symbol("ruby_version", DATA + 0x100, 6, "libruby"),
            *(Symbol(name, DATA + 16 + 8 * number, 8, "libruby") for number, name in enumerate(names)),
        ]
        modules: Sequence[Module] = [
            Module("/usr/lib/libruby.so", CODE, CODE, DATA + 0x1000),
            Module("/usr/lib/ruby/pg_ext.so", EXTENSION, EXTENSION, EXTENSION + 0x1000),
        ]
        permissions = {CODE: "r-x", EXTENSION: "r-x"}
        return FakeTarget(memory, permissions=permissions, modules=modules, symbols=symbols, stop_after=stop_after)
