"""Read local variables and parameters of a function when they are needed.

Sources: DWARF 5, 2.5 (expressions), 2.6.2 and 7.7.3 (location lists), 3.3.5 (frame base); DWARF 4,
2.6.2."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Optional

from findleaks.debuginfo.type_sources import TypeSources
from findleaks.debuginfo.type_table import UNKNOWN, VOID, Function, TypeTable
from findleaks.engine.dwarf_sources import SPLIT, Source
from findleaks.engine.reference.dwarf_units import NOTHING, Budget, Data, Malformed, Sections, Shape, Unit, Value, Values
from findleaks.value_classes import NamedTuple

MOST_ENTRIES = 1 << 16  # maximum number of entries of a function
MOST_LIST = 1 << 12  # maximum number of entries of a location list
MOST_HOPS = 4  # maximum number of entries that describe one variable
_BUDGET = 1 << 24  # maximum number of bytes of abbreviations that are read

_NAME, _LOCATION, _TYPE, _FRAME_BASE, _ORIGIN, _SPECIFICATION, _LISTS_BASE = 0x03, 0x02, 0x49, 0x40, 0x31, 0x47, 0x8C
_PARAMETER, _VARIABLE, _BLOCK, _INLINED = 0x05, 0x34, 0x0B, 0x1D


class Place(IntEnum):
    """Where a local variable is."""

    CFA = 0
    """In memory at the canonical frame address + `offset`."""
    REGISTER_MEMORY = 1
    """In memory at the value of `register` + `offset`."""
    REGISTER = 2
    """In `register` (numbers of DWARF)."""
    OTHER = 3
    """In the place that the DWARF `expression` computes. If the expression is empty, the variable
    is not available."""


class Local(NamedTuple):
    """A local variable or parameter at one address of code. `type`: the number of its type in the
    module's table."""

    name: str
    type: int
    place: Place
    register: int
    offset: int
    expression: bytes


class LocalVariables:
    """The local variables of a module's functions."""

    def __init__(self, sources: TypeSources, table: TypeTable) -> None:
        self._sources, self._table, self._order = sources, table, sources.order
        # The sources, with the offsets of their units
        self._opened: list[tuple[Source, Sections, list[int]]] = []
        self._signatures: dict[int, int] = {}
        self._lists = [Data(sources.sections.get(name, b""), sources.order) for name in (".debug_loc", ".debug_loclists")]
        self._units: dict[tuple[int, int], tuple[Unit, dict[int, Shape], Values]] = {}

    def at(self, address: int) -> Sequence[Local]:
        """Return the variables of the function, its blocks and inlined functions that are visible
        at an address of the file."""
        function = self._table.function_at(address)
        if function is None:
            return ()
        try:
            return list(self._read(function, address))
        except (Malformed, LookupError):
            return ()

    def manager_types(self, address: int) -> Sequence[int]:
        """Return the types of the manager function (types/erasure.py) that begins at an address of
        the file: its class, then its template argument if it has one. () for other functions."""
        function, table = self._table.function_at(address), self._table
        if function is None or function.start != address:
            return ()
        try:
            key = function.key
            for _ in range(MOST_HOPS):
                row = bisect_left(table.keys, key)
                if row < len(table.keys) and table.keys[row] == key:
                    return table.key_types[row : row + 2]  # the argument's entry is the next one
                values = self._entry(key)
                origin = values.get(_ORIGIN, values.get(_SPECIFICATION, NOTHING))
                if origin.kind != "key":
                    return ()
                key = origin.number
        except (Malformed, LookupError):
            pass
        return ()

    def _read(self, function: Function, address: int) -> Iterator[Local]:
        unit, shapes, top = self._unit_of(function.key)
        base = unit.sections.source.key
        at, depth, hidden, frame = function.key - base, 0, 1 << 30, NOTHING
        for _ in range(MOST_ENTRIES):
            offset = at
            code, at = unit.sections.info.uleb(at, unit.end)
            if not code:
                depth -= 1
                if depth <= 0:
                    return
                continue
            shape = shapes[code]
            at, values = unit.read_entry(shape, at, True)
            if depth <= hidden:
                hidden = 1 << 30
            if offset == function.key - base:
                frame = values.get(_FRAME_BASE, NOTHING)
            elif depth < hidden and shape.tag in (_PARAMETER, _VARIABLE):
                found = self._local(unit, top, values, frame, address)
                if found is not None:
                    yield found
            elif depth < hidden and shape.children and not _covers(unit, shape.tag, values, address):
                hidden = depth
            if shape.children:
                depth += 1
            elif not depth:
                return

    def _local(self, unit: Unit, top: Values, values: Values, frame: Value, address: int) -> Optional[Local]:
        expression = self._expression(unit, top, values.get(_LOCATION, NOTHING), address)
        if expression is None or unit.location_of(Value("block", 0, expression)) is not None:
            return None  # this is a static variable, which is in the table of types and variables
        name, kind = "", -1
        for hop in range(MOST_HOPS):
            text, of = values.get(_NAME, NOTHING), values.get(_TYPE, NOTHING)
            name = name or text.data.decode("utf-8", "replace")
            kind = self._type(of) if kind < 0 and of.kind else kind
            origin = values.get(_ORIGIN, values.get(_SPECIFICATION, NOTHING))
            if (name and kind >= 0) or origin.kind != "key" or hop == MOST_HOPS - 1:
                break
            values = self._entry(origin.number)
        place, register, offset = self._place(expression, frame)
        return Local(name, VOID if kind < 0 else kind, place, register, offset, expression)

    def _type(self, value: Value) -> int:
        if value.kind == "signature":
            self._open_sources()
            return self._table.type_of_key(self._signatures.get(value.number, -1) % (1 << 64))
        return self._table.type_of_key(value.number) if value.kind == "key" else UNKNOWN

    def _place(self, expression: bytes, frame: Value) -> tuple[Place, int, int]:
        """Interpret a location that consists of one operation."""
        data, end = Data(expression, self._order), len(expression)
        try:
            operation = expression[0] if expression else 0
            if 0x50 <= operation <= 0x6F and end == 1:
                return Place.REGISTER, operation - 0x50, 0
            if operation == 0x90:
                register, at = data.uleb(1, end)
                return (Place.REGISTER, register, 0) if at == end else (Place.OTHER, 0, 0)
            if 0x70 <= operation <= 0x8F or operation in (0x91, 0x92):
                register, at = data.uleb(1, end) if operation == 0x92 else (operation - 0x70, 1)
                offset, at = data.sleb(at, end)
                signed = offset - (1 << 64) if offset >> 63 else offset
                if at == end:
                    return self._in_frame(frame.data, signed) if operation == 0x91 else (Place.REGISTER_MEMORY, register, signed)
        except Malformed:
            pass
        return Place.OTHER, 0, 0

    def _in_frame(self, base: bytes, offset: int) -> tuple[Place, int, int]:
        if base == b"\x9c":  # DW_OP_call_frame_cfa
            return Place.CFA, 0, offset
        place, register, more = self._place(base, NOTHING) if base[:1] != b"\x91" else (Place.OTHER, 0, 0)
        return (Place.OTHER, 0, 0) if place == Place.OTHER else (Place.REGISTER_MEMORY, register, more + offset)

    def _expression(self, unit: Unit, top: Values, value: Value, address: int) -> Optional[bytes]:
        """Return the location expression for an address. Returns None if the variable is not
        visible there, or has no location."""
        if value.kind == "block":
            return value.data
        split = unit.sections.source.flags & SPLIT
        if value.kind not in ("number", "section", "list") or split:
            return b"" if value.kind and split else None
        pieces = self._new_list(unit, top, value) if unit.version >= 5 else self._old_list(unit, value.number)
        for _, (start, end, expression) in zip(range(MOST_LIST), pieces):
            if start <= address < end:
                return expression
        return None

    def _old_list(self, unit: Unit, at: int) -> Iterator[tuple[int, int, bytes]]:
        data, base, size = self._lists[0], unit.low_pc, unit.address
        while at + 2 * size <= len(data.data):
            low, high = data.number(at, size), data.number(at + size, size)
            at += 2 * size
            if low == unit.highest:
                base = high
                continue
            if not low and not high:
                return
            length = data.number(at, 2)
            yield base + low, base + high, bytes(data.data[at + 2 : at + 2 + length])
            at += 2 + length

    def _new_list(self, unit: Unit, top: Values, value: Value) -> Iterator[tuple[int, int, bytes]]:
        data, base, size, at = self._lists[1], unit.low_pc, unit.address, value.number
        end = len(data.data)
        if value.kind == "list":
            table = top.get(_LISTS_BASE, NOTHING).number
            at = table + data.number(table + at * unit.wide, unit.wide)
        while at < end:
            kind, at = data.data[at], at + 1
            first = second = 0
            if 1 <= kind <= 4:
                first, at = data.uleb(at, end)
                first = first if kind == 4 else unit.address_of(Value("index", first)) or 0
            elif 6 <= kind <= 8:
                first, at = data.number(at, size), at + size
            elif kind != 5:
                return
            if kind in (2, 3, 4, 8):
                second, at = data.uleb(at, end)
                second = unit.address_of(Value("index", second)) or 0 if kind == 2 else second
            elif kind == 7:
                second, at = data.number(at, size), at + size
            if kind in (1, 6):
                base = first
                continue
            length, at = data.uleb(at, end)
            shift = base if kind == 4 else 0
            stop = first + second if kind in (3, 8) else shift + second
            yield (0, 1 << 64, b"") if kind == 5 else (shift + first, stop, bytes(data.data[at : at + length]))
            at += length

    def _open_sources(self) -> None:
        """Find the units of all sources, once."""
        if self._opened:
            return
        main = self._sources.main()
        end = main[-1].key + len(main[-1].info) if main else 0
        for source in (*main, *(one for group in self._sources.split(end) for one in group)):
            sections, starts, at = Sections(source, self._order), [], 0
            while True:
                try:
                    unit = Unit(sections, at)
                except Malformed:
                    break
                starts.append(at)
                if unit.kind == 2:
                    self._signatures.setdefault(unit.signature, source.key + at + unit.type)
                at = unit.end
            self._opened.append((source, sections, starts))

    def _unit_of(self, key: int) -> tuple[Unit, dict[int, Shape], Values]:
        """Return the unit with this key, its abbreviations, and the attributes of its first
        entry."""
        self._open_sources()
        number = bisect_right([source.key for source, _, _ in self._opened], key) - 1
        source, sections, starts = self._opened[number]
        at = bisect_right(starts, key - source.key) - 1
        if at < 0:
            raise Malformed
        if (number, at) not in self._units:
            unit, budget = Unit(sections, starts[at]), Budget()
            budget.left = _BUDGET
            shapes = unit.read_shapes(budget)
            code, after = sections.info.uleb(unit.first, unit.end)
            top = unit.read_entry(shapes[code], after, True)[1]
            unit.begin(top)
            self._units[number, at] = unit, shapes, top
        return self._units[number, at]

    def _entry(self, key: int) -> Values:
        unit, shapes, _ = self._unit_of(key)
        code, at = unit.sections.info.uleb(key - unit.sections.source.key, unit.end)
        return unit.read_entry(shapes[code], at, True)[1]


def _covers(unit: Unit, tag: int, values: Values, address: int) -> bool:
    """Whether a block or inlined function contains an address. A block without ranges contains
    every address."""
    if tag not in (_BLOCK, _INLINED):
        return False
    budget = Budget()
    budget.left = MOST_LIST
    ranges = list(unit.code_of(values, budget))
    return any(start <= address < end for start, end in ranges) or (not ranges and tag == _BLOCK)
