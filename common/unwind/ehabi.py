"""Read ARM's unwind tables, .ARM.exidx and .ARM.extab, as rows of call frame information.

The tables are valid at calls, not within a function's prologue and epilogue. They are read from the
target's memory, where any byte may be wrong. Therefore lengths are limited, and invalid data count
as no information (None). pyelftools is not used, because it reads the tables from files by section
headers, and decodes large prel31 and uleb128 values wrongly. Tests compare this module with
binutils' readelf (tests/unit/test_ehabi.py).

Source: Exception Handling ABI for the Arm Architecture 2023Q3, sections 6 and 10; for functions
with a personality routine of C++ or C, gcc 12's libgcc/config/arm/unwind-arm.c and pr-support.c."""

from __future__ import annotations

from typing import NamedTuple, Optional, Union

from findleaks.errors import UnreadableMemory
from findleaks.target.base import MappedMemory, Module
from findleaks.target.elf import PT_ARM_EXIDX
from findleaks.target.encoded_numbers import sleb128_bytes, uleb128
from findleaks.target.modules import module_headers
from findleaks.unwind.cfi import Malformed, Row, Rule

SP, LR, PC = 13, 14, 15
CANNOT_UNWIND = 1  # EXIDX_CANTUNWIND, also for code between functions with tables
_FINISH = 0xB0
_BREG, _DEREF = 0x70, 0x06  # DW_OP_breg0, DW_OP_deref


class ComputedAddress(NamedTuple):
    """An address as a sum: a register or the result of a DWARF expression, plus an offset in
    bytes."""

    base: Union[int, bytes]
    offset: int

    def plus(self, distance: int) -> ComputedAddress:
        return ComputedAddress(self.base, self.offset + distance)

    def expression(self) -> bytes:
        """Return the address as a DWARF expression."""
        if isinstance(self.base, int):
            return bytes([_BREG + self.base]) + sleb128_bytes(self.offset)
        # DW_OP_consts, DW_OP_plus
        return self.base + (b"\x11" + sleb128_bytes(self.offset) + b"\x22" if self.offset else b"")

    def load(self) -> ComputedAddress:
        """Return the address that is stored at this address."""
        return ComputedAddress(self.expression() + bytes([_DEREF]), 0)


def row_of(frame: ComputedAddress, saved: dict[int, ComputedAddress]) -> Row:
    """Build the row with this canonical frame address. `saved` has the addresses of saved
    registers. The register of the return address is `lr`, even if the function loads it into
    `pc`."""
    row = Row(return_register=LR)
    if isinstance(frame.base, int):
        row.register, row.offset = frame.base, frame.offset
    else:
        row.expression = frame.expression()
    for register, place in saved.items():
        if place.base == frame.base:
            row.rules[register] = Rule("offset", place.offset - frame.offset)
        else:
            row.rules[register] = Rule("saved", 0, place.expression())
    return row


class ExceptionTable:
    """The unwind table of one module. It is empty if the module has none."""

    def __init__(self, target: MappedMemory, module: Module) -> None:
        self._target = target
        self._start = self._count = 0
        found = module_headers(target, module)
        segment = next((s for s in found[1] if s.type == PT_ARM_EXIDX), None) if found else None
        if segment is not None:
            self._start = segment.vaddr + module.bias & target.arch.mask
            self._count = min(segment.memsz, module.end - module.start) // 8

    def row(self, pc: int) -> Optional[Row]:
        """Return the row at `pc`. None if there is no information, or if the function cannot be
        unwound."""
        try:
            entry = self._entry(pc)
            code = self._instructions(entry) if entry else b""
            return _Program(code).row() if code else None
        except (UnreadableMemory, Malformed):
            return None

    def _word(self, address: int) -> int:
        return int.from_bytes(self._target.read(address, 4), self._target.arch.byteorder)

    def _relative(self, address: int) -> int:
        """Return the address that the 31 bits at `address` refer to (prel31). The top bit is
        ignored."""
        word = self._word(address) & 0x7FFFFFFF
        return address + word - (word >> 30 << 31) & self._target.arch.mask

    def _entry(self, pc: int) -> int:
        """Return the address of the last index entry that begins at or before `pc`, or 0."""
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            if self._relative(self._start + 8 * middle) <= pc:
                low = middle + 1
            else:
                high = middle
        return self._start + 8 * (low - 1) if low else 0

    def _instructions(self, entry: int) -> bytes:
        """Return the unwind instructions of an index entry; b"" if its functions cannot be
        unwound."""
        word = self._word(entry + 4)
        if word == CANNOT_UNWIND:
            return b""
        if word >> 31:
            if word >> 24 != 0x80:
                raise Malformed
            return word.to_bytes(4, "big")[1:]
        at = self._relative(entry + 4)
        word = self._word(at)
        if not word >> 31:  # a custom personality routine; those of GNU use the same format
            at, word = at + 4, self._word(at + 4)
            return self._more(word.to_bytes(4, "big")[1:], at, word >> 24)
        routine, first = word >> 24, word.to_bytes(4, "big")
        if routine == 0x80:
            return first[1:]
        if routine not in (0x81, 0x82):
            raise Malformed
        return self._more(first[2:], at, first[1])

    def _more(self, first: bytes, at: int, words: int) -> bytes:
        """Append the instructions in further words, most significant byte of each word first."""
        rest = self._target.read(at + 4, 4 * words)
        if self._target.arch.byteorder == "little":
            rest = b"".join(rest[place : place + 4][::-1] for place in range(0, len(rest), 4))
        return first + rest


class _Program:
    """Executes unwind instructions (section 10.3) on a virtual stack pointer."""

    def __init__(self, code: bytes) -> None:
        self._code, self._at = code, 0
        self._pointer = ComputedAddress(SP, 0)
        self._saved: dict[int, ComputedAddress] = {}

    def row(self) -> Optional[Row]:
        """Return the row. None if the instructions mark the function as one that cannot be unwound.
        Raises Malformed for reserved or spare codes."""
        while self._at < len(self._code):
            code = self._next()
            if code == _FINISH:
                break
            if code < 0x80:
                distance = 4 * (code & 0x3F) + 4
                self._pointer = self._pointer.plus(-distance if code & 0x40 else distance)
            elif code < 0x90:
                registers = (code & 0x0F) << 12 | self._next() << 4
                if not registers:
                    return None
                self._pop(registers)
            elif code < 0xA0:
                self._move(code & 0x0F)
            elif code < 0xB0:
                self._pop(((2 << (code & 7)) - 1) << 4 | (code & 8) << 11)
            else:
                self._other(code)
        saved = dict(self._saved)
        saved[LR] = saved.pop(PC, saved.get(LR, ComputedAddress(LR, 0)))
        if saved[LR] == ComputedAddress(LR, 0):
            del saved[LR]  # lr still has the return address
        return row_of(self._pointer, saved)

    def _next(self) -> int:
        if self._at >= len(self._code):
            raise Malformed
        self._at += 1
        return self._code[self._at - 1]

    def _pop(self, registers: int) -> None:
        """Pop the registers of a mask of r0 to r15. A popped stack pointer becomes the new one."""
        for register in range(16):
            if registers >> register & 1:
                self._saved[register] = self._pointer
                self._pointer = self._pointer.plus(4)
        if SP in self._saved:
            self._pointer = self._saved.pop(SP).load()

    def _move(self, register: int) -> None:
        """Set vsp to a register, which may have been popped."""
        if register in (SP, PC):
            raise Malformed
        self._pointer = self._saved[register].load() if register in self._saved else ComputedAddress(register, 0)

    def _other(self, code: int) -> None:
        """Execute codes for argument registers, large distances, and saved vector registers."""
        if code == 0xB1:
            registers = self._next()
            if not 0 < registers < 16:
                raise Malformed
            self._pop(registers)
        elif code == 0xB2:
            try:
                value, self._at = uleb128(self._code, self._at)
            except ValueError:
                raise Malformed from None
            self._pointer = self._pointer.plus(0x204 + (value << 2))
        elif code in (0xB4, 0xB5):  # pops an authentication code; sets the modifier of this code
            self._pointer = self._pointer.plus(4 if code == 0xB4 else 0)
        elif code in (0xB3, 0xC6, 0xC8, 0xC9):  # D registers (by FSTMFDX: a word more), wR, D
            self._pointer = self._pointer.plus(8 * (self._next() & 0x0F) + (12 if code == 0xB3 else 8))
        elif 0xB8 <= code < 0xC6 or 0xD0 <= code < 0xD8:  # from D8 (FSTMFDX), wR10, D8
            self._pointer = self._pointer.plus(8 * (code & 7) + (12 if code < 0xC0 else 8))
        elif code == 0xC7:
            registers = self._next()
            if not 0 < registers < 16:
                raise Malformed
            self._pointer = self._pointer.plus(4 * bin(registers).count("1"))
        else:
            raise Malformed
