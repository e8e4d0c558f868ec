"""Read the tables in which libjvm describes itself: fields and sizes of its types, constants, and
the JVM's options.

Sources: src/hotspot/share/runtime/vmStructs.hpp and flags/jvmFlag.hpp of OpenJDK 17, 21 and 25
(runtime/globals.hpp of 8, flags/jvmFlag.hpp of 11).
There are four tables of entries:

- gHotSpotVMStructs: name of the type, of the field, and of the field's type, whether the field is
  static, its offset, its address if it is static.
- gHotSpotVMTypes: name, name of the superclass, ..., size.
- gHotSpotVMIntConstants and gHotSpotVMLongConstants: name, value.

libjvm also exports the size of an entry, and the offset of each of these members. The last entry of
a table has no name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.target.base import Module, Symbol, Target

MOST = 1 << 16  # most entries of a table
MOST_FLAGS, MOST_STRIDE = 1 << 14, 1 << 12  # options; bytes of an entry
NAME = 128  # most bytes of a name
_FLAGS = ("JVMFlag", "Flag")  # the type of options; the second name is that of JDK 8


class Field(NamedTuple):
    """A field. `address`: the address of a static field, else 0. `offset`: its offset in each
    object. `type_name`: the address of the name of its type."""

    offset: int
    address: int
    type_name: int = 0


class VMStructs:
    """Looks up entries by names such as ("CollectedHeap", "_reserved"). The result is None if
    anything cannot be read."""

    def __init__(self, target: Target, module: Module) -> None:
        self.target = target
        self.module = module
        self.memory = Memory(target)
        self._library = os.path.basename(module.path)
        self._texts: dict[int, str] = {}
        self._symbols: dict[str, Optional[Symbol]] = {}
        self.fields = self._fields()

    @property
    def is_jdk8(self) -> bool:
        """Whether the JVM is JDK 8. Later versions have another type of options."""
        return (_FLAGS[1], "flags") in self.fields

    def symbol(self, name: str) -> int:
        """Return the address of a symbol of libjvm, or 0."""
        found = self._symbol(name)
        return found.address if found is not None else 0

    def symbol_size(self, name: str) -> int:
        """Return the size of a symbol of libjvm in bytes, or 0."""
        found = self._symbol(name)
        return found.size if found is not None else 0

    def _symbol(self, name: str) -> Optional[Symbol]:
        if name not in self._symbols:
            self._symbols[name] = self.target.symbol(name, self._library)
        return self._symbols[name]

    def _find_exported(self, name: str) -> Optional[int]:
        address = self.symbol(name)
        return self.memory.word(address) if address else None

    def _entries(self, kind: str, names: Sequence[str]) -> Iterator[tuple[int, ...]]:
        """For each entry of a table, yield the members with these names, one word for each member.
        If a member is shorter than a word, its value is in the low bits of the word."""
        base, stride = self._find_exported(f"{kind}s"), self._find_exported(f"{kind}EntryArrayStride")
        offsets = [self._find_exported(f"{kind}Entry{name}Offset") for name in names]
        size = self.memory.size
        places = [place for place in offsets if place is not None]
        if not base or not stride or stride > MOST_STRIDE or len(places) < len(names) or max(places) > stride - size:
            return
        for at in range(base, base + MOST * stride, stride):
            words = self.memory.words(at, stride // size)
            if words is None or not words[places[0] // size]:
                return
            yield tuple(words[place // size] for place in places)

    def _fields(self) -> dict[tuple[str, str], Field]:
        found: dict[tuple[str, str], Field] = {}
        names = ("TypeName", "FieldName", "IsStatic", "Offset", "Address", "TypeString")
        for kind, name, static, offset, address, type_name in self._entries("gHotSpotVMStruct", names):
            place = (0, address) if static & 0xFFFFFFFF else (offset, 0)
            found[self.text(kind), self.text(name)] = Field(*place, type_name)
        self._add_missing(found)
        return found

    def _add_missing(self, found: dict[tuple[str, str], Field]) -> None:
        """Add the fields of the lists of classes, which the tables of JDK 8 lack. The head of a
        list is four words before ClassLoaderData::_next. The link to the next class is one word
        before the class's pointer to its ClassLoaderData (classLoaderData.hpp, klass.hpp)."""
        following, data = found.get(("ClassLoaderData", "_next")), found.get(("InstanceKlass", "_class_loader_data"))
        if following is not None and data is not None and ("ClassLoaderData", "_klasses") not in found:
            found["ClassLoaderData", "_klasses"] = Field(following.offset - 4 * self.memory.size, 0)
            found["Klass", "_next_link"] = Field(data.offset - self.memory.size, 0)
            found["Klass", "_class_loader_data"] = data

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The size of each type, in bytes."""
        return {self.text(name): size for name, size in self._entries("gHotSpotVMType", ("TypeName", "Size"))}

    @cached_property
    def constants(self) -> dict[str, int]:
        """The value of each constant. Constants of 32 bits are unsigned."""
        found = {self.text(name): value & 0xFFFFFFFF for name, value in self._entries("gHotSpotVMIntConstant", ("Name", "Value"))}
        found.update((self.text(name), value) for name, value in self._entries("gHotSpotVMLongConstant", ("Name", "Value")))
        return found

    @cached_property
    def _flags(self) -> dict[str, int]:
        """The address of the value of each option of the JVM."""
        kind = next((kind for kind in _FLAGS if (kind, "flags") in self.fields), _FLAGS[0])
        base, count = self.word(kind, "flags") or 0, self.word(kind, "numFlags") or 0
        stride, word = self.sizes.get(kind, 0), self.memory.size
        name, value = (self.fields.get((kind, field)) for field in ("_name", "_addr"))
        if not base or not 0 < count <= MOST_FLAGS or name is None or value is None:
            return {}
        if not max(name.offset, value.offset) < stride <= MOST_STRIDE or stride % word:
            return {}
        words = self.memory.words(base, count * stride // word) or ()
        each = stride // word
        return {self.text(text): place for text, place in zip(words[name.offset // word :: each], words[value.offset // word :: each])}

    def option(self, name: str) -> Optional[int]:
        """Return the low 32 bits of the value of an option of the JVM; None if there is no option
        with this name."""
        place = self._flags.get(name)
        return self.memory.int32(place) if place else None

    def is_set(self, name: str) -> Optional[bool]:
        """Return whether an option of the JVM is set; None if there is no option with this name."""
        value = self.option(name)
        return None if value is None else bool(value & 1)

    def text(self, address: int) -> str:
        """Return a C string of at most NAME characters."""
        known = self._texts.get(address)
        if known is None:
            known = self._texts[address] = self._text(address)
        return known

    def _text(self, address: int) -> str:
        for length in (NAME, 32, 8):
            data = self.memory.read(address, length)
            if data:
                return data.split(b"\0")[0].decode("utf-8", "backslashreplace")
        return ""

    def place(self, kind: str, field: str, of: int = 0) -> int:
        """Return the address of a field; 0 if there is none. `of`: the address of the object, which
        is not used for a static field."""
        found = self.fields.get((kind, field))
        if found is None:
            return 0
        return found.address or (of + found.offset if of else 0)

    def word(self, kind: str, field: str, of: int = 0) -> Optional[int]:
        """Return the value of a field, as a word."""
        place = self.place(kind, field, of)
        return self.memory.word(place) if place else None

    def int32(self, kind: str, field: str, of: int = 0) -> Optional[int]:
        """Return the value of a field, as 32 bits."""
        place = self.place(kind, field, of)
        return self.memory.int32(place) if place else None
