"""Apply lines of hint files whose member is reached through other members, as in
"ngx_cycle_s.listening.elts -> ngx_listening_s[nelts]": the meaning of a generic array depends on
the object that contains it. The engine knows only what each member of a struct refers to, so these
lines are applied to one object after another."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Optional

from findleaks.debuginfo.type_expressions import NamedType
from findleaks.debuginfo.type_table import Kind, TypeTable
from findleaks.errors import UsageError
from findleaks.types.hint_files import SlotHint
from findleaks.value_classes import NamedTuple

MOST_ELEMENTS = 1 << 16
"""Maximum number of elements of an array. If the member with the length has a larger number, the
hint is not applied."""
COUNTED = re.compile(r"\[\s*([A-Za-z_]\w*)\s*\]$")
"""At the end of a type: the member that has the number of elements."""
INDEXED = re.compile(r"\[\s*([A-Za-z_]\w*(?:\.\w+)*)\s*\]$")
"""At the end of a path: the variable that has the index of the element."""


class Member(NamedTuple):
    """A member of a struct: its type, its offset in the struct, the innermost named struct with its
    offset in that, and its bits (Field)."""

    type: int
    offset: int
    owner: int
    inside: int
    bits: int
    first_bit: int


class PathHint(NamedTuple):
    """What the pointer at the end of a path refers to. The path begins at the start of an object.

    `offsets`: those of the pointers to follow; the last one is that of the pointer itself.
    `element`: the pointer refers to an array of pointers, and this element is meant; -1 if not.
    `length`: the distance of the number of elements from the pointer, and its size in bytes; (0, 0)
    for a single object."""

    offsets: tuple[int, ...]
    element: int
    type: int
    length: tuple[int, int]


class Found(NamedTuple):
    """An object that a hint refers to: `number` values of a type at an address. `place`: the
    address of the pointer to it."""

    place: int
    address: int
    type: int
    number: int
    is_array: bool


def is_path_hint(hint: SlotHint) -> bool:
    """Whether a hint is for the pointers at the end of one path, not for all pointers of a
    member."""
    return bool(COUNTED.search(hint.type) or INDEXED.search(hint.slot))


class PathHints:
    """The hints with a path, by the struct with which the path begins."""

    def __init__(self, table: TypeTable, find: Callable[[str], Sequence[NamedType]], step: Callable[[Member, str, int], Optional[Member]]):
        """`find` returns the types of a name, `step` a member of a struct by its name."""
        self._table, self._find, self._step = table, find, step
        self.hints: dict[int, list[PathHint]] = {}

    def add(self, hint: SlotHint, read_variable: Callable[[str], int]) -> None:
        """Add a hint. `read_variable` returns the number in a variable, or in the member of a
        variable that a path names. Raises UsageError if the hint is impossible."""
        if hint.member:
            raise UsageError("a hint with an index or a number of elements cannot have a condition")
        indexed, counted = INDEXED.search(hint.slot), COUNTED.search(hint.type)
        target = self._find(hint.type[: counted.start()] if counted else hint.type)[0]
        index = read_variable(indexed[1]) if indexed else -1
        name, *members = (hint.slot[: indexed.start()] if indexed else hint.slot).split(".")
        if not members:
            raise UsageError(f"{hint.slot} is not a member; write TYPE.MEMBER")
        is_known = False
        for one in self._find(name):
            found = self._follow(one.type, members, counted[1] if counted else "")
            if found is not None:
                is_known = True
                made = PathHint(found[0], index, target.type, found[1])
                self.hints.setdefault(self._table.bare(one.type), []).append(made)
        if not is_known:
            raise UsageError(f"{name} has no pointer {'.'.join(members)}" + (f" with a number {counted[1]}" if counted else ""))

    def _follow(self, number: int, members: Sequence[str], count: str) -> Optional[tuple[tuple[int, ...], tuple[int, int]]]:
        """Return the offsets of the pointers on a path, and where the number of elements is; None
        if the path does not exist."""
        table, offsets = self._table, list[int]()
        at = Member(number, 0, number, 0, 0, 0)
        for name in members:
            bare = table.bare(at.type)
            if table.kinds[bare] == Kind.POINTER:
                offsets.append(at.offset)
                pointee = table.targets[bare]
                at = Member(pointee, 0, table.bare(pointee), 0, 0, 0)
            found = self._step(at, name, 0)
            if found is None or found.bits:
                return None
            at = found
        if table.kinds[table.bare(at.type)] != Kind.POINTER:
            return None
        offsets.append(at.offset)
        if not count:
            return tuple(offsets), (0, 0)
        number_of = self._step(Member(at.owner, 0, at.owner, 0, 0, 0), count, 0)
        if number_of is None or number_of.bits or table.size_of(number_of.type) not in (1, 2, 4, 8):
            return None
        return tuple(offsets), (number_of.offset - at.inside, table.size_of(number_of.type))

    def apply(self, number: int, address: int, read: Callable[[int, int], int]) -> Sequence[Found]:
        """Return what the hints say about the object of a type at an address. `read` returns a
        number in memory by address and size; 0 if it is missing."""
        found, word = [], self._table.word
        for one in self.hints.get(number, ()):
            start = address
            for offset in one.offsets[:-1]:
                start = read(start + offset, word) if start else 0
            place = start + one.offsets[-1] if start else 0
            value = read(place, word) if place else 0
            if value and one.element >= 0:
                place = value + one.element * word
                value = read(place, word)
            many = one.length[1] > 0
            count = read(place + one.length[0], one.length[1]) if value and many else 1
            if value and 0 < count <= MOST_ELEMENTS:
                found.append(Found(place, value, one.type, count, many))
        return found
