"""Name objects as heap snapshots of V8 do.

The convention is that of the class column of Chrome DevTools for Node 22 and 24: objects have the
name of their constructor, and everything else has the name of a category in parentheses.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/profiler/heap-snapshot-generator.cc
(V8HeapExplorer::AddEntry), src/objects/js-objects.cc (JSReceiver::GetConstructorName), map.h,
property-details.h, descriptor-array.h, dictionary.h."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from findleaks.allocators.memory import Memory
from findleaks.runtimes.v8.maps import FIRST_RECEIVER, Maps
from findleaks.runtimes.v8.metadata import TAG, TAG_MASK
from findleaks.runtimes.v8.properties import Properties
from findleaks.runtimes.v8.sizes import ARRAYS
from findleaks.runtimes.v8.strings import Strings

OBJECT = "Object"
CODE, SHAPE, SYSTEM, STRING, CLOSURE = "(compiled code)", "(object shape)", "(system)", "(string)", "(closure)"
CONTEXT, ARRAY, SYMBOL, SLICE = "system / Context", "(array)", "(symbol)", "(sliced string)"
CALL = "Generator"  # a call of an async function that has not returned yet
CALLS = frozenset(("js_generator_object", "js_async_function_object", "js_async_generator_object"))
"""Instance types of objects that have such a name and a function."""
_CODE_NAMES = (
    "code instruction_stream code_data_container code_wrapper bytecode_array bytecode_wrapper shared_function_info script scope_info "
    "preparse_data feedback_vector feedback_metadata feedback_cell closure_feedback_cell_array allocation_site interpreter_data "
    "uncompiled_data_with_preparse_data uncompiled_data_without_preparse_data load_handler store_handler "
    "array_boilerplate_description object_boilerplate_description reg_exp_boilerplate_description template_object_description "
    "trusted_byte_array trusted_fixed_array trusted_weak_fixed_array protected_fixed_array protected_weak_fixed_array"
)
_SHAPE_NAMES = "map descriptor_array strong_descriptor_array transition_array enum_cache prototype_info"
CATEGORIES: Mapping[str, str] = {
    **dict.fromkeys(ARRAYS, ARRAY),
    **dict.fromkeys(_CODE_NAMES.split(), CODE),
    **dict.fromkeys(_SHAPE_NAMES.split(), SHAPE),
    "byte_array": ARRAY,
    "js_proxy": SYSTEM,
    "symbol": SYMBOL,
    "heap_number": "(number)",
    "bigint": "(bigint)",
    "js_reg_exp": "(regexp)",
    "js_regexp": "(regexp)",
    "js_function": CLOSURE,
    "js_bound_function": CLOSURE,
    "js_wrapped_function": CLOSURE,
}
"""Categories of instance types by name; other internal objects are SYSTEM."""

CLASS_NAMES = {"js_arguments_object": "Arguments", "js_async_function_object": CALL}
"""Names of objects whose prototypes have none, by instance type. A call of an async function that
has not returned yet is an object of the second type."""

MOST_PROTOTYPES, MOST_BACK = 64, 1 << 12
NEW_TARGET_IS_BASE = 1  # a bit of a map's second bit field
PROTOTYPE_BIT = -1  # place of the bit of prototypes


class Names:
    """Names of the objects of each map."""

    def __init__(self, memory: Memory, maps: Maps) -> None:
        self._memory, self._maps, self.strings = memory, maps, Strings(memory, maps)
        self.properties = Properties(memory, maps)
        self._word = self.properties.word
        self._prototypes: dict[int, str] = {}
        metadata = maps.metadata
        offset, self._constant = metadata.offset, metadata.constant
        self._constructor = offset("Map", "constructor_or_back_pointer", "constructor_or_backpointer")
        self._prototype, self._bits2 = offset("Map", "prototype"), offset("Map", "bit_field2")

    def name(self, word: int, first: int) -> str:
        """Return the name of objects of the map at a tagged address; "" for free memory. `first` is
        the address of one of the objects."""
        data = self._maps.data(word)
        if data is None:
            return SYSTEM
        kind = data.instance_type
        if kind < (self._constant("FirstNonstringType") or 0):
            return self._string(kind)
        names = self._maps.names_of(kind)
        if self._maps.is_free(word):
            return ""
        if kind in self._maps.contexts:
            return SYSTEM if kind == self._maps.native_context else CONTEXT
        if self._maps.is_function(word, kind):
            return CLOSURE
        known = next((CATEGORIES[name] for name in names if name in CATEGORIES), "")
        if kind == FIRST_RECEIVER and not names:
            return SYSTEM  # proxies of V8 7.8
        return known or (self._constructor_name(word, first) if kind >= self._maps.first_receiver else SYSTEM)

    def _string(self, kind: int) -> str:
        form = kind & (self._constant("StringRepresentationMask") or 0)
        if form == self._constant("ConsStringTag"):
            return "(concatenated string)"
        return SLICE if form == self._constant("SlicedStringTag") else STRING

    def _type(self, word: int) -> str:
        """Return the name of the instance type of the object at a tagged address; "" if unknown."""
        first = self._memory.word(word - TAG) if word & TAG_MASK == TAG else None
        data = self._maps.data(first) if first is not None else None
        if data is None:
            return ""
        if first is not None and self._maps.is_function(first, data.instance_type):
            return "js_function"
        return next(iter(self._maps.names_of(data.instance_type)), "")

    def _constructor_name(self, word: int, first: int) -> str:
        """Return the name of the constructor of objects of a map."""
        bits = self._memory.read(word - TAG + self._bits2, 1) if self._bits2 is not None else b""
        if bits and bits[0] & NEW_TARGET_IS_BASE and not self.properties.map_bit(word, PROTOTYPE_BIT):
            # The map's constructor is the one that was called.
            function = self._constructor_of(word)
            name = self.strings.function_name(function) if self._type(function) == "js_function" else ""
            if name and name != OBJECT:
                return name
        is_single = self.properties.map_bit(word, PROTOTYPE_BIT) or not self.properties.map_bit(word, 0)
        own = self.strings.read(next(self._values(first, self._tag), None)) if is_single else None
        return own or self._prototype_name(word) or self._class_name(word)

    @cached_property
    def _tag(self) -> frozenset[int]:
        """The tagged address of Symbol.toStringTag."""
        return self._maps.tagged_roots("to_string_tag_symbol")

    @cached_property
    def _constructor_key(self) -> frozenset[int]:
        """The tagged address of the string "constructor"."""
        return self._maps.tagged_roots("constructor_string")

    def _prototype_name(self, word: int) -> str:
        prototype = self._word(word - TAG, self._prototype)
        if prototype not in self._prototypes:
            self._prototypes[prototype] = self._name_from(prototype)
        return self._prototypes[prototype]

    def _constructor_of(self, word: int) -> int:
        """Return the constructor of a map, which the first map of its tree of transitions has."""
        found = self._word(word - TAG, self._constructor)
        for _ in range(MOST_BACK):
            if not self._maps.is_map(self._word(found - TAG, 0) if found & TAG_MASK == TAG else 0) or self._type(found) != "map":
                break
            found = self._word(found - TAG, self._constructor)
        # A map whose prototype is not an object has a pair of its constructor and this prototype.
        return self._word(found - TAG, 8) if self._type(found) == "tuple2" else found

    def _class_name(self, word: int) -> str:
        data = self._maps.data(word)
        names = self._maps.names_of(data.instance_type) if data is not None else ()
        return next((CLASS_NAMES[name] for name in names if name in CLASS_NAMES), OBJECT)

    def _name_from(self, prototype: int) -> str:
        """Return the name that the first prototype of a chain with a name has: the string of
        Symbol.toStringTag, or the name of the function `constructor`; "" if there is none."""
        for _ in range(MOST_PROTOTYPES):
            is_object = prototype & TAG_MASK == TAG
            name = self.strings.read(next(self._values(prototype - TAG, self._tag), None)) if is_object else None
            function = next(self._values(prototype - TAG, self._constructor_key), 0) if is_object and name is None else 0
            if self._type(function) == "js_function":
                name = self.strings.function_name(function)
                name = None if name in ("", OBJECT) else name
            if name is not None:
                return name
            first = self._word(prototype - TAG, 0) if prototype & TAG_MASK == TAG else 0
            if first & TAG_MASK != TAG:
                break
            prototype = self._word(first - TAG, self._prototype)
        return ""

    def _values(self, address: int, keys: frozenset[int]) -> Iterator[int]:
        """Yield the values of own data properties of an object that have one of these keys."""
        return (one.value for one in self.properties.of(address, keys))
