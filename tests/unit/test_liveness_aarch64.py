"""The registers that code on AArch64 reads again. Each handwritten snippet has the expected result beside it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from findleaks.disasm.aarch64_effects import AARCH64, REGISTERS, VECTORS
from findleaks.disasm.capstone_loader import require_capstone
from findleaks.disasm.liveness import Liveness
from findleaks.disasm.machine import Effect
from findleaks.disasm.system_calls import AARCH64_CALLS, X86_64_CALLS, argument_mask
from findleaks.target.arch import AARCH64 as ARCH
from findleaks.target.arch import NT_ARM_SVE, NT_PRFPREG
from findleaks.target.base import Range
from findleaks.target.register_words import note_words, vector_words

BASE, SLOT = 0x10000, 0x20018

CASES = {
    "a copy": ("ldp x8, x9, [x1]; stp x8, x9, [x0]", "x0 x1"),
    "a vector's copy": ("ldr q0, [x1]; str q0, [x0, x2]", "x0 x1 x2"),
    "overwritten": ("mov x0, #0; movi v0.2d, #0; fmov d1, x0; ldrb w2, [x0]; csel x3, x0, x2, eq", ""),
    "32 bits clear the upper half": ("mov w0, w1; str x0, [x1]", "x1"),
    "16 of 64 bits do not": ("movk x0, #1; str x0, [x1]", "x0 x1"),
    "nor does a field": ("bfi x0, x2, #0, #8; bfxil x3, x2, #0, #8; stp x0, x3, [x1]", "x0 x1 x2 x3"),
    "a lane": ("mov v0.d[1], x2; ld1 {v1.b}[3], [x3]; stp q0, q1, [x1]", "x1 x2 x3 v0 v1"),
    "the upper half": ("xtn2 v0.4s, v1.2d; str q0, [x1]", "x1 v0 v1"),
    "the lower one clears the rest": ("xtn v0.2s, v1.2d; ldr s2, [x1]; stp q0, q2, [x1]", "x1 v1"),
    "an added product": ("fmla v0.2d, v1.2d, v2.2d; str q0, [x1]", "x1 v0 v1 v2"),
    "a constant that is combined": ("orr v0.4s, #1; str q0, [x1]", "x1 v0"),
    "four vectors at once": ("ld4 {v0.2d-v3.2d}, [x1], x2; st1 {v0.2d-v3.2d}, [x0]", "x0 x1 x2"),
    "a table's": ("tbl v0.16b, {v1.16b, v2.16b}, v3.16b; tbx v4.16b, {v5.16b}, v6.16b", "v1 v2 v3 v4 v5 v6"),
    "written back": ("ldr x0, [x1], #8; str x2, [x3, #8]!", "x1 x2 x3"),
    "compared": ("cmp x0, x1; ccmp x2, #1, #0, eq; fcmp d0, #0.0", "x0 x1 x2 v0"),
    "an atomic exchange": ("swpal x0, x1, [x2]; ldadd x3, x4, [x2]; casp x6, x7, x8, x9, [x2]", "x0 x2 x3 x6 x7 x8 x9"),
    "an exclusive store": ("1: ldxr x0, [x1]; stxr w2, x3, [x1]; cbnz w2, 1b", "x1 x3"),
    "SVE with a predicate": ("add z0.b, p0/m, z0.b, z1.b; ld1b {z2.b}, p0/z, [x1]; cntb x2", "x1 x2 v0 v1 v2"),
    "a branch: either way": ("tbz x0, #1, 1f; str x1, [x2]; ret; 1: str x3, [x2]", "x0 x1 x2 x3"),
    "a loop": ("1: str x0, [x1]; ldr x0, [x2], #8; subs w3, w3, #1; b.ne 1b", "x0 x1 x2 x3"),
    "an endless loop": ("1: yield; b 1b", ""),
    "a system call of three arguments": ("mov x8, #64; svc #0; str x7, [x0]", "x0 x1 x2 x7"),
    "one that is not known": ("svc #0", "x0 x1 x2 x3 x4 x5 x8"),
    "a futex that waits": ("mov x8, #98; mov x1, #128; svc #0", "x0 x2 x3"),
    "another supervisor call": ("svc #1", "everything"),
    "an indirect jump": ("br x9", "everything"),
    "a jump by a table": ("adr x9, f0; ldrsw x10, [x9, x0]; add x9, x9, x10; br x9", "everything"),
    "a jump to what is known": ("adr x9, f_callee; br x9", "x0 x1"),
    "another stack": ("mov sp, x0", "everything"),
    "its own": ("sub sp, sp, x0; mov sp, x29; add sp, sp, #16; mov w0, #1", "x0"),
    "a return to a register": ("ret x3", "everything"),
    "one to what was put there": ("mov x30, x9", "everything"),
    "one to what was saved": ("mov x30, #1; ldp x29, x30, [sp], #16", ""),
    "signed": ("paciasp; autiasp", ""),
    "a call that reads its arguments": ("mov x1, #0; bl f_callee; str x9, [x0]", "x0 x9"),
    "one that overwrites": ("bl f_writer; stp x9, x10, [x0]; str q5, [x0]", "x0 x10"),
    "one by the procedure linkage table": ("mov x1, #0; bl f_stub; str x9, [x0]", "x0 x9"),
    "one of what is not known": ("blr x3", "everything"),
    "one that calls such": ("bl f_caller", "everything"),
    "one that never returns": ("bl f_last", "x0"),
    "an unknown instruction": (".inst 0xffffffff", "everything"),
    "a trap": ("brk #1000", ""),
    "a debugger's": ("brk #0", "everything"),
}
CALLEES = """
f_callee: str x0, [x1]; ret
f_writer: mov x9, #0; movi v5.2d, #0; ret
f_caller: blr x0; ret
f_last: udf #0
f_stub: adrp x16, slot; ldr x17, [x16, :lo12:slot]; add x16, x16, :lo12:slot; br x17
"""


class Snippets:
    """Assembled code with one function for each label; it implements findleaks.disasm.liveness.Code."""

    def __init__(self, text: str, folder: Path) -> None:
        source, made, linked, flat = (folder / f"a.{end}" for end in ("s", "o", "elf", "bin"))
        source.write_text(f".arch armv8.2-a+sve\n.text\n{text}\n")
        subprocess.run(["aarch64-linux-gnu-as", "-o", made, source], check=True)
        subprocess.run(["aarch64-linux-gnu-ld", "-Ttext", hex(BASE), "-e", "0", f"--defsym=slot={SLOT}", "-o", linked, made], check=True)
        subprocess.run(["aarch64-linux-gnu-objcopy", "-O", "binary", "-j", ".text", linked, flat], check=True)
        names = subprocess.run(["aarch64-linux-gnu-nm", linked], capture_output=True, text=True, check=True).stdout
        self.at = {name: int(address, 16) for address, name in re.findall(r"^([0-9a-f]+) [tT] (\w+)$", names, re.M)}
        self.code = flat.read_bytes()
        self.starts = sorted(address for name, address in self.at.items() if name.startswith("f"))

    def read(self, address: int, size: int) -> bytes:
        return self.code[address - BASE : address - BASE + size]

    def extent(self, pc: int) -> Range | None:
        ends = [*self.starts[1:], BASE + len(self.code)]
        return next((Range(start, end) for start, end in zip(self.starts, ends) if start <= pc < end), None)

    def at_top(self, pc: int) -> bool:
        return True

    def pointer(self, slot: int, one: Effect) -> int:
        return self.at["f_callee"] if slot == SLOT and AARCH64.in_stub(self.read, one) else 0

    def arguments_of_last(self, address: int) -> int | None:
        return 1 if address == self.at["f_last"] else None

    def system_call(self, numbers: tuple[int | None, ...]) -> tuple[int, str]:
        known = {f"x{at}": number for at, number in enumerate(numbers) if number is not None}
        return argument_mask(known.get("x8", -1), known, AARCH64_CALLS), "next"


@pytest.fixture(scope="module")
def snippets(tmp_path_factory: pytest.TempPathFactory) -> Snippets:
    text = "\n".join(f"f{number}: {code}; ret" for number, (code, _) in enumerate(CASES.values()))
    return Snippets(text + CALLEES, tmp_path_factory.mktemp("code"))


def list_names(mask: int) -> set[str]:
    return {name for name in (*(f"x{n}" for n in range(30)), *(f"v{n}" for n in range(32))) if AARCH64.mask_of(name) & mask}


@pytest.mark.parametrize("name", CASES)
def test_registers(name: str, snippets: Snippets) -> None:
    place = snippets.at[f"f{list(CASES).index(name)}"]
    use = Liveness(snippets, require_capstone(), AARCH64).at(place).use & REGISTERS
    assert ({"everything"} if use & VECTORS == VECTORS else list_names(use) - {"x29"}) == set(CASES[name][1].split())


def test_registers_that_the_caller_reads(snippets: Snippets) -> None:
    liveness = Liveness(snippets, require_capstone(), AARCH64)
    assert list_names(liveness.at(snippets.at["f_writer"]).through) == list_names(REGISTERS) - {"x9", "v5"}
    assert list_names(liveness.find_clobbered(snippets.at["f_writer"])) == {"x9", "v5"}
    # At a system call that its registers identify: read(), then a futex that waits.
    svc = snippets.at[f"f{list(CASES).index('one that is not known')}"]
    assert list_names(liveness.at(svc, known=((8, 63), (1, 0x1234))).use) == {"x0", "x1", "x2", "x8"}
    assert list_names(liveness.at(svc, known=((8, 98), (1, 0x80))).use) == {"x0", "x1", "x2", "x3", "x8"}


def test_numbers_of_arguments_are_those_of_x86_64() -> None:
    """The names of the system calls are those in Linux's headers."""

    def numbers(compiler: str) -> Mapping[str, int]:
        command = [compiler, "-E", "-dM", "-include", "asm/unistd.h", "-x", "c", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        defined = dict(re.findall(r"#define __NR(?:3264)?_(\w+) (\w+)", said))
        whole = {name: defined.get(value.partition("_NR")[2].partition("_")[2], value) for name, value in defined.items()}
        return {name: int(value) for name, value in whole.items() if value.isdigit()}

    theirs, ours = numbers("gcc"), numbers("aarch64-linux-gnu-gcc")
    common = theirs.keys() & ours.keys()
    assert len(common) > 280
    assert {name for name in common if X86_64_CALLS.argument_count(theirs[name]) != AARCH64_CALLS.argument_count(ours[name])} == set()
    assert (ours["futex"], {ours[name] for name in ("rt_sigreturn", "exit", "exit_group")}) == (AARCH64_CALLS.futex, AARCH64_CALLS.ending)


def test_names_of_words() -> None:
    """Scalable registers (SVE) are named by the vector registers that they contain, and by those that are saved in their place."""
    plain = note_words(ARCH, ((NT_PRFPREG, 0, 528), (NT_ARM_SVE, 0x2000200020, 544)))
    scalable = note_words(ARCH, ((NT_PRFPREG, 0, 528), (NT_ARM_SVE, 0x100200020, 16 + 32 * 32 + 80)))
    first = len(ARCH.registers)
    assert plain[first : first + 66] == (*(f"v{n // 2}" for n in range(64)), "", "")
    assert plain[first + 66 :] == ("", "", *(f"v{n // 2}" for n in range(64)), "", "")
    assert scalable[first + 66 :] == ("", "", *(f"v{n // 4}" for n in range(128)), *[""] * 10)
    assert vector_words("z7", 4, "v") == ["v7"] * 4
