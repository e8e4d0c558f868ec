"""Unwind functions of 32-bit ARM by their unwind tables. If a function has none, unwind it by its
code.

Tables (ehabi.py) are valid only at calls. GCC emits them for C++, but for C only on request: in
Debian, four fifths of glibc's code have no tables. For such code, and for code that was
interrupted, the paths to a return show where registers are saved. If no return is found, the
beginning of the function shows where they are saved (disasm/arm.py). A result is used only if the
return address that it yields follows a call instruction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.errors import UnreadableMemory
from findleaks.target.base import MappedMemory, Module
from findleaks.target.encoded_numbers import decode_signed
from findleaks.target.modules import module_headers
from findleaks.unwind import ehabi
from findleaks.unwind.cfi import Row, Rule
from findleaks.unwind.ehabi import LR, SP, ExceptionTable

if TYPE_CHECKING:
    from findleaks.disasm.arm import Code, Value
    from findleaks.disasm.arm import CodeState as Reached

THUMB = 0x20  # bit of the program status register
LONGEST_START = 256  # bytes from the entry point to the call of the function that calls main
FARTHEST_PUSH = 4096  # bytes searched for the instruction that saves the return address
MOST_PUSHES = 6
LONGEST_BEFORE_PUSH = 64  # maximum number of bytes of a function before it saves its return address
LONGEST_CHAIN = 8  # maximum number of loads, each from the address that the previous one loaded
_OWN = range(4, 12)  # registers that functions preserve for their callers
_OUTERMOST = Row(return_register=LR, rules={LR: Rule("undefined")})

Returned = Callable[[Row], Optional[int]]
"""Function that computes the return address by a row, including its lowest bit. Returns None if
there is no return address, or if the caller's stack pointer would be below the current one."""


class ArmRows:
    """Unwind rows for all code of one process. `executable` returns whether an address contains
    code."""

    def __init__(self, target: MappedMemory, module: Callable[[int], Optional[Module]], executable: Callable[[int], bool]) -> None:
        self._target, self._module, self._executable = target, module, executable
        self._tables: dict[int, ExceptionTable] = {}
        self._entries: dict[int, int] = {}
        self._returns: dict[tuple[int, bool, bool], Sequence[Row]] = {}
        self._beginnings: dict[tuple[int, bool, bool], Sequence[tuple[Row, int]]] = {}
        self._code: Optional[Code] = None
        self.lacks = ""  # why code cannot be read; "" if it can

    def row(self, pc: int, exact: bool, thumb: bool, returned: Returned) -> Optional[Row]:
        """Return the row with which the caller's registers are computed. `exact` means that `pc`
        was interrupted, so it is not a return address."""
        table = self._table(pc if exact else pc - 1)
        if table is not None and not exact and LR in table.rules:
            return table
        found = next((row for row in self._by_returns(pc, exact, thumb) if self._leads(row, returned)), None)
        if found is None and not exact and self._outermost(pc, thumb):
            return _OUTERMOST
        found = found or self._find_by_prologue(pc, exact, thumb, returned)
        if found is None and exact and table is not None and self._leads(table, returned):
            return table
        return found

    def _table(self, pc: int) -> Optional[Row]:
        module = self._module(pc)
        if module is None:
            return None
        if module.start not in self._tables:
            self._tables[module.start] = ExceptionTable(self._target, module)
        return self._tables[module.start].row(pc)

    def _reader(self) -> Optional[Code]:
        if self._code is None and not self.lacks:
            from findleaks.disasm.arm import Code
            from findleaks.disasm.capstone_loader import CapstoneMissing

            try:
                self._code = Code(self._target.read, getattr(self._target, "is_interrupted", lambda: False))
            except CapstoneMissing as error:
                self.lacks = str(error)
        return self._code

    def _by_returns(self, pc: int, exact: bool, thumb: bool) -> Sequence[Row]:
        """Find rows from the paths between `pc` and the returns of the function. The result is
        cached."""
        key = (pc, exact, thumb)
        code = self._reader()
        if key not in self._returns:
            there = code is not None and self._executable(pc)
            made = (_row_to_return(place) for place in code.returns(pc, thumb, not exact)) if code is not None and there else ()
            self._returns[key] = [row for row in made if row is not None]
        return self._returns[key]

    def _find_by_prologue(self, pc: int, exact: bool, thumb: bool, returned: Returned) -> Optional[Row]:
        """Find a row by the registers that the function saved at its beginning. Candidates are the
        beginnings of functions before `pc`. The best candidate is the function that the call
        instruction before the return address calls. Otherwise, the best candidate is the nearest
        function that the call may have reached: the call is indirect, or the called function is in
        the same file and may have jumped to the candidate."""
        key = (pc, exact, thumb)
        if key not in self._beginnings:
            self._beginnings[key] = list(self._by_beginning(pc, thumb))
        nearest: Optional[Row] = None
        for row, start in self._beginnings[key]:
            if self._leads(row, returned):
                called = self._find_callee(returned(row) or 0)
                if called is not None and start - LONGEST_BEFORE_PUSH <= called <= start:
                    return row
                if nearest is None and (called is None or self._module(called) == self._module(pc)):
                    nearest = row
        return nearest

    def _by_beginning(self, pc: int, thumb: bool) -> Iterator[tuple[Row, int]]:
        """Yield a row for each of the nearest places before `pc` where a function saves its return
        address. The second value is the address at which this function begins to save registers."""
        code, module = self._reader(), self._module(pc)
        if code is None or module is None or not self._executable(pc):
            return
        low = max(pc - FARTHEST_PUSH, module.start)
        try:
            data = self._target.read(low, pc - low)
        except UnreadableMemory:
            return
        tried = 0
        for at in range(len(data) - 2 - len(data) % 2, -1, -2 if thumb else -4):
            if _saves_link(data[at : at + 4], thumb):
                start = low + at - _distance_of_arguments(data[max(at - 16, 0) : at], thumb)
                place = code.run_to(start, pc, thumb)
                made = _row_from_beginning(place) if place is not None else None
                if made is not None:
                    yield made, start
                tried += 1
                if tried == MOST_PUSHES:
                    return

    def _leads(self, row: Row, returned: Returned) -> bool:
        """Return whether the return address of the row is after a call, is that of a signal
        handler, or is 0."""
        value = returned(row)
        if value is None:
            return False
        address = value & self._target.arch.code_bits
        there = self._executable(address) and (_after_call(self._target, address, value & 1) or self._signal_return(address))
        return there or not address

    def _find_callee(self, returns: int) -> Optional[int]:
        """Return the function that is called by the call before a return address, also through a
        PLT entry. None if the call is indirect."""
        code, bits = self._reader(), self._target.arch.code_bits
        called = code.find_callee(returns & bits, bool(returns & 1)) if code is not None else None
        if code is None or called is None:
            return None
        slot = code.jump(*called)
        try:
            return self._target.word(slot) & bits if slot is not None else called[0]
        except UnreadableMemory:
            return called[0]

    def _signal_return(self, address: int) -> bool:
        try:
            return any(self._target.read(address, len(code)) == code for code, _ in self._target.arch.signal_returns)
        except UnreadableMemory:
            return False

    def _outermost(self, pc: int, thumb: bool) -> bool:
        """Return whether the function at `pc` has no caller. It is then the first function of the
        program, or of a thread. The latter ends the thread when its callee returns."""
        module = self._module(pc)
        if module is not None and 0 < pc - self._entry(module) <= LONGEST_START:
            return True
        code = self._reader()
        return code is not None and code.exits(pc, thumb)

    def _entry(self, module: Module) -> int:
        if module.start not in self._entries:
            found = module_headers(self._target, module)
            entry = found[0].entry & self._target.arch.code_bits if found else 0
            self._entries[module.start] = entry + module.bias if entry else module.end
        return self._entries[module.start]


def _after_call(target: MappedMemory, address: int, thumb: int) -> bool:
    """Whether the instruction before an address is a call (BL, BLX)."""
    try:
        last = int.from_bytes(target.read(address - 4, 4), "little")
    except UnreadableMemory:
        return False
    if thumb:
        first, second = last & 0xFFFF, last >> 16
        return second & 0xFF87 == 0x4780 or (first & 0xF800 == 0xF000 and second & 0xC000 == 0xC000)
    return last & 0x0F000000 == 0x0B000000 or last & 0xFE000000 == 0xFA000000 or last & 0x0FFFFFF0 == 0x012FFF30


def _saves_link(code: bytes, thumb: bool) -> bool:
    """Whether the instruction pushes lr."""
    first, second = int.from_bytes(code[:2], "little"), int.from_bytes(code[2:4], "little")
    if thumb:  # push; push.w, stmdb sp!; str lr, [sp, #-4]!
        return first & 0xFF00 == 0xB500 or (first == 0xE92D and bool(second & 0x4000)) or (first, second) == (0xF84D, 0xED04)
    return (second == 0xE92D and bool(first & 0x4000)) or (second, first) == (0xE52D, 0xE004)


def _distance_of_arguments(before: bytes, thumb: bool) -> int:
    """Return the number of bytes between the saved lr and pushed arguments (r0 to r3), which a
    variadic function pushes first; 0 if there are none."""
    size = 2 if thumb else 4
    for at in range(len(before) - size, -1, -size):
        word = int.from_bytes(before[at : at + size], "little")
        if word & ~0xF == (0xB400 if thumb else 0xE92D0000) and word & 0xF:
            return len(before) - at
    return 0


def _row_to_return(place: Reached) -> Optional[Row]:
    """Build the row from the registers at the return, which then have the caller's values."""
    sp, returned = place.registers[SP], place.returned
    if sp is None or returned is None or not 0 <= sp.base < 16:
        return None
    frame = ehabi.ComputedAddress(sp.base, sp.offset)
    saved: dict[int, ehabi.ComputedAddress] = {}
    rules: dict[int, Rule] = {}
    for register, value in [*((number, place.registers[number]) for number in _OWN), (LR, returned)]:
        if value is None:
            rules[register] = Rule("undefined")
        elif value.base >= 16 and not value.offset:
            slot = _place(place, place.loads[value.base - 16])
            if slot is not None:
                saved[register] = slot
        elif (value.base, value.offset) != (register, 0):
            known = 0 <= value.base < 16
            rules[register] = Rule("is", 0, ehabi.ComputedAddress(*value).expression()) if known else Rule("undefined")
    if LR in rules:
        return None
    row = ehabi.row_of(frame, saved)
    row.rules.update(rules)
    return row


def _place(place: Reached, value: Value, depth: int = LONGEST_CHAIN) -> Optional[ehabi.ComputedAddress]:
    """Convert a symbolic address to an unwind rule, based on a register or on a loaded word. None
    if that is not possible."""
    if 0 <= value.base < 16:
        return ehabi.ComputedAddress(value.base, value.offset)
    if value.base < 0 or not depth:
        return None
    inner = _place(place, place.loads[value.base - 16], depth - 1)
    return inner.load().plus(value.offset) if inner is not None else None


def _row_from_beginning(place: Reached) -> Optional[Row]:
    """Build the row: the caller's stack pointer is a register minus the distance by which this
    register has moved from it."""
    for register in (SP, 7, 11):
        now = place.registers[register]
        if now is not None and now.base == SP:
            row = Row(register, -now.offset, return_register=LR)
            for address, value in place.memory.items():
                if address.base == SP and value is not None and value.offset == 0 and value.base in (*_OWN, LR):
                    row.rules.setdefault(value.base, Rule("offset", decode_signed(address.offset & 0xFFFFFFFF, 32)))
            return row if LR in row.rules else None
    return None
