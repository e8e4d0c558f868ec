"""The registers and the bytes of the red zone that code reads again. Each handwritten snippet has the expected result beside it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from findleaks.disasm.capstone_loader import load_capstone
from findleaks.disasm.effects import ALL_ZONE, REGISTERS, ZONE, ZONE_AT, Effect, mask_of
from findleaks.disasm.liveness import UNKNOWN, Liveness
from findleaks.disasm.registers import general
from findleaks.disasm.system_calls import argument_mask
from findleaks.target.base import Range
from findleaks.target.register_words import vector_words, xsave_words

BASE = 0x10000


class Snippet:
    """Assembled code with one function for each label; it implements findleaks.disasm.liveness.Code."""

    def __init__(self, text: str, folder: Path) -> None:
        source, made, flat = folder / "a.s", folder / "a.o", folder / "a.bin"
        source.write_text(f".text\n{text}\n")
        subprocess.run(["as", "-o", made, source], check=True)
        subprocess.run(["ld", "-Ttext", hex(BASE), "-e", "0", "-o", folder / "a", made], check=True)
        subprocess.run(["objcopy", "-O", "binary", "-j", ".text", folder / "a", flat], check=True)
        names = subprocess.run(["nm", folder / "a"], capture_output=True, text=True, check=True).stdout
        self.at = {name: int(address, 16) for address, name in re.findall(r"^([0-9a-f]+) [tT] (\w+)$", names, re.M)}
        self.code = flat.read_bytes()

    def read(self, address: int, size: int) -> bytes:
        return self.code[address - BASE : address - BASE + size]

    def extent(self, pc: int) -> Range | None:
        starts = sorted(address for name, address in self.at.items() if name.startswith("f"))
        ends = [*starts[1:], BASE + len(self.code)]
        return next((Range(start, end) for start, end in zip(starts, ends) if start <= pc < end), None)

    def at_top(self, pc: int) -> bool:
        return True

    def pointer(self, slot: int, jump: Effect) -> int:
        return 0

    def arguments_of_last(self, address: int) -> int | None:
        return 1 if address == self.at.get("f_last") else None

    def system_call(self, numbers: tuple[int | None, ...]) -> tuple[int, str]:
        return argument_mask(-1 if numbers[0] is None else numbers[0], {}), "next"


def find_live(text: str, folder: Path) -> tuple[set[str], set[int]]:
    """Return the registers (xmm, ymm and zmm by their parts) and the offsets of the red zone that code reads from the label `here` on."""
    snippet = Snippet(text, folder)
    capstone = load_capstone()
    assert capstone is not None
    use = Liveness(snippet, capstone).at(snippet.at["here"]).use
    if use & REGISTERS == REGISTERS:
        return {"everything"}, set()
    names = [
        *(["rax", "rcx", "rdx", "rbx", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12"]),
        *(f"{size}mm{n}" for size in "xyz" for n in range(16)),
        "st0",
        "k1",
    ]
    return {name for name in names if mask_of(name) & use}, {at - ZONE for at in range(ZONE) if use >> (ZONE_AT + at) & 1}


CASES = {
    "a copy of two pointers": ("movups %xmm0, (%rdi)", "rdi xmm0"),
    "in the middle of a copy": ("movdqu (%rsi), %xmm1; movups %xmm0, (%rdi); movups %xmm1, 16(%rdi)", "rdi rsi xmm0"),
    "what malloc returned, before it is stored": ("mov %rax, 8(%rdi)", "rax rdi"),
    "overwritten": ("xor %eax, %eax; pxor %xmm0, %xmm0; mov %rax, (%rdi); movups %xmm0, (%rdi)", "rdi"),
    "a 32-bit result clears the upper half": ("mov %ecx, %eax; mov %rax, (%rdi)", "rcx rdi"),
    "a 16-bit or 8-bit result does not": ("mov %cx, %ax; mov %cl, %bl; mov %rax, (%rdi); mov %rbx, (%rdi)", "rax rbx rcx rdi"),
    "a conditional move may leave it": ("cmovz %ecx, %eax; mov %eax, (%rdi)", "rax rcx rdi"),
    "bsf leaves it for zero": ("bsf %rcx, %rax; mov %rax, (%rdi)", "rax rcx rdi"),
    "a merging load": ("movhps (%rsi), %xmm0; movups %xmm0, (%rdi)", "rdi rsi xmm0"),
    "a load that clears the rest": ("movsd (%rsi), %xmm0; movups %xmm0, (%rdi)", "rdi rsi"),
    "between registers it does not": ("movsd %xmm1, %xmm0; movups %xmm0, (%rdi)", "rdi xmm0 xmm1"),
    "VEX clears the upper half": ("vmovdqu (%rsi), %xmm0; vmovups %ymm0, (%rdi)", "rdi rsi"),
    "SSE does not": ("movdqu (%rsi), %xmm0; vmovups %ymm0, (%rdi)", "rdi rsi ymm0"),
    "a masked load keeps a part": ("vmovdqu64 (%rsi), %zmm0{%k1}; vmovups %zmm0, (%rdi)", "rdi rsi xmm0 ymm0 zmm0 k1"),
    "a gather keeps a part": ("vpgatherdq %ymm1, (%rsi,%xmm2), %ymm0; vmovups %xmm0, (%rdi)", "rdi rsi xmm0 xmm1 ymm1 xmm2 ymm0"),
    "vzeroupper": ("vzeroupper; vmovups %ymm3, (%rdi)", "rdi xmm3"),
    "an operand that is not named": ("blendvps %xmm0, (%rsi), %xmm1; movups %xmm1, (%rdi)", "rdi rsi xmm0 xmm1"),
    "rep movs": ("rep movsq", "rcx rdi rsi rax"),
    "x87": ("fistpll (%rdi)", "rdi st0 rax"),
    "a branch: either way": ("test %ecx, %ecx; jz 1f; mov %rsi, (%rdi); ret; 1: mov %rdx, (%rdi)", "rcx rsi rdi rdx"),
    "a loop": ("1: mov %rax, (%rdi); mov (%rdx), %rax; lea 8(%rdx), %rdx; dec %ecx; jnz 1b", "rax rdi rdx rcx"),
    "an endless loop": ("1: pause; jmp 1b", ""),
    "a system call of three arguments": ("xor %eax, %eax; syscall; mov %r8, (%rdi)", "rdi rsi rdx r8"),
    "a system call without": ("mov $34, %eax; syscall; mov %rcx, (%rdi); mov %r11, (%rdi)", "rdi"),
    "an indirect jump": ("jmp *%rax", "everything"),
    "an unknown instruction": (".byte 0x0f, 0x38, 0xf8, 0x07; ret", "everything"),  # movdir64b, or an invalid instruction
    "another stack": ("mov (%rdi), %rsp; ret", "everything"),
    "a return to a register": ("mov %r11, (%rsp); ret", "everything"),
    "a pushed return": ("push %rcx; ret", "everything"),
    "a call that reads its argument": ("xor %esi, %esi; call f_callee; mov %r9, (%rdi)", "rdi r9"),
    "one that overwrites": ("call f_writer; mov %r9, (%rdi); movups %xmm5, (%rdi)", "rdi"),
    "one that calls what is not known": ("call f_caller", "everything"),
    "one that never returns": ("call f_last", "rdi"),
}


@pytest.mark.parametrize("name", CASES)
def test_registers(name: str, tmp_path: Path) -> None:
    code, truth = CASES[name]
    callees = "f_callee: mov %rdi, (%rsi); ret\nf_writer: xor %r9d, %r9d; pxor %xmm5, %xmm5; ret\nf_caller: call *%rax; ret\nf_last: hlt"
    found, _ = find_live(f"f: here: {code}; ret\n{callees}", tmp_path)
    assert found == set(truth.split())


ZONES = {
    "its only pointer": ("mov -16(%rsp), %rax", range(-16, -8)),
    "written first": ("mov %rax, -16(%rsp); mov -16(%rsp), %rcx", range(0)),
    "half of it written first": ("mov %eax, -16(%rsp); mov -16(%rsp), %rcx", range(-12, -8)),
    "below what was pushed": ("push %rbx; mov -16(%rsp), %rax; pop %rbx", range(-24, -16)),
    "pushed over": ("push %rbx; mov (%rsp), %rax; pop %rbx", range(0)),
    "called over": ("call f_callee; mov -16(%rsp), %rax", range(0)),
    "in a frame made later": ("sub $32, %rsp; mov 16(%rsp), %rax; add $32, %rsp", range(-16, -8)),
    "with an index": ("mov -64(%rsp,%rcx,8), %rax", range(-128, 0)),
    "of two pointers": ("movups -32(%rsp), %xmm0", range(-32, -16)),
    "either way": ("test %ecx, %ecx; jz 1f; mov %rax, -8(%rsp); 1: mov -8(%rsp), %rax", range(-8, 0)),
}


@pytest.mark.parametrize("name", ZONES)
def test_red_zones(name: str, tmp_path: Path) -> None:
    code, truth = ZONES[name]
    _, found = find_live(f"f: here: {code}; ret\nf_callee: ret", tmp_path)
    assert found == set(truth)


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("sub $24, %rsp; mov %rax, 8(%rsp); call f_other; add $24, %rsp", "never"),
        ("push %rbx; pop %rbx", "never"),
        ("mov %rax, -8(%rsp)", "named"),
        ("mov -64(%rsp,%rcx,8), %rax", "named"),
        ("lea -64(%rsp), %rax", "pointed to"),
        ("mov %rsp, %rax", "pointed to"),
        ("push %rbp; mov %rsp, %rbp; mov %rdi, -24(%rbp); pop %rbp", "named"),
    ],
)
def test_who_uses_the_red_zone(code: str, how: str, tmp_path: Path) -> None:
    snippet = Snippet(f"f: here: {code}; ret\nf_other: ret", tmp_path)
    capstone = load_capstone()
    assert capstone is not None
    assert Liveness(snippet, capstone).below(snippet.at["here"], 0 if "rbp" in code else None) == how


def test_too_much_code_is_not_followed(tmp_path: Path) -> None:
    found, _ = find_live("f: here: " + "xor %ecx, %ecx\n" * 4000 + "ret", tmp_path)
    assert {"rax", "rdi", "xmm3", "zmm9"} <= found


def test_total_amount_of_decoded_code_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many threads at many addresses. At the limit, later code may read everything. Results from before the limit are still valid."""
    monkeypatch.setattr("findleaks.disasm.liveness.MAX_IN_ALL", 10)
    snippet = Snippet("f: here: xor %edi, %edi; ret\nf_other: here2:" + "xor %esi, %esi\n" * 20 + "ret", tmp_path)
    capstone = load_capstone()
    assert capstone is not None
    liveness = Liveness(snippet, capstone)
    first, second = snippet.at["here"], snippet.at["here2"]
    assert not liveness.at(first).use & REGISTERS
    assert not liveness.exhausted
    assert (liveness.at(second), liveness.find_clobbered(second), liveness.below(second, None)) == (UNKNOWN, 0, "pointed to")
    assert liveness.exhausted
    assert not liveness.at(first).use & REGISTERS


def test_a_word_of_one_of_two_registers() -> None:
    assert mask_of("zmm2 or xmm17") == mask_of("zmm2") | mask_of("xmm17") != 0
    assert mask_of("zmm2 or other") == 0


def test_registers_that_the_caller_reads(tmp_path: Path) -> None:
    """The caller may read a register only if no path overwrites it. gcc assumes that a register which the function
    overwrites on some path has no value for the caller."""
    snippet = Snippet("f: here: test %ecx, %ecx; jz 1f; xor %edx, %edx; 1: xor %esi, %esi; ret", tmp_path)
    capstone = load_capstone()
    assert capstone is not None
    liveness = Liveness(snippet, capstone)
    through = liveness.at(snippet.at["here"]).through
    assert through & general("rdx", "rdi", "rcx") == general("rdx", "rdi", "rcx")
    assert not through & (general("rsi") | ALL_ZONE)
    assert liveness.find_clobbered(snippet.at["here"]) == general("rdx", "rsi")


@pytest.mark.parametrize(
    ("features", "size", "places"),
    [
        (0x2E7, 2696, {1088: "k0", 1152: "zmm0", 1664 + 64: "xmm17", 1664 + 64 + 16: "ymm17"}),
        (0x2E7, 2440, {832: "k0", 896: "zmm0", 1408 + 64: "xmm17", 1408 + 64 + 32: "zmm17"}),
        (0x7, 832, {160: "xmm0", 576 + 16: "ymm1"}),
        (0x2E7, 2500, {160: "xmm0", 576: "ymm0", 1088: "", 832: ""}),
        # processors by Intel, or by AMD as GDB 13 writes them
        (0xE7, 2688, {576: "ymm0", 832: "k0", 1152: "zmm0 or zmm8", 1664: "xmm16 or xmm20", 2624: "xmm31", 2680: "zmm31"}),
        (0, 512, {32: "st0", 160 + 15 * 16: "xmm15", 8: "", 416: ""}),
    ],
)
def test_names_of_words(features: int, size: int, places: dict[int, str]) -> None:
    names = xsave_words(features, size)
    assert len(names) == size // 8
    assert {at: names[at // 8] for at in places} == places
    assert vector_words("zmm7", 8) == ["xmm7"] * 2 + ["ymm7"] * 2 + ["zmm7"] * 4
