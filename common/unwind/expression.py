"""DWARF expressions, as call frame information uses them (DWARF 5, section 2.5): a small stack machine over the target's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Optional

from findleaks.unwind.cfi import Bytes, Malformed

STEPS = 1000
"""Operations before an expression counts as endless."""


def evaluate(
    expression: bytes,
    word: int,
    byteorder: str,
    register: Callable[[int], Optional[int]],
    load: Callable[[int], int],
    stack: Sequence[int] = (),
) -> int:
    """The value on top in the end. Raises Malformed for what is no such expression, and what `load` raises."""
    data = Bytes(expression, 0, word, byteorder)
    mask = (1 << (8 * word)) - 1
    values = list(stack)

    def pop() -> int:
        if not values:
            raise Malformed
        return values.pop()

    def signed(value: int) -> int:
        return value - mask - 1 if value > mask >> 1 else value

    for _ in range(STEPS):
        if data.at >= len(expression):
            return pop()
        code = data.unsigned(1)
        if 0x30 <= code <= 0x4F:  # DW_OP_lit0 …
            values.append(code - 0x30)
        elif 0x70 <= code <= 0x8F or code == 0x92:  # DW_OP_breg0 …, DW_OP_bregx
            value = register(data.uleb() if code == 0x92 else code - 0x70)
            if value is None:
                raise Malformed
            values.append((value + data.sleb()) & mask)
        elif code == 0x03:
            values.append(data.unsigned(word))
        elif code in (0x08, 0x0A, 0x0C, 0x0E):
            values.append(data.unsigned(1 << (code - 8) // 2) & mask)
        elif code in (0x09, 0x0B, 0x0D, 0x0F):
            values.append(data.signed(1 << (code - 9) // 2) & mask)
        elif code == 0x10:
            values.append(data.uleb() & mask)
        elif code == 0x11:
            values.append(data.sleb() & mask)
        elif code == 0x06:
            values.append(load(pop()))
        elif code == 0x12:
            values.append(pop())
            values.append(values[-1])
        elif code == 0x13:
            pop()
        elif code in (0x14, 0x15):
            depth = 1 if code == 0x14 else data.unsigned(1)
            if depth >= len(values):
                raise Malformed
            values.append(values[-1 - depth])
        elif code == 0x16:
            values[-2:] = [pop(), pop()]
        elif code == 0x19:
            values.append(abs(signed(pop())))
        elif code == 0x1F:
            values.append(-pop() & mask)
        elif code == 0x20:
            values.append(~pop() & mask)
        elif code == 0x23:
            values.append((pop() + data.uleb()) & mask)
        elif code in (0x28, 0x2F):  # DW_OP_bra, DW_OP_skip
            distance = data.signed(2)
            if code == 0x2F or pop():
                data.at += distance
                if not 0 <= data.at <= len(expression):
                    raise Malformed
        elif code in _BINARY:
            second, first = pop(), pop()
            values.append(int(_BINARY[code](first, second, signed)) & mask)
        elif code != 0x96:  # DW_OP_nop
            raise Malformed
    raise Malformed


def _divided(first: int, second: int) -> int:
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
    0x1B: lambda a, b, s: _divided(s(a), s(b)),
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
