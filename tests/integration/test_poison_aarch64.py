"""What is said of AArch64's code, against an emulated processor: instructions one by one, and programs that go on as if nothing had been
overwritten."""

from __future__ import annotations

import subprocess
from pathlib import Path

import executed_aarch64
import foreign_truth
import pytest
import truth
from elftools.elf.elffile import ELFFile
from foreign import ARM64
from poison_aarch64 import Outcome, Stopped, emulator, poisoned

from findleaks.disasm.aarch64_effects import AARCH64

pytestmark = pytest.mark.matrix

BUILDS = {
    "-O0": ("bookworm", ("-O0",)),
    "-O2": ("trixie", ("-O2",)),
    "-O3": ("bookworm", ("-O3",)),
    "signed": ("bookworm", ("-O2", "-mbranch-protection=standard")),
    "-O2 of bullseye": ("bullseye", ("-O2", "-fomit-frame-pointer")),
}


def built(build: str, folder: Path) -> tuple[Path, Path, int]:
    """The program, its libraries' tree and the address of main."""
    suite, flags = BUILDS[build]
    program = folder / "mixed"
    more = ("-no-pie", "-Wl,--no-as-needed", "-lm")
    foreign_truth.compiled(ARM64, suite, truth.PROGRAMS / "mixed.c", program, *flags, *more)
    with program.open("rb") as file:
        main = ELFFile(file).get_section_by_name(".symtab").get_symbol_by_name("main")[0]["st_value"]
    return program, foreign_truth.tree(ARM64, suite), main


def outcome(build: str, folder: Path, blind: bool = False) -> tuple[Outcome, bytes]:
    """And what the program prints when nothing disturbs it."""
    program, root, main = built(build, folder)
    plain = subprocess.run([str(emulator()), "-L", str(root), str(program)], capture_output=True, check=True).stdout
    return poisoned([str(program)], root, main, seed=1, steps=40, most=150, blind=blind), plain


@pytest.mark.parametrize("build", BUILDS)
def test_a_program_does_not_notice(build: str, tmp_path: Path) -> None:
    made, plain = outcome(build, tmp_path)
    assert (made.status, made.output) == (0, plain), made.last
    assert made.stops == 150
    assert made.dead[0] >= 150, "general registers"


def test_it_would_notice_otherwise(tmp_path: Path) -> None:
    """The same with what is read again overwritten, too."""
    made, plain = outcome("-O2", tmp_path, blind=True)
    assert (made.status, made.output) != (0, plain)


def test_what_instructions_do(tmp_path: Path) -> None:
    """Each is executed twice, with other contents of what it is said not to read: two of every form that glibc has, and a list."""
    program, root, main = built("-O2 of bullseye", tmp_path)
    library = tmp_path / "instructions.so"
    source = truth.PROGRAMS / "instructions_aarch64.S"
    subprocess.run([ARM64.compiler, "-shared", "-nostdlib", "-o", library, source], check=True)
    with Stopped([str(program)], root, main, str(library)) as stopped:
        wanted = ("libc-2.31.so", "libm-2.31.so", library.name)
        lines = [line.split() for line in Path(f"/proc/{stopped.process.pid}/maps").read_text().splitlines()]
        files = {Path(line[5]): int(line[0].split("-")[0], 16) for line in reversed(lines) if len(line) > 5 and line[5].endswith(wanted)}
        assert len(files) == len(wanted)
        found = executed_aarch64.checked(stopped, files, seed=1)
    assert found.wrong == []
    assert found.executed > 1000
    assert len(found.names) > 350


def test_listed_instructions_overwrite(tmp_path: Path) -> None:
    """What is listed as overwriting does not slip through as what is not known."""
    made = tmp_path / "instructions.o"
    subprocess.run([ARM64.compiler, "-c", "-o", made, truth.PROGRAMS / "instructions_aarch64.S"], check=True)
    overwriting = {insn.insn_name(): bool(AARCH64.effect(insn).kills) for insn in executed_aarch64.instructions(made)}
    keeping = {name for name, overwrites in overwriting.items() if not overwrites}
    assert len(overwriting) - len(keeping) > 220
    assert not keeping & {
        "mov",
        "ldr",
        "ldp",
        "ldpsw",
        "ldnp",
        "ldxr",
        "ldaxp",
        "swp",
        "ldadd",
        "ldclr",
        "csel",
        "umull",
        "dup",
        "ext",
        "ld4r",
    }
    assert {"movk", "bfi", "fmla", "xtn2", "bsl", "tbx", "cas", "casp", "usra", "sli", "aese"} <= keeping
