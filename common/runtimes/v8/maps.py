"""Read V8's maps, which describe the objects that refer to them.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/objects/map.h (offsets are constants, see metadata.py).
The map of a map is a meta map, which is its own map: the one of root objects, or, since V8 12.9,
one of a native context."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.v8.engine import ASKED, COUNTED, FIXED, UP_TO_MAP, Size, constant_size, size_by_count
from findleaks.runtimes.v8.metadata import META_MAP, TAG, TAG_MASK, Metadata
from findleaks.runtimes.v8.sizes import layouts, string_size
from findleaks.target.base import Range, Target
from findleaks.target.interruptible import interruptible
from findleaks.value_classes import NamedTuple

SAMPLE, MOST_SAMPLES = 32, 2048  # objects whose layout is checked: of a piece of memory, and in all
UNCHECKED = 0.5
NATIVE_AMONG_CONTEXTS, CONTEXT_TYPES = 7, 10
SUFFIX = "_map"
FIRST_RECEIVER = 1024  # in V8 7.8; in later versions, JSProxy comes first or among the first
_MOST_FUNCTION_TYPES, _CALLABLE = 32, 2  # _CALLABLE is a bit of a map's first bit field
FREE = ("free_space", "filler", "one_pointer_filler", "two_pointer_filler")
COLLECTIONS = ("js_map", "js_set", "js_weak_map", "js_weak_set")


class MapData(NamedTuple):
    """The data of a map: the instance type, and the size of instances in bytes (0: it differs)."""

    instance_type: int
    size: int


class Maps:
    """The maps of V8's isolates. `roots`: the root objects of each isolate, by name. Isolates share
    most root objects. `ranges`: the memory in which maps, and samples of objects, are searched."""

    def __init__(
        self,
        target: Target,
        engine: Engine,
        metadata: Metadata,
        roots: Sequence[Mapping[str, int]],
        ranges: Sequence[Range],
        memory: Optional[Memory] = None,
    ) -> None:
        """`memory`: see FrameHeap."""
        self.metadata, self.all_roots = metadata, roots
        self.roots: Mapping[str, int] = roots[0] if roots else {}
        self._target, self._engine, self._memory, self._ranges = target, engine, memory or Memory(target), ranges
        self._type_at, self._size_at = metadata.offset("Map", "instance_type"), metadata.offset("Map", "instance_size_in_words")
        self.metas = self._root_metas()
        self._sizes: dict[int, Optional[Size]] = {}
        self._known: dict[int, MapData] = {}

    def read_again(self, memory: Memory) -> None:
        """Drop the maps that V8 may have moved. `memory`: the memory of the process as it is
        now."""
        self._memory, self._known = memory, {}
        self.metas = self._root_metas()

    def _root_metas(self) -> set[int]:
        return {one[META_MAP] + TAG for one in self.all_roots if META_MAP in one}

    @property
    def is_readable(self) -> bool:
        """Whether the offsets are known, and words have 8 bytes, also tagged ones."""
        known = self._type_at is not None and self._size_at is not None and bool(self.metas)
        return known and self._memory.size == 8 and self.metadata.constant("TaggedSize") in (None, 8)

    def tagged_roots(self, name: str) -> frozenset[int]:
        """Return the tagged addresses of the root object with this name, of all isolates."""
        return frozenset(one[name] + TAG for one in self.all_roots if name in one)

    def data(self, word: int) -> Optional[MapData]:
        """Return the data of the map with this tagged address; None if there is no map."""
        if word in self._known:
            return self._known[word]
        if not self.is_map(word) or self._type_at is None or self._size_at is None:
            return None
        data = self._memory.read(word - TAG, max(self._type_at + 2, self._size_at + 1))
        if not data:
            return None
        instance_type = int.from_bytes(data[self._type_at : self._type_at + 2], self._memory.arch.byteorder)
        self._known[word] = MapData(instance_type, 8 * data[self._size_at])
        return self._known[word]

    def is_map(self, word: int) -> bool:
        """Whether a word is the tagged address of a map."""
        return word & TAG_MASK == TAG and self._memory.word(word - TAG) in self.metas

    def add_meta(self, word: int) -> bool:
        """Add a meta map, if the map at this tagged address has one that is not known yet."""
        meta = self._memory.word(word - TAG) if word & TAG_MASK == TAG else None
        if meta is None or meta in self.metas or meta & TAG_MASK != TAG or self._memory.word(meta - TAG) != meta:
            return False
        self.metas.add(meta)
        data = self.data(meta)
        if data is None or data.instance_type != self.types.get("meta"):
            self.metas.discard(meta)
            self._known.pop(meta, None)
            return False
        return True

    @cached_property
    def types(self) -> Mapping[str, int]:
        """Instance types by name: those of root maps, and those that have constants."""
        found = {name.lower(): number for name, number in self.metadata.types.items()}
        for name, address in self.roots.items():
            data = self.data(address + TAG) if name.endswith(SUFFIX) else None
            if data is not None:
                found.setdefault(name.removesuffix(SUFFIX), data.instance_type)
        return found

    @cached_property
    def contexts(self) -> range:
        """The instance types of contexts."""
        first, last = self.metadata.constant("FirstContextType"), self.metadata.constant("LastContextType")
        return range(first, last + 1) if first is not None and last is not None else range(0)

    @cached_property
    def native_context(self) -> int:
        """The instance type of native contexts; -1 if it is unknown. The ten types of contexts are
        in alphabetical order (src/objects/contexts.tq)."""
        known = self.contexts.start + NATIVE_AMONG_CONTEXTS if len(self.contexts) == CONTEXT_TYPES else -1
        return self.types.get("native_context", known)

    @cached_property
    def _names(self) -> Mapping[int, Sequence[str]]:
        """Names of instance types by number; a type may have several."""
        found: dict[int, list[str]] = {}
        for name, number in self.types.items():
            found.setdefault(number, []).append(name)
        return found

    def is_function(self, word: int, kind: int) -> bool:
        """Whether objects of a map are functions that have a SharedFunctionInfo.

        The numbers of the types of special functions, such as classes, follow the number of plain
        functions, and have no constants. V8 10.2 and 11.3 lack the constant of the last one; then
        the map tells which objects can be called."""
        first, last = self.types.get("js_function", 0), self.metadata.constant("LastJSFunctionType")
        if kind == first or not first or not first < kind < first + _MOST_FUNCTION_TYPES or self.names_of(kind):
            return kind == first and first > 0
        bit_field = self.metadata.offset("Map", "bit_field")
        bits = self._memory.read(word - TAG + bit_field, 1) if bit_field is not None else b""
        return bool(bits and bits[0] & _CALLABLE) and (last is None or kind <= last)

    @property
    def functions(self) -> range:
        """A range with the instance types of all functions. It is empty if the first type is
        unknown. If the last type is unknown, the range may include types of other objects."""
        first, last = self.types.get("js_function", 0), self.metadata.constant("LastJSFunctionType")
        return range(first, (last + 1 if last is not None else first + _MOST_FUNCTION_TYPES) if first else first)

    @cached_property
    def first_receiver(self) -> int:
        """The least instance type of JavaScript objects."""
        return min([FIRST_RECEIVER, *(number for name, number in self.types.items() if name.startswith("js_"))])

    def array_fields(self, word: int) -> Sequence[int]:
        """Return the offsets of references to arrays that belong to one object of a map: its
        properties, its elements, and the table of a map or set."""
        data = self.data(word)
        if data is None or data.instance_type < self.first_receiver or data.instance_type == self.types.get("js_proxy"):
            return ()
        offset = self.metadata.offset
        places = [offset("JSReceiver", "raw_properties_or_hash"), offset("JSObject", "elements")]
        if any(name in COLLECTIONS for name in self.names_of(data.instance_type)):
            places.append(offset("JSObject", "internal_fields"))
        return [place for place in places if place]

    def is_raw_string(self, instance_type: int) -> bool:
        """Whether objects of a type are strings without references: sequential or external ones."""
        first, mask = self.metadata.constant("FirstNonstringType"), self.metadata.constant("StringRepresentationMask")
        raw = (0, self.metadata.constant("ExternalStringTag"))
        return bool(first and mask) and instance_type < (first or 0) and instance_type & (mask or 0) in raw

    def is_free(self, word: int) -> bool:
        """Whether objects of the map with this tagged address are free memory."""
        data = self.data(word)
        return data is not None and any(name in FREE for name in self.names_of(data.instance_type))

    def names_of(self, instance_type: int) -> Sequence[str]:
        """Return the names of an instance type."""
        return self._names.get(instance_type, ())

    @cached_property
    def scope_info_start(self) -> int:
        """The offset of the flags of a ScopeInfo, which is an array up to V8 8.4."""
        size = self.size(self.roots["scope_info_map"] + TAG) if "scope_info_map" in self.roots else None
        return 16 if size is not None and size.kind == COUNTED else 8

    def size(self, word: int) -> Optional[Size]:
        """Return the size of objects of the map with this tagged address; None if it is unknown."""
        data = self.data(word)
        if data is None or data.size:
            return constant_size(data.size) if data is not None else None
        if data.instance_type not in self._sizes:
            self._sizes[data.instance_type] = self._variable(data.instance_type, word)
        return self._sizes[data.instance_type]

    def _variable(self, instance_type: int, word: int) -> Optional[Size]:
        """Return the size of objects of a type whose objects differ in size."""
        found = string_size(self.metadata, instance_type)
        if found is not None:
            return found
        if instance_type in self.contexts:
            # Native contexts have one word more, the queue of microtasks.
            return Size(COUNTED, 24 if instance_type == self.native_context else 16, at=12, unit=8)
        known = (layouts(self.metadata, name) for name in self._names.get(instance_type, ()))
        candidates = next(filter(None, known), ())
        return candidates[0] if len(candidates) == 1 else self._choose(candidates, word)

    def _choose(self, candidates: Sequence[Size], word: int) -> Optional[Size]:
        """Return the layout for which another object follows most objects of a sample."""
        objects = list(islice(self._sample(word), MOST_SAMPLES)) if candidates else []
        return max(candidates, key=lambda size: sum(self._is_followed(at, size) for at in objects), default=None)

    def _sample(self, word: int) -> Iterator[int]:
        """Yield addresses of objects of a map, some of each piece of memory."""
        for start, end in self._ranges:
            for piece in self._target.pieces(start, end):
                for at in self._engine.search(piece, word, word + 1)[:SAMPLE]:
                    words = self._memory.words(at, 2)
                    # Tables of maps contain this word, too.
                    if words is not None and not self.is_map(words[1]):
                        yield at

    def _is_followed(self, at: int, size: Size) -> float:
        """Return 1 if an object follows, else 0. For a layout that cannot be checked, return a
        value between 0 and 1: it is chosen only if no other layout fits."""
        if size.kind in (ASKED, UP_TO_MAP):
            return UNCHECKED
        if size.kind == FIXED:
            return self.is_map(self._memory.word(at + size.base) or 0)
        data = self._memory.read(at + size.at, size.width)
        second = self._memory.int32(at + size.second) if size.second_unit else 0
        if not data or second is None:
            return False
        found = size_by_count(size, int.from_bytes(data, self._memory.arch.byteorder), second)
        following = self._memory.word(at + found) if found < 1 << 40 else None
        return following is not None and self.is_map(following)

    def all_maps(self) -> Iterator[int]:
        """Yield the tagged addresses of all words that may be maps, ascending within a range."""
        for start, end in self._ranges:
            for piece in interruptible(self._target, self._target.pieces(start, end)):
                for at in self._engine.search_any(piece, sorted(self.metas)):
                    if at % 8 == 0:
                        yield at + TAG
