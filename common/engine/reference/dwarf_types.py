"""Read the entries of units into rows, as common/native/dwarf_types.c and dwarf_origins.c do.
Source: DWARF 5, chapters 3 to 5."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Optional

from findleaks.engine.dwarf_sources import NO_KEY, VOID_KEY, Source
from findleaks.engine.reference import dwarf_rows as rows
from findleaks.engine.reference.dwarf_merge import Merge
from findleaks.engine.reference.dwarf_rows import Frame, FunctionRow, Kind, MemberRow, Rows, TypeRow, VariableRow
from findleaks.engine.reference.dwarf_units import (
    MASK,
    NOTHING,
    Data,
    LimitExceeded,
    Malformed,
    Sections,
    Shape,
    Unit,
    Value,
    Values,
    number_in,
)
from findleaks.target.arch import Arch

MOST_FRAMES, MOST_HOPS = 512, 4
SIBLING, LOCATION, NAME, SIZE, BIT_OFFSET, BIT_SIZE, DISCRIMINANT = 0x01, 0x02, 0x03, 0x0B, 0x0C, 0x0D, 0x16
CONSTANT, CONTAINING, LOWER, UPPER, ORIGIN, COUNT, MEMBER_LOCATION, DECLARATION = 0x1C, 0x1D, 0x22, 0x2F, 0x31, 0x37, 0x38, 0x3C
ENCODING, EXTERNAL, SPECIFICATION, TYPE, VIRTUAL, RANGES, SIGNATURE, DATA_BIT = 0x3E, 0x3F, 0x47, 0x49, 0x4C, 0x55, 0x69, 0x6B
LOW = 0x11
_SKIPS_CHILDREN = (0x1D, 0x48, 0x4109, 0x04)
_QUALIFIERS = {0x26: b"const", 0x35: b"volatile", 0x37: b"restrict", 0x47: b"_Atomic"}
_AGGREGATES = {0x13: (Kind.STRUCT, 0), 0x38: (Kind.STRUCT, 0), 0x02: (Kind.STRUCT, rows.CLASS), 0x17: (Kind.UNION, 0), 0x04: (Kind.ENUM, 0)}
_MANAGERS = (b"_M_manager", b"_S_manage", b"__handle")
"""The names of functions that copy and delete the value of a type-erased wrapper such as
std::function."""
_IN_CLASS = (0x0D, 0x1C, 0x2F, 0x30, 0x33, 0x19)


class _Wanted(NamedTuple):
    """The structure `pending` of dwarf.h."""

    key: int
    row: int
    what: int  # 0: a variable, 1: the result of a function, 2: the function around a variable
    hops: int


class PureTypeReader:
    """See TypeReader."""

    def __init__(self, arch: Arch) -> None:
        self._order = arch.byteorder
        self._rows = Rows()
        self._declared: dict[int, tuple[int, int]] = {}
        self._wanted: list[_Wanted] = []
        self._units: list[Unit] = []
        self._shapes: tuple[tuple[object, ...], dict[int, Shape]] = ((), {})
        self._named = 0
        self._merge: Optional[Merge] = None
        self.incomplete = False

    def add(self, source: Source) -> None:
        self._sections = Sections(source, self._order)
        self._rows.budget.left += 64 * len(source.info) + (4 << 20)
        self._at = 0

    def read(self, limit: int) -> int:
        """Read one unit."""
        try:
            unit = Unit(self._sections, self._at)
        except Malformed:
            self.incomplete |= self._at != len(self._sections.info.data)
            return -1
        self._units.append(unit)
        self._at = unit.end
        if unit.kind == 2:
            self._rows.signatures.append((unit.signature, unit.sections.source.key + unit.start + unit.type))
        try:
            self._read_unit(unit)
        except Malformed:
            self.incomplete = True
        except LimitExceeded:
            self.incomplete = True
            return -1
        return self._at

    def _shapes_of(self, unit: Unit) -> dict[int, Shape]:
        key = (id(unit.sections), unit.abbreviations, unit.wide, unit.address, unit.version)
        if self._shapes[0] != key:
            self._shapes = (), {}
            self._shapes = key, unit.read_shapes(self._rows.budget)
        return self._shapes[1]

    def _read_unit(self, unit: Unit) -> None:
        shapes, info, at, base = self._shapes_of(unit), unit.sections.info, unit.first, unit.sections.source.key
        frames = [Frame()]
        while at < unit.end:
            offset = at
            code, at = info.uleb(at, unit.end)
            if not code:
                if len(frames) <= 2:
                    return
                frames.pop()
                continue
            if code not in shapes:
                raise Malformed
            shape = shapes[code]
            at, values = unit.read_entry(shape, at)
            if shape.children and len(frames) > MOST_FRAMES:
                raise Malformed
            child = Frame(frames[-1])
            self._add_entry(unit, shape.tag, base + offset, frames[-1], values, child)
            if not shape.children:
                if len(frames) == 1:
                    return
                continue
            sibling = values.get(SIBLING, NOTHING)
            further = sibling.number - base if sibling.kind == "key" else 0
            if shape.tag in _SKIPS_CHILDREN and at < further < unit.end:
                at = further
            else:
                frames.append(child)

    def _add_entry(self, unit: Unit, tag: int, key: int, above: Frame, values: dict[int, Value], child: Frame) -> None:
        if tag in (0x24, 0x12):
            self._add_type(key, Kind.BASE, 0, 0, values).count = number_in(values, ENCODING)
        elif tag == 0x3B:
            row = self._add_type(key, Kind.VOID, rows.ALIAS, 0, values)
            row.extra = VOID_KEY
        elif tag in (0x0F, 0x10, 0x42):
            if not number_in(values, SIZE):
                values[SIZE] = Value("number", unit.address)
            self._add_type(key, Kind.POINTER, 0 if tag == 0x0F else rows.REFERENCE, 0, values)
        elif tag == 0x1F:
            self._add_type(key, Kind.MEMBER_POINTER, 0, 0, values)
        elif tag in _AGGREGATES:
            self._add_aggregate(unit, key, tag, above, values, child)
        elif tag in (0x16, 0x43):
            self._add_type(key, Kind.TYPEDEF, 0, above.scope, values)
            if above.kind == "class":
                self._add_part(key, above, rows.PART_TYPEDEF, key, values)
        elif tag in _QUALIFIERS:
            values[NAME] = Value("text", 0, _QUALIFIERS[tag])
            self._add_type(key, Kind.QUALIFIED, 0, 0, values)
        elif tag == 0x15:
            self._add_type(key, Kind.FUNCTION, 0, 0, values)
        elif tag == 0x01:
            child.kind, child.owner = "array", len(self._rows.types)
            self._add_type(key, Kind.ARRAY, 0, 0, values)
        elif tag in (0x21, 0x45):
            if above.kind == "array":
                self._add_dimension(key, above, values)
        elif tag in _IN_CLASS:
            self._add_in_class(tag, key, above, values, child)
        elif tag == 0x4107:
            child.kind = above.kind
        elif tag in (0x39, 0x1E):
            name = values.get(NAME, NOTHING)
            child.kind = "scope"
            if name.kind == "text" or values.get(ORIGIN, NOTHING).kind != "key":
                child.scope = self._rows.intern(above.scope, name.data if name.kind == "text" else b"(anonymous namespace)")
        elif tag == 0x2E:
            is_manager = above.kind == "class" and values.get(NAME, NOTHING).data.partition(b"<")[0] in _MANAGERS
            if is_manager:
                self._add_alias(key, self._rows.types[above.owner].key)
            self._add_function(unit, key, above, values, child)
            child.kind = "manager" if is_manager else child.kind
        elif tag == 0x34:
            self._add_variable(unit, key, above, values)
        elif tag in (0x11, 0x3C, 0x41, 0x4A):
            unit.begin(values)
            child.kind = "scope"

    def _type_of(self, key: int, values: Values) -> int:
        value = values.get(TYPE, NOTHING)
        if value.kind == "signature":
            self._rows.types.append(TypeRow(key + 1, Kind.UNKNOWN, rows.ALIAS | rows.SIGNATURE, extra=value.number))
            return key + 1
        return VOID_KEY if not value.kind else value.number if value.kind == "key" else NO_KEY

    def _add_type(self, key: int, kind: Kind, flags: int, scope: int, values: Values) -> TypeRow:
        row = TypeRow(key, kind, flags, size=number_in(values, SIZE))
        if number_in(values, DECLARATION):
            row.flags |= rows.DECLARATION
        row.name = self._name(scope, values)
        signature, completes, origin = (values.get(name, NOTHING) for name in (SIGNATURE, SPECIFICATION, ORIGIN))
        if signature.kind == "signature":
            row.flags |= rows.ALIAS | rows.SIGNATURE
            row.extra = signature.number
        elif completes.kind == "key":
            row.flags |= rows.COMPLETES
            row.extra = completes.number
        elif origin.kind == "key" and not row.name and not row.size:
            row.flags |= rows.ALIAS
            row.extra = origin.number
        self._rows.types.append(row)
        row.target = self._type_of(key, values)
        return row

    def _add_alias(self, key: int, of: int) -> None:
        """Record that the entry with this key has the type of the entry `of`."""
        self._rows.types.append(TypeRow(key, Kind.UNKNOWN, rows.ALIAS, extra=of))

    def _name(self, scope: int, values: Values) -> int:
        value = values.get(NAME, NOTHING)
        return self._rows.intern(scope, value.data) if value.kind == "text" else 0

    def _add_aggregate(self, unit: Unit, key: int, tag: int, above: Frame, values: Values, child: Frame) -> None:
        kind, flags = _AGGREGATES[tag]
        if values.get(CONTAINING, NOTHING).kind:
            flags |= rows.POLYMORPHIC
        child.owner = len(self._rows.types)
        row = self._add_type(key, kind, flags | (rows.TAGGED if unit.is_c else 0), above.scope, values)
        if kind != Kind.ENUM:
            child.kind = "class"
            if row.name and not unit.is_c:
                child.scope = row.name

    def _add_dimension(self, key: int, above: Frame, values: Values) -> None:
        count, upper, elements = values.get(COUNT, NOTHING), values.get(UPPER, NOTHING), 0
        if count.kind == "number":
            elements = count.number
        elif upper.kind == "number":
            elements = (upper.number - number_in(values, LOWER) + 1) & MASK
        if elements == 1 << 32 or elements >> 62:
            elements = 0
        last = self._rows.types[above.owner]
        if not above.has_value:
            above.has_value, last.count = True, elements
            return
        above.owner = len(self._rows.types)
        self._rows.types.append(TypeRow(key, Kind.ARRAY, count=elements, target=last.target))
        last.target = key

    def _add_in_class(self, tag: int, key: int, above: Frame, values: Values, child: Frame) -> None:
        inside = above.kind == "class"
        if tag == 0x0D:
            if inside and (number_in(values, DECLARATION) or number_in(values, EXTERNAL)):
                self._declare_variable(key, above, values)
            elif inside or above.kind == "part":
                self._add_field(key, above, rows.MEMBER if inside else rows.DISCRIMINANT, values)
            elif above.kind == "variant":
                self._add_field(key, above, rows.VARIANT if above.has_value else rows.OTHER_VARIANT, values)
        elif tag == 0x1C:
            if inside:
                self._add_field(key, above, rows.BASE, values)
        elif tag in (0x2F, 0x30):
            if above.kind == "manager" and tag == 0x2F and values.get(TYPE, NOTHING).kind == "key":
                self._add_alias(key, values[TYPE].number)
            elif inside:
                self._add_part(key, above, rows.TYPE_ARGUMENT if tag == 0x2F else rows.VALUE_ARGUMENT, VOID_KEY, values)
        elif tag == 0x33:
            child.kind = "part" if inside else "other"
        else:
            child.kind = "variant" if above.kind == "part" else "other"
            child.value = number_in(values, DISCRIMINANT)
            child.has_value = values.get(DISCRIMINANT, NOTHING).kind == "number"

    def _add_row(self, key: int, row: MemberRow, values: Values) -> None:
        if row.part or row.kind != rows.BASE:
            row.name = self._name(0, values)
        if row.type == VOID_KEY:
            row.type = self._type_of(key, values)
        self._rows.members.append(row)

    def _add_part(self, key: int, above: Frame, kind: int, kind_key: int, values: Values) -> None:
        value = number_in(values, CONSTANT) if kind == rows.VALUE_ARGUMENT else 0
        self._add_row(key, MemberRow(above.owner, kind, True, kind_key, value=value), values)

    def _add_field(self, key: int, above: Frame, kind: int, values: Values) -> None:
        offset = self._offset(values.get(MEMBER_LOCATION, NOTHING))
        if kind == rows.BASE and (offset is None or number_in(values, VIRTUAL)):
            self._add_part(key, above, rows.VIRTUAL_BASE, VOID_KEY, values)
            return
        row = MemberRow(above.owner, kind, offset=offset or 0, value=above.value if above.kind == "variant" else 0)
        bits, first, storage = (number_in(values, name) for name in (BIT_SIZE, DATA_BIT, SIZE))
        if 0 < bits < 1 << 16:
            if not values.get(DATA_BIT, NOTHING).kind:
                from_end, big = number_in(values, BIT_OFFSET), self._order == "big"
                row.storage = not big and not storage
                first = (8 * row.offset + (from_end if big else 8 * storage - from_end - bits)) & MASK
            row.bits = bits << 8 | first & 7
            row.offset = first if row.storage else first >> 3
        name = values.get(NAME, NOTHING)
        if name.kind == "text" and name.data.startswith(b"_vptr"):
            self._rows.types[above.owner].flags |= rows.POLYMORPHIC
        self._add_row(key, row, values)

    def _offset(self, value: Value) -> Optional[int]:
        if value.kind != "block":
            return value.number if value.kind in ("number", "section") else 0
        try:
            offset, end = Data(value.data, self._order).uleb(1, len(value.data))
        except Malformed:
            return None
        return offset if value.data[0] == 0x23 and end == len(value.data) else None

    def _declare_variable(self, key: int, above: Frame, values: Values) -> None:
        if values.get(NAME, NOTHING).kind == "text" and above.function == VOID_KEY:
            name = self._name(above.scope, values)
            self._declared[key] = name, self._type_of(key, values)

    def _add_variable(self, unit: Unit, key: int, above: Frame, values: Values) -> None:
        place = unit.location_of(values.get(LOCATION, NOTHING))
        if place is None:
            self._declare_variable(key, above, values)
            return
        row, number = VariableRow(*place), len(self._rows.variables)
        row.scope = above.scope if above.function == VOID_KEY else above.outer
        row.name = self._name(0, values)
        row.type = self._type_of(key, values)
        self._rows.variables.append(row)
        if above.function != VOID_KEY:
            self._want(above.function, number, 2, 0)
        if not row.name or row.type == VOID_KEY:
            self._want(_origin(values), number, 0, 0)

    def _add_function(self, unit: Unit, key: int, above: Frame, values: Values, child: Frame) -> None:
        child.kind, child.function, child.scope = "function", key, 0
        child.outer = above.scope if above.function == VOID_KEY else above.outer
        ranges = list(unit.code_of(values, self._rows.budget)) if LOW in values or RANGES in values else []
        if not ranges:
            return
        result = self._type_of(key, values)
        for start, end in ranges:
            self._rows.functions.append(FunctionRow(start, end, result, key))
            if result == VOID_KEY:
                self._want(_origin(values), len(self._rows.functions) - 1, 1, 0)

    def _want(self, key: int, row: int, what: int, hops: int) -> None:
        if key < NO_KEY and hops < MOST_HOPS:
            self._wanted.append(_Wanted(key, row, what, hops))

    def find_origins(self, limit: int) -> bool:
        try:
            while self._wanted:
                wanted, self._wanted = sorted(self._wanted), []
                for one in wanted:
                    self._resolve(one)
            for row in self._rows.variables[self._named :]:
                if not row.has_scope and row.name:
                    row.scope = self._below(row.scope, row.function)
                    row.name = self._below(row.scope, row.name)
        except LimitExceeded:
            self.incomplete = True
        self._named = len(self._rows.variables)
        self._units.clear()
        self._shapes = (), {}
        return False

    def _below(self, scope: int, name: int) -> int:
        return self._rows.intern(scope, self._rows.text(name)) if scope and name else name or scope

    def _resolve(self, one: _Wanted) -> None:
        variable = self._rows.variables[one.row] if one.what != 1 else None
        if variable is not None and one.what == 0 and one.key in self._declared:
            name, kind = self._declared[one.key]
            variable.has_scope = not variable.name
            variable.name = variable.name or name
            variable.type = variable.type if variable.type != VOID_KEY else kind
            return
        try:
            values = self._read_key(one.key)
        except Malformed:
            return
        found = values.get(TYPE, NOTHING)
        kind = self._rows.key_of_signature(found.number) if found.kind == "signature" else self._type_of(0, values)
        if variable is None:
            self._rows.functions[one.row].type = kind
            done = kind != VOID_KEY
        elif one.what == 2:
            variable.function = variable.function or self._name(0, values)
            done = bool(variable.function)
        else:
            variable.name = variable.name or self._name(0, values)
            variable.type = variable.type if variable.type != VOID_KEY else kind
            done = bool(variable.name) and variable.type != VOID_KEY
        if not done:
            self._want(_origin(values), one.row, one.what, one.hops + 1)

    def _read_key(self, key: int) -> Values:
        at = bisect_right([unit.sections.source.key + unit.start for unit in self._units], key) - 1
        if at < 0:
            raise Malformed
        unit = self._units[at]
        offset = key - unit.sections.source.key
        if not unit.first <= offset < unit.end:
            raise Malformed
        code, after = unit.sections.info.uleb(offset, unit.end)
        shapes = self._shapes_of(unit)
        if code not in shapes:
            raise Malformed
        return unit.read_entry(shapes[code], after)[1]

    def add_table(self, columns: Sequence[array[int]], key: int, first: int, end: int) -> None:
        try:
            self._rows.add_table(columns, key, first, end)
        except LimitExceeded:
            self.incomplete = True

    def merge(self) -> float:
        self._merge = Merge(self._rows)
        self._merge.run()
        return 1.0

    def columns(self) -> list[array[int]]:
        assert self._merge is not None
        return self._merge.columns()


def _origin(values: Values) -> int:
    for name in (SPECIFICATION, ORIGIN):
        if values.get(name, NOTHING).kind == "key":
            return values[name].number
    return NO_KEY
