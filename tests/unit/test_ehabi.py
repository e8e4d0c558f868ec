"""ARM's unwind tables (EHABI), and unwinding by code without such tables."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Optional, Union

import fake
import pytest
from arm_images import BIAS, CODE, SIZE, image

from findleaks.target.arch import ARM
from findleaks.target.base import Module
from findleaks.unwind.cfi import Row, Rule
from findleaks.unwind.ehabi import ExceptionTable
from findleaks.unwind.frames import Unwinder

MODULE = Module("/lib/x.so", BIAS, BIAS, BIAS + SIZE)
STACK = 0x80000
CANNOT_UNWIND = 1


def find_row(word: Union[int, bytes]) -> Optional[Row]:
    """Return the row of a function with this entry, looked up at the last byte of the function."""
    entries = [(0x100, CANNOT_UNWIND), (0x200, word), (0x300, CANNOT_UNWIND)]
    target = fake.FakeTarget({BIAS: image(entries)}, permissions={BIAS: "r-x"}, arch=ARM)
    table = ExceptionTable(target, MODULE)
    assert table.row(BIAS + 0x50) is table.row(BIAS + 0x100) is table.row(BIAS + 0x300) is None
    assert table.row(BIAS + 0x200) == table.row(BIAS + 0x2FF)
    return table.row(BIAS + 0x2FF)


def make_rules(*registers: int) -> dict[int, Rule]:
    """Return the rules of registers that were pushed last, in this order of addresses."""
    return {register: Rule("offset", 4 * at - 4 * len(registers)) for at, register in enumerate(registers)}


def encode_routine(number: int, *code: int) -> bytes:
    """Return the table of a compact routine. Routines 1 and 2 have a byte with the number of further words."""
    return encode_words(0x80 | number, *([(len(code) + 1) // 4] if number else []), *code)


def encode_words(*data: int) -> bytes:
    """Return these bytes in words, the most significant byte first, padded with `finish`."""
    whole = bytes(data) + b"\xb0" * (-len(data) % 4)
    return b"".join(whole[at : at + 4][::-1] for at in range(0, len(whole), 4))


POPPED = {
    # vsp = vsp + 36; pop {r4-r9, lr}; finish
    (0x08, 0xAD, 0xB0): (13, 36 + 28, make_rules(4, 5, 6, 7, 8, 9, 14)),
    # pop {lr}
    (0x84, 0x00, 0xB0): (13, 4, make_rules(14)),
    # vsp = r7; pop {r4-r7}; then pop {lr}
    (0x97, 0xA3, 0x84, 0x00): (7, 20, make_rules(4, 5, 6, 7, 14)),
    # pop {r1-r3}, pop {r4, pc}: the return address is in the slot of pc
    (0xB1, 0x0E, 0x88, 0x01): (13, 20, make_rules(1, 2, 3, 4, 14)),
    # vsp = vsp - 8; pop {r4, lr}
    (0x41, 0xA8): (13, 0, make_rules(4, 14)),
    # vpush {d8-d10}; FSTMFDX {d8}; vpush {d1, d2}; FSTMFDX {d1}; vpush {d16}; then pop {lr}
    (0xD2, 0xB8, 0xC9, 0x11, 0xB3, 0x10, 0xC8, 0x00, 0x84, 0x00): (13, 24 + 12 + 16 + 12 + 8 + 4, make_rules(14)),
    # wR10, wR11; wR1; wCGR0 and 2; an authentication code; then pop {lr}
    (0xC1, 0xC6, 0x10, 0xC7, 0x05, 0xB4, 0xB5, 0x84, 0x00): (13, 16 + 8 + 8 + 4 + 4, make_rules(14)),
    # vsp = vsp + 0x204 + (0x81 << 2); pop {r4, lr}
    (0xB2, 0x81, 0x01, 0xA8): (13, 0x204 + (0x81 << 2) + 8, make_rules(4, 14)),
    # no instructions: a leaf function, whose return address is in lr
    (0xB0, 0xB0, 0xB0): (13, 0, {}),
}


@pytest.mark.parametrize("code", POPPED, ids=lambda code: bytes(code).hex())
def test_unwinding_instructions(code: tuple[int, ...]) -> None:
    """Each form that an entry may have."""
    register, offset, rules = POPPED[code]
    expected = Row(register, offset, b"", rules, 14)
    if len(code) <= 3:
        assert find_row(struct.unpack("<I", encode_words(0x80, *code))[0]) == expected
        assert find_row(encode_routine(0, *code)) == expected
    assert find_row(encode_routine(1, *code)) == expected
    assert find_row(encode_routine(2, *code)) == expected
    # A separate personality routine, as in C++: an address, the number of further words, instructions.
    assert find_row(struct.pack("<I", 0x1234) + encode_words(len(code) // 4, *code)) == expected


def test_a_stack_pointer_that_was_saved() -> None:
    """Two cases: pop {r11, sp} and pop {lr}, where lr is at the restored stack pointer; and vsp = a register that was popped."""
    row = find_row(encode_routine(1, 0x82, 0x80, 0x84, 0x00))
    assert row is not None
    assert row.expression == bytes([0x70 + 13, 4, 0x06, 0x11, 4, 0x22])
    assert row.rules[14] == Rule("offset", -4)
    assert row.rules[11] == Rule("saved", 0, bytes([0x70 + 13, 0]))
    row = find_row(encode_routine(1, 0xB1, 0x01, 0x90, 0x84, 0x00))
    assert row is not None
    assert row.expression == bytes([0x70 + 13, 0, 0x06, 0x11, 4, 0x22])


REFUSED = {
    "refuse to unwind": 0x808000B0,
    "another form": 0xF0B0B0B0,
    "another routine": encode_routine(3, 0xB0),
    "reserved": 0x809DB0B0,
    "reserved too": 0x809FB0B0,
    "spare": 0x80B100B0,
    "spare too": 0x80B110B0,
    "spare, of one byte": 0x80B6B0B0,
    "spare, of vectors": 0x80CAB0B0,
    "spare, the last": 0x80FFB0B0,
    "half an instruction": 0x80010184,
    "half a number": 0x80B2FFFF,
}


@pytest.mark.parametrize("word", REFUSED.values(), ids=REFUSED)
def test_entries_without_information(word: Union[int, bytes]) -> None:
    assert find_row(word) is None


def unwind(pc: int, stack: Sequence[int], status: int = 0x20, link: int = 0) -> tuple[list[int], str]:
    """Return the frames of a thread in code without tables (the addresses relative to BIAS), and what is missing at the end."""
    data = struct.pack(f"<{len(stack)}I", *stack)
    registers = {**{f"r{number}": number for number in range(13)}, "lr": link, "cpsr": status, "pc": BIAS + pc, "sp": STACK}
    target = fake.FakeTarget(
        {BIAS: image([(0x100, CANNOT_UNWIND)], CODE), STACK: data.ljust(0x1000, b"\0")},
        permissions={BIAS: "r-x"},
        modules=[MODULE],
        threads=[fake.thread(1, STACK, registers, arch=ARM)],
        arch=ARM,
    )
    trace = Unwinder(target).trace(target.threads()[0])
    return [frame.pc - BIAS for frame in trace.frames], trace.end


def test_code_without_tables() -> None:
    """Three cases: the instructions up to the return; the pushes of a function that never returns; the lr of a leaf function."""
    worker = [7, BIAS + 0x213, 0, 0, 4, BIAS + 0x203]
    assert unwind(0x21E, worker) == ([0x21E, 0x212, 0x202], "")
    assert unwind(0x21C, worker) == ([0x21C, 0x212, 0x202], "")  # before the system call
    assert unwind(0x21A, worker) == ([0x21A, 0x212, 0x202], "")  # right after the push
    assert unwind(0x218, worker[2:], link=BIAS + 0x213) == ([0x218, 0x212, 0x202], "")  # before it
    assert unwind(0x232, worker[2:], link=BIAS + 0x213) == ([0x232, 0x212, 0x202], "")
    endless = [7, BIAS + 0x22B, *[0] * 36, 7, BIAS + 0x231, 4, BIAS + 0x203]
    assert unwind(0x21E, endless) == ([0x21E, 0x22A, 0x230, 0x202], "")


def test_a_return_address_has_a_call_before_it() -> None:
    """A word without a call before it is not a return address."""
    found, end = unwind(0x21E, [7, BIAS + 0x211, 0, 0, 4, BIAS + 0x203])
    assert found == [0x21E]
    assert end == f"no unwind information for {BIAS + 0x21E:#x}"


def test_random_bytes_give_no_information() -> None:
    """Random tables, code and stacks: no exception, and unwinding ends."""
    rng = random.Random(5)
    for _ in range(60):
        data = bytearray(image([(16 * number, rng.getrandbits(32)) for number in range(64)], rng.randbytes(0xC00)))
        data[0x1800:] = rng.randbytes(SIZE - 0x1800)
        stack = [rng.choice((BIAS, 0, STACK)) + rng.randrange(SIZE) for _ in range(256)]
        registers = {f"r{number}": rng.choice(stack) for number in range(13)}
        registers.update(lr=rng.choice(stack), cpsr=rng.choice((0, 0x20)), pc=BIAS + rng.randrange(0x200, 0xE00) & ~1)
        target = fake.FakeTarget(
            {BIAS: bytes(data), STACK: struct.pack("<256I", *stack)},
            permissions={BIAS: "r-x"},
            modules=[MODULE],
            threads=[fake.thread(1, STACK, registers, arch=ARM)],
            arch=ARM,
        )
        assert 1 <= len(Unwinder(target).trace(target.threads()[0]).frames) <= 4096
