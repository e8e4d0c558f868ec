"""The handle scopes that are open: which frame opened each, and how many handles it will free when it closes.

`v8::HandleScope` is three words that its constructor writes where the object is, on the stack or (Node-API's) on the heap: the
isolate, and the `next` and `limit` there were before (V8 3.14 to 13, include/v8-local-handle.h: isolate_, prev_next_, prev_limit_).
`limit` is the end of the block that `next` is in, or equals `next` (a sealed scope), or both are 0 (no scope before). V8's own scopes
are often taken to pieces by the compiler: the code of the function tells in which registers and stack slots it keeps `next` and
`limit`, call frame information what these hold in its frame. V8's generated code that calls an API function (version 12 on) keeps them
in registers as well.

Words that look so may be left over from scopes that have closed. A frame whose function's code neither calls the constructor nor
touches the isolate's level opens no scope. Scopes nest: going outward along the stack, what was `next` never grows. The longest chain
of candidates for which that holds is taken.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from findleaks.disasm.functions import instructions_at, resolve_stub
from findleaks.disasm.registers import CALLEE_SAVED, RBP, RIP, RSP
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted, UnreadableMemory
from findleaks.runtimes.v8.isolates import Isolate
from findleaks.runtimes.v8.layout import OPENERS, Layout, first
from findleaks.target.base import Symbol, Target, Thread
from findleaks.target.ranges import holding, nonzero_pieces
from findleaks.unwind.frames import Frame, FrameRegisters, Trace, Unwinder

LONGEST = 1 << 17
"""Bytes of a function's code that are looked at."""

MOST_STACK = 64 << 20
"""Bytes of a stack that are searched."""

DWARF = (0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15)
"""DWARF's number of the register with this number in instructions (the same, figure 3.36)."""


class Candidate(NamedTuple):
    """What looks like an open scope: `before` handles had been made when it was opened. It is at `address`, in the frame of this
    number; -1 on the heap."""

    address: int
    before: int
    certain: bool  # the isolate is beside the two words, in a frame whose function can open scopes
    frame: int = 0


@dataclass(frozen=True)
class Scope:
    """An open scope: `handles` were made in it and in no scope nearer. `frame` is the one that opened it, None on the heap and where the
    stack could not be followed so far. `inside` are the frames that run in it and in no scope nearer, the outermost first; of a scope
    on the heap, those that may have opened it."""

    address: int
    handles: int
    frame: Optional[Frame]
    thread: Optional[int]
    heap: bool = False
    inside: tuple[Frame, ...] = ()


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


def scopes(target: Target, engine: Engine, unwinder: Unwinder, layout: Layout, isolate: Isolate) -> list[Scope]:
    """The open scopes, innermost first. Handles older than the outermost scope found are counted to a scope without a frame.
    Interrupted when the user asked to stop."""
    blocks = _Blocks(isolate, 8 * layout.handles)
    openers = Openers(target, layout, unwinder)
    heap = [one for one in _on_the_heap(target, engine, isolate, blocks) if one.before <= isolate.handles]
    found: list[Scope] = []
    last = isolate.handles
    for thread in isolate.threads:
        kept: list[FrameRegisters] = []
        trace = unwinder.trace_with_registers(thread, kept)
        frames = trace.frames
        stack = Stack(target, thread, trace, kept)
        likely = list(openers.certain(stack, isolate, blocks))
        open_ = chain(likely, last)
        if len(open_) + len(heap) < isolate.level:
            open_ = chain([*likely, *openers.pairs(stack, isolate, blocks)], last)
        if layout.counts:
            open_ = fitting(open_, isolate.level - len(heap))
        # Of scopes with nothing between them that on the heap is the inner one: functions open them that run in a frame's scope.
        every = sorted([*heap, *open_], key=lambda one: -one.before)
        nearest = 0
        for at, one in enumerate(every):
            outer = next((other.frame for other in every[at:] if other.frame >= 0), len(frames))
            inside = tuple(reversed(frames[nearest:outer]))
            opener = frames[outer] if one.frame >= 0 and not stack.beyond(outer) else None
            found.append(Scope(one.address, last - one.before, opener, thread.tid, one.frame < 0, inside))
            last = one.before
            nearest = max(one.frame, nearest)
        heap = []
    if last:
        found.append(Scope(0, last, None, None))
    return found


def _on_the_heap(target: Target, engine: Engine, isolate: Isolate, blocks: _Blocks) -> Iterator[Candidate]:
    """Whole scopes in writable memory that is no thread's stack."""
    stacks = sorted(thread.sp for thread in target.threads())
    seen: set[int] = set()
    for region in target.regions():
        if not (region.readable and region.writable and region.private) or bisect_left(stacks, region.start) < bisect_left(
            stacks, region.end
        ):
            continue
        for piece in nonzero_pieces(target, region.start, region.end):
            if target.interrupted():
                raise Interrupted
            for address in engine.search(piece, isolate.address, isolate.address + 1):
                try:
                    before = blocks.place(target.word(address + 8), target.word(address + 16))
                except UnreadableMemory:
                    continue
                if before and before not in seen:  # two words of 0 stand behind anything
                    seen.add(before)
                    yield Candidate(address, before, True, -1)


class Stack:
    """A thread's frames, with what its registers and stack words hold in each."""

    def __init__(self, target: Target, thread: Thread, trace: Trace, kept: Sequence[FrameRegisters]) -> None:
        self.frames, self.kept, self.cut = trace.frames, kept, bool(trace.end)
        self.start = thread.sp & ~7
        self.words: Sequence[int] = ()
        region = holding(target.regions(), thread.sp)
        if region is not None:
            end = min(region.end, self.start + MOST_STACK)
            try:
                self.words = target.arch.unpack(target.read(self.start, (end - self.start) & ~7))
            except UnreadableMemory:
                pass

    def beyond(self, number: int) -> bool:
        """Whether the frame is the last one that could be reached: what is farther out seems to be part of it."""
        return self.cut and number == len(self.frames) - 1

    def span(self, number: int) -> range:
        """The frame's words, as indices: from its stack pointer to that of its caller."""
        first = (self.frames[number].sp - self.start) // 8
        last = (self.frames[number + 1].sp - self.start) // 8 if number + 1 < len(self.frames) else len(self.words)
        return range(max(first, 0), min(last, len(self.words)))

    def at(self, number: int, place: Place) -> Optional[int]:
        """What a function keeps there, in its frame of this number."""
        kept = self.kept[number]
        if place.slot is None:
            dwarf = DWARF[place.register]
            return kept.registers.get(dwarf) if kept.own is None or dwarf in kept.own else None
        base = self.frames[number].sp if place.register == RSP else kept.registers.get(DWARF[RBP], 0)
        index = base + place.slot - self.start
        return self.words[index // 8] if index % 8 == 0 and 0 <= index // 8 < len(self.words) else None


class Place(NamedTuple):
    """A register, or the word at `slot` bytes from where it points (the stack pointer, the frame pointer)."""

    register: int
    slot: Optional[int] = None


@dataclass
class Opening:
    """Where a function that opens scopes keeps what was `next` and `limit`, as far as its code tells."""

    next: set[Place] = field(default_factory=set)
    limit: set[Place] = field(default_factory=set)


ANYWHERE = Opening({Place(register) for register in CALLEE_SAVED}, {Place(register) for register in CALLEE_SAVED})
"""Of generated code, which has no symbol."""

UNTOLD = Opening()
"""Of a library's function that has no symbol: whether it opens scopes at all is not known."""


class Openers:
    """Which functions can open a scope, by their code; each is looked at once."""

    def __init__(self, target: Target, layout: Layout, unwinder: Unwinder) -> None:
        self._target, self._layout, self._unwinder = target, layout, unwinder
        self._known: dict[int, Optional[Opening]] = {}
        self._calls: dict[int, bool] = {}
        found = (first(target, names) for names in OPENERS)
        self._constructors = {symbol.address for symbol in found if symbol is not None}

    def certain(self, stack: Stack, isolate: Isolate, blocks: _Blocks) -> Iterator[Candidate]:
        """Whole scopes on the stack, and those that a function's code says it keeps in pieces."""
        for number, frame in enumerate(stack.frames):
            opening = UNTOLD if stack.beyond(number) else self.opening(frame)
            if opening is None:
                continue
            told = opening is not UNTOLD
            for at in stack.span(number):
                if stack.words[at] == isolate.address and at + 2 < len(stack.words):
                    before = blocks.place(stack.words[at + 1], stack.words[at + 2])
                    if before is not None:
                        yield Candidate(stack.start + 8 * at, before, told, number)
            found = set()
            for one in opening.next:
                for two in opening.limit - {one}:
                    next_, limit = stack.at(number, one), stack.at(number, two)
                    before = blocks.place(next_, limit) if next_ and limit else None
                    if before is not None:
                        found.add(before)
            for before in found:
                yield Candidate(frame.sp, before, False, number)

    def pairs(self, stack: Stack, isolate: Isolate, blocks: _Blocks) -> Iterator[Candidate]:
        """Two words side by side, in either order, that may be the rest of a scope."""
        for number, frame in enumerate(stack.frames):
            if stack.beyond(number) or self.opening(frame) is None:
                continue
            for at in stack.span(number)[:-1]:
                one, two = stack.words[at], stack.words[at + 1]
                if one and two and isolate.address not in stack.words[max(0, at - 2) : at]:
                    before = blocks.place(one, two)
                    before = blocks.place(two, one) if before is None else before
                    if before is not None:
                        yield Candidate(stack.start + 8 * at, before, False, number)

    def opening(self, frame: Frame) -> Optional[Opening]:
        """None where the frame's function surely opens no scope."""
        symbol = self._target.symbolize(frame.call)
        if symbol is None:
            return ANYWHERE if self._unwinder.module(frame.call) is None else UNTOLD
        if symbol.address not in self._known:
            self._known[symbol.address] = self._looks(symbol)
        return self._known[symbol.address]

    def _constructs(self, called: int) -> bool:
        if called not in self._calls:
            self._calls[called] = called in self._constructors or resolve_stub(self._target, called) in self._constructors
        return self._calls[called]

    def _looks(self, symbol: Symbol) -> Optional[Opening]:
        made, opens, end = Opening(), False, symbol.address
        held: dict[int, set[Place]] = {}  # by register: of `next` or of `limit`
        for number, one in enumerate(instructions_at(self._target, symbol.address, min(symbol.size, LONGEST))):
            if not number % 1024 and self._target.interrupted():
                raise Interrupted
            end = one.end
            field_ = one.displacement if one.base not in (RIP, -1, RSP) else None
            called = one.target if one.name == "call" else None
            opens |= field_ == self._layout.level or (called is not None and self._constructs(called))
            if one.loads and field_ in (self._layout.next, self._layout.limit):
                held[one.destination] = made.next if field_ == self._layout.next else made.limit
                _keep(held[one.destination], one.destination)
            elif one.name == "mov" and one.wide and one.source in held:
                if one.destination >= 0:
                    held[one.destination] = held[one.source]
                    _keep(held[one.destination], one.destination)
                elif one.base in (RSP, RBP) and one.scaled < 0 and one.displacement is not None:
                    held[one.source].add(Place(one.base, one.displacement))
            elif one.name in ("mov", "lea", "xor"):
                held.pop(one.destination, None)
            elif one.name == "call":
                held = {register: places for register, places in held.items() if register in CALLEE_SAVED}
        if opens:
            return made
        return ANYWHERE if end < symbol.address + symbol.size else None  # not all of it was understood


def _keep(places: set[Place], register: int) -> None:
    if register in CALLEE_SAVED:
        places.add(Place(register))


def chain(found: Sequence[Candidate], handles: int) -> list[Candidate]:
    """The longest chain of candidates, from the inside out, whose ordinals never grow, one of each ordinal in a frame. Among equally long
    ones that with more certain members. Patience sorting would lose the second wish; chains are short, so each looks back at all."""
    places: dict[tuple[int, int], Candidate] = {}
    for one in found:
        before = places.get((one.frame, one.before))
        if one.before <= handles and (before is None or (one.certain, one.address) > (before.certain, before.address)):
            places[one.frame, one.before] = one
    # In one frame the compiler places objects as it likes.
    ordered = sorted(places.values(), key=lambda one: (one.frame, -one.before))
    best: list[tuple[int, int, int]] = []  # length, certain ones, the one before
    for at, candidate in enumerate(ordered):
        length, certain, inner = 0, 0, -1
        for earlier in range(max(0, at - 512), at):
            if ordered[earlier].before >= candidate.before and best[earlier][:2] > (length, certain):
                length, certain, inner = best[earlier][0], best[earlier][1], earlier
        best.append((length + 1, certain + candidate.certain, inner))
    made: list[Candidate] = []
    at = max(range(len(best)), key=lambda index: best[index][:2], default=-1)
    while at >= 0:
        made.append(ordered[at])
        at = best[at][2]
    return made[::-1]


def fitting(chained: Sequence[Candidate], level: int) -> list[Candidate]:
    """Without what is one too many: the level counts the scopes that are open. Those go first that own nothing and may be left over words,
    the inner of two with the same ordinal, then the inner of two in one frame, whose handles the frame owns either way."""
    made = list(chained)
    for field_ in ("before", "frame"):
        at = 0
        while at + 1 < len(made) and len(made) > max(level, 1):
            if getattr(made[at], field_) == getattr(made[at + 1], field_):
                del made[at]
            else:
                at += 1
    return made


__all__ = ["Candidate", "Scope", "chain", "fitting", "scopes"]
