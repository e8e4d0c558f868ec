"""Call frame information compared with pyelftools: every row of every function of libc and libstdc++."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import fake
import pytest
from elftools.dwarf.callframe import FDE
from elftools.elf.elffile import ELFFile
from variants import mark_matrix_except

from findleaks.target.base import Module
from findleaks.unwind.cfi import FrameTable, Row, Rule

BIAS = 0x7F0000000000
LEAST = {"libc.so.6": 10_000, "libstdc++.so.6": 10_000}
"""Rows at the very least, so that a comparison of nothing does not pass."""

RowRules = tuple[tuple[int, int, bytes], dict[int, Rule]]
"""The canonical frame address's register, offset and expression; the rules of registers that are not just left alone."""

HOW = {
    "UNDEFINED": "undefined",
    "OFFSET": "offset",
    "VAL_OFFSET": "value",
    "REGISTER": "register",
    "EXPRESSION": "saved",
    "VAL_EXPRESSION": "is",
}


def convert_pyelftools_row(row: dict[Any, Any]) -> RowRules:
    cfa, rules = row["cfa"], {}
    for register, rule in row.items():
        if isinstance(register, int) and rule.type != "SAME_VALUE":
            expression = rule.type.endswith("EXPRESSION")
            rules[register] = Rule(HOW[rule.type], 0 if expression else rule.arg or 0, bytes(rule.arg) if expression else b"")
    return ((-1, 0, bytes(cfa.expr)) if cfa.expr is not None else (cfa.reg, cfa.offset, b"")), rules


def convert_own_row(row: Row) -> RowRules:
    return ((-1, 0, row.expression) if row.expression else (row.register, row.offset, b"")), row.rules


@pytest.mark.parametrize("name", mark_matrix_except(LEAST.keys(), "libc.so.6"))
def test_every_row_equals_that_of_pyelftools(name: str) -> None:
    """Rows are compared at the first byte of each row, and at the last byte of each function."""
    path = subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
    compared = 0
    with Path(path).open("rb") as file:
        elf = ELFFile(file)
        loads = [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_LOAD"]
        end = max(segment["p_vaddr"] + segment["p_memsz"] for segment in loads)
        target = fake.FakeTarget({BIAS + segment["p_vaddr"]: segment.data() for segment in loads})
        table = FrameTable(target, Module(path, BIAS, BIAS, BIAS + end))
        for entry in elf.get_dwarf_info(relocate_dwarf_sections=False).EH_CFI_entries():
            if not isinstance(entry, FDE):
                continue
            begin = entry["initial_location"]
            rows = entry.get_decoded().table
            last = begin + entry["address_range"] - 1
            for pc, row in [*((row["pc"], row) for row in rows), (last, rows[-1])]:
                found = table.row(BIAS + pc)
                assert found is not None, hex(pc)
                assert convert_own_row(found) == convert_pyelftools_row(row), hex(pc)
            compared += len(rows)
    assert compared > LEAST[name]


SIGNED = """
.text
.globl plain, signed
.macro function name, sign:vararg
\\name:
    .cfi_startproc
    \\sign
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset %rbx, -16
    \\sign
    nop
    pop %rbx
    .cfi_def_cfa_offset 8
    .cfi_restore %rbx
    ret
    .cfi_endproc
.endm
function plain
function signed, .cfi_escape 0x2e, 0x55, 0x00
"""
"""GNU_args_size of 0x55 and a nop stand for the instruction until the file is linked: ld refuses what it does not know."""


@pytest.mark.parametrize(
    "code",
    [b"\x2c\0\0", b"\x2d\0\0", b"\x2b\2\x7c"],
    ids=["AARCH64_negate_ra_state_with_pc", "AARCH64_negate_ra_state", "AARCH64_set_ra_state"],
)
def test_a_signed_return_address_does_not_change_the_rules(code: bytes, tmp_path: Path) -> None:
    """The rows are those of the same function without the instruction that signs the return address."""
    source, path = tmp_path / "signed.s", tmp_path / "signed.so"
    source.write_text(SIGNED)
    subprocess.run(["gcc", "-shared", "-nostdlib", "-o", path, source], check=True)
    linked = path.read_bytes()
    assert linked.count(b"\x2e\x55\0") == 2
    path.write_bytes(linked.replace(b"\x2e\x55\0", code))
    with path.open("rb") as file:
        elf = ELFFile(file)
        loads = [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_LOAD"]
        where = {symbol.name: symbol["st_value"] for symbol in elf.get_section_by_name(".dynsym").iter_symbols()}
        end = max(segment["p_vaddr"] + segment["p_memsz"] for segment in loads)
        pages = {BIAS + segment["p_vaddr"] // 0x1000 * 0x1000: segment for segment in loads}
        target = fake.FakeTarget(
            {at: (bytes(segment["p_vaddr"] % 0x1000) + segment.data()).ljust(0x1000, b"\0") for at, segment in pages.items()}
        )
    table = FrameTable(target, Module(str(path), BIAS, BIAS, BIAS + end))
    offsets = {0: 8, 1: 16, 2: 16, 3: 8}  # offset of the function's byte: distance from the stack pointer to the canonical frame address
    for at, offset in offsets.items():
        plain, signed = (table.row(BIAS + where[name] + at) for name in ("plain", "signed"))
        assert plain is not None
        assert plain == signed
        assert plain.offset == offset, at
