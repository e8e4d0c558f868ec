"""Machine code of Go functions, as steps: x86-64 and AArch64."""

from __future__ import annotations

import random
import struct
from types import SimpleNamespace
from typing import cast

import pytest
from fake import FakeTarget

from findleaks.runtimes.go import code_references
from findleaks.runtimes.go.code_references import OPERANDS
from findleaks.runtimes.go.machine_code import (
    ABSOLUTE,
    BRANCH,
    CALL,
    CONSTANT,
    CONVENTIONS,
    COPY,
    END,
    FORGET,
    LOAD,
    NOWHERE,
    NUMBER,
    STACK,
    STORE,
    UNKNOWN_JUMP,
    Step,
)
from findleaks.runtimes.go.moduledata import ModuleData
from findleaks.target.arch import AARCH64, X86_64
from findleaks.target.base import Range

AT = 0x400000


def test_steps_of_x86_64() -> None:
    pytest.importorskip("capstone")
    code = bytes.fromhex(
        "488d0510000000"  # lea rax, [rip + 0x10]
        "e8f4ffffff"  # call AT
        "4889442448"  # mov [rsp + 0x48], rax
        "488b5a10"  # mov rbx, [rdx + 0x10]
        "48890500010000"  # mov [rip + 0x100], rax
        "4889d9"  # mov rcx, rbx
        "48f7e1"  # mul rcx
        "440f117c2410"  # movups [rsp + 0x10], xmm15
        "440f11742410"  # movups [rsp + 0x10], xmm14
        "48c744241005000000"  # mov qword ptr [rsp + 0x10], 5
        "660f3a61c100"  # pcmpestri xmm0, xmm1, 0, which changes rcx
        "740a"  # je
        "ffe1"  # jmp rcx
        "f00fb111"  # lock cmpxchg dword ptr [rcx], edx, which changes rax
        "f00fc119"  # lock xadd dword ptr [rcx], ebx
        "488701"  # xchg qword ptr [rcx], rax
        "f0830901"  # lock or dword ptr [rcx], 1
        "f0480fc709"  # lock cmpxchg16b [rcx]
        "4893"  # xchg rbx, rax
        "c3"
    )
    steps = list(CONVENTIONS[X86_64.name].decode(code, AT))
    assert [step[1:] for step in steps] == [
        (CONSTANT, 0, NOWHERE, AT + 0x17),
        (CALL, NOWHERE, NOWHERE, AT),
        (STORE, 0, STACK, 0x48),
        (LOAD, 1, 9, 0x10),
        (STORE, 0, ABSOLUTE, AT + 0x1C + 0x100),
        (COPY, 2, 1, 0),
        (FORGET, NOWHERE, NOWHERE, 0),
        (STORE, NUMBER, STACK, 0x10),
        (STORE, NUMBER, STACK, 0x18),
        (STORE, NOWHERE, STACK, 0x10),
        (STORE, NOWHERE, STACK, 0x18),
        (STORE, NUMBER, STACK, 0x10),
        (FORGET, NOWHERE, NOWHERE, 0),
        (BRANCH, NOWHERE, NOWHERE, AT + 0x3F + 10),
        (UNKNOWN_JUMP, NOWHERE, NOWHERE, 0),
        (FORGET, 0, NOWHERE, 0),
        (FORGET, 1, NOWHERE, 0),
        (FORGET, 0, NOWHERE, 0),
        (STORE, NOWHERE, NOWHERE, 0),
        (FORGET, NOWHERE, NOWHERE, 0),
        (FORGET, NOWHERE, NOWHERE, 0),
        (END, NOWHERE, NOWHERE, 1),
    ]


def test_steps_of_aarch64() -> None:
    words = (
        0xB0000000,  # adrp x0, 0x401000
        0x910A0000,  # add x0, x0, #0x280
        0x97FFFFFE,  # bl AT
        0xF9003BE0,  # str x0, [sp, #112]
        0xF9400B43,  # ldr x3, [x26, #16]
        0xAA0303E1,  # mov x1, x3
        0xB9000020,  # str w0, [x1]
        0x39400022,  # ldrb w2, [x1]
        0xB4000041,  # cbz x1
        0xA9400400,  # ldp x0, x1, [x0]
        0xA9017FE3,  # stp x3, xzr, [sp, #16]
        0xAD0107E0,  # stp q0, q1, [sp, #32]
        0xB27D07E0,  # orr x0, xzr, #24
        0xB2003FE7,  # orr x7, xzr, #0xffff0000ffff
        0xB24107E0,  # orr x0, xzr, #0x8000000000000001
        0xB200FFE0,  # not valid: no bit of the element is zero
        0xD65F03C0,  # ret
    )
    steps = list(CONVENTIONS[AARCH64.name].decode(struct.pack(f"<{len(words)}I", *words), AT))
    assert [step for step in steps if step.kind != STORE or step.base != NOWHERE] == [
        Step(AT, FORGET, 0),
        Step(AT + 4, CONSTANT, 0, NOWHERE, 0x401280),
        Step(AT + 8, CALL, number=AT),
        Step(AT + 12, STORE, 0, STACK, 112),
        Step(AT + 16, LOAD, 3, 26, 16),
        Step(AT + 20, COPY, 1, 3),
        Step(AT + 28, FORGET, 2),
        Step(AT + 32, BRANCH, number=AT + 40),
        Step(AT + 36, LOAD, 1, 0, 8),
        Step(AT + 36, LOAD, 0, 0, 0),
        Step(AT + 40, STORE, 3, STACK, 16),
        Step(AT + 40, STORE, NUMBER, STACK, 24),
        *(Step(AT + 44, STORE, NOWHERE, STACK, offset) for offset in range(32, 64, 8)),
        Step(AT + 48, CONSTANT, 0, number=24),
        Step(AT + 52, CONSTANT, 7, number=0xFFFF0000FFFF),
        Step(AT + 56, CONSTANT, 0, number=0x8000000000000001),
        Step(AT + 60, CONSTANT, 0, number=(1 << 64) - 1),
        Step(AT + 64, END, number=1),
    ]
    assert {step.address for step in steps} == set(range(AT, AT + 4 * len(words), 4))


@pytest.mark.parametrize("reach", [8, 1 << 12, 1 << 20, 1 << 27])
def test_operands_that_lead_to_a_range(reach: int) -> None:
    """The search for operands that lead to a range finds those that the search for all operands finds there. For functions, only those of
    lea count."""
    numbers = random.Random(reach)
    for _ in range(8):
        code = bytearray(numbers.randbytes(2048))
        low = AT + numbers.randrange(-1 << 25, 1 << 25)
        for place in range(0, 2000, 16):
            code[place : place + 2] = b"\x8d\x0d" if place % 32 else b"\x39\x0d"
            code[place + 2 : place + 6] = struct.pack("<i", numbers.randint(low, low + reach) - (AT + place + 6))
        found = [one for one in OPERANDS[X86_64.name].find(bytes(code), AT) if low <= one[1] <= low + reach]
        assert [one for one in OPERANDS[X86_64.name].find(bytes(code), AT, (low, low + reach, False)) if one in found] == found
        functions = [one for one in found if code[one[0] - AT - 1] == 0x8D]
        assert 62 <= len(functions) < len(found)
        assert [one for one in OPERANDS[X86_64.name].find(bytes(code), AT, (low, low + reach, True)) if one in found] == functions
    assert not list(OPERANDS[X86_64.name].find(bytes(code), AT, (AT + (1 << 33), AT + (1 << 34), False)))


def test_instructions_at_the_limits_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code is searched in parts. Each instruction is found once, even if it begins in one part and ends in the next."""
    part, function, variable = 0x200, AT + 0x10, AT + 0x20000
    monkeypatch.setattr(code_references, "_SLICE", part)
    code, loads, calls = bytearray(b"\x90" * 0x4000), [], []
    for number in range(1, 9):
        for limit, wanted in ((number, function), (number + 8, variable)):
            at = limit * part - number
            code[at : at + 7] = b"\x48\x8d\x05" + struct.pack("<i", wanted - AT - at - 7)
            loads.append((wanted, AT + at + 2))
        at = (number + 16) * part - number
        code[at : at + 5] = b"\xe8" + struct.pack("<i", function - AT - at - 5)
        calls.append((AT + at, function))
    target, module = FakeTarget({AT: bytes(code)}), cast(ModuleData, SimpleNamespace(text=Range(AT, AT + len(code))))
    assert sorted(code_references.find_references(target, module, frozenset((function, variable)))) == sorted(loads)
    assert list(code_references.find_calls(target, module, [function])) == calls
