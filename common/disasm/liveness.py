"""Which registers, and which bytes of the red zone, the code from a place on may read before it overwrites them.

Backward over every path from that place, instruction by instruction. Where a path cannot be followed (an indirect jump, code that
cannot be read or decoded, too much of it) everything may be read on it. Called functions are followed some levels deep; others may
read everything. What happens behind the function's own end is for the caller to say: `Flow.through` is what comes there unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from findleaks.disasm.effects import (
    ALL_GENERAL,
    ALL_VECTORS,
    ALL_ZONE,
    CALLEE_SAVED,
    REGISTERS,
    ZONE,
    ZONE_AT,
    Effect,
    effect,
)
from findleaks.disasm.registers import general
from findleaks.errors import UnreadableMemory
from findleaks.target.base import Range

MOST = 1500
"""Instructions looked at from one place on."""

MOST_IN_ALL = 100_000
"""Instructions decoded of one process: some seconds. What is asked for behind them may read everything."""

DEPTH = 3
"""Calls followed into calls."""

LONGEST = 1 << 14
"""Bytes of a function that is swept as a whole."""

_CHUNK = 256
_NEAR = 1 << 20  # bytes from the stack pointer to a frame pointer of the same function, at most
_ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
EVERYTHING = REGISTERS | ALL_ZONE
_NO_NUMBERS: tuple[int | None, ...] = (None,) * 16


class Code(Protocol):
    """The code of a process, and what its unwind information says of it."""

    def read(self, address: int, size: int) -> bytes:
        """What is there of [address, address + size), at least a byte; UnreadableMemory otherwise."""
        ...

    def extent(self, pc: int) -> Range | None:
        """The function at `pc`, or the part of it that lies in one piece; None where it is not known."""
        ...

    def at_top(self, pc: int) -> bool:
        """Whether the return address is what the stack pointer points to there."""
        ...

    def pointer(self, slot: int, jump: Effect) -> int:
        """The address that `jump` (or call) takes from memory, where that does not change any more; else 0."""
        ...

    def arguments_of_last(self, address: int) -> int | None:
        """The number of arguments of a function that never returns; None for all others."""
        ...

    def system_call(self, numbers: tuple[int | None, ...]) -> tuple[int, str]:
        """(registers that a system call takes, "next" or "stop"); `numbers` are in the general registers, None where that is not known."""
        ...


class Flow(NamedTuple):
    """What is read from a place on, and what comes to the function's end unchanged; masks of effects.py."""

    use: int
    through: int


UNKNOWN = Flow(EVERYTHING, REGISTERS)


class _Exhausted(Exception):
    """MOST_IN_ALL instructions were decoded."""


class _State(NamedTuple):
    """On the way to an instruction: rsp and rbp less rsp at the start (None: unknown), the numbers in general registers as far as they are
    known, and whether something was written where the return address would be."""

    sp: int | None
    bp: int | None
    numbers: tuple[int | None, ...]
    topped: bool


class _Node(NamedTuple):
    reads: int
    kills: int
    after: tuple[int, ...]
    leaves: bool  # it is the function's end


class Liveness:
    """Keeps what it decoded, and its answers. `capstone` is the module."""

    def __init__(self, code: Code, capstone: ModuleType) -> None:
        self._code = code
        self._decoder: Any = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        self._decoder.detail = True
        self._effects: dict[int, Effect] = {}
        self._flows: dict[tuple[int, int | None, int, bool, int], Flow] = {}
        self._clobbers: dict[int, int] = {}
        self._sweeps: dict[int, list[Effect] | None] = {}
        self._below: dict[tuple[int, int | None], str] = {}
        self._left = MOST
        self._left_in_all = MOST_IN_ALL

    @property
    def exhausted(self) -> bool:
        """Whether some answers are "everything", because too much code would have had to be decoded."""
        return self._left_in_all < 0

    def at(self, pc: int, bp: int | None = None, vectors: bool = True, rax: int = -1) -> Flow:
        """From `pc` on. `bp` is rbp less rsp there, None if they have nothing to do with each other; `rax` the number in rax, if that
        matters. Without `vectors` it is known that no call from here takes anything in a vector register."""
        self._left = MOST
        try:
            return self._flow(pc, bp, DEPTH, vectors, rax)
        except _Exhausted:
            return UNKNOWN

    def clobbered(self, pc: int) -> int:
        """The registers that the function at `pc` overwrites somewhere: a caller, even one compiled together with it, keeps nothing in
        them. (gcc -fipa-ra lets it keep something in those that it knows to stay.)"""
        try:
            return self._clobbered(pc, 2)
        except _Exhausted:
            return 0

    def _clobbered(self, pc: int, depth: int) -> int:
        extent = self._code.extent(pc)
        if extent is None:
            return 0
        if extent.start not in self._clobbers:
            self._clobbers[extent.start] = 0
            found = kept = 0
            for one in self._sweep(extent):
                found |= one.kills
                if any(memory.base == "rsp" and memory.offset in (0, -8) and abs(one.moved or 0) == 8 for memory in one.memory):
                    kept |= one.kills | one.reads  # pushed or popped: maybe to be restored
                if one.flow == "call":
                    target = one.target
                    if not target:
                        found = REGISTERS
                    elif depth and self._code.arguments_of_last(target) is None:
                        found |= self._clobbered(target, depth - 1)
            self._clobbers[extent.start] = found & ~kept & ~CALLEE_SAVED
        return self._clobbers[extent.start]

    def below(self, pc: int, bp: int | None) -> str:
        """How the function at `pc` uses memory below its stack pointer: "never", "named" (only instructions that name their place on the
        stack do) or "pointed to" (addresses of it may be anywhere)."""
        extent = self._code.extent(pc)
        if extent is None:
            return "pointed to"
        if extent.start not in self._sweeps:
            try:
                effects = list(self._sweep(extent))
            except _Exhausted:
                effects = []
            whole = bool(effects) and effects[-1].address + effects[-1].size >= extent.end
            self._sweeps[extent.start] = [one for one in effects if one.memory or one.copies] if whole else None
        key = extent.start, bp
        if key not in self._below:
            self._below[key] = _use_of_zone(self._sweeps[extent.start], bp)
        return self._below[key]

    def _flow(self, pc: int, bp: int | None, depth: int, vectors: bool, rax: int = -1) -> Flow:
        key = pc, bp, depth, vectors, rax
        if key not in self._flows:
            self._flows[key] = UNKNOWN  # while it is being found out: for functions that call themselves
            self._flows[key] = self._solved(pc, bp, depth, vectors, rax)
        return self._flows[key]

    def _solved(self, pc: int, bp: int | None, depth: int, vectors: bool, rax: int) -> Flow:
        states: dict[int, _State] = {}
        nodes: dict[int, _Node] = {}
        todo = [(pc, _State(0, bp, (rax if rax >= 0 else None, *_NO_NUMBERS[1:]), False))]
        while todo:
            address, state = todo.pop()
            known = states.get(address)
            merged = state if known is None else _merged(known, state)
            if merged == known:
                continue
            states[address] = merged
            one = self._effect(address)
            if one is None:
                nodes[address] = _Node(EVERYTHING, 0, (), False)
                continue
            node = nodes[address] = self._node(one, merged, depth, vectors)
            following = _followed(one, merged)
            todo += [(after, following) for after in node.after]
        use = dict.fromkeys(nodes, 0)
        through = dict.fromkeys(nodes, 0)
        order = sorted(nodes, reverse=True)
        changed = True
        while changed:
            changed = False
            for address in order:
                node = nodes[address]
                out, end = 0, REGISTERS if node.leaves else 0
                for after in node.after:
                    out |= use[after]
                    end |= through[after]
                out, end = node.reads | (out & ~node.kills), end & ~node.kills
                if out != use[address] or end != through[address]:
                    use[address], through[address], changed = out, end, True
        return Flow(use[pc], through[pc])

    def _node(self, one: Effect, state: _State, depth: int, vectors: bool) -> _Node:
        after = one.address + one.size
        reads, kills = one.reads, one.kills
        zone_read, zone_written = _zones(one, state)
        reads, kills = reads | zone_read, kills | zone_written
        if one.flow == "next":
            return _Node(reads, kills, (after,), False)
        if one.flow == "branch":
            return _Node(reads, kills, (after, one.target), False)
        if one.flow == "jump":
            target = one.target or self._code.pointer(one.slot, one)
            return _Node(reads, kills, (target,), False) if target else _Node(EVERYTHING, 0, (), False)
        if one.flow == "call":
            return self._call(one, reads, kills, state, depth, vectors)
        if one.flow == "return":
            if state.topped or not self._code.at_top(one.address):
                return _Node(EVERYTHING, 0, (), False)
            return _Node(reads, kills | ALL_ZONE, (), True)
        if one.flow == "system":
            taken, then = self._code.system_call(state.numbers)
            changed = general("rax", "rcx", "r11")
            return _Node(taken | general("rax"), changed, (after,) if then == "next" else (), False)
        return _Node(0, 0, (), False) if one.flow == "stop" else _Node(EVERYTHING, 0, (), False)

    def _call(self, one: Effect, reads: int, kills: int, state: _State, depth: int, vectors: bool) -> _Node:
        after = one.address + one.size
        zone = ALL_ZONE if state.sp is None else ALL_ZONE & ~_zone(-ZONE, ZONE + state.sp) if state.sp > -ZONE else ALL_ZONE
        target = one.target or (self._code.pointer(one.slot, one) if one.slot else 0)
        arguments = self._code.arguments_of_last(target) if target else None
        if arguments is not None:
            return _Node(reads | general(*_ARGUMENTS[:arguments]) | zone, 0, (), False)
        found = UNKNOWN
        if target and depth and self._code.extent(target) is not None:
            found = self._flow(target, None, depth - 1, vectors)
        use = found.use & REGISTERS
        if found.use & REGISTERS == REGISTERS and not vectors:
            use &= ~ALL_VECTORS
        return _Node(reads | use | zone, kills | (REGISTERS & ~found.through) | (ALL_ZONE & ~zone), (after,), False)

    def _effect(self, address: int) -> Effect | None:
        """The instruction there; None where there is none, no function is known, or enough has been looked at."""
        self._left -= 1
        if self._left < 0:
            return None
        if address not in self._effects:
            extent = self._code.extent(address)
            if extent is not None:
                self._decode(address, min(extent.end, address + _CHUNK))
        return self._effects.get(address)

    def _decode(self, start: int, end: int) -> None:
        """Note the instructions from `start` on that lie before `end`, up to what is none, or is known already. _Exhausted if it is too
        much in all."""
        try:
            code = self._code.read(start, end - start)
        except UnreadableMemory:
            return
        for insn in self._decoder.disasm(code, start):
            if insn.address in self._effects:
                return
            self._left_in_all -= 1
            if self._left_in_all < 0:
                raise _Exhausted
            self._effects[insn.address] = effect(insn)

    def _sweep(self, extent: Range) -> Iterator[Effect]:
        """All instructions of a function in the order of their addresses, LONGEST bytes at most."""
        at, end = extent.start, min(extent.end, extent.start + LONGEST)
        while at < end:
            if at not in self._effects:
                self._decode(at, min(end, at + 16 * _CHUNK))
            one = self._effects.get(at)
            if one is None:
                return
            yield one
            at = one.address + one.size


def _merged(one: _State, other: _State) -> _State:
    return _State(
        one.sp if one.sp == other.sp else None,
        one.bp if one.bp == other.bp else None,
        one.numbers if one.numbers == other.numbers else tuple(a if a == b else None for a, b in zip(one.numbers, other.numbers)),
        one.topped or other.topped,
    )


def _followed(one: Effect, state: _State) -> _State:
    """The state behind an instruction."""
    sp = state.sp
    if one.moved is None:
        sp = None if one.from_rbp is None or state.bp is None else state.bp + one.from_rbp
    elif sp is not None:
        sp += one.moved
    bp = None if one.writes_rbp else state.bp
    numbers = state.numbers
    if one.flow in ("call", "system"):
        numbers = _NO_NUMBERS if one.flow == "call" else tuple(None if at in (0, 1, 11) else number for at, number in enumerate(numbers))
    elif (one.changed | one.kills) & ALL_GENERAL:
        gone = one.changed | one.kills
        value = one.constant if one.constant is not None else numbers[one.copied] if one.copied >= 0 else None
        numbers = tuple(value if one.kills >> at & 1 else None if gone >> at & 1 else number for at, number in enumerate(numbers))
    pushed = any(m.base == "rsp" and m.written and m.exact and (m.offset == 0 or one.moved == -8) for m in one.memory)
    topped = pushed or (state.topped and one.moved == 0 and one.flow != "call")
    return _State(sp, bp, numbers, topped)


def _zone(offset: int, size: int) -> int:
    """The bits for [offset, offset + size) from the stack pointer, as far as that is the red zone."""
    low, high = max(offset, -ZONE) + ZONE, min(offset + size, 0) + ZONE
    return ((1 << high) - (1 << low)) << ZONE_AT if low < high else 0


def _zones(one: Effect, state: _State) -> tuple[int, int]:
    """What an instruction reads and overwrites of the red zone."""
    read = written = 0
    for operand in one.memory:
        start = state.sp if operand.base == "rsp" else state.bp
        if start is None or not operand.exact:
            read |= ALL_ZONE if operand.base == "rsp" or start is not None else 0
        elif operand.written:
            written |= _zone(start + operand.offset, operand.size)
        elif operand.read:
            read |= _zone(start + operand.offset, max(operand.size, 1))
        elif start + operand.offset < 0:
            read |= ALL_ZONE  # an address is made
    return read, written


def _use_of_zone(effects: list[Effect] | None, bp: int | None) -> str:
    """See Liveness.below; of a function's instructions that have to do with the stack, None: they are not known."""
    if effects is None:
        return "pointed to"
    near = bp is not None and -ZONE <= bp < _NEAR
    named = False
    for one in effects:
        if "rsp" in one.copies or (near and "rbp" in one.copies):
            return "pointed to"
        for operand in one.memory:
            if operand.base == "rbp" and not near:
                continue
            offset = operand.offset + (bp or 0 if operand.base == "rbp" else 0)
            pushed = operand.written and offset == -8 == one.moved
            if (offset < 0 and not pushed) or not operand.exact:
                if not operand.read and not operand.written:
                    return "pointed to"
                named = True
    return "named" if named else "never"
