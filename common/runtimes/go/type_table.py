"""Convert Go's type descriptors to the table with which engine.py finds the types of objects.

Maps, channels, texts and functions get separate types, because no descriptor has the layout of
their objects.

Sources: Go 1.18 to 1.26, src/runtime: map.go (hmap, up to 1.23), chan.go (hchan);
src/internal/runtime/maps: map.go (Map), table.go (table), group.go (groupsReference), since 1.24;
src/internal/abi: map_swiss.go, map_noswiss.go (the types of a map); src/sync/atomic/type.go
(Pointer); since 1.23, src/runtime/time.go (timeTimer); since 1.24, src/internal/sync/hashtriemap.go
(node, entry, indirect), src/weak/pointer.go (Pointer); since 1.25, src/unique/canonmap.go (node,
entry, indirect); 1.23, src/internal/concurrent/hashtriemap.go (the same types)."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from findleaks.runtimes.go import engine as terms
from findleaks.runtimes.go.engine import NONE
from findleaks.runtimes.go.types import ARRAY, CHAN, FUNC, INTERFACE, MAP, POINTER, SLICE, STRING, STRUCT, Type, Types
from findleaks.value_classes import NamedTuple

_MAX_SLOTS = 1 << 16  # of one type: longer arrays of structures are read in part
_MAX_DEPTH = 64
_WORD = 8
_ATOMIC, _WEAK = "atomic.Pointer[", "weak.Pointer["
_NODE = re.compile(r"(?:sync|unique|concurrent)\.(node\[)")


class _Slot(NamedTuple):
    offset: int
    kind: int
    target: int


def _with_path(name: str, path: str) -> str:
    """Return a name with the path of its package: "k8s.io/api/core/v1.Volume"."""
    return path + name[name.index(".") :] if "." in name.partition("[")[0] else name


class TypeNames:
    """The numbers of types, and what the search for types must know about them. `names`: the names
    by number."""

    def __init__(self, types: Types) -> None:
        self._types = types
        self._numbers: dict[tuple[str, int], int] = {}
        self._pending: list[tuple[int, tuple[str, int]]] = []
        self.names: list[str] = []
        self.keys: list[tuple[str, int]] = []  # by number: how its objects are read, its descriptor
        self._sizes, self._pointers = array("Q"), bytearray()
        self._slots: list[Sequence[_Slot]] = []
        self._closures: dict[int, int] = {}  # by function: the type of its closures' contents
        self.text = self._add(("text", 0), "string contents", 1, 0)
        self.function = self._add(("function", 0), "func", _WORD, terms.ANY)
        self.handle = self._add(("handle", 0), "weak pointer", _WORD, 0)
        self._timer = types.find("runtime.timer")
        # Since 1.23, NewTimer and NewTicker return a pointer to a part of a larger object.
        self._timers = types.find("runtime.timeTimer")
        self._parts = {types.find(name) for name in ("time.Timer", "time.Ticker")} - {None} if self._timers is not None else set()
        hchan = types.find("runtime.hchan")
        self._channel = types.at(hchan) if hchan is not None else None

    def _add(self, key: tuple[str, int], name: str, size: int, pointers: int) -> int:
        number = self._numbers[key] = len(self.names)
        self.names.append(name)
        self.keys.append(key)
        self._sizes.append(size)
        self._pointers.append(pointers)
        self._slots.append(())
        self._pending.append((number, key))
        return number

    def _number(self, key: tuple[str, int], name: str, size: int, pointers: int) -> int:
        """Return the number of the type with this key. The type is added if it is new."""
        number = self._numbers.get(key)
        return self._add(key, name, size, pointers) if number is None else number

    def number(self, address: int) -> int:
        """Return the number of a type, or NONE if there is none at this address."""
        if address in self._parts and self._timers is not None:
            address = self._timers
        key = ("type", address)
        one = self._types.at(address) if key not in self._numbers else None
        if one is not None:
            self._add(key, self._qualify(one), one.size, int(one.pointers > 0))
        return self._numbers.get(key, NONE)

    def _qualify(self, one: Type) -> str:
        """Return the name of a type. It has only the last part of the package's path ("v1.Volume").
        If structures of several packages have this name, it has the whole path. Plugins and the
        program have packages with the name main."""
        is_shared = one.kind == STRUCT and one.name in self._types.shared_names
        path = self._types.read_package(one) if is_shared else ""
        return _with_path(one.name, path) if path else one.name

    def add_name(self, name: str) -> int:
        """Add a type that has only a name, and return its number. The number is always new, even if
        another type has the same name."""
        return self._add(("name", len(self.names)), name, 0, 0)

    def value(self, address: int, is_array: bool = False) -> int:
        """Return the type value of an object of the type at this address, or of an array of such
        objects; NONE if there is no type."""
        number = self.number(address)
        return NONE if number == NONE else number << 1 | is_array

    def pointee(self, address: int) -> int:
        """Return the type value of what an interface's data word refers to, if its type is at
        `address`; or NONE."""
        one = self._types.at(address)
        if one is None:
            return NONE
        if not one.direct:
            return self.value(address)
        targets = [slot.target for slot in self._flatten(one, 0, 0) if slot.offset == 0 and slot.kind == terms.POINTER]
        return targets[0] if targets else NONE

    def map_value(self, address: int) -> int:
        """Return the type value of the head of a map whose type is at this address; or NONE."""
        one = self._types.at(address)
        return self._map_value(one) if one is not None and one.kind == MAP else NONE

    def map_contents_value(self, address: int) -> int:
        """Return the type value of the directory or the buckets of such a map; or NONE."""
        head = self.map_value(address)
        self._complete()
        slots = self._slots[head >> 1] if head != NONE else ()
        return next((one.target for one in slots if one.kind in (terms.POINTER, terms.SECOND)), NONE)

    def map_values(self) -> list[int]:
        """Return the type values of the heads of all known maps."""
        return [number << 1 for (sort, _), number in self._numbers.items() if sort == "map"]

    def title(self, value: int) -> str:
        """Return the name of a type value."""
        name = self.names[value >> 1]
        return f"[]{name}" if value & 1 and value >> 1 not in (self.text, self.function) else name

    def closure_value(self, function: int, name: str, structure: int) -> int:
        """Return the type value of closures of a function. `structure`: the address of the type of
        their contents."""
        key = ("closure", function)
        one = self._types.at(structure)
        if key not in self._numbers and one is not None:
            self._closures[function] = structure
            self._add(key, f"func {name}", one.size, int(one.pointers > 0))
        return self._numbers[key] << 1 if key in self._numbers else NONE

    def size(self, value: int) -> int:
        """Return the size in bytes of an object, or of one element of an array."""
        return self._sizes[value >> 1]

    def has_pointers(self, value: int) -> Optional[bool]:
        """Return whether objects of a type have pointers; None if both is possible."""
        found = self._pointers[value >> 1]
        return None if found == terms.ANY else bool(found)

    def target(self, value: int, offset: int) -> int:
        """Return the type value of the object to which the field at an offset refers, or NONE."""
        self._complete()
        slot = next((one for one in self._slots[value >> 1] if one.offset == offset and one.kind <= terms.TEXT), None)
        return NONE if slot is None else slot.target | (slot.kind != terms.POINTER)

    def _complete(self) -> None:
        """Read the slots of all types to which known types refer."""
        while self._pending:
            number, key = self._pending.pop()
            self._slots[number] = list(self._slots_of(*key))

    def columns(self) -> tuple[array[int], bytearray, array[int], array[int], bytearray, array[int]]:
        """Return `sizes` to `targets` of TypeTable, with all types that the known ones refer to."""
        self._complete()
        first, offsets, kinds, targets = array("I", [0]), array("I"), bytearray(), array("I")
        for slots in self._slots:
            for slot in slots:
                offsets.append(slot.offset)
                kinds.append(slot.kind)
                targets.append(slot.target)
            first.append(len(offsets))
        return self._sizes, self._pointers, first, offsets, kinds, targets

    def _slots_of(self, sort: str, address: int) -> Iterator[_Slot]:
        one = self._types.at(self._closures[address] if sort == "closure" else address) if address else None
        if one is None:
            return
        if sort == "closure":
            yield from self._flatten(one, 0, 0)
        elif sort == "type":
            yield from self._enclosing(one)
            yield from self._flatten(one, 0, 0)
        elif sort == "buckets":
            yield from self._flatten(one, 0, 0)
            overflow = self._numbers["buckets", address] << 1
            yield _Slot(one.size - _WORD, terms.POINTER, overflow)
        elif sort == "channel" and self._channel is not None:
            yield from self._flatten(self._channel, 0, 0)
            yield _Slot(2 * _WORD, terms.POINTER, self.value(one.elem, True))
        elif sort == "map":
            yield from self._map_slots(one)
        elif sort == "tables":
            yield _Slot(0, terms.POINTER, self._numbers["table", address] << 1)
        elif sort == "table":
            inside = self._inside(one)
            if inside is not None:
                yield _Slot(2 * _WORD, terms.POINTER, self.value(inside.address, True))

    def _enclosing(self, one: Type) -> Iterator[_Slot]:
        """Yield slots for the larger objects that contain a value of this type. Only types whose
        pointers really refer to larger objects have such slots."""
        if one.address == self._timer:
            whole = self._timers if self._timers is not None else self._types.find("time.Timer")
            part = self._types.offset(whole, "timer" if whole == self._timers else "r") if whole is not None else None
            if whole is not None and part is not None:
                yield _Slot(part, terms.INSIDE, self.value(whole))
        elif (node := _NODE.match(one.name)) is not None:
            package, arguments = one.name[: node.start(1)], one.name[node.end() :]
            for kind, name in ((terms.TAGGED, "entry"), (terms.UNTAGGED, "indirect")):
                whole = self._types.find(f"{package}{name}[{arguments}")
                if whole is not None:
                    yield _Slot(0, kind, self.value(whole))

    def _atomic_slot(self, one: Type, offset: int) -> Optional[_Slot]:
        """Return the slot of an atomic.Pointer[T]; None if its type cannot be read. One of its
        fields has the type [0]*T; the last field contains the pointer."""
        fields = self._types.fields(one.address)
        arrays = (array for array in (self._types.at(field.type) for field in fields) if array is not None and array.kind == ARRAY)
        pointer = next((self._types.at(array.elem) for array in arrays), None)
        target = self.value(pointer.elem) if pointer is not None and pointer.kind == POINTER else NONE
        return _Slot(offset + fields[-1].offset, terms.POINTER, target) if target != NONE else None

    def _flatten(self, one: Type, offset: int, depth: int) -> Iterator[_Slot]:
        """Yield the slots of a value at this offset. A type with a `target` of NONE is omitted."""
        if not one.pointers or depth > _MAX_DEPTH:
            return
        target, kind = NONE, terms.POINTER
        if one.kind == POINTER:
            target = self.value(one.elem)
        elif one.kind == SLICE:
            target, kind = self.value(one.elem), terms.SLICE
        elif one.kind == STRING:
            target, kind = self.text << 1, terms.TEXT
        elif one.kind == INTERFACE:
            target, kind = 0, terms.INTERFACE
        elif one.kind == FUNC:
            target = self.function << 1
        elif one.kind == CHAN:
            target = self.channel_value(one)
        elif one.kind == MAP:
            target = self._map_value(one)
        elif one.kind == ARRAY:
            yield from self._flatten_array(one, offset, depth)
        elif one.kind == STRUCT and one.name.startswith(_ATOMIC):
            slot = self._atomic_slot(one, offset)
            yield from () if slot is None else (slot,)
        elif one.kind == STRUCT and one.name.startswith(_WEAK):
            fields = [field for field in self._types.fields(one.address) if field.name == "u"]
            yield from (_Slot(offset + field.offset, terms.POINTER, self.handle << 1) for field in fields)
        elif one.kind == STRUCT:
            for field in self._types.fields(one.address):
                member = self._types.at(field.type)
                if member is not None and field.offset + member.size <= one.size:
                    yield from self._flatten(member, offset + field.offset, depth + 1)
        if target != NONE:
            yield _Slot(offset, kind, target)

    def _flatten_array(self, one: Type, offset: int, depth: int) -> Iterator[_Slot]:
        element, length = self._types.at(one.elem), (*self._types.words(one.address, 3)[2:], 0)[0]
        if element is None or not element.size or length * element.size > one.size:
            return
        slots = list(self._flatten(element, 0, depth + 1))
        for number in range(min(length, _MAX_SLOTS // max(len(slots), 1))):
            for slot in slots:
                yield slot._replace(offset=offset + number * element.size + slot.offset)

    def channel_value(self, one: Type) -> int:
        """Return the type value of a channel of type `one`; NONE if runtime.hchan is unknown."""
        if self._channel is None:
            return NONE
        return self._number(("channel", one.address), one.name, self._channel.size, terms.ANY) << 1

    def _map_value(self, one: Type) -> int:
        return self._number(("map", one.address), one.name, 6 * _WORD, 1) << 1

    def _map_slots(self, one: Type) -> Iterator[_Slot]:
        """Yield the slots of a map's head: up to 1.23, buckets and oldbuckets of hmap; since 1.24,
        the directory of maps.Map."""
        inside = self._inside(one)
        fields = self._types.fields(inside.address) if inside is not None else ()
        if inside is None or not fields:
            return
        if fields[0].name != "ctrl":
            number = self._bucket(one, inside)
            yield _Slot(2 * _WORD, terms.POINTER, number << 1 | 1)
            yield _Slot(3 * _WORD, terms.POINTER, number << 1 | 1)
            return
        group = self.number(inside.address)
        self.names[group] = f"{one.name} groups"
        self._number(("table", one.address), f"{one.name} table", 4 * _WORD, 1)
        tables = self._number(("tables", one.address), f"{one.name} directory", _WORD, 1)
        yield _Slot(2 * _WORD, terms.DIRECTORY, group << 1)
        yield _Slot(2 * _WORD, terms.SECOND, tables << 1 | 1)

    def _inside(self, one: Type) -> Optional[Type]:
        """Return the type of a map's buckets or groups."""
        words = self._types.words(one.address, 3)
        return self._types.at(words[2]) if words else None

    def _bucket(self, one: Type, inside: Type) -> int:
        """Return the number of a map's buckets, which also refer to overflow buckets."""
        key = ("buckets", inside.address)
        if key not in self._numbers:
            number = self._numbers[key] = self.number(inside.address)
            self.names[number] = f"{one.name} buckets"
            self._pending.insert(0, (number, key))  # after the type itself
        return self._numbers[key]

    def register(self, found: Mapping[int, int]) -> tuple[array[int], array[int], array[int]]:
        """Return `addresses`, `pointees` and `elements` of TypeTable. `found`: by address of a type
        or itab, the address of the type."""
        addresses = array("Q", sorted(found))
        pointees = array("I", [self.pointee(found[address]) for address in addresses])
        elements = array("I", [self.number(address) if found[address] == address else NONE for address in addresses])
        return addresses, pointees, elements
