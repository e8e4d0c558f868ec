"""What handles hold: small integers, oddballs by name, objects by instance type.

Tagging (V8, include/v8-internal.h of every version to 13): a word whose lowest bit is clear is a small integer, with 01 it is the
address of an object plus 1, with 11 a weak reference. An object's first word is its map. Instance types have names where the binary
has the symbols that post-mortem debuggers use (v8dbg_…, tools/gen-postmortem-metadata.py); Node 4 and later do.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import filterfalse, islice
from typing import NamedTuple, Optional

from findleaks.errors import Interrupted, UnreadableMemory
from findleaks.graph.base import Engine
from findleaks.target.base import Piece, Target

INTEGERS = "small integers"

ODDBALLS = ("undefined", "null", "true", "false", "hole", "uninitialized", "arguments_marker", "exception", "termination_exception")

FEW, LOOKED_AT = 16, 4096
"""Oddballs are single objects: where so few are of one map they are looked at one by one, so many of them."""


SAMPLE, COMMON = 997, 8
"""Of many values each so many-th is looked at first, to find those that are held again and again."""


class Held(NamedTuple):
    """What `handles` handles hold, in `objects` different objects (of small integers: values)."""

    value: str
    handles: int
    objects: int


class Namer:
    """Names values. Keeps the target's memory at hand, and the names of instance types."""

    def __init__(self, target: Target, engine: Engine) -> None:
        self._target, self._engine = target, engine
        self._types: Optional[dict[int, str]] = None
        self._type_field = -1
        self._type_size = 2

    def held(self, values: array[int]) -> list[Held]:
        """What these handles hold, most handles first. Interrupted when the user asked to stop."""
        distinct, repeated = tally(values)
        sums: dict[str, list[int]] = {}

        def add(name: str, handles: int, objects: int) -> None:
            one = sums.setdefault(name, [0, 0])
            one[0] += handles
            one[1] += objects

        if self._target.interrupted():
            raise Interrupted
        integers = [value for value in distinct if not value & 1]
        if integers:
            add(INTEGERS, sum(repeated.pop(value, 1) for value in integers), len(integers))
            distinct = [value for value in distinct if value & 1]
        maps = self._maps(array("Q", [value & ~3 for value in distinct]))
        objects_of = Counter(maps)
        handles_of = Counter(objects_of)
        for value, handles in repeated.items():
            handles_of[maps[bisect_left(distinct, value)]] += handles - 1
        few = {map_ for map_, objects in objects_of.items() if objects <= FEW and map_}
        alone = [(map_, value) for map_, value in zip(maps, distinct) if map_ in few] if few else []
        for map_, value in alone[:LOOKED_AT]:
            name = self.oddball(value)
            if name:
                handles = repeated.get(value, 1)
                add(name, handles, 1)
                handles_of[map_] -= handles
                objects_of[map_] -= 1
        for map_, handles in handles_of.items():
            if handles:
                add(self.type_name(map_), handles, objects_of[map_])
        return sorted((Held(name, *both) for name, both in sums.items()), key=lambda held: (-held.handles, held.value))

    def oddball(self, value: int) -> str:
        """ "undefined" for the object that is undefined, and so on; "" for any other. An oddball's first words refer to its own text."""
        for word in self._words(value - 1, 6)[1:]:
            if word & 3 == 1:
                text = self._text(word - 1)
                if text in ODDBALLS:
                    return "the hole" if text == "hole" else text
        return ""

    def type_name(self, map_: int) -> str:
        """The instance type of objects of this map, or "objects of map 0x…"."""
        if self._types is None:
            self._learn()
        unknown = f"objects of map {map_ & ~3:#x}" if map_ else "objects that cannot be read"
        if self._type_field < 0 or not map_ or not self._types:
            return unknown
        try:
            data = self._target.read((map_ & ~3) + self._type_field, self._type_size)
        except UnreadableMemory:
            return unknown
        return self._types.get(int.from_bytes(data, self._target.arch.byteorder), unknown)

    def _maps(self, objects: array[int]) -> Sequence[int]:
        """The map of each object; 0 where it cannot be read. `objects` ascend."""
        pieces = tuple(self._memory(objects))
        records, _ = self._engine.gather(pieces, objects, self._target.arch.word)
        return self._target.arch.unpack(bytes(records))

    def _memory(self, objects: array[int]) -> Iterable[Piece]:
        """The regions that hold any of them."""
        for region in self._target.regions():
            at = bisect_left(objects, region.start)
            if at == len(objects):
                return
            if objects[at] < region.end and region.readable:
                for piece in self._target.pieces(region.start, region.end):
                    if self._target.interrupted():
                        raise Interrupted
                    yield piece

    def _words(self, address: int, count: int) -> Sequence[int]:
        try:
            return self._target.arch.unpack(self._target.read(address, count * self._target.arch.word))
        except UnreadableMemory:
            return ()

    def _text(self, address: int) -> str:
        """The characters of a one-byte string: behind the map, and its hash and length in 8 or 16 bytes."""
        try:
            data = self._target.read(address, 64)
        except UnreadableMemory:
            return ""
        for offset in (24, 16, 12):
            length = data[offset : offset + 24]
            for name in ODDBALLS:
                known = len(name).to_bytes(4, "little")
                if length.startswith(name.encode()) and known in data[8:offset]:
                    return name
        return ""

    def _learn(self) -> None:
        """Read the constants for post-mortem debuggers: `v8dbg_type_CLASS__TYPE` is an instance type's number."""
        self._types = {}
        order = self._target.arch.byteorder
        for name in ("v8dbg_class_Map__instance_type__uint16_t", "v8dbg_class_Map__instance_attributes__int"):
            symbol = self._target.symbol(name)
            if symbol is None:
                continue
            try:
                self._type_field = int.from_bytes(self._target.read(symbol.address, 4), order)
                self._type_size = 2 if name.endswith("uint16_t") else 1
                break
            except UnreadableMemory:
                pass
        for symbol in self._target.symbols_starting("v8dbg_type_"):
            name = symbol.name.rpartition("__")[2]
            try:
                number = int.from_bytes(self._target.read(symbol.address, 4), order)
            except UnreadableMemory:
                continue
            plain = name.removesuffix("_TYPE").lower().replace("_", " ")
            self._types.setdefault(number, "the hole" if plain == "hole" else plain)


def tally(values: array[int]) -> tuple[list[int], dict[int, int]]:
    """The different values, sorted, and how often those stand there that stand there more than once.

    Where there are millions, most are different, and few are found again and again: these are set aside first, so that no table of all
    has to be made. V8 allocates upward, which leaves little to sort."""
    repeated: dict[int, int] = {}
    rest: Iterable[int] = values
    if len(values) > SAMPLE * COMMON:
        common = {value for value, seen in Counter(values[::SAMPLE]).most_common(COMMON) if seen > 1}
        repeated = dict(Counter(filter(common.__contains__, values)))
        rest = filterfalse(common.__contains__, values)
    distinct = sorted(rest)
    again = Counter(value for value, following in zip(distinct, islice(distinct, 1, None)) if value == following)
    if len(again) > COMMON * COMMON:
        distinct = list(dict.fromkeys(distinct))
    else:
        for value, more in again.items():
            at = bisect_left(distinct, value)
            del distinct[at : at + more]
    distinct += repeated
    distinct.sort()
    repeated.update((value, more + 1) for value, more in again.items())
    return distinct, repeated
