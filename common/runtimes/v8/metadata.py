"""Read the constants that V8 has for debuggers of cores, and the table of its root objects.

Sources: V8 7.8 to 13.6 (Node 12 to 24), tools/gen-postmortem-metadata.py (constants `v8dbg_…`:
offsets of fields, numbers of instance types, tags) and src/roots/roots.h (RootsTable::root_names_,
the names of root objects in the order of the table that each isolate has). Instance types without a
constant are those of root maps: hash_table_map has the type of hash tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.target.base import Target

NAMES = "_ZN2v88internal10RootsTable11root_names_E"
INSTANCE_TYPE = "v8dbg_class_Map__instance_type__uint16_t"
MOST_ROOTS = 1 << 13  # V8 13.6 has 1,140
TABLE_WITHIN = 1 << 13  # words of an isolate that are searched for its table of roots
LONGEST_NAME = 128  # bytes
META_MAP = "meta_map"
SAMPLE = 64  # root maps that are checked
TAG, TAG_MASK = 1, 3


def has_metadata(target: Target) -> bool:
    """Return whether the target has V8's constants for debuggers and the names of root objects."""
    return all(target.symbol(name) is not None for name in (NAMES, INSTANCE_TYPE))


class Metadata:
    """Constants and names of root objects of the V8 in a target."""

    def __init__(self, target: Target, memory: Optional[Memory] = None) -> None:
        """`memory`: the process's present memory, if it has run since `target` was opened."""
        self._target, self._memory = target, memory or Memory(target)

    def constant(self, name: str) -> Optional[int]:
        """Return the constant v8dbg_`name`, or None."""
        return self._constants.get(name)

    def offset(self, class_name: str, *fields: str) -> Optional[int]:
        """Return the offset of the first of these fields that has a constant, or None."""
        return next((self._offsets[class_name, field] for field in fields if (class_name, field) in self._offsets), None)

    @cached_property
    def _constants(self) -> Mapping[str, int]:
        found = {}
        for symbol in self._target.symbols_starting("v8dbg_"):
            value = self._memory.int32(symbol.address)
            if value is not None:
                found[symbol.name.removeprefix("v8dbg_")] = value - (value >> 31 << 32)
        return found

    @cached_property
    def _offsets(self) -> Mapping[tuple[str, str], int]:
        """Offsets of fields by class and field; a constant is named class_CLASS__FIELD__TYPE."""
        found: dict[tuple[str, str], int] = {}
        for name, value in self._constants.items():
            if name.startswith("class_"):
                class_name, _, field = name.removeprefix("class_").partition("__")
                found.setdefault((class_name, field.partition("__")[0]), value)
        return found

    @cached_property
    def types(self) -> Mapping[str, int]:
        """Instance types with a constant, by name ("FIXED_ARRAY")."""
        names = (name for name in self._constants if name.startswith("type_"))
        return {name.rpartition("__")[2].removesuffix("_TYPE"): self._constants[name] for name in names}

    @cached_property
    def root_names(self) -> Sequence[str]:
        """Names of the root objects, in the order of the table; () if they are missing."""
        symbol = self._target.symbol(NAMES)
        count = min(symbol.size // self._memory.size, MOST_ROOTS) if symbol is not None else 0
        words = self._memory.words(symbol.address, count) if symbol is not None and count else None
        return [self._memory.c_string(word, LONGEST_NAME).decode("ascii", "replace") for word in words or ()]

    def roots(self, isolate: int) -> Mapping[str, int]:
        """Return an isolate's root objects, untagged, by name; {} if its table is not found."""
        start = self.table_start(isolate)
        words = self._memory.words(start, len(self.root_names)) if start else None
        return {name: word - TAG for name, word in zip(self.root_names, words or ()) if word & TAG_MASK == TAG}

    def table_start(self, isolate: int) -> int:
        """Return the address of an isolate's table of root objects; 0 if it is not found.

        In the table, the map of maps is its own map, and the map of all other maps."""
        names, memory = self.root_names, self._memory
        if META_MAP not in names:
            return 0
        meta, count = names.index(META_MAP), len(names)
        maps = [at for at, name in enumerate(names) if name.endswith("_map")][:SAMPLE]
        words = memory.words(isolate, TABLE_WITHIN + count) or memory.words(isolate, count + 64) or ()
        for first in range(len(words) - count):
            own = words[first + meta]
            if own & TAG_MASK == TAG and memory.word(own - TAG) == own:
                known = [memory.word(words[first + at] - TAG) == own for at in maps]
                if 4 * sum(known) > 3 * len(maps):
                    return isolate + 8 * first
        return 0
