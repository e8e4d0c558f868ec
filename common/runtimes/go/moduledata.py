"""Find runtime.moduledata without symbols. It shows where a Go program's function table, type
descriptors and variables are.

pcHeader, the start of the function table, has a magic number. A moduledata begins with the address
of the pcHeader. The offsets of the other fields come from the type descriptor of moduledata.

Up to 1.26, a moduledata has slices of the unnamed types and of the itabs. Since 1.27 it has the
sizes of these parts of the section of types instead.

Sources: Go 1.18 to 1.27, src/runtime/symtab.go (pcHeader, moduledata), src/internal/abi/symtab.go
(the magic numbers: 0xfffffff0 since 1.18, 0xfffffff1 since 1.20). Since 1.27,
src/runtime/type.go (moduleTypelinks), iface.go (addModuleItabs)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.go.descriptor_sizes import descriptor_size
from findleaks.runtimes.go.types import Type, Types
from findleaks.target.arch import AARCH64, X86_64
from findleaks.target.base import Module, Range, Target
from findleaks.target.elf import occurrences
from findleaks.target.ranges import nonzero_pieces
from findleaks.value_classes import NamedTuple

MAGICS = {0xFFFFFFF0: 118, 0xFFFFFFF1: 120}  # the version since which a table has this format
QUANTA = {X86_64.name: 1, AARCH64.name: 4}  # pcHeader.minLC: the unit of code addresses
# Words of a moduledata, one of which is `types`. The next is `etypes`. Since 1.27, `typedesclen` is
# between the two.
_TYPES = range(32, 48)
_NAME = b"*runtime.moduledata"
_MAX_MODULES = 64
_WORD = 8
_MAX_SECTION = 1 << 29


class ModuleData(NamedTuple):
    """A moduledata. Slices are ranges of memory in bytes; `data_mask` and `bss_mask` are the
    addresses of bitmaps with a bit for each word of `data` and `bss` that may be a pointer (0:
    unknown). `has_links`: whether `itabs` and `typelinks` are tables."""

    address: int
    format: int  # of MAGICS
    quantum: int
    names: Range  # funcnametab
    cutab: Range
    filetab: Range
    pctab: Range
    functions: Range  # pclntable
    ftab: Range
    text: Range
    noptrdata: Range
    data: Range
    bss: Range
    noptrbss: Range
    types: Range
    gofunc: int
    itabs: Range  # addresses of itabs (itablinks); since 1.27, the itabs themselves
    typelinks: Range  # offsets of unnamed types in `types`; since 1.27, the types themselves
    has_links: bool  # up to 1.26
    data_mask: int
    bss_mask: int
    rodata: int


class Program(NamedTuple):
    """The modules of a Go program (more than one with plugins), and their types."""

    modules: Sequence[ModuleData]
    types: Types


def program(target: Target, engine: Engine, module: Module, data: Sequence[Range]) -> Optional[Program]:
    """Return the modules of the program in this file, whose writable memory is `data`; None if its
    function table cannot be read."""
    memory = Memory(target)
    for header, version in _headers(target, module):
        for start, end in data:
            for piece in nonzero_pieces(target, start, end):
                for address in engine.search(piece, header, header + 1):
                    section = _types(memory, address, module)
                    found = _modules(memory, address, section, version) if section is not None else None
                    if found is not None:
                        return found
    return None


def _headers(target: Target, module: Module) -> Iterator[tuple[int, int]]:
    """Yield the addresses and the formats of pcHeaders in a file's memory."""
    quantum = QUANTA.get(target.arch.name)
    if quantum is None or target.arch.byteorder != "little":
        return
    end = bytes([0, 0, quantum, 8])
    for region in target.regions():
        if not region.readable or region.end <= module.start or region.start >= module.end:
            continue
        for piece in target.pieces(max(region.start, module.start), min(region.end, module.end)):
            content = bytes(piece.data)
            for magic, version in MAGICS.items():
                for at in occurrences(content, magic.to_bytes(4, "little") + end):
                    if (piece.address + at) % 8 == 0:
                        yield piece.address + at, version


def _types(memory: Memory, address: int, module: Module) -> Optional[Range]:
    """Return the range of type descriptors of the moduledata at `address`, which includes the type
    of moduledata itself; None if there is no moduledata."""
    words = memory.words(address, _TYPES.stop + 2) or ()
    for at in _TYPES if words else ():
        start, second, third = words[at : at + 3]
        for end in (second, third) if second < third - start else (second,):
            if module.start <= start < end <= module.end and end - start < _MAX_SECTION and _NAME in memory.read(start, end - start):
                return Range(start, end)
    return None


def _modules(memory: Memory, address: int, section: Range, version: int) -> Optional[Program]:
    types = Types(memory, [section])
    layout = types.find("runtime.moduledata")
    found: list[ModuleData] = []
    while layout is not None and address and len(found) < _MAX_MODULES and all(one.address != address for one in found):
        one, following = _module(memory, types, layout, address, version)
        if one is None:
            break
        found.append(one)
        address = following
    if not found:
        return None
    return Program(found, types if len(found) == 1 else Types(memory, [one.types for one in found]))


def _module(memory: Memory, types: Types, layout: int, address: int, version: int) -> tuple[Optional[ModuleData], int]:
    """Return the moduledata at `address`, and the address of the next."""
    size = types.at(layout)
    words = memory.words(address, size.size // 8) if size is not None else None
    header = memory.read(words[0], 8) if words is not None else b""
    if words is None or not header:
        return None, 0

    def word(name: str, further: int = 0) -> int:
        offset = types.offset(layout, name)
        at = (offset if offset is not None else 1 << 30) // 8 + further
        return words[at] if at < len(words) else 0

    def items(name: str, item: int) -> Range:
        start, count = word(name), word(name, 1)
        return Range(start, start + item * count) if item * count < _MAX_SECTION else Range(0, 0)

    def between(first: str, last: str) -> Range:
        return Range(word(first), max(word(first), word(last)))

    def of_types(first: int, length: int) -> Range:
        """Return a part of the section of types. `first`: its offset in bytes."""
        whole = between("types", "etypes")
        start = min(whole.start + first, whole.end)
        return Range(start, min(start + max(length, 0), whole.end)) if length < _MAX_SECTION else Range(0, 0)

    has_links = types.offset(layout, "typelinks") is not None
    one = ModuleData(
        address,
        version,
        header[6],
        items("funcnametab", 1),
        items("cutab", 4),
        items("filetab", 1),
        items("pctab", 1),
        items("pclntable", 1),
        items("ftab", 8),
        between("text", "etext"),
        between("noptrdata", "enoptrdata"),
        between("data", "edata"),
        between("bss", "ebss"),
        between("noptrbss", "enoptrbss"),
        between("types", "etypes"),
        word("gofunc"),
        items("itablinks", 8) if has_links else of_types(word("itaboffset"), word("itabsize")),
        items("typelinks", 4) if has_links else of_types(_WORD, word("typedesclen") - _WORD),
        has_links,
        word("gcdatamask", 1),
        word("gcbssmask", 1),
        word("rodata"),
    )
    return one, word("next")


def list_types(memory: Memory, program: Program, kind: int) -> Iterator[Type]:
    """Yield the unnamed types of a kind (types.py), such as map[string]int."""
    for module in program.modules:
        yield from (one for one in _unnamed_types(memory, program.types, module) if one.kind == kind)


def _unnamed_types(memory: Memory, types: Types, module: ModuleData) -> Iterator[Type]:
    start, end = module.typelinks
    if module.has_links:
        offsets = array("i", memory.read(start, (end - start) // 4 * 4))
        found = (types.at(module.types.start + offset) for offset in offsets)
        yield from (one for one in found if one is not None)
        return
    while start < end:
        one = types.at(start)
        if one is None:  # its size, and so the address of the next one, is unknown
            return
        yield one
        start += descriptor_size(memory, one)


def list_itabs(memory: Memory, module: ModuleData) -> Sequence[int]:
    """Return the addresses of the itabs that the linker made. Since 1.27, they are in one part of
    the section of types. An itab begins with the addresses of two types; the addresses of functions
    follow, which are outside of the section."""
    start, end = module.itabs
    words = memory.words(start, (end - start) // _WORD) or ()
    if module.has_links:
        return words
    low, high = module.types
    return [start + at * _WORD for at, pair in enumerate(zip(words, words[1:])) if low <= pair[0] < high and low <= pair[1] < high]
