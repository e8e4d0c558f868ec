"""Liveness analysis: finds the registers and red zone bytes that code may read from a pc on.

A register is live if some path from the pc to the end of the function reads it before overwriting
it. If a path cannot be followed (an indirect jump, code that cannot be read or decoded, too many
instructions), it is assumed to read everything. Functions that are called more than DEPTH levels
deep are also assumed to read everything. Reads after the function returns depend on the caller:
`Flow.through` is the set of registers that reach the end unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from types import ModuleType
from typing import Any, Protocol

from findleaks.disasm.effects import ALL_ZONE, REGISTERS, X86_64, ZONE, ZONE_AT
from findleaks.disasm.machine import Effect, Machine
from findleaks.errors import UnreadableMemory
from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple

# Maximum number of instructions visited for one query, including called functions
MAX_INSTRUCTIONS = 1500
# Maximum number of instructions decoded of one process, which takes seconds. After that, everything
# counts as read
MAX_IN_ALL = 100_000
DEPTH = 3  # maximum number of levels of calls that are followed
MAX_FUNCTION_BYTES = 1 << 14  # maximum number of bytes of a whole function that are decoded
_CHUNK = 256
# Maximum number of bytes from the stack pointer to the frame pointer of the same function
_NEAR = 1 << 20
_MASK = (1 << 64) - 1
_LONGEST = 15  # maximum number of bytes of an instruction of any machine
_ENDBR = 4  # bytes of endbr64, with which a stub may begin


class Code(Protocol):
    """The code of a process, with its call frame information."""

    def read(self, address: int, size: int) -> bytes:
        """Return the readable part of [address, address + size), at least one byte. Raises
        UnreadableMemory."""

    def extent(self, pc: int) -> Range | None:
        """Return the range of the function at `pc`, or of its contiguous part; None if unknown."""

    def at_top(self, pc: int) -> bool:
        """Whether the stack pointer points to the return address when the instruction at `pc`
        begins."""

    def pointer(self, slot: int, one: Effect) -> int:
        """Return the code address that `one` loads from `slot`, if the slot cannot change any more;
        otherwise 0."""

    def arguments_of_last(self, address: int) -> int | None:
        """Return the number of arguments of a function that never returns. None for other
        functions."""

    def system_call(self, numbers: tuple[int | None, ...]) -> tuple[int, str]:
        """Return two values: the mask of the registers that a system call takes as arguments, and
        "next" if the call returns, otherwise "stop". `numbers` are the contents of the general
        registers (None: unknown)."""


class Flow(NamedTuple):
    """Masks of registers: `use` may be read from a pc on, `through` reaches the end unchanged."""

    use: int
    through: int


UNKNOWN = Flow(REGISTERS | ALL_ZONE, REGISTERS)
"""The result for x86-64 if nothing is known about the code."""


class _Exhausted(Exception):
    """MAX_IN_ALL instructions were decoded."""


class _State(NamedTuple):
    """State before an instruction. `sp` and `bp` are rsp and rbp relative to the initial rsp (None:
    unknown). `numbers` are the known contents of general registers. `topped`: the location of the
    return address (top of the stack, or a register) was overwritten."""

    sp: int | None
    bp: int | None
    numbers: tuple[int | None, ...]
    topped: bool


class _Node(NamedTuple):
    reads: int
    kills: int
    after: tuple[int, ...] = ()
    leaves: bool = False  # the instruction returns from the function


class Liveness:
    """Liveness queries on the code of one process, with cached answers. `capstone` is the
    module."""

    def __init__(self, code: Code, capstone: ModuleType, machine: Machine = X86_64) -> None:
        self._code, self._machine = code, machine
        self._decoder: Any = capstone.Cs(*(getattr(capstone, name) for name in machine.decoder))
        self._decoder.detail = True
        self._everything = machine.registers | ALL_ZONE
        self._unknown = Flow(self._everything, machine.registers)
        self._all_general = machine.all_general
        self._no_numbers: tuple[int | None, ...] = (None,) * len(machine.general)
        self._effects: dict[int, Effect] = {}
        self._flows: dict[tuple[int, int | None, int, bool, tuple[tuple[int, int], ...]], Flow] = {}
        self._clobbers: dict[int, int] = {}
        self._sweeps: dict[int, list[Effect] | None] = {}
        self._below: dict[tuple[int, int | None], str] = {}
        self._left = MAX_INSTRUCTIONS
        self._left_in_all = MAX_IN_ALL

    @property
    def exhausted(self) -> bool:
        """Whether some answers are "everything" because the limit MAX_IN_ALL was reached."""
        return self._left_in_all < 0

    def at(self, pc: int, bp: int | None = None, vectors: bool = True, known: tuple[tuple[int, int], ...] = ()) -> Flow:
        """Return the flow from `pc` on. `bp` is rbp relative to rsp at `pc`, or None if they are
        unrelated. `known` has (register number, contents) of registers that determine arguments of
        system calls. If `vectors` is False, it is known that no call after `pc` takes an argument
        in a register of Machine.not_taken (vector registers and some others)."""
        self._left = MAX_INSTRUCTIONS
        try:
            return self._flow(pc, bp, DEPTH, vectors, known)
        except _Exhausted:
            return self._unknown

    def find_clobbered(self, pc: int) -> int:
        """Return the registers that the function at `pc` overwrites somewhere. No caller keeps
        values in these registers across the call, even if both were compiled together. (With gcc
        -fipa-ra, a caller may keep values in caller-saved registers that the function does not
        overwrite.)"""
        try:
            return self._find_clobbered(pc, 2)
        except _Exhausted:
            return 0

    def _find_clobbered(self, pc: int, depth: int) -> int:
        extent = self._code.extent(pc)
        if extent is None:
            return 0
        if extent.start not in self._clobbers:
            self._clobbers[extent.start] = 0
            found = kept = 0
            for one in self._sweep(extent):
                found |= one.kills
                kept |= one.saved
                if one.flow == "call":
                    target = one.target
                    if not target:
                        found = self._machine.registers
                    elif depth and self._code.arguments_of_last(target) is None:
                        found |= self._find_clobbered(target, depth - 1)
            self._clobbers[extent.start] = found & ~kept & ~self._machine.callee_saved
        return self._clobbers[extent.start]

    def instructions(self, extent: Range, most: int = MAX_FUNCTION_BYTES) -> list[Effect] | None:
        """Return all instructions of a function by address; None if some are unknown, or if there
        are more than `most`."""
        if extent.end - extent.start > most * _LONGEST:
            return None
        try:
            effects = list(islice(self._sweep(extent), most + 1))
        except _Exhausted:
            return None
        whole = bool(effects) and effects[-1].address + effects[-1].size >= extent.end
        return effects if whole and len(effects) <= most else None

    def destination(self, one: Effect) -> int:
        """Return the destination of a jump or call. If it is a PLT stub, return the function to
        which the stub jumps. 0 if unknown."""
        target = one.target or (self._code.pointer(one.slot, one) if one.slot else 0)
        self._left = MAX_INSTRUCTIONS
        try:
            first = self._effect(target) if target else None
            if first is not None and first.flow == "next" and first.size == _ENDBR and not first.changed:
                first = self._effect(target + first.size)
        except _Exhausted:
            return 0
        return self._code.pointer(first.slot, first) if first is not None and first.flow == "jump" and first.slot else target

    def below(self, pc: int, bp: int | None) -> str:
        """Return how the function at `pc` uses memory below its stack pointer: "never"; "named", if
        only rsp- or rbp-relative operands access it; or "pointed to", if its address may have been
        copied."""
        extent = self._code.extent(pc)
        if extent is None:
            return "pointed to"
        if extent.start not in self._sweeps:
            effects = self.instructions(extent)
            self._sweeps[extent.start] = None if effects is None else [one for one in effects if one.memory or one.copies]
        key = extent.start, bp
        if key not in self._below:
            self._below[key] = _use_of_zone(self._sweeps[extent.start], bp)
        return self._below[key]

    def _flow(self, pc: int, bp: int | None, depth: int, vectors: bool, known: tuple[tuple[int, int], ...] = ()) -> Flow:
        key = pc, bp, depth, vectors, known
        if key not in self._flows:
            # Valid during the analysis, for functions that call themselves
            self._flows[key] = self._unknown
            self._flows[key] = self._solve(pc, bp, depth, vectors, dict(known))
        return self._flows[key]

    def _solve(self, pc: int, bp: int | None, depth: int, vectors: bool, known: dict[int, int]) -> Flow:
        states: dict[int, _State] = {}
        nodes: dict[int, _Node] = {}
        todo = [(pc, _State(0, bp, tuple(map(known.get, range(len(self._no_numbers)))), False))]
        while todo:
            address, state = todo.pop()
            before = states.get(address)
            merged = state if before is None else _merge_states(before, state)
            if merged == before:
                continue
            states[address] = merged
            one = self._effect(address)
            if one is None:
                nodes[address] = _Node(self._everything, 0)
                continue
            node = nodes[address] = self._node(one, merged, depth, vectors)
            following = self._step(one, merged)
            todo += [(after, following) for after in node.after]
        use = dict.fromkeys(nodes, 0)
        through = dict.fromkeys(nodes, 0)
        order = sorted(nodes, reverse=True)
        changed = True
        while changed:
            changed = False
            for address in order:
                node = nodes[address]
                out, end = 0, self._machine.registers if node.leaves else 0
                for after in node.after:
                    out |= use[after]
                    end |= through[after]
                out, end = node.reads | (out & ~node.kills), end & ~node.kills
                if out != use[address] or end != through[address]:
                    use[address], through[address], changed = out, end, True
        return Flow(use[pc], through[pc])

    def _node(self, one: Effect, state: _State, depth: int, vectors: bool) -> _Node:
        after = one.address + one.size
        zone_read, zone_written = _zones(one, state)
        reads, kills = one.reads | zone_read, one.kills | zone_written
        if one.flow in ("next", "branch"):
            return _Node(reads, kills, (after,) if one.flow == "next" else (after, one.target))
        if one.flow == "call":
            return self._call(one, reads, kills, state, depth, vectors)
        if one.flow == "system":
            taken, then = self._code.system_call(state.numbers)
            calls = self._machine.calls
            return _Node(taken | self._machine.mask(calls.number), calls.overwritten, (after,) if then == "next" else ())
        if one.flow == "return" and not state.topped and self._code.at_top(one.address):
            return _Node(reads, kills | ALL_ZONE, (), True)
        target = self._target(one, state) if one.flow == "jump" else 0
        if target:
            return _Node(reads, kills, (target,))
        return _Node(0 if one.flow == "stop" else self._everything, 0)

    def _target(self, one: Effect, state: _State) -> int:
        """Return the destination of a jump or call, 0 if unknown."""
        if one.via >= 0:
            return state.numbers[one.via] or 0
        return one.target or (self._code.pointer(one.slot, one) if one.slot else 0)

    def _call(self, one: Effect, reads: int, kills: int, state: _State, depth: int, vectors: bool) -> _Node:
        after = one.address + one.size
        zone = ALL_ZONE & ~_zone(-ZONE, ZONE + state.sp) if state.sp is not None else ALL_ZONE
        target = self._target(one, state)
        machine = self._machine
        arguments = self._code.arguments_of_last(target) if target else None
        if arguments is not None:
            return _Node(reads | machine.mask(*machine.arguments[:arguments]) | zone, 0)
        found = self._unknown
        if target and depth and self._code.extent(target) is not None:
            found = self._flow(target, None, depth - 1, vectors)
        use = found.use & machine.registers
        if use & machine.if_unknown == machine.if_unknown and not vectors:
            use &= ~machine.not_taken
        use &= ~machine.link
        return _Node(reads | use | zone, kills | (machine.registers & ~found.through) | (ALL_ZONE & ~zone), (after,))

    def _step(self, one: Effect, state: _State) -> _State:
        """Return the state after an instruction."""
        sp = state.sp
        if one.moved is None:
            sp = None if one.from_rbp is None or state.bp is None else state.bp + one.from_rbp
        elif sp is not None:
            sp += one.moved
        bp = None if one.writes_rbp else state.bp
        numbers = state.numbers
        if one.flow == "call":
            numbers = self._no_numbers
        elif one.flow == "system":
            gone = self._machine.calls.overwritten
            numbers = tuple(None if gone >> at & 1 else number for at, number in enumerate(numbers))
        elif (one.changed | one.kills) & self._all_general:
            gone = one.changed | one.kills
            value = self._value(one, numbers)
            numbers = tuple(value if one.kills >> at & 1 else None if gone >> at & 1 else number for at, number in enumerate(numbers))
        pushed = any(m.base == "rsp" and m.written and m.exact and (m.offset == 0 or one.moved == -8) for m in one.memory)
        topped = pushed or (state.topped and one.moved == 0 and one.flow != "call")
        if one.redirects is not None:
            topped = one.redirects
        return _State(sp, bp, numbers, topped)

    def _value(self, one: Effect, numbers: tuple[int | None, ...]) -> int | None:
        """Return the number that an instruction sets a register to; None if unknown."""
        if one.copied < 0:
            return one.constant
        base = numbers[one.copied]
        if base is None or one.constant is None:
            return base
        return (self._code.pointer(base + one.constant & _MASK, one) or None) if one.loads else base + one.constant & _MASK

    def _effect(self, address: int) -> Effect | None:
        """Return the effect of the instruction at an address. None if the instruction cannot be
        decoded, is in no known function, or exceeds MAX_INSTRUCTIONS."""
        self._left -= 1
        if self._left < 0:
            return None
        if address not in self._effects:
            extent = self._code.extent(address)
            if extent is not None:
                self._decode(address, min(extent.end, address + _CHUNK))
        return self._effects.get(address)

    def _decode(self, start: int, end: int) -> None:
        """Cache the effects of [start, end), up to an invalid or an already cached instruction. May
        raise _Exhausted."""
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
            self._effects[insn.address] = self._machine.effect(insn)

    def _sweep(self, extent: Range) -> Iterator[Effect]:
        """Yield all instructions of a function by address, at most MAX_FUNCTION_BYTES bytes."""
        at, end = extent.start, min(extent.end, extent.start + MAX_FUNCTION_BYTES)
        while at < end:
            if at not in self._effects:
                self._decode(at, min(end, at + 16 * _CHUNK))
            one = self._effects.get(at)
            if one is None:
                return
            yield one
            at = one.address + one.size


def _merge_states(one: _State, other: _State) -> _State:
    return _State(
        one.sp if one.sp == other.sp else None,
        one.bp if one.bp == other.bp else None,
        one.numbers if one.numbers == other.numbers else tuple(a if a == b else None for a, b in zip(one.numbers, other.numbers)),
        one.topped or other.topped,
    )


def _zone(offset: int, size: int) -> int:
    """Return the mask of the red zone bytes in [offset, offset + size), relative to the stack
    pointer."""
    low, high = max(offset, -ZONE) + ZONE, min(offset + size, 0) + ZONE
    return ((1 << high) - (1 << low)) << ZONE_AT if low < high else 0


def _zones(one: Effect, state: _State) -> tuple[int, int]:
    """Return (mask of red zone bytes that an instruction reads, mask that it overwrites)."""
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
            read |= ALL_ZONE  # the address of the red zone is taken
    return read, written


def _use_of_zone(effects: list[Effect] | None, bp: int | None) -> str:
    """See Liveness.below. `effects` are the instructions that use the stack (None: unknown)."""
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
