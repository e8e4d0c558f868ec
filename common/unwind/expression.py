"""Evaluate the DWARF expressions of call frame information: a stack machine (DWARF 5, 2.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Optional

from findleaks.target.encoded_numbers import decode_signed
from findleaks.unwind.cfi import Bytes, Malformed

# Maximum number of operations of one expression; more are treated as an endless loop
MAX_OPERATIONS = 1000


def evaluate(
    expression: bytes,
    word: int,
    byteorder: str,
    register: Callable[[int], Optional[int]],
    load: Callable[[int], int],
    stack: Sequence[int] = (),
) -> int:
    """Evaluate an expression; return the value on top of the stack.

    `register` returns the value of a register by its DWARF number (None: unknown), `load` reads a
    word, and `stack` has the initial values. Raises Malformed if the expression is invalid, and the
    exceptions of `load`."""
    return _Machine(Bytes(expression, 0, word, byteorder), word, register, load, list(stack)).run()


class _Machine:
    """The stack machine: `values` are unsigned words."""

    def __init__(
        self, data: Bytes, word: int, register: Callable[[int], Optional[int]], load: Callable[[int], int], values: list[int]
    ) -> None:
        self._data, self._word, self._register, self._load, self._values = data, word, register, load, values
        self._bits, self._mask = 8 * word, (1 << 8 * word) - 1

    def run(self) -> int:
        """Execute the expression; return the value on top of the stack."""
        for _ in range(MAX_OPERATIONS):
            if self._data.at >= len(self._data.data):
                return self._pop()
            code = self._data.read_unsigned(1)
            value = self._constant(code)
            if value is not None:
                self._values.append(value)
            elif code in _BINARY:
                second, first = self._pop(), self._pop()
                self._values.append(int(_BINARY[code](first, second, self._make_signed)) & self._mask)
            # 0x96: DW_OP_nop
            elif not (self._unary(code) or self._rearrange(code) or self._jump(code) or code == 0x96):
                raise Malformed
        raise Malformed

    def _pop(self) -> int:
        if not self._values:
            raise Malformed
        return self._values.pop()

    def _make_signed(self, value: int) -> int:
        return decode_signed(value, self._bits)

    def _constant(self, code: int) -> Optional[int]:
        """Return the value that an operation pushes if it takes no operands from the stack; None
        for other operations."""
        data, mask = self._data, self._mask
        if 0x30 <= code <= 0x4F:  # DW_OP_lit0 …
            return code - 0x30
        if 0x70 <= code <= 0x8F or code == 0x92:  # DW_OP_breg0 …, DW_OP_bregx
            value = self._register(data.uleb() if code == 0x92 else code - 0x70)
            if value is None:
                raise Malformed
            return (value + data.sleb()) & mask
        if code == 0x03:  # DW_OP_addr
            return data.read_unsigned(self._word)
        if 0x08 <= code <= 0x0F:  # DW_OP_const1u, const1s, …
            size = 1 << (code - 8) // 2
            return (data.read_signed(size) if code & 1 else data.read_unsigned(size)) & mask
        if code in (0x10, 0x11):  # DW_OP_constu, DW_OP_consts
            return (data.uleb() if code == 0x10 else data.sleb()) & mask
        return None

    def _unary(self, code: int) -> bool:
        """Execute an operation on the top of the stack; return False for other operations."""
        if code not in (0x06, 0x19, 0x1F, 0x20, 0x23):
            return False
        value = self._pop()
        if code == 0x06:  # DW_OP_deref
            self._values.append(self._load(value))
        elif code == 0x19:
            self._values.append(abs(self._make_signed(value)))
        elif code == 0x1F:
            self._values.append(-value & self._mask)
        elif code == 0x20:
            self._values.append(~value & self._mask)
        else:  # DW_OP_plus_uconst
            self._values.append((value + self._data.uleb()) & self._mask)
        return True

    def _rearrange(self, code: int) -> bool:
        """Execute DW_OP_dup, drop, over, pick and swap; return False for other operations."""
        values = self._values
        if code in (0x12, 0x14, 0x15):
            depth = {0x12: 0, 0x14: 1}.get(code)
            depth = self._data.read_unsigned(1) if depth is None else depth
            if depth >= len(values):
                raise Malformed
            values.append(values[-1 - depth])
        elif code == 0x13:
            self._pop()
        elif code == 0x16:
            values += [self._pop(), self._pop()]
        else:
            return False
        return True

    def _jump(self, code: int) -> bool:
        """Execute DW_OP_bra and DW_OP_skip; return False for other operations."""
        if code not in (0x28, 0x2F):
            return False
        distance = self._data.read_signed(2)
        if code == 0x2F or self._pop():
            self._data.at += distance
            if not 0 <= self._data.at <= len(self._data.data):
                raise Malformed
        return True


def _divide(first: int, second: int) -> int:
    if not second:
        raise Malformed
    quotient = abs(first) // abs(second)
    return quotient if (first < 0) == (second < 0) else -quotient


def _modulo(first: int, second: int) -> int:
    if not second:
        raise Malformed
    return first % second


_Signed = Callable[[int], int]
_BINARY: dict[int, Callable[[int, int, _Signed], int]] = {
    0x1A: lambda a, b, s: a & b,
    0x1B: lambda a, b, s: _divide(s(a), s(b)),
    0x1C: lambda a, b, s: a - b,
    0x1D: lambda a, b, s: _modulo(a, b),
    0x1E: lambda a, b, s: a * b,
    0x21: lambda a, b, s: a | b,
    0x22: lambda a, b, s: a + b,
    0x24: lambda a, b, s: a << min(b, 64),
    0x25: lambda a, b, s: a >> min(b, 64),
    0x26: lambda a, b, s: s(a) >> min(b, 64),
    0x27: lambda a, b, s: a ^ b,
    0x29: lambda a, b, s: s(a) == s(b),
    0x2A: lambda a, b, s: s(a) >= s(b),
    0x2B: lambda a, b, s: s(a) > s(b),
    0x2C: lambda a, b, s: s(a) <= s(b),
    0x2D: lambda a, b, s: s(a) < s(b),
    0x2E: lambda a, b, s: s(a) != s(b),
}
