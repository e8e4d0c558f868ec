"""Emulation of AArch64 functions that only compute from memory: the results are those of the architecture, and
emulation of any other function ends."""

from __future__ import annotations

import random

import pytest
from fake import FakeTarget

from findleaks.disasm.formula import evaluate_function
from findleaks.target.arch import AARCH64

AT, DATA = 0x10000, 0x20000
FIELDS = 64  # words
CODE = bytes.fromhex(
    "015c40f9210041d121fc52d320c472d3000001cb0210018be00302aac0035fd6"  # 0: ldr, sub, lsr, lsl, sub, add with a shift, mov, ret
    "fd7bbea9fd030091f30b00f9f30300aa0060009100fcdfc804000094f30b40f9"  # 32: a frame, ldar, a call of the function at 72
    "fd7bc2a8c0035fd6"
    "01cf8a528146a2720000019bc0035fd6"  # 72: mov, movk, madd
    "00000014"  # 88: a jump to itself
    "000000f9c0035fd6"  # 92: a store into the data
    "000000b4c0035fd6"  # 100: a branch that depends on data
    "00c0218bc0035fd6"  # 108: an operand with an extension
    "010040f9210c40f9f00301aa00021fd6"  # 116: a tail call of a virtual function
)
BITS = (1 << 64) - 1


@pytest.fixture
def fields() -> list[int]:
    rng = random.Random(4)
    made = [rng.getrandbits(64) for _ in range(FIELDS)]
    made[0] = DATA + 64  # a table of functions; the fourth one is the product
    made[8 + 3] = AT + 72
    return made


def target(fields: list[int]) -> FakeTarget:
    data = b"".join(word.to_bytes(8, "little") for word in fields)
    return FakeTarget({AT: CODE, DATA: data}, permissions={AT: "r-x"}, arch=AARCH64)


def product(number: int) -> int:
    return (number * 0x12345678 + number) & BITS


def test_results(fields: list[int]) -> None:
    one = target(fields)
    pages = (fields[23] - 0x40000 & BITS) >> 18
    assert evaluate_function(one, AT, DATA) == ((pages << 14) - pages + (pages << 4)) & BITS
    assert evaluate_function(one, AT + 32, DATA) == product(fields[3])
    assert evaluate_function(one, AT + 72, 7) == product(7)
    assert evaluate_function(one, AT + 116, DATA) == product(DATA)


@pytest.mark.parametrize("place", [88, 92, 100, 108])
def test_other_functions_have_no_result(place: int, fields: list[int]) -> None:
    assert evaluate_function(target(fields), AT + place, DATA) is None


def test_any_bytes_end(fields: list[int]) -> None:
    """Damaged code, and fields that are not addresses."""
    rng = random.Random(5)
    for _ in range(300):
        code = bytearray(CODE)
        for _ in range(4):
            code[rng.randrange(len(code))] = rng.randrange(256)
        fields[0] = rng.choice((0, DATA, rng.getrandbits(64)))
        data = b"".join(word.to_bytes(8, "little") for word in fields)
        one = FakeTarget({AT: bytes(code), DATA: data}, permissions={AT: "r-x"}, arch=AARCH64)
        for start in (0, 32, 72, 116):
            found = evaluate_function(one, AT + start, DATA)
            assert found is None or 0 <= found <= BITS
