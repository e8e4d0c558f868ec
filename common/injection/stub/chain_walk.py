"""Walk the chain of an interpreter's frames as `managed` of stack_walk.S does."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Optional

from findleaks.injection.stub.table import NUMBER_AT, NUMBERED, UNKNOWN_FUNCTION, UNPAIRED, VALUE
from findleaks.target.base import Range
from findleaks.unwind.managed_frames import ChainedCall, ChainPart, ManagedFrames, WalkFrame


class ChainedFunctions:
    """Numbers the functions of chains. Numbers begin at 1, because the key of a function with the
    number 0 might be equal to UNPAIRED."""

    def __init__(self) -> None:
        self._functions: list[Hashable] = [None]
        self._numbers: dict[Hashable, int] = {}

    def number(self, function: Optional[Hashable]) -> int:
        """Return the number of a function; UNKNOWN_FUNCTION if the function is None, or if there
        are too many functions."""
        if function is None:
            return UNKNOWN_FUNCTION
        known = self._numbers.get(function)
        if known is None:
            if len(self._functions) == UNKNOWN_FUNCTION:
                return UNKNOWN_FUNCTION
            known = self._numbers[function] = len(self._functions)
            self._functions.append(function)
        return known

    def find(self, key: int) -> ChainedCall:
        """Return the call of a node with this key. The function of the call is None if it is not
        known."""
        number = (key & ~(VALUE | NUMBERED)) >> NUMBER_AT
        function = self._functions[number] if number < len(self._functions) else None
        return ChainedCall(function, key & (1 << NUMBER_AT) - 1)


def name_frame(walks: Sequence[WalkFrame], functions: ChainedFunctions, pc: int, fp: int) -> Iterator[tuple[int, None]]:
    """Yield a node for the managed functions that the frame with this return address and frame
    pointer executes. `walks`: the functions that ManagedFrames.walk returned for this stack."""
    for walk in walks:
        frames = tuple(walk(pc, fp))
        if frames:
            yield VALUE | NUMBERED | functions.number(frames) << NUMBER_AT, None


class ChainWalk:
    """Reads the chain of one thread during the walk of the thread's stack."""

    def __init__(self, reader: ManagedFrames, thread_pointer: int, functions: ChainedFunctions) -> None:
        self._reader, self._thread_pointer, self._functions = reader, thread_pointer, functions
        self._parts: Optional[Iterator[ChainPart]] = None
        self._next: Optional[ChainPart] = None

    def nodes(self, is_signal: bool, executes: bool, frame: Range, stack: Range) -> Iterator[tuple[int, None]]:
        """Yield the nodes of the calls that a native frame on a stack executes. `is_signal`:
        whether a signal handler returns to this frame. If such a frame comes before the chain was
        read, the chain is not read, because the interrupted code may be changing it."""
        if self._parts is None and (is_signal or executes):
            self._parts = iter(()) if is_signal else self._reader.chain_parts(self._thread_pointer, stack)
            self._next = next(self._parts, None)
        if not executes or self._parts is None:
            return
        if self._reader.is_paired and self._next is None:
            yield UNPAIRED, None
        while self._next is not None and (self._reader.is_paired or self._next.anchor < frame.end):
            if self._reader.is_paired or self._next.anchor >= frame.start:
                yield from self._nodes_of(self._next)
            self._next = next(self._parts, None)
            if self._reader.is_paired:
                return

    def last_nodes(self) -> Iterator[tuple[int, None]]:
        """Yield the nodes at the end of the stack."""
        if self._reader.is_paired and self._next is not None:
            yield UNPAIRED, None

    def _nodes_of(self, part: ChainPart) -> Iterator[tuple[int, None]]:
        for function, instruction in part.calls:
            yield VALUE | NUMBERED | self._functions.number(function) << NUMBER_AT | instruction, None
