"""Unwind functions without call frame information, such as those of musl's libc (x86-64).

Every path through a function to its `ret` moves the stack pointer by the same amount. If the start
of the function is known, the code from there to the place is followed. Otherwise the code from the
place to a `ret` is followed. The result counts only if it is an address after a call
instruction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from findleaks.allocators.memory import Memory
from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.disasm.effects import effect
from findleaks.disasm.machine import Effect
from findleaks.disasm.registers import CALLEE_SAVED, GENERAL, RBP, RSP
from findleaks.disasm.x86 import decoder
from findleaks.errors import UnreadableMemory
from findleaks.target.arch import X86_64
from findleaks.target.base import Target
from findleaks.target.ranges import region_at
from findleaks.unwind.frames import CALL_BYTES, CodeStep, StepCode, follows_call
from findleaks.value_classes import NamedTuple

_LONGEST = 15  # bytes of an instruction
_MOST_INSTRUCTIONS = 2000  # instructions that are followed for one frame
_MOST_FRAMES = 32  # frames of one thread that are unwound in this way
_LARGEST = 4096  # bytes from the start of a function to the place


class _Path(NamedTuple):
    """The state at an instruction. `moved`: the stack pointer minus its value at the beginning of
    the path. `slots`: by register, the distance from that value to the word that the function
    restores it from, or saved it to."""

    address: int
    moved: int
    slots: Mapping[int, int]


class _Follower:
    """Follows code to unwind the frames of one thread."""

    def __init__(self, target: Target) -> None:
        self._target, self._memory = target, Memory(target)
        self._numbers = {name: number for number, name in enumerate(target.arch.dwarf_registers)}
        self._frames = 0
        self._decoded: dict[int, Optional[tuple[Any, Effect]]] = {}

    def step(self, pc: int, exact: bool, registers: Mapping[int, int]) -> Optional[CodeStep]:
        """Return the registers of the caller; None if they are not certain. See StepCode."""
        self._frames += 1
        module = region_at(self._target.modules(), pc)
        if self._frames > _MOST_FRAMES or module is None:
            return None
        numbers = {register: self._numbers[GENERAL[register]] for register in CALLEE_SAVED}
        known = {register: registers[number] for register, number in numbers.items() if number in registers}
        sp = registers.get(self._numbers[GENERAL[RSP]])
        if sp is None:
            return None
        try:
            # After a call of a function that does not return, the next function may begin.
            return self._follow_from_start(pc, exact, sp, known) or self._follow_to_return(pc, sp, known)
        except CapstoneMissing:
            return None

    def _follow_to_return(self, pc: int, sp: int, known: Mapping[int, int]) -> Optional[CodeStep]:
        rbp = known.get(RBP)
        paths, seen, left = [_Path(pc, 0, {})], set[int](), _MOST_INSTRUCTIONS
        while paths and left:
            left -= 1
            path = paths.pop()
            found = self._decode(path.address)
            if found is None or path.address in seen:
                continue
            seen.add(path.address)
            insn, one = found
            if one.flow == "return":
                caller = self._caller(sp + path.moved, sp, path.slots, known)
                if caller is not None:
                    return caller
                continue
            moved, slots = path.moved, dict(path.slots)
            if insn.insn_name() == "pop":
                register = decoder().instruction(insn).destination
                slots = {**slots, register: moved} if register in CALLEE_SAVED else slots
            if one.moved is not None:
                moved += one.moved if one.flow != "call" else 0
            elif one.from_rbp is not None and rbp is not None and RBP not in slots:
                moved = rbp + one.from_rbp - sp
                slots = {**slots, RBP: moved - 8} if insn.insn_name() == "leave" else slots
            else:
                continue
            paths += (_Path(address, moved, slots) for address in _find_next(insn, one))
        return None

    def _follow_from_start(self, pc: int, exact: bool, sp: int, known: Mapping[int, int]) -> Optional[CodeStep]:
        place = pc if exact else pc - 1
        symbol = self._target.symbolize(place)
        if symbol is None or not 0 <= place - symbol.address < min(symbol.size, _LARGEST):
            return None
        paths, seen, left = [_Path(symbol.address, 0, {})], set[int](), _MOST_INSTRUCTIONS
        while paths and left:
            left -= 1
            path = paths.pop()
            if path.address == pc:
                entry = sp - path.moved
                # Slots are relative to the stack pointer at the start of the function.
                slots = {register: slot - path.moved for register, slot in path.slots.items()}
                return self._caller(entry, sp, slots, known)
            found = self._decode(path.address)
            if found is None or path.address in seen or found[1].flow == "return":
                continue
            seen.add(path.address)
            insn, one = found
            if one.moved is None:
                continue
            moved = path.moved + (one.moved if one.flow != "call" else 0)
            slots = dict(path.slots)
            if insn.insn_name() == "push":
                register = decoder().instruction(insn).source
                slots = {register: moved, **slots} if register in CALLEE_SAVED else slots
            paths += (_Path(address, moved, slots) for address in _find_next(insn, one))
        return None

    def _caller(self, place: int, sp: int, slots: Mapping[int, int], known: Mapping[int, int]) -> Optional[CodeStep]:
        """Return the caller's registers if the return address is at `place`. `slots`: see _Path,
        relative to `sp`."""
        address = self._memory.word(place) or 0
        region = region_at(self._target.regions(), address)
        if region is None or not region.executable or place < sp:
            return None
        try:
            if not follows_call(bytes(self._target.read_code(address - CALL_BYTES, CALL_BYTES))):
                return None
        except UnreadableMemory:
            return None
        values = {**known, **{register: self._memory.word(sp + slot) for register, slot in slots.items()}}
        caller = {self._numbers[GENERAL[register]]: value for register, value in values.items() if value is not None}
        caller[self._numbers[GENERAL[RSP]]] = place + 8
        caller[self._numbers["rip"]] = address
        return CodeStep(caller)

    def _decode(self, address: int) -> Optional[tuple[Any, Effect]]:
        if address not in self._decoded:
            self._decoded[address] = self._decode_new(address)
        return self._decoded[address]

    def _decode_new(self, address: int) -> Optional[tuple[Any, Effect]]:
        region = region_at(self._target.regions(), address)
        if region is None or not region.executable:
            return None
        try:
            code = self._target.read_code(address, min(_LONGEST, region.end - address))
        except UnreadableMemory:
            return None
        insn = next(iter(decoder().decode(code, address)), None)
        return (insn, effect(insn)) if insn is not None else None


def _find_next(insn: Any, one: Effect) -> list[int]:
    """Return the addresses at which execution may continue. Calls return."""
    after = one.address + one.size
    if one.flow in ("next", "call", "system"):
        return [after]
    if one.flow == "branch":
        return [one.target, after]
    return [one.target] if one.flow == "jump" and one.target else []


def step_through_code(target: Target) -> list[StepCode]:
    """Return the functions that unwind code without call frame information; [] for other
    architectures than x86-64."""
    return [_Follower(target).step] if target.arch.name == X86_64.name else []
