"""Rows of types, as in common/native/dwarf.h, and the strings that they refer to."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from enum import IntEnum
from typing import Optional

from findleaks.engine.dwarf_sources import NO_KEY, VOID_KEY
from findleaks.engine.reference.dwarf_units import Budget, LimitExceeded
from findleaks.value_classes import dataclass

MOST_NAME = 0xFFFF


class Kind(IntEnum):
    """The constants TYPE_... of dwarf.h."""

    VOID = 0
    UNKNOWN = 1
    BASE = 2
    POINTER = 3
    STRUCT = 4
    UNION = 5
    ARRAY = 6
    ENUM = 7
    TYPEDEF = 8
    QUALIFIED = 9
    FUNCTION = 10
    MEMBER_POINTER = 11


AGGREGATES = (Kind.STRUCT, Kind.UNION, Kind.ENUM)
DECLARATION, POLYMORPHIC, TAGGED, NAMED_BY_TYPEDEF, REFERENCE, CLASS, ALIAS, COMPLETES, SIGNATURE = (1 << bit for bit in range(9))
LASTING = 63
MEMBER, BASE, DISCRIMINANT, VARIANT, OTHER_VARIANT = range(5)
TYPE_ARGUMENT, VALUE_ARGUMENT, PART_TYPEDEF, VIRTUAL_BASE = range(4)


@dataclass
class TypeRow:
    """The structure `type_row` of dwarf.h."""

    key: int
    kind: int
    flags: int = 0
    name: int = 0
    size: int = 0
    count: int = 0
    target: int = VOID_KEY
    extra: int = 0


@dataclass
class MemberRow:
    """The structure `member_row` of dwarf.h."""

    owner: int
    kind: int
    part: bool = False
    type: int = VOID_KEY
    offset: int = 0
    value: int = 0
    name: int = 0
    bits: int = 0
    storage: bool = False


@dataclass
class VariableRow:
    """The structure `variable_row` of dwarf.h."""

    address: int
    thread: bool
    most: int = 0
    type: int = VOID_KEY
    scope: int = 0
    function: int = 0
    name: int = 0
    has_scope: bool = False


@dataclass
class FunctionRow:
    """The structure `function_row` of dwarf.h."""

    start: int
    end: int
    type: int
    key: int


class Frame:
    """An enclosing entry: see `frame` in dwarf.h. It begins as a copy of the frame of the enclosing
    entry."""

    def __init__(self, above: Optional[Frame] = None) -> None:
        self.function: int = above.function if above is not None else VOID_KEY
        self.scope: int = above.scope if above is not None else 0
        self.outer: int = above.outer if above is not None else 0
        self.owner: int = above.owner if above is not None else 0
        self.value: int = above.value if above is not None else 0
        self.kind: str = "function" if above is not None and above.kind == "function" else "other"
        self.has_value = False


class Rows:
    """All rows of a file."""

    def __init__(self) -> None:
        self.budget = Budget()
        self.types: list[TypeRow] = []
        self.members: list[MemberRow] = []
        self.variables: list[VariableRow] = []
        self.functions: list[FunctionRow] = []
        self.signatures: list[tuple[int, int]] = []
        self.strings = bytearray(b"\0")
        self._names: dict[bytes, int] = {}
        self._keys: list[int] = []

    def intern(self, scope: int, text: bytes) -> int:
        """Return the offset in `strings` of a string with its scope; 0 for ""."""
        text = text[:MOST_NAME]
        if not text:
            return 0
        whole = ((self.text(scope) + b"::" if scope else b"") + text)[:MOST_NAME]
        if len(whole) > self.budget.left:
            raise LimitExceeded
        self.budget.left -= len(whole)
        if whole not in self._names:
            self._names[whole] = len(self.strings)
            self.strings += whole + b"\0"
        return self._names[whole]

    def text(self, name: int) -> bytes:
        return bytes(self.strings[name : self.strings.index(0, name)])

    def node_of(self, key: int) -> int:
        """Return the node of a key: 0 for void, 1 for unknown, 2 + i for type row i."""
        if key >= NO_KEY:
            return Kind.VOID if key == VOID_KEY else Kind.UNKNOWN
        if len(self._keys) != len(self.types):
            self._keys = [row.key for row in self.types]
        at = bisect_left(self._keys, key)
        return at + 2 if at < len(self._keys) and self._keys[at] == key else Kind.UNKNOWN

    def key_of_signature(self, signature: int) -> int:
        """Return the key of the type with a signature."""
        self.signatures.sort()
        at = bisect_left(self.signatures, (signature, 0))
        found = at < len(self.signatures) and self.signatures[at][0] == signature
        return self.signatures[at][1] if found else NO_KEY

    def add_table(self, columns: Sequence[array[int]], key: int, first: int, end: int) -> None:
        """Add types of a finished table, as dwarf_tables.c does."""
        count = len(columns[1])
        if not first:
            self.budget.left += 2 * len(columns[0]) + 64 * (count + len(columns[8]) + len(columns[15])) + (1 << 20)
        strings = columns[0].tobytes()
        for number in range(max(first, 2), min(end, count)):
            self._add_table_row(columns, strings, number, key)

    def _add_table_row(self, columns: Sequence[array[int]], strings: bytes, number: int, key: int) -> None:
        kinds, flags, names, sizes, targets, counts, first_field, *fields, first_part = columns[1:15]

        def name(offset: int) -> int:
            return self.intern(0, strings[offset : strings.index(0, offset)])

        def key_of(kind: int) -> int:
            return VOID_KEY if kind == 0 else NO_KEY if kind == 1 else key + kind

        row = TypeRow(key + number, kinds[number], flags[number] & LASTING, name(names[number]), sizes[number], counts[number])
        row.target = key_of(targets[number])
        self.types.append(row)
        owner = len(self.types) - 1
        for at in range(first_field[number], first_field[number + 1]):
            kind, text, offset, of, bits, value = (column[at] for column in fields)
            self.members.append(MemberRow(owner, kind, False, key_of(of), offset, value, name(text), bits))
        for at in range(first_part[number], first_part[number + 1]):
            kind, text, of, value = (column[at] for column in columns[15:19])
            self.members.append(MemberRow(owner, kind, True, key_of(of), 0, value, name(text)))
