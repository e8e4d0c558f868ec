"""The handle scopes that are open: which frame opened each, and how many handles it will free when it closes.

`v8::HandleScope` is three words that its constructor writes where the object stands, nearly always on the stack: the isolate, and the
`next` and `limit` there were before (V8 3.14 to 13, include/v8-local-handle.h: isolate_, prev_next_, prev_limit_); V8's own scopes may be
kept apart in registers and stack slots, so that only the last two stand side by side, in either order. `limit` is the end of the block
that `next` is in, or equals `next` (a sealed scope), or both are 0 (no scope before).

Stack words that look so may be left over from scopes that have closed. A frame whose function's code neither calls the constructor nor
touches the isolate's scope data opens no scope. Scopes nest: going outward along the stack, what was `next` never grows. The longest chain
of candidates for which that holds is taken.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional

from findleaks.errors import UnreadableMemory
from findleaks.runtimes.v8.decode import RIP, instructions
from findleaks.runtimes.v8.isolates import Isolate
from findleaks.runtimes.v8.layout import OPENERS, Layout
from findleaks.target.base import Symbol, Target, Thread
from findleaks.unwind.frames import Frame, Unwinder

LONGEST = 1 << 17
"""Bytes of a function's code that are looked at."""

MOST_STACK = 64 << 20
"""Bytes of a stack that are searched."""


class Candidate(NamedTuple):
    """Words at `address` that look like an open scope; `before` handles had been made when it was opened."""

    address: int
    before: int
    certain: bool  # the isolate stands with them


@dataclass(frozen=True)
class Scope:
    """An open scope: `handles` were made in it and in no scope nearer. `frame` is the one that it stands in, None on the heap."""

    address: int
    handles: int
    frame: Optional[Frame]
    thread: Optional[int]


class _Blocks:
    """Ordinals of handles by their place."""

    def __init__(self, isolate: Isolate, size: int) -> None:
        self._size = size
        pairs = sorted((block, number) for number, block in enumerate(isolate.blocks))
        self._starts = [block for block, _ in pairs]
        self._numbers = [number for _, number in pairs]

    def place(self, next_: int, limit: int) -> Optional[int]:
        """Handles made before `next_`, if `next_` and `limit` are what a scope saves; else None."""
        if not next_ and not limit:
            return 0
        at = bisect_right(self._starts, next_) - 1
        # A block that is full ends where another may begin.
        for index in (at, at - 1):
            if index >= 0 and self._starts[index] <= next_ <= self._starts[index] + self._size and next_ % 8 == 0:
                if limit in (self._starts[index] + self._size, next_):
                    return self._numbers[index] * (self._size // 8) + (next_ - self._starts[index]) // 8
        return None


def scopes(target: Target, unwinder: Unwinder, layout: Layout, isolate: Isolate) -> list[Scope]:
    """The open scopes, innermost first. Handles older than the outermost scope found are counted to a scope without a frame."""
    blocks = _Blocks(isolate, 8 * layout.handles)
    openers = Openers(target, layout)
    found: list[Scope] = []
    last = isolate.handles
    for thread in isolate.threads:
        frames = unwinder.trace(thread).frames
        likely = candidates(target, isolate, thread, blocks)
        likely = [one for one in likely if openers.may(_frame(frames, one.address))]
        for candidate in chain(likely, last):
            frame = _frame(frames, candidate.address)
            found.append(Scope(candidate.address, last - candidate.before, frame, thread.tid))
            last = candidate.before
    if last:
        found.append(Scope(0, last, None, None))
    return found


class Openers:
    """Which functions can open a scope, told by their code; each is looked at once."""

    def __init__(self, target: Target, layout: Layout) -> None:
        self._target, self._fields = target, (layout.next, layout.limit, layout.level)
        self._known: dict[int, bool] = {}
        found = (target.symbol(name) for name in OPENERS)
        self._constructors = {symbol.address for symbol in found if symbol is not None}

    def may(self, frame: Optional[Frame]) -> bool:
        """False where the frame's function surely opens none."""
        symbol = self._target.symbolize(frame.call) if frame is not None else None
        if symbol is None:
            return True
        if symbol.address not in self._known:
            self._known[symbol.address] = self._looks(symbol)
        return self._known[symbol.address]

    def _looks(self, symbol: Symbol) -> bool:
        try:
            code = self._target.read(symbol.address, min(symbol.size, LONGEST))
        except UnreadableMemory:
            return True
        end = symbol.address
        for one in instructions(code, symbol.address):
            if one.target in self._constructors or (one.displacement in self._fields and one.base not in (RIP, -1)):
                return True
            end = one.address + one.length
        return end < symbol.address + symbol.size  # not all of it was understood


def candidates(target: Target, isolate: Isolate, thread: Thread, blocks: _Blocks) -> list[Candidate]:
    """Everything on the thread's live stack that looks like a scope, from the stack pointer up."""
    regions = [region for region in target.regions() if thread.sp in region]
    if not regions:
        return []
    start = thread.sp & ~7
    end = min(regions[0].end, start + MOST_STACK)
    words: list[int] = []
    try:
        words = list(target.arch.unpack(target.read(start, (end - start) & ~7)))
    except UnreadableMemory:
        return []
    found: list[Candidate] = []
    for at in range(len(words) - 1):
        one, two = words[at], words[at + 1]
        if one == isolate.address and at + 2 < len(words):
            before = blocks.place(two, words[at + 2])
            if before is not None:
                found.append(Candidate(start + 8 * at, before, True))
        elif one and two and isolate.address not in words[max(0, at - 2) : at]:
            pair = blocks.place(one, two)
            if pair is None:
                pair = blocks.place(two, one)
            if pair is not None:
                found.append(Candidate(start + 8 * at, pair, False))
    return found


def chain(found: list[Candidate], handles: int) -> list[Candidate]:
    """The longest chain of candidates, from the inside out, whose ordinals never grow. Among equally long ones that with more certain
    members. Patience sorting on (ordinal, certainty) would lose the second wish; chains are short, so each looks back at all."""
    best: list[tuple[int, int, int]] = []  # length, certain ones, the one before
    for at, candidate in enumerate(found):
        length, certain, before = 0, 0, -1
        if candidate.before <= handles:
            for earlier in range(max(0, at - 512), at):
                if found[earlier].before >= candidate.before and best[earlier][:2] > (length, certain):
                    length, certain, before = best[earlier][0], best[earlier][1], earlier
            length, certain = length + 1, certain + candidate.certain
        best.append((length, certain, before))
    made: list[Candidate] = []
    at = max(range(len(best)), key=lambda index: best[index][:2], default=-1)
    while at >= 0 and best[at][0]:
        made.append(found[at])
        at = best[at][2]
    return made[::-1]


def _frame(frames: Sequence[Frame], address: int) -> Optional[Frame]:
    """The frame whose part of the stack holds `address`: from its stack pointer to that of its caller."""
    for frame, caller in zip(frames, [*frames[1:], None]):
        if frame.sp <= address and (caller is None or address < caller.sp):
            return frame
    return None


__all__ = ["Candidate", "Scope", "candidates", "chain", "scopes"]
