"""Rows of types, as in common/native/dwarf.h, and the texts that they name."""

from __future__ import annotations

from bisect import bisect_left
from enum import IntEnum

from findleaks.engine.dwarf_sources import NO_KEY, VOID_KEY
from findleaks.engine.reference.dwarf_units import Budget, LimitExceeded
from findleaks.value_classes import dataclass

MOST_NAME = 0xFFFF


class Kind(IntEnum):
    """TYPE_... of dwarf.h."""

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
    """dwarf.h: type_row."""

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
    """dwarf.h: member_row."""

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
    """dwarf.h: variable_row."""

    address: int
    thread: bool
    type: int = VOID_KEY
    scope: int = 0
    function: int = 0
    name: int = 0
    has_scope: bool = False


@dataclass
class FunctionRow:
    """dwarf.h: function_row."""

    start: int
    end: int
    type: int
    key: int


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
        """Return the offset in `strings` of a text with its scope; 0 for ""."""
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
        """Return the node of a key: 0 is void, 1 unknown, 2 + i the type row i."""
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
