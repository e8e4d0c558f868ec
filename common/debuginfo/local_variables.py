"""Local variables and parameters of a function, read when they are needed."""

from __future__ import annotations

from enum import IntEnum

from findleaks.value_classes import NamedTuple


class Place(IntEnum):
    """Where a local variable is."""

    CFA = 0
    """In memory at the canonical frame address + `offset`."""
    REGISTER_MEMORY = 1
    """In memory at the value of `register` + `offset`."""
    REGISTER = 2
    """In `register` (numbers of DWARF)."""
    OTHER = 3
    """Given by `expression` (DWARF), or optimised out if that is empty."""


class Local(NamedTuple):
    """A local variable or parameter, valid while the program counter is in [start, end)."""

    name: str
    type: int
    start: int
    end: int
    place: Place
    register: int
    offset: int
    expression: bytes
