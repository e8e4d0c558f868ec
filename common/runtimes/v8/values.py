"""Determine what handles refer to: small integers, oddballs by name, objects by instance type.

Tagging (V8, include/v8-internal.h of every version to 13): a word whose lowest bit is 0 is a small
integer. With low bits 01 it is the address of an object plus 1, with 11 a weak reference. An
object's first word is its map. Instance types have names if the binary has the symbols for
post-mortem debuggers (v8dbg_…, tools/gen-postmortem-metadata.py), as in Node 4 and later."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.errors import UnreadableMemory
from findleaks.target.base import Piece, Target
from findleaks.target.interruptible import interruptible

INTEGERS = "small integers"

ODDBALLS = ("undefined", "null", "true", "false", "hole", "uninitialized", "arguments_marker", "exception", "termination_exception")

FEW, LOOKED_AT = 16, 4096
"""Limits of the search for oddballs. Oddballs are single objects: each object is inspected if its
map has at most FEW objects, up to LOOKED_AT objects in total."""


SLICE = 1 << 21  # values sorted at once, between two checks for the user's interrupt


class Held(NamedTuple):
    """Values that `handles` handles refer to: `objects` different objects (for small integers:
    values)."""

    value: str
    handles: int
    objects: int


class Namer:
    """Names values; caches the names of instance types."""

    def __init__(self, target: Target, engine: Engine) -> None:
        self._target, self._engine, self._memory = target, engine, Memory(target)

    def list_held(self, values: array[int]) -> list[Held]:
        """Return what these handles refer to, most handles first. Raises Interrupted."""
        distinct, handles = tally(self._target, self._engine, values)
        sums: dict[str, list[int]] = {}

        def add(name: str, handles: int, objects: int) -> None:
            one = sums.setdefault(name, [0, 0])
            one[0] += handles
            one[1] += objects

        if any(tags(distinct).translate(_INTEGER)):
            whole = [(value, number) for value, number in zip(distinct, handles) if not value & 1]
            add(INTEGERS, sum(number for _, number in whole), len(whole))
            rest = [(value, number) for value, number in zip(distinct, handles) if value & 1]
            distinct, handles = array("Q", [value for value, _ in rest]), array("Q", [number for _, number in rest])
        maps = self._maps(distinct)
        kinds, objects = self._engine.sum_by_value(maps, array("Q"))
        objects_of = dict(zip(kinds, objects))
        handles_of = dict(zip(*self._engine.sum_by_value(maps, handles)))
        few = [map_ for map_ in kinds if objects_of[map_] <= FEW and map_]
        for place in self._engine.search_any(Piece(0, memoryview(maps).cast("B")), few)[:LOOKED_AT]:
            at = place // _WORD
            name = self.oddball(distinct[at])
            if name:
                add(name, handles[at], 1)
                handles_of[maps[at]] -= handles[at]
                objects_of[maps[at]] -= 1
        for map_, number in handles_of.items():
            if number:
                add(self.type_name(map_), number, objects_of[map_])
        return sorted((Held(name, *both) for name, both in sums.items()), key=lambda held: (-held.handles, held.value))

    def oddball(self, value: int) -> str:
        """Return the name of an oddball ("undefined", …), to whose text its first words refer; ""
        for other objects."""
        for word in self._memory.words(value + _WORD - 1, 5) or ():
            if word & 3 == 1:
                text = self._text(word - 1)
                if text in ODDBALLS:
                    return "the hole" if text == "hole" else text
        return ""

    def type_name(self, map_: int) -> str:
        """Return the name of the instance type of objects of this map, or "objects of map 0x…"."""
        unknown = f"objects of map {map_ & ~3:#x}" if map_ else "objects that cannot be read"
        if self._type_place is None or not map_:
            return unknown
        offset, size = self._type_place
        try:
            data = self._target.read((map_ & ~3) + offset, size)
        except UnreadableMemory:
            return unknown
        return self._types.get(int.from_bytes(data, self._target.arch.byteorder), unknown)

    def _maps(self, values: array[int]) -> array[int]:
        """Return the map of each object; 0 if it cannot be read. `values` ascend."""
        data = bytearray(values.tobytes())
        data[::_WORD] = tags(values).translate(_ADDRESS)
        objects = array("Q", bytes(data))
        records, _ = self._engine.gather(tuple(self._pieces_with(objects)), objects, _WORD)
        return array("Q", bytes(records))

    def _pieces_with(self, objects: array[int]) -> Iterable[Piece]:
        """Yield the memory of regions that contain any of the objects."""
        for region in self._target.regions():
            at = bisect_left(objects, region.start)
            if at == len(objects):
                return
            if objects[at] < region.end and region.readable:
                yield from interruptible(self._target, self._target.pieces(region.start, region.end))

    def _text(self, address: int) -> str:
        """Return an oddball's name, in a one-byte string {map, hash, length (8 or 16 bytes),
        characters}."""
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

    @cached_property
    def _type_place(self) -> Optional[tuple[int, int]]:
        """Return the offset and the size in bytes of a map's instance type, from constants for
        post-mortem debuggers."""
        for name, size in (("v8dbg_class_Map__instance_type__uint16_t", 2), ("v8dbg_class_Map__instance_attributes__int", 1)):
            symbol = self._target.symbol(name)
            offset = self._memory.int32(symbol.address) if symbol is not None else None
            if offset is not None:
                return offset, size
        return None

    @cached_property
    def _types(self) -> dict[int, str]:
        """Return the names of instance types by number: the value of the constant
        v8dbg_type_CLASS__TYPE."""
        found: dict[int, str] = {}
        for symbol in self._target.symbols_starting("v8dbg_type_"):
            number = self._memory.int32(symbol.address)
            if number is not None:
                plain = symbol.name.rpartition("__")[2].removesuffix("_TYPE").lower().replace("_", " ")
                found.setdefault(number, "the hole" if plain == "hole" else plain)
        return found


_WORD = 8
_INTEGER = bytes(not byte & 1 for byte in range(256))
_ADDRESS = bytes(byte & ~3 for byte in range(256))


def tags(values: array[int]) -> bytes:
    """Return the lowest byte of each value."""
    return values.tobytes()[::_WORD]


def tally(target: Target, engine: Engine, values: array[int]) -> tuple[array[int], array[int]]:
    """Return the distinct values ("Q", ascending), and how often each occurs ("Q"). Raises
    Interrupted.

    Slices are counted individually, and results of similar length are merged in pairs."""
    slices: list[tuple[array[int], array[int]]] = []
    for start in interruptible(target, range(0, len(values), SLICE)):
        made = engine.sum_by_value(values[start : start + SLICE], array("Q"))
        while slices and len(slices[-1][0]) <= len(made[0]):
            made = _join(engine, slices.pop(), made)
        slices.append(made)
    made = slices.pop() if slices else (array("Q"), array("Q"))
    while slices:
        made = _join(engine, slices.pop(), made)
    return made


def _join(engine: Engine, one: tuple[array[int], array[int]], other: tuple[array[int], array[int]]) -> tuple[array[int], array[int]]:
    return engine.sum_by_value(one[0] + other[0], one[1] + other[1])
