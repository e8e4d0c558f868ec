"""Find the cause of a fault of the processor from the signal, si_code, and the instruction.

Instructions are decoded on x86-64 only. For a general protection fault (SIGSEGV, SI_KERNEL) or a
stack fault (SIGBUS, SI_KERNEL), the processor reports no address.

Sources: Linux include/uapi/asm-generic/siginfo.h (si_code); Intel 64 and IA-32 Architectures
Software Developer's Manual, volume 3, 6.15."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.audit.crash.differences import is_difference_of_numbers
from findleaks.audit.crash.overwritten_base import Siblings, find_siblings
from findleaks.audit.crash.value_origin import Origin, Tracer
from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.disasm.instruction import NONE, Instruction
from findleaks.disasm.registers import GENERAL, RAX, RBP, RDX, RIP, RSP
from findleaks.target.arch import AARCH64, X86_64
from findleaks.target.base import Target
from findleaks.target.notes import SI_KERNEL
from findleaks.target.ranges import region_at
from findleaks.value_classes import dataclass

FLOATS = {
    3: "divided a floating-point number by zero",
    4: "computed a floating-point number that is too large",
    5: "computed a floating-point number that is too small",
    6: "computed a floating-point number that had to be rounded",
    7: "used an invalid operand for a floating-point operation",
}
"""What the thread did, by si_code of a SIGFPE. Floating-point exceptions cause a SIGFPE only if the
program enabled them."""

_INTEGER_DIVISION = 1  # FPE_INTDIV
_BUS_ALIGNMENT, _BUS_PAGE, _BUS_HARDWARE = 1, 2, (4, 5)  # BUS_ADRALN, BUS_ADRERR, BUS_MCEERR_…
_TRAPS = ("ud2", "ud1", "ud0", "int3")
_WITHOUT_ACCESS = ("lea", "nop", "prefetch", "hint_nop", "cldemote", "bnd")
"""Starts of the names of instructions that do not access their memory operand."""

_PRIVILEGED = ("hlt", "cli", "sti", "in", "out", "rdmsr", "wrmsr", "lgdt", "lidt", "invlpg", "wbinvd", "clts", "swapgs")
# Invalid and privileged instructions of AArch64
_REFUSED = ("udf", "hlt", "hvc", "smc", "eret", "drps", "msr", "mrs")
_ALIGNED = ("movap", "movdqa", "movnt", "vmovap", "vmovdqa", "vmovnt")
_MASK = (1 << 64) - 1
_USER = 1 << 47  # the end of the addresses of processes, with four levels of page tables
# By the start of the name that Linux gives to a mapping that has no file in a file system
_WITHOUT_FILE = {"/anon_hugepage": "huge-page", "/dev/zero (deleted)": "shared-memory", "/SYSV": "shared-memory"}
_AARCH64_REGISTERS = 64  # `Fault.register` of x0
_LOWEST = 1 << 16  # smaller values are not pointers
_REACH = 64  # bytes: an access that faults is less than this beyond the operand's address
_NEAR = 1 << 20  # bytes: an address nearer to a mapping was hardly computed from a wild index
_FAR = 1 << 32  # bytes: memory that was unmapped is nearer to a mapping


@dataclass(frozen=True)
class Fault:
    """The cause of a fault. `kind`:

    - "division-by-zero", "division-overflow": `dividend` was divided by `value`
    - "float": `code` is a key of FLOATS
    - "trap": the thread reached a trap instruction
    - "refused": the instruction is invalid or privileged
    - "not-aligned": an instruction accessed `address`, which is not a multiple of `width`
    - "file": the thread accessed a mapping of `file` at `file_offset`, where the file has no page
    - "shared-memory": like "file", for shared memory that is not in a file
    - "huge-page": like "file", for memory that was mapped with MAP_HUGETLB
    - "hardware": the memory is defective
    - "return": the return address `value`, at `address`, is not a valid address, or is not code
    - "call": the thread called `value`, which is not a valid address, or is not code
    - "jump": the thread jumped to `value`, which is not a valid address, or is not code
    - "pointer": an instruction used the pointer `value`
    - "index": an instruction used the index `value` of an array
    - "segment": an instruction accessed memory relative to the register gs, which contains `value`
      (NONE if unknown)

    `register` is the number of the register that contained the divisor, pointer or index; NONE if
    it was in memory. `origin` is where the divisor, pointer or index was loaded from. `array` is
    the mapped address to which the index was added; None if it is unknown. A "pointer" has it if
    the pointer is certainly the sum of this address and another number. `siblings` shows how a
    pointer was loaded if its origin is unknown."""

    kind: str
    code: int = 0
    instruction: str = ""
    register: int = NONE
    address: Optional[int] = None
    value: int = 0
    dividend: int = 0
    width: int = 0
    file: str = ""
    file_offset: int = 0
    origin: Optional[Origin] = None
    array: Optional[int] = None
    siblings: Optional[Siblings] = None


def find_fault(target: Target, tracer: Optional[Tracer], number: int, code: int, address: Optional[int]) -> Optional[Fault]:
    """Return the fault that caused a signal; None if it is unknown. `tracer`: follows values from
    the frame that the signal interrupted; None: do not read code. `number`, `code`: si_signo and
    si_code of the signal. `address`: the address that was accessed; None if it is unknown."""
    simple = _without_code(target, number, code, address)
    if simple is not None or tracer is None or target.arch.name not in (X86_64.name, AARCH64.name):
        return simple
    try:
        if target.arch.name == AARCH64.name:
            return _find_aarch64(tracer, number, address)
        return _FaultReader(target, tracer).find(number, code, address)
    except CapstoneMissing:
        return None


def _find_aarch64(tracer: Tracer, number: int, address: Optional[int]) -> Optional[Fault]:
    # Imported here because few crashes need it
    from findleaks.audit.crash.aarch64_fault import find_access, name_instruction

    if number in (signal.SIGTRAP, signal.SIGILL):
        name = name_instruction(tracer)
        # Branch target identification and pointer authentication also cause a SIGILL, at
        # instructions that are valid.
        if number == signal.SIGILL:
            return Fault("refused", instruction=name) if name in _REFUSED else None
        return Fault("trap", instruction=name) if name == "brk" else None
    found = find_access(tracer, address) if number == signal.SIGSEGV and address is not None else None
    if found is None:
        return None
    register = _AARCH64_REGISTERS + found.register
    return Fault(found.kind, 0, found.name, register, value=found.value, origin=found.origin, array=found.array, siblings=found.siblings)


def find_resent_fault(target: Target, tracer: Tracer, number: int) -> Optional[tuple[int, Optional[int]]]:
    """Return si_code and the address of the fault whose handler sent the signal `number` again and
    returned. Returns None unless the instruction at the pc certainly causes this signal."""
    if target.arch.name != X86_64.name:
        return None
    try:
        return _FaultReader(target, tracer).resent(number)
    except CapstoneMissing:
        return None


def _without_code(target: Target, number: int, code: int, address: Optional[int]) -> Optional[Fault]:
    if number == signal.SIGFPE and code in FLOATS:
        return Fault("float", code)
    if number != signal.SIGBUS or address is None:
        return None
    if code == _BUS_ALIGNMENT:
        return Fault("not-aligned", address=address)
    if code in _BUS_HARDWARE:
        return Fault("hardware", address=address)
    region = region_at(target.regions(), address)
    if code != _BUS_PAGE or region is None or not region.name.startswith("/"):
        return None
    kind = next((kind for start, kind in _WITHOUT_FILE.items() if region.name.startswith(start)), "file")
    return Fault(kind, address=address, file=region.name, file_offset=address - region.start + region.file_offset)


class _FaultReader:
    def __init__(self, target: Target, tracer: Tracer) -> None:
        self._target, self._tracer, self._memory = target, tracer, Memory(target)
        self._registers: Mapping[int, int] = tracer.known_registers(0)

    def find(self, number: int, code: int, address: Optional[int]) -> Optional[Fault]:
        pc = self._tracer.frames[0].pc
        if number == signal.SIGTRAP:
            return Fault("trap", instruction="int3")
        if number in (signal.SIGSEGV, signal.SIGBUS) and address == pc:
            return self._after_jump(pc)
        one = self._tracer.reader.at(pc)
        if one is None:
            return None
        if number == signal.SIGFPE and code == _INTEGER_DIVISION and one.name in ("div", "idiv"):
            return self._division(one)
        if number == signal.SIGILL:
            return Fault("trap" if one.name in _TRAPS else "refused", instruction=one.name) if one.name else None
        if number == signal.SIGSEGV and code > 0 and one.gs:
            return self._segment(one, address)
        if number == signal.SIGSEGV and address is not None and code > 0:
            return self._access(one, address)
        if number in (signal.SIGSEGV, signal.SIGBUS) and code == SI_KERNEL and address is None:
            return self._protection(one)
        return None

    def resent(self, number: int) -> Optional[tuple[int, Optional[int]]]:
        """See find_resent_fault."""
        pc = self._tracer.frames[0].pc
        region = region_at(self._target.regions(), pc)
        if number == signal.SIGSEGV and (region is None or not region.executable):
            return 1, pc
        one = self._tracer.reader.at(pc)
        if one is None:
            return None
        if number == signal.SIGFPE:
            fault = self._division(one) if one.name in ("div", "idiv") else None
            return (_INTEGER_DIVISION, None) if fault is not None and fault.kind == "division-by-zero" else None
        if number == signal.SIGILL:
            return (1, None) if one.name in _TRAPS else None
        if one.name.startswith(_WITHOUT_ACCESS):
            return None
        pushes = one.name in ("push", "call")
        for place in ([self._registers.get(RSP, 0) - 8] if pushes else []) + [self._operand(one)]:
            if number != signal.SIGSEGV or place is None:
                continue
            if not _is_valid(place):
                return SI_KERNEL, None
            region = region_at(self._target.regions(), place)
            if region is None or not region.readable or (one.writes_memory and not region.writable):
                return 1, place
        return None

    def _division(self, one: Instruction) -> Optional[Fault]:
        width = one.width
        if width not in (2, 4, 8):
            return None
        place = self._operand(one)
        data = self._memory.read(place, width) if place is not None else b""
        if place is not None and len(data) != width:
            return None
        raw = int.from_bytes(data, "little") if place is not None else self._registers.get(one.destination)
        if raw is None:
            return None
        bits, is_signed = 8 * width, one.name == "idiv"
        divisor = _number(raw, bits, is_signed)
        low, high = (self._registers.get(number, 0) & ((1 << bits) - 1) for number in (RAX, RDX))
        dividend = _number(high << bits | low, 2 * bits, is_signed)
        if place is not None:
            origin: Optional[Origin] = Origin("memory", 0, place, width)
        else:
            origin = self._tracer.origin(0, one.destination, raw)
        kind = "division-overflow" if divisor else "division-by-zero"
        register = one.destination if place is None else NONE
        return Fault(kind, 0, one.name, register, place, divisor, dividend, width, origin=origin)

    def _after_jump(self, pc: int) -> Optional[Fault]:
        """Return the fault of the call or return instruction whose destination was `pc`, which is
        not the address of code."""
        code = self._tracer.code(1) if len(self._tracer.frames) > 1 else None
        call = code.steps[-1].code if code is not None else None
        if call is not None and call.name == "call" and call.target is None:
            return self._call(1, call, pc)
        if call is not None and call.name == "call":
            return None  # the called function jumped elsewhere, and did not return
        sp = self._registers.get(RSP, self._tracer.frames[0].sp)
        if self._memory.word(sp - 8) == pc and pc:
            return Fault("return", 0, "ret", address=sp - 8, value=pc)
        return None

    def _call(self, level: int, call: Instruction, value: int) -> Optional[Fault]:
        kind = "jump" if call.name == "jmp" else "call"
        if call.displacement is not None:
            place = self._tracer.operand(level)
            if place is None or self._memory.word(place) != value:
                return Fault(kind, 0, call.name, value=value)
            return Fault(kind, 0, call.name, address=place, value=value, origin=Origin("memory", level, place))
        is_known = call.source >= 0 and self._tracer.known_registers(level).get(call.source) == value
        origin = self._tracer.origin(level, call.source, value) if is_known else None
        siblings = find_siblings(self._tracer, level, call.source) if is_known and origin is None else None
        return Fault(kind, 0, call.name, call.source, value=value, origin=origin, siblings=siblings)

    def _segment(self, one: Instruction, address: Optional[int]) -> Fault:
        """Return the fault of an access relative to gs, which programs rarely set."""
        offset = one._replace(gs=False).operand_address(self._registers.get)
        base = (address - offset) & _MASK if address is not None and offset is not None else _USER
        return Fault("segment", 0, one.name, address=address, value=base if base < _USER else NONE)

    def _access(self, one: Instruction, address: int) -> Optional[Fault]:
        """Return the pointer or the index from which an instruction computed an address."""
        place = self._operand(one)
        if place is None or not 0 <= address - place < _REACH:
            return None
        return self._pointer(one)

    def _pointer(self, one: Instruction) -> Optional[Fault]:
        base = self._registers.get(one.base) if one.base not in (NONE, RIP) else None
        if base is not None and one.fs:
            # The distance from the thread pointer
            return self._index(one, one.base, base) if one.scaled == NONE else None
        if base is not None and one.base != RSP and not self._is_mapped(base):
            # Either register may be the index: movzbl (%rax,%rdx), and movzbl table(%rax).
            if one.scaled != NONE and one.scale == 1:
                return self._either(one, base)
            if one.scaled == NONE and self._is_mapped(one.displacement or 0):
                return self._index(one, one.base, base)
            return self._describe_unmapped(one, one.base, base)
        index = self._registers.get(one.scaled) if one.scaled != NONE else None
        return self._index(one, one.scaled, index) if index is not None else None

    def _either(self, one: Instruction, base: int) -> Optional[Fault]:
        """Return the fault of an access at the sum of two registers, of which `base` is not mapped.
        If the other one is mapped, `base` is the index. If neither is mapped, the index is the
        smaller one, if it fits in 32 bits and the other does not."""
        other = self._registers.get(one.scaled)
        if other is None:
            return None
        if self._is_mapped(other):
            return self._index(one, one.base, base)
        if _is_narrow(base) == _is_narrow(other):
            return None
        return self._describe_unmapped(one, *((one.scaled, other) if _is_narrow(base) else (one.base, base)))

    def _describe_unmapped(self, one: Instruction, register: int, value: int) -> Fault:
        """Return the fault of an access through the pointer `value` in a register. Its memory is
        not mapped."""
        origin = self._tracer.origin(0, register, value) or self._tracer.trace_argument(register, value)
        array = self._find_added_array(register, value) if origin is None and value >= _LOWEST else None
        siblings = find_siblings(self._tracer, 0, register) if origin is None else None
        return Fault("pointer", 0, one.name, register, value=value, origin=origin, array=array, siblings=siblings)

    def _find_added_array(self, register: int, value: int) -> Optional[int]:
        """Return the mapped address to which an index was added, so that the sum is the pointer
        `value` in a register; None if this is not certain."""
        base, index, is_scaled = self._tracer.summands(0, register, value) or (0, 0, False)
        if is_scaled:
            return base if self._is_mapped(base) else None
        mapped = [one for one in (base, index) if self._is_mapped(one)]
        return mapped[0] if len(mapped) == 1 and self._is_certain(mapped[0], value - mapped[0] & _MASK, register) else None

    def _index(self, one: Instruction, register: int, value: int) -> Optional[Fault]:
        other = one.base if register == one.scaled else one.scaled if one.scale == 1 else NONE
        base = self._registers.get(other) if other not in (NONE, RIP) else one.displacement
        origin = self._tracer.origin(0, register, value) or self._tracer.trace_argument(register, value)
        is_sum = base is not None and other not in (NONE, RIP) and one.scale == 1
        if base is not None and is_sum and not self._is_certain(base, value, register if origin is None else NONE):
            return None
        if base is not None and other in (RBP, RSP):
            base += one.displacement or 0  # an array on the stack
        array = base if base is not None and not one.fs and self._is_mapped(base) else None
        return Fault("index", 0, one.name, register, value=_number(value, 64, True), origin=origin, array=array)

    def _is_certain(self, array: int, index: int, register: int) -> bool:
        """Whether `index`, which was added to the address `array`, is certainly not a pointer, and
        not the distance between two pointers. For example, memcmp() computes the distance d of its
        arguments, increments only one of them, p, and reads at p + d. `register`: the register
        whose value the code may have computed as a distance; NONE: none."""
        if may_be_distance(self._target, array, index):
            return False
        if register == NONE or not self._tracer.reader.subtracts(self._tracer.frames[0].pc, register):
            return True
        return is_difference_of_numbers(self._tracer, 0, register, self._may_be_pointer)

    def _may_be_pointer(self, value: int) -> bool:
        """Whether a value is near a mapping. Small numbers must be nearer to it."""
        distance = _NEAR if _is_narrow(value) else _FAR
        return any(one.start - distance <= value < one.end + distance for one in self._target.regions())

    def _is_mapped(self, address: int) -> bool:
        region = region_at(self._target.regions(), address)
        return region is not None and region.readable

    def _protection(self, one: Instruction) -> Optional[Fault]:
        if one.name == "ret":
            sp = self._registers.get(RSP, 0)
            value = self._memory.word(sp)
            return Fault("return", 0, "ret", address=sp, value=value) if value is not None and not _is_valid(value) else None
        if one.name in _PRIVILEGED:
            return Fault("refused", instruction=one.name)
        place = self._operand(one)
        if one.name in ("call", "jmp") and one.target is None:
            value = self._registers.get(one.source) if place is None else self._memory.word(place)
            if value is not None and not _is_valid(value):
                return self._call(0, one, value)
        if place is None:
            return None
        if not _is_valid(place):
            return self._pointer(one)
        wide = max(one.width, 16)
        if place % wide and one.name.startswith(_ALIGNED):
            return Fault("not-aligned", 0, one.name, address=place, width=wide)
        return None

    def _operand(self, one: Instruction) -> Optional[int]:
        """Return the address of the memory operand of the instruction at the pc; None if there is
        none, or if it is unknown."""
        return one.operand_address(self._registers.get, self._tracer.thread_pointer)


def may_be_distance(target: Target, array: int, index: int) -> bool:
    """Whether `index`, which was added to the address `array`, may be a pointer, or the distance
    between two pointers: it does not fit in 32 bits, and the sum or the index is near a mapping."""
    address = array + index & _MASK
    return not _is_narrow(index) and any(
        one.start - _NEAR <= address < one.end + _NEAR or one.start - _FAR <= index < one.end + _FAR for one in target.regions()
    )


def _number(value: int, bits: int, is_signed: bool) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if is_signed and value >> (bits - 1) else value


def _is_narrow(value: int) -> bool:
    """Whether a register contains a signed number of 32 bits."""
    return abs(_number(value, 64, True)) < 1 << 31


def _is_valid(address: int) -> bool:
    """Whether an address is canonical."""
    return address < _USER or address >= (1 << 64) - _USER


def register_name(number: int) -> str:
    """Return the name of a register; "" if the value is not in a register."""
    if number >= _AARCH64_REGISTERS:
        return f"x{number - _AARCH64_REGISTERS}"
    return GENERAL[number] if 0 <= number < len(GENERAL) else ""
