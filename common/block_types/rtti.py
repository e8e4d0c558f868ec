"""C++ classes, recognised by the shape of vtables and run-time type information, without symbols.

Layout (Itanium C++ ABI, 2.5.2 "Virtual Table Components and Order" and 2.9.5 "RTTI Layout"), W the
word size; an object's first word points at the address point of a vtable:

    vtable:    -2W offset to top (signed)   -W typeinfo   0 first virtual function …
    typeinfo:  0 vtable of its own class    W name (bytes, NUL)   2W what its class adds:
               __si_class_type_info   base typeinfo
               __vmi_class_type_info  u32 flags, u32 count, count × {base typeinfo,
                                      long flags: bit 0 virtual}

A typeinfo's own class is recognised the same way: its vtable's typeinfo is named after one of the
three classes of __cxxabiv1.
"""

from __future__ import annotations

import re
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.block_types.type_ranges import TypeRanges
from findleaks.demangle import demangle_type
from findleaks.errors import UnreadableMemory
from findleaks.target.base import Range, Target
from findleaks.target.encoded_numbers import decode_signed
from findleaks.target.ranges import merge_ranges, range_at
from findleaks.value_classes import NamedTuple

_CLASSES = {
    "N10__cxxabiv117__class_type_infoE": "class",
    "N10__cxxabiv120__si_class_type_infoE": "si",
    "N10__cxxabiv121__vmi_class_type_infoE": "vmi",
}
_OFFSETS = 1 << 28
_LONGEST_NAME = 2048
_MOST_BASES = 64
_MANGLED = re.compile(rb"[A-Za-z0-9_.$\x80-\xff]+")


class TypeInfo(NamedTuple):
    """A type_info object. `form` is "class", "si" or "vmi", or "" if the data of the C++ library
    cannot be read; `name` is the mangled type."""

    address: int
    form: str
    name: str


class Rtti:
    """Classes by vtable address, cached."""

    def __init__(self, target: Target, where: TypeRanges) -> None:
        self._target, self._memory = target, Memory(target)
        self._ranges = where
        self._word = target.arch.word
        self._infos: dict[int, Optional[TypeInfo]] = {}
        self._forms: dict[int, Optional[str]] = {}
        self._files: Optional[list[Range]] = None

    def vtable(self, word: int) -> tuple[bool, int]:
        """Return (whether `word` looks like the address point of a vtable, its typeinfo or 0).

        The first function must be code or null. It is null for destructors that an abstract class,
        or a class under construction, does not need. If it is null, the next function is checked.
        If both are null, the typeinfo must be certain."""
        size = self._word
        if word % size or not range_at(self._ranges.tables, word):
            return False, 0
        words = self._memory.words(word - 2 * size, 3)
        function = (words[2] or self._memory.word(word + size)) if words is not None else None
        if words is None or function is None or abs(decode_signed(words[0], 8 * size)) >= _OFFSETS:
            return False, 0
        info = words[1]
        certain = range_at(self._ranges.code, function) if function else self.typeinfo(info)
        return (True, info) if certain else (False, 0)

    def typeinfo(self, address: int) -> Optional[TypeInfo]:
        """Return the typeinfo at `address`, or None."""
        if address not in self._infos:
            self._infos[address] = self._typeinfo(address)
        return self._infos[address]

    def may_be_typeinfo(self, address: int) -> bool:
        """Whether this may be a typeinfo with an unreadable name, by its address and first
        words."""
        in_table = range_at(self._ranges.tables, address) and address % self._word == 0
        words = self._memory.words(address, 2) if in_table else None
        return words is not None and all(map(self._in_file, words))

    def _typeinfo(self, address: int) -> Optional[TypeInfo]:
        words = self._memory.words(address, 2) if address % self._word == 0 else None
        if words is None:
            return None
        form, name = self._form(words[0]), self._name(words[1])
        return TypeInfo(address, form, name) if form is not None and name else None

    def _form(self, own: int) -> Optional[str]:
        """Return the form of typeinfos with this vtable; "" if undecidable, None if typeinfos do
        not have this vtable."""
        if own not in self._forms:
            self._forms[own] = self._look_at_form(own)
        return self._forms[own]

    def _look_at_form(self, own: int) -> Optional[str]:
        if own % self._word or not self._in_file(own):
            return None
        info = self._memory.word(own - self._word)
        if info is not None and not self._in_file(info):
            return None
        pointer = self._memory.word(info + self._word) if info is not None else None
        name = self._name(pointer) if pointer is not None else None
        # None: neither the core nor this machine has the C++ library
        return _CLASSES.get(name) if name is not None else ""

    def _in_file(self, address: int) -> bool:
        """Whether an address is in a module, or in a mapped file of which the core has too little
        to recognise a module."""
        if self._files is None:
            mapped = [Range(r.start, r.end) for r in self._target.regions() if r.name.startswith("/")]
            self._files = merge_ranges([*mapped, *(Range(m.start, m.end) for m in self._target.modules())])
        return range_at(self._files, address) is not None

    def _name(self, address: int) -> Optional[str]:
        """Return the mangled name at `address`, or ""; a leading '*' marks a type local to a file.
        None if unreadable."""
        data = b""
        try:
            while address and b"\0" not in data and len(data) < _LONGEST_NAME:
                data += self._target.read(address + len(data), 64 - (address + len(data)) % 64)
        except UnreadableMemory:
            return None
        name = data.split(b"\0", 1)[0].lstrip(b"*")
        return name.decode("utf-8", "surrogateescape") if _MANGLED.fullmatch(name) and len(name) <= _LONGEST_NAME else ""

    def display_name(self, info: TypeInfo) -> str:
        """Return the demangled name of a class; the mangled one if that fails and the typeinfo is
        certain."""
        return demangle_type(info.name) or (info.name if info.form else "")

    def has_virtual_bases(self, info: TypeInfo, depth: int = 0) -> bool:
        """Whether the class or a base inherits virtually: then construction vtables may exist,
        too."""
        if depth > 16 or info.form not in ("si", "vmi"):
            return False
        at = info.address + 2 * self._word
        if info.form == "si":
            bases = self._memory.words(at, 1) or ()
        else:
            count = min(self._memory.int32(at + 4) or 0, _MOST_BASES)
            rows = self._memory.words(at + 8, 2 * count) or ()
            if any(flags & 1 for flags in rows[1::2]):
                return True
            bases = rows[::2]
        found = (self.typeinfo(base) for base in bases[: 16 >> min(depth, 4) or 1])
        return any(base is not None and self.has_virtual_bases(base, depth + 1) for base in found)

    def primary_bases(self, address: int) -> list[str]:
        """Return the mangled names of a class, of its base, of the base of this base, and so on. A
        base counts only if it is the only one of its class, and is at offset 0. A fundamental type
        or a pointer has no bases. Returns [] if the name is unreadable."""
        names: list[str] = []
        info = self.typeinfo(address)
        if info is None:
            name = self._name(self._memory.word(address + self._word) or 0)
            return [name] if name else []
        while info is not None and len(names) < _MOST_BASES:
            names.append(info.name)
            base = self._memory.word(info.address + 2 * self._word) if info.form == "si" else None
            info = self.typeinfo(base) if base is not None else None
        return names
