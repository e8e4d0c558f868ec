"""Links types and merges equal ones, as common/native/dwarf_merge.c and dwarf_columns.c do."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence

from findleaks.engine.dwarf_sources import COLUMNS as CODES
from findleaks.engine.dwarf_sources import NO_KEY
from findleaks.engine.reference import dwarf_rows as rows
from findleaks.engine.reference.dwarf_rows import AGGREGATES, Kind, MemberRow, Rows, TypeRow
from findleaks.engine.reference.dwarf_units import MASK

MOST_ROUNDS, MOST_ALIASES, MOST_LEVELS, BASE_LEVELS = 64, 8, 64, 32
SIZES = 4  # The column of sizes.


class Merge:
    """Nodes 0 and 1 are void and unknown, node 2 + i is the type row i."""

    def __init__(self, all_rows: Rows) -> None:
        self._rows = all_rows
        none = TypeRow(0, Kind.VOID), TypeRow(0, Kind.UNKNOWN)
        self._types: list[TypeRow] = [*none, *all_rows.types]
        self._targets = [0, 0]
        self._instead = [0, 1]
        self._members: list[list[tuple[MemberRow, int]]] = [[] for _ in self._types]
        self._groups: list[Hashable] = []
        self._classes = [0] * len(self._types)
        self._definitions: dict[Hashable, int] = {}
        self._differing: set[Hashable] = set()
        self._final: list[int] = []
        self._merged = False

    def run(self) -> None:
        """Do all of the work; `columns` returns the result."""
        nodes = range(2, len(self._types))
        for node in nodes:
            self._link(node)
        for node in nodes:
            self._settle(node)
        for member in self._rows.members:
            self._link_member(member)
        self._groups = [self._group(node) for node in range(len(self._types))]
        self._refine()
        self._merged = True

    def _link(self, node: int) -> None:
        row = self._types[node]
        self._targets.append(self._rows.node_of(row.target))
        key = self._rows.key_of_signature(row.extra) if row.flags & rows.SIGNATURE else row.extra
        alias = row.flags & rows.ALIAS and (key != NO_KEY or not row.name)
        self._instead.append(self._rows.node_of(key) if alias else node)

    def _resolve(self, node: int) -> int:
        for _ in range(MOST_ALIASES):
            if self._instead[node] == node:
                return node
            node = self._instead[node]
        return Kind.UNKNOWN

    def _settle(self, node: int) -> None:
        row = self._types[node]
        target = self._targets[node] = self._resolve(self._targets[node])
        if row.flags & rows.COMPLETES and not row.name:
            row.name = self._types[self._rows.node_of(row.extra)].name
        named = self._types[target]
        if row.kind == Kind.TYPEDEF and named.kind in AGGREGATES and not named.name and not named.flags & rows.COMPLETES:
            named.name = row.name
            named.flags = named.flags & ~rows.TAGGED | (rows.NAMED_BY_TYPEDEF if row.name else 0)

    def _link_member(self, member: MemberRow) -> None:
        found = self._resolve(self._rows.node_of(member.type))
        if member.storage:
            bit = (member.offset + 8 * self._size(found)) & MASK
            member.bits, member.offset = member.bits | bit & 7, bit >> 3
        self._members[member.owner + 2].append((member, found))

    def _size(self, node: int) -> int:
        factor = 1
        for _ in range(MOST_LEVELS):
            node = self._find_definition(node) if self._merged else node
            row = self._types[node]
            if node < 2 or row.size:
                return row.size * factor if row.size * factor <= MASK else 0
            if row.kind == Kind.ARRAY:
                factor *= row.count
                if not row.count or factor > MASK:
                    return 0
            elif row.kind not in (Kind.TYPEDEF, Kind.QUALIFIED):
                return 0
            node = self._targets[node]
        return 0

    def _group(self, node: int) -> Hashable:
        row = self._types[node]
        return (row.kind, row.name, row.flags & rows.NAMED_BY_TYPEDEF) if row.name and row.kind in AGGREGATES else None

    def _refine(self) -> None:
        before = (0, 0)
        for _ in range(MOST_ROUNDS):
            numbers: dict[Hashable, int] = {}
            made = [numbers.setdefault(self._content(node), len(numbers)) for node in range(len(self._types))]
            for node in range(2, len(self._types)):
                self._compare(node, made)
            self._classes = made
            now = (len(numbers), len(self._differing))
            if now == before:
                break
            before = now

    def _describe_reference(self, node: int) -> Hashable:
        group = self._groups[node]
        return group if group is not None and group not in self._differing else self._classes[node]

    def _content(self, node: int) -> Hashable:
        row, flags = self._types[node], rows.DECLARATION | rows.NAMED_BY_TYPEDEF | rows.REFERENCE
        if node < 2:
            return node
        members = tuple(
            (one.kind, one.part, one.name, one.offset, one.bits, one.value, self._describe_reference(kind))
            for one, kind in self._members[node]
            if not one.part or one.kind <= rows.VALUE_ARGUMENT
        )
        own = (self._classes[node], row.kind, row.name, row.flags & flags, row.size, row.count)
        return own, self._describe_reference(self._targets[node]), members

    def _compare(self, node: int, made: Sequence[int]) -> None:
        group = self._groups[node]
        if group is None or self._types[node].flags & rows.DECLARATION or self._instead[node] != node:
            return
        first = self._definitions.setdefault(group, node)
        if made[first] != made[node]:
            self._differing.add(group)

    def _find_definition(self, node: int) -> int:
        node = self._resolve(node)
        group = self._groups[node]
        declared = group is not None and self._types[node].flags & rows.DECLARATION
        return self._definitions.get(group, node) if declared and group not in self._differing else node

    def columns(self) -> list[array[int]]:
        """Return the columns, in the order of debuginfo/type_table.py."""
        found = [array("B", bytes(self._rows.strings)), *self._type_columns()]
        sizes = found[SIZES]
        for thread in (False, True):
            variables: dict[int, Sequence[int]] = {}
            for row in self._rows.variables:
                if row.thread == thread:
                    number = self._final[self._rows.node_of(row.type)]
                    is_cut = row.most and sizes[number] > row.most
                    variables.setdefault(row.address, (row.address, Kind.UNKNOWN if is_cut else number, row.name))
            found += _columns([variables[address] for address in sorted(variables)], CODES[19:22])
        functions: dict[int, Sequence[int]] = {}
        for one in self._rows.functions:
            functions.setdefault(one.start, (one.start, one.end, self._final[self._rows.node_of(one.type)], one.key))
        found += _columns([functions[start] for start in sorted(functions)], CODES[25:29])
        keys = [(row.key, self._final[2 + number]) for number, row in enumerate(self._rows.types)]
        return found + _columns(keys, CODES[29:31])

    def _number_types(self) -> list[int]:
        best, numbers = [0, 1], {}
        self._final = [0, 1]
        for node in range(2, len(self._types)):
            shown = self._find_definition(node)
            if shown < 2:
                self._final.append(shown)
                continue
            kind = self._classes[shown]
            if kind not in numbers:
                numbers[kind] = len(best)
                best.append(shown)
            elif self._parts(shown) > self._parts(best[numbers[kind]]):
                best[numbers[kind]] = shown
            self._final.append(numbers[kind])
        return best

    def _parts(self, node: int) -> int:
        return sum(one.part for one, _ in self._members[node])

    def _type_columns(self) -> list[array[int]]:
        best = self._number_types()
        own, fields, parts, first_field, first_part = [], [], [], [0], [0]
        for node in best:
            row = self._types[node]
            count = row.count if row.kind in (Kind.ARRAY, Kind.BASE) else 0
            own.append([row.kind, row.flags & rows.LASTING, row.name, self._size(node), self._final[self._targets[node]], count])
            for one, kind in self._members[node]:
                if one.part:
                    parts.append((one.kind, one.name, self._final[kind], one.value))
                else:
                    fields.append((one.kind, one.name, one.offset, self._final[kind], one.bits, one.value))
            first_field.append(len(fields))
            first_part.append(len(parts))
        self._spread_vtables(own, first_field, fields)
        found = [*_columns(own, CODES[1:7]), array("I", first_field), *_columns(fields, CODES[8:14])]
        return [*found, array("I", first_part), *_columns(parts, CODES[15:19])]

    @staticmethod
    def _spread_vtables(own: list[list[int]], first: Sequence[int], fields: Sequence[Sequence[int]]) -> None:
        for _ in range(BASE_LEVELS):
            found = False
            for number in range(len(own)):
                for field in fields[first[number] : first[number + 1]]:
                    if field[0] == rows.BASE and own[field[3]][1] & rows.POLYMORPHIC and not own[number][1] & rows.POLYMORPHIC:
                        own[number][1] |= rows.POLYMORPHIC
                        found = True
            if not found:
                break


def _columns(found: Sequence[Sequence[int]], codes: str) -> list[array[int]]:
    return [array(code, [row[at] for row in found]) for at, code in enumerate(codes)]
