"""Find open handle scopes: which frame opened each, and how many handles it frees when it closes.

`v8::HandleScope` is three words that its constructor writes into the object, on the stack or
(Node-API's) on the heap: the isolate, and the previous `next` and `limit` (V8 3.14 to 13,
include/v8-local-handle.h: isolate_, prev_next_, prev_limit_). `limit` is the end of the block that
contains `next`, or equals `next` (a sealed scope), or both are 0 (no scope before).

The compiler often splits V8's own scopes into words. The function's code shows in which registers
and stack slots it keeps `next` and `limit`; call frame information gives their values in its frame.
V8's generated code that calls an API function (version 12 and later) also keeps them in registers.

Such words may remain from closed scopes. A frame opens no scope if its function's code neither
calls the constructor nor accesses the isolate's level. Scopes nest: from inner to outer frames the
saved `next` never grows. The longest chain of candidates that satisfies this rule is reported."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.disasm.functions import instructions_at, resolve_stub
from findleaks.disasm.registers import CALLEE_SAVED, RBP, RIP, RSP
from findleaks.engine.contract import Engine
from findleaks.runtimes.v8.isolates import Isolate
from findleaks.runtimes.v8.layout import OPENERS, Layout, first
from findleaks.target.base import Symbol, Target, Thread
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import nonzero_pieces, region_at
from findleaks.unwind.frames import Frame, FrameRegisters, Trace, Unwinder

LONGEST = 1 << 17  # maximum number of bytes read of a function's code
MAX_STACK = 64 << 20  # maximum number of bytes searched of a stack
DWARF = (0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15)
"""DWARF's register numbers, by the numbers used in instructions (System V ABI for AMD64, figure
3.36)."""


class Candidate(NamedTuple):
    """A possible open scope, opened when `before` handles existed. It is at `address`, in the frame
    with number `frame`; -1 on the heap."""

    address: int
    before: int
    certain: bool  # the isolate is beside the two words, in a frame whose function can open scopes
    frame: int = 0


@dataclass(frozen=True)
class Scope:
    """An open scope, with the number of `handles` created in it and in no inner scope.

    `frame` opened it; None for a scope on the heap, and if unwinding stopped before that frame.
    `inside` are the frames that run in it and in no inner scope, outermost first. For a scope on
    the heap, `inside` are the frames that may have opened it."""

    address: int
    handles: int
    frame: Optional[Frame]
    thread: Optional[int]
    heap: bool = False
    inside: tuple[Frame, ...] = ()


class _Blocks:
    """Maps addresses of handles to ordinals."""

    def __init__(self, isolate: Isolate, size: int) -> None:
        self._size = size
        self._numbers = {block: number for number, block in enumerate(isolate.blocks)}
        self._starts = sorted(self._numbers)

    def place(self, next_: int, limit: int) -> Optional[int]:
        """Return the number of handles created before `next_`; None if no scope saves this `next_`
        and `limit`."""
        if not next_ and not limit:
            return 0
        at = bisect_right(self._starts, next_)
        # The end of a full block may also be the start of another block.
        for start in reversed(self._starts[max(at - 2, 0) : at]):
            if next_ <= start + self._size and next_ % 8 == 0 and limit in (start + self._size, next_):
                return self._numbers[start] * (self._size // 8) + (next_ - start) // 8
        return None


def scopes(target: Target, engine: Engine, unwinder: Unwinder, layout: Layout, isolate: Isolate) -> list[Scope]:
    """Return the open scopes, innermost first. Raises Interrupted.

    Handles older than the outermost scope found belong to a scope without a frame in the result."""
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
        # Of equal ordinals, a scope on the heap is the inner one: functions called in a frame's
        # scope open those.
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
    """Yield whole scopes in writable memory outside threads' stacks."""
    memory, stacks = Memory(target), sorted(thread.sp for thread in target.threads())
    seen: set[int] = set()
    for region in target.regions():
        has_stack = bisect_left(stacks, region.start) < bisect_left(stacks, region.end)
        if has_stack or not (region.readable and region.writable and region.private):
            continue
        for piece in interruptible(target, nonzero_pieces(target, region.start, region.end)):
            for address in engine.search(piece, isolate.address, isolate.address + 1):
                words = memory.words(address + 8, 2)
                before = blocks.place(*words) if words is not None else None
                if before and before not in seen:  # two words of 0 may follow anything
                    seen.add(before)
                    yield Candidate(address, before, True, -1)


class Stack:
    """A thread's frames, with the values of registers and stack words in each."""

    def __init__(self, target: Target, thread: Thread, trace: Trace, kept: Sequence[FrameRegisters]) -> None:
        self.frames, self.kept, self.cut = trace.frames, kept, bool(trace.end)
        self.start = thread.sp & ~7
        region = region_at(target.regions(), thread.sp)
        size = min(region.end - self.start, MAX_STACK) if region is not None else 0
        self.words: Sequence[int] = Memory(target).words(self.start, size // 8) or ()

    def beyond(self, number: int) -> bool:
        """Return whether unwinding stopped at this frame, so that outer frames seem to be part of
        it."""
        return self.cut and number == len(self.frames) - 1

    def span(self, number: int) -> range:
        """Return the indices of the frame's words: from its stack pointer to its caller's."""
        first = (self.frames[number].sp - self.start) // 8
        last = (self.frames[number + 1].sp - self.start) // 8 if number + 1 < len(self.frames) else len(self.words)
        return range(max(first, 0), min(last, len(self.words)))

    def at(self, number: int, place: Place) -> Optional[int]:
        """Return the value at `place` in the frame with this number."""
        kept = self.kept[number]
        if place.slot is None:
            dwarf = DWARF[place.register]
            return kept.registers.get(dwarf) if kept.own is None or dwarf in kept.own else None
        base = self.frames[number].sp if place.register == RSP else kept.registers.get(DWARF[RBP], 0)
        index = base + place.slot - self.start
        return self.words[index // 8] if index % 8 == 0 and 0 <= index // 8 < len(self.words) else None


class Place(NamedTuple):
    """A register or, with `slot`, the word `slot` bytes from the address in the register (the stack
    or frame pointer)."""

    register: int
    slot: Optional[int] = None


@dataclass
class Opening:
    """Places where code that opens scopes keeps the previous `next` and `limit`; empty if
    unknown."""

    next: set[Place] = field(default_factory=set)
    limit: set[Place] = field(default_factory=set)


ANYWHERE = Opening({Place(register) for register in CALLEE_SAVED}, {Place(register) for register in CALLEE_SAVED})
"""For generated code, which has no symbol."""

UNKNOWN = Opening()  # for a library's function without a symbol, which may open scopes


class Openers:
    """Determines which functions can open a scope, by their code; analyses each function once."""

    def __init__(self, target: Target, layout: Layout, unwinder: Unwinder) -> None:
        self._target, self._layout, self._unwinder = target, layout, unwinder
        self._known: dict[int, Optional[Opening]] = {}
        self._calls: dict[int, bool] = {}
        found = (first(target, names) for names in OPENERS)
        self._constructors = {symbol.address for symbol in found if symbol is not None}

    def certain(self, stack: Stack, isolate: Isolate, blocks: _Blocks) -> Iterator[Candidate]:
        """Yield whole scopes on the stack, and split ones in the places that the code shows."""
        for number, frame in enumerate(stack.frames):
            opening = UNKNOWN if stack.beyond(number) else self.opening(frame)
            if opening is None:
                continue
            known = opening is not UNKNOWN
            for at in stack.span(number):
                if stack.words[at] == isolate.address and at + 2 < len(stack.words):
                    before = blocks.place(stack.words[at + 1], stack.words[at + 2])
                    if before is not None:
                        yield Candidate(stack.start + 8 * at, before, known, number)
            pairs = ((stack.at(number, one), stack.at(number, two)) for one in opening.next for two in opening.limit - {one})
            for before in {blocks.place(next_, limit) for next_, limit in pairs if next_ and limit}:
                if before is not None:
                    yield Candidate(frame.sp, before, False, number)

    def pairs(self, stack: Stack, isolate: Isolate, blocks: _Blocks) -> Iterator[Candidate]:
        """Yield pairs of adjacent words, in either order, that may be the remains of a scope."""
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
        """Return where the frame's function keeps its scopes; None if it certainly opens none."""
        symbol = self._target.symbolize(frame.call)
        if symbol is None:
            return ANYWHERE if self._unwinder.module(frame.call) is None else UNKNOWN
        if symbol.address not in self._known:
            self._known[symbol.address] = self._looks(symbol)
        return self._known[symbol.address]

    def _constructs(self, called: int) -> bool:
        if called not in self._calls:
            self._calls[called] = called in self._constructors or resolve_stub(self._target, called) in self._constructors
        return self._calls[called]

    def _looks(self, symbol: Symbol) -> Optional[Opening]:
        made, opens, end = Opening(), False, symbol.address
        held: dict[int, set[Place]] = {}  # by register: the places of `next` or of `limit`
        body = instructions_at(self._target, symbol.address, min(symbol.size, LONGEST))
        for one in interruptible(self._target, body, 1024):
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
        # If decoding stopped before the function's end, it may open scopes anywhere.
        return ANYWHERE if end < symbol.address + symbol.size else None


def _keep(places: set[Place], register: int) -> None:
    if register in CALLEE_SAVED:
        places.add(Place(register))


def chain(found: Sequence[Candidate], handles: int) -> list[Candidate]:
    """Return the longest chain of candidates, from the inside out, whose ordinals never grow.

    Each ordinal occurs at most once in a frame. Of equally long chains, the one with more certain
    members is returned. Patience sorting cannot apply that preference. Chains are short, so each
    candidate is compared with all previous ones."""
    places: dict[tuple[int, int], Candidate] = {}
    for one in found:
        before = places.get((one.frame, one.before))
        if one.before <= handles and (before is None or (one.certain, one.address) > (before.certain, before.address)):
            places[one.frame, one.before] = one
    # Within a frame, the compiler places objects in any order.
    ordered = sorted(places.values(), key=lambda one: (one.frame, -one.before))
    best: list[tuple[int, int, int]] = []  # length, certain members, index of the previous one
    for at, candidate in enumerate(ordered):
        inner_ones = (earlier for earlier in range(max(0, at - 512), at) if ordered[earlier].before >= candidate.before)
        inner = max(inner_ones, key=lambda earlier: best[earlier][:2], default=-1)
        length, certain = best[inner][:2] if inner >= 0 else (0, 0)
        best.append((length + 1, certain + candidate.certain, inner))
    made: list[Candidate] = []
    at = max(range(len(best)), key=lambda index: best[index][:2], default=-1)
    while at >= 0:
        made.append(ordered[at])
        at = best[at][2]
    return made[::-1]


def fitting(chained: Sequence[Candidate], level: int) -> list[Candidate]:
    """Return the chain without surplus scopes; `level` is the number of open scopes.

    First remove scopes that own no handles and may be leftover words: the inner one of two with the
    same ordinal. Then remove the inner one of two scopes in a frame: the frame owns its handles in
    any case."""
    made = list(chained)
    for field_ in ("before", "frame"):
        at = 0
        while at + 1 < len(made) and len(made) > max(level, 1):
            if getattr(made[at], field_) == getattr(made[at + 1], field_):
                del made[at]
            else:
                at += 1
    return made
