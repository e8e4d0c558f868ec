"""Read the properties of JavaScript objects: their names, where their values are, and the values.

A map with fast properties has the names in a descriptor array. The value is in the object, in its
array of properties, or in the descriptor. Other objects have a dictionary of properties.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/objects/map.h, property-details.h, descriptor-array.h,
dictionary.h. Offsets and bits are constants, see metadata.py."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.v8.maps import Maps
from findleaks.runtimes.v8.metadata import TAG, TAG_MASK
from findleaks.value_classes import NamedTuple

SMI_SHIFT = 32
IN_ARRAY = 16  # bytes of the header of an array
MOST_ENTRIES = 1 << 20  # words of a dictionary that are read
# Names of the type of property cells; V8 7.8 has only that of their map.
PROPERTY_CELLS = ("property_cell", "global_property_cell")
_DESCRIPTORS = 24  # bytes of the header of a DescriptorArray


class Property(NamedTuple):
    """An own data property. `key` is the tagged address of its name, `place` the address of its
    value (0: the value is in the map), `value` the tagged value. `slot`: its place in the array of
    properties, or -1. `is_number`: whether all objects of the map have a number there."""

    key: int
    place: int
    value: int
    slot: int = -1
    is_number: bool = False


class Properties:
    """The properties of the objects that have these maps."""

    def __init__(self, memory: Memory, maps: Maps) -> None:
        self._memory, self._maps, self._constant = memory, maps, maps.metadata.constant
        offset = maps.metadata.offset
        self._bits3 = offset("Map", "bit_field3")
        self._descriptors = offset("Map", "instance_descriptors", "instance_descriptors_offset")
        if self._descriptors is None:
            self._descriptors = self._constant("class_Map__instance_descriptors_offset")
        self._in_object = offset("Map", "inobject_properties_start_or_constructor_function_index")
        self._properties = offset("JSReceiver", "raw_properties_or_hash")

    def word(self, address: int, offset: Optional[int]) -> int:
        """Return a word; 0 if it is unknown."""
        return (self._memory.word(address + offset) or 0) if offset is not None else 0

    def map_bit(self, word: int, place: int) -> bool:
        """Return a bit of a map's third bit field, by its place relative to the bit of maps with a
        dictionary of properties."""
        bits = self._map_bits(word)
        shift = self._constant("bit_field3_is_dictionary_map_shift")
        return bits is not None and shift is not None and bool(bits >> (shift + place) & 1)

    def has_dictionary(self, word: int) -> bool:
        """Whether the objects of a map have a dictionary of properties."""
        return self.map_bit(word, 0)

    @property
    def array_offset(self) -> int:
        """The offset of an object's array or dictionary of properties; 0 if it is unknown."""
        return self._properties or 0

    def _map_bits(self, word: int) -> Optional[int]:
        return self._memory.int32(word - TAG + self._bits3) if word & TAG_MASK == TAG and self._bits3 is not None else None

    def of(self, address: int, keys: Optional[frozenset[int]] = None) -> Iterator[Property]:
        """Yield the own data properties of an object: all, or those that have one of these keys."""
        word = self.word(address, 0)
        bits = self._map_bits(word)
        if bits is None:
            return
        if self.has_dictionary(word):
            yield from self._in_dictionary(self.word(address, self._properties), keys)
            return
        mask, shift = (self._constant(f"bit_field3_number_of_own_descriptors_{what}") for what in ("mask", "shift"))
        count = (bits & mask) >> shift if mask and shift is not None else 0
        descriptors = self.word(word - TAG, self._descriptors)
        words = self._memory.words(descriptors - TAG + _DESCRIPTORS, 3 * count) if count and descriptors & TAG_MASK == TAG else None
        inside = self.inside(address)
        for key, details, value in zip(*[iter(words or ())] * 3):
            if (keys is None or key in keys) and not (details >> SMI_SHIFT) & self._kind:
                yield self._field(address, inside, key, details >> SMI_SHIFT, value)

    @cached_property
    def _kind(self) -> int:
        return self._constant("prop_kind_mask") or 1

    def _field(self, address: int, inside: range, key: int, details: int, value: int) -> Property:
        constant = self._constant
        location = (details & (constant("prop_location_mask") or 0)) >> (constant("prop_location_shift") or 0)
        if location == constant("prop_location_Descriptor") or self._in_object is None:
            return Property(key, 0, value)
        index = (details & (constant("prop_index_mask") or 0)) >> (constant("prop_index_shift") or 0)
        if index < len(inside):
            place, index = inside[index], -1
        else:
            index -= len(inside)
            place = self.word(address, self._properties) - TAG + IN_ARRAY + 8 * index
        return Property(key, place, self._memory.word(place) or 0, index, self._is_number(details))

    def inside(self, address: int) -> range:
        """Return the addresses of the property values that are inside an object."""
        word = self.word(address, 0)
        data = self._maps.data(word)
        start = self._memory.read(word - TAG + self._in_object, 1) if self._in_object is not None else b""
        return range(address + 8 * start[0], address + data.size, 8) if data is not None and start else range(0)

    def _is_number(self, details: int) -> bool:
        """Whether the details of a property say that its value is a small integer or a double."""
        mask, shift, *numbers = (self._constant(f"prop_representation_{what}") for what in ("mask", "shift", "smi", "double"))
        return bool(mask) and shift is not None and (details & (mask or 0)) >> shift in numbers

    def in_cells(self, address: int) -> Iterator[Property]:
        """Yield the properties of a global object, whose dictionary has cells {map, name, details,
        value}."""
        table = self.word(address, self._properties)
        length = self.word(table - TAG, 8) >> SMI_SHIFT if table & TAG_MASK == TAG else 0
        words = self._memory.words(table - TAG + IN_ARRAY, length) if 0 < length < MOST_ENTRIES else None
        for word in words or ():
            map_ = self._memory.word(word - TAG) if word & TAG_MASK == TAG else None
            data = self._maps.data(map_) if map_ is not None else None
            cell = self._memory.words(word - TAG, 4) if data is not None and self._is_cell(data.instance_type) else None
            if cell is not None and self._is_name(cell[1]):
                yield Property(cell[1], word - TAG + 24, cell[3])

    def _is_cell(self, instance_type: int) -> bool:
        return any(name in PROPERTY_CELLS for name in self._maps.names_of(instance_type))

    def _in_dictionary(self, table: int, keys: Optional[frozenset[int]]) -> Iterator[Property]:
        entry, first = self.dictionary_shape
        if table & TAG_MASK != TAG or not entry:
            return
        length = self.word(table - TAG, 8) >> SMI_SHIFT
        words = self._memory.words(table - TAG + IN_ARRAY, length) if length < MOST_ENTRIES else None
        for at in range(first, len(words or ()) - entry + 1, entry):
            if words and (words[at] in keys if keys is not None else self._is_name(words[at])):
                if not (words[at + 2] >> SMI_SHIFT) & self._kind:
                    yield Property(words[at], table - TAG + IN_ARRAY + 8 * (at + 1), words[at + 1])

    @property
    def dictionary_shape(self) -> tuple[int, int]:
        """Words of an entry of a dictionary of properties, and the index of the first entry's first
        word after the header of the array; (0, 0) if they are unknown. An entry has key, value and
        details."""
        prefix, size = self._constant("namedictionary_prefix_start_index"), self._constant("namedictionaryshape_entry_size")
        extra = self._constant("namedictionaryshape_prefix_size")
        return (size, prefix + extra) if prefix is not None and size and extra is not None else (0, 0)

    def _is_name(self, word: int) -> bool:
        """Whether a word is the tagged address of a string or a symbol."""
        map_ = self._memory.word(word - TAG) if word & TAG_MASK == TAG else None
        data = self._maps.data(map_) if map_ is not None else None
        first = self._constant("FirstNonstringType") or 0
        return data is not None and (data.instance_type < first or data.instance_type == self._maps.types.get("symbol"))
