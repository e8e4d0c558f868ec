"""A debugger's text read back into instructions: held to our decoder's reading of the same bytes, in the words of both debuggers."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Optional

import objdump
import pytest
import readings
import v8image
from fake import FakeTarget

from findleaks.errors import UnreadableMemory
from findleaks.runtimes.v8 import decode, disassembly
from findleaks.runtimes.v8.layout import derive
from findleaks.runtimes.v8.listing import listing
from findleaks.target.base import Disassembled

AT = 0x401000

SAME = [
    ("488b8780030000", "mov    0x380(%rdi),%rax", "movq 0x380(%rdi), %rax"),
    ("488b87f8ffffff", "mov    -0x8(%rdi),%rax", "movq -8(%rdi), %rax"),
    ("488b87f8ffffff", "mov    -0x8(%rdi),%rax", "movq -8h(%rdi), %rax"),
    ("8b4718", "mov    0x18(%rdi),%eax", "movl 0x18(%rdi), %eax"),
    ("488b4cc1f8", "mov    -0x8(%rcx,%rax,8),%rcx", "movq -0x8(%rcx,%rax,8), %rcx"),
    ("488b04c500000000", "mov    0x0(,%rax,8),%rax", "movq (,%rax,8), %rax"),
    ("488b0510000000", "mov    0x10(%rip),%rax        # 0x401017 <a, b(c)+4>", "movq 0x10(%rip), %rax"),
    ("64488b042578ffffff", "mov    %fs:0xffffffffffffff78,%rax", "movq %fs:-0x88, %rax"),
    ("64488b00", "mov    %fs:(%rax),%rax", "movq %fs:(%rax), %rax"),
    ("8b042510204000", "mov    0x402010,%eax", "movl 0x402010, %eax"),
    ("4889f8", "mov    %rdi,%rax", "movq %rdi, %rax"),
    ("89c3", "mov    %eax,%ebx", "movl %eax, %ebx"),
    ("48894738", "mov    %rax,0x38(%rdi)", "movq %rax, 0x38(%rdi)"),
    ("c7864002000000000000", "movl   $0x0,0x240(%rsi)", "movl $0x0, 0x240(%rsi)"),
    ("48c7c0ffffffff", "mov    $0xffffffffffffffff,%rax", "movq $-0x1, %rax"),
    ("bf28000000", "mov    $0x28,%edi", "movl $0x28, %edi"),
    ("48b88877665544332211", "movabs $0x1122334455667788,%rax", "movabsq $0x1122334455667788, %rax"),
    ("838640020000 01", "addl   $0x1,0x240(%rsi)", "addl $0x1, 0x240(%rsi)"),
    ("4883c018", "add    $0x18,%rax", "addq $0x18, %rax"),
    ("4883c4f0", "add    $0xfffffffffffffff0,%rsp", "addq $-0x10, %rsp"),
    ("81c700100000", "add    $0x1000,%edi", "addl $0x1000, %edi"),
    ("83e003", "and    $0x3,%eax", "andl $0x3, %eax"),
    ("482b4728", "sub    0x28(%rdi),%rax", "subq 0x28(%rdi), %rax"),
    ("f0480143 18", "lock add %rax,0x18(%rbx)", "lock|addq %rax, 0x18(%rbx)"),
    ("f0480fc10f", "lock xadd %rcx,(%rdi)", "lock|xaddq %rcx, (%rdi)"),
    ("ff8640020000", "incl   0x240(%rsi)", "incl 0x240(%rsi)"),
    ("48f7df", "neg    %rdi", "negq %rdi"),
    ("31c0", "xor    %eax,%eax", "xorl %eax, %eax"),
    ("69c0fe030000", "imul   $0x3fe,%eax,%eax", "imull $0x3fe, %eax, %eax"),
    ("48c1e005", "shl    $0x5,%rax", "shlq $0x5, %rax"),
    ("48d1e0", "shl    %rax", "shlq %rax"),
    ("48d1e0", "shl    $1,%rax", "shlq $0x1, %rax"),
    ("0fb644010b", "movzbl 0xb(%rcx,%rax,1),%eax", "movzbl 0xb(%rcx,%rax), %eax"),
    ("0fb7471a", "movzwl 0x1a(%rdi),%eax", "movzwl 0x1a(%rdi), %eax"),
    ("4863c7", "movslq %edi,%rax", "movslq %edi, %rax"),
    ("480f44c2", "cmove  %rdx,%rax", "cmoveq %rdx, %rax"),
    ("0f4cc2", "cmovl  %edx,%eax", "cmovll %edx, %eax"),
    ("488d05f9ffffff", "lea    -0x7(%rip),%rax        # 0x401000", "leaq -0x7(%rip), %rax"),
    ("39c8", "cmp    %ecx,%eax", "cmpl %ecx, %eax"),
    ("483b4708", "cmp    0x8(%rdi),%rax", "cmpq 0x8(%rdi), %rax"),
    ("85c0", "test   %eax,%eax", "testl %eax, %eax"),
    ("f6400801", "testb  $0x1,0x8(%rax)", "testb $0x1, 0x8(%rax)"),
    ("4154", "push   %r12", "pushq %r12"),
    ("415c", "pop    %r12", "popq %r12"),
    ("e8fbff0000", "call   0x411000 <v8::HandleScope::Initialize(v8::Isolate*)>", "callq 0x411000"),
    ("e9fbff0000", "jmp    0x411000", "jmp 0x411000"),
    ("ebfe", "jmp    0x401000 <x#y+4>", "jmp 0x401000"),
    ("ebfe", "jmp    0x401000", "jmp 4198400"),
    ("740e", "je     0x401010", "je 0x401010"),
    ("740e", "je,pn  0x401010", "je 401010h"),
    ("0f8c0a000000", "jl     0x401010", "jl 0x401010"),
    ("ff25fa0f0000", "jmp    *0xffa(%rip)        # 0x402000 <free@got.plt>", "jmpq *0xffa(%rip)"),
    ("f2ff25f90f0000", "bnd jmp *0xff9(%rip)        # 0x402000", "repne|jmpq *0xff9(%rip)"),
    ("ffd0", "call   *%rax", "callq *%rax"),
    ("ff5018", "call   *0x18(%rax)", "callq *0x18(%rax)"),
    ("3effe0", "notrack jmp *%rax", "jmpq *%rax"),
    ("c3", "ret", "retq"),
    ("f3c3", "repz ret", "rep|retq"),
    ("f30f1efa", "endbr64", "endbr64"),
    ("f348ab", "rep stos %rax,%es:(%rdi)", "rep stosq %rax, %es:(%rdi)"),
    ("f348ab", "rep stos %rax,(%rdi)", "rep stosq\t%rax, %es:(%rdi)"),
    ("f20f104708", "movsd  0x8(%rdi),%xmm0", "movsd 0x8(%rdi), %xmm0"),
    ("0f114420f0", "movups %xmm0,-0x10(%rax,%riz,1)", "movups %xmm0, -0x10(%rax,%riz)"),
    ("d9c1", "fld    %st(1)", "fld %st(1)"),
    ("662e0f1f840000000000", "cs nopw 0x0(%rax,%rax,1)", "nopw %cs:(%rax,%rax)"),
]
"""Bytes, what GDB prints, what LLDB prints; where it takes a prefix for an instruction, behind a bar the rest."""


def lines(code: bytes, text: str) -> list[Disassembled]:
    prefix, _, rest = text.rpartition("|")
    if not prefix:
        return [Disassembled(AT, len(code), text)]
    return [Disassembled(AT, 1, prefix), Disassembled(AT + 1, len(code) - 1, rest)]


@pytest.mark.parametrize(("code", "gdb", "lldb"), SAME)
def test_both_debuggers_words_mean_what_the_bytes_do(code: str, gdb: str, lldb: str) -> None:
    data = bytes.fromhex(code)
    (ours,) = decode.instructions(data, AT)
    for text in (gdb, lldb):
        (one,) = disassembly.instructions(lines(data, text))
        found = readings.compared(data, [Disassembled(AT, len(data), text.replace("|", " "))])
        assert (found.seen, found.differing) == (1, [])
        assert (one.address, one.length, one.displacement, one.target) == (AT, len(data), ours.displacement, ours.target)
        assert one.locked == ours.locked == text.startswith("lock")


def test_objdump_and_our_decoder_read_the_same() -> None:
    """The library that GDB disassembles with, over functions of libc that any compiler's instructions occur in."""
    truth, starts = objdump.disassembled("/lib/x86_64-linux-gnu/libc.so.6", "-j", ".text", f"--stop-address={0x90000}")
    seen = whole = 0
    for start, following in zip(starts, starts[1:]):
        rows = [(at, truth[at]) for at in range(start, following) if at in truth]
        listed = [Disassembled(at, len(code), objdump.as_gdb(text)) for at, (code, text) in rows]
        found = readings.compared(b"".join(code for _, (code, _) in rows), listed)
        assert found.differing == []
        seen, whole = seen + found.seen, whole + found.whole
    assert seen > 50_000
    assert whole > 40_000


STRANGE = [
    *("", "(bad)", ".byte 0x6", "<unknown>", "mov 0x8(%foo),%rax", "add $zz,%eax", "call foo", "jmp", "mov 0x8(%rdi", "mov %rax,,%rbx"),
    *("mov rax,QWORD PTR [rdi+0x8]", "mov    eax,DWORD PTR fs:0xfffffffffffffff8", "vpgatherdd (%rax,%xmm1,4),%xmm0", "rex.W", "lock"),
]
"""No instruction, none that we understand, and Intel's flavor."""


@pytest.mark.parametrize("text", STRANGE)
def test_what_is_not_understood_ends_the_listing(text: str) -> None:
    following = [Disassembled(AT, 3, "mov %rdi,%rax"), Disassembled(AT + 3, 1, text), Disassembled(AT + 4, 1, "(bad)")]
    assert [one.address for one in disassembly.instructions(following)] == [AT]


def test_no_text_is_too_strange() -> None:
    rng = random.Random(5)
    words = ["mov", "lock", "%rax", "$0x1", "(", ")", ",", "*", "%fs:", "0x", "-", "8h", "jmp", "cmov", "imul", "push", "lea", "xadd", " "]
    words += ["{", "}", "<", "#", "test", "\t", "é", "\0", "%", "$", "shl", "call", "movz", "q", "99999999999999999999999999"]
    for _ in range(20_000):
        text = "".join(rng.choices(words, k=rng.randrange(8)))
        assert len(list(disassembly.instructions([Disassembled(0, 1, text)]))) <= 1


def test_offsets_come_from_the_debuggers_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a debugger nothing is decoded by us."""
    image = v8image.Image()
    expected = derive(image.target())
    asked: list[int] = []
    of_bytes = decode.instructions

    def disassembler(address: int, code: bytes) -> Optional[Iterable[Disassembled]]:
        asked.append(address)
        of_code = [(one, code[one.address - address :][: one.length]) for one in of_bytes(code, address)]
        return [Disassembled(one.address, one.length, TEXTS[bytes(data)]) for one, data in of_code]

    target = image.target()
    target.disassembler = disassembler
    monkeypatch.setattr(decode, "instructions", None)
    assert derive(target) == expected
    assert asked[:3] == [v8image.COUNT, v8image.INITIALIZE, v8image.GET]


TEXTS = {
    bytes.fromhex(code.replace(" ", "")): text
    for code, text in (
        ("488b9780030000", "mov    0x380(%rdi),%rdx"),
        ("488b4218", "mov    0x18(%rdx),%rax"),
        ("4885c0", "test   %rax,%rax"),
        ("488b4a08", "mov    0x8(%rdx),%rcx"),
        ("488b4cc1f8", "mov    -0x8(%rcx,%rax,8),%rcx"),
        ("488b9730020000", "mov    0x230(%rdi),%rdx"),
        ("69c0fe030000", "imul   $0x3fe,%eax,%eax"),
        ("c3", "ret"),
        ("488b8630020000", "mov    0x230(%rsi),%rax"),
        ("83864002000001", "addl   $0x1,0x240(%rsi)"),
        ("64488b042578ffffff", "mov    %fs:0xffffffffffffff78,%rax"),
    )
}


def test_code_is_asked_for_in_one_place() -> None:
    """Bytes are decoded elsewhere only where they are moved, or followed to the last."""
    common = Path(__file__).parents[2] / "common"
    direct = re.compile(r"^from findleaks\.runtimes\.v8(\.decode)? import .*\b(instructions|decode)\b", re.MULTILINE)
    found = {str(file.relative_to(common)) for file in common.rglob("*.py") if direct.search(file.read_text())}
    assert found == {"runtimes/v8/listing.py", "runtimes/v8/formula.py", "counting/relocate.py"}


def test_a_debugger_that_cannot_tell() -> None:
    """Then our decoder reads; text that ends is the end."""
    target = FakeTarget({AT: bytes.fromhex("4889f8 c3")})
    ours = list(listing(target, AT, 4))
    assert len(ours) == 2
    target.disassembler = lambda address, code: None
    assert list(listing(target, AT, 4)) == ours
    target.disassembler = lambda address, code: iter([Disassembled(address, 3, "mov %rdi,%rax"), Disassembled(address + 3, 1, "(bad)")])
    assert list(listing(target, AT, 4)) == ours[:1]
    with pytest.raises(UnreadableMemory):
        listing(target, AT, 5)
    assert list(listing(target, AT, 0)) == []
