"""Read call frame information from a module's .eh_frame: rules for the caller's registers at a pc.

It is read from the target's memory, where any byte may be wrong. Therefore lengths are limited, and
invalid data count as no information (None). pyelftools is not used, because it reads files and
cannot look up entries by .eh_frame_hdr. It needs 0.8 s to list the 3,713 entries of libc; this
module finds an entry in 0.1 ms. Tests compare this module with pyelftools (tests/unit/test_cfi.py).

Sources: DWARF 5, sections 6.4 and 7.24; Linux Standard Base Core 5.0, 10.6 (.eh_frame,
.eh_frame_hdr, pointer encodings)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from findleaks.errors import UnreadableMemory
from findleaks.target.base import MappedMemory, Module, Range
from findleaks.target.elf import PT_GNU_EH_FRAME
from findleaks.target.encoded_numbers import sleb128, uleb128
from findleaks.target.modules import module_headers
from findleaks.value_classes import NamedTuple, dataclass, field

MAX_ENTRY_BYTES = 1 << 16  # maximum number of bytes of one entry; a longer one is malformed
MAX_REMEMBERED_ROWS = 32  # maximum number of rows on the stack of DW_CFA_remember_state
ENCODING_OMIT = 0xFF  # DW_EH_PE_omit
# Linkers write only signed 32-bit offsets from the header: DW_EH_PE_datarel | DW_EH_PE_sdata4.
ENCODING_TABLE = 0x3B


class Rule(NamedTuple):
    """A rule that computes the caller's value of a register. `how` is one of: "offset": stored at
    CFA + value; "value": CFA + value; "register": value of register number `value`; "saved": stored
    at the address that `expression` computes; "is": the value of `expression`; "undefined"."""

    how: str
    value: int = 0
    expression: bytes = b""


@dataclass
class Row:
    """The rules at a pc. The canonical frame address (CFA) is register + offset, or `expression`.
    Registers have DWARF numbers. A register without a rule keeps its value."""

    register: int = -1
    offset: int = 0
    expression: bytes = b""
    rules: dict[int, Rule] = field(default_factory=dict)
    return_register: int = -1
    signal: bool = False  # a signal frame: the caller was interrupted, and did not call
    switches_stack: bool = False  # the caller's frame is on another stack

    @property
    def outermost(self) -> bool:
        """Whether the return address is undefined: there is no caller (_start, clone3)."""
        rule = self.rules.get(self.return_register)
        return rule is not None and rule.how == "undefined"

    def copy(self) -> Row:
        return Row(self.register, self.offset, self.expression, dict(self.rules), self.return_register, self.signal, self.switches_stack)


class Malformed(Exception):
    """The bytes are not valid call frame information, or not a valid expression."""


class Bytes:
    """A cursor over bytes of the target. Reading past the end raises Malformed."""

    def __init__(self, data: bytes, address: int, word: int, byteorder: str) -> None:
        self.data, self.address, self.word = data, address, word
        self.order: str = byteorder
        self.at = 0

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self.data) - self.at:
            raise Malformed
        self.at += count
        return self.data[self.at - count : self.at]

    def read_unsigned(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little" if self.order == "little" else "big")

    def read_signed(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little" if self.order == "little" else "big", signed=True)

    def uleb(self) -> int:
        return self._decode(uleb128)

    def sleb(self) -> int:
        return self._decode(sleb128)

    def _decode(self, decode: Callable[[bytes, int], tuple[int, int]]) -> int:
        try:
            value, self.at = decode(self.data, self.at)
        except ValueError:
            raise Malformed from None
        return value

    def text(self) -> bytes:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise Malformed
        made = self.data[self.at : end]
        self.at = end + 1
        return made

    def pointer(self, encoding: int) -> int:
        """Decode a pointer of this encoding (DW_EH_PE_…), absolute or relative to its own address.
        Indirect pointers are not followed: only personality routines use them."""
        here = self.address + self.at
        kind = encoding & 0x0F
        sizes = {0: self.word, 2: 2, 3: 4, 4: 8, 10: 2, 11: 4, 12: 8}
        if kind == 1:
            value = self.uleb()
        elif kind == 9:
            value = self.sleb()
        elif kind in sizes:
            value = self.read_signed(sizes[kind]) if kind >= 10 else self.read_unsigned(sizes[kind])
        else:
            raise Malformed
        if encoding & 0x70 == 0x10 and value:
            value += here
        elif encoding & 0x70 not in (0, 0x10):
            raise Malformed
        return value & ((1 << (8 * self.word)) - 1)


class Common(NamedTuple):
    """A common information entry (CIE). `sized`: its FDEs have augmentation data after their
    length. `start` is the row after its initial instructions. `handlers` is how its FDEs encode the
    address of the function's table of exception handlers; ENCODING_OMIT if there is none. With a
    table, any call in the function may continue at a handler."""

    code_align: int
    data_align: int
    encoding: int
    sized: bool
    start: Row
    handlers: int


class _Description(NamedTuple):
    """A frame description entry (FDE). `data` is at the byte after the range of `code`."""

    data: Bytes
    common: Common
    code: Range


class FrameTable:
    """The call frame information of one module. It is empty without a usable .eh_frame_hdr."""

    def __init__(self, target: MappedMemory, module: Module) -> None:
        self.target, self.module = target, module
        self._commons: dict[int, Optional[Common]] = {}
        self._header = self._table = self.count = 0
        self._found = Range(0, 0), 0  # for which addresses _entry last found which entry
        try:
            self._open()
        except (UnreadableMemory, Malformed):
            self.count = 0

    def row(self, pc: int) -> Optional[Row]:
        """Return the row at `pc`; None if the module has no information about it."""
        found = self._description(pc)
        if found is None or not found.code.start <= pc < found.code.end:
            return None
        data, common, code = found
        row = common.start.copy()
        try:
            if common.sized:
                data.take(data.uleb())
            _Program(data, common, row, common.start).run(code.start, pc)
        except (UnreadableMemory, Malformed):
            return None
        return row

    def extent(self, pc: int) -> Optional[Range]:
        """Return the range of the entry for `pc`, usually its function; None if there is none."""
        found = self._description(pc)
        return found.code if found and found.code.start <= pc < found.code.end else None

    def handles_exceptions(self, pc: int) -> bool:
        """Whether the function at `pc` may have exception handlers; True if unknown."""
        found = self._description(pc)
        return found is None or found.common.handlers != ENCODING_OMIT

    def handler_table(self, pc: int) -> Optional[int]:
        """Return the address of the function's table of exception handlers; 0 if there is
        none; None if unknown."""
        found = self._description(pc)
        if found is None or found.common.handlers == ENCODING_OMIT:
            return None if found is None else 0
        try:
            found.data.uleb()
            return found.data.pointer(found.common.handlers)
        except Malformed:
            return None

    def _bytes(self, address: int, size: int) -> Bytes:
        return Bytes(self.target.read(address, size), address, self.target.arch.word, self.target.arch.byteorder)

    def _open(self) -> None:
        found = module_headers(self.target, self.module)
        segment = next((s for s in found[1] if s.type == PT_GNU_EH_FRAME), None) if found else None
        if segment is None:
            return
        self._header = segment.vaddr + self.module.bias
        data = self._bytes(self._header, min(max(segment.memsz, 12), 64))
        version, frames, counts, table = data.take(4)
        if version != 1 or counts == ENCODING_OMIT or table != ENCODING_TABLE:
            return
        data.pointer(frames)
        count = data.pointer(counts)
        self._table = self._header + data.at
        self.count = min(count, segment.memsz // 8)

    def _entry(self, pc: int) -> int:
        """Return the address of the frame description entry (FDE) for `pc`, found by bisection of
        the header's table; 0 if there is none. Successive addresses are often in one function."""
        if self._found[0].start <= pc < self._found[0].end:
            return self._found[1]
        low, high, start, end = 0, self.count, 0, 1 << 64  # [start, end) has the same entry
        while low < high:
            middle = (low + high) // 2
            code = self._bytes(self._table + 8 * middle, 4).read_signed(4) + self._header
            low, start, high, end = (middle + 1, code, high, end) if code <= pc else (low, start, middle, code)
        entry = self._bytes(self._table + 8 * low - 4, 4).read_signed(4) + self._header if low else 0
        self._found = Range(start, end), entry
        return entry

    def _description(self, pc: int) -> Optional[_Description]:
        """Return the last FDE that begins at or before `pc`; None if there is none, or if it is
        malformed or unreadable. Its range need not contain `pc`."""
        try:
            address = self._entry(pc) if self.count else 0
            return self._describe(address) if address else None
        except (UnreadableMemory, Malformed):
            return None

    def _describe(self, address: int) -> _Description:
        """Return the FDE at an address. Raises Malformed or UnreadableMemory."""
        data, place, distance = self._record(address)
        common = self._common(place - distance)
        begin = data.pointer(common.encoding)
        return _Description(data, common, Range(begin, begin + data.pointer(common.encoding & 0x0F)))

    def _record(self, address: int) -> tuple[Bytes, int, int]:
        """Return an entry's contents after its length, the address of its second word, and this
        word. In an FDE the word is the distance to its CIE, in a CIE it is 0."""
        length = self._bytes(address, 4).read_unsigned(4)
        if not 4 <= length <= MAX_ENTRY_BYTES:
            raise Malformed
        data = self._bytes(address + 4, length)
        return data, address + 4, data.read_unsigned(4)

    def _common(self, address: int) -> Common:
        if address not in self._commons:
            try:
                self._commons[address] = self._parse_common(address)
            except (Malformed, UnreadableMemory):
                self._commons[address] = None
        found = self._commons[address]
        if found is None:
            raise Malformed
        return found

    def _parse_common(self, address: int) -> Common:
        data, _, mark = self._record(address)
        version = data.read_unsigned(1)
        if mark or version not in (1, 3, 4):
            raise Malformed
        letters = data.text()
        if version == 4:
            data.take(2)
        code_align, data_align = data.uleb(), data.sleb()
        returns = data.read_unsigned(1) if version == 1 else data.uleb()
        encoding, signal, sized, handlers = 0, False, letters[:1] == b"z", ENCODING_OMIT
        if sized:
            length = data.uleb()
            end = data.at + length
            for letter in letters[1:].decode("latin-1"):
                if letter == "R":
                    encoding = data.read_unsigned(1)
                elif letter == "P":
                    data.pointer(data.read_unsigned(1) & 0x0F)
                elif letter == "L":
                    handlers = data.read_unsigned(1)
                elif letter == "S":
                    signal = True
                elif letter != "B":
                    break
            data.at = end
        elif letters:
            raise Malformed
        start = Row(return_register=returns, signal=signal)
        made = Common(code_align, data_align, encoding, sized, start, handlers)
        _Program(data, made, start, start.copy()).run(0, 0)
        return made


class _Program:
    """Executes call frame instructions (DWARF 5, section 6.4.2, numbers in table 7.29) on `row`.
    DW_CFA_restore restores a register's rule from `initial`."""

    def __init__(self, data: Bytes, common: Common, row: Row, initial: Row) -> None:
        self._data, self._common, self._row, self._initial = data, common, row, initial
        self._remembered: list[Row] = []

    def run(self, location: int, pc: int) -> None:
        """Execute the instructions that apply at `pc`. The described code begins at `location`."""
        data = self._data
        while data.at < len(data.data):
            code = data.read_unsigned(1)
            if code >> 6 == 1 or 0x01 <= code <= 0x04:
                location = self._advance(code, location)
                if location > pc:
                    return
            elif code >> 6:
                self._save_register(code >> 6, code & 0x3F)
            elif not (self._frame_address(code) or self._register(code) or self._whole_row(code)):
                raise Malformed

    def _advance(self, code: int, location: int) -> int:
        """Execute DW_CFA_advance_loc, set_loc, advance_loc1, 2 and 4; return the new location."""
        if code == 0x01:
            return self._data.pointer(self._common.encoding)
        distance = code & 0x3F if code >> 6 else self._data.read_unsigned({2: 1, 3: 2, 4: 4}[code])
        return location + distance * self._common.code_align

    def _save_register(self, high: int, register: int) -> None:
        """Execute DW_CFA_offset and DW_CFA_restore, with the register in the opcode."""
        if high == 2:
            self._row.rules[register] = Rule("offset", self._data.uleb() * self._common.data_align)
        else:
            self._restore(register)

    def _frame_address(self, code: int) -> bool:
        """Execute an instruction that defines the canonical frame address; return False for other
        instructions."""
        data, row = self._data, self._row
        if code in (0x0C, 0x12):  # def_cfa, def_cfa_sf
            row.register, row.expression = data.uleb(), b""
            row.offset = self._operand(code == 0x12)
        elif code == 0x0D:  # def_cfa_register
            row.register = data.uleb()
        elif code in (0x0E, 0x13):  # def_cfa_offset, def_cfa_offset_sf
            row.offset = self._operand(code == 0x13)
        elif code == 0x0F:  # def_cfa_expression
            row.expression = data.take(data.uleb())
        else:
            return False
        return True

    def _operand(self, factored: bool) -> int:
        return self._data.sleb() * self._common.data_align if factored else self._data.uleb()

    def _register(self, code: int) -> bool:
        """Execute an instruction that defines one register's rule; return False for other
        instructions."""
        data, align = self._data, self._common.data_align
        if code not in _OF_REGISTER:
            return False
        register = data.uleb()  # read before the rule: Python evaluates the right-hand side first
        rules = self._row.rules
        if code in (0x05, 0x11):  # offset_extended, offset_extended_sf
            rules[register] = Rule("offset", (data.uleb() if code == 0x05 else data.sleb()) * align)
        elif code == 0x06:  # restore_extended
            self._restore(register)
        elif code == 0x07:
            rules[register] = Rule("undefined")
        elif code == 0x08:  # same_value
            rules.pop(register, None)
        elif code == 0x09:
            rules[register] = Rule("register", data.uleb())
        elif code in (0x10, 0x16):  # expression, val_expression
            rules[register] = Rule("saved" if code == 0x10 else "is", 0, data.take(data.uleb()))
        else:  # val_offset, val_offset_sf
            rules[register] = Rule("value", (data.uleb() if code == 0x14 else data.sleb()) * align)
        return True

    def _whole_row(self, code: int) -> bool:
        """Execute DW_CFA_remember_state, restore_state, and instructions that have no effect here.
        Return False for other instructions."""
        if code == 0x0A:
            if len(self._remembered) >= MAX_REMEMBERED_ROWS:
                raise Malformed
            self._remembered.append(self._row.copy())
        elif code == 0x0B:
            if not self._remembered:
                raise Malformed
            saved, row = self._remembered.pop(), self._row
            row.register, row.offset, row.expression, row.rules = saved.register, saved.offset, saved.expression, saved.rules
        elif code == 0x2E:  # GNU_args_size
            self._data.uleb()
        else:
            return self._signs_address(code)
        return True

    def _signs_address(self, code: int) -> bool:
        """Skip instructions that change no rule. Return False for other instructions.
        All of them except nop state whether the return address is signed (DWARF for the Arm 64-bit
        Architecture, "Call frame instructions"): AARCH64_set_ra_state, which has two operands,
        AARCH64_negate_ra_state_with_pc, and AARCH64_negate_ra_state, which is GNU_window_save on
        other machines. `Unwinder` removes signatures from all return addresses."""
        if code == 0x2B:
            self._data.uleb()
            self._data.sleb()
        return code in (0x00, 0x2B, 0x2C, 0x2D)

    def _restore(self, register: int) -> None:
        if register in self._initial.rules:
            self._row.rules[register] = self._initial.rules[register]
        else:
            self._row.rules.pop(register, None)


_OF_REGISTER = {0x05, 0x06, 0x07, 0x08, 0x09, 0x10, 0x11, 0x14, 0x15, 0x16}
