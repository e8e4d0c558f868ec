"""The objects of V8's heap as a graph, which commands use to answer questions about single
objects."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine, Graph
from findleaks.engine.dominators import Dominators, root_node
from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes.joint_members import JointRetainer
from findleaks.runtimes.object_graph import MOST_LEVELS, NEARLY_ALL, ManagedObject, ObjectField, ObjectWord
from findleaks.runtimes.slices import run_in_slices
from findleaks.runtimes.v8.array_bytes import STORE
from findleaks.runtimes.v8.far_properties import FarProperty, find_far_properties
from findleaks.runtimes.v8.functions import Functions, JavaScriptFunction
from findleaks.runtimes.v8.handle_groups import HandleGroup, RetainingGroup
from findleaks.runtimes.v8.lengths import describe_length
from findleaks.runtimes.v8.maps import COLLECTIONS, Maps
from findleaks.runtimes.v8.metadata import TAG, TAG_MASK
from findleaks.runtimes.v8.names import CALLS, CLOSURE, CODE, CONTEXT, SHAPE, STRING, SYMBOL, SYSTEM, Names
from findleaks.runtimes.v8.paths import NamedObjects, describe_content, describe_holder, describe_path, find_joint_variables
from findleaks.runtimes.v8.properties import IN_ARRAY, PROPERTY_CELLS, SMI_SHIFT
from findleaks.runtimes.v8.reachability import Reachability
from findleaks.runtimes.v8.references import offsets_of
from findleaks.runtimes.v8.roots import RootSet
from findleaks.runtimes.v8.sizes import ARRAYS
from findleaks.target.base import Range, Target
from findleaks.target.interruptible import interruptible

_SHOWN = 60  # characters of a string that are shown
_FREE = "(free memory)"
_SOME = 1 << 14  # strings that are read together
_SPLIT = (CONTEXT, CLOSURE, CODE, SHAPE, "process")
_FEW = 32  # entries of a map whose keys paths show
_NESTED = 3  # objects with one map that retain each other and are not a list: a map of maps of maps
_STORAGE = frozenset([*ARRAYS, *PROPERTY_CELLS, "property_array", "cell"])


class V8Graph(NamedObjects):
    """See ObjectGraph. A reference is a word with the tagged address of an object's start."""

    noun = "JavaScript object"

    def __init__(
        self, target: Target, engine: Engine, maps: Maps, names: Names, reach: Reachability, groups: Sequence[HandleGroup] = ()
    ) -> None:
        """`groups`: global handles that are roots of their own."""
        super().__init__(target, engine, reach.objects.blocks, reach.graph)
        self._maps, self._names, self._reach, self._memory = maps, names, reach, Memory(target)
        self._groups = groups
        self._objects, self._strings, self._properties = reach.objects, names.strings, names.properties
        self.functions = Functions(self._memory, maps, names.strings)
        offset = maps.metadata.offset
        self._own_words = {
            0: "map",
            offset("JSReceiver", "raw_properties_or_hash"): "properties",
            offset("JSObject", "elements"): "elements",
        }

    @cached_property
    def _types(self) -> Sequence[str]:
        table = self._objects.table
        return [self._names.name(word, first) or _FREE for word, first in zip(table.words, table.firsts)]

    def type_of(self, index: int) -> str:
        return self._types[self._objects.numbers[index]]

    def labels(self) -> tuple[array[int], Sequence[str]]:
        return self._objects.numbers, self._types

    def example(self, type_name: str) -> Optional[int]:
        """See ObjectGraph. For the memory of ArrayBuffers, return an ArrayBuffer."""
        return super().example("ArrayBuffer" if type_name == STORE else type_name)

    def title_of(self, index: int) -> str:
        name, start = self.type_of(index), self.blocks.address(index)
        if name == CLOSURE:
            return f"closure {self.functions.of(start).label()}"
        return self._show_text(start + TAG) or name

    def function_of(self, index: int) -> JavaScriptFunction:
        if self.type_of(index) != CLOSURE and CALLS.isdisjoint(self.kinds_of(index)):
            return JavaScriptFunction("", "", 0)  # the program's own class has the name CALL
        return self.functions.called_by(self.blocks.address(index))

    def _show_text(self, word: int) -> str:
        """Return the contents of the string at a tagged address, quoted; "" for other objects."""
        text = self._strings.read(word)
        if text is None:
            return ""
        return json.dumps(text[:_SHOWN] + ("…" if len(text) > _SHOWN else ""), ensure_ascii=False)

    def is_receiver(self, index: int) -> bool:
        data = self._maps.data(self._objects.table.words[self._objects.numbers[index]])
        return data is not None and data.instance_type >= self._maps.first_receiver

    def kinds_of(self, index: int) -> Sequence[str]:
        """Return the names of the instance type of an object."""
        data = self._maps.data(self._objects.table.words[self._objects.numbers[index]])
        return self._maps.names_of(data.instance_type) if data is not None else ()

    def key_text(self, key: int) -> str:
        """Return the name of a property: ".name", "[\"a b\"]", or "[symbol]"."""
        text = self._strings.read(key)
        if text is None:
            described = self._strings.read(self._word(key - TAG, self._maps.metadata.offset("Symbol", "name") or 0)) if key > TAG else None
            return f"[{described}]" if described else "[symbol]"
        return f".{text}" if text.isidentifier() or text.replace("$", "_").replace("#", "", 1).isidentifier() else f"[{json.dumps(text)}]"

    def _word(self, address: int, offset: int) -> int:
        return self._memory.word(address + offset) or 0

    def length_of(self, index: int) -> str:
        return describe_length(self._maps, self._properties, self.blocks.address(index), self.kinds_of(index))

    def text_of_property(self, index: int, name: str) -> str:
        values = (one.value for one in self._properties.of(self.blocks.address(index)) if self._strings.read(one.key) == name)
        return self._strings.read(next(values, None)) or ""

    def name_words(self, index: int) -> dict[int, str]:
        """Return the names of the words of an object, by offset."""
        start, size = self.blocks.address(index), self.blocks.size(index)
        if self.is_receiver(index):
            found = {offset: name for offset, name in self._own_words.items() if offset is not None}
            table = self._maps.metadata.offset("JSObject", "internal_fields")
            if table and any(one in COLLECTIONS for one in self.kinds_of(index)):
                found[table] = "table"
            for one in self._properties.of(start):
                if start < one.place < start + size:
                    found[one.place - start] = self.key_text(one.key)
            return found
        if self.type_of(index) == CONTEXT:
            variables = self.functions.variables(start, size)
            return {0: "map", IN_ARRAY + 8: "outer context", **{offset: f"variable {name}" for offset, name in variables.items()}}
        return {0: "map"}

    def name_stored(self, owner: int, storage: int, offset: int) -> str:
        start = self.blocks.address(storage)
        for one in self._properties.of(self.blocks.address(owner)):
            if one.place == start + offset:
                return self.key_text(one.key)
        kinds = self.kinds_of(storage)
        if any(one in kinds for one in PROPERTY_CELLS):  # of a global variable
            words = (self._memory.words(start, 4) or ())[1:]
            names = [self.type_of(at) if at != NO_BLOCK else "" for at in self.indices_of([word & ~TAG_MASK for word in words])]
            return next((self.key_text(word) for word, name in zip(words, names) if self._strings.is_string(word) or name == SYMBOL), "")
        if "ordered_hash_map" in kinds and offset >= IN_ARRAY + 8:
            key = self._word(start, offset - 8) if self._word(start, IN_ARRAY) >> SMI_SHIFT <= _FEW else 0
            return f"[{json.dumps(self._strings.read(key))}]" if self._strings.is_string(key) else ""
        return "[…]" if "fixed_array" in kinds or "number_dictionary" in kinds else ""

    def name_member(self, index: int, offset: int) -> str:
        if offset == TAG:
            return "tagged address"
        found = self.name_words(index).get(offset & -8)
        if found is not None:
            return found
        kinds = self.kinds_of(index)
        if any("dictionary" in one or one in ("ordered_hash_map", "hash_table") for one in kinds):
            key = self._word(self.blocks.address(index), (offset & -8) - 8) if offset >= IN_ARRAY + 8 else 0
            return self.key_text(key) if self._strings.is_string(key) else ""
        return f"[{(offset - IN_ARRAY) // 8}]" if offset >= IN_ARRAY and self._is_array(index) else ""

    def _is_array(self, index: int) -> bool:
        """Whether an object is an array of tagged values with two words before them."""
        return any(one.endswith("fixed_array") or one == "property_array" for one in self.kinds_of(index))

    def fields_of(self, index: int, most: int) -> Sequence[ObjectField]:
        found = list(self._fields(index, most or self.blocks.size(index) // 8))
        return found[:most] if most else found

    def _fields(self, index: int, most: int) -> Iterator[ObjectField]:
        start, size = self.blocks.address(index), self.blocks.size(index)
        text = self._show_text(start + TAG)
        if text:
            length = self._strings.characters(start + TAG)
            yield ObjectField(0, 0, "", length.length if length is not None else 0, False, text)
            return
        if self.is_receiver(index):
            for one in self._properties.of(start):
                place = one.place - start if start < one.place < start + size else 8
                yield self._field(place, self.key_text(one.key), one.value)
            yield from self._elements(start, most)
            return
        names = self.name_words(index)
        words = self._memory.words(start, min(size // 8, most + 2)) or ()
        for at, word in enumerate(words[1:], 1):
            name = names.get(8 * at) or (f"[{at - 2}]" if at >= 2 and self._is_array(index) else "")
            yield self._field(8 * at, name, word)

    def _elements(self, start: int, most: int) -> Iterator[ObjectField]:
        """Yield the first elements of an object."""
        offset = next((offset for offset, name in self._own_words.items() if name == "elements"), None)
        word = self._word(start, offset) if offset else 0
        index = self.blocks.find(word - TAG) if word & TAG_MASK == TAG else -1
        if index < 0 or not offset or not self._is_array(index):
            return
        count = min(self._word(word - TAG, 8) >> SMI_SHIFT, most)
        for at, value in enumerate(self._memory.words(word - TAG + IN_ARRAY, count) or ()):
            yield self._field(offset, f"[{at}]", value)

    def _field(self, offset: int, name: str, word: int) -> ObjectField:
        if word & TAG_MASK == TAG:
            return ObjectField(offset, 8, name, word - TAG, True, self._show_text(word))
        if word & TAG_MASK == TAG_MASK:
            return ObjectField(offset, 8, name, word & ~TAG_MASK, False, "a weak reference")
        if not word & 0xFFFFFFFF:
            number = word >> SMI_SHIFT
            return ObjectField(offset, 8, name, number, False, f"{number - (number >> 31 << 32):,}")
        return ObjectField(offset, 8, name, word, False)

    def references_of(self, index: int, low: int, high: int) -> Iterator[ObjectWord]:
        start, size, number = self.blocks.address(index), self.blocks.size(index), self._objects.numbers[index]
        words = self._memory.words(start, size // 8) or ()
        for offset in offsets_of(self._reach.search.rows, number, size):
            word = words[offset // 8] if offset // 8 < len(words) else 0
            if word & TAG_MASK == TAG and low <= word - TAG < high:
                yield ObjectWord(start + offset, word - TAG, self.name_member(index, offset))

    def name_implicit(self, source: int, target: int) -> str:
        return "the value for this key of a WeakMap"

    def roots_to(self, low: int, high: int) -> Iterator[ObjectWord]:
        for one in self._reach.roots.sets:
            yield from one.words_to(self.engine, low, high)

    @cached_property
    def dominators(self) -> Optional[Dominators]:
        """The dominator tree of the live objects. Roots from 1 on are the groups of global handles;
        they retain only what no other root reaches."""
        if self.graph is None:
            return None
        tree = self.graph.dominators(1 + len(self._groups), priorities=[1] if self._groups else [])
        tree.expect_leaf_trees()
        self.add_roots(tree, 0)
        for number, group in enumerate(self._groups, 1):
            tree.root_words(group.objects, number)
        run_in_slices(tree.compute, self.target)
        return tree

    def add_roots(self, tree: Dominators, root: int) -> None:
        roots, grouped = self._reach.roots, {place for group in self._groups for place in group.places}
        tree.root_words(roots.exact_addresses(grouped) + self._reach.stack_roots, root)

    def retaining_groups(self) -> list[RetainingGroup]:
        """Return what each group of global handles retains, most bytes first."""
        tree = self.dominators
        totals = tree.by_root()[1:] if tree is not None else []
        found = [RetainingGroup(group, root_node(number), total) for number, (group, total) in enumerate(zip(self._groups, totals), 1)]
        return sorted(found, key=lambda one: -one.retained.bytes)

    def object(self, index: int) -> ManagedObject:
        return super().object(index)._replace(type=self.title_of(index))

    def is_split(self, index: int) -> bool:
        return self.type_of(index) in _SPLIT or self.is_native_context(index) or self.is_global_object(index)

    def is_native_context(self, index: int) -> bool:
        return self.is_native_context_map(self._objects.numbers[index])

    def is_native_context_map(self, number: int) -> bool:
        data = self._maps.data(self._objects.table.words[number])
        return data is not None and data.instance_type == self._maps.native_context

    def is_global_object(self, index: int) -> bool:
        return "js_global_object" in self.kinds_of(index)

    def innermost(self, tree: Dominators, index: int) -> int:
        chain = [index]
        for _ in range(MOST_LEVELS):
            inner = next(iter(tree.children(index, 1)), None)
            if inner is None or inner.bytes < NEARLY_ALL * tree.sum_retained(index).bytes:
                break
            index, key = inner.block, self._list_key(inner.block)
            same = [at for at, one in enumerate(chain) if self._list_key(one) == key]
            if len(same) >= _NESTED and key[0] not in _SPLIT and not self.is_storage(index):
                # A list, such as the reactions of a promise: its owner is what scripts can see.
                return next((one for one in reversed(chain[: same[0] + 1]) if self.is_receiver(one)), chain[same[0]])
            chain.append(index)
        return index

    def _list_key(self, index: int) -> tuple[str, int]:
        """Return what all nodes of a list have in common: the type and the map. The map
        distinguishes objects of one category: the cell of a global variable and the reaction of a
        promise are "(system)", and nested objects of a script are "Object"."""
        return self.type_of(index), self._objects.numbers[index]

    def is_storage(self, index: int) -> bool:
        return bool(_STORAGE.intersection(self.kinds_of(index)))

    def owner_of(self, index: int) -> int:
        tree = self.dominators
        while tree is not None and self.is_storage(index):
            owner = tree.idom(index)
            if owner is None or owner < 0:
                break
            index = owner
        return index

    def path(self, index: int) -> Sequence[int]:
        """Return a shortest path. A path from an exact root is preferred to one from a stack,
        because words of stacks may be stale. A path without code and maps is also preferred,
        because some of their references are caches."""
        return self._plain_graph.path(index) or self._stack_graph.path(index) or super().path(index)

    @cached_property
    def _plain_graph(self) -> Graph:
        return self._reach.build_without(self._cache_numbers())

    @cached_property
    def _stack_graph(self) -> Graph:
        return self._reach.build_without(self._cache_numbers(), with_stacks=True)

    def _cache_numbers(self) -> list[int]:
        return [number for number, name in enumerate(self._types) if name in (CODE, SHAPE)]

    def describe_path(self, index: int) -> str:
        return describe_path(self, index)

    def describe_holder(self, index: int) -> str:
        return describe_holder(self, index) or self.describe_root(index)

    def find_joint_retainer(self) -> Optional[JointRetainer]:
        return find_joint_variables(self)

    def describe_content(self, index: int) -> str:
        return describe_content(self, index)

    # What a heap snapshot needs of all objects.

    @property
    def numbers(self) -> array[int]:
        """The number of each object's map ("I")."""
        return self._objects.numbers

    @property
    def rows(self) -> array[int]:
        """Which words of objects are references, by number of the map; see ReferenceSearch."""
        return self._reach.search.rows

    @property
    def type_names(self) -> Sequence[str]:
        """The type of objects, by number of the map."""
        return self._types

    @cached_property
    def first_objects(self) -> Sequence[int]:
        """The first object of each map; NO_BLOCK if it has none."""
        return self._objects.indices_of(self._objects.table.firsts)

    @property
    def areas(self) -> Sequence[Range]:
        """The memory of the objects, ascending."""
        return self._objects.areas

    def root_sets(self) -> Sequence[RootSet]:
        """Return the roots by sort."""
        return self._reach.roots.sets

    def indices_of(self, addresses: Sequence[int]) -> list[int]:
        """Return the object that starts at each address, or NO_BLOCK."""
        return self._objects.indices_of(addresses)

    def of_map(self, number: int) -> array[int]:
        """Return the objects ("I", ascending) of a map."""
        return self._objects.of_maps([number])

    def of_type(self, name: str) -> Iterator[int]:
        """Yield the objects of a type, ascending."""
        return interruptible(self.target, self._objects.of_maps(n for n, one in enumerate(self._types) if one == name), 4096)

    def scope_of(self, context: int) -> tuple[int, int]:
        """Return what determines the names of a context's variables: the ScopeInfo, and the
        size."""
        return self._word(self.blocks.address(context), IN_ARRAY), self.blocks.size(context)

    def offset_of(self, class_name: str, field: str) -> int:
        """Return the offset of a field of objects of a class of V8; 0 if it is unknown."""
        return self._maps.metadata.offset(class_name, field) or 0

    def has_elements(self, number: int) -> bool:
        """Whether the objects of a map are arrays, whose references are numbered."""
        index = self.first_objects[number] if number < len(self._types) else NO_BLOCK
        return index != NO_BLOCK and self._is_array(index)

    def number_words(self, index: int) -> frozenset[int]:
        """Return the offsets of the properties in an object that have numbers in all objects of its
        map."""
        start = self.blocks.address(index)
        own = self._properties.of(start) if self.is_receiver(index) else ()
        return frozenset(one.place - start for one in own if one.is_number)

    def far_properties(self) -> Iterator[FarProperty]:
        """Yield the references of objects to values of properties outside of them, in no order."""
        return find_far_properties(self._memory, self.engine, self._maps, self._objects, self._properties)

    def own_names(self) -> Iterator[tuple[int, str]]:
        """Yield the objects that have a name of their own, with it: strings, functions, and
        oddballs such as undefined."""
        indices = self._objects.of_maps(n for n, one in enumerate(self._types) if one == STRING)
        for first in interruptible(self.target, range(0, len(indices), _SOME)):
            some = indices[first : first + _SOME]
            addresses = self.blocks.columns_of(some).address
            yield from zip(some, self._strings.read_all(self.engine, array("Q", addresses)))
        for index in self.of_type(SYSTEM):
            if "oddball" in self.kinds_of(index):
                words = self._memory.words(self.blocks.address(index), 4) or ()
                yield index, next(filter(None, map(self._strings.read, words)), "")
        for index in self.of_type(CLOSURE):
            yield index, self.functions.of(self.blocks.address(index)).name
