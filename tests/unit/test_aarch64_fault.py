"""The pointer with which an instruction of AArch64 accessed memory, and where it came from. The code is contiguous machine code."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any, Optional

import pytest
from fake import FakeTarget

from findleaks.audit.crash.aarch64_fault import Access, find_access, name_instruction
from findleaks.audit.crash.overwritten_base import Siblings
from findleaks.target.arch import AARCH64
from findleaks.target.base import Range, Symbol

FUNCTION, DATA, OTHER = 0x1000, 0x5000, 0x1100
NEXT = 0x7FFF0000
DATA_WORDS = (0x11, 0x22, 0, 0x44)
LOAD_OFFSET = 0xF9400822  # ldr x2, [x1, #16]
LOAD_POST = 0xF8408422  # ldr x2, [x1], #8
LOAD_PRE = 0xF8408C22  # ldr x2, [x1, #8]!
LOAD_PAIR = 0xA9408422  # ldp x2, x1, [x1, #8]
LOAD_NEXT = 0xF9400C21  # ldr x1, [x1, #24]
COPY = 0xAA0103E2  # mov x2, x1
ADD = 0x91004022  # add x2, x1, #16
USE = 0xF9400043  # ldr x3, [x2]
USE_BYTE = 0x38606820  # ldrb w0, [x1, x0]
STORE = 0xF9000084  # str x4, [x4]
RETURN, NOP, JUMP_X3, JUMP_X2 = 0xD65F03C0, 0xD503201F, 0xD61F0060, 0xD61F0040
CALL = 0x94000000 | (OTHER - FUNCTION) // 4  # bl OTHER, as the first instruction
CALL_X2 = 0xD63F0040  # blr x2
SKIP = 0xB4000043  # cbz x3, 8 bytes ahead


class Functions:
    """Functions of 0x100 bytes each, without a frame."""

    def extent(self, address: int) -> Range:
        start = address // 0x100 * 0x100
        return Range(start, start + 0x100)

    def row(self, address: int) -> None:
        return None

    def landing_pads(self, start: int) -> frozenset[int]:
        return frozenset()


def make_tracer(
    place: int, registers: dict[int, int], *code: int, called: bool = False, caller: tuple[int, ...] = (), name: str = "f"
) -> Any:
    """Return the tracer of a thread at `place`, in a function with these instructions, or with `called`, called by its last one.
    `caller`: the instructions of the function that called it. `name`: its name; "": it has none."""
    words, outer = ([*one, *[NOP] * (63 - len(one)), RETURN] for one in (code, caller))
    code_of = {FUNCTION: words, OTHER: outer}
    memory = {start: struct.pack("<64I", *one) for start, one in code_of.items()}
    memory[DATA] = struct.pack("<4Q", *DATA_WORDS)
    names = [Symbol(name, FUNCTION, 0x100)] if name else []
    target = FakeTarget(memory, permissions=dict.fromkeys(code_of, "r-x"), symbols=[*names, Symbol("other", OTHER, 0x100)], arch=AARCH64)
    pcs = [place, *([FUNCTION + 4 * len(code)] if called else []), *([OTHER + 4 * len(caller)] if caller else [])]
    frames = [SimpleNamespace(pc=pc) for pc in pcs]
    return SimpleNamespace(target=target, unwinder=Functions(), frames=frames, frame_registers=lambda level: registers)


def access(address: int, registers: dict[int, int], *code: int, called: bool = False, **options: Any) -> Optional[Access]:
    """Return the access by the last of these instructions to `address`. `called`: it is a call of `address`, which is not code."""
    place = address if called else FUNCTION + 4 * len(code) - 4
    return find_access(make_tracer(place, registers, *code, called=called, **options), address)


# Instructions before `ldr x3, [x2]`, the value of x1 after them, and the origin of x2: sort, address or number of the argument, offset.
ORIGINS = {
    "offset": ((LOAD_OFFSET,), DATA, ("memory", DATA + 16, 0)),
    "added after": ((LOAD_POST,), DATA + 24, ("memory", DATA + 16, 0)),
    "added before": ((LOAD_PRE,), DATA + 16, ("memory", DATA + 16, 0)),
    "copied argument": ((COPY,), 0, ("argument", 2, 0)),
    "sum": ((ADD,), DATA, ("argument", 2, 16)),
    "branch between": ((LOAD_OFFSET, 0xB4000083), DATA, ("memory", DATA + 16, 0)),  # cbz x3, 16 bytes ahead
    "branch to the use": ((SKIP, LOAD_OFFSET), DATA, None),
    "indirect jump elsewhere": ((JUMP_X3, LOAD_OFFSET), DATA, None),
    "other value": ((LOAD_OFFSET,), DATA + 8, None),
    "element": ((0xF8607822, 0x91000400), DATA, ("memory", DATA + 16, 0)),  # ldr x2, [x1, x0, lsl #3]; add x0, x0, #1
    "call": ((CALL, LOAD_OFFSET), DATA, ("memory", DATA + 16, 0)),
}


@pytest.mark.parametrize(("before", "base", "origin"), ORIGINS.values(), ids=ORIGINS)
def test_origin_of_a_null_pointer(before: tuple[int, ...], base: int, origin: Optional[tuple[str, int, int]]) -> None:
    found = access(0, {0: 3, 1: base, 2: 0}, *before, USE)
    assert found is not None and (found.kind, found.register, found.value) == ("pointer", 2, 0)
    made = found.origin and (found.origin.sort, found.origin.number or found.origin.address, found.origin.offset)
    assert made == origin


def test_result_of_a_function() -> None:
    found = access(4, {0: 0}, CALL, 0xB9400401)  # ldr w1, [x0, #4]
    assert found is not None and found.origin is not None
    assert (found.origin.sort, found.origin.address) == ("result", OTHER)


@pytest.mark.parametrize("code", [(LOAD_PAIR,), (0xF9400422, LOAD_NEXT)], ids=["pair", "two loads"])
def test_the_address_is_overwritten(code: tuple[int, ...]) -> None:
    found = access(0, {1: NEXT, 2: 0}, *code, USE)
    assert found is not None and found.origin is None
    assert found.siblings == Siblings(8, 16 if code[0] == LOAD_PAIR else 24, NEXT)


def test_call_of_a_null_pointer() -> None:
    found = access(0, {1: DATA, 2: 0}, LOAD_OFFSET, CALL_X2, called=True)
    assert found is not None and found.origin is not None
    assert (found.kind, found.origin.address, found.origin.level) == ("call", DATA + 16, 1)


def test_index() -> None:
    found = access(DATA + (1 << 28), {0: 1 << 28, 1: DATA}, USE_BYTE)
    assert found is not None and (found.kind, found.register, found.value, found.array) == ("index", 0, 1 << 28, DATA)
    # Without an origin, the index may be the distance between two pointers.
    assert access(DATA + (1 << 28), {0: 1 << 28, 1: DATA}, 0xCB020060, USE_BYTE) is None  # sub x0, x3, x2


def test_an_index_of_32_bits() -> None:
    index = -50_000_000
    found = access(DATA + 4 * index & (1 << 64) - 1, {0: index & 0xFFFFFFFF, 1: DATA}, 0xB860D820)  # ldr w0, [x1, w0, sxtw #2]
    assert found is not None and (found.kind, found.value, found.array) == ("index", index, DATA)


def test_an_index_that_may_be_a_distance() -> None:
    """0x90000000 does not fit in 32 bits, and is near the mappings, as a pointer or a distance may be."""
    for index, known in ((0x90000000, False), (1 << 33, True)):
        assert (access(DATA + index, {0: index, 1: DATA}, USE_BYTE) is not None) == known


def test_the_stack_pointer_moved() -> None:
    load = 0xF94007E2  # ldr x2, [sp, #8]
    for between, known in ((NOP, True), (0x910043FF, False)):  # add sp, sp, #16
        found = access(0, {2: 0, 31: DATA + 8}, load, between, USE)
        assert found is not None and (found.origin is not None) == known


def test_another_write_between() -> None:
    """swp writes memory, too."""
    for between, known in ((NOP, True), (0xF8258086, False)):  # swp x5, x6, [x4]
        found = access(0, {1: NEXT, 2: 0}, 0xF9400422, between, LOAD_NEXT, USE)  # ldr x2, [x1, #8]
        assert found is not None and (found.siblings is not None) == known


def test_a_part_of_a_function_that_was_moved() -> None:
    """Such a part has no name, or its name ends with .cold. Its registers are not arguments."""
    for name, known in (("f", True), ("f.cold", False), ("", False)):
        found = access(0, {1: 0, 2: 0}, COPY, USE, name=name)
        assert found is not None and (found.origin is not None) == known


def test_the_argument_of_a_caller() -> None:
    back = 0x94000000 | ((FUNCTION - OTHER - 4) // 4 & 0x3FFFFFF)  # bl FUNCTION, as the second instruction
    caller = (0xF9400A81, back)  # ldr x1, [x20, #16]
    found = access(0, {1: 0, 2: 0, 20: DATA}, COPY, USE, caller=caller, name="")
    assert found is not None and found.origin is not None
    assert (found.origin.sort, found.origin.level, found.origin.address) == ("memory", 1, DATA + 16)


def test_a_value_that_is_older_than_a_call() -> None:
    for between, is_older in ((NOP, False), (0x94000000 | (OTHER - FUNCTION - 4) // 4, True)):
        found = access(0, {20: DATA, 19: 0}, 0xF9400A93, between, 0xF9400263)  # ldr x19, [x20, #16]; ldr x3, [x19]
        assert found is not None and found.origin is not None and found.origin.is_older == is_older


def test_the_names_of_instructions() -> None:
    """The last word is not an instruction."""
    for word, name in ((0xD4207D00, "brk"), (7, "udf"), (0xFFFFFFFF, "")):
        assert name_instruction(make_tracer(FUNCTION, {}, word)) == name


def test_memory_that_may_have_changed() -> None:
    """x2 was loaded through x1, which was itself loaded before a store to an unknown address."""
    through = 0xF9400081  # ldr x1, [x4]
    clear = 0xD2800001  # mov x1, #0
    for between, known in (((), True), ((STORE,), False)):
        found = access(0, {1: 0, 2: 0, 4: DATA}, through, *between, LOAD_OFFSET, clear, USE)
        assert found is not None and (found.origin is not None) == (known and DATA_WORDS[0] == DATA)
