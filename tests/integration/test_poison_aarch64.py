"""Dead registers and words in AArch64 code, checked with an emulated processor: single instructions, and programs that continue after
dead words are overwritten."""

from __future__ import annotations

import subprocess
from pathlib import Path

import executed_aarch64
import foreign_truth
import pytest
import truth
from elftools.elf.elffile import ELFFile
from foreign import ARM64
from poison_aarch64 import Outcome, Stopped, emulator, poison_program

from findleaks.disasm.aarch64_effects import AARCH64

pytestmark = pytest.mark.matrix

BUILDS = {
    "-O0": ("bookworm", ("-O0",)),
    "-O2": ("trixie", ("-O2",)),
    "-O3": ("bookworm", ("-O3",)),
    "signed": ("bookworm", ("-O2", "-mbranch-protection=standard")),
    "-O2 of bullseye": ("bullseye", ("-O2", "-fomit-frame-pointer")),
}


def build_program(build: str, folder: Path) -> tuple[Path, Path, int]:
    """Return the program, the tree of its libraries, and the address of main."""
    suite, flags = BUILDS[build]
    program = folder / "mixed"
    more = ("-no-pie", "-Wl,--no-as-needed", "-lm")
    foreign_truth.compile_for_glibc(ARM64, suite, truth.PROGRAMS / "mixed.c", program, *flags, *more)
    with program.open("rb") as file:
        main = ELFFile(file).get_section_by_name(".symtab").get_symbol_by_name("main")[0]["st_value"]
    return program, foreign_truth.tree(ARM64, suite), main


def outcome(build: str, folder: Path, blind: bool = False) -> tuple[Outcome, bytes]:
    """Return the outcome, and the output of the program without the overwriting."""
    program, root, main = build_program(build, folder)
    plain = subprocess.run([str(emulator()), "-L", str(root), str(program)], capture_output=True, check=True).stdout
    return poison_program([str(program)], root, main, seed=1, steps=40, most=150, blind=blind), plain


@pytest.mark.parametrize("build", BUILDS)
def test_program_is_unaffected(build: str, tmp_path: Path) -> None:
    made, plain = outcome(build, tmp_path)
    assert (made.status, made.output) == (0, plain), made.last
    assert made.stops == 150
    assert made.dead[0] >= 150, "general registers"


def test_overwritten_live_words_are_detected(tmp_path: Path) -> None:
    """If live words are overwritten too, the program fails, so the test would detect an error."""
    made, plain = outcome("-O2", tmp_path, blind=True)
    assert (made.status, made.output) != (0, plain)


def test_instructions_read_only_declared_registers(tmp_path: Path) -> None:
    """Each instruction is executed twice, with different values in the registers that it does not read according to findleaks. The test
    covers two instructions of every form in glibc, and a list of other instructions."""
    program, root, main = build_program("-O2 of bullseye", tmp_path)
    library = tmp_path / "instructions.so"
    source = truth.PROGRAMS / "instructions_aarch64.S"
    subprocess.run([ARM64.compiler, "-shared", "-nostdlib", "-o", library, source], check=True)
    with Stopped([str(program)], root, main, str(library)) as stopped:
        wanted = ("libc-2.31.so", "libm-2.31.so", library.name)
        lines = [line.split() for line in Path(f"/proc/{stopped.process.pid}/maps").read_text().splitlines()]
        files = {Path(line[5]): int(line[0].split("-")[0], 16) for line in reversed(lines) if len(line) > 5 and line[5].endswith(wanted)}
        assert len(files) == len(wanted)
        found = executed_aarch64.check_instructions(stopped, files, seed=1)
    assert found.wrong == []
    assert found.executed > 1000
    assert len(found.names) > 350


def test_listed_instructions_overwrite(tmp_path: Path) -> None:
    """Instructions that are listed as overwriting a register are not treated as unknown instructions."""
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
