"""Find the ranges into which a block's first word must point to identify its type.

In position-independent code a vtable needs relocation, so it is in a segment that was writable
while loading: the part that PT_GNU_RELRO covers, or all writable file data of a module linked
without it. In a program at a fixed address, a vtable needs no relocation, and is in read-only data.
A program may also have copies (copy relocations) of its libraries' vtables in its .bss. Sources:
System V gABI, "Program Header" and "Relocation"; Linux Standard Base 5, PT_GNU_RELRO; binutils 2.40
elfxx-x86.c (when a copy relocation is made)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from findleaks.errors import UnreadableMemory
from findleaks.target import elf
from findleaks.target.base import Module, Range, Target
from findleaks.target.modules import module_headers
from findleaks.target.ranges import merge_ranges, range_at
from findleaks.value_classes import NamedTuple

_PT_INTERP, _PT_GNU_RELRO = 3, 0x6474E552
_DT_RELA, _DT_RELASZ = 7, 8
_DT_REL, _DT_RELSZ = 17, 18
_DT_RELACOUNT, _DT_RELCOUNT = 0x6FFFFFF9, 0x6FFFFFFA
_MOST_RELOCATIONS = 1 << 18
_MOST_COPIES = 48


class TypeRanges(NamedTuple):
    """Sorted, disjoint ranges: `tables` may contain vtables and function tables, `code` is
    executable."""

    tables: list[Range]
    code: list[Range]


def find_type_ranges(target: Target) -> TypeRanges:
    """Find the ranges of all modules. If the headers of a module are not in the target, its
    read-only and executable regions are used instead. The same applies to a mapped file with
    executable parts that was not recognised as a module because its headers are missing."""
    tables: list[Range] = []
    code: list[Range] = []
    known = []
    for module in target.modules():
        found = module_headers(target, module)
        if found is not None:
            _by_segments(target, module, found[0], found[1], tables, code)
            known.append(Range(module.start, module.end))
    known = merge_ranges(known)
    regions = [r for r in target.regions() if not range_at(known, r.start)]
    programs = {r.name for r in regions if r.executable and r.name.startswith("/")}
    named = merge_ranges(Range(m.start, m.end) for m in target.modules())
    for region in regions:
        if region.readable and not region.writable and (region.name in programs or range_at(named, region.start)):
            (code if region.executable else tables).append(Range(region.start, region.end))
    return TypeRanges(merge_ranges(tables), merge_ranges(code))


def _by_segments(
    target: Target, module: Module, head: elf.Header, segments: Sequence[elf.Segment], tables: list[Range], code: list[Range]
) -> None:
    def clip(start: int, end: int) -> Range:
        return Range(max(start + module.bias, module.start), min(end + module.bias, module.end))

    loads = [s for s in segments if s.type == elf.PT_LOAD]
    relro = [clip(s.vaddr, s.vaddr + s.memsz) for s in segments if s.type == _PT_GNU_RELRO and s.memsz]
    tables += relro
    for load in loads:
        if load.flags & elf.PF_X:
            code.append(clip(load.vaddr, load.vaddr + load.memsz))
        elif load.flags & elf.PF_W:
            if not relro:
                tables.append(clip(load.vaddr, load.vaddr + load.filesz))
        elif head.type == elf.ET_EXEC:
            tables.append(clip(load.vaddr, load.vaddr + load.memsz))
    copies = [clip(start, end) for start, end in _find_copied_vtables(target, module, head, segments)]
    if len(copies) > _MOST_COPIES:
        copies = [Range(min(c.start for c in copies), max(c.end for c in copies))]
    tables += copies


def _find_copied_vtables(target: Target, module: Module, head: elf.Header, segments: Sequence[elf.Segment]) -> list[tuple[int, int]]:
    """Return file addresses of the vtables that copy relocations put into this module.
    A copy relocation is recognised by its form, as its number differs between architectures: the
    symbol that it names is defined, with a size, at the address that it relocates."""
    tags = elf.dynamic(target.read, head, segments, module.bias)
    wide = head.bits == 64
    rela = _DT_RELA in tags
    at, size = (_DT_RELA, _DT_RELASZ) if rela else (_DT_REL, _DT_RELSZ)
    program = head.type != elf.ET_DYN or any(segment.type == _PT_INTERP for segment in segments)
    if not program or at not in tags or elf.DT_SYMTAB not in tags or elf.DT_STRTAB not in tags:
        return []

    def address(tag: int) -> int:
        return tags[tag] if tags[tag] >= module.start else tags[tag] + module.bias

    form = head.prefix + ("Q" if wide else "I") * (3 if rela else 2)
    entry = struct.calcsize(form)
    relative = tags.get(_DT_RELACOUNT if rela else _DT_RELCOUNT, 0)
    count = min(tags.get(size, 0) // entry, _MOST_RELOCATIONS)
    if relative > count:
        relative = 0
    symbol_form = elf.symbol_form(head)
    symbol_size = struct.calcsize(symbol_form)
    found: list[tuple[int, int]] = []
    try:
        rows = target.read(address(at) + relative * entry, (count - relative) * entry)
        for row in struct.iter_unpack(form, rows):
            where, symbol = row[0], row[1] >> (32 if wide else 8)
            if symbol:
                got = struct.unpack(symbol_form, target.read(address(elf.DT_SYMTAB) + symbol * symbol_size, symbol_size))
                name, value, length = (got[0], got[4], got[5]) if wide else (got[0], got[1], got[2])
                if value == where and 0 < length < 1 << 20 and target.read(address(elf.DT_STRTAB) + name, 4) == b"_ZTV":
                    found.append((value, value + length))
    except UnreadableMemory:
        pass
    return found
