"""Memory of an emulated function (formula.py): the target's, which is only read, and a stack of its
own, which holds words of 8 bytes."""

from __future__ import annotations

from findleaks.target.base import Target

LONGEST = 400  # instructions that are executed, at most
STACK = 0xFFFF_A000_0000_0000
"""The end of the stack: a kernel address, which no process maps."""
_DEPTH = 1 << 12  # bytes


class Unknown(Exception):
    """The function does something that is not emulated."""


class EmulatedMemory:
    def __init__(self, target: Target) -> None:
        self._target = target
        self._stack: dict[int, int] = {}

    def load(self, place: int, width: int) -> int:
        """A number of `width` bytes. UnreadableMemory where the target has none; Unknown where the
        stack has no such word."""
        if not STACK - _DEPTH <= place < STACK:
            return int.from_bytes(self._target.read(place, width), "little")
        if width != 8:
            raise Unknown
        return self.stacked(place)

    def stacked(self, place: int) -> int:
        """The word stored to the stack there; Unknown if none was."""
        if place not in self._stack:
            raise Unknown
        return self._stack[place]

    def store(self, place: int, width: int, number: int) -> None:
        """Only to the stack, and whole words; else Unknown."""
        if width != 8 or place % 8 or not STACK - _DEPTH <= place < STACK:
            raise Unknown
        self._stack[place] = number & (1 << 64) - 1
