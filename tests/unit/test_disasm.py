"""Decoding of machine code: compared with objdump on real code, and where decoding ends or code is unreadable."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import objdump
import pytest
import v8image
from fake import FakeTarget

from findleaks.disasm import aarch64, capstone_loader
from findleaks.disasm.capstone_loader import CAPSTONE_MISSING, CapstoneMissing
from findleaks.disasm.functions import instructions_at, resolve_stub
from findleaks.disasm.instruction import NONE, Instruction
from findleaks.disasm.registers import RBP, RCX, RDI, RIP, RSI
from findleaks.disasm.x86 import decoder, instructions
from findleaks.injection.stub.relocate import plan
from findleaks.runtimes import gil
from findleaks.runtimes.v8 import layout
from findleaks.target.arch import AARCH64, X86_64
from findleaks.target.base import Symbol

AT = 0x401000
R12 = 12


def decode_one(code: str) -> Instruction:
    (made,) = instructions(bytes.fromhex(code.replace(" ", "")), AT)
    return made


def make_instruction(size: int, name: str, *operands: int, **rest: object) -> Instruction:
    return Instruction(AT, size, name, *operands)._replace(**rest)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("488b8780030000", make_instruction(7, "mov", 0, NONE, RDI, displacement=0x380, width=8)),  # mov 0x380(%rdi),%rax
        ("8b47f8", make_instruction(3, "mov", 0, NONE, RDI, displacement=-8, width=4)),  # mov -8(%rdi),%eax
        ("488b4cc1f8", make_instruction(5, "mov", RCX, NONE, RCX, 0, 8, -8, width=8)),  # mov -8(%rcx,%rax,8),%rcx
        ("488b0510000000", make_instruction(7, "mov", 0, NONE, RIP, displacement=AT + 7 + 0x10, width=8)),  # mov 0x10(%rip),%rax
        ("64488b042578ffffff", make_instruction(9, "mov", 0, displacement=-0x88, width=8, fs=True)),  # mov %fs:-0x88,%rax
        ("4889f8", make_instruction(3, "mov", 0, RDI, width=8)),
        ("488bc7", make_instruction(3, "mov", 0, RDI, width=8)),  # the same instruction in another encoding
        ("48894738", make_instruction(4, "mov", NONE, 0, RDI, displacement=0x38, width=8)),  # mov %rax,0x38(%rdi)
        ("c7864002000000000000", make_instruction(10, "mov", NONE, NONE, RSI, displacement=0x240, immediate=0, width=4)),
        ("83864002000001", make_instruction(7, "add", NONE, NONE, RSI, displacement=0x240, immediate=1, width=4)),
        ("f0480143 18", make_instruction(5, "add", NONE, 0, 3, displacement=0x18, width=8, locked=True)),  # lock add %rax,0x18(%rbx)
        ("69c0fe030000", make_instruction(6, "imul", 0, 0, immediate=1022, width=4)),
        ("0fb644010b", make_instruction(5, "movzx", 0, NONE, RCX, 0, 1, 0xB, width=4)),
        ("4154", make_instruction(2, "push", NONE, R12, width=8)),
        ("415c", make_instruction(2, "pop", R12, width=8)),
        ("e8fbff0000", make_instruction(5, "call", target=0x411000, width=8)),
        ("ebfe", make_instruction(2, "jmp", target=AT, width=8)),
        ("740e", make_instruction(2, "je", target=AT + 16, width=8)),
        ("f2ff25f90f0000", make_instruction(7, "jmp", NONE, NONE, RIP, displacement=0x402000, width=8)),  # bnd jmp *0xff9(%rip)
        ("ff5518", make_instruction(3, "call", NONE, NONE, RBP, displacement=0x18, width=8)),
        ("c3", make_instruction(1, "ret")),
        ("f30f1efa", make_instruction(4, "endbr64")),
    ],
)
def test_one_instruction(code: str, expected: Instruction) -> None:
    assert decode_one(code) == expected


def test_decoder_agrees_with_objdump() -> None:
    """Compare each instruction of a library: its end, its operand in memory, and its destination if it is a jump."""
    truth, starts = objdump.disassemble("/lib/x86_64-linux-gnu/libc.so.6", "-j", ".text", f"--stop-address={0x70000}")
    sums = [0, 0, 0]
    for start, following in zip(starts, starts[1:]):
        code = b"".join(truth[address][0] for address in range(start, following) if address in truth)
        ours = list(instructions(code, start))
        sums = [one + more for one, more in zip(sums, objdump.compare_decoder(ours, truth))]
        assert sum(one.size for one in ours) == len(code)
    seen, operands, jumps = sums
    assert seen > 50_000
    assert operands > 10_000
    assert jumps > 5_000


@pytest.mark.parametrize(
    ("code", "sizes"),
    [
        ("488b4218 06", [4]),
        ("488b42", []),
        ("e80000", []),
        ("64488b0425", []),
        ("48b80102030405060708 90", [10, 1]),
        ("66", []),
        ("c5f877 c3", [3, 1]),  # vzeroupper
        ("", []),
    ],
)
def test_decoding_stops_at_unknown_or_incomplete_instructions(code: str, sizes: list[int]) -> None:
    assert [one.size for one in instructions(bytes.fromhex(code), 0)] == sizes


def test_long_code_is_decoded_piece_by_piece() -> None:
    """A piece may end at any byte of an instruction."""
    long = bytes.fromhex("48b80102030405060708")
    for shift in range(12):
        code = b"\x90" * shift + long * 1000
        found = list(instructions(code, AT))
        assert [one.size for one in found] == [1] * shift + [10] * 1000
        assert found[-1].end == AT + len(code)


def test_code_that_cannot_be_read_has_no_instructions() -> None:
    target = FakeTarget({AT: bytes.fromhex("4889f8 c3")})
    assert [one.name for one in instructions_at(target, AT, 4)] == ["mov", "ret"]
    assert list(instructions_at(target, AT, 5)) == list(instructions_at(target, AT, 0)) == []


def test_stubs_are_resolved() -> None:
    slot, there = 0x402000, 0x7F0000001230
    stubs = {
        AT: bytes.fromhex("f30f1efa f2ff25") + struct.pack("<i", slot - AT - 11),  # endbr64; bnd jmp *slot(%rip)
        AT + 0x100: bytes.fromhex("ff25") + struct.pack("<i", slot - AT - 0x106),
        AT + 0x200: bytes.fromhex("55 ff25") + struct.pack("<i", slot - AT - 0x207),  # a function that ends with a jump is not a stub
        AT + 0x300: bytes.fromhex("ff25") + struct.pack("<i", 0x1000000),  # an unreadable slot
    }
    target = FakeTarget({**{at: code.ljust(16, b"\xcc") for at, code in stubs.items()}, slot: struct.pack("<Q", there)})
    assert [resolve_stub(target, at) for at in stubs] == [there, there, AT + 0x200, AT + 0x300]
    assert resolve_stub(target, 0x999000) == 0x999000


def test_resolve_stub_of_aarch64() -> None:
    """A PLT entry, with and without `bti c`; and a function that begins with a load into another register."""
    slot, there = 0x11008, 0x7F5500001000
    entry = "90000090 11 06 40 f9 10220091 20021fd6"  # adrp x16, 0x11000; ldr x17, [x16, #8]; add x16, x16, #8; br x17
    stubs = {0x1000: entry, 0x1100: f"5f2403d5 {entry}", 0x1200: entry.replace("11 06", "01 06")}
    memory = {at: bytes.fromhex(code).ljust(32, b"\0") for at, code in stubs.items()}
    target = FakeTarget({**memory, slot: struct.pack("<Q", there)}, arch=AARCH64)
    assert [resolve_stub(target, at) for at in stubs] == [there, there, 0x1200]


ARM_COUNT = (
    "e20300aa 00204091 03e471f9 610c40f9 e003012a a1010034 630440f9 240400d1 00809cd2 4200008b "
    "21040051 637864f8 20581753 42805af8 0100014b 400003cb 00fc4393 0004010b c0035fd6"
)


def test_far_offsets_and_products_on_aarch64() -> None:
    """Distances from the argument that several instructions compute, and a product of 1022 that shifts compute."""
    listed = list(aarch64.instructions(bytes.fromhex(ARM_COUNT), 0x1000))
    loads = [(one.base, one.displacement, one.wide, one.scaled >= 0) for one in listed if one.loads]
    assert loads == [(7, 0xE3C8, True, False), (1, 24, True, False), (1, 8, True, False), (1, -8, True, True), (7, 0xE3A8, True, False)]
    assert [one.immediate for one in listed if one.name == "imul"][-1] == 1022
    assert [one.address for one in listed] == list(range(0x1000, 0x1000 + 4 * len(listed), 4))
    assert listed[-1].name == "ret"


def test_aarch64_continues_after_unknown_instructions() -> None:
    listed = list(aarch64.instructions(bytes.fromhex("ffffffff 610c40f9 0300"), 0x1000))  # none; ldr x1,[x3,#24]; half of one
    assert [(one.address, one.name) for one in listed] == [(0x1000, ""), (0x1004, "mov")]
    assert (listed[1].destination, listed[1].base, listed[1].displacement) == (6, aarch64.number(3), 24)


ARM_CALLS = (
    "045f9ad2 0100048b e00314aa 0e000094"  # mov x4, #0xd2f8; add x1, x0, x4; mov x0, x20; bl HELPER
    "60e20591 fbffff97"  # add x0, x19, #0x178; bl …
    "610240f9 211840f9 20003fd6"  # ldr x1, [x19]; ldr x1, [x1, #48]; blr x1
    "630222f8"  # ldadd x2, x3, [x19]
    "657e5fc8 a600028b 667e07c8 a7ffff35"  # ldxr x5, [x19]; add x6, x5, x2; stxr w7, x6, [x19]; cbnz w7, …
    "5f300071 60020191 01000014"  # cmp w2, #12; add x0, x19, #0x40; b …
)
ARM_HELPER = "10000090 10124039 70000034 2000e0f8 c0035fd6"  # adrp x16, …; ldrb w16, [x16, #4]; cbz w16, …; ldaddal x0, x0, [x1]; ret


def test_calls_and_atomic_additions_on_aarch64() -> None:
    """Additions in each form that compilers use. Calls have the same fields as calls on x86-64."""
    helper = bytes.fromhex(ARM_HELPER)
    assert aarch64.is_atomic_addition(helper)
    for changed in (helper[:12] + helper[16:], helper[16:] + helper, helper.replace(bytes.fromhex("2000e0f8"), bytes.fromhex("4000e0f8"))):
        assert not aarch64.is_atomic_addition(changed)
    listed = list(aarch64.instructions(bytes.fromhex(ARM_CALLS), 0x1000, lambda function: function == 0x1044))
    saved = aarch64.number(19)
    added = [(one.address, one.base, one.displacement, one.locked) for one in listed if one.name == "xadd"]
    assert added == [(0x100C, 7, 0xD2F8, True), (0x1024, saved, 0, True), (0x1030, saved, 0, True)]
    assert [(one.destination, one.base, one.displacement) for one in listed if one.name == "lea"] == [(7, saved, 0x178), (7, saved, 0x40)]
    assert [(one.target, one.displacement) for one in listed if one.name == "call"] == [(0x1000, None), (None, 48)]
    assert [(one.destination, one.immediate) for one in listed if one.name == "cmp"] == [(2, 12)]


def test_error_without_capstone_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capstone_loader, "load_capstone", lambda: None)
    decoder.cache_clear()
    aarch64.decoder.cache_clear()
    try:
        image = v8image.Image()
        with pytest.raises(layout.Underivable, match=re.escape(CAPSTONE_MISSING)):
            layout.derive(image.target())
        with pytest.raises(CapstoneMissing, match=re.escape(CAPSTONE_MISSING)):
            plan("f", AT, AT + 8, bytes(8))
        python = FakeTarget({AT: bytes(64)}, symbols=[Symbol("PyThreadState_Get", AT, 64)])
        with pytest.raises(CapstoneMissing, match=re.escape(CAPSTONE_MISSING)):
            gil.derive(python)
        with pytest.raises(CapstoneMissing):
            list(instructions_at(FakeTarget({AT: bytes(64)}, arch=X86_64._replace(name="AArch64")), AT, 64))
    finally:
        decoder.cache_clear()
        aarch64.decoder.cache_clear()


def test_only_disasm_uses_capstone() -> None:
    """Only `disasm` decodes code. Other packages import the library only to pass it on, or to report that it is missing."""
    common = Path(__file__).parents[2] / "common"
    direct = re.compile(r"^\s*(?:import|from) capstone\b", re.MULTILINE)
    assert {file.parent.name for file in common.rglob("*.py") if direct.search(file.read_text())} == {"disasm"}
