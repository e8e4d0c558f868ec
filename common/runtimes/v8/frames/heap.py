"""Objects of V8's heap that frames refer to.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/objects/fixed-array.h (arrays have their length at
offset 8, and elements from offset 16 on), src/objects/shared-function-info.h."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.v8.functions import Functions
from findleaks.runtimes.v8.maps import Maps
from findleaks.runtimes.v8.metadata import META_MAP, TAG, TAG_MASK, Metadata
from findleaks.runtimes.v8.properties import Properties, Property
from findleaks.runtimes.v8.strings import SMI_SHIFT, Strings
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges, region_at

BYTES = ("byte_array", "trusted_byte_array")
ARRAYS = ("fixed_array", "trusted_fixed_array", "protected_fixed_array", "weak_fixed_array", "trusted_weak_fixed_array")
ANONYMOUS, EVALUATED = "(anonymous)", "eval"
"""Names of functions without a name, and of those that are evaluated text."""

# Kinds of functions (src/objects/function-kind.h), in the lowest bits of the flags.
_INITIALIZERS, _KIND_MASK = {24: "<instance_members_initializer>", 25: "<static_initializer>"}, 31
_INITIALIZERS_SINCE, _UNKNOWN = (12, 0), (14, 0)  # versions; the second one has an unknown layout
_MOST_TABLES = 1 << 26  # bytes of all tables that are read; a damaged process may refer to many
# As in stack_walk.S: the number of properties whose values a stub hashes, and the maximum number of
# strings that are followed to the last part of such a value.
_HASHED, _COMPOSED = 2, 4
_WEAK = 2  # a bit of the tag
_VERSION = ("_ZN2v88internal7Version6major_E", "_ZN2v88internal7Version6minor_E")
_SAMPLED = "scope_info_map"  # its objects are sampled, see Maps.scope_info_start


class FrameHeap:
    """The objects of isolates. `anchors`: by address, words in the isolates that do not change as
    long as the isolates exist."""

    def __init__(self, target: Target, engine: Engine, isolates: Sequence[int], memory: Optional[Memory] = None) -> None:
        """`memory`: the process's present memory, if it has run since `target` was opened."""
        self.target, self.memory, self.isolates = target, memory or Memory(target), isolates
        self.metadata = Metadata(target, self.memory)
        roots = [one for one in map(self.metadata.roots, self.isolates) if one]
        samples = (region_at(target.regions(), one[_SAMPLED]) for one in roots if _SAMPLED in one)
        sampled = merge_ranges(Range(one.start, one.end) for one in samples if one is not None)
        self.maps = Maps(target, engine, self.metadata, roots, sampled, self.memory)
        self.read_again(self.memory)
        self.is_readable = bool(roots) and len(roots) == len(self.isolates) and self.maps.is_readable

    def read_again(self, memory: Memory) -> None:
        """Drop what was read of objects, which V8 may have moved. `memory`: the memory of the
        process as it is now."""
        self.memory = memory
        self.maps.read_again(memory)
        self._strings, self._properties = Strings(memory, self.maps), Properties(memory, self.maps)
        self.functions = Functions(memory, self.maps, self._strings)
        self._left = _MOST_TABLES

    @cached_property
    def anchors(self) -> Mapping[int, int]:
        index = self.metadata.root_names.index(META_MAP)
        tables = filter(None, map(self.metadata.table_start, self.isolates))
        return {table + 8 * index: self.memory.word(table + 8 * index) or 0 for table in tables}

    @cached_property
    def version(self) -> tuple[int, int]:
        """The version of V8: (13, 6)."""
        symbols = [self.target.symbol(name) for name in _VERSION]
        major, minor = (self.memory.int32(one.address) or 0 if one is not None else 0 for one in symbols)
        return major, minor

    def _type(self, word: int) -> Optional[tuple[int, int]]:
        """Return the map and the instance type of the object at a tagged address; None if it is not
        an object. The object's map (its hidden class) may belong to a native context whose map of
        maps is not known yet."""
        first = self.memory.word(word - TAG) if word & TAG_MASK == TAG else None
        data = self.maps.data(first) if first is not None else None
        if first is not None and data is None and self.maps.add_meta(first):
            data = self.maps.data(first)
        return (first, data.instance_type) if first is not None and data is not None else None

    def types(self, word: int) -> Sequence[str]:
        """Return the names of the instance type of the object at a tagged address; () if it is no
        object."""
        found = self._type(word)
        return self.maps.names_of(found[1]) if found is not None else ()

    def is_a(self, word: int, names: Collection[str]) -> bool:
        """Whether the object at a tagged address has one of these instance types."""
        return any(name in names for name in self.types(word))

    def is_function(self, word: int) -> bool:
        """Whether a word is the tagged address of a function of JavaScript."""
        found = self._type(word)
        return found is not None and self.maps.is_function(*found)

    def shared_of(self, function: int) -> int:
        """Return the tagged address of the SharedFunctionInfo of a function; 0 if there is no
        function at this tagged address."""
        shared = self.functions.shared_of(function - TAG) if self.is_function(function) else 0
        return shared if self.is_shared(shared) else 0

    def name_function(self, shared: int, function: int) -> tuple[str, str]:
        """Return the name and the script of a function, as in the stack of an error: the name is
        the value of its property `name`, or else the name in the source. It is "" if only the
        function object has the name, and this object is unknown. `function`: the tagged address of
        the function object; 0 if it is unknown."""
        found, own = self.functions.of_shared(shared), self.own_name(shared, function)
        if own is None and self.shared_of(function) != shared and self.functions.has_computed_name(shared):
            return "", found.script
        name = self._initializer_name(shared) or found.name
        return (name if own is None else own) or (ANONYMOUS if found.script else EVALUATED), found.script

    def _initializer_name(self, shared: int) -> str:
        """Return the name that V8 gives the function that sets fields of a class, or executes its
        static blocks; "" for other functions. Before V8 12, the ScopeInfo has this name."""
        flags = self.metadata.offset("SharedFunctionInfo", "flags") if _INITIALIZERS_SINCE <= self.version < _UNKNOWN else None
        number = self.memory.int32(shared - TAG + flags) if flags is not None else None
        return _INITIALIZERS.get(number & _KIND_MASK, "") if number is not None else ""

    def own_name(self, shared: int, function: int) -> Optional[str]:
        """Return the value of the property `name` of a function; None if it has no such property,
        or if `shared` is not the SharedFunctionInfo of `function`."""
        found = self._own_name(function) if self.shared_of(function) == shared else None
        return self._strings.read(found.value) if found is not None else None

    def is_name_hashed(self, function: int) -> bool:
        """Whether a stub distinguishes the function at a tagged address from functions that differ
        only in the value of the property `name`. See js_frame of stack_walk.S."""
        found = self._own_name(function)
        hashed = self._properties.inside(function - TAG)[:_HASHED]
        return found is not None and found.place in hashed and self._strings.is_composed(found.value, _COMPOSED)

    def _own_name(self, function: int) -> Optional[Property]:
        """Return the property `name` of the function at a tagged address; None if it has none."""
        return next(self._properties.of(function - TAG, self.maps.tagged_roots("name_string")), None)

    def is_shared(self, word: int) -> bool:
        """Whether a word is the tagged address of a SharedFunctionInfo."""
        return self.is_a(word, ("shared_function_info",))

    def read_table(self, address: int, size: int) -> bytes:
        """Return bytes of a table; b"" if they are unreadable, or if too many were read before."""
        self._left -= max(0, size)
        return self.memory.read(address, size) if size > 0 and self._left >= 0 else b""

    def read_string(self, word: int) -> str:
        """Return the text of the string at a tagged address; "" if it is none."""
        return self._strings.read(word) or ""

    def bytes_of(self, word: int) -> Optional[bytes]:
        """Return the contents of the array of bytes at a tagged address; None if it is none."""
        length = self.length(word) if self.is_a(word, BYTES) else -1
        return self.read_table(word - TAG + 16, length) if length >= 0 else None

    def length(self, word: int) -> int:
        """Return the length of the array at a tagged address; -1 if it is damaged."""
        found = self.memory.word(word - TAG + 8)
        return found >> SMI_SHIFT if found is not None and not found & 0xFFFFFFFF and not found >> 63 else -1

    def element(self, array: int, index: int) -> int:
        """Return an element of the array at a tagged address; 0 if there is none. A weak reference
        is returned as a strong one."""
        if not 0 <= index < self.length(array):
            return 0
        word = self.memory.word(array - TAG + 16 + 8 * index) or 0
        return word & ~_WEAK if word & TAG else word

    def smi(self, array: int, index: int) -> int:
        """Return an element that is a small integer; -1 if it is none, or negative."""
        word = self.element(array, index)
        return word >> SMI_SHIFT if not word & 0xFFFFFFFF and not word >> 63 and 0 <= index < self.length(array) else -1
