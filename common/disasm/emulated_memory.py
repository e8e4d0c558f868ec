"""Memory of an emulated function (formula.py): the target's memory, which is only read, and a
separate stack of 8-byte words."""

from __future__ import annotations

from findleaks.target.base import Target

LONGEST = 400  # maximum number of instructions that are executed
STACK = 0xFFFF_A000_0000_0000
"""End of the emulated stack. It is a kernel address, so no process has memory there."""
_DEPTH = 1 << 12  # bytes


class Unknown(Exception):
    """The function does something that is not emulated."""


class EmulatedMemory:
    def __init__(self, target: Target) -> None:
        self._target = target
        self._stack: dict[int, int] = {}

    def load(self, place: int, width: int) -> int:
        """Read a number of `width` bytes.
        Raises UnreadableMemory if the target lacks the memory, and Unknown if the stack has no such
        word."""
        if not STACK - _DEPTH <= place < STACK:
            return int.from_bytes(self._target.read(place, width), "little")
        if width != 8:
            raise Unknown
        return self.read_stacked(place)

    def read_stacked(self, place: int) -> int:
        """Return the word that was stored on the stack at `place`. Raises Unknown if none was
        stored."""
        if place not in self._stack:
            raise Unknown
        return self._stack[place]

    def store(self, place: int, width: int, number: int) -> None:
        """Store a whole word on the stack. Raises Unknown for other places and widths."""
        if width != 8 or place % 8 or not STACK - _DEPTH <= place < STACK:
            raise Unknown
        self._stack[place] = number & (1 << 64) - 1
