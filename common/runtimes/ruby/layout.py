"""Locate Ruby's heap and its collector's counters, from the code of exported functions and from
invariants.

`rb_gc_count` consists of three or four loads: the pointer to the VM, the VM, the object space, the
counter. In 3.4 it calls `rb_gc_get_objspace` for the first ones, through a stub of the procedure
linkage table. `rb_gc_adjust_memory_usage` adds to malloc_increase and oldmalloc_increase.
`heap_pages` is between those counters. It is recognised by its sorted array of pages: each page has
a header that points back to the page. The other fields have fixed distances from these (gc.c of
2.7.4, 3.1.2, 3.3.8, gc/default/default.c of 3.4: struct rb_objspace, heap_page,
rb_size_pool_struct, rb_heap_struct). This module distinguishes fields whose distance depends on the
version."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.disasm.functions import instructions_at
from findleaks.disasm.instruction import Instruction
from findleaks.disasm.registers import CALLER_SAVED, RAX, RIP
from findleaks.errors import UnreadableMemory
from findleaks.target.base import Module, Range, Symbol, Target
from findleaks.target.ranges import region_at

LONGEST = 256  # maximum number of bytes read of a function
SHORT = 3  # maximum length in bytes of a jump within a function; a longer jump is a tail call
SMALL_PAGE, LARGE_PAGE = 1 << 14, 1 << 16  # HEAP_PAGE_SIZE up to 3.1, and since
RVALUE = 40  # bytes of a slot if pages do not store it (before 3.1)
MAX_PAGES = 1 << 24  # limit for the pages of a heap, a terabyte; a larger number is corrupt
MAX_DATA = 1 << 24  # bytes of the interpreter's variables that are searched, in each region
LARGEST = 1 << 13  # maximum size of an object space in bytes: that of 3.3 has 1,900
# Smallest offset of the flags in the object space. FLAGS: before 3.4. NEWEST_FLAGS: since 3.4,
# where the collector's settings (gc_config) precede the flags. Bits 0 and 1 are the mode (none,
# marking, sweeping, compacting). Bit 5 is during_gc.
FLAGS, NEWEST_FLAGS = 16, 20
STUB = 3  # instructions of a stub in the procedure linkage table
DEEPEST = 2  # calls that are followed


class PageFields(NamedTuple):
    """Offsets in struct heap_page. `slot_size` is -1 if all slots have one size. `first`: offset of
    the first entry from the start of the sorted array of pages."""

    start: int
    slot_size: int
    total_slots: int
    flags: int
    first: int = 0


OLD_PAGE = PageFields(start=24, slot_size=-1, total_slots=0, flags=8)
NEW_PAGE = PageFields(start=32, slot_size=0, total_slots=2, flags=12)
"""Layout of 3.1 and later: slots of several sizes, and a pointer to the size pool at 16."""
NEWEST_PAGE = PageFields(start=40, slot_size=0, total_slots=2, flags=12, first=16)
"""Layout of 3.4: a pointer to the page precedes the field `start`. The array of pages begins with
its length and its capacity. Pages without objects have no slots."""

BEFORE_SWEEP, IN_TOMB = 1, 8  # flags of a page: not swept since marking; empty, about to be freed


@dataclass(frozen=True)
class Layout:
    """The object space of the interpreter in `module`.

    `count`, `increase` and `old_increase` are the addresses of counters. `sorted` is the address of
    the pointer to the sorted array of pages. Each is 0 if it was not found. The array has `pages`
    entries, for pages of `page` bytes."""

    module: Module
    version: str
    objspace: int
    count: int
    increase: int
    old_increase: int
    sorted: int
    pages: int
    page: int
    fields: PageFields

    @property
    def numbers(self) -> tuple[int, int]:
        """The major and minor version; (0, 0) if unknown."""
        return _split_version(self.version)


def interpreter(target: Target, files: Sequence[Module]) -> Optional[Layout]:
    """Return the layout of the interpreter in these files or in the program; None if there is no
    interpreter, or if it has not started."""
    symbol = find_exported(target, files, "rb_gc_count")
    module = region_at(target.modules(), symbol.address) if symbol is not None else None
    if symbol is None or module is None:
        return None
    version = _text(target, find_exported(target, files, "ruby_version"))
    memory = Memory(target)
    run = _Run(target)
    run.run(code(target, symbol.address, symbol.size))
    if run.last is None or not FLAGS < run.last[1] < LARGEST:
        return Layout(module, version, 0, 0, 0, 0, 0, 0, 0, OLD_PAGE)
    objspace, offset = run.last
    increase, old = _increases(target, find_exported(target, files, "rb_gc_adjust_memory_usage"), objspace)
    heap, number, page, fields = _heap(memory, objspace, offset) or (0, 0, 0, OLD_PAGE)
    return Layout(module, version, objspace, objspace + offset, increase, old, heap, number, page, fields)


def find_exported(target: Target, files: Sequence[Module], name: str) -> Optional[Symbol]:
    """Return a symbol of the interpreter. Symbols of these files are preferred to those of other
    files."""
    found = (target.symbol(name, os.path.basename(module.path)) for module in files)
    return next((symbol for symbol in found if symbol is not None), None) or target.symbol(name)


def code(target: Target, address: int, size: int = 0) -> list[Instruction]:
    """Return the instructions from `address` on; [] if unreadable, or without capstone."""
    try:
        lengths = (min(size or LONGEST, LONGEST), 64)
        return next((found for found in (list(instructions_at(target, address, length)) for length in lengths) if found), [])
    except CapstoneMissing:
        return []


def _text(target: Target, symbol: Optional[Symbol]) -> str:
    """Return the text of ruby_version, an array of characters."""
    try:
        found = target.read(symbol.address, min(symbol.size or 8, 16)).split(b"\0")[0] if symbol is not None else b""
    except UnreadableMemory:
        return ""
    return found.decode("ascii", "replace") if found[:1].isdigit() else ""


def read_version(target: Target, files: Sequence[Module]) -> tuple[int, int]:
    """Return the major and minor version of the interpreter in these files; (0, 0) if unknown."""
    return _split_version(_text(target, find_exported(target, files, "ruby_version")))


def _split_version(text: str) -> tuple[int, int]:
    numbers = text.split(".")
    return (int(numbers[0]), int(numbers[1])) if len(numbers) > 1 and all(one.isdigit() for one in numbers[:2]) else (0, 0)


class _Run:
    """Emulates a function without branches, and the functions without arguments that this function
    calls. The emulation computes the values of registers from target memory."""

    def __init__(self, target: Target, depth: int = 0) -> None:
        self._target, self._memory, self._depth = target, Memory(target), depth
        self.known: dict[int, Optional[int]] = {}
        self.last: Optional[tuple[int, int]] = None  # base and displacement of the last such load
        self.locked: set[int] = set()  # addresses modified by locked instructions

    def run(self, code: Sequence[Instruction]) -> Optional[int]:
        """Run up to the final return, or up to a tail call. Returns the target of the tail call."""
        further = 0
        for one in code:
            if one.name == "jmp" and one.size > SHORT:
                return one.target
            if one.name == "ret" and one.address >= further:
                return None
            if one.target is not None and one.name != "call":
                further = max(further, one.target)
            self._step(one)
        return None

    def _step(self, one: Instruction) -> None:
        where = self._address(one)
        if one.name in ("cmp", "test") or one.writes_memory:
            if where is not None and one.base != RIP and one.locked:
                self.locked.add(where)
        elif one.name == "call":
            self.known.update(dict.fromkeys(CALLER_SAVED))
            self.known[RAX] = self._call(one)
        else:
            value = self._result(one, where)
            self.known[one.destination] = value & self._memory.arch.mask if value is not None else None

    def _call(self, one: Instruction) -> Optional[int]:
        """Return the result of a call of a function without arguments; None if unknown."""
        if one.target is None or self._depth == DEEPEST:
            return None
        stub = code(self._target, one.target, 16)[:STUB]
        slot = next((each.displacement for each in stub if each.name == "jmp" and each.base == RIP), None)
        function = self._memory.word(slot) if slot is not None else one.target
        inner = _Run(self._target, self._depth + 1)
        return inner.known.get(RAX) if function and inner.run(code(self._target, function)) is None else None

    def _result(self, one: Instruction, where: Optional[int]) -> Optional[int]:
        """Return the value that the instruction, whose memory operand is at `where`, stores in its
        destination."""
        if one.name == "lea":
            return where
        if one.loads:
            value, base = self._memory.word(where) if where is not None else None, self.known.get(one.base)
            if base is not None and value is not None:
                self.last = base, one.displacement or 0
            return value
        if one.name == "mov":
            return self.known.get(one.source)
        before = self.known.get(one.destination)
        return before + one.immediate if one.name == "add" and before is not None and one.immediate is not None else None

    def _address(self, one: Instruction) -> Optional[int]:
        """Return the address of the instruction's memory operand; None if unknown."""
        base = 0 if one.base == RIP else self.known.get(one.base)
        if one.displacement is None or base is None or one.scaled >= 0 or one.fs:
            return None
        return one.displacement + base


def _increases(target: Target, symbol: Optional[Symbol], objspace: int) -> tuple[int, int]:
    """Return the addresses of malloc_increase and oldmalloc_increase in the object space; an
    address is 0 if it is not found.

    rb_gc_adjust_memory_usage, or the function that it tail-calls, modifies them with locked
    instructions."""
    if symbol is None:
        return 0, 0
    run = _Run(target)
    further = run.run(code(target, symbol.address, symbol.size))
    if not run.locked and further is not None:
        run.run(code(target, further))
    found = sorted(address for address in run.locked if objspace < address < objspace + LARGEST)
    return (found[0], found[1]) if len(found) >= 2 else (0, 0)


def _heap(memory: Memory, objspace: int, end: int) -> Optional[tuple[int, int, int, PageFields]]:
    """Return the address of heap_pages.sorted, the number of pages, their size and their layout.

    The word at that address points to an array of pages. The next word, or the first of the array,
    is their number. Each page has a header that points back to it."""
    words = memory.words(objspace, end // 8) or ()
    for at, (array, count, _, capacity) in enumerate(zip(words, words[1:], words[2:], words[3:])):
        if array % 8 or not array:
            continue
        length, room = memory.words(array, 2) or (0, 0)
        for fields, number, most in ((NEWEST_PAGE, length, room), (NEW_PAGE, count, capacity), (OLD_PAGE, count, capacity)):
            if not 0 < number <= min(most, MAX_PAGES):
                continue
            entries = [memory.word(array + fields.first + 8 * place) for place in (0, number // 2, number - 1)]
            sizes = [_size(memory, entry, fields) if entry else 0 for entry in entries]
            if any(sizes) and sizes.count(0) < 2:  # one page may be damaged
                return objspace + 8 * at, number, max(sizes), fields
    return None


def _size(memory: Memory, page: int, fields: PageFields) -> int:
    """Return the size of the body of the page that this struct heap_page describes; 0 if it has
    none."""
    start = memory.word(page + fields.start)
    size, count = slots(memory, page, fields)
    if start is None or memory.word(start & -SMALL_PAGE) != page or not count:
        return 0
    needed = size * count + start % SMALL_PAGE
    return SMALL_PAGE if needed <= SMALL_PAGE else LARGE_PAGE if needed <= LARGE_PAGE else 0


def slots(memory: Memory, page: int, fields: PageFields) -> tuple[int, int]:
    """Return the size of a page's slots, and their number; (0, 0) if these are impossible."""
    first = memory.word(page)
    if first is None:
        return 0, 0
    size = RVALUE if fields.slot_size < 0 else first >> 8 * fields.slot_size & 0xFFFF
    count = first >> 8 * fields.total_slots & 0xFFFF
    return (size, count) if size % 8 == 0 and RVALUE <= size <= LARGE_PAGE and 0 < count <= LARGE_PAGE // RVALUE else (0, 0)


def find_data(target: Target, module: Module) -> list[Range]:
    """Return the memory of the interpreter's own variables, at most MAX_DATA bytes of each
    region."""
    parts = ((max(r.start, module.start), min(r.end, module.end)) for r in target.regions() if r.readable and r.writable)
    return [Range(start, min(end, start + MAX_DATA)) for start, end in parts if start < end]
