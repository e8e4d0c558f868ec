"""Read Go's type descriptors: names, sizes, fields and element types. Stripped programs have them,
too, because the garbage collector and package reflect need them.

The descriptors of the runtime's own structures (runtime.g, runtime.mspan) give the offsets of their
fields. Therefore no table of offsets by version is needed.

Source: Go 1.18 to 1.26, src/internal/abi/type.go (src/runtime/type.go up to 1.20): Type has 48
bytes; by kind, an element type, a slice of fields or a map's types follow. Up to 1.18 a field's
offset is shifted left by one, and the lowest bit says that it is embedded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.target.base import Range
from findleaks.target.elf import occurrences
from findleaks.value_classes import NamedTuple

HEADER = 48  # bytes of abi.Type
ARRAY, CHAN, FUNC, INTERFACE, MAP, POINTER, SLICE, STRING, STRUCT, UNSAFE = 17, 18, 19, 20, 21, 22, 23, 24, 25, 26
_KINDS = 27
_EXTRA_STAR = 2  # TFlagExtraStar: the name has a star that does not belong to it
_DIRECT = 32  # KindDirectIface, in the kind up to 1.25, in the flags since 1.26 (TFlagDirectIface)
_PROGRAM = 64  # KindGCProg, in the kind, up to 1.23
# TFlagGCMaskOnDemand, since 1.24. In 1.22 and 1.23, types that are made at run time have this flag.
_ON_DEMAND = 16
_WORD = 8
_FLAGS, _KIND, _STR = 20, 23, 40  # offsets of Type.TFlag, Type.Kind_ and Type.Str
_STRUCTURES = re.compile(rb"[\x19\x39\x59\x79]")  # STRUCT, with any of _DIRECT and _PROGRAM
# TFlagUncommon: UncommonType follows, which begins with the offset of the package's path
_UNCOMMON = 1
_STRUCTURE = 80  # bytes of StructType
_MAX_NAME, _MAX_FIELDS = 1 << 14, 1 << 14
_MAX_SECTION = 1 << 29  # bytes of type descriptors of a program
_CACHED = 1 << 16


class Type(NamedTuple):
    """A type descriptor. `size` and `pointers` (the prefix that may have pointers) are in bytes;
    `elem` is the element type of an array, channel, map, pointer or slice, else 0. `direct`: an
    interface stores the value itself, which is a pointer."""

    address: int
    name: str
    kind: int
    size: int
    pointers: int
    elem: int
    direct: bool


class PointerMask(NamedTuple):
    """The places of pointers in a type, from its descriptor. `size` and `pointers`: see Type.
    `mask`: the address of a bitmap with one bit for each word. With `is_program`, the address of a
    program that computes the bitmap. With `is_indirect`, the address of a word that contains the
    address of the bitmap."""

    size: int
    pointers: int
    mask: int
    is_program: bool
    is_indirect: bool


class Field(NamedTuple):
    """A field of a structure: its type's address, and its offset in bytes."""

    name: str
    type: int
    offset: int


class Types:
    """The type descriptors in `sections`, one range for each module of the program."""

    def __init__(self, memory: Memory, sections: Sequence[Range]) -> None:
        self._memory, self.sections = memory, sections
        self._shift = 0
        self.at = lru_cache(_CACHED)(self._at)
        self.fields = lru_cache(_CACHED)(self._fields)
        self.find = lru_cache(_CACHED)(self._find)
        g = self.find("runtime.g")
        if g is not None and len(self.fields(g)) > 1 and self.fields(g)[1].offset == 32:
            self._shift = 1  # the second field follows two words
            self.fields.cache_clear()

    def _section(self, address: int) -> Optional[Range]:
        return next((one for one in self.sections if one.start <= address < one.end), None)

    def _at(self, address: int) -> Optional[Type]:
        """Return the type at this address, or None if no module has a type there."""
        section, memory = self._section(address), self._memory
        data = memory.read(address, HEADER + 8) if section is not None and address % 8 == 0 else b""
        if section is None or len(data) < HEADER + 8:
            return None
        size, pointers = memory.arch.unpack(data[:16])
        order = memory.arch.byteorder
        kind, flags = data[23] & 31, data[20]
        if not 0 < kind < _KINDS or pointers > size:  # most integers that look like addresses
            return None
        name = self._name(section.start + int.from_bytes(data[_STR : _STR + 4], order))
        if not name:
            return None
        name = name[1:] if flags & _EXTRA_STAR and name.startswith("*") else name
        elem = 0
        if kind in (ARRAY, CHAN, POINTER, SLICE):
            elem = int.from_bytes(data[HEADER : HEADER + 8], order)
        elif kind == MAP:
            elem = memory.word(address + HEADER + 8) or 0
        return Type(address, name, kind, size, pointers, elem, bool((data[23] | flags) & _DIRECT))

    def mask(self, address: int) -> Optional[PointerMask]:
        """Return the places of pointers in the type at this address; None if it is unreadable.
        The address need not be in a section: types that are made at run time are in none."""
        data = self._memory.read(address, HEADER) if address % 8 == 0 else b""
        if len(data) < HEADER:
            return None
        size, pointers, _, _, mask = self._memory.arch.unpack(data[:_STR])
        return PointerMask(size, pointers, mask, bool(data[23] & _PROGRAM), bool(data[20] & _ON_DEMAND))

    def _name(self, address: int) -> str:
        """Return the name at this address: a byte of flags, the length as a varint, the text."""
        head = self._memory.read(address, 4)
        if not head:
            return ""
        length, at = head[1] & 0x7F, 2
        if head[1] & 0x80:
            length, at = length | head[2] << 7, 3
        return self._memory.read(address + at, length).decode("utf-8", "replace") if 0 < length < _MAX_NAME else ""

    def _fields(self, address: int) -> Sequence[Field]:
        """Return the fields of a structure; () if this is none."""
        one = self.at(address)
        head = self._memory.words(address + HEADER, 4) if one is not None and one.kind == STRUCT else None
        words = self._memory.words(head[1], 3 * head[2]) if head is not None and 0 < head[2] < _MAX_FIELDS else None
        if words is None:
            return ()
        return [Field(self._name(words[at]), words[at + 1], words[at + 2] >> self._shift) for at in range(0, len(words), 3)]

    def words(self, address: int, count: int) -> Sequence[int]:
        """Return words that follow the common part of a descriptor (a map's types, an array's
        length); () if unreadable."""
        return self._memory.words(address + HEADER, count) or ()

    def _find(self, name: str) -> Optional[int]:
        """Return the address of the named structure type, or None."""
        return next((one.address for one in self._iterate_named(name)), None)

    def list_named(self, name: str) -> Sequence[Type]:
        """Return all structure types with this name. Types of several packages may have the same
        name, because names have only the last part of a package's path."""
        return list(dict.fromkeys(self._iterate_named(name)))

    def _iterate_named(self, name: str) -> Iterator[Type]:
        text = f"*{name}".encode()  # shorter than 128 bytes
        for section in self.sections:
            content = self._memory.read(section.start, min(section.end - section.start, _MAX_SECTION))
            # Types refer to names by offset. A byte of flags precedes the length and the text.
            names = (at - 1 for at in occurrences(content, bytes([len(text)]) + text) if at)
            places = (place for at in names for place in occurrences(content, at.to_bytes(4, self._memory.arch.byteorder)))
            for place in places:
                one = self.at(section.start + place - _STR) if place % 8 == _STR % 8 and place >= _STR else None
                if one is not None and one.kind == STRUCT and one.name == name:
                    yield one

    def iterate_larger(self, one: Type) -> Iterator[Type]:
        """Yield structures and arrays whose first field or element has this type. Searches all
        descriptors once, and again for each structure."""
        for place in self._iterate_places(one.address):
            array = self.at(place - HEADER)
            if array is not None and array.kind == ARRAY and array.size:
                yield array
            # A field consists of its name, its type and its offset. The first field may have no
            # bytes; then the structure of the second one is not found.
            offset = self._memory.word(place + _WORD)
            for start in self._iterate_places(place - _WORD) if offset is not None and not offset >> self._shift else ():
                structure = self.at(start - HEADER - _WORD)
                if structure is not None and structure.kind == STRUCT:
                    yield structure

    def _iterate_places(self, value: int) -> Iterator[int]:
        """Yield the addresses in the sections at which a word has this value."""
        for section in self.sections:
            content = self._memory.read(section.start, min(section.end - section.start, _MAX_SECTION))
            for place in occurrences(content, value.to_bytes(_WORD, self._memory.arch.byteorder)):
                if place % _WORD == 0:
                    yield section.start + place

    def read_package(self, one: Type) -> str:
        """Return the path of the package of a named structure type; "" if it is unnamed."""
        section, memory = self._section(one.address), self._memory
        is_named = any(flags & _UNCOMMON for flags in memory.read(one.address + _FLAGS, 1))
        data = memory.read(one.address + _STRUCTURE, 4) if is_named else b""
        offset = int.from_bytes(data, memory.arch.byteorder)
        return self._name(section.start + offset) if section is not None and offset else ""

    @cached_property
    def shared_names(self) -> frozenset[str]:
        """The names that structures of several packages have. All descriptors are read: `diff`
        compares types by name, so names must not depend on the objects of a process."""
        packages: dict[str, set[str]] = {}
        for section in self.sections:
            content = self._memory.read(section.start, min(section.end - section.start, _MAX_SECTION))
            places = [_WORD * match.start() - _KIND // _WORD * _WORD for match in _STRUCTURES.finditer(content[_WORD - 1 :: _WORD])]
            places = [place for place in places if place >= 0 and content[place + _FLAGS] & _UNCOMMON]
            texts = [content[place + _STR : place + _STR + 4] for place in places]
            counts = Counter(texts)  # types with the same name have the same text
            for place, text in zip(places, texts):
                one = self._at(section.start + place) if counts[text] > 1 or len(self.sections) > 1 else None
                if one is not None:
                    packages.setdefault(one.name, set()).add(self.read_package(one))
        return frozenset(name for name, found in packages.items() if len(found - {""}) > 1)

    def offset(self, structure: int, path: str) -> Optional[int]:
        """Return the offset of a field ("sched.pc") in a structure, or None if it has no such
        field."""
        found = self.field(structure, path)
        return found.offset if found is not None else None

    def field(self, structure: int, path: str) -> Optional[Field]:
        """Return the offset and the type of a field, or None; see `offset`."""
        offset = 0
        one: Optional[Field] = None
        for name in path.split("."):
            one = next((field for field in self.fields(structure) if field.name == name), None)
            if one is None:
                return None
            offset, structure = offset + one.offset, one.type
        return one._replace(offset=offset) if one is not None else None
