"""Follow ARM code (A32 and T32) symbolically, to find how a function has changed the stack and the
registers so far, and how it restores them until it returns.

On ARM, most code of a C library has no unwind tables. But a function restores its caller's
registers before it returns, so each path from an instruction to a return shows where they are
saved. For a function that never returns, the instructions at its beginning show where it saves
them.

Capstone decodes each instruction. An unsupported instruction makes the registers that it writes
unknown. Source of the semantics: Arm Architecture Reference Manual for A-profile, AArch32 (DDI
0487), F5."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

from findleaks.disasm.capstone_loader import require_capstone
from findleaks.errors import Interrupted, UnreadableMemory

SP, LR, PC = 13, 14, 15
CONSTANT = -1  # base of a value that is a constant
MOST_INSTRUCTIONS = 1500  # maximum number of instructions followed from one address
MOST_FOLLOWED = 1 << 21  # maximum number of instructions followed in total, which takes about 30 s
MOST_RETURNS = 8  # maximum number of returns that are reported for one address
MOST_STORED = 256  # maximum number of stored words tracked on one path
_MASK = 0xFFFFFFFF
_CHUNK = 128  # bytes of code that are decoded at once
_REGISTER, _IMMEDIATE, _MEMORY = 1, 2, 3  # capstone's ARM_OP_...
_ALWAYS = 15  # ARM_CC_AL
_SYSTEM_CALLS_OF_NO_RETURN = (1, 248)  # exit, exit_group


class Value(NamedTuple):
    """A symbolic value: `base` + `offset`. `base` is a register number (0 to 15) for the initial
    value of that register, CONSTANT, or 16 + the index of a load in `CodeState.loads`."""

    base: int
    offset: int

    def plus(self, other: Optional[Value], times: int = 1) -> Optional[Value]:
        """Return the sum, or the difference if `times` is -1; None if it cannot be expressed as a
        Value."""
        if other is None or (other.base != CONSTANT and (self.base != CONSTANT or times < 0)):
            return None
        base = self.base if other.base == CONSTANT else other.base
        total = self.offset + times * other.offset
        return Value(base, (total + (1 << 31) & _MASK) - (1 << 31) if base != CONSTANT else total & _MASK)


@dataclass
class CodeState:
    """State of one path through the code. `memory` has the words stored on the path, by address.
    `loads` has the addresses that were loaded from; `Value.base` is an index into it."""

    address: int
    thumb: bool
    registers: list[Optional[Value]]
    memory: dict[Value, Optional[Value]] = field(default_factory=dict)
    loads: list[Value] = field(default_factory=list)
    returned: Optional[Value] = None  # at a return: the return address

    def copy(self, address: int) -> CodeState:
        return CodeState(address, self.thumb, list(self.registers), dict(self.memory), self.loads)

    def load(self, address: Optional[Value]) -> Optional[Value]:
        """Return the word at an address: the one stored on the path, otherwise its initial
        value."""
        if address is None:
            return None
        if address in self.memory:
            return self.memory[address]
        self.loads.append(address)
        return Value(15 + len(self.loads), 0)


class Code:
    """The code of one process. `read` and `interrupted` are those of Target. Methods may raise
    CapstoneMissing, and Interrupted while they follow code."""

    def __init__(self, read: Callable[[int, int], bytes], interrupted: Callable[[], bool] = lambda: False) -> None:
        capstone = require_capstone()
        from capstone import arm_const

        self._read, self._interrupted = read, interrupted
        self._left = MOST_FOLLOWED
        self._decoders = {thumb: capstone.Cs(capstone.CS_ARCH_ARM, capstone.CS_MODE_THUMB if thumb else 0) for thumb in (False, True)}
        for decoder in self._decoders.values():
            decoder.detail = True
        self._names = {getattr(arm_const, f"ARM_INS_{name}"): name for name in _KNOWN}
        self._numbers = {getattr(arm_const, f"ARM_REG_R{number}"): number for number in range(13)}
        self._numbers.update({arm_const.ARM_REG_SP: SP, arm_const.ARM_REG_LR: LR, arm_const.ARM_REG_PC: PC})
        self._decoded: dict[tuple[int, bool], Any] = {}

    def returns(self, address: int, thumb: bool, called: bool) -> Iterator[CodeState]:
        """Yield the states at the returns reachable from `address`, nearest first. `called` means
        that `address` is a return address, so the call has changed the caller-saved registers."""
        given = 0
        for place in self._ways(self._begin(address, thumb, called)):
            if place.returned is not None:
                yield place
                given += 1
                if given == MOST_RETURNS:
                    return

    def run_to(self, start: int, address: int, thumb: bool) -> Optional[CodeState]:
        """Return the state when the code from `start` on reaches `address`; None if it does not
        reach it."""
        ways = self._ways(self._begin(start, thumb, False), address)
        return next((place for place in ways if place.address == address and place.returned is None), None)

    def exits(self, address: int, thumb: bool) -> bool:
        """Whether the code at `address` unconditionally ends the thread or the process."""
        place = self._begin(address, thumb, True)
        for _ in range(16):
            insn = self._instruction(place.address, thumb)
            name = self._names.get(insn.id, "") if insn is not None else "B"
            if name in _BRANCHES or insn.cc != _ALWAYS:
                return False
            if name == "SVC":
                number = place.registers[7]
                return number is not None and number.base == CONSTANT and number.offset in _SYSTEM_CALLS_OF_NO_RETURN
            self._step(place, insn, name)
            place.address += insn.size
        return False

    def find_callee(self, address: int, thumb: bool) -> Optional[tuple[int, bool]]:
        """Return the target of the direct call before `address`, and whether it is Thumb code; None
        if there is no such call."""
        insn = self._instruction(address - 4, thumb)
        name = self._names.get(insn.id, "") if insn is not None else ""
        if name not in ("BL", "BLX") or insn.operands[0].type != _IMMEDIATE:
            return None
        return insn.operands[0].imm & _MASK, thumb ^ (name == "BLX")

    def jump(self, address: int, thumb: bool) -> Optional[int]:
        """Return the address of the word from which a few instructions at `address`, such as a PLT
        entry, load their jump target. None if these instructions do something else."""
        place = next(self.returns(address, thumb, False), None)
        target = place.registers[PC] if place is not None else None
        if place is None or target is None or target.base < 16:
            return None
        slot = place.loads[target.base - 16]
        return slot.offset if slot.base == CONSTANT else None

    @staticmethod
    def _begin(address: int, thumb: bool, called: bool) -> CodeState:
        registers: list[Optional[Value]] = [Value(number, 0) for number in range(16)]
        place = CodeState(address, thumb, registers)
        if called:
            _forget_called(place)
        return place

    def _ways(self, first: CodeState, until: int = -1) -> Iterator[CodeState]:
        """Yield the state at each return on any path from `first`. If a path reaches `until`, yield
        the state there and stop."""
        waiting, seen, left = deque([first]), set(), min(MOST_INSTRUCTIONS, self._left)
        while waiting:
            place = waiting.popleft()
            while place.address not in seen and left:
                if not left % 64 and self._interrupted():
                    raise Interrupted
                if place.address == until:
                    yield place
                    return
                seen.add(place.address)
                left -= 1
                self._left -= 1
                insn = self._instruction(place.address, place.thumb)
                if insn is None:
                    break
                name = self._names.get(insn.id, "")
                if name in ("B", "CBZ", "CBNZ"):
                    self._branch(place, insn, name, waiting)
                elif self._jumps(place, insn, name, waiting):
                    yield from self._follow_jump(place, name)
                    break

    @staticmethod
    def _branch(place: CodeState, insn: Any, name: str, waiting: deque[CodeState]) -> None:
        """Continue after a conditional branch, and queue its target."""
        target = insn.operands[-1].imm & _MASK
        if name != "B" or insn.cc != _ALWAYS:
            waiting.append(place.copy(target))
            target = place.address + insn.size
        place.address = target

    def _jumps(self, place: CodeState, insn: Any, name: str, waiting: deque[CodeState]) -> bool:
        """Execute an instruction, and return whether it jumps to a computed address. If the
        instruction is conditional, keep only register values that it does not change."""
        following, before = place.address + insn.size, list(place.registers)
        jumps = self._step(place, insn, name)
        place.address = following
        if insn.cc != _ALWAYS and name != "IT":
            if jumps:
                waiting.append(CodeState(following, place.thumb, before, dict(place.memory), place.loads))
            else:
                _merge(place.registers, before)
        return jumps

    @staticmethod
    def _follow_jump(place: CodeState, name: str) -> Iterator[CodeState]:
        """Treat a computed jump as a return, and yield the possible states. A function may end with
        a jump to another function, after it restored lr or without using the stack. Then the return
        address is in lr. Otherwise it is the new pc."""
        link = place.registers[LR]
        if name in ("POP", "LDM") or (link == Value(LR, 0) and place.registers[SP] != Value(SP, 0)):
            link = None
        for value in dict.fromkeys((link, place.registers[PC])):
            if value is not None and value.base != CONSTANT:
                place.returned = value
                yield place

    def _instruction(self, address: int, thumb: bool) -> Any:
        """Decode the instruction at an address; None if it is invalid."""
        key = (address, thumb)
        if key not in self._decoded:
            self._decoded[key] = None
            found = list(self._decoders[thumb].disasm(self._bytes(address), address))
            # The last instructions may belong to an IT block that continues in the next chunk.
            for insn in found if len(found) < 5 else found[:-4]:
                self._decoded[insn.address, thumb] = insn
        return self._decoded[key]

    def _bytes(self, address: int) -> bytes:
        for size in (_CHUNK, 16, 4, 2):
            try:
                return self._read(address, size)
            except UnreadableMemory:
                continue
        return b""

    def _step(self, place: CodeState, insn: Any, name: str) -> bool:
        """Execute an instruction; return whether it jumps to its new `pc`."""
        registers, operands = place.registers, insn.operands
        registers[PC] = Value(CONSTANT, place.address + (4 if place.thumb else 8) & _MASK)
        if name in ("BL", "BLX"):
            _forget_called(place)
        elif name == "SVC":
            registers[0] = None
        elif name == "BX":
            registers[PC] = self._read_register(place, operands[0].reg)
            return True
        elif name in ("TBB", "TBH", "UDF", "BKPT"):
            registers[PC] = registers[LR] = None
            return True
        elif name in ("PUSH", "POP", "VPUSH", "VPOP"):
            self._stack(place, insn, name)
        elif name in _MULTIPLE:
            self._multiple(place, insn, name)
        elif name in ("LDR", "STR", "LDRD", "STRD"):
            self._access(place, insn, name)
        elif name in _ARITHMETIC:
            self._compute(place, insn, name)
        else:
            self._forget(place, insn)
        return name not in ("BL", "BLX") and PC in self._find_written(insn)

    def _find_written(self, insn: Any) -> set[int]:
        return {self._numbers[register] for register in insn.regs_access()[1] if register in self._numbers}

    def _forget(self, place: CodeState, insn: Any) -> None:
        for register in self._find_written(insn):
            place.registers[register] = None
        if insn.writeback and insn.operands and insn.operands[0].type == _REGISTER:
            self._write(place, insn.operands[0].reg, None)

    def _read_register(self, place: CodeState, register: int) -> Optional[Value]:
        number = self._numbers.get(register)
        return place.registers[number] if number is not None else None

    def _write(self, place: CodeState, register: int, value: Optional[Value]) -> None:
        number = self._numbers.get(register)
        if number is not None:
            place.registers[number] = value

    def _stack(self, place: CodeState, insn: Any, name: str) -> None:
        registers, words = place.registers, [operand.reg for operand in insn.operands]
        sp = registers[SP]
        if name[0] == "V":
            double = bool(words) and insn.reg_name(words[0]).startswith("d")
            size = len(words) * (8 if double else 4)
            registers[SP] = sp.plus(Value(CONSTANT, size), -1 if name == "VPUSH" else 1) if sp else None
        elif name == "PUSH":
            sp = sp.plus(Value(CONSTANT, 4 * len(words)), -1) if sp else None
            self._store_all(place, sp, words)
            registers[SP] = sp
        else:
            registers[SP] = sp.plus(Value(CONSTANT, 4 * len(words))) if sp else None
            self._load_all(place, sp, words)

    def _multiple(self, place: CodeState, insn: Any, name: str) -> None:
        """Execute LDM and STM, in all orders (IA, IB, DA, DB)."""
        base, *words = (operand.reg for operand in insn.operands)
        start = self._read_register(place, base)
        size = 4 * len(words)
        below = {"": 0, "IB": -4, "DB": size, "DA": size - 4}[name[3:]]
        low = start.plus(Value(CONSTANT, below & _MASK), -1) if start else None
        if insn.writeback:
            self._write(place, base, start.plus(Value(CONSTANT, size), -1 if name[3:4] == "D" else 1) if start else None)
        if name[:3] == "LDM":
            self._load_all(place, low, words)
        else:
            self._store_all(place, low, words)

    def _load_all(self, place: CodeState, low: Optional[Value], words: list[int]) -> None:
        for at, register in enumerate(words):
            self._write(place, register, place.load(low.plus(Value(CONSTANT, 4 * at)) if low else None))

    def _store_all(self, place: CodeState, low: Optional[Value], words: list[int]) -> None:
        for at, register in enumerate(words):
            address = low.plus(Value(CONSTANT, 4 * at)) if low else None
            if address is not None and len(place.memory) < MOST_STORED:
                place.memory[address] = self._read_register(place, register)

    def _access(self, place: CodeState, insn: Any, name: str) -> None:
        """Execute LDR, STR and their pair forms, with updates of the base register."""
        at = next((at for at, operand in enumerate(insn.operands) if operand.type == _MEMORY), 0)
        words, memory = [operand.reg for operand in insn.operands[:at]], insn.operands[at].mem
        later = insn.operands[at + 1].imm if len(insn.operands) > at + 1 and insn.operands[at + 1].type == _IMMEDIATE else None
        base = self._read_register(place, memory.base)
        if base is not None and memory.base in self._numbers and self._numbers[memory.base] == PC:
            base = Value(CONSTANT, base.offset & ~3)
        moved = base.plus(Value(CONSTANT, (later if later is not None else memory.disp) & _MASK)) if base and not memory.index else None
        address = base if insn.post_index else moved
        if memory.index:
            address = None
        if insn.writeback:
            self._write(place, memory.base, moved)
        if name[:3] == "STR":
            self._store_all(place, address, words)
        elif address is not None and address.base == CONSTANT and PC not in self._find_written(insn):
            for number, register in enumerate(words):
                self._write(place, register, self._literal(place, address.offset + 4 * number))
        else:
            self._load_all(place, address, words)

    def _literal(self, place: CodeState, address: int) -> Optional[Value]:
        """Return the constant at a literal's address in the code, or a load if the address is in
        other memory."""
        if abs(address - place.address) > 1 << 12:
            return place.load(Value(CONSTANT, address & _MASK))
        try:
            return Value(CONSTANT, int.from_bytes(self._read(address, 4), "little"))
        except UnreadableMemory:
            return None

    def _compute(self, place: CodeState, insn: Any, name: str) -> None:
        """Execute additions, subtractions and moves of registers and constants."""
        first, *others = insn.operands
        values = [self._operand(place, operand) for operand in others]
        result: Optional[Value] = None
        if name in ("ADD", "SUB", "ADDW", "SUBW"):
            left, *rest = values if len(values) > 1 else [self._read_register(place, first.reg), *values]
            if len(rest) == 2 and rest[0] == Value(CONSTANT, 0):
                rest = rest[:1]  # a form of add in PLT entries: `add ip, pc, #0, 12`
            result = left.plus(rest[0], 1 if name[0] == "A" else -1) if left and len(rest) == 1 else None
        elif name == "ADR":
            here = place.registers[PC]
            result = Value(CONSTANT, here.offset & ~3).plus(values[0]) if here else None
        elif name == "MOVT":
            old = self._read_register(place, first.reg)
            if old is not None and old.base == CONSTANT and values[0] is not None:
                result = Value(CONSTANT, old.offset & 0xFFFF | values[0].offset << 16)
        elif len(values) == 1:
            result = values[0]
            if name == "MVN":
                result = Value(CONSTANT, ~result.offset & _MASK) if result is not None and result.base == CONSTANT else None
        self._write(place, first.reg, result)

    def _operand(self, place: CodeState, operand: Any) -> Optional[Value]:
        if operand.shift.type:
            return None
        if operand.type == _IMMEDIATE:
            return Value(CONSTANT, operand.imm & _MASK)
        return self._read_register(place, operand.reg) if operand.type == _REGISTER else None


def _forget_called(place: CodeState) -> None:
    """Forget the registers that a call may change (AAPCS32 2023Q3, 6.1.1). Stored words are
    kept."""
    for register in (0, 1, 2, 3, 12, LR):
        place.registers[register] = None


def _merge(registers: list[Optional[Value]], before: list[Optional[Value]]) -> None:
    """Keep only the values that are the same whether or not the condition held."""
    for number, value in enumerate(before):
        if registers[number] != value:
            registers[number] = None


_BRANCHES = ("B", "BL", "BLX", "BX", "CBZ", "CBNZ", "TBB", "TBH")
_MULTIPLE = ("LDM", "LDMIB", "LDMDB", "LDMDA", "STM", "STMIB", "STMDB", "STMDA")
_ARITHMETIC = ("ADD", "SUB", "ADDW", "SUBW", "ADR", "MOV", "MOVW", "MOVT", "MVN")
_KNOWN = (
    *(*_BRANCHES, *_MULTIPLE, *_ARITHMETIC, "LDR", "STR", "LDRD", "STRD"),
    *("PUSH", "POP", "VPUSH", "VPOP", "SVC", "UDF", "BKPT", "IT"),
)
